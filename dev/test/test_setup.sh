#!/usr/bin/env bash
# scripts/setup.sh with stand-ins for gcc, python3 and apt-get: what it installs, and one line for whatever cannot be
# installed. And the files of Python packages: every package has one version and checksums.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

tree=$folder/tree python=$folder/tree/third_party/python
mkdir -p "$tree"/{scripts,data,dev/test} "$folder/bin"
cp scripts/setup.sh "$tree/scripts"
cp data/requirements.txt "$tree/data"
cp dev/test/requirements.txt "$tree/dev/test"
# The headers $MISSING are missing. Python imports nothing unless pip has installed it, which fails if $OFFLINE is set.
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

# setup STATUS LINES NAME [FLAG]: setup.sh ends with STATUS and prints LINES lines (of errors alone: 'e1'); $said has them
setup() {
    local status=0
    rm -f "$tree/apt"
    said=$(PATH="$folder/bin:$PATH" CUDNN_FRONTEND=/none "$tree/scripts/setup.sh" "${@:4}" 2>&1) || status=$?
    [ $status -eq "$1" ] && [ "$(grep -c . <<<"$said")" -eq "$2" ]
    check "$3" $? "exit $status" "$said"
}
setup 0 0 "nothing is missing"
OFFLINE=1 setup 0 2 "without a network the tests go on with the packages that are there" --all
has "the line names the file and the cause" "$said" '^setup: .*dev/test/requirements\.txt .*\(no connection\); '
OFFLINE=1 setup 1 2 "with --python, missing packages are an error" --python
mkdir -p "$python" && touch "$python/old"
OFFLINE=1 setup 1 2 "and a package that was there stays" --python
[ -e "$python/old" ] && [ "$(ls -A "$tree/third_party")" = python ]
check "nothing else is left" $? "$(ls -A "$tree/third_party")"
setup 0 1 "packages are fetched" --python
[ ! -e "$python/old" ] && grep -q -- '--no-deps --only-binary=:all: --require-hashes$' "$python/installed" && grep -q -- '-r data/requirements.txt ' "$python/installed"
check "by their checksums, in place of the old ones" $? "$(cat "$python/installed")"
setup 0 0 "and are found the next time" --all

MISSING=xxhash setup 0 1 "a library is installed"
[ "$(paste -sd ' ' "$tree/apt")" = "update install -y --no-install-recommends libxxhash-dev" ]
check "by its package's name" $? "$(cat "$tree/apt")"
MISSING=xxhash OFFLINE=1 setup 1 2 "a library that the build needs and that cannot be installed is an error"
has "with its name and the cause" "$said" '^setup: .*libxxhash-dev .*\(W: Failed to fetch\); '
MISSING='cblas|cmocka' OFFLINE=1 setup 0 2 "but not one that the build can do without" --all
has "which is named, too" "$said" '^setup: .*libopenblas-dev libcmocka-dev '
MISSING=xxhash ROOT=1000 setup 1 1 "who is not root gets the command"
has "which can be typed" "$said" 'as root, run: apt-get update && apt-get install -y --no-install-recommends libxxhash-dev$'
MISSING=cblas ROOT=1000 setup 0 1 "and continues without a library that the build does not need"
setup 1 1 "an unknown argument" --test
has "is named" "$said" 'unknown argument --test;'

for file in data/requirements.txt dev/test/requirements.txt; do
    said=$(sed -e ':a; /\\$/ { N; s/\\\n//; ba }' -e '/^#/d; /^-r /d; /^$/d' "$file" |
        grep -vE '^[a-z0-9-]+==[0-9.]+(post[0-9])?( ; python_version (<|>=) "3\.[0-9]+")?( +--hash=sha256:[0-9a-f]{64})+$')
    [ -z "$said" ]
    check "$file: every package has one version and checksums" $? "$said"
done
has "so has the cuDNN frontend" "$(cat scripts/setup.sh)" 'nvidia-cudnn-frontend==[0-9.]+ --hash=sha256:[0-9a-f]{64}"'
exit $failures
