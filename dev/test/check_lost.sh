#!/usr/bin/env bash
# Tests a run on several GPUs in which one process is killed, is stopped, or runs out
# of memory. Also resumes a checkpoint on the same number of GPUs, on two and on one.
# Prints a Markdown table of exit codes, seconds and comparisons. Exits with 1 if an
# exit code is unexpected, a checkpoint differs, or a loss is missing. Takes about 6
# minutes on four H100s with Llama-2-7B, whose checkpoints need 200 GB of RAM or disk.
#
#   dev/test/check_lost.sh 'data/tokens/mine_train_*.bin'
#       token files; the model's vocabulary must contain their token ids
#       PROGRAM=./train_gpt2_fp8   MPIRUN="mpirun --bind-to none"
#       GPUS=4                     number of GPUs (default: all visible ones)
#       FLAGS="--model llama2-7b --seq-len 2048 --micro-batch 1
#                                  --batch-tokens 65536"
#       FULL="--model gpt2 --recipe bf16 --micro-batch N --batch-tokens ..."
#                                  flags of a run that fills the last GPU; the
#                                  default N leaves about 14 GB of its memory free
#       FEWER="2 1"                other numbers of GPUs that resume the checkpoint
#       GPU_DEVICE=cuda            GPU_DEVICE=cpu tries this script without a GPU
#       OUT=FOLDER                 folder of the runs (default: a temporary
#                                  folder)
set -uo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[ $# -eq 1 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 1; }
cd "$(dirname "$0")/../.." || exit 1
. scripts/gpu.sh
train=$1 program=${PROGRAM:-./train_gpt2_fp8} device=${GPU_DEVICE:-cuda} out=${OUT:-$(mktemp -d)} failed=0
gpus=${GPUS:-$(list_gpus 2>/dev/null | wc -l)}
[ "$gpus" -ge 2 ] || { echo "error: GPUS: must be at least 2 (is '$gpus')" >&2; exit 1; }
read -ra mpirun <<<"${MPIRUN:-mpirun --bind-to none}"
read -ra flags <<<"${FLAGS:---model llama2-7b --seq-len 2048 --micro-batch 1 --batch-tokens 65536}"
# BF16 training of GPT-2 124M takes about 300 MiB per sequence of 1,024 tokens.
mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | head -n 1)
[[ $mib =~ ^[0-9]+$ ]] || mib=81559
sequences=$(((mib - 16000) / 300))
read -ra full <<<"${FULL:---model gpt2 --recipe bf16 --micro-batch $sequences --batch-tokens $((sequences * 1024))}"
flags+=(--device "$device" --sample-tokens 0 --seed 5 --quiet --train "$train" --schedule constant --lr 1e-5 --save-every 3 --keep 0)
mkdir -p "$out"

# shellcheck disable=SC2317 # a trap calls it
clean() {
    local running
    mapfile -t running < <(jobs -p)
    [ ${#running[@]} -eq 0 ] || { kill "${running[@]}" && wait; } 2>/dev/null
    [ -n "${OUT:-}" ] || rm -rf "$out"
}
trap clean EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# begin PROCESSES NAME FLAGS...: trains six steps into OUT/NAME in the background; output goes to OUT/NAME.log
begin() {
    local processes=$1 name=$2 command
    command=("$program" "${flags[@]}" --steps 6 --out "$out/$name" "${@:3}")
    [ "$processes" -eq 1 ] || command=("${mpirun[@]}" -np "$processes" "${command[@]}" --zero 3)
    "${command[@]}" >"$out/$name.log" 2>&1 </dev/null &
    launcher=$! begun=$(date +%s%N)
}
# wait_for_step STEP NAME: waits until the log has that step or the run has ended
wait_for_step() { until grep -q "\"step\":$1,\"loss\"" "$out/$2/log.jsonl" 2>/dev/null || ! kill -0 $launcher 2>/dev/null; do sleep 0.05; done; }
# finish: waits for the run; sets $status, and $seconds since $begun
finish() {
    status=0
    wait $launcher || status=$?
    seconds=$(awk -v ns=$(($(date +%s%N) - begun)) 'BEGIN { printf "%.1f", ns / 1e9 }')
}
row() { # NAME EXPECTED_STATUSES TEXT: prints a row of the table; sets $failed if $status is not expected
    [[ " $2 " == *" $status "* ]] || failed=1
    echo "| $1 | $status$([[ " $2 " == *" $status "* ]] || echo " (**not $2**)") | $seconds | $3 |"
}
branch() { # NAME: creates OUT/NAME with hard links to the uninterrupted run's checkpoint of step 3
    mkdir -p "$out/$1"
    cp -rl "$out/whole/step-00000003" "$out/$1/"
}
said() { grep -m 1 -o 'error: .*' "$out/$1.log" | cut -c 1-160; } # NAME: prints the first error of run NAME
gigabytes() { du -sb "$out/$1/step-00000006" | awk '{ printf "%.3g GB", $1 / 1e9 }'; } # NAME: prints the size of NAME's last checkpoint

# same() and apart() compare a run with the uninterrupted run, and set $what to the text of a row. same() sets $failed
# if the last checkpoints differ, apart() if a loss is missing.
same() { # NAME: compares the last checkpoints byte for byte
    what="the checkpoint of the uninterrupted run, byte for byte"
    diff -r "$out/whole/step-00000006" "$out/$1/step-00000006" >/dev/null || { what="**the checkpoint differs from that of the uninterrupted run**" && failed=1; }
}
losses() { sed -n 's/.*"step":\([456]\),"loss":\([0-9.]*\).*/\2/p' "$out/$1/log.jsonl"; } # NAME: prints the losses of steps 4 to 6
apart() { # NAME: computes the largest difference of the losses of steps 4 to 6
    what=$(paste <(losses "$1") <(losses whole) | awk 'NF == 2 { d = 100 * ($1 / $2 - 1); if (d < 0) d = -d; if (d > most) most = d; n++ }
        END { printf "three losses, at most %.3f %% from those of the uninterrupted run", most; exit n != 3 }') || { what="**a loss of steps 4 to 6 is missing**" && failed=1; }
}
# victim: prints the id of the newest process that the launcher has started
victim() { pgrep -n -P $launcher -f "$(basename "$program")"; }

echo "| $gpus processes, ZeRO 3: \`${FLAGS:-${flags[*]:0:8}}\` | exit code | seconds | result |"
echo "| --- | --- | --- | --- |"
begin "$gpus" whole --overwrite
finish
row "uninterrupted run" 0 "a checkpoint has $(gigabytes whole)"
[ "$status" -eq 0 ] || { said whole >&2; exit "$status"; }

branch killed
begin "$gpus" killed --resume
wait_for_step 4 killed
begun=$(date +%s%N)
kill -KILL "$(victim)"
finish
row "one process is killed after step 4" "5 137 143" "time since the kill; $(find "$out/killed" -maxdepth 1 -name 'step-*' -printf '%f remains')"
begin "$gpus" killed --resume
finish
same killed
row "the killed run is resumed" 0 "$what"
rm -rf "$out/killed"

branch stopped
begin "$gpus" stopped --resume
wait_for_step 4 stopped
begun=$(date +%s%N)
stopped=$(victim)
kill -STOP "$stopped"
while kill -0 $launcher 2>/dev/null && ! grep -q 'error: ' "$out/stopped.log"; do sleep 0.1; done
told=$(awk -v ns=$(($(date +%s%N) - begun)) 'BEGIN { printf "%.1f", ns / 1e9 }')
finish
kill -KILL "$stopped" 2>/dev/null
row "one process is stopped after step 4" "5 137 143" "reported after $told s: $(said stopped)"
rm -rf "$out/stopped"

if [ "$device" = cuda ]; then
    mapfile -t ids < <(list_gpus)
    CUDA_VISIBLE_DEVICES=${ids[gpus - 1]} "$program" "${full[@]}" --train "$train" --steps 1000000 --sample-tokens 0 --log-every 1 >"$out/full.log" 2>&1 </dev/null &
    filler=$!
    until grep -q 'tok/s' "$out/full.log" || ! kill -0 $filler 2>/dev/null; do sleep 0.2; done
    begin "$gpus" starved
    finish
    kill -KILL $filler
    wait $filler 2>/dev/null
    row "the GPU of the last process is full" 3 "$(said starved)"
    rm -rf "$out/starved"
fi

for count in ${FEWER:-2 1}; do
    branch "on$count"
    begin "$count" "on$count" --resume
    finish
    apart "on$count"
    row "resumed on $count GPUs" 0 "$what; a checkpoint has $(gigabytes "on$count")"
    rm -rf "$out/on$count"
done
exit $failed
