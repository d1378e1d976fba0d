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

# What a process sees of GPUs and checkpoints decides on its recipe: it must be one for all.
differs='case "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}}" in 1) exec "$@" --recipe bf16 ;; *) exec "$@" ;; esac'
status=0
timeout 120 "${mpirun[@]}" -np 2 bash -c "$differs" bash "$program" "${flags[@]}" --steps 2 --batch-tokens 128 >"$folder/said" 2>&1 </dev/null || status=$?
if [ $status -eq 1 ] && [ "$(grep -c '^error: --recipe: the processes have not the same' "$folder/said")" -eq 1 ]; then ok "processes with different recipes end in one line"; else
    bad "processes with different recipes end in one line" "exit $status" "$(head -n 5 "$folder/said")"
fi
train 2 narrow --steps 2 --batch-tokens 128 --channels 40
if [ "$(grep -c '^note: --recipe bf16: not coat, the default, because --channels' "$folder/narrow.said")" -eq 1 ]; then ok "two processes fall back together, with one note"; else
    bad "two processes fall back together, with one note" "$(head -n 5 "$folder/narrow.said")"
fi
exit $failures
