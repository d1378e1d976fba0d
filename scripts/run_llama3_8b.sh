#!/usr/bin/env bash
# Llama-3-8B from scratch on 100 billion tokens, with the learning rate of its paper.
#
#   python3 data/prepare.py --tokenizer LLAMA3_FOLDER \
#       --out data/tokens/llama3 --sample 100BT fineweb
#   GPUS=8 scripts/run_llama3_8b.sh             trains on eight; --help lists settings
#
# Batch      4,194,304 tokens per step, 1 x 8192 per micro-batch; 25,000 steps,
#            105 billion tokens
# One GPU    100.6 GB with COAT (planned)
# Eight      72.0 GB each with ZeRO 1, 36.4 GB with --zero 3 (planned)
name=llama3_8b model=llama3-8b micro_batch=1 seq_len=8192 batch_tokens=4194304 zero=1 out=llama3_8b
train='llama3_train_*.bin' val='llama3_val_*.bin'
settings=(--steps 25000 --lr 3e-4 --warmup 2000 --schedule cosine --lr-final 0.1 --weight-decay 0.1
    --val-every 1000 --val-batches 20 --save-every 500 --keep 3)
. "$(dirname "$0")/launch.sh"
