#!/usr/bin/env bash
# What is claimed of the GPU, checked and measured in one go (about 10 minutes on an H200; the race check takes four):
# the GPU against the CPU twin (every operation, by what test_gpt2 and dev/check_*.cu compare; whole models), memory
# errors and races in the same operations, reproducibility, the loss curve beside the twin's, every kernel's bandwidth,
# and the speed and memory of training.
#
#   scripts/check_gpu.sh 'data/tokens/gpt2_train_*.bin' data/tokens/headers     GPT-2 tokens; byte tokens (prepare_bytes)
#
#   BIN=. BUILD=build OUT=runs/check     where the programs are, and where logs go
#   PARTS="twin sanitizers repeat curve kernels training"     what is done, in this order
set -uo pipefail
[ $# -eq 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 1; }
tokens=$1 bytes=$2 bin=${BIN:-.} build=${BUILD:-build} out=${OUT:-runs/check}
parts=" ${PARTS:-twin sanitizers repeat curve kernels training} "
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
failed=0
say() { printf '\n== %s\n' "$*"; }
verdict() { if [ "$1" -eq 0 ]; then echo "good: $2"; else echo "FAILED: $2"; failed=1; fi; }

wanted() { case $parts in *" $1 "*) return 0 ;; *) return 1 ;; esac }

if wanted twin; then
    say "every operation, in BF16, FP32 and FP8, the optimizer's states, and models against the twin"
    "$bin/test_gpt2" >"$out/test.log" 2>&1
    verdict $? "test_gpt2: $(grep -c '^ok' "$out/test.log") passed, $(grep -c '^not ok' "$out/test.log") failed"
fi

if wanted sanitizers && command -v compute-sanitizer >/dev/null; then
    say "compute-sanitizer"
    for tool in memcheck initcheck; do
        status=0
        compute-sanitizer --tool $tool --error-exitcode 9 "$bin/test_gpt2" --small >"$out/$tool.log" 2>&1 || status=$?
        verdict $status "$tool: $(grep -o 'SUMMARY: .*' "$out/$tool.log" | tail -n 1)"
    done
    # cuDNN's kernels and cuBLAS's nvjet kernels synchronise through asynchronous barriers, which racecheck does not
    # follow: the former are left out, for the time they take, the latter's reports are not counted.
    for part in optimizer kernels fp8-kernels operations fp8 models; do
        log=$out/racecheck-$part.log
        compute-sanitizer --tool racecheck --kernel-name-exclude kernel_substring=cudnn "$bin/test_gpt2" --small $part >"$log" 2>&1
        ours=$(grep 'Race reported' "$log" | grep -cv nvjet)
        grep -q 'hazards\? displayed' "$log" && ! grep -qE '^not ok|^error|Internal' "$log" && [ "$ours" -eq 0 ]
        verdict $? "racecheck, $part: $ours hazards in kernels of this program; in all $(grep -o 'SUMMARY: .*' "$log" | tail -n 1)"
    done
fi

if wanted repeat; then
    say "two runs of one command"
    for i in 1 2; do
        "$bin/train_gpt2_fp8" --train "$tokens" --model gpt2 --micro-batch 16 --batch-tokens 65536 --steps 6 --sample-tokens 0 \
            --recipe bf16 --quiet --out "$out/run$i" --overwrite >"$out/run$i.log" 2>&1
    done
    diff -r "$out/run1/step-00000006" "$out/run2/step-00000006" >/dev/null
    verdict $? "checkpoints are equal byte for byte"
fi

if wanted curve; then
    say "500 steps of a small model, GPU and twin"
    small=(--tokenizer bytes --layers 4 --heads 4 --channels 128 --seq-len 256 --micro-batch 8 --steps 500 --lr 1e-3
        --warmup 50 --val-every 0 --val-batches 8 --train "${bytes}_train.bin" --val "${bytes}_val.bin" --sample-tokens 0
        --seed 1 --recipe bf16 --quiet --overwrite)
    "$bin/train_gpt2_fp8" "${small[@]}" --device cuda --out "$out/gpu" >/dev/null 2>"$out/gpu.log"
    "$bin/train_gpt2_fp8" "${small[@]}" --device cpu --out "$out/cpu" >/dev/null 2>"$out/cpu.log"
    loss() { sed -n 's/.*"val_loss":\([^,}]*\).*/\1/p' "$1/log.jsonl" | tail -n 1; }
    awk -v a="$(loss "$out/gpu")" -v b="$(loss "$out/cpu")" 'BEGIN { d = a - b; exit !(a > 0 && b > 0 && d < 0.01 && d > -0.01) }'
    verdict $? "validation loss $(loss "$out/gpu") and $(loss "$out/cpu")"
fi

if wanted kernels; then
    say "memory-bound kernels"
    "$build/bench_kernels_gpu" | tee "$out/kernels.log"
    verdict $? "bench_kernels: $(grep -E '^(not )?ok - ' "$out/kernels.log" || echo 'ended early')" # pipefail: its own status
    awk '/ ms / && $(NF - 3) + 0 < 80 && $1 != "loss_sum" { print "below 80 % of a large copy: " $0 }' "$out/kernels.log"
fi

if wanted training; then
    say "training"
    PROGRAM=$bin/train_gpt2_fp8 OUT=$out/measure "$here/measure.sh" "$tokens" bf16 fp8-linear coat
fi

exit $failed
