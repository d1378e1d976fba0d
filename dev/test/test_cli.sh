#!/usr/bin/env bash
# Tests of the CPU program's command line: errors and exit codes for bad input, files that must not change, resumed runs
# that must equal uninterrupted ones byte for byte, evaluation, sampling, plans, and --help.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

# refuses NAME CODE PATTERN FLAGS...: checks that the program ends with this exit code and, apart from notes, prints one
# line on standard error, which matches
refuses() { ignored='^(note|resume): ' fails "$1" "$2" "$3" errors "${@:4}"; }
errors() { "$program" "$@" 2>&1 >/dev/null; }
runs() { succeeds "$1" "$program" "${@:2}"; } # NAME FLAGS...: checks that the program succeeds
like() { # NAME TEXT PATTERN: checks that the entire text matches a pattern of the shell
    # shellcheck disable=SC2053 # a pattern
    [[ $2 == $3 ]]
    check "$1" $? "$2"
}
# prints FLAGS...: sets $said to what the program prints on standard error
prints() { said=$("$program" "$@" 2>&1 >/dev/null); }
# hashes FOLDER: prints the names and checksums of all its files
hashes() { find "$1" -type f -exec sha256sum {} + | sort; }

byte_data
small=(--tokenizer bytes --layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --sample-tokens 0 --quiet)
run=("${small[@]}" --train "$data" --steps 2)

header() { # MAGIC VERSION COUNT: prints a token file's header of little-endian int32
    local value
    for value in "$1" "$2" "$3"; do
        printf "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x' $((value & 255)) $((value >> 8 & 255)) $((value >> 16 & 255)) $((value >> 24 & 255)))"
    done
    head -c 1012 /dev/zero
}

# --- token files
refuses "a missing token file is refused" 2 "none.*bin" "${small[@]}" --train "$folder/none*.bin"
: >"$folder/empty.bin"
refuses "an empty token file is refused" 2 "empty.bin" "${small[@]}" --train "$folder/empty.bin"
head -c 5000 "$data" >"$folder/cut.bin"
refuses "a truncated token file is refused" 2 "cut.bin" "${small[@]}" --train "$folder/cut.bin"
{ header 12345 1 500 && head -c 1000 /dev/zero; } >"$folder/magic.bin"
refuses "a token file with a wrong magic number is refused" 2 "magic.bin.*(magic|token file)" "${small[@]}" --train "$folder/magic.bin"
{ header 20240520 9 500 && head -c 1000 /dev/zero; } >"$folder/version.bin"
refuses "a token file with an unknown version is refused" 2 "version.bin.*version" "${small[@]}" --train "$folder/version.bin"
{ header 20240520 1 2000 && head -c 4000 /dev/zero | tr '\0' '\7'; } >"$folder/beyond.bin" # token 0x0707
refuses "a token beyond the vocabulary is refused" 2 "beyond.bin.*1799" "${small[@]}" --train "$folder/beyond.bin"
{ header 20240520 1 40 && head -c 80 /dev/zero; } >"$folder/few.bin"
refuses "fewer tokens than one batch are refused" 2 "few.bin" "${small[@]}" --train "$folder/few.bin"
prints --layers 2 --channels 64 --seq-len 32 --train "$folder/few.bin"
[[ $said == "error: "*few.bin* ]]
check "too few tokens: only the error is printed, without a note about the vocabulary" $? "$said"
plain=(--layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --sample-tokens 0 --train "$data" --steps 1 --schedule constant)
prints "${plain[@]}"
like "byte tokens without --tokenizer bytes print a note" "$said" "note: $data seems to have byte tokens; *--tokenizer bytes"
prints "${plain[@]}" --tokenizer bytes && [ -z "$said" ]
check "byte tokens with --tokenizer bytes print no note" $? "$said"

# A run of another tokenizer is resumed on byte tokens. With --tokenizer bytes the note compares vocabularies. Without
# that flag the note is a guess from the data.
"$program" "${plain[@]/$data/$folder/beyond.bin}" --quiet --out "$folder/ids" >/dev/null 2>&1
other="note: $folder/ids/step-00000001 "
resumed() { "$program" --train "$data" --sample-tokens 0 --steps 2 --out "$folder/ids" --resume --allow-other-data "$@" 2>&1 >/dev/null; }
said=$(resumed --tokenizer bytes --quiet)
[[ $said == "$other"*$'\n'"note: --tokenizer bytes "*"257 tokens"*"$folder/ids/step-00000001"*"50257"* ]]
check "--tokenizer bytes, resumed with a larger vocabulary and other data, prints two notes" $? "$said"
rm -r "$folder/ids/step-00000002"
said=$(resumed | head -n 2)
[[ $said == "$other"*$'\n'"note: $data "*"--tokenizer bytes" ]]
check "byte tokens in a resumed run of another tokenizer print a note" $? "$said"

# --- several sets of training data
gpt2=(--layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --sample-tokens 0 --quiet)
refuses "a missing file of one of two --train is refused" 2 "no file matches $folder/none.bin; " "${small[@]}" --train "$data" --train "$folder/none.bin"
# A note instead of an error, because the guess from the first tokens may be wrong.
for weight in "" --train-weight=0.5; do
    prints "${gpt2[@]/--quiet/--no-json}" --train "$folder/beyond.bin" $weight --train "$data" $weight --schedule constant --steps 1
    [ $? -eq 0 ] && [[ $said == "note: $data "*"$folder/beyond.bin"* && $said != *$'\n'* ]]
    check "--train of byte tokens next to other tokens${weight:+, with weights,} prints a note" $? "$said"
done
refuses "a token beyond the vocabulary in a weighted --train is refused" 2 "beyond.bin: token 0 is 1799" "${small[@]}" --train "$data" --train-weight 1 --train "$folder/beyond.bin" --train-weight 1
refuses "a weighted --train shorter than one sequence is refused" 2 "few.bin: 40 tokens .*; use a smaller --seq-len, or remove this set" "${small[@]}" --seq-len 64 --train "$data" --train-weight 1 --train "$folder/few.bin" --train-weight 1

# --- tokens of --val beyond the vocabulary are reported before --overwrite deletes the old run
"$program" "${run[@]}" --out "$folder/kept" >/dev/null 2>&1 && cp -r "$folder/kept" "$folder/kept-before"
for every in 0 1; do
    refuses "a token beyond the vocabulary in --val is refused, --val-every $every" 2 "beyond.bin: token 0 is 1799" "${run[@]}" --val "$folder/beyond.bin" --val-every $every --out "$folder/kept" --overwrite
    diff -r "$folder/kept" "$folder/kept-before" >/dev/null
    check "a token beyond the vocabulary in --val leaves the old run unchanged, --val-every $every" $?
done
{ header 20240520 1 2000 && head -c 3000 /dev/zero && printf '\7\7' && head -c 998 /dev/zero; } >"$folder/late.bin" # token 1500
refuses "a token beyond the vocabulary in the last batch of --val is refused" 2 "late.bin: token 1500 is 1799" "${run[@]}" --val "$folder/late.bin" --val-every 0 --out "$folder/kept" --overwrite
diff -r "$folder/kept" "$folder/kept-before" >/dev/null
check "a late token beyond the vocabulary in --val leaves the old run unchanged" $?
runs "tokens of --val after --val-batches are not checked" "${run[@]}" --val "$folder/late.bin" --val-batches 11
refuses "a truncated --val file is refused" 2 "cut.bin is truncated" "${run[@]}" --val-every 0 --val "$folder/cut.bin"
prints "${gpt2[@]/--quiet/--no-json}" --train "$folder/beyond.bin" --val "$val" --schedule constant --steps 1
like "byte tokens in --val only print a note" "$said" "note: $val *--tokenizer bytes"

# --- a file that is named twice
prints "${small[@]/--quiet/--no-json}" --train "$data" --train "$data" --schedule constant --steps 1
like "a file twice in one --train prints a note" "$said" "note: --train names $data more than once*"
prints "${small[@]/--quiet/--no-json}" --train "$data" --train-weight 2 --train "$data" --train-weight 1 --schedule constant --steps 1
like "a file in two weighted --train prints a note" "$said" "note: $data is in two sets of --train*"
prints "${small[@]/--quiet/--no-json}" --train "$data" --train-weight 2 --train "$folder/[s]rc_val.bin" --train-weight 1 --schedule constant --steps 1 &&
    [ -z "$said" ]
check "different files in two weighted --train print no note" $? "$said"

# --- a file in both --train and --val
ln -s "$data" "$folder/link.bin"
for file in "$data" "$folder/link.bin"; do
    prints "${small[@]/--quiet/--no-json}" --train "$data" --train "$folder/[s]rc_val.bin" --val "$file" --val-batches 1 --schedule constant --steps 1
    like "a file in --train and --val prints a note" "$said" "note: $file is in --train and --val*"
    prints "${small[@]}" --quiet --train "$data" --val "$file" --val-batches 1 --schedule constant --steps 1
    like "a file in --train and --val prints a note with --quiet" "$said" "note: $file is in --train and --val*"
done

refuses "a missing --hellaswag file is refused" 2 "\-\-hellaswag: cannot open .*none.bin.*prepare.py \-\-hellaswag" "${run[@]}" --hellaswag "$folder/none.bin"
cp "$data" "$folder/src_more.bin"
said=$(cd "$folder" && "$program" "${plain[@]:0:10}" --tokenizer bytes --train src_[mt]*.bin --steps 1 --schedule constant 2>&1) # the shell expands the pattern
has "a --train pattern that the shell expands names several files" "$said" '^train       2 shards, '
refuses "a text file as --train is refused" 2 "(token file|text)" "${small[@]}" --train README.md

# --- flags
refuses "a run that needs too much memory is refused, and the error names a micro-batch that fits" 3 "memory: the run needs.*; use --micro-batch [0-9]+; .*saved [0-9.]+ GB" "${run[@]}" --seq-len 8192 --micro-batch 65535
refuses "an unknown flag is refused" 1 "\-\-stepz" "${run[@]}" --stepz 3
printf '%s\n' '# two steps' '--steps 2' '--lr 1e-3 # more' --no-shuffle "--out $folder/by-file" >"$folder/flags"
"$program" "${small[@]}" --train "$data" --config "$folder/flags" >/dev/null &&
    "$program" "${run[@]}" --lr 1e-3 --no-shuffle --out "$folder/by-flags" >/dev/null &&
    diff -r "$folder/by-file/step-00000002" "$folder/by-flags/step-00000002" >/dev/null
check "--config FILE gives the same checkpoint as its flags on the command line" $?
"$program" "${small[@]}" --train "$data" --config "$folder/flags" --lr 2e-3 --steps 1 --out "$folder/won" >/dev/null &&
    grep -q '"lr": 0.002,' "$folder/won/step-00000001/state.json"
check "flags on the command line override --config" $? "$(ls "$folder/won")"
settings=$(head -n 1 "$folder/won/log.jsonl")
[[ $settings == '{"step":0,"settings":{"train":["'"$data"'"],"val":[],"tokenizer":"bytes","shuffle":false,"model":null,'*'"lr":0.002,'* ]]
check "the first line of log.jsonl records the settings" $? "$settings"
[[ $settings == *'"layers":2,"heads":2,"kv-heads":2,"head-dim":16,"channels":32,"ffn":128,"vocab":257,"positions":1024,"norm":"layer","norm-place":"before","norm-eps":1e-05,"activation":"gelu",'*'"biases":true,'*'"tied-head":true,'*'"recipe":"coat",'* ]]
check "the settings in log.jsonl include the shape" $? "$settings"
# $starts: flags that the settings in log.jsonl must not contain. Most flags of its first line apply to one start of the
# program only. train-weight and the flags of its second line are logged only if their values are not the defaults.
starts="config|help|json|log-every|memory-limit|overwrite|allow-other-data|plan|gpus|quiet|rank|rendezvous|resume|time-limit|version|train-weight"
starts+="|optimizer|muon-momentum|muon-rms|momentum-codes"
logged=$("$program" --help=markdown | sed -n 's/^| `--\([a-z0-9-]*\).*/\1/p' | grep -vxE "$starts")
missing=$(while read -r flag; do grep -q "[{,]\"$flag\":" <<<"$settings" || echo "$flag"; done <<<"$logged")
[ -n "$logged" ] && [ -z "$missing" ] && ! grep -qE "[{,]\"($starts)\":" <<<"$settings"
check "the settings in log.jsonl include every flag that is not one of this test's exceptions, and no exception" $? "$missing" "$settings"
"$program" "${small[@]}" --train "$data" --optimizer muon --muon-rms 0.4 --steps 1 --out "$folder/muon" >/dev/null &&
    grep -q '"optimizer":"muon","muon-rms":0.4,"lr"' "$folder/muon/log.jsonl" && rm -r "$folder"/muon/step-* &&
    "$program" "${small[@]}" --train "$data" --steps 2 --resume --out "$folder/muon" >/dev/null 2>&1 && grep -q '"muon-rms": 0.4' "$folder"/muon/step-*2/state.json
check "a run without a checkpoint resumes with the optimizer in log.jsonl" $?
# notes FROM FLAGS...: starts from a checkpoint and prints the number of notes about --optimizer
notes() { "$program" --tokenizer bytes --seq-len 32 --micro-batch 4 --sample-tokens 0 --train "$data" --steps 1 --overwrite --out "$folder/noted" --model "$folder/$1" "${@:2}" 2>&1 | grep -c '^note: --optimizer muon: '; }
told="$(notes won/step-00000001 --optimizer muon) $(notes muon/step-00000002 --optimizer muon) $(notes noted/step-00000001 --optimizer muon) $(notes muon/step-00000002) $(notes won/step-00000001)"
[ "$told" = "1 0 0 0 0" ]; check "only Muon from weights that Muon has not trained prints a note" $? "$told"
cp "$val" "$folder/other.bin"
"$program" "${small[@]}" --train "$val" "$folder/other.bin" --train-weight 2 --train "$val" --train-weight 1 --val "$val" "$data" --val-batches 1 --schedule linear --lr-final 0.5 --out "$folder/whole" --micro-batch 64 --steps -1 >/dev/null 2>&1
settings=$(head -n 1 "$folder/whole/log.jsonl")
[[ $settings =~ '"train":[["'"$val"'","'"$folder/other.bin"'"],["'"$val"'"]],"train-weight":[2.0,1.0],"val":["'"$val"'","'"$data"'"],'.*'"batch-tokens":2048,"logits-chunk":'([0-9]+)',"steps":'([0-9]+)',"epochs":1,"lr":'.*'"lr-final":0.5,'.*'"val-batches":1,'.*'"hellaswag":null,"hellaswag-every":20,'.*'"out":"'"$folder/whole"'",'.*'"device":"cpu","threads":'([0-9]+)',"offload-states":false,"profile":null,'.*'"zero":0,"world-size":1}}' ]] && [ "${BASH_REMATCH[1]}" -gt 0 ] && [ "${BASH_REMATCH[2]}" -gt 0 ] && [ "${BASH_REMATCH[3]}" -gt 0 ]
check "the settings in log.jsonl contain the values in effect, also for flags that were not given" $? "$settings"
"$program" "${small[@]:8}" --tokenizer bytes --train "$data" --model "$folder/won/step-00000001" --steps 1 --out "$folder/from" >/dev/null 2>&1
grep -q "\"model\":\"$folder/won/step-00000001\"" "$folder/from/log.jsonl"
check "the settings in log.jsonl name --model FOLDER" $? "$(head -n 1 "$folder/from/log.jsonl")"
! grep -q "$folder" "$folder"/whole/step-*/state.json && [ "$(grep -cE '"(steps|lr-final|layers|channels|ffn|vocab|positions)": [-0-9.]+' "$folder"/whole/step-*/state.json)" -eq 7 ]
check "state.json records the settings without paths" $? "$(cat "$folder"/whole/step-*/state.json)"
"$program" "${small[@]}" --train "$data" --config "$folder/flags" --lr 2e-3 --steps 2 --out "$folder/won" --resume >/dev/null 2>&1
"$program" "${small[@]}" --train "$data" --config "$folder/flags" --lr 4e-3 --steps 3 --out "$folder/won" --resume >/dev/null 2>&1
"$program" "${small[@]}" --train "$data" --config "$folder/flags" --lr 4e-3 --steps 3 --out "$folder/won" --resume >/dev/null 2>&1 # changes no setting
[ "$(sed -n 's/^{"step":\([0-9]*\),"settings".*"steps":\([0-9]*\),.*"lr":\([0-9.]*\),.*/\1 \2 \3/p' "$folder/won/log.jsonl" | tr '\n' ' ')" = '0 1 0.002 1 2 0.002 2 3 0.004 ' ]
check "log.jsonl records the settings again only after a resume that changes them" $? "$(cat "$folder/won/log.jsonl")"
# FP8 needs a multiple of 16 tokens, such as two sequences of 24 tokens. Samples must then process two sequences, too.
for recipe in "--recipe coat --head fp8" "--recipe fp8-linear" "--head fp8 --logits-chunk 16"; do
    # shellcheck disable=SC2086
    text=$("$program" "${run[@]}" $recipe --micro-batch 2 --seq-len 24 --sample-tokens 30 2>&1)
    check "a micro-batch of two sequences of 24 tokens, with samples, runs with $recipe" $? "$text"
done
refuses "--device cuda is refused by the CPU program" 3 "CUDA" "${run[@]}" --device cuda

prints "${run[@]}" --steps 1 --threads $(($(nproc --all) + 1))
like "more --threads than cores print a note" "$said" "note: --threads *: more than this machine's * core*"

# --- --out
: >"$folder/file"
refuses "a file as --out is refused" 2 "\-\-out $folder/file: .*name a folder" "${run[@]}" --out "$folder/file"
refuses "--out below a file is refused" 2 "\-\-out $folder/file/run: .*name a folder" "${run[@]}" --out "$folder/file/run"
refuses "--out in /proc, where no folder can be created, is refused" 2 "\-\-out /proc/none: .*name a folder" "${run[@]}" --out /proc/none
if [ "$(id -u)" -ne 0 ]; then
    mkdir "$folder/locked" && chmod 555 "$folder/locked"
    refuses "--out without write permission is refused" 2 "$folder/locked" "${run[@]}" --out "$folder/locked/run"
else
    refuses "--out below a folder that cannot be created is refused" 2 "/proc/none" "${run[@]}" --out /proc/none/run
fi
runs "--out creates the folder of a run" "${run[@]}" --out "$folder/a"
before=$(hashes "$folder/a")
refuses "--out with an existing run is refused without --resume and --overwrite" 2 "\-\-resume.*\-\-overwrite" "${run[@]}" --out "$folder/a"
is "a refused --out is unchanged" "$before" "$(hashes "$folder/a")"
mkdir "$folder/several" && touch "$folder/several"/{loss.svg,log.jsonl} && mkdir "$folder/several"/step-0000000{9,1,5}
refuses "a refused --out: the error names the newest checkpoint" 2 "several: already contains a run .step-00000009." "${run[@]}" --out "$folder/several"
for step in "$folder/a"/step-*; do mkdir -p "$step/gguf" && touch "$step/gguf/model.gguf"; done
"$program" "${run[@]}" --out "$folder/a" --overwrite >/dev/null && [ -z "$(find "$folder/a" -name gguf)" ]
check "--overwrite deletes the old run, including folders in its checkpoints" $?

before=$(hashes "$folder/a")
refuses "--overwrite with a missing --train is refused" 2 "none.bin" "${small[@]}" --train "$folder/none.bin" --out "$folder/a" --overwrite
is "--overwrite with --train that does not exist leaves the old run unchanged" "$before" "$(hashes "$folder/a")"
for weights in "$folder/a"/step-*; do :; done
ln -s a "$folder/a-link"
for flag in --model --tokenizer; do
    refuses "--overwrite is refused if $flag names a checkpoint that it would delete" 1 "^error: --overwrite: .*/${weights##*/}, which $flag " --tokenizer bytes --train "$data" --steps 1 $flag "$weights/" --out "$folder/a-link" --overwrite
done
is "--overwrite that would delete --model or --tokenizer leaves the old run unchanged" "$before" "$(hashes "$folder/a")"
refuses "--eval-only --resume without a checkpoint is refused" 2 "no checkpoint" "${small[@]}" --val "$val" --eval-only --out "$folder/typo" --resume
[ ! -e "$folder/typo" ]
check "--eval-only --resume without a checkpoint does not create --out" $?
refuses "--batch-tokens larger than the training data is refused" 2 "\-\-batch-tokens" "${small[@]}" --train "$data" --batch-tokens 128000000
if [ -w /dev/full ]; then
    "$program" --plan >/dev/full 2>"$folder/said"
    [ $? -eq 2 ] && grep -q "standard output" "$folder/said"
    check "standard output on a full disk ends the program with 2" $?
fi

# a limit on the memory of the process
wide=(--tokenizer bytes --layers 2 --heads 4 --channels 256 --seq-len 256 --train "$data" --steps 1 --sample-tokens 0 --threads 1 --quiet)
said=$(ulimit -v 800000 && "$program" "${wide[@]}" --micro-batch 512 2>&1)
status=$?
[ $status -eq 3 ] && [[ $said =~ ^"error: memory: the run needs "[0-9.]+" GB (could not allocate "[0-9]+" MiB: ulimit -v leaves "[0-9]+" MiB); use --micro-batch "([0-9]+)"; " ]]
check "ulimit -v is too small: the error names the limit and a micro-batch" $? "$status" "$said"
(ulimit -v 800000 && "$program" "${wide[@]}" --micro-batch "${BASH_REMATCH[1]:-0}" >/dev/null 2>"$folder/said")
check "the micro-batch that the error names runs under ulimit -v" $? "$(cat "$folder/said")"
# A control group of 2 GB, of which 1.7 GB are used: 1.6 GB by files in /dev/shm, which the kernel cannot evict.
mkdir "$folder/group"
echo 2000000000 >"$folder/group/memory.max"
printf 'anon 100000000\nfile 1700000000\nshmem 1600000000\n' >"$folder/group/memory.stat"
group() { unshare -rm bash -c 'mount --bind "$0" /sys/fs/cgroup && exec "$@"' "$folder/group" "$@"; }
if group true 2>/dev/null; then
    said=$(group "$program" "${wide[@]}" --micro-batch 512 2>&1)
    [ $? -eq 3 ] && [[ $said =~ "the control group's memory.max leaves 286 MiB" ]]
    check "files in /dev/shm count against the control group's limit" $? "$said"
else
    echo "skip - files in /dev/shm count against the control group's limit: unshare cannot replace /sys/fs/cgroup"
fi
# A dynamic OpenBLAS starts threads before main() and waits for their memory, so only a static one is tested.
for threads in "" 4; do
    if ldd "$program" | grep -qE 'libopenblas|libasan'; then
        echo "skip - ulimit -v: --version does not hang, OPENBLAS_NUM_THREADS='$threads': OpenBLAS is dynamic, or sanitizers are linked"
        continue
    fi
    (unset OMP_NUM_THREADS && export OPENBLAS_NUM_THREADS=$threads && ulimit -v 100000 && timeout 20 "$program" --version) >"$folder/said" 2>&1
    check "ulimit -v: --version does not hang, OPENBLAS_NUM_THREADS='$threads'" $? "$(cat "$folder/said")"
done

# --- 10 steps and 10 resumed steps give the same bytes as 20 steps
long=("${small[@]}" --train "$data" --val "$val" --val-every 5 --val-batches 2 --steps 20 --save-every 10 --lr 1e-3 --warmup 5)
OMP_NUM_THREADS=2 "$program" "${long[@]}" --out "$folder/straight" >/dev/null || bad "20 steps in one run succeed"
"$program" "${long[@]}" --out "$folder/parts" >/dev/null || bad "20 steps in a second folder succeed"
rm -r "$folder/parts/step-00000020"
"$program" "${long[@]}" --out "$folder/parts" --resume >/dev/null 2>&1 || bad "resuming from step 10 succeeds"
diff -r "$folder/straight/step-00000020" "$folder/parts/step-00000020" >/dev/null
check "10 steps and 10 resumed steps give the checkpoint of 20, byte for byte" $?
is "10 steps and 10 resumed steps write the same log as 20" "$(strip "$folder/parts/log.jsonl")" "$(strip "$folder/straight/log.jsonl")"
is "10 resumed steps record no settings again" "$(grep -c '"settings":' "$folder/parts/log.jsonl")" 1
OMP_NUM_THREADS=1 "$program" "${long[@]}" --threads 1 --out "$folder/single" >/dev/null
diff -r "$folder/straight/step-00000020" "$folder/single/step-00000020" >/dev/null
check "one thread gives the same checkpoint as two, byte for byte" $?

# --- damaged checkpoints
# damage NAME PATTERN: checks that --resume=20 refuses the damaged checkpoint in $folder/d, and that --resume
# uses step 10
damage() {
    refuses "--resume=STEP of a checkpoint with $1 is refused" 2 "$2.*--resume without a step" "${long[@]}" --out "$folder/d" --resume=20
    "$program" "${long[@]}" --out "$folder/d" --resume >/dev/null 2>"$folder/said" && grep -q step-00000020 "$folder/said" &&
        diff -r "$folder/straight/step-00000020" "$folder/d/step-00000020" >/dev/null
    check "--resume skips a checkpoint with $1 and ends with the same bytes" $? "$(cat "$folder/said")"
}
for file in model.safetensors optimizer.safetensors state.json; do
    rm -rf "$folder/d" && cp -r "$folder/straight" "$folder/d"
    truncate -s -7 "$folder/d/step-00000020/$file"
    damage "a truncated $file" "$file"
    rm -rf "$folder/d" && cp -r "$folder/straight" "$folder/d"
    flip "$folder/d/step-00000020/$file" $(($(stat -c %s "$folder/d/step-00000020/$file") / 2)) 4
    damage "a flipped bit in $file" "$file"
done
[ -d "$folder/d/damaged-1-step-00000020" ] && grep -q '^note: .*is damaged: renamed to' "$folder/said" && ! ls "$folder/d" | grep -q abandoned
check "a damaged checkpoint is renamed damaged-1-step-00000020" $? "$(ls "$folder/d")"
# --resume=10 renames the later checkpoint of step 20, and --keep does not count it
cp -r "$folder/straight" "$folder/course"
"$program" "${long[@]}" --steps 12 --save-every 1 --keep 2 --out "$folder/course" --resume=10 >/dev/null 2>&1
is "resuming from an earlier step renames later checkpoints abandoned-1-step-*" "$(cd "$folder/course" && echo *step-*)" "abandoned-1-step-00000020 step-00000011 step-00000012"
later=$(strip "$folder/straight/log.jsonl" | grep '"step":\(1[1-9]\|20\),')
is "resuming from an earlier step copies later lines to log-abandoned-*.jsonl" "$(strip "$folder/course/log-abandoned-00000010.jsonl")" "$later"
loud=("${run[@]/--quiet/--no-quiet}")
for quiet in "" --quiet; do
    rm -rf "$folder/none" && mkdir "$folder/none"
    # shellcheck disable=SC2086
    "$program" "${loud[@]}" $quiet --out "$folder/none" --resume >/dev/null 2>"$folder/said" && [ -d "$folder/none/step-00000002" ] &&
        [ "$(grep -c "^note: --resume: no checkpoint in $folder/none, " "$folder/said")" -eq 1 ]
    check "--resume $quiet in a folder without a checkpoint starts at step 1 and prints a note" $? "$(cat "$folder/said")"
done
# with a mistyped --out, --resume must fail instead of starting another run
refuses "--resume in a missing folder is refused" 1 "^error: \-\-out $folder/absent: " "${run[@]}" --out "$folder/absent" --resume
refuses "--resume without a model in a missing folder is refused" 1 "^error: \-\-out $folder/absent: " --train "$data" --steps 1 --out "$folder/absent" --resume
[ ! -e "$folder/absent" ]
check "--resume does not create a folder that does not exist" $?
mkdir "$folder/bare-out"
refuses "--resume without a model in an empty folder is refused" 1 "^error: \-\-resume: $folder/bare-out " --train "$data" --steps 1 --out "$folder/bare-out" --resume
"$program" "${run[@]}" --steps 1 --out "$folder/llmc-out" -y 1 >/dev/null 2>"$folder/said" && [ -d "$folder/llmc-out/step-00000001" ]
check "-y 1, llm.c's flag for --resume, starts a run in a folder that does not exist" $? "$(cat "$folder/said")"
# A run that ended before its first checkpoint is started again with the settings in its log.jsonl. Flags override them.
lost=(--tokenizer bytes --model llama:d2 --channels 32 --ffn 64 --init truncated --norm-eps 1e-4 --seq-len 32 --micro-batch 2 --batch-tokens 128 --logits-chunk 16 --recipe bf16 --moments fp8
    --lr 0.01 --warmup 3 --schedule wsd --lr-final 0 --beta2 0.9 --seed 77 --no-shuffle --train "$data" --sample-tokens 0 --quiet)
unsaved() { # NAME FLAGS...: trains into NAME, copies it to NAME.whole, and removes the checkpoints of NAME
    "$program" "${lost[@]}" "${@:2}" --out "$folder/$1" >/dev/null 2>&1 || bad "the run for a --resume without checkpoints succeeds: $1"
    cp -r "$folder/$1" "$folder/$1.whole" && rm -r "$folder/$1"/step-*
}
unsaved lost --steps 6
"$program" --train "$data" --sample-tokens 0 --quiet --out "$folder/lost" --resume >/dev/null 2>"$folder/said"
[ $? -eq 0 ] && grep -q "^note: --resume: no checkpoint in $folder/lost, .*settings in its log.jsonl" "$folder/said" && said=$(diff -r "$folder/lost.whole/step-00000006" "$folder/lost/step-00000006")
check "--resume without a checkpoint uses the model and settings in log.jsonl" $? "$(cat "$folder/said")" "$said"
unsaved lost2 --steps 6
"$program" --train "$data" --sample-tokens 0 --quiet --out "$folder/lost2" --resume --lr 0.002 --layers 1 --steps 4 >/dev/null 2>&1 &&
    grep -q '"layers":1,.*"channels":32,.*"steps":4,.*"lr":0.002,.*"warmup":3,' "$folder/lost2/log.jsonl" && [ -d "$folder/lost2/step-00000004" ]
check "--resume without a checkpoint: flags override the settings in log.jsonl" $? "$(head -c 3000 "$folder/lost2/log.jsonl")"
rm -r "$folder"/lost2/step-* && "$program" --train "$data" --model d1 --channels 64 --sample-tokens 0 --quiet --out "$folder/lost2" --resume >/dev/null 2>&1 &&
    grep -q '"model":"d1","layers":1,.*"channels":64,.*"norm":"layer"' "$folder/lost2/log.jsonl"
check "--resume without a checkpoint: --model overrides the model in log.jsonl" $? "$(head -c 3000 "$folder/lost2/log.jsonl")"
head -c $((1024 + 2 * 1000)) "$data" >"$folder/short.bin" && poke "$folder/short.bin" 8 '\xe8\x03\x00\x00' && without_checksum "$folder/short.bin"
lost=("${lost[@]/#$data/$folder/short.bin}")
unsaved passes --epochs 2 --schedule cosine
"$program" --train "$folder/short.bin" --sample-tokens 0 --quiet --out "$folder/passes" --resume >/dev/null 2>"$folder/said"
[ $? -eq 0 ] && said=$(diff -r "$folder"/passes.whole/step-* "$folder"/passes/step-*)
check "--resume without a checkpoint uses --epochs in log.jsonl" $? "$(cat "$folder/said")" "$said"
tuned=(--model "$folder/lost.whole/step-00000006" --seq-len 32 --micro-batch 4 --train "$data" --steps 2 --sample-tokens 0 --quiet)
"$program" "${tuned[@]}" --out "$folder/tuned" >/dev/null 2>&1 && cp -r "$folder/tuned" "$folder/tuned.whole" && rm -r "$folder"/tuned/step-*
"$program" --train "$data" --sample-tokens 0 --quiet --out "$folder/tuned" --resume >/dev/null 2>"$folder/said"
[ $? -eq 0 ] && said=$(diff -r "$folder/tuned.whole/step-00000002" "$folder/tuned/step-00000002")
check "--resume without a checkpoint starts from the weights of the logged --model" $? "$(cat "$folder/said")" "$said"
for change in 's/"schedule":"wsd"/"schedule":"polynomial"/' 's/"lr":0.01/"lr":-1/' 's/"micro-batch":2/&,"lr-power":2/' 's/"layers":2/"layers":0/'; do
    rm -rf "$folder/lost3" && cp -r "$folder/lost.whole" "$folder/lost3" && rm -r "$folder"/lost3/step-* && sed -i "$change" "$folder/lost3/log.jsonl"
    refuses "an invalid setting in log.jsonl is refused: $change" 2 "^error: $folder/lost3/log.jsonl: .*\"(schedule|lr|lr-power|layers)\": (\"polynomial\"|-1|2|0); " --train "$data" --out "$folder/lost3" --resume
done
# The folder has a checkpoint of another run: a note is printed, and the later lines of the log are copied.
"$program" "${long[@]}" --seed 2 --out "$folder/stranger" >/dev/null 2>&1
# other NAME PATTERN OUT FROM STEP...: resumes OUT, a copy of FROM whose checkpoints are another run's, of these steps.
# Checks that a note matches PATTERN; "": that no note is printed.
other() {
    local out=$folder/$3 step status=0
    rm -rf "$out" && cp -r "$4" "$out" && rm -r "$out"/step-*
    for step in "${@:5}"; do cp -r "$folder/stranger/step-000000$step" "$out"; done
    "$program" "${long[@]}" --seed 2 --steps 22 --out "$out" --resume >/dev/null 2>"$folder/said" || status=$?
    if [ -n "$2" ]; then grep -qE "^note: the checkpoint of step [0-9]+ in $out is possibly from another run than the log: $out/log.jsonl $2" "$folder/said"; else ! grep -q "another run" "$folder/said"; fi || status=1
    check "$1" $status "$(cat "$folder/said")"
}
other "a checkpoint whose loss differs from the log's prints a note" "has the loss [0-9.]+ for step 10, but the checkpoint has [0-9.]+" taken-over "$folder/straight" 10
is "the log's lines after another run's checkpoint are copied to log-abandoned-*.jsonl" "$(strip "$folder/taken-over/log-abandoned-00000010.jsonl")" "$later"
head -n 12 "$folder/straight/log.jsonl" >"$folder/head.jsonl" && mkdir "$folder/early" "$folder/early/step-1" && cp "$folder/head.jsonl" "$folder/early/log.jsonl"
other "a checkpoint of a step that the log lacks prints a note" "has no line of step 20" taken-over "$folder/early" 10 20
other "a checkpoint that matches the log prints no note" "" own-run "$folder/stranger" 10 20
rm -r "$folder/early/log.jsonl"
other "a checkpoint in a folder without a log prints no note" "" taken-over "$folder/early" 10
# The program runs in a shell that a launcher of several processes has started.
for set in "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 SLURM_STEP_ID=0" "SLURM_PROCID=0 SLURM_NTASKS=4" "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0"; do
    said=$(env $set timeout 60 "$program" "${run[@]}" 2>&1 >/dev/null </dev/null)
    [ $? -eq 1 ] && grep -qE "^error: rank 0: 4 processes on CPUs \((SLURM_STEP_NUM_TASKS|SLURM_NTASKS|WORLD_SIZE)=4, (SLURM_PROCID|RANK)=0\).*--world-size 1" <<<"$said"
    check "one process with $set: the error names the variables" $? "$said"
    env $set timeout 60 "$program" "${run[@]}" --world-size 1 >/dev/null 2>"$folder/said" </dev/null
    check "--world-size 1 overrides $set" $? "$(cat "$folder/said")"
done
env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 timeout 60 "$program" "${run[@]}" --world-size 1 >/dev/null 2>"$folder/said" </dev/null
check "--world-size 1 overrides Open MPI's variables" $? "$(cat "$folder/said")"
# If --out is a checkpoint instead of a run's folder, nothing is written into it.
before=$(hashes "$folder/straight")
cp -r "$folder/straight/step-00000020" "$folder/copied" && cp -r "$folder/copied" "$folder/copied-before" && ln -s straight/step-00000010 "$folder/link"
into() { refuses "a checkpoint as --out is refused: $1" 2 "^error: \-\-out $2$" "${run[@]}" --out "${@:3}"; }
resumes="continue its run with \-\-out $folder/straight \-\-resume"
into "with --resume" "$folder/straight/step-00000020: .* is a checkpoint; $resumes, .*" "$folder/straight/step-00000020" --resume
into "not the newest" "$folder/straight/step-00000010//: .* is a checkpoint; $resumes=10, .*" "$folder/straight/step-00000010//" --resume
into "through a link" "$folder/link: .* is a checkpoint; .* \-\-out .*/straight \-\-resume=10, .*" "$folder/link" --resume
into "with --overwrite" "$folder/straight/step-00000020: .* is a checkpoint; $resumes, or choose another folder" "$folder/straight/step-00000020" --overwrite
into "does not exist" "$folder/straight/step-00000030: .* has the name of a checkpoint; $resumes, .*" "$folder/straight/step-00000030" --resume
into "renamed and copied elsewhere" "$folder/copied: .* is a checkpoint; .* \-\-model .*/copied" "$folder/copied" --resume
into "a folder in it" "$folder/straight/step-00000010/a/b/: .*/step-00000010 is a checkpoint; $resumes=10, .*" "$folder/straight/step-00000010/a/b/"
into "a folder in a link to it" "$folder/link/sub: .* is a checkpoint; .* \-\-out .*/straight \-\-resume=10, .*" "$folder/link/sub" --resume
refuses "--out / is refused" 1 "^error: \-\-out /: " "${run[@]}" --out /
refuses "another path of / as --out is refused" 1 "^error: \-\-out //tmp/\.\.: " "${run[@]}" --out //tmp/..
refuses "--out with an unexpanded ~ is refused" 1 "^error: \-\-out ~/x: " "${run[@]}" --out '~/x'
[ ! -e '~' ] && [ ! -e /log.jsonl ]
check "a refused --out is not created" $?
into "with --plan" "$folder/straight/step-00000020: .* is a checkpoint; $resumes, .*" "$folder/straight/step-00000020" --resume --plan
[ "$before" = "$(hashes "$folder/straight")" ] && [ ! -e "$folder/straight/step-00000030" ] && diff -r "$folder/copied" "$folder/copied-before"
check "a checkpoint as --out is unchanged" $? "$(ls "$folder/straight" "$folder/copied")"
refuses "--resume=STEP of a step that was not saved is refused" 2 "step 7, .*20, 10; " "${long[@]}" --out "$folder/straight" --resume=7
refuses "--resume=STEP of a missing step is reported instead of a token beyond the vocabulary" 2 "step 7, .*20, 10; " --train "$data" --vocab 50 --out "$folder/straight" --resume=7
refuses "--resume without a checkpoint is reported instead of a token beyond the vocabulary" 2 "no checkpoint in $folder/typo; name the run" --val "$data" --vocab 50 --eval-only --out "$folder/typo" --resume
refuses "--resume=STEP in a missing folder is refused" 2 "step 7, .*; name the run" "${long[@]}" --out "$folder/typo" --resume=7
rm -rf "$folder/over" && cp -r "$folder/straight" "$folder/over"
said=$("$program" "${loud[@]}" --steps 5 --out "$folder/over" --resume --val "$val" --val-batches 1 2>/dev/null | grep -A 9 nothing)
like "--steps smaller than the steps done: nothing is trained" "$said" "nothing to do: the run is at step 20 of 5; *done: 20 of 20 steps*"
said=$("$program" "${small[@]}" --val "$val" --val-batches 1 --micro-batch 2 --eval-only --quiet --out "$folder/straight" --resume 2>&1)
like "--eval-only prints no notes about settings of training" "$said" "step 20  val loss *"
rm -rf "$folder/other" && cp -r "$folder/straight" "$folder/other"
"$program" "${long[@]}" --steps 22 --micro-batch 3 --out "$folder/other" --resume >"$folder/said" 2>&1 && [ -d "$folder/other/step-00000022" ]
check "a run can be resumed with another --micro-batch" $? "$(cat "$folder/said")"
refuses "--resume with other --channels is refused" 1 "^error: \-\-channels 64: .*32; remove \-\-channels$" "${long[@]}" --channels 64 --out "$folder/straight" --resume
refuses "--resume with --no-biases is refused" 1 "^error: \-\-no-biases: .*biases; remove \-\-no-biases$" --train "$data" --no-biases --out "$folder/straight" --resume
refuses "--resume with another --model is refused" 1 "\-\-model d1: .*layers 2, .*1; remove \-\-model" --model d1 --tokenizer bytes --train "$data" --out "$folder/straight" --resume
for flag in "--layers 2" "--heads 2" "--kv-heads 2" "--head-dim 16" "--channels 32" "--ffn 128" "--vocab 257" "--positions 1024" "--norm layer" "--biases" "--norm-eps 1e-5"; do
    # shellcheck disable=SC2086 # flags are words
    {
        said=$("$program" $flag --val "$val" --val-batches 1 --eval-only --quiet --out "$folder/straight" --resume 2>&1)
        like "--resume accepts the model's own $flag" "$said" "step 20  val loss *"
    }
    [[ $flag == *" "[0-9]* && $flag != *eps* ]] || continue
    name=${flag% *} value=${flag#* }
    for what in "--train $data --steps 21" "--prompt x" "--val $val --eval-only"; do
        # shellcheck disable=SC2086
        refuses "--resume with another $name is refused, ${what%% *}" 1 "^error: $name $((value + 1)): .*has $value; remove $name$" $what $name $((value + 1)) --out "$folder/straight" --resume
    done
done
runs "--prompt --resume accepts the model's own --heads 2" --prompt x --sample-tokens 2 --heads 2 --out "$folder/straight" --resume
rm -rf "$folder/further" && cp -r "$folder/straight" "$folder/further"
"$program" --train "$data" --steps 21 --sample-tokens 0 --quiet --channels 32 --out "$folder/further" --resume >/dev/null 2>"$folder/said" && [ -d "$folder/further/step-00000021" ]
check "training with --resume accepts the model's own --channels 32" $? "$(cat "$folder/said")"

# --- statistics of FP8 tensors in the log
"$program" "${long[@]}" --recipe coat --head fp8 --health-every 8 --steps 20 --out "$folder/health" >/dev/null
fp8=$(grep '"fp8":' "$folder/health/log.jsonl")
[ "$(grep -o '^{"step":[0-9]*' <<<"$fp8" | tr '\n' ' ')" = '{"step":8 {"step":16 ' ] &&
    grep -qE '"x_in":\{"amax":\[[0-9.e-]+,[0-9.e-]+\],"saturated":\[[0-9.e-]+,[0-9.e-]+\],"zero":' <<<"$fp8" &&
    grep -qE '"qkvw.m":.*"clamped":\[' <<<"$fp8" && grep -qE '"dh_q":\{"amax":\[[0-9.e-]+,[0-9.e-]+\],"saturated":\[[0-9.e-]+,[0-9.e-]+\],"zero":\[[0-9.e-]+,[0-9.e-]+\],"subnormal":' <<<"$fp8" && grep -q '"wte.codes"' <<<"$fp8"
check "--health-every logs amax, saturation and other statistics of FP8 tensors" $? "$fp8"
"$program" "${long[@]}" --recipe coat --head fp8 --health-every 0 --steps 20 --out "$folder/unhealthy" >/dev/null
! grep -q '"fp8":' "$folder/unhealthy/log.jsonl" && diff -r "$folder/health/step-00000020" "$folder/unhealthy/step-00000020" >/dev/null
check "--health-every does not change the checkpoint" $?

# --- evaluation and samples
loss() { grep -o '"val_loss":[0-9.]*' | tail -n 1; }
trained=$("$program" --tokenizer bytes --seq-len 32 --micro-batch 4 --val "$val" --val-batches 2 --eval-only --json --model "$folder/straight/step-00000020" 2>/dev/null | loss)
logged=$(loss <"$folder/straight/log.jsonl")
is "--eval-only repeats the validation loss of training" "$trained" "$logged"
exec 5> >(true) && wait $!
for what in --plan "--val $val --val-batches 1 --eval-only --model $folder/straight/step-00000020"; do
    # shellcheck disable=SC2086
    "$program" $what >&5 2>"$folder/said"
    [ $? -eq 2 ] && grep -q "standard output could not be written" "$folder/said"
    check "a closed pipe as standard output ends the program with 2: ${what##* --}" $? "$(cat "$folder/said")"
done
exec 5>&-
"$program" "${run[@]}" --out "$folder/silent" >&- 2>"$folder/said"
[ $? -eq 2 ] && grep -q "standard output could not be written" "$folder/said"
check "a closed standard output ends a run with 2" $? "$(cat "$folder/said")"
"$program" "${run[@]}" --vocab 300 --out "$folder/v300" >/dev/null
prints --val "$val" --val-batches 1 --eval-only --quiet --model "$folder/straight/step-00000020" --out "$folder/unused"
[[ $said == "note: --out $folder/unused: "*"add --resume "* ]] && [ ! -e "$folder/unused" ]
check "--out without training or --resume prints a note" $? "$said"
# --eval-only --resume reads the model's shape from the checkpoint
resumed=$("$program" --seq-len 32 --val "$val" --val-batches 2 --eval-only --json --out "$folder/straight" --resume 2>/dev/null | loss)
is "--eval-only --resume without flags of the shape has the validation loss of training" "$resumed" "$logged"
said=$("$program" --seq-len 32 --val "$val" --val-batches 2 --eval-only --quiet --out "$folder/straight" --resume=10 2>&1)
like "--eval-only --resume=10 evaluates step 10" "$said" "step 10  val loss *"
refuses "--eval-only --resume with other --layers is refused" 1 "\-\-layers 3: .*2; remove \-\-layers" --layers 3 --tokenizer bytes --val "$val" --eval-only --quiet --out "$folder/straight" --resume
refuses "--prompt without a model is refused" 1 "\-\-out DIR \-\-resume" --prompt hello
said=$("$program" --prompt hello --temperature 0 --sample-tokens 5 --quiet --out "$folder/straight" --resume 2>&1)
same=$("$program" --prompt hello --temperature 0 --sample-tokens 5 --quiet --model "$folder/straight/step-00000020" 2>&1)
[[ $said == hello* && $said == "$same" ]]
check "--prompt with --out DIR --resume prints the same text as with --model" $? "$said" "$same"
said=$("$program" --prompt ab --sample-tokens 3 --json --quiet --model "$folder/straight/step-00000020" 2>/dev/null)
grep -qxE '\{"step":20,"prompt":\[97,98\],"sample":\[[0-9]+,[0-9]+,[0-9]+\]\}' <<<"$said"
check "--prompt --json prints token ids" $? "$said"
cp -r "$folder/straight/step-00000020" "$folder/renamed" && cp -r "$folder/straight/step-00000020" "$folder/step-00000007"
mkdir "$folder/ended" && cp "$folder/straight/step-00000020"/{config.json,model.safetensors} "$folder/ended" # without the files of this program
for name in renamed:20 step-00000007:20 ended:0; do
    said=$("$program" --val "$val" --val-batches 1 --eval-only --quiet --tokenizer bytes --model "$folder/${name%:*}" 2>&1)
    said+=$("$program" --prompt ab --sample-tokens 1 --json --quiet --tokenizer bytes --model "$folder/${name%:*}" 2>/dev/null)
    [[ $said == "step ${name#*:}  val loss "*'{"step":'"${name#*:},"* ]]
    check "evaluating the folder ${name%:*} prints step ${name#*:}" $? "$said"
done
rm -r "$folder/renamed" "$folder/step-00000007"
ended() { "$program" --prompt ab --sample-tokens 3 --json --quiet --tokenizer bytes --model "$folder/ended" 2>/dev/null; }
said=$(ended) end=$(sed 's/.*\[[0-9]*,\([0-9]*\),.*/\1/' <<<"$said") # the second token of the sample
sed -i "s/\"eos_token_id\": 256/\"eos_token_id\": $end/" "$folder/ended/config.json"
[ -n "$end" ] && [ "$(ended)" = "${said%,*}]}" ]
check "a sample ends at eos_token_id of config.json" $? "$said; $(ended)"
# names of models
refuses "--model llama:d97, with too many layers, is refused" 1 '^error: \-\-model llama:d97: .*llama:dN, with 1 to 96 layers$' --model llama:d97 --plan
refuses "--model in capitals is refused, and the error suggests a name" 1 'did you mean llama2-7b\?' --model LLAMA2-7B --plan
refuses "a Hugging Face name as --model is refused" 2 '^error: \-\-model Qwen/Qwen2.5-0.5B: .*folder' --model Qwen/Qwen2.5-0.5B --plan
refuses "--channels that --heads do not divide is refused" 1 '\-\-channels 192: .*\-\-heads 5; use \-\-channels 240$' --model llama:d3 --channels 192 --heads 5 --plan
refuses "--channels that the default number of heads does not divide is refused" 1 '\-\-channels 100: .*\-\-heads 3; use \-\-channels 128$' --model llama:d3 --channels 100 --plan
vocabulary "$folder/large" 32001
refuses "a --tokenizer with more tokens than the named model is refused" 1 '32000 tokens.*\-\-tokenizer .*32001; use \-\-vocab 32001$' --model llama2-7b --tokenizer "$folder/large" --plan
# a vocabulary with a BOS token, which prompts begin with, and which checkpoints contain
"$program" "${run[@]}" --tokenizer dev/test/tokenizers/llama.model --vocab 560 --steps 1 --out "$folder/llama" >/dev/null 2>"$folder/said" || bad "a run with a SentencePiece vocabulary succeeds" "$(cat "$folder/said")"
rows() { sed -n 's/.*"vocab_size": \([0-9]*\),.*/\1/p' "$folder/$1/step-00000001/config.json"; }
"$program" "${run[@]}" --tokenizer dev/test/tokenizers/llama.model --steps 1 --out "$folder/follows" >/dev/null && [ "$(rows follows)" -gt 257 ] && [ "$(rows follows)" -le 560 ]
check "the vocabulary size of a new model is its tokenizer's" $? "$(rows follows)"
is "--vocab overrides the tokenizer's vocabulary size" "$(rows llama)" 560
said=$("$program" --prompt 'the model' --sample-tokens 1 --json --quiet --model "$folder/llama/step-00000001" 2>/dev/null)
is "a prompt begins with the BOS token of a SentencePiece vocabulary" "$(cut -d[ -f2 <<<"$said" | cut -d] -f1)" "1,$(sed -n 7p dev/test/tokenizers/llama.ids | tr ' ' ,)"
tr -d ' \n' <"$folder/llama/step-00000001/config.json" | grep -q '"bos_token_id":1,"eos_token_id":2,'
check "config.json records the BOS and EOS ids of a SentencePiece vocabulary" $? "$(grep token_id "$folder/llama/step-00000001/config.json")"
said=$("$program" --prompt 'the model' --sample-tokens 1 --model "$folder/llama/step-00000001" 2>/dev/null)
[[ $said == '<s>the model'* ]]
check "the space that SentencePiece inserts before a text is not printed" $? "$said"
said=$("$program" --train "$data" --model llama2-7b --layers 1 --channels 64 --heads 2 --seq-len 32 --steps 1 --sample-tokens 2 2>&1)
has "a sample without a vocabulary begins with the model's BOS id" "$said" '^1 [0-9]+ [0-9]+ $'
"$program" --train "$data" --resume --steps 4 --save-every 1 --keep 1 --sample-tokens 0 --out "$folder/llama" >/dev/null 2>&1
[ "$(cd "$folder/llama" && echo step-*)" = step-00000004 ] && cmp -s dev/test/tokenizers/llama.model "$folder/llama/step-00000004/tokenizer.model"
check "a resumed run copies tokenizer.model from checkpoint to checkpoint" $? "$(ls "$folder"/llama/*)"
"$program" --train "$data" --model "$folder/llama/step-00000004" --seq-len 32 --steps 1 --sample-tokens 0 --out "$folder/onward" >/dev/null 2>&1
cmp -s dev/test/tokenizers/llama.model "$folder/onward/step-00000001/tokenizer.model"
check "a run from --model CHECKPOINT copies its tokenizer.model" $? "$(ls "$folder"/onward/*)"
for file in model.safetensors tokenizer.model; do
    rm -rf "$folder/fallen" && cp -r "$folder/llama" "$folder/fallen"
    on() { "$program" --train "$data" --resume --save-every 1 --keep 2 --sample-tokens 0 --out "$folder/fallen" --steps "$1" 2>&1 >/dev/null; }
    on 6 >/dev/null && truncate -s -7 "$folder/fallen/step-00000006/$file"
    said=$(on 8)
    ! grep -q '^warning' <<<"$said" && [ -d "$folder/fallen/damaged-1-step-00000006" ] && cmp -s dev/test/tokenizers/llama.model "$folder/fallen/step-00000008/tokenizer.model"
    check "a run that resumes before a checkpoint with a damaged $file copies tokenizer.model" $? "$said" "$(ls "$folder"/fallen/*)"
done
rm -rf "$folder/alone" && mkdir "$folder/alone" && mv "$folder/fallen/step-00000008" "$folder/alone/" && truncate -s -7 "$folder/alone/step-00000008/tokenizer.model"
said=$("$program" --train "$data" --resume --steps 9 --out "$folder/alone" --quiet 2>&1)
like "the only checkpoint has a damaged tokenizer.model: the error names it" "$said" "*skipping the checkpoint *tokenizer.model is damaged: *error: $folder/alone: none of its checkpoints (1) is valid; *"
# A resumed run also copies files that were added to the folder of --model later, such as a vocabulary.
cp -r "$folder/onward/step-00000001" "$folder/bare" && rm "$folder/bare"/{token*,generation_config.json,manifest.json}
later() { "$program" --train "$data" --model "$folder/bare" --seq-len 32 --steps "$1" --sample-tokens 0 --quiet --out "$folder/later" "${@:2}"; }
later 1 && cp dev/test/tokenizers/llama.model "$folder/bare/tokenizer.model" && echo '{"top_k": 7}' >"$folder/bare/generation_config.json" && later 2 --resume
cmp -s dev/test/tokenizers/llama.model "$folder/later/step-00000002/tokenizer.model" && grep -q '"top_k": 7' "$folder/later/step-00000002/generation_config.json"
check "a resumed run copies files that were added to --model later" $? "$(ls "$folder"/later/*)"
cp -r "$folder/onward/step-00000001" "$folder/foreign" && echo '{"model": {"type": "Unigram"}}' >"$folder/foreign/tokenizer.json"
for flag in --model --tokenizer; do
    refuses "a checkpoint with a changed tokenizer.json is refused as $flag" 2 "foreign/tokenizer.json is damaged: .* remove its manifest.json if you changed the file on purpose" --train "$data" $flag "$folder/foreign" --steps 1
done
rm "$folder/foreign/manifest.json"
said=$("$program" --train "$data" --model "$folder/foreign" --seq-len 32 --steps 1 --sample-tokens 0 --quiet --out "$folder/taken" 2>&1)
[[ $said == "note: tokenizer $folder/foreign/tokenizer.json: "*"; samples print token ids"* ]] && cmp -s "$folder/foreign/tokenizer.json" "$folder/taken/step-00000001/tokenizer.json"
check "an unsupported tokenizer.json prints a note and is copied" $? "$said; $(ls "$folder"/taken/*)"
grep -q "\"tokenizer\":\"$folder/llama/step-" <(tail -n 1 <(grep '"settings"' "$folder/llama/log.jsonl"))
check "log.jsonl names the checkpoint whose vocabulary is used" $?
of_llama="of the vocabulary in $folder/llama/step-00000004; remove \-\-tokenizer$"
for how in "--model $folder/llama/step-00000004 --prompt hello" "--out $folder/llama --resume --train $data --steps 5"; do
    # shellcheck disable=SC2086 # flags are words
    {
        refuses "a --tokenizer with other tokens than the checkpoint's is refused, ${how%% *}" 1 "^error: \-\-tokenizer dev/test/tokenizers/llama3.json: [0-9]+ of its first [0-9]+ tokens differ from those $of_llama" $how --tokenizer dev/test/tokenizers/llama3.json --quiet
        refuses "--tokenizer bytes for a checkpoint with another vocabulary is refused, ${how%% *}" 1 "^error: \-\-tokenizer bytes: it has 257 tokens, but the vocabulary in $folder/llama/step-00000004 has [0-9]+; remove \-\-tokenizer$" $how --tokenizer bytes --quiet
    }
done
for how in "--prompt hello" "--train $data --steps 5"; do
    # shellcheck disable=SC2086 # flags are words
    refuses "--resume with --model llama:d9 is refused, $how" 1 '^error: \-\-model llama:d9: .*layers [0-9]+, .*9; remove \-\-model$' --out "$folder/llama" --resume $how --model llama:d9 --quiet
done
LC_ALL=C sed 's/\(\xe2\x96\x81\)the\x15/\1thx\x15/' dev/test/tokenizers/llama.model >"$folder/one.model"
refuses "a --tokenizer in which one token differs from the checkpoint's is refused" 1 "one.model: 1 of its first 560 tokens differs from those $of_llama" --out "$folder/llama" --resume --train "$data" --steps 5 --quiet --tokenizer "$folder/one.model"
[ "$(cd "$folder/llama" && echo step-*)" = step-00000004 ] && "$program" --train "$data" --resume --steps 5 --sample-tokens 0 --tokenizer dev/test/tokenizers/llama.model --quiet --out "$folder/llama" >/dev/null 2>&1
[ -s "$folder/llama/step-00000005/tokenizer.model" ]
check "--resume accepts a copy of the checkpoint's vocabulary as --tokenizer" $? "$(ls "$folder"/llama/*)"
refuses "--prompt for a model without a vocabulary is refused" 1 "tokenizer" --model "$folder/v300/step-00000002" --prompt hello --quiet
vocabulary "$folder/words" 301
bytes_are="but .*257, .*; use \-\-tokenizer bytes"
for how in "--model $folder/straight/step-00000020" "--out $folder/straight --resume"; do
    for what in "--prompt hello" "--val $val --val-batches 1 --eval-only" "--train $data --steps 30"; do
        # shellcheck disable=SC2086 # flags are words
        {
            refuses "a --tokenizer with more tokens than the model is refused, ${how%% *}, ${what%% *}" 1 "^error: \-\-tokenizer $folder/words: it has 301 tokens, $bytes_are$" $how $what --tokenizer "$folder/words" --seq-len 32 --quiet
            refuses "--tokenizer gpt2 for a model of bytes is refused, ${how%% *}, ${what%% *}" 1 "^error: \-\-tokenizer gpt2: it has 50257 tokens, $bytes_are$" $how $what --tokenizer gpt2 --seq-len 32 --quiet
        }
    done
done
[ ! -e "$folder/straight/step-00000030" ]
check "a refused --tokenizer writes no checkpoint" $?
refuses "--tokenizer gpt2 for a model with 300 tokens is refused" 1 "^error: \-\-tokenizer gpt2: it has 50257 tokens, .*300; give the tokenizer" --model "$folder/v300/step-00000002" --tokenizer gpt2 --prompt hello
refuses "a --tokenizer with one token more than --vocab is refused" 1 "^error: \-\-vocab 300: .*\-\-tokenizer $folder/words has 301 tokens; use \-\-vocab 301$" "${run[@]}" --tokenizer "$folder/words" --vocab 300
refuses "--tokenizer gpt2 with a smaller --vocab is refused" 1 "^error: \-\-vocab 300: .*\-\-tokenizer gpt2 has 50257 tokens; use \-\-vocab 50257$" "${run[@]}" --tokenizer gpt2 --vocab 300
runs "the --vocab that the error names is accepted" "${run[@]}" --tokenizer "$folder/words" --vocab 301 --steps 1
for what in "--prompt hello" "--val $val --val-batches 1 --eval-only" "--train $data --steps 1"; do
    # shellcheck disable=SC2086 # flags are words
    {
        runs "--tokenizer bytes is accepted for a model trained with --vocab 300, ${what%% *}" $what --tokenizer bytes --model "$folder/v300/step-00000002" --seq-len 32 --quiet
        refuses "--tokenizer bytes for a model with 50257 tokens is refused, ${what%% *}" 1 "\-\-tokenizer bytes: it has 257 tokens, .*50257; give the tokenizer" $what --tokenizer bytes --model "$folder/ids/step-00000001" --seq-len 32 --quiet
    }
done
# output of --prompt
sample() { "$program" --model "$folder/straight/step-00000020" --prompt 'static ' --sample-tokens 20 "$@" >"$folder/text" 2>"$folder/said"; }
sample && [[ $(tr -d '\0' <"$folder/text") == 'static '* ]] && [ "$(wc -c <"$folder/text")" -ge 28 ] && [ ! -s "$folder/said" ]
check "--prompt prints the prompt and its continuation, and nothing else" $? "$(cat "$folder/said" "$folder/text")"
cp "$folder/text" "$folder/one"
sample --no-quiet && cmp -s "$folder/one" "$folder/text" && grep -q '^model ' "$folder/said"
check "--prompt --no-quiet prints the report on standard error" $? "$(cat "$folder/said")"
"$program" --out "$folder/straight" --resume --prompt 'static ' --sample-tokens 20 >"$folder/text" 2>"$folder/said" && cmp -s "$folder/one" "$folder/text" && [ ! -s "$folder/said" ]
check "--prompt --out DIR --resume prints the prompt and its continuation, and nothing else" $? "$(cat "$folder/said")"
sample --seed 7 && ! cmp -s "$folder/one" "$folder/text"
check "--prompt with another --seed prints another text" $?
sample --samples 3 && cp "$folder/text" "$folder/three"
[ "$(grep -a '^--- sample' "$folder/three")" = "$(printf -- '--- sample %d of 3\n' 1 2 3)" ] && [ ! -s "$folder/said" ] && cmp -s "$folder/one" <(head -c "$((18 + $(wc -c <"$folder/one")))" "$folder/three" | tail -c +19)
check "--samples 3 prints a heading before each sample; the first is that of --samples 1" $? "$(cat "$folder/three" "$folder/said")"
sample --samples 3 && cmp -s "$folder/three" "$folder/text"
check "--samples 3 prints the same texts in a second run" $?
sample --samples 3 --json && cp "$folder/text" "$folder/lines" && [ "$(grep -cE '^\{"step":20,"prompt":\[115,116,97,116,105,99,32\],"sample":\[[0-9]+(,[0-9]+){19}\]\}$' "$folder/lines")" -eq 3 ] && [ "$(sort -u "$folder/lines" | wc -l)" -eq 3 ] && [ ! -s "$folder/said" ]
check "--samples 3 --json prints three different lines" $? "$(cat "$folder/lines" "$folder/said")"
sample --json && cmp -s "$folder/text" <(head -n 1 "$folder/lines")
check "--samples 3 --json: the first line is that of --samples 1" $? "$(cat "$folder/text")"
sample --top-p 1 && cmp -s "$folder/one" "$folder/text"
check "--top-p 1 does not change the text" $?
sample --top-p 0.5 && ! cmp -s "$folder/one" "$folder/text" && cp "$folder/text" "$folder/half" && sample --top-p 0.5 --top-k 300 && cmp -s "$folder/half" "$folder/text"
check "--top-p 0.5 changes the text; a large --top-k does not" $?
sample --temperature 0 && cp "$folder/text" "$folder/most_likely" && sample --top-p 1e-9 && cmp -s "$folder/most_likely" "$folder/text"
check "--top-p 1e-9 prints the same text as --temperature 0" $?
"$program" "${run[@]}" --sample-tokens 4 --samples 2 --prompt ab >"$folder/said" 2>&1 && [ "$(grep -ac '^--- sample [12] of 2$' "$folder/said")" -eq 2 ]
check "--samples 2 while training prints two samples" $? "$(cat "$folder/said")"
"$program" "${run[@]}" --steps 60 --overfit-one-batch --lr 3e-3 --out "$folder/overfit" >/dev/null &&
    awk -F'"loss":' '/"loss"/ { split($2, v, ","); if (!n++) first = v[1]; last = v[1] } END { exit !(last < first - 1) }' "$folder/overfit/log.jsonl"
check "--overfit-one-batch lowers the loss by more than 1" $?

# --- --model is a folder without config.json
mkdir "$folder/nested" && cp -r "$folder/straight/step-00000010" "$folder/nested/step-00000030"
refuses "a run's folder as --model is refused, and the error names its checkpoint" 2 "^error: $folder/nested has no config.json; name a checkpoint of this run: $folder/nested/step-00000030$" --model "$folder/nested" --prompt x
mkdir "$folder/hollow"
refuses "an empty folder as --model is refused" 2 "^error: $folder/hollow has no config.json; name a folder of a model, such as OUT/step-00000020$" --model "$folder/hollow" --prompt x
"$build"/plot_loss "$folder/straight/log.jsonl" "$folder/curve.png" >/dev/null 2>"$folder/said"
[ $? -eq 1 ] && [[ $(cat "$folder/said") == *"$folder/curve.png: "*"$folder/curve.svg"* ]] && [ ! -e "$folder/curve.png" ]
check "plot_loss refuses a name that ends in .png" $? "$(cat "$folder/said")"
"$build"/plot_loss "$folder/straight/log.jsonl" "$folder/curve.svg" >/dev/null && [ -s "$folder/curve.svg" ]
check "plot_loss writes an SVG" $?

# --- plans
plan=$("$program" --plan=json --model d48 --recipe coat --micro-batch 16 --gpus 4 --zero 3)
[[ $plan == '{"parameters": 1557611200, "total_bytes": '* ]]
check "--plan=json prints parameters and total_bytes" $? "$plan"
saved_bytes() { grep -o '"saved": [0-9]*' <<<"$1"; }
forward=$("$program" --plan=json --eval-only --model d48 --recipe coat)
[[ $forward == *'"gradients": 0, "moments": 0, "master": 0, '* ]] && [ "$(saved_bytes "$forward")" = "$(saved_bytes "$("$program" --plan=json --eval-only --layers 1 --heads 25 --channels 1600 --recipe coat)")" ]
check "--plan --eval-only has no gradients, and saved activations of one layer" $? "$forward"
is "--plan --json prints the same as --plan=json" "$plan" "$("$program" --plan --json --model d48 --recipe coat --micro-batch 16 --gpus 4 --zero 3)"
# expects (64, 384) BF16 values, whose memory the blocks share, and 64 amaxes for each of two blocks
is "--plan=json counts a BF16 activation's amaxes of all blocks" \
    "$("$program" --plan=json --model d6 --micro-batch 1 --seq-len 64 --bf16-blocks 2 | grep -o '"n1.plain".[^}]*"bytes": [0-9]*' | grep -o '[0-9]*$')" \
    $((64 * 384 * 2 + 2 * 64 * 4))
tiny=(--tokenizer bytes --layers 1 --heads 1 --channels 32 --seq-len 24 --recipe coat)
two=$("$program" --plan=json "${tiny[@]}" --micro-batch 2 | sed 's/.*"total_bytes": \([0-9]*\).*/\1/')
refuses "--memory-limit is refused if only one sequence fits and FP8 does not support its length" 1 "\-\-memory-limit: 1 sequence of 24 tokens fits in [0-9.]+ MB, but --recipe coat accepts no " --plan "${tiny[@]}" --memory-limit $((two - 1))B
said=$("$program" --plan "${tiny[@]}" --recipe bf16 --seq-len 1 --micro-batch 1 | head -n 2)
like "--plan prints counts of 1 in the singular" "$said" "model       1 layer, 1 head, 32 channels*micro-batch 1 x 1 token, 1 process, *"
refuses "--memory-limit below the smallest micro-batch is refused" 1 "the limit is 20\.00 GB; .*moments [0-9.]+ GB \(use --moments coat .*master .*--master split16" --plan --model gpt2-xl --recipe bf16 --memory-limit 20GB
limited() { "$program" --plan "$@" 2>&1 | sed -n 's/^largest micro-batch.*: //p'; }
# More sequences would fit in the memory, but a run refuses these micro-batches.
is "--memory-limit: the largest micro-batch is a multiple that FP8 matmuls support" "$(limited --seq-len 1001 --memory-limit 20GB --recipe coat)" 112
is "--memory-limit: the largest micro-batch divides --batch-tokens" "$(limited --batch-tokens 8192 --memory-limit 3200MB --recipe coat)" 4
for run in "--eval-only" "--prompt x"; do
    # shellcheck disable=SC2086
    is "$run: --head fp8-backward needs no more memory than bf16" "$("$program" --plan=json $run --recipe coat)" "$("$program" --plan=json $run --recipe coat --head bf16)"
done
refuses "--memory-limit is refused if FP8 supports no micro-batch that fits" 1 "5 sequences of 1001 tokens fit.*--recipe coat accepts no .*multiple of 16" --plan --seq-len 1001 --memory-limit 3GB --recipe coat
found=$("$program" --plan --model gpt2-xl --recipe coat --memory-limit 40GB | sed '$d')
[ -n "$found" ] && [ "$found" = "$("$program" --plan --model gpt2-xl --recipe coat --micro-batch 19)" ] &&
    grep -qE '^  saved +22\.21 GB +55\.6 %$' <<<"$found" && grep -qE '^  scratch +171\.27 MB +0\.4 %$' <<<"$found"
check "--memory-limit prints the plan of the largest micro-batch" $? "$found"
found=$("$program" --plan=json --model gpt2-xl --recipe coat --memory-limit 40GB)
[ "${found%, \"largest*}}" = "$("$program" --plan=json --model gpt2-xl --recipe coat --micro-batch 19)" ]
check "--memory-limit --plan=json prints the plan of the largest micro-batch" $? "$found"
bytes_of() { grep -o "\"$1\": [0-9]*" <<<"$plan" | grep -o '[0-9]*$'; } # CATEGORY: prints its bytes in $plan
plan=$("$program" --plan=json --model gpt2-xl --recipe coat --master split16 --micro-batch 16)
awk -v n="$(bytes_of parameters)" -v moments="$(bytes_of moments)" -v rest=$(($(bytes_of weights) + $(bytes_of master))) \
    'BEGIN { exit !(n > 1.5e9 && moments / n > 2 && moments / n < 2.1 && rest / n > 3.99 && rest / n < 4.01) }'
check "gpt2-xl: moments have 2.0 to 2.1 bytes per parameter, weights and master weights have 4" $? "$plan"
for recipe in bf16 fp8-linear coat; do
    "$program" --plan --model gpt2-xl --recipe $recipe --memory-limit 80GB | grep -q 'largest micro-batch'
    check "--plan --memory-limit finds a micro-batch for --recipe $recipe" $?
done

# --- usage of the other programs
programs=("$build/gradient_check" "$(dirname "$program")/test_gpt2_cpu")
for source in dev/tools/*.c dev/tools/*.cu data/*.c; do
    name=$(basename "${source%.*}")
    case $source in data/*) programs+=("$build/prepare_$name") ;; *) programs+=("$build/$name") ;; esac
done
for tool in "${programs[@]}"; do
    name=$(basename "$tool")
    for flag in --help -h; do
        "$tool" $flag >"$folder/out" 2>"$folder/said" </dev/null
        [ $? -eq 0 ] && [ ! -s "$folder/said" ] && head -n 1 "$folder/out" | grep -q "^usage: .*\b$name\b" && [ "$(wc -l <"$folder/out")" -ge 4 ]
        check "$name $flag prints its usage" $? "$(cat "$folder/out" "$folder/said")"
    done
    "$tool" --nonsense >"$folder/out" 2>"$folder/said" </dev/null
    [ $? -eq 1 ] && [ "$(grep -c . "$folder/said")" -eq 1 ] && [ ! -s "$folder/out" ]
    check "$name refuses an unknown flag with one line" $? "$(cat "$folder/out" "$folder/said")"
done

# --- --help
mkdir "$folder/first"
ln -s "$program" "$PWD/coat" "$folder/first"
ln -s "$(realpath "$build")" "$folder/first/build"
"$program" --help | sed -n -e 2p -e '/^  \.\//,/^$/p' >"$folder/first/commands"
(cd "$folder/first" && bash -e commands) >"$folder/said" 2>&1 && [ "$(grep -c '^ *\(\./\|build/\)' "$folder/first/commands")" -eq 4 ] &&
    grep -q '^done: 100 of 100 steps' "$folder/said" && grep -q '^static ' "$folder/said" && grep -q '^largest micro-batch under 80.00 GB: ' "$folder/said"
check "the commands at the top of --help work" $? "$(cat "$folder/first/commands" "$folder/said")"
is "--help optimizer lists exactly the flags of its group" "$("$program" --help optimizer | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p')" \
    "$("$program" --help=markdown | sed -n '/\*\*Optimizer/,/^| \*\*[^O]/s/^| `\(--[a-z0-9-]*\).*/\1/p')"

difference=$(diff <(sed -n '/^| Flag/,$p' docs/flags.md) <("$program" --help=markdown))
check "docs/flags.md equals --help=markdown" $? "Regenerate docs/flags.md; docs/hacking.md (How do I add a flag?) has the command." "$difference"
exit $failures
