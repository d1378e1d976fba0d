# Puts this program's figures beside the paper's: Markdown tables for scripts/reproduce.sh.
#
#   awk -v table=table7 -v limit=80 -f reproduce_tables.awk paper_figures.txt RESULTS
#
# RESULTS has a line per row: the fields of paper_figures.txt that name it, then this program's figures, "-" where
# there is none.

# "the paper's -> this program's (ratio)", with so many digits, the paper's with its own; this program's alone where the
# paper has none
function cell(paper, here, digits, paper_digits) {
    if (!known(paper) && paper != "OOM") return show(here, digits)
    return show(paper, paper_digits == "" ? digits : paper_digits) " → " show(here, digits) (known(paper) && known(here) ? sprintf(" (%.2f)", here / paper) : "")
}
function known(x) { return x != "-" && x != "OOM" && x + 0 > 0 }
function show(x, digits) {
    if (x == "OOM") return "out of memory"
    return x == "-" || x == "" ? "–" : sprintf("%." digits "f", x)
}
# the same where 0 is a figure
function pair(paper, here, digits) { return sprintf("%." digits "f → %." digits "f", paper, here) }
function named(word) { gsub(/_/, " ", word); return word }
function quotient(a, b) { return known(a) && known(b) ? a / b : "-" }
function head(columns,    names, count, i, line) {
    count = split(columns, names, /\|/)
    line = "|"
    print "| " columns " |"
    for (i = 1; i <= count; i++) line = line " --- |"
    print line
}

BEGIN { if (table == "loss") head("model, tokens | measure | BF16 | TransformerEngine; fp8-linear here | COAT | difference") }
BEGIN { if (table == "eighths") head("OLMo-1B | recipe | 1/8 | 2/8 | 3/8 | 4/8 | 5/8 | 6/8 | 7/8 | 8/8") }
BEGIN { if (table == "ablation") head("recipe, from BF16\047s step 120 on | pairs | loss over BF16\047s at the end | largest mean of an eighth") }
FNR == 1 { file++ }
/^#/ || NF == 0 { next }
file == 1 {
    if ($1 != table) next
    if (table == "table1") error[$2, $3] = $4
    if (table == "table2") for (i = 3; i <= 8; i++) paper[$2, i] = $i
    if (table == "table6") for (i = 4; i <= 8; i++) paper[$2, $3, $4, i] = $i # MB of eight sequences, 2^20 bytes
    if (table == "table7") for (i = 7; i <= 11; i++) paper[$2, $3, $4, $6, i] = $i
    if (table == "figure4") { plain[$2, $3] = $4; group[$2, $3] = $5 }
    if (table == "loss") loss_row("the paper, " named($2), named($3), $4, $5, $6)
    next
}

# m's format, and a figure per format of v, in the order of the first line
table == "table1" && $1 == "formats" {
    for (i = 2; i <= NF; i++) format[i] = $i
    line = "m \\ v"
    for (i = 2; i <= NF; i++) line = line " | " $i
    head(line)
    next
}
table == "table1" {
    if (!ours) ours = $2
    line = "| " $1 " |"
    for (i = 2; i <= NF; i++) line = line " " cell(quotient(error[$1, format[i]], error["E4M3", "E4M3"]), $i / ours, 2) " |"
    print line
}

# recipe, then U of norms, activation function, RoPE, attention, products, and all
table == "table2" {
    if (!rows++) head("recipe | norms, U | activation function | RoPE | attention | products | all | times less than BF16")
    line = "| " named($1) " |"
    for (i = 2; i <= 7; i++) line = line " " (($1, 3) in paper ? pair(paper[$1, i + 1], $i, 2) : sprintf("%.2f", $i)) " |"
    if (rows == 1) bf16_all = $7
    print line " " cell(quotient(paper["bf16", 8], paper[$1, 8]), quotient(bf16_all, $7), 2) " |"
}

# layer, hidden, length, recipe, ms forward, backward and both, bytes per token
table == "table6" {
    if (!rows++) head("layer of | hidden, length | recipe | forward, ms | backward, ms | both, ms | times BF16's speed | saved, bytes per token | U | times less than BF16 | how")
    key = $1 == "olmo" ? $2 SUBSEP $3 SUBSEP : "none" SUBSEP
    if ($4 == "bf16") { bf16_ms = $7; bf16_bytes = $8 }
    for (i = 4; i <= 8; i++) {
        p[i] = "-"
        base[i] = "-"
        if ((key $4 SUBSEP i) in paper) { p[i] = paper[key $4 SUBSEP i]; base[i] = paper[key "bf16" SUBSEP i] }
    }
    unit = 2 * $2
    printf "| %s | %d, %d | %s | %s | %s | %s | %s | %.0f | %s | %s | %s |\n", $1, $2, $3, named($4), cell(p[5], $5, 2), cell(p[6], $6, 2),
        cell(p[7], $7, 2), cell(quotient(base[7], p[7]), quotient(bf16_ms, $7), 2), $8,
        cell(known(p[8]) ? p[8] * 1048576 / 8 / $3 / unit : "-", $8 / unit, 2),
        cell(quotient(base[8], p[8]), quotient(bf16_bytes, $8), 2), known($7) ? "measured" : "memory planned, time not measured"
}

# model, GPUs, batch of the row, length, setting, recipe, micro-batch, optimizer and activations in GB, tokens/s per GPU,
# plan GB, driver GB, how
table == "table7" {
    if (!rows++) head("model | GPUs | length | setting | recipe | micro-batch | tokens/s per GPU | times BF16's speed | optimizer, GB | activations, GB | plan, GB | driver, GB | times less than BF16 | how")
    equal = $5 == "equal_batch"
    for (i = 7; i <= 11; i++) {
        p[i] = ($1, $2, $4, $6, i) in paper ? paper[$1, $2, $4, $6, i] : "-"
        base[i] = ($1, $2, $4, "bf16", i) in paper ? paper[$1, $2, $4, "bf16", i] : "-"
        if (equal == (i >= 10)) p[i] = base[i] = "-"
    }
    if ($6 == "bf16") { bf16_speed = $10; bf16_plan = $11; bf16_driver = $12 }
    how = $13 == "failed" ? "**failed**: planned, not measured" : $13
    if (how == "planned") how = "planned, not measured" ($11 == "OOM" || (equal && $11 + 0 > limit) ? ": does not fit in " limit " GB" : "")
    compared = known($12) && known(bf16_driver)
    less = equal ? cell(quotient(base[9], p[9]), compared ? bf16_driver / $12 : quotient(bf16_plan, $11), 2) : "–"
    if (equal && known($12) && !compared) less = less ", planned"
    # at each recipe's largest micro-batch the memory is nearly the same
    printf "| %s | %d | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", $1, $2, $4, named($5), $6,
        equal ? $7 : cell(p[10], $7, 0), cell(p[11], $10, 0), cell(quotient(p[11], base[11]), quotient($10, bf16_speed), 2),
        cell(p[7], $8, 1), cell(p[8], $9, 1), show($11, 1), cell(p[9], $12, 1),
        less, how
}

# columns, rows, ms plain, from row maxima, from maxima of groups
table == "figure4" {
    if (!rows++) head("tensor | plain maximum, ms | Group Scaling, ms | times faster | from row maxima, ms | how")
    printf "| %d x %d | %s | %s | %s | %s | %s |\n", $1, $2, cell(plain[$1, $2], $3, 3, 2), cell(group[$1, $2], $5, 4, 2),
        cell(plain[$1, $2] / group[$1, $2], quotient($3, $5), 1), show($4, 4), known($3) ? "measured" : "not measured"
}

# lines of scripts/fidelity.sh about OLMo-1B: 131,072 tokens per step
function named_tokens() { return millions($5) "M tokens, seed " $3 (match($1, /-from-[0-9]+/) ? ", together in BF16 to " millions(substr($1, RSTART + 6)) "M" : "") }
table == "eighths" && $4 == "done" { # BF16's come first
    if ($2 == "bf16") for (i = 9; i <= 16; i++) eighth[$1, $3, i] = $i
    if (!(($1, $3, 9) in eighth)) next
    printf "| %s | %s", named_tokens(), $2
    for (i = 9; i <= 16; i++) printf $2 == "bf16" ? " | %.3f" : " | %+.2f %%", $2 == "bf16" ? $i : 100 * ($i / eighth[$1, $3, i] - 1)
    print " |"
}

# a page of scripts/fidelity.sh: recipes have their flags in its commands, NAME:RECIPE,FLAG=VALUE,...
table == "ablation" && /RECIPES=/ {
    for (i = 1; i <= NF; i++) {
        sub(/^RECIPES=\047/, "", $i)
        if (split($i, named_flags, ":") == 2) flags[named_flags[1]] = named_flags[2]
    }
}
table == "ablation" && $2 == "bytes-from-120" {
    split($0, part, / *\| */)
    words = part[3] in flags ? flags[part[3]] : part[3]
    gsub(/\047/, "", words)
    gsub(/,/, " --", words)
    printf "| `--recipe %s`%s | %s | %s | %s |\n", words, part[3] == "pubk" ? " with the published k" : "", part[4], part[5], part[7]
}

table == "loss" && ($4 == "done" || $4 == "text") {
    run = $1 " " $3
    if ($4 == "text") { measured(run, "perplexity, " $5, $2, exp($6)); next }
    named_run[run] = named_tokens()
    measured(run, "training loss, last eighth of the steps", $2, $16)
    measured(run, "loss of validation", $2, $6)
    measured(run, "perplexity of validation", $2, exp($6))
}
function millions(steps) { return sprintf("%.0f", (steps + 0) * 131072 / 1e6) }
function measured(run, measure, recipe, value) {
    if (!((run, measure) in loss_row_of)) loss_rows[loss_row_of[run, measure] = ++loss_row_count] = run SUBSEP measure
    loss[run, measure, recipe] = value
}
function loss_row(model, measure, bf16, linear, coat) {
    printf "| %s | %s | %s | %s | %s | %s |\n", model, measure, show(bf16, 3), show(linear, 3), show(coat, 3),
        known(bf16) && known(coat) ? sprintf("%+.2f %%", 100 * (coat / bf16 - 1)) : "–"
}
END {
    for (i = 1; i <= loss_row_count; i++) { # in the order of the lines
        split(loss_rows[i], part, SUBSEP)
        run = part[1]
        measure = part[2]
        if ((run, measure, "bf16") in loss && (run, measure, "coat") in loss)
            loss_row("here, OLMo-1B, " named_run[run], measure, loss[run, measure, "bf16"], loss[run, measure, "fp8-linear"], loss[run, measure, "coat"])
    }
}
