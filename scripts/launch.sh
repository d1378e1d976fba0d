# Sourced by scripts/run_*.sh, which set: name, model, micro_batch, batch_tokens,
# train, val, out, settings (array) and, if they differ from the defaults, seq_len
# (1024) and zero (1). Builds the command of a training run and runs it.
#
#   scripts/run_NAME.sh [--dry-run] [--gpus N] [FLAG...]
#       FLAGs follow the script's flags in the command and override them. --dry-run
#       prints the command and runs nothing
#
#   GPUS=1              number of GPUs; if it is above 1, LAUNCHER starts a process
#                       per GPU
#   LAUNCHER=mpirun     or srun, inside a Slurm job (scripts/slurm_*.sbatch)
#   RECIPE=             bf16, fp8-linear, coat or coat-paper; default: the recipe of
#                       the run that is resumed, or coat for a new run
#   DATA=data/tokens    folder of the token files; TRAIN and VAL name other files
#   OUT=runs/NAME       the run's folder, also set by --out; an existing run is
#                       resumed
#   HELLASWAG=FILE      evaluates HellaSwag; default: DATA/hellaswag_val.bin if this
#                       file exists
#   TOKENIZER=FILE      a vocabulary, for samples of text during training
#   MICRO_BATCH=N       sequences per GPU and micro-batch; lower it for GPUs with
#                       less memory than an H200
#   RESTARTS=0          maximum number of restarts after the loss of a GPU or process
#                       (exit codes 3 and 5, or that of a crash or kill -9)
#   PROGRAM=./train_gpt2_fp8
#
# As root, in a container, Open MPI's mpirun requires OMPI_ALLOW_RUN_AS_ROOT=1 and
# OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1.
#
# NCCL reads settings from the environment, which mpirun passes to the processes of
# this machine. Set one only if its problem occurs:
#   NCCL_NVLS_ENABLE=0         if NCCL fails to start for lack of multicast memory
#                              (containers): turns off sums inside NVSwitch
#   NCCL_DEBUG=WARN            if a call fails: prints the reason. If a run is too
#                              slow, INFO also prints the links in use
#   NCCL_P2P_LEVEL=NVL         if direct copies between GPUs over PCIe hang (virtual
#                              machines): copies directly only over NVLink
#   NCCL_SHM_DISABLE=1         if /dev/shm is too small (containers): does not use
#                              shared memory between processes
#   NCCL_SOCKET_IFNAME=lo      if a firewall blocks the interface that NCCL chooses:
#                              names the network interface by which processes connect
set -euo pipefail
fail() { echo "error: $*" >&2; exit 1; }
[ -n "${name:-}" ] || fail "launch.sh: is not a command; run one of scripts/run_*.sh, such as scripts/run_gpt2_124M.sh"
case ${1:-} in
-h | --help) # prints the run script's comment, and this script's comment from the synopsis on
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
    --gpus) [ -n "${2:-}" ] || fail "--gpus: needs a number"; gpus=$2 && shift ;;
    --gpus=*) gpus=${1#--gpus=} ;;
    # sets OUT, because the script searches the folder for checkpoints and creates it below
    --out | -o) [ -n "${2:-}" ] || fail "--out: needs a folder"; OUT=$2 && shift ;;
    --out=*) OUT=${1#--out=} ;;
    *) flags+=("$1") ;;
    esac
    shift
done
case $gpus in '' | *[!0-9]* | 0*) fail "GPUS, --gpus: must be a whole number of at least 1 (is '$gpus')" ;; esac
case ${MICRO_BATCH:-1} in *[!0-9]* | 0*) fail "MICRO_BATCH: must be a whole number of at least 1 (is '$MICRO_BATCH')" ;; esac
case ${RESTARTS:-0} in *[!0-9]* | 0?*) fail "RESTARTS: must be a whole number of at least 0 (is '$RESTARTS')" ;; esac

data=${DATA:-data/tokens}
train=(--train "${TRAIN:-$data/$train}")
for flag in "${flags[@]}"; do
    case $flag in --train | --train=* | -i) train=() ;; esac # because files of several --train flags would add up
done
val=${VAL:-$data/$val} out=${OUT:-runs/$out}
recipe=${RECIPE:-}
[ -n "$recipe" ] || compgen -G "$out/step-*" >/dev/null || recipe=coat
seq_len=${seq_len:-1024} usual=${MICRO_BATCH:-$micro_batch}
# chooses the largest micro-batch, at most the usual one, whose tokens on all GPUs divide batch_tokens
for ((micro_batch = usual; micro_batch > 0 && batch_tokens % (micro_batch * seq_len * gpus); micro_batch--)); do :; done
if [ "$micro_batch" -ne "$usual" ]; then
    advice="choose another MICRO_BATCH or GPUS"
    [ "$micro_batch" -eq 0 ] || advice="MICRO_BATCH=$micro_batch fits"
    if [ -n "${MICRO_BATCH:-}" ] || [ "$micro_batch" -eq 0 ]; then
        fail "$name: $batch_tokens tokens per step must be a multiple of $usual x $seq_len tokens on $gpus GPUs;" \
            "$advice"
    fi
    echo "note: $name: $usual x $seq_len tokens on each of $gpus GPUs are more than a step or do not divide it; the" \
        "micro-batch is now $micro_batch" >&2
fi

program=${PROGRAM:-./train_gpt2_fp8}
command=("$program" --model "$model" "${train[@]}" --val "$val" --micro-batch "$micro_batch" --seq-len "$seq_len"
    --batch-tokens "$batch_tokens" "${settings[@]}" --resume --out "$out")
[ -z "$recipe" ] || command+=(--recipe "$recipe")
[ "$recipe" != bf16 ] || command+=(--master split16)
[ "$gpus" -eq 1 ] || command+=(--zero "${zero:-1}")
hellaswag=${HELLASWAG:-$data/hellaswag_val.bin}
if [ -n "${HELLASWAG:-}" ] || [ -e "$hellaswag" ]; then command+=(--hellaswag "$hellaswag"); fi
sample=(--sample-tokens 0)
[ -z "${TOKENIZER:-}" ] || sample=(--tokenizer "$TOKENIZER" --sample-every 5000 --sample-tokens 144)
command+=("${sample[@]}" "${flags[@]}")

case ${LAUNCHER:-mpirun} in
mpirun) [ "$gpus" -eq 1 ] || command=(mpirun -np "$gpus" --bind-to none "${command[@]}") ;;
srun) command=(srun --kill-on-bad-exit=1 "${command[@]}") ;;
*) fail "LAUNCHER: must be mpirun or srun (is $LAUNCHER)" ;;
esac

# Prints the command, quoted so that it can be pasted into a shell.
if [ -n "$dry_run" ]; then
    printf '%q ' "${command[@]}" | sed 's/ $//'
    echo
    exit 0
fi
[ "${command[0]}" = srun ] || command -v "$program" >/dev/null ||
    fail "$program: is not built; run make on a machine with nvcc and cuDNN, or set PROGRAM"
for tool in mpirun pkill; do
    [ "${command[0]}" != mpirun ] || command -v $tool >/dev/null ||
        fail "$tool: is missing, which several GPUs need; run scripts/setup.sh --all"
done

# Forwards Ctrl-C, SIGTERM and SIGHUP to the training process or, of several, to one process. Then all processes save
# and end. mpirun itself must not get these signals, because it would kill the processes within two seconds, before they
# have saved. mpirun therefore runs in its own session. Ctrl-Z does not reach this session and stops only this script.
child='' asked=''
end_training() {
    if [ "${command[0]}" = mpirun ]; then # signals the children of mpirun, or mpirun itself if it has no children yet
        pkill -TERM -o -P "$child" || [ -n "$asked" ] || kill -TERM "$child" || true
    else
        kill -TERM "$child" || true
    fi
    asked=yes
}
in_own_session() { # COMMAND...: runs it, forwards signals, and returns its exit status
    trap asked=yes INT TERM HUP
    setsid "$@" </dev/null &
    child=$!
    trap end_training INT TERM HUP
    [ -z "$asked" ] || { asked='' && end_training; }
    while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done # a signal ends `wait`, but not the child
    trap - INT TERM HUP
    wait "$child"
}

mkdir -p "$out" # because --resume fails if the folder does not exist
[ "${command[0]}" = mpirun ] || [ "${RESTARTS:-0}" != 0 ] || exec "${command[@]}"
for ((left = ${RESTARTS:-0}; ; left--)); do
    status=0
    case ${command[0]} in srun) "${command[@]}" || status=$? ;; *) in_own_session "${command[@]}" || status=$? ;; esac
    [ -z "$asked" ] || exit $status
    case $status in 3 | 5 | 13[4-79]) [ "$left" -gt 0 ] || exit $status ;; *) exit $status ;; esac
    echo "$name: ended with $status; restarting from the newest checkpoint ($left restarts left)" >&2
    sleep "${RESTART_PAUSE:-10}"
done
