#!/usr/bin/env bash
# The program as a user meets it: what bad input says and how it exits, that nothing is overwritten by accident,
# that a resumed run is the run it would have been, that plans and evaluations work. On the CPU's program.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

# refuses NAME CODE PATTERN FLAGS...: the program ends with this code and exactly one line, which matches.
refuses() {
    local name=$1 code=$2 pattern=$3 status=0 text
    shift 3
    text=$("$program" "$@" 2>&1 >/dev/null </dev/null) || status=$?
    text=$(grep -vE '^(note|resume): ' <<<"$text")
    if [ "$status" -eq "$code" ] && [ "$(wc -l <<<"$text")" -eq 1 ] && grep -qE "$pattern" <<<"$text"; then
        ok "$name"
    else
        bad "$name" "exit $status, wanted $code; wanted /$pattern/; said:" "$text"
    fi
}

# Tokens: the bytes of a text.
text "$folder/texts" && "$build"/prepare_bytes --out "$folder/src" "$folder/texts" >/dev/null || exit 1
data="$folder/src_train.bin" val="$folder/src_val.bin"
small=(--tokenizer bytes --layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --sample-tokens 0 --quiet)
run=("${small[@]}" --train "$data" --steps 2)

header() { # MAGIC VERSION COUNT: a token file's header, little-endian int32
    local value
    for value in "$1" "$2" "$3"; do
        printf "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x' $((value & 255)) $((value >> 8 & 255)) $((value >> 16 & 255)) $((value >> 24 & 255)))"
    done
    head -c 1012 /dev/zero
}

# --- token files
refuses "missing token file" 2 "none.*bin" "${small[@]}" --train "$folder/none*.bin"
: >"$folder/empty.bin"
refuses "empty token file" 2 "empty.bin" "${small[@]}" --train "$folder/empty.bin"
head -c 5000 "$data" >"$folder/cut.bin"
refuses "truncated token file" 2 "cut.bin" "${small[@]}" --train "$folder/cut.bin"
{ header 12345 1 500 && head -c 1000 /dev/zero; } >"$folder/magic.bin"
refuses "wrong magic" 2 "magic.bin.*(magic|token file)" "${small[@]}" --train "$folder/magic.bin"
{ header 20240520 9 500 && head -c 1000 /dev/zero; } >"$folder/version.bin"
refuses "wrong version" 2 "version.bin.*version" "${small[@]}" --train "$folder/version.bin"
{ header 20240520 1 2000 && head -c 4000 /dev/zero | tr '\0' '\7'; } >"$folder/beyond.bin" # token 0x0707
refuses "token beyond the vocabulary" 2 "beyond.bin.*1799" "${small[@]}" --train "$folder/beyond.bin"
{ header 20240520 1 40 && head -c 80 /dev/zero; } >"$folder/few.bin"
refuses "fewer tokens than one batch" 2 "few.bin" "${small[@]}" --train "$folder/few.bin"
said=$("$program" --layers 2 --channels 64 --seq-len 32 --train "$folder/few.bin" 2>&1 >/dev/null)
[[ $said == "error: "*few.bin* ]] && ok "and nothing is noted of a vocabulary before it" || bad "and nothing is noted of a vocabulary before it" "$said"
plain=(--layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --sample-tokens 0 --train "$data" --steps 1 --schedule constant)
said=$("$program" "${plain[@]}" 2>&1 >/dev/null)
[[ $said == "note: $data seems to have byte tokens; "*"--tokenizer bytes" ]] && ok "bytes for another tokenizer are noted" || bad "bytes for another tokenizer are noted" "$said"
said=$("$program" "${plain[@]}" --tokenizer bytes 2>&1 >/dev/null)
[ -z "$said" ] && ok "bytes for theirs are not" || bad "bytes for theirs are not" "$said"

# a run on other tokens that is resumed on bytes: with --tokenizer bytes, whatever the data are, and else by the guess
"$program" "${plain[@]/$data/$folder/beyond.bin}" --quiet --out "$folder/ids" >/dev/null 2>&1
other="note: $folder/ids/step-00000001 was trained on other data than --train names now"
resumed() { "$program" --train "$data" --sample-tokens 0 --steps 2 --out "$folder/ids" --resume --allow-other-data "$@" 2>&1 >/dev/null; }
wanted="note: --tokenizer bytes has 257 tokens, but the vocabulary of $folder/ids/step-00000001 has 50257; check that it was trained on bytes"
said=$(resumed --tokenizer bytes --quiet)
[ "$said" = "$other"$'\n'"$wanted" ] && ok "a resumed run of other tokens and --tokenizer bytes are noted" || bad "a resumed run of other tokens and --tokenizer bytes are noted" "$said"
rm -r "$folder/ids/step-00000002"
said=$(resumed | head -n 2)
[ "$said" = "$other"$'\n'"note: $data seems to have byte tokens; files of build/prepare_bytes need --tokenizer bytes" ] && ok "so are other data that look like bytes" || bad "so are other data that look like bytes" "$said"

# --- several sets of training data
gpt2=(--layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --sample-tokens 0 --quiet)
refuses "one of several sets that is missing" 2 "no file matches $folder/none.bin; " "${small[@]}" --train "$data" --train "$folder/none.bin"
# a guess from the first tokens may be wrong: it is noted, and the run continues
mixed="note: $data seems to have byte tokens, but $folder/beyond.bin has not; check that one tokenizer made both"
for weight in "" --train-weight=0.5; do
    said=$("$program" "${gpt2[@]/--quiet/--no-json}" --train "$folder/beyond.bin" $weight --train "$data" $weight --schedule constant --steps 1 2>&1 >/dev/null)
    [ $? -eq 0 ] && [ "$said" = "$mixed" ]
    status=$?
    name="bytes beside other tokens${weight:+, as sets of their own,} are noted"
    [ $status -eq 0 ] && ok "$name" || bad "$name" "$said"
done
refuses "a set of another vocabulary" 2 "beyond.bin: token 0 is 1799, but the vocabulary ends at 256" "${small[@]}" --train "$data" --train-weight 1 --train "$folder/beyond.bin" --train-weight 1
refuses "a set without a sequence" 2 "few.bin: 40 tokens make no sequence of 64 \+ 1 tokens; use a smaller --seq-len, or remove this set" "${small[@]}" --seq-len 64 --train "$data" --train-weight 1 --train "$folder/few.bin" --train-weight 1

# --- validation tokens of another vocabulary are found before the first step, and what --out held is as it was
"$program" "${run[@]}" --out "$folder/kept" >/dev/null 2>&1 && cp -r "$folder/kept" "$folder/kept-before"
for every in 0 1; do
    refuses "validation tokens of another vocabulary, --val-every $every" 2 "beyond.bin: token 0 is 1799, but the vocabulary ends at 256" "${run[@]}" --val "$folder/beyond.bin" --val-every $every --out "$folder/kept" --overwrite
    diff -r "$folder/kept" "$folder/kept-before" >/dev/null && ok "and nothing has changed" || bad "and nothing has changed"
done
{ header 20240520 1 2000 && head -c 3000 /dev/zero && printf '\7\7' && head -c 998 /dev/zero; } >"$folder/late.bin" # token 1500
refuses "and those that come late" 2 "late.bin: token 1500 is 1799, but the vocabulary ends at 256" "${run[@]}" --val "$folder/late.bin" --val-every 0 --out "$folder/kept" --overwrite
diff -r "$folder/kept" "$folder/kept-before" >/dev/null && ok "before anything changes" || bad "before anything changes"
"$program" "${run[@]}" --val "$folder/late.bin" --val-batches 11 >/dev/null 2>"$folder/said" && ok "but what is not validated is not read" || bad "but what is not validated is not read" "$(cat "$folder/said")"
refuses "a validation file that is truncated" 2 "cut.bin is truncated" "${run[@]}" --val-every 0 --val "$folder/cut.bin"
said=$("$program" "${gpt2[@]/--quiet/--no-json}" --train "$folder/beyond.bin" --val "$val" --schedule constant --steps 1 2>&1 >/dev/null)
[ "$said" = "note: $val seems to have byte tokens; files of build/prepare_bytes need --tokenizer bytes" ] && ok "bytes for validation are noted" || bad "bytes for validation are noted" "$said"

# --- one file twice
said=$("$program" "${small[@]/--quiet/--no-json}" --train "$data" --train "$data" --schedule constant --steps 1 2>&1 >/dev/null)
[[ $said == "note: --train names $data more than once"* ]] && ok "a file that is named twice is noted" || bad "a file that is named twice is noted" "$said"
said=$("$program" "${small[@]/--quiet/--no-json}" --train "$data" --train-weight 2 --train "$data" --train-weight 1 --schedule constant --steps 1 2>&1 >/dev/null)
[[ $said == "note: $data is in two sets of --train"* ]] && ok "and one in two sets with weights, each of which has it" || bad "and one in two sets with weights, each of which has it" "$said"
said=$("$program" "${small[@]/--quiet/--no-json}" --train "$data" --train-weight 2 --train "$folder/[s]rc_val.bin" --train-weight 1 --schedule constant --steps 1 2>&1 >/dev/null)
[ -z "$said" ] && ok "but no file that is in one of them" || bad "but no file that is in one of them" "$said"

# --- one file for both
ln -s "$data" "$folder/link.bin"
for file in "$data" "$folder/link.bin"; do
    said=$("$program" "${small[@]/--quiet/--no-json}" --train "$data" --train "$folder/[s]rc_val.bin" --val "$file" --val-batches 1 --schedule constant --steps 1 2>&1 >/dev/null)
    [ "$said" = "note: $file is in --train and --val, so the validation loss is measured on training text" ] && ok "a file in --train and --val is noted" || bad "a file in --train and --val is noted" "$said"
    said=$("$program" "${small[@]}" --quiet --train "$data" --val "$file" --val-batches 1 --schedule constant --steps 1 2>&1 >/dev/null)
    [ "$said" = "note: $file is in --train and --val, so the validation loss is measured on training text" ] && ok "with --quiet, too" || bad "with --quiet, too" "$said"
done

refuses "missing examples of HellaSwag" 2 "\-\-hellaswag: cannot open .*none.bin.*prepare.py \-\-hellaswag" "${run[@]}" --hellaswag "$folder/none.bin"
cp "$data" "$folder/src_more.bin"
said=$(cd "$folder" && "$program" "${plain[@]:0:10}" --tokenizer bytes --train src_[mt]*.bin --steps 1 --schedule constant 2>&1) # the shell makes names of it
grep -q '^train       2 shards, ' <<<"$said" && ok "a pattern without quotes" || bad "a pattern without quotes" "$said"
refuses "text instead of tokens" 2 "(token file|text)" "${small[@]}" --train README.md

# --- flags
refuses "more memory than there is, and what would fit" 3 "memory: the run needs.*; use --micro-batch [0-9]+; .*saved [0-9.]+ GB" "${run[@]}" --seq-len 8192 --micro-batch 65535
refuses "unknown flag" 1 "\-\-stepz" "${run[@]}" --stepz 3
printf '%s\n' '# two steps' '--steps 2' '--lr 1e-3 # more' --no-shuffle "--out $folder/by-file" >"$folder/flags"
"$program" "${small[@]}" --train "$data" --config "$folder/flags" >/dev/null &&
    "$program" "${run[@]}" --lr 1e-3 --no-shuffle --out "$folder/by-flags" >/dev/null &&
    diff -r "$folder/by-file/step-00000002" "$folder/by-flags/step-00000002" >/dev/null &&
    ok "a file of flags is the same as the flags, and so recorded" || bad "a file of flags is the same as the flags, and so recorded"
"$program" "${small[@]}" --train "$data" --config "$folder/flags" --lr 2e-3 --steps 1 --out "$folder/won" >/dev/null &&
    grep -q '"lr": 0.002,' "$folder/won/step-00000001/state.json" && ok "flags beside it win" || bad "flags beside it win" "$(ls "$folder/won")"
settings=$(head -n 1 "$folder/won/log.jsonl")
[[ $settings == '{"step":0,"settings":{"train":["'"$data"'"],"val":[],"tokenizer":"bytes","shuffle":false,"model":null,'*'"lr":0.002,'* ]] &&
    ok "and the log begins with the settings" || bad "and the log begins with the settings" "$settings"
[[ $settings == *'"layers":2,"heads":2,"kv-heads":2,"head-dim":16,"channels":32,"ffn":128,"vocab":257,"positions":1024,"norm":"layer","norm-place":"before","norm-eps":1e-05,"activation":"gelu",'*'"biases":true,'*'"tied-head":true,"recipe":"coat",'* ]] &&
    ok "with the shape" || bad "with the shape" "$settings"
starts="config|help|json|log-every|memory-limit|overwrite|allow-other-data|plan|gpus|quiet|rank|rendezvous|resume|time-limit|version|train-weight" # of the process, or beside train
missing=$("$program" --help=markdown | sed -n 's/^| `--\([a-z0-9-]*\).*/\1/p' | grep -vxE "$starts" | while read -r flag; do grep -q "[{,]\"$flag\":" <<<"$settings" || echo "$flag"; done)
[ -z "$missing" ] && ! grep -qE "[{,]\"($starts)\":" <<<"$settings" && ok "and every flag but those of a start" || bad "and every flag but those of a start" "$missing" "$settings"
cp "$val" "$folder/other.bin"
"$program" "${small[@]}" --train "$val" "$folder/other.bin" --train-weight 2 --train "$val" --train-weight 1 --val "$val" "$data" --val-batches 1 --schedule linear --lr-final 0.5 --out "$folder/whole" --micro-batch 64 --steps -1 >/dev/null 2>&1
settings=$(head -n 1 "$folder/whole/log.jsonl")
[[ $settings =~ '"train":[["'"$val"'","'"$folder/other.bin"'"],["'"$val"'"]],"train-weight":[2.0,1.0],"val":["'"$val"'","'"$data"'"],'.*'"batch-tokens":2048,"logits-chunk":'([0-9]+)',"steps":'([0-9]+)',"epochs":1,"lr":'.*'"lr-final":0.5,'.*'"val-batches":1,'.*'"hellaswag":null,"hellaswag-every":20,'.*'"out":"'"$folder/whole"'",'.*'"device":"cpu","threads":'([0-9]+)',"offload-states":false,"profile":null,'.*'"zero":0,"world-size":1}}' ]] && [ "${BASH_REMATCH[1]}" -gt 0 ] && [ "${BASH_REMATCH[2]}" -gt 0 ] && [ "${BASH_REMATCH[3]}" -gt 0 ] &&
    ok "all of them resolved" || bad "all of them resolved" "$settings"
"$program" "${small[@]:8}" --tokenizer bytes --train "$data" --model "$folder/won/step-00000001" --steps 1 --out "$folder/from" >/dev/null 2>&1
grep -q "\"model\":\"$folder/won/step-00000001\"" "$folder/from/log.jsonl" && ok "and where weights are from" || bad "and where weights are from" "$(head -n 1 "$folder/from/log.jsonl")"
! grep -q "$folder" "$folder"/whole/step-*/state.json && [ "$(grep -cE '"(steps|lr-final|layers|channels|ffn|vocab|positions)": [-0-9.]+' "$folder"/whole/step-*/state.json)" -eq 7 ] &&
    ok "a checkpoint has them, too, and names no path" || bad "a checkpoint has them, too, and names no path" "$(cat "$folder"/whole/step-*/state.json)"
"$program" "${small[@]}" --train "$data" --config "$folder/flags" --lr 2e-3 --steps 2 --out "$folder/won" --resume >/dev/null 2>&1
"$program" "${small[@]}" --train "$data" --config "$folder/flags" --lr 4e-3 --steps 3 --out "$folder/won" --resume >/dev/null 2>&1
"$program" "${small[@]}" --train "$data" --config "$folder/flags" --lr 4e-3 --steps 3 --out "$folder/won" --resume >/dev/null 2>&1 # nothing is new
[ "$(grep -o '^{"step":[0-9]*,"settings"\|"steps":[0-9]*,"epochs":null,"lr":[0-9.]*,"warmup"' "$folder/won/log.jsonl" | tr '\n' ' ')" = '{"step":0,"settings" "steps":1,"epochs":null,"lr":0.002,"warmup" {"step":1,"settings" "steps":2,"epochs":null,"lr":0.002,"warmup" {"step":2,"settings" "steps":3,"epochs":null,"lr":0.004,"warmup" ' ] &&
    ok "which it has again where they change" || bad "which it has again where they change" "$(cat "$folder/won/log.jsonl")"
# a sequence that is no multiple of 16, in a micro-batch that is: samples take as many sequences as make one
for recipe in "--recipe coat --head fp8" "--recipe fp8-linear" "--head fp8 --logits-chunk 16"; do
    # shellcheck disable=SC2086
    text=$("$program" "${run[@]}" $recipe --micro-batch 2 --seq-len 24 --sample-tokens 30 2>&1) && ok "$recipe: sequences of 24 tokens" || bad "$recipe: sequences of 24 tokens" "$text"
done
refuses "no GPU in this program" 3 "CUDA" "${run[@]}" --device cuda

said=$("$program" "${run[@]}" --steps 1 --threads $(($(nproc --all) + 1)) 2>&1 >/dev/null)
[[ $said == "note: --threads "*": more than this machine's "*" core"* ]] && ok "more threads than cores are noted" || bad "more threads than cores are noted" "$said"

# --- where it writes
: >"$folder/file"
refuses "out is a file" 2 "\-\-out $folder/file: .*a file has that name; name a folder" "${run[@]}" --out "$folder/file"
refuses "out is below a file" 2 "\-\-out $folder/file/run: .*a file has that name; name a folder" "${run[@]}" --out "$folder/file/run"
refuses "out where no folder can be made" 2 "\-\-out /proc/none: .*name a folder" "${run[@]}" --out /proc/none
if [ "$(id -u)" -ne 0 ]; then
    mkdir "$folder/locked" && chmod 555 "$folder/locked"
    refuses "out cannot be written" 2 "$folder/locked" "${run[@]}" --out "$folder/locked/run"
else
    refuses "out cannot be written" 2 "/proc/none" "${run[@]}" --out /proc/none/run
fi
"$program" "${run[@]}" --out "$folder/a" >/dev/null && ok "a run into a new folder" || bad "a run into a new folder"
before=$(find "$folder/a" -type f -exec sha256sum {} + | sort)
refuses "an existing run is not overwritten" 2 "\-\-resume.*\-\-overwrite" "${run[@]}" --out "$folder/a"
[ "$before" = "$(find "$folder/a" -type f -exec sha256sum {} + | sort)" ] && ok "and nothing of it changed" || bad "and nothing of it changed"
mkdir "$folder/several" && touch "$folder/several"/{loss.svg,log.jsonl} && mkdir "$folder/several"/step-0000000{9,1,5}
refuses "and its newest checkpoint is named" 2 "several: holds a run already .step-00000009." "${run[@]}" --out "$folder/several"
for step in "$folder/a"/step-*; do mkdir -p "$step/gguf" && touch "$step/gguf/model.gguf"; done
"$program" "${run[@]}" --out "$folder/a" --overwrite >/dev/null && [ -z "$(find "$folder/a" -name gguf)" ] && ok "unless told to" || bad "unless told to"

before=$(find "$folder/a" -type f -exec sha256sum {} + | sort)
refuses "--overwrite with data that is missing" 2 "none.bin" "${small[@]}" --train "$folder/none.bin" --out "$folder/a" --overwrite
[ "$before" = "$(find "$folder/a" -type f -exec sha256sum {} + | sort)" ] && ok "and the old run is still there" || bad "and the old run is still there"
refuses "nothing to evaluate" 2 "no checkpoint" "${small[@]}" --val "$val" --eval-only --out "$folder/typo" --resume
[ ! -e "$folder/typo" ] && ok "and no folder is made for it" || bad "and no folder is made for it"
refuses "fewer tokens than one step" 2 "\-\-batch-tokens" "${small[@]}" --train "$data" --batch-tokens 128000000
if [ -w /dev/full ]; then
    "$program" --plan >/dev/full 2>"$folder/said"
    [ $? -eq 2 ] && grep -q "standard output" "$folder/said" && ok "a full disk behind standard output" || bad "a full disk behind standard output"
fi

# of what the process may take, if that is less than there is
wide=(--tokenizer bytes --layers 2 --heads 4 --channels 256 --seq-len 256 --train "$data" --steps 1 --sample-tokens 0 --threads 1 --quiet)
said=$(ulimit -v 800000 && "$program" "${wide[@]}" --micro-batch 512 2>&1)
status=$?
[ $status -eq 3 ] && [[ $said =~ ^"error: memory: the run needs "[0-9.]+" GB (could not allocate "[0-9]+" MiB: ulimit -v leaves "[0-9]+" MiB); use --micro-batch "([0-9]+)"; " ]] &&
    ok "a limit of the process" || bad "a limit of the process" "$status" "$said"
(ulimit -v 800000 && "$program" "${wide[@]}" --micro-batch "${BASH_REMATCH[1]:-0}" >/dev/null 2>"$folder/said") && ok "under which what it advises fits" || bad "under which what it advises fits" "$(cat "$folder/said")"
# OpenBLAS would start threads before main, and wait for their memory; linked dynamically it does
for threads in "" 4; do
    ! ldd "$program" | grep -qE 'libopenblas|libasan' || continue
    (unset OMP_NUM_THREADS && export OPENBLAS_NUM_THREADS=$threads && ulimit -v 100000 && timeout 20 "$program" --version) >"$folder/said" 2>&1 && ok "no hang under a limit, '$threads' threads" || bad "no hang under a limit, '$threads' threads" "$(cat "$folder/said")"
done

# --- resume: 20 steps straight, and 10 + resume + 10, are the same bytes
long=("${small[@]}" --train "$data" --val "$val" --val-every 5 --val-batches 2 --steps 20 --save-every 10 --lr 1e-3 --warmup 5)
OMP_NUM_THREADS=2 "$program" "${long[@]}" --out "$folder/straight" >/dev/null || bad "20 steps"
"$program" "${long[@]}" --out "$folder/parts" >/dev/null || bad "20 steps, to be cut"
rm -r "$folder/parts/step-00000020"
"$program" "${long[@]}" --out "$folder/parts" --resume >/dev/null 2>&1 || bad "resume"
if diff -r "$folder/straight/step-00000020" "$folder/parts/step-00000020" >/dev/null; then
    ok "10 + resume + 10 steps give the checkpoint of 20, byte for byte"
else
    bad "10 + resume + 10 steps give the checkpoint of 20, byte for byte"
fi
[ "$(strip "$folder/straight/log.jsonl")" = "$(strip "$folder/parts/log.jsonl")" ] &&
    [ "$(grep -c '"settings":' "$folder/parts/log.jsonl")" -eq 1 ] && ok "and the same log" || bad "and the same log"
OMP_NUM_THREADS=1 "$program" "${long[@]}" --threads 1 --out "$folder/single" >/dev/null
diff -r "$folder/straight/step-00000020" "$folder/single/step-00000020" >/dev/null && ok "one thread gives the same bytes as several" || bad "one thread gives the same bytes as several"

# --- damaged checkpoints
damage() { # NAME PATTERN: `resume=20` of a damaged copy is refused, plain `resume` takes the one before
    local name=$1 pattern=$2
    refuses "$name: asked for by number" 2 "$pattern.*--resume without a step" "${long[@]}" --out "$folder/d" --resume=20
    if "$program" "${long[@]}" --out "$folder/d" --resume >/dev/null 2>"$folder/said" && grep -q step-00000020 "$folder/said" &&
        diff -r "$folder/straight/step-00000020" "$folder/d/step-00000020" >/dev/null; then
        ok "$name: skipped with a line, and made again from the one before"
    else
        bad "$name: skipped with a line, and made again from the one before" "$(cat "$folder/said")"
    fi
}
for file in model.safetensors optimizer.safetensors state.json; do
    rm -rf "$folder/d" && cp -r "$folder/straight" "$folder/d"
    truncate -s -7 "$folder/d/step-00000020/$file"
    damage "$file cut short" "$file"
    rm -rf "$folder/d" && cp -r "$folder/straight" "$folder/d"
    size=$(stat -c %s "$folder/d/step-00000020/$file")
    byte=$(dd if="$folder/d/step-00000020/$file" bs=1 skip=$((size / 2)) count=1 status=none | od -An -tu1)
    printf "$(printf '\\x%02x' $((byte ^ 4)))" | dd of="$folder/d/step-00000020/$file" bs=1 seek=$((size / 2)) conv=notrunc status=none
    damage "$file with a flipped bit" "$file"
done
[ -d "$folder/d/damaged-1-step-00000020" ] && grep -q '^note: .*is damaged: renamed to' "$folder/said" && ! ls "$folder/d" | grep -q abandoned && ok "and it is kept, under a name that says so" || bad "and it is kept, under a name that says so" "$(ls "$folder/d")"
# a checkpoint of an abandoned run is neither resumed nor kept in place of a newer one
cp -r "$folder/straight" "$folder/course"
"$program" "${long[@]}" --steps 12 --save-every 1 --keep 2 --out "$folder/course" --resume=10 >/dev/null 2>&1
[ "$(cd "$folder/course" && echo *step-*)" = "abandoned-1-step-00000020 step-00000011 step-00000012" ] && ok "resuming from an earlier step sets later checkpoints aside" || bad "resuming from an earlier step sets later checkpoints aside" "$(ls "$folder/course")"
[ "$(strip "$folder/course/log-abandoned-00000010.jsonl")" = "$(strip "$folder/straight/log.jsonl" | grep '"step":\(1[1-9]\|20\),')" ] && ok "and the lines of its log" || bad "and the lines of its log" "$(ls "$folder/course")"
loud=()
for flag in "${run[@]}"; do [ "$flag" = --quiet ] || loud+=("$flag"); done
for quiet in "" --quiet; do # a folder without a checkpoint
    rm -rf "$folder/none" && mkdir "$folder/none"
    # shellcheck disable=SC2086
    "$program" "${loud[@]}" $quiet --out "$folder/none" --resume >/dev/null 2>"$folder/said" && [ -d "$folder/none/step-00000002" ] &&
        [ "$(grep -c "^note: --resume: no checkpoint in $folder/none, starting from the beginning$" "$folder/said")" -eq 1 ] &&
        ok "--resume $quiet with nothing to resume starts from the beginning" || bad "--resume $quiet with nothing to resume starts from the beginning" "$(cat "$folder/said")"
done
# nothing to resume, and no flag that says what to begin: a mistyped --out begins no other run
refuses "--resume in a folder that does not exist" 1 "^error: \-\-out $folder/absent: there is no such folder" "${run[@]}" --out "$folder/absent" --resume
refuses "and with no model named" 1 "^error: \-\-out $folder/absent: there is no such folder" --train "$data" --steps 1 --out "$folder/absent" --resume
[ ! -e "$folder/absent" ] && ok "and it is not made" || bad "and it is not made"
mkdir "$folder/bare-out"
refuses "--resume in an empty folder with no model named" 1 "^error: \-\-resume: $folder/bare-out has neither a checkpoint nor a log with settings" --train "$data" --steps 1 --out "$folder/bare-out" --resume
"$program" "${run[@]}" --steps 1 --out "$folder/llmc-out" -y 1 >/dev/null 2>"$folder/said" && [ -d "$folder/llmc-out/step-00000001" ] && ok "llm.c's -y 1 begins a run as there" || bad "llm.c's -y 1 begins a run as there" "$(cat "$folder/said")"
# a run that ended before its first save begins again with the settings of its log; flags win
lost=(--tokenizer bytes --model llama:d2 --channels 32 --ffn 64 --init truncated --norm-eps 1e-4 --seq-len 32 --micro-batch 2 --batch-tokens 128 --recipe bf16 --moments fp8
    --lr 0.01 --warmup 3 --schedule wsd --lr-final 0 --beta2 0.9 --seed 77 --no-shuffle --train "$data" --sample-tokens 0 --quiet)
unsaved() { # NAME FLAGS...: what such a run leaves, and what it would have saved as NAME.whole
    "$program" "${lost[@]}" "${@:2}" --out "$folder/$1" >/dev/null 2>&1 || bad "a run to be cut" "$1"
    cp -r "$folder/$1" "$folder/$1.whole" && rm -r "$folder/$1"/step-*
}
unsaved lost --steps 6
"$program" --train "$data" --sample-tokens 0 --quiet --out "$folder/lost" --resume >/dev/null 2>"$folder/said"
[ $? -eq 0 ] && grep -q "^note: --resume: no checkpoint in $folder/lost, .*settings in its log.jsonl" "$folder/said" && said=$(diff -r "$folder/lost.whole/step-00000006" "$folder/lost/step-00000006") &&
    ok "a run without a checkpoint yet has the model and settings of its log" || bad "a run without a checkpoint yet has the model and settings of its log" "$(cat "$folder/said")" "$said"
unsaved lost2 --steps 6
"$program" --train "$data" --sample-tokens 0 --quiet --out "$folder/lost2" --resume --lr 0.002 --layers 1 --steps 4 >/dev/null 2>&1 &&
    grep -q '"layers":1,.*"channels":32,.*"steps":4,.*"lr":0.002,"warmup":3,' "$folder/lost2/log.jsonl" && [ -d "$folder/lost2/step-00000004" ] && ok "flags win" || bad "flags win" "$(head -c 3000 "$folder/lost2/log.jsonl")"
rm -r "$folder"/lost2/step-* && "$program" --train "$data" --model d1 --channels 64 --sample-tokens 0 --quiet --out "$folder/lost2" --resume >/dev/null 2>&1 &&
    grep -q '"model":"d1","layers":1,.*"channels":64,.*"norm":"layer"' "$folder/lost2/log.jsonl" && ok "so does another model" || bad "so does another model" "$(head -c 3000 "$folder/lost2/log.jsonl")"
head -c $((1024 + 2 * 1000)) "$data" >"$folder/short.bin" && printf '\xe8\x03\x00\x00' | dd of="$folder/short.bin" bs=1 seek=8 conv=notrunc status=none
without_checksum "$folder/short.bin"
lost=("${lost[@]/#$data/$folder/short.bin}")
unsaved passes --epochs 2 --schedule cosine
"$program" --train "$folder/short.bin" --sample-tokens 0 --quiet --out "$folder/passes" --resume >/dev/null 2>"$folder/said"
[ $? -eq 0 ] && said=$(diff -r "$folder"/passes.whole/step-* "$folder"/passes/step-*) && ok "with --epochs, too" || bad "with --epochs, too" "$(cat "$folder/said")" "$said"
tuned=(--model "$folder/lost.whole/step-00000006" --seq-len 32 --micro-batch 4 --train "$data" --steps 2 --sample-tokens 0 --quiet)
"$program" "${tuned[@]}" --out "$folder/tuned" >/dev/null 2>&1 && cp -r "$folder/tuned" "$folder/tuned.whole" && rm -r "$folder"/tuned/step-*
"$program" --train "$data" --sample-tokens 0 --quiet --out "$folder/tuned" --resume >/dev/null 2>"$folder/said"
[ $? -eq 0 ] && said=$(diff -r "$folder/tuned.whole/step-00000002" "$folder/tuned/step-00000002") && ok "and from the weights that it began with" || bad "and from the weights that it began with" "$(cat "$folder/said")" "$said"
for change in 's/"schedule":"wsd"/"schedule":"polynomial"/' 's/"lr":0.01/"lr":-1/' 's/"micro-batch":2/&,"lr-power":2/' 's/"layers":2/"layers":0/'; do
    rm -rf "$folder/lost3" && cp -r "$folder/lost.whole" "$folder/lost3" && rm -r "$folder"/lost3/step-* && sed -i "$change" "$folder/lost3/log.jsonl"
    refuses "a logged setting that is unknown: $change" 2 "^error: $folder/lost3/log.jsonl: this version does not support the setting \"(schedule|lr|lr-power|layers)\": (\"polynomial\"|-1|2|0); " --train "$data" --out "$folder/lost3" --resume
done
# a checkpoint of another run that lies in --out: noted, and the log's later lines are kept
"$program" "${long[@]}" --seed 2 --out "$folder/stranger" >/dev/null 2>&1
other() { # NAME PATTERN OUT FROM STEP...: a copy of the run FROM, of whose checkpoints these steps are the stranger's; PATTERN "": no note
    local out=$folder/$3 step status=0
    rm -rf "$out" && cp -r "$4" "$out" && rm -r "$out"/step-*
    for step in "${@:5}"; do cp -r "$folder/stranger/step-000000$step" "$out"; done
    "$program" "${long[@]}" --seed 2 --steps 22 --out "$out" --resume >/dev/null 2>"$folder/said" || status=$?
    if [ -n "$2" ]; then grep -qE "^note: the checkpoint of step [0-9]+ in $out is possibly from another run than the log: $out/log.jsonl $2" "$folder/said"; else ! grep -q "another run" "$folder/said"; fi || status=1
    check "$1" $status "$(cat "$folder/said")"
}
other "a checkpoint of another run is noted" "has the loss [0-9.]+ for step 10, and the checkpoint [0-9.]+" taken-over "$folder/straight" 10
[ "$(strip "$folder/taken-over/log-abandoned-00000010.jsonl")" = "$(strip "$folder/straight/log.jsonl" | grep '"step":\(1[1-9]\|20\),')" ] && ok "and what the log had beyond it is kept" || bad "and what the log had beyond it is kept" "$(ls "$folder/taken-over")"
head -n 12 "$folder/straight/log.jsonl" >"$folder/head.jsonl" && mkdir "$folder/early" "$folder/early/step-1" && cp "$folder/head.jsonl" "$folder/early/log.jsonl"
other "so is one of a step that the log has not reached" "has no line of step 20" taken-over "$folder/early" 10 20
other "the run's own is not" "" own-run "$folder/stranger" 10 20
rm -r "$folder/early/log.jsonl"
other "nor one in a folder without a log" "" taken-over "$folder/early" 10
# a shell that a launcher of several processes has started: its variables are named, and --world-size 1 wins
for set in "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 SLURM_STEP_ID=0" "SLURM_PROCID=0 SLURM_NTASKS=4" "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0"; do
    said=$(env $set timeout 60 "$program" "${run[@]}" 2>&1 >/dev/null </dev/null)
    [ $? -eq 1 ] && grep -qE "^error: rank 0: 4 processes on CPUs \((SLURM_STEP_NUM_TASKS|SLURM_NTASKS|WORLD_SIZE)=4, (SLURM_PROCID|RANK)=0\).*--world-size 1" <<<"$said" && ok "one of several processes by $set: named" || bad "one of several processes by $set: named" "$said"
    env $set timeout 60 "$program" "${run[@]}" --world-size 1 >/dev/null 2>"$folder/said" </dev/null && ok "and --world-size 1 wins" || bad "and --world-size 1 wins" "$(cat "$folder/said")"
done
env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 timeout 60 "$program" "${run[@]}" --world-size 1 >/dev/null 2>"$folder/said" </dev/null && ok "over Open MPI's, too" || bad "over Open MPI's, too" "$(cat "$folder/said")"
# a checkpoint in place of its run: nothing is written into it
before=$(find "$folder/straight" -type f -exec sha256sum {} + | sort)
cp -r "$folder/straight/step-00000020" "$folder/copied" && cp -r "$folder/copied" "$folder/copied-before" && ln -s straight/step-00000010 "$folder/link"
into() { refuses "a checkpoint as --out: $1" 2 "^error: \-\-out $2$" "${run[@]}" --out "${@:3}"; }
resumes="continue its run with \-\-out $folder/straight \-\-resume"
into "resumed" "$folder/straight/step-00000020: .* is a checkpoint; $resumes, .*" "$folder/straight/step-00000020" --resume
into "an older one" "$folder/straight/step-00000010//: .* is a checkpoint; $resumes=10, .*" "$folder/straight/step-00000010//" --resume
into "through a link" "$folder/link: .* is a checkpoint; .* \-\-out .*/straight \-\-resume=10, .*" "$folder/link" --resume
into "overwriting" "$folder/straight/step-00000020: .* is a checkpoint; $resumes, or choose another folder" "$folder/straight/step-00000020" --overwrite
into "one that is not there" "$folder/straight/step-00000030: .* has the name of a checkpoint; $resumes, .*" "$folder/straight/step-00000030" --resume
into "under another name" "$folder/copied: .* is a checkpoint; .* \-\-model .*/copied" "$folder/copied" --resume
into "below it" "$folder/straight/step-00000010/a/b/: .*/step-00000010 is a checkpoint; $resumes=10, .*" "$folder/straight/step-00000010/a/b/"
into "below a link" "$folder/link/sub: .* is a checkpoint; .* \-\-out .*/straight \-\-resume=10, .*" "$folder/link/sub" --resume
refuses "the root of all files as --out" 1 "^error: \-\-out /: " "${run[@]}" --out /
refuses "the root by another path" 1 "^error: \-\-out //tmp/\.\.: " "${run[@]}" --out //tmp/..
refuses "a ~ that the shell did not expand" 1 "^error: \-\-out ~/x: " "${run[@]}" --out '~/x'
[ ! -e '~' ] && [ ! -e /log.jsonl ] && ok "and nothing is made" || bad "and nothing is made"
into "in a plan" "$folder/straight/step-00000020: .* is a checkpoint; $resumes, .*" "$folder/straight/step-00000020" --resume --plan
[ "$before" = "$(find "$folder/straight" -type f -exec sha256sum {} + | sort)" ] && [ ! -e "$folder/straight/step-00000030" ] && diff -r "$folder/copied" "$folder/copied-before" &&
    ok "and nothing of them changes" || bad "and nothing of them changes" "$(ls "$folder/straight" "$folder/copied")"
refuses "a step that was not saved" 2 "no checkpoint of step 7, but of 20, 10; use one of these" "${long[@]}" --out "$folder/straight" --resume=7
refuses "and before tokens of another vocabulary" 2 "no checkpoint of step 7, but of 20, 10; use one of these" --train "$data" --vocab 50 --out "$folder/straight" --resume=7
refuses "nothing to sample from, likewise" 2 "no checkpoint in $folder/typo; name the run" --val "$data" --vocab 50 --eval-only --out "$folder/typo" --resume
refuses "a step of another folder" 2 "no checkpoint of step 7, nor any other; name the run" "${long[@]}" --out "$folder/typo" --resume=7
rm -rf "$folder/over" && cp -r "$folder/straight" "$folder/over"
said=$("$program" "${loud[@]}" --steps 5 --out "$folder/over" --resume --val "$val" --val-batches 1 2>/dev/null | grep -A 9 nothing)
[[ $said == "nothing to do: the run is at step 20 of 5; "*"done: 20 of 20 steps"* ]] && ok "fewer steps than are done" || bad "fewer steps than are done" "$said"
said=$("$program" "${small[@]}" --val "$val" --val-batches 1 --micro-batch 2 --eval-only --quiet --out "$folder/straight" --resume 2>&1)
[[ $said == "step 20  val loss "* ]] && ok "an evaluation says nothing of settings that only training reads" || bad "an evaluation says nothing of settings that only training reads" "$said"
rm -rf "$folder/other" && cp -r "$folder/straight" "$folder/other"
"$program" "${long[@]}" --steps 22 --micro-batch 3 --out "$folder/other" --resume >"$folder/said" 2>&1 && [ -d "$folder/other/step-00000022" ] &&
    ok "another micro-batch in the middle of the data" || bad "another micro-batch in the middle of the data" "$(cat "$folder/said")"
refuses "a checkpoint of another shape" 1 "^error: \-\-channels 64: the run's model has 32; remove \-\-channels$" "${long[@]}" --channels 64 --out "$folder/straight" --resume
refuses "or with other parts" 1 "^error: \-\-no-biases: the run's model has biases; remove \-\-no-biases$" --train "$data" --no-biases --out "$folder/straight" --resume
refuses "a checkpoint of another named model" 1 "\-\-model d1: the run's model has layers 2, and this has 1; remove \-\-model" --model d1 --tokenizer bytes --train "$data" --out "$folder/straight" --resume
for flag in "--layers 2" "--heads 2" "--kv-heads 2" "--head-dim 16" "--channels 32" "--ffn 128" "--vocab 257" "--positions 1024" "--norm layer" "--biases" "--norm-eps 1e-5"; do
    # shellcheck disable=SC2086 # flags are words
    {
        said=$("$program" $flag --val "$val" --val-batches 1 --eval-only --quiet --out "$folder/straight" --resume 2>&1)
        [[ $said == "step 20  val loss "* ]] && ok "$flag, which the run's model has, may be said again" || bad "$flag, which the run's model has, may be said again" "$said"
    }
    [[ $flag == *" "[0-9]* && $flag != *eps* ]] || continue
    name=${flag% *} value=${flag#* }
    for what in "--train $data --steps 21" "--prompt x" "--val $val --eval-only"; do
        # shellcheck disable=SC2086
        refuses "$name of another model, ${what%% *}" 1 "^error: $name $((value + 1)): the run's model has $value; remove $name$" $what $name $((value + 1)) --out "$folder/straight" --resume
    done
done
"$program" --prompt x --sample-tokens 2 --heads 2 --out "$folder/straight" --resume >/dev/null 2>"$folder/said" && ok "to sample, too" || bad "to sample, too" "$(cat "$folder/said")"
rm -rf "$folder/further" && cp -r "$folder/straight" "$folder/further"
"$program" --train "$data" --steps 21 --sample-tokens 0 --quiet --channels 32 --out "$folder/further" --resume >/dev/null 2>"$folder/said" && [ -d "$folder/further/step-00000021" ] && ok "and to train on" || bad "and to train on" "$(cat "$folder/said")"

# --- the FP8 tensors in the log
"$program" "${long[@]}" --recipe coat --head fp8 --health-every 8 --steps 20 --out "$folder/health" >/dev/null
fp8=$(grep '"fp8":' "$folder/health/log.jsonl")
[ "$(grep -o '^{"step":[0-9]*' <<<"$fp8" | tr '\n' ' ')" = '{"step":8 {"step":16 ' ] &&
    grep -qE '"x_in":\{"amax":\[[0-9.e-]+,[0-9.e-]+\],"saturated":\[[0-9.e-]+,[0-9.e-]+\],"zero":' <<<"$fp8" &&
    grep -qE '"qkvw.m":.*"clamped":\[' <<<"$fp8" && grep -qE '"dh_q":\{"amax":\[[0-9.e-]+,[0-9.e-]+\],"saturated":\[[0-9.e-]+,[0-9.e-]+\],"zero":\[[0-9.e-]+,[0-9.e-]+\],"subnormal":' <<<"$fp8" && grep -q '"wte.codes"' <<<"$fp8" &&
    ok "--health-every" || bad "--health-every" "$fp8"
"$program" "${long[@]}" --recipe coat --head fp8 --health-every 0 --steps 20 --out "$folder/unhealthy" >/dev/null
! grep -q '"fp8":' "$folder/unhealthy/log.jsonl" && diff -r "$folder/health/step-00000020" "$folder/unhealthy/step-00000020" >/dev/null && ok "and it changes nothing of the run" || bad "and it changes nothing of the run"

# --- using a model
loss() { grep -o '"val_loss":[0-9.]*' | tail -n 1; }
trained=$("$program" --tokenizer bytes --seq-len 32 --micro-batch 4 --val "$val" --val-batches 2 --eval-only --json --model "$folder/straight/step-00000020" 2>/dev/null | loss)
logged=$(loss <"$folder/straight/log.jsonl")
[ -n "$trained" ] && [ "$trained" = "$logged" ] && ok "--eval-only repeats the validation loss of training" || bad "--eval-only repeats the validation loss of training" "$trained" "$logged"
exec 5> >(true) && wait $!
for what in --plan "--val $val --val-batches 1 --eval-only --model $folder/straight/step-00000020"; do
    # shellcheck disable=SC2086
    "$program" $what >&5 2>"$folder/said"
    [ $? -eq 2 ] && grep -q "standard output could not be written" "$folder/said" && ok "a reader that has ended: ${what##* --}" || bad "a reader that has ended: ${what##* --}" "$(cat "$folder/said")"
done
exec 5>&-
"$program" "${run[@]}" --vocab 300 --out "$folder/v300" >/dev/null
said=$("$program" --val "$val" --val-batches 1 --eval-only --quiet --model "$folder/straight/step-00000020" --out "$folder/unused" 2>&1 >/dev/null)
[ "$said" = "note: --out $folder/unused: nothing is written there without training; add --resume to take the run's model" ] && [ ! -e "$folder/unused" ] && ok "an --out without use is noted" || bad "an --out without use is noted" "$said"
# a checkpoint that is only evaluated or sampled from says its shape, as a model does
resumed=$("$program" --seq-len 32 --val "$val" --val-batches 2 --eval-only --json --out "$folder/straight" --resume 2>/dev/null | loss)
[ "$resumed" = "$logged" ] && ok "--eval-only --resume needs no shape" || bad "--eval-only --resume needs no shape" "$resumed" "$logged"
said=$("$program" --seq-len 32 --val "$val" --val-batches 2 --eval-only --quiet --out "$folder/straight" --resume=10 2>&1)
[[ $said == "step 10  val loss "* ]] && ok "nor that of a step" || bad "nor that of a step" "$said"
refuses "what is said of it must be true" 1 "\-\-layers 3: the run's model has 2; remove \-\-layers" --layers 3 --tokenizer bytes --val "$val" --eval-only --quiet --out "$folder/straight" --resume
refuses "prompt without weights" 1 "\-\-out DIR \-\-resume" --prompt hello
said=$("$program" --prompt hello --temperature 0 --sample-tokens 5 --quiet --out "$folder/straight" --resume 2>&1)
same=$("$program" --prompt hello --temperature 0 --sample-tokens 5 --quiet --model "$folder/straight/step-00000020" 2>&1)
[[ $said == hello* && $said == "$same" ]] && ok "and what it advises works" || bad "and what it advises works" "$said" "$same"
said=$("$program" --prompt ab --sample-tokens 3 --json --quiet --model "$folder/straight/step-00000020" 2>/dev/null)
grep -qxE '\{"step":20,"prompt":\[97,98\],"sample":\[[0-9]+,[0-9]+,[0-9]+\]\}' <<<"$said" && ok "--prompt --json: tokens" || bad "--prompt --json: tokens" "$said"
cp -r "$folder/straight/step-00000020" "$folder/renamed" && cp -r "$folder/straight/step-00000020" "$folder/step-00000007"
mkdir "$folder/ended" && cp "$folder/straight/step-00000020"/{config.json,model.safetensors} "$folder/ended" # as of another program
for name in renamed:20 step-00000007:20 ended:0; do
    said=$("$program" --val "$val" --val-batches 1 --eval-only --quiet --tokenizer bytes --model "$folder/${name%:*}" 2>&1)
    said+=$("$program" --prompt ab --sample-tokens 1 --json --quiet --tokenizer bytes --model "$folder/${name%:*}" 2>/dev/null)
    [[ $said == "step ${name#*:}  val loss "*'{"step":'"${name#*:},"* ]] && ok "the step of the folder ${name%:*} is ${name#*:}" || bad "the step of the folder ${name%:*}" "$said"
done
rm -r "$folder/renamed" "$folder/step-00000007"
ended() { "$program" --prompt ab --sample-tokens 3 --json --quiet --tokenizer bytes --model "$folder/ended" 2>/dev/null; }
said=$(ended) end=$(sed 's/.*\[[0-9]*,\([0-9]*\),.*/\1/' <<<"$said") # its second token
sed -i "s/\"eos_token_id\": 256/\"eos_token_id\": $end/" "$folder/ended/config.json"
[ -n "$end" ] && [ "$(ended)" = "${said%,*}]}" ] && ok "a text from a prompt ends where its vocabulary says" || bad "a text from a prompt ends where its vocabulary says" "$said; $(ended)"
# what a name of a model says
refuses "a name by depth that is too deep" 1 '^error: \-\-model llama:d97: neither a file nor a name; by depth it is llama:dN, of 1 to 96 layers$' --model llama:d97 --plan
refuses "a name in capitals" 1 'did you mean llama2-7b\?' --model LLAMA2-7B --plan
refuses "a name at Hugging Face" 2 'no such file or folder; one of Hugging Face.s models is named by the folder that it was downloaded to$' --model Qwen/Qwen2.5-0.5B --plan
refuses "a width that heads cannot share" 1 'not divisible by \-\-heads 5; use \-\-channels 240$' --model llama:d3 --channels 192 --heads 5 --plan
refuses "a width without heads" 1 'not divisible by \-\-heads 3; use \-\-channels 128$' --model llama:d3 --channels 100 --plan
mkdir "$folder/large" && echo '#version: 0.2' >"$folder/large/merges.txt" # 32,001 tokens
{ for i in $(seq 0 31999); do echo "\"t$i\": $i"; done && echo '"<|endoftext|>": 32000'; } | paste -sd, | sed 's/.*/{&}/' >"$folder/large/vocab.json"
refuses "a vocabulary larger than the named model's" 1 'vocabulary has 32000 tokens, that of \-\-tokenizer .* has 32001; use \-\-vocab 32001$' --model llama2-7b --tokenizer "$folder/large" --plan
# a family whose texts begin with a token: so do prompts, and the checkpoint has the vocabulary
"$program" "${run[@]}" --tokenizer dev/test/tokenizers/llama.model --vocab 560 --steps 1 --out "$folder/llama" >/dev/null 2>"$folder/said" || bad "a SentencePiece vocabulary" "$(cat "$folder/said")"
rows() { sed -n 's/.*"vocab_size": \([0-9]*\),.*/\1/p' "$folder/$1/step-00000001/config.json"; }
"$program" "${run[@]}" --tokenizer dev/test/tokenizers/llama.model --steps 1 --out "$folder/follows" >/dev/null && [ "$(rows follows)" -gt 257 ] && [ "$(rows follows)" -le 560 ] &&
    ok "a new model's vocabulary is that of its tokenizer" || bad "a new model's vocabulary is that of its tokenizer" "$(rows follows)"
[ "$(rows llama)" = 560 ] && ok "unless --vocab says another" || bad "unless --vocab says another" "$(rows llama)"
said=$("$program" --prompt 'the model' --sample-tokens 1 --json --quiet --model "$folder/llama/step-00000001" 2>/dev/null)
[ "$(cut -d[ -f2 <<<"$said" | cut -d] -f1)" = "1,$(sed -n 7p dev/test/tokenizers/llama.ids | tr ' ' ,)" ] && ok "a prompt begins with <s>" || bad "a prompt begins with <s>" "$said"
tr -d ' \n' <"$folder/llama/step-00000001/config.json" | grep -q '"bos_token_id":1,"eos_token_id":2,' && ok "and config.json names what texts begin and end with" || bad "and config.json names what texts begin and end with" "$(grep token_id "$folder/llama/step-00000001/config.json")"
said=$("$program" --prompt 'the model' --sample-tokens 1 --model "$folder/llama/step-00000001" 2>/dev/null)
[[ $said == '<s>the model'* ]] && ok "the blank that SentencePiece puts before a text is not printed" || bad "the blank that SentencePiece puts before a text is not printed" "$said"
said=$("$program" --train "$data" --model llama2-7b --layers 1 --channels 64 --heads 2 --seq-len 32 --steps 1 --sample-tokens 2 2>&1)
grep -qE '^1 [0-9]+ [0-9]+ $' <<<"$said" && ok "a sample without a vocabulary begins as the model's texts do" || bad "a sample without a vocabulary begins as the model's texts do" "$said"
"$program" --train "$data" --resume --steps 4 --save-every 1 --keep 1 --sample-tokens 0 --out "$folder/llama" >/dev/null 2>&1
[ "$(cd "$folder/llama" && echo step-*)" = step-00000004 ] && cmp -s dev/test/tokenizers/llama.model "$folder/llama/step-00000004/tokenizer.model" &&
    ok "a resumed run takes its vocabulary along" || bad "a resumed run takes its vocabulary along" "$(ls "$folder"/llama/*)"
"$program" --train "$data" --model "$folder/llama/step-00000004" --seq-len 32 --steps 1 --sample-tokens 0 --out "$folder/onward" >/dev/null 2>&1
cmp -s dev/test/tokenizers/llama.model "$folder/onward/step-00000001/tokenizer.model" && ok "and so does one from its weights" || bad "and so does one from its weights" "$(ls "$folder"/onward/*)"
for file in model.safetensors tokenizer.model; do
    rm -rf "$folder/fallen" && cp -r "$folder/llama" "$folder/fallen"
    on() { "$program" --train "$data" --resume --save-every 1 --keep 2 --sample-tokens 0 --out "$folder/fallen" --steps "$1" 2>&1 >/dev/null; }
    on 6 >/dev/null && truncate -s -7 "$folder/fallen/step-00000006/$file"
    said=$(on 8)
    ! grep -q '^warning' <<<"$said" && [ -d "$folder/fallen/damaged-1-step-00000006" ] && cmp -s dev/test/tokenizers/llama.model "$folder/fallen/step-00000008/tokenizer.model" &&
        ok "and so does one that continues from before a damaged $file" || bad "and so does one that continues from before a damaged $file" "$said" "$(ls "$folder"/fallen/*)"
done
rm -rf "$folder/alone" && mkdir "$folder/alone" && mv "$folder/fallen/step-00000008" "$folder/alone/" && truncate -s -7 "$folder/alone/step-00000008/tokenizer.model"
said=$("$program" --train "$data" --resume --steps 9 --out "$folder/alone" --quiet 2>&1)
[[ $said == *"skipping the checkpoint "*"tokenizer.model is damaged: "*"error: $folder/alone: none of its checkpoints (1) is valid; "* ]] &&
    ok "an only checkpoint with a damaged vocabulary is called so" || bad "an only checkpoint with a damaged vocabulary is called so" "$said"
# a model's own files stay those that --model names, and may get a vocabulary later
cp -r "$folder/onward/step-00000001" "$folder/bare" && rm "$folder/bare"/{token*,generation_config.json,manifest.json}
later() { "$program" --train "$data" --model "$folder/bare" --seq-len 32 --steps "$1" --sample-tokens 0 --quiet --out "$folder/later" "${@:2}"; }
later 1 && cp dev/test/tokenizers/llama.model "$folder/bare/tokenizer.model" && echo '{"top_k": 7}' >"$folder/bare/generation_config.json" && later 2 --resume
cmp -s dev/test/tokenizers/llama.model "$folder/later/step-00000002/tokenizer.model" && grep -q '"top_k": 7' "$folder/later/step-00000002/generation_config.json" &&
    ok "a resumed run takes what --model has got since" || bad "a resumed run takes what --model has got since" "$(ls "$folder"/later/*)"
cp -r "$folder/onward/step-00000001" "$folder/foreign" && echo '{"model": {"type": "Unigram"}}' >"$folder/foreign/tokenizer.json"
for flag in --model --tokenizer; do
    refuses "a checkpoint whose tokenizer.json has changed, by $flag" 2 "foreign/tokenizer.json is damaged: .* remove its manifest.json if you changed the file on purpose" --train "$data" $flag "$folder/foreign" --steps 1
done
rm "$folder/foreign/manifest.json"
said=$("$program" --train "$data" --model "$folder/foreign" --seq-len 32 --steps 1 --sample-tokens 0 --quiet --out "$folder/taken" 2>&1)
[[ $said == "note: tokenizer $folder/foreign/tokenizer.json: "*"; samples print token ids"* ]] && cmp -s "$folder/foreign/tokenizer.json" "$folder/taken/step-00000001/tokenizer.json" &&
    ok "one of another kind is named, and taken along" || bad "one of another kind is named, and taken along" "$said; $(ls "$folder"/taken/*)"
grep -q "\"tokenizer\":\"$folder/llama/step-" <(tail -n 1 <(grep '"settings"' "$folder/llama/log.jsonl")) && ok "and its log names that" || bad "and its log names that"
of_llama="of the vocabulary in $folder/llama/step-00000004; remove \-\-tokenizer$"
for how in "--model $folder/llama/step-00000004 --prompt hello" "--out $folder/llama --resume --train $data --steps 5"; do
    # shellcheck disable=SC2086 # flags are words
    {
        refuses "another vocabulary than the checkpoint's own, ${how%% *}" 1 "^error: \-\-tokenizer dev/test/tokenizers/llama3.json: [0-9]+ of its first [0-9]+ tokens differ from those $of_llama" $how --tokenizer dev/test/tokenizers/llama3.json --quiet
        refuses "and bytes" 1 "^error: \-\-tokenizer bytes: its 257 tokens are not the [0-9]+ $of_llama" $how --tokenizer bytes --quiet
    }
done
for how in "--prompt hello" "--train $data --steps 5"; do
    # shellcheck disable=SC2086 # flags are words
    refuses "another model by its name, $how" 1 '^error: \-\-model llama:d9: the run.s model has layers [0-9]+, and this has 9; remove \-\-model$' --out "$folder/llama" --resume $how --model llama:d9 --quiet
done
LC_ALL=C sed 's/\(\xe2\x96\x81\)the\x15/\1thx\x15/' dev/test/tokenizers/llama.model >"$folder/one.model"
refuses "and one of which a single token is another" 1 "one.model: 1 of its first 560 tokens differs from those $of_llama" --out "$folder/llama" --resume --train "$data" --steps 5 --quiet --tokenizer "$folder/one.model"
[ "$(cd "$folder/llama" && echo step-*)" = step-00000004 ] && "$program" --train "$data" --resume --steps 5 --sample-tokens 0 --tokenizer dev/test/tokenizers/llama.model --quiet --out "$folder/llama" >/dev/null 2>&1
[ -s "$folder/llama/step-00000005/tokenizer.model" ] && ok "its own may be named" || bad "its own may be named" "$(ls "$folder"/llama/*)"
refuses "prompt without a vocabulary" 1 "tokenizer" --model "$folder/v300/step-00000002" --prompt hello --quiet
mkdir "$folder/words" # 301 tokens
{ for i in $(seq 0 299); do echo "\"t$i\": $i"; done; echo '"<|endoftext|>": 300'; } | paste -sd, | sed 's/.*/{&}/' >"$folder/words/vocab.json"
echo '#version: 0.2' >"$folder/words/merges.txt"
bytes_are="and the model's vocabulary 257, which are bytes; use \-\-tokenizer bytes"
for how in "--model $folder/straight/step-00000020" "--out $folder/straight --resume"; do
    for what in "--prompt hello" "--val $val --val-batches 1 --eval-only" "--train $data --steps 30"; do
        # shellcheck disable=SC2086 # flags are words
        {
            refuses "a vocabulary of more tokens than the model's, ${how%% *}, ${what%% *}" 1 "^error: \-\-tokenizer $folder/words: it has 301 tokens, $bytes_are$" $how $what --tokenizer "$folder/words" --seq-len 32 --quiet
            refuses "and GPT-2's by name" 1 "^error: \-\-tokenizer gpt2: it has 50257 tokens, $bytes_are$" $how $what --tokenizer gpt2 --seq-len 32 --quiet
        }
    done
done
[ ! -e "$folder/straight/step-00000030" ] && ok "and nothing is trained" || bad "and nothing is trained"
refuses "GPT-2's for a model of neither" 1 "^error: \-\-tokenizer gpt2: it has 50257 tokens, and the model's vocabulary 300; name the vocabulary that the model was trained with$" --model "$folder/v300/step-00000002" --tokenizer gpt2 --prompt hello
refuses "a file with one token more than a new model" 1 "^error: \-\-vocab 300: the vocabulary of \-\-tokenizer $folder/words has 301 tokens; use \-\-vocab 301$" "${run[@]}" --tokenizer "$folder/words" --vocab 300
refuses "GPT-2's for a new model" 1 "^error: \-\-vocab 300: the vocabulary of \-\-tokenizer gpt2 has 50257 tokens; use \-\-vocab 50257$" "${run[@]}" --tokenizer gpt2 --vocab 300
"$program" "${run[@]}" --tokenizer "$folder/words" --vocab 301 --steps 1 >/dev/null && ok "what it advises works" || bad "what it advises works"
refuses "bytes for another vocabulary" 1 "\-\-tokenizer bytes: it has 257 tokens, and the model's vocabulary 300; name the vocabulary" --model "$folder/v300/step-00000002" --tokenizer bytes --prompt hello --quiet
# a text that is asked for comes alone
sample() { "$program" --model "$folder/straight/step-00000020" --prompt 'static ' --sample-tokens 20 "$@" >"$folder/text" 2>"$folder/said"; }
sample && [[ $(tr -d '\0' <"$folder/text") == 'static '* ]] && [ "$(wc -c <"$folder/text")" -ge 28 ] && [ ! -s "$folder/said" ] && ok "--prompt continues a text, and prints it alone" || bad "--prompt continues a text, and prints it alone" "$(cat "$folder/said" "$folder/text")"
cp "$folder/text" "$folder/one"
sample --no-quiet && cmp -s "$folder/one" "$folder/text" && grep -q '^model ' "$folder/said" && ok "with --no-quiet its page is on standard error" || bad "with --no-quiet its page is on standard error" "$(cat "$folder/said")"
"$program" --out "$folder/straight" --resume --prompt 'static ' --sample-tokens 20 >"$folder/text" 2>"$folder/said" && cmp -s "$folder/one" "$folder/text" && [ ! -s "$folder/said" ] && ok "and alone, too, from a run" || bad "and alone, too, from a run" "$(cat "$folder/said")"
sample --seed 7 && ! cmp -s "$folder/one" "$folder/text" && ok "another seed gives another" || bad "another seed gives another"
sample --samples 3 && cp "$folder/text" "$folder/three"
[ "$(grep -a '^--- sample' "$folder/three")" = "$(printf -- '--- sample %d of 3\n' 1 2 3)" ] && [ ! -s "$folder/said" ] && cmp -s "$folder/one" <(head -c "$((18 + $(wc -c <"$folder/one")))" "$folder/three" | tail -c +19) &&
    ok "--samples 3: three with a line before each, the first as it is alone" || bad "--samples 3: three with a line before each, the first as it is alone" "$(cat "$folder/three" "$folder/said")"
sample --samples 3 && cmp -s "$folder/three" "$folder/text" && ok "the same each time" || bad "the same each time"
sample --samples 3 --json && cp "$folder/text" "$folder/lines" && [ "$(grep -cE '^\{"step":20,"prompt":\[115,116,97,116,105,99,32\],"sample":\[[0-9]+(,[0-9]+){19}\]\}$' "$folder/lines")" -eq 3 ] && [ "$(sort -u "$folder/lines" | wc -l)" -eq 3 ] && [ ! -s "$folder/said" ] &&
    ok "with --json a line for each, all different" || bad "with --json a line for each, all different" "$(cat "$folder/lines" "$folder/said")"
sample --json && cmp -s "$folder/text" <(head -n 1 "$folder/lines") && ok "the first as it is alone" || bad "the first as it is alone" "$(cat "$folder/text")"
sample --top-p 1 && cmp -s "$folder/one" "$folder/text" && ok "--top-p 1 changes nothing" || bad "--top-p 1 changes nothing"
sample --top-p 0.5 && ! cmp -s "$folder/one" "$folder/text" && cp "$folder/text" "$folder/half" && sample --top-p 0.5 --top-k 300 && cmp -s "$folder/half" "$folder/text" && ok "--top-p 0.5 does, and --top-k may be beside it" || bad "--top-p 0.5 does, and --top-k may be beside it"
sample --temperature 0 && cp "$folder/text" "$folder/most_likely" && sample --top-p 1e-9 && cmp -s "$folder/most_likely" "$folder/text" && ok "a tiny one leaves the most likely token" || bad "a tiny one leaves the most likely token"
"$program" "${run[@]}" --sample-tokens 4 --samples 2 --prompt ab >"$folder/said" 2>&1 && [ "$(grep -ac '^--- sample [12] of 2$' "$folder/said")" -eq 2 ] && ok "--samples while training" || bad "--samples while training" "$(cat "$folder/said")"
"$program" "${run[@]}" --steps 60 --overfit-one-batch --lr 3e-3 --out "$folder/overfit" >/dev/null &&
    awk -F'"loss":' '/"loss"/ { split($2, v, ","); if (!n++) first = v[1]; last = v[1] } END { exit !(last < first - 1) }' "$folder/overfit/log.jsonl" &&
    ok "--overfit-one-batch does" || bad "--overfit-one-batch does"

# the folder of a run in place of its checkpoint
mkdir "$folder/nested" && cp -r "$folder/straight/step-00000010" "$folder/nested/step-00000030"
refuses "a run in place of its model" 2 "^error: $folder/nested has no config.json; name a checkpoint of this run: $folder/nested/step-00000030$" --model "$folder/nested" --prompt x
mkdir "$folder/hollow"
refuses "a folder of neither" 2 "^error: $folder/hollow has no config.json; name a folder of a model, such as OUT/step-00000020$" --model "$folder/hollow" --prompt x
"$build"/plot_loss "$folder/straight/log.jsonl" "$folder/curve.png" >/dev/null 2>"$folder/said"
[ $? -eq 1 ] && [[ $(cat "$folder/said") == *"$folder/curve.png: the picture is an SVG; name it $folder/curve.svg, "* ]] && [ ! -e "$folder/curve.png" ] && ok "plot_loss refuses another kind of picture" || bad "plot_loss refuses another kind of picture" "$(cat "$folder/said")"
"$build"/plot_loss "$folder/straight/log.jsonl" "$folder/curve.svg" >/dev/null && [ -s "$folder/curve.svg" ] && ok "and draws its own" || bad "and draws its own"

# --- plans
plan=$("$program" --plan=json --model d48 --recipe coat --micro-batch 16 --gpus 4 --zero 3)
[[ $plan == '{"parameters": 1557611200, "total_bytes": '* ]] && ok "--plan=json" || bad "--plan=json" "$plan"
saved_bytes() { grep -o '"saved": [0-9]*' <<<"$1"; }
forward=$("$program" --plan=json --eval-only --model d48 --recipe coat)
[[ $forward == *'"gradients": 0, "moments": 0, "master": 0, '* ]] && [ "$(saved_bytes "$forward")" = "$(saved_bytes "$("$program" --plan=json --eval-only --layers 1 --heads 25 --channels 1600 --recipe coat)")" ] &&
    ok "--plan --eval-only: a forward pass alone, and one layer of it" || bad "--plan --eval-only: a forward pass alone, and one layer of it" "$forward"
[ "$plan" = "$("$program" --plan --json --model d48 --recipe coat --micro-batch 16 --gpus 4 --zero 3)" ] && ok "--plan --json is the same" || bad "--plan --json is the same"
tiny=(--tokenizer bytes --layers 1 --heads 1 --channels 32 --seq-len 24 --recipe coat)
two=$("$program" --plan=json "${tiny[@]}" --micro-batch 2 | sed 's/.*"total_bytes": \([0-9]*\).*/\1/')
refuses "a limit that one sequence fits, which FP8 does not take" 1 "\-\-memory-limit: 1 sequence of 24 tokens fits in [0-9.]+ MB, but --recipe coat accepts no " --plan "${tiny[@]}" --memory-limit $((two - 1))B
said=$("$program" --plan "${tiny[@]}" --recipe bf16 --seq-len 1 --micro-batch 1 | head -n 2)
[[ $said == "model       1 layer, 1 head, 32 channels"*"micro-batch 1 x 1 token, 1 process, "* ]] && ok "one of each is written as one" || bad "one of each is written as one" "$said"
refuses "a memory limit that nothing fits" 1 "the limit is 20\.00 GB; .*moments [0-9.]+ GB \(use --moments coat .*master .*--master split16" --plan --model gpt2-xl --recipe bf16 --memory-limit 20GB
limited() { "$program" --plan "$@" 2>&1 | sed -n 's/^largest micro-batch.*: //p'; }
# what memory alone would allow, 118 and 7, a run would refuse
[ "$(limited --seq-len 1001 --memory-limit 20GB --recipe coat)" = 112 ] && ok "the largest micro-batch suits FP8's products" ||
    bad "the largest micro-batch suits FP8's products" "$(limited --seq-len 1001 --memory-limit 20GB --recipe coat)"
[ "$(limited --batch-tokens 8192 --memory-limit 3200MB --recipe coat)" = 4 ] && ok "and divides the batch" ||
    bad "and divides the batch" "$(limited --batch-tokens 8192 --memory-limit 3200MB --recipe coat)"
refuses "a memory limit under which no run is right" 1 "6 sequences of 1001 tokens fit.*--recipe coat accepts no .*multiple of 16" --plan --seq-len 1001 --memory-limit 3GB --recipe coat
found=$("$program" --plan --model gpt2-xl --recipe coat --memory-limit 40GB | sed '$d')
[ -n "$found" ] && [ "$found" = "$("$program" --plan --model gpt2-xl --recipe coat --micro-batch 19)" ] &&
    grep -qE '^  saved +22\.21 GB +56\.6 %$' <<<"$found" && grep -qE '^  scratch +140\.05 MB +0\.4 %$' <<<"$found" &&
    ok "the table is that of the micro-batch that was found" || bad "the table is that of the micro-batch that was found" "$found"
found=$("$program" --plan=json --model gpt2-xl --recipe coat --memory-limit 40GB)
[ "${found%, \"largest*}}" = "$("$program" --plan=json --model gpt2-xl --recipe coat --micro-batch 19)" ] &&
    ok "as JSON too" || bad "as JSON too" "$found"
bytes_of() { grep -o "\"$1\": [0-9]*" <<<"$plan" | grep -o '[0-9]*$'; } # d48 is gpt2-xl
plan=$("$program" --plan=json --model gpt2-xl --recipe coat --master split16 --micro-batch 16)
awk -v n="$(bytes_of parameters)" -v moments="$(bytes_of moments)" -v rest=$(($(bytes_of weights) + $(bytes_of master))) \
    'BEGIN { exit !(n > 1.5e9 && moments / n > 2 && moments / n < 2.1 && rest / n > 3.99 && rest / n < 4.01) }'
[ $? -eq 0 ] && ok "gpt2-xl: moments of 2.1 bytes per parameter, weights and masters of 4" || bad "gpt2-xl: bytes per parameter" "$plan"
for recipe in bf16 fp8-linear coat; do
    "$program" --plan --model gpt2-xl --recipe $recipe --memory-limit 80GB | grep -q 'largest micro-batch' && ok "--plan --recipe $recipe" || bad "--plan --recipe $recipe"
done

# --- the small programs say how they are used, and what is no use of them
programs=("$build/gradient_check" "$(dirname "$program")/test_gpt2_cpu")
for source in dev/tools/*.c dev/tools/*.cu data/*.c; do
    name=$(basename "${source%.*}")
    case $source in data/*) programs+=("$build/prepare_$name") ;; *) programs+=("$build/$name") ;; esac
done
for tool in "${programs[@]}"; do
    name=$(basename "$tool")
    for flag in --help -h; do
        "$tool" $flag >"$folder/out" 2>"$folder/said" </dev/null
        [ $? -eq 0 ] && [ ! -s "$folder/said" ] && head -n 1 "$folder/out" | grep -q "^usage: .*\b$name\b" && [ "$(wc -l <"$folder/out")" -ge 4 ] && ok "$name $flag" || bad "$name $flag" "$(cat "$folder/out" "$folder/said")"
    done
    "$tool" --nonsense >"$folder/out" 2>"$folder/said" </dev/null
    [ $? -eq 1 ] && [ "$(grep -c . "$folder/said")" -eq 1 ] && [ ! -s "$folder/out" ] && ok "$name --nonsense" || bad "$name --nonsense" "$(cat "$folder/out" "$folder/said")"
done

# --- the help: the commands at its top work as they are
mkdir "$folder/first"
ln -s "$program" "$PWD/coat" "$folder/first"
ln -s "$(realpath "$build")" "$folder/first/build"
"$program" --help | sed -n -e 2p -e '/^  \.\//,/^$/p' >"$folder/first/commands"
(cd "$folder/first" && bash -e commands) >"$folder/said" 2>&1 && [ "$(grep -c '^ *\(\./\|build/\)' "$folder/first/commands")" -eq 4 ] &&
    grep -q '^done: 100 of 100 steps' "$folder/said" && grep -q '^static ' "$folder/said" && grep -q '^largest micro-batch under 80.00 GB: ' "$folder/said" &&
    ok "the commands at the top of --help work" || bad "the commands at the top of --help work" "$(cat "$folder/first/commands" "$folder/said")"
[ "$("$program" --help optimizer | grep -c '^  --')" -eq "$("$program" --help=markdown | sed -n '/\*\*Optimizer/,/^| \*\*[^O]/p' | grep -c '^| `--')" ] && ok "--help optimizer is one group" || bad "--help optimizer is one group" "$("$program" --help optimizer)"

# --- the list of flags
difference=$(diff <(sed -n '/^| Flag/,$p' docs/flags.md) <("$program" --help=markdown)) && ok "docs/flags.md has every flag as it is" ||
    bad "docs/flags.md has every flag as it is: make it again as its head says" "$difference"
exit $failures
