#!/usr/bin/env bash
# Compares the pixels that data/prepare.py --image-processor computes for 200 images with those of transformers'
# processors, and the number of placeholders per image with LlavaProcessor's.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 dev/test/test_prepare_images.py --transformers
