# Sourced by scripts/run_*.sh, which set: name, model, micro_batch, batch_tokens,
# train, val, out, settings (array), and where they differ seq_len (1024) and zero
# (1). Puts the command together and runs it.
#
#   scripts/run_NAME.sh [--dry-run] [--gpus N] [FLAG...]
#       FLAGs go to the program, after and over these
#
#   GPUS=1              one process per GPU, started by mpirun (or as LAUNCHER
#                       says) where there are several
#   LAUNCHER=mpirun     or srun, inside a Slurm job (scripts/slurm_*.sbatch)
#   RECIPE=             bf16, fp8-linear or coat; unset: coat, or what the run has
#                       that is continued (which one that is named changes)
#   DATA=data/tokens    where the token files are; TRAIN and VAL name others
#   OUT=runs/NAME       the run's folder; what is there is continued (--resume)
#   HELLASWAG=FILE      by default DATA/hellaswag_val.bin, where that exists
#   TOKENIZER=FILE      a vocabulary, for samples of text along the way
#   MICRO_BATCH=N       sequences per GPU and pass, if the GPU has less memory
#                       than an H200
#   RESTARTS=0          how many times to start again where a GPU or a process was
#                       lost (exit codes 3 and 5, and those of a crash or kill -9)
#   PROGRAM=./train_gpt2_fp8
#
# As root, in a container, Open MPI's mpirun wants OMPI_ALLOW_RUN_AS_ROOT=1 and
# OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1.
#
# NCCL takes its settings from the environment, which mpirun hands on to the
# processes of this machine; none is needed:
#   NCCL_NVLS_ENABLE=0         no sums inside NVSwitch: where NCCL does not start
#                              for want of multicast (containers)
#   NCCL_DEBUG=WARN            says why a call failed; INFO also which links it
#                              has chosen, for a run that is too slow
#   NCCL_P2P_LEVEL=NVL         direct copies between GPUs over NVLink only: where
#                              those over PCIe hang (virtual machines)
#   NCCL_SHM_DISABLE=1         no shared memory between processes: where /dev/shm
#                              is too small (containers)
#   NCCL_SOCKET_IFNAME=lo      the interface by which the processes meet: where
#                              the one NCCL finds first is firewalled
set -euo pipefail
[ -n "${name:-}" ] || { echo "launch.sh: scripts/run_gpt2_124M.sh and its like use it; run one of them" >&2; exit 1; }
case ${1:-} in
-h | --help) # its own head, and of this one what is for whoever starts it
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    echo
    sed -n "/^#   scripts/,/^[^#]/{s/run_NAME.sh/${0##*/}/; s/^# \{0,1\}//p}" "$(dirname "$0")/launch.sh"
    exit 0
    ;;
esac
cd "$(dirname "$0")/.."

gpus=${GPUS:-1} dry_run=
flags=()
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry_run=yes ;;
    --gpus)
        [ $# -gt 1 ] || { echo "--gpus needs a number" >&2; exit 1; }
        gpus=$2
        shift
        ;;
    --gpus=*) gpus=${1#--gpus=} ;;
    *) flags+=("$1") ;;
    esac
    shift
done
case $gpus in '' | *[!0-9]* | 0*) echo "GPUS, --gpus: not a number of GPUs: $gpus" >&2; exit 1 ;; esac

data=${DATA:-data/tokens}
train=(--train "${TRAIN:-$data/$train}")
for flag in "${flags[@]}"; do
    case $flag in --train | --train=* | -i) train=() ;; esac # several would add up
done
val=${VAL:-$data/$val} out=${OUT:-runs/$out}
recipe=${RECIPE:-}
[ -n "$recipe" ] || compgen -G "$out/step-*" >/dev/null || recipe=coat
seq_len=${seq_len:-1024} usual=${MICRO_BATCH:-$micro_batch} # or fewer, of which a step of this many GPUs is a multiple
for ((micro_batch = usual; micro_batch > 0 && batch_tokens % (micro_batch * seq_len * gpus); micro_batch--)); do :; done
if [ "$micro_batch" -ne "$usual" ]; then
    advice="choose another MICRO_BATCH or GPUS"
    [ "$micro_batch" -eq 0 ] || advice="MICRO_BATCH=$micro_batch fits"
    if [ -n "${MICRO_BATCH:-}" ] || [ "$micro_batch" -eq 0 ]; then
        echo "$name: $batch_tokens tokens per step are no multiple of $usual x $seq_len tokens on $gpus GPUs; $advice" >&2
        exit 1
    fi
    echo "note: $name: $usual x $seq_len tokens on each of $gpus GPUs are more than a step or no part of it; the micro-batch is $micro_batch" >&2
fi

command=("${PROGRAM:-./train_gpt2_fp8}" --model "$model" "${train[@]}" --val "$val"
    --micro-batch "$micro_batch" --seq-len "$seq_len" --batch-tokens "$batch_tokens" "${settings[@]}" --resume --out "$out")
[ -z "$recipe" ] || command+=(--recipe "$recipe")
[ "$recipe" != bf16 ] || command+=(--master split16)
[ "$gpus" -eq 1 ] || command+=(--zero "${zero:-1}")
hellaswag=${HELLASWAG:-$data/hellaswag_val.bin}
if [ -n "${HELLASWAG:-}" ] || [ -e "$hellaswag" ]; then command+=(--hellaswag "$hellaswag"); fi
if [ -n "${TOKENIZER:-}" ]; then command+=(--tokenizer "$TOKENIZER" --sample-every 5000 --sample-tokens 144); else command+=(--sample-tokens 0); fi
command+=("${flags[@]}")

case ${LAUNCHER:-mpirun} in
mpirun) [ "$gpus" -eq 1 ] || command=(mpirun -np "$gpus" --bind-to none "${command[@]}") ;;
srun) command=(srun --kill-on-bad-exit=1 "${command[@]}") ;;
*) echo "LAUNCHER: mpirun or srun, not $LAUNCHER" >&2; exit 1 ;;
esac

# One line that a shell reads back as it is.
if [ -n "$dry_run" ]; then
    printf '%q ' "${command[@]}" | sed 's/ $//'
    echo
    exit 0
fi
if [ "${command[0]}" != srun ] && ! command -v "${PROGRAM:-./train_gpt2_fp8}" >/dev/null; then
    echo "${PROGRAM:-./train_gpt2_fp8} is not there: make builds it (where nvcc and cuDNN are), or name another as PROGRAM" >&2
    exit 1
fi
for tool in mpirun pkill; do
    if [ "${command[0]}" = mpirun ] && ! command -v $tool >/dev/null; then
        echo "$tool is not there, which several GPUs need: scripts/setup.sh --all installs it" >&2
        exit 1
    fi
done

# Ctrl-C, SIGTERM and SIGHUP are for the process that trains, or for one of several, with which all save and end. mpirun,
# in a session of its own, does not get them; it would kill its processes a second or two later, and the save with them.
# (For the same reason Ctrl-Z stops the script alone.)
child='' asked=''
end_training() {
    if [ "${command[0]}" = mpirun ]; then # itself only where it has not begun
        pkill -TERM -o -P "$child" || [ -n "$asked" ] || kill -TERM "$child" || true
    else
        kill -TERM "$child" || true
    fi
    asked=yes
}
in_own_session() { # COMMAND...
    trap asked=yes INT TERM HUP
    setsid "$@" </dev/null &
    child=$!
    trap end_training INT TERM HUP
    [ -z "$asked" ] || { asked='' && end_training; }
    while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done # a signal ends a wait, not what it waits for
    trap - INT TERM HUP
    wait "$child"
}

mkdir -p "$out" # --resume begins a run only in a folder that exists
[ "${command[0]}" = mpirun ] || [ "${RESTARTS:-0}" != 0 ] || exec "${command[@]}"
for ((left = ${RESTARTS:-0}; ; left--)); do
    status=0
    case ${command[0]} in srun) "${command[@]}" || status=$? ;; *) in_own_session "${command[@]}" || status=$? ;; esac
    [ -z "$asked" ] || exit $status
    case $status in 3 | 5 | 13[4-79]) [ "$left" -gt 0 ] || exit $status ;; *) exit $status ;; esac
    echo "$name: ended with $status, starts again from the newest checkpoint ($left left)" >&2
    sleep "${RESTART_PAUSE:-10}"
done
