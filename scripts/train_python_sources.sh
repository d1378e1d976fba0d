#!/usr/bin/env bash
# GPT-2 124M on 100 million tokens of text that is on every machine with a Python environment: its own sources.
#
#   scripts/train_python_sources.sh GPT2_VOCABULARY [RECIPE [FLAGS...]]
#       a folder with encoder.json and vocab.bpe; bf16 (with split masters) or another recipe; the program's flags that
#       differ: coat --scaling tensor; bf16 --moments coat; bf16 --saved coat
#
#   SOURCES=FOLDER OUT=runs/python STEPS=1526 SEED=1 BETA2=0.999  settings come from the environment
#
# Needs python3 with tiktoken or tokenizers for the tokens. One H200 takes under 3 minutes; expect a validation loss
# of about 1.25 where the folder holds PyTorch and its companions (170 M tokens; the loss depends on them).
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
[ $# -ge 1 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 1; }
vocabulary=$1 recipe=${2:-bf16}
root=$(cd "$(dirname "$0")/.." && pwd)
sources=${SOURCES:-$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')}
out=${OUT:-$root/runs/python-$recipe}
tokens=$root/data/tokens/python
extra=()
shift $(($# > 1 ? 2 : 1))
[ "$recipe" != bf16 ] || extra=(--master split16)

python3 "$root/data/prepare.py" --out "$tokens" --tokenizer "$vocabulary" --val-fraction 0.02 "$sources/**/*.py"
"${PROGRAM:-$root/train_gpt2_fp8}" --model gpt2 --recipe "$recipe" "${extra[@]}" \
    --train "${tokens}_train_*.bin" --val "${tokens}_val_*.bin" --tokenizer "$vocabulary/encoder.json" \
    --micro-batch 64 --batch-tokens 65536 --steps "${STEPS:-1526}" --lr 6e-4 --warmup 100 --schedule cosine \
    --lr-final 0.1 --weight-decay 0.1 --val-every 250 --val-batches 16 --sample-tokens 120 --sample-every 0 \
    --beta2 "${BETA2:-0.999}" --seed "${SEED:-1}" --out "$out" "$@"
