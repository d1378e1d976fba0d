#!/usr/bin/env bash
# OLMo-1B on Dolma, with the settings of OLMo (2024) and of COAT's paper.
#
#   python3 data/prepare.py --tokenizer OLMO_FOLDER \
#       --out data/tokens/dolma dolma/*.jsonl
#   GPUS=8 scripts/run_olmo_1b.sh               trains on eight; --help lists settings
#   TRAIN='part-*.npy' scripts/run_olmo_1b.sh   reads OLMo's own token files
#
# Batch      4,194,304 tokens per step, 8 x 2048 per micro-batch; the learning rate
#            falls over 739,328 steps, 3.1 trillion tokens. The paper's results are
#            those after 300 billion tokens, at step 71,526 of this schedule
# One GPU    24.0 GB with COAT (planned)
# Eight      19.8 GB each with ZeRO 1 (planned)
# Expect     the paper's losses after 300 billion tokens: 2.551 in BF16, 2.568 with
#            COAT
# Differences from OLMo: the embedding has weight decay, too, and warm-up begins at 0.
name=olmo_1b model=olmo-1b micro_batch=8 seq_len=2048 batch_tokens=4194304 out=olmo_1b
train='dolma_train_*.bin' val='dolma_val_*.bin'
settings=(--steps 739328 --lr 4e-4 --warmup 2000 --schedule cosine --lr-final 0.1 --weight-decay 0.1 --eps 1e-5
    --val-every 1000 --val-batches 20 --save-every 1000 --keep 3)
. "$(dirname "$0")/launch.sh"
