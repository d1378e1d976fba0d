# Sourced by reproduce.sh: table 1, on the optimizer's states of runs in BF16, where they are FP32: one for each beta2, at a
# few steps.
# shellcheck shell=bash disable=SC2154 # what reproduce.sh has set

betas=(0.95 0.999) model_name='' model=() points=() every=1

choose_model() {
    local steps=${STEPS:-400} text=(--headers) points_of="16 4 1" share step
    [ -z "$quick" ] || points_of="4 1"
    if [ -n "$real_text" ]; then
        steps=$(((tokens + 65535) / 65536)) every=16
        model_name="OLMo-1B, 65,536 tokens per step, one $(gpu_name)"
        model=(--model olmo-1b --train "$train" --seq-len 2048 --micro-batch 8 --batch-tokens 65536 --lr 2e-4 --eps 1e-5)
    else
        [ -z "${TEXT:-}" ] || text=("$TEXT")
        run text.log "$build/prepare_bytes" "${text[@]}" --overwrite --out "$out/text" || return
        model_name="a model of bytes with OLMo's blocks, 2 layers of 128 channels, 1,024 tokens per step"
        model=(--model olmo:d2 --tokenizer bytes --seq-len 128 --micro-batch 8 --train "$out/text_train.bin" --lr 4e-3)
    fi
    model+=(--schedule constant --warmup $((steps / 5)) --weight-decay 0.1 --seed 1)
    for share in $points_of; do
        step=$((steps / share))
        [ $step -eq 0 ] || points+=("$step")
    done
}

measure_states() { # BETA2
    local status=0
    measure_points "$1" || status=$?
    # gigabytes, which nothing goes on from: table1 begins anew each time
    [ -n "$dry_run" ] || rm -rf "$out/states-$1"/step-* "$out/states-$1"/.step-*
    return $status
}
# At a signal: without its folder a run that is ending too saves nothing more.
drop_runs_of_states() {
    if [ -z "$dry_run" ] && [[ " ${pieces[*]} " == *" table1 "* ]]; then rm -rf "${betas[@]/#/$out/states-}"; fi
}
measure_points() { # BETA2: trains from point to point, and measures each checkpoint
    local folder=$out/states-$1 step last=${points[-1]} picture
    for step in "${points[@]}"; do
        # shellcheck disable=SC2046 # the flags are words
        run "train-$1-$step.log" "$trainer" "${model[@]}" --beta2 "$1" $(recipe_flags bf16) --steps "$step" --sample-tokens 0 --quiet \
            --keep 1 --out "$folder" "$([ "$step" = "${points[0]}" ] && echo --overwrite || echo --resume)" || return
        picture=()
        [ "$step" != "$last" ] || picture=("$out/ranges-$1.svg")
        run "quant_error-$1-$step.log" "$build/quant_error" --every $every "$folder/$(printf 'step-%08d' "$step")" "${picture[@]}" || return
    done
}

# A line per point: what expansion gains, by half and for both, and how the states are spread.
states_over_time() {
    local beta step
    for beta in "${betas[@]}"; do
        for step in "${points[@]}"; do
            awk -v beta="$beta" -v step="$step" '
                $1 == "E4M3" && NF == 7 { plain = $2; second = $3 }
                $1 == "E4M3+exp" && NF == 7 { first = $2; both = $3 }
                /^a group.s plain/ { split($0, part, /: median |, 90 % of them from /); group = part[2] " (" part[3] ")"; sub(/ to /, " ... ", group) }
                /^[mv] in a group/ {
                    which = $1
                    match($0, /deviation of ln [0-9.]+/); spread[which] = substr($0, RSTART + 16, RLENGTH - 16)
                    match($0, /from 2\^[-0-9.]+ to 2\^[-0-9.]+/); range[which] = substr($0, RSTART + 5, RLENGTH - 5); sub(/ to /, " ... ", range[which])
                    match($0, /%; k [0-9.]+/); k[which] = substr($0, RSTART + 5, RLENGTH - 5)
                }
                function cell(x) { return spread[x] ", " range[x] ", " k[x] }
                END { printf "| %s | %d | %.3f | %.3f | %.2f | %.2f | %.2f | %s | %s | %s |\n", beta, step, plain, both, plain / first, plain / second, plain / both, group, cell("m"), cell("v") }
            ' "$out/quant_error-$beta-$step.log"
        done
    done
}

piece_table1() {
    local beta log
    say "## Quantisation error of the optimizer's states (table 1)"
    [ -n "$model_name" ] || choose_model || return
    for beta in "${betas[@]}"; do measure_states "$beta" || return; done
    [ -z "$dry_run" ] || return 0
    say "Squared error of m/√v, in thousandths of its square, after both moments were quantised in groups of 128. The states are of runs in BF16 whose rate rises for a fifth of the steps and then is constant: $model_name. Measured$([ $every -eq 1 ] || echo " on one of $every groups"). The columns of gains divide the error of plain E4M3 by that with expansion; where a group's gain lies is its median and, in brackets, 90 % of the groups; m and v: the deviation of ln|x| within a group, 90 % of the groups' ranges, and the mean exponent k."
    {
        echo "| beta2 | step | plain, ‰ | both expanded, ‰ | gain: m expanded | v expanded | both (the paper: 1.63) | a group's gain | m | v |"
        echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
        states_over_time
        echo
    } >>"$page"
    for beta in "${betas[@]}"; do
        log=$out/quant_error-$beta-${points[-1]}.log
        say "All pairs of formats at beta2 $beta, step ${points[-1]}, relative to plain E4M3 for both (the paper's 20.10 is of no stated unit, and its beta2 is 0.95):"
        awk '$1 ~ /^(E4M3|E5M2|DE8)/ && NF == 6 { print "formats", $0 } $1 ~ /^(E4M3|E5M2|DE8)/ && NF == 7' "$log" >"$out/table1-$beta.txt"
        table table1 "$out/table1-$beta.txt"
        say "![Dynamic ranges and exponents at beta2 $beta](ranges-$beta.svg)"
    done
}
