#!/usr/bin/env bash
# GPT-2 124M on 10 billion tokens of FineWeb: llm.c's settings (its
# scripts/run_gpt2_124M.sh).
#
#   python3 data/prepare.py --out data/tokens/fineweb10B --sample 10BT fineweb
#   scripts/run_gpt2_124M.sh                    trains on one GPU
#   GPUS=8 scripts/run_gpt2_124M.sh             trains on eight; --help lists settings
#
# Batch      524,288 tokens per step, 64 x 1024 per micro-batch; 18,865 steps,
#            9.9 billion tokens
# One H200   771,600 tokens/s and 12.7 GB with COAT: 3.6 hours; BF16 621,400
#            tokens/s and 23.1 GB
# Eight      11.7 GB each with ZeRO 1 (planned)
# Expect     a validation loss of about 3.29 and 29.9 % of HellaSwag. llm.c reports
#            these results in BF16; OpenAI's own weights have 3.425 and 29.4 % on
#            the same data (llm.c's dev/vislog.ipynb)
name=gpt2_124M model=gpt2 micro_batch=64 batch_tokens=524288 out=gpt2_124M
train='fineweb10B_train_*.bin' val='fineweb10B_val_*.bin'
settings=(--steps 18865 --lr 6e-4 --warmup 700 --schedule cosine --lr-final 0 --weight-decay 0.1
    --val-every 250 --val-batches 20 --save-every 1000 --keep 3)
. "$(dirname "$0")/launch.sh"
