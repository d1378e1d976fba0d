#!/usr/bin/env bash
# GPT-2 1558M on 33.6 billion tokens of FineWeb-Edu: llm.c's settings (its
# scripts/run_gpt2_1558M.sh).
#
#   python3 data/prepare.py \
#       --out data/tokens/edu_fineweb100B --sample 100BT fineweb-edu
#   GPUS=8 scripts/run_gpt2_1558M.sh            trains on eight; --help lists settings
#
# Batch      1,048,576 tokens per step, 16 x 1024 per micro-batch; 32,000 steps,
#            33.6 billion tokens
# One H200   78,200 tokens/s and 36.7 GB with COAT: 5.0 days;
#            BF16 56,600 tokens/s and 64.1 GB
# Eight      30.6 GB each with ZeRO 1 (planned)
# Expect     about 48.9 % of HellaSwag, the result of OpenAI's own weights (llm.c's
#            dev/vislog.ipynb). llm.c reached this after about 25,000 of the steps.
#            OpenAI's weights have a loss of 2.83 on FineWeb. Losses on FineWeb-Edu
#            are lower, because the text is easier, and cannot be compared with it.
name=gpt2_1558M model=gpt2-xl micro_batch=16 batch_tokens=1048576 out=gpt2_1558M
train='edu_fineweb100B_train_*.bin' val='edu_fineweb100B_val_*.bin'
settings=(--steps 32000 --lr 6e-4 --warmup 700 --schedule cosine --lr-final 0.1 --weight-decay 0.1
    --val-every 250 --val-batches 20 --save-every 2000 --keep 3)
. "$(dirname "$0")/launch.sh"
