# shellcheck shell=bash
# The machine's GPUs. To be sourced by scripts that run on them.
# The readers below read all of nvidia-smi's output: if one ended early, nvidia-smi would fail, and with it a script that
# has set pipefail.

# Prints the name of the first GPU, or nothing.
gpu_name() { nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | awk 'NR == 1'; }

# True if the first GPU can compute in FP8, which needs compute capability 8.9.
has_fp8_gpu() {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | awk 'NR == 1 { good = $1 + 0 >= 8.9 } END { exit !good }'
}

# Prints the GPUs that may be used, one per line.
list_gpus() {
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES"
    else
        nvidia-smi --query-gpu=index --format=csv,noheader
    fi
}
