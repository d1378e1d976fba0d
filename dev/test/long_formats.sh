#!/usr/bin/env bash
# All 2^32 bit patterns of FP32 through the conversions, instead of `make test`'s sample.
set -euo pipefail
"${BUILD:-build}/test_formats" --all
