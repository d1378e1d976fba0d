#!/usr/bin/env bash
# Tests training on token files with a loss mask: the loss is the mean over unmasked targets, however a step is divided
# into micro-batches and among processes.
source "$(dirname "$0")/ranks.sh"
needs_python "training with masks"

# Writes files with the tokens of src_train.bin and src_val.bin and a mask. some_*.bin: random, few unmasked targets in
# the first half and many in the second. ones_*.bin: all ones.
data_python "$folder" <<'PYTHON' || exit 1
import random
import sys

from prepare_masks import masked_file

folder, pick = sys.argv[1], random.Random(1)
for split in ("train", "val"):
    with open("%s/src_%s.bin" % (folder, split), "rb") as file:
        header, tokens = file.read(1024), file.read()
    count = len(tokens) // 2
    some = bytes(pick.random() < (0.1 if i < count / 2 else 0.7) for i in range(count))
    for name, mask in (("some", some), ("ones", b"\1" * count)):
        with open("%s/%s_%s.bin" % (folder, name, split), "wb") as file:
            file.write(masked_file(2, tokens, range(0, count, 50), mask))
PYTHON

base=(--examples split --tokenizer bytes --layers 2 --heads 2 --channels 64 --seq-len 32 --sample-tokens 0 --quiet --device cpu --lr 1e-3 --warmup 5)
files() { flags=("${base[@]}" --train "$folder/$1_train.bin" --val "$folder/$1_val.bin"); }

fp32=(--precision fp32 --steps 6 --batch-tokens 512 --val-every 3)
files some
train 1 whole "${fp32[@]}" --micro-batch 16 --val-batches 4 && train 1 eight "${fp32[@]}" --micro-batch 2 --val-batches 32 &&
    train 2 two "${fp32[@]}" --micro-batch 2 --val-batches 32 --zero 2
for name in eight two; do
    case $name in eight) division="eight micro-batches" ;; two) division="two processes" ;; esac
    near "masked targets: $division have the losses of one micro-batch of 16" loss 1e-6 whole $name
    near "masked targets: $division have the gradient norms of one micro-batch of 16" grad_norm 1e-5 whole $name
    near "masked targets: $division have the validation losses of one micro-batch of 16" val_loss 1e-6 whole $name
    [ "$(values counted whole)" = "$(values counted $name)" ] && [ "$(values counted whole | wc -l)" -eq 6 ]
    check "masked targets: $division log the fractions of unmasked targets of one micro-batch of 16" $? "$(values counted $name)"
done
[ "$(values counted whole | awk '$1 > 0.2 && $1 < 0.6' | wc -l)" -eq 6 ]
check "masked targets: the logged fractions are those of the files" $? "$(values counted whole)"

# Evaluates the weights of run "whole" on its validation data, in 64 micro-batches of 1 sequence instead of 4 of 16.
"$program" --eval-only --model "$folder/whole/step-00000006" --val "$folder/some_val.bin" --micro-batch 1 --val-batches 64 --precision fp32 \
    --tokenizer bytes --device cpu --json >"$folder/eval" 2>/dev/null
awk -v a="$(field val_loss "$folder/eval")" -v b="$(values val_loss whole | tail -n 1)" \
    'BEGIN { d = a - b; exit !(a > 0 && d * d < 1e-11) }'; check "--eval-only with a mask has the loss of training" $? "$(cat "$folder/eval")"

# Validation on all data must give the same loss for any division. The data are 7 sequences and 19 remaining tokens,
# without a mask (seven_val.bin) and with one (masked_val.bin).
data_python "$folder" <<'PYTHON' || exit 1
import random
import struct
import sys

from prepare_masks import masked_file

folder, pick, count = sys.argv[1], random.Random(2), 7 * 32 + 1 + 19
with open(folder + "/src_val.bin", "rb") as file:
    header, tokens = bytearray(file.read(1024)), file.read(2 * count)
header[8:12] = struct.pack("<i", count)
header[32:40] = bytes(8)  # no checksum
with open(folder + "/seven_val.bin", "wb") as file:
    file.write(header + tokens)
with open(folder + "/masked_val.bin", "wb") as file:
    file.write(masked_file(2, tokens, range(0, count, 32), bytes(pick.random() < 0.4 for i in range(count))))
PYTHON
all_losses() { # NAME: prints the loss on all of NAME_val.bin for each micro-batch and number of processes
    local processes micro
    for processes in 1 2 3; do
        for micro in 1 2 3 4 5 6 7 8 9; do
            local command=("$program" --eval-only --model "$folder/whole/step-00000006" --val "$folder/$1_val.bin" --micro-batch "$micro"
                --val-batches -1 --precision fp32 --seq-len 32 --examples split --tokenizer bytes --device cpu --json --quiet)
            [ "$processes" -eq 1 ] || command=("${mpirun[@]}" -np "$processes" "${command[@]}")
            echo "$processes processes, $micro: $(timeout 100 "${command[@]}" 2>&1 </dev/null | field val_loss)"
        done
    done
}
for name in seven masked; do
    all_losses $name >"$folder/losses"
    awk '{ x = $NF + 0; if (NR == 1) first = x; d = x - first; if (!(x > 1 && d * d < 1e-12)) bad = 1 } END { exit bad || NR != 27 }' "$folder/losses"
    check "all of ${name}_val.bin has the same loss with any micro-batch and number of processes" $? "$(cat "$folder/losses")"
done
flags=("${base[@]}" --train "$folder/src_train.bin" --val "$folder/seven_val.bin")
for micro in 3 8; do train 1 all$micro --precision fp32 --lr 0 --steps 1 --val-batches -1 --micro-batch $micro; done
near "all validation data have the same loss during training" val_loss 1e-6 all3 all8

# A mask of ones changes no bit, in FP8 too.
coat=(--recipe coat --micro-batch 4 --batch-tokens 256 --steps 4 --save-every 2 --val-every 2 --val-batches 4)
for name in ones src; do files $name && train 1 $name "${coat[@]}"; done
different=$(for file in "$folder"/ones/step-00000004/*; do cmp -s "$file" "$folder/src/step-00000004/${file##*/}" || basename "$file"; done | sort | xargs)
[ "$different" = "manifest.json state.json" ]; check "a mask of ones gives the checkpoint of no mask" $? "$different"
is "a mask of ones gives the log of no mask, apart from counted" "$(strip "$folder/ones/log.jsonl" | sed 's/"counted":1,//')" "$(strip "$folder/src/log.jsonl")"

# A run that is resumed in the middle equals an uninterrupted one.
files some
train 1 straight "${coat[@]}" && train 1 resumed "${coat[@]}" --steps 2 && train 1 resumed "${coat[@]}" --resume &&
    same "a masked run that is resumed has the bits of an uninterrupted one" 00000004 straight resumed
is "a masked run that is resumed has the log of an uninterrupted one" "$(strip "$folder/resumed/log.jsonl")" "$(strip "$folder/straight/log.jsonl")"
if timeout 60 "$program" "${base[@]}" "${coat[@]}" --train "$folder/ones_train.bin" --out "$folder/resumed" --steps 6 --resume >"$folder/said" 2>&1; then
    bad "another mask is refused as other data" "$(cat "$folder/said")"
else
    grep -q 'was trained on different data (1 shard, .* in the loss; .* 100 % in the loss;' "$folder/said"
    check "another mask is refused as other data" $? "$(cat "$folder/said")"
fi

# --epochs N trains the steps that N passes over the sequences fill, also if resumed on another number of processes.
sequences() { # LENGTH: prints the number of sequences of this length that have an unmasked target
    python3 - "$folder/some_train.bin" "$1" <<'PYTHON'
import struct
import sys

T = int(sys.argv[2])
with open(sys.argv[1], "rb") as file:
    tokens, width, examples = struct.unpack("<8x3i", file.read(20))
    file.seek(1024 + tokens * width + 4 * examples)
    mask = int.from_bytes(file.read(), "little") >> 1
print(sum((mask >> T * i & (1 << T) - 1) != 0 for i in range((tokens - 1) // T)))
PYTHON
}
sequences=$(sequences 32) longer=$(sequences 64)
steps=$((3 * sequences / 2048)) epochs=(--precision fp32 --layers 1 --heads 1 --channels 32 --batch-tokens 65536 --schedule cosine --lr-final 0.1 --val-every 0 --val-batches 1)
train 1 epochs "${epochs[@]}" --micro-batch 64 --epochs 3 --save-every 7 && train 1 counted "${epochs[@]}" --micro-batch 64 --steps $steps
[ "$(values loss epochs | wc -l)" -eq $steps ] && [ -e "$folder/epochs/step-00000007" ] && ok "--epochs 3 is $steps steps over 3 times $sequences sequences" ||
    bad "--epochs 3 sets the number of steps" "$(values loss epochs | wc -l) steps, not $steps of $sequences sequences"
diff "$folder/epochs/step-$(printf %08d $steps)/model.safetensors" "$folder/counted/step-$(printf %08d $steps)/model.safetensors"
check "--epochs gives the bits of the same number of --steps" $?
mkdir "$folder/other" && cp -r "$folder/epochs/step-00000007" "$folder/epochs/log.jsonl" "$folder/other" && train 2 other "${epochs[@]}" --micro-batch 16 --resume
near "a run with --epochs, resumed on another number of processes, has the same losses" loss 1e-6 epochs other
# with twice the --seq-len, a step of the same tokens has 1024 instead of 2048 sequences
steps_longer=$((7 + (3 * longer - 7 * 2048 * longer / sequences) / 1024))
mkdir "$folder/longer" && cp -r "$folder/epochs/step-00000007" "$folder/longer" && train 1 longer "${epochs[@]}" --seq-len 64 --micro-batch 32 --epochs 3 --resume
[ -e "$folder/longer/step-$(printf %08d $steps_longer)" ]
check "--epochs 3 with another --seq-len is $steps_longer steps" $? "$(ls "$folder/longer")"
ended() { "$program" "${flags[@]}" "${epochs[@]}" --no-quiet --micro-batch 64 --out "$folder/epochs" "$@" 2>&1 | grep -oE "^note: --steps is not set|raise --[a-z]* to continue|--resume=.*"; }
said=$(ended --resume --epochs 3 && ended --resume && ended --resume=$steps --epochs 3)
[ "$said" = "raise --epochs to continue
note: --steps is not set
raise --epochs to continue
--resume=$steps: the run has already reached --epochs 3 at that step; raise --steps or --epochs" ]; check "a finished run with --epochs names the flags that continue it" $? "$said"
if "$program" "${flags[@]}" --epochs 2 --steps 3 >"$folder/said" 2>&1; then bad "--epochs that contradicts --steps is refused" "$(cat "$folder/said")"; else
    grep -q 'error: --epochs 2 contradicts --steps 3' "$folder/said"; check "--epochs that contradicts --steps is refused" $? "$(cat "$folder/said")"; fi

# The report shows the fraction of unmasked targets. A damaged file is refused.
loud=("${base[@]/--quiet/--no-quiet}")
"$program" "${loud[@]}" --train "$folder/some_train.bin" --micro-batch 2 --steps 1 >"$folder/said" 2>&1
grep -qE '^train +1 shard, .* tokens, uint16, [0-9.]+ % in the loss$' "$folder/said"
check "the report shows the fraction of unmasked targets" $? "$(cat "$folder/said")"
printf '\1' | dd of="$folder/some_train.bin" bs=1 seek=5000 conv=notrunc 2>/dev/null
"$program" "${loud[@]}" --train "$folder/some_train.bin" --micro-batch 2 --steps 1 >"$folder/said" 2>&1
[ $? -eq 2 ] && [ "$(grep -c 'error: .*some_train.bin is damaged: its checksum' "$folder/said")" -eq 1 ]
check "a damaged file is refused with one error line and exit code 2" $? "$(cat "$folder/said")"

# Prepares records with data/prepare.py, and trains on its files.
for i in $(seq 400); do echo "{\"query\": \"how many is $((i % 90)) and one?\", \"response\": \"$((i % 90 + 1))\"}"; done >"$folder/chat.jsonl"
if python3 -B data/prepare.py --bytes --chat --prompt-format plain --val-fraction 0.1 --workers 1 --out "$folder/chat" "$folder/chat.jsonl" >"$folder/said" &&
    flags=("${base[@]}" --train "$folder/chat_train_*.bin" --val "$folder/chat_val_*.bin") && train 1 chat --micro-batch 4 --steps 30; then
    awk -v first="$(values loss chat | head -n 1)" -v last="$(values val_loss chat | tail -n 1)" 'BEGIN { exit !(first > 5 && last < 4) }'
    check "a run learns answers from data/prepare.py --chat" $? "$(cat "$folder/chat/log.jsonl")"
    "$program" "${loud[@]}" --examples cut --train "$folder/chat_train_*.bin" --micro-batch 4 --steps 30 --out "$folder/packed" >"$folder/page" 2>&1
    grep -qE '^examples +3[0-9]{2} in [0-9]+ sequences, [0-9.]+ % full(, [0-9]+ truncated to 32 \+ 1 tokens)?$' "$folder/page" &&
        awk -v last="$(values loss packed | tail -n 1)" 'BEGIN { exit !(last < 4) }'; check "a run learns packed examples" $? "$(cat "$folder/page")"
    # data made with a chat template record no prompt format
    data_python "$folder" <<'PYTHON'
import struct
import sys

from prepare_masks import masked_file

tokens = [i * 7 % 97 for i in range(400)]
with open(sys.argv[1] + "/unnamed.bin", "wb") as file:
    file.write(masked_file(2, struct.pack("<400H", *tokens), range(0, 400, 20), bytes(i % 20 > 9 for i in range(400))))
PYTHON
    asked() { "$program" "${loud[@]}" --examples cut --micro-batch 4 --prompt 1 --sample-tokens 2 "$@" 2>&1 >/dev/null | grep "^note: \(--prompt\|--train\|the prompts\)"; }
    asked --train "$folder/unnamed.bin" --steps 1 --out "$folder/unnamed" >"$folder/notes"
    "$program" --out "$folder/unnamed" --resume --device cpu --prompt 1 --sample-tokens 2 2>&1 >/dev/null | grep "^note: --prompt" >>"$folder/notes"
    asked --train "$folder/unnamed.bin" --steps 1 --prompt-format none --out "$folder/none" >>"$folder/notes"
    "$program" --out "$folder/none" --resume --device cpu --prompt 1 --sample-tokens 2 2>&1 >/dev/null | grep "^note: --prompt" >>"$folder/notes"
    asked --train "$folder/unnamed.bin" --steps 1 --prompt "" >>"$folder/notes"
    asked --train "$folder/chat_train_*.bin" --steps 1 >>"$folder/notes"
    asked --train "$folder/src_train.bin" --steps 1 >>"$folder/notes"
    [ "$(cat "$folder/notes")" = "note: --prompt is continued as plain text, because the training data has no prompt format; use --prompt-format NAME
note: --prompt is continued as plain text, because the checkpoint contains no prompt format; use --prompt-format NAME" ]
    check "a prompt without a known format prints a note" $? "$(cat "$folder/notes")"
    # The report shows how many of the validation sequences are evaluated, and how many examples are truncated.
    val=("$program" "${loud[@]}" --examples cut --train "$folder/chat_train_*.bin" --val "$folder/chat_val_*.bin" --micro-batch 4 --steps 1)
    for batches in 2 -1; do "${val[@]}" --val-batches $batches 2>/dev/null | sed -n '/^validation/,/^batch/p' | tr '\n' ' ' | tr -s ' ' >"$folder/val$batches"; done
    grep -qE '% in the loss, the first 8 of [0-9]+ sequences every 20 steps [0-9]+ examples in [0-9]+ sequences, [0-9.]+ % full(, [0-9]+ truncated to 32 \+ 1 tokens)? batch ' "$folder/val2" &&
        grep -qE '% in the loss, every 20 steps [0-9]+ examples in ' "$folder/val-1"; check "the report shows the evaluated validation examples" $? "$(cat "$folder"/val{2,-1})"
    # validation evaluates every example with any micro-batch, also if --val-batches 200 exceeds their number
    evaluated=("$program" --eval-only --model "$folder/packed/step-00000030" --val "$folder/chat_val_*.bin" --val-batches -1 --seq-len 64
        --documents apart --precision fp32 --tokenizer bytes --device cpu --json)
    losses=""
    for micro_batch in 1 4 5 8 200; do losses+=" $("${evaluated[@]}" --micro-batch $micro_batch 2>"$folder/evaluated" | field val_loss)"; done
    for micro_batch in 4 200; do losses+=" $("${mpirun[@]}" -np 2 "${evaluated[@]}" --micro-batch $micro_batch 2>"$folder/evaluated" | field val_loss)"; done
    awk '{ for (i = 1; i <= NF; i++) { d = $i - $1; if (d * d > 1e-12 * $1 * $1) exit 1 }; exit !(NF == 7 && $1 > 0) }' <<<"$losses"
    check "the validation loss of examples is the same with any micro-batch and on two processes" $? "$losses" "$(cat "$folder/evaluated")"
    share=$(sed -n 's/.*; \([0-9.]*\) % of all tokens have.*/\1/p' "$folder/said")
    awk -v share="$share" -v counted="$(values counted chat | awk '{ sum += $1 } END { print 100 * sum / NR }')" \
        'BEGIN { d = share - counted; exit !(share > 5 && d * d < 1) }'; check "the logged fraction of unmasked targets is that of data/prepare.py" $? "$(cat "$folder/said")"
    python3 -B data/prepare.py --bytes --chat --prompt-format alpaca --val-fraction 0 --workers 1 --out "$folder/other" "$folder/chat.jsonl" >/dev/null
    said=$(asked --train "$folder/chat_train_*.bin" --val "$folder/other_train_*.bin" --steps 1 --seq-len 512)
    [ "$said" = "note: the prompts of --train have the format plain, those of --val alpaca; check the files" ]
    check "different prompt formats of --train and --val print a note" $? "$said"
    for format in "" "--prompt-format plain"; do
        # shellcheck disable=SC2086 # flags are words
        "$program" "${loud[@]}" $format --train "$folder/*_train_000000.bin" --micro-batch 4 --steps 1 2>&1 | grep "^note: --train has prompts" >"$folder/said"
        cat "$folder/said" >>"$folder/formats"
    done
    [ "$(cat "$folder/formats")" = "note: --train has prompts in the formats plain and alpaca, so checkpoints record none; choose one with --prompt-format plain or alpaca" ]
    check "--train files of two prompt formats print a note unless a flag names one" $? "$(cat "$folder/formats")"
else
    bad "data/prepare.py --chat succeeds" "$(cat "$folder/said")"
fi
exit $failures
