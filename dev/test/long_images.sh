#!/usr/bin/env bash
# Compares pixels of data/prepare.py --image-processor with those of transformers' processors, on 200 images, and the
# number of placeholders with that of LlavaProcessor.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 dev/test/test_prepare_images.py --transformers
