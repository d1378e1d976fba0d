#!/usr/bin/env bash
# A hundred runs that are killed, instead of `make test`'s ten.
set -euo pipefail
exec bash "$(dirname "$0")/test_kill.sh" 100 "${1:-7}"
