#!/usr/bin/env bash
# A new user's way by README's lines: text and Qwen's tokenizer become tokens, a Llama of four blocks trains on them, is
# stopped, continues to the bits that it would have had, writes, and opens in transformers, whose tokens are the same.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

if ! PYTHONPATH=third_party/python python3 -c 'import tokenizers' 2>/dev/null; then # where setup.sh puts it
    echo "skip - a new user's way: Python has no tokenizers (scripts/setup.sh --python)"
    exit 0
fi
mkdir "$folder/qwen"
cp dev/test/tokenizers/qwen.json "$folder/qwen/tokenizer.json"
text "$folder/texts"

said=$(python3 data/prepare.py --tokenizer "$folder/qwen" --out "$folder/mine" --workers 1 "$folder/texts" 2>&1)
check "text becomes tokens of Qwen's" $? "$said"
run=(--model llama:d4 --tokenizer "$folder/qwen" --channels 64 --seq-len 128 --micro-batch 2 --batch-tokens 512 --lr 1e-3 --warmup 5)
each=(--train "$folder/mine_train_*.bin" --val "$folder/mine_val_*.bin" --val-every 10 --val-batches 2 --save-every 5
    --sample-tokens 0 --threads 1 --steps 60) # what is named again where a run continues
said=$("$program" --out "$folder/whole" "${run[@]}" "${each[@]}" 2>&1)
check "a Llama of four blocks trains on them" $? "$said"

"$program" --out "$folder/stopped" "${run[@]}" "${each[@]}" >"$folder/said" 2>&1 &
pid=$!
while kill -0 $pid 2>/dev/null && [ ! -e "$folder/stopped/step-00000005" ]; do sleep 0.01; done
kill -TERM $pid
wait $pid
if [ -e "$folder/stopped/step-00000060" ]; then bad "it is stopped" "it was faster"; fi
said=$("$program" --out "$folder/stopped" --resume "${each[@]}" 2>&1) && said=$(diff -r "$folder/whole/step-00000060" "$folder/stopped/step-00000060")
check "stopped, it continues to the same bits" $? "$said"
said=$("$program" --out "$folder/stopped" --resume --prompt 'the ' --sample-tokens 20 2>&1)
has "it writes on from a prompt" "$said" '^the '

if pytorch_tests "transformers opens it"; then
    said=$(python3 dev/test/check_transformers.py "$folder/stopped/step-00000060" --program "$program" --prompts 'the of ' 'Zürich: 10 °C' 2>&1)
    check "transformers opens it, and writes the same tokens" $? "$said"
fi
exit $failures
