#!/usr/bin/env python3
"""Tests checkpoints of runs with SentencePiece's tokenizer.model: the trainer, the package tokenizers and transformers'
AutoTokenizer must give mixed text the ids that SentencePiece gives it. check_tokenizers.py tests published vocabularies.

    python3 dev/test/test_tokenizer_export.py

Skipped without the packages of scripts/setup.sh --python. AutoTokenizer needs transformers.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from check_tokenizers import HERE, PROGRAM, ROOT, TOKENIZE, Check  # noqa: E402

import make_tokenizers  # noqa: E402
import mixed_text  # noqa: E402

FOUND = ["<|extra|>", "a.b|(c)*[\\]^$+?{2}", "\u2581\u2581", "the\u2581", "\u4f60\u597d", "0"]  # user-defined pieces
SETTINGS = {
    "no prefix, no BOS token": {"add_dummy_prefix": False, "bos_id": -1},
    "user-defined pieces": {"user_defined_symbols": FOUND},
    "user-defined pieces, no prefix": {"user_defined_symbols": FOUND, "add_dummy_prefix": False},
    "other names": {"bos_piece": "<begin>", "eos_piece": "<end>", "unk_piece": "[?]", "pad_id": 3,
                    "control_symbols": ["[INST]", "a b"]},
    "unknown characters": {"fallback": False, "user_defined_symbols": FOUND, "vocab_size": 330},
}


def main():
    if not os.path.exists(PROGRAM) or not os.path.exists(TOKENIZE):
        print("skip - tokens of checkpoints with tokenizer.model: the program is not built")
        return 0
    os.chdir(ROOT)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = [text for text in mixed_text.texts(200000, 5) if text]
    texts += [" ".join(FOUND), "".join(FOUND), "x".join(FOUND * 2), "\n".join(FOUND).replace("\u2581", " "), FOUND[0] + "\n"]
    with tempfile.TemporaryDirectory() as folder:
        check = Check(folder, texts)
        for name in "llama", "unknown":
            check.exported(name, os.path.join(HERE, "tokenizers", name + ".model"))
        for name, more in SETTINGS.items():
            path = os.path.join(folder, "tokenizer.model")
            with open(path, "wb") as file:
                file.write(make_tokenizers.train_model(**more))
            check.exported(name, path)
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
