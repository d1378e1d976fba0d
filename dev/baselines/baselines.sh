#!/usr/bin/env bash
# Measures the training speed of this program and of other programs on one GPU with the
# same tokens, one after the other. Prints a table of the tokens per second over the
# second half of the steps, and of the GPU memory that the driver reports as in use (1 GB =
# 10^9 bytes).
#
#   dev/baselines/baselines.sh [--dry-run] TOKEN_FILE [MODEL:MICRO_BATCHxLENGTH...]
#
# MODEL: gpt2, gpt2-xl, olmo-1b, llama2-7b, qwen2.5-1.5b or qwen2.5-7b. Default:
# gpt2:64x1024 gpt2-xl:16x1024 olmo-1b:32x1024. All tokens must be below the
# vocabulary sizes of all models.
#
# The other programs:
#   PyTorch with torch.compile in BF16: FP32 weights under autocast, BF16 weights for 7B
#   torchao's float8, with one scale per tensor and one per row
#   TransformerEngine's layers with current scaling, without torch.compile
#   fp8-coat, the paper's own package, for models with Llama's block. It needs an
#       older transformers, and its optimizer's kernels are compiled with nvcc. The
#       headers that the package lacks are generated from its sources.
#   pyllmq in BF16 and FP8; it requires the libraries of CUDA 12
# pip installs missing packages into BASELINES, except TransformerEngine, which is
# compiled for the installed torch and must be installed already. A program that
# cannot be installed, or fails, gets a row with the last line of its error.
#
# Environment:
#   BASELINES=build/baselines     folder of the installed packages
#   PYTHON=python3                a Python with torch
#   STEPS=12                      steps of each run
#   STEP_TOKENS=524288            maximum tokens per step, but at least one micro-batch
#   ONLY="torch-bf16 coat"        rows to measure (default: all)
set -euo pipefail
cd "$(dirname "$0")/../.."
fail() { echo "error: $*" >&2; exit 1; }
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
dry_run=''
[ "${1:-}" != --dry-run ] || { dry_run=yes && shift; }
case ${1:-} in -*) fail "$1: must be --dry-run or --help" ;; esac
[ $# -ge 1 ] || fail "a token file is missing; see --help"
tokens=$1 packages=${BASELINES:-build/baselines} python=${PYTHON:-python3}
steps=${STEPS:-12} step_tokens=${STEP_TOKENS:-524288}
shift
shapes=("$@")
[ ${#shapes[@]} -gt 0 ] || shapes=(gpt2:64x1024 gpt2-xl:16x1024 olmo-1b:32x1024)
[ -n "$dry_run" ] || [ -r "$tokens" ] || fail "$tokens: no such file; make one with data/prepare.py"
for shape in "${shapes[@]}"; do
    [[ $shape =~ ^[a-z0-9.-]+:[1-9][0-9]*x[1-9][0-9]*$ ]] || fail "$shape: must be MODEL:MICRO_BATCHxLENGTH"
    case ${shape%:*} in
    gpt2 | gpt2-xl | olmo-1b | llama2-7b | qwen2.5-1.5b | qwen2.5-7b) ;;
    *) fail "${shape%:*}: must be one of gpt2, gpt2-xl, olmo-1b, llama2-7b, qwen2.5-1.5b, qwen2.5-7b" ;;
    esac
done
rows=(bf16 coat "coat,head=fp8" torch-bf16 torchao-tensorwise torchao-rowwise te fp8-coat pyllmq-bf16 pyllmq-e4m3)
read -r -a only <<<"${ONLY:-${rows[*]}}"
export PYTHONPATH=$packages${PYTHONPATH:+:$PYTHONPATH}
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
work=$(mktemp -d)
exec 3>&1
trap 'rm -rf "$work"' EXIT

run() { # LOG COMMAND...: writes COMMAND's output to LOG and LOG.err; in a dry run, prints COMMAND and fails
    local log=$1
    shift
    if [ -n "$dry_run" ]; then echo "$*" >&3; return 1; fi
    "$@" >"$log" 2>"$log.err"
}

has() { "$python" -c "import $1" 2>"$work/import.err"; } # MODULE: true if Python can import MODULE

# Imports MODULE, or installs PACKAGE without its dependencies and then imports it.
needs() { # MODULE PACKAGE
    [ -z "$dry_run" ] || return 0
    has "$1" || {
        run "$work/pip" "$python" -m pip install --quiet --no-deps --target "$packages" "$2" &&
            rm "$work/pip.err" && has "$1"
    }
}

# Installs fp8-coat and the versions that it needs into BASELINES/of-coat and puts that folder first in PYTHONPATH.
needs_coat() {
    [ -z "$dry_run" ] || return 0
    local own name
    own=$(realpath -m "$packages")/of-coat
    needs coat fp8-coat || return
    [ -d "$own/transformers" ] || run "$work/pip" "$python" -m pip install --quiet --no-deps --target "$own" \
        transformers==4.45.2 tokenizers==0.20.3 huggingface_hub==0.26.5 || return
    export PYTHONPATH=$own:$PYTHONPATH
    has torch,qoptim_cuda && return
    cp -r "$("$python" -c 'import coat; print(coat.__path__[0])')/optimizer/kernels" "$work/" &&
        mkdir -p "$work/kernels/include" || return
    for name in fp8_adamw fp8_adamw_expand; do
        {
            echo '#include <torch/extension.h>'
            awk '/^void FP8_AdamW(_expand)?\(/, /\) *\{/' "$work/kernels/${name}_cuda.cpp" | sed 's/) *{/);/'
        } >"$work/kernels/include/$name.h"
    done
    (cd "$work/kernels" && run "$work/pip" "$python" setup.py --quiet build_ext --build-lib "$own") &&
        has torch,qoptim_cuda
}

last_error() { # FILE: prints the last error in FILE, or else the last line
    { grep -E '^(error|ERROR|[A-Za-z_.]*Error)' "$1" || tail -n 1 "$1"; } 2>/dev/null | tail -n 1 | cut -c1-100
}

# Prints "TOKENS_PER_S GB" from the log.jsonl lines and the memory table in FILEs.
figures() { # FILE...
    awk -F'[:,}]' -v from=$((steps / 2)) '
        /^{/ {
            for (i = 1; i < NF; i++) {
                if ($i ~ /"ms"/) ms = $(i + 1)
                if ($i ~ /"tokens_per_s"/) rate = $(i + 1)
                if ($i ~ /"driver_bytes"/) gb = $(i + 1) / 1e9
            }
            if (/"tokens_per_s"/ && ++n > from) { time += ms; tokens += ms * rate }
        }
        { split($0, word, " ") }
        word[1] == "driver" { gb = word[4] == "GB" ? word[3] : word[3] / 1000 }
        END { if (time > 0) printf "%.0f %.2f", tokens / time, gb }' "$@"
}

ours() { # RECIPE: trains with this program and prints "TOKENS_PER_S GB"
    local master=''
    [ "$1" != bf16 ] || master='--master split16'
    # shellcheck disable=SC2086 # flags are words
    run "$work/log" ./train_gpt2_fp8 --device cuda --model "$model" $master --recipe ${1//,/ --} \
        --micro-batch "$micro_batch" --seq-len "$length" --batch-tokens $((passes * micro_batch * length)) \
        --steps "$steps" --lr 3e-4 --warmup 10 --train "$tokens" --sample-tokens 0 --json || return
    figures "$work/log" "$work/log.err"
}

theirs() { # SCRIPT [FLAG...]: trains with another program and prints "TOKENS_PER_S GB"
    local parameters=0 # number of parameters that the other program's model must have; 0: not checked
    [ ! -x ./train_gpt2_fp8 ] ||
        parameters=$(./train_gpt2_fp8 --plan=json --model "$model" | sed 's/{"parameters": \([0-9]*\).*/\1/')
    run "$work/log" "$python" "dev/baselines/$1" --model "$model" --tokens "$tokens" --micro-batch "$micro_batch" \
        --seq-len "$length" --passes $passes --steps "$steps" --parameters "$parameters" "${@:2}" || return
    figures "$work/log"
}

torch() { # LINEAR: trains with torch_train.py --linear LINEAR and prints "TOKENS_PER_S GB"
    local weights=fp32
    [[ $model != *-7b ]] && [ "$1" != coat ] || weights=bf16
    needs transformers transformers || return
    theirs torch_train.py --linear "$1" --weights $weights
}

measured() { # ROW: prints "TOKENS_PER_S GB", or fails
    case $1 in
    torch-bf16) torch bf16 ;;
    torchao-*) needs torchao torchao && torch "float8-${1#torchao-}" ;;
    te) torch te ;;
    fp8-coat) needs_coat && torch coat ;;
    pyllmq-*) needs pyllmq pyllmq && theirs llmq_train.py --matmul "${1#pyllmq-}" ;;
    *) ours "$1" ;;
    esac
}

[ -n "$dry_run" ] || printf '%-14s %-20s %10s %8s\n' model program tokens/s "driver GB"
for shape in "${shapes[@]}"; do
    model=${shape%:*} micro_batch=${shape#*:} length=${shape##*x}
    micro_batch=${micro_batch%x*}
    passes=$((step_tokens / (micro_batch * length)))
    [ $passes -gt 0 ] || passes=1
    for row in "${only[@]}"; do
        rm -f "$work"/log* "$work/pip"* "$work/import.err"
        if found=$(measured "$row") && [ -n "$found" ]; then
            # shellcheck disable=SC2086 # two words
            printf '%-14s %-20s %10s %8s\n' "$model" "$row" $found
        elif [ -z "$dry_run" ]; then
            why=$(
                for file in "$work/import.err" "$work/pip.err" "$work/log.err" "$work/log"; do
                    [ ! -s "$file" ] || last_error "$file"
                done | tail -n 1
            )
            printf '%-14s %-20s %s\n' "$model" "$row" "${why:-error: it is not installed}"
        fi
    done
done
