#!/usr/bin/env bash
# Trains GPT-2 124M in COAT on a GPU. A run that is killed repeatedly, also in the
# middle of saves, and resumed each time must end with the checkpoint of an
# uninterrupted run, byte for byte. Also measures what background checkpoints cost
# in wall-clock time. Takes about 4 minutes on an H200.
#
#   dev/test/check_kill.sh 'data/tokens/gpt2_train_*.bin'
#       PROGRAM=./train_gpt2_fp8   FLAGS="--model gpt2 ..."
#       KILLS=6                    number of kills
#       STEPS=200                  number of steps of the timed runs
#       DELAY=3                    minimum seconds from a start to a kill at a random
#                                  moment
#       GPU_DEVICE=cuda            GPU_DEVICE=cpu tries this script without a GPU;
#                                  then set FLAGS to those of a small model
#       OUT=FOLDER                 folder for the runs; earlier runs in it are
#                                  replaced (default: a temporary folder)
set -uo pipefail
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; }
case ${1:-} in -h | --help) usage; exit 0 ;; esac
[ $# -eq 1 ] || { usage >&2; exit 1; }
program=${PROGRAM:-./train_gpt2_fp8} kills=${KILLS:-6} steps=${STEPS:-200}
if [ -n "${OUT:-}" ]; then
    folder=$OUT
    mkdir -p "$folder"
else
    folder=$(mktemp -d)
fi
failed=0 process=''

# Stops the training that this script has started.
# shellcheck disable=SC2317 # a trap calls it
clean() {
    [ -z "$process" ] || { kill -9 "$process" && wait "$process"; } 2>/dev/null
    [ -n "${OUT:-}" ] || rm -rf "$folder"
}
trap clean EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# shellcheck disable=SC2206 # the flags are words
run=(${FLAGS:---model gpt2 --micro-batch 16 --batch-tokens 16384 --recipe coat} --device "${GPU_DEVICE:-cuda}" --train "$1" --sample-tokens 0 --seed 5 --quiet)

start() { # NAME FLAGS...: trains in the background; output goes to NAME.log
    "$program" "${@:2}" >"$folder/$1.log" 2>&1 </dev/null &
    process=$!
}
finish() { # waits for the run that start() began; returns its exit code
    local status=0
    wait "$process" 2>/dev/null || status=$?
    process=''
    return $status
}
reason() { grep -m 1 '^error: ' "$folder/$1.log" || tail -n 1 "$folder/$1.log"; } # NAME: prints the error, or the last line, of NAME.log

# --- kill -9 --------------------------------------------------------------------------------------------------------
survive=("${run[@]}" --steps 200 --save-every 20 --keep 3)
begin=$(date +%s%N)
start alone "${survive[@]}" --out "$folder/alone" --overwrite
finish || { status=$?; reason alone >&2; exit $status; }
alone=$((($(date +%s%N) - begin) / 1000000))
echo "uninterrupted: $alone ms"
in_save=0
rm -rf "$folder/killed" && mkdir "$folder/killed" # --resume starts a run only in an existing folder
for ((i = 1; i <= kills; i++)); do
    start killed "${survive[@]}" --out "$folder/killed" --resume
    if [ $((i % 2)) -eq 1 ]; then # kill while a checkpoint is being written
        for ((wait = 0; wait < 3000; wait++)); do
            if compgen -G "$folder/killed/.step-*.tmp" >/dev/null || ! kill -0 $process 2>/dev/null; then break; fi
            sleep 0.01
        done
        sleep "0.0$((RANDOM % 10))"
    else # kill at a random moment
        sleep "$((${DELAY:-3} + RANDOM % 3)).$((RANDOM % 10))"
    fi
    kill -9 $process 2>/dev/null && echo "kill $i: $(cd "$folder/killed" 2>/dev/null && echo step-*)"
    finish
    ! compgen -G "$folder/killed/.step-*.tmp" >/dev/null || in_save=$((in_save + 1))
done
start killed "${survive[@]}" --out "$folder/killed" --resume
finish || { failed=1; reason killed >&2; }
name="$kills kills, $in_save of them during a save: the last checkpoint equals the uninterrupted run's byte for byte"
if diff -r "$folder/alone/step-00000200" "$folder/killed/step-00000200" >"$folder/diff.log" 2>&1; then
    echo "ok - $name"
else
    echo "not ok - $name: $(head -n 1 "$folder/diff.log")"
    failed=1
fi

# --- the cost of saving ---------------------------------------------------------------------------------------------
for every in 0 50 0 50 0 50; do
    begin=$(date +%s%N)
    start timed "${run[@]}" --micro-batch 64 --batch-tokens 65536 --steps "$steps" --save-every $every --out "$folder/timed" --overwrite
    finish || { reason timed >&2; exit 1; }
    echo "$every $((($(date +%s%N) - begin) / 1000000))" # a --save-every and its milliseconds
done >"$folder/times"
awk '{ printf "--save-every %d: %d ms\n", $1, $2 }' "$folder/times"
# the fastest run of each, because other load can only add time
awk -v steps="$steps" '!($1 in best) || $2 < best[$1] { best[$1] = $2 }
    END { printf "mean time per step: %.2f ms without saves, %.2f ms with a save every 50 steps: %+.2f %%\n", best[0] / steps, best[50] / steps, 100 * (best[50] / best[0] - 1) }' "$folder/times"
exit $failed
