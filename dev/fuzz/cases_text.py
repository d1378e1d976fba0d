"""The part of CASES about text: vocabularies, tokenizers of models and HellaSwag."""
import json
import struct


def sections(**files):
    """Joins the files of one input as fuzz_section() in fuzz.h splits them; __ in a name stands for a dot."""
    return b"\n".join(b"=== %s\n" % name.replace("__", ".").encode() +
                      (data if isinstance(data, bytes) else data.encode()) for name, data in files.items())


# --- vocabularies --------------------------------------------------------------------------------------------------

JSON = '{"a": 0, "b": 1, "ab": 2, "\\u0120": 3, "c": 4, "<|endoftext|>": 9}'


def merges(merges, **more):
    return sections(encoder__json=JSON, vocab__bpe=merges, **more)


def binary(tokens, version=2, count=None, end=0, last=b"", **more):
    head = struct.pack("<4i", 20240328, version, len(tokens) if count is None else count, end).ljust(1024, b"\0")
    return sections(gpt2_tokenizer__bin=head + b"".join(bytes([len(t)]) + t for t in tokens) + last, **more)


VOCABULARY = {
    "json": merges("#version: 0.2\na b\n", text="abba ab"),
    "json-without-merges": sections(encoder__json=JSON, text="ab"),
    "merge-without-token": merges("#version: 0.2\nb a\n"), "merge-without-space": merges("ab\n"),
    "merge-not-utf-8": merges(b"\xff \xc4\n"), "merges-with-returns": merges("\r\n#version\r\na b\r\n"),
    "id-largest": sections(encoder__json='{"a": 1048575, "b": 0}', vocab__bpe="a b"),
    "id-too-large": sections(encoder__json='{"a": 1048576}'), "id-negative": sections(encoder__json='{"a": -1}'),
    "id-twice": sections(encoder__json='{"a": 1, "b": 1}'),
    "token-empty": sections(encoder__json='{"": 0, "a": 1}', vocab__bpe=" a\n", text="a"),
    "token-nul": sections(encoder__json='{"\\u0000": 0}'),
    "token-lines": sections(encoder__json='{"a\\n\\u001b[31m": "x"}'),
    "deep": sections(encoder__json="[" * 3000),
    "binary": binary([bytes([i]) for i in range(256)] + [b"ab", b"abc"], text=b"abcab\xff \xe2\x82"),
    "binary-version-1": binary([b"a", b"", b"b"], 1), "binary-count-huge": binary([b"a"], count=1 << 20),
    "binary-count-largest": binary([b"a"], count=2**31 - 1), "binary-count-negative": binary([b"a"], count=-1),
    "binary-end-outside": binary([b"a"], end=9),
    "binary-token-cut": binary([b"a"], count=2, last=b"\xffabc")}

# --- tokenizer.json ------------------------------------------------------------------------------------------------

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
SPLIT = {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated"},
                                               {**BYTE_LEVEL, "use_regex": False}]}
DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]}
METASPACE = {"type": "Metaspace", "replacement": "\u2581"}
PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {
    "type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
WORDS = {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u0120ab": 4, "\u010a": 5, "\u00c3": 6, "\u00a9": 7, "1": 8}
MARKED = {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x0A>": 3, "<0xC3>": 4, "<0xA9>": 5, "\u2581": 6, "a": 7, "b": 8, "ab": 9,
          "\u2581ab": 10}
TEXT = "abba ab\n<x> \u00e9 e\u0301 11 <|e|>\x01"


def tokenizer(vocab=WORDS, merges=("a b", "\u0120 ab"), pre=BYTE_LEVEL, normalizer=None, added=(), post=None, **model):
    return json.dumps({"version": "1.0", "added_tokens": list(added), "normalizer": normalizer, "pre_tokenizer": pre,
                       "post_processor": post,
                       "model": {"type": "BPE", "vocab": vocab, "merges": list(merges), **model}})


def added(id, content, **more):
    return {"id": id, "content": content, "special": False, "normalized": False, **more}


TOKENIZER = {name: sections(tokenizer__json=text, text=TEXT) for name, text in {
    "gpt2": tokenizer(),
    "llama3": tokenizer(pre=SPLIT, ignore_merges=True, merges=[["a", "b"]], added=[added(20, "<|e|>", special=True)]),
    "neox": tokenizer(normalizer={"type": "NFC"}, added=[added(9, "  ", normalized=True), added(10, "<x>")]),
    "prefix": tokenizer(pre={**BYTE_LEVEL, "add_prefix_space": True}),
    "digits": tokenizer(pre=DIGITS),
    "legacy": tokenizer(MARKED, ["a b", "\u2581 ab"], None, PREPEND, [added(1, "<s>", special=True)], TEMPLATE,
                        byte_fallback=True, fuse_unk=True, unk_token="<unk>"),
    "metaspace": tokenizer(MARKED, ["a b"], {**METASPACE, "prepend_scheme": "first", "split": False},
                           unk_token="<unk>"),
    "metaspace-defaults": tokenizer(MARKED, ["a b"], METASPACE),
    "unigram": tokenizer(type="Unigram"), "no-vocab": '{"model": {}}',
    "id-largest": tokenizer({"a": 1048575, "b": 0}, []), "id-too-large": tokenizer({"a": 1048576}, []),
    "id-twice": tokenizer({"a": 1, "b": 1}, []), "added-twice": tokenizer(added=[added(2, "x")]),
    "added-empty": tokenizer(added=[added(9, "")]), "merge-incomplete": tokenizer(merges=["a ", [7], "ab"]),
    "other-regex": tokenizer(pre={"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated"}),
    "steps": tokenizer(pre={"type": "Sequence", "pretokenizers": [BYTE_LEVEL] * 20}),
    "deep": '{"model": {"type": "BPE"}, "post_processor": ' + '{"type": "Sequence", "processors": [' * 500}.items()}
for name, bos in {"config": '"b"', "config-damaged": '{"content": 7}'}.items():
    text = '{"add_bos_token": true, "bos_token": %s}' % bos
    TOKENIZER[name] = sections(tokenizer__json=tokenizer(), tokenizer_config__json=text, text=TEXT)

# --- tokenizer.model of SentencePiece ------------------------------------------------------------------------------


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def piece(text, score=0.0, kind=1):
    return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))


def model(pieces, kind=2, normalizer=b"\x20\0", trainer=b"\x98\x02\1"):
    return b"".join(pieces) + field(2, bytes([0x18, kind]) + trainer) + field(3, normalizer)


PIECES = [piece("<unk>", 0, 2), piece("<s>", 0, 3), piece("</s>", 0, 3), piece("<0x0A>", 0, 6), piece("<x>", 0, 4),
          piece("ab", -1), piece("\u2581ab", -2), piece("\u2581", -3), piece("a", -4), piece("b", -5)]
TOKENIZER.update({name: sections(tokenizer__model=data, text=TEXT) for name, data in {
    "model": model(PIECES), "model-unigram": model(PIECES, 1),
    "model-cut": model(PIECES)[:40],
    "model-not-finite": model(PIECES + [piece("c", float("nan"))]),
    "model-unused": model(PIECES + [piece("c", 0, 5)]), "model-normalizes": model(PIECES, normalizer=b""),
    "model-byte": model(PIECES + [piece("<0xZZ>", 0, 6)]), "model-twice": model(PIECES + PIECES),
    "model-length-wraps": b"\n" + b"\xff" * 9 + b"\1",
    "model-ids": model(PIECES, trainer=b"\xc0\x02" + b"\xff" * 9 + b"\1\xc8\x02\x7f")}.items()})
TOKENIZER["ranks"] = sections(tokenizer__model="IQ== 0\nIg== 1\n")

# --- HellaSwag -----------------------------------------------------------------------------------------------------


def hellaswag(version=1, token=5, tail=b""):
    width = "H" if version == 1 else "I"
    words = []
    for i in range(2):
        body = [i, 1, 4, 2, token, 7] + [n for e in range(4) for n in [e + 1] + [9] * (e + 1)]
        words += [65535, (len(body) + 2) * struct.calcsize(width)] + body
    head = struct.pack("<4i", 20240522, version, 2, 64).ljust(1024, b"\0")
    return struct.pack("<2H", 63, 99) + head + struct.pack("<%d%s" % (len(words), width), *words) + tail


HELLASWAG = {
    "narrow": hellaswag(), "wide": hellaswag(2),
    "wide-token-too-large": hellaswag(2, token=0xFFFFFFFF), "cut": hellaswag()[:-3],
    "longer": hellaswag(2, tail=bytes(4)),
    "version": hellaswag(3)}

CASES_TEXT = {"vocabulary": VOCABULARY, "tokenizer": TOKENIZER, "hellaswag": HELLASWAG}
