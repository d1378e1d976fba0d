#!/usr/bin/env bash
# Tests the scripts that measure and check GPUs, with programs that only pretend to run on GPUs. scripts/measure_gpus.sh
# and scripts/measure.sh must print every value in its row. scripts/check_gpu.sh and dev/test/check_*.sh must report
# success only for checks that ran.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/program_fixture.sh
unset CUDA_VISIBLE_DEVICES GPUS STAGES SEEDS WARMUP MPIRUN PROGRAM MODEL PASSES STEPS LARGE SMALL
export OUT=$folder/out

# The program that pretends to train: it prints 1000 tokens/s per GPU minus 10 times the ZeRO stage, and 1/10 of that
# with one micro-batch. The loss depends on the seed and is 0.5 % higher with several processes.
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
is "measure_gpus.sh has a row for each GPU alone" "$(grep 'each alone' <<<"$page")" "| each alone | 1000, 1000 | 100, 100 | 30.0 |"
is "measure_gpus.sh has ZeRO 1 as a percentage of the GPUs alone" "$(grep '2, ZeRO 1 | [0-9]* (' <<<"$page")" "| 2, ZeRO 1 | 1980 (99.0 %) | 198 (99.0 %) | 31.0 |"
is "measure_gpus.sh has ZeRO 3 as a percentage of the GPUs alone" "$(grep '2, ZeRO 3 | [0-9]* (' <<<"$page")" "| 2, ZeRO 3 | 1940 (97.0 %) | 194 (97.0 %) | 33.0 |"
is "measure_gpus.sh has a row for the large model" "$(grep '4096' <<<"$page")" "| layers 32 heads 32 channels 4096 seq-len 2048 micro-batch 2 | 2, ZeRO 3 | 1940 | 33.0 |"
is "measure_gpus.sh has a row with the losses of a seed" "$(grep '^| 3' <<<"$page")" "| 3 | 6000.0000 | 6030.0000 | +0.50 % |"
is "measure_gpus.sh has the mean difference of the losses" "$(tail -n 1 <<<"$page")" "| mean | | | +0.50 ± 0.00 % |"

dry=$(GPUS=4 scripts/measure_gpus.sh --dry-run train val speed)
is "measure_gpus.sh --dry-run runs each GPU alone" "$(grep -c CUDA_VISIBLE_DEVICES=3 <<<"$dry")" 2
is "measure_gpus.sh --dry-run runs all GPUs with each stage, with several micro-batches and with one" "$(grep -c -- '-np 4.*--zero' <<<"$dry")" 6
is "measure_gpus.sh --dry-run runs each stage with 524,288 tokens per step" "$(grep -c -- '-np 4.*--batch-tokens 524288 ' <<<"$dry")" 3
is "measure_gpus.sh --dry-run runs nothing" "$(ls "$folder/out" | grep -c zero2)" 0

is "measure_gpus.sh on one GPU is refused" "$(GPUS=1 scripts/measure_gpus.sh train val 2>&1)" "error: GPUS: must be at least 2 (is '1')"
is "measure_gpus.sh refuses an unknown part" "$(GPUS=2 scripts/measure_gpus.sh train val fast 2>&1)" "error: fast: must be one of speed, large, loss"
said=$(GPUS=2 PROGRAM=false scripts/measure_gpus.sh train val large 2>&1)
is "measure_gpus.sh: a failed run ends it with 1" $? 1
is "measure_gpus.sh: a failed run is reported" "$(cut -c 1-26 <<<"$said")" "error: large ended with 1:"
unset OUT PROGRAM MPIRUN

# --- baselines: the shapes that dev/baselines/llmq_train.py defines for pyllmq are this program's
if command -v python3 >/dev/null; then
    mkdir "$folder/python"
    echo 'LLamaConfig = dict' >"$folder/python/pyllmq.py"
    printf 'int32 = 0\ndef fromfile(*_, **__): raise SystemExit("taken")\n' >"$folder/python/numpy.py" # raised after the check
    peer() { PYTHONPATH=$folder/python python3 -B dev/baselines/llmq_train.py --tokens t --model "$1" --parameters "$2" 2>&1; }
    for model in olmo-1b llama2-7b qwen2.5-1.5b qwen2.5-7b; do
        count=$("${BIN:-.}"/train_gpt2_fp8_cpu --plan=json --model $model | sed 's/{"parameters": \([0-9]*\),.*/\1/')
        is "pyllmq's $model has this program's parameters" "$(peer $model "$count")" taken
        is "pyllmq's $model with another number of parameters is refused" "$(peer $model $((count * 33 / 32)) | sed 's/[0-9]* param.*//')" "error: --model $model: has "
    done
    is "baselines.sh passes the required number of parameters" "$(dev/baselines/baselines.sh --dry-run t olmo-1b:1x1024 2>&1 | grep -c -- '_train.py .* --parameters [0-9]')" 7
else
    echo "skip - pyllmq's shapes: there is no Python"
fi

# --- Programs that pretend to run on one GPU. test_gpt2 skips its comparisons if SKIPS is set. The trainer fails with
# the flags in FAILS, and uses CONTEXT MB more than its plan of 10 GB. compute-sanitizer finds a race only if RACES is
# set. If ODD is set, checkpoints, samples and the comparison with PyTorch differ.
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
[ -z "$SKIPS" ] || echo "skip - the GPU's operations against the CPU reference: no GPU"
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

has() { # NAME PATTERN STATUS: checks the output and the exit code of the last script
    grep -qE -- "$2" <<<"$said" && [ "$status" = "$3" ]
    check "$1" $? "status $status, expected: $3 $2" "$said"
}
says() { # SETTING... COMMAND...: runs the command; sets $said and $status
    said=$(env "$@" 2>&1)
    status=$?
}
# checks that the command fails with one error line that matches PATTERN, and with the exit code STATUS
refuses() { # NAME PATTERN STATUS SETTING... COMMAND...
    says "${@:4}"
    has "$1 ends with exit code $3 and an error" "^error: $2" "$3"
    is "$1 prints only one line" "$(wc -l <<<"$said")" 1
}

# scripts/measure.sh
says STEPS=4 FAILS="--recipe coat" OUT="$folder/measure" scripts/measure.sh t bf16 coat fp8-linear
has "measure.sh: the row of a failed run has the reason, and the exit code is 1" '^gpt2-xl +coat +error: --recipe coat fails$' 1
is "measure.sh: the other rows are measured" "$(grep -cE '^gpt2(-xl)? +(bf16|fp8-linear) +100000 +10\.0 +10\.00 +10\.60$' <<<"$said")" 4
says STEPS=4 OUT="$folder/measure" scripts/measure.sh t bf16
has "measure.sh: the exit code is 0 if no row fails" '^gpt2 +bf16 +100000' 0
says STEPS=4 MODELS=gpt2 FAILS="--recipe coat --head=fp8 --bf16-blocks=0" OUT="$folder/measure" scripts/measure.sh t bf16 coat,head=fp8,bf16-blocks=0
has "measure.sh: flags after a recipe go to the run" '^gpt2 +coat,head=fp8,bf16-blocks=0 error: --recipe coat --head=fp8 --bf16-blocks=0 fails$' 1
has "measure.sh: columns are as wide as the recipe with flags" '^gpt2 +bf16 {30}100000 ' 1
refuses "measure.sh with an unknown recipe" "coat\\+head: must be bf16, " 1 scripts/measure.sh t coat+head
says STEPS=4 MODELS=gpt2 OUT="$folder/measure" PROGRAM=true scripts/measure.sh t bf16
has "measure.sh: the row of a program that trains no step has an error, and the exit code is 1" '^gpt2 +bf16 +error: no step was timed' 1
refuses "measure.sh with STEPS=020" "STEPS: must be a number of at least 1 .*020" 1 STEPS=020 scripts/measure.sh t
printf '#!/bin/sh\nshift 2\nexec "$@"\n' >"$folder/tools/passes"
printf '#!/bin/sh\nprintf -- "-----\\nthere are no slots\\n\\nAsk for fewer.\\n-----\\n" >&2\nexit 1\n' >"$folder/tools/refuses"
chmod +x "$folder"/tools/*
says STEPS=4 MODELS=gpt2 GPUS=2 MPIRUN="$folder/tools/passes" OUT="$folder/measure" scripts/measure.sh t bf16
has "measure.sh: on two GPUs, the row has tokens/s per GPU" '^gpt2 +bf16 +50000 +10\.0 +10\.00 +10\.60$' 0
says STEPS=4 MODELS=gpt2 GPUS=2 MPIRUN="$folder/tools/refuses" OUT="$folder/measure" scripts/measure.sh t bf16
has "measure.sh: mpirun's error is in the row" '^gpt2 +bf16 +error: ended with 1: there are no slots$' 1
says GPUS=2 MPIRUN="$folder/tools/refuses" OUT="$folder/measure" scripts/measure_gpus.sh t v large
has "measure_gpus.sh: mpirun's error is in the message" '^error: large ended with 1: there are no slots$' 1
says scripts/measure.sh
has "measure.sh without arguments prints the help" '^  GPUS=1 ' 1
is "measure.sh --help prints the same help" "$said" "$(scripts/measure.sh --help)"

# scripts/check_gpu.sh
export PATH="$folder/tools:$folder/none:$path"
refuses "check_gpu.sh without a GPU" "nvidia-smi shows no GPU for FP8 " 3 scripts/check_gpu.sh t b
export PATH="$folder/tools:$folder/gpu:$path"
refuses "check_gpu.sh with an unknown part" "PARTS: references: must be one of reference, " 1 PARTS="references kernels" scripts/check_gpu.sh
refuses "check_gpu.sh with empty PARTS" "PARTS: names no part" 1 PARTS=" " scripts/check_gpu.sh
refuses "check_gpu.sh with an unquoted pattern" "c: is a third argument; quote" 1 scripts/check_gpu.sh a b c
refuses "check_gpu.sh: repeat without GPT-2 tokens" "repeat reads GPT-2 tokens; " 1 PARTS=repeat scripts/check_gpu.sh
refuses "check_gpu.sh: curve without byte tokens" "curve reads byte tokens; " 1 PARTS="reference curve" scripts/check_gpu.sh t
refuses "check_gpu.sh with a program that is not built" "kernels: .*/bench_kernels_gpu is not built; run: make " 1 BUILD="$folder/none" PARTS=kernels scripts/check_gpu.sh
refuses "check_gpu.sh: racecheck without its build" "racecheck: none/racecheck/test_gpt2 is not built; run: make RACECHECK=1 none/" 1 BUILD=none PARTS=racecheck scripts/check_gpu.sh
says STEPS=4 scripts/check_gpu.sh t b
has "check_gpu.sh: all parts succeed" '^good: validation loss on the GPU 2\.004, on the CPU 2\.00$' 0
is "check_gpu.sh prints one result per check" "$(grep -c '^good: ' <<<"$said"), $(grep -c '^FAILED' <<<"$said") failed" "20, 0 failed"
says ODD=1 PARTS="repeat curve families" scripts/check_gpu.sh t b
has "check_gpu.sh: a file that differs is reported with the difference" '^FAILED: fp32: .*matmul_table.txt.*; < .*fp32-1' 1
has "check_gpu.sh: a sample that differs is reported" '^FAILED: both devices write' 1
has "check_gpu.sh: a family that differs from PyTorch is reported" '^FAILED: packed: 1 passed; FAIL  olmo fp32: 1e-5 ' 1
rm "$folder/tools/calls"
says PARTS="memcheck initcheck racecheck" scripts/check_gpu.sh
has "check_gpu.sh: the sanitizers run without token files" '^good: racecheck, models: 0 hazards' 0
is "check_gpu.sh: the sanitizers' tools run eight times" "$(wc -l <"$folder/tools/calls")" 8
is "check_gpu.sh: racecheck runs the RACECHECK=1 build" "$(grep -c 'racecheck .*/racecheck/test_gpt2 ' "$folder/tools/calls")" 6
says PARTS=racecheck RACES=1 scripts/check_gpu.sh
has "check_gpu.sh: a race is reported" '^FAILED: racecheck, models: 1 hazards' 1
says PARTS="memcheck initcheck racecheck reference" SKIPS=1 scripts/check_gpu.sh
has "check_gpu.sh: a skipped comparison with the CPU is a failure" '^FAILED: test_gpt2: 1 passed, 0 failed' 1
is "check_gpu.sh: skipped sanitizer checks are failures" "$(grep -c '^FAILED' <<<"$said"), $(grep -c '^good' <<<"$said") good" "9, 0 good"
says PARTS="repeat curve" FAILS="--device cuda" scripts/check_gpu.sh t b
has "check_gpu.sh: checkpoints of an earlier check are not compared" '^FAILED: bf16: checkpoints are equal byte for byte$' 1
has "check_gpu.sh: losses of an earlier check are not compared" '^FAILED: validation loss on the GPU missing, on the CPU 2\.00$' 1
says STEPS=4 PARTS=training FAILS="gpt2-xl" scripts/check_gpu.sh t
has "check_gpu.sh: a failed row of training is reported" '^FAILED: all recipes train' 1
says STEPS=4 PARTS=training CONTEXT=790 scripts/check_gpu.sh t
has "check_gpu.sh: 0.79 GB more memory than planned is accepted" "^good: the driver reports at least the planned memory" 0
says STEPS=4 PARTS=training CONTEXT=-500 scripts/check_gpu.sh t
has "check_gpu.sh: less memory than planned is a failure" "^FAILED: the driver reports .*; gpt2 bf16: 9\.50 GB in use, 10\.00 planned; " 1
says STEPS=4 PARTS=training CONTEXT=830 scripts/check_gpu.sh t
has "check_gpu.sh: 0.83 GB more memory than planned is a failure" "^FAILED: the driver reports .*; gpt2 bf16: 10\.83 GB in use, 10\.00 planned; .*; gpt2-xl coat: " 1
export PATH="$folder/gpu:$path"
if command -v compute-sanitizer >/dev/null; then echo "skip - a tool that is missing: this machine has it"; else
    says PARTS="memcheck initcheck racecheck" scripts/check_gpu.sh
    has "check_gpu.sh: a missing tool is reported" '^FAILED: compute-sanitizer is not in PATH' 1
fi

# dev/test/check_resume.sh, dev/test/check_lost.sh and dev/test/check_kill.sh
export PATH="$folder/none:$path"
unset OUT
refuses "dev/test/check_resume.sh without a GPU" "nvidia-smi shows no GPU for FP8 .* GPU_DEVICE=cpu" 3 dev/test/check_resume.sh
refuses "dev/test/check_lost.sh on one GPU" "GPUS: must be at least 2" 1 GPUS=1 dev/test/check_lost.sh t
says GPUS=2 FAILS="--device cuda" MPIRUN="$folder/mpirun" dev/test/check_lost.sh t
has "check_lost.sh ends if the first run fails" "^error: --device cuda fails" 3
refuses "dev/test/check_kill.sh with a trainer that fails on cuda" "--device cuda fails" 3 FAILS="--device cuda" dev/test/check_kill.sh t
refuses "dev/test/check_kill.sh with GPU_DEVICE=cpu" "--device cpu fails" 3 FAILS="--device cpu" GPU_DEVICE=cpu dev/test/check_kill.sh t
printf '#!/bin/sh\necho $$ >%s/training\nexec sleep 60\n' "$folder" >"$folder/slow"
chmod +x "$folder/slow"
PROGRAM=$folder/slow TMPDIR=$folder/tools dev/test/check_kill.sh t >/dev/null 2>&1 &
script=$!
wait_for $script test -s "$folder/training"
kill -TERM $script
wait $script
is "check_kill.sh ends with 143 after SIGTERM" $? 143
is "check_kill.sh ends its training after SIGTERM" "$(kill -0 "$(cat "$folder/training")" 2>/dev/null || echo ended)" ended
empty "check_kill.sh removes its folder after SIGTERM" "$(find "$folder/tools" -name 'tmp.*')"
exit $failures
