# The table of further texts (TEXTS) of a setting for scripts/fidelity.sh, given behind fidelity_pairs.awk and before
# fidelity_tables.awk: mean losses over the runs, their perplexities, and the differences of the losses over the pairs.

function has_texts(recipe,    i) {
    for (i = 1; i <= texts; i++) {
        statistics(text_loss, recipe, text_name[i])
        if (count) return 1
    }
    return 0
}

function text_row(text,    i, recipe, line) {
    line = "| " text " |"
    for (i = 1; i <= recipes; i++) {
        recipe = recipe_of[i]
        if (!has_texts(recipe)) continue
        statistics(text_loss, recipe, text)
        line = line (count ? sprintf(" %.4f | %.3f |", mean, exp(mean)) : " – | – |")
        if (recipe != baseline) line = line " " mean_difference(text_difference, recipe, text) " |"
    }
    print line
}

# Runs that ended before the text was asked for.
function runs_without(text,    i, j, recipe, seed, names) {
    for (i = 1; i <= recipes; i++) {
        recipe = recipe_of[i]
        for (j = 1; j <= runs[recipe]; j++) {
            seed = seed_of[recipe, j]
            if (!((recipe, seed) in diverged) && !((recipe, seed, text) in text_loss)) names = names (names ? ", " : "") recipe " " seed
        }
    }
    return names
}

function texts_table(    i, recipe, line, rule) {
    if (!texts) return
    line = "| text |"
    rule = "| --- |"
    for (i = 1; i <= recipes; i++) {
        recipe = recipe_of[i]
        if (!has_texts(recipe)) continue
        line = line " " recipe ", loss | perplexity |" (recipe == baseline ? "" : " difference |")
        rule = rule " --- | --- |" (recipe == baseline ? "" : " --- |")
    }
    print "\n" line "\n" rule
    for (i = 1; i <= texts; i++) text_row(text_name[i])
    print "\nThe last checkpoints on further texts, each in its run's own recipe: the mean loss per token, the perplexity exp(loss), and the difference of the losses as above."
    for (i = 1; i <= texts; i++) if (line = runs_without(text_name[i])) print (without++ ? "" : "\n") "- not evaluated on " text_name[i] ": " line
}
