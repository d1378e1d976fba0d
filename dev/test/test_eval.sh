#!/usr/bin/env bash
# HellaSwag in the trainer, with examples made here: their right ending is how a text continues, the others are
# letters in any order. On the CPU's program; in `make test-long` also with transformers.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
root=$PWD

# succeeds NAME COMMAND...: whether it succeeds
succeeds() {
    local name=$1 said
    shift
    if said=$("$@" 2>&1); then ok "$name"; else bad "$name" "$said"; fi
}

command -v python3 >/dev/null || {
    echo "skip - HellaSwag in the trainer: no python3"
    exit 77
}
text "$folder/texts" && "$build"/prepare_bytes --out "$folder/src" "$folder/texts" >/dev/null || exit 1

# 60 examples, each four times with its endings turned by one: turned-0 ... turned-3; labels-0 ... labels-3 keep the
# endings and turn the label.
python3 - "$folder" <<'PYTHON'
import json, random, sys
folder, pick = sys.argv[1], random.Random(5)
with open(folder + "/src_val.bin", "rb") as file:
    tokens = memoryview(file.read()[1024:]).cast("H")
text = bytes(t for t in tokens if t < 128).decode()
def span(at, length):
    return text[at:at + length]
examples = []
for i in range(60):
    at, length = pick.randrange(len(text) - 100), pick.randrange(20, 60)
    endings = [span(at + length, pick.randrange(5, 20))]
    for _ in range(3):  # of every other example the letters of another place, in any order: hard to tell from text
        other = span(pick.randrange(len(text) - 30), pick.randrange(5, 20))
        letters = pick.sample(other, len(other)) if i % 2 else [chr(pick.randrange(33, 127)) for _ in other]
        endings.append("".join(letters))
    examples.append((span(at, length), endings))
for turn in range(4):
    with open("%s/turned-%d.jsonl" % (folder, turn), "w") as turned, open("%s/labels-%d.jsonl" % (folder, turn), "w") as labels:
        for number, (situation, endings) in enumerate(examples):
            place = (number + turn) % 4
            print(json.dumps({"ctx": situation, "endings": endings[-place:] + endings[:-place], "label": place}), file=turned)
            print(json.dumps({"ctx": situation, "endings": endings, "label": turn}), file=labels)
PYTHON
for name in turned labels; do
    for turn in 0 1 2 3; do
        python3 data/prepare.py --bytes --hellaswag --out "$folder/$name-$turn" "$folder/$name-$turn.jsonl" >/dev/null || exit 1
    done
done

flags=(--tokenizer bytes --seq-len 96 --micro-batch 6 --sample-tokens 0 --threads 2)
model=(--layers 2 --heads 2 --channels 64 --train "$folder/src_train.bin" --val "$folder/src_val.bin" --val-batches 2)
train=("${flags[@]}" "${model[@]}" --steps 120 --lr 4e-3 --warmup 10 --val-every 60)
# share LOG: the last in a log; shares LOG: all of them, with their steps
share() { sed -n 's/.*"hellaswag":\([0-9.e-]*\).*/\1/p' | tail -n 1; }
shares() { sed -n 's/.*"step":\([0-9]*\),"hellaswag".*/\1/p' "$1" | tr '\n' ' '; }
evaluate() { "$program" "${flags[@]}" --model "$checkpoint" --hellaswag "$1" --eval-only --json --quiet "${@:2}"; }

# --- during training
"$program" "${train[@]}" --out "$folder/plain" --quiet >/dev/null || bad "training"
"$program" "${train[@]}" --hellaswag "$folder/turned-0.bin" --hellaswag-every 40 --out "$folder/run" >"$folder/said" || bad "training with HellaSwag"
[ "$(shares "$folder/run/log.jsonl")" = "40 80 120 " ] && ok "every --hellaswag-every steps" || bad "every --hellaswag-every steps" "$(cat "$folder/run/log.jsonl")"
grep -qE '^HellaSwag [0-9.]+% \([0-9]+ of 60\) after 120 steps$' "$folder/said" && ok "a line on the terminal" || bad "a line on the terminal" "$(grep Hella "$folder/said")"
grep -qa hellaswag "$folder"/run/events.out.tfevents.* && ok "and in TensorBoard's file" || bad "and in TensorBoard's file"
succeeds "training does not notice it" diff -r "$folder/plain/step-00000120" "$folder/run/step-00000120"
"$program" "${train[@]}" --steps 60 --hellaswag "$folder/turned-0.bin" --out "$folder/default" --quiet >/dev/null
[ "$(shares "$folder/default/log.jsonl")" = "60 " ] && ok "as --val-every otherwise" || bad "as --val-every otherwise" "$(shares "$folder/default/log.jsonl")"
"$program" "${train[@]}" --steps 4 --val-every 2 --hellaswag-every 0 --hellaswag "$folder/turned-0.bin" --out "$folder/end" --quiet >/dev/null
[ "$(shares "$folder/end/log.jsonl")" = "4 " ] && ok "--hellaswag-every 0: only at the end" || bad "--hellaswag-every 0: only at the end" "$(shares "$folder/end/log.jsonl")"

# --- a test that the end of a run came across is made up for, like a validation, and no other is repeated
resumed=("${train[@]}" --hellaswag "$folder/turned-0.bin" --hellaswag-every 40 --save-every 40 --out "$folder/missed" --quiet)
"$program" "${resumed[@]}" >/dev/null || bad "training with checkpoints"
cut=$folder/missed/log.jsonl
again() { # WHAT: continues, and has the log of the run without interruption
    "$program" "${resumed[@]}" --resume >/dev/null 2>&1 || bad "resuming"
    succeeds "$1" diff <(strip "$folder/run/log.jsonl") <(strip "$cut")
}
sed -i '/"step":40,"hellaswag"/d' "$cut" && rm -r "$folder"/missed/step-00000080 "$folder"/missed/step-00000120
again "a test that was missed in the middle is made up for"
sed -i '/"step":120,"hellaswag"/d' "$cut"
again "and one at the end"
again "and none is repeated"

# --- by itself
checkpoint=$folder/run/step-00000120
trained=$(evaluate "$folder/turned-0.bin" | share)
[ -n "$trained" ] && [ "$trained" = "$(share <"$folder/run/log.jsonl")" ] && ok "--eval-only repeats it" || bad "--eval-only repeats it" "$trained"
awk -v s="$trained" 'BEGIN { exit !(s > 0.5) }' && ok "the model has learned: $trained where guessing is 0.25" || bad "the model has learned" "$trained"
same=yes sum=0
plain=$(evaluate "$folder/turned-0.bin" --recipe bf16 | share) # without scales that a whole batch shares
for turn in 1 2 3; do [ "$(evaluate "$folder/turned-$turn.bin" --recipe bf16 | share)" = "$plain" ] || same=no; done
[ $same = yes ] && ok "the order of the endings does not matter" || bad "the order of the endings does not matter"
for turn in 0 1 2 3; do sum="$sum + $(evaluate "$folder/labels-$turn.bin" | share)"; done
awk "BEGIN { d = $sum - 1; exit !(d < 1e-6 && d > -1e-6) }" && ok "one ending of each example wins" || bad "one ending of each example wins" "$sum"
[ "$(evaluate "$folder/turned-0.bin" --micro-batch 1 --precision fp32 | share)" = "$(evaluate "$folder/turned-0.bin" --micro-batch 7 --precision fp32 | share)" ] &&
    ok "rows may be batched in any number" || bad "rows may be batched in any number"
both=$(evaluate "$folder/turned-0.bin" --val "$folder/src_val.bin" --val-batches 1)
[[ $both == *'"val_loss"'*'"hellaswag"'* ]] && ok "together with the validation loss" || bad "together with the validation loss" "$both"

# --- llm.c's -h 1 takes the file where llm.c has it
mkdir -p "$folder/llmc/dev/data/hellaswag" && cp "$folder/turned-0.bin" "$folder/llmc/dev/data/hellaswag/hellaswag_val.bin"
short=$(cd "$folder/llmc" && "$program" "${flags[@]}" --model "$checkpoint" --eval-only -h 1 --json --quiet 2>&1 | share)
[ "$short" = "$trained" ] && ok "-h 1 reads dev/data/hellaswag/hellaswag_val.bin" || bad "-h 1 reads dev/data/hellaswag/hellaswag_val.bin" "$short"
said=$(cd "$folder" && "$program" "${train[@]}" --steps 1 -h 1 --quiet 2>&1)
[[ $said == *"hellaswag_val.bin is missing"* ]] && ok "-h 1 without it: a note, and training continues" || bad "-h 1 without it: a note, and training continues" "$said"

# --- what is refused
# refuses NAME CODE PATTERN FLAGS...
refuses() {
    local status=0 text
    text=$("$program" "${flags[@]}" "${@:4}" --quiet 2>&1 >/dev/null) || status=$?
    [ $status -eq "$2" ] && [ "$(wc -l <<<"$text")" -eq 1 ] && grep -qE -- "$3" <<<"$text" && ok "$1" || bad "$1" "exit $status, wanted $2; said:" "$text"
}
refuses "a row longer than --seq-len" 1 "--seq-len [0-9]+ or more" --model "$checkpoint" --eval-only --hellaswag "$folder/turned-0.bin" --seq-len 32
refuses "a file that is not there" 2 "none.bin" --model "$checkpoint" --eval-only --hellaswag "$folder/none.bin"
{ head -c 12 "$folder/src_val.bin" && head -c $(($(stat -c %s "$folder/src_val.bin") - 12)) /dev/zero | tr '\0' '\7'; } >"$folder/wide.bin" # tokens 0x0707
refuses "validation tokens of another vocabulary" 2 "wide.bin: token 0 is 1799, but the vocabulary ends at 256; use the --tokenizer that the file was made with" --model "$checkpoint" --eval-only --val "$folder/wide.bin"
python3 - "$checkpoint" "$folder/double" <<'PYTHON'
import json, os, shutil, struct, sys
shutil.copytree(*sys.argv[1:])
os.remove(sys.argv[2] + "/manifest.json")
path = sys.argv[2] + "/model.safetensors"
data = open(path, "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8 : 8 + size])
last = max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])
begin, count = header[last]["data_offsets"][0], 1
for rows in header[last]["shape"]: count *= rows
header[last].update(dtype="F64", data_offsets=[begin, begin + 8 * count])
text = json.dumps(header).encode()
open(path, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + size : 8 + size + begin] + bytes(8 * count))
PYTHON
# a prefix that wrappers put before all names is left out; one that only some names have is not
"$program" --model llama:d1 --channels 64 --tokenizer bytes --train "$folder/src_train.bin" --seq-len 32 --micro-batch 2 --steps 2 --sample-tokens 0 --quiet --out "$folder/llama" >/dev/null 2>&1 || bad "a Llama"
for case in "$checkpoint _orig_mod." "$checkpoint module._orig_mod." "$folder/llama/step-00000002 module."; do
    python3 - ${case% *} "$folder/wrapped" "${case#* }" <<'PYTHON'
import json, os, shutil, struct, sys
shutil.rmtree(sys.argv[2], ignore_errors=True)
shutil.copytree(sys.argv[1], sys.argv[2])
for name in ("manifest.json", "model.safetensors.index.json"):
    os.remove(sys.argv[2] + "/" + name)
path = sys.argv[2] + "/model.safetensors"
data = open(path, "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8 : 8 + size])
text = json.dumps({name if name == "__metadata__" else sys.argv[3] + name: value for name, value in header.items()}).encode()
open(path, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + size :])
PYTHON
    loss() { "$program" --model "$1" --eval-only --val "$folder/src_val.bin" --val-batches 2 --seq-len 32 --micro-batch 2 --tokenizer bytes --recipe bf16 --json --quiet 2>"$folder/said" | cut -d, -f2; }
    plain=$(loss "${case% *}") wrapped=$(loss "$folder/wrapped")
    [ -n "$wrapped" ] && [ "$wrapped" = "$plain" ] && [ "$(grep -c "^note: --model $folder/wrapped: .*'${case#* }'" "$folder/said")" -eq 1 ]
    check "the prefix ${case#* } is left out" $? "$plain" "$wrapped" "$(cat "$folder/said")"
done
refuses "weights in FP64" 2 "is F64; weights must be F32, F16 or BF16" --model "$folder/double" --eval-only --val "$folder/src_val.bin"
refuses "a token file" 2 "src_val.bin is not a HellaSwag file" --model "$checkpoint" --eval-only --hellaswag "$folder/src_val.bin"
refuses "--hellaswag-every without a file" 1 "--hellaswag FILE" "${model[@]}" --hellaswag-every 5
refuses "nothing to evaluate" 1 "--hellaswag FILE" --model "$checkpoint" --eval-only
sed '3s/"endings"/"end"/' "$folder/turned-0.jsonl" >"$folder/wrong.jsonl"
said=$(python3 data/prepare.py --bytes --hellaswag --out "$folder/wrong" "$folder/wrong.jsonl" 2>&1)
[ $? -eq 2 ] && [[ $said == *"wrong.jsonl, line 3"* ]] && [ ! -e "$folder/wrong.bin" ] && ok "prepare.py names the line that is wrong" || bad "prepare.py names the line that is wrong" "$said"

# --- another program's opinion
told() { # NAME PATTERN WHERE: what check_transformers.py says with no modules but those in this folder
    said=$(PYTHONPATH=$3 python3 -S dev/test/check_transformers.py "$checkpoint" 2>&1)
    [ $? -eq 2 ] && [[ $said == "error: check_transformers.py needs torch, safetensors and transformers 4.56 or later: pip install torch safetensors 'transformers>=4.56' ("$2")" ]] && ok "$1" || bad "$1" "$said"
}
mkdir -p "$folder/old/transformers" "$folder/new/transformers"
echo '__version__ = "4.55.4"' >"$folder/old/transformers/__init__.py"
echo '__version__ = "5.0.0.dev0"' >"$folder/new/transformers/__init__.py"
told "transformers that is missing is named, with its version" "No module named 'transformers'" "$folder"
told "and one that is too old" "this is transformers 4.55.4" "$folder/old"
told "and what else is missing" "No module named 'numpy'" "$folder/new"
said=$(PYTHONPATH=$folder/old python3 -S dev/test/check_transformers.py --help 2>&1) && [[ $said == "Checks that an exported folder"*"transformers 4.56"* ]] && ok "the help needs none of them" || bad "the help needs none of them" "$said"
if pytorch_tests "transformers chooses the same endings" "transformers continues with the same tokens"; then
    succeeds "transformers chooses the same endings" python3 dev/test/check_transformers.py "$checkpoint" --hellaswag "$folder/turned-0.bin" \
        --program "$program" --micro-batch 6 --seq-len 96 --tolerance bfloat16 -- --tokenizer bytes --precision fp32
    prompts() { # FOLDER [FLAGS OF THE CHECK...]
        python3 dev/test/check_transformers.py "$1" --program "$program" --prompts 'static int ' 'Zürich: 10 °C' $'\xfe\x80' "${@:2}"
    }
    random() { # NAME [FLAGS...]: a model whose continuations wander
        python3 dev/test/check_transformers.py --make-random "$folder/$1" --gain 8 "${@:2}" >"$folder/said" 2>&1 || bad "a random model" "$(cat "$folder/said")"
    }
    succeeds "transformers continues with the same tokens" prompts "$checkpoint"
    said=$(prompts "$folder" 2>&1)
    [ $? -eq 2 ] && [[ $said == *"$folder has no config.json; name a folder of a model"* ]] && ok "a folder without a model is named" || bad "a folder without a model is named" "$said"
    "$program" "${flags[@]}" --model "$checkpoint" --train "$folder/src_train.bin" --prompt-format alpaca --steps 1 --out "$folder/asked" --quiet >/dev/null 2>"$folder/said" || bad "a run with a prompt format" "$(cat "$folder/said")"
    succeeds "and continues the texts themselves where prompts have a format" prompts "$folder/asked/step-00000001"
    printf '{"prompt": "a", "response": "b"}\n%.0s' 1 2 3 >"$folder/chat.jsonl"
    python3 data/prepare.py --bytes --chat --prompt-format plain --val-fraction 0 --out "$folder/chat" "$folder/chat.jsonl" >/dev/null
    said=$(python3 dev/test/check_transformers.py "$checkpoint" --val "$folder/chat_train_*.bin" --loss 1 2>&1)
    [ $? -eq 1 ] && [[ $said == *"chat_train_000000.bin holds a mask of the tokens that count, which this check does not read"* ]] && ok "a file with a mask is named as one" || bad "a file with a mask" "$said"
    random bytes
    succeeds "and in FP32 with no other" prompts "$folder/bytes" -- --precision fp32
    # byte pairs: GPT-2's way of writing bytes, and a few merges
    random pairs --vocab 261 --dtype bfloat16
    python3 - "$folder/pairs" <<'PYTHON'
import json, sys
seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
names = [chr(byte) for byte in seen] + [chr(256 + i) for i in range(256 - len(seen))]
merges = ["t a", "ta t", "i n", "in t"]
names += [pair.replace(" ", "") for pair in merges] + ["<|endoftext|>"]
json.dump({name: i for i, name in enumerate(names)}, open(sys.argv[1] + "/vocab.json", "w"))
open(sys.argv[1] + "/merges.txt", "w").write("#version: 0.2\n" + "\n".join(merges) + "\n")
PYTHON
    succeeds "and with a vocabulary of byte pairs" prompts "$folder/pairs"
    # AutoTokenizer on what a checkpoint of a run with one file has, in families whose own class is another
    names="qwen.json:llama llama3.json:qwen2 words.json:olmo2"
    if python3 -c 'import google.protobuf, sentencepiece' 2>/dev/null; then names+=" llama.model:llama"; else echo "skip - and AutoTokenizer takes the tokens of llama.model:llama: Python has no sentencepiece, or no protobuf"; fi
    for name in $names; do
        "$program" --model "${name#*:}:d1" --channels 64 --tokenizer "dev/test/tokenizers/${name%:*}" --train "$folder/src_train.bin" --allow-other-data \
            --seq-len 32 --micro-batch 1 --steps 1 --sample-tokens 0 --out "$folder/$name" >"$folder/said" 2>&1 || bad "a run with $name" "$(cat "$folder/said")"
        succeeds "and AutoTokenizer takes the tokens of $name" prompts "$folder/$name/step-00000001"
    done
    random other --seed 2
    said=$(prompts "$folder/bytes" --tolerance bfloat16 -- --model "$folder/other" 2>&1)
    [ $? -eq 1 ] && [ "$(grep -c '^FAIL  prompt' <<<"$said")" -eq 3 ] && ok "and other weights are found out" || bad "and other weights are found out" "$said"
fi
cd "$root" || exit 1
exit $failures
