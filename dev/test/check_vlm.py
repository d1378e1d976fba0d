#!/usr/bin/env python3
"""Trains small vision-language models with this program and with PyTorch, and compares them: 30 updates on the same data.

    dev/test/check_vlm.py --program ./train_gpt2_fp8_cpu [--quick] [MODEL...] [-- FLAGS]

transformers writes a random Llava: a CLIP tower with feature selection "default" or a SigLIP tower with "full", and a Llama
(tied or untied head), Qwen 2 or Qwen 3. The program starts from that folder and trains with AdamW on examples with 0, 1 or 2
images, packed into sequences and masked from each other. Checks:
    the losses of all updates in FP32, BF16 and COAT match those of transformers' model, which trains in FP32
    the FP32 gradients match tensor by tensor. The program's gradients are 10 times AdamW's first moments after one update
    with every combination of --freeze: the losses match, and the tensors of frozen parts keep their bits
    with three learning rates: the losses match
    transformers opens the last FP32 checkpoint without missing or unexpected tensors, with the same loss
A MODEL "join/..." consists of a language model's folder, and of the folder of a CLIP, SigLIP, Llava or tower alone. Checks:
    --model and --vision compute the loss of a Llava that transformers joins from the same weights
    transformers opens the checkpoint with the joined tensors, its tokenizer has <image>, and its processor reads images
--quick checks the FP32 losses and gradients only. FLAGS are passed to the program, for example --device cpu.

Prints one line per check, then PASS or FAIL, with a matching exit code. Needs torch and transformers 4.56 or later.
"""
import argparse
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import zlib

if {"-h", "--help"} & set(sys.argv):
    print(__doc__)
    sys.exit(0)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import check_families  # noqa: E402
from check_families import (B, GRADIENT_TOLERANCE, OPTIMIZER, T, UPDATES, VOCAB, first_fit, first_gradients, number, report,  # noqa: E402
                            some_tokens, train_there, worst_gradient)
from check_llava import published  # noqa: E402
from prepare_masks import VERSION_IMAGES, masked_file  # noqa: E402

import torch  # noqa: E402
from PIL import Image  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import (AutoModelForCausalLM, AutoProcessor, CLIPConfig, CLIPImageProcessor, CLIPModel,  # noqa: E402
                          CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration,
                          PreTrainedTokenizerFast, Qwen2Config, Qwen3Config, SiglipConfig, SiglipImageProcessor, SiglipModel,
                          SiglipVisionConfig, SiglipVisionModel)

IMAGE_TOKEN = VOCAB - 1
TEXT = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.05, eos_token_id=None, pad_token_id=None)
TEXTS = {
    "llama": (LlamaConfig, dict(tie_word_embeddings=False)),
    "llama-tied": (LlamaConfig, dict(tie_word_embeddings=True)),
    "qwen2": (Qwen2Config, dict(tie_word_embeddings=True)),
    "qwen3": (Qwen3Config, dict(tie_word_embeddings=False, head_dim=24)),
}
TOWER = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=3, patch_size=4)
TOWERS = {
    "clip": (CLIPVisionConfig, dict(image_size=12), "default"),
    "siglip": (SiglipVisionConfig, dict(image_size=16), "full"),
}
JOINED = ["join/clip/llama", "join/clip-tower/qwen2", "join/siglip/qwen3", "join/siglip-tower/llama-tied", "join/llava/llama"]
MODELS = [f"{tower}/{text}" for tower in TOWERS for text in TEXTS] + JOINED
MEAN, DEVIATION = (0.5, 0.4, 0.3), (0.25, 0.3, 0.35)
TOLERANCES = {"--precision fp32": 2e-6, "--recipe bf16": 5e-3, "--recipe coat": 2e-2,
              "--recipe coat --vision-recipe coat": 2e-2, "--recipe bf16 --vision-recipe coat --recompute-vision 0": 2e-2}
PARTS = {"vision": "vision_tower.", "projector": "multi_modal_projector.", "language": ("language_model.", "lm_head.")}
RATES = {"vision": 2e-4, "projector": 3e-3, "language": 1e-3}


def part_of(key):
    key = key.removeprefix("model.")
    return next(part for part, prefix in PARTS.items() if key.startswith(prefix))


def write_model(name, folder):
    (vision, sizes, select), (text, settings) = (table[part] for table, part in zip((TOWERS, TEXTS), name.split("/")))
    config = LlavaConfig(vision_config=vision(**{**TOWER, **sizes}).to_dict(), text_config=text(**{**TEXT, **settings}).to_dict(),
                         image_token_index=IMAGE_TOKEN, vision_feature_select_strategy=select, vision_feature_layer=-2,
                         tie_word_embeddings=settings["tie_word_embeddings"])
    torch.manual_seed(1)
    model = LlavaForConditionalGeneration(config).float().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:  # random norms and biases, because 1 and 0 would hide errors
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif part_of(key) != "language" and name.startswith("clip"):
                parameter.mul_(3)  # makes images affect the loss; SigLIP's initial weights are larger
            parameter.copy_(parameter.bfloat16().float())
    model.save_pretrained(folder)
    side = sizes["image_size"]
    with open(os.path.join(folder, "preprocessor_config.json"), "w", encoding="utf-8") as file:
        json.dump(dict(image_processor_type="CLIPImageProcessor" if name.startswith("clip") else "SiglipImageProcessor",
                       size=dict(height=side, width=side), crop_size=dict(height=side, width=side), image_mean=MEAN,
                       image_std=DEVIATION, resample=3, rescale_factor=1 / 255), file)
    return model


class Data:
    """Makes packed examples of 0, 1 or 2 images and text; the first 30 to 70 % of the text are masked in the loss."""

    flags = ("--micro-batch", B // 2, "--batch-tokens", B * T, "--documents", "apart")

    def __init__(self, path, side, rows, image_token=IMAGE_TOKEN):
        pick, count = random.Random(3), 8 * UPDATES
        words = iter(some_tokens(count * T).remainder(min(image_token, IMAGE_TOKEN)).tolist())
        generator = torch.Generator().manual_seed(4)
        self.side, self.examples = side, []
        self.images = torch.randint(0, 256, (16, 3, side, side), generator=generator, dtype=torch.uint8)
        places = []
        for _ in range(count):
            ids, mask, shown = [], [], []
            room = T - pick.randint(0, 3)
            for _ in range(pick.choice((0, 1, 1, 2))):
                before = pick.randint(0, 3)
                if len(ids) + before + rows + 4 > room:
                    break
                ids += [next(words) for _ in range(before)] + [image_token] * rows
                shown.append(pick.randrange(len(self.images)))
            length = pick.randint(4, room - len(ids)) if room - len(ids) > 4 else 4
            mask = [0] * len(ids)
            prompt = max(1, int(length * pick.uniform(0.3, 0.7)))
            ids += [next(words) for _ in range(length)]
            mask += [0] * prompt + [1] * (length - prompt)
            places += shown
            self.examples.append((ids, mask, shown))
        lengths = [len(ids) for ids, _, _ in self.examples]
        starts = [0, *itertools.accumulate(lengths)][:-1]
        text = b"".join(struct.pack(f"<{len(ids)}H", *ids) for ids, _, _ in self.examples)
        with open(path, "wb") as out:
            mask = b"".join(bytes(mask) for _, mask, _ in self.examples)
            out.write(masked_file(2, text, starts, mask, version=VERSION_IMAGES))
        table, pixels = struct.pack(f"<{len(places)}I", *places), self.images.numpy().tobytes()
        with open(path.removesuffix(".bin") + ".images", "wb") as out:
            words = struct.pack("<8i", 20261129, 1, len(self.images), side, 3, rows, len(places), 0)
            words += struct.pack("<Iii", zlib.crc32(pixels, zlib.crc32(table)), 1, image_token)
            words += struct.pack("<6f", *MEAN, *DEVIATION)
            out.write(words.ljust(1024, b"\0") + table + pixels)
        self.rows = first_fit(lengths)

    def pixels(self, image):
        scaled = (self.images[image].double() * (1 / 255)).float()
        return (scaled - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)

    def loss(self, model, step):
        ids, positions = torch.zeros(B, T, dtype=torch.long), torch.zeros(B, T, dtype=torch.long)
        labels, sees = torch.full((B, T), -100), torch.eye(T, dtype=torch.bool).repeat(B, 1, 1)
        images = []
        for b, row in enumerate(self.rows[step * B : (step + 1) * B]):
            at = 0
            for tokens, mask, shown in (self.examples[i] for i in row):
                end = at + len(tokens)
                ids[b, at:end], positions[b, at:end] = torch.tensor(tokens), torch.arange(end - at)
                labels[b, at:end] = torch.where(torch.tensor(mask) > 0, ids[b, at:end], -100)
                sees[b, at:end, at:end] = torch.ones(end - at, end - at, dtype=torch.bool).tril()
                images += [self.pixels(i) for i in shown]
                at = end
        hidden = torch.zeros(B, 1, T, T).masked_fill(~sees[:, None], torch.finfo(torch.float32).min)
        with_images = dict(pixel_values=torch.stack(images)) if images else {}
        return model(input_ids=ids, position_ids=positions, attention_mask=hidden, labels=labels, **with_images).loss


def train_here(model, data, rates, factors, frozen):
    groups = {}
    for key, p in model.named_parameters():
        p.requires_grad_(part_of(key) not in frozen)
        if p.requires_grad:
            small = p.dim() == 1
            groups.setdefault((part_of(key), small), []).append(p)
    adamw = torch.optim.AdamW([dict(params=params, weight_decay=0.0 if small else 0.1, part=part)
                               for (part, small), params in groups.items()], **OPTIMIZER)
    losses = []
    for step, rate in enumerate(rates):
        adamw.zero_grad()
        loss = data.loss(model, step)
        if loss.requires_grad:  # false if the language model is frozen and the step has no image
            loss.backward()
        for group in adamw.param_groups:  # a step without images updates the tower, too: its moments and weights decay
            for p in group["params"]:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
        for group in adamw.param_groups:
            group["lr"] = rate * factors.get(group["part"], 1)
        adamw.step()
        losses.append(loss.item())
    return losses


def check_gradients(a, name, model, data, folder, tokens):
    ours = first_gradients(a, model, data, folder, tokens)
    theirs = {published(key): p.grad for key, p in model.named_parameters() if p.grad is not None}
    worst, of = worst_gradient(ours, theirs)
    report(f"{name}, largest relative error of a gradient ({of}); the program lacks {len(theirs)} gradients", worst + 9 * len(theirs), GRADIENT_TOLERANCE)


def same_bits(folder, checkpoint, frozen):
    before, after = load_file(os.path.join(folder, "model.safetensors")), load_file(os.path.join(checkpoint, "model.safetensors"))
    before = {published(key): t for key, t in before.items()}
    return all(torch.equal(t, after[key].to(t.dtype)) for key, t in before.items() if part_of(key) in frozen)


def check(a, name, work):
    folder, tokens = os.path.join(work, name.replace("/", "-")), os.path.join(work, "tokens.bin")
    model = write_model(name, folder)
    side = model.config.vision_config.image_size
    data = Data(tokens, side, (side // 4) ** 2)
    check_gradients(a, name, model, data, folder, tokens)
    runs = [(recipe, (), {}, limit) for recipe, limit in TOLERANCES.items()][: 1 if a.quick else None]
    if not a.quick:
        frozen = [c for n in (1, 2) for c in itertools.combinations(PARTS, n)]
        runs += [("--precision fp32 --freeze " + ",".join(parts), parts, {}, 2e-6) for parts in frozen]
        runs += [(f"--precision fp32 --lr-vision {RATES['vision']} --lr-projector {RATES['projector']}", (),
                  {part: rate / 1e-3 for part, rate in RATES.items()}, 2e-6)]
    expected = {}
    for i, (flags, frozen, factors, limit) in enumerate(runs):
        out = f"{folder}-{i}"
        losses, rates = train_there(a, folder, tokens, out, flags)
        setting = (frozen, *factors.values())
        if setting not in expected:
            model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
            expected[setting] = train_here(model, data, rates, factors, frozen)
        theirs = expected[setting]
        largest = max(number(abs(x - y)) for x, y in zip(losses, theirs, strict=True))
        report(f"{name}, {flags}, {len(losses)} losses from {theirs[0]:.4f} to {theirs[-1]:.4f}", largest, limit)
        checkpoint = os.path.join(out, f"step-{UPDATES:08d}")
        if frozen:
            report(f"{name}, {flags}: 1 if a tensor of a frozen part has changed", 0 if same_bits(folder, checkpoint, frozen) else 1, 0)
        if i == 0:
            opened, info = LlavaForConditionalGeneration.from_pretrained(
                checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
            wrong = len(info["missing_keys"]) + len(info["unexpected_keys"])
            report(f"{name}, number of missing and unexpected tensors of the checkpoint", wrong, 0)
            with torch.no_grad():
                report(f"{name}, difference of the checkpoint's loss in transformers from PyTorch's model",
                       abs(data.loss(opened, 0).item() - data.loss(model, 0).item()), 1e-5)


def write_tokenizer(folder, kind, image):
    """Writes a tokenizer of the class `kind`: all bytes, special tokens and, if `image`, <image>. Returns it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", *(f"<|reserved-{i}|>" for i in range(9)), *["<image>"] * image])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    fast.save_pretrained(folder)
    path = os.path.join(folder, "tokenizer_config.json")
    with open(path, encoding="utf-8") as file:
        settings = {**json.load(file), "tokenizer_class": kind}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(settings, file)
    return fast


def write_tower(kind, folder):
    """Writes the folder of a model with a vision tower. Returns the tower's config, and its tensors without the model's prefix
    of names."""
    vision, sizes, _ = TOWERS["siglip" if kind.startswith("siglip") else "clip"]
    settings = {**TOWER, **sizes}
    torch.manual_seed(2)
    if kind == "llava":
        model = write_model("clip/qwen2", folder)
        tower = model.model.vision_tower
    elif kind.endswith("-tower"):
        tower = model = (CLIPVisionModel if vision is CLIPVisionConfig else SiglipVisionModel)(vision(**settings))
    else:
        text = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=99)
        whole = CLIPConfig if kind == "clip" else SiglipConfig
        model = (CLIPModel if kind == "clip" else SiglipModel)(whole(text_config=text, vision_config=settings))
        tower = model.vision_model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    side = settings["image_size"]
    processor = (CLIPImageProcessor if vision is CLIPVisionConfig else SiglipImageProcessor)(
        size=dict(height=side, width=side), image_mean=MEAN, image_std=DEVIATION,
        **(dict(crop_size=dict(height=side, width=side)) if vision is CLIPVisionConfig else {}))
    processor.save_pretrained(folder)
    return vision(**settings), {key.removeprefix("vision_model."): t for key, t in tower.state_dict().items()}


def check_join(a, name, work):
    _, kind, text = name.split("/")
    parts, tokens, out = [os.path.join(work, f"{name.replace('/', '-')}-{part}") for part in ("language", "tower")], None, None
    tokens, out = os.path.join(work, "joined.bin"), parts[0] + "-out"
    vision, tower = write_tower(kind, parts[1])
    side = vision.image_size
    tokenizer = write_tokenizer(parts[0], "Qwen2Tokenizer" if text == "qwen2" else "PreTrainedTokenizerFast", image=text == "qwen3")
    image = len(tokenizer) - (text == "qwen3")  # id of <image>, or the first id after the tokenizer's last one
    config, settings = TEXTS[text]
    vocab = len(tokenizer) if text.startswith("llama") else VOCAB  # with and without an unused row for the image token
    language = AutoModelForCausalLM.from_config(config(**{**TEXT, **settings, "vocab_size": vocab}), dtype=torch.float32)
    with torch.no_grad():
        for parameter in language.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    language.save_pretrained(parts[0])
    data = Data(tokens, side, (side // 4) ** 2, image)
    flags = ["--train", tokens, "--seq-len", str(T), *map(str, Data.flags), "--lr", "0", "--weight-decay", "0", "--steps", "1",
             "--precision", "fp32", "--sample-tokens", "0", "--no-shuffle"]
    run = subprocess.run([a.program, "--model", parts[0], "--vision", parts[1], "--out", out, *flags, *a.flags],
                         capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"FAIL  {name}: {run.stderr}")
    checkpoint = os.path.join(out, "step-00000001")
    loss = json.loads(next(line for line in open(os.path.join(out, "log.jsonl"), encoding="utf-8") if '"loss"' in line))["loss"]
    saved = load_file(os.path.join(checkpoint, "model.safetensors"))
    # joins the parts in transformers
    joined = LlavaConfig(vision_config=vision.to_dict(), text_config=language.config.to_dict(), image_token_index=image,
                         vision_feature_select_strategy="default" if vision.model_type.startswith("clip") else "full",
                         tie_word_embeddings=settings["tie_word_embeddings"])
    joined._attn_implementation = "eager"
    model = LlavaForConditionalGeneration(joined)
    model.model.language_model.load_state_dict(language.model.state_dict())
    model.lm_head.load_state_dict(language.lm_head.state_dict())
    inner = getattr(model.model.vision_tower, "vision_model", model.model.vision_tower)
    inner.load_state_dict(tower)
    model.model.multi_modal_projector.load_state_dict({
        key.removeprefix("multi_modal_projector."): t for key, t in saved.items() if key.startswith("multi_modal_projector.")})
    model.resize_token_embeddings(max(vocab, image + 1), mean_resizing=False)
    with torch.no_grad():
        for rows in {model.get_input_embeddings().weight, model.get_output_embeddings().weight}:
            rows[vocab:] = rows[:vocab].double().mean(0).float()
    expected = {published(key): t for key, t in model.state_dict().items()}
    different = [key for key, t in saved.items() if key not in expected or not torch.equal(t, expected[key])]
    report(f"{name}, number of tensors that differ from transformers': {different[:3]}", len(different), 0)
    report(f"{name}, number of missing tensors", len(set(expected) - set(saved) - {"language_model.lm_head.weight"}), 0)
    with torch.no_grad():
        theirs = data.loss(model, 0).item()
        report(f"{name}, difference of the loss from transformers' {theirs:.4f}", abs(loss - theirs), 2e-6)
    opened, info = LlavaForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    report(f"{name}, number of missing and unexpected tensors of the checkpoint",
           len(info["missing_keys"]) + len(info["unexpected_keys"]), 0)
    with torch.no_grad():
        report(f"{name}, difference of the checkpoint's loss in transformers from the joined model", abs(data.loss(opened, 0).item() - theirs), 1e-6)
    processor = AutoProcessor.from_pretrained(checkpoint, use_fast=True)
    picture = Image.fromarray(data.images[1].permute(1, 2, 0).numpy())
    inputs = processor(images=picture, text="A<image>b", return_tensors="pt")
    count = (inputs["input_ids"] == image).sum().item()
    report(f"{name}, wrong number of image tokens of {type(processor).__name__} ({count})", abs(count - (side // 4) ** 2), 0)
    report(f"{name}, difference of the id of <image> from {image}", abs(opened.config.image_token_index - image), 0)
    report(f"{name}, largest difference of a pixel value of the processor", (inputs["pixel_values"][0] - data.pixels(1)).abs().max().item(), 1e-6)


def main():
    words, flags = sys.argv[1:], []
    if "--" in words:
        words, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--program", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("models", nargs="*")
    a = parser.parse_args(words)
    a.flags, a.data = flags, Data
    for name in a.models:
        if name not in MODELS:
            sys.exit(f"{name}: must be one of {', '.join(MODELS)}")
    with tempfile.TemporaryDirectory() as work:
        for name in a.models or MODELS:
            (check_join if name.startswith("join/") else check)(a, name, work)
    print("FAIL" if check_families.failures else "PASS")
    sys.exit(1 if check_families.failures else 0)


if __name__ == "__main__":
    main()
