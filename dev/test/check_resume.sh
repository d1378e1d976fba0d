#!/usr/bin/env bash
# Tests that the CPU program and the GPU program can resume each other's checkpoints.
# A run that moves from one program to the other and back must have the same losses
# as without the move. A run resumed on the GPU must have the bits of an
# uninterrupted one. Runs resumed with other formats of the optimizer states must
# have nearly the same losses. Takes about a minute.
#
# Compares only the five losses after a move. These reveal a wrong state: the script
# also resumes without the momentum, and checks that the losses then differ. Later,
# rounding differences grow: after thirty steps, another --micro-batch alone changes
# the CPU's losses in COAT by 0.003 to 0.01.
#
#   dev/test/check_resume.sh
#       CPU_PROGRAM=./train_gpt2_fp8_cpu     the CPU reference
#       GPU_PROGRAM=./train_gpt2_fp8         the program to check
#       GPU_DEVICE=cuda                      its --device; GPU_DEVICE=cpu tries
#                                            this script without a GPU
#       PREPARE=build/prepare_bytes          the program that writes the token files
#       TOLERANCE=1e-3                       maximum difference of two losses, which
#                                            are between 3 and 6
#       MODEL='--model qwen3:d2 --kv-heads 1'  another model (default: GPT-2 with
#                                              two layers)
#       OUT=FOLDER                           folder of the runs (default: a
#                                            temporary folder)
set -uo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/../.." || exit 1
. scripts/gpu.sh
cpu_program=${CPU_PROGRAM:-./train_gpt2_fp8_cpu}
gpu_program=${GPU_PROGRAM:-./train_gpt2_fp8}
gpu_device=${GPU_DEVICE:-cuda}
prepare=${PREPARE:-build/prepare_bytes}
tolerance=${TOLERANCE:-1e-3}
if [ "$gpu_device" != cpu ] && ! has_fp8_gpu; then
    echo "error: nvidia-smi shows no GPU for FP8 (compute capability 8.9 or more); run this script on a machine with one, or use GPU_DEVICE=cpu" >&2
    exit 3
fi
if [ -n "${OUT:-}" ]; then
    folder=$OUT
    mkdir -p "$folder"
else
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
passed=0 failed=0

report() { # STATUS NAME [DETAIL]
    if [ "$1" -eq 0 ]; then
        echo "ok - $2${3:+ ($3)}"
        passed=$((passed + 1))
    else
        echo "not ok - $2${3:+ ($3)}"
        sed 's/^/    /' "$folder/said" | tail -n 5
        failed=$((failed + 1))
    fi
}

"$prepare" --out "$folder/src" coat train_gpt2_fp8.cu >/dev/null || exit 1
# heads of width 64 and matmuls of full tiles; a constant learning rate, which does not depend on --steps
read -r -a model <<<"${MODEL:---layers 2 --heads 2 --channels 128}"
run=(--tokenizer bytes "${model[@]}" --seq-len 128 --micro-batch 4 --batch-tokens 1024 --quiet
    --train "$folder/src_train.bin" --val "$folder/src_val.bin" --val-every 0 --val-batches 4 --sample-tokens 0
    --lr 6e-4 --warmup 5 --schedule constant --seed 3)

# train DEVICE OUT STEPS FLAGS...: starts the run OUT, or resumes its last checkpoint, and trains until step STEPS
train() {
    local device=$1 out=$2 steps=$3 program=$cpu_program
    shift 3
    [ "$device" = cpu ] || program=$gpu_program
    [ "$device" = cpu ] || device=$gpu_device
    mkdir -p "$folder/$out" # because --resume starts a run only in an existing folder
    "$program" "${run[@]}" --device "$device" --out "$folder/$out" --steps "$steps" --resume "$@" >"$folder/said" 2>&1 </dev/null
}

# evaluate DEVICE OUT FLAGS...: prints the validation loss of OUT's last checkpoint
evaluate() {
    local device=$1 out=$2 program=$cpu_program
    shift 2
    [ "$device" = cpu ] || program=$gpu_program
    [ "$device" = cpu ] || device=$gpu_device
    "$program" "${run[@]}" --device "$device" --out "$folder/$out" --eval-only --resume "$@" 2>"$folder/said" </dev/null |
        awk '{ print $NF }'
}

# near A B MAX: true if A and B are positive and differ by at most MAX
near() { awk -v a="$1" -v b="$2" -v most="$3" 'BEGIN { d = a - b; exit !(a > 0 && b > 0 && d <= most && d >= -most) }'; }

# losses OUT: prints each step and its loss
losses() { sed -n 's/.*"step":\([0-9]*\),"loss":\([0-9.e+-]*\).*/\1 \2/p' "$folder/$1/log.jsonl"; }

within() { # DIFFERENCE MAX: true if DIFFERENCE, an output of apart(), is a number of at most MAX
    [ "$1" != none ] && near "$(awk -v d="$1" 'BEGIN { print 1 + d }')" 1 "$2"
}

# apart COUNT A B: prints the largest difference between the losses of runs A and B at the same step. Prints "none"
# unless both logs have exactly the same COUNT steps.
apart() {
    paste <(losses "$2") <(losses "$3") | awk -v count="$1" '
        NF != 4 || $1 != $3 { bad = 1 }
        { d = $2 - $4; if (d < 0) d = -d; if (d > most) most = d }
        END { if (bad || NR != count) print "none"; else printf "%.2g", most }'
}

# loss_of OUT STEP: prints the loss of this step
loss_of() { losses "$1" | awk -v step="$2" '$1 == step { print $2 }'; }

# moves RECIPE FROM TO STEP: a copy of the run RECIPE.FROM, which is at STEP, continues on the device TO for five steps.
# Its losses must be those of RECIPE.FROM on its own device.
moves() {
    local recipe=$1 from=$2 to=$3 last=$(($4 + 5)) copy=$1.$2.$3 stayed moved difference lost
    rm -rf "$folder/$copy" "$folder/$copy.lost"
    cp -r "$folder/$recipe.$from" "$folder/$copy" && cp -r "$folder/$recipe.$from" "$folder/$copy.lost"
    train "$from" "$recipe.$from" $last --recipe "$recipe" && train "$to" "$copy" $last --recipe "$recipe"
    report $? "$recipe: a run at step $4 trains 5 more steps on the ${from^^}, and its copy on the ${to^^}"
    stayed=$(loss_of "$recipe.$from" $(($4 + 1))) moved=$(loss_of "$copy" $(($4 + 1)))
    near "$stayed" "$moved" "$tolerance"
    report $? "$recipe: the first loss after the move to the ${to^^} equals that on the ${from^^}" "$stayed and $moved"
    difference=$(apart $last "$recipe.$from" "$copy")
    within "$difference" "$tolerance"
    report $? "$recipe: the five losses after the move to the ${to^^} equal those on the ${from^^}" "at most $difference apart"
    train "$to" "$copy.lost" $last --recipe "$recipe" --beta1 0
    lost=$(apart $last "$recipe.$from" "$copy.lost")
    [ "$lost" != none ] && ! within "$lost" "$(awk -v t="$tolerance" 'BEGIN { print 5 * t }')"
    report $? "$recipe: after a move to the ${to^^} without the momentum, the losses differ" "$lost apart"
}

check_recipe() { # RECIPE
    local recipe=$1 cpu gpu
    # moves to the GPU, and back
    train cpu "$recipe.cpu" 10 --recipe "$recipe"
    report $? "$recipe: the CPU trains 10 steps"
    moves "$recipe" cpu gpu 10
    mv "$folder/$recipe.cpu.gpu" "$folder/$recipe.gpu"
    moves "$recipe" gpu cpu 15

    # compares bits on the GPU
    train gpu "$recipe.whole" 20 --recipe "$recipe" && train gpu "$recipe.cut" 10 --recipe "$recipe" &&
        cp -r "$folder/$recipe.cut" "$folder/$recipe.kept" && train gpu "$recipe.cut" 20 --recipe "$recipe"
    report $? "$recipe: the GPU trains 20 steps, and 10 steps plus 10 resumed steps"
    diff -r "$folder/$recipe.whole/step-00000020" "$folder/$recipe.cut/step-00000020" >"$folder/said" 2>&1
    report $? "$recipe: 10 steps and 10 resumed steps on the GPU write the checkpoint of 20, byte for byte"

    # evaluates one checkpoint on both devices
    cpu=$(evaluate cpu "$recipe.kept" --recipe "$recipe") gpu=$(evaluate gpu "$recipe.kept" --recipe "$recipe")
    near "$cpu" "$gpu" "$tolerance"
    report $? "$recipe: the GPU's checkpoint has the same validation loss on both devices" "$cpu and $gpu"
}

# Checks that the bits of a run with --autotune can be repeated: by resuming one of its checkpoints, which contains the
# table of GEMM algorithms, and by a new run with --matmul-table.
check_tuned() { # RECIPE
    local recipe=$1 status=0
    train gpu "$recipe.tuned" 20 --recipe "$recipe" --autotune --save-every 10 && mkdir "$folder/$recipe.killed" &&
        cp -r "$folder/$recipe.tuned/step-00000010" "$folder/$recipe.killed" &&
        train gpu "$recipe.killed" 20 --recipe "$recipe" &&
        train gpu "$recipe.given" 20 --recipe "$recipe" --matmul-table "$folder/$recipe.tuned/matmul_table.txt"
    report $? "$recipe: the GPU trains 20 steps with --autotune, repeats steps 11 to 20, and repeats all steps with --matmul-table"
    cmp "$folder/$recipe.tuned/matmul_table.txt" "$folder/$recipe.tuned/step-00000010/matmul_table.txt" >"$folder/said" 2>&1
    report $? "$recipe: a checkpoint contains the run's matmul_table.txt"
    for other in killed given; do
        diff -r "$folder/$recipe.tuned/step-00000020" "$folder/$recipe.$other/step-00000020" >>"$folder/said" 2>&1 || status=1
    done
    report $status "$recipe: a run with --autotune, its resumed copy, and a run with its table write the same checkpoint"
}

# changes FROM DEVICE FLAGS...: resumes the run FROM after 10 steps on DEVICE with FLAGS, which convert the optimizer states.
# The losses must be nearly those of the original states. The first loss precedes any update with the converted states.
changes() {
    local from=$1 device=$2 status=0 first last name
    shift 2
    name="$from.$device.$(tr -d ' -' <<<"$*")"
    cp -r "$folder/$from.kept" "$folder/$name"
    train "$device" "$name" 20 --recipe "$from" "$@" && grep -q "are converted to this run's formats" "$folder/said" || status=1
    first=$(loss_of "$name" 11) last=$(loss_of "$name" 20)
    near "$first" "$(loss_of "$from.whole" 11)" "$tolerance" || status=1
    near "$last" "$(loss_of "$from.whole" 20)" 0.03 || status=1
    report $status "the GPU's $from run, resumed on the ${device^^} with $*, has nearly the same losses" "step 11: $first, 20: $last"
}

check_recipe bf16
check_recipe coat
if [ "$gpu_device" = cuda ]; then
    check_tuned bf16
    check_tuned coat
fi
for device in cpu gpu; do
    changes bf16 $device --moments coat --master split16
    changes bf16 $device --moments bf16 --master none
    changes coat $device --moments fp32 --master fp32
    changes coat $device --moments fp8 --moments-fp32 wte
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
