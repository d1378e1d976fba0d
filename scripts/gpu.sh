# shellcheck shell=bash
# Functions about the machine's GPUs, sourced by scripts. The functions read all of nvidia-smi's output. A reader that
# ended early would make nvidia-smi fail, and with pipefail also the script.

# Prints the name of the first GPU, or nothing.
gpu_name() { nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | awk 'NR == 1'; }

# True if the first GPU supports FP8, which needs compute capability 8.9.
has_fp8_gpu() {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
        awk 'NR == 1 { good = $1 + 0 >= 8.9 } END { exit !good }'
}

# Prints the ids of the visible GPUs, one per line.
list_gpus() {
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES"
    else
        nvidia-smi --query-gpu=index --format=csv,noheader
    fi
}
