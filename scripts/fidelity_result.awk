# One line about a run that has ended, of its log.jsonl, for scripts/fidelity.sh:
#
#   SETTING RECIPE SEED done|diverged STEPS VAL_LOSS FIRST_LOSS LARGEST_GRAD_NORM LOSS_1 ... LOSS_8 MACHINE VERSION
#
# and, of the last checkpoint where it was evaluated in other recipes, RECIPE=VAL_LOSS behind them; where on further texts,
# fidelity.sh puts a line "SETTING RECIPE SEED text NAME LOSS" for each below it. LOSS_1 ... LOSS_8 are
# the mean training losses of the eighths of the steps, "-" of those it did not come to the end of. Of a run that goes on
# from a checkpoint of step FROM they and LARGEST_GRAD_NORM are of the steps behind it.
#
#   awk -v run="SETTING RECIPE SEED" -v from=0 -v steps=N -v ended=STATUS -v machine=M -v version="V [RECIPE=VAL_LOSS...]" \
#       -f fidelity_result.awk LOG

function field(name) {
    if (!match($0, "\"" name "\":[^,}]*")) return ""
    return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
}
function finite(text) { return text ~ /^-?[0-9]/ }

{ step = field("step") + 0 }
step > steps { next } # a run that was told to end there may have gone on a little
step == steps && field("val_loss") != "" { val = field("val_loss") }
field("loss") != "" {
    if (step == 1) first = field("loss")
    last = step
    if (step <= from) next
    if (finite(field("loss"))) {
        eighth = int((8 * (step - from) + steps - from - 1) / (steps - from)) # 8 s / steps, rounded up
        sum[eighth] += field("loss")
        count[eighth]++
    }
    if (finite(field("grad_norm")) && field("grad_norm") + 0 > largest) largest = field("grad_norm") + 0
}

END {
    good = ended != 4 && finite(val) && val + 0 <= first + 0
    line = run " " (good ? "done" : "diverged") " " steps " " (finite(val) ? val : "-") " " (finite(first) ? first : "-") " " sprintf("%.6g", largest)
    for (i = 1; i <= 8; i++) line = line " " (count[i] && last >= from + int(i * (steps - from) / 8) ? sprintf("%.8g", sum[i] / count[i]) : "-")
    print line, machine, version
}
