#!/usr/bin/env bash
# scripts/measure_gpus.sh: what it would run, and, with programs that only pretend to run on GPUs, that every figure lands
# in its row.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
is() { # NAME GOT WANTED
    if [ "$2" = "$3" ]; then echo "ok - $1"; else
        printf 'not ok - %s\n    got: %s\n    wanted: %s\n' "$1" "$2" "$3"
        failures=1
    fi
}
unset CUDA_VISIBLE_DEVICES GPUS STAGES SEEDS WARMUP MPIRUN PROGRAM MODEL PASSES STEPS LARGE SMALL
export OUT=$folder/out

# The program: tokens/s from its flags, 1000 per GPU less 10 times the stage, a tenth with one micro-batch; a loss that
# its seed names, half a percent higher with several processes.
cat >"$folder/program" <<'SH'
#!/bin/sh
zero=0 steps=0 tokens=0 seed=0 val=
for word in "$@"; do
    case $last in --zero) zero=$word ;; --steps) steps=$word ;; --batch-tokens) tokens=$word ;; --seed) seed=$word ;; --val) val=$word ;; esac
    last=$word
done
n=${PROCESSES:-1}
echo "driver reports $((30000 + zero * 1000)).0 MB" >&2
for step in $(seq "$steps"); do
    rate=$((n * 1000 - n * 10 * zero)); [ $((tokens / n)) -gt 16384 ] || rate=$((rate / 10))
    [ "$step" -gt 1 ] || rate=1
    echo "{\"step\":$step,\"loss\":1,\"tokens_per_s\":$rate.0}"
done
[ -z "$val" ] || echo "{\"step\":$steps,\"val_loss\":$((2000 * seed + 10 * (n - 1) * seed)).0}"
SH
cat >"$folder/mpirun" <<'SH'
#!/bin/sh
[ "$1" = -np ] || exit 9
PROCESSES=$2 && export PROCESSES && shift 2 && exec "$@"
SH
chmod +x "$folder/program" "$folder/mpirun"
export PROGRAM=$folder/program MPIRUN=$folder/mpirun

page=$(GPUS=2 STAGES="1 3" SEEDS="1 3" scripts/measure_gpus.sh train val 2>&1)
is "the GPUs one by one" "$(grep 'one by one' <<<"$page")" "| one by one | 1000, 1000 | 100, 100 | 30.0 |"
is "ZeRO 1, in percent of them" "$(grep '2, ZeRO 1 | [0-9]* (' <<<"$page")" "| 2, ZeRO 1 | 1980 (99.0 %) | 198 (99.0 %) | 31.0 |"
is "ZeRO 3" "$(grep '2, ZeRO 3 | [0-9]* (' <<<"$page")" "| 2, ZeRO 3 | 1940 (97.0 %) | 194 (97.0 %) | 33.0 |"
is "the large model" "$(grep '4096' <<<"$page")" "| layers 32 heads 32 channels 4096 seq-len 2048 micro-batch 2 | 2, ZeRO 3 | 1940 | 33.0 |"
is "a seed's losses" "$(grep '^| 3' <<<"$page")" "| 3 | 6000.0000 | 6030.0000 | +0.50 % |"
is "their mean" "$(tail -n 1 <<<"$page")" "| mean | | | +0.50 ± 0.00 % |"

dry=$(GPUS=4 scripts/measure_gpus.sh --dry-run train val speed)
is "a dry run: each GPU has its turn" "$(grep -c CUDA_VISIBLE_DEVICES=3 <<<"$dry")" 2
is "all together, per stage with many micro-batches and with one" "$(grep -c -- '-np 4.*--zero' <<<"$dry")" 6
is "so many tokens per step" "$(grep -c -- '-np 4.*--batch-tokens 524288 ' <<<"$dry")" 3
is "nothing was run" "$(ls "$folder/out" | grep -c zero2)" 0

is "one GPU is not enough" "$(GPUS=1 scripts/measure_gpus.sh train val 2>&1)" "error: GPUS: two or more are needed, not '1'"
is "another part" "$(GPUS=2 scripts/measure_gpus.sh train val fast 2>&1)" "error: fast: not one of speed, large, loss"
said=$(GPUS=2 PROGRAM=false scripts/measure_gpus.sh train val large 2>&1)
is "a run that fails ends it: status" $? 1
is "a run that fails ends it" "$(cut -c 1-26 <<<"$said")" "error: large ended with 1:"
exit $failures
