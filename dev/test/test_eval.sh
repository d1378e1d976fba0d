#!/usr/bin/env bash
# Tests the trainer's HellaSwag evaluation with synthetic examples: the right ending continues a text, the others are
# random characters or shuffled letters. Uses the CPU program, and in `make test-long` also transformers.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
root=$PWD

needs_python "HellaSwag in the trainer"
byte_data

# 60 examples, each four times with rotated endings: turned-0 ... turned-3. labels-0 ... labels-3 keep the
# endings and rotate the label.
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
    for _ in range(3):  # shuffled letters of another place in the text, which are hard to distinguish from text, or random characters
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
# share: prints the last HellaSwag result of the log on stdin
# shares LOG: prints the steps of all HellaSwag results
share() { field hellaswag | tail -n 1; }
shares() { sed -n 's/.*"step":\([0-9]*\),"hellaswag".*/\1/p' "$1" | tr '\n' ' '; }
evaluate() { "$program" "${flags[@]}" --model "$checkpoint" --hellaswag "$1" --eval-only --json --quiet "${@:2}"; }

# --- during training
"$program" "${train[@]}" --out "$folder/plain" --quiet >/dev/null || bad "training without HellaSwag succeeds"
"$program" "${train[@]}" --hellaswag "$folder/turned-0.bin" --hellaswag-every 40 --out "$folder/run" >"$folder/said" || bad "training with HellaSwag succeeds"
[ "$(shares "$folder/run/log.jsonl")" = "40 80 120 " ]; check "HellaSwag runs every --hellaswag-every steps" $? "$(cat "$folder/run/log.jsonl")"
grep -qE '^HellaSwag [0-9.]+% \([0-9]+ of 60\) after 120 steps$' "$folder/said"; check "HellaSwag prints a line on the terminal" $? "$(grep Hella "$folder/said")"
grep -qa hellaswag "$folder"/run/events.out.tfevents.*; check "HellaSwag is in TensorBoard's file" $?
succeeds "HellaSwag does not change the training" diff -r "$folder/plain/step-00000120" "$folder/run/step-00000120"
"$program" "${train[@]}" --steps 60 --hellaswag "$folder/turned-0.bin" --out "$folder/default" --quiet >/dev/null
[ "$(shares "$folder/default/log.jsonl")" = "60 " ]; check "HellaSwag runs every --val-every steps by default" $? "$(shares "$folder/default/log.jsonl")"
"$program" "${train[@]}" --steps 4 --val-every 2 --hellaswag-every 0 --hellaswag "$folder/turned-0.bin" --out "$folder/end" --quiet >/dev/null
[ "$(shares "$folder/end/log.jsonl")" = "4 " ]; check "--hellaswag-every 0 evaluates HellaSwag only at the end" $? "$(shares "$folder/end/log.jsonl")"

# --- a resumed run evaluates at the steps whose evaluation the log lacks, and repeats no other evaluation
resumed=("${train[@]}" --hellaswag "$folder/turned-0.bin" --hellaswag-every 40 --save-every 40 --out "$folder/missed" --quiet)
"$program" "${resumed[@]}" >/dev/null || bad "training with HellaSwag and checkpoints succeeds"
cut=$folder/missed/log.jsonl
again() { # NAME: resumes, and compares the log with that of the uninterrupted run
    "$program" "${resumed[@]}" --resume >/dev/null 2>&1 || bad "resuming the run succeeds"
    is "$1" "$(strip "$cut")" "$(strip "$folder/run/log.jsonl")"
}
sed -i '/"step":40,"hellaswag"/d' "$cut" && rm -r "$folder"/missed/step-00000080 "$folder"/missed/step-00000120
again "a resumed run adds a HellaSwag evaluation that is missing in the middle"
sed -i '/"step":120,"hellaswag"/d' "$cut"
again "a resumed run adds a HellaSwag evaluation that is missing at the end"
again "a resumed run repeats no HellaSwag evaluation that is in the log"

# --- without training
checkpoint=$folder/run/step-00000120
trained=$(evaluate "$folder/turned-0.bin" | share)
is "--eval-only gives the log's HellaSwag result" "$trained" "$(share <"$folder/run/log.jsonl")"
awk -v s="$trained" 'BEGIN { exit !(s > 0.5) }' && ok "after training, more than half of the endings are right: $trained" || bad "after training, more than half of the endings are right" "$trained"
same=yes sum=0
plain=$(evaluate "$folder/turned-0.bin" --recipe bf16 | share) # BF16, because FP8 scales depend on the batch
for turn in 1 2 3; do [ "$(evaluate "$folder/turned-$turn.bin" --recipe bf16 | share)" = "$plain" ] || same=no; done
[ "$plain" ] && [ $same = yes ]; check "HellaSwag does not depend on the order of the endings" $?
for turn in 0 1 2 3; do sum="$sum + $(evaluate "$folder/labels-$turn.bin" | share)"; done
awk "BEGIN { d = $sum - 1; exit !(d < 1e-6 && d > -1e-6) }"; check "HellaSwag chooses exactly one ending per example" $? "$sum"
one=$(evaluate "$folder/turned-0.bin" --micro-batch 1 --precision fp32 | share)
is "HellaSwag does not depend on the micro-batch" "$(evaluate "$folder/turned-0.bin" --micro-batch 7 --precision fp32 | share)" "$one"
both=$(evaluate "$folder/turned-0.bin" --val "$folder/src_val.bin" --val-batches 1)
[[ $both == *'"val_loss"'*'"hellaswag"'* ]]; check "--eval-only computes HellaSwag and the validation loss together" $? "$both"

# --- -h 1 reads the file at llm.c's path
mkdir -p "$folder/llmc/dev/data/hellaswag" && cp "$folder/turned-0.bin" "$folder/llmc/dev/data/hellaswag/hellaswag_val.bin"
short=$(cd "$folder/llmc" && "$program" "${flags[@]}" --model "$checkpoint" --eval-only -h 1 --json --quiet 2>&1 | share)
is "-h 1 reads dev/data/hellaswag/hellaswag_val.bin" "$short" "$trained"
said=$(cd "$folder" && "$program" "${train[@]}" --steps 1 -h 1 --quiet 2>&1)
[[ $said == *"hellaswag_val.bin is missing"* ]]; check "-h 1 without the file prints a note, and training continues" $? "$said"

# --- errors
refuses() { fails "$1" "$2" "$3" "$program" "${flags[@]}" "${@:4}" --quiet; } # NAME CODE PATTERN FLAGS...
refuses "a HellaSwag row longer than --seq-len is refused" 1 "--seq-len [0-9]+ or more" --model "$checkpoint" --eval-only --hellaswag "$folder/turned-0.bin" --seq-len 32
refuses "a missing HellaSwag file is refused" 2 "none.bin" --model "$checkpoint" --eval-only --hellaswag "$folder/none.bin"
{ head -c 12 "$folder/src_val.bin" && head -c $(($(stat -c %s "$folder/src_val.bin") - 12)) /dev/zero | tr '\0' '\7'; } >"$folder/wide.bin" # tokens 0x0707
refuses "validation tokens outside the vocabulary are refused" 2 "wide.bin: token 0 is 1799, but the vocabulary ends at 256; " --model "$checkpoint" --eval-only --val "$folder/wide.bin"
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
# a prefix that wrappers add to all tensor names is ignored; a prefix of only some names is not
"$program" --model llama:d1 --channels 64 --tokenizer bytes --train "$folder/src_train.bin" --seq-len 32 --micro-batch 2 --steps 2 --sample-tokens 0 --quiet --out "$folder/llama" >/dev/null 2>&1 || bad "training a Llama succeeds"
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
    check "the prefix ${case#* } of all tensor names is ignored" $? "$plain" "$wrapped" "$(cat "$folder/said")"
done
# weights close to BF16's maximum, with which the logits overflow
python3 - "$checkpoint" "$folder/huge" <<'PYTHON'
import json, os, shutil, struct, sys
shutil.copytree(*sys.argv[1:])
for name in ("manifest.json", "model.safetensors.index.json"):
    os.remove(sys.argv[2] + "/" + name)
path = sys.argv[2] + "/model.safetensors"
data = bytearray(open(path, "rb").read())
size = 8 + struct.unpack("<Q", data[:8])[0]
for name, value in json.loads(data[8:size]).items():
    if name != "__metadata__" and ("ln_f" in name or "wte" in name):
        begin, end = (size + at for at in value["data_offsets"])
        data[begin:end] = struct.pack("<3H", 0x7f7f, 0x7f7f, 0xff7f) * ((end - begin) // 6) + bytes((end - begin) % 6)
open(path, "wb").write(data)
PYTHON
said=$("$program" "${flags[@]}" --model "$folder/huge" --eval-only --val "$folder/src_val.bin" --val-batches 2 --json --quiet 2>&1)
[[ $said =~ ^\{\"step\":[0-9]+,\"val_loss\":null\}$ ]]; check "--eval-only --json prints null for a loss that is not finite" $? "$said"
refuses "weights in FP64 are refused" 2 "is F64; weights must be F32, F16 or BF16" --model "$folder/double" --eval-only --val "$folder/src_val.bin"
refuses "a token file as --hellaswag is refused" 2 "src_val.bin is not a HellaSwag file" --model "$checkpoint" --eval-only --hellaswag "$folder/src_val.bin"
refuses "--hellaswag-every without --hellaswag is refused" 1 "--hellaswag FILE" "${model[@]}" --hellaswag-every 5
refuses "--eval-only without data is refused" 1 "--hellaswag FILE" --model "$checkpoint" --eval-only
sed '3s/"endings"/"end"/' "$folder/turned-0.jsonl" >"$folder/wrong.jsonl"
said=$(python3 data/prepare.py --bytes --hellaswag --out "$folder/wrong" "$folder/wrong.jsonl" 2>&1)
[ $? -eq 2 ] && [[ $said == *"wrong.jsonl, line 3"* ]] && [ ! -e "$folder/wrong.bin" ]; check "prepare.py --hellaswag names the wrong line" $? "$said"

# --- comparison with transformers
told() { # NAME PATTERN FOLDER: checks check_transformers.py's error with only the modules in FOLDER
    said=$(PYTHONPATH=$3 python3 -S dev/test/check_transformers.py "$checkpoint" 2>&1)
    [ $? -eq 2 ] && [[ $said == "error: check_transformers.py needs torch, safetensors and transformers 4.56 or later: pip install torch safetensors 'transformers>=4.56' ("$2")" ]]; check "$1" $? "$said"
}
mkdir -p "$folder/old/transformers" "$folder/new/transformers"
echo '__version__ = "4.55.4"' >"$folder/old/transformers/__init__.py"
echo '__version__ = "5.0.0.dev0"' >"$folder/new/transformers/__init__.py"
told "check_transformers.py without transformers names it and its version" "No module named 'transformers'" "$folder"
told "check_transformers.py with an old transformers names its version" "this is transformers 4.55.4" "$folder/old"
told "check_transformers.py names another missing package" "No module named 'numpy'" "$folder/new"
said=$(PYTHONPATH=$folder/old python3 -S dev/test/check_transformers.py --help 2>&1) && [[ $said == "Checks that transformers loads"*"transformers 4.56"* ]]; check "check_transformers.py --help needs no package" $? "$said"
if pytorch_tests "transformers chooses the same HellaSwag endings" "transformers continues prompts with the same tokens"; then
    succeeds "transformers chooses the same HellaSwag endings" python3 dev/test/check_transformers.py "$checkpoint" --hellaswag "$folder/turned-0.bin" \
        --program "$program" --micro-batch 6 --seq-len 96 --tolerance bfloat16 -- --tokenizer bytes --precision fp32
    prompts() { # FOLDER [FLAGS OF THE CHECK...]
        python3 dev/test/check_transformers.py "$1" --program "$program" --prompts 'static int ' 'Zürich: 10 °C' $'\xfe\x80' "${@:2}"
    }
    random() { # NAME [FLAGS...]: writes a random model whose continuations vary
        python3 dev/test/check_transformers.py --make-random "$folder/$1" --gain 8 "${@:2}" >"$folder/said" 2>&1 || bad "making a random model succeeds" "$(cat "$folder/said")"
    }
    succeeds "transformers continues prompts with the same tokens" prompts "$checkpoint"
    said=$(prompts "$folder" 2>&1)
    [ $? -eq 2 ] && [[ $said == *"$folder: has no config.json"* ]]; check "check_transformers.py names a folder without a model" $? "$said"
    "$program" "${flags[@]}" --model "$checkpoint" --train "$folder/src_train.bin" --prompt-format alpaca --steps 1 --out "$folder/asked" --quiet >/dev/null 2>"$folder/said" || bad "training with a prompt format succeeds" "$(cat "$folder/said")"
    succeeds "transformers continues raw prompts of a model with --prompt-format" prompts "$folder/asked/step-00000001"
    printf '{"prompt": "a", "response": "b"}\n%.0s' 1 2 3 >"$folder/chat.jsonl"
    python3 data/prepare.py --bytes --chat --prompt-format plain --val-fraction 0 --out "$folder/chat" "$folder/chat.jsonl" >/dev/null
    said=$(python3 dev/test/check_transformers.py "$checkpoint" --val "$folder/chat_train_*.bin" --loss 1 2>&1)
    [ $? -eq 1 ] && [[ $said == *"chat_train_000000.bin: has a loss mask"* ]]; check "check_transformers.py refuses token files with a loss mask" $? "$said"
    random bytes
    succeeds "transformers continues prompts with the same tokens in FP32" prompts "$folder/bytes" -- --precision fp32
    # byte pairs: GPT-2's characters for bytes, and a few merges
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
    succeeds "transformers continues prompts with a byte-pair vocabulary" prompts "$folder/pairs"
    # AutoTokenizer on checkpoints whose runs had only this tokenizer file, in families with another default tokenizer
    # class
    names="qwen.json:llama llama3.json:qwen2 words.json:olmo2"
    if python3 -c 'import google.protobuf, sentencepiece' 2>/dev/null; then names+=" llama.model:llama"; else echo "skip - transformers and AutoTokenizer continue prompts of llama.model:llama: Python has no sentencepiece, or no protobuf"; fi
    for name in $names; do
        "$program" --model "${name#*:}:d1" --channels 64 --tokenizer "dev/test/tokenizers/${name%:*}" --train "$folder/src_train.bin" --allow-other-data \
            --seq-len 32 --micro-batch 1 --steps 1 --sample-tokens 0 --out "$folder/$name" >"$folder/said" 2>&1 || bad "training with the vocabulary $name succeeds" "$(cat "$folder/said")"
        succeeds "transformers with AutoTokenizer continues prompts with the same tokens: $name" prompts "$folder/$name/step-00000001"
    done
    random other --seed 2
    said=$(prompts "$folder/bytes" --tolerance bfloat16 -- --model "$folder/other" 2>&1)
    [ $? -eq 1 ] && [ "$(grep -c '^FAIL  prompt' <<<"$said")" -eq 3 ]; check "check_transformers.py reports that prompts are continued differently with other weights" $? "$said"
fi
cd "$root" || exit 1
exit $failures
