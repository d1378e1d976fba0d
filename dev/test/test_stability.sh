#!/usr/bin/env bash
# Tests scripts/lab.py stability. With programs that only pretend to train: every value is in its row and column,
# nothing runs twice, and failures are reported. With the real ones: a small study on the CPU, and perturb_weights.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/program_fixture.sh
lab_tests 2 RECIPES RATES SEEDS MODEL BATCH TRAINING STEPS DIRECTIONS CURVES POINTS JOBS TEXT

# --- dry runs
said=$(scripts/lab.py stability --dry-run --out "$folder/dry" 'a b*' v 2>&1)
check "--dry-run succeeds" $? "$said"
has "--dry-run prints the training commands" "$said" 'train_gpt2_fp8_cpu .*--recipe coat .*--train .a b\*. --val v .*--lr 1\.6e-2 --seed 3 '
[ "$(grep -c -- ' --lr ' <<<"$said")" -eq 54 ]
check "--dry-run prints every recipe, rate and seed" $? "$said"
has "--dry-run prints the commands that measure the sharpness" "$said" "perturb_weights $folder/dry/runs/fp8-linear/BEST/1/step-LAST "
[ ! -e "$folder/dry" ]
check "--dry-run writes nothing" $?
has "RECIPES accepts flags after a recipe" "$(RECIPES=coat,grads=fp32,head=fp8 scripts/lab.py stability --dry-run 2>&1)" '--recipe coat --grads=fp32 --head=fp8 '
refuses "TRAIN_GLOB without VAL_GLOB is refused" 'name TRAIN_GLOB and VAL_GLOB' scripts/lab.py stability --out "$folder/refused" a
refuses "stability refuses an unknown flag" '.*--fast' scripts/lab.py stability --fast
refuses "an even number of POINTS is refused" 'POINTS: must be an odd number' env POINTS=4 scripts/lab.py stability --out "$folder/refused"
refuses "RATES that are not numbers are refused" 'RATES: abc: --lr abc: must be a number' env RATES="1e-3 abc" scripts/lab.py stability --out "$folder/refused"
refuses "STEPS that is not a number is refused" 'STEPS: must be .*many' env STEPS=many scripts/lab.py stability --out "$folder/refused"
refuses "a pattern without files is refused" 'no file matches nothing' scripts/lab.py stability --out "$folder/refused" 'nothing*' 'nothing*'
touch "$folder/train_000000.bin" "$folder/val"
refuses "programs that are not built are refused" 'none/train_gpt2_fp8_cpu is not built; run: make ' env BIN="$folder/none" scripts/lab.py stability --out "$folder/refused"

# --- with programs that pretend to run on two GPUs
# The loss after training is 3 + (rate - 2)^2 + seed / 1000, and 0.5 more for coat. At rate 7 runs end above their first
# loss, at 8 they diverge, at 9 the device fails. The loss of perturbed weights is 3 + 2.5 distance^2 + 0.1 distance.
cat >"$folder/pretend/train_gpt2_fp8" <<'END'
#!/usr/bin/env bash
eval_only=
while [ $# -gt 0 ]; do
    case $1 in
    --recipe | --lr | --seed | --steps | --out | --model) declare "${1#--}=$2"; shift ;;
    --eval-only) eval_only=yes ;;
    --version) echo pretended; exit ;; # asked for if there is no git
    --plan=json) exit ;; # asked for to check flags
    esac
    shift
done
if [ $eval_only ]; then
    echo "$recipe looks" >>"$CALLS"
    awk -v at="$(cat "$model/at")" 'BEGIN { printf "{\"step\":0,\"val_loss\":%.9g}\n", 3 + 2.5 * at * at + 0.1 * at }'
    exit
fi
echo "GPU $CUDA_VISIBLE_DEVICES: $recipe $lr $seed" >>"$CALLS"
sleep 0.05 # lets the other GPU start a run
echo '{"step":1,"loss":5.5,"grad_norm":1}' >"$out/log.jsonl"
case $lr in
8) echo "error: training diverged" >&2; exit 4 ;;
9) echo "error: the GPU is lost" >&2; exit 3 ;;
esac
mkdir -p "$out/step-00000010"
awk -v recipe="$recipe" -v rate="$lr" -v seed="$seed" -v step="$steps" 'BEGIN {
    printf "{\"step\":%d,\"val_loss\":%.9g}\n", step, 3 + (rate - 2) * (rate - 2) + seed / 1000 + (recipe == "coat") / 2
}' >>"$out/log.jsonl"
END
cat >"$folder/pretend/perturb_weights" <<'END'
#!/bin/sh
[ -d "$1" ] && mkdir -p "$2" && echo "$4" >"$2/at"
END
chmod +x "$folder"/pretend/*
ln -s "$folder/pretend/train_gpt2_fp8" "$folder/pretend/train_gpt2_fp8_cpu"
ln -s "$(realpath "$BUILD/prepare_bytes")" "$folder/pretend/"
pretend() { # RATES: runs the study of these rates in $folder/study
    PATH="$folder/gpus:$path" BIN=$folder/pretend BUILD=$folder/pretend CALLS=$folder/calls RECIPES="bf16 coat" RATES=$1 SEEDS="1 3" STEPS=10 \
        scripts/lab.py stability --out "$folder/study" "$folder/train*" "$folder/val" 2>&1
}
said=$(pretend "1 2 7 8")
check "a study on two GPUs succeeds" $? "$said"
page=$(cat "$folder/study/stability.md")
has "the page has the mean loss, its standard deviation over the seeds, and the difference from bf16" "$page" '^\| 1 \| 4\.0020 ± 0\.0014 \| 4\.5020 ± 0\.0014 \(\+12\.49 %\) \|$'
has "the page marks runs that diverged by exit code 4" "$page" '^\| 8 \| 2 of 2 diverged \| 2 of 2 diverged \|$'
has "the page marks runs that ended above their first loss" "$page" '^\| 7 \| 2 of 2 diverged \| 2 of 2 diverged \|$'
# The sensitivity averages the differences from the best loss: 1 at rate 1, 0 at rate 2, and the largest possible
# difference, 5.5 - 3.002, at rates 7 and 8.
has "the page has best rate, sensitivity and the curvature of a known parabola" "$page" '^\| bf16 \| 2 \| 3\.0020 \| 1\.4990 \| 5\.000 ± 0\.000 \|$'
[ "$(grep -c 'GPU [01]: ' "$folder/calls")" -eq 16 ] && grep -q 'GPU 0: ' "$folder/calls" && grep -q 'GPU 1: ' "$folder/calls"
check "both GPUs train, and each run is trained once" $? "$(cat "$folder/calls")"
# 53 evaluations: distance 0 once, 2 directions at 20 distances, and 6 directions at 2 distances
[ "$(grep -c 'coat looks' "$folder/calls")" -eq 53 ] && [ "$(grep -c $'^coat\t' "$folder/study/sharpness.tsv")" -eq 53 ]
check "sharpness.tsv has every direction and distance" $? "$(cat "$folder/study/sharpness.tsv")"
[ "$(find "$folder/study/runs" -name 'step-*' | wc -l)" -eq 6 ] && [ -z "$(find "$folder/study/runs" -name 'step-*' -path '*/3/*')" ]
check "only the first seed's checkpoints are kept" $? "$(find "$folder/study/runs" -name 'step-*')"

mv "$folder/calls" "$folder/calls.before"
said=$(pretend "1 2 7 8")
check "the same command again succeeds" $? "$said"
[ ! -e "$folder/calls" ] && [ -n "$page" ] && [ "$page" = "$(cat "$folder/study/stability.md")" ]
check "the same command again runs nothing and writes the same page" $? "$(cat "$folder/calls" 2>&1)"
said=$(pretend "1 2 7 8 9")
[ $? -eq 1 ] && [ "$(grep -c 'failed: .* rate 9, seed [13], status 3: the GPU is lost' <<<"$said")" -eq 4 ]
check "a failed run is reported, and the exit code is 1" $? "$said"
page=$(cat "$folder/study/stability.md")
has "the page lists failed runs" "$page" '^\| 9 \| 2 of 2 failed \| 2 of 2 failed \|$'
has "failed runs do not affect the other rows" "$page" '^\| bf16 \| 2 \| 3\.0020 \| 1\.4990 \| 5\.000 ± 0\.000 \|$'
[ "$(grep -c . "$folder/calls")" -eq 4 ]
check "a study with results trains only new runs" $? "$(cat "$folder/calls")"
said=$(MODEL="--layers 3" pretend "1 2" 2>&1)
[ $? -eq 1 ] && grep -q "^error: setting study: .*'--layers 6 .*'--layers 3 .*choose another --out" <<<"$said"
check "other flags in a folder with results are refused" $? "$said"
exec 8>"$folder/study/.lock"
flock 8
said=$(pretend "1 2")
[ $? -eq 1 ] && grep -q '^error: .*study: another process uses this folder' <<<"$said"
check "a second process in the folder is refused" $? "$said"
exec 8>&-

# --- a small model, on the CPU
export RECIPES="bf16 coat" RATES="4e-3 1000" SEEDS=1 STEPS=60 MODEL="--layers 1 --heads 2 --channels 32 --positions 32" TEXT=coat
export BATCH="--seq-len 32 --micro-batch 8 --val-batches 10 --threads 1" POINTS=5 CURVES=1 DIRECTIONS=2 OMP_NUM_THREADS=1
said=$(scripts/lab.py stability --out "$folder/small" 2>&1)
check "a study on the CPU succeeds" $? "$said"
page=$(cat "$folder/small/stability.md")
loss=$(field val_loss "$folder/small/runs/coat/4e-3/1/log.jsonl") base=$(field val_loss "$folder/small/runs/bf16/4e-3/1/log.jsonl")
has "the page has the runs' losses" "$page" "^\| 4e-3 \| $(printf %.4f "$base") \| $(printf %.4f "$loss") \("
has "the page marks runs at a rate that is too large as diverged" "$page" '^\| 1000 \| 1 of 1 diverged \| 1 of 1 diverged \|$'
said=$(TEXT=data scripts/lab.py stability --out "$folder/small" 2>&1)
[ $? -eq 1 ] && grep -q '^error: TEXT: .*small/text_train.bin was made from coat, not from data; choose another --out$' <<<"$said" && ! grep -q TEXT=data "$folder/small/stability.tsv"
check "another TEXT in a folder with results is refused" $? "$said"
sharpness=$folder/small/sharpness.tsv
grep -q $'^coat\t4e-3\t0\t0\t'"$loss\$" "$sharpness" && grep -q $'^bf16\t4e-3\t0\t0\t'"$base\$" "$sharpness"
check "the loss at distance 0 is that of the run" $? "$loss $base" "$(cat "$sharpness")"
awk '{ loss[$1, $3, $4] = $5 } END {
    for (i = split("bf16 coat", recipe, " "); i; i--) {
        r = recipe[i]
        if (!(loss[r, 0, 0] < loss[r, 1, "0.5"] && loss[r, 1, "0.5"] < loss[r, 1, 1])) exit 1
        if (!(loss[r, 0, 0] < loss[r, 1, "-0.5"] && loss[r, 1, "-0.5"] < loss[r, 1, -1])) exit 1
    }
}' "$sharpness"
check "the loss rises on both sides of distance 0" $? "$(cat "$sharpness")"

# stops the study in the middle of a run; started again, it must end at the same loss
export RECIPES=coat RATES=4e-3 STEPS=500 DIRECTIONS=0
scripts/lab.py stability --out "$folder/straight" >/dev/null 2>&1
scripts/lab.py stability --out "$folder/stopped" >"$folder/said" 2>&1 &
study=$!
wait_for $study grep -q '"loss"' "$folder/stopped/runs/coat/4e-3/1/log.jsonl"
kill -TERM $study
wait $study
[ $? -eq 1 ] && ! grep -q ^coat "$folder/stopped/stability.tsv" &&
    grep -q '^ended by SIGTERM after step [0-9]* of 500: saved' "$folder/stopped/runs/coat/4e-3/1/output.txt" && grep -q '^error: stopped; ' "$folder/said"
check "a stopped study saves its run" $? "$(cat "$folder/said" "$folder/stopped/runs/coat/4e-3/1/output.txt")"
[ -z "$(find "$folder/stopped" -name '.moved*' -o -name '*.part')" ]
check "a stopped study removes its temporary files" $?
said=$(scripts/lab.py stability --out "$folder/stopped" 2>&1)
check "a stopped study succeeds when started again" $? "$said"
is "a stopped and resumed study has the same loss" "$(grep ^coat "$folder/stopped/stability.tsv")" "$(grep ^coat "$folder/straight/stability.tsv")"

# --- perturb_weights
checkpoint=$(echo "$folder"/small/runs/coat/4e-3/1/step-*)
"$BUILD/perturb_weights" "$checkpoint" "$folder/same" 7 0 && cmp "$checkpoint/model.safetensors" "$folder/same/model.safetensors" &&
    cmp "$checkpoint/config.json" "$folder/same/config.json"
check "perturb_weights with distance 0 writes the same bytes" $?
"$BUILD/perturb_weights" "$checkpoint" "$folder/moved" 7 -0.5 && OMP_NUM_THREADS=2 "$BUILD/perturb_weights" "$checkpoint" "$folder/again" 7 -0.5 &&
    cmp "$folder/moved/model.safetensors" "$folder/again/model.safetensors"
check "perturb_weights writes the same bytes with any number of threads" $?
"$BUILD/perturb_weights" "$checkpoint" "$folder/moved" 8 -0.5 && ! cmp -s "$folder/moved/model.safetensors" "$folder/again/model.safetensors"
check "perturb_weights with another seed moves in another direction, also in the same folder" $?
says() { [ "$("$BUILD/perturb_weights" "${@:2}" 2>&1)" = "error: $1" ]; }
says "SEED: must be a number (is x)" "$checkpoint" "$folder/x" x 1 && says "ALPHA: must be a number (is nan)" "$checkpoint" "$folder/x" 1 nan && [ ! -e "$folder/x" ]
check "perturb_weights refuses arguments that are not numbers" $?
said=$("$BUILD/perturb_weights" "$folder/none" "$folder/x" 1 1 2>&1)
[ $? -eq 2 ] && grep -q "^error: .*/none has no config.json; name a folder of a model, " <<<"$said"
check "perturb_weights refuses a folder that is not a checkpoint" $? "$said"
# filters_moved CHECKPOINT MOVED COUNT: checks that COUNT filters have moved by half their norm, and nothing else
filters_moved() {
    python3 - "$@" <<'PYTHON'
import json, struct, sys

def read(folder):
    """{name: (shape, values)}"""
    data = open(folder + "/model.safetensors", "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            codes = struct.unpack("<%dH" % ((end - begin) // 2), data[8 + length + begin:8 + length + end])
            tensors[name] = entry["shape"], [struct.unpack("<f", struct.pack("<I", code << 16))[0] for code in codes]
    return tensors

before, after = read(sys.argv[1]), read(sys.argv[2])
filters = 0
for name, (shape, w) in before.items():
    moved = after[name][1]
    if len(shape) == 1:
        assert w == moved, name + " has moved"
        continue
    rows, cols = shape
    columns = ".h." in name  # (in, out)
    for f in range(cols if columns else rows):
        at = range(f, rows * cols, cols) if columns else range(f * cols, (f + 1) * cols)
        norm = sum(w[i] ** 2 for i in at) ** 0.5
        distance = sum((w[i] - moved[i]) ** 2 for i in at) ** 0.5
        assert abs(distance - 0.5 * norm) <= 0.005 * norm, (name, f, distance, norm)
        filters += 1
assert filters == int(sys.argv[3]), filters
PYTHON
}
said=$(filters_moved "$checkpoint" "$folder/again" $((257 + 32 + 96 + 32 + 128 + 32)) 2>&1)
check "perturb_weights moves each filter by its norm times the distance; norms and biases stay" $? "$said"
"$BUILD/prepare_bytes" --out "$folder/bytes" coat/ops.h >/dev/null
for flags in --no-tied-head '--vision clip:d1'; do
    # shellcheck disable=SC2086 # flags are words
    "$BIN/train_gpt2_fp8_cpu" --model llama:d1 $flags --tokenizer bytes --heads 2 --channels 32 --recipe bf16 --seq-len 32 --micro-batch 1 --steps 1 \
        --sample-tokens 0 --quiet --train "$folder/bytes_train.bin" --out "$folder/llama${flags%% *}" >/dev/null
done
llama=$folder/llama--no-tied-head/step-00000001
said=$("$BUILD/perturb_weights" "$llama" "$folder/moved-llama" 7 -0.5 2>&1 && filters_moved "$llama" "$folder/moved-llama" $((2 * 257 + 3 * 32 + 32 + 2 * 128 + 32)) 2>&1)
check "perturb_weights moves a model with Llama's block and an untied head" $? "$said"
said=$("$BUILD/perturb_weights" "$folder/llama--vision/step-00000001" "$folder/x" 7 1 2>&1)
[ $? -eq 1 ] && grep -q "models with a vision tower are not supported" <<<"$said" && [ ! -e "$folder/x" ]
check "perturb_weights refuses a vision model" $? "$said"
exit $failures
