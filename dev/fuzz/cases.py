"""The hand-written inputs of the fuzz targets: CASES[TARGET][NAME] is a text or bytes, the same in every run."""
import json
import struct
import zlib

from cases_text import CASES_TEXT, sections


def numbers(form, values):
    return struct.pack("<%d%s" % (len(values), form), *values)


# --- token files ---------------------------------------------------------------------------------------------------


def control(batch=2, length=4, ranks=1, flags=1, vocab=300, cut=65535):
    """The 8 bytes of settings before the token file; fuzz_tokens.c explains them."""
    return struct.pack("<4B2H", batch - 1, length - 1, ranks - 1, flags, vocab - 1, cut)


def tokens(magic, version, count, ids, width="H"):
    return numbers("i", [magic, version, count]).ljust(1024, b"\0") + numbers(width, ids)


def masked(header, ids, starts, mask, width="H"):
    """A file with a loss mask. Its checksum is 0; with flag 8, the target writes the right one."""
    head = numbers("i", [20261124, *header]).ljust(1024, b"\0")
    return head + numbers(width, ids) + numbers("I", starts) + bytes(mask)


NARROW, WIDE = tokens(20240520, 1, 40, range(40)), tokens(20240801, 7, 40, range(40), "I")
CHECKED = NARROW[:32] + struct.pack("<2I", zlib.crc32(NARROW[1024:]), 1) + NARROW[40:]
TOKENS = {
    "checksum": control() + CHECKED, "checksum-does-not-match": control() + CHECKED[:-1] + b"\1",
    "lfs-pointer": control(flags=4) + b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n",
    "uint16": control() + NARROW, "uint32": control() + WIDE,
    "two-files": control(ranks=2) + NARROW + b"=== 2\n" + WIDE,
    "cut-while-open": control(cut=1050) + NARROW, "cut-in-the-header": control(cut=3) + NARROW,
    "token-outside-vocabulary": control(vocab=20) + NARROW,
    "wide-token-as-negative": control() + tokens(20240801, 7, 20, [0xFFFFFFFF] * 20, "I"),
    "count-too-large": control() + tokens(20240520, 1, 2147483647, range(40)),
    "count-negative": control() + tokens(20240520, 1, -40, range(40)),
    "count-zero": control() + tokens(20240520, 1, 0, []), "odd-length": control() + NARROW + b"x",
    "one-token": control(batch=1, length=1) + tokens(20240520, 1, 1, [5]),
    "second-damaged": control() + NARROW + b"=== 2\n" + WIDE[:1100],
    "other-version": control() + tokens(20240520, 7, 40, range(40)),
    "big-endian": control() + tokens(0x18D83401, 0x01000000, 40, range(40)),
    "empty": control(), "bare": control(flags=4) + numbers("H", range(60)),
    "bare-wide-tokens": control(flags=5) + numbers("I", range(60)),
    "bare-odd": control(flags=4) + bytes(61),
    "bare-numpy": control(flags=4) + b"\x93NUMPY\x01\0" + bytes(120),
    "npy-with-a-header": control(flags=4) + WIDE,
    "masked": control(flags=9) + masked((1, 40, 2, 4, 20), range(40), [0, 9, 20, 39], [0x55] * 5),
    "masked-wide": control(flags=8) + masked((1, 40, 4, 1, 8), range(40), [0], [0xFF, 0, 0, 0, 0], "I"),
    "masked-and-unmasked": control(flags=11) + masked((1, 8, 2, 1, 2), range(8), [0], [9]) + b"=== 2\n" + NARROW,
    "masked-wrong-checksum": control() + masked((1, 40, 2, 1, 1), range(40), [0], [2, 0, 0, 0, 0]),
    "masked-start-out-of-range": control(flags=9) + masked((1, 40, 2, 2, 1), range(40), [0, 40], [2, 0, 0, 0, 0]),
    "masked-bit-after-the-end": control(flags=9) + masked((1, 39, 2, 1, 1), range(39), [0], [0, 0, 0, 0, 0x80]),
    "masked-count-largest": control(flags=9) + masked((1, 2**31 - 1, 4, 2**31 - 1, 1), range(40), [0], [1] * 5),
    "text": control() + b"To be, or not to be\n"}

# --- images --------------------------------------------------------------------------------------------------------


def shown(text="tIA|tIIA|tA", length=16, most=2, flags=2, cut=0, places=None, more=b"", drop=0, **words):
    """Settings, a token file of `text` (t: masked token, A: unmasked, I: an image, p: one placeholder, |: the next
    example) and its two stored images of 2 x 2 pixels, each with 4 placeholders. places: the stored image that each I
    shows. more, drop: bytes added to or removed from the end of the images. words: words of the images' header."""
    ids, mask, starts = [], [], [0]
    for letter in text:
        if letter == "|":
            starts.append(len(ids))
            continue
        ids += {"I": [9] * 4, "p": [9]}.get(letter, [20 + len(ids)])
        mask += [int(letter == "A")] * (4 if letter == "I" else 1)
    bits = [sum(bit << i for i, bit in enumerate(mask[at:at + 8])) for at in range(0, len(mask), 8)]
    places = [i % 2 for i in range(text.count("I"))] if places is None else places
    names = ("magic", "version", "images", "side", "channels", "rows", "places", "kind", "crc", "mark", "token")
    head = dict(zip(names, (20261129, 1, 2, 2, 3, 4, len(places), 0, 0, 1, 9)), **words)
    images = numbers("i", [head[name] for name in names]) + numbers("f", head.get("values", [0.5] * 6))
    images = images.ljust(1024, b"\0") + numbers("I", places) + bytes(range(24)) + more
    tokens = masked((2, len(ids), 2, len(starts), sum(mask)), ids, starts, bits)
    return bytes([length - 1, most - 1, 0, flags, 1, 0, 9, cut]) + tokens + b"=== 2\n" + images[:len(images) - drop]


IMAGES = {
    "images": shown(), "checksums-do-not-match": shown(flags=0), "shuffled": shown(flags=3),
    "cut-before-an-image": shown("tAIIAIA|tA", 9), "does-not-fit": shown("IA|tAtA", 3),
    "whole": shown("tIIA", 6, flags=18),
    "split": shown(flags=34), "more-than-the-limit": shown("tIIIA|tA", 32), "text-model": shown(flags=6),
    "known-values": shown(flags=10), "other-values": shown(flags=10, values=[0.25] * 6),
    "no-file-of-images": shown()[:1200].split(b"=== 2")[0], "truncated-while-open": shown("IA|IA|IA", 8, cut=20),
    "truncated": shown(drop=3), "longer": shown(more=b"x"), "header-only": shown(drop=36),
    "run-of-three": shown("tpppA", places=[0]), "too-few-places": shown(places=[0]),
    "too-many-places": shown(places=[0] * 9),
    "example-inside-an-image": shown("tApp|ppA", places=[1]), "place-out-of-range": shown(places=[0, 1, 2]),
    "place-largest": shown(places=[0, 1, 2**32 - 1]), "no-places": shown("tA|ttA", places=[]),
    "images-largest": shown(images=2**31 - 1), "side-largest": shown(side=2**31 - 1), "side-other": shown(side=3),
    "rows-negative": shown(rows=-4), "rows-largest": shown(rows=2**31 - 1), "places-largest": shown(places=[0]),
    "other-token": shown(token=8), "other-version": shown(version=2), "other-magic": shown(magic=20261124),
    "not-finite": shown(values=[float("nan")] * 6), "deviation-zero": shown(values=[0.5] * 5 + [0])}


# --- safetensors ---------------------------------------------------------------------------------------------------


def safetensors(header, data=b"", length=None):
    header = header if isinstance(header, (str, bytes)) else json.dumps(header)
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BYTE = json.dumps(entry("U8", [1], 0, 1))
SAFETENSORS = {
    "two": safetensors({"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 2], 0, 16),
                        "b": entry("BF16", [3], 16, 22)}, bytes(22)),
    "scalar-and-empty": safetensors({"s": entry("F64", [], 0, 8), "e": entry("U8", [0, 7], 8, 8)}, bytes(8)),
    "no-tensors": safetensors({}),
    "overlap": safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6)),
    "hole": safetensors({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 4, 6)}, bytes(6)),
    "data-too-long": safetensors({"a": entry("U8", [2], 0, 2)}, bytes(9)),
    "shape-overflows": safetensors({"a": entry("F32", [1 << 62, 1 << 3], 0, 0)}),
    "shape-overflows-to-zero": safetensors({"a": entry("U8", [1 << 32, 1 << 32], 0, 0)}),
    "range-backwards": safetensors({"a": entry("U8", [4], 4, 0)}, bytes(4)),
    "range-negative": safetensors({"a": entry("U8", [4], -4, 0)}, bytes(4)),
    "range-largest": safetensors({"a": entry("U8", [2**63 - 1], 0, 2**63 - 1)}),
    "header-longer-than-file": safetensors("{}", length=1 << 20),
    "header-largest": safetensors("{}", length=2**64 - 1), "header-wraps": safetensors("{}", length=2**64 - 8),
    "header-empty": safetensors(""),
    "deep": safetensors("[" * 3000),
    "deep-objects": safetensors('{"a":' + '{"a":' * 2100 + "1" + "}" * 2101),
    "duplicate": safetensors('{"a":%s,"a":%s}' % (BYTE, BYTE), b"x"),
    "nul-in-name": safetensors('{"a\\u0000b":%s}' % BYTE, b"x"),
    "lines-in-name": safetensors({"a\n\x1b[31mb": entry("U9", [1], 0, 1)}, b"x"),
    "not-utf-8": safetensors(b'{"\xff\xc0":{}}'),
    "huge-number": safetensors('{"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,1]}}', b"x"),
    "real-number": safetensors('{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}', b"x")}

# --- config.json ---------------------------------------------------------------------------------------------------

GPT2 = {"model_type": "gpt2", "activation_function": "gelu_new", "n_layer": 1, "n_head": 1, "n_embd": 2, "n_inner": 3,
        "n_positions": 2, "vocab_size": 3, "layer_norm_epsilon": 1e-5}
OTHER = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 3,
         "max_position_embeddings": 8, "hidden_act": "silu"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 4}


def config(kind="gpt2", **changes):
    return json.dumps({**(GPT2 if kind == "gpt2" else {"model_type": kind, **OTHER}), **changes})


def llava(text=(), vision=(), **changes):
    return json.dumps({"model_type": "llava", "text_config": {**OTHER, **dict(text)}, "image_token_index": 2,
                       "vision_config": {"num_hidden_layers": 2, "image_size": 32, **dict(vision)}, **changes})


CONFIG = {
    "gpt2": config(n_embd=768, n_head=12, n_layer=12, vocab_size=50257, n_positions=1024, n_inner=None),
    "largest": config(n_embd=65536, n_head=1024, n_layer=1024, vocab_size=1 << 24, n_positions=1 << 24,
                      n_inner=1 << 20),
    "epsilon-too-small-for-a-float": config(layer_norm_epsilon=1e-60),
    "epsilon-rounds-to-one": config(layer_norm_epsilon=0.99999999999),
    "epsilon-nan": config(layer_norm_epsilon="nan"),
    "epsilon-overflows": config(layer_norm_epsilon=1).replace("1}", "1e999}"),
    "layers-overflow": config(n_layer=2**63), "layers-lowest": config(n_layer=-2**63),
    "not-divisible": config(n_head=3),
    "lines-in-kind": config(model_type="gpt2\n\x1b]0;x\x07"),
    "duplicate": '{"n_layer":1,"n_layer":1}', "list": "[]",
    "deep": '{"a":' * 2500,
    "nul": '{"model_type":"gpt2\\u0000"}', "half-surrogate": '{"model_type":"\\ud800"}',
    **{kind: config(kind, num_key_value_heads=None) for kind in ("llama", "mistral", "olmo", "qwen2", "qwen3")},
    "absent": config("mistral", num_attention_heads=8),
    "grouped": config("llama", num_key_value_heads=1, head_dim=24, rms_norm_eps=1e-5, rope_theta=5e5),
    "scaled": config("llama", rope_scaling=LLAMA3, tie_word_embeddings=True),
    "scaled-by-1": config("llama", rope_scaling={**LLAMA3, "factor": 1}),
    "scaled-version-5": config("llama", rope_parameters={**LLAMA3, "rope_theta": 1e4}),
    "scaled-yarn": config("qwen2", rope_scaling={"type": "yarn", "factor": 4}),
    "window": config("mistral", sliding_window=4, num_key_value_heads=2),
    "clip": config("olmo", clip_qkv=8), "clip-to-zero": config("olmo", clip_qkv=0),
    "eos-tokens": config("llama", bos_token_id=0, eos_token_id=[1, 2, 3, -1, 2**63 - 1, "x"]),
    "llava": llava(), "llava-defaults": json.dumps({"model_type": "llava", "text_config": {}, "vision_config": {}}),
    "llava-siglip": llava({"model_type": "qwen3", "num_key_value_heads": 1},
                          {"model_type": "siglip_vision_model", "vision_use_head": False, "patch_size": 1},
                          vision_feature_select_strategy="full", vision_feature_layer=-1,
                          mm_projector_type="mlp_downsample"),
    "llava-layers": llava(vision_feature_layer=[-2, -1]), "llava-lowest": llava(vision_feature_layer=-2**63),
    "tower": json.dumps({"model_type": "clip_vision_model", "num_hidden_layers": 2}),
    "tower-of-siglip": json.dumps({"model_type": "siglip", "vision_config": {"patch_size": 16}}),
    "llava-in-llava": llava({"model_type": "llava"}), "llava-huge": llava((), {"image_size": 4096, "patch_size": 1}),
    "wide-head": config("qwen3", hidden_size=65536, num_attention_heads=1, num_key_value_heads=1, head_dim=4097)}

# --- a model's folder ----------------------------------------------------------------------------------------------

GPT2_TENSORS = {
    "wte.weight": [3, 2], "wpe.weight": [2, 2], "ln_f.weight": [2], "ln_f.bias": [2],
    "h.0.ln_1.weight": [2], "h.0.ln_1.bias": [2], "h.0.attn.c_attn.weight": [2, 6], "h.0.attn.c_attn.bias": [6],
    "h.0.attn.c_proj.weight": [2, 2], "h.0.attn.c_proj.bias": [2], "h.0.ln_2.weight": [2], "h.0.ln_2.bias": [2],
    "h.0.mlp.c_fc.weight": [2, 3], "h.0.mlp.c_fc.bias": [3], "h.0.mlp.c_proj.weight": [3, 2],
    "h.0.mlp.c_proj.bias": [2]}
GPT2_TENSORS = {"transformer." + name: shape for name, shape in GPT2_TENSORS.items()}
LLAMA_TENSORS = {
    "embed_tokens": [3, 4], "norm": [4], "layers.0.input_layernorm": [4], "layers.0.post_attention_layernorm": [4],
    "layers.0.self_attn.q_proj": [4, 4], "layers.0.self_attn.k_proj": [2, 4], "layers.0.self_attn.v_proj": [2, 4],
    "layers.0.self_attn.o_proj": [4, 4], "layers.0.mlp.gate_proj": [3, 4], "layers.0.mlp.up_proj": [3, 4],
    "layers.0.mlp.down_proj": [4, 3]}
LLAMA_TENSORS = {"model.%s.weight" % name: shape for name, shape in LLAMA_TENSORS.items()}
WIDTHS = {"F32": "f", "F16": "e", "BF16": "h", "F64": "d", "I32": "i"}


def weights(shapes, dtype="F32", value=0.5):
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = numbers(WIDTHS[dtype], [0x3F00 if dtype == "BF16" else value] * count)
        header[name] = entry(dtype, shape, len(data), len(data) + len(values))
        data += values
    return safetensors(header, data)


def index(*names):
    return json.dumps({"weight_map": {str(i): name for i, name in enumerate(names)}})


def gpt2(weights=weights(GPT2_TENSORS), config=config(), **files):
    return sections(config__json=config, model__safetensors=weights, **files)


def llama(files={}, **tensors):
    tensors = {name.replace("__", "."): shape for name, shape in tensors.items()}
    return sections(config__json=config("llama", hidden_size=4, intermediate_size=3, num_key_value_heads=1,
                                       tie_word_embeddings=True),
                    model__safetensors=weights({**LLAMA_TENSORS, **tensors}), **files)


MODEL = {
    "llama": llama(),
    "llama-two-extra": llama(lm_head__weight=[3, 4], model__layers__0__self_attn__rotary_emb__inv_freq=[1]),
    "llama-one-bias": llama(model__layers__0__self_attn__q_proj__bias=[4]),
    **{"gpt2-" + dtype.lower(): gpt2(weights(GPT2_TENSORS, dtype)) for dtype in ("F32", "F16", "BF16", "F64")},
    "integers": gpt2(weights(GPT2_TENSORS, "I32", 1)),
    "infinite": gpt2(weights(GPT2_TENSORS, "F32", float("inf"))),
    "generation": llama({"generation_config__json": '{"bos_token_id": 1, "eos_token_id": [2, 0]}'}),
    "generation-too-large": llama({"generation_config__json": '{"eos_token_id": [99999999999]}'}),
    "one-missing": gpt2(weights(dict(list(GPT2_TENSORS.items())[:-1]))),
    "sharded": sections(
        config__json=config(), model__safetensors__index__json=index("a.safetensors", "b.safetensors", "a.safetensors"),
        a__safetensors=weights(dict(list(GPT2_TENSORS.items())[:8])),
        b__safetensors=weights(dict(list(GPT2_TENSORS.items())[8:]), "BF16")),
    **{"index-names-" + name: sections(config__json=config(), model__safetensors__index__json=index(file),
                                       a__safetensors=weights(GPT2_TENSORS))
       for name, file in {"parent": "../x", "absolute": "/etc/passwd", "folder": "..", "itself": ".", "nothing": "",
                          "line": "a\nb", "missing": "c.safetensors", "config": "config.json"}.items()},
    "other-shape": gpt2(config=config(n_embd=4)),
    "huge-shape": gpt2(config=config(n_layer=1024, n_embd=65536, vocab_size=1 << 24)),
    "bad-manifest": gpt2(manifest__json="{}")}

# --- llm.c's weights -----------------------------------------------------------------------------------------------


def llmc(version=3, positions=2, vocab=3, layers=1, heads=1, channels=2, padded=4, count=None):
    c = channels
    values = padded * c + positions * c + layers * (12 * c * c + 13 * c) + 2 * c if count is None else count
    header = numbers("i", [20240326, version, positions, vocab, layers, heads, channels, padded])
    return header.ljust(1024, b"\0") + bytes(values * (4 if version == 3 else 2))


LLMC = {
    "fp32": llmc(), "bf16": llmc(version=5),
    "two-layers": llmc(layers=2, heads=2, padded=3), "short": llmc()[:-1],
    "long": llmc() + b"x", "header-only": llmc()[:1024],
    "header-cut": llmc()[:700],
    "largest": llmc(positions=1 << 24, vocab=1 << 24, layers=1024, heads=1024, channels=65536, padded=1 << 25, count=8),
    "padding-overflows": llmc(vocab=1, padded=2**31 - 1, count=8),
    "padding-negative": llmc(padded=-2**31, count=8), "heads-zero": llmc(heads=0, count=8),
    "channels-lowest": llmc(channels=-2**31, count=8),
    "version-4": llmc(version=4)}

# --- manifest.json and state.json of a checkpoint ------------------------------------------------------------------

HASH_OF_BRACES = "1349cde127705c16"  # XXH3 of "{}", the contents of the file that link.json points to
HASH_OF_LINE = "daa13e4f205dc5ba"  # XXH3 of "{}\n"
GOOD = {"bytes": 3, "xxh3": HASH_OF_LINE, "tensors": {"x": HASH_OF_LINE}}
STEP_STATE = {"lr": 0.001, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0,
              "seed": "000000000000002a", "t": 20, "skipped": 0, "skipped_run": 0, "loss_sum": 3.5, "grad_sq": "nan",
              "grad_norm": "-inf", "nonfinite": 0}
STATE = {"format": 1, "step": 20, "sequences": 640, "tokens": 655360, "data_fingerprint": "0123456789abcdef",
         "step_state": STEP_STATE, "settings": {"precision": "recipe", "moments": "coat", "lr": 0.1, "steps": 5}}


def manifest(files, **more):
    """A checkpoint whose manifest lacks its own hash and the closing brace, which the target appends."""
    return sections(manifest__json=json.dumps({"format": 1, "files": files}, indent=2)[:-2], **more)


def listed(files, **more):
    return manifest(files, config__json="{}\n", **more)


def state(**changes):
    return json.dumps({**STATE, **changes})


def step_state(**changes):
    return state(step_state={**STEP_STATE, **changes})


CHECKPOINT = {
    "good": listed({"config.json": GOOD}, state__json=state()),
    "good-with-state-listed": listed({"config.json": GOOD, "state.json": {"bytes": 1, "xxh3": HASH_OF_LINE}},
                                     state__json=state()),
    **{"names-" + name: listed({file: GOOD})
       for name, file in {"parent": "../config.json", "absolute": "/etc/passwd", "below": "x/config.json",
                          "folder": ".", "nothing": "", "lines": "a\nb\u001b[31m", "missing": "missing.json"}.items()},
    "names-a-link-out": manifest({"link.json": {"bytes": 2, "xxh3": HASH_OF_BRACES}}),
    "size-differs": listed({"config.json": {"bytes": 2**63 - 1, "xxh3": HASH_OF_LINE}}),
    "size-negative": listed({"config.json": {"bytes": -1, "xxh3": HASH_OF_LINE}}),
    "hash-differs": listed({"config.json": {"bytes": 3, "xxh3": HASH_OF_BRACES}}),
    "hash-too-long": listed({"config.json": {"bytes": 3, "xxh3": HASH_OF_LINE + "0"}}),
    "files-not-an-object": sections(manifest__json='{"format": 1, "files": [1]'),
    "entry-not-an-object": listed({"config.json": 3}),
    "other-format": sections(manifest__json='{"format": 2, "files": {}'),
    "without-hash": sections(unsigned__json='{"format": 1, "files": {}}'),
    "without-hash-short": sections(unsigned__json="}"),
    **{"state-" + name: sections(state__json=text) for name, text in {
        "largest": state(step=2**63 - 1, tokens=2**63 - 1, sequences=2**63 - 1),
        "overflows": state(step=2**63), "negative": state(step=-1),
        "t-largest": step_state(t=2**63 - 1), "lr-beyond-floats": step_state(lr=1e300),
        "lr-overflows": step_state().replace("0.001", "1e999"), "seed-not-hex": step_state(seed="0x"),
        "nonfinite-wide": step_state(nonfinite=2**31),
        "settings-lines": state(settings={"moments": "fp8\n\u001b[31mred", "lr": [[[["\n"]]]]}),
        "settings-deep": '{"settings":' + "[" * 2500,
        "duplicate": '{"format": 1, "format": 1}'}.items()}}

# --- edits of a valid checkpoint -----------------------------------------------------------------------------------


def edits(*rows):
    """Each row is (file, kind, place, value); fuzz_resume.c lists files and kinds."""
    return b"".join(struct.pack("<BBHB", *row) for row in rows)


RESUME = {
    "no-edit": b"", "config-flip": edits((0, 0, 90, 7)),
    "state-digits": edits((1, 4, 30, 9), (1, 4, 60, 9)), "model-header-length": edits((2, 0, 0, 255)),
    "model-flip": edits((2, 0, 4000, 64)), "model-cut": edits((2, 3, 3000, 0)),
    "optimizer-digits": edits((3, 4, 200, 1), (3, 4, 230, 3)),
    "optimizer-hole": edits((3, 2, 5000, 16)), "optimizer-longer": edits((3, 1, 9000, 1)),
    "optimizer-other-type": edits((3, 0, 4317, 1), (3, 0, 4319, 1)),  # F8_E5M2
    "optimizer-other-name": edits((3, 0, 5789, 1)),
    "optimizer-other-rank": edits((3, 1, 101, ord("1")), (3, 1, 102, ord(",")), (3, 0, 0, 2)),
    "optimizer-empty": edits((3, 3, 0, 0))}

# --- log.jsonl, after the byte that sets the first step ------------------------------------------------------------

LINES = "".join('{"step":%d,"loss":%g,"grad_norm":1,"lr":0.1,"tokens":1,"ms":1,"tokens_per_s":1}\n' % (i, 4 / i)
                for i in range(1, 9)) + '{"step":8,"val_loss":1.5}\n'
LOSSES = "1e308", "-1e308", "1e-320", "0", "null", "1e999", '"nan"', "-0.0", "9223372036854775807"
SETTINGS = ('{"step":0,"settings":{"model":"d2","tokenizer":"bytes","layers":2,"shuffle":true,"recipe":"bf16",'
            '"linear":"bf16","moments-fp32":null,"epochs":null,"steps":9,"lr":0.01,"schedule":"wsd","seed":"5"}}\n')
LOG = {
    "settings": "\0" + SETTINGS + '{"step":1,"loss":1.5}\n',
    "unknown-setting": "\0" + SETTINGS.replace("wsd", "polynomial") + '{"step":1,"loss":null}\n',
    "complete": "\x03" + LINES, "cut": "\x03" + LINES[:-9],
    "nothing-to-trim": b"\xff" + LINES.encode(), "not-utf-8": b'\x01\xff\xfe\n{"step":1}\n',
    "nul": '\x01{"step":1}\0\n\0\n',
    "one-line-without-end": "\x01" + "[" * 4000,
    "duplicate-step": '\x01{"step":9,"step":1}\n{"step":1,"step":9}\n',
    "negative-step": '\x01{"step":-9223372036854775808,"loss":1}\n',
    "largest-step": b'\xff{"step":9223372036854775807,"loss":1}\n{"step":9223372036854775808,"loss":1}\n',
    "losses-of-all-sizes": "\x01" + "".join('{"step":%d,"loss":%s}\n' % row for row in enumerate(LOSSES)),
    "one-loss": '\0{"step":1,"loss":1e-300}\n',
    "empty": "\0"}

# --- matmul_table.txt ----------------------------------------------------------------------------------------------

SHAPE = "130100 768 1024 64 e4m3 e5m2 bf16 none 1 0 1 "
MEMORY = "(768 64 768 256 256 256 0) "
ALGORITHM = "1d00000042 100000024 0 5000000000003 1fc3400000001 1c0000001c 44000e000e 0 NVIDIA H200\n"
MATMUL = {
    "both-forms": SHAPE + MEMORY + ALGORITHM + SHAPE + ALGORITHM,
    "twice": 2 * (SHAPE + MEMORY + ALGORITHM),
    "other-gpu": SHAPE + ALGORITHM.replace("H200", "H100") + SHAPE + ALGORITHM,
    "other-version": "120900" + SHAPE[6:] + ALGORITHM, "no-end-of-line": SHAPE + MEMORY + ALGORITHM[:-1],
    "lines-of-windows": (SHAPE + ALGORITHM).replace("\n", "\r\n"),
    "open-parenthesis": SHAPE + MEMORY.replace(")", "") + ALGORITHM,
    "alignment-of-24": SHAPE + MEMORY.replace("256", "24") + ALGORITHM,
    "negative": SHAPE.replace("768", "-768") + ALGORITHM,
    "too-large": SHAPE.replace("768", "99999999999999999999") + ALGORITHM,
    "word-of-65-bits": SHAPE + ALGORITHM.replace("1d00000042", "1ffffffffffffffff"),
    "nul": SHAPE + "\0" + ALGORITHM,
    "empty": ""}

CASES = {"tokens": TOKENS, "images": IMAGES, "safetensors": SAFETENSORS, "config": CONFIG, "model": MODEL, "llmc": LLMC,
         "checkpoint": CHECKPOINT, "resume": RESUME, "log": LOG, "matmul": MATMUL, **CASES_TEXT}
