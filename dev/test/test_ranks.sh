#!/usr/bin/env bash
# Tests that several processes train like one process, and end together. dev/test/long_ranks.sh has the long cases.
source "$(dirname "$0")/ranks.sh"

# A step has the same 12 sequences, in six micro-batches on one process or in three on each of two: the losses must be
# equal.
fp32=(--precision fp32 --steps 6 --batch-tokens 384 --val-every 3 --save-every 4)
train 1 one "${fp32[@]}" && train 2 two "${fp32[@]}" --zero 2 &&
    near "ZeRO 2 on two processes has the losses of one" loss 1e-5 one two &&
    near "ZeRO 2 on two processes has the gradient norms of one" grad_norm 1e-5 one two && near "ZeRO 2 on two processes has the validation losses of one" val_loss 1e-5 one two

# ZeRO 3 gathers FP8 weights layer by layer and must have the bits of ZeRO 0. Then one process continues.
coat=(--recipe coat --batch-tokens 128 --save-every 3)
train 2 zero0 "${coat[@]}" --zero 0 --steps 3 && train 2 zero3 "${coat[@]}" --zero 3 --steps 3 &&
    same "ZeRO 3 writes the checkpoint of ZeRO 0, byte for byte" 00000003 zero0 zero3
train 2 blocks0 "${coat[@]}" --bf16-blocks 1 --zero 0 --steps 3 && train 2 blocks3 "${coat[@]}" --bf16-blocks 1 --zero 3 --steps 3 &&
    same "ZeRO 3 with a BF16 block, whose weights are gathered in BF16, writes the checkpoint of ZeRO 0" 00000003 blocks0 blocks3
# Only rank 0 checks FP8 values and matmuls. It checks its own micro-batches, even if ZeRO stores the summed gradients
# on another rank.
for zero in 0 2 3; do
    train 2 health$zero "${coat[@]}" --zero $zero --steps 3 --health-every 1 --health-products 1 &&
        same "FP8 health with ZeRO $zero changes no bit of the checkpoint" 00000003 zero0 health$zero &&
        [ "$(grep -cE '"dqkv_q":\{"amax":\[[^]]*\],"saturated":|"products":\{"qkvw":\{"error":\[0\.0[0-9]*,0\.0[0-9]*,0\.0[0-9]*\]' "$folder/health$zero/log.jsonl")" -eq 6 ]
    check "FP8 health with ZeRO $zero is in the log at every step" $? "$(cat "$folder/health$zero/log.jsonl")"
done
# Three processes resume a checkpoint of two processes, with other formats of the optimizer states. With ZeRO 0 and
# ZeRO 3, they must convert the states to the same bits.
cp -r "$folder/zero3" "$folder/other0" && cp -r "$folder/zero3" "$folder/other3"
other=(--recipe coat --moments bf16 --master fp32 --batch-tokens 192 --steps 4 --resume)
train 3 other0 "${other[@]}" --zero 0 && train 3 other3 "${other[@]}" --zero 3 &&
    same "three processes convert states of two to the same bits with ZeRO 3 and ZeRO 0" 00000004 other0 other3 &&
    [ "$(grep -c 'states are converted to this run.s formats: .* 40 master weights' "$folder/other3.said")" -eq 1 ]
check "a conversion of states is reported in one line" $? "$(cat "$folder/other3.said")"
train 1 zero3 "${coat[@]}" --steps 5 --resume && train 2 zero0 "${coat[@]}" --zero 1 --steps 5 --resume &&
    near "one process resumes a ZeRO 3 checkpoint of two with the same losses" loss 1e-3 zero0 zero3

# Muon. In test_muon and in the runs of two processes, the processes cannot divide the layers evenly. With 16 channels,
# the third process has no shard of projw.
muon=(--optimizer muon --schedule constant)
for zero in 0 1 2 3; do
    timeout 100 "${mpirun[@]}" -np 3 "$build"/test_muon $zero >"$folder/said" 2>&1 </dev/null
    check "Muon on three processes orthogonalizes each matrix once, or with ZeRO 0 on each process: ZeRO $zero" $? "$(grep -v '^ok' "$folder/said")"
done
timeout 100 "${mpirun[@]}" -np 2 "$build"/test_muon 2 >"$folder/said" 2>&1 </dev/null
check "Muon with ZeRO 2 on two processes orthogonalizes each matrix once" $? "$(grep -v '^ok' "$folder/said")"
train 1 muon-one "${fp32[@]}" "${muon[@]}" && for processes in 2 3; do
    train $processes muon-$processes "${fp32[@]}" "${muon[@]}" --zero $((processes - 1)) && for key in loss grad_norm val_loss; do
        near "Muon on $processes processes has the $key of one" $key 1e-4 muon-one muon-$processes
    done
done
for zero in 0 1 2 3; do train 2 muon-zero$zero "${coat[@]}" "${muon[@]}" --batch-tokens 256 --zero $zero --steps 3; done
same "Muon with ZeRO 1 writes the checkpoint of ZeRO 0, byte for byte" 00000003 muon-zero0 muon-zero1
same "Muon with ZeRO 3 writes the checkpoint of ZeRO 2, byte for byte" 00000003 muon-zero2 muon-zero3
for zero in 0 3; do train 3 muon-few$zero "${coat[@]}" "${muon[@]}" --layers 2 --heads 1 --channels 16 --batch-tokens 192 --zero $zero --steps 3; done
same "Muon with ZeRO 3 and empty shards writes the checkpoint of ZeRO 0, byte for byte" 00000003 muon-few0 muon-few3
[ "$(cat "$folder"/muon-*.said | grep -c '^note: --zero 0: .*--zero 1')" -eq 2 ]; check "Muon with ZeRO 0 prints one note" $? "$(cat "$folder"/muon-zero?.said)"
i8=(--recipe coat "${muon[@]}" --batch-tokens 384 --save-every 2)
train 3 muon-i8 "${i8[@]}" --zero 3 --steps 2 && train 2 muon-i8 "${i8[@]}" --zero 1 --steps 4 --resume && train 1 muon-i8 "${i8[@]}" --steps 6 --resume &&
    train 1 muon-i8-one "${i8[@]}" --steps 6 && near "a run with INT8 momentum on three processes, resumed on two and then on one, has the losses of one process" loss 1e-3 muon-i8-one muon-i8 &&
    ! grep -q 'converted' "$folder/muon-i8.said"; check "shards of an INT8 momentum are not converted" $? "$(cat "$folder/muon-i8.said")"

# Matrices that are larger than the read buffers (8 MiB, or 2^20 elements if states are converted). Each process reads
# its shard of the states, converted or not, and of the weights of --model. A learning rate of 0 keeps these weights.
once=(--recipe coat --batch-tokens 96 --micro-batch 1 --save-every 1)
large=(--model llama:d1 --layers 1 --channels 512 --heads 4 --ffn 9216 "${once[@]}")
other=("${large[@]}" --moments bf16 --master fp32 --steps 2 --resume)
given() { # PROCESSES NAME FLAGS...: trains from the weights of step 1 of the run `large`
    local flags=(--seq-len 32 --quiet --device "$device" --train "$data" --model "$folder/large/step-00000001")
    train "$@"
}
if [ -n "${TEST_LONG:-}" ] && train 3 large "${large[@]}" --zero 3 --steps 2; then
    for name in on to0 to3; do mkdir "$folder/large-$name" && cp -r "$folder/large/step-00000001" "$folder/large-$name/"; done
    train 3 large-on "${large[@]}" --zero 3 --steps 2 --resume &&
        same "sharded matrices of several read buffers are resumed byte for byte" 00000002 large large-on
    train 3 large-to0 "${other[@]}" --zero 0 && train 3 large-to3 "${other[@]}" --zero 3 &&
        same "sharded states of several read buffers are converted like unsharded ones" 00000002 large-to0 large-to3
    given 3 large-given "${once[@]}" --zero 3 --steps 1 --lr 0 --sample-tokens 0 &&
        same "sharded matrices of several read buffers are loaded by --model" 00000001 large large-given model.safetensors
fi

# Two processes stop after four sequences, in the middle of a pass of three processes, which has six sequences.
third=(--precision fp32 --schedule constant)
train 2 odd "${third[@]}" --batch-tokens 128 --steps 1 --zero 2 && rm -rf "$folder/odd-alone" && cp -r "$folder/odd" "$folder/odd-alone" &&
    train 1 odd-alone "${third[@]}" --batch-tokens 192 --steps 4 --resume && train 3 odd "${third[@]}" --batch-tokens 192 --steps 4 --zero 1 --resume &&
    near "three processes resume in the middle of a pass with the losses of one" loss 1e-5 odd-alone odd

# Two data sets with weights 7 to 3. Two steps read 768 sequences, a multiple of MIXTURE_BLOCK (256), after which each
# set's count is its fraction, rounded. The second set is read several times. Three processes resume sets3, a run of
# two.
head -c 3000 "$folder/texts/001.txt" >"$folder/small.txt" && "$build"/prepare_bytes --out "$folder/small" "$folder/small.txt" >/dev/null || exit 1
sets=(--precision fp32 --schedule constant --batch-tokens 12288 --val-every 1 --train-weight 7 --train "$folder/small_train.bin" --train-weight 3)
read_of() { grep '"train":' "$folder/$1/log.jsonl" | tail -n 1; }
train 1 sets1 "${sets[@]}" --steps 2 && train 2 sets2 "${sets[@]}" --steps 2 --zero 2 &&
    train 2 sets3 "${sets[@]}" --steps 1 && train 3 sets3 "${sets[@]}" --steps 2 --zero 1 --resume
for name in sets1 sets2 sets3; do
    case $name in sets1) who="one process" ;; sets2) who="two processes" ;; sets3) who="three processes, after a step of two," ;; esac
    [[ $(read_of $name) == *'"sequences":538,"tokens":17216,'*'"sequences":230,"tokens":7360,'* ]]
    check "a run of $who reads two data sets in the ratio 7 to 3" $? "$(read_of $name)"
    [ "$(read_of $name)" = "$(read_of sets1)" ] && near "a run of $who on two data sets has the losses of one process" loss 1e-5 sets1 $name || bad "a run of $who reads two data sets like one process" "$(read_of $name)"
done

# HellaSwag's passes are divided among the processes. The result must be the same as on one process, also in FP8,
# because each pass has the same rows and so the same scales. The endings are lines of the text. The right one continues
# the context.
if command -v python3 >/dev/null; then
    sed -n 's/^ *\([^"\\]\{24,70\}\)$/\1/p' "$folder"/texts/*.txt | awk 'length($0) >= 24 { line[count++] = $0 }
        END { for (i = 0; i < 61; i++) {
            printf "{\"ctx\": \"%s\", \"label\": %d, \"endings\": [", substr(line[i], 1, 16), i % 4
            for (e = 0; e < 4; e++) printf "%s\"%s\"", e ? ", " : "", substr(line[e == i % 4 ? i : i + 7 * e + 3], 17)
            print "]}" } }' >"$folder/swag.jsonl"
    python3 data/prepare.py --bytes --hellaswag --out "$folder/swag" "$folder/swag.jsonl" >/dev/null || bad "prepare.py writes HellaSwag's file"
    evaluated() { # PROCESSES FLAGS...: prints HellaSwag's result of the last checkpoint, by --eval-only
        local command=("$program" --tokenizer bytes --seq-len 96 --device cpu --quiet --recipe coat --model "$folder/swag/step-00000003"
            --hellaswag "$folder/swag.bin" --eval-only --json)
        [ "$1" -eq 1 ] || command=("${mpirun[@]}" -np "$1" "${command[@]}")
        timeout 300 "${command[@]}" "${@:2}" 2>&1 </dev/null | field hellaswag
    }
    train 2 swag --recipe coat --seq-len 96 --batch-tokens 384 --steps 3 --zero 2 --hellaswag "$folder/swag.bin"
    for batch in 2 3 ${TEST_LONG:+8}; do
        alone=$(evaluated 1 --micro-batch $batch)
        shared="$(evaluated 2 --micro-batch $batch --zero $((batch > 2 ? 3 : 0))) $(evaluated 3 --micro-batch $batch --zero 1)"
        [[ $alone = 0.* ]] && [ "$shared" = "$alone $alone" ] && ok "HellaSwag on 2 and 3 processes equals that of one ($alone), micro-batch $batch" ||
            bad "HellaSwag on 2 and 3 processes equals that of one, micro-batch $batch" "$alone, and $shared"
    done
    is "HellaSwag during training on two processes equals that of one" "$(values hellaswag swag)" "$(evaluated 1 --micro-batch 2)"
else
    echo "skip - HellaSwag by several processes: no python3"
fi
# If one process cannot read its data, the run ends on all processes, which save. The bad token is outside the vocabulary: in
# the last of 40 training sequences, four per step; or in the fourth validation sequence, before the first step.
bad_file() { # NAME SEQUENCE
    head -c $((1024 + 2 * (32 * 40 + 1))) "$data" >"$folder/$1.bin"
    poke "$folder/$1.bin" 8 '\x01\x05\x00\x00' # 32 * 40 + 1 tokens
    poke "$folder/$1.bin" $((1024 + 2 * 32 * $2)) '\xff\xff'
    without_checksum "$folder/$1.bin"
}
bad_file train 39 && bad_file val 3
bad_data() { # NAME STEP FLAGS...: expects exit code 2, one error and the checkpoint of STEP; 0: no checkpoint
    local name=$1 step=$2 status=0 good=("${flags[@]}")
    local flags=("${good[@]/#$folder\/src_$name.bin/$folder\/$name.bin}")
    timeout 120 "${mpirun[@]}" -np 2 "$program" "${flags[@]}" --no-shuffle --zero 3 --schedule constant --out "$folder/$name" \
        --steps 20 --batch-tokens 128 "${@:3}" >"$folder/said" 2>&1 </dev/null || status=$?
    [ $status -eq 2 ] && [ "$(grep -o 'error: ' "$folder/said" | wc -l)" -eq 1 ] && grep -q "error: .*$name.bin: token .* is 65535" "$folder/said"
    check "if one process reads a bad token of --$name, all processes end with 2" $? "status $status" "$(cat "$folder/said")"
    if [ "$step" -eq 0 ]; then
        ! exists "$folder/$name/step-*"
        check "if one process reads a bad token of --$name before the first step, nothing is saved" $? "$(ls -A "$folder/$name")"
        return
    fi
    train 2 "$name-whole" --no-shuffle --zero 3 --schedule constant --steps "$step" --batch-tokens 128 "${@:3}" --val-every 100 --val "$folder/src_val.bin" &&
        same "if one process reads a bad token of --$name, the last complete step is saved" "$(printf %08d "$step")" "$name" "$name-whole"
}
bad_data train 9
bad_data val 0 --val-every 2
# If a run's folder is renamed, the run recreates it, once for all processes. If another run uses the name by then, all
# processes end with 2.
# lost_folder NAME COMMAND...: trains in NAME with two processes. Renames the folder after the first checkpoint, then runs
# COMMAND. Sets $status.
lost_folder() {
    "${mpirun[@]}" -np 2 "$program" "${flags[@]}" --out "$folder/$1" --zero 1 --batch-tokens 128 --schedule constant --steps 60 --save-every 15 >"$folder/said" 2>&1 </dev/null &
    local launcher=$!
    wait_for $launcher test -d "$folder/$1/step-00000015"
    mv "$folder/$1" "$folder/$1-before"
    "${@:2}"
    status=0
    wait $launcher || status=$?
}
train 2 unlost --zero 1 --batch-tokens 128 --schedule constant --steps 60
lost_folder renamed true
if [ $status -eq 0 ] && [ "$(grep -c "warning: --out $folder/renamed: " "$folder/said")" -eq 1 ]; then
    same "a renamed folder of two processes is recreated" 00000060 unlost renamed
else
    bad "a renamed folder of two processes is recreated" "status $status" "$(cat "$folder/said")"
fi
mkdir -p "$folder/other/step-00000001"
lost_folder taken mv "$folder/other" "$folder/taken"
[ $status -eq 2 ] && [ "$(grep -o 'error: ' "$folder/said" | wc -l)" -eq 1 ] && [ "$(ls -A "$folder/taken")" = step-00000001 ] &&
    grep -qE "error: (rank 0: )?.*--out $folder/taken: " "$folder/said"
check "two processes whose folder another run uses by now end, and write nothing there" $? "status $status" "$(cat "$folder/said")" "$(ls -A "$folder"/taken*)"
# If a rank's disk is full, or the rank may not create files, rank 0 reports the reason within 60 s. A preloaded library
# simulates both for files whose path contains $FAILS: HOW=full and HOW=create.
cat >"$folder/disk.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int open(const char *path, int flags, ...) {
    int (*libc)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    va_list args;
    va_start(args, flags);
    const int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    if (flags & O_CREAT && strcmp(getenv("HOW"), "create") == 0 && strstr(path, getenv("FAILS"))) return errno = EACCES, -1;
    return libc(path, flags, mode);
}
ssize_t write(int fd, const void *data, size_t bytes) {
    ssize_t (*libc)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    char name[64], path[4096] = "";
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (readlink(name, path, sizeof path - 1) > 0 && strcmp(getenv("HOW"), "full") == 0 && strstr(path, getenv("FAILS"))) return errno = ENOSPC, -1;
    return libc(fd, data, bytes);
}
END
# disk PROCESSES RANK HOW FAILS FLAGS...: trains in $folder/disk, with the preloaded library for one rank
disk() {
    rm -rf "$folder/disk"
    HOW=$3 FAILS=$4 each "$1" "[ \$rank -ne $2 ] || export LD_PRELOAD=$folder/disk.so; exec \"\$@\"" "${flags[@]}" --out "$folder/disk" --zero 1 \
        --batch-tokens $((64 * $1)) --schedule constant --val-batches 1 "${@:5}"
}
warned() { grep -cE "^warning: the checkpoint of step $1 could not be saved: rank 1: $2" "$folder/said"; } # STEP WHY: prints the number of such warnings
if [[ $build != *asan* ]] && ${CC:-cc} -shared -fPIC -o "$folder/disk.so" "$folder/disk.c" -ldl 2>/dev/null; then
    for how in "full cannot write .*optimizer-00001-of-0000.*: No space left on device" "create cannot create .*optimizer-00001-of-0000.*: Permission denied"; do
        disk 3 1 "${how%% *}" /.step- --steps 4 --save-every 2
        [ $status -eq 2 ] && [ $seconds -lt 60 ] && [ "$(warned 2 "${how#* }")" -eq 1 ] && grep -qE "^error: the checkpoint of step 4 could not be saved: rank 1: ${how#* }$" "$folder/said" && ! ls -A "$folder/disk" | grep -q step-
        check "rank 0 reports at once that a rank's disk fails (${how%% *})" $? "status $status after $seconds s" "$(cat "$folder/said")"
        disk 2 1 "${how%% *}" /.step- --steps 2 # written in the foreground
        [ $status -eq 2 ] && [ $seconds -lt 60 ] && grep -qE "^error: the checkpoint of step 2 could not be saved: rank 1: ${how#* }$" "$folder/said"
        check "rank 0 reports at once that a rank's disk fails in a foreground save (${how%% *})" $? "status $status after $seconds s" "$(cat "$folder/said")"
    done
    disk 2 1 full /.step-00000002 --steps 20 --save-every 2 # enough steps that a step notices the failure before the next save
    [ $status -eq 0 ] && [ "$(warned 2 ".*No space left on device")" -eq 1 ] && [ "$(grep -c '^warning:' "$folder/said")" -eq 1 ] && [ -d "$folder/disk/step-00000004" ] && [ ! -d "$folder/disk/step-00000002" ] &&
        train 2 diskless --zero 1 --batch-tokens 128 --schedule constant --val-batches 1 --steps 20 && same "after a failed save on a full disk, later checkpoints equal those of a run with enough space" 00000020 diskless disk || bad "after a failed save on a full disk, later checkpoints equal those of a run with enough space" "status $status" "$(cat "$folder/said")"
    disk 2 0 full /.step- --steps 4 --save-every 2
    [ $status -eq 2 ] && [ $seconds -lt 60 ] && grep -qE "^error: (rank 0: )?the checkpoint of step 4 could not be saved: cannot write .*: No space left on device$" "$folder/said"
    check "a full disk of rank 0 is reported at once" $? "status $status after $seconds s" "$(cat "$folder/said")"
else
    echo "skip - a rank whose disk is full: no C compiler, or sanitizers"
fi
# If a process is killed, mpirun ends the others. Their last line names the last saved step, or says that nothing is
# saved.
# lost_process NAME PATTERN FLAGS...: kills one of three processes once a path matches PATTERN. Sets $status, and
# $advice to the other processes' advice on how to continue, without duplicate lines.
lost_process() {
    local name=$1 pattern=$2 launcher
    shift 2
    "${mpirun[@]}" -np 3 "$program" "${flags[@]}" --zero 1 --batch-tokens 192 --schedule constant --steps 1000000 "$@" >"$folder/said" 2>&1 </dev/null &
    launcher=$!
    wait_for $launcher exists "$pattern"
    sleep 0.1
    pkill -KILL -n -P $launcher -f train_gpt2_fp8_cpu
    status=0
    wait $launcher || status=$?
    advice=$(grep -oE 'if another process is lost, .*|which hangs or is lost; .*' "$folder/said" | sed -E 's/^[^,;]*[,;] //' | sort -uV)
}
lost_process killed "$folder/killed/step-00000020" --save-every 10 --keep 0 --out "$folder/killed"
step=0 whole=yes # the two processes may name different saved steps, because one may learn of a save before the other
while read -r line; do
    step=$(sed -n "s|^nothing was saved after step \([0-9]*\): continue with --out $folder/killed --resume\$|\1|p" <<<"$line")
    [ "${step:-0}" -ge 10 ] && [ -d "$folder/killed/step-$(printf %08d "$step")" ] || whole=
done <<<"$advice"
if [ $status -ne 0 ] && [ "$whole" ]; then
    train 3 killed --zero 1 --batch-tokens 192 --schedule constant --steps $((step + 10)) --resume && train 3 unkilled --zero 1 --batch-tokens 192 --schedule constant --steps $((step + 10)) &&
        same "if a process is killed, the others name the last saved step, and the run resumes" "$(printf %08d $((step + 10)))" unkilled killed
else
    bad "if a process is killed, the others name the last saved step, and the run resumes" "status $status" "$(cat "$folder/said")" "$(ls "$folder/killed")"
fi
lost_process early "$folder/early/log.jsonl" --out "$folder/early"
[ $status -ne 0 ] && [ "$advice" = "no checkpoint was saved: start again from step 0 with --out $folder/early --resume" ]
check "if a process is killed before the first save, the others say that nothing is saved" $? "status $status" "$(cat "$folder/said")"
# A process chooses its recipe by its GPUs and checkpoints. All processes must choose the same one.
each 2 '[ $rank -ne 1 ] || set -- "$@" --recipe bf16; exec "$@"' "${flags[@]}" --steps 2 --batch-tokens 128
[ $status -eq 1 ] && [ "$(grep -c '^error: --recipe: the processes chose different recipes' "$folder/said")" -eq 1 ]
check "processes with different recipes end with one error line" $? "exit $status" "$(head -n 5 "$folder/said")"
# The settings that a resumed run takes from its checkpoint must be the same for all processes.
train 1 seen --steps 1 && train 1 unseen --steps 1 --beta2 0.9
OTHER=$folder/unseen each 2 '[ $rank -ne 1 ] || set -- "$@" --out "$OTHER"; exec "$@"' --tokenizer bytes --sample-tokens 0 --quiet --device cpu \
    --train "$data" --steps 3 --out "$folder/seen" --resume
[ $status -eq 1 ] && [ "$(grep -c '^error: --resume: the processes found different checkpoints' "$folder/said")" -eq 1 ]
check "processes that see different checkpoints end with one error line" $? "exit $status" "$(head -n 5 "$folder/said")"
# Flags that affect all processes, and the contents of files, must be the same. File names may differ.
# together OTHER FLAGS...: runs two processes with FLAGS; only the second one also gets the flags in OTHER. Sets
# $status.
together() { OTHER=$1 each 2 '[ $rank -ne 1 ] || set -- "$@" $OTHER; exec "$@"' "${flags[@]}" --batch-tokens 128 "${@:2}"; }
apart() { # STATUS ERROR OTHER FLAGS...: checks that together OTHER FLAGS... ends with this exit code and one line with ERROR
    together "${@:3}"
    [ $status -eq "$1" ] && [ "$(grep -c 'error: ' "$folder/said")" -eq 1 ] && grep -q "^error: $2" "$folder/said"
    check "processes with different flags or data end with one error line: $2" $? "exit $status" "$(head -n 5 "$folder/said")"
}
different=("--lr 1" "--out $folder/apart")
[ -z "${TEST_LONG:-}" ] || different+=("--val-every 1" "--val-batches 3" "--sample-tokens 3" "--sample-every 1" "--health-products 1" "--zero 3")
for flag in "${different[@]}"; do
    apart 1 "${flag%% *} differs between the processes" "$flag" --steps 2
done
apart 1 "--save-every differs between the processes" "--save-every 1" --steps 2 --out "$folder/apart"
apart 2 "--val: the validation data differ" "--val $folder/small_train.bin" --steps 2
apart 2 "--train: the training data differ" "--train $folder/small_train.bin" --epochs 1
if [ -s "$folder/swag.bin" ]; then
    printf '{"ctx": "a b", "label": 0, "endings": ["c", "d", "e", "f"]}\n' >"$folder/one.jsonl"
    python3 data/prepare.py --bytes --hellaswag --out "$folder/one" "$folder/one.jsonl" >/dev/null
    apart 2 "--hellaswag: its examples differ" "--hellaswag $folder/one.bin" --seq-len 96 --batch-tokens 384 --hellaswag "$folder/swag.bin" --steps 2
fi
cp "$folder/src_val.bin" "$folder/same.bin"
together "--val $folder/same.bin --threads 2 --log-every 2 --overwrite" --steps 2 --out "$folder/together"
[ $status -eq 0 ]; check "the processes' files may have different names if their contents are equal" $? "exit $status" "$(cat "$folder/said")"
all=("${flags[@]}") flags=(--tokenizer bytes --seq-len 32 --micro-batch 2 --sample-tokens 0 --quiet --device "$device" --train "$data" --model "$folder/seen/step-00000001")
apart 1 "--val differs between the processes" "--val $folder/src_val.bin" --steps 2
flags+=(--val "$folder/src_val.bin")
apart 1 "--eval-only differs between the processes" --eval-only --steps 2
apart 2 "--val: the validation data differ" "--val $folder/small_train.bin" --eval-only
flags=("${all[@]}")
# A run of two processes is resumed: one process continues with the same batch, without a note. Three processes cannot
# divide this batch, so they use the nearest one that they can divide.
train 2 batch --steps 2 --batch-tokens 256 --schedule constant && cp -r "$folder/batch" "$folder/batch3"
bare=(--tokenizer bytes --sample-tokens 0 --quiet --device cpu --train "$data" --resume --steps 4)
"$program" "${bare[@]}" --out "$folder/batch" >"$folder/said" 2>&1 && ! grep -q '^resume: --' "$folder/said" &&
    [ "$(values tokens batch | tail -n 1)" = 1024 ]; check "one process that resumes a run of two keeps the batch" $? "$(cat "$folder/said")"
timeout 120 "${mpirun[@]}" -np 3 "$program" "${bare[@]}" --out "$folder/batch3" >"$folder/said" 2>&1 </dev/null &&
    [ "$(grep '^resume: --' "$folder/said")" = "resume: --batch-tokens was 256 and is now 192" ]; check "three processes that resume a run of two use the nearest batch that they can divide" $? "$(cat "$folder/said")"
train 2 narrow --steps 2 --batch-tokens 128 --channels 40
[ "$(grep -c '^note: --recipe bf16: used instead of coat, the default, because --channels' "$folder/narrow.said")" -eq 1 ]
check "two processes fall back to BF16 together, with one note" $? "$(head -n 5 "$folder/narrow.said")"
# One process lacks the memory that it needs, 1.3 GB: all processes end, and the error names the process's rank.
no_memory "if a process lacks memory, all processes end and the error names its rank" 2 1000000 --steps 1 --micro-batch 8192 --batch-tokens 524288

# mpirun gives rank 0 a terminal, even if the output goes to a file.
loud=("${flags[@]/--quiet/--no-quiet}")
export TERM=xterm
unset NO_COLOR CLICOLOR_FORCE
said=$("${mpirun[@]}" -np 2 "$program" "${loud[@]}" --steps 2 --batch-tokens 128 2>&1 </dev/null)
[[ $said == *"step 2/2 | loss "*" left"* && $said != *$'\033'* ]]; check "mpirun's output to a file has full step lines without colours" $? "$said"
said=$(CLICOLOR_FORCE=1 "${mpirun[@]}" -np 2 "$program" "${loud[@]}" --steps 2 --batch-tokens 128 2>&1 </dev/null)
[[ $said == *"loss "$'\033[1m'* ]]; check "mpirun's output to a file has colours with CLICOLOR_FORCE=1" $? "$said"

# SIGTERM to a launch script: the processes save before mpirun can kill them.
TRAIN=$folder/src_train.bin VAL=$folder/src_val.bin OUT=$folder/launched PROGRAM=$program GPUS=2 scripts/run_gpt2_124M.sh "${flags[@]}" --batch-tokens 128 \
    --save-every 0 --steps 1000000 >"$folder/said" 2>&1 </dev/null &
script=$!
wait_for $script grep -q '"step":4,"loss"' "$folder/launched/log.jsonl"
kill -TERM $script
status=0
wait $script || status=$?
[ $status -eq 0 ] && exists "$folder/launched/step-*/model.safetensors" && grep -q "^ended by SIGTERM after step .*: saved" "$folder/said"
check "after SIGTERM to a launch script, all processes save" $? "status $status" "$(tail -n 5 "$folder/said")"

# --zero on one process has no effect, which is reported once.
note() { "$program" "${flags[@]}" "$@" 2>&1 >/dev/null </dev/null | grep -c "^note: --zero 2: has no effect with one process"; }
told="$(note --steps 1 --zero 2) $(note --steps 1) $(note --plan --zero 2) $(note --plan --zero 2 --gpus 4)"
[ "$told" = "1 0 1 0" ]; check "--zero with one process prints one note, and none with --plan --gpus 4" $? "$told"
exit $failures
