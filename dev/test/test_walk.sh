#!/usr/bin/env bash
# Follows README's steps for a new user: text becomes tokens with Qwen's tokenizer, a Llama with four blocks trains on them,
# is stopped, resumes with the same bits, writes text, and opens in transformers with the same tokens.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

if ! PYTHONPATH=third_party/python python3 -c 'import tokenizers' 2>/dev/null; then # where setup.sh installs it
    echo "skip - README's steps: Python has no tokenizers (scripts/setup.sh --python)"
    exit 0
fi
mkdir "$folder/qwen"
cp dev/test/tokenizers/qwen.json "$folder/qwen/tokenizer.json"
text "$folder/texts"

said=$(python3 data/prepare.py --tokenizer "$folder/qwen" --out "$folder/mine" --workers 1 "$folder/texts" 2>&1)
check "prepare.py makes tokens with Qwen's tokenizer" $? "$said"
run=(--model llama:d4 --tokenizer "$folder/qwen" --channels 64 --seq-len 128 --micro-batch 2 --batch-tokens 512 --lr 1e-3 --warmup 5)
each=(--train "$folder/mine_train_*.bin" --val "$folder/mine_val_*.bin" --val-every 10 --val-batches 2 --save-every 5
    --sample-tokens 0 --threads 1 --steps 60) # the flags to repeat on resume
said=$("$program" --out "$folder/whole" "${run[@]}" "${each[@]}" 2>&1)
check "a Llama with four blocks trains" $? "$said"

"$program" --out "$folder/stopped" "${run[@]}" "${each[@]}" >"$folder/said" 2>&1 &
pid=$!
wait_for $pid test -e "$folder/stopped/step-00000005"
kill -TERM $pid
wait $pid
if [ -e "$folder/stopped/step-00000060" ]; then bad "SIGTERM stops the run before its last step" "the run ended before it got the signal"; fi
said=$("$program" --out "$folder/stopped" --resume "${each[@]}" 2>&1) && said=$(diff -r "$folder/whole/step-00000060" "$folder/stopped/step-00000060")
check "the stopped run resumes with the same bits" $? "$said"
said=$("$program" --out "$folder/stopped" --resume --prompt 'the ' --sample-tokens 20 2>&1)
has "the model continues a prompt" "$said" '^the '

if pytorch_tests "transformers opens the checkpoint and writes the same tokens"; then
    said=$(python3 dev/test/check_transformers.py "$folder/stopped/step-00000060" --program "$program" --prompts 'the of ' 'Zürich: 10 °C' 2>&1)
    check "transformers opens the checkpoint and writes the same tokens" $? "$said"
fi
exit $failures
