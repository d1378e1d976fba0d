# The tables of a setting for scripts/fidelity.sh, in Markdown.
#
#   awk -v baseline=RECIPE -f fidelity_pairs.awk -f fidelity_tables.awk RESULTS

function percent(x) { return sprintf("%+.2f", x) }

function mean_difference(recipe) { # "+0.22 ± 0.10 %"
    statistics(difference, recipe, 0)
    if (!count) return ""
    return percent(mean) (count > 1 ? sprintf(" ± %.2f", deviation / sqrt(count)) : "") " %"
}

function recipe_row(recipe,    k, line) {
    statistics(loss, recipe, 0)
    line = "| " recipe " | " runs[recipe] " | " (count ? sprintf("%.4f", mean) : "–") " | "
    line = line (recipe == baseline ? "" : mean_difference(recipe)) " |"
    for (k = 1; k <= 8; k++) {
        if (recipe == baseline) statistics(loss, recipe, k)
        else statistics(difference, recipe, k)
        line = line " " (!count ? "–" : recipe == baseline ? sprintf("%.3f", mean) : percent(mean)) " |"
    }
    print line
}

END {
    compare()
    print "| recipe | runs | validation loss | difference | 1/8 | 2/8 | 3/8 | 4/8 | 5/8 | 6/8 | 7/8 | 8/8 |"
    print "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for (i = 1; i <= recipes; i++) recipe_row(recipe_of[i])
}
