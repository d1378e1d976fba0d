#!/usr/bin/env bash
# Several processes train what one does, and end together. Short cases; dev/long_ranks.sh has the rest.
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

# Data that one process cannot read end the run on all of them, with what is done: a token beyond the vocabulary in the
# last of 40 sequences, four to a step, for training; for the validation after the second step, in the fourth.
bad_file() { # NAME SEQUENCE
    head -c $((1024 + 2 * (32 * 40 + 1))) "$folder/src_train.bin" >"$folder/$1.bin"
    printf '\x01\x05\x00\x00' | dd of="$folder/$1.bin" bs=1 seek=8 conv=notrunc status=none # 32 * 40 + 1 tokens
    printf '\xff\xff' | dd of="$folder/$1.bin" bs=1 seek=$((1024 + 2 * 32 * $2)) conv=notrunc status=none
}
bad_file train 39 && bad_file val 3
bad_data() { # NAME STEP FLAGS...: ends with 2, one error, and the checkpoint of a run of STEP steps
    local name=$1 step=$2 status=0
    timeout 120 "${mpirun[@]}" -np 2 "$program" "${flags[@]}" --no-shuffle --zero 3 --schedule constant --out "$folder/$name" \
        --steps 20 --batch-tokens 128 "${@:3}" >"$folder/said" 2>&1 </dev/null || status=$?
    [ $status -eq 2 ] && [ "$(grep -o 'error: ' "$folder/said" | wc -l)" -eq 1 ] && grep -q "error: .*$name.bin: token .* is 65535" "$folder/said" &&
        ok "bad data for one process ($name) end all with 2" || bad "bad data for one process ($name) end all with 2" "status $status" "$(cat "$folder/said")"
    train 2 "$name-whole" --no-shuffle --zero 3 --schedule constant --steps "$step" --batch-tokens 128 "${@:3}" --val-every 100 --val "$folder/src_val.bin" &&
        same "and with the checkpoint of the last whole step" "$(printf %08d "$step")" "$name" "$name-whole"
}
bad_data train 9 --train "$folder/train.bin"
bad_data val 2 --val "$folder/val.bin" --val-every 2
exit $failures
