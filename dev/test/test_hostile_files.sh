#!/usr/bin/env bash
# Tests of hostile files: links in --out, pipes instead of files, damaged token files, Git LFS pointers, names with
# terminal commands, and file systems that do not support a system call.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

byte_data 4
run=(--tokenizer bytes --layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --sample-tokens 0 --steps 2
    --quiet --threads 1 --train "$data")

# refuses NAME CODE PATTERN FLAGS...: the program must end within 20 s with this exit code and one matching error line
refuses() { ignored='^(note|resume): ' fails "$1" "$2" "^error: .*$3" timeout 20 "$program" "${@:4}"; }

# --- links in --out: the user's file that a link points to must not change
mine() { printf '{"step":1,"loss":2}\nmine\n'; }
untouched() { # NAME: checks that the user's file is unchanged, and that no file was created through the dangling link
    cmp -s <(mine) "$folder/precious" && [ ! -e "$folder/outside" ]
    check "$1: the file outside --out does not change" $? "$(cat "$folder/precious")" "$(ls -l "$folder")"
}
for name in .lock log.jsonl; do
    for to in precious outside; do
        for flag in "" --resume; do
            [ "$name$flag" != log.jsonl ] || continue # a folder with log.jsonl needs --resume
            out=$folder/run-$name-$to$flag what="--out ${flag:+with $flag }in which $name is a link to $to"
            mkdir "$out" && mine >"$folder/precious" && ln -s "../$to" "$out/$name"
            refuses "$what is refused" 2 "$out/$name is a link" "${run[@]}" --out "$out" $flag
            untouched "$what"
            [ -L "$out/$name" ]
            check "$what: the link remains" $?
        done
    done
done
out=$folder/run-hard
mkdir "$out" && ln "$folder/precious" "$out/.lock"
refuses "a .lock that is a hard link is refused" 2 "$out/.lock is a hard link" "${run[@]}" --out "$out"
untouched "a .lock that is a hard link"
out=$folder/run-overwrite
mkdir "$out" && ln -s ../precious "$out/log.jsonl"
"$program" "${run[@]}" --out "$out" --overwrite >/dev/null 2>"$folder/said" && [ ! -L "$out/log.jsonl" ]
check "--overwrite removes log.jsonl that is a link" $? "$(cat "$folder/said")"
untouched "--overwrite with a log.jsonl that is a link"

# The temporary file's name contains the process id, which exec keeps.
(ln -s precious "$folder/bytes_train.bin.tmp.$BASHPID" && exec "$build"/prepare_bytes --out "$folder/bytes" "$folder/texts" >/dev/null 2>"$folder/said") &&
    [ -s "$folder/bytes_train.bin" ] && [ ! -L "$folder/bytes_train.bin" ]
check "prepare_bytes succeeds if its temporary file is a link" $? "$(cat "$folder/said")"
untouched "prepare_bytes whose temporary file is a link"
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
    check "prepare.py succeeds if its temporary file is a link" $? "$(cat "$folder/said")"
    untouched "prepare.py whose temporary file is a link"
fi

# --- a pipe that no process writes to, instead of a file
mkfifo "$folder/fifo.bin" "$folder/fifo.npy" "$folder/fifo.flags" "$folder/fifo.safetensors"
not_regular() { refuses "a pipe as $1 is refused" 2 "is not a regular file" "${@:2}"; } # FILE FLAGS...
not_regular "a token file" "${run[@]}" --train "$folder/fifo.bin"
not_regular "a token file in OLMo's .npy format" "${run[@]}" --train "$folder/fifo.npy"
not_regular "a validation file" "${run[@]}" --val "$folder/fifo.bin"
not_regular "--hellaswag" "${run[@]}" --hellaswag "$folder/fifo.bin"
not_regular "--config" --config "$folder/fifo.flags"
from=(--seq-len 32 --micro-batch 4 --steps 2 --quiet --threads 1 --train "$data" --model) # the model sets the shape
not_regular "--model" "${from[@]}" "$folder/fifo.safetensors"
not_regular "--tokenizer" "${run[@]}" --tokenizer "$folder/fifo.bin"
mkdir "$folder/pipes" && mkfifo "$folder/pipes/config.json" "$folder/pipes/tokenizer.json"
not_regular "config.json" "${from[@]}" "$folder/pipes"
refuses "a pipe as tokenizer.json in a folder is refused" 2 "$folder/pipes" "${run[@]}" --tokenizer "$folder/pipes"
for name in .lock log.jsonl; do
    for flag in "" --resume; do
        [ "$name$flag" != log.jsonl ] || continue
        mkdir "$folder/pipe-$name$flag" && mkfifo "$folder/pipe-$name$flag/$name"
        not_regular "$name $flag" "${run[@]}" --out "$folder/pipe-$name$flag" $flag
    done
done

# --- a flipped bit in a token file
cp "$data" "$folder/flipped.bin" && flip "$folder/flipped.bin" 20000 1
refuses "a flipped bit in --train is refused" 2 "flipped.bin is damaged: .*; copy the file again" "${run[@]}" --train "$folder/flipped.bin"
refuses "a flipped bit in --val is refused" 2 "flipped.bin is damaged: " "${run[@]}" --val "$folder/flipped.bin"
refuses "a flipped bit in one of two --train files is refused" 2 "flipped.bin is damaged: " "${run[@]}" --train "$data" --train "$folder/flipped.bin"
without_checksum "$folder/flipped.bin" # llm.c writes none
timeout 20 "$program" "${run[@]}" --train "$folder/flipped.bin" >/dev/null 2>"$folder/said"
check "a token file without a checksum is accepted" $? "$(cat "$folder/said")"

# --- Git LFS pointers
pointer() { printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n' >"$1"; }
mkdir "$folder/lfs" "$folder/lfs/weights" "$folder/lfs/config" "$folder/lfs/words" "$folder/lfs/merges" "$folder/lfs/settings"
for name in x.bin x.npy x.safetensors weights/model.safetensors config/config.json words/tokenizer.json merges/vocab.bpe settings/tokenizer_config.json; do pointer "$folder/lfs/$name"; done
"$program" "${run[@]}" --out "$folder/model" >/dev/null 2>&1 || exit 1
cp "$folder/model/step-00000002/config.json" "$folder/lfs/weights" && cp "$folder/model/step-00000002/config.json" "$folder/lfs"
echo '{"a": 0, "b": 1, "<|endoftext|>": 2}' >"$folder/lfs/merges/encoder.json"
cp dev/test/tokenizers/qwen.json "$folder/lfs/settings/tokenizer.json"
is_pointer() { refuses "$1 that is a Git LFS pointer is refused" 2 "$folder/lfs/$1 is a Git LFS pointer.*; run git lfs pull" "${@:2}"; }
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

# --- control characters in names, settings, samples and errors are not printed
esc=$'\033' c1=$'\xc2\x9b'
for name in "$esc[31m" "${c1}31m" $'\x9b31m' $'\x7f'; do
    rm -rf "$folder/said"*
    "$program" "${run[@]}" --train "$folder/no$name.bin" >"$folder/said" 2>&1
    "$program" "${run[@]}" --quiet --no-quiet --out "$folder/out$name" >"$folder/said1" 2>&1
    "$program" "${run[@]}" --json --no-quiet --out "$folder/out$name" --resume --steps 3 >"$folder/said2" 2>&1
    ! grep -qaP '[\x00-\x08\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|(?<![\xc2-\xf4\x80-\xbf])[\x80-\x9f]' "$folder/said" "$folder/said1" "$folder/said2" &&
        grep -q '^error: .*no?' "$folder/said" && grep -q 'saved .*/out?' "$folder/said1"
    status=$? # because $(...) in the name of a check would replace it
    check "names with $(printf %q "$name") are printed with ? instead of control characters" $status "$(cat -v "$folder"/said*)"
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
    check "samples on a terminal are printed with ? instead of control characters" $? "status $status" "$(cat -v "$folder/said")"
    "$program" --model "$folder/model/step-00000002" --sample-tokens 0 --prompt "a$esc[2J" >"$folder/said" 2>/dev/null
    grep -qF "a$esc[2J" "$folder/said"
    check "samples in a file keep control characters" $? "$(cat -v "$folder/said")"
else
    echo "skip - samples on a terminal: there is no python3 with the module pty"
fi

# --- file systems that do not support a system call, and a disk with I/O errors
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
    echo "skip - file systems that do not support a system call: needs a compiler and a build without sanitizers"
    exit $failures
fi
saves() { # CALL ERRNO STATUS: checks that a run with two saves, in which CALL fails with ERRNO, exits with STATUS
    local out=$folder/fs-$1-$2 status=0
    FAILS=$1 FAILS_WITH=$2 LD_PRELOAD=$folder/shim.so "$program" "${run[@]}" --save-every 1 --out "$out" >/dev/null 2>"$folder/said" || status=$?
    [ $status -eq "$3" ]
    check "a run exits with $3 if $1() fails with errno $2" $? "status $status" "$(cat "$folder/said")"
}
for errno in 22 38 95 1 9 25; do saves fsync $errno 0; done # EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EBADF, ENOTTY
saves fsync 5 2                                             # EIO
for errno in 22 38 95 37; do saves flock $errno 0; done     # and ENOLCK
saves flock 5 2
replaces() { # ERRNO: runs the tests that replace checkpoints; renameat2(), which exchanges folders, fails with ERRNO
    FAILS=renameat2 FAILS_WITH=$1 LD_PRELOAD=$folder/shim.so "$build/test_checkpoint_files" >"$folder/said" 2>&1
}
for errno in 22 38 95; do
    replaces $errno
    check "a checkpoint is replaced if renameat2() fails with errno $errno" $? "$(tail -n 3 "$folder/said")"
done
replaces 5
[ $? -ne 0 ] && grep -q "cannot replace" "$folder/said"
check "replacing a checkpoint fails if renameat2() fails with errno 5" $? "$(tail -n 3 "$folder/said")"
exit $failures
