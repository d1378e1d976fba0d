#!/usr/bin/env bash
# Profiles a training step on one GPU, or on the first of several. Prints the time that
# each kind of kernel adds to a micro-batch, the GPU's power and clock and, for several
# GPUs, the cost of communication. OUT/profile.md lists all kernels, OUT/trace.tsv all
# kernel launches.
#
#   scripts/profile.sh 'data/tokens/mine_train_*.bin' [FLAGS OF THE TRAINER...]
#       for example --model gpt2-xl --micro-batch 16
#
# Environment:
#   STEPS=6 OUT=runs/profile PROGRAM=./train_gpt2_fp8 LIBRARY=build/libtrace.so
#   GPUS=1 MPIRUN="mpirun --bind-to none"
#   TRAFFIC=build/bench_traffic   program that counts the bytes that operations must
#                                 move; if it is missing, the table has no GB/s
#   CEILINGS="3005 1480 775"      adds a lower bound of the time of each kind of kernel,
#                                 computed from three rates: GB/s of a copy, TFLOP/s of
#                                 a large FP8 matmul, TFLOP/s of a large BF16 matmul.
#                                 build/bench_head_gpu prints them first
set -euo pipefail
fail() { echo "error: $*" >&2; exit 1; }
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[ $# -ge 1 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 1; }
. "$(dirname "$0")/gpu.sh"
train=$1
shift
case $train in -*) fail "$train: the first argument must be a pattern of token files; see --help" ;; esac
program=${PROGRAM:-./train_gpt2_fp8} library=${LIBRARY:-build/libtrace.so}
out=${OUT:-runs/profile} steps=${STEPS:-6} gpus=${GPUS:-1}
case $steps in 0* | 1 | *[!0-9]*) fail "STEPS: must be a number of at least 2 (is $steps)" ;; esac
case $gpus in 0* | *[!0-9]*) fail "GPUS: must be a number of at least 1 (is '$gpus')" ;; esac
devices=${CUDA_VISIBLE_DEVICES:-0} launch=()
[ "$gpus" -eq 1 ] || read -ra launch <<<"${MPIRUN:-mpirun --bind-to none} -np $gpus"
[ -x "$program" ] || fail "$program: is not built; run make on a machine with nvcc and cuDNN, or set PROGRAM"
[ -r "$library" ] || fail "$library: is not built; run make $library with a CUDA that has CUPTI"
mkdir -p "$out"
rm -f "$out/traffic.tsv"

: >"$out/power.csv" # empty file, in case the run ends before nvidia-smi starts
# exec makes $watcher the process id of nvidia-smi. Otherwise `kill` would end only the subshell
(exec nvidia-smi -i "${devices%%,*}" --query-gpu=power.draw,clocks.sm --format=csv,noheader,nounits -lms 100 \
    >"$out/power.csv" 2>/dev/null) &
watcher=$!
end_watcher() { kill $watcher && wait $watcher || true; } 2>/dev/null
trap end_watcher EXIT
status=0
# shellcheck disable=SC2016 # each process expands the variables
TRACE=$(realpath "$library") OUT=$out "${launch[@]}" bash -c '
    rank=${OMPI_COMM_WORLD_RANK:-0}
    export CUDA_INJECTION64_PATH=$TRACE TRACE_FILE=$OUT/trace.tsv
    [ "$rank" = 0 ] || TRACE_FILE=$OUT/trace-$rank.tsv
    exec "$@"' trace "$program" --device cuda --train "$train" --steps "$steps" \
    --sample-tokens 0 --health-every 0 --json "$@" >"$out/log.jsonl" 2>"$out/output.txt" || status=$?
end_watcher
[ $status -eq 0 ] || fail "the training ended with $status: $(tail -n 1 "$out/output.txt")"
[ -s "$out/trace.tsv" ] || fail "$out/trace.tsv: nothing was traced; see $out/output.txt"

# Counts the FLOPs of a micro-batch's matmuls: six per weight and token. --zero 0 makes the plan list complete weights,
# not shards.
plan=$("$program" --plan=json "$@" --zero 0)
# values NAME CATEGORY BYTES: prints the number of values of the plan's tensor NAME, each of BYTES bytes; 0 if the plan
# has no such tensor in this category
values() {
    local tensor="\"name\": \"$1\", \"format\": \"[a-z0-9]*\", \"category\": \"$2\", \"bytes\": ([0-9]+)"
    if [[ $plan =~ $tensor ]]; then echo $((BASH_REMATCH[1] / $3)); else echo 0; fi
}
weights() { values "$1" weights 2; } # NAME: prints the number of BF16 weights
tokens=$(values tokens scratch 4)
block_flops=$((6 * tokens * ($(weights qkvw) + $(weights projw) + $(weights fcw) + $(weights fcprojw))))
head_weights=$(weights headw)
[ "$head_weights" -gt 0 ] || head_weights=$(weights wte)
head_flops=$((6 * tokens * head_weights))
setting() { sed -n "1s/.*\"$1\":\"\{0,1\}\([a-z0-9]*\).*/\1/p" "$out/log.jsonl"; } # NAME: prints the run's setting
# FLOPs of the blocks' BF16 matmuls. With --linear bf16, all matmuls are in BF16. Otherwise only forward matmuls of the
# first --bf16-blocks blocks are: proj and, unless n1 is saved in FP8, also qkv and fc.
bf16_flops=0 layers=$(setting layers) blocks=$(setting bf16-blocks)
if [ "$(setting linear)" = bf16 ]; then
    bf16_flops=$block_flops
elif [ "${blocks:-0}" -gt 0 ]; then
    bf16_weights=$(weights projw)
    [ "$(values n1 saved 1)" -gt 0 ] || bf16_weights=$((bf16_weights + $(weights qkvw) + $(weights fcw)))
    bf16_flops=$((2 * tokens * bf16_weights / layers * blocks))
fi
# FLOPs of one of attention's matmuls: 2 per channel of the heads and pair of tokens. A token attends to half of the
# sequence on average. With --documents apart the number is an upper bound.
attention_flops=$tokens
for name in layers heads head-dim seq-len; do
    number=$(setting $name)
    attention_flops=$((attention_flops * ${number:-0}))
done
traffic=${TRAFFIC:-build/bench_traffic}
[ ! -x "$traffic" ] || "$traffic" --tsv "$@" --gpus "$gpus" >"$out/traffic.tsv" 2>/dev/null || true
{
    echo "# A training step, kernel by kernel"
    echo "\`$program $*\`, $(date -u +%Y-%m-%d), on $([ "$gpus" -eq 1 ] || echo "$gpus x ")$(gpu_name)"
    awk -F', ' '{ power[NR] = $1; clock[NR] = $2; if ($1 > most) most = $1 }
        END { for (i = 1; i <= NR; i++) if (power[i] > 0.75 * most) { p += power[i]; c += clock[i]; n++ }
        if (n) printf "(%.0f W, %.0f MHz: means while it draws more than 3/4 of its maximum)\n", p / n, c / n
        }' "$out/power.csv"
    echo
    sort -n "$out/trace.tsv" | awk -v block_flops="$block_flops" -v bf16_flops="$bf16_flops" \
        -v head_flops="$head_flops" -v attention_flops="$attention_flops" -v traffic="$out/traffic.tsv" \
        -v ceilings="${CEILINGS:-}" -f scripts/profile_table.awk
} >"$out/profile.md"
sed '/^| kernel /,$d' "$out/profile.md"
echo "all kernels: $out/profile.md"
