#!/usr/bin/env bash
# Tests gradient_stats on a small byte-level model: its output, that it does not change the checkpoint, and errors for bad
# input. With a GPU, also tests that the results on GPU and CPU agree.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
tool=$build/gradient_stats
export OMP_NUM_THREADS=2

byte_data
"$program" --tokenizer bytes --layers 2 --heads 2 --channels 64 --seq-len 128 --micro-batch 8 --recipe bf16 --steps 20 \
    --lr 2e-3 --sample-tokens 0 --quiet --train "$data" --out "$folder/run" >/dev/null || { bad "training a checkpoint succeeds"; exit 1; }
checkpoint=$folder/run/step-00000020
hash=$(cat "$checkpoint"/* | cksum)

# measure NAME ARGUMENTS...: writes the tables to NAME.txt, the JSON lines to NAME.jsonl
measure() { "${program_of_tool:-$tool}" "${@:2}" --train "$data" --json "$folder/$1.jsonl" >"$folder/$1.txt"; }
# lines WORDS...: prints the lines of a.jsonl that contain all WORDS
lines() { local file=$folder/a.jsonl words; words=$(printf ' && /%s/' "$@"); awk "1$words" "$file"; }
# among X LOW HIGH: true if X is between LOW and HIGH
among() { awk -v x="$1" -v low="$2" -v high="$3" 'BEGIN { exit !(x >= low && x <= high) }' || { echo "$1"; false; }; }

# expects 4 gradients in 2 layers and the head's gradient, each in 2 formats with 3 scale rules (dqkv: 4)
lines_are_all() {
    [ "$(lines '"line":"gradient"' | wc -l)" = 9 ] && [ "$(lines '"line":"variant"' | wc -l)" = 58 ] &&
        [ "$(lines '"line":"product"' | wc -l)" = 108 ] && [ "$(lines '"line":"run"' | wc -l)" = 1 ] &&
        [ "$(wc -l <"$folder/a.jsonl")" = 176 ]
}
tables_are_whole() {
    local kind
    for kind in dqkv 'dresid at proj' dh 'dresid at fcproj' dlogits; do
        [ "$(grep -c "^$kind: [0-9]* tokens" "$folder/a.txt")" = 1 ] || return
    done
    grep -q '^The worst layer' "$folder/a.txt" && ! grep -qi nan "$folder/a.txt" && ! tail -n +2 "$folder/a.txt" | awk 'length > 120' | grep .
}
# expects errors of 0.2 to 5 % in E4M3 (long sums reduce the error), and 1.5 to 2.5 times as much in E5M2
errors_are_of_roundings() {
    local line e4m3 e5m2
    for line in '"gradient":"dh","layer":0' '"gradient":"dqkv","layer":1'; do
        e4m3=$(lines "$line" '"format":"e4m3"' '"scale":"token"' | field data_error)
        e5m2=$(lines "$line" '"format":"e5m2"' '"scale":"token"' | field data_error)
        among "$e4m3" 0.002 0.05 && among "$(awk "BEGIN { print $e5m2 / $e4m3 }")" 1.5 2.5 || return
    done
}
loss_is_the_trainers() { # compares with the trainer's first step on the same batch
    local said
    said=$("$program" --model "$checkpoint" --recipe bf16 --micro-batch 4 --steps 1 --sample-tokens 0 --json \
        --seq-len 128 --train "$data" 2>/dev/null | grep -m 1 '"loss":' | field loss)
    among "$(head -n 1 "$folder/a.jsonl" | field loss)" "$(awk "BEGIN { print $said - 1e-5 }")" "$(awk "BEGIN { print $said + 1e-5 }")"
}
products_are_sums_in_fp32() {
    lines '"line":"product"' '"output":"fp32"' | field error | awk '$1 > 2e-5 { bad = 1 } END { exit bad || !NR }'
}
same_again() { # ignores the first line, which has the number of threads
    measure b "$checkpoint" --micro-batch 4 --seq-len 128 --threads 1 &&
        diff <(tail -n +2 "$folder/a.txt") <(tail -n +2 "$folder/b.txt")
}
new_model() { # d1: 128 channels, GPT-2's vocabulary
    measure c d1 --micro-batch=1 --seq-len 32 --batch 2 --seed 5 && grep -q '^d1, micro-batch 2 of 1 x 32 tokens' "$folder/c.txt"
}
# train_llama NAME FLAGS...: saves a checkpoint of a small model with Llama's block in folder NAME
train_llama() {
    "$program" --model llama:d1 --tokenizer bytes --layers 2 --heads 2 --channels 64 "${@:2}" --recipe bf16 --seq-len 32 --micro-batch 1 \
        --steps 1 --sample-tokens 0 --quiet --train "$data" --out "$folder/$1" >/dev/null
}
own_head() { # expects 4 gradients in 2 layers and the head's gradient
    train_llama untied --no-tied-head && measure e "$folder/untied/step-00000001" --micro-batch 1 --seq-len 32 &&
        [ "$(grep -c '"line":"gradient"' "$folder/e.jsonl")" = 9 ]
}
other_sizes() { # measures 30 tokens, a number that FP8 matmuls do not support
    measure d "$checkpoint" --micro-batch 2 --seq-len 15 && grep -q '^note: FP8 matmuls' "$folder/d.txt" &&
        ! grep -q '"line":"product"' "$folder/d.jsonl"
}

succeeds "gradient_stats measures a checkpoint" measure a "$checkpoint" --micro-batch 4 --seq-len 128 --threads 2
succeeds "gradient_stats writes a line per gradient, variant and matmul" lines_are_all
succeeds "tables of gradient_stats are complete and fit 120 columns" tables_are_whole
succeeds "the loss of gradient_stats is that of the trainer's first step" loss_is_the_trainers
succeeds "the measured errors of gradients match the precision of E4M3 and E5M2" errors_are_of_roundings
succeeds "matmuls of the CPU accumulate in FP32" products_are_sums_in_fp32
succeeds "gradient_stats prints the same bits in a second run" same_again
succeeds "gradient_stats measures a named model with new weights" new_model
succeeds "gradient_stats measures a model with an untied head" own_head
succeeds "gradient_stats omits FP8 matmuls for a number of tokens that they do not support" other_sizes
succeeds "gradient_stats does not change the checkpoint" test "$(cat "$checkpoint"/* | cksum)" = "$hash"

# expects a line for each of 9 gradients and 3 scale rules in the CSV of two micro-batches, and a row for each of 5
# kinds of gradients in each of four tables
table_of_means() {
    local found expected
    measure b "$checkpoint" --micro-batch 8 --batch 0 && measure c "$checkpoint" --micro-batch 8 --batch 1 &&
        python3 dev/tools/gradient_table.py "$folder/table" "$folder"/[bc].jsonl || return
    [ "$(wc -l <"$folder/table/gradients.csv")" = 28 ] && [ "$(grep -c '^| 20 | 2 | ' "$folder/table/gradients.md")" = 20 ] || return
    found=$(awk -F, '/^20,dh,2,e5m2,tensor,2,/ { print $(NF - 3) }' "$folder/table/gradients.csv") # weight_error
    expected=$(awk '/"line":"variant"/ && /"gradient":"dh","layer":1,/ && /"format":"e5m2","scale":"tensor"/' "$folder"/[bc].jsonl |
        field weight_error | awk '{ sum += $1 } END { print sum / NR }')
    among "$found" "$(awk "BEGIN { print $expected * 0.99 }")" "$(awk "BEGIN { print $expected * 1.01 }")"
}
table_refuses() { # WORDS FILES...
    local said
    said=$(python3 dev/tools/gradient_table.py "$folder/none" "${@:2}" 2>&1) && return 1
    [ ! -e "$folder/none" ] && [ "$(wc -l <<<"$said")" = 1 ] && grep -q "^error: .*$1" <<<"$said" || { echo "$said"; false; }
}
if command -v python3 >/dev/null; then
    succeeds "gradient_table.py averages over micro-batches" table_of_means
    succeeds "gradient_table.py refuses the same micro-batch twice" table_refuses "contains the same micro-batch" "$folder"/[bc].jsonl "$folder/b.jsonl"
    succeeds "gradient_table.py refuses files of different micro-batch sizes" table_refuses "its micro_batch differs from" "$folder/a.jsonl" "$folder/b.jsonl"
    succeeds "gradient_table.py refuses a file that gradient_stats did not write" table_refuses "" README.md
else
    echo "skip - gradient_table.py: no python3"
fi

refused() { fails "$1" "$2" "$3" "$tool" "${@:4}"; } # NAME CODE WORDS ARGUMENTS...
mkdir "$folder/damaged"
cp "$checkpoint"/* "$folder/damaged"
head -c 5000 "$checkpoint/model.safetensors" >"$folder/damaged/model.safetensors"
refused "gradient_stats without arguments is refused" 1 CHECKPOINT
refused "gradient_stats without --train is refused" 1 --train "$checkpoint"
refused "gradient_stats refuses --recipe" 1 --recipe "$checkpoint" --train "$data" --recipe coat
refused "gradient_stats refuses two checkpoints" 1 other "$checkpoint" other --train "$data"
refused "gradient_stats refuses --json without a value" 1 --json "$checkpoint" --train "$data" --json
refused "gradient_stats refuses --batch x" 1 "--batch:" "$checkpoint" --train "$data" --batch x
refused "gradient_stats refuses --micro-batch 0" 1 --micro-batch "$checkpoint" --train "$data" --micro-batch 0
refused "gradient_stats refuses an unknown model" 1 nothing nothing --train "$data"
train_llama vision --vision clip:d1 || bad "training a vision model succeeds"
refused "gradient_stats refuses a vision model" 1 "vision tower" "$folder/vision/step-00000001" --train "$data"
refused "gradient_stats refuses a missing folder" 2 "$folder/nothing" "$folder/nothing" --train "$data"
refused "gradient_stats refuses missing token files" 2 nothing.bin "$checkpoint" --train "$folder/nothing.bin"
refused "gradient_stats refuses a damaged checkpoint" 2 damaged "$folder/damaged" --train "$data"
refused "gradient_stats refuses a file that cannot be written" 2 --json "$checkpoint" --train "$data" --json "$folder/no/a.jsonl"
succeeds "gradient_stats --help prints the usage" sh -c "$tool --help | grep -q '^usage: gradient_stats CHECKPOINT'"

# Both backends use the same weights. Their gradients differ by BF16 rounding.
gpu_agrees() {
    program_of_tool=${tool}_gpu measure gpu "$checkpoint" --micro-batch 8 --device cuda &&
        program_of_tool=${tool}_gpu measure cpu "$checkpoint" --micro-batch 8 --device cpu || return
    paste -d ' ' <(grep '"line":"variant"' "$folder/gpu.jsonl" | field weight_error) \
        <(grep '"line":"variant"' "$folder/cpu.jsonl" | field weight_error) |
        awk '$1 > 1.1 * $2 + 1e-4 || $1 < 0.9 * $2 - 1e-4 { print; bad = 1 } END { exit bad || NR != 58 }'
}
if [ -x "${tool}_gpu" ] && nvidia-smi -L 2>/dev/null | grep -q GPU; then
    succeeds "gradient_stats gives the same results on GPU and CPU" gpu_agrees
else
    echo "skip - gradient_stats gives the same results on GPU and CPU: no GPU, or not built"
fi
exit $failures
