#!/usr/bin/env bash
# Tests of --out during a run. If the folder is removed, renamed or replaced, the run continues in a new folder. If
# another run has taken it, the run ends. Checkpoints equal those of an uninterrupted run byte for byte. A disk that is
# too small is reported before the first step.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/run_fixture.sh
disk=$folder/disk
trap 'umount "$disk" 2>/dev/null; chmod -R u+rwx "$folder"; rm -rf "$folder"' EXIT
straight
first=$(printf 'step-%08d' $every)

# during COMMAND...: trains in $out and runs COMMAND after the first checkpoint, while training is stopped; sets $status
during() {
    "$program" "${run[@]}" --out "$out" >"$folder/out" 2>"$folder/said" &
    local pid=$!
    wait_for $pid test -d "$out/$first"
    kill -STOP $pid
    "$@"
    kill -CONT $pid
    wait $pid
    status=$?
}
second() { # FLAGS...: trains another run in $out to its end; sets $second to its exit code
    "$program" "${run[@]}" --steps 20 --out "$out" "$@" >/dev/null 2>"$folder/second-said"
    second=$?
}
# said_once PATTERN: true if, apart from failed saves, one line was printed, which begins with PATTERN and names $out
said_once() { [ "$(grep -vc '^warning: the checkpoint of step' "$folder/said")" -eq 1 ] && grep -qE "^$1" "$folder/said" && grep -qF -- "--out $out" "$folder/said"; }
# continued: true if the run succeeded in a new folder, whose log has a note and the uninterrupted run's later lines
continued() {
    [ $status -eq 0 ] && said_once "warning: " && diff -r "$folder/straight/$last" "$out/$last" && [ ! -e "$out/.lock" ] &&
        [ "$(grep -n '"note":' "$out/log.jsonl" | cut -d: -f1)" = 1 ] && sed -i 1d "$out/log.jsonl" &&
        diff <(strip "$folder/straight/log.jsonl" | tail -n "$(wc -l <"$out/log.jsonl")") <(strip "$out/log.jsonl") &&
        [ "$(find "$out" -name 'events.out.tfevents.*' | wc -l)" -eq 1 ]
}
shown() { echo "status $status"; cat "$folder/said" "$folder/out"; ls -A "$out"*; }

removed() { rm -r "$out"; }
out=$folder/removed
during removed
continued
check "a removed folder is recreated" $? "$(shown)"
parent() { rm -r "${out%/*}"; }
out=$folder/above/run
during parent
continued
check "a folder that is removed with its parent is recreated" $? "$(shown)"
renamed() { mv "$out" "$out-before"; }
out=$folder/renamed
during renamed
continued
check "a renamed folder is recreated" $? "$(shown)"
resume "$out-before" 2>"$folder/said" && diff -r "$folder/straight/$last" "$out-before/$last"
check "the renamed folder can be resumed" $? "$(shown)"
replaced() { renamed && mkdir "$out" && echo mine >"$out/notes.txt"; }
out=$folder/replaced
during replaced
continued && grep -qx mine "$out/notes.txt"
check "a folder that has replaced --out is used if it contains no files of a run" $? "$(shown)"
no_lock() { rm "$out/.lock"; }
out=$folder/lockless
during no_lock
said_once "warning: " && same "$out"
check "a removed .lock is recreated" $? "$(shown)"

# A run whose folder was removed continues in a new folder until it is killed. The new folder can then be resumed.
out=$folder/late
"$program" "${run[@]}" --steps 100000000 --lr-final 1 --out "$out" >/dev/null 2>"$folder/said" &
pid=$!
wait_for $pid test -d "$out/$first"
renamed
wait_for $pid exists "$out/step-*"
second --resume
kill -KILL $pid
wait $pid 2>/dev/null
[ $second -eq 2 ] && grep -q "^error: --out $out: another run is writing there: process $pid on " "$folder/second-said"
check "another run is refused in the recreated folder" $? "$second" "$(cat "$folder/second-said")"
newest=$(cd "$out" && printf '%s\n' step-* | tail -n 1)
"$program" "${run[@]}" --lr-final 1 --steps $((10#${newest#step-} + every)) --out "$out" --resume >/dev/null 2>"$folder/said"
check "a recreated folder is resumed after SIGKILL" $? "$(shown)"

# --- evaluation in the folder of a run that trains there and removes old checkpoints
out=$folder/evaluated
"$program" "${run[@]}" --steps 100000000 --lr-final 1 --save-every 1 --keep 1 --val-every 0 --out "$out" >/dev/null 2>&1 &
pid=$!
wait_for $pid exists "$out/step-*"
losses=0
for ((i = 0; i < 40; i++)); do
    "$program" --eval-only --resume --val "$val" --val-batches 1 --quiet --threads 1 --out "$out" && ((++losses))
done >"$folder/out" 2>"$folder/said"
kill -KILL $pid
wait $pid 2>/dev/null
[ $losses -gt 0 ] && ! grep -v '^error: .*/step-[0-9]* was removed while it was read; ' "$folder/said"
check "evaluation does not report a checkpoint as damaged if a run removes the checkpoint meanwhile" $? "$losses of 40" "$(cat "$folder/said")"

# --- another run has taken the folder before a save
# stopped: true if the run ended with exit code 2 and one error, and the other run's files are unchanged
stopped() { [ $status -eq 2 ] && said_once "error: " && diff -r "$out" "$out-theirs"; }
quick() { renamed && second && cp -r "$out" "$out-theirs"; }
out=$folder/quick
during quick
[ $second -eq 0 ] && stopped
check "the files of another run that has trained in the folder meanwhile are unchanged" $? "$(shown)"
if command -v flock >/dev/null; then
    hold() { exec 8>"$out/.lock" && flock -n 8 && echo "$HOSTNAME 4321 2026-01-02 03:04:05" >&8; }
    holds() { renamed && mkdir "$out" && hold && cp -r "$out" "$out-theirs"; }
    out=$folder/held
    during holds
    stopped && grep -q "another run is writing there: process 4321 on $HOSTNAME, since 2026-01-02 03:04:05" "$folder/said"
    check "the error names another run that has locked the folder, whose files are unchanged" $? "$(shown)"
    exec 8>&-
    relocked() { rm "$out/.lock" && hold && cp -r "$out" "$out-theirs"; }
    out=$folder/relocked
    during relocked
    [ $status -eq 2 ] && said_once "error: " && diff -r -x log.jsonl -x 'events.*' "$out" "$out-theirs"
    check "the run ends if another run has locked the folder after .lock was removed" $? "$(shown)"
    exec 8>&-
else
    echo "skip - another run has locked the folder: there is no flock program"
fi

# --- the folder cannot be created
blocked() { renamed && echo mine >"$out"; }
out=$folder/blocked
during blocked
[ $status -eq 2 ] && said_once "error: " && grep -qx mine "$out" && [ "$(grep -c '^warning: the checkpoint of step' "$folder/said")" -ge 2 ]
check "if a file has the name of the folder, each save fails and the run ends with 2" $? "$(shown)"
rm "$out" && mv "$out-before" "$out" && resume "$out" 2>"$folder/said" && same "$out"
check "the run is resumed after the file is removed" $? "$(shown)"

# --- free space, on a small file system that is mounted for the test
mkdir "$disk"
run+=(--skip-grad-z 0) # because no checkpoint is deleted while updates are skipped
rm -r "$folder/straight"
"$program" "${run[@]}" --out "$folder/straight" >/dev/null || bad "training without an outlier guard succeeds"
kilobytes=$(du -sk "$folder/straight/$last" | cut -f1)
room() { mount -o remount,size=$(($1 * kilobytes / 10))k "$disk"; } # TENTHS: sets the disk's size in tenths of a checkpoint
if mount -t tmpfs -o size=$((kilobytes / 2))k coat-test "$disk" 2>/dev/null; then
    out=$disk/run
    too_small() { [ $1 -eq 2 ] && said_once "error: .*a checkpoint needs .* are free there"; }
    "$program" "${run[@]}" --out "$out" >/dev/null 2>"$folder/said"
    too_small $? && [ -z "$(ls -A "$out")" ]
    check "a disk that is too small for one checkpoint is refused" $? "$(cat "$folder/said")" "$(ls -A "$out")"
    room 30
    "$program" "${run[@]}" --no-quiet --keep 1 --out "$out" >/dev/null 2>"$folder/said" && same "$out" && ! grep '^note: --out' "$folder/said"
    check "--keep 1 prints no note if three checkpoints fit" $? "$(cat "$folder/said")"
    room 14
    "$program" "${run[@]}" --keep 1 --steps 170 --out "$out" --resume >/dev/null 2>"$folder/said"
    too_small $? && same "$out"
    check "a resume is refused if the disk has no space for a second checkpoint" $? "$(cat "$folder/said")"
    "$program" "${run[@]}" --save-every 0 --out "$out" --overwrite >/dev/null 2>"$folder/said" && same "$out"
    check "--overwrite can use the space of the old checkpoint" $? "$(cat "$folder/said")"
    "$program" "${run[@]}" --channels 128 --layers 4 --out "$out" --overwrite >/dev/null 2>"$folder/said"
    status=$?
    [ $status -eq 2 ] && grep -q '^error: .*: a checkpoint needs' "$folder/said" && same "$out"
    check "--overwrite keeps the old checkpoint if its space is not enough" $? "status $status" "$(cat "$folder/said")"
    rm -r "$out"/log.jsonl && mv "$out/$last" "$out/.$last.tmp"
    "$program" "${run[@]}" --save-every 0 --out "$out" --resume >/dev/null 2>"$folder/said" && same "$out"
    check "--resume can use the space of an incomplete checkpoint" $? "$(cat "$folder/said")" "$(ls -A "$out")"
    rm -r "$out"
    room 35
    "$program" "${run[@]}" --no-quiet --out "$out" >/dev/null 2>"$folder/said"
    [ $? -eq 2 ] && [ "$(grep -c "^note: --out $out: .* for 3 of the 10 more .*, or set --keep 2$" "$folder/said")" -eq 1 ]
    check "a note is printed if later checkpoints will not fit" $? "$(head -n 3 "$folder/said")"
    rm -r "$out"
    "$program" "${run[@]}" --keep 2 --no-quiet --out "$out" >/dev/null 2>"$folder/said" && same "$out" && ! grep '^note: --out' "$folder/said"
    check "with the --keep that the note suggests, all checkpoints fit and no note is printed" $? "$(cat "$folder/said")"
    rm -r "$out"
    room 21 # space for two checkpoints, but not for the log
    "$program" "${run[@]}" --no-quiet --keep 1 --out "$out" >/dev/null 2>"$folder/said"
    [ "$(grep -c "^note: --out $out: .* for 1 of the 2 more .*; free space$" "$folder/said")" -eq 1 ]
    check "if two checkpoints fit but the log does not, the note suggests no --keep" $? "$(head -n 3 "$folder/said")"
else
    echo "skip - a disk that is too small: this user cannot mount a file system"
fi
exit $failures
