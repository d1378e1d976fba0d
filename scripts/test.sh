#!/usr/bin/env bash
# `make test`: builds and runs every test that this machine can run. Its last line is
#   N passed, N failed, N skipped
# and it ends with 1 where anything failed.
#
#   scripts/test.sh [--long] [--unit] [NAME...]
#       --long: also dev/long_*.sh; --unit: only the unit tests dev/test_*.c; NAME: only suites whose name contains it
#   MAKE_FLAGS="SANITIZE=1"              settings for the build
#
# A suite is a program or script. It prints a line per test, as TAP has them (cmocka does by itself):
#   ok - name      not ok - name      skip - name: reason      (also ok 3 - name, ok 3 - name # SKIP reason)
# A suite that ends with an error but reports no failure has crashed: one failure. One that succeeds and reports
# nothing is one test; exit status 77 without a report is one skipped test.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/.."
unset MAKEFLAGS MFLAGS MAKELEVEL # of a make that started this; its settings also come by name

long='' unit=''
names=()
for argument in "$@"; do
    case $argument in
    --long) long=yes ;;
    --unit) unit=yes ;;
    *) names+=("$argument") ;;
    esac
done

read -r -a make_flags <<<"${MAKE_FLAGS:-}"
build=build bin=.
case " ${make_flags[*]} SANITIZE=${SANITIZE:-} " in *" SANITIZE=1 "*) build=build/asan bin=build/asan ;; esac

finish() {
    [ ${#failed_suites[@]} -eq 0 ] || echo "failed: ${failed_suites[*]}"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}

output=$(mktemp)
trap 'rm -f "$output"' EXIT
passed=0 failed=0 skipped=0
failed_suites=()

# What cannot be built is one failure; the rest is tested all the same.
scripts/setup.sh --tests
if ! make -k -j"$(nproc)" "${make_flags[@]}" ${unit:+unit-}tests; then
    failed=1
    failed_suites+=(build)
fi

has_gpu() { nvidia-smi -L 2>/dev/null | grep -q GPU; }

wanted() {
    [ ${#names[@]} -eq 0 ] && return 0
    local name
    for name in "${names[@]}"; do case $1 in *"$name"*) return 0 ;; esac done
    return 1
}

# One line per suite, and the reasons of what was skipped; all its output where something failed.
report() { # SUITE STATUS SECONDS
    local ok bad skip
    skip=$(grep -cE '^(skip - |(not )?ok\b.*# *SKIP)' "$output" || true)
    bad=$(grep -E '^not ok\b' "$output" | grep -cvE '# *SKIP' || true)
    ok=$(grep -E '^ok\b' "$output" | grep -cvE '# *SKIP' || true)
    if [ $((ok + bad + skip)) -eq 0 ]; then
        case $2 in 0) ok=1 ;; 77) skip=1 ;; esac
    fi
    if [ "$2" -ne 0 ] && [ "$bad" -eq 0 ] && ! { [ "$2" -eq 77 ] && [ "$skip" -gt 0 ]; }; then
        bad=1
        echo "not ok - $1 ended with status $2" >>"$output"
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    printf '%-32s %4d passed %3d failed %3d skipped  %4d s\n' "$1" "$ok" "$bad" "$skip" "$3"
    if [ "$bad" -gt 0 ]; then
        failed_suites+=("$1")
        sed 's/^/    /' "$output"
    elif [ "$skip" -gt 0 ]; then
        grep -E '^skip - ' "$output" | sed 's/^/    /' || true
    fi
}

run_suite() { # SUITE COMMAND...
    local suite=$1 status=0 start=$SECONDS
    shift
    wanted "$suite" || return 0
    CMOCKA_MESSAGE_OUTPUT=TAP timeout "${TEST_TIMEOUT:-1800}" "$@" >"$output" 2>&1 </dev/null || status=$?
    report "$suite" $status $((SECONDS - start))
}

skip_suite() { # SUITE REASON
    wanted "$1" || return 0
    echo "skip - $1: $2" >"$output"
    report "$1" 0 0
}

shopt -s nullglob
for source in dev/test_*.c; do
    name=$(basename "$source" .c)
    if [ "$name" = test_moments_error ] && [ "$build" = build/asan ] && [ -z "$long" ]; then
        skip_suite "$name" "10,000 updates of the code that test_moments has under the sanitizers; with --long"
    elif [ -x $build/"$name" ]; then run_suite "$name" $build/"$name"; else skip_suite "$name" "not built: cmocka is missing, or see the errors above"; fi
done

if [ -n "$unit" ]; then
    finish
    exit
fi

[ -x $bin/test_gpt2_cpu ] && run_suite test_gpt2_cpu $bin/test_gpt2_cpu
[ -x $build/gradient_check ] && run_suite gradient_check $build/gradient_check

gpu_suites=(dev/test_*.cu)
if [ "$build" = build ]; then
    reason=
    [ -x train_gpt2_fp8 ] || reason="not built: no nvcc, cuDNN or cuDNN frontend"
    [ -n "$reason" ] || has_gpu || reason="no GPU"
    for source in "${gpu_suites[@]}"; do
        name=$(basename "$source" .cu)_gpu
        if [ -n "$reason" ]; then skip_suite "$name" "$reason"; else run_suite "$name" build/"$name"; fi
    done
    if [ -f test_gpt2.cu ]; then
        if [ -n "$reason" ]; then skip_suite test_gpt2 "$reason"; else run_suite test_gpt2 ./test_gpt2; fi
    fi
fi

# Scripts test the programs as users run them; they know the build by these two variables.
export BUILD=$build BIN=$bin
for script in dev/test_*.sh; do run_suite "$(basename "$script")" bash "$script"; done
for script in dev/test_*.py; do
    if command -v python3 >/dev/null; then run_suite "$(basename "$script")" python3 "$script"; else
        skip_suite "$(basename "$script")" "no python3"
    fi
done
if [ -n "$long" ]; then
    for script in dev/long_*.sh; do run_suite "$(basename "$script")" bash "$script"; done
fi

finish
