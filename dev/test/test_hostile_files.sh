#!/usr/bin/env bash
# What a folder or a file may not do to a run: lead it to write into a user's file, make it wait for ever, stand for a
# file that was never fetched, or send commands to the terminal. And file systems that do not support a call.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

text "$folder/texts" 4 && "$build"/prepare_bytes --out "$folder/src" "$folder/texts" >/dev/null || exit 1
data=$folder/src_train.bin
run=(--tokenizer bytes --layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --sample-tokens 0 --steps 2
    --quiet --threads 1 --train "$data")

# refuses NAME CODE PATTERN FLAGS...: the program ends with this code, soon, and with one line on stderr, which matches
refuses() {
    local said status=0
    said=$(timeout 20 "$program" "${@:4}" 2>&1 >/dev/null </dev/null) || status=$?
    [ $status -eq "$2" ] && [ "$(grep -cvE '^(note|resume): ' <<<"$said")" -eq 1 ] && grep -qE "^error: .*$3" <<<"$said"
    check "$1" $? "status $status, expected $2 and /$3/" "$said"
}

# --- a user's file that a name in --out leads to stays as it is
mine() { printf '{"step":1,"loss":2}\nmine\n'; }
untouched() { # NAME: the user's file is as it was, and nothing was created through the dangling link
    cmp -s <(mine) "$folder/precious" && [ ! -e "$folder/outside" ]
    check "$1: the file that it leads to is untouched" $? "$(cat "$folder/precious")" "$(ls -l "$folder")"
}
for name in .lock log.jsonl; do
    for to in precious outside; do
        for flag in "" --resume; do
            [ "$name$flag" != log.jsonl ] || continue # refused as another run's
            out=$folder/run-$name-$to$flag
            mkdir "$out" && mine >"$folder/precious" && ln -s "../$to" "$out/$name"
            refuses "$name that is a link to $to, $flag" 2 "$out/$name is a link" "${run[@]}" --out "$out" $flag
            untouched "$name, $to, $flag"
            [ -L "$out/$name" ]
            check "and the link is still there" $?
        done
    done
done
out=$folder/run-hard
mkdir "$out" && ln "$folder/precious" "$out/.lock"
refuses ".lock that is a hard link" 2 "$out/.lock is a hard link" "${run[@]}" --out "$out"
untouched "a hard link"
out=$folder/run-overwrite
mkdir "$out" && ln -s ../precious "$out/log.jsonl"
"$program" "${run[@]}" --out "$out" --overwrite >/dev/null 2>"$folder/said" && [ ! -L "$out/log.jsonl" ]
check "--overwrite removes a link, not the file" $? "$(cat "$folder/said")"
untouched "--overwrite"

# a name with the number of the process that will use it: exec keeps the shell's
(ln -s precious "$folder/bytes_train.bin.tmp.$BASHPID" && exec "$build"/prepare_bytes --out "$folder/bytes" "$folder/texts" >/dev/null 2>"$folder/said")
check "prepare_bytes whose temporary file is a link" $? "$(cat "$folder/said")"
untouched "prepare_bytes"
if python3 -c '' 2>/dev/null; then
    python3 - "$folder" <<'END' 2>"$folder/said"
import os, sys
sys.path.insert(0, "data")
from prepare_tokenizers import write_atomically
out = os.path.join(sys.argv[1], "atomic")
os.symlink("precious", "%s.tmp.%d" % (out, os.getpid()))
write_atomically(out, b"new")
sys.exit(open(out, "rb").read() != b"new" or os.path.islink(out))
END
    check "prepare.py whose temporary file is a link" $? "$(cat "$folder/said")"
    untouched "prepare.py"
fi

# --- a pipe that nobody writes to, where a file should be
mkfifo "$folder/fifo.bin" "$folder/fifo.npy" "$folder/fifo.flags" "$folder/fifo.safetensors"
not_regular() { refuses "a pipe as $1" 2 "is not a regular file" "${@:2}"; } # NAME FLAGS...
not_regular "token file" "${run[@]}" --train "$folder/fifo.bin"
not_regular "token file of OLMo's" "${run[@]}" --train "$folder/fifo.npy"
not_regular "validation file" "${run[@]}" --val "$folder/fifo.bin"
not_regular "HellaSwag" "${run[@]}" --hellaswag "$folder/fifo.bin"
not_regular "--config" --config "$folder/fifo.flags"
from=(--seq-len 32 --micro-batch 4 --steps 2 --quiet --threads 1 --train "$data" --model) # without the shape
not_regular "--model" "${from[@]}" "$folder/fifo.safetensors"
not_regular "--tokenizer" "${run[@]}" --tokenizer "$folder/fifo.bin"
mkdir "$folder/pipes" && mkfifo "$folder/pipes/config.json" "$folder/pipes/tokenizer.json"
not_regular "config.json" "${from[@]}" "$folder/pipes"
refuses "a pipe as tokenizer.json in a folder" 2 "$folder/pipes" "${run[@]}" --tokenizer "$folder/pipes"
for name in .lock log.jsonl; do
    for flag in "" --resume; do
        [ "$name$flag" != log.jsonl ] || continue
        mkdir "$folder/pipe-$name$flag" && mkfifo "$folder/pipe-$name$flag/$name"
        not_regular "$name $flag" "${run[@]}" --out "$folder/pipe-$name$flag" $flag
    done
done

# --- a flipped bit in the middle of a token file
flipped() { # FILE TO: a copy with another byte in its middle
    cp "$1" "$2" && printf "$(printf '\\x%02x' $(($(od -An -tu1 -j 20000 -N 1 "$1") ^ 1)))" | dd of="$2" bs=1 seek=20000 conv=notrunc status=none
}
flipped "$data" "$folder/flipped.bin"
refuses "a flipped bit in --train" 2 "flipped.bin is damaged: its checksum does not match; copy the file again" "${run[@]}" --train "$folder/flipped.bin"
refuses "and in --val" 2 "flipped.bin is damaged: its checksum does not match" "${run[@]}" --val "$folder/flipped.bin"
refuses "and of one of two files" 2 "flipped.bin is damaged: its checksum does not match" "${run[@]}" --train "$data" --train "$folder/flipped.bin"
dd if=/dev/zero of="$folder/flipped.bin" bs=1 seek=32 count=8 conv=notrunc status=none # as llm.c writes files
timeout 20 "$program" "${run[@]}" --train "$folder/flipped.bin" >/dev/null 2>"$folder/said"
check "a file without a checksum is read as it is" $? "$(cat "$folder/said")"

# --- Git LFS pointers
pointer() { printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n' >"$1"; }
mkdir "$folder/lfs" "$folder/lfs/weights" "$folder/lfs/config" "$folder/lfs/words" "$folder/lfs/merges" "$folder/lfs/settings"
for name in x.bin x.npy x.safetensors weights/model.safetensors config/config.json words/tokenizer.json merges/vocab.bpe settings/tokenizer_config.json; do pointer "$folder/lfs/$name"; done
"$program" "${run[@]}" --out "$folder/model" >/dev/null 2>&1 || exit 1
cp "$folder/model/step-00000002/config.json" "$folder/lfs/weights" && cp "$folder/model/step-00000002/config.json" "$folder/lfs"
echo '{"a": 0, "b": 1, "<|endoftext|>": 2}' >"$folder/lfs/merges/encoder.json"
cp dev/test/tokenizers/qwen.json "$folder/lfs/settings/tokenizer.json"
is_pointer() { refuses "$1 that is a Git LFS pointer" 2 "$folder/lfs/$1 is a Git LFS pointer, not the file; run git lfs pull" "${@:2}"; }
is_pointer x.bin "${run[@]}" --train "$folder/lfs/x.bin"
is_pointer x.npy "${run[@]}" --train "$folder/lfs/x.npy"
is_pointer x.bin "${from[@]}" "$folder/lfs/x.bin"
is_pointer x.bin "${run[@]}" --tokenizer "$folder/lfs/x.bin"
is_pointer x.bin "${run[@]}" --hellaswag "$folder/lfs/x.bin"
is_pointer x.safetensors "${from[@]}" "$folder/lfs/x.safetensors"
is_pointer weights/model.safetensors "${from[@]}" "$folder/lfs/weights"
is_pointer config/config.json "${from[@]}" "$folder/lfs/config"
is_pointer words/tokenizer.json "${run[@]}" --tokenizer "$folder/lfs/words"
is_pointer merges/vocab.bpe "${run[@]}" --tokenizer "$folder/lfs/merges"
is_pointer settings/tokenizer_config.json "${run[@]}" --tokenizer "$folder/lfs/settings"

# --- a terminal gets no commands, of names, settings, samples or errors
esc=$'\033' c1=$'\xc2\x9b'
for name in "$esc[31m" "${c1}31m" $'\x9b31m' $'\x7f'; do
    rm -rf "$folder/said"*
    "$program" "${run[@]}" --train "$folder/no$name.bin" >"$folder/said" 2>&1
    "$program" "${run[@]}" --quiet --no-quiet --out "$folder/out$name" >"$folder/said1" 2>&1
    "$program" "${run[@]}" --json --no-quiet --out "$folder/out$name" --resume --steps 3 >"$folder/said2" 2>&1
    ! grep -qaP '[\x00-\x08\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|(?<![\xc2-\xf4\x80-\xbf])[\x80-\x9f]' "$folder/said" "$folder/said1" "$folder/said2" &&
        grep -q '^error: .*no?' "$folder/said" && grep -q 'saved .*/out?' "$folder/said1"
    check "names with $(printf %q "$name") are printed without it" $? "$(cat -v "$folder"/said*)"
done
if python3 -c 'import pty' 2>/dev/null; then
    python3 - "$program" --model "$folder/model/step-00000002" --sample-tokens 0 --prompt "a$esc[2J${c1}2Jé€b" >"$folder/said" 2>&1 <<'END'
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
try:
    while text := os.read(fd, 4096):
        os.write(1, text)
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
    status=$?
    [ $status -eq 0 ] && grep -qaF 'a?[2J?2Jé€b' "$folder/said" && ! grep -qaF "$esc" "$folder/said"
    check "samples on a terminal, too" $? "status $status" "$(cat -v "$folder/said")"
    "$program" --model "$folder/model/step-00000002" --sample-tokens 0 --prompt "a$esc[2J" >"$folder/said" 2>/dev/null
    grep -qF "a$esc[2J" "$folder/said"
    check "but a file has their bytes" $? "$(cat -v "$folder/said")"
else
    echo "skip - samples on a terminal: no python3 with pty"
fi

# --- file systems that do not support a call, and one whose disk fails
cat >"$folder/shim.c" <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static int fails(const char *call) {
    const char *named = getenv("FAILS");
    if (!named || strcmp(named, call) != 0) return 0;
    errno = atoi(getenv("FAILS_WITH"));
    return -1;
}
int fsync(int fd) {
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) && fails("fsync")) return -1;
    return (int)syscall(SYS_fsync, fd);
}
int flock(int fd, int operation) { return fails("flock") ? -1 : (int)syscall(SYS_flock, fd, operation); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    return fails("renameat2") ? -1 : (int)syscall(SYS_renameat2, a, from, b, to, flags);
}
END
if [ "$build" != build ] || ! ${CC:-cc} -shared -fPIC -o "$folder/shim.so" "$folder/shim.c" 2>/dev/null; then
    echo "skip - calls that a file system does not support: no shim with the sanitizers, or without a compiler"
    exit $failures
fi
saves() { # CALL ERRNO STATUS: a run that saves twice
    local out=$folder/fs-$1-$2 status=0
    FAILS=$1 FAILS_WITH=$2 LD_PRELOAD=$folder/shim.so "$program" "${run[@]}" --save-every 1 --out "$out" >/dev/null 2>"$folder/said" || status=$?
    [ $status -eq "$3" ]
    check "$1() that fails with errno $2 ends a run with $3" $? "status $status" "$(cat "$folder/said")"
}
for errno in 22 38 95 1 9 25; do saves fsync $errno 0; done # EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EBADF, ENOTTY
saves fsync 5 2                                             # EIO
for errno in 22 38 95 37; do saves flock $errno 0; done     # and ENOLCK
saves flock 5 2
replaces() { # ERRNO: tests that replace a checkpoint, where folders cannot be exchanged
    FAILS=renameat2 FAILS_WITH=$1 LD_PRELOAD=$folder/shim.so "$build/test_checkpoint_files" >"$folder/said" 2>&1
}
for errno in 22 38 95; do
    replaces $errno
    check "a checkpoint is replaced though renameat2() fails with errno $errno" $? "$(tail -n 3 "$folder/said")"
done
replaces 5
[ $? -ne 0 ] && grep -q "cannot replace" "$folder/said"
check "but not if it fails with errno 5" $? "$(tail -n 3 "$folder/said")"
exit $failures
