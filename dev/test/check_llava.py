#!/usr/bin/env python3
"""Checks that checkpoints of vision-language models are Llava folders that transformers opens.

    dev/test/check_llava.py --program ./train_gpt2_fp8_cpu [--other-python PATH] [MODEL...]

For each model: transformers writes a random Llava, with a CLIP or SigLIP tower and a Llama (tied or untied head), Qwen 2 or
Qwen 3. The program reads the folder, runs one update with learning rate 0, and saves a checkpoint. Checks:
    transformers finds no missing, unexpected or mismatched tensor in the checkpoint, and all tensors have unchanged bits
    transformers opens the processor files, and the processor computes the same pixel values
    the program reads every layout of tensor names, and saves the same checkpoint
    the program reads a BF16 file with a missing block, whose tensors get initial values
    a run that resumes saves the same checkpoint as an uninterrupted one, and copies the unused tensors unchanged
--other-python: PYTHONPATH of another version of transformers, which also checks the checkpoint's tensors

Prints one line per check, then PASS or FAIL, with a matching exit code. Needs torch and transformers 4.56 or later.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

if {"-h", "--help"} & set(sys.argv):
    print(__doc__)
    sys.exit(0)
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import (CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, Qwen2Config,  # noqa: E402
                          Qwen3Config, SiglipVisionConfig)

IMAGE_TOKEN, VOCAB = 299, 300
TEXT = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, eos_token_id=None, pad_token_id=None)
TEXTS = {
    "llama": (LlamaConfig, dict(tie_word_embeddings=False)),
    "llama-tied": (LlamaConfig, dict(tie_word_embeddings=True)),
    "qwen2": (Qwen2Config, dict(tie_word_embeddings=False)),
    "qwen3": (Qwen3Config, dict(tie_word_embeddings=True, head_dim=24)),
}
TOWER = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=3, patch_size=4)
TOWERS = {
    "clip": (CLIPVisionConfig, dict(image_size=12), "default"),
    "siglip": (SiglipVisionConfig, dict(image_size=16), "full"),
    "siglip-headless": (SiglipVisionConfig, dict(image_size=16, vision_use_head=False), "full"),
}
MODELS = [f"{tower}/{text}" for tower in ("clip", "siglip") for text in TEXTS] + ["siglip-headless/llama"]
MEAN, DEVIATION = [0.5, 0.4, 0.3], [0.25, 0.3, 0.35]
UNUSED = re.compile(r"vision_model\.(encoder\.layers\.2\.|post_layernorm|head)")
failures = 0


def report(name, good, text=""):
    global failures
    failures += not good
    print(f"{'PASS' if good else 'FAIL'}  {name}{'' if good else ': ' + text}", flush=True)


def published(key):
    """Returns the published name of a tensor whose name may be in any of LAYOUTS."""
    key = re.sub(r"^(model\.)?vision_tower\.(vision_model\.)?", "vision_tower.vision_model.", key)
    key = re.sub(r"^model\.multi_modal", "multi_modal", key)
    key = re.sub(r"^lm_head", "language_model.lm_head", key)
    return re.sub(r"^model\.language_model\.", "language_model.model.", key)


LAYOUTS = {  # functions that rename a published name; "in memory": the names of a model's parameters in transformers
    "published": lambda key: key,
    "in memory": lambda key: re.sub(r"^(vision_tower|multi_modal)", r"model.\1", re.sub(
        r"^language_model\.lm_head", "lm_head", re.sub(r"^language_model\.model", "model.language_model", key))),
    "in memory of version 5": lambda key: LAYOUTS["in memory"](key).replace("vision_tower.vision_model", "vision_tower"),
    "new in version 5": lambda key: key.replace("vision_tower.vision_model", "vision_tower"),
}


def write_model(name, folder):
    (vision, sizes, select), (text, settings) = (table[part] for table, part in zip((TOWERS, TEXTS), name.split("/")))
    config = LlavaConfig(vision_config=vision(**{**TOWER, **sizes}).to_dict(), text_config=text(**{**TEXT, **settings}).to_dict(),
                         image_token_index=IMAGE_TOKEN, vision_feature_select_strategy=select, vision_feature_layer=-2,
                         tie_word_embeddings=settings["tie_word_embeddings"])
    torch.manual_seed(1)
    model = LlavaForConditionalGeneration(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # random, because zeros and ones would hide errors
    model.save_pretrained(folder)
    return model


def write_processor(name, folder):
    clip, side = name.startswith("clip"), TOWERS[name.split("/")[0]][1]["image_size"]
    kind = "CLIPImageProcessor" if clip else "SiglipImageProcessor"
    square = dict(height=side, width=side)
    with open(os.path.join(folder, "preprocessor_config.json"), "w", encoding="utf-8") as file:
        json.dump(dict(image_processor_type=kind, size=dict(shortest_edge=side) if clip else square, crop_size=square,
                       image_mean=MEAN, image_std=DEVIATION, resample=3, rescale_factor=1 / 255, own_key=[1, {"a": 2}]), file)


def write_tokens(path):
    header, tokens = np.zeros(256, np.int32), np.random.default_rng(0).integers(0, IMAGE_TOKEN, 4000).astype(np.uint16)
    header[:3] = 20240520, 1, len(tokens)
    with open(path, "wb") as file:
        file.write(header.tobytes() + tokens.tobytes())


def train(a, out, *flags, steps=1):
    command = [a.program, "--train", a.tokens, "--steps", str(steps), "--micro-batch", "2", "--seq-len", "32", "--threads", "1",
               "--sample-tokens", "0", "--out", out, *flags]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"FAIL  {' '.join(command)}: exit code {run.returncode}: {run.stderr}")
    return os.path.join(out, f"step-{steps:08}")


def unequal(checkpoint, expected):
    """Returns the names of tensors that differ between the checkpoint's file and the model's published tensors."""
    found = load_file(os.path.join(checkpoint, "model.safetensors"))
    return sorted(set(found) ^ set(expected)) + [k for k in found if k in expected and not torch.equal(found[k], expected[k])]


def opens(checkpoint, expected):
    """Opens the checkpoint in transformers. Returns reported problems and tensors that differ from `expected`; "" if none."""
    model, info = LlavaForConditionalGeneration.from_pretrained(checkpoint, output_loading_info=True, dtype=torch.float32)
    said = [f"{key} {sorted(value)[:3]}" for key, value in info.items() if value]
    tensors = {published(key): value for key, value in model.state_dict().items()}
    different = [key for key, value in tensors.items() if key in expected and not torch.equal(value, expected[key])]
    extra = sorted(set(expected) - set(tensors)) + sorted(set(tensors) - set(expected) - {"language_model.lm_head.weight"})
    return "; ".join(said + different[:3] + extra[:3])


def check_processor(name, checkpoint):
    from PIL import Image
    from transformers import AutoImageProcessor
    from transformers import __version__ as version
    side = TOWERS[name.split("/")[0]][1]["image_size"]
    picture = np.random.default_rng(1).integers(0, 256, (side, side, 3)).astype(np.uint8)
    choice = dict(use_fast=False) if version < "5" else dict(backend="pil")
    processor = AutoImageProcessor.from_pretrained(checkpoint, **choice)
    found = processor(Image.fromarray(picture), return_tensors="np")["pixel_values"][0]
    table = np.float32(np.arange(256) * (1 / 255))
    expected = (table[picture] - np.float32(MEAN)) / np.float32(DEVIATION)
    report(f"{name}: the processor of a checkpoint computes the table's pixel values",
           np.array_equal(found, expected.transpose(2, 0, 1)), f"{type(processor).__name__}, {found.reshape(-1)[:3]}")
    source = json.load(open(os.path.join(checkpoint, "preprocessor_config.json"), encoding="utf-8"))
    settings = json.load(open(os.path.join(checkpoint, "processor_config.json"), encoding="utf-8"))
    expected = dict(processor_class="LlavaProcessor", patch_size=4, num_additional_image_tokens=int(name.startswith("clip")),
                    vision_feature_select_strategy=TOWERS[name.split("/")[0]][2], image_token="<image>")
    report(f"{name}: the processor files have the expected settings", settings == expected and source.get("own_key") == [1, {"a": 2}], f"{settings} {source}")


def check(a, name, work):
    source, fixed = os.path.join(work, "source"), ("--lr", "0", "--weight-decay", "0", "--recipe", "bf16", "--precision", "fp32")
    model = write_model(name, source)
    write_processor(name, source)
    stored = {published(key): value for key, value in load_file(os.path.join(source, "model.safetensors")).items()}
    checkpoint = train(a, os.path.join(work, "out"), "--model", source, *fixed)
    different = unequal(checkpoint, stored)
    report(f"{name}: a checkpoint has the source's tensors", not different, f"{different[:4]}")
    said = opens(checkpoint, stored)
    report(f"{name}: transformers opens the checkpoint with the same tensors", not said, said)
    said = {k for k, v in json.load(open(os.path.join(checkpoint, "config.json"), encoding="utf-8")).items()
            if k in ("tie_word_embeddings", "image_token_index", "vision_feature_layer") and v != getattr(model.config, k)}
    report(f"{name}: the checkpoint's config.json has the source's settings", not said, f"{said}")
    check_processor(name, checkpoint)
    if a.other_python:
        run = subprocess.run([sys.executable, __file__, "--opens", checkpoint], capture_output=True, text=True, check=False,
                             env={**os.environ, "PYTHONPATH": a.other_python})
        report(f"{name}: {run.stdout.strip() or 'another version'} opens the checkpoint, too", run.returncode == 0, run.stderr[-500:])
    for layout, rename in LAYOUTS.items():
        folder = os.path.join(work, "layout")
        shutil.copytree(source, folder)
        numbers = {"vision_tower.vision_model.embeddings.position_ids": torch.arange(9)[None]}
        save_file({rename(key): value for key, value in {**stored, **numbers}.items()},
                  os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        saved = train(a, os.path.join(work, "layout-out"), "--model", folder, *fixed)
        different = unequal(saved, stored)
        report(f"{name}: the program reads the layout '{layout}' of tensor names", not different, f"{different[:4]}")
        shutil.rmtree(folder)
        shutil.rmtree(os.path.dirname(saved))
    check_carried(a, name, work, source, stored)
    check_resume(a, name, work, source)


def check_carried(a, name, work, source, stored):
    """Checks that unused tensors keep their bits and type (BF16), and that those which a file lacks get initial values."""
    folder, first = os.path.join(work, "partial"), "vision_tower.vision_model.post_layernorm.weight"
    shutil.copytree(source, folder)
    halved = {key: value.bfloat16() for key, value in stored.items() if ".encoder.layers.2." not in key}
    save_file(halved, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    saved = load_file(os.path.join(train(a, os.path.join(work, "partial-out"), "--model", folder, "--recipe", "bf16",
                                         "--precision", "fp32"), "model.safetensors"))
    added = {key: value for key, value in saved.items() if ".encoder.layers.2." in key}
    report(f"{name}: the tensors of a missing block get initial values", len(added) == 16 and saved.keys() == stored.keys() and all(
        torch.equal(value, torch.full_like(value, float("layer_norm" in key and key.endswith("weight"))))
        for key, value in added.items()), f"{len(added)} tensors")
    report(f"{name}: an unused BF16 tensor keeps its bits and type", torch.equal(saved[first], halved[first]) and saved[first].dtype == torch.bfloat16)


def check_resume(a, name, work, source):
    flags = ("--recipe", "coat", "--lr", "1e-2", "--save-every", "1", "--keep", "1")
    if name.endswith("qwen3"):
        flags = ("--recipe", "bf16", *flags[2:])
    whole = train(a, os.path.join(work, "whole"), "--model", source, *flags, steps=4)
    halves = os.path.join(work, "halves")
    train(a, halves, "--model", source, *flags, steps=2)
    gone = source + "-gone"
    os.rename(source, gone)  # the checkpoint must be complete without the source folder
    resumed = train(a, halves, "--resume", "--save-every", "1", "--keep", "1", steps=4)
    os.rename(gone, source)
    for file in "model.safetensors", "optimizer.safetensors", "config.json", "preprocessor_config.json", "processor_config.json":
        equal = open(os.path.join(resumed, file), "rb").read() == open(os.path.join(whole, file), "rb").read()
        report(f"{name}: a resumed run saves the same {file}", equal)
    before, after = (load_file(os.path.join(folder, "model.safetensors")) for folder in (source, resumed))
    before = {published(key): value for key, value in before.items()}
    unused = [key for key in before if UNUSED.search(key)]
    report(f"{name}: a resumed run copies {len(unused)} unused tensors unchanged",
           len(unused) > 16 and all(torch.equal(before[key], after[key]) for key in unused))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--program", default="./train_gpt2_fp8_cpu")
    p.add_argument("--other-python")
    p.add_argument("--opens", metavar="FOLDER")
    p.add_argument("models", nargs="*", default=MODELS)
    a = p.parse_args()
    if a.opens:
        from transformers import __version__ as version
        said = opens(a.opens, {published(k): v for k, v in load_file(os.path.join(a.opens, "model.safetensors")).items()})
        print(f"transformers {version}", flush=True)
        sys.exit(said or 0)
    for name in a.models:
        with tempfile.TemporaryDirectory() as work:
            a.tokens = os.path.join(work, "tokens.bin")
            write_tokens(a.tokens)
            check(a, name, work)
    print("FAIL" if failures else "PASS")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
