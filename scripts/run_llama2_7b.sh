#!/usr/bin/env bash
# Llama-2-7B from scratch, with the settings of its paper.
#
#   python3 data/prepare.py --tokenizer LLAMA2_FOLDER \
#       --out data/tokens/llama2 --sample 100BT fineweb
#   GPUS=8 scripts/run_llama2_7b.sh             trains on eight; --help lists settings
#
# Batch      4,194,304 tokens per step, 2 x 4096 per micro-batch; the learning rate
#            falls over 476,837 steps, 2 trillion tokens
# One GPU    87.0 GB with COAT, 77.7 GB with MICRO_BATCH=1 (planned)
# Eight      62.9 GB each with ZeRO 1, 29.9 GB with --zero 3 (planned)
name=llama2_7b model=llama2-7b micro_batch=2 seq_len=4096 batch_tokens=4194304 zero=1 out=llama2_7b
train='llama2_train_*.bin' val='llama2_val_*.bin'
settings=(--steps 476837 --lr 3e-4 --warmup 2000 --schedule cosine --lr-final 0.1 --weight-decay 0.1 --eps 1e-5
    --val-every 1000 --val-batches 20 --save-every 500 --keep 3)
. "$(dirname "$0")/launch.sh"
