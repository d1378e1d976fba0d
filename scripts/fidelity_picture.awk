# Draws a setting's differences from the baseline by eighths of the run, and at the end, for scripts/fidelity.sh: SVG.
#
#   awk -v baseline=RECIPE -v title=TEXT [-v from=STEP] -f fidelity_pairs.awk -f fidelity_picture.awk RESULTS
#
# A thin line is a pair of runs, a thick one their mean. Differences beyond 10 % are drawn at 10 %.

function x(k) { return k ? left + (k - 0.5) * (right - left) / 8 : end_x }
function y(percent) { return bottom - (within(percent) - low) * (bottom - top) / (high - low) }
function within(percent) { return percent > 10 ? 10 : percent < -10 ? -10 : percent }

function words(at, height, text, anchor, more) {
    printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"#1f2933\"%s>%s</text>\n", at, height, anchor, more, text
}
function line(x1, y1, x2, y2, style) { printf "<path d=\"M%.1f %.1f L%.1f %.1f\" %s/>\n", x1, y1, x2, y2, style }
function dot(at, percent, radius, colour, opacity) {
    printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill=\"%s\" fill-opacity=\"%s\"/>\n", at, y(percent), radius, colour, opacity
}

# The differences' range, in whole steps of the axis.
function find_range(    key, part, steps, i) {
    for (key in difference) {
        if (within(difference[key]) < low) low = within(difference[key])
        if (within(difference[key]) > high) high = within(difference[key])
    }
    steps = split("0.02 0.05 0.1 0.2 0.5 1 2 5", part, " ")
    for (i = 1; i <= steps; i++) if ((high - low) / (tick = part[i]) <= 6) break
    low = tick * (low < 0 ? -int(-low / tick + 0.999) : 0)
    high = tick * int(high / tick + 0.999)
    if (high - low < 2 * tick) { low -= tick; high += tick }
}

function axes(    i, k, count) {
    count = int((high - low) / tick + 0.5)
    for (i = 0; i <= count; i++) {
        k = low + i * tick
        line(left, y(k), end_x + 60, y(k), k * k < tick * tick / 4 ? "stroke=\"#1f2933\" stroke-width=\"1.4\"" : "stroke=\"#d9dee3\"")
        words(left - 10, y(k) + 5, k * k < tick * tick / 4 ? "0" : sprintf("%+g", k), "end")
    }
    for (k = 1; k <= 8; k++) words(x(k), bottom + 24, k "/8", "middle")
    words(end_x, bottom + 24, "at the end", "middle")
    words((left + right) / 2, bottom + 48, "training loss, eighths of the " (from ? "steps from " from " on" : "run") (steps ? " (" (from ? "of " : "") steps (from ? "" : " steps") ")" : ""), "middle")
    words(end_x, bottom + 48, "validation loss", "middle")
    words(0, 0, "difference from " baseline ", %", "middle", sprintf(" transform=\"translate(24 %.1f) rotate(-90)\"", (top + bottom) / 2))
    line(right + 8, top, right + 8, bottom, "stroke=\"#9aa5b1\" stroke-dasharray=\"3 4\"")
}

function course(recipe, seed, colour,    k, path) {
    for (k = 1; k <= 8; k++)
        if ((recipe, seed, k) in difference) path = path sprintf("%s%.1f %.1f ", (path ? "L" : "M"), x(k), y(difference[recipe, seed, k]))
    if (path) printf "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.2\" stroke-opacity=\"0.55\"%s/>\n", path, colour, (recipe == baseline ? " stroke-dasharray=\"5 3\"" : "")
}

function mean_course(recipe, colour, at,    k, path, error) {
    for (k = 1; k <= 8; k++) {
        statistics(difference, recipe, k)
        if (count) { path = path sprintf("%s%.1f %.1f ", (path ? "L" : "M"), x(k), y(mean)); dot(x(k), mean, 4.5, colour, 1) }
    }
    if (path) printf "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"3.5\" stroke-linejoin=\"round\"/>\n", path, colour
    statistics(difference, recipe, 0)
    if (!count) return
    error = count > 1 ? deviation / sqrt(count) : 0
    line(at, y(mean - error), at, y(mean + error), "stroke=\"" colour "\" stroke-width=\"3\"")
    dot(at, mean, 6, colour, 1)
}

# The baseline is in the picture where it has runs with other micro-batches.
function is_drawn(recipe,    j) {
    if (recipe != baseline) return 1
    for (j = 1; j <= runs[recipe]; j++) if (seed_of[recipe, j] ~ /@/) return 1
    return 0
}
# Colours, and places in a legend of as many rows as it needs.
function lay_out(    i, recipe, text, next_x) {
    split("#2f8f5b #b42318 #2563a8 #b7791f #7a4fa3 #0f8b8d #d6408f #6b8e23 #17a2d8 #8c564b #ff7f0e #1b1b1b", colours, " ")
    next_x = left
    for (i = 1; i <= recipes; i++) {
        recipe = recipe_of[i]
        if (!is_drawn(recipe)) continue
        name[recipe] = recipe == baseline ? recipe ", other micro-batches" : recipe
        colour[recipe] = recipe == baseline ? "#52606d" : colours[others++ % 12 + 1]
        if (next_x > left && next_x + 36 + 8.2 * length(name[recipe]) > 900) { next_x = left; rows++ }
        legend_x[recipe] = next_x
        legend_y[recipe] = 58 + 22 * rows
        next_x += 62 + 8.2 * length(name[recipe])
    }
    top = 86 + 22 * rows
    bottom = top + 286
}
function legend(recipe,    style) {
    style = recipe == baseline ? "stroke-width=\"1.2\" stroke-dasharray=\"5 3\"" : "stroke-width=\"3.5\""
    line(legend_x[recipe], legend_y[recipe], legend_x[recipe] + 28, legend_y[recipe], "stroke=\"" colour[recipe] "\" " style)
    words(legend_x[recipe] + 36, legend_y[recipe] + 5, name[recipe], "start")
}

END {
    compare()
    left = 84; right = 740; end_x = 830
    lay_out()
    find_range()
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 920 %d\" width=\"920\" height=\"%d\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"15\">\n", bottom + 68, bottom + 68
    print "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"
    words(left, 32, title, "start", sprintf(" font-size=\"%.1f\" font-weight=\"bold\"", length(title) > 68 ? 18 * 68 / length(title) : 18))
    axes()
    for (i = 1; i <= recipes; i++) {
        recipe = recipe_of[i]
        if (!is_drawn(recipe)) continue
        at = recipe == baseline ? end_x - 45 : end_x + (++number - (others + 1) / 2) * 14
        for (j = 1; j <= runs[recipe]; j++) {
            seed = seed_of[recipe, j]
            if (recipe == baseline && seed !~ /@/) continue
            course(recipe, seed, colour[recipe])
            if ((recipe, seed, 0) in difference) dot(at, difference[recipe, seed, 0], 2.6, colour[recipe], 0.6)
        }
        if (recipe != baseline) mean_course(recipe, colour[recipe], at)
        legend(recipe)
    }
    print "</svg>"
}
