#!/usr/bin/env bash
# Tests document masking (--documents apart): packed examples have the losses of single examples, also with other
# numbers of threads and processes, and after a resume. By default, runs on the CPU with heads of 32 channels. These
# settings run it on two GPUs with heads of 64 channels:
#
#   PROGRAM=./train_gpt2_fp8 DEVICE=cuda CHANNELS=128
source "$(dirname "$0")/ranks.sh"
channels=${CHANNELS:-64}
needs_python "document masking"

# Examples longer than half of 48 tokens: a sequence of 48 tokens has one, a sequence of 192 up to seven.
data_python "$folder" <<'PYTHON' || exit 1
import random
import struct
import sys

from prepare_masks import masked_file

folder, pick = sys.argv[1], random.Random(1)
with open(folder + "/src_train.bin", "rb") as file:
    header, tokens = file.read(1024), file.read()
for split, count in (("train", 700), ("val", 120)):
    starts, text, mask = [], b"", b""
    for i in range(count):
        length, at = pick.randint(25, 48), 2 * pick.randrange(len(tokens) // 2 - 48)
        starts.append(len(mask))
        text += tokens[at : at + 2 * length]
        mask += bytes(j > length // 2 for j in range(length))
    with open("%s/ex_%s.bin" % (folder, split), "wb") as file:
        file.write(masked_file(2, text, starts, mask))
PYTHON

flags=(--tokenizer bytes --layers 2 --heads 2 --channels "$channels" --sample-tokens 0 --quiet --device "$device" --lr 1e-3 --warmup 5
    --train "$folder/ex_train.bin" --val "$folder/ex_val.bin" --val-batches -1)

# evaluated NAME FLAGS...: evaluates the weights of the run `trained` with FLAGS, and writes the loss to NAME.loss
evaluated() {
    "$program" --eval-only --model "$folder/trained/step-00000012" --val "$folder/ex_val.bin" --val-batches -1 --tokenizer bytes --precision fp32 \
        --device "$device" --json --quiet "${@:2}" 2>"$folder/said" | field val_loss >"$folder/$1.loss"
}
apart=(--documents apart --seq-len 192 --batch-tokens 1536)
train 1 trained "${apart[@]}" --precision fp32 --micro-batch 4 --steps 12 --save-every 6
evaluated packed --documents apart --seq-len 192 --micro-batch 1
evaluated alone --documents apart --seq-len 48 --micro-batch 1
evaluated joined --documents joined --seq-len 192 --micro-batch 1
evaluated single --documents joined --seq-len 48 --micro-batch 1
if awk -v a="$(cat "$folder/packed.loss")" -v b="$(cat "$folder/alone.loss")" -v c="$(cat "$folder/joined.loss")" -v d="$(cat "$folder/single.loss")" \
    'BEGIN { x = a / b - 1; y = c / b - 1; exit !(a > 1 && x * x < 1e-12 && y * y > 1e-9 && b == d) }'; then
    ok "packed examples have the loss of single examples with --documents apart, and another with joined"
else
    bad "packed examples have the loss of single examples with --documents apart, and another with joined" "$(head "$folder"/*.loss)" "$(cat "$folder/said")"
fi

evaluated taken
awk -v a="$(cat "$folder/taken.loss")" -v b="$(cat "$folder/packed.loss")" 'BEGIN { x = a / b - 1; exit !(a > 1 && x * x < 1e-12) }'
check "--eval-only uses the checkpoint's --documents apart" $? "$(head "$folder"/*.loss)"

# Other micro-batches, threads and processes, and a resume change no loss; also in FP8.
train 1 eight "${apart[@]}" --precision fp32 --micro-batch 1 --steps 12 && near "--documents apart: micro-batches of one sequence give the same losses" loss 1e-6 trained eight
OMP_NUM_THREADS=3 train 1 threads "${apart[@]}" --precision fp32 --micro-batch 4 --steps 12 --save-every 6 &&
    same "--documents apart: three threads give the same bits" 00000012 trained threads
mkdir "$folder/other" && cp -r "$folder/trained/step-00000006" "$folder/trained/log.jsonl" "$folder/other" &&
    train 2 other --micro-batch 2 --steps 12 --resume && near "--documents apart is resumed on two processes with the same losses" loss 1e-6 trained other
coat=(--recipe coat --micro-batch 4)
train 1 coat "${apart[@]}" "${coat[@]}" --steps 6 && train 1 coated "${apart[@]}" "${coat[@]}" --steps 3 && train 1 coated "${coat[@]}" --steps 6 --resume &&
    same "COAT with --documents apart: a resumed run has the bits of an uninterrupted one" 00000006 coat coated
for model in llama:d1 olmo2:d1 qwen3:d1; do
    train 1 ${model%:*} "${apart[@]}" --model $model --vocab 257 --channels "$channels" --heads 2 --ffn 128 "${coat[@]}" --steps 6 &&
        awk -v a="$(values loss ${model%:*} | head -1)" -v b="$(values loss ${model%:*} | tail -1)" 'BEGIN { exit !(a > 4 && b < a) }'
    check "${model%:*} trains with --documents apart" $? "$(cat "$folder/${model%:*}.said")"
done

# In text files, a BOS token starts each document. Without BOS and EOS tokens, documents cannot be distinguished.
train 1 text "${apart[@]}" --train "$folder/src_train.bin" --val "$folder/src_val.bin" --val-batches 4 --precision fp32 --micro-batch 4 --steps 3 &&
    train 1 joined "${apart[@]}" --documents joined --train "$folder/src_train.bin" --val "$folder/src_val.bin" --val-batches 4 --precision fp32 \
        --micro-batch 4 --steps 3 &&
    [ "$(values loss text)" != "$(values loss joined)" ]; check "--documents apart changes the losses of text" $? "$(cat "$folder/text.said")"

# A resumed run divides text at the same tokens as before, even if checkpoints add EOS tokens to config.json. If the
# data lack the BOS token of config.json, EOS tokens divide them.
mkdir "$folder/ended" "$folder/begun" && for name in ended begun; do cp "$folder/llama/step-00000006/model.safetensors" "$folder/$name"; done
python3 - "$folder" <<'PYTHON' || exit 1
import json
import random
import struct
import sys

folder, pick = sys.argv[1], random.Random(2)
with open(folder + "/llama/step-00000006/config.json") as file:
    config = json.load(file)
for name, begin in (("ended", None), ("begun", 250)):
    with open("%s/%s/config.json" % (folder, name), "w") as file:
        json.dump({**config, "bos_token_id": begin, "eos_token_id": 5}, file)
for name, end in (("both", 256), ("five", 5), ("none", 6)):
    tokens = [end if i % 17 == 0 else 5 if i % 23 == 0 and name == "both" else pick.randrange(32, 127) for i in range(20000)]
    with open("%s/%s.bin" % (folder, name), "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack("<%dH" % len(tokens), *tokens))
PYTHON
flags=(--tokenizer bytes --train "$folder/both.bin" --sample-tokens 0 --quiet --device "$device")
ended=(--model "$folder/ended" --documents apart --seq-len 64 --batch-tokens 256 --micro-batch 4 --precision fp32 --lr 1e-3 --prompt-format plain)
train 1 formatted "${ended[@]}" --steps 6 && train 1 formatted2 "${ended[@]}" --steps 3 && train 1 formatted2 --steps 6 --resume &&
    same "--documents apart with --prompt-format: a resumed run has the bits of an uninterrupted one" 00000006 formatted formatted2
ways() { # NAME: prints the losses of a file with --documents joined and apart
    for way in joined apart; do
        "$program" --eval-only --model "$folder/begun" --tokenizer bytes --val "$folder/$1.bin" --documents $way --seq-len 64 --micro-batch 4 --precision fp32 \
            --val-batches 4 --device "$device" --json --quiet 2>"$folder/said"
    done
}
[ "$(ways both | sort -u | wc -l)" = 2 ] && [ ! -s "$folder/said" ] && [ "$(ways five | sort -u | wc -l)" = 2 ] && [ ! -s "$folder/said" ]
check "--documents apart divides text without BOS tokens at EOS tokens" $? "$(ways five)" "$(cat "$folder/said")"
ways none >/dev/null
grep -q -- "^note: --documents apart: the first 65536 tokens of every file of --val have no BOS or EOS token" "$folder/said"
check "--documents apart on text without BOS and EOS tokens prints a note" $? "$(cat "$folder/said")"
# Two processes that see different tokenizer_config.json files.
for rank in 0 1; do mkdir "$folder/rank$rank" && cp dev/test/tokenizers/llama.model "$folder/rank$rank/tokenizer.model"; done
echo '{"add_bos_token": false}' >"$folder/rank1/tokenizer_config.json"
python3 - "$folder" <<'PYTHON'
import struct
import sys

tokens = [1 + i // 20 % 2 if i % 20 == 0 else 300 + i % 7 for i in range(20000)]
with open(sys.argv[1] + "/begins.bin", "wb") as file:
    file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack("<%dH" % len(tokens), *tokens))
PYTHON
each 2 "cd $folder/rank\$rank && exec \"\$@\"" --model llama:d1 --vocab 560 --tokenizer . --documents apart --train "$folder/begins.bin" \
    --seq-len 64 --batch-tokens 512 --micro-batch 4 --steps 1 --sample-tokens 0 --device "$device"
[ $status -ne 0 ] && grep -q -- "--documents apart: the processes split the data at different tokens" "$folder/said"
check "processes with different BOS and EOS tokens are refused" $? "status $status" "$(cat "$folder/said")"
"$program" --plan --model gpt2 --documents apart >"$folder/said" 2>&1; check "--plan accepts --documents apart" $? "$(cat "$folder/said")"
exit $failures
