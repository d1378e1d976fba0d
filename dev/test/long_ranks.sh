#!/usr/bin/env bash
# Compares two and four processes with one in all ZeRO stages and recipes. Also tests checkpoints resumed on other numbers
# of processes, and processes that are killed, stopped, out of memory, or end by SIGTERM.
source "$(dirname "$0")/ranks.sh"

# --- the same losses as one process: 512 tokens per step on any number of processes
steps=(--steps 30 --batch-tokens 512)
train 1 fp32-1 "${steps[@]}" --precision fp32
for np in 2 4; do
    for zero in 0 1 2 3; do
        train $np fp32-$np-$zero "${steps[@]}" --precision fp32 --zero $zero &&
            near "FP32, $np processes, ZeRO $zero: the losses equal those of one process" loss 1e-5 fp32-1 fp32-$np-$zero &&
            near "FP32, $np processes, ZeRO $zero: the validation loss equals that of one process" val_loss 1e-5 fp32-1 fp32-$np-$zero
    done
    # With several micro-batches, stages 0 and 1 sum gradients over micro-batches first, stages 2 and 3 over processes
    # first. Only stages with the same order give the same bits.
    same "FP32, $np processes: ZeRO 1 writes the same checkpoint as ZeRO 0" 00000030 fp32-$np-0 fp32-$np-1
    same "FP32, $np processes: ZeRO 3 writes the same checkpoint as ZeRO 2" 00000030 fp32-$np-2 fp32-$np-3
done
for recipe in bf16 fp8-linear coat; do
    train 1 $recipe-1 "${steps[@]}" --recipe $recipe
    for np in 2 4; do
        for zero in 0 1 2 3; do
            train $np $recipe-$np-$zero "${steps[@]}" --recipe $recipe --zero $zero &&
                near "$recipe, $np processes, ZeRO $zero: the first loss is near that of one process" loss 1e-4 $recipe-1 $recipe-$np-$zero first &&
                near "$recipe, $np processes, ZeRO $zero: the validation loss is near that of one process" val_loss 1e-2 $recipe-1 $recipe-$np-$zero last
        done
    done
done

# --- one micro-batch per process and step: all stages give the same bits
# With 40 channels, small tensors have fewer than 128 elements, the unit of shards. Some processes then have no shard of
# them.
for kind in "--precision fp32" "--recipe bf16 --grads fp32" "--recipe coat" "--recipe coat --moments fp8 --master none" \
    "--recipe bf16 --heads 5 --channels 40 --layers 1" "--recipe coat-paper --master fp32 --recompute 0"; do
    for np in 2 3; do
        for zero in 0 1 2 3; do
            train $np bits-$np-$zero --steps 4 --batch-tokens $((64 * np)) $kind --zero $zero --overwrite
            [ $zero -eq 0 ] || same "$kind, $np processes: ZeRO $zero writes the same checkpoint as ZeRO 0" 00000004 bits-$np-0 bits-$np-$zero
        done
    done
done

# --- resuming on other numbers of processes: 768 tokens can be divided among 1, 2, 3 or 4
turn=(--batch-tokens 768 --save-every 4 --schedule constant --val-every 4)
for kind in "--precision fp32" "--recipe coat"; do
    tolerance=1e-5
    [ "$kind" = "--precision fp32" ] || tolerance=2e-2
    train 1 straight $kind "${turn[@]}" --steps 8 --overwrite
    train 4 four $kind "${turn[@]}" --steps 4 --zero 3 --overwrite
    for np in 1 2 3 4; do
        rm -rf "$folder/turned" && cp -r "$folder/four" "$folder/turned"
        train $np turned $kind "${turn[@]}" --steps 8 --zero $((np % 4)) --resume &&
            near "$kind: a run saved by four processes and resumed by $np has the losses of an uninterrupted run" loss $tolerance straight turned &&
            near "$kind: a run saved by four processes and resumed by $np has the validation losses of an uninterrupted run" val_loss $tolerance straight turned
    done
    train 1 one $kind "${turn[@]}" --steps 4 --overwrite
    train 3 one $kind "${turn[@]}" --steps 8 --zero 2 --resume &&
        near "$kind: a run saved by one process and resumed by three has the losses of an uninterrupted run" loss $tolerance straight one
    # four processes stop after 32 sequences, in the middle of a pass of three processes with two sequences each
    train 4 middle $kind --schedule constant --batch-tokens 512 --steps 2 --zero 3 --overwrite
    rm -rf "$folder/middle-alone" && cp -r "$folder/middle" "$folder/middle-alone"
    train 1 middle-alone $kind --schedule constant --batch-tokens 576 --steps 6 --resume &&
        train 3 middle $kind --schedule constant --batch-tokens 576 --steps 6 --zero 2 --resume &&
        near "$kind: a run saved by four processes in the middle of a pass of three has the same losses if one or three resume it" loss $tolerance middle-alone middle
    # a run resumed on the same number of processes has the bits of an uninterrupted run
    train 2 whole $kind "${turn[@]}" --steps 8 --zero 2 --overwrite
    train 2 parts $kind "${turn[@]}" --steps 4 --zero 2 --overwrite && train 2 parts $kind "${turn[@]}" --steps 8 --zero 3 --resume &&
        same "$kind: 4 steps and 4 resumed steps write the checkpoint of 8 steps" 00000008 whole parts
done

# --- --model, evaluation, samples, the plan
train 1 given --steps 3 --batch-tokens 128 --recipe coat
given=(--tokenizer bytes --seq-len 32 --micro-batch 2 --recipe coat --quiet --device cpu --model "$folder/given/step-00000003")
for zero in 0 3; do
    "${mpirun[@]}" -np 3 "$program" "${given[@]}" --train "$folder/src_train.bin" --steps 2 --batch-tokens 192 --sample-tokens 0 \
        --zero $zero --out "$folder/tuned-$zero" >"$folder/said" 2>&1 || bad "training from --model on three processes succeeds" "$(cat "$folder/said")"
    for what in "--eval-only --json --val $folder/src_val.bin --val-batches 5" "--prompt static --json --sample-tokens 20"; do
        one=$("$program" "${given[@]}" $what 2>&1) three=$("${mpirun[@]}" -np 3 "$program" "${given[@]}" $what --zero $zero 2>&1)
        [ "$one" = "$three" ]; check "${what%% *} on three processes with ZeRO $zero prints the same as on one process" $? "$one" "$three"
    done
    shape=(--tokenizer bytes --layers 3 --heads 2 --channels 64 --seq-len 32 --micro-batch 2 --recipe coat --device cpu --zero $zero)
    planned=$("$program" "${shape[@]}" --plan --gpus 3 | grep total)
    allocated=$("${mpirun[@]}" -np 3 "$program" "${shape[@]}" --train "$folder/src_train.bin" --steps 1 --sample-tokens 0 2>/dev/null | grep total)
    [ "$planned" = "$allocated" ]; check "ZeRO $zero: --plan equals the allocated memory" $? "$planned" "$allocated"
done
same "training from --model: ZeRO 3 writes the same checkpoint as ZeRO 0" 00000002 tuned-0 tuned-3

# --- errors
refuses() { # NAME CODE PATTERN FLAGS...: two processes end with this code, and one prints the error
    local name=$1 code=$2 pattern=$3 status=0
    shift 3
    timeout 120 "${mpirun[@]}" -np 2 "$program" "${flags[@]}" "$@" >"$folder/said" 2>&1 </dev/null || status=$?
    # looks for the error anywhere in a line, because mpirun may print the output of two processes on one line
    [ $status -eq "$code" ] && [ "$(grep -o 'error: ' "$folder/said" | wc -l)" -eq 1 ] && grep -qE "error: .*$pattern" "$folder/said"
    check "$name" $? "exit code $status, expected $code and one error that matches /$pattern/; output:" "$(grep -v '^--' "$folder/said" | head -5)"
}
refuses "a batch that the processes cannot divide evenly is refused" 1 "256 or 384" --steps 1 --batch-tokens 320
refuses "a loss that is not finite ends the run" 4 "training diverged" --steps 30 --batch-tokens 128 --lr 1000 --warmup 0 --weight-decay 100 --zero 3
refuses "training data shorter than a step are refused" 2 "lower --batch-tokens" --batch-tokens 128000000
refuses "--prompt without a tokenizer is refused" 1 "tokenizer" --tokenizer gpt2 --steps 1 --prompt x --sample-tokens 1
refuses "missing data are refused" 2 "none.bin" --steps 1 --train "$folder/none.bin"
train 2 damaged --steps 2 --batch-tokens 128 --zero 1
truncate -s -1 "$folder/damaged/step-00000002/optimizer-00001-of-00002.safetensors"
refuses "a truncated shard is refused" 2 "optimizer-00001-of-00002.safetensors is damaged" --steps 3 --batch-tokens 128 --zero 1 --out "$folder/damaged" --resume=2

# If a rank cannot write its shard completely, the checkpoint fails, and rank 0 names that rank.
each 2 '[ $rank -ne 1 ] || ulimit -f 20; exec "$@"' "${flags[@]}" --steps 2 --batch-tokens 128 --zero 1 --out "$folder/full"
if [ $status -eq 2 ] && grep -qE "^error: the checkpoint of step 2 could not be saved: rank 1: .*optimizer-00001-of-00002" "$folder/said" &&
    [ -z "$(ls -A "$folder/full" | grep step-)" ]; then ok "a shard that cannot be written fails the checkpoint, and rank 0 names its rank"; else
    bad "a shard that cannot be written fails the checkpoint, and rank 0 names its rank" "exit $status; $(ls -A "$folder/full" | tr '\n' ' ')" "$(grep -v '^--' "$folder/said" | head -5)"
fi

# If --out or its parent is removed during the last validation, all processes save the last checkpoint again.
train 2 removed --steps 4 --batch-tokens 128 --zero 1 --val-batches 1
lost() { # OUT PATH: removes PATH once the last checkpoint exists
    timeout 120 "${mpirun[@]}" -np 2 "$program" "${flags[@]}" --steps 4 --batch-tokens 128 --zero 1 --val-batches 3000 --out "$1" >"$folder/said" 2>&1 </dev/null &
    local pid=$!
    until [ -d "$1/step-00000004" ] || ! kill -0 $pid 2>/dev/null; do :; done
    mv "$2" "$folder/gone" && rm -r "$folder/gone"
    status=0
    wait $pid || status=$?
}
lost "$folder/lost-last" "$folder/lost-last"
[ $status -eq 0 ] && grep -q "^warning: --out $folder/lost-last: " "$folder/said" && diff -r "$folder/removed/step-00000004" "$folder/lost-last/step-00000004" &&
    ok "--out removed after the last save is recreated and saved again" || bad "--out removed after the last save is recreated and saved again" "status $status" "$(cat "$folder/said")"
lost "$folder/above/lost" "$folder/above"
[ $status -eq 0 ] && diff -r "$folder/removed/step-00000004" "$folder/above/lost/step-00000004"
check "--out whose parent was removed after the last save is recreated and saved again" $? "status $status" "$(cat "$folder/said")"

# One process runs out of memory, at several points of the program's start.
huge=(--steps 1 --micro-batch 8192 --batch-tokens 786432)
no_memory "if a process lacks memory for the run, all processes end and the error names its rank" 3 1000000 "${huge[@]}"
# raises the limit by the memory that this process lacked, plus 64 MiB: half of the 128 MiB that OpenBLAS allocates
# later
lacks=$(sed -n 's/.*could not allocate \([0-9]*\) MiB: ulimit -v leaves \([0-9]*\) MiB.*/\1 - \2/p' "$folder/said" 2>/dev/null)
no_memory "if a process lacks memory for OpenBLAS, all processes end and the error names its rank" 3 $((1000000 + (${lacks:-0} + 64) * 1024)) "${huge[@]}"
if [[ $build != *asan* ]]; then
    # If there is no memory for the copy of the states that a background save needs, the save runs in the foreground.
    large=(--layers 4 --heads 8 --channels 1024 --batch-tokens 128 --recipe bf16 --val-batches 1 --save-every 1 --steps 2)
    starved 2 1000000 "${large[@]}" --zero 1 --out "$folder/starved"
    [ $status -eq 0 ] || bad "without memory for a copy of the states, the save runs in the foreground" "exit $status" "$(head -5 "$folder/said")"
    train 2 fed "${large[@]}" --zero 1 && same "a save in the foreground, without memory for a copy of the states, writes the same checkpoint" 00000002 starved fed
fi
# MPI waits without limit for a process that hangs before MPI_Init. The program waits 45 s.
each 2 '[ $rank -ne 1 ] || kill -STOP $$; exec "$@"' "${flags[@]}" --steps 1 --batch-tokens 128
[ $status -eq 5 ] && [ $seconds -lt 60 ] && grep -q "^error: rank 0: waited 45 s in the start of MPI" "$folder/said"
check "if a process hangs before MPI_Init, the others end" $? "exit $status after $seconds s" "$(head -5 "$folder/said")"

# begin NAME FLAGS...: starts four processes in the background and waits for the first steps; sets $pids
begin() {
    local name=$1 waited=0
    shift
    "${mpirun[@]}" -np 4 "$program" "${flags[@]}" --out "$folder/$name" "$@" >"$folder/$name.said" 2>&1 </dev/null &
    launcher=$!
    until [ "$(values loss "$name" 2>/dev/null | wc -l)" -ge 3 ] || [ $((waited += 1)) -gt 600 ]; do sleep 0.1; done
    pids=($(pgrep -P $launcher -f train_gpt2_fp8_cpu))
}
ended() { # SECONDS: waits for the launcher that begin() started. Sets $status to its exit code, or to 124 after this time
    local waited=0
    while kill -0 $launcher 2>/dev/null && [ $((waited += 1)) -le $(($1 * 10)) ]; do sleep 0.1; done
    if kill -0 $launcher 2>/dev/null; then kill -9 $launcher "${pids[@]}" 2>/dev/null; fi
    wait $launcher
    status=$?
    [ $waited -le $(($1 * 10)) ] || status=124
}
rank_of() { tr '\0' '\n' <"/proc/$1/environ" | sed -n 's/^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=//p' | head -n 1; } # PROCESS
begin lost --steps 100000 --batch-tokens 256 --zero 3 --schedule constant --save-every 4 --keep 2
until ls -d "$folder"/lost/step-* >/dev/null 2>&1 || ! kill -0 $launcher 2>/dev/null; do sleep 0.1; done
rank=$(rank_of "${pids[2]}")
kill -9 "${pids[2]}"
ended 60
for alive in $(seq 100 -1 0); do # tenths of a second left; zombies count as dead
    grep -lE '^State:\s[^ZX]' $(printf "/proc/%s/status " "${pids[@]}") /dev/null 2>/dev/null | grep -q . || break
    sleep 0.1
done
[ $status -ne 0 ] && [ $status -ne 124 ] && [ $alive -gt 0 ]
check "if a process is killed, all processes end" $? "status $status, tenths of a second left: $alive" "$(tail -3 "$folder/lost.said")"
# mpirun names the killed rank, or the ranks that waited for it do
grep -qE "rank $rank .*signal 9|waited .* rank $rank," "$folder/lost.said"; check "the output names the killed rank" $? "rank $rank" "$(cat "$folder/lost.said")"
saved=$(basename "$(ls -d "$folder"/lost/step-* | tail -n 1)")
until=$((10#${saved#step-} + 4))
train 4 lost --steps $until --batch-tokens 256 --zero 3 --schedule constant --resume &&
    train 4 unlost --steps $until --batch-tokens 256 --zero 3 --schedule constant &&
    same "a run resumed from step $((10#${saved#step-})) after a process was killed has the bits of an uninterrupted run" "$(printf %08d $until)" lost unlost
grep -q "damaged" "$folder/lost.said" && bad "after a process was killed, the newest checkpoint is valid" "$(cat "$folder/lost.said")"
# The others wait for a process that SIGSTOP has stopped as long as for a slow one, 45 s. Then they end and name it.
begin stopped --steps 100000 --batch-tokens 256 --zero 1 --schedule constant
rank=$(rank_of "${pids[1]}")
kill -STOP "${pids[1]}"
begun=$SECONDS
ended 75
[ $status -eq 5 ] && [ $((SECONDS - begun)) -lt 60 ] && grep -q "^error: rank [0-9]: waited 45 s .* rank $rank, which hangs or is lost; no checkpoint was saved: start again from step 0 with --out $folder/stopped --resume" "$folder/stopped.said"
check "if a process is stopped during training, all processes end and the error names its rank" $? "status $status after $((SECONDS - begun)) s" "$(tail -3 "$folder/stopped.said")"
each 2 '[ $rank -ne 1 ] || { sleep 2; kill -STOP $$; } & exec "$@"' "${given[@]}" --eval-only --val "$data" --val-batches 6000
[ $status -eq 5 ] && [ $seconds -lt 65 ] && grep -q "waited 45 s .* rank 1, which hangs" "$folder/said"
check "if a process is stopped during evaluation, all processes end and the error names its rank" $? "status $status after $seconds s" "$(tail -3 "$folder/said")"
begin asked --steps 100000 --batch-tokens 256 --zero 2 --schedule constant
kill -TERM "${pids[1]}"
ended 60
step=$(basename "$(ls -d "$folder"/asked/step-* 2>/dev/null)")
[ $status -eq 0 ] && grep -q "ended by SIGTERM" "$folder/asked.said" && [ -n "$step" ]
check "after SIGTERM to one process, all processes save and end" $? "status $status" "$(tail -5 "$folder/asked.said")"
train 4 unasked --steps $((10#${step#step-})) --batch-tokens 256 --zero 2 --schedule constant &&
    same "after SIGTERM to one process, the saved weights equal those of a run with that number of steps" "${step#step-}" unasked asked model.safetensors
exit $failures
