#!/usr/bin/env bash
# `make run`: trains a first model in a few minutes, without downloading data. Builds
# the program, collects the headers of the system's libraries as text, and trains a
# small GPT on the bytes of this text. Prints the model's losses and the paths of its
# files. On a GPU that supports FP8 the model is larger.
#
#   STEPS=50 OUT=runs/short scripts/run.sh     STEPS: training steps (default: 400 on a
#                                              GPU, 1000 on a CPU); OUT: the run's folder
#                                              (default runs/demo), which is overwritten
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
case ${STEPS:-1} in *[!0-9]* | 0*) echo "error: STEPS: must be a whole number of at least 1 (is $STEPS)" >&2; exit 1 ;; esac
cd "$(dirname "$0")/.."
unset MAKEFLAGS MFLAGS MAKELEVEL # drops the flags of a calling make; make's settings remain as environment variables

out=${OUT:-runs/demo}
data=data/tokens/headers

cpu_model=(--layers 4 --heads 4 --channels 128 --seq-len 128 --positions 128 --micro-batch 8)
# Uses the recipe bf16 instead of the default, coat. COAT takes twice as long on a CPU, which has no FP8 units. With
# only 128 channels, COAT also ends at a higher loss than BF16 (1.88 instead of 1.80 after 2400 steps).
cpu_steps=1000
cpu_training=(--recipe bf16 --lr 4e-3 --warmup 100 --val-every 300 --val-batches 40)
gpu_model=(--layers 12 --heads 12 --channels 768 --seq-len 1024 --micro-batch 32)
gpu_steps=400
gpu_training=(--lr 1e-3 --warmup 40 --val-every 100 --val-batches 20)
training=(--schedule cosine --lr-final 0.1 --beta2 0.95 --weight-decay 0.1 --seed 42)
sample=(--prompt '#include <' --sample-every 0 --sample-tokens 400 --temperature 0.8)

say() { printf '\n== %s\n' "$*"; }

. scripts/gpu.sh

# Builds only for this machine, because building for all GPUs takes longer than the training.
say "building"
scripts/setup.sh
if has_fp8_gpu; then make -j"$(nproc)" GPU=native; else make -j"$(nproc)" CUDA=0; fi

if has_fp8_gpu && [ -x train_gpt2_fp8 ]; then
    program=./train_gpt2_fp8 steps=${STEPS:-$gpu_steps} model=("${gpu_model[@]}" "${gpu_training[@]}")
else
    program=./train_gpt2_fp8_cpu steps=${STEPS:-$cpu_steps} model=("${cpu_model[@]}" "${cpu_training[@]}")
fi

say "gathering text: the headers of this machine's libraries"
build/prepare_bytes --headers --overwrite --out $data

say "baselines: losses without a model"
baselines=$(build/bigram ${data}_train.bin ${data}_val.bin)
uniform=$(awk '$1 == "uniform" { print $2 }' <<<"$baselines")
bigram=$(awk '$1 == "bigram" { print $2 }' <<<"$baselines")
echo "all bytes equally likely: $uniform nats per byte; a table of byte pairs: $bigram"

say "training"
every=$((steps > 20 ? steps / 20 : 1)) # steps between printed lines: about 20 lines fit on a screen
$program --tokenizer bytes --train ${data}_train.bin --val ${data}_val.bin "${model[@]}" "${training[@]}" \
    --steps "$steps" --log-every "$every" "${sample[@]}" --out "$out" --overwrite

build/plot_loss "$out/log.jsonl" "$out/loss.svg" --title "$out: a GPT on the bytes of header files" \
    --ref uniform="$uniform" --ref bigram="$bigram"

# number KEY LINE: prints the value of KEY in a line of the log
number() { sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p" <<<"$2"; }
first=$(number loss "$(grep -m 1 '"loss"' "$out/log.jsonl")")
last_val=$(number val_loss "$(grep '"val_loss"' "$out/log.jsonl" | tail -n 1)")
checkpoints=("$out"/step-*)
if [ -z "$last_val" ]; then
    echo "
stopped before the first validation; the run so far is in $out; the next \`make run\` overwrites it"
    exit 0
fi

say "result, in nats per byte"
awk -v uniform="$uniform" -v bigram="$bigram" -v first="$first" -v val="$last_val" 'BEGIN {
    printf "  uniform           %.3f\n  first step        %.3f\n  bigram table      %.3f\n", uniform, first, bigram
    printf "  this model        %.3f on files it has not seen (%.2f bits per byte)\n", val, val / log(2)
}'
say "files"
echo "  log         $out/log.jsonl"
echo "  loss curve  $out/loss.svg"
echo "  checkpoint  ${checkpoints[-1]}"
echo "  more text   $program --model $(printf %q "${checkpoints[-1]}") --tokenizer bytes --prompt 'struct '"
