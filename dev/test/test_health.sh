#!/usr/bin/env bash
# Tests FP8 health from the command line: its values in the log, one warning per problem, and that FP8 health changes no
# bit of the training.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
export OMP_NUM_THREADS=1
byte_data
run=(--tokenizer bytes --layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 2 --batch-tokens 192 --sample-tokens 0 --quiet
    --threads 1 --lr 1e-3 --train "$data" --device cpu)
train() { "$program" "${run[@]}" --out "$folder/$1" "${@:2}" >"$folder/$1.out" 2>"$folder/$1.said"; }
steps_of() { sed -n "s/^{\"step\":\([0-9]*\),\"$1\":.*/\1/p" "$folder/$2/log.jsonl" | tr '\n' ' '; }
said() { cat "$folder/$1.said" "$folder/$1.out"; }
two='\[[0-9.e+-]+,[0-9.e+-]+\]'
shares="\"saturated\":$two,\"zero\":$two,\"subnormal\":$two"

# Trains 12 steps of three micro-batches, once without and once with FP8 health, and compares the checkpoints.
for flags in "--recipe coat" "--recipe coat --head fp8" "--recipe coat-paper --grads fp32"; do
    # shellcheck disable=SC2086
    train alone $flags --steps 12 --health-every 0 --overwrite && train watched $flags --steps 12 --health-every 4 --health-products 5 --overwrite &&
        diff -r "$folder/alone/step-00000012" "$folder/watched/step-00000012" >"$folder/diff"
    check "$flags: FP8 health changes no bit of the training" $? "$(said watched)" "$(cat "$folder/diff")"
    log=$(cat "$folder/watched/log.jsonl")
    [ "$(steps_of fp8 watched), $(steps_of products watched)" = "4 8 12 , 5 10 " ] && ! grep -qE '"(fp8|products)":' "$folder/alone/log.jsonl"
    check "$flags: FP8 health is in the log at its steps" $? "$(steps_of fp8 watched), $(steps_of products watched)"
    [ "$(steps_of attention watched)$(steps_of activation watched)$(steps_of optimizer watched)" = "4 8 12 4 8 12 4 8 12 " ] &&
        grep -qE "\"activation\":\{\"g\":\{\"outlier\":$two,\"kurtosis\":$two\}\}" <<<"$log" &&
        grep -qE "\"optimizer\":\{\"wte\":\{\"lag\":\[[0-9.]+\]\}" <<<"$log" &&
        grep -qE "\"qkvw.v\":\{[^}]*\"unchanged\":$two\}" <<<"$log" &&
        grep -qE "\"n2\":\{\"amax\":[^}]*\"saturated\":\[[^]]*[0-9.e-]+\]," <<<"$log" && ! said watched | grep -E '^(attention|activation|optimizer|fp8|note): '
    check "$flags: the log has statistics of attention, activations and optimizer, and a healthy run prints no note" $? "$(said watched)" "$(grep -v loss <<<"$log")"
    grep -qE "\"products\":\{\"qkvw\":\{\"error\":\[0\.0[0-9]*,0\.0[0-9]*\],\"bias\":\[-?0[0-9.e-]*,-?0[0-9.e-]*\]\}\}\}" <<<"$log"
    check "$flags: the log has the errors of the FP8 matmuls" $? "$(grep products <<<"$log")"
    grep -qE "\"dqkv_q\":\{\"amax\":$two,$shares\}" <<<"$log" && grep -qE "\"dresid_q\":\{\"amax\":$two\}" <<<"$log" &&
        grep -qE "\"dresid_q_fcproj\":\{$shares\},.*\"dresid_q_proj\":\{$shares\}" <<<"$log"
    check "$flags: the log has the FP8 gradients" $? "$(grep fp8 <<<"$log")"
    case $flags in
    *coat | *"head fp8"*) wanted='dresid_qt_fcproj dresid_qt_proj dh_qt dqkv_qt dlogits_q' ;; # in E5M2
    *paper*) wanted='' ;;
    esac
    found=$(grep -oE '"(dresid_qt_fcproj|dresid_qt_proj|dh_qt|dqkv_qt|dlogits_qt?)":' <<<"$log" | sort -u | tr -d '":\n')
    [ "$found" = "$(tr ' ' '\n' <<<"$wanted" | sort | tr -d '\n')" ]
    check "$flags: the log has the FP8 transposes that are stored separately" $? "$found"
done

# A run that resumes with FP8 health at other steps reports no changed setting and has the same bytes.
train resumed --recipe coat --steps 12 --save-every 6 --health-every 3 --health-products 2 && rm -r "$folder/resumed/step-00000012" &&
    train resumed --recipe coat --steps 12 --save-every 6 --health-every 5 --health-products 0 --resume && ! grep -E '^(resume|note): ' "$folder/resumed.said" &&
    train whole --recipe coat --steps 12 --save-every 6 && diff -r "$folder/resumed/step-00000012" "$folder/whole/step-00000012" >/dev/null
check "a resumed run may check FP8 health at other steps" $? "$(said resumed)"

# Sequences of one token: q and k get no gradient from attention, so two thirds of dqkv are zero.
# The layer in the warning depends on the text, which does not change with the sources.
"$build"/prepare_bytes --out "$folder/fixed" LICENSE >/dev/null || exit 1
run=("${run[@]/"$data"/"$folder/fixed_train.bin"}")
zeros=(--seq-len 1 --micro-batch 32 --batch-tokens 0 --steps 4 --health-every 1 --no-quiet)
train zeros "${zeros[@]}" --recipe coat
line='fp8: dqkv_qt of layer 1 has 66.7 % of its FP8 values zero or subnormal; --linear bf16 is more exact'
[ "$(grep -cxF "$line" "$folder/zeros.out")" -eq 1 ] && [ "$(grep -c '^fp8: dqkv_qt' "$folder/zeros.out")" -eq 1 ]
check "zero and subnormal FP8 values are reported once, with the flag that helps" $? "$(said zeros)"

# A note warns of a large --beta2 with 8-bit moments. A run in BF16 logs the statistics that do not need FP8.
train slow --recipe coat --steps 1 --beta2 0.9999 && grep -q '^note: --beta2 0.9999: .*8-bit second moments' "$folder/slow.said"
check "a note at the start names --beta2 0.9999 with 8-bit moments" $? "$(said slow)"
train fast --recipe coat --steps 1 --beta2 0.99 && train full --recipe coat --moments bf16 --steps 1 --beta2 0.9999 &&
    ! grep -- --beta2 "$folder/fast.said" "$folder/full.said"
check "--beta2 0.99, or 0.9999 with BF16 moments, prints no note" $? "$(said fast)" "$(said full)"
train plain --recipe bf16 --steps 2 --health-every 1
[ "$(steps_of attention plain)$(steps_of activation plain)$(steps_of optimizer plain)$(steps_of fp8 plain)" = "1 2 1 2 1 2 " ]
check "a BF16 run logs attention, outliers and lag" $? "$(said plain)"

# --health-products in the plan, and with recipes without FP8 matmuls.
planned() { "$program" --plan=json --model gpt2 --recipe coat "$@" | grep -c '"name": "qkvw_reference", "format": "bf16", "category": "scratch", "bytes": 3538944}'; }
[ "$(planned)$(planned --health-products 100)$(planned --health-products 100 --eval-only)" = 010 ]
check "--plan has the BF16 reference matmul only with --health-products" $?
for flags in "--recipe bf16" "--precision fp32" "--recipe coat --linear bf16"; do
    # shellcheck disable=SC2086
    train refused $flags --health-products 5
    [ $? -eq 1 ] && [ "$(grep -c . "$folder/refused.said")" -eq 1 ] && grep -q '^error: --health-products: .*compares FP8 matmuls' "$folder/refused.said"
    check "--health-products with $flags is refused" $? "$(said refused)"
done
exit $failures
