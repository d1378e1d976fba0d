# The benchmarks' lines as one table: of every operation its time, its rate, and the share of the ceiling that the same
# benchmark has measured. Reads what `make bench` prints ("== build/NAME" before each benchmark), passes it on, and ends
# with the table.
function trimmed(text) {
    gsub(/^ +| +$/, "", text)
    gsub(/  +/, "  ", text)
    return text
}
{ print; fflush() }
/^== / { benchmark = $2; sub(/.*\/(bench_)?/, "", benchmark); sub(/_gpu$/, "", benchmark); section = ""; next }
/^GPT-2 / { section = $2; sub(/,$/, "", section); next }
{
    # "NAME SHAPE 1.23 ms [12.3 MB] 456 GB/s 78.9 %", perhaps more than once in a line
    rest = $0
    name = ""
    while (match(rest, /[0-9.]+ ms( +[0-9.]+ [MG]B)? +[0-9.]+ (GB|TFLOP|GFLOP)\/s +[0-9.]+ %/)) {
        part = substr(rest, RSTART, RLENGTH)
        before = trimmed(substr(rest, 1, RSTART - 1))
        rest = substr(rest, RSTART + RLENGTH)
        name = name == "" ? before : first " " before
        if (first == "" || NR != at) { first = before; sub(/ [a-z]+$/, "", first); at = NR }
        n = split(part, word, / +/)
        rows[++count] = sprintf("%-20s %-6s %-58s %10s ms %8s %-8s %6s %%", benchmark, section, name, word[1], word[n - 3], word[n - 2], word[n - 1])
    }
}
END {
    if (!count) exit
    print "\n== every operation: benchmark, model, operation and shape, time, rate, share of the ceiling measured beside it"
    for (i = 1; i <= count; i++) print rows[i]
}
