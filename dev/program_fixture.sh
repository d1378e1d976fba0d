# Shared by the tests of the CPU's program: where it is, a folder of the test's own, and the test's lines. To be sourced
# at the repository's root; the test ends with `exit $failures`.
program=$(realpath "${BIN:-.}")/train_gpt2_fp8_cpu
build=${BUILD:-build}
folder=$(mktemp -d)
trap 'chmod -R u+rwx "$folder"; rm -rf "$folder"' EXIT
failures=0

ok() { echo "ok - $1"; }
bad() { # NAME WHAT WAS SAID...
    echo "not ok - $1"
    shift
    printf '    %s\n' "$@"
    failures=1
}
