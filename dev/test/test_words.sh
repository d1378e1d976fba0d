#!/usr/bin/env bash
# Private vocabulary must not grow: no folder may use such a word more often than dev/words.json allows.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/program_fixture.sh
needs_python "private vocabulary"
found=$(python3 dev/tools/words.py . --max dev/words.json 2>&1)
check "no folder uses more private vocabulary than dev/words.json allows" $? "$found"
exit $failures
