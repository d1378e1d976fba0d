#!/usr/bin/env bash
# Tests 8-bit optimizer states from the command line: every format trains, a resumed run has the bits of an
# uninterrupted one, states have the right size, and quant_error reads them from a checkpoint. Uses the CPU program.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

"$build"/prepare_bytes --out "$folder/src" coat train_gpt2_fp8.cu >/dev/null || exit 1
run=(--tokenizer bytes --layers 1 --heads 2 --channels 64 --seq-len 32 --micro-batch 4 --sample-tokens 0 --quiet --recipe bf16
    --train "$folder/src_train.bin" --lr 2e-3 --warmup 2 --schedule constant)

train() { "$program" "${run[@]}" "$@" >"$folder/said" 2>&1 </dev/null || { sed 's/^/    /' "$folder/said"; false; }; }

# resumes NAME FLAGS...: compares 12 steps with 5 steps, a resume and 7 steps on another number of threads
resumes() {
    local name=$1 status=0 file
    shift
    train --steps 12 --threads 1 --out "$folder/$name.whole" "$@" &&
        train --steps 5 --threads 1 --out "$folder/$name.cut" "$@" &&
        train --steps 12 --threads 3 --out "$folder/$name.cut" --resume "$@" || status=1
    for file in optimizer.safetensors model.safetensors; do
        cmp "$folder/$name".{whole,cut}/step-00000012/$file || status=1
    done
    check "a resumed run has the bits of an uninterrupted one: $*" $status "$(tail -n 5 "$folder/said")"
}

resumes coat --moments coat
resumes none --moments coat --master none
resumes fp8 --moments fp8 --master split16
resumes bf16 --moments bf16
resumes muon --optimizer muon --moments coat
resumes muon-e4m3 --optimizer muon --moments coat --momentum-codes e4m3 --master none
resumes muon-bf16 --optimizer muon --moments bf16 --master split16
resumes muon-fp32 --optimizer muon --precision fp32
train --steps 12 --out "$folder/fp32"
check "FP32 moments train" $? "$(tail -n 5 "$folder/said")"

size() { stat -c %s "$folder/$1/step-00000012/optimizer.safetensors"; }
# two moments of the matrices take 8 bytes per element in FP32, 2 + 10/128 in COAT; both have FP32 masters
matrices=$((384 * 64 + 12 * 64 * 64))
saved=$(($(size fp32) - $(size coat.whole))) expected=$((matrices * (8 - 2) - matrices / 128 * 10))
difference=$((saved - expected))
[ "${difference#-}" -lt 4000 ] # because the header names more tensors
check "COAT's states take 1 + 5/128 bytes per element and moment" $? "$(tail -n 5 "$folder/said")"

saved=$(($(size coat.whole) - $(size muon.whole))) expected=$((12 * 64 * 64 + 12 * 64 * 64 / 128 * 5))
difference=$((saved - expected))
[ "${difference#-}" -lt 4000 ] && ! grep -q 'c_attn.weight.v"' "$folder"/muon.whole/step-00000012/optimizer.safetensors &&
    grep -q 'wte.weight.v"' "$folder"/muon.whole/step-00000012/optimizer.safetensors
check "Muon's matrices have one state of 1 + 5/128 bytes per element" $? "$(tail -n 5 "$folder/said")"

# continues FROM COUNTS FLAGS...: resumes a copy of the run FROM with other formats of the states. Checks that the run
# reports the conversion of COUNTS, and ends with nearly the loss of FROM.
last_loss() { sed -n 's/.*"step":20,"loss":\([0-9.]*\).*/\1/p' "$1/log.jsonl"; }
continues() {
    local from=$1 counts=$2 name="$1.$3$4"
    shift 2
    cp -r "$folder/$from" "$folder/$name"
    train --steps 20 --out "$folder/$name" --resume "$@" && grep -q "converted.*: $counts" "$folder/said" &&
        awk -v a="$(last_loss "$folder/$from.same")" -v b="$(last_loss "$folder/$name")" \
            'BEGIN { exit !(a > 0 && b > a - 0.05 && b < a + 0.05) }'
    check "the run $from, resumed with $*, converts $counts and keeps its loss" $? "$(tail -n 5 "$folder/said")"
}
cp -r "$folder/fp32" "$folder/fp32.same" && train --steps 20 --out "$folder/fp32.same" --resume || exit 1
cp -r "$folder/coat.whole" "$folder/coat.whole.same" &&
    train --steps 20 --out "$folder/coat.whole.same" --resume --moments coat || exit 1
# five matrices (the embedding and four of the block) of the model's 16 parameters have 8-bit moments
continues fp32 "10 moments, 0 master weights" --moments coat
continues fp32 "10 moments, 16 master weights" --moments bf16 --master split16
continues fp32 "0 moments, 16 master weights" --master none
continues fp32 "8 moments, 0 master weights" --moments fp8 --moments-fp32 wte
continues coat.whole "10 moments, 0 master weights" --moments fp32
cp -r "$folder/muon.whole" "$folder/muon.whole.same" && train --steps 20 --out "$folder/muon.whole.same" --resume --moments coat || exit 1
continues muon.whole "4 moments, 0 master weights" --moments coat --momentum-codes e4m3
continues muon.whole "6 moments, 0 master weights" --moments fp32 # also both moments of the embedding
status=0
"$program" "${run[@]}" --steps 20 --out "$folder/muon.whole" --resume --optimizer adamw >"$folder/said" 2>&1 || status=$?
[ $status -eq 1 ] && grep -q "use --optimizer muon, or start a new run from its weights with --model $folder/muon.whole/step-00000012" "$folder/said" &&
    "$program" "${run[@]:8}" --steps 3 --optimizer adamw --model "$folder/muon.whole/step-00000012" --out "$folder/muon.adamw" >/dev/null 2>"$folder/said"
check "another optimizer on resume is refused, and the command that the error names works" $? "$(tail -n 5 "$folder/said")"
cp -r "$folder/coat.whole" "$folder/coat.exempt"
train --steps 20 --out "$folder/coat.exempt" --resume --moments coat --moments-fp32 wte && train --steps 28 --out "$folder/coat.exempt" --resume --moments coat --moments-fp32 none &&
    grep -q "moments-fp32 was wte and is now none" "$folder/said" && grep -q "converted.*: 2 moments" "$folder/said"
check "--moments-fp32 none cancels --moments-fp32 wte" $? "$(tail -n 5 "$folder/said")"
continues coat.whole "0 moments, 16 master weights" --moments coat --master split16
cp -r "$folder/coat.whole" "$folder/coat.plain"
train --steps 20 --out "$folder/coat.plain" --resume --moments fp8 && ! grep -q converted "$folder/said" &&
    grep -q "moments was coat and is now fp8" "$folder/said"
check "--moments fp8 resumes states of --moments coat without conversion" $? "$(tail -n 5 "$folder/said")"

# split16 master weights give the same bits as FP32 master weights, also after hundreds of updates
for master in fp32 split16; do
    train --steps 300 --recipe coat --master $master --out "$folder/master.$master" || exit 1
done
cmp "$folder"/master.{fp32,split16}/step-00000300/model.safetensors
check "--master split16 has the parameters of --master fp32 after 300 steps, bit for bit" $? "$(tail -n 5 "$folder/said")"
# both runs, resumed with FP32 master weights, must have equal states after one more step
for master in fp32 split16; do
    train --steps 301 --recipe coat --master fp32 --out "$folder/master.$master" --resume || exit 1
done
cmp "$folder"/master.{fp32,split16}/step-00000301/optimizer.safetensors
check "--master split16 has the master weights and moments of --master fp32" $? "$(tail -n 5 "$folder/said")"

# COAT's moments train like FP32's. At four times this rate, losses of this small model vary by 9 % between seeds,
# and pairs of runs by 2 %. The loss also depends on the sources, which are the text.
for moments in fp32 coat; do
    train --layers 2 --seq-len 64 --micro-batch 8 --steps 300 --lr 1e-3 --warmup 30 --schedule cosine --lr-final 0.1 \
        --val "$folder/src_val.bin" --val-batches 40 --moments $moments --out "$folder/trained.$moments" || exit 1
done
val_loss() { field val_loss "$folder/trained.$1/log.jsonl" | tail -n 1; }
fp32=$(val_loss fp32) coat=$(val_loss coat)
awk -v a="$fp32" -v b="$coat" 'BEGIN { exit !(a > 2 && a < 3.5 && b < 1.01 * a && b > 0.99 * a) }'
check "the validation loss with --moments coat is within 1 % of that with fp32 ($coat, $fp32)" $? "$(tail -n 5 "$folder/said")"

"$build"/quant_error "$folder/fp32/step-00000012" "$folder/ranges.tsv" >"$folder/table" 2>&1 &&
    awk '$1 == "E4M3" && NF == 7 { plain = $2 } $1 == "E4M3+exp" { both = $3 }
         END { exit !(plain > both && both > 0) }' "$folder/table" &&
    awk -F'\t' 'NF != 69 { exit bad = 1 } NR > 1 { for (i = 6; i <= NF; i++) sum[NR] += $i } END { exit bad || NR != 5 || !sum[2] || sum[2] != sum[4] || sum[3] != sum[5] }' "$folder/ranges.tsv"
check "quant_error: expansion reduces the error of the update" $? "$(tail -n 5 "$folder/said")"
grep -qE "^a group's plain / expanded: median [0-9.]+, 90 % of them from [0-9.]+ to [0-9.]+$" "$folder/table" &&
    "$build"/quant_error --every 3 "$folder/fp32/step-00000012" >"$folder/said" 2>&1 &&
    awk '/ elements of / { n[FILENAME] = $3; d[FILENAME] = $2 } $1 == "E4M3" && NF == 7 { e[FILENAME] = $2 }
         END { for (f in n) { if (f ~ /said$/) s = f; else t = f } share = n[s] / n[t]; r = e[s] / e[t]; exit !(share > 0.2 && share < 0.5 && r > 0.7 && r < 1.4) }' "$folder/table" "$folder/said"
check "quant_error prints the spread over groups, and --every 3 nearly the same" $? "$(tail -n 5 "$folder/said")"
fails "quant_error --every 3x is refused" 1 "--every 3x:" "$build"/quant_error --every 3x "$folder/fp32/step-00000012"

# The 12 matrices: the embedding, four of each block, the tower's patch embedding, and two of the projector. The tower's
# position embedding does not count, because --moments coat stores its moments in FP32.
train --model llama:d1 --vision clip:d1 --moments fp32 --steps 1 --out "$folder/vision" &&
    "$build"/quant_error "$folder/vision/step-00000001" >"$folder/said" 2>&1 && grep -q 'elements of 12 matrices' "$folder/said"
check "quant_error omits a vision tower's position embedding" $? "$(tail -n 5 "$folder/said")"
fails "quant_error refuses 8-bit moments" 2 "train with --moments fp32" "$build"/quant_error "$folder/coat.whole/step-00000012"
cp -r "$folder/fp32/step-00000012" "$folder/not-finite"
# makes the last four bytes, an FP32 value of v, infinite
poke "$folder/not-finite/optimizer.safetensors" $(($(stat -c %s "$folder/not-finite/optimizer.safetensors") - 4)) '\x00\x00\x80\x7f'
fails "quant_error refuses moments that are not finite" 2 "moments that are not finite" "$build"/quant_error "$folder/not-finite"
mv "$folder/not-finite/optimizer.safetensors" "$folder/not-finite/optimizer-00000-of-00002.safetensors"
fails "quant_error refuses states in several files" 2 "saved its optimizer states in shards; resume it on one process" "$build"/quant_error "$folder/not-finite"
exit $failures
