#!/usr/bin/env bash
# The folder of a run that trains is removed, renamed or replaced, or its log is: what the run still holds comes back, and
# no two runs write in one folder. What is resumed then is the run without interruption, byte for byte.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. dev/run_fixture.sh
straight
first=$(printf 'step-%08d' $every)

# during OUT COMMAND...: a run in OUT, which is held while the command does its work, once its first checkpoint is there;
# sets $status
during() {
    local out=$1 pid
    shift
    "$program" "${run[@]}" --out "$out" >"$folder/out" 2>"$folder/said" &
    pid=$!
    until [ -d "$out/$first" ] || ! kill -0 $pid 2>/dev/null; do :; done
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

no_log() { rm "$out/log.jsonl"; }
out=$folder/logless
during "$out" no_log
said_once "warning: $out/log.jsonl was removed during the run; it is made again with all of its lines" && whole "$out" 1
check "a log that is removed comes back" $? "$(said_and_left "$out")"
edited() { sed -i s/loss/lost/ "$out/log.jsonl" && cp "$out/log.jsonl" "$folder/edited"; }
out=$folder/relogged
during "$out" edited
said_once "warning: $out/log.jsonl was replaced during the run; .* kept as log-replaced-1.jsonl$" &&
    cmp "$folder/edited" "$out/log-replaced-1.jsonl" && whole "$out" 1
check "and one that is replaced, whose other file is kept" $? "$(said_and_left "$out")"

# --- a second run, which finds the folder before the first makes it again, or after that
second() { # FLAGS...: another run in $out, to its end
    "$program" "${run[@]}" --steps 20 --out "$out" "$@" >/dev/null 2>"$folder/second-said"
    second=$?
}
# rescued: the first has ended with 2 and one line, has left the second's folder alone, and is resumed beside it
rescued() {
    [ $status -eq 2 ] && said_once "error: --out $out: $1; this one is saved in $out-rescued-1: go on with --out $out-rescued-1 --resume$" &&
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
check "and the first goes on until it is told to end" $? "$(said_and_left "$out")"
exit $failures
