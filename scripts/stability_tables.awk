# The tables of scripts/stability.sh, in Markdown.
#
#   awk -v want=losses -f stability_tables.awk LOSSES                 a row per rate, a column per recipe
#   awk -v want=summary -f stability_tables.awk LOSSES SHARPNESS      a row per recipe
#   awk -v want=best -f stability_tables.awk LOSSES                   RECIPE RATE, for the script itself
#
# LOSSES: RECIPE RATE SEED done|diverged|failed LOSS FIRST_LOSS; SHARPNESS: RECIPE DIRECTION DISTANCE LOSS, where
# direction 0 is the run's own weights.

function deviation(sum, squares, count,    variance) {
    variance = (squares - sum * sum / count) / (count - 1)
    return variance > 0 ? sqrt(variance) : 0
}
function with_deviation(sum, squares, count, digits) {
    if (!count) return "–"
    return sprintf("%." digits "f", sum / count) (count > 1 ? sprintf(" ± %." digits "f", deviation(sum, squares, count)) : "")
}
function cell(recipe, rate,    n, text, base) {
    n = good[recipe, rate]
    if (n) text = with_deviation(sums[recipe, rate], squares[recipe, rate], n, 4)
    base = recipe_of[1]
    if (n && recipe != base && good[base, rate])
        text = text sprintf(" (%+.2f %%)", 100 * (sums[recipe, rate] / n / (sums[base, rate] / good[base, rate]) - 1))
    if (diverged[recipe, rate]) text = text (n ? ", " : "") diverged[recipe, rate] " of " all[recipe, rate] " diverged"
    if (failed[recipe, rate]) text = text (text ? ", " : "") failed[recipe, rate] " of " all[recipe, rate] " failed"
    return text
}
# The index of the best rate, 0 if at every rate a run diverged or failed.
function best(recipe,    i, found, rate) {
    for (i = 1; i <= rates; i++) {
        rate = rate_of[i]
        if (good[recipe, rate] && good[recipe, rate] == all[recipe, rate] &&
            (!found || sums[recipe, rate] / good[recipe, rate] < sums[recipe, rate_of[found]] / good[recipe, rate_of[found]])) found = i
    }
    return found
}
function lowest(recipe) { return sums[recipe, rate_of[best(recipe)]] / good[recipe, rate_of[best(recipe)]] }

FNR == 1 { file++ }
file == 1 {
    if (!($1 in seen_recipe)) { seen_recipe[$1]; recipe_of[++recipes] = $1 }
    if (!($2 in seen_rate)) { seen_rate[$2]; rate_of[++rates] = $2 }
    all[$1, $2]++
    if ($4 == "failed") { failed[$1, $2]++; next }
    limited[$1] += $4 == "diverged" ? $6 : $5
    finished[$1]++
    if ($4 == "diverged") { diverged[$1, $2]++; next }
    good[$1, $2]++
    sums[$1, $2] += $5
    squares[$1, $2] += $5 * $5
}
file == 2 && $4 != "nan" {
    loss[$1, $2, $3] = $4
    if ($2 > directions) directions = $2
    if ($3 > 0 && (!nearest || $3 < nearest)) nearest = $3
}

END {
    if (want == "best") for (i = 1; i <= recipes; i++) if (best(recipe_of[i])) print recipe_of[i], rate_of[best(recipe_of[i])]
    if (want == "losses") {
        line = "| rate |"
        rule = "| --- |"
        for (i = 1; i <= recipes; i++) { line = line " " recipe_of[i] " |"; rule = rule " --- |" }
        print line "\n" rule
        for (j = 1; j <= rates; j++) {
            line = "| " rate_of[j] " |"
            for (i = 1; i <= recipes; i++) line = line " " cell(recipe_of[i], rate_of[j]) " |"
            print line
        }
    }
    if (want == "summary") {
        print "| recipe | best rate | loss | sensitivity | curvature |\n| --- | --- | --- | --- | --- |"
        for (i = 1; i <= recipes; i++) {
            recipe = recipe_of[i]
            count = sum = square = 0
            for (d = 1; d <= directions; d++) {
                if (!((recipe, d, nearest) in loss) || !((recipe, d, -nearest) in loss) || !((recipe, 0, 0) in loss)) continue
                curvature = (loss[recipe, d, nearest] - 2 * loss[recipe, 0, 0] + loss[recipe, d, -nearest]) / (nearest * nearest)
                sum += curvature
                square += curvature * curvature
                count++
            }
            if (best(recipe))
                printf "| %s | %s | %.4f | %.4f | %s |\n", recipe, rate_of[best(recipe)], lowest(recipe), limited[recipe] / finished[recipe] - lowest(recipe), with_deviation(sum, square, count, 3)
            else
                printf "| %s | – | – | – | – |\n", recipe
        }
    }
}
