#!/usr/bin/env bash
# What measures and checks on GPUs, with programs that only pretend to run there: that scripts/measure_gpus.sh and
# scripts/measure.sh put every figure in its row, and that scripts/check_gpu.sh and dev/test/check_*.sh call nothing good that
# was not looked at.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
is() { # NAME GOT WANTED
    if [ "$2" = "$3" ]; then echo "ok - $1"; else
        printf 'not ok - %s\n    got: %s\n    wanted: %s\n' "$1" "$2" "$3"
        failures=1
    fi
}
unset CUDA_VISIBLE_DEVICES GPUS STAGES SEEDS WARMUP MPIRUN PROGRAM MODEL PASSES STEPS LARGE SMALL
export OUT=$folder/out

# The program: tokens/s from its flags, 1000 per GPU less 10 times the stage, a tenth with one micro-batch; a loss that
# its seed names, half a percent higher with several processes.
cat >"$folder/program" <<'SH'
#!/bin/sh
zero=0 steps=0 tokens=0 seed=0 val=
for word in "$@"; do
    case $last in --zero) zero=$word ;; --steps) steps=$word ;; --batch-tokens) tokens=$word ;; --seed) seed=$word ;; --val) val=$word ;; esac
    last=$word
done
n=${PROCESSES:-1}
echo "driver reports $((30 + zero)).00 GB" >&2
for step in $(seq "$steps"); do
    rate=$((n * 1000 - n * 10 * zero)); [ $((tokens / n)) -gt 16384 ] || rate=$((rate / 10))
    [ "$step" -gt 1 ] || rate=1
    echo "{\"step\":$step,\"loss\":1,\"tokens_per_s\":$rate.0}"
done
[ -z "$val" ] || echo "{\"step\":$steps,\"val_loss\":$((2000 * seed + 10 * (n - 1) * seed)).0}"
SH
cat >"$folder/mpirun" <<'SH'
#!/bin/sh
[ "$1" = -np ] || exit 9
PROCESSES=$2 && export PROCESSES && shift 2 && exec "$@"
SH
chmod +x "$folder/program" "$folder/mpirun"
export PROGRAM=$folder/program MPIRUN=$folder/mpirun

page=$(GPUS=2 STAGES="1 3" SEEDS="1 3" scripts/measure_gpus.sh train val 2>&1)
is "the GPUs one by one" "$(grep 'one by one' <<<"$page")" "| one by one | 1000, 1000 | 100, 100 | 30.0 |"
is "ZeRO 1, in percent of them" "$(grep '2, ZeRO 1 | [0-9]* (' <<<"$page")" "| 2, ZeRO 1 | 1980 (99.0 %) | 198 (99.0 %) | 31.0 |"
is "ZeRO 3" "$(grep '2, ZeRO 3 | [0-9]* (' <<<"$page")" "| 2, ZeRO 3 | 1940 (97.0 %) | 194 (97.0 %) | 33.0 |"
is "the large model" "$(grep '4096' <<<"$page")" "| layers 32 heads 32 channels 4096 seq-len 2048 micro-batch 2 | 2, ZeRO 3 | 1940 | 33.0 |"
is "a seed's losses" "$(grep '^| 3' <<<"$page")" "| 3 | 6000.0000 | 6030.0000 | +0.50 % |"
is "their mean" "$(tail -n 1 <<<"$page")" "| mean | | | +0.50 ± 0.00 % |"

dry=$(GPUS=4 scripts/measure_gpus.sh --dry-run train val speed)
is "a dry run: each GPU has its turn" "$(grep -c CUDA_VISIBLE_DEVICES=3 <<<"$dry")" 2
is "all together, per stage with many micro-batches and with one" "$(grep -c -- '-np 4.*--zero' <<<"$dry")" 6
is "so many tokens per step" "$(grep -c -- '-np 4.*--batch-tokens 524288 ' <<<"$dry")" 3
is "nothing was run" "$(ls "$folder/out" | grep -c zero2)" 0

is "one GPU is not enough" "$(GPUS=1 scripts/measure_gpus.sh train val 2>&1)" "error: GPUS: two or more are needed, not '1'"
is "another part" "$(GPUS=2 scripts/measure_gpus.sh train val fast 2>&1)" "error: fast: not one of speed, large, loss"
said=$(GPUS=2 PROGRAM=false scripts/measure_gpus.sh train val large 2>&1)
is "a run that fails ends it: status" $? 1
is "a run that fails ends it" "$(cut -c 1-26 <<<"$said")" "error: large ended with 1:"
unset OUT PROGRAM MPIRUN

# --- peers: pyllmq's shapes, which dev/baselines/llmq_train.py says itself, are this program's
if command -v python3 >/dev/null; then
    mkdir "$folder/python"
    echo 'LLamaConfig = dict' >"$folder/python/pyllmq.py"
    printf 'int32 = 0\ndef fromfile(*_, **__): raise SystemExit("taken")\n' >"$folder/python/numpy.py" # behind the check
    peer() { PYTHONPATH=$folder/python python3 -B dev/baselines/llmq_train.py --tokens t --model "$1" --parameters "$2" 2>&1; }
    for model in olmo-1b llama2-7b qwen2.5-1.5b qwen2.5-7b; do
        count=$("${BIN:-.}"/train_gpt2_fp8_cpu --plan=json --model $model | sed 's/{"parameters": \([0-9]*\),.*/\1/')
        is "pyllmq's $model is this program's" "$(peer $model "$count")" taken
        is "and another number of parameters is refused" "$(peer $model $((count * 33 / 32)) | sed 's/[0-9]* param.*//')" "error: $model has "
    done
    is "baselines.sh says how many they must have" "$(dev/baselines/baselines.sh --dry-run t olmo-1b:1x1024 2>&1 | grep -c -- '_train.py .* --parameters [0-9]')" 7
else
    echo "skip - pyllmq's shapes: there is no Python"
fi

# --- one GPU: test_gpt2 that skips where SKIPS is set, a trainer that FAILS with some flags and takes CONTEXT MB beside
# its plan of 10 GB, and a compute-sanitizer that finds nothing but what RACES says
mkdir -p "$folder"/{none,gpu,tools,bin/racecheck}
printf '#!/bin/sh\nexit 9\n' >"$folder/none/nvidia-smi"
printf '#!/bin/sh\necho 9.0\n' >"$folder/gpu/nvidia-smi"
cat >"$folder/tools/compute-sanitizer" <<'SH'
#!/bin/sh
echo "$*" >>"$(dirname "$0")/calls"
while [ "${1##*/}" != test_gpt2 ]; do shift; done
[ -z "$RACES" ] || echo "========= Error: Race reported between Read access at kernel+0x10"
"$@" && echo "======== RACECHECK SUMMARY: 0 hazards displayed"
SH
cat >"$folder/bin/test_gpt2" <<'SH'
#!/bin/sh
echo "ok - gradients"
[ -z "$SKIPS" ] || echo "skip - the GPU's operations against the twin's: no GPU"
SH
cat >"$folder/bin/train_gpt2_fp8" <<'SH'
#!/bin/sh
while [ $# -gt 0 ]; do
    all="$all $1"
    case $1 in --out) out=$2 ;; --device) device=$2 ;; --steps) steps=$2 ;; esac
    shift
done
case "$all" in *"${FAILS:-none}"*) echo "error: $FAILS fails" >&2; exit 3 ;; *--prompt*) echo "static ${ODD:+$device}"; exit ;; esac
if [ -n "$out" ]; then
    mkdir -p "$out/step-00000006"
    [ -z "$ODD" ] || echo "$out" >"$out/step-00000006/matmul_table.txt"
    echo "{\"step\":500,\"val_loss\":2.00$([ "$device" = cpu ] || echo 4)}" >"$out/log.jsonl"
    exit
fi
for step in $(seq "${steps:-0}"); do echo "{\"step\":$step,\"tokens\":$((step * 1000)),\"ms\":10}"; done
printf '  total 10.00 GB\n  driver reports %d.0 MB\n' $((10000 + ${CONTEXT:-600})) >&2
SH
cp "$folder/bin/test_gpt2" "$folder/bin/racecheck/"
printf '#!/bin/sh\necho "ok - kernels"\n' >"$folder/bin/bench_kernels_gpu"
cat >"$folder/tools/python3" <<'SH'
#!/bin/sh
echo "PASS  llama fp32: 1e-7 (at most 2e-6)"
[ -z "$ODD" ] || { echo "FAIL  olmo fp32: 1e-5 (at most 2e-6)"; echo FAIL; exit 1; }
echo PASS
SH
chmod +x "$folder"/{none,gpu,tools,bin}/* "$folder"/bin/racecheck/*
path=$PATH
export BIN=$folder/bin BUILD=$folder/bin OUT=$folder/check PROGRAM=$folder/bin/train_gpt2_fp8
unset MODELS MICRO_BATCH PARTS

has() { # NAME PATTERN STATUS: what the last script said has such a line, and it ended so
    if grep -qE -- "$2" <<<"$said" && [ "$status" = "$3" ]; then echo "ok - $1"; else
        printf 'not ok - %s\n    status %s, wanted: %s %s\n' "$1" "$status" "$3" "$2"
        sed 's/^/    /' <<<"$said"
        failures=1
    fi
}
says() { # SETTING... COMMAND...: runs it
    said=$(env "$@" 2>&1)
    status=$?
}
# one line, and nothing else
refuses() { # NAME PATTERN STATUS SETTING... COMMAND...
    says "${@:4}"
    has "$1" "^error: $2" "$3"
    is "$1: in one line" "$(wc -l <<<"$said")" 1
}

# scripts/measure.sh
says STEPS=4 FAILS="--recipe coat" OUT="$folder/measure" scripts/measure.sh t bf16 coat fp8-linear
has "a row that fails says why, and the end is 1" '^gpt2-xl +coat +error: --recipe coat fails$' 1
is "the other rows are measured" "$(grep -cE '^gpt2(-xl)? +(bf16|fp8-linear) +100000 +10\.0 +10\.00 +10\.60$' <<<"$said")" 4
says STEPS=4 OUT="$folder/measure" scripts/measure.sh t bf16
has "where none fails it is 0" '^gpt2 +bf16 +100000' 0
says STEPS=4 MODELS=gpt2 FAILS="--recipe coat --head=fp8 --bf16-blocks=0" OUT="$folder/measure" scripts/measure.sh t bf16 coat,head=fp8,bf16-blocks=0
has "flags behind a recipe are the run's" '^gpt2 +coat,head=fp8,bf16-blocks=0 error: --recipe coat --head=fp8 --bf16-blocks=0 fails$' 1
has "and the columns have room for them" '^gpt2 +bf16 {30}100000 ' 1
refuses "a recipe that is none" "coat\\+head: not bf16, fp8-linear, coat or coat-paper, .*as coat,head=fp8" 1 scripts/measure.sh t coat+head
says STEPS=4 MODELS=gpt2 OUT="$folder/measure" PROGRAM=true scripts/measure.sh t bf16
has "a program that trains nothing is a failure" '^gpt2 +bf16 +error: no step was timed' 1
refuses "a number that would be octal" "STEPS: a number from 1 on, .* not 020" 1 STEPS=020 scripts/measure.sh t
printf '#!/bin/sh\nshift 2\nexec "$@"\n' >"$folder/tools/passes"
printf '#!/bin/sh\nprintf -- "-----\\nthere are no slots\\n\\nAsk for fewer.\\n-----\\n" >&2\nexit 1\n' >"$folder/tools/refuses"
chmod +x "$folder"/tools/*
says STEPS=4 MODELS=gpt2 GPUS=2 MPIRUN="$folder/tools/passes" OUT="$folder/measure" scripts/measure.sh t bf16
has "on two GPUs, tokens/s of each" '^gpt2 +bf16 +50000 +10\.0 +10\.00 +10\.60$' 0
says STEPS=4 MODELS=gpt2 GPUS=2 MPIRUN="$folder/tools/refuses" OUT="$folder/measure" scripts/measure.sh t bf16
has "what mpirun refuses" '^gpt2 +bf16 +error: ended with 1: there are no slots$' 1
says scripts/measure.sh
has "without arguments: all of its help" '^  GPUS=1 ' 1
is "which is as with --help" "$said" "$(scripts/measure.sh --help)"

# scripts/check_gpu.sh
export PATH="$folder/tools:$folder/none:$path"
refuses "no GPU" "nvidia-smi shows no GPU for FP8 .*: run this on a machine with one" 3 scripts/check_gpu.sh t b
export PATH="$folder/tools:$folder/gpu:$path"
refuses "a part that is none" "PARTS: twins: not one of twin, " 1 PARTS="twins kernels" scripts/check_gpu.sh
refuses "no part" "PARTS names no part" 1 PARTS=" " scripts/check_gpu.sh
refuses "a pattern that was not quoted" "c: a third argument; quote" 1 scripts/check_gpu.sh a b c
refuses "a part without its tokens" "repeat reads GPT-2 tokens: " 1 PARTS=repeat scripts/check_gpu.sh
refuses "nor its bytes" "curve reads byte tokens: " 1 PARTS="twin curve" scripts/check_gpu.sh t
refuses "a program that is not built" "kernels: .*/bench_kernels_gpu is not built: make " 1 BUILD="$folder/none" PARTS=kernels scripts/check_gpu.sh
refuses "one that racecheck can follow" "racecheck: none/racecheck/test_gpt2 is not built: make RACECHECK=1 none/" 1 BUILD=none PARTS=racecheck scripts/check_gpu.sh
says STEPS=4 scripts/check_gpu.sh t b
has "all of it" '^good: validation loss 2\.004 and 2\.00$' 0
is "a verdict for each" "$(grep -c '^good: ' <<<"$said"), $(grep -c '^FAILED' <<<"$said") failed" "20, 0 failed"
says ODD=1 PARTS="repeat curve families" scripts/check_gpu.sh t b
has "a file that differs, and how" '^FAILED: fp32: .*matmul_table.txt.*; < .*fp32-1' 1
has "another sample" '^FAILED: both devices write' 1
has "a family that is not PyTorch's" '^FAILED: packed: 1 passed; FAIL  olmo fp32: 1e-5 ' 1
rm "$folder/tools/calls"
says PARTS="memcheck initcheck racecheck" scripts/check_gpu.sh
has "the sanitizers need no tokens" '^good: racecheck, models: 0 hazards' 0
is "all tools and parts" "$(wc -l <"$folder/tools/calls")" 8
is "racecheck looks at what it can follow" "$(grep -c 'racecheck .*/racecheck/test_gpt2 ' "$folder/tools/calls")" 6
says PARTS=racecheck RACES=1 scripts/check_gpu.sh
has "a race" '^FAILED: racecheck, models: 1 hazards' 1
says PARTS="memcheck initcheck racecheck twin" SKIPS=1 scripts/check_gpu.sh
has "nothing compared is nothing good: the twin" '^FAILED: test_gpt2: 1 passed, 0 failed' 1
is "and what the sanitizers have not seen" "$(grep -c '^FAILED' <<<"$said"), $(grep -c '^good' <<<"$said") good" "9, 0 good"
says PARTS="repeat curve" FAILS="--device cuda" scripts/check_gpu.sh t b
has "what an earlier check has left is not compared" '^FAILED: bf16: checkpoints are equal byte for byte$' 1
has "nor are its losses" '^FAILED: validation loss of none and 2\.00$' 1
says STEPS=4 PARTS=training FAILS="gpt2-xl" scripts/check_gpu.sh t
has "a row of training that fails" '^FAILED: all of them train' 1
says STEPS=4 PARTS=training CONTEXT=790 scripts/check_gpu.sh t
has "0.7 GB and 1 % beside the plan" "^good: the driver's memory is the plan's" 0
says STEPS=4 PARTS=training CONTEXT=-500 scripts/check_gpu.sh t
has "less than the plan" "^FAILED: the driver's memory .*; gpt2 bf16: 9\.50 GB in use, 10\.00 planned; " 1
says STEPS=4 PARTS=training CONTEXT=830 scripts/check_gpu.sh t
has "and more" "^FAILED: the driver's memory .*; gpt2 bf16: 10\.83 GB in use, 10\.00 planned; .*; gpt2-xl coat: " 1
export PATH="$folder/gpu:$path"
if command -v compute-sanitizer >/dev/null; then echo "skip - a tool that is missing: this machine has it"; else
    says PARTS="memcheck initcheck racecheck" scripts/check_gpu.sh
    has "a tool that is missing" '^FAILED: compute-sanitizer is not in PATH' 1
fi

# dev/test/check_resume.sh, dev/test/check_lost.sh and dev/test/check_kill.sh
export PATH="$folder/none:$path"
unset OUT
refuses "dev/test/check_resume.sh without a GPU" "nvidia-smi shows no GPU for FP8 .* GPU_DEVICE=cpu tries" 3 dev/test/check_resume.sh
refuses "dev/test/check_lost.sh on one GPU" "GPUS: two or more are needed, not '1'" 1 GPUS=1 dev/test/check_lost.sh t
says GPUS=2 FAILS="--device cuda" MPIRUN="$folder/mpirun" dev/test/check_lost.sh t
has "where the run left alone fails there is no more" "^error: --device cuda fails" 3
refuses "dev/test/check_kill.sh, whose trainer is told the device" "--device cuda fails" 3 FAILS="--device cuda" dev/test/check_kill.sh t
refuses "which can be another" "--device cpu fails" 3 FAILS="--device cpu" GPU_DEVICE=cpu dev/test/check_kill.sh t
printf '#!/bin/sh\necho $$ >%s/training\nexec sleep 60\n' "$folder" >"$folder/slow"
chmod +x "$folder/slow"
PROGRAM=$folder/slow TMPDIR=$folder/tools dev/test/check_kill.sh t >/dev/null 2>&1 &
script=$!
for ((i = 0; i < 100; i++)); do [ ! -s "$folder/training" ] || break; sleep 0.1; done
kill -TERM $script
wait $script
is "dev/test/check_kill.sh, when it is ended: status" $? 143
is "its training is ended too" "$(kill -0 "$(cat "$folder/training")" 2>/dev/null || echo ended)" ended
is "and its folder is gone" "$(find "$folder/tools" -name 'tmp.*')" ""
exit $failures
