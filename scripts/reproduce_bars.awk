# Draws the peak memory of table 7 at equal batches as bars, the paper's beside this program's: SVG for scripts/reproduce.sh.
#
#   awk -v limit=80 -f reproduce_bars.awk paper_figures.txt RESULTS      RESULTS as for reproduce_tables.awk

function words(x, y, text, anchor, colour) {
    printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", x, y, anchor, colour, text
}
# A bar that ends before the picture's edge where it is longer. Its figure is behind its end or, where the line of the
# limit would cross that or the picture ends, inside.
function bar(y, gb, label, colour, strong, plan,    width, shown, line, figure) {
    words(left - 8, y + 11, label, "end", "#5b6672")
    if (gb == "OOM") {
        words(left + 6, y + 11, "out of memory", "start", "#b42318")
        return
    }
    shown = gb > most ? most : gb
    width = shown * scale
    printf "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"13\" fill=\"%s\" fill-opacity=\"%s\"/>\n", left, y, width, colour, strong ? 1 : 0.45
    line = limit * scale - width # from the bar's end
    figure = sprintf("%.1f", gb) (plan ? ", planned" : "")
    if (line > 0 && line < (plan ? 104 : 44) || left + width + (plan ? 104 : 44) > 960)
        words(left + width - 6, y + 11, figure, "end", strong ? "#ffffff" : "#1f2933")
    else
        words(left + width + 6, y + 11, figure, "start", gb > limit ? "#b42318" : "#1f2933")
}

BEGIN { left = 190; most = 105; scale = 6.6 }
FNR == 1 { file++ }
/^#/ { next }
file == 1 && $1 == "table7" { paper[$2, $3, $4, $6] = $9 }
file == 2 && $5 == "equal_batch" && (($1, $2, $4, $6) in paper) && $6 != "fp8-linear" {
    if ($6 == "bf16") {
        group[groups++] = $1 SUBSEP $2 SUBSEP $4
        batch[$1, $2, $4] = $3
    }
    planned[$1, $2, $4, $6] = $13 != "measured"
    here[$1, $2, $4, $6] = $13 == "measured" ? $12 : $11
}
END {
    height = 86 + groups * 80
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 %d\" width=\"960\" height=\"%d\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12.5\">\n", height, height
    print "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"
    print "<text x=\"24\" y=\"30\" font-size=\"17\" font-weight=\"bold\" fill=\"#1f2933\">Peak memory per GPU, GB: the paper (light) and this program</text>"
    printf "<path d=\"M%.1f 58 V%d\" stroke=\"#b42318\" stroke-dasharray=\"5 4\"/>\n", left + limit * scale, height - 10
    words(left + limit * scale, 54, limit " GB", "middle", "#b42318")
    for (i = 0; i < groups; i++) {
        split(group[i], at, SUBSEP)
        y = 68 + i * 80
        words(24, y + 26, at[1] ", " at[2] (at[2] > 1 ? " GPUs" : " GPU"), "start", "#1f2933")
        words(24, y + 43, "batch " batch[group[i]] " x " at[3], "start", "#5b6672")
        bar(y, paper[group[i], "bf16"], "BF16", "#8a949e", 0, 0)
        bar(y + 14, here[group[i], "bf16"], "", "#8a949e", 1, planned[group[i], "bf16"])
        bar(y + 33, paper[group[i], "coat"], "COAT", "#2f8f5b", 0, 0)
        bar(y + 47, here[group[i], "coat"], "", "#2f8f5b", 1, planned[group[i], "coat"])
    }
    print "</svg>"
}
