#!/usr/bin/env bash
# Tests training of a small vision-language model on drawn images: it learns to name colors, the loss does not depend on
# how a step is divided into micro-batches and among processes, and unsuitable data are refused.
source "$(dirname "$0")/ranks.sh"
needs_python "training with images"

# Writes NAME.bin and NAME.images. An image has one colored square at the left and one at the right. Each of its two
# examples consists of the image, a letter that asks for a side, and the unmasked answer. `text` has examples without
# images.
data_python "$folder" <<'PYTHON' || exit 1
import random
import struct
import sys
import zlib

from prepare_masks import masked_file, xxh64

SIDE, ROWS, TOKEN, COLORS = 16, 16, 255, {"r": (220, 30, 30), "g": (30, 200, 40), "b": (30, 60, 220)}


def draw(pick, colors):
    pixels = [[128 + pick.randrange(-9, 9)] * SIDE**2 for _ in range(3)]
    for part, color in enumerate(colors):
        for y in range(4, 12):
            for x in range(8 * part + 1, 8 * part + 7):
                for channel in range(3):
                    pixels[channel][y * SIDE + x] = COLORS[color][channel]
    return bytes(value for channel in pixels for value in channel)


def write(name, count, seed, blank=False, images=True, deviation=0.5):
    pick, ids, mask, starts, pixels = random.Random(seed), [], [], [], []
    for _ in range(count):
        colors = pick.choices("rgb", k=2) if pixels else ["g", "r"]
        pixels.append(bytes(3 * SIDE**2) if blank else draw(pick, colors))
        for side in pick.sample((0, 1), 2):
            starts.append(len(ids))
            ids += [TOKEN] * ROWS * images + [*("lr"[side] + colors[side] + "\n").encode()]
            mask += [0] * ROWS * images + [0, 1, 1]
    places = [i // 2 for i in range(2 * count)]
    file = bytearray(masked_file(2, struct.pack("<%dH" % len(ids), *ids), starts, bytes(mask)))
    file[4], file[32:40] = 1 + images, bytes(8)
    file[32:40] = xxh64(file).to_bytes(8, "little")
    with open("%s/%s.bin" % (sys.argv[1], name), "wb") as out:
        out.write(file)
    if images:
        rest = struct.pack("<%dI" % len(places), *places) + b"".join(pixels)
        head = struct.pack("<8iI2i6f", 20261129, 1, count, SIDE, 3, ROWS, len(places), 0, zlib.crc32(rest), 1, TOKEN,
                           *[0.5] * 3, *[deviation] * 3)
        with open("%s/%s.images" % (sys.argv[1], name), "wb") as out:
            out.write(head.ljust(1024, b"\0") + rest)


write("drawn", 700, 1)
write("unseen", 100, 2)
write("blank", 100, 2, blank=True)
write("text", 300, 3, images=False)
write("other", 20, 4, deviation=0.25)
PYTHON

base=(--model llama:d1 --tokenizer bytes --vision siglip:d1 --image-size 16 --patch-size 4 --documents apart --seq-len 40
    --sample-tokens 0 --quiet --device "$device" --lr 3e-3 --warmup 20)
# accuracy NAME LOW HIGH RUN: checks that the last fraction of right answers of a run is from LOW to HIGH.
accuracy() {
    values val_accuracy "$4" | tail -1 | tr -d '}' | awk -v low="$2" -v high="$3" '!(low <= $1 && $1 <= high) { bad = 1 } END { exit bad || NR == 0 }'
    check "$1" $? "$(values val_accuracy "$4")"
}
files() { flags=("${base[@]}" --train "$folder/$1.bin" --val "$folder/$2.bin"); }
below() { # NAME LIMIT RUN: checks that the last validation loss of a run is below the limit
    values val_loss "$3" | tail -1 | awk -v limit="$2" '!($1 < limit) { bad = 1 } END { exit bad || NR == 0 }'
    check "$1" $? "$(values val_loss "$3")"
}

files drawn unseen
train 1 seen --micro-batch 8 --steps 250 --precision fp32 && below "the model names the colors in images that it has not seen" 0.02 seen
accuracy "nearly all answers about unseen images are right" 0.98 1 seen
said=$(timeout 100 "$program" "${flags[@]}" --micro-batch 8 --eval-only --resume --out "$folder/seen" --precision fp32 --json 2>"$folder/said")
is "--eval-only has the accuracy of training" "$said" "$(grep val_loss "$folder/seen/log.jsonl" | tail -1)"
said=$(timeout 100 "$program" "${flags[@]}" --micro-batch 3 --eval-only --resume --out "$folder/seen" --precision fp32 2>"$folder/said")
has "--eval-only prints the accuracy" "$said" '% of answers right'
# Samples with --image: the model names the colors in the first image of a file, also in samples of training.
flags=(--model "$folder/seen/step-00000250" --tokenizer bytes --device "$device" --quiet --image "$folder/unseen.images"
    --sample-tokens 1 --temperature 0 --prompt-format plain)
said="$(timeout 100 "$program" "${flags[@]}" --prompt '<image>l') $(timeout 100 "$program" "${flags[@]}" --prompt '<image>r')"
[ "$said" = "lg rr" ]; check "--image: the model names the colors in an image" $? "$said"
flags+=(--train "$folder/drawn.bin" --seq-len 40 --micro-batch 8 --precision fp32 --steps 1 --lr 1e-9 --prompt '<image>l')
for processes in 1 2; do
    train $processes shown$processes --zero $((3 * processes - 3))
    has "samples of training on $processes processes use --image" "$(cat "$folder/shown$processes.said")" '^lg$'
done
files drawn unseen
train 1 coat --micro-batch 8 --steps 250 --recipe coat && below "the model names the colors with COAT's recipe" 0.1 coat
accuracy "most answers are right with COAT's recipe" 0.9 1 coat
train 1 tower --micro-batch 8 --steps 250 --recipe coat --vision-recipe coat && below "the model names the colors with FP8 in the tower" 0.1 tower
accuracy "most answers are right with FP8 in the tower" 0.9 1 tower
grep -q '"vision-recipe": *"coat"' "$folder/tower/step-00000250/state.json"; check "a checkpoint records --vision-recipe" $?
files drawn blank
train 1 blind --micro-batch 8 --steps 250 --precision fp32
values val_loss blind | tail -1 | awk '!($1 > 0.5) { bad = 1 } END { exit bad || NR == 0 }'
check "control: without images, the model cannot name the colors" $? "$(values val_loss blind)"
accuracy "control: a third of the answers, guesses at one color of three, is right" 0.2 0.5 blind

# A step of 16 sequences must have the same loss in micro-batches of 16, 2 and 1, on one and on two processes.
files drawn unseen
short=(--precision fp32 --steps 6 --batch-tokens 640 --val-every 3 --val-batches -1)
# With --images-per-sequence 40, a micro-batch has room for 640 images, so the tower also computes black images.
train 1 sixteen "${short[@]}" --micro-batch 16 && train 1 two "${short[@]}" --micro-batch 2 &&
    train 2 ranks "${short[@]}" --micro-batch 1 --zero 2 &&
    train 1 room "${short[@]}" --micro-batch 16 --images-per-sequence 40
for name in two ranks room; do
    case $name in two) run="micro-batches of 2" ;; ranks) run="two processes" ;; room) run="--images-per-sequence 40" ;; esac
    near "images: a run with $run has the losses of one micro-batch of 16" loss 1e-6 sixteen $name
    near "images: a run with $run has the gradient norms of one micro-batch of 16" grad_norm 1e-5 sixteen $name
    near "images: a run with $run has the validation losses of one micro-batch of 16" val_loss 1e-6 sixteen $name
    is "images: a run with $run has the accuracies of one micro-batch of 16" "$(values val_accuracy $name)" "$(values val_accuracy sixteen)"
done
for level in 0 1 2 3; do train 1 again$level --recipe coat --steps 2 --micro-batch 2 --recompute-vision $level; done
for level in 1 2 3; do same "--recompute-vision $level has the bits of 0" 00000002 again0 again$level model.safetensors; done
for level in 0 1 2 3; do
    train 1 fp8tower$level --recipe coat --steps 2 --micro-batch 2 --vision-recipe coat --recompute-vision $level
done
for level in 2 3; do # not level 0, because its FP8 scales differ
    same "--vision-recipe coat, --recompute-vision $level has the bits of 1" 00000002 fp8tower1 fp8tower$level model.safetensors
done
cmp -s "$folder"/{again0,fp8tower0}/step-00000002/model.safetensors
[ $? -eq 1 ]; check "--vision-recipe coat changes the weights" $?
fp8=(--recipe coat --bf16-blocks 0 --lr 0 --steps 2 --micro-batch 2 --health-every 1)
train 1 fixed "${fp8[@]}" --freeze language && train 1 loose "${fp8[@]}"
qkv_health() { grep -o '"qkvw.codes":{[^}]*}' "$folder/$1/log.jsonl"; }
is "frozen weights have the FP8 values of trained weights" "$(qkv_health fixed)" "$(qkv_health loose)"
# weights NAME STEP: prints the checksum of a checkpoint's tensors; nothing if it has none
weights() { cat "$folder/$1/step-0000000$2"/*.safetensors 2>/dev/null | cksum | grep -v ' 0$'; }
for frozen in none language vision; do
    parts=(--vision-recipe coat)
    [ $frozen = none ] || parts=(--freeze $frozen)
    for zero in 0 1 2 3; do
        train 2 $frozen$zero --recipe coat --steps 3 --micro-batch 2 --batch-tokens 320 --zero $zero "${parts[@]}"
    done
    for stage in 0 2; do
        is "ZeRO $((stage + 1)) has the bits of stage $stage; frozen: $frozen" "$(weights $frozen$((stage + 1)) 3)" "$(weights $frozen$stage 3)"
    done
done
# Runs in which the language model was frozen are resumed with other frozen parts, or with none.
for zero in 2 3; do
    train 2 language$zero --recipe coat --steps 5 --micro-batch 2 --batch-tokens 320 --zero $zero --resume --freeze vision
    has "--resume names a part that is trained from now on" "$(cat "$folder/language$zero.said")" 'language: .* no optimizer states'
    has "--resume names a part that is frozen from now on" "$(cat "$folder/language$zero.said")" 'vision: this part is frozen from now on'
done
is "--resume with other frozen parts: ZeRO 3 has the bits of stage 2" "$(weights language3 5)" "$(weights language2 5)"
train 1 language1 --recipe coat --steps 5 --micro-batch 2 --batch-tokens 320 --resume --freeze none
has "a resumed run prints a note that --freeze is now none" "$(cat "$folder/language1.said")" '--freeze was language and is now none'
train 1 one "${short[@]}" --micro-batch 16 --images-per-sequence 1
has "the log has --images-per-sequence 1" "$(cat "$folder/one/log.jsonl")" '"images-per-sequence":1'
files text text
train 1 text "${short[@]}" --micro-batch 2
[ "$(values loss text | grep -cE '^[0-9.]+$')" -eq 6 ]; check "a vision-language model trains on text without images" $? "$(values loss text)"
accuracy "a vision-language model logs the accuracy for text without images" 0 1 text
timeout 100 "$program" --model llama:d1 --tokenizer bytes --seq-len 40 --device "$device" --quiet --train "$folder/text.bin" \
    --val "$folder/text.bin" --sample-tokens 0 --out "$folder/language" --steps 1 >"$folder/said" 2>&1
grep -q '"val_loss":[^,]*}' "$folder/language/log.jsonl"; check "a language model logs no accuracy" $? "$(cat "$folder/said" "$folder/language/log.jsonl")"

# Trains on image files and conversations that data/prepare.py prepares for this model's processor.
if python3 -c 'import PIL' 2>/dev/null; then
    mkdir "$folder/files"
    python3 - "$folder" <<'PYTHON' || exit 1
import json
import sys

from PIL import Image

COLORS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 60, 220)}
records = []
for name, color in COLORS.items():
    for width in range(20, 40):
        path = "%s/files/%s-%d.png" % (sys.argv[1], name, width)
        Image.new("RGB", (width, 30), color).save(path)
        records.append({"image": path, "messages": [{"role": "user", "content": "<image>color?"},
                                                    {"role": "assistant", "content": name}]})
with open(sys.argv[1] + "/files/data.jsonl", "w", encoding="utf-8") as out:
    out.writelines(json.dumps(record) + "\n" for record in records)
PYTHON
    python3 data/prepare.py --out "$folder/files/tokens" --tokenizer bytes --chat --prompt-format plain \
        --image-processor "$folder/two/step-00000006" "$folder/files/data.jsonl" >"$folder/files/said" 2>&1
    check "data/prepare.py reads images with the processor of a checkpoint" $? "$(cat "$folder/files/said")"
    files files/tokens_train_000000 files/tokens_train_000000
    train 1 prepared --micro-batch 4 --steps 100 --precision fp32 && below "the model learns from images of data/prepare.py" 0.1 prepared
else
    echo "skip - images of data/prepare.py: Python has no Pillow"
fi

# A run that is stopped at step 3 and resumed reads the same images as an uninterrupted run.
files drawn unseen
train 1 stopped "${short[@]}" --micro-batch 2 --steps 3 && train 1 stopped "${short[@]}" --micro-batch 2 --resume &&
    same "a run resumed at step 3 has the bits of an uninterrupted run" 00000006 two stopped model.safetensors

# Joins the model in a language model's folder with the tower of another model's folder. Both keep their weights; the
# projector gets new ones. --resume reads neither folder.
tiny=(--sample-tokens 0 --quiet --device "$device" --lr 0 --weight-decay 0 --steps 2 --precision fp32)
timeout 100 "$program" --model llama:d1 --tokenizer bytes --seq-len 40 --train "$folder/text.bin" --out "$folder/lm" "${tiny[@]}" \
    >"$folder/said" 2>&1
check "training a language model without images succeeds" $? "$(cat "$folder/said")"
lm=$folder/lm/step-00000002 tower=$folder/two/step-00000006
flags=(--model "$lm" --vision "$tower" --tokenizer bytes --documents apart --seq-len 40 --train "$folder/drawn.bin" "${tiny[@]}")
train 1 joined --micro-batch 2 && python3 - "$lm" "$tower" "$folder/joined/step-00000002" <<'PYTHON'
import json
import struct
import sys


def tensors(folder):
    with open(folder + "/model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell()
        for name, info in header.items():
            if name != "__metadata__":
                file.seek(start + info["data_offsets"][0])
                yield name, file.read(info["data_offsets"][1] - info["data_offsets"][0])


language, tower, joined = (dict(tensors(folder)) for folder in sys.argv[1:])
expected = {"language_model." + name: data for name, data in language.items()}
expected.update((name, data) for name, data in tower.items() if name.startswith("vision_tower."))
different = [name for name, data in joined.items() if expected.pop(name, None) != data]
same = [name for name in different if not name.startswith("multi_modal_projector.") or tower[name] == joined[name]]
print(same, sorted(expected))
sys.exit(not different or bool(same) or bool(expected))
PYTHON
check "--vision FOLDER: a joined model has the weights of both folders" $? "$(cat "$folder/joined.said")"
train 1 joined --micro-batch 2 --resume --steps 3
[ -f "$folder/joined/step-00000003/model.safetensors" ]; check "--resume with --model and --vision succeeds" $? "$(cat "$folder/joined.said")"
mv "$lm" "$folder/gone"
flags=(--tokenizer bytes --documents apart --seq-len 40 --train "$folder/drawn.bin" "${tiny[@]}")
train 1 joined --micro-batch 2 --resume --steps 4
[ -f "$folder/joined/step-00000004/model.safetensors" ]; check "--resume without the folders succeeds" $? "$(cat "$folder/joined.said")"
mv "$folder/gone" "$lm"
flags=(--model llama:d1 --vision "$tower" --tokenizer bytes --documents apart --seq-len 40 --train "$folder/drawn.bin" "${tiny[@]}")
train 1 new --micro-batch 2 && train 1 new --micro-batch 2 --resume --steps 3
[ -f "$folder/new/step-00000003/model.safetensors" ]; check "--resume of a new model with the tower of a folder succeeds" $? "$(cat "$folder/new.said")"
flags=(--vision "$tower" "${flags[@]:4}")
train 1 new --micro-batch 2 --resume --steps 4
[ -f "$folder/new/step-00000004/model.safetensors" ]; check "--resume with --vision and without --model succeeds" $? "$(cat "$folder/new.said")"

refused() { fails "$1" "$2" "^error: .*$3" "$program" "${flags[@]}" --steps 2 "${@:4}"; } # NAME CODE PATTERN FLAGS...
mkdir "$folder/empty"
echo '{"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 4, "hidden_size": 64, "num_attention_heads": 1}' \
    >"$folder/empty/config.json"
files drawn other
refused "data whose pixel values have another deviation than --train are refused" 2 'other.images does not match .* deviation 0.25 0.25 0.25, .* 0.5 0.5 0.5'
flags=(--model "$folder/two/step-00000006" --tokenizer bytes --seq-len 40 --device "$device" --quiet --train "$folder/other.bin")
refused "data whose pixel values have another deviation than the model's folder are refused" 2 'other.images does not match .* deviation 0.25'
has "a checkpoint records the mean and deviation of the data's pixel values" "$(cat "$folder/two/step-00000006/preprocessor_config.json")" '"image_std": *\[0.5, *0.5, *0.5\]'
files unseen unseen
refused "other images on resume are refused" 2 'was trained on different data' --out "$folder/two" --resume --steps 8
files drawn unseen
refused "a second tower is refused" 1 "--vision .*: the model in .* has a vision tower" --model "$tower" --vision siglip:d1
refused "another tower on --resume is refused" 1 "--vision clip:d1: the run's model has another vision tower; remove --model and --vision" \
    --vision clip:d1 --out "$folder/new" --resume
refused "an unknown tower is refused" 1 '--vision nowhere: unknown' --vision nowhere
refused "a changed size of a tower's folder is refused" 1 '--image-size: the shape of --vision .* is in its files' --vision "$tower"
flags=(--model "$lm" --tokenizer bytes --seq-len 40 --device "$device" --quiet --train "$folder/drawn.bin")
refused "a tower's folder without weights is refused" 2 'has no model.safetensors' --vision "$folder/empty"
refused "a missing tower's folder on --resume is refused" 1 '--vision .*gone: no such folder; remove --model and --vision' --vision "$folder/gone" \
    --out "$folder/joined" --resume
refused "a language model's folder as a tower is refused" 2 "model_type is 'llama'" --vision "$lm"
# A vocabulary of single bytes and <|endoftext|>, in GPT-2's format.
python3 - >"$folder/empty/vocab.json" <<'PYTHON'
import json
bytes_and_end = [*map(chr, [*range(33, 127), *range(161, 173), *range(174, 324)]), "<|endoftext|>"]
print(json.dumps({token: i for i, token in enumerate(bytes_and_end)}))
PYTHON
echo '#version: 0.2' >"$folder/empty/merges.txt"
timeout 100 "$program" --model llama:d1 --tokenizer "$folder/empty/vocab.json" --vocab 300 --seq-len 40 --train "$folder/text.bin" \
    --out "$folder/words" "${tiny[@]}" >"$folder/said" 2>&1
for vocabulary in "$folder/empty" "$folder/empty/vocab.json"; do
    refused "a vocabulary that cannot get an image token is refused" 2 'no token <image>, and no tokenizer.json' \
        --model "$folder/words/step-00000002" --vision siglip:d1 --tokenizer "$vocabulary"
done
refused "a language model of an architecture that Llava lacks is refused" 1 '--vision .*: the language model must have the architecture of' --model olmo:d1 --vision "$tower"
refused "--layers with a folder as --model is refused" 1 '--layers: the shape of --model .* is in its files' --vision "$tower" --layers 2
sed -i 's/"hidden_size": 64/"hidden_size": 24/' "$folder/empty/config.json"
refused "FP8 in a tower of an unsupported width is refused" 1 '--vision-recipe coat: .*vision tower.* multiple' --vision "$folder/empty" --vision-recipe coat
files drawn unseen
refused "an unknown part in --freeze is refused" 1 '--freeze visoin: no part is named visoin' --freeze visoin
refused "freezing all parts is refused" 1 '--freeze .*: nothing would be trained' --freeze vision,projector,language
refused "--lr-vision without --lr is refused" 1 '--lr 0: it sets the schedule of --lr-vision' --lr 0 --lr-vision 1e-3
refused "--image without --prompt is refused" 1 '--image .*: .* add --prompt' --image "$folder/unseen.images"
refused "a prompt's image whose pixel values have another deviation is refused" 2 'other.images does not match' --image "$folder/other.images" --prompt l --sample-tokens 1
refused "a prompt's image that is longer than a sequence is refused" 1 '--image .* more than --seq-len 40; use --seq-len 50' \
    --image "$folder/unseen.images" --prompt '<image><image><image>l' --prompt-format plain --sample-tokens 1
refused "--examples split is refused for data with images" 2 '--examples split: .*drawn.bin has images' --examples split
refused "images of another size are refused" 2 'drawn.images does not match the model: .* 16 x 16 pixels .* 32 x 32' --image-size 32
printf x | dd of="$folder/drawn.images" bs=1 seek=30000 conv=notrunc 2>/dev/null
refused "damaged pixels are refused" 2 'drawn.images is damaged: its checksum'
rm "$folder/drawn.images"
refused "a missing file of images is refused" 2 'drawn.images is missing'
flags=(--model llama:d1 --tokenizer bytes --seq-len 40 --device "$device" --quiet --train "$folder/drawn.bin")
refused "a model without a vision tower refuses data with images" 2 'drawn.bin has images, but the model reads text only; .* --model'
refused "a model without a vision tower refuses --freeze vision" 1 '--freeze: the model has no vision tower' --freeze vision
refused "a model without a vision tower refuses --image-size" 1 '--image-size: the model has no vision tower' --image-size 32
refused "a model without a vision tower refuses --vision-recipe" 1 '--vision-recipe: the model has no vision tower' --vision-recipe coat
refused "a model without a vision tower refuses --image" 1 '--image .*: the model has no vision tower' --image "$folder/unseen.images" --prompt l
refused "a model without a vision tower refuses --recompute-vision" 1 '--recompute-vision: the model has no vision tower' --recompute-vision 1
refused "a model without a vision tower refuses --images-per-sequence" 1 '--images-per-sequence: the model has no vision tower' --images-per-sequence 2
exit $failures
