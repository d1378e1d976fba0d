#!/usr/bin/env bash
# Measures training on the GPUs of this machine, all together and each alone. Prints
# Markdown tables:
#   speed   tokens/s of all GPUs with each ZeRO stage, also as a percentage of the sum of
#           their single speeds, and the memory that the driver reports. For the single
#           speeds, each GPU trains alone, all at the same time. GPUs of one host differ
#           in speed, and in a common run the slowest GPU limits the others
#   large   tokens/s and memory of a model of 7B's size, with ZeRO 3
#   loss    validation losses after training on one GPU and on all, for several seeds
#
#   scripts/measure_gpus.sh [--dry-run] 'data/tokens/mine_train_*.bin' \
#       'data/tokens/mine_val_*.bin' [PART...]
#       PART: speed, large, loss (default: all; takes about 10 minutes on two H200s)
#
# Environment:
#   GPUS=2                  number of GPUs (default: all visible ones)
#   STAGES="1 2 3"          ZeRO stages
#   SEEDS="1 2 3 4 5 6"     seeds of the part loss
#   WARMUP=700              warm-up steps of the part loss, to a learning rate of 6e-4.
#                           Each run ends after 200 steps
#   MPIRUN="mpirun --bind-to none" PROGRAM=./train_gpt2_fp8 OUT=runs/gpus
#   MODEL="--model gpt2-xl --micro-batch 16"   model and micro-batch of the part speed
#   PASSES=8                micro-batches per GPU and step in the parts speed and large;
#                           speed is also measured with one micro-batch
#   STEPS=8                 steps of each run in the parts speed and large (4 times as many
#                           with one micro-batch); only the second half is timed
#   LARGE="..."             flags of the model in the part large
#   SMALL="..."             flags of the model in the part loss
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "error: $*" >&2; exit 1; }
usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; }
case ${1:-} in -h | --help) usage; exit 0 ;; esac
dry_run=''
if [ "${1:-}" = --dry-run ]; then dry_run=yes; shift; fi
[ $# -ge 2 ] || { usage >&2; exit 1; }
train=$1 val=$2
shift 2
parts=" ${*:-speed large loss} "
for part in $parts; do
    case $part in speed | large | loss) ;; *) fail "$part: must be one of speed, large, loss" ;; esac
done
. scripts/gpu.sh
mapfile -t ids < <(list_gpus 2>/dev/null)
gpus=${GPUS:-${#ids[@]}}
case $gpus in '' | 0 | 1 | *[!0-9]*) fail "GPUS: must be at least 2 (is '$gpus')" ;; esac
[ ${#ids[@]} -ge "$gpus" ] || mapfile -t ids < <(seq 0 $((gpus - 1)))
program=${PROGRAM:-./train_gpt2_fp8} out=${OUT:-runs/gpus} steps=${STEPS:-8} passes=${PASSES:-8} stages=${STAGES:-1 2 3}
model=${MODEL:---model gpt2-xl --micro-batch 16}
large=${LARGE:---layers 32 --heads 32 --channels 4096 --seq-len 2048 --micro-batch 2}
small=${SMALL:---model gpt2 --micro-batch 16}
read -ra mpirun <<<"${MPIRUN:-mpirun --bind-to none}"
[ -n "$dry_run" ] || mkdir -p "$out"

# start LOG COMMAND...: runs COMMAND, with stdout to OUT/LOG.json and stderr to OUT/LOG.err. Ends the script, or the
# background job that called it, if COMMAND fails. The message contains the trainer's error, else the first line of
# mpirun's message, which is between lines of dashes, else the last line of stderr. In a dry run, only prints COMMAND.
start() {
    local log=$1 status=0
    shift
    if [ -n "$dry_run" ]; then printf '%s\n' "$(printf '%q ' "$@" | sed 's/ $//')"; return; fi
    "$@" >"$out/$log.json" 2>"$out/$log.err" </dev/null || status=$?
    [ $status -eq 0 ] ||
        fail "$log ended with $status: $(grep -m 1 '^error' "$out/$log.err" ||
            awk '/^---+$/ { box = 1; next } NF { last = $0; if (box) exit } END { print last }' "$out/$log.err")"
}

number() { # FLAG DEFAULT FLAGS...: prints the last value of FLAG in FLAGS, else DEFAULT
    local flag=$1 value=$2
    shift 2
    while [ $# -gt 0 ]; do [ "$1" != "$flag" ] || value=$2; shift; done
    echo "$value"
}

trains() { # LOG PROCESSES PASSES STEPS FLAGS...: trains on PROCESSES GPUs or, if PROCESSES is 1, on the GPU $on
    local log=$1 processes=$2 tokens
    # shellcheck disable=SC2086 # flags are words
    tokens=$(($(number --micro-batch 16 ${*:5}) * $(number --seq-len 1024 ${*:5}) * $3 * processes))
    local launch=(env CUDA_VISIBLE_DEVICES="${on:-}")
    [ "$processes" -eq 1 ] || launch=("${mpirun[@]}" -np "$processes")
    start "$log" "${launch[@]}" "$program" --recipe coat --train "$train" --batch-tokens $tokens --steps "$4" \
        --lr 3e-4 --warmup 10 --sample-tokens 0 --json "${@:5}"
}

speed_of() { # LOG: prints the tokens/s over the second half of the run's steps
    sed -n 's/.*"tokens_per_s":\([0-9.]*\).*/\1/p' "$out/$1.json" | awk '
        { x[NR] = $1 }
        END { for (i = int(NR / 2) + 1; i <= NR; i++) { s += 1 / x[i]; n++ } printf "%.0f", n ? n / s : 0 }'
}
memory_of() { # LOG: prints the GB that the driver reports
    awk '$1 == "driver" { printf "%.1f", $4 == "GB" ? $3 : $3 / 1000; found = 1 }
        END { if (!found) printf "-" }' "$out/$1.err"
}

alone() { # LOG PASSES STEPS: trains on each GPU alone, all at the same time
    local i
    for ((i = 0; i < gpus; i++)); do
        # shellcheck disable=SC2086 # flags are words
        on=${ids[i]} trains "$1-$i" 1 "$2" "$3" $model &
        workers[i]=$!
    done
    for ((i = 0; i < gpus; i++)); do wait "${workers[i]}" || exit 1; done
}

speeds_alone() { # LOG: prints the tokens/s that each GPU reached alone, separated by commas
    local i
    for ((i = 0; i < gpus; i++)); do speed_of "$1-$i" && echo; done | paste -sd, | sed 's/,/, /g'
}
of_all() { # LOG SPEEDS: prints the tokens/s of the run LOG, also as a percentage of the sum of SPEEDS
    awk -v speed="$(speed_of "$1")" -v alone="$2" 'BEGIN {
        for (i = split(alone, x, ", "); i; i--) all += x[i]
        printf "%d (%.1f %%)", speed, all ? 100 * speed / all : 0 }'
}

measure_speed() {
    local few=$((steps * 4)) stage many single workers=()
    alone one-many "$passes" "$steps"
    alone one-single 1 "$few"
    for stage in $stages; do
        # shellcheck disable=SC2086 # flags are words
        trains "zero$stage-many" "$gpus" "$passes" "$steps" $model --zero "$stage"
        # shellcheck disable=SC2086 # flags are words
        trains "zero$stage-single" "$gpus" 1 "$few" $model --zero "$stage"
    done
    [ -z "$dry_run" ] || return 0
    many=$(speeds_alone one-many) single=$(speeds_alone one-single)
    echo "| GPUs | tokens/s, $passes micro-batches per GPU and step | one micro-batch | driver, GB per GPU |"
    echo "| --- | --- | --- | --- |"
    echo "| each alone | $many | $single | $(memory_of one-many-0) |"
    for stage in $stages; do
        echo "| $gpus, ZeRO $stage | $(of_all "zero$stage-many" "$many") | $(of_all "zero$stage-single" "$single") |" \
            "$(memory_of "zero$stage-many") |"
    done
    echo
}

measure_large() {
    # shellcheck disable=SC2086 # flags are words
    trains large "$gpus" "$passes" "$steps" $large --zero 3
    [ -z "$dry_run" ] || return 0
    printf '| model | GPUs | tokens/s | driver, GB per GPU |\n| --- | --- | --- | --- |\n'
    printf '| %s | %s, ZeRO 3 | %s | %s |\n\n' "${large//--/}" "$gpus" "$(speed_of large)" "$(memory_of large)"
}

# val_of LOG: prints the run's last validation loss
val_of() { sed -n 's/.*"val_loss":\([0-9.]*\).*/\1/p' "$out/$1.json" | tail -n 1; }

measure_loss() {
    local seed i=0 one all seeds
    read -ra seeds <<<"${SEEDS:-1 2 3 4 5 6}"
    local workers=() flags
    losses() { # SEED: sets the array `flags` to the command that trains with this seed
        # shellcheck disable=SC2206 # flags are words
        flags=("$program" --recipe coat --train "$train" --val "$val" --batch-tokens 65536 --steps 200 --lr 6e-4
            --warmup "${WARMUP:-700}" --schedule constant --val-every 0 --val-batches 32 --sample-tokens 0 --json
            --seed "$1" $small)
    }
    for seed in "${seeds[@]}"; do # each GPU trains with one seed at a time
        losses "$seed"
        start "loss-$seed-one" env CUDA_VISIBLE_DEVICES="${ids[i % gpus]}" "${flags[@]}" &
        workers+=($!)
        i=$((i + 1))
        if [ $((i % gpus)) -eq 0 ] || [ $i -eq ${#seeds[@]} ]; then
            for one in "${workers[@]}"; do wait "$one" || exit 1; done
            workers=()
        fi
    done
    for seed in "${seeds[@]}"; do
        losses "$seed"
        start "loss-$seed-all" "${mpirun[@]}" -np "$gpus" "${flags[@]}" --zero 1
    done
    [ -z "$dry_run" ] || return 0
    printf '| seed | one GPU | %d GPUs, ZeRO 1 | difference |\n| --- | --- | --- | --- |\n' "$gpus"
    for seed in "${seeds[@]}"; do
        one=$(val_of "loss-$seed-one") all=$(val_of "loss-$seed-all")
        echo "$seed $one $all"
    done | awk '
        {
            d = 100 * ($3 / $2 - 1)
            sum += d
            squares += d * d
            printf "| %d | %.4f | %.4f | %+.2f %% |\n", $1, $2, $3, d
        }
        END {
            mean = sum / NR
            printf "| mean | | | %+.2f", mean
            if (NR > 1) printf " ± %.2f", sqrt((squares - NR * mean * mean) / (NR - 1) / NR)
            print " % |"
        }'
}

for part in $parts; do "measure_$part"; done
