#!/usr/bin/env bash
# Runs the fuzz targets of dev/fuzz under the sanitizers on every input of the corpus. A target fails if it crashes,
# leaks, accesses memory that it must not, hangs, allocates more than 256 MiB at once, or violates a condition that it checks.
#
#   dev/test/test_fuzz.sh [--built] [--seconds N] [TARGET...]
#       --built      do not build
#       --seconds N  after the corpus, runs each target for N seconds on mutated inputs; needs clang with libFuzzer
#       TARGET       run this target only, for example tokens
set -euo pipefail
cd "$(dirname "$0")/../.."
unset MAKEFLAGS MFLAGS MAKELEVEL SANITIZE

seconds='' built=''
targets=()
while [ $# -gt 0 ]; do
    case $1 in
    --built) built=yes ;;
    --seconds) seconds=$2 && shift ;;
    *) targets+=("$1") ;;
    esac
    shift
done
if [ ${#targets[@]} -eq 0 ]; then
    for source in dev/fuzz/fuzz_*.c; do targets+=("$(basename "${source#dev/fuzz/fuzz_}" .c)"); done
fi

# The targets' files are in memory if possible, and removed even if a target crashes.
scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
mkdir -p build/fuzz/found
skip() {
    echo "skip - fuzz targets: $1"
    exit 77
}
command -v python3 >/dev/null || skip "no python3, which writes the corpus"
echo 'int main(void) { return 0; }' | gcc -x c -fsanitize=address,undefined - -o build/fuzz/probe 2>/dev/null ||
    skip "this gcc has no -fsanitize=address,undefined (libasan, libubsan)"
export ASAN_OPTIONS=handle_abort=1:max_allocation_size_mb=256
# The leak checker needs ptrace, which some containers forbid.
build/fuzz/probe 2>/dev/null || ASAN_OPTIONS+=:detect_leaks=0
# builds with MAKE_FLAGS, because `make SANITIZE=1` with these flags shares the objects
read -r -a make_flags <<<"${MAKE_FLAGS:-}"
[ -n "$built" ] || make -j"$(nproc)" "${make_flags[@]}" CUDA=0 fuzz-targets >/dev/null
python3 dev/fuzz/corpus.py

# Only targets with libFuzzer have this flag.
if [ -n "$seconds" ] && ! build/fuzz/fuzz_log -help=1 2>&1 | grep max_total_time >/dev/null; then
    echo "test_fuzz.sh: --seconds needs clang with libFuzzer; install clang and libclang-rt-dev" >&2
    exit 1
fi

# Inputs on which a target fails are saved in build/fuzz/found. With --seconds of at least 60, inputs that reach new
# code are saved in build/fuzz/work.
run_target() { # NAME
    local name=$1 log=$scratch/$1.log work=$scratch/$1.work inputs=("build/fuzz/corpus/$1"/*) runs='' status=0 executed
    local run=(nice timeout $((seconds + 300)) "build/fuzz/fuzz_$1" -timeout=20 "-artifact_prefix=build/fuzz/found/$1-")
    "${run[@]}" "${inputs[@]}" >"$log" 2>&1 </dev/null || status=$?
    executed=$(grep -ac '^Executed ' "$log" || true)
    if [ $status -eq 0 ] && [ -n "$seconds" ]; then
        [ "$seconds" -lt 60 ] || work=build/fuzz/work/$name
        mkdir -p "$work"
        "${run[@]}" -max_total_time="$seconds" -seed=1 -max_len=8192 -len_control=0 -dict=dev/fuzz/words.dict \
            "$work" "build/fuzz/corpus/$name" >"$log" 2>&1 </dev/null || status=$?
        runs=$(sed -nE 's/^#([0-9]+)\s+DONE +cov: ([0-9]+).*/, \1 runs, \2 edges/p' "$log")
    fi
    if [ $status -eq 0 ] && [ "$executed" -eq ${#inputs[@]} ] && [ -n "$runs" -o -z "$seconds" ]; then
        echo "ok - fuzz_$name: $executed inputs$runs"
    else
        echo "not ok - fuzz_$name: status $status; see the input named below and dev/fuzz/README.md"
        grep -a '^Running: ' "$log" | tail -n 1 || true
        grep -aE 'broken promise|ERROR|runtime error|SUMMARY|Test unit written' "$log" | head -n 12 || true
    fi
}
export -f run_target
export scratch seconds
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run_target {}' | tee "$scratch/results"
! grep -q '^not ok' "$scratch/results"
