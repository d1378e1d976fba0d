#!/usr/bin/env bash
# Tests scripts/profile.sh and its table with a program that pretends to be a traced trainer.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/program_fixture.sh

# The trainer writes a trace of two steps of two micro-batches. Kernels of 10 us run one after the other, except for a
# gap of 5 us before each update and a fill during the first matmul.
cat >"$folder/trainer" <<'END'
#!/bin/bash
case "$*" in *--plan=json*) echo "$*" >>"${TRACE_PLANS:-/dev/null}"; echo '{"tensors": [{"name": "wte", "format": "bf16", "category": "weights", "bytes": 2000}, {"name": "qkvw", "format": "bf16", "category": "weights", "bytes": 4000000000}, {"name": "tokens", "format": "i32", "category": "scratch", "bytes": 400}]}'; exit ;; esac
[ -z "${FAILS:-}" ] || { echo "error: device memory: too little" >&2; exit 3; }
echo "${SETTINGS:-}"
now=0
kernel() { printf '%d\t%d\t7\t%s\n' $now $((now + 10000)) "$1"; now=$((now + 10000)); }
ours() { kernel "_ZN44_GLOBAL__N__13e27aae_${#1}_$1_cu_bcf9a8e8${#2}$2ILi1EEEvT_"; }
for step in 1 2; do
    for pass in 1 2; do
        ours cuda_embed embed_forward_kernel
        ours fp8_norm fp8_norm_forward_kernel
        printf '%d\t%d\t7\tmemset\n' $((now + 2000)) $((now + 6000))
        kernel nvjet_qqtst_128x160
        kernel cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma
        kernel nvjet_logits
        ours cuda_loss loss_kernel
        kernel nvjet_dn
        kernel nvjet_dwte
        kernel _Z15backward_kernelILi64ELb0EEv7Problem
        if [ -z "${OMPI_COMM_WORLD_RANK:-}" ] || [ $pass = 1 ]; then
            kernel nvjet_dgrad
        else # two processes: communication of 32 us in the second pass, during a matmul that takes twice as long
            printf '%d\t%d\t%d\t%s\n' $now $((now + 32000)) 8 ncclDevKernel_ReduceScatter $now $((now + 20000)) 7 nvjet_dgrad
            now=$((now + 32000))
        fi
    done
    now=$((now + 5000))
    ours fp8_moments adamw_moments_kernel
    ours fp8_moments adamw_moments_kernel
    ours fp8_weights weight_scales_kernel
done >"${TRACE_FILE:?}"
END
printf '#!/bin/sh\ncase "$*" in *power.draw*) echo "90.0, 1980"; echo "600.0, 1500"; echo "650.0, 1400"; echo "480.0, 1980"; echo $$ >>"%s"; exec sleep 60 ;; *) echo "Pretended GPU" && sleep 0.05 && echo "Pretended GPU" ;; esac\n' \
    "$folder/watchers" >"$folder/nvidia-smi"
chmod +x "$folder/trainer" "$folder/nvidia-smi"
printf '#!/bin/sh\necho "$*" >>"${TRACE_PLANS:-/dev/null}"\nprintf "micro-batch\\tresidual_norm_forward\\t3000000\\nmicro-batch\\tnorm_backward\\t1000000\\nupdate\\tgrad_norm\\t9000000\\n"\n' >"$folder/traffic"
chmod +x "$folder/traffic"
touch "$folder/libtrace.so"
export PATH="$folder:$PATH" PROGRAM=$folder/trainer LIBRARY=$folder/libtrace.so OUT=$folder/out TRAFFIC=$folder/traffic

said=$(scripts/profile.sh 'x*.bin' --model gpt2 2>&1)
check "profile.sh succeeds" $? "$said"
has "the table has the blocks' matmuls with their rate" "$said" '^\| matmuls \| 2\.0 \| 0\.020 \| 17\.0 % \| 60000 TFLOP/s \|$'
has "the table has the head with its three matmuls and the loss" "$said" '^\| head and loss \| 4\.0 \| 0\.040 \| 34\.0 % \| matmuls 0 TFLOP/s'
has "the table has attention forward" "$said" '^\| attention forward \| 1\.0 \| 0\.010 \|'
has "the table has this program's attention backward" "$said" '^\| attention backward \| 1\.0 \| 0\.010 \|'
has "the table has the bandwidth of norms" "$said" '^\| norms \| 1\.0 \| 0\.010 \| 8\.5 % \| 400 GB/s \|$'
has "the table has the bandwidth of the update" "$said" '^\| update \| 1\.5 \| 0\.015 \| [0-9.]* % \| 300 GB/s \|$'
has "a kernel that runs during another adds no time" "$said" '^\| copies and fills \| 1\.0 \| 0\.000 \| 0\.0 %'
has "the table has the gaps between kernels" "$said" '^\| gaps \| \| 0\.003 \| 2\.1 %'
has "the table has the total of a micro-batch" "$said" '^\| all \| 12\.5 \| 0\.11[78] \| \| 2 micro-batches \|$'
has "the table has power and clock" "$said" '^\(625 W, 1450 MHz'
said=$(CEILINGS="800 120000 60000" scripts/profile.sh 'x*.bin' --model gpt2 2>&1)
has "with CEILINGS, the table has a lower bound of the matmuls' time" "$said" '^\| matmuls \| 2\.0 \| 0\.020 \| 17\.0 % \| 60000 TFLOP/s \| 0\.010 \(50 %\) \|$'
has "with CEILINGS, the table has a lower bound of the norms' time" "$said" '^\| norms \| 1\.0 \| 0\.010 \| 8\.5 % \| 400 GB/s \| 0\.005 \(50 %\) \|$'
has "with CEILINGS, the table has a lower bound of the update's time" "$said" '^\| update \| 1\.5 \| 0\.015 \| [0-9.]* % \| 300 GB/s \| 0\.006 \(38 %\) \|$'
has "with CEILINGS, a row whose FLOPs and bytes are unknown has no lower bound" "$said" '^\| attention forward \| 1\.0 \| 0\.010 \| [0-9.]* % \|  \|  \|$'
said=$(SETTINGS='{"step":0,"settings":{"layers":10,"heads":10,"kv-heads":5,"head-dim":10,"seq-len":1000000}}' CEILINGS="800 120000 60000" scripts/profile.sh 'x*.bin' --model gpt2 2>&1)
has "the FLOPs of attention forward are those of two matmuls" "$said" '^\| attention forward .* \| 20000 TFLOP/s \| 0\.003 \(33 %\) \|$'
has "the FLOPs of attention backward are those of five matmuls" "$said" '^\| attention backward .* \| 50000 TFLOP/s \| 0\.008 \(83 %\) \|$'
said=$(SETTINGS='{"step":0,"settings":{"layers":12,"linear":"fp8","bf16-blocks":4}}' CEILINGS="800 120000 60000" scripts/profile.sh 'x*.bin' --model gpt2 2>&1)
has "CEILINGS: the first blocks' matmuls count as BF16" "$said" '^\| matmuls \| 2\.0 \| 0\.020 \| 17\.0 % \| 60000 TFLOP/s \| 0\.011 \(5[0-9] %\) \|$'
said=$(SETTINGS='{"step":0,"settings":{"layers":12,"linear":"bf16"}}' CEILINGS="800 120000 60000" scripts/profile.sh 'x*.bin' --model gpt2 2>&1)
has "CEILINGS: all matmuls count as BF16 with --linear bf16" "$said" '^\| matmuls \| 2\.0 \| 0\.020 \| 17\.0 % \| 60000 TFLOP/s \| 0\.020 \(100 %\) \|$'
said=$(TRAFFIC=none scripts/profile.sh 'x*.bin' --model gpt2 2>&1)
has "without TRAFFIC, the table has no bandwidth" "$said" '^\| norms \| 1\.0 \| 0\.010 \| 8\.5 % \|  \|$'
page=$(cat "$folder/out/profile.md")
has "profile.md has each kernel with its file" "$page" '^\| fp8_norm: fp8_norm_forward_kernel \| 1\.0 \| 10\.0 \| 0\.010 \|'
has "profile.md has a kernel without a file" "$page" '^\| backward_kernel \| 1\.0 \|'
has "profile.md lists the head's kernels separately" "$page" '^\| head: nvjet_logits \| 1\.0 \|'
printf '#!/bin/bash\n[ "$1 $2" = "-np 2" ] || exit 9\nfor rank in 0 1; do OMPI_COMM_WORLD_RANK=$rank "${@:3}" || exit; done\n' >"$folder/mpirun"
chmod +x "$folder/mpirun"
said=$(GPUS=2 MPIRUN=mpirun OUT=$folder/two TRACE_PLANS=$folder/plans scripts/profile.sh 'x*.bin' --model gpt2 --zero 3 2>&1)
check "profile.sh with two processes succeeds" $? "$said"
has "the table names two GPUs" "$said" "on 2 x Pretended GPU$"
has "with ZeRO, FLOPs are computed for the entire model" "$(cat "$folder/plans")" "--model gpt2 --zero 3 --zero 0$"
has "bytes are computed for one of two processes" "$(cat "$folder/plans")" "--model gpt2 --zero 3 --gpus 2$"
has "the table has communication and its exposed time" "$said" '^\| communication \| 0\.5 \| 0\.006 \| [0-9.]* % \| runs 0\.016 ms; kernels during it take 0\.005 ms more than alone \|$'
has "profile.md has a kernel during communication" "$(cat "$folder/two/profile.md")" '^\| nvjet_dgrad \| 1\.0 \| 15\.0 \| 0\.015 \| [0-9.]* % \| 0\.5 of these: 20\.0 \|$'
[ -s "$folder/two/trace-1.tsv" ]
check "the second process writes a separate trace" $?
said=$(GPUS=two scripts/profile.sh 'x*.bin' 2>&1)
has "GPUS=two is refused" "$said" "^error: GPUS: must be .* \(is 'two'\)$"
said=$(FAILS=yes scripts/profile.sh 'x*.bin' 2>&1)
[ $? -eq 1 ] && [ "$said" = "error: the training ended with 3: error: device memory: too little" ]
check "a failed training is reported" $? "$said"
left=$(while read -r id; do ! kill -0 "$id" 2>/dev/null || echo "$id"; done <"$folder/watchers")
[ "$(wc -l <"$folder/watchers")" -gt 2 ] && [ -z "$left" ]
check "profile.sh ends nvidia-smi, also after a failed training" $? "$left"
said=$(LIBRARY=$folder/none.so scripts/profile.sh 'x*.bin' 2>&1)
[ $? -eq 1 ] && [[ $said == "error: $folder/none.so: is not built;"* ]]
check "a library that is not built is reported" $? "$said"

# checks that profile_table.awk assigns every operation of bench_traffic to a kind of kernel
printf 'micro-batch\tqk_norm_rope_forward\t2000000\n' >"$folder/rope.traffic"
rope=$(printf '%s\n' adamw embed_forward_kernel cuda_qk_norm_rope adamw | awk -v OFS='\t' '{ print NR * 10000, NR * 10000 + 10000, 7, $1 }' |
    awk -v traffic="$folder/rope.traffic" -f scripts/profile_table.awk)
has "the table has the bandwidth of RoPE" "$rope" '^\| RoPE and norms of q, k \| 1\.0 \| 0\.010 \| [0-9.]* % \| 200 GB/s \|$'

# --- bench_traffic: the bytes that each operation must read and write, compared with those counted by hand for a small
# Llama and GPT-2. The unit is C bytes per token and block, with C channels.

traffic() { "$build/bench_traffic" "$@" 2>&1; }
said=$(traffic --model llama:d3 --channels 128 --heads 2 --ffn 512 --vocab 512 --seq-len 128 --micro-batch 4 --bf16-blocks 0)
has "bench_traffic: SwiGLU reads and saves h and writes FP8 g: 7.25 bytes per value of g" "$said" '^\| activation_forward \| 3 \| [0-9.]* \| [0-9.]* \| 29\.0[0-9] \|$'
has "bench_traffic: RoPE reads and writes q and k" "$said" '^\| qk_norm_rope_forward \| 3 \| [0-9.]* \| [0-9.]* \| 8\.[0-9]* \|$'
said=$(traffic --model gpt2:d2 --channels 128 --heads 2 --vocab 512 --seq-len 128 --micro-batch 4 --recipe bf16)
has "bench_traffic: a BF16 gradient is read only for its column sums" "$said" '^\| grad_quantize \| 6 \| '
has "bench_traffic: GELU reads and writes 16 C bytes per token and block" "$said" '^\| activation_forward \| 2 \| [0-9.]* \| [0-9.]* \| 16\.[0-9]* \|$'
said=$(traffic --tsv --model gpt2:d2 --channels 128 --heads 2 --vocab 512 --seq-len 128 --micro-batch 4 --recipe bf16)
has "bench_traffic --tsv prints a line per operation" "$said" $'^update\tadamw_update\t[0-9]+$'
bytes() { traffic --tsv --model gpt2:d2 --channels 128 --heads 2 --vocab 512 --seq-len 128 --micro-batch 4 "${@:2}" | awk -v name="$1" '$2 == name { sum += $3 } END { print sum + 0 }'; }
whole=$(bytes adamw_update) shared=$(bytes adamw_update --gpus 2 --zero 1)
[ "$whole" -gt 0 ] && [ $((2 * shared)) -ge "$whole" ] && [ $((200 * shared)) -lt $((101 * whole)) ]
check "bench_traffic: with ZeRO, each of two processes updates its shard" $? "$whole $shared"
[ "$(bytes adamw_update --gpus 2 --zero 0)" = "$whole" ]
check "bench_traffic: with --zero 0, each process updates everything" $?
[ "$(bytes gradients_add)" = 0 ] && [ "$(bytes gradients_add --gpus 2 --zero 2)" -gt 0 ]
check "bench_traffic: ZeRO 2 adds gradients to shards" $?
small=(--tokenizer bytes --layers 2 --heads 2 --channels 64 --seq-len 32 --micro-batch 1 --recipe bf16)
"$build/prepare_bytes" --out "$folder/bytes" coat/ops.h >/dev/null
"$program" --model llama:d1 --no-tied-head "${small[@]}" --steps 1 --sample-tokens 0 --quiet --train "$folder/bytes_train.bin" --out "$folder/run" >/dev/null
is "bench_traffic reads the shape of a checkpoint" "$(traffic --model "$folder/run/step-00000001" --seq-len 32 --micro-batch 1 --recipe bf16 | grep '^|')" \
    "$(traffic --model llama:d1 --no-tied-head "${small[@]}" | grep '^|')"
has "bench_traffic refuses an unknown flag" "$(traffic --nonsense)" '^error: --nonsense: unknown flag'
exit $failures
