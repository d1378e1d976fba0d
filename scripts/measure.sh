#!/usr/bin/env bash
# Measures training speed and memory of models in each recipe. Prints tokens per second
# and GPU over the second half of the steps. Also prints the planned memory and the
# memory that the driver reports as in use (1 GB = 10^9 bytes).
#
#   scripts/measure.sh 'data/tokens/mine_train_*.bin' [RECIPE[,FLAG=VALUE...]...]
#       RECIPE: bf16 (default), fp8-linear, coat or coat-paper; coat,head=fp8 adds a flag
#
# Environment:
#   MODELS="gpt2 gpt2-xl" STEPS=20 OUT=runs/measure PROGRAM=./train_gpt2_fp8
#   LENGTH=1024         tokens per sequence
#   MICRO_BATCH=N       sequences per GPU and micro-batch; default, like llm.c: 64 for
#                       gpt2, 16 for other models
#   STEP_TOKENS=N       approximate tokens per GPU and step; default, like llm.c:
#                       524288 for gpt2, 131072 for other models, 32768 for sequences
#                       longer than 1024
#   GPUS=1              number of GPUs; several GPUs use ZeRO 3
#   MPIRUN="mpirun --bind-to none"   starts a process per GPU if GPUS is above 1
#
# If a run fails, its row shows the reason. The other rows are measured, and the exit code
# is 1. The vocabulary of Llama 1 and 2 has only 32,000 tokens: `build/narrow_tokens 32000
# 4194304 'GPT2_TOKENS' OUT.bin` writes a file of GPT-2 tokens without larger ids.
set -euo pipefail
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
fail() { echo "error: $*" >&2; exit 1; }
case ${1:-} in -h | --help) usage; exit 0 ;; esac
[ $# -ge 1 ] || { usage >&2; exit 1; }
train=$1
shift
recipes=("$@")
[ ${#recipes[@]} -gt 0 ] || recipes=(bf16)
program=${PROGRAM:-./train_gpt2_fp8} out=${OUT:-runs/measure} steps=${STEPS:-20} length=${LENGTH:-1024} gpus=${GPUS:-1}
case $train in -*) fail "$train: the first argument must be a pattern of token files; see --help" ;; esac
for setting in "STEPS $steps" "MICRO_BATCH ${MICRO_BATCH:-1}" "LENGTH $length" "GPUS $gpus" \
    "STEP_TOKENS ${STEP_TOKENS:-1}"; do
    case ${setting#* } in
    0* | *[!0-9]*) fail "${setting% *}: must be a number of at least 1 without leading zeros (is ${setting#* })" ;;
    esac
done
width=12
for recipe in "${recipes[@]}"; do
    [[ $recipe =~ ^(bf16|fp8-linear|coat|coat-paper)(,[a-z0-9-]+(=[A-Za-z0-9_.-]+)?)*$ ]] ||
        fail "$recipe: must be bf16, fp8-linear, coat or coat-paper, optionally with flags, for example" \
            "coat,head=fp8; quote the pattern of token files"
    [ ${#recipe} -le "$width" ] || width=${#recipe}
done
command -v "$program" >/dev/null ||
    fail "$program: is not built; run make on a machine with nvcc and cuDNN, or set PROGRAM"
launch=("$program")
read -r -a mpirun <<<"${MPIRUN:-mpirun --bind-to none}"
[ "$gpus" -eq 1 ] || launch=("${mpirun[@]}" -np "$gpus" "$program" --zero 3)
mkdir -p "$out"

settings() { # MODEL: prints the flags of the model's batch
    local batch=16 tokens=131072 passes
    [ "$1" != gpt2 ] || batch=64 tokens=524288
    batch=${MICRO_BATCH:-$batch}
    [ "$length" -le 1024 ] || tokens=32768
    tokens=${STEP_TOKENS:-$tokens}
    passes=$(((tokens + batch * length / 2) / (batch * length)))
    echo "--seq-len $length --micro-batch $batch --batch-tokens $((gpus * batch * length * (passes > 0 ? passes : 1)))"
}

# Prints why a run ended: the trainer's error, else mpirun's message between lines of dashes, else the log's last line.
reason() { # LOG STATUS
    grep -m 1 '^error: ' "$1" || echo "error: ended with $2: $(
        awk '/^---+$/ { box = 1; next } NF { last = $0; if (box) exit } END { print last }' "$1"
    )"
}

trap 'exit 130' INT # the terminal also sends the signal to the trainer, which then ends
failed=0
print_failure() { # REASON: prints a row that shows REASON
    printf '%-10s %-*s %s\n' "$model" "$width" "$recipe" "$1"
    failed=1
}
printf '%-10s %-*s %12s %10s %10s %10s\n' model "$width" recipe tokens/s ms/step "plan GB" "driver GB"
for model in ${MODELS:-gpt2 gpt2-xl}; do
    for recipe in "${recipes[@]}"; do
        name=$out/$model-$recipe
        master='' status=0
        [[ $recipe != bf16* ]] || master='--master split16'
        # shellcheck disable=SC2046,SC2086 # flags are words
        "${launch[@]}" --device cuda --model "$model" $(settings "$model") $master --recipe ${recipe//,/ --} \
            --train "$train" --steps "$steps" --lr 3e-4 --warmup 10 --sample-tokens 0 --json \
            >"$name.jsonl" 2>"$name.log" || status=$?
        if [ $status -ne 0 ]; then
            print_failure "$(reason "$name.log" $status)"
            continue
        fi
        awk -v model="$model" -v recipe="$recipe" -v width="$width" -v half=$((steps / 2)) -v gpus="$gpus" '
            function gb(value, unit) { return unit == "GB" ? value : value / 1000 }
            FNR == NR {
                if (match($0, /"ms":[0-9.]+/) && ++n > half) { sum += substr($0, RSTART + 5, RLENGTH - 5); count++ }
                if (match($0, /"tokens":[0-9]+/)) tokens = substr($0, RSTART + 9, RLENGTH - 9)
                next
            }
            $1 == "total" { plan = gb($2, $3) } $1 == "driver" { driver = gb($3, $4) }
            END {
                if (!(sum > 0)) exit 1
                ms = sum / count
                printf "%-10s %-" width "s %12.0f %10.1f %10.2f %10.2f\n", model, recipe, tokens / n / gpus / ms * 1000,
                    ms, plan, driver
            }
        ' "$name.jsonl" "$name.log" || print_failure "error: no step was timed, see $name.log"
    done
done
exit $failed
