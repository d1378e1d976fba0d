#!/usr/bin/env bash
# Runs test_kill.sh with 100 killed runs instead of 10.
#
#   dev/test/long_kill.sh [SEED]
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
exec bash "$(dirname "$0")/test_kill.sh" 100 "${1:-7}"
