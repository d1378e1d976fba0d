#!/usr/bin/env bash
# The fuzz targets of dev/fuzz: each on its corpus and then on mutations for a second. A target fails
# when it crashes, leaks, reads or writes where it must not, hangs, asks for far too much memory, or breaks a promise
# that it checks.
#
#   dev/test/test_fuzz.sh [--built] [--seconds N] [TARGET...]
#       --built: do not build; TARGET: only these, such as tokens
set -euo pipefail
cd "$(dirname "$0")/../.."
unset MAKEFLAGS MFLAGS MAKELEVEL SANITIZE

seconds=1 built=
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

# The targets' files are in memory where the machine allows it; the folder also goes when a target crashes.
scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
mkdir -p build/fuzz/found
if ! echo 'int main(void) { return 0; }' | gcc -x c -fsanitize=address,undefined - -o build/fuzz/probe 2>/dev/null; then
    echo "skip - fuzz targets: this gcc has no -fsanitize=address,undefined (libasan, libubsan)"
    exit 77
fi
# Leaks are looked for by one process tracing another, which some containers forbid.
build/fuzz/probe 2>/dev/null || export ASAN_OPTIONS=detect_leaks=0
[ -n "$built" ] || make -j"$(nproc)" OPENBLAS=0 MPI=0 CUDA=0 fuzz-targets >/dev/null
python3 dev/fuzz/corpus.py

# What is found goes to build/fuzz/found; what longer runs learn, to build/fuzz/work.
run_target() { # NAME
    local name=$1 log=$scratch/$1.log work=$scratch/$1.work status=0
    [ "$seconds" -lt 60 ] || work=build/fuzz/work/$name
    mkdir -p "$work"
    nice timeout $((seconds + 300)) "build/fuzz/fuzz_$name" -max_total_time="$seconds" -seed=1 -timeout=20 \
        -malloc_limit_mb=256 -max_len=8192 -len_control=0 -dict=dev/fuzz/words.dict \
        -artifact_prefix="build/fuzz/found/$name-" "$work" "build/fuzz/corpus/$name" >"$log" 2>&1 </dev/null || status=$?
    local done_line
    done_line=$(grep -a 'DONE *cov:' "$log" | tail -n 1 || true)
    if [ $status -eq 0 ] && [ -n "$done_line" ]; then
        sed -E "s/^#([0-9]+).*cov: ([0-9]+).*/ok - fuzz_$name: \1 runs, \2 edges/" <<<"$done_line"
    else
        echo "not ok - fuzz_$name: status $status"
        grep -aE 'broken promise|ERROR|runtime error|SUMMARY|input is in|Test unit written|takes more' "$log" | head -n 12 || true
        echo "    see $name-* in build/fuzz/found and dev/fuzz/README.md"
    fi
}
export -f run_target
export scratch seconds
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run_target {}' | tee "$scratch/results"
! grep -q '^not ok' "$scratch/results"
