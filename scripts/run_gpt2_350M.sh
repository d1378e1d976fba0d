#!/usr/bin/env bash
# GPT-2 350M on 31.5 billion tokens of FineWeb: llm.c's settings (its
# scripts/run_gpt2_350M.sh).
#
#   python3 data/prepare.py --out data/tokens/fineweb100B --sample 100BT fineweb
#   GPUS=8 scripts/run_gpt2_350M.sh             trains on eight; --help lists settings
#
# Batch      524,288 tokens per step, 64 x 1024 per micro-batch; 60,000 steps,
#            31.5 billion tokens
# One H200   about 282,000 tokens/s with COAT and --head bf16 (estimated from 124M
#            and 1558M): 31 hours; 29.7 GB (planned); BF16 58.2 GB (planned)
# Eight      28.4 GB each with ZeRO 1 (planned)
# Expect     a validation loss below 3.08 and a HellaSwag above 37.5 %, the results
#            of OpenAI's own weights on the same data (llm.c's dev/vislog.ipynb)
name=gpt2_350M model=gpt2-medium micro_batch=64 batch_tokens=524288 out=gpt2_350M
train='fineweb100B_train_*.bin' val='fineweb100B_val_*.bin'
settings=(--steps 60000 --lr 3e-4 --warmup 700 --schedule cosine --lr-final 0 --weight-decay 0.1
    --val-every 250 --val-batches 20 --save-every 2000 --keep 3)
. "$(dirname "$0")/launch.sh"
