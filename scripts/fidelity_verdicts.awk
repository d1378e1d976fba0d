# The judgement on the recipes of one setting, for scripts/fidelity.sh: rows of a Markdown table.
#
#   awk -v baseline=RECIPE -v setting=NAME -v limit=PERCENT -v eighth_limit=PERCENT
#       -f fidelity_pairs.awk -f fidelity_verdicts.awk RESULTS
#
# A mean is within its limit, or within two standard errors of 0 where the standard error is at most 0.15 %.

function is_within(recipe, k, most,    error) {
    statistics(difference, recipe, k)
    error = count > 1 ? deviation / sqrt(count) : 0
    return magnitude(mean) <= most || (count > 1 && error <= 0.15 && magnitude(mean) <= 2 * error)
}

# Runs that diverged where the baseline did not.
function lost(recipe,    j, seed, runs_lost) {
    for (j = 1; j <= runs[recipe]; j++) {
        seed = seed_of[recipe, j]
        runs_lost += ((recipe, seed) in diverged) && !((baseline, seed) in diverged)
    }
    return runs_lost + 0
}

function verdict(recipe,    k, worst, where, good, pairs) {
    good = 1
    for (k = 1; k <= 8; k++) {
        good = is_within(recipe, k, eighth_limit) && good
        if (count && (!where || magnitude(mean) > magnitude(worst))) { worst = mean; where = k }
    }
    statistics(difference, recipe, 0)
    pairs = count (lost(recipe) ? ", " lost(recipe) " diverged" : "")
    printf "| %s | %s | %s | %s | %s |", setting, recipe, pairs, mean_difference(difference, recipe, 0), \
        lost(recipe) ? "beyond" : !count ? "–" : is_within(recipe, 0, limit) ? "within" : "beyond"
    if (where) printf " %s (%d/8) | %s |\n", mean_difference(difference, recipe, where), where, good && !lost(recipe) ? "within" : "beyond"
    else print " – | – |"
}

END {
    compare()
    for (i = 1; i <= recipes; i++) if (recipe_of[i] != baseline) verdict(recipe_of[i])
}
