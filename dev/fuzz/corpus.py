#!/usr/bin/env python3
"""Writes the hand-made part of the fuzz targets' corpus: dev/fuzz/corpus/TARGET/NAME, the same bytes every time.

Files whose names begin with "found-" were found by fuzzing and are not this script's.
"""
import json
import struct
import zlib
import sys

sys.dont_write_bytecode = True
import corpus_text  # noqa: E402, F401  writes its part
from corpus_files import sections, write  # noqa: E402

# --- token shards --------------------------------------------------------------------------------------------------

def shard(magic, version, said, tokens, width="H"):
    head = struct.pack("<3i", magic, version, said) + bytes(1024 - 12)
    return head + struct.pack("<%d%s" % (len(tokens), width), *tokens)


def control(batch=2, length=4, ranks=1, shuffle=1, vocab=300, cut=65535):
    return struct.pack("<4B2H", batch - 1, length - 1, ranks - 1, shuffle, vocab - 1, cut)


def masked(words, tokens, starts, mask, width="H"):  # signed by the target where bit 3 of shuffle is set
    form = "<6i1000x%d%s%dI" % (len(tokens), width, len(starts))
    return struct.pack(form, 20261124, *words, *tokens, *starts) + bytes(mask)


narrow = shard(20240520, 1, 40, range(40))
wide = shard(20240801, 7, 40, range(40), "I")
write("tokens", "uint16", control() + narrow)
write("tokens", "uint32", control() + wide)
write("tokens", "two-shards", control(ranks=2) + narrow + b"=== 2\n" + wide)
write("tokens", "cut-while-open", control(cut=1050) + narrow)
write("tokens", "cut-in-the-header", control(cut=3) + narrow)
write("tokens", "token-outside-vocabulary", control(vocab=20) + narrow)
write("tokens", "wide-token-as-negative", control() + shard(20240801, 7, 20, [0xFFFFFFFF] * 20, "I"))
write("tokens", "said-too-many", control() + shard(20240520, 1, 2147483647, range(40)))
write("tokens", "said-negative", control() + shard(20240520, 1, -40, range(40)))
write("tokens", "said-none", control() + shard(20240520, 1, 0, []))
write("tokens", "odd-length", control() + narrow + b"x")
write("tokens", "one-token", control(batch=1, length=1) + shard(20240520, 1, 1, [5]))
write("tokens", "second-damaged", control() + narrow + b"=== 2\n" + wide[:1100])
write("tokens", "other-version", control() + shard(20240520, 7, 40, range(40)))
write("tokens", "big-endian", control() + shard(0x18D83401, 0x01000000, 40, range(40)))
write("tokens", "empty", control())
write("tokens", "bare", control(shuffle=4) + struct.pack("<60H", *range(60)))
write("tokens", "bare-wide-tokens", control(shuffle=5) + struct.pack("<60I", *range(60)))
write("tokens", "bare-odd", control(shuffle=4) + bytes(61))
write("tokens", "bare-numpy", control(shuffle=4) + b"\x93NUMPY\x01\0" + bytes(120))
write("tokens", "npy-with-a-header", control(shuffle=4) + wide)
signed = narrow[:32] + struct.pack("<2I", zlib.crc32(narrow[1024:]), 1) + narrow[40:]
write("tokens", "checksum", control() + signed)
write("tokens", "checksum-of-others", control() + signed[:-1] + b"\1")
write("tokens", "lfs-pointer", control(shuffle=4) + b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n")
write("tokens", "masked", control(shuffle=9) + masked((1, 40, 2, 4, 20), range(40), [0, 9, 20, 39], [0x55] * 5))
write("tokens", "masked-wide", control(shuffle=8) + masked((1, 40, 4, 1, 8), range(40), [0], [0xFF, 0, 0, 0, 0], "I"))
write("tokens", "masked-with-plain", control(shuffle=11) + masked((1, 8, 2, 1, 2), range(8), [0], [9]) + b"=== 2\n" + narrow)
write("tokens", "masked-unsigned", control() + masked((1, 40, 2, 1, 1), range(40), [0], [2, 0, 0, 0, 0]))
write("tokens", "masked-out-of-order", control(shuffle=9) + masked((1, 40, 2, 2, 1), range(40), [0, 40], [2, 0, 0, 0, 0]))
write("tokens", "masked-behind", control(shuffle=9) + masked((1, 39, 2, 1, 1), range(39), [0], [0, 0, 0, 0, 0x80]))
write("tokens", "masked-said-most", control(shuffle=9) + masked((1, 2**31 - 1, 4, 2**31 - 1, 1), range(40), [0], [1] * 5))
write("tokens", "text", control() + b"To be, or not to be\n")

# --- safetensors -------------------------------------------------------------------------------------------------


def safetensors(header, data=b"", length=None):
    if not isinstance(header, (str, bytes)):
        header = json.dumps(header)
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


write("safetensors", "two", safetensors(
    {"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 2], 0, 16), "b": entry("BF16", [3], 16, 22)}, bytes(22)))
write("safetensors", "scalar-and-empty", safetensors(
    {"s": entry("F64", [], 0, 8), "e": entry("U8", [0, 7], 8, 8)}, bytes(8)))
write("safetensors", "no-tensors", safetensors({}))
write("safetensors", "overlap", safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6)))
write("safetensors", "hole", safetensors({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 4, 6)}, bytes(6)))
write("safetensors", "rest", safetensors({"a": entry("U8", [2], 0, 2)}, bytes(9)))
write("safetensors", "shape-overflows", safetensors({"a": entry("F32", [1 << 62, 1 << 3], 0, 0)}))
write("safetensors", "shape-overflows-to-zero", safetensors({"a": entry("U8", [1 << 32, 1 << 32], 0, 0)}))
write("safetensors", "range-backwards", safetensors({"a": entry("U8", [4], 4, 0)}, bytes(4)))
write("safetensors", "range-negative", safetensors({"a": entry("U8", [4], -4, 0)}, bytes(4)))
write("safetensors", "range-largest", safetensors({"a": entry("U8", [2**63 - 1], 0, 2**63 - 1)}))
write("safetensors", "header-longer-than-file", safetensors("{}", length=1 << 20))
write("safetensors", "header-largest", safetensors("{}", length=2**64 - 1))
write("safetensors", "header-wraps", safetensors("{}", length=2**64 - 8))
write("safetensors", "header-empty", safetensors(""))
write("safetensors", "deep", safetensors("[" * 3000))
write("safetensors", "deep-inside", safetensors('{"a":' + '{"a":' * 2100 + "1" + "}" * 2101))
write("safetensors", "duplicate", safetensors('{"a":%s,"a":%s}' % ((json.dumps(entry("U8", [1], 0, 1)),) * 2), b"x"))
write("safetensors", "nul-in-name", safetensors('{"a\\u0000b":%s}' % json.dumps(entry("U8", [1], 0, 1)), b"x"))
write("safetensors", "lines-in-name", safetensors({"a\n\x1b[31mb": entry("U9", [1], 0, 1)}, b"x"))
write("safetensors", "not-utf-8", safetensors(b'{"\xff\xc0":{}}'))
write("safetensors", "huge-number", safetensors('{"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,1]}}', b"x"))
write("safetensors", "real-number", safetensors('{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}', b"x"))

# --- config.json -------------------------------------------------------------------------------------------------

GPT2 = {"model_type": "gpt2", "activation_function": "gelu_new", "n_layer": 1, "n_head": 1, "n_embd": 2, "n_inner": 3,
        "n_positions": 2, "vocab_size": 3, "layer_norm_epsilon": 1e-5}


def config(**changes):
    return json.dumps({**GPT2, **changes})


write("config", "gpt2", config(n_embd=768, n_head=12, n_layer=12, vocab_size=50257, n_positions=1024, n_inner=None))
write("config", "largest", config(n_embd=65536, n_head=1024, n_layer=1024, vocab_size=1 << 24, n_positions=1 << 24,
                                  n_inner=1 << 20))
write("config", "epsilon-too-small-for-a-float", config(layer_norm_epsilon=1e-60))
write("config", "epsilon-rounds-to-one", config(layer_norm_epsilon=0.99999999999))
write("config", "epsilon-nan", config(layer_norm_epsilon="nan"))
write("config", "epsilon-overflows", config(layer_norm_epsilon=1).replace("1}", "1e999}"))
write("config", "layers-overflow", config(n_layer=2**63))
write("config", "layers-lowest", config(n_layer=-2**63))
write("config", "not-divisible", config(n_head=3))
write("config", "lines-in-kind", config(model_type="gpt2\n\x1b]0;x\x07"))
write("config", "duplicate", '{"n_layer":1,"n_layer":1}')
write("config", "list", "[]")
write("config", "deep", '{"a":' * 2500)
write("config", "nul", '{"model_type":"gpt2\\u0000"}')
write("config", "half-surrogate", '{"model_type":"\\ud800"}')

OTHER = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 3,
         "max_position_embeddings": 8, "hidden_act": "silu"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 4}


def other(kind, **changes):
    return json.dumps({"model_type": kind, **OTHER, **changes})


for kind in "llama", "mistral", "olmo", "qwen2", "qwen3":
    write("config", kind, other(kind, num_key_value_heads=None))
write("config", "absent", other("mistral", num_attention_heads=8))
write("config", "grouped", other("llama", num_key_value_heads=1, head_dim=24, rms_norm_eps=1e-5, rope_theta=5e5))
write("config", "scaled", other("llama", rope_scaling=LLAMA3, tie_word_embeddings=True))
write("config", "scaled-not", other("llama", rope_scaling={**LLAMA3, "factor": 1}))
write("config", "scaled-version-5", other("llama", rope_parameters={**LLAMA3, "rope_theta": 1e4}))
write("config", "scaled-otherwise", other("qwen2", rope_scaling={"type": "yarn", "factor": 4}))
write("config", "window", other("mistral", sliding_window=4, num_key_value_heads=2))
write("config", "clip", other("olmo", clip_qkv=8))
write("config", "clip-to-nothing", other("olmo", clip_qkv=0))
write("config", "ends", other("llama", bos_token_id=0, eos_token_id=[1, 2, 3, -1, 2**63 - 1, "x"]))
write("config", "wide-head", other("qwen3", hidden_size=65536, num_attention_heads=1, num_key_value_heads=1, head_dim=4097))

# --- a folder of a model -------------------------------------------------------------------------------------------

SHAPES = {"wte.weight": [3, 2], "wpe.weight": [2, 2], "ln_f.weight": [2], "ln_f.bias": [2],
          "h.0.ln_1.weight": [2], "h.0.ln_1.bias": [2], "h.0.attn.c_attn.weight": [2, 6], "h.0.attn.c_attn.bias": [6],
          "h.0.attn.c_proj.weight": [2, 2], "h.0.attn.c_proj.bias": [2], "h.0.ln_2.weight": [2], "h.0.ln_2.bias": [2],
          "h.0.mlp.c_fc.weight": [2, 3], "h.0.mlp.c_fc.bias": [3], "h.0.mlp.c_proj.weight": [3, 2],
          "h.0.mlp.c_proj.bias": [2]}
WIDTHS = {"F32": "f", "F16": "e", "BF16": "h", "F64": "d", "I32": "i"}


def weights(names, dtype="F32", value=0.5):
    header, data = {}, b""
    for name in names:
        count = 1
        for dim in SHAPES[name]:
            count *= dim
        raw = struct.pack("<%d%s" % (count, WIDTHS[dtype]), *([0x3F00 if dtype == "BF16" else value] * count))
        header["transformer." + name] = entry(dtype, SHAPES[name], len(data), len(data) + len(raw))
        data += raw
    return safetensors(header, data)


def index(*names):
    return json.dumps({"weight_map": {str(i): name for i, name in enumerate(names)}})


def llama_weights(**extra):
    shapes = {"model.embed_tokens.weight": [3, 4], "model.norm.weight": [4]}
    for name, shape in {"input_layernorm": [4], "post_attention_layernorm": [4], "self_attn.q_proj": [4, 4],
                        "self_attn.k_proj": [2, 4], "self_attn.v_proj": [2, 4], "self_attn.o_proj": [4, 4],
                        "mlp.gate_proj": [3, 4], "mlp.up_proj": [3, 4], "mlp.down_proj": [4, 3]}.items():
        shapes["model.layers.0.%s.weight" % name] = shape
    shapes.update({name.replace("__", "."): shape for name, shape in extra.items()})
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        raw = struct.pack("<%df" % count, *[0.5] * count)
        header[name] = entry("F32", shape, len(data), len(data) + len(raw))
        data += raw
    return safetensors(header, data)


LLAMA = other("llama", hidden_size=4, intermediate_size=3, num_key_value_heads=1, tie_word_embeddings=True)
write("model", "llama", sections(config__json=LLAMA, model__safetensors=llama_weights()))
write("model", "llama-head-too", sections(config__json=LLAMA, model__safetensors=llama_weights(
    **{"lm_head__weight": [3, 4], "model__layers__0__self_attn__rotary_emb__inv_freq": [1]})))
write("model", "llama-bias-left", sections(config__json=LLAMA, model__safetensors=llama_weights(
    **{"model__layers__0__self_attn__q_proj__bias": [4]})))
every = list(SHAPES)
for dtype in ("F32", "F16", "BF16", "F64"):
    write("model", "whole-" + dtype.lower(), sections(config__json=config(), model__safetensors=weights(every, dtype)))
write("model", "integers", sections(config__json=config(), model__safetensors=weights(every, "I32", 1)))
write("model", "infinite", sections(config__json=config(), model__safetensors=weights(every, "F32", float("inf"))))
write("model", "generation", sections(config__json=LLAMA, model__safetensors=llama_weights(),
                                      generation_config__json='{"bos_token_id": 1, "eos_token_id": [2, 0]}'))
write("model", "generation-too-large", sections(config__json=LLAMA, model__safetensors=llama_weights(),
                                                generation_config__json='{"eos_token_id": [99999999999]}'))
write("model", "one-missing", sections(config__json=config(), model__safetensors=weights(every[:-1])))
write("model", "sharded", sections(
    config__json=config(), model__safetensors__index__json=index("a.safetensors", "b.safetensors", "a.safetensors"),
    a__safetensors=weights(every[:8]), b__safetensors=weights(every[8:], "BF16")))
for name, shards in {"parent": "../x", "absolute": "/etc/passwd", "folder": "..", "itself": ".", "nothing": "",
                     "line": "a\nb", "missing": "c.safetensors", "config": "config.json"}.items():
    write("model", "index-names-" + name, sections(config__json=config(), model__safetensors__index__json=index(shards),
                                                   a__safetensors=weights(every)))
write("model", "other-shape", sections(config__json=config(n_embd=4), model__safetensors=weights(every)))
write("model", "huge-shape", sections(config__json=config(n_layer=1024, n_embd=65536, vocab_size=1 << 24),
                                      model__safetensors=weights(every)))
write("model", "bad-manifest", sections(config__json=config(), model__safetensors=weights(every), manifest__json="{}"))

# --- llm.c's weights -----------------------------------------------------------------------------------------------


def llmc(version=3, positions=2, vocab=3, layers=1, heads=1, channels=2, padded=4, count=None):
    head = struct.pack("<8i", 20240326, version, positions, vocab, layers, heads, channels, padded)
    c = channels
    values = padded * c + positions * c + layers * (12 * c * c + 13 * c) + 2 * c if count is None else count
    return head + bytes(1024 - len(head)) + bytes(values * (4 if version == 3 else 2))


write("llmc", "fp32", llmc())
write("llmc", "bf16", llmc(version=5))
write("llmc", "two-layers", llmc(layers=2, heads=2, padded=3))
write("llmc", "short", llmc()[:-1])
write("llmc", "long", llmc() + b"x")
write("llmc", "header-only", llmc()[:1024])
write("llmc", "header-cut", llmc()[:700])
write("llmc", "largest", llmc(positions=1 << 24, vocab=1 << 24, layers=1024, heads=1024, channels=65536,
                              padded=1 << 25, count=8))
write("llmc", "padding-overflows", llmc(vocab=1, padded=2**31 - 1, count=8))
write("llmc", "padding-negative", llmc(padded=-2**31, count=8))
write("llmc", "heads-zero", llmc(heads=0, count=8))
write("llmc", "channels-lowest", llmc(channels=-2**31, count=8))
write("llmc", "version-4", llmc(version=4))

# --- vocabularies ------------------------------------------------------------------------------------------------

JSON = '{"a": 0, "b": 1, "ab": 2, "\\u0120": 3, "c": 4, "<|endoftext|>": 9}'


def vocabulary(tokens, version=2, count=None, end=0, last=b""):
    head = struct.pack("<4i", 20240328, version, len(tokens) if count is None else count, end)
    body = b"".join(bytes([len(t)]) + t for t in tokens)
    return head + bytes(1024 - 16) + body + last


single = [bytes([i]) for i in range(256)]
write("vocabulary", "json", sections(encoder__json=JSON, vocab__bpe="#version: 0.2\na b\n", text="abba ab"))
write("vocabulary", "json-without-merges", sections(encoder__json=JSON, text="ab"))
write("vocabulary", "merge-without-token", sections(encoder__json=JSON, vocab__bpe="#version: 0.2\nb a\n"))
write("vocabulary", "merge-without-space", sections(encoder__json=JSON, vocab__bpe="ab\n"))
write("vocabulary", "merge-not-utf-8", sections(encoder__json=JSON, vocab__bpe=b"\xff \xc4\n"))
write("vocabulary", "merges-with-returns", sections(encoder__json=JSON, vocab__bpe="\r\n#version\r\na b\r\n"))
write("vocabulary", "id-largest", sections(encoder__json='{"a": 1048575, "b": 0}', vocab__bpe="a b"))
write("vocabulary", "id-beyond", sections(encoder__json='{"a": 1048576}'))
write("vocabulary", "id-negative", sections(encoder__json='{"a": -1}'))
write("vocabulary", "id-twice", sections(encoder__json='{"a": 1, "b": 1}'))
write("vocabulary", "token-empty", sections(encoder__json='{"": 0, "a": 1}', vocab__bpe=" a\n", text="a"))
write("vocabulary", "token-nul", sections(encoder__json='{"\\u0000": 0}'))
write("vocabulary", "token-lines", sections(encoder__json='{"a\\n\\u001b[31m": "x"}'))
write("vocabulary", "deep", sections(encoder__json="[" * 3000))
write("vocabulary", "binary", sections(gpt2_tokenizer__bin=vocabulary(single + [b"ab", b"abc"], last=b""),
                                       text=b"abcab\xff \xe2\x82"))
write("vocabulary", "binary-version-1", sections(gpt2_tokenizer__bin=vocabulary([b"a", b"", b"b"], 1)))
write("vocabulary", "binary-count-huge", sections(gpt2_tokenizer__bin=vocabulary([b"a"], count=1 << 20)))
write("vocabulary", "binary-count-largest", sections(gpt2_tokenizer__bin=vocabulary([b"a"], count=2**31 - 1)))
write("vocabulary", "binary-count-negative", sections(gpt2_tokenizer__bin=vocabulary([b"a"], count=-1)))
write("vocabulary", "binary-end-outside", sections(gpt2_tokenizer__bin=vocabulary([b"a"], end=9)))
write("vocabulary", "binary-token-cut", sections(gpt2_tokenizer__bin=vocabulary([b"a"], count=2, last=b"\xffabc")))

# --- manifest and state of a checkpoint ------------------------------------------------------------------------------

HASH_OF_BRACES = "1349cde127705c16"  # XXH3 of "{}", what the link in the folder leads to
HASH_OF_LINE = "daa13e4f205dc5ba"  # of "{}" and the end of a line


def manifest(files):
    """Without its last line, which the target adds."""
    return json.dumps({"format": 1, "files": files}, indent=2)[:-2]


STATE = {"format": 1, "step": 20, "sequences": 640, "tokens": 655360, "data_fingerprint": "0123456789abcdef",
         "step_state": {"lr": 0.001, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0,
                        "seed": "000000000000002a", "t": 20, "skipped": 0, "skipped_run": 0, "loss_sum": 3.5,
                        "grad_sq": "nan", "grad_norm": "-inf", "nonfinite": 0},
         "settings": {"precision": "recipe", "moments": "coat", "lr": 0.1, "steps": 5}}


def state(**changes):
    return json.dumps({**STATE, **changes})


def inner(**changes):
    return state(step_state={**STATE["step_state"], **changes})


GOOD = {"bytes": 3, "xxh3": HASH_OF_LINE, "tensors": {"x": HASH_OF_LINE}}
write("checkpoint", "good", sections(manifest__json=manifest({"config.json": GOOD}), config__json="{}\n",
                                     state__json=state()))
write("checkpoint", "good-with-state-listed", sections(
    manifest__json=manifest({"config.json": GOOD, "state.json": {"bytes": 1, "xxh3": HASH_OF_LINE}}),
    config__json="{}\n", state__json=state()))
for name, listed in {"parent": "../config.json", "absolute": "/etc/passwd", "below": "x/config.json", "folder": ".",
                     "nothing": "", "lines": "a\nb\u001b[31m", "missing": "missing.json"}.items():
    write("checkpoint", "names-" + name, sections(manifest__json=manifest({listed: GOOD}), config__json="{}\n"))
write("checkpoint", "names-a-link-out", sections(
    manifest__json=manifest({"link.json": {"bytes": 2, "xxh3": HASH_OF_BRACES}})))
write("checkpoint", "size-differs", sections(
    manifest__json=manifest({"config.json": {"bytes": 2**63 - 1, "xxh3": HASH_OF_LINE}}), config__json="{}\n"))
write("checkpoint", "size-negative", sections(
    manifest__json=manifest({"config.json": {"bytes": -1, "xxh3": HASH_OF_LINE}}), config__json="{}\n"))
write("checkpoint", "hash-differs", sections(
    manifest__json=manifest({"config.json": {"bytes": 3, "xxh3": HASH_OF_BRACES}}), config__json="{}\n"))
write("checkpoint", "hash-too-long", sections(
    manifest__json=manifest({"config.json": {"bytes": 3, "xxh3": HASH_OF_LINE + "0"}}), config__json="{}\n"))
write("checkpoint", "files-no-object", sections(manifest__json='{"format": 1, "files": [1]'))
write("checkpoint", "entry-no-object", sections(manifest__json=manifest({"config.json": 3}), config__json="{}\n"))
write("checkpoint", "other-format", sections(manifest__json='{"format": 2, "files": {}'))
write("checkpoint", "unsigned", sections(unsigned__json='{"format": 1, "files": {}}'))
write("checkpoint", "unsigned-short", sections(unsigned__json="}"))
write("checkpoint", "state-largest", sections(state__json=state(step=2**63 - 1, tokens=2**63 - 1,
                                                                sequences=2**63 - 1)))
write("checkpoint", "state-overflows", sections(state__json=state(step=2**63)))
write("checkpoint", "state-negative", sections(state__json=state(step=-1)))
write("checkpoint", "state-t-largest", sections(state__json=inner(t=2**63 - 1)))
write("checkpoint", "state-lr-beyond-floats", sections(state__json=inner(lr=1e300)))
write("checkpoint", "state-lr-overflows", sections(state__json=inner().replace("0.001", "1e999")))
write("checkpoint", "state-seed-no-hex", sections(state__json=inner(seed="0x")))
write("checkpoint", "state-nonfinite-wide", sections(state__json=inner(nonfinite=2**31)))
write("checkpoint", "state-settings-lines", sections(
    state__json=state(settings={"moments": "fp8\n\u001b[31mred", "lr": [[[["\n"]]]]})))
write("checkpoint", "state-settings-deep", sections(state__json='{"settings":' + "[" * 2500))
write("checkpoint", "state-duplicate", sections(state__json='{"format": 1, "format": 1}'))

# --- edits of a whole checkpoint -----------------------------------------------------------------------------------


def edits(*which):
    return b"".join(struct.pack("<BBHB", file, kind, place, value) for file, kind, place, value in which)


write("resume", "untouched", b"")
write("resume", "config-flip", edits((0, 0, 90, 7)))
write("resume", "state-digits", edits((1, 4, 30, 9), (1, 4, 60, 9)))
write("resume", "model-header-length", edits((2, 0, 0, 255)))
write("resume", "model-flip", edits((2, 0, 4000, 64)))
write("resume", "model-cut", edits((2, 3, 3000, 0)))
write("resume", "optimizer-digits", edits((3, 4, 200, 1), (3, 4, 230, 3)))
write("resume", "optimizer-hole", edits((3, 2, 5000, 16)))
write("resume", "optimizer-longer", edits((3, 1, 9000, 1)))
write("resume", "optimizer-other-type", edits((3, 0, 4317, 1), (3, 0, 4319, 1)))  # F8_E5M2
write("resume", "optimizer-other-name", edits((3, 0, 5789, 1)))
write("resume", "optimizer-other-rank", edits((3, 1, 101, ord("1")), (3, 1, 102, ord(",")), (3, 0, 0, 2)))
write("resume", "optimizer-empty", edits((3, 3, 0, 0)))

# --- log.jsonl ---------------------------------------------------------------------------------------------------

LINES = "".join('{"step":%d,"loss":%g,"grad_norm":1,"lr":0.1,"tokens":1,"ms":1,"tokens_per_s":1}\n' % (i, 4 / i)
                for i in range(1, 9)) + '{"step":8,"val_loss":1.5}\n'
write("log", "whole", b"\x03" + LINES.encode())
write("log", "cut", b"\x03" + LINES[:-9].encode())
write("log", "all-kept", b"\xff" + LINES.encode())
write("log", "not-utf-8", b"\x01\xff\xfe\n{\"step\":1}\n")
write("log", "nul", b"\x01{\"step\":1}\0\n\0\n")
write("log", "one-line-without-end", b"\x01" + b"[" * 4000)
write("log", "duplicate-step", b'\x01{"step":9,"step":1}\n{"step":1,"step":9}\n')
write("log", "negative-step", b'\x01{"step":-9223372036854775808,"loss":1}\n')
write("log", "largest-step", b'\xff{"step":9223372036854775807,"loss":1}\n{"step":9223372036854775808,"loss":1}\n')
write("log", "losses-of-all-sizes", b"\x01" + "".join(
    '{"step":%d,"loss":%s}\n' % (i, x) for i, x in enumerate(
        ("1e308", "-1e308", "1e-320", "0", "null", "1e999", "\"nan\"", "-0.0", "9223372036854775807"))).encode())
write("log", "one-loss", b'\x00{"step":1,"loss":1e-300}\n')
write("log", "empty", b"\x00")

# --- the table of product algorithms -----------------------------------------------------------------------------

SHAPE = "130100 768 1024 64 e4m3 e5m2 bf16 none 1 0 1 "
ALGORITHM = "1d00000042 100000024 0 5000000000003 1fc3400000001 1c0000001c 44000e000e 0 NVIDIA H200\n"
MEMORY = "(768 64 768 256 256 256 0) "
write("matmul", "both-forms", SHAPE + MEMORY + ALGORITHM + SHAPE + ALGORITHM)
write("matmul", "twice", 2 * (SHAPE + MEMORY + ALGORITHM))
write("matmul", "other-gpu", SHAPE + ALGORITHM.replace("H200", "H100") + SHAPE + ALGORITHM)
write("matmul", "other-version", "120900" + SHAPE[6:] + ALGORITHM)
write("matmul", "no-end-of-line", SHAPE + MEMORY + ALGORITHM[:-1])
write("matmul", "lines-of-windows", (SHAPE + ALGORITHM).replace("\n", "\r\n"))
write("matmul", "open-parenthesis", SHAPE + MEMORY.replace(")", "") + ALGORITHM)
write("matmul", "alignment-of-24", SHAPE + MEMORY.replace("256", "24") + ALGORITHM)
write("matmul", "negative", SHAPE.replace("768", "-768") + ALGORITHM)
write("matmul", "too-large", SHAPE.replace("768", "99999999999999999999") + ALGORITHM)
write("matmul", "word-of-65-bits", SHAPE + ALGORITHM.replace("1d00000042", "1ffffffffffffffff"))
write("matmul", "nul", SHAPE + "\0" + ALGORITHM)
write("matmul", "empty", "")
