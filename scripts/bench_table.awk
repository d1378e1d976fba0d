# The benchmarks' lines as one table: of every operation its time, its rate, and the share of the ceiling that the same
# benchmark has measured. Reads what `make bench` prints ("== build/NAME" before each benchmark), passes it on, and ends
# with the table.
function trimmed(text) {
    gsub(/^ +| +$/, "", text)
    gsub(/  +/, "  ", text)
    return text
}
function add(name, ms, rate, unit, share) {
    rows[++count] = sprintf("%-20s %-6s %-58s %10s ms %8s %-8s %6s %%", benchmark, section, name, ms, rate, unit, share)
}
{ print; fflush() }
!/^\| / { head[0] = "" }
/^== / { benchmark = $2; sub(/.*\/(bench_)?/, "", benchmark); sub(/_gpu$/, "", benchmark); section = ""; next }
/^GPT-2 / && !/ ms / { section = $2; sub(/,$/, "", section); next }
# A Markdown table: cells of "1.23 (456, 78 %)" or "1.23 (456 GB/s, 78 %)", or of "1.23" and then "456 GB/s, 78 %"
/^\| / {
    columns = split($0, cell, / *\| */)
    if (head[0] == "") {
        for (i = 1; i <= columns; i++) head[i] = cell[i]
        head[0] = "read"
    }
    label = ""
    at = 0
    for (i = 2; i < columns; i++) {
        if (cell[i] ~ /^[0-9.]+ \([0-9.]+( [A-Z]+\/s)?, +[0-9]+ %\)$/) {
            split(cell[i], word, /[ (,]+/)
            at = i
        } else if (cell[i] ~ /^[0-9.]+ [A-Z]+\/s, +[0-9]+ %$/ && cell[i - 1] ~ /^[0-9.]+$/) {
            split(cell[i - 1] " " cell[i], word, /[ (,]+/)
            at = i - 1
        } else {
            if (!at && cell[i + 1] !~ /^[0-9.]+ [A-Z]+\/s, /) label = label (label == "" ? "" : "  ") cell[i]
            continue
        }
        title = head[at]
        unit = word[3] ~ /\/s$/ ? word[3] : title ~ /TFLOP/ ? "TFLOP/s" : "GB/s"
        sub(/,? ms.*/, "", title)
        add(label "  " title, word[1], word[2], unit, word[3] ~ /\/s$/ ? word[4] : word[3])
    }
    next
}
{
    # "NAME SHAPE 1.23 ms [12.3 MB] 456 GB/s 78.9 %", perhaps more than once in a line
    rest = $0
    name = ""
    while (match(rest, /[0-9.]+ ms( +[0-9.]+ [MG]B)? +[0-9.]+ (GB|TFLOP|GFLOP)\/s +[0-9.]+ %/)) {
        part = substr(rest, RSTART, RLENGTH)
        before = trimmed(substr(rest, 1, RSTART - 1))
        rest = substr(rest, RSTART + RLENGTH)
        name = name == "" ? before : first " " before
        if (first == "" || NR != line) { first = before; sub(/ [a-z]+$/, "", first); line = NR }
        n = split(part, word, / +/)
        add(name, word[1], word[n - 3], word[n - 2], word[n - 1])
    }
}
END {
    if (!count) exit
    print "\n== every operation: benchmark, model, operation and shape, time, rate, share of the ceiling measured beside it"
    for (i = 1; i <= count; i++) print rows[i]
}
