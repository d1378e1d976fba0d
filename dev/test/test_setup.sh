#!/usr/bin/env bash
# Tests scripts/setup.sh with replacements of gcc, python3 and apt-get: the packages that it installs, and one line for
# each package that cannot be installed. Also checks that every Python package has one version and checksums.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

tree=$folder/tree python=$folder/tree/third_party/python
mkdir -p "$tree"/{scripts,data,dev/test} "$folder/bin"
cp scripts/setup.sh "$tree/scripts"
cp data/requirements.txt "$tree/data"
cp dev/test/requirements.txt "$tree/dev/test"
# The headers in $MISSING are missing. Python imports only what pip has installed. pip fails if $OFFLINE is set.
cat >"$folder/bin/gcc" <<'END'
#!/bin/sh
! grep -qE "${MISSING:-^$}"
END
cat >"$folder/bin/python3" <<'END'
#!/bin/sh
case "$*" in
-c*) [ -e third_party/python/installed ] ;;
*--version) ;;
*" install "*)
    [ "${OFFLINE:-}" ] && echo "WARNING: Retrying (Retry(total=1))" && echo "ERROR: No matching distribution" && exit 1
    while [ "$1" != --target ]; do shift; done
    mkdir "$2" && echo "$*" >"$2/installed"
    ;;
*) exit 1 ;;
esac
END
cat >"$folder/bin/apt-get" <<'END'
#!/bin/sh
echo "$*" >>apt
[ -z "${OFFLINE:-}" ] || { echo "W: Failed to fetch"; echo "E: Unable to locate package"; exit 100; }
END
printf '#!/bin/sh\necho "${ROOT:-0}"\n' >"$folder/bin/id"
for tool in g++ make mpicc mpirun pkill man nvcc; do printf '#!/bin/sh\n' >"$folder/bin/$tool"; done
chmod +x "$folder"/bin/*

# setup STATUS LINES NAME [FLAG]: checks that setup.sh ends with STATUS and prints LINES lines. Sets $said to its
# output.
setup() {
    local status=0
    rm -f "$tree/apt"
    said=$(PATH="$folder/bin:$PATH" CUDNN_FRONTEND=/none "$tree/scripts/setup.sh" "${@:4}" 2>&1) || status=$?
    [ $status -eq "$1" ] && [ "$(grep -c . <<<"$said")" -eq "$2" ]
    check "$3" $? "exit $status" "$said"
}
setup 0 0 "setup.sh with nothing missing prints nothing"
OFFLINE=1 setup 0 2 "setup.sh --all without a network succeeds with the existing packages" --all
has "setup.sh names the file and the cause of a failure" "$said" '^setup: .*dev/test/requirements\.txt .*\(no connection\); '
OFFLINE=1 setup 1 2 "setup.sh --python without a network fails if packages are missing" --python
mkdir -p "$python" && touch "$python/old"
OFFLINE=1 setup 1 2 "setup.sh --python keeps existing packages after a failure" --python
[ -e "$python/old" ] && [ "$(ls -A "$tree/third_party")" = python ]
check "setup.sh leaves no temporary files" $? "$(ls -A "$tree/third_party")"
setup 0 1 "setup.sh --python installs packages" --python
[ ! -e "$python/old" ] && grep -q -- '--no-deps --only-binary=:all: --require-hashes$' "$python/installed" && grep -q -- '-r data/requirements.txt ' "$python/installed"
check "setup.sh --python checks checksums and replaces old packages" $? "$(cat "$python/installed")"
setup 0 0 "setup.sh --all prints nothing if all packages are installed" --all

MISSING=xxhash setup 0 1 "setup.sh installs a missing library"
[ "$(paste -sd ' ' "$tree/apt")" = "update install -y --no-install-recommends libxxhash-dev" ]
check "setup.sh installs a library by its package's name" $? "$(cat "$tree/apt")"
MISSING=xxhash OFFLINE=1 setup 1 2 "setup.sh: a needed library that cannot be installed is an error"
has "setup.sh names the needed library and the cause" "$said" '^setup: .*libxxhash-dev .*\(W: Failed to fetch\); '
MISSING='cblas|cmocka' OFFLINE=1 setup 0 2 "setup.sh: an optional library that cannot be installed is not an error" --all
has "setup.sh names the optional library" "$said" '^setup: .*libopenblas-dev libcmocka-dev '
MISSING=xxhash ROOT=1000 setup 1 1 "setup.sh without root prints the command"
has "setup.sh prints a complete command" "$said" 'as root, run: apt-get update && apt-get install -y --no-install-recommends libxxhash-dev$'
MISSING=cblas ROOT=1000 setup 0 1 "setup.sh without root continues without an optional library"
setup 1 1 "setup.sh refuses an unknown argument" --test
has "setup.sh names an unknown argument" "$said" 'unknown argument --test;'

for file in data/requirements.txt dev/test/requirements.txt; do
    said=$(sed -e ':a; /\\$/ { N; s/\\\n//; ba }' -e '/^#/d; /^-r /d; /^$/d' "$file" |
        grep -vE '^[a-z0-9-]+==[0-9.]+(post[0-9])?( ; python_version (<|>=) "3\.[0-9]+")?( +--hash=sha256:[0-9a-f]{64})+$')
    [ -z "$said" ]
    check "$file: every package has one version and checksums" $? "$said"
done
has "setup.sh: the cuDNN frontend has a version and a checksum" "$(cat scripts/setup.sh)" 'nvidia-cudnn-frontend==[0-9.]+ --hash=sha256:[0-9a-f]{64}"'
exit $failures
