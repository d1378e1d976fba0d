#!/usr/bin/env bash
# Trains a run that is longer than a Slurm job's time limit, as an example. Two minutes
# before the limit, or when the job is preempted, the program gets SIGTERM, saves a
# checkpoint and ends with 0. The script then requeues the job, and the run resumes,
# until the checkpoint of the last step exists. If the program ends with another exit
# code, the job is not requeued.
#
#   sbatch scripts/slurm_requeue.sh [FLAGS...]
#       FLAGS of the program follow the script's flags and override them
#
# Environment:
#   PROGRAM=./train_gpt2_fp8 OUT=runs/gpt2 STEPS=20000
#
# --dry-run among the FLAGS prints the command. One GPU needs no communication. With
# several (sbatch --ntasks=8 --gpus=8 ... --zero 1), NCCL reads the variables that
# were exported before sbatch:
#   NCCL_NVLS_ENABLE=0         if NCCL fails to start for lack of multicast memory:
#                              turns off sums inside NVSwitch
#   NCCL_DEBUG=WARN            if a call fails: prints the reason to the job's log
#SBATCH --job-name=gpt2
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^#SBATCH/{/^#SBATCH/!s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
cd "${SLURM_SUBMIT_DIR:-.}"
out=${OUT:-runs/gpt2} steps=${STEPS:-20000}

dry_run= flags=() train=(--train 'data/tokens/mine_train_*.bin')
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry_run=yes ;;
    --out | -o) out=${2:?--out: needs a folder} && shift ;;
    --out=*) out=${1#--out=} ;;
    --steps | -x) steps=${2:?--steps: needs a number} && shift ;;
    --steps=*) steps=${1#--steps=} ;;
    *)
        case $1 in --train | --train=* | -i) train=() ;; esac # because files of several --train flags would add up
        flags+=("$1")
        ;;
    esac
    shift
done

case $steps in
'' | *[!0-9]* | 0*) echo "error: STEPS: must be a whole number of at least 1 (is $steps)" >&2; exit 1 ;;
esac

command=(srun "${PROGRAM:-./train_gpt2_fp8}" --model gpt2 "${train[@]}" --val 'data/tokens/mine_val_*.bin'
    --micro-batch 64 --batch-tokens 524288 --lr 6e-4 --warmup 700 --lr-final 0 --weight-decay 0.1 --val-every 250
    --save-every 1000 --keep 2 --out "$out" --resume "${flags[@]}" --steps "$steps")
if [ -n "$dry_run" ]; then
    printf '%q ' "${command[@]}" | sed 's/ $//'
    echo
    exit 0
fi
mkdir -p "$out" # because --resume fails if the folder does not exist
"${command[@]}"

if [ ! -d "$out/$(printf 'step-%08d' "$steps")" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
