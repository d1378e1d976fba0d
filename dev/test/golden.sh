#!/usr/bin/env bash
# Records what a build computes, to verify that a refactoring changes no result.
#
#   dev/test/golden.sh PROGRAM DATA >FILE
#
# PROGRAM is the train_gpt2_fp8_cpu of a build. DATA is a folder for token files; if it is empty, build/prepare_bytes
# next to PROGRAM fills it. FILE gets a line with the exit code of every run, and a line with the hash of every
# checkpoint file, log and output. To compare two builds, run both with the same DATA on one machine, then compare their
# FILEs with `diff`.
set -euo pipefail
program=$(realpath "$1") data=$(realpath -m "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

if [ ! -e "$data/text_train.bin" ]; then
    mkdir -p "$data"
    "$(dirname "$program")/build/prepare_bytes" --headers --out "$data/text" >"$data/log" 2>&1
    python3 - "$data/masked_train.bin" "$(dirname "$0")/../../data" <<'END'
import array, random, sys
sys.path.insert(0, sys.argv[2])
from prepare_masks import masked_file
random.seed(1)
lengths = [random.randint(5, 90) for _ in range(200)]
starts = [sum(lengths[:i]) for i in range(len(lengths))]
tokens = array.array("H", (random.randint(97, 122) for _ in range(sum(lengths))))
counted = bytes(random.random() < 0.5 for _ in tokens)
open(sys.argv[1], "wb").write(masked_file(2, tokens.tobytes(), starts, counted, 1))
END
fi
cd "$folder"

hash_of() { sha256sum | cut -c1-16; }

# Removes speeds and times, which differ between runs.
without_times() { sed -E 's/"(ms|tokens_per_s|seconds|time_ms|mfu)": ?[0-9.e+-]+,?//g'; }

# record NAME [FILE...]: prints a line with the hash of each file that exists.
record() {
    local name=$1 file
    shift
    for file in "$@"; do
        [ ! -f "$file" ] || case $file in
        *log.jsonl) printf '%s %s %s\n' "$name" "$file" "$(without_times <"$file" | hash_of)" ;;
        *) printf '%s %s %s\n' "$name" "$file" "$(hash_of <"$file")" ;;
        esac
    done
}

# run NAME FLAG...: trains, evaluates or plans, with stdout in NAME.out. Records the exit code and, if it is not 0, stderr.
run() {
    local name=$1 status=0
    shift
    $launch "$program" "$@" >"$name.out" 2>"$name.err" || status=$?
    echo "$name exit $status"
    [ "$status" -eq 0 ] || record "$name" "$name.err"
}
train() {
    local name=$1
    shift
    run "$name" --tokenizer bytes --layers 3 --heads 2 --channels 64 --seq-len 64 --micro-batch 4 --steps 6 --lr 1e-2 \
        --train "$data/text_train.bin" --val "$data/text_val.bin" --val-batches 2 --val-every 3 --sample-tokens 8 \
        --save-every 3 --health-every 2 --out "$name" "$@"
    record "$name" "$name"/step-*/* "$name/log.jsonl"
}

launch=
train bf16 --recipe bf16
train fp8-linear --recipe fp8-linear
train coat
train coat-accumulated --batch-tokens 1024 --grads fp32 --head fp8 --skip-loss-z 3
train coat-recompute-3 --recompute 3 --head fp8-backward --no-cache-transposed
train coat-save-all --recompute 0 --moments fp8 --master none
train coat-bf16-blocks --bf16-blocks 0 --group-size 32 --master fp32
train ablation-saved --recipe bf16 --saved coat
train ablation-moments --recipe bf16 --moments coat --master split16
train fp32 --precision fp32 --schedule wsd --lr-final 0
paper=(--recipe coat-paper)
train coat-paper "${paper[@]}"
train coat-paper-save-all "${paper[@]}" --recompute 0
train llama --model llama:d3 --kv-heads 1 --tokenizer bytes
train qwen3 --model qwen3:d3 --kv-heads 1 --documents apart
train olmo2 --model olmo2:d3
train olmo --model olmo:d3 --clip-qkv 0.5
train masked --train "$data/masked_train.bin" "$data/text_train.bin" --documents apart
train resumed
run resume --resume --out resumed --steps 9 --train "$data/text_train.bin" --val "$data/text_val.bin" --save-every 3
record resume resumed/step-*/* resumed/log.jsonl
run tuned --model coat/step-00000006 --tokenizer bytes --train "$data/masked_train.bin" --steps 4 --out tuned
record tuned tuned/step-*/* tuned/log.jsonl
run evaluated --eval-only --model coat/step-00000006 --val "$data/text_val.bin" --val-batches 5 --json
record evaluated evaluated.out
run sampled --model llama/step-00000006 --prompt "int main" --sample-tokens 70 --temperature 0.7 --json
record sampled sampled.out
for model in gpt2 llama2-7b; do
    for recipe in bf16 coat; do
        run "plan-$model-$recipe" --plan=json --model "$model" --recipe "$recipe" --gpus 4 --zero 2
        record "plan-$model-$recipe" "plan-$model-$recipe.out"
    done
done
run help --help=markdown
record help help.out
run error-flag --no-such-flag
run error-value --lr fast
run error-data --train "$data/none.bin"
run error-shape --heads 5
if command -v mpirun >/dev/null; then
    for ranks in 2 3; do
        launch="mpirun --oversubscribe --bind-to none -np $ranks"
        for stage in 1 3; do train "zero-$stage-of-$ranks" --zero $stage --micro-batch 2; done
    done
fi
