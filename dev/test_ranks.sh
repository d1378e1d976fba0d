#!/usr/bin/env bash
# Several processes train what one does. Two short cases; dev/long_ranks.sh has the rest.
source "$(dirname "$0")/ranks.sh"

# The same sequences in every step, three micro-batches of them per process or six: the same losses.
fp32=(--precision fp32 --steps 6 --batch-tokens 384 --val-every 3 --save-every 4)
train 1 one "${fp32[@]}" && train 2 two "${fp32[@]}" --zero 2 &&
    near "ZeRO 2 on two processes has the losses of one" loss 1e-5 one two &&
    near "and its gradients' norms" grad_norm 1e-5 one two && near "and its validation losses" val_loss 1e-5 one two

# Shared weights, FP8 codes of them gathered layer by layer: the bits of unshared ones. Then one process goes on.
coat=(--recipe coat --batch-tokens 128 --save-every 3)
train 2 zero0 "${coat[@]}" --zero 0 --steps 3 && train 2 zero3 "${coat[@]}" --zero 3 --steps 3 &&
    same "ZeRO 3 writes the checkpoint of ZeRO 0, byte for byte" 00000003 zero0 zero3
train 1 zero3 "${coat[@]}" --steps 5 --resume && train 2 zero0 "${coat[@]}" --zero 1 --steps 5 --resume &&
    near "one process goes on from it as two do" loss 1e-3 zero0 zero3
exit $failures
