#!/usr/bin/env python3
"""Writes dev/test/tokenizers/ for test_tokenizer_kinds.c: a small vocabulary of every kind that the trainer reads, and the
ids that Python libraries give the texts in texts.bin.

    scripts/setup.sh --python && python3 dev/test/make_tokenizers.py

The vocabularies are trained on files of this repository (TRAINING), so they change if these files change. NAME.json or
NAME.model is a vocabulary. NAME.ids has a line of ids for each text of texts.bin, in which zero bytes separate the texts.
"""
import io
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path[:0] = [HERE, os.path.join(ROOT, "third_party", "python")]

import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

import mixed_text  # noqa: E402
import spm_json  # noqa: E402
import tiktoken_json  # noqa: E402

OUT = os.path.join(HERE, "tokenizers")
TRAINING = ["README.md", "docs/train.md", "docs/hacking.md", "coat/base/error.h"]
TEXTS = [
    "", " ", "\n", "a", " a", "  the  model ", "the model", "\u2581 the\u2581model", "don't I'LL we'Ve 'S ''s 'x",
    "'\u017f a'\u017fb", "2024 12345678 3.14159 x\u00b2 \u0663\u0664\u0665\u0666",
    "e\u0301 \u00e9 \u212b \u0344 a\u0315\u0300\u05ae\u0300b \u1112\u1161\u11ab \ud55c",
    "if (x == 0) {\n    return;\n}\n\n", "a \n b\r\n\r\nc \t\n  d", "   \n   \n", "...\n\n!!\r\nx",
    "the<|endoftext|>model <|extra|>  <|extra|>x", "<s>the</s> <unk>", "<0x0A> the",
    "\u4f60\u597d\uff0c\u4e16\u754c na\u00efve", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f642",
    "a\u00a0\u3000b\u2003 c\u200bd\u0085e\u2028f", "\x01\x02\x1c\x1f the\x7f", "x" * 70, " " * 30+"the"+" " * 9,
    "the training step of a token token token",
]


def lines():
    for path in TRAINING:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            yield from file


def train_bytes(rule, normalizer=None, special=("<|endoftext|>",), template=None, size=384):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = rule
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=sorted(tiktoken_json.characters().values()),
        show_progress=False))
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template + " $A", special_tokens=[(template, tokenizer.token_to_id(template))])
    return tokenizer


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_kinds():
    neox = train_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC())
    neox.add_tokens([tokenizers.AddedToken(" " * n, normalized=True) for n in (8, 4, 2)])
    neox.add_tokens([tokenizers.AddedToken("<|extra|>", normalized=True)])
    yield "neox", json.loads(neox.to_str())
    llama3 = json.loads(train_bytes(split(tiktoken_json.LLAMA3), special=("<|begin_of_text|>", "<|end_of_text|>"),
                                    template="<|begin_of_text|>").to_str())
    llama3["model"]["ignore_merges"] = True
    llama3["model"]["merges"] = llama3["model"]["merges"][:-40]  # makes some tokens match whole pretokens only
    yield "llama3", llama3
    qwen = train_bytes(split(tiktoken_json.QWEN), normalizers.NFC())
    qwen.add_tokens([tokenizers.AddedToken("<|extra|>", normalized=False)])
    qwen = json.loads(qwen.to_str())
    qwen["model"]["merges"] = [" ".join(pair) for pair in qwen["model"]["merges"]]  # the form of older files
    yield "qwen", qwen
    digits = train_bytes(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                  pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    yield "digits", json.loads(digits.to_str())
    yield "prefix", json.loads(train_bytes(pre_tokenizers.ByteLevel(add_prefix_space=True)).to_str())


def train_model(fallback=True, **more):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(**{
        "sentence_iterator": lines(), "model_writer": model, "model_type": "bpe", "vocab_size": 560 if fallback else 300,
        "byte_fallback": fallback, "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
        "character_coverage": 0.99, "user_defined_symbols": ["<|extra|>"], "minloglevel": 2, "split_digits": True, **more})
    return model.getvalue()


def write(name, data):
    with open(os.path.join(OUT, name), "wb") as file:
        if not isinstance(data, bytes):
            data = (json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n").encode()
        file.write(data)


def write_ids(name, rows):
    write(name + ".ids", "".join(" ".join(map(str, row)) + "\n" for row in rows).encode())


def write_json(name, parsed):
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(parsed))
    tokenizer.encode_special_tokens = True
    write(name + ".json", parsed)
    write_ids(name, [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS])


def main():
    os.makedirs(OUT, exist_ok=True)
    write("texts.bin", "\0".join(TEXTS).encode())
    for name, parsed in byte_kinds():
        write_json(name, parsed)
    for name, fallback in ("llama", True), ("unknown", False):
        model = train_model(fallback)
        pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        write(name + ".model", model)
        write_ids(name, pieces.encode(TEXTS))
    for name, scheme in ("legacy", None), ("first", "first"), ("words", "always"):
        model = sentencepiece.SentencePieceProcessor(model_proto=train_model(scheme != "words"))
        write_json(name, spm_json.convert(model, scheme, split=scheme == "words"))


if __name__ == "__main__":
    main()
