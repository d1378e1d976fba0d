#!/usr/bin/env bash
# `make test`: builds and runs every test that this machine can run. Its last line is
#   N passed, N failed, N skipped
# and its exit code is 1 if a test failed.
#
#   scripts/test.sh [--long] [--unit] [NAME...]
#       --long: also runs dev/test/long_*.sh, and the long parts of other suites
#       --unit: only the unit tests dev/test/test_*.c
#       NAME: only suites whose name contains NAME; if no suite's does, the exit code is 1
#   MAKE_FLAGS="SANITIZE=1"              settings for the build
#   TEST_JOBS=2                          number of suites that run at the same time
#                                        (default: cores + 1, because some suites wait;
#                                        at most 4). A suite that needs a GPU runs alone
#
# A suite is a program or script that prints a line per test in TAP format, as cmocka
# does:
#   ok - name      not ok - name      skip - name: reason
#   ok 3 - name    ok 3 - name # SKIP reason
# A suite whose exit status is not 0 counts as one failed test if it reports no failure.
# A suite without such lines counts as one test: passed with exit status 0, skipped with
# 77. Status 77 after a skipped test is not a failure.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/.."
unset MAKEFLAGS MFLAGS MAKELEVEL # drops the flags of a calling make; make's settings remain as environment variables

long='' unit=''
names=()
for argument in "$@"; do
    case $argument in
    --long) long=yes ;;
    --unit) unit=yes ;;
    -*) echo "error: $argument: unknown flag; see scripts/test.sh --help" >&2; exit 1 ;;
    *) names+=("$argument") ;;
    esac
done

read -r -a make_flags <<<"${MAKE_FLAGS:-}"
build=build bin=.
case " ${make_flags[*]} SANITIZE=${SANITIZE:-} " in *" SANITIZE=1 "*) build=build/asan bin=build/asan ;; esac

has_gpu() { nvidia-smi -L 2>/dev/null | grep GPU >/dev/null; }

cores=$(nproc)
jobs=${TEST_JOBS:-$((cores < 4 ? cores + 1 : 4))}
case $jobs in 0 | *[!0-9]*) echo "error: TEST_JOBS: must be a number of at least 1 (is '$jobs')" >&2; exit 1 ;; esac
# OpenMP threads of each suite. More threads than cores would be slow, because waiting threads spin.
threads=${OMP_NUM_THREADS:-$((cores > jobs ? cores / jobs : 1))}

finish() {
    [ ${#suites[@]} -gt 0 ] || { failed=$((failed + 1)) && echo "error: no suite's name contains ${names[*]}" >&2; }
    [ ${#failed_suites[@]} -eq 0 ] || echo "failed: ${failed_suites[*]}"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}

outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT
trap 'for job in $(jobs -p); do pkill -P "$job" || true; done; exit 130' INT TERM # ends the suites, too
passed=0 failed=0 skipped=0
failed_suites=()

# If programs cannot be built, this counts as one failed test, and all programs that were built are tested.
scripts/setup.sh --all
export PYTHONPATH=$PWD/third_party/python${PYTHONPATH:+:$PYTHONPATH}
if ! make -k -j"$(nproc)" "${make_flags[@]}" ${unit:+unit-}tests; then
    failed=1
    failed_suites+=(build)
fi

# wanted SUITE: true if the suite's name contains one of the NAMEs, or if no NAME was given
wanted() {
    [ ${#names[@]} -eq 0 ] && return 0
    local name
    for name in "${names[@]}"; do case $1 in *"$name"*) return 0 ;; esac done
    return 1
}

# Counts a suite's tests and prints a line about the suite. If a test failed, also prints the suite's output; otherwise
# also prints the lines of skipped tests.
report() { # SUITE OUTPUT STATUS SECONDS
    local ok bad skip output=$2 skips='^(skip - |(not )?ok\b.*# *SKIP)'
    skip=$(grep -cE "$skips" "$output" || true)
    bad=$(grep -E '^not ok\b' "$output" | grep -cvE '# *SKIP' || true)
    ok=$(grep -E '^ok\b' "$output" | grep -cvE '# *SKIP' || true)
    if [ $((ok + bad + skip)) -eq 0 ]; then
        case $3 in 0) ok=1 ;; 77) skip=1 ;; esac
    fi
    if [ "$3" -ne 0 ] && [ "$bad" -eq 0 ] && ! { [ "$3" -eq 77 ] && [ "$skip" -gt 0 ]; }; then
        bad=1
        echo "not ok - $1 ended with status $3" >>"$output"
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    printf '%-32s %4d passed %3d failed %3d skipped  %4d s\n' "$1" "$ok" "$bad" "$skip" "$4"
    if [ "$bad" -gt 0 ]; then
        failed_suites+=("$1")
        sed 's/^/    /' "$output"
    elif [ "$skip" -gt 0 ]; then
        grep -E "$skips" "$output" | sed 's/^/    /'
    fi
}

# Several suites run at the same time, but are reported in the order of their start. The output of suite N goes to file
# N; when the suite has ended, N.ended is written with the exit status and the duration in seconds.
suites=() reported=0 running=0
# Reports the suites that have ended, up to the first one that still runs.
report_ended() {
    local status seconds
    while [ "$reported" -lt ${#suites[@]} ] && [ -e "$outputs/$reported.ended" ]; do
        read -r status seconds <"$outputs/$reported.ended"
        report "${suites[reported]}" "$outputs/$reported" "$status" "$seconds"
        reported=$((reported + 1))
    done
}

wait_for_one() {
    wait -n || true
    running=$((running - 1))
    report_ended
}

wait_for_all() {
    while [ $running -gt 0 ]; do wait_for_one; done
    report_ended
}

run_suite() { # SUITE COMMAND...: starts a suite in the background; waits first if TEST_JOBS suites run
    local suite=$1 number=${#suites[@]}
    shift
    wanted "$suite" || return 0
    suites+=("$suite")
    while [ $running -ge "$jobs" ]; do wait_for_one; done
    {
        status=0 start=$SECONDS
        OMP_NUM_THREADS=$threads CMOCKA_MESSAGE_OUTPUT=TAP timeout 1800 "$@" \
            >"$outputs/$number" 2>&1 </dev/null || status=$?
        echo "$status $((SECONDS - start))" >"$outputs/$number.new"
        mv "$outputs/$number.new" "$outputs/$number.ended"
    } &
    running=$((running + 1))
}

run_alone() { # SUITE COMMAND...: runs a suite while no other suite runs, with a thread per core
    wait_for_all
    threads=${OMP_NUM_THREADS:-$cores} run_suite "$@"
    wait_for_all
}

skip_suite() { # SUITE REASON: counts a suite as one skipped test
    local number=${#suites[@]}
    wanted "$1" || return 0
    suites+=("$1")
    echo "skip - $1: $2" >"$outputs/$number"
    echo "0 0" >"$outputs/$number.ended"
}

# The longest suites come first and the short unit tests last, so that no core is idle while a late long suite ends.
longest=" test_ranks.sh test_fuzz.sh test_order.c test_sample.c test_sampler.c test_ops_cpu.c test_states_read.c \
test_watchdog.c test_rendezvous.c "
longest_first() { # FILE...: prints the files, those named in $longest first
    printf '%s\n' "$@" | awk -F/ -v longest="$longest" '{ print !index(longest, " " $NF " "), $0 }' |
        sort -s -k1,1n | cut -d' ' -f2
}

shopt -s nullglob
run_unit_tests() {
    local source name
    for source in $(longest_first dev/test/test_*.c); do
        name=$(basename "$source" .c)
        if [ "$name" = test_moments_error ] && [ "$build" = build/asan ] && [ -z "$long" ]; then
            skip_suite "$name" "10,000 updates of code that test_moments covers under the sanitizers; runs with --long"
        elif [ -x $build/"$name" ]; then
            run_suite "$name" $build/"$name"
        else
            skip_suite "$name" "not built: cmocka is missing, or see the errors above"
        fi
    done
}

if [ -n "$unit" ]; then
    run_unit_tests
    wait_for_all
    finish
    exit
fi

export TEST_LONG=$long # if it is not empty, suites also run their long parts
[ -x $bin/test_gpt2_cpu ] && run_suite test_gpt2_cpu $bin/test_gpt2_cpu
[ -x $build/gradient_check ] && run_suite gradient_check $build/gradient_check

if [ "$build" = build ]; then
    reason=
    [ -x train_gpt2_fp8 ] || reason="not built: no nvcc, cuDNN or cuDNN frontend"
    [ -n "$reason" ] || has_gpu || reason="no GPU"
    for source in dev/test/test_*.cu; do
        [ "$source" != dev/test/test_attention_plan.cu ] || continue # test_attention_plan.sh runs it
        name=$(basename "$source" .cu)_gpu
        if [ -n "$reason" ]; then skip_suite "$name" "$reason"; else run_alone "$name" build/"$name"; fi
    done
    if [ -n "$reason" ]; then skip_suite test_gpt2 "$reason"; else run_alone test_gpt2 ./test_gpt2; fi
fi

# Scripts test the programs as users run them; BUILD and BIN are the folders of these programs.
export BUILD=$build BIN=$bin
for script in $(longest_first dev/test/test_*.sh); do run_suite "$(basename "$script")" bash "$script"; done
for script in dev/test/test_*.py; do
    if command -v python3 >/dev/null; then run_suite "$(basename "$script")" python3 "$script"; else
        skip_suite "$(basename "$script")" "no python3"
    fi
done
run_unit_tests
if [ -n "$long" ]; then
    wait_for_all
    for script in dev/test/long_*.sh; do run_suite "$(basename "$script")" bash "$script"; done
fi

wait_for_all
finish
