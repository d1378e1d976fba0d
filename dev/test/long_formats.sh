#!/usr/bin/env bash
# Tests the format conversions on all 2^32 bit patterns of FP32; `make test` uses a sample.
set -euo pipefail
"${BUILD:-build}/test_formats" --all
