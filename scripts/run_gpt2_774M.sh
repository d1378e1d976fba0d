#!/usr/bin/env bash
# GPT-2 774M on 150 billion tokens of FineWeb: llm.c's settings (its
# scripts/run_gpt2_774M.sh). Reads the sample of 100 billion tokens 1.5 times.
#
#   python3 data/prepare.py --out data/tokens/fineweb100B --sample 100BT fineweb
#   GPUS=8 scripts/run_gpt2_774M.sh             trains on eight; --help lists settings
#
# Batch      524,288 tokens per step, 32 x 1024 per micro-batch; 286,102 steps,
#            150 billion tokens
# One H200   about 143,000 tokens/s with COAT and --head bf16 (estimated from 124M
#            and 1558M): 12 days; 32.1 GB (planned); BF16 60.7 GB (planned)
# Eight      29.4 GB each with ZeRO 1 (planned)
# Expect     a validation loss below 3.00 and a HellaSwag above 43.2 %, the results
#            of OpenAI's own weights on the same data (llm.c's dev/vislog.ipynb)
name=gpt2_774M model=gpt2-large micro_batch=32 batch_tokens=524288 out=gpt2_774M
train='fineweb100B_train_*.bin' val='fineweb100B_val_*.bin'
settings=(--steps 286102 --lr 2.5e-4 --warmup 700 --schedule cosine --lr-final 0 --weight-decay 0.1
    --val-every 250 --val-batches 20 --save-every 4000 --keep 3)
. "$(dirname "$0")/launch.sh"
