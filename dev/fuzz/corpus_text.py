"""The part of corpus.py about tokenizers of models and HellaSwag."""
import json
import struct

from corpus_files import sections, write

# --- tokenizers of models ------------------------------------------------------------------------------------------

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
WORDS = {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u0120ab": 4, "\u010a": 5, "\u00c3": 6, "\u00a9": 7, "1": 8}
TEXT = "abba ab\n<x> \u00e9 e\u0301 11 <|e|>\x01"


def json_file(tokens=None, merges=("a b", "\u0120 ab"), pre=BYTE_LEVEL, normalizer=None, added=(), post=None, **model):
    return json.dumps({"version": "1.0", "added_tokens": list(added), "normalizer": normalizer, "pre_tokenizer": pre,
                       "post_processor": post,
                       "model": {"type": "BPE", "vocab": tokens or WORDS, "merges": list(merges), **model}})


def tokenizer(name, text, more=TEXT, **files):
    write("tokenizer", name, sections(tokenizer__json=text, **files, text=more))


def added(id, content, **more):
    return {"id": id, "content": content, "special": False, "normalized": False, **more}


SPLIT = {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated"},
                                               {**BYTE_LEVEL, "use_regex": False}]}
MARKED = {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x0A>": 3, "<0xC3>": 4, "<0xA9>": 5, "\u2581": 6, "a": 7, "b": 8, "ab": 9,
          "\u2581ab": 10}
PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {
    "type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
tokenizer("gpt2", json_file())
tokenizer("llama3", json_file(pre=SPLIT, ignore_merges=True, merges=[["a", "b"]],
                              added=[added(20, "<|e|>", special=True)]))
tokenizer("neox", json_file(normalizer={"type": "NFC"}, added=[added(9, "  ", normalized=True), added(10, "<x>")]))
tokenizer("prefix", json_file(pre={**BYTE_LEVEL, "add_prefix_space": True}))
tokenizer("digits", json_file(pre={"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}))
tokenizer("legacy", json_file(MARKED, ["a b", "\u2581 ab"], None, PREPEND, [added(1, "<s>", special=True)], TEMPLATE,
                              byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
tokenizer("metaspace", json_file(MARKED, ["a b"], {"type": "Metaspace", "replacement": "\u2581",
                                                   "prepend_scheme": "first", "split": False}, unk_token="<unk>"))
tokenizer("words", json_file(MARKED, ["a b"], {"type": "Metaspace", "replacement": "\u2581"}))
tokenizer("config", json_file(), tokenizer_config__json='{"add_bos_token": true, "bos_token": "b"}')
tokenizer("config-damaged", json_file(), tokenizer_config__json='{"add_bos_token": true, "bos_token": {"content": 7}}')
tokenizer("unigram", json_file(type="Unigram"))
tokenizer("no-vocab", '{"model": {}}')
tokenizer("id-largest", json_file({"a": 1048575, "b": 0}, []))
tokenizer("id-beyond", json_file({"a": 1048576}, []))
tokenizer("id-twice", json_file({"a": 1, "b": 1}, []))
tokenizer("added-twice", json_file(added=[added(2, "x")]))
tokenizer("added-empty", json_file(added=[added(9, "")]))
tokenizer("merge-of-nothing", json_file(merges=["a ", [7], "ab"]))
tokenizer("other-regex", json_file(pre={"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated"}))
tokenizer("steps", json_file(pre={"type": "Sequence", "pretokenizers": [BYTE_LEVEL] * 20}))
tokenizer("deep", '{"model": {"type": "BPE"}, "post_processor": ' + '{"type": "Sequence", "processors": [' * 500)


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def piece(text, score=0.0, kind=1):
    return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))


def model(pieces, kind=2, normalizer=b"\x20\0", trainer=b"\x98\x02\1"):
    return b"".join(pieces) + field(2, bytes([0x18, kind]) + trainer) + field(3, normalizer)


PIECES = [piece("<unk>", 0, 2), piece("<s>", 0, 3), piece("</s>", 0, 3), piece("<0x0A>", 0, 6), piece("<x>", 0, 4),
          piece("ab", -1), piece("\u2581ab", -2), piece("\u2581", -3), piece("a", -4), piece("b", -5)]
for name, data in {
        "model": model(PIECES), "model-unigram": model(PIECES, 1), "model-cut": model(PIECES)[:40],
        "model-not-finite": model(PIECES + [piece("c", float("nan"))]),
        "model-unused": model(PIECES + [piece("c", 0, 5)]),
        "model-normalizes": model(PIECES, normalizer=b""), "model-byte": model(PIECES + [piece("<0xZZ>", 0, 6)]),
        "model-twice": model(PIECES + PIECES), "model-length-wraps": b"\n" + b"\xff" * 9 + b"\1",
        "model-ids": model(PIECES, trainer=b"\xc0\x02" + b"\xff" * 9 + b"\1\xc8\x02\x7f")}.items():
    write("tokenizer", name, sections(tokenizer__model=data, text=TEXT))
write("tokenizer", "ranks", sections(tokenizer__model="IQ== 0\nIg== 1\n"))

# --- HellaSwag -------------------------------------------------------------------------------------------------------


def hellaswag(version=1, examples=2, token=5, tail=b""):
    width = "H" if version == 1 else "I"
    words = []
    for i in range(examples):
        body = [i, 1, 4, 2, token, 7] + [n for e in range(4) for n in [e + 1] + [9] * (e + 1)]
        words += [65535, (len(body) + 2) * struct.calcsize(width)] + body
    head = struct.pack("<4i", 20240522, version, examples, 64) + bytes(1024 - 16)
    return struct.pack("<2H", 63, 99) + head + struct.pack("<%d%s" % (len(words), width), *words) + tail


write("hellaswag", "narrow", hellaswag())
write("hellaswag", "wide", hellaswag(2))
write("hellaswag", "wide-token-beyond", hellaswag(2, token=0xFFFFFFFF))
write("hellaswag", "cut", hellaswag()[:-3])
write("hellaswag", "longer", hellaswag(2, tail=bytes(4)))
write("hellaswag", "version", hellaswag(3))
