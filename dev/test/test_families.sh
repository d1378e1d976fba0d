#!/usr/bin/env bash
# Every family of models through the CPU's program: it trains, its checkpoints go on bit for bit and on other processes, its
# folder is what config.json says, it writes samples, and where PyTorch is present it has its losses.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
. dev/test/ranks.sh

data=(--train "$folder/src_train.bin" --val "$folder/src_val.bin" --val-batches 2)
batch=(--seq-len 64 --micro-batch 4 --batch-tokens 512 --lr 2e-3 --schedule constant --sample-tokens 0 --threads 1)

train() { "$program" "${data[@]}" --out "$folder/$1" --steps "$2" "${@:3}" >"$folder/page" 2>&1 </dev/null; }
same() { if diff -r "$folder/$2" "$folder/$3" >"$folder/diff" 2>&1; then ok "$1"; else bad "$1" "$(head -n 3 "$folder/diff")"; fi; }
loss() { sed -n 's/.*"step":'"$2"',.*"loss":\([0-9.]*\).*/\1/p' "$folder/$1/log.jsonl" | head -n 1; }
near() { # NAME FIRST SECOND: within 0.01 %
    if awk -v a="$2" -v b="$3" 'BEGIN { exit !(a > 0 && a < 1.0001 * b && b < 1.0001 * a) }'; then ok "$1: $2 and $3"; else bad "$1" "$2 and $3"; fi
}

for family in "llama:d2 --no-tied-head llama" "llama:d2 --kv-heads=1 --rope-factor=8 --rope-positions=16 llama" \
    "olmo:d2 --no-tied-head --clip-qkv=1 olmo" "olmo2:d2 --kv-heads=1 olmo2" "qwen2:d2 --kv-heads=1 qwen2" "qwen3:d2 --head-dim=32 qwen3"; do
    read -r -a words <<<"$family"
    type=${words[-1]} flags=(--tokenizer bytes --model "${words[@]:0:${#words[@]}-1}") name=${words[*]:0:${#words[@]}-1}
    rm -rf "$folder"/{whole,halves,two}
    train whole 10 "${flags[@]}" "${batch[@]}" && train halves 5 "${flags[@]}" "${batch[@]}" && train halves 10 --resume
    if [ $? -ne 0 ]; then bad "$name trains" "$(cat "$folder/page")" && continue; fi
    same "$name continues bit for bit" whole/step-00000010 halves/step-00000010
    first=$(loss whole 1) last=$(loss whole 10)
    if awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a - 0.5) }'; then ok "$name learns: $first to $last"; else bad "$name learns" "$first to $last"; fi
    if grep -q "\"model_type\": \"$type\"" "$folder/whole/step-00000010/config.json"; then ok "$name is a $type"; else
        bad "$name is a $type" "$(cat "$folder/whole/step-00000010/config.json")"
    fi
    text=$("$program" --model "$folder/whole/step-00000010" --prompt 'the ' --sample-tokens 8 2>&1) && [ ${#text} -gt 4 ] &&
        ok "$name writes a sample" || bad "$name writes a sample" "$text"
    # in FP32, where the order of sums is all that differs
    rm -rf "$folder"/{alone,half}
    train alone 5 "${flags[@]}" "${batch[@]}" --precision fp32 && cp -r "$folder/alone" "$folder/half" && train alone 10 --resume
    for way in "--zero 0" "--zero 3" "--zero 3, from a checkpoint of one"; do
        rm -rf "$folder/two"
        read -r -a run <<<"${way%%,*}"
        if [[ $way != *,* ]]; then run+=("${flags[@]}" "${batch[@]}" --precision fp32); else run+=(--resume) && cp -r "$folder/half" "$folder/two"; fi
        if timeout 120 "${mpirun[@]}" -np 2 "$program" "${data[@]}" "${run[@]}" --micro-batch 2 --out "$folder/two" --steps 10 \
            >"$folder/page" 2>&1 </dev/null; then
            near "$name on two processes, $way" "$(loss two 10)" "$(loss alone 10)"
        else
            bad "$name on two processes, $way" "$(tail -n 3 "$folder/page")"
        fi
    done
done

train other 2 --resume --out "$folder/whole" --head-dim 16
if [ $? -eq 1 ] && grep -q -- '--head-dim 16: the run.s model has 32; remove --head-dim' "$folder/page"; then
    ok "another shape is refused on resume"
else
    bad "another shape is refused on resume" "$(cat "$folder/page")"
fi

# What files say beside the shape goes from a model into the checkpoints of its fine-tuning, and on through a resume whose
# checkpoint is pruned.
mkdir "$folder/source" && cp "$folder/whole/step-00000010/model.safetensors" "$folder/source"
sed 's/"pad_token_id": null/"pad_token_id": 3/; s/"initializer_range": 0.02/"initializer_range": 0.05/' "$folder/whole/step-00000010/config.json" \
    >"$folder/source/config.json"
echo '{"do_sample": true, "eos_token_id": [256, 2], "pad_token_id": 3, "temperature": 0.7, "top_k": 20}' >"$folder/source/generation_config.json"
tune=(--model "$folder/source" "${batch[@]}" --save-every 1 --keep 1)
train tuned 4 "${tune[@]}" && train tuned2 2 "${tune[@]}" && train tuned2 4 --resume --save-every 1 --keep 1
same "a fine-tuned model continues bit for bit" tuned/step-00000004 tuned2/step-00000004
said=$(tr -d ' \n' <"$folder/tuned2/step-00000004/generation_config.json")
[ "$said" = '{"bos_token_id":256,"eos_token_id":[256,2],"do_sample":true,"pad_token_id":3,"temperature":0.7,"top_k":20}' ] &&
    ok "it keeps its generation_config.json" || bad "it keeps its generation_config.json" "$said"
said=$(grep -c '"pad_token_id": 3,\|"initializer_range": 0.05,' "$folder/tuned2/step-00000004/config.json")
[ "$said" = 2 ] && ok "it keeps its pad_token_id and initializer_range" || bad "it keeps its pad_token_id and initializer_range" \
    "$(cat "$folder/tuned2/step-00000004/config.json")"

# Beside PyTorch: 30 updates on a stream of tokens, and on examples with a mask that are packed and kept apart.
if pytorch_tests "PyTorch's losses"; then
    for flag in "" --packed; do
        name="PyTorch's losses${flag:+, fine-tuning}"
        said=$(python3 dev/test/check_families.py --program "$program" --logits "${BIN:-.}/test_gpt2_cpu" $flag llama qwen2 olmo2 2>&1) && ok "$name" || bad "$name" "$said"
    done
fi
exit $failures
