#!/usr/bin/env bash
# Checks and measures everything that this repository claims about the GPU. Expect half
# an hour on an H100: memcheck and initcheck take five minutes each, racecheck more.
# The exit code is 1 if a check failed or could not run, and 3 if no GPU supports FP8.
#
#   scripts/check_gpu.sh 'data/tokens/gpt2_train_*.bin' data/tokens/headers
#       The first argument is a pattern of GPT-2 token files, for the parts repeat and
#       training. The second is the PATH of the byte-token files PATH_train.bin and
#       PATH_val.bin, which build/prepare_bytes writes, for the part curve
#
#   BIN=. BUILD=build OUT=runs/check     BIN, BUILD: folders of programs; OUT: of logs
#   PARTS="..."    parts to run (default: all), in this order:
#       reference  results of every operation and of entire models, compared with the
#                  CPU reference
#       memcheck initcheck racecheck     the comparisons of reference on small shapes,
#                  under these tools of compute-sanitizer
#       repeat     two runs of one command write identical checkpoints
#       curve      final validation loss and a sample, compared with the CPU's
#       families   training compared with PyTorch's; needs torch and transformers
#       kernels    bandwidth of every memory-bound kernel
#       training   speed and memory of training
set -uo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
. "$here/gpu.sh"
tokens=${1:-} bytes=${2:-} bin=${BIN:-.} build=${BUILD:-build} out=${OUT:-runs/check}
all='reference memcheck initcheck racecheck repeat curve families kernels training'
read -r -d '' -a parts <<<"${PARTS:-$all}" || true

stop() { echo "error: $1" >&2; exit "${2:-1}"; }

[ ${#parts[@]} -gt 0 ] || stop "PARTS: names no part; see --help"
[ $# -le 2 ] || stop "$3: is a third argument; quote the pattern of token files"
for part in "${parts[@]}"; do
    program=$bin/train_gpt2_fp8 how=''
    case $part in
    reference | memcheck | initcheck) program=$bin/test_gpt2 ;;
    racecheck) program=$build/racecheck/test_gpt2 how='RACECHECK=1 ' ;;
    kernels) program=$build/bench_kernels_gpu ;;
    repeat | training)
        [ -n "$tokens" ] || stop "$part reads GPT-2 tokens; name them as the first argument, see --help"
        ;;
    curve) [ -n "$bytes" ] || stop "curve reads byte tokens; name them as the second argument, see --help" ;;
    families) ;;
    *) stop "PARTS: $part: must be one of ${all// /, }" ;;
    esac
    [ -x "$program" ] || stop "$part: $program is not built; run: make $how${program#./}"
done
has_fp8_gpu || stop "nvidia-smi shows no GPU for FP8 (compute capability 8.9 or more); run \
check_gpu.sh on a machine with such a GPU and its driver, or scripts/test.sh for the tests that need no GPU" 3

mkdir -p "$out"
failed=0
say() { printf '\n== %s\n' "$*"; }
verdict() { if [ "$1" -eq 0 ]; then echo "good: $2"; else echo "FAILED: $2"; failed=1; fi; }

wanted() { [[ " ${parts[*]} " == *" $1 "* ]]; }

# skipped LOG: prints the first test that test_gpt2 skipped; true if there is one. Without a GPU, test_gpt2 skips tests
# but still ends with 0.
skipped() { grep -m 1 '^skip - ' "$1"; }

if wanted reference; then
    say "operations in BF16, FP32 and FP8, optimizer states and models, compared with the CPU reference"
    "$bin/test_gpt2" >"$out/test.log" 2>&1 && ! skipped "$out/test.log"
    verdict $? "test_gpt2: $(grep -c '^ok' "$out/test.log") passed, $(grep -c '^not ok' "$out/test.log") failed"
fi

summary() { grep -o 'SUMMARY: .*' "$1" | tail -n 1; } # LOG: prints the summary of compute-sanitizer
has_sanitizer() { # TOOL: prints a heading; true if compute-sanitizer exists, otherwise reports a failed check
    say "compute-sanitizer, $1"
    command -v compute-sanitizer >/dev/null && return
    verdict 1 "compute-sanitizer is not in PATH, which $1 needs; add CUDA's bin folder to PATH, or remove $1 from PARTS"
    return 1
}
for tool in memcheck initcheck; do
    if ! wanted $tool || ! has_sanitizer $tool; then continue; fi
    log=$out/$tool.log
    compute-sanitizer --tool $tool --error-exitcode 9 "$bin/test_gpt2" --small >"$log" 2>&1 && ! skipped "$log"
    verdict $? "$tool: $(summary "$log")"
done
# racecheck reports false hazards in kernels of cuDNN and cuBLAS, because it cannot follow their synchronization. The
# kernels of cuDNN are excluded, which also saves time. Kernels of cuBLAS (nvjet) fail if they are excluded. They are
# therefore included, but their hazards are not counted. RACECHECK=1 builds kernels of this program that racecheck can
# follow.
if wanted racecheck && has_sanitizer racecheck; then
    for part in optimizer kernels fp8-kernels operations fp8 models; do
        log=$out/racecheck-$part.log
        compute-sanitizer --tool racecheck --kernel-name-exclude kernel_substring=cudnn \
            "$build/racecheck/test_gpt2" --small $part >"$log" 2>&1
        ours=$(grep 'Race reported' "$log" | grep -cv nvjet)
        grep -q 'hazards\? displayed' "$log" && ! grep -qE '^not ok|^error|Internal' "$log" && ! skipped "$log" &&
            [ "$ours" -eq 0 ]
        verdict $? "racecheck, $part: $ours hazards in kernels of this program; in all kernels $(summary "$log")"
    done
fi

if wanted repeat; then
    say "two runs of one command"
    six_steps() { # NAME FLAGS...: trains six steps in OUT/NAME; if that fails, prints the last line of the log
        rm -rf "${out:?}/$1"
        "$bin/train_gpt2_fp8" --device cuda --train "$tokens" --model gpt2 --batch-tokens 65536 --steps 6 \
            --sample-tokens 0 --quiet --out "$out/$1" "${@:2}" >"$out/$1.log" 2>&1 ||
            { tail -n 1 "$out/$1.log"; return 1; }
    }
    equal() { # WHAT NAME NAME: checks that the runs in OUT/NAME and OUT/NAME have the same checkpoint
        local one=$out/$2/step-00000006 two=$out/$3/step-00000006
        : >"$out/$3.diff"
        [ -e "$one" ] && [ -e "$two" ] && diff -r "$one" "$two" >"$out/$3.diff"
        verdict $? "$1: checkpoints are equal byte for byte$(sed 's/^/; /; 5q' "$out/$3.diff" | tr -d '\n')"
    }
    repeat() { # NAME FLAGS...: checks that two runs with these flags have the same checkpoint
        six_steps "$1-1" "${@:2}" && six_steps "$1-2" "${@:2}"
        equal "$1" "$1-1" "$1-2"
    }
    repeat bf16 --micro-batch 16 --recipe bf16
    repeat coat --micro-batch 16 --recipe coat
    repeat fp32 --micro-batch 4 --precision fp32
    six_steps coat-less --micro-batch 16 --recipe coat --recompute 3 --offload-states
    equal "coat with --recompute 3 and --offload-states" coat-1 coat-less
fi

if wanted curve; then
    say "500 steps of a small model on the GPU and on the CPU"
    small=(--tokenizer bytes --layers 4 --heads 4 --channels 128 --seq-len 256 --micro-batch 8 --steps 500 --lr 1e-3
        --warmup 50 --val-every 0 --val-batches 8 --train "${bytes}_train.bin" --val "${bytes}_val.bin"
        --sample-tokens 0 --seed 1 --recipe bf16 --quiet --overwrite)
    curve() { # DEVICE OUT: prints the final validation loss
        "$bin/train_gpt2_fp8" "${small[@]}" --device "$1" --out "$out/$2" >/dev/null 2>"$out/$2.log" ||
            { tail -n 1 "$out/$2.log" >&2; return; }
        sed -n 's/.*"val_loss":\([^,}]*\).*/\1/p' "$out/$2/log.jsonl" | tail -n 1
    }
    gpu=$(curve cuda gpu) cpu=$(curve cpu cpu)
    awk -v a="$gpu" -v b="$cpu" 'BEGIN { d = a - b; exit !(a > 0 && b > 0 && d < 0.01 && d > -0.01) }'
    verdict $? "validation loss on the GPU ${gpu:-missing}, on the CPU ${cpu:-missing}"
    most_likely() { # DEVICE: prints a greedy sample of the GPU's model
        "$bin/train_gpt2_fp8" --model "$out/gpu/step-00000500" --tokenizer bytes --device "$1" --precision fp32 \
            --prompt "static " --temperature 0 --sample-tokens 100 2>"$out/sample-$1.log" ||
            tail -n 1 "$out/sample-$1.log" >&2
    }
    most_likely cuda >"$out/sample-cuda.txt"
    most_likely cpu >"$out/sample-cpu.txt"
    [ -s "$out/sample-cuda.txt" ] && cmp "$out/sample-cuda.txt" "$out/sample-cpu.txt"
    verdict $? "both devices write the same 100 tokens"
fi

if wanted families; then
    say "30 updates of every family, compared with PyTorch's, on text and on packed examples"
    for data in text packed; do
        packed=() log=$out/families-$data.log
        [ $data = text ] || packed=(--packed)
        python3 "$here/../dev/test/check_families.py" --program "$bin/train_gpt2_fp8" "${packed[@]}" >"$log" 2>&1
        verdict $? "$data: $(grep -c '^PASS ' "$log") passed$(
            grep -v '^PASS' "$log" | tail -n 4 | sed 's/^/; /' | tr -d '\n')"
    done
fi

if wanted kernels; then
    say "memory-bound kernels"
    "$build/bench_kernels_gpu" | tee "$out/kernels.log"
    # $? is the status of bench_kernels, because of pipefail
    verdict $? "bench_kernels: $(grep -E '^(not )?ok - ' "$out/kernels.log" || echo 'ended early')"
    awk '/ ms / && $(NF - 3) + 0 < 80 && $1 != "loss_sum" {
        print "below 80 % of a large copy: " $0 }' "$out/kernels.log"
fi

if wanted training; then
    say "training"
    PROGRAM=$bin/train_gpt2_fp8 OUT=$out/measure "$here/measure.sh" "$tokens" bf16 fp8-linear coat |
        tee "$out/training.log"
    verdict $? "all recipes train"
    # columns: model, recipe, tokens/s, ms, plan in GB, driver in GB
    beyond=$(awk '
        NF == 6 && $3 + 0 > 0 { rows++ }
        NF == 6 && $3 + 0 > 0 && !($6 >= $5 && $6 - $5 <= 0.7 + 0.01 * $5) {
            printf "; %s %s: %s GB in use, %s planned", $1, $2, $6, $5 }
        END { if (!rows) printf "; nothing was measured" }' "$out/training.log")
    [ -z "$beyond" ]
    verdict $? "the driver reports at least the planned memory and at most 0.7 GB + 1 % more$beyond"
fi

exit $failed
