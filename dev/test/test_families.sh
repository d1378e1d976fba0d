#!/usr/bin/env bash
# Tests every model family with the CPU program: a model trains, resumes bit for bit, resumes on another number of
# processes, and writes samples. Its config.json names the family. If Python has PyTorch, compares losses with
# PyTorch's.
source "$(dirname "$0")/ranks.sh"

data=(--train "$folder/src_train.bin" --val "$folder/src_val.bin" --val-batches 2)
batch=(--seq-len 64 --micro-batch 4 --batch-tokens 512 --lr 2e-3 --schedule constant --sample-tokens 0 --threads 1)

train() { "$program" "${data[@]}" --out "$folder/$1" --steps "$2" "${@:3}" >"$folder/page" 2>&1 </dev/null; }
same() { if diff -r "$folder/$2" "$folder/$3" >"$folder/diff" 2>&1; then ok "$1"; else bad "$1" "$(head -n 3 "$folder/diff")"; fi; }
loss() { sed -n 's/.*"step":'"$2"',.*"loss":\([0-9.]*\).*/\1/p' "$folder/$1/log.jsonl" | head -n 1; }
near() { # NAME FIRST SECOND: checks that two values differ by at most 0.01 %
    awk -v a="$2" -v b="$3" 'BEGIN { exit !(a > 0 && a < 1.0001 * b && b < 1.0001 * a) }'; check "$1" $? "$2 and $3"
}

for family in "llama:d2 --no-tied-head llama" "llama:d2 --kv-heads=1 --rope-factor=8 --rope-positions=16 llama" \
    "olmo:d2 --no-tied-head --clip-qkv=1 olmo" "olmo2:d2 --kv-heads=1 olmo2" "qwen2:d2 --kv-heads=1 qwen2" \
    "llama:d2 --vision=clip:d1 --image-size=28 --patch-size=14 llava" "qwen3:d2 --head-dim=32 qwen3"; do
    read -r -a words <<<"$family"
    type=${words[-1]} flags=(--tokenizer bytes --model "${words[@]:0:${#words[@]}-1}") name=${words[*]:0:${#words[@]}-1}
    rm -rf "$folder"/{whole,halves,two}
    train whole 10 "${flags[@]}" "${batch[@]}" && train halves 5 "${flags[@]}" "${batch[@]}" && train halves 10 --resume
    if [ $? -ne 0 ]; then bad "$name trains" "$(cat "$folder/page")" && continue; fi
    same "$name: a resumed run has the bits of an uninterrupted one" whole/step-00000010 halves/step-00000010
    first=$(loss whole 1) last=$(loss whole 10)
    awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a - 0.5) }'; check "$name learns" $? "$first to $last"
    grep -q "\"model_type\": \"$type\"" "$folder/whole/step-00000010/config.json"
    check "config.json of $name has the model_type $type" $? "$(cat "$folder/whole/step-00000010/config.json")"
    text=$("$program" --model "$folder/whole/step-00000010" --prompt 'the ' --sample-tokens 8 2>&1) && [ ${#text} -gt 4 ]
    check "$name writes a sample" $? "$text"
    # trains in FP32, because then only the order of sums differs between one process and two
    rm -rf "$folder"/{alone,half}
    train alone 5 "${flags[@]}" "${batch[@]}" --precision fp32 && cp -r "$folder/alone" "$folder/half" && train alone 10 --resume
    for way in "--zero 0" "--zero 3" "--zero 3, from a checkpoint of one"; do
        rm -rf "$folder/two"
        read -r -a run <<<"${way%%,*}"
        if [[ $way != *,* ]]; then run+=("${flags[@]}" "${batch[@]}" --precision fp32); else run+=(--resume) && cp -r "$folder/half" "$folder/two"; fi
        if timeout 120 "${mpirun[@]}" -np 2 "$program" "${data[@]}" "${run[@]}" --micro-batch 2 --out "$folder/two" --steps 10 \
            >"$folder/page" 2>&1 </dev/null; then
            near "$name on two processes, $way, has the loss of one process" "$(loss two 10)" "$(loss alone 10)"
        else
            bad "$name on two processes, $way, has the loss of one process" "$(tail -n 3 "$folder/page")"
        fi
    done
done

train other 2 --resume --out "$folder/whole" --head-dim 16
[ $? -eq 1 ] && grep -q -- '--head-dim 16: the run.s model has 32; remove --head-dim' "$folder/page"
check "--head-dim that differs from the run's is refused on resume" $? "$(cat "$folder/page")"

# Fine-tuning copies settings of config.json and generation_config.json that are not part of the shape to its
# checkpoints. A resumed run keeps them, even after --keep 1 has removed the checkpoint that it resumed from.
mkdir "$folder/source" && cp "$folder/whole/step-00000010/model.safetensors" "$folder/source"
sed 's/"pad_token_id": null/"pad_token_id": 3/; s/"initializer_range": 0.02/"initializer_range": 0.05/' "$folder/whole/step-00000010/config.json" \
    >"$folder/source/config.json"
echo '{"do_sample": true, "eos_token_id": [256, 2], "pad_token_id": 3, "temperature": 0.7, "top_k": 20}' >"$folder/source/generation_config.json"
tune=(--model "$folder/source" "${batch[@]}" --save-every 1 --keep 1)
train tuned 4 "${tune[@]}" && train tuned2 2 "${tune[@]}" && train tuned2 4 --resume --save-every 1 --keep 1
same "a fine-tuned model: a resumed run has the bits of an uninterrupted one" tuned/step-00000004 tuned2/step-00000004
said=$(tr -d ' \n' <"$folder/tuned2/step-00000004/generation_config.json")
[ "$said" = '{"bos_token_id":256,"eos_token_id":[256,2],"do_sample":true,"pad_token_id":3,"temperature":0.7,"top_k":20}' ]
check "fine-tuning keeps the model's generation_config.json" $? "$said"
said=$(grep -c '"pad_token_id": 3,\|"initializer_range": 0.05,' "$folder/tuned2/step-00000004/config.json")
[ "$said" = 2 ]; check "fine-tuning keeps the model's pad_token_id and initializer_range" $? \
    "$(cat "$folder/tuned2/step-00000004/config.json")"

# Compares with PyTorch: 30 updates on text; on packed examples with a loss mask, masked from each other; and with Muon.
if pytorch_tests "check_families.py: PyTorch has the same losses"; then
    for flag in "" --packed --muon; do
        name="check_families.py: PyTorch has the same losses${flag:+, $flag}"
        said=$(python3 dev/test/check_families.py --program "$program" --logits "${BIN:-.}/test_gpt2_cpu" $flag gpt2 llama qwen2 olmo2 2>&1); check "$name" $? "$said"
    done
fi
name="check_llava.py: transformers opens checkpoints of vision-language models"
if pytorch_tests "$name"; then
    said=$(python3 dev/test/check_llava.py --program "$program" clip/llama siglip/qwen3 2>&1); check "$name" $? "$said"
fi
exit $failures
