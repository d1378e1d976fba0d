# Puts this program's figures beside the paper's: Markdown tables for scripts/reproduce.sh.
#
#   awk -v table=table7 -f reproduce_tables.awk paper_figures.txt RESULTS
#
# RESULTS has a line per row: the fields of paper_figures.txt that name it, then this program's figures, "-" where
# there is none.

# "the paper's -> this program's (ratio)", with so many digits, the paper's with its own
function cell(paper, here, digits, paper_digits) {
    if (!known(paper) && paper != "OOM" && !known(here) && here != "OOM") return "–"
    return show(paper, paper_digits == "" ? digits : paper_digits) " → " show(here, digits) (known(paper) && known(here) ? sprintf(" (%.2f)", here / paper) : "")
}
function known(x) { return x != "-" && x != "OOM" && x + 0 > 0 }
function show(x, digits) {
    if (x == "OOM") return "out of memory"
    return x == "-" || x == "" ? "–" : sprintf("%." digits "f", x)
}
function quotient(a, b) { return known(a) && known(b) ? a / b : "-" }
function head(columns,    names, count, i, line) {
    count = split(columns, names, /\|/)
    line = "|"
    print "| " columns " |"
    for (i = 1; i <= count; i++) line = line " --- |"
    print line
}

BEGIN { if (table == "loss") head("training loss | BF16 | COAT | difference") }
FNR == 1 { file++ }
/^#/ || NF == 0 { next }
file == 1 {
    if ($1 != table) next
    if (table == "table2") error[$2, $3] = $4
    if (table == "table6") { ms[$2, $3, $4] = $5; mb[$2, $3, $4] = $6 }
    if (table == "table7") for (i = 6; i <= 10; i++) paper[$2, $3, $4, $5, i] = $i
    if (table == "speed") { faster[$2] = $3; less[$2] = $4 }
    if (table == "figure4") { plain[$2, $3] = $4; group[$2, $3] = $5 }
    if (table == "loss") { gsub(/_/, " ", $2); printf "| the paper, %s | %.3f | %.3f | %+.2f %% |\n", $2, $3, $4, 100 * ($4 / $3 - 1) }
    next
}

# m's format, and a figure per format of v, in the order of the first line
table == "table2" && $1 == "formats" {
    for (i = 2; i <= NF; i++) format[i] = $i
    line = "m \\ v"
    for (i = 2; i <= NF; i++) line = line " | " $i
    head(line)
    next
}
table == "table2" {
    if (!ours) ours = $2
    line = "| " $1 " |"
    for (i = 2; i <= NF; i++) line = line " " cell(quotient(error[$1, format[i]], error["E4M3", "E4M3"]), $i / ours, 2) " |"
    print line
}

# hidden, length, recipe, ms, MB
table == "table6" {
    if (!rows++) head("hidden, length | recipe | ms, forward and backward | MB saved | times BF16's speed | times less than BF16 | how")
    key = $1 SUBSEP $2 SUBSEP
    if ($3 == "bf16") { bf16_ms = $4; bf16_mb = $5 }
    name = $3
    gsub(/_/, " ", name)
    printf "| %d, %d | %s | %s | %s | %s | %s | %s |\n", $1, $2, name, cell(ms[key $3], $4, 2), cell(mb[key $3], $5, 0),
        cell(quotient(ms[key "bf16"], ms[key $3]), quotient(bf16_ms, $4), 2),
        cell(quotient(mb[key "bf16"], mb[key $3]), quotient(bf16_mb, $5), 2),
        known($4) ? "measured" : "memory planned, not measured"
}

# model, GPUs, batch, recipe, optimizer, activations, peak in GB, largest micro-batch
table == "table7" {
    if (!rows++) head("model | GPUs | batch | recipe | optimizer, GB | activations, GB | peak, GB | times less than BF16 | largest micro-batch | tokens/s, the paper")
    for (i = 6; i <= 10; i++) p[i] = paper[$1, $2, $3, $4, i]
    if ($4 == "bf16") { bf16_peak = $7; bf16_paper = p[8] }
    printf "| %s | %d | %d | %s | %s | %s | %s%s | %s | %s | %s |\n", $1, $2, $3, $4, cell(p[6], $5, 1), cell(p[7], $6, 1),
        cell(p[8], $7, 1), ($7 > limit ? ", does not fit" : ""), cell(quotient(bf16_paper, p[8]), quotient(bf16_peak, $7), 2),
        cell(p[9], $8, 0), show(p[10], 0)
}

# model, setting, recipe, micro-batch, optimizer and activations in GB, tokens/s, plan GB, driver GB, how
table == "speed" {
    if (!rows++) head("model | setting | recipe | micro-batch | tokens/s | times BF16's speed | optimizer, GB | activations, GB | plan, GB | driver, GB | times less than BF16 | how")
    gsub(/_/, " ", $2)
    if ($3 == "bf16") { bf16_speed = $7; bf16_memory = $9; bf16_plan = $8 }
    # at each recipe's largest micro-batch the memory is nearly the same
    if ($2 !~ /^equal/) memory = "–"
    else memory = cell($3 in less ? less[$3] : "-", known($9) && known(bf16_memory) ? bf16_memory / $9 : quotient(bf16_plan, $8), 2)
    printf "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", $1, $2, $3, show($4, 0), show($7, 0),
        cell($3 in faster ? faster[$3] : "-", quotient($7, bf16_speed), 2), show($5, 1), show($6, 1), show($8, 1), show($9, 1), memory,
        $10 == "failed" ? "**failed**: planned, not measured" : known($7) ? "measured" : "planned, not measured"
}

# columns, rows, ms plain, from row maxima, from maxima of groups
table == "figure4" {
    if (!rows++) head("tensor | plain maximum, ms | Group Scaling, ms | times faster | from row maxima, ms | how")
    printf "| %d x %d | %s | %s | %s | %s | %s |\n", $1, $2, cell(plain[$1, $2], $3, 3, 2), cell(group[$1, $2], $5, 4, 2),
        cell(plain[$1, $2] / group[$1, $2], quotient($3, $5), 1), show($4, 4), known($3) ? "measured" : "not measured"
}

END { if (table == "loss") print "| here | `scripts/fidelity.sh` | over several seeds | `runs/fidelity/fidelity.md` |" }
