#!/usr/bin/env bash
# The folder of a run that trains is removed, renamed or replaced, or its log is: what the run still holds comes back, and
# no two runs write in one folder. What is resumed then is the run without interruption, byte for byte. And a disk that is
# too small is found before the first step.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/run_fixture.sh
disk=$folder/disk
trap 'umount "$disk" 2>/dev/null; chmod -R u+rwx "$folder"; rm -rf "$folder"' EXIT
straight
first=$(printf 'step-%08d' $every)

# during OUT COMMAND...: a run in OUT, with $flags, which is held while the command does its work, once the checkpoint
# $held, by default its first, is there; sets $status
flags=() held=$first
during() {
    local out=$1 pid
    shift
    "$program" "${run[@]}" "${flags[@]}" --out "$out" >"$folder/out" 2>"$folder/said" &
    pid=$!
    until [ -d "$out/$held" ] || ! kill -0 $pid 2>/dev/null; do :; done
    kill -STOP $pid
    "$@"
    kill -CONT $pid
    wait $pid
    status=$?
}
notes() { grep -c '"note":' "$1/log.jsonl"; }
# said_once PATTERN: that alone, but for a save that the command came across
said_once() { [ "$(grep -vc '^warning: the checkpoint of step' "$folder/said")" -eq 1 ] && grep -qE "^$1" "$folder/said"; }
# whole OUT NOTES: the run in OUT has ended well, with so many notes in its log, and else as the one without interruption
whole() {
    [ $status -eq 0 ] && [ "$(notes "$1")" -eq "$2" ] && sed -i '/"note":/d' "$1/log.jsonl" && same "$1" &&
        [ "$(find "$1" -name 'events.out.tfevents.*' | wc -l)" -eq 1 ]
}
said_and_left() { echo "status $status"; cat "$folder/said" "$folder/out"; ls -A "$1"*; }

second() { # FLAGS...: another run in $out, to its end
    "$program" "${run[@]}" --steps 20 --out "$out" "$@" >/dev/null 2>"$folder/second-said"
    second=$?
}
removed() { rm -r "$out"; }
out=$folder/removed
during "$out" removed
said_once "warning: --out $out: the folder was removed during the run; it is made again, with the whole log" && whole "$out" 1
check "a folder that is removed comes back, with all of its log" $? "$(said_and_left "$out")"

renamed() { mv "$out" "$out-before"; }
out=$folder/renamed
during "$out" renamed
said_once "warning: --out $out: the folder was renamed to .*/renamed-before during the run; it is made again" && whole "$out" 1
check "so does one that is renamed" $? "$(said_and_left "$out")"
[ -d "$out-before/$first" ] && resume "$out-before" 2>"$folder/said" && same "$out-before"
check "and the old one is resumed from what it has" $? "$(said_and_left "$out")"

replaced() { mv "$out" "$out-before" && mkdir "$out" && echo mine >"$out/notes.txt"; }
out=$folder/replaced
during "$out" replaced
said_once "warning: --out $out: the folder was renamed" && grep -qx mine "$out/notes.txt" && whole "$out" 1
check "and one that an empty folder takes the place of" $? "$(said_and_left "$out")"

# killed afterwards it has lost nothing that it had saved: another run resumes it
resumed() { renamed; kill -CONT $pid; until compgen -G "$out/step-*" >/dev/null || ! kill -0 $pid; do :; done; kill -KILL $pid; }
out=$folder/killed
"$program" "${run[@]}" --out "$out" >/dev/null 2>&1 &
pid=$!
until [ -d "$out/$first" ]; do :; done
kill -STOP $pid
resumed
wait $pid 2>/dev/null
compgen -G "$out/step-*" >/dev/null && resume "$out" 2>"$folder/said" && sed -i '/"note":/d' "$out/log.jsonl" && same "$out"
check "killed after that, it is resumed to the same bytes" $? "$(said_and_left "$out")"

no_lock() { rm "$out/.lock"; }
out=$folder/lockless
during "$out" no_lock
said_once "warning: --out $out: its .lock was removed during the run; it is made again$" && whole "$out" 1
check "a lock that is removed is taken again" $? "$(said_and_left "$out")"

# and keeps another run out even while it is gone
kept_out() { rm "$out/.lock"; for flag in --resume --overwrite ""; do second $flag; seconds+=$second; cat "$folder/second-said"; done >"$folder/seconds-said"; }
out=$folder/kept-out seconds=
during "$out" kept_out
[ "$seconds" = 222 ] && [ "$(grep -cx "error: --out $out: another run is writing there: its .lock was removed; stop it or choose another folder" "$folder/seconds-said")" -eq 3 ] &&
    said_once "warning: --out $out: its .lock was removed during the run; it is made again$" && whole "$out" 1
check "and until then a second run is refused, whatever it asks for" $? "$(said_and_left "$out"; cat "$folder/seconds-said")"

# where that is not seen, as on another machine, what another run has left stays as it is
visited() { rm "$out/.lock" "$out"/* -r && cp -r "$out-theirs/." "$out"; }
out=$folder/visited
"$program" "${run[@]}" --seed 7 --out "$out-theirs" >/dev/null 2>&1
during "$out" visited
[ $status -eq 2 ] && grep -q "error: .*its .lock was removed during the run, and another run has written its log there.*go on with --out $out-rescued-1 --resume" "$folder/said" &&
    diff -r "$out" "$out-theirs" >"$folder/diff" && compgen -G "$out-rescued-1/step-*" >/dev/null
check "a run that has been there meanwhile keeps its files, and this one saves beside them" $? "$(said_and_left "$out"; cat "$folder/diff")"

no_log() { rm "$out/log.jsonl"; }
out=$folder/logless
during "$out" no_log
said_once "warning: $out/log.jsonl was removed during the run; it is made again with all of its lines" && whole "$out" 1
check "a log that is removed comes back" $? "$(said_and_left "$out")"
no_events() { rm "$out"/events.*; }
out=$folder/curveless
during "$out" no_events
said_once "warning: $out/events.out.tfevents.* was removed during the run; it is made again with all of its events" && whole "$out" 1
check "so do TensorBoard's figures" $? "$(said_and_left "$out")"
edited() { sed -i s/loss/lost/ "$out/log.jsonl" && cp "$out/log.jsonl" "$folder/edited"; }
out=$folder/relogged
during "$out" edited
said_once "warning: $out/log.jsonl was replaced during the run; .* kept as log-replaced-1.jsonl$" &&
    cmp "$folder/edited" "$out/log-replaced-1.jsonl" && whole "$out" 1
check "and one that is replaced, whose other file is kept" $? "$(said_and_left "$out")"
cut_off() { : >"$out/log.jsonl"; }
out=$folder/cut
during "$out" cut_off
said_once "warning: $out/log.jsonl was cut off during the run; it is written again with all of its lines$" && [ ! -e "$out/log-replaced-1.jsonl" ] && whole "$out" 1
check "one that is cut off in place gets its lines back" $? "$(said_and_left "$out")"
written_over() { echo mine >"$out/log.jsonl"; }
out=$folder/written-over
during "$out" written_over
said_once "warning: $out/log.jsonl was replaced during the run; it is made again with all of its lines, and the other file kept as log-replaced-1.jsonl$" &&
    [ "$(head -n 1 "$out/log-replaced-1.jsonl")" = mine ] && whole "$out" 1
check "so does one that is written over, whose other lines are kept" $? "$(said_and_left "$out")"

linked() { rm -r "$out-target"; }
out=$folder/linked
mkdir "$out-target" && ln -s linked-target "$out"
during "$out" linked
said_once "warning: --out $out: the folder was removed during the run; it is made again" && [ -L "$out" ] && whole "$out-target" 1
check "so does one that a link leads to" $? "$(said_and_left "$out")"

# the last save is there when the validation after it begins
cp "$data" "$folder/long_val.bin"
at_last() { # OUT COMMAND...: the command is done during the last validation
    local flags=(--val-every 0 --val "$folder/long_val.bin" --val-batches 1500) held=$last # a second or two
    during "$@"
}
out=$folder/removed-last
at_last "$out" removed
said_once "warning: --out $out: the folder was removed during the run; it is made again, with the whole log" &&
    [ $status -eq 0 ] && [ "$(notes "$out")" -eq 1 ] && diff -r "$folder/straight/$last" "$out/$last"
check "one that is removed after the last save is saved to once more" $? "$(said_and_left "$out")"

parent() { rm -r "${out%/*}"; }
out=$folder/above/run
during "$out" parent
said_once "warning: --out $out: the folder was removed during the run; it is made again, with the whole log" && whole "$out" 1
check "so does one that is removed with its parent" $? "$(said_and_left "$out")"
turned() { mkdir "$out-other" && ln -sfn turned-other "$out"; }
out=$folder/turned
mkdir "$out-target" && ln -s turned-target "$out"
during "$out" turned
said_once "warning: --out $out: the name no longer leads to the run's folder .*/turned-target; it is begun again there, with the whole log" && whole "$out-other" 1
check "a link that is turned takes the run along, which says so" $? "$(said_and_left "$out")"
copied() { renamed && cp -a "$out-before" "$out"; }
out=$folder/copied
during "$out" copied
[ $status -eq 2 ] && grep -q "^error: .*the folder was renamed to .*/copied-before during the run, and the one of that name is a copy of it ($first); this one is saved: go on with --out $out-rescued-1 --resume$" "$folder/said"
check "a copy of the folder is called one" $? "$(said_and_left "$out")"

# where the parent is renamed nothing is put: a disk may be mounted there again
parent() { mv "${out%/*}" "${1:-$folder/unmounted}"; }
out=$folder/parent/run
at_last "$out" parent
[ $status -eq 0 ] && [ ! -e "${out%/*}" ] && diff -r "$folder/straight/$last" "$folder/unmounted/run/$last"
check "where its parent is renamed, what is saved is there" $? "status $status" "$(cat "$folder/said")" "$(ls "$folder")"

# where that is seen early, the run goes over to another folder with its next save, says so once, and stays there
# over PLACE RESCUED: it has ended with 2 and been said so, and the new folder has the log and all later checkpoints
over() {
    [ $status -eq 2 ] && [ "$(grep -c '^warning: --out' "$folder/said")" -eq 1 ] &&
        grep -q "^warning: --out $out cannot be used: cannot create the folder $out: .*; what it wrote before is $1; the run continues in $2$" "$folder/said" &&
        grep -q "^error: --out $out: cannot create the folder $out: .*; this one is saved: go on with --out $2 --resume; what it wrote before is $1$" "$folder/said" &&
        [ "$(notes "$2")" -eq 1 ] && sed -i '/"note":/d' "$2/log.jsonl" && same "$2" && [ "$(find "$2" -maxdepth 1 -name 'step-*' | wc -l)" -ge 3 ]
}
out=$folder/moved/run
during "$out" parent "$folder/moved-on"
over "in $folder/moved-on/run" "$folder/run-rescued-1" && [ -d "$folder/moved-on/run/$first" ]
check "where it is renamed early, the run continues above, and both places are said" $? "$(said_and_left "$folder/run-rescued-1")"
blocked() { renamed && echo mine >"$out"; }
out=$folder/blocked
during "$out" blocked
over "in $out-before" "$out-rescued-1" && grep -qx mine "$out"
check "so does one where a file has the name, beside it" $? "$(said_and_left "$out")"
filled() { removed && echo mine >"$out"; }
out=$folder/filled
during "$out" filled
over gone "$out-rescued-1"
check "what it wrote before is gone where it was deleted" $? "$(said_and_left "$out")"
# killed afterwards, it has what it has saved since
out=$folder/filled-killed
"$program" "${run[@]}" --out "$out" --steps 100000000 --save-every 1000000 --lr-final 1 >/dev/null 2>"$folder/said" &
pid=$!
until [ -s "$out/log.jsonl" ]; do :; done
kill -STOP $pid
filled
kill -CONT $pid
for ((wait_s = 0; wait_s < 100; wait_s++)); do compgen -G "$out-rescued-1/step-*" >/dev/null && break; sleep 0.1; done
"$program" "${run[@]}" --out "$out-rescued-1" --resume >/dev/null 2>"$folder/second-said"
second=$?
kill -KILL $pid
wait $pid 2>/dev/null
[ $second -eq 2 ] && grep -q "another run is writing there: process $pid on " "$folder/second-said" && compgen -G "$out-rescued-1/step-*" >/dev/null
check "it is saved there at once where nothing is left, and nobody else writes there" $? "$(said_and_left "$out")" "$(cat "$folder/second-said")"

# with the working directory a relative --out is removed
relative() { # NAME COMMAND...: a run in runs/mine of that directory, which is removed
    local here=$PWD
    mkdir "$folder/$1" && cd "$folder/$1" || return
    during runs/mine "${@:2}"
    cd "$here" || exit
}
gone() { rm -r "$PWD"; }
relative gone-directory gone
out=$folder/gone-directory/runs/mine
said_once "warning: --out $out: the folder was removed during the run; it is made again, with the whole log" && whole "$out" 1
check "with the working directory a relative folder comes back where it was" $? "$(said_and_left "$out")"
cloned() { rm -r "$PWD" && mkdir "$PWD" && echo mine >"$PWD/README"; }
relative cloned-directory cloned
out=$folder/cloned-directory/runs/mine
said_once "warning: --out $out: the folder was removed during the run; it is made again, with the whole log" && whole "$out" 1
check "also in another one of that name" $? "$(said_and_left "$out")"

# --- a second run, which finds the folder before the first makes it again, or after that
# rescued: the first has ended with 2 and one line, has left the second's folder alone, and is resumed beside it
rescued() {
    [ $status -eq 2 ] && said_once "error: --out $out: $1; this one is saved: go on with --out $out-rescued-1 --resume$" &&
        [ "$(notes "$out-rescued-1")" -eq 1 ] && resume "$out-rescued-1" 2>"$folder/resumed" && sed -i '/"note":/d' "$out-rescued-1/log.jsonl" && same "$out-rescued-1"
}
quick() { renamed && second && cp -r "$out" "$folder/quick-second"; }
out=$folder/quick
during "$out" quick
[ $second -eq 0 ] && diff -r "$out" "$folder/quick-second" && rescued "the folder was renamed to .*/quick-before during the run, and the one of that name holds another run \(step-00000020\)"
check "a run that was quicker keeps the folder, and the first one saves beside it" $? "$(said_and_left "$out")"

holds() { renamed && mkdir "$out" && exec 8>"$out/.lock" && flock -n 8 && echo "$HOSTNAME 4321 2026-01-02 03:04:05" >&8; }
out=$folder/held
if command -v flock >/dev/null; then
    during "$out" holds
    [ "$(ls -A "$out")" = .lock ] && rescued "the folder was renamed to .*/held-before during the run, and another run is writing there: process 4321 on $HOSTNAME, since 2026-01-02 03:04:05"
    check "so does one that still writes there" $? "$(said_and_left "$out")"
    exec 8>&-
else
    echo "skip - a run that still writes there: no flock"
fi

out=$folder/late
"$program" "${run[@]}" --steps 100000000 --lr-final 1 --keep 3 --out "$out" >/dev/null 2>"$folder/said" &
pid=$!
until [ -d "$out/$first" ]; do :; done
renamed
until compgen -G "$out/step-*" >/dev/null || ! kill -0 $pid; do :; done
second --resume
[ $second -eq 2 ] && grep -q "^error: --out $out: another run is writing there: process $pid on " "$folder/second-said"
check "a run that comes after it is refused" $? "$second" "$(cat "$folder/second-said")"
kill -TERM $pid
wait $pid
status=$?
[ $status -eq 0 ] && grep -q '^ended by SIGTERM' "$folder/said" && [ -z "$(find "$out" -name '.*' ! -path "$out")" ]
check "and the first continues until it is told to end" $? "$(said_and_left "$out")"

# --- room on the disk: a small file system of our own
mkdir "$disk"
run+=(--skip-grad-z 0) # while updates are skipped nothing is pruned
rm -r "$folder/straight"
"$program" "${run[@]}" --out "$folder/straight" >/dev/null || bad "the same run without a guard"
kilobytes=$(du -sk "$folder/straight/$last" | cut -f1)
room() { mount -o remount,size=$(($1 * kilobytes / 10))k "$disk"; } # TENTHS of a checkpoint
if mount -t tmpfs -o size=$((kilobytes / 2))k coat-test "$disk" 2>/dev/null; then
    out=$disk/run
    too_small() { [ $1 -eq 2 ] && said_once "error: --out $out: a checkpoint takes 0\.[0-9]* MB, and 0\.[0-9]* MB are free there; make room or choose another folder$"; }
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
    [ $? -eq 2 ] && [ "$(grep -c "^note: --out $out: .* for 3 of the 10 more that --save-every and --keep hold at a time: the others cannot be saved; make room, or set --keep 2$" "$folder/said")" -eq 1 ]
    check "where later ones will not fit a note says so" $? "$(head -n 3 "$folder/said")"
    rm -r "$out"
    "$program" "${run[@]}" --keep 2 --no-quiet --out "$out" >/dev/null 2>"$folder/said" && same "$out" && ! grep '^note: --out' "$folder/said"
    check "and what it proposes fits" $? "$(cat "$folder/said")"
    rm -r "$out"
    room 21 # two, and no room for the log
    "$program" "${run[@]}" --no-quiet --keep 1 --out "$out" >/dev/null 2>"$folder/said"
    [ "$(grep -c "^note: --out $out: .* for 1 of the 2 more that --save-every and --keep hold at a time: the others cannot be saved; make room$" "$folder/said")" -eq 1 ]
    check "a margin is left for blocks and the log, and nothing is proposed that does not fit" $? "$(head -n 3 "$folder/said")"
else
    echo "skip - a disk that is too small: mounting is not permitted"
fi
exit $failures
