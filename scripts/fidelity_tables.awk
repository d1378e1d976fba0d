# The tables of a setting for scripts/fidelity.sh, in Markdown.
#
#   awk -v baseline=RECIPE -v picture=FILE -f fidelity_pairs.awk -f fidelity_texts.awk -f fidelity_tables.awk RESULTS

function recipe_row(recipe,    j, k, lost, line) {
    for (j = 1; j <= runs[recipe]; j++) lost += (recipe, seed_of[recipe, j]) in diverged
    statistics(loss, recipe, 0)
    line = "| " recipe " | " runs[recipe] (lost ? ", " lost " diverged" : "") " | " (count ? sprintf("%.4f", mean) : "–") " | "
    line = line (recipe == baseline ? "" : mean_difference(difference, recipe, 0)) " |"
    for (k = 1; k <= 8; k++) {
        if (recipe == baseline) statistics(loss, recipe, k)
        else statistics(difference, recipe, k)
        line = line " " (!count ? "–" : recipe == baseline ? sprintf("%.3f", mean) : signed(mean)) " |"
    }
    for (k = 9; k <= last_evaluation; k++) {
        statistics(loss, recipe, k)
        line = line " " (recipe != baseline ? mean_difference(difference, recipe, k) : count ? sprintf("%.4f", mean) : "–") " |"
    }
    print line
}

# How far the baseline's runs of one seed lie apart whose micro-batches are cut in other ways.
function scatter(    j, k, n, seed, key, low, high, sum, ways, worst) {
    for (j = 1; j <= runs[baseline]; j++) {
        key = seed = seed_of[baseline, j]
        sub(/@.*/, "", seed)
        if (!((baseline, key, 0) in loss)) continue
        k = loss[baseline, key, 0]
        if (!(seed in n)) { order[++order_count] = seed; low[seed] = high[seed] = k }
        n[seed]++
        sum[seed] += k
        if (k < low[seed]) low[seed] = k
        if (k > high[seed]) high[seed] = k
        ways[seed] = ways[seed] (n[seed] > 1 ? ", " : "") key
        for (k = 1; k <= 8; k++)
            if ((baseline, key, k) in difference && magnitude(difference[baseline, key, k]) > worst[seed] + 0) worst[seed] = magnitude(difference[baseline, key, k])
    }
    for (j = 1; j <= order_count; j++) {
        seed = order[j]
        if (n[seed] < 2) continue
        printf "- **%s** alone, its micro-batches cut in %d ways (%s): %.4f to %.4f, **%.2f %%** apart", baseline, n[seed], ways[seed], low[seed], high[seed], 100 * (high[seed] - low[seed]) / (sum[seed] / n[seed])
        print seed in worst ? sprintf("; largest |difference| of an eighth %.2f %%", worst[seed]) : ""
    }
}

# Pairs of which each side ran on another kind of card: there the same run may have other bits.
function on_two_cards(    i, j, recipe, seed, list) {
    for (i = 1; i <= recipes; i++)
        for (j = 1; j <= runs[recipe = recipe_of[i]]; j++) {
            seed = seed_of[recipe, j]
            if ((baseline, seed) in card && card[recipe, seed] != card[baseline, seed]) list = list (list ? ", " : "") recipe " " seed
        }
    if (list) print "- on another kind of card than " baseline "\047s: " list
}

# Means and scatter without pairs: where single runs scatter, the course of a pair says nothing.
function unpaired(    i, recipe, base_count, base_mean, base_deviation, line) {
    print "\n| recipe, runs without pairs | runs | mean ± standard deviation | difference of the means ± standard error |\n| --- | --- | --- | --- |"
    statistics(loss, baseline, 0)
    base_count = count; base_mean = mean; base_deviation = deviation
    for (i = 1; i <= recipes; i++) {
        recipe = recipe_of[i]
        statistics(loss, recipe, 0)
        line = "| " recipe " | " count " | " (count ? sprintf("%.4f", mean) (count > 1 ? sprintf(" ± %.4f", deviation) : "") : "–") " | "
        if (recipe != baseline && count && base_count) {
            line = line signed(100 * (mean / base_mean - 1))
            if (count > 1 && base_count > 1)
                line = line sprintf(" ± %.2f", 100 * sqrt(deviation * deviation / count + base_deviation * base_deviation / base_count) / base_mean)
            line = line " %"
        }
        print line " |"
    }
}

function run_row(recipe, seed,    k, line) {
    line = "| " recipe " | " seed " | " ((recipe, seed, 0) in loss ? sprintf("%.4f", loss[recipe, seed, 0]) : "diverged") " |"
    for (k = 0; k <= 8; k++) line = line " " ((recipe, seed, k) in difference ? signed(difference[recipe, seed, k]) (k ? "" : " %") : "") " |"
    line = line sprintf(" %.3g |", norm[recipe, seed])
    for (k = 9; k <= last_evaluation; k++) line = line " " ((recipe, seed, k) in loss ? sprintf("%.4f", loss[recipe, seed, k]) : "") " |"
    print line
}

END {
    compare()
    eighths = " 1/8 | 2/8 | 3/8 | 4/8 | 5/8 | 6/8 | 7/8 | 8/8 |"
    rule = "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for (k = 9; k <= last_evaluation; k++) { evaluations = evaluations " in " evaluation[k] " |"; more_rule = more_rule " --- |" }
    print "| recipe | runs | validation loss | difference |" eighths evaluations "\n" rule more_rule
    for (i = 1; i <= recipes; i++) recipe_row(recipe_of[i])
    if (evaluations)
        print "\nThe last columns are of the same weights in one recipe: the validation loss of " baseline ", and the differences of the others from it there, which are in the weights. The rest of a difference at the end is rounding of the forward pass while evaluating."
    print ""
    scatter()
    on_two_cards()
    if (unfinished) print "- not finished: " unfinished
    if (picture) print "\n![differences by eighths of the run](" picture ")"
    unpaired()
    texts_table()
    print "\n| run | seed | validation loss | difference |" eighths " largest gradient norm |" evaluations "\n" rule " --- |" more_rule
    for (i = 1; i <= recipes; i++) for (j = 1; j <= runs[recipe_of[i]]; j++) run_row(recipe_of[i], seed_of[recipe_of[i], j])
}
