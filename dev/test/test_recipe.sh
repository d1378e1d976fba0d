#!/usr/bin/env bash
# Tests the recipe of a run without --recipe: coat; bf16, with a note, if FP8 does not support the model; or that of the
# checkpoint that the run resumes. Uses the CPU program.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

byte_data
model=(--tokenizer bytes --layers 3 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --sample-tokens 0)
sets=(--train "$data" --val "$val" --val-batches 2 --schedule constant)
eval=(--tokenizer bytes --seq-len 32 --micro-batch 4 --val "$val" --val-batches 2 --eval-only --json --quiet)

# train OUT STEPS FLAGS...: writes stdout to $folder/page, stderr to $folder/said
train() { "$program" "${model[@]}" "${sets[@]}" --out "$folder/$1" --steps "$2" "${@:3}" >"$folder/page" 2>"$folder/said" </dev/null; }
# recipe: prints, in one line, the recipe that the last train() has reported
recipe() { awk '/^recipe / { on = 1; print; next } on && /^  / { print; next } { on = 0 }' "$folder/page" | tr -s ' \n' ' '; }
# shows NAME STATUS RECIPE SAID: checks that STATUS is 0, that the reported recipe begins with RECIPE, and that the
# entire stderr matches SAID ("": is empty); both are patterns
shows() {
    [ "$2" -eq 0 ] && [[ $(recipe) =~ ^recipe\ $3 ]] && [[ $(cat "$folder/said") =~ ^$4$ ]]
    check "$1" $? "status $2; expected the recipe /$3/ and stderr /$4/:" "$(recipe)" "$(cat "$folder/said")"
}
same() { if diff -r "$folder/$2" "$folder/$3" >"$folder/diff" 2>&1; then ok "$1"; else bad "$1" "$(head -n 3 "$folder/diff")"; fi; }
resuming="resuming from $folder/[a-z0-9/-]+"

# --- the default
train coat 4
shows "the default recipe is coat" $? 'coat: linear fp8 \(forward: 1 block bf16\), head fp8-backward, saved coat, recompute 1,' ''
train named 4 --recipe coat
same "the default recipe equals --recipe coat" coat/step-00000004 named/step-00000004
"$program" --plan "${model[@]}" 2>&1 | grep -q '^recipe      coat,'; check "--plan shows the default recipe" $?

# --- shapes that FP8 does not support
train narrow 2 --channels 40
shows "a width that FP8 does not support falls back to bf16 with a note" $? 'bf16: linear bf16, head bf16, saved bf16, recompute 0, gradients bf16, moments fp32, master fp32' \
    'note: --recipe bf16: used instead of coat, the default, because --channels: FP8 needs the width, here 40, to be a multiple of 16; use 48'
train narrow-named 2 --channels 40 --recipe bf16
shows "--recipe bf16 for a width that FP8 does not support prints no note" $? 'bf16:' ''
same "the fallback equals --recipe bf16" narrow/step-00000002 narrow-named/step-00000002
plan=$("$program" --plan --device cpu "${model[@]}" --channels 40 2>"$folder/said")
[[ $plan == *"recipe      bf16,"* ]] && [ "$(grep -c '^note: --recipe bf16: .*--channels' "$folder/said")" -eq 1 ]; check "--plan falls back to bf16, too" $? "$plan" "$(cat "$folder/said")"
plan=$("$program" --plan --layers 1 --heads 129 --channels 8256 2>"$folder/said")
[[ $plan == *"recipe      bf16,"* ]] && grep -q '^note: --recipe bf16: used instead of coat, the default, because --channels 8256: FP8 on a GPU supports at most 8192; use --recipe bf16 without --linear, --head and --saved' "$folder/said"; check "--plan falls back to bf16 for a width beyond the GPU's kernels" $? "$plan" "$(cat "$folder/said")"
plan=$("$program" --plan --device cpu --layers 1 --heads 129 --channels 8256 2>&1)
[[ $plan == *"recipe      coat,"* && $plan != *note:* ]]; check "the CPU supports a width beyond the GPU's kernels" $? "$plan"
said=$("$program" --layers 1 --heads 129 --channels 8256 --recipe coat --train "$folder/none.bin" 2>&1)
[ $? -eq 2 ] && [[ $said == *none.bin* ]]; check "a run without a GPU supports a width beyond the GPU's kernels" $? "$said"
for part in "--head fp8" "--saved coat" "--linear fp8"; do
    # shellcheck disable=SC2086 # flags are words
    said=$("$program" --plan --layers 1 --heads 129 --channels 8256 --recipe bf16 $part 2>&1)
    [ $? -eq 1 ] && [[ $said == "error: --channels 8256: FP8 on a GPU"* ]]; check "a width beyond the GPU's kernels is refused with $part" $? "$said"
done
said=$("$program" --plan --layers 1 --ffn 32784 --recipe coat 2>&1)
[ $? -eq 1 ] && [[ $said == "error: --ffn 32784: FP8 on a GPU supports at most 32768; use --recipe coat-paper" ]] &&
    "$program" --plan --layers 1 --ffn 32784 --recipe coat-paper >/dev/null; check "an MLP beyond the GPU's kernels is refused except with scales per tensor" $? "$said"
train flags 2 --channels 40 --moments coat --grads fp32
shows "other flags stay in effect if the recipe falls back to bf16" $? 'bf16: .*gradients fp32, moments coat' 'note: [^
]*'
train short 2 --seq-len 24 --micro-batch 3 --sample-tokens 5
shows "a batch that FP8 does not support falls back to bf16" $? 'bf16:' 'note: --recipe bf16: .*--micro-batch, --seq-len: FP8 needs their product, here 72,[^
]*'
train refused 2 --channels 40 --recipe coat
[ $? -eq 1 ] && [ "$(cat "$folder/said")" = "error: --channels: FP8 needs the width, here 40, to be a multiple of 16; use 48" ]; check "--recipe coat for an unsupported width is an error" $? "$(cat "$folder/said")"
said=$("$program" "${eval[@]}" --model "$folder/narrow/step-00000002/" 2>&1)
[[ $said == '{"step":2,"val_loss":'* ]]; check "a model of unsupported width is evaluated as it was trained, without a note" $? "$said"
said=$("$program" "${eval[@]}" --model "$folder/narrow/step-00000002" --head fp8 2>&1)
[ $? -eq 1 ] && [[ $said == "error: --channels: FP8 needs the width, here 40, to be a multiple of 16; use --recipe bf16 without --linear, --head and --saved" ]]; check "FP8 for an unsupported width in a checkpoint is an error that names a recipe" $? "$said"
said=$("$program" --model "$folder/narrow/step-00000002" --tokenizer bytes --prompt 'static ' --sample-tokens 5 --quiet 2>&1)
[[ $said == 'static '* ]]; check "a model of unsupported width writes samples" $? "$said"
mkdir "$folder/bare" && cp "$folder"/narrow/step-00000002/{model.safetensors,config.json} "$folder/bare"
said=$("$program" "${eval[@]}" --model "$folder/bare" 2>"$folder/said")
[[ $said == '{"step":0,"val_loss":'* ]] && grep -q '^note: --recipe bf16: used instead of coat, the default, because --channels' "$folder/said"; check "weights without state.json fall back to bf16 with a note" $? "$said" "$(cat "$folder/said")"

# --- blocks recomputed in backward have the same bits
for recipe in "bf16 --recompute 2" "fp8-linear --recompute 2 --bf16-blocks 2" "coat" "coat-paper --head fp8" \
    "coat --model olmo2:d2 --head fp8-backward" "coat --model qwen3:d3 --health-every 1 --health-products 1"; do
    rm -rf "$folder/kept" "$folder/repeated"
    # shellcheck disable=SC2086
    train kept 3 --recipe $recipe && train repeated 3 --recipe $recipe --recompute 3
    same "--recompute 3 changes no bit: $recipe" kept/step-00000003 repeated/step-00000003
done
# micro-batches whose rows FP8 matmuls do not support
for times in 1 3; do train sampled-$times 2 --seq-len 40 --sample-tokens 60 --sample-every 1 --quiet --recompute $times && grep -av '^done' "$folder/page" >"$folder/samples-$times"; done
grep -aq endoftext "$folder/samples-1" && cmp -s "$folder"/samples-{1,3}; check "--recompute 3 changes no sample between steps" $? "$(diff -a "$folder"/samples-{1,3} | head -n 3)"
counted() { grep -oE '"(d[a-z]*_q[a-z_]*|n[12])":\{[^}]*\}' "$folder/$1/log.jsonl"; }
is "--recompute 3 changes no FP8 health of gradients and norms" "$(counted repeated)" "$(counted kept)"
rm -rf "$folder/kept" "$folder/repeated"
train kept 3 --recipe fp8-linear --recompute 1 --health-every 1 && train repeated 3 --recipe fp8-linear --recompute 2 --health-every 1
is "--recompute 2 changes no FP8 health of norms" "$(counted kept)" "$(counted repeated)"

# --- a resumed run uses the settings of its checkpoint
for recipe in "bf16" "fp8-linear --recompute 2" "fp8-linear --recompute 0" "fp8-linear --recompute 2 --bf16-blocks 2" \
    "coat-paper --recompute 0 --bf16-blocks 1" "coat-paper --saved bf16 --master none" "coat --recompute 0" \
    "coat --bf16-blocks 2 --head fp8-backward" "coat --bf16-blocks 0" \
    "coat-paper --head fp8 --group-size 32 --fast-accumulation-data" \
    "bf16 --moments coat --moments-fp32 wte --master none --grads fp32"; do
    name=${recipe%% *}
    rm -rf "$folder/whole" "$folder/cut"
    # shellcheck disable=SC2086
    train whole 6 --recipe $recipe && train cut 3 --recipe $recipe
    train cut 6 --resume
    shows "resumed without --recipe, the recipe is that of the checkpoint: $recipe" $? "$name:" "$resuming"
    same "resumed without --recipe, the bits are those of an uninterrupted run: $recipe" whole/step-00000006 cut/step-00000006
done
cp -r "$folder/whole" "$folder/shapeless" && rm -r "$folder/shapeless/step-00000006" && cp -r "$folder/cut/step-00000003" "$folder/shapeless"
"$program" --tokenizer bytes --seq-len 32 --micro-batch 4 --sample-tokens 0 "${sets[@]}" --out "$folder/shapeless" --steps 6 --resume >"$folder/page" 2>&1 </dev/null || bad "a run resumes without flags of the shape" "$(cat "$folder/page")"
same "resumed without flags of the shape, the bits are those of an uninterrupted run" whole/step-00000006 shapeless/step-00000006
train evaluated 6 --recipe bf16 --val-every 6
is "--eval-only --out has the loss of training, also in BF16" "$("$program" "${eval[@]}" --out "$folder/evaluated" --resume 2>/dev/null)" "$(grep val_loss "$folder/evaluated/log.jsonl")"
plan=$("$program" --plan --out "$folder/evaluated" --resume 2>&1)
[[ $plan == "model       3 layers, 2 heads, 32 channels"*"recipe      bf16,"*"  moments "* ]]; check "--plan --resume shows the run's settings" $? "$plan"
plan=$("$program" --plan --eval-only --model "$folder/evaluated/step-00000006" 2>&1)
[[ $plan == *"recipe      bf16,"* && $plan != *"  moments "* ]]; check "--plan --eval-only shows the run's recipe without moments" $? "$plan"
plan=$("$program" --plan --prompt x --model "$folder/evaluated/step-00000006" 2>&1)
[[ $plan == *"recipe      bf16,"* && $plan != *"  moments "* && $plan == *"1 x 32 tokens"* ]]; check "--plan --prompt shows the run's recipe without moments" $? "$plan"
rm -rf "$folder/exact" && train exact 2 --precision fp32 && train exact 4 --resume
shows "resumed without --precision, the run stays in FP32" $? 'everything in FP32' "$resuming"

# --- the paper's recipe
train paper 3 --recipe coat-paper && train plain-coat 3 --recipe coat --bf16-blocks 0
cmp -s "$folder"/{paper,plain-coat}/step-00000003/model.safetensors
[ $? -eq 1 ]; check "coat-paper and coat train differently" $?
grep -q '"recipe": "coat-paper"' "$folder/paper/step-00000003/state.json"; check "state.json records the recipe" $?
train paper 6 --resume --recipe coat
shows "a run can be resumed with the recipe coat" $? 'coat:' "resume: --recipe was coat-paper and is now coat
resume: --bf16-blocks was 0 and is now 1
resume: --head was bf16 and is now fp8-backward
$resuming"
train paper-bf16 3 --recipe coat-paper --linear bf16 --saved bf16 && train bf16-alone 3 --recipe coat --linear bf16 --saved bf16 --recompute 1
cmp -s "$folder"/{paper-bf16,bf16-alone}/step-00000003/model.safetensors; check "without FP8 matmuls and FP8 saved activations, coat-paper equals coat" $?
plan() { "$program" --plan --layers 2 --heads 2 --channels 32 --tokenizer bytes --recipe "$1" 2>&1; }
[ "$(plan fp8-linear | grep -c '^    g .* e4m3 per token$')" -eq 1 ] && ! plan coat-paper | grep -q 'per token'; check "--plan shows scales per token" $? "$(plan fp8-linear)"

# --- the first blocks in BF16
train none 3 --recipe coat --bf16-blocks 0 && train one-block 3 --recipe coat --bf16-blocks 1 --health-every 1
cmp -s "$folder"/{none,one-block}/step-00000003/model.safetensors
[ $? -eq 1 ]; check "one block in BF16 changes the training" $?
train by-model 3 --recipe coat
cmp -s "$folder"/{one-block,by-model}/step-00000003/model.safetensors; check "one of three blocks in BF16 is the default" $?
for layers in 2:1 6:2 15:4; do
    train by-layers 1 --layers ${layers%:*} --overwrite
    shows "${layers%:*} layers have ${layers#*:} in BF16" $? "coat: linear fp8 \\(forward: ${layers#*:} blocks? bf16\\)" '.*'
done
grep -qE '"oq":\{"amax":\[null,[0-9.e-]+,[0-9.e-]+\]' "$folder/one-block/log.jsonl"; check "FP8 health has no values of the block in BF16" $? "$(grep -o '"oq".*' "$folder/one-block/log.jsonl" | head -n 1)"
grep -qE '"dqkv_q":\{"amax":\[[0-9.e-]+,' "$folder/one-block/log.jsonl"; check "FP8 health has the gradients of the block in BF16" $? "$(grep -o '"dqkv_q".*' "$folder/one-block/log.jsonl" | head -n 1)"
train none 6 --resume && grep -q '"bf16-blocks": 0' "$folder/none/step-00000006/state.json"; check "--bf16-blocks 0 is kept on resume" $?

# --- another recipe is reported
train plain 3 --recipe bf16
cp -r "$folder/plain" "$folder/changed"
train changed 6 --resume --recipe coat
shows "a run can be resumed with another recipe" $? 'coat:' "(resume: --[a-z -]+ was [a-z0-9]+ and is now [a-z0-9-]+
)+[^
]*converted[^
]*
$resuming"
grep -q '^resume: --linear was bf16 and is now fp8$' "$folder/said" && grep -q '^resume: --moments was fp32 and is now coat$' "$folder/said"; check "resumed with another recipe, the changed settings are reported" $? "$(cat "$folder/said")"
cp -r "$folder/plain" "$folder/single"
train single 6 --resume --moments bf16
shows "a flag on resuming changes only its own setting" $? 'bf16: .*moments bf16.*master fp32' 'resume: --moments was fp32 and is now bf16
[^
]*converted[^
]*
[^
]*'
train coat 6 --resume --seq-len 24 --micro-batch 1 --batch-tokens 24
shows "resuming with a batch that FP8 does not support falls back to bf16" $? 'bf16: linear bf16' 'note: --recipe bf16: used instead of coat, the recorded recipe, because --micro-batch, .*
resume: --linear was fp8 and is now bf16
.*'
# the newest valid state.json is used, like the newest valid checkpoint
train several 2 --recipe bf16 --save-every 1 && sed -i 's/"bf16"/"fp16"/' "$folder/several/step-00000002/state.json"
train several 2 --resume
shows "a damaged state.json is ignored" $? 'bf16:' "skipping the checkpoint .*step-00000002: .*
$resuming
note: .* renamed to .*"
train several 3 --resume=7
[ $? -eq 2 ]; check "--resume=STEP without that checkpoint is an error" $? "$(cat "$folder/said")"
mkdir "$folder/fresh" && train fresh 2 --resume
shows "--resume without a checkpoint uses the default recipe" $? 'coat:' 'note: --resume: no checkpoint in [^ ]*, starting from the beginning'

# --- evaluation uses the checkpoint's recipe; training from --model uses the default recipe
loss() { field val_loss | tail -n 1; }
for recipe in coat bf16; do
    train "judged-$recipe" 5 --recipe $recipe
    logged=$(loss <"$folder/judged-$recipe/log.jsonl")
    by_model=$("$program" "${eval[@]}" --model "$folder/judged-$recipe/step-00000005" 2>&1 | loss)
    by_out=$("$program" "${model[@]}" "${eval[@]}" --out "$folder/judged-$recipe" --resume 2>&1 | loss)
    [ -n "$logged" ] && [ "$by_model" = "$logged" ] && [ "$by_out" = "$logged" ]; check "--eval-only of a $recipe checkpoint has the loss of its training" $? "$logged" "$by_model" "$by_out"
done
other=$("$program" "${eval[@]}" --model "$folder/judged-bf16/step-00000005" --recipe coat 2>&1 | loss)
[ -n "$other" ] && [ "$other" != "$logged" ]; check "--eval-only with another recipe has another loss" $? "$other"
"$program" --tokenizer bytes --seq-len 32 --micro-batch 4 --sample-tokens 0 "${sets[@]}" --steps 1 --model "$folder/judged-bf16/step-00000005" >"$folder/page" 2>"$folder/said"
shows "training from --model uses the default recipe, with the head in BF16" $? 'coat: .* head bf16,' ''
tuned=(--tokenizer bytes --seq-len 32 --micro-batch 4 --sample-tokens 0 "${sets[@]}" --out "$folder/tuned")
"$program" "${tuned[@]}" --steps 1 --model "$folder/judged-bf16/step-00000005" >/dev/null 2>&1 && "$program" "${tuned[@]}" --steps 2 --resume >"$folder/page" 2>"$folder/said"
shows "a resumed fine-tuning run keeps the head in BF16" $? 'coat: .* head bf16,' "$resuming"
exit $failures
