# Reads the results of one setting (fidelity_result.awk says what is in them) and compares each run with the baseline's
# of the same seed, for fidelity_tables.awk and fidelity_picture.awk, which are given behind this file.
#
#   loss[RECIPE, SEED, K]         validation loss (K = 0), mean training losses of the eighths (K = 1 ... 8), and validation
#                                 losses of the last checkpoint in other recipes, evaluation[K] (K = 9 ... last_evaluation)
#   difference[RECIPE, SEED, K]   of them from the baseline's, in percent; runs of the baseline itself that have other
#                                 micro-batches are compared with the one that has the setting's
#   text_loss, text_difference    the same of the last checkpoints on further texts, by text_name[1 ... texts] in place of K
#   norm, card[RECIPE, SEED]      the largest gradient norm; what it ran on
# Of what a run does not have there is no entry. recipe_of[1 ... recipes], seed_of[RECIPE, 1 ... runs[RECIPE]].

function magnitude(x) { return x < 0 ? -x : x }

$4 == "unfinished" { unfinished = unfinished (unfinished ? ", " : "") $2 " " $3; next }
$4 == "text" {
    if (($2, $3) in diverged || $6 !~ /^[0-9]/) next
    if (!($5 in text_is_known)) text_name[++texts] = $5
    text_is_known[$5]
    text_loss[$2, $3, $5] = $6
    next
}
{
    if (!($2 in runs)) recipe_of[++recipes] = $2
    seed_of[$2, ++runs[$2]] = $3
    if ($4 == "diverged") diverged[$2, $3]
    steps = $5
    norm[$2, $3] = $8
    card[$2, $3] = $17
    if ($4 == "done") loss[$2, $3, 0] = $6
    for (k = 1; k <= 8; k++) if ($(8 + k) != "-") loss[$2, $3, k] = $(8 + k)
    for (k = 19; k <= NF; k++) evaluated($2, $3, $k)
}

function evaluated(recipe, seed, text,    at, in_recipe) { # "RECIPE=LOSS", of a recipe that may have flags with values
    at = match(text, /=[^=]*$/)
    in_recipe = substr(text, 1, at - 1)
    if (!(in_recipe in evaluation_of)) {
        last_evaluation = last_evaluation ? last_evaluation + 1 : 9
        evaluation_of[in_recipe] = last_evaluation
        evaluation[last_evaluation] = in_recipe
    }
    loss[recipe, seed, evaluation_of[in_recipe]] = substr(text, at + 1)
}

function compare(    i, j, k, recipe, seed, other) {
    for (i = 1; i <= recipes; i++) {
        recipe = recipe_of[i]
        for (j = 1; j <= runs[recipe]; j++) {
            seed = other = seed_of[recipe, j]
            if (recipe == baseline && !sub(/@.*/, "", other)) continue
            for (k = 0; k <= 8 || k <= last_evaluation; k++) compare_at(loss, difference, recipe, seed, other, k)
            for (k = 1; k <= texts; k++) compare_at(text_loss, text_difference, recipe, seed, other, text_name[k])
        }
    }
}
function compare_at(losses, differences, recipe, seed, other, k) {
    if ((recipe, seed, k) in losses && (baseline, other, k) in losses)
        differences[recipe, seed, k] = 100 * (losses[recipe, seed, k] / losses[baseline, other, k] - 1)
}

# Number, mean and standard deviation of a recipe's runs: `count`, `mean`, `deviation`.
function statistics(values, recipe, k,    j, gap, sum, squares) {
    count = sum = squares = mean = deviation = 0
    for (j = 1; j <= runs[recipe]; j++)
        if ((recipe, seed_of[recipe, j], k) in values) { sum += values[recipe, seed_of[recipe, j], k]; count++ }
    if (count) mean = sum / count
    for (j = 1; j <= runs[recipe]; j++)
        if ((recipe, seed_of[recipe, j], k) in values) { gap = values[recipe, seed_of[recipe, j], k] - mean; squares += gap * gap }
    if (count > 1) deviation = sqrt(squares / (count - 1))
}

function signed(x) { return sprintf("%+.2f", x * x < 0.005 * 0.005 ? 0 : x) }

# "+0.22 ± 0.10 %": mean and standard error over the pairs.
function mean_difference(differences, recipe, k) {
    statistics(differences, recipe, k)
    if (!count) return "–"
    return signed(mean) (count > 1 ? sprintf(" ± %.2f", deviation / sqrt(count)) : "") " %"
}
