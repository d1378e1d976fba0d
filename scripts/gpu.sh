# shellcheck shell=bash
# The machine's GPUs, for scripts that run on them: to be sourced.

# All of what nvidia-smi says is read: a reader that ends early would end it with an error, which a script under pipefail
# would take for its own.

# What the first one is called; nothing without one.
gpu_name() { nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | awk 'NR == 1'; }

# Whether the first one can FP8, for which it needs compute capability 8.9.
has_fp8_gpu() {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | awk 'NR == 1 { good = $1 + 0 >= 8.9 } END { exit !good }'
}

# Those that may be used, one per line.
list_gpus() {
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES"
    else
        nvidia-smi --query-gpu=index --format=csv,noheader
    fi
}

# The version of a library that a program loads: in its file's name (libcudnn.so.9 -> libcudnn.so.9.19.0), else in the
# header beside it.
library_version() { # PROGRAM NAME [HEADER MACRO_PREFIX]
    local path header version
    path=$(ldd "$1" 2>/dev/null | awk -v name="$2.so" 'index($1, name) == 1 { print $3 }')
    path=$(readlink -f "$path" || true)
    version=${path##*.so.}
    header=${path%/*}/../include/${3:-none}
    if [[ $version != *.* && -r $header ]]; then
        version=$(awk -v prefix="$4_" '$1 == "#define" && index($2, prefix) == 1 && $3 ~ /^[0-9]+$/ {
            name = substr($2, length(prefix) + 1)
            if (name ~ /^(MAJOR|MINOR|PATCH|PATCHLEVEL)$/) { printf "%s%s", dot, $3; dot = "." }
        }' "$header")
    fi
    echo "${version:-unknown}"
}

cuda_version() { # PROGRAM
    { nvcc --version || /usr/local/cuda/bin/nvcc --version; } 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p' | grep . ||
        library_version "$1" libnvrtc
}
