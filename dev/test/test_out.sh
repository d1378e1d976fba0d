#!/usr/bin/env bash
# The folder of a run is removed, renamed or replaced while it trains: the run continues in a new folder, or stops if
# another run has it. What is saved and resumed then is equal to the run without interruption, byte for byte. And a disk
# that is too small is found before the first step.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/run_fixture.sh
disk=$folder/disk
trap 'umount "$disk" 2>/dev/null; chmod -R u+rwx "$folder"; rm -rf "$folder"' EXIT
straight
first=$(printf 'step-%08d' $every)

# during COMMAND...: a run in $out, stopped for the command after its first checkpoint; sets $status
during() {
    "$program" "${run[@]}" --out "$out" >"$folder/out" 2>"$folder/said" &
    local pid=$!
    until [ -d "$out/$first" ] || ! kill -0 $pid 2>/dev/null; do :; done
    kill -STOP $pid
    "$@"
    kill -CONT $pid
    wait $pid
    status=$?
}
second() { # FLAGS...: another run in $out, to its end
    "$program" "${run[@]}" --steps 20 --out "$out" "$@" >/dev/null 2>"$folder/second-said"
    second=$?
}
# said_once PATTERN: one line on stderr, apart from failed saves, matches it and names $out
said_once() { [ "$(grep -vc '^warning: the checkpoint of step' "$folder/said")" -eq 1 ] && grep -qE "^$1" "$folder/said" && grep -qF -- "--out $out" "$folder/said"; }
# continued: the run ended well in a new folder, whose log has a note and the later lines of the straight run
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
check "a folder that is removed is created again" $? "$(shown)"
parent() { rm -r "${out%/*}"; }
out=$folder/above/run
during parent
continued
check "so is one that is removed with its parent" $? "$(shown)"
renamed() { mv "$out" "$out-before"; }
out=$folder/renamed
during renamed
continued
check "so is one that is renamed" $? "$(shown)"
resume "$out-before" 2>"$folder/said" && diff -r "$folder/straight/$last" "$out-before/$last"
check "and the old one is resumed from its own checkpoint" $? "$(shown)"
replaced() { renamed && mkdir "$out" && echo mine >"$out/notes.txt"; }
out=$folder/replaced
during replaced
continued && grep -qx mine "$out/notes.txt"
check "an empty folder of that name is used" $? "$(shown)"
no_lock() { rm "$out/.lock"; }
out=$folder/lockless
during no_lock
said_once "warning: " && same "$out"
check "a lock that is removed is taken again" $? "$(shown)"

# a run that is killed after that has lost nothing since its last save, and until then keeps other runs out
out=$folder/late
"$program" "${run[@]}" --steps 100000000 --lr-final 1 --out "$out" >/dev/null 2>"$folder/said" &
pid=$!
until [ -d "$out/$first" ]; do :; done
renamed
until compgen -G "$out/step-*" >/dev/null || ! kill -0 $pid; do :; done
second --resume
kill -KILL $pid
wait $pid 2>/dev/null
[ $second -eq 2 ] && grep -q "^error: --out $out: another run is writing there: process $pid on " "$folder/second-said"
check "another run is refused in the new folder" $? "$second" "$(cat "$folder/second-said")"
newest=$(cd "$out" && printf '%s\n' step-* | tail -n 1)
"$program" "${run[@]}" --lr-final 1 --steps $((10#${newest#step-} + every)) --out "$out" --resume >/dev/null 2>"$folder/said"
check "and after SIGKILL its last checkpoint is resumed" $? "$(shown)"

# --- another run has the folder when this one saves
# stopped: this run ended with 2 and one error, and what is in the folder is as the other run left it
stopped() { [ $status -eq 2 ] && said_once "error: " && diff -r "$out" "$out-theirs"; }
quick() { renamed && second && cp -r "$out" "$out-theirs"; }
out=$folder/quick
during quick
[ $second -eq 0 ] && stopped
check "a run that has ended there keeps its files" $? "$(shown)"
if command -v flock >/dev/null; then
    hold() { exec 8>"$out/.lock" && flock -n 8 && echo "$HOSTNAME 4321 2026-01-02 03:04:05" >&8; }
    holds() { renamed && mkdir "$out" && hold && cp -r "$out" "$out-theirs"; }
    out=$folder/held
    during holds
    stopped && grep -q "another run is writing there: process 4321 on $HOSTNAME, since 2026-01-02 03:04:05" "$folder/said"
    check "a run that writes there is named, and nothing is written" $? "$(shown)"
    exec 8>&-
    relocked() { rm "$out/.lock" && hold && cp -r "$out" "$out-theirs"; }
    out=$folder/relocked
    during relocked
    [ $status -eq 2 ] && said_once "error: " && diff -r -x log.jsonl -x 'events.*' "$out" "$out-theirs"
    check "so is one that came after the lock was removed" $? "$(shown)"
    exec 8>&-
else
    echo "skip - a run that still writes there: no flock"
fi

# --- the folder cannot be created
blocked() { renamed && echo mine >"$out"; }
out=$folder/blocked
during blocked
[ $status -eq 2 ] && said_once "error: " && grep -qx mine "$out" && [ "$(grep -c '^warning: the checkpoint of step' "$folder/said")" -ge 2 ]
check "where a file has its name, each save fails, and the run ends with 2" $? "$(shown)"
rm "$out" && mv "$out-before" "$out" && resume "$out" 2>"$folder/said" && same "$out"
check "and is resumed from its last checkpoint" $? "$(shown)"

# --- room on the disk: a small file system of our own
mkdir "$disk"
run+=(--skip-grad-z 0) # while updates are skipped nothing is pruned
rm -r "$folder/straight"
"$program" "${run[@]}" --out "$folder/straight" >/dev/null || bad "the same run without a guard"
kilobytes=$(du -sk "$folder/straight/$last" | cut -f1)
room() { mount -o remount,size=$(($1 * kilobytes / 10))k "$disk"; } # TENTHS of a checkpoint
if mount -t tmpfs -o size=$((kilobytes / 2))k coat-test "$disk" 2>/dev/null; then
    out=$disk/run
    too_small() { [ $1 -eq 2 ] && said_once "error: .*a checkpoint takes .* are free there"; }
    "$program" "${run[@]}" --out "$out" >/dev/null 2>"$folder/said"
    too_small $? && [ -z "$(ls -A "$out")" ]
    check "a disk without room for one checkpoint is refused" $? "$(cat "$folder/said")" "$(ls -A "$out")"
    room 30
    "$program" "${run[@]}" --no-quiet --keep 1 --out "$out" >/dev/null 2>"$folder/said" && same "$out" && ! grep '^note: --out' "$folder/said"
    check "room for those that are there at a time is enough" $? "$(cat "$folder/said")"
    room 14
    "$program" "${run[@]}" --keep 1 --steps 170 --out "$out" --resume >/dev/null 2>"$folder/said"
    too_small $? && same "$out"
    check "the next needs room beside the one before" $? "$(cat "$folder/said")"
    "$program" "${run[@]}" --save-every 0 --out "$out" --overwrite >/dev/null 2>"$folder/said" && same "$out"
    check "but one that is overwritten leaves its room" $? "$(cat "$folder/said")"
    "$program" "${run[@]}" --channels 128 --layers 4 --out "$out" --overwrite >/dev/null 2>"$folder/said"
    status=$?
    [ $status -eq 2 ] && grep -q '^error: .*: a checkpoint takes' "$folder/said" && same "$out"
    check "and stays where that is not enough" $? "status $status" "$(cat "$folder/said")"
    rm -r "$out"/log.jsonl && mv "$out/$last" "$out/.$last.tmp"
    "$program" "${run[@]}" --save-every 0 --out "$out" --resume >/dev/null 2>"$folder/said" && same "$out"
    check "half a checkpoint leaves its room, too" $? "$(cat "$folder/said")" "$(ls -A "$out")"
    rm -r "$out"
    room 35
    "$program" "${run[@]}" --no-quiet --out "$out" >/dev/null 2>"$folder/said"
    [ $? -eq 2 ] && [ "$(grep -c "^note: --out $out: .* for 3 of the 10 more .*, or set --keep 2$" "$folder/said")" -eq 1 ]
    check "where later ones will not fit a note says so" $? "$(head -n 3 "$folder/said")"
    rm -r "$out"
    "$program" "${run[@]}" --keep 2 --no-quiet --out "$out" >/dev/null 2>"$folder/said" && same "$out" && ! grep '^note: --out' "$folder/said"
    check "and what it proposes fits" $? "$(cat "$folder/said")"
    rm -r "$out"
    room 21 # two, and no room for the log
    "$program" "${run[@]}" --no-quiet --keep 1 --out "$out" >/dev/null 2>"$folder/said"
    [ "$(grep -c "^note: --out $out: .* for 1 of the 2 more .*; make room$" "$folder/said")" -eq 1 ]
    check "a margin is left for blocks and the log, and nothing is proposed that does not fit" $? "$(head -n 3 "$folder/said")"
else
    echo "skip - a disk that is too small: mounting is not permitted"
fi
exit $failures
