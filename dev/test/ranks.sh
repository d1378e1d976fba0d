# Sourced by tests of several processes: runs them over MPI, by default on the CPU, and compares runs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. dev/test/program_fixture.sh
export OMP_NUM_THREADS=1 ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}

if ! command -v mpirun >/dev/null; then
    echo "skip - several processes: mpirun is missing; scripts/setup.sh --all installs it"
    exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0
export OMPI_MCA_mpi_yield_when_idle=0 # because comm_mpi.c yields the core itself, and sleeps if another suite uses the core
if mpirun --version 2>/dev/null | grep -q "Open MPI"; then mpirun=(mpirun --oversubscribe); else mpirun=(mpirun); fi

byte_data
flags=(--tokenizer bytes --layers 3 --heads 2 --channels 64 --seq-len 32 --sample-tokens 0 --quiet --device "$device"
    --train "$data" --val "$val" --val-batches 7 --lr 1e-3 --warmup 5 --micro-batch 2)

# train PROCESSES NAME FLAGS...: trains into $folder/NAME; output goes to $folder/NAME.said.
train() {
    local processes=$1 name=$2 status=0
    shift 2
    local command=("$program" "${flags[@]}" --out "$folder/$name" "$@")
    [ "$processes" -eq 1 ] || command=("${mpirun[@]}" -np "$processes" "${command[@]}")
    timeout 300 "${command[@]}" >"$folder/$name.said" 2>&1 </dev/null || status=$?
    [ $status -eq 0 ] || bad "the run $name succeeds" "status $status" "$(tail -5 "$folder/$name.said")"
    return $status
}

# values KEY NAME: prints the value of KEY in every line of a run's log that has it.
values() { field "$1" "$folder/$2/log.jsonl"; }

# near NAME KEY TOLERANCE A B [LINES]: checks that KEY in the logs of runs A and B differs by at most TOLERANCE,
# relative. LINES "first" or "last": compares only that line.
near() {
    local pick=cat said
    case ${6:-} in first) pick="head -1" ;; last) pick="tail -1" ;; esac
    if said=$(paste <(values "$2" "$4" | $pick) <(values "$2" "$5" | $pick) | awk -v tolerance="$3" '
        NF != 2 { print "only one of the logs has this line: " $0; bad = 1 }
        { d = ($1 - $2) / $2; if (d < 0) d = -d; if (!(d <= tolerance)) { print NR ": " $0; bad = 1 }; if (d > most) most = d }
        END { if (NR == 0) { print "no lines"; bad = 1 }; printf "largest relative difference %.1e in %d lines\n", most, NR; exit bad }'); then
        ok "$1 ($said)"
    else
        bad "$1" "$said"
    fi
}

# same NAME STEP A B [FILE]: checks that two checkpoints, or one of their files, are equal byte for byte.
same() {
    diff -r "$folder/$3/step-$2${5:+/$5}" "$folder/$4/step-$2${5:+/$5}" >"$folder/diff" 2>&1; check "$1" $? "$(head -3 "$folder/diff")"
}

# each PROCESSES SCRIPT FLAGS...: runs the program on several processes. Each process runs SCRIPT in a shell with its
# $rank and the program's command "$@". Sets $status and $seconds; output goes to $folder/said.
each() {
    local begun=$SECONDS
    status=0
    # shellcheck disable=SC2016 # the processes' shells expand it
    timeout -k 1 200 "${mpirun[@]}" -np "$1" bash -c 'rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; '"$2" bash "$program" "${@:3}" \
        >"$folder/said" 2>&1 </dev/null || status=$?
    seconds=$((SECONDS - begun))
}
# starved PROCESSES KIB FLAGS...: trains, with the address space of the last process limited to KIB. Sets $status and
# $seconds; output goes to $folder/said.
starved() { each "$1" "[ \$rank -ne $(($1 - 1)) ] || ulimit -v $2; exec \"\$@\"" "${flags[@]}" "${@:3}"; }
# no_memory NAME PROCESSES KIB FLAGS...: checks that a starved() run ends within 45 s, with exit code 3 and one error
# line that names the rank without memory.
no_memory() {
    local name=$1
    shift
    if [[ $build = *asan* ]]; then
        echo "skip - $name: this build's sanitizers need more address space than the limit"
        return
    fi
    starved "$@"
    [ $status -eq 3 ] && [ $seconds -lt 45 ] && [ "$(grep -o 'error: ' "$folder/said" | wc -l)" -eq 1 ] && grep -qE "error: rank $(($1 - 1)): .*memory" "$folder/said"
    check "$name" $? "exit $status after $seconds s" "$(head -5 "$folder/said")"
}
