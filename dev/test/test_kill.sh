#!/usr/bin/env bash
# Tests of interrupted runs: killed at random moments, on a full or read-only disk, or with damaged checkpoints. Each is
# resumed to its end, and must then equal the uninterrupted run byte for byte.
#
#   dev/test/test_kill.sh [RUNS [SEED]]     number of killed runs (default 10), seed of the random moments
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
runs=${1:-10} seed=${2:-20241031}
. dev/test/run_fixture.sh
mounts=()
# shellcheck disable=SC2317
clean() {
    for ((i = ${#mounts[@]} - 1; i >= 0; i--)); do umount "${mounts[i]}"; done
    chmod -R u+rwx "$folder"
    rm -rf "$folder"
}
trap clean EXIT
RANDOM=$seed

begin=$(date +%s%N)
straight
ms=$((($(date +%s%N) - begin) / 1000000))

# --- SIGKILL at a random moment or during a save
killed=0 in_save=0
kill_once() { # OUT: starts or resumes the run and kills it; counts in $killed and $in_save
    local out=$1 pid wait_ms=$((RANDOM % ms)) save=$((RANDOM % 2)) number=$((1 + RANDOM % 6))
    mkdir -p "$out"
    "$program" "${run[@]}" --out "$out" --resume >/dev/null 2>>"$folder/said" &
    pid=$!
    if [ $save -eq 1 ]; then # kills the run when the save with this number has begun
        local seen=0 name before=
        while [ $seen -lt $number ] && kill -0 $pid 2>/dev/null; do
            name=$(compgen -G "$out/.step-*.tmp")
            if [ -n "$name" ] && [ "$name" != "$before" ]; then
                before=$name
                seen=$((seen + 1))
            fi
        done
    else
        sleep "$(printf '%d.%03d' $((wait_ms / 1000)) $((wait_ms % 1000)))"
    fi
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ $? -eq 137 ] || return 0
    killed=$((killed + 1))
    if exists "$out/.step-*.tmp"; then in_save=$((in_save + 1)); fi
}
good=0
for ((i = 1; i <= runs; i++)); do
    out=$folder/killed
    before_run=$killed
    for ((tries = 5; tries > 0 && killed == before_run; tries--)); do # repeats a run that ended before each kill
        rm -rf "$out"
        for ((kills = 1 + RANDOM % 3; kills > 0; kills--)); do kill_once "$out" 2>/dev/null; done
    done
    if resume "$out" 2>>"$folder/said" && same "$out" 2>"$folder/differs"; then good=$((good + 1)); else
        bad "run $i of seed $seed, resumed after SIGKILL, equals the uninterrupted run" "$(head -n 20 "$folder/differs")" "$(tail -n 5 "$folder/said")"
        break
    fi
done
[ $good -eq "$runs" ]
check "$runs runs, killed $killed times ($in_save during a save; seed $seed) and resumed, equal the uninterrupted run" $? "only $good"
[ $killed -ge "$runs" ] && [ $in_save -ge 1 ]
check "every run was killed at least once, and one during a save" $? "killed: $killed, during a save: $in_save"

# --- a full disk: a limit of the file size and, if mounting is permitted, a small file system
# full NAME OUT COMMAND...: runs COMMAND with flags to train in OUT. It must warn about failed saves, train to its end, exit
# with 2 and leave no partial files.
full() {
    local name=$1 out=$2 status=0
    shift 2
    "$@" "${run[@]}" --out "$out" >/dev/null 2>"$folder/said" || status=$?
    [ $status -eq 2 ] && grep -q "^error: the checkpoint of step $steps could not be saved: cannot" "$folder/said" &&
        [ "$(grep -c '^warning: the checkpoint of step' "$folder/said")" -ge 1 ] &&
        [ "$(grep -vc '^warning: \(the checkpoint of step\|.*: cannot be written\)\|^note: .*: can be written again\|^error: ' "$folder/said")" -eq 0 ] &&
        [ -z "$(find "$out" -name '.*' ! -path "$out")" ]
    check "$name: training continues to its end, and the exit code is 2" $? "status $status" "$(cat "$folder/said")" "$(ls -a "$out")"
}
limited() { (ulimit -f 40 && exec "$program" "$@"); }
full "a limit of the file size" "$folder/limited" limited
resume "$folder/limited" && same "$folder/limited"
check "a run with failed saves, resumed without the limit, equals the uninterrupted run" $?

mount_tmpfs() { mkdir -p "$1" && mount -t tmpfs -o "size=$2" coat-test "$1" 2>/dev/null && mounts+=("$1"); }
if mount_tmpfs "$folder/disk" "$(($(du -sk "$folder/straight/$last" | cut -f1) * 7 / 2))k"; then
    full "a full disk" "$folder/disk/out" "$program"
    kept=("$folder"/disk/out/step-*)
    [ ${#kept[@]} -ge 2 ]
    check "checkpoints from before the disk was full remain" $? "${kept[@]}"
    mount -o remount,size=64m "$folder/disk"
    resume "$folder/disk/out" && same "$folder/disk/out"
    check "a run resumed after its full disk has space again equals the uninterrupted run" $?
else
    echo "skip - a full disk: this user cannot mount a file system"
fi

# --- the folder becomes read-only or is renamed during the run
lose() { # OUT COMMAND...: trains in OUT and runs COMMAND after the first checkpoint; sets $status
    local out=$1 pid
    shift
    "$program" "${run[@]}" --out "$out" >/dev/null 2>"$folder/said" &
    pid=$!
    wait_for $pid test -d "$out/$(printf 'step-%08d' $every)"
    "$@"
    wait $pid
    status=$?
}
read_only() {
    if [ "$(id -u)" -ne 0 ]; then chmod 555 "$1" && return; fi
    mount --bind "$1" "$1" && mounts+=("$1")
    for ((try = 0; try < 200; try++)); do # retries, because remounting fails while the run has a file open for writing
        mount -o remount,ro,bind "$1" 2>/dev/null && return
        sleep 0.01
    done
}
writable() {
    if [ "$(id -u)" -ne 0 ]; then chmod 755 "$1"; else umount "$1" && unset 'mounts[-1]'; fi
}
if [ "$(id -u)" -ne 0 ] || [ ${#mounts[@]} -gt 0 ]; then
    lose "$folder/locked" read_only "$folder/locked"
    [ $status -eq 2 ] && grep -qE "^error: .*step $steps could not be saved: cannot .*(Read-only|Permission).*; .* from step [0-9]+ with --resume$" "$folder/said"
    check "a run in a folder that becomes read-only exits with 2, and the error names the reason" $? "status $status" "$(cat "$folder/said")"
    writable "$folder/locked"
    resume "$folder/locked" && same "$folder/locked"
    check "a run resumed after its folder is writable again equals the uninterrupted run" $?
else
    echo "skip - a folder that becomes read-only: root may write everywhere, and this user cannot mount a file system"
fi
away() { mv "$folder/mount" "$folder/unmounted"; }
lose "$folder/mount/out" away
# If the folder vanishes during a save, a second warning says that the checkpoint could not be saved.
[ $status -eq 0 ] && [ "$(grep -c "^warning: --out $folder/mount/out" "$folder/said")" -eq 1 ] &&
    [ "$(grep '^warning: ' "$folder/said" | grep -cv -e '--out' -e 'the checkpoint of step [0-9]* could not be saved')" -eq 0 ] &&
    diff -r "$folder/straight/$last" "$folder/mount/out/$last"
check "if the parent of --out is renamed, --out is recreated and gets the uninterrupted run's checkpoint" $? "status $status" "$(cat "$folder/said")"

# --- If a file of the last checkpoint has a flipped bit or is truncated, --resume uses the previous checkpoint.
flip_bit() { flip "$1" $(((RANDOM * 32768 + RANDOM) % $(stat -c %s "$1"))) $((1 << RANDOM % 8)); } # FILE
truncate_file() { truncate -s $(((RANDOM * 32768 + RANDOM) % $(stat -c %s "$1"))) "$1"; }
for file in "$folder/straight/$last"/*; do
    name=$(basename "$file")
    for damage in flip_bit truncate_file; do
        rm -rf "$folder/damaged" && cp -r "$folder/straight" "$folder/damaged"
        $damage "$folder/damaged/$last/$name"
        resume "$folder/damaged" 2>"$folder/said" && grep -q "skipping the checkpoint .*$last: .*$name" "$folder/said" &&
            same "$folder/damaged"
        check "after $damage $name in the last checkpoint, --resume uses the previous one" $? "$(cat "$folder/said")"
    done
done
rm -rf "$folder/damaged" && cp -r "$folder/straight" "$folder/damaged" && truncate_file "$folder/damaged/$last/model.safetensors"
resume "$folder/damaged" --no-quiet 2>"$folder/said" && grep -q "^note: the settings .* step $steps, .*damaged" "$folder/said"
check "a note is printed if the settings come from a checkpoint whose other files are damaged" $? "$(cat "$folder/said")"
exit $failures
