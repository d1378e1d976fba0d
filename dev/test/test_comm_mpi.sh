#!/usr/bin/env bash
# Tests the collectives among mpirun's processes by comparing them with a computation in one process. Also tests that a
# rank that dies, is stopped, hangs or fails ends all ranks soon, with an error that names the rank or its failure.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
ranks=$build/comm_ranks said=$folder/said

skip() {
    echo "skip - collectives over MPI: $1"
    exit 77
}
command -v mpirun >/dev/null || skip "mpirun is missing (scripts/setup.sh --all installs Open MPI)"
mpirun=(mpirun)
if mpirun --version 2>&1 | grep -q "Open MPI"; then
    # runs as root, on fewer cores than ranks, and without warnings in containers that forbid reading another process's memory
    mpirun+=(--allow-run-as-root --oversubscribe --mca btl_vader_single_copy_mechanism none)
fi
export OMP_NUM_THREADS=1
export ASAN_OPTIONS=detect_leaks=0 # because MPI itself leaks
RANK=0 WORLD_SIZE=2 "$ranks" >"$said" 2>&1
[ $? -eq 1 ] || { echo "not ok - processes with WORLD_SIZE but without a launcher are refused: $(cat "$said")" && exit 1; }
grep -q "built without MPI" "$said" && skip "built without MPI"

[ "$(wc -l <"$said")" -eq 1 ] && grep -q "(WORLD_SIZE=2, RANK=0) must be started by an MPI launcher; use mpirun -np 2" "$said"
check "processes with WORLD_SIZE but without a launcher are refused" $? "$(cat "$said")"

"$ranks" >"$said" 2>&1 && grep -q "^1 ranks, one process: .* 0 wrong$" "$said"
check "one process without a launcher computes all collectives correctly" $? "$(cat "$said")"

for n in 2 3; do
    timeout 300 "${mpirun[@]}" -np $n "$ranks" >"$said" 2>&1 && grep -q "^$n ranks, MPI: .* 0 wrong$" "$said"
    check "all collectives among $n ranks have the results of a computation in one process" $? "$(cat "$said")"
done

# loses HOW CODE PATTERN: makes rank 2 of 3 fail in the way HOW. Checks that mpirun ends within 30 s with exit code
# CODE, that a line matches PATTERN, and that no rank continues.
loses() {
    local start=$SECONDS status=0
    timeout -k 1 40 "${mpirun[@]}" -np 3 "$ranks" "$1" >"$said" 2>&1 || status=$?
    echo "exit status $status after $((SECONDS - start)) s" >>"$said"
    [ "$status" -eq "$2" ] && grep -qE "$3" "$said" && ! grep -q "^continued" "$said" && [ $((SECONDS - start)) -lt 30 ]
    check "if a rank is lost ($1), the others end within 30 s with an error about it" $? "$(cat "$said")"
}
loses die 137 "rank 2 .*signal 9"
loses stop 5 "error: rank [01]: waited 3 s .* rank 2, which hangs or is lost"
loses hang 5 "error: rank [01]: waited 3 s in collective .* for rank 2, which hangs or is lost"
loses fail 2 "error: a file cannot be read"

timeout 40 "${mpirun[@]}" -np 3 "$ranks" slow >"$said" 2>&1 && grep -q "^3 ranks have arrived" "$said"
check "the others wait for a slow rank" $? "$(cat "$said")"
mkdir "$folder/run"
# rank 0's save takes longer than the others' timeout, which this test reduces from 45 s to 1 s
timeout 60 "${mpirun[@]}" -np 2 "$ranks" save "$folder/run" >"$said" 2>&1 && grep -q "^2 ranks have waited and saved" "$said" && [ -d "$folder/run/step-00000002" ]
check "the others wait for rank 0 while it saves" $? "$(cat "$said")"
exit $failures
