#!/usr/bin/env bash
# Runs that end badly: killed at any moment, on a full or read-only disk, with damaged checkpoints, in one folder with
# another. Each is resumed to its end and must then be the run without interruption, byte for byte.
#
#   dev/test/test_kill.sh [RUNS [SEED]]     how many runs are killed (default 10), and where their random moments come from
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

# --- SIGKILL, at a random moment or in the middle of a save
killed=0 in_save=0
kill_once() { # OUT: starts or continues, and is killed
    local out=$1 pid wait_ms=$((RANDOM % ms)) save=$((RANDOM % 2)) number=$((1 + RANDOM % 6))
    mkdir -p "$out"
    "$program" "${run[@]}" --out "$out" --resume >/dev/null 2>>"$folder/said" &
    pid=$!
    if [ $save -eq 1 ]; then # when the `number`th save that is seen has begun
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
    if compgen -G "$out/.step-*.tmp" >/dev/null; then in_save=$((in_save + 1)); fi
}
good=0
for ((i = 1; i <= runs; i++)); do
    out=$folder/killed
    before_run=$killed
    for ((tries = 5; tries > 0 && killed == before_run; tries--)); do # again if the run was faster than every kill
        rm -rf "$out"
        for ((kills = 1 + RANDOM % 3; kills > 0; kills--)); do kill_once "$out" 2>/dev/null; done
    done
    if resume "$out" 2>>"$folder/said" && same "$out" 2>"$folder/differs"; then good=$((good + 1)); else
        bad "run $i of seed $seed, resumed after SIGKILL" "$(head -n 20 "$folder/differs")" "$(tail -n 5 "$folder/said")"
        break
    fi
done
[ $good -eq "$runs" ]
check "$good of $runs runs, killed $killed times ($in_save in the middle of a save; seed $seed), end with the same bytes" $?
[ $killed -ge "$runs" ] && [ $in_save -ge 1 ]
check "that many kills came in time" $? "killed $killed, in a save $in_save"

# --- a full disk: a limit of the files' size, and where mounting is permitted a small file system
# full NAME OUT COMMAND...: the run continues to its end with a line per failed save, fails at last, leaves nothing half
full() {
    local name=$1 out=$2 status=0
    shift 2
    "$@" "${run[@]}" --out "$out" >/dev/null 2>"$folder/said" || status=$?
    [ $status -eq 2 ] && grep -q "^error: the checkpoint of step $steps could not be saved: cannot" "$folder/said" &&
        [ "$(grep -c '^warning: the checkpoint of step' "$folder/said")" -ge 1 ] &&
        [ "$(grep -vc '^warning: \(the checkpoint of step\|.*: cannot be written\)\|^note: .*: can be written again\|^error: ' "$folder/said")" -eq 0 ] &&
        [ -z "$(find "$out" -name '.*' ! -path "$out")" ]
    check "$name: training continues, and ends with 2" $? "status $status" "$(cat "$folder/said")" "$(ls -a "$out")"
}
limited() { (ulimit -f 40 && exec "$program" "$@"); }
full "files that may not grow" "$folder/limited" limited
resume "$folder/limited" && same "$folder/limited"
check "and with room the run is made up for" $?

mount_tmpfs() { mkdir -p "$1" && mount -t tmpfs -o "size=$2" coat-test "$1" 2>/dev/null && mounts+=("$1"); }
if mount_tmpfs "$folder/disk" "$(($(du -sk "$folder/straight/$last" | cut -f1) * 7 / 2))k"; then
    full "a full disk" "$folder/disk/out" "$program"
    kept=("$folder"/disk/out/step-*)
    [ ${#kept[@]} -ge 2 ]
    check "the checkpoints from before it was full are there" $? "${kept[@]}"
    mount -o remount,size=64m "$folder/disk"
    resume "$folder/disk/out" && same "$folder/disk/out"
    check "and with room the run continues from them" $?
else
    echo "skip - a full disk: mounting is not permitted"
fi

# --- a folder that becomes read-only, or goes away, in the middle of the run
lose() { # OUT COMMAND...: runs, and does COMMAND once the first checkpoint is there; sets $status
    local out=$1 pid
    shift
    "$program" "${run[@]}" --out "$out" >/dev/null 2>"$folder/said" &
    pid=$!
    until [ -d "$out/$(printf 'step-%08d' $every)" ] || ! kill -0 $pid 2>/dev/null; do :; done
    "$@"
    wait $pid
    status=$?
}
read_only() {
    if [ "$(id -u)" -ne 0 ]; then chmod 555 "$1"; else mount --bind "$1" "$1" && mounts+=("$1") && mount -o remount,ro,bind "$1"; fi
}
writable() {
    if [ "$(id -u)" -ne 0 ]; then chmod 755 "$1"; else umount "$1" && unset 'mounts[-1]'; fi
}
if [ "$(id -u)" -ne 0 ] || [ ${#mounts[@]} -gt 0 ]; then
    lose "$folder/locked" read_only "$folder/locked"
    [ $status -eq 2 ] && grep -qE "^error: .*step $steps could not be saved: cannot .*(Read-only|Permission).*; .* from step [0-9]+ with --resume$" "$folder/said"
    check "a folder that becomes read-only" $? "status $status" "$(cat "$folder/said")"
    writable "$folder/locked"
    resume "$folder/locked" && same "$folder/locked"
    check "and writable again" $?
else
    echo "skip - a folder that becomes read-only: mounting is not permitted, and root may write everywhere"
fi
away() { mv "$folder/mount" "$folder/unmounted"; }
lose "$folder/mount/out" away
[ $status -eq 0 ] && [ "$(grep -c '^warning: ' "$folder/said")" -eq 1 ] && grep -q "^warning: --out $folder/mount/out" "$folder/said" &&
    diff -r "$folder/straight/$last" "$folder/mount/out/$last"
check "a folder that goes away is created again" $? "status $status" "$(cat "$folder/said")"

# --- a flipped bit, and a cut, in any file of a checkpoint: the one before is taken
flip_bit() { # FILE
    local size at byte
    size=$(stat -c %s "$1")
    at=$(((RANDOM * 32768 + RANDOM) % size))
    byte=$(od -An -tu1 -j $at -N 1 "$1")
    printf "$(printf '\\x%02x' $((byte ^ 1 << RANDOM % 8)))" | dd of="$1" bs=1 seek=$at conv=notrunc status=none
}
cut_file() { truncate -s $(((RANDOM * 32768 + RANDOM) % $(stat -c %s "$1"))) "$1"; }
for file in "$folder/straight/$last"/*; do
    name=$(basename "$file")
    for damage in flip_bit cut_file; do
        rm -rf "$folder/damaged" && cp -r "$folder/straight" "$folder/damaged"
        $damage "$folder/damaged/$last/$name"
        resume "$folder/damaged" 2>"$folder/said" && grep -q "skipping the checkpoint .*$last: .*$name" "$folder/said" &&
            same "$folder/damaged"
        check "$damage in $name" $? "$(cat "$folder/said")"
    done
done
rm -rf "$folder/damaged" && cp -r "$folder/straight" "$folder/damaged" && cut_file "$folder/damaged/$last/model.safetensors"
resume "$folder/damaged" --no-quiet 2>"$folder/said" && grep -q "^note: the settings are those of the checkpoint of step $steps, which itself is damaged$" "$folder/said"
check "whose settings would have been taken, and a note says so" $? "$(cat "$folder/said")"
exit $failures
