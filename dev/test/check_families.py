#!/usr/bin/env python3
"""Trains small models of every family with this program and with PyTorch, and compares them: 30 updates on the same tokens.

    dev/test/check_families.py --program ./train_gpt2_fp8_cpu [--muon] [--packed] [--logits ./test_gpt2_cpu] [FAMILY...] [-- FLAGS]

transformers writes a random model of unusual shape (grouped heads, a separate head width, tied and untied heads, scaled
RoPE, a clip). The program starts from that folder and trains in FP32, BF16 and COAT. Checks:
    the losses of all updates match those of transformers' model, which trains in FP32
    the FP32 gradients match tensor by tensor. The program's gradients are read from its states after one update: 10 times
        AdamW's first moment, or 20 times Muon's momentum
    transformers opens the last FP32 checkpoint, with the same loss as PyTorch's trained model
FLAGS are passed to the program, for example --device cpu.

--packed tests fine-tuning: examples with a loss mask, packed into sequences and masked from each other. transformers gets
labels of -100, positions that restart at 0 in each example, and attention within each example. transformers processes a
step in one batch, the program in two micro-batches.

--muon updates the blocks' matrices with torch.optim.Muon (PyTorch 2.9 or later), whose Newton-Schulz iterations in BF16
this script replaces by iterations in FP32. A second model, trained with PyTorch's own iterations, must end near the first.
GPT-2's c_attn counts as three matrices.

--logits PROGRAM also compares the FP32 logits of the random model and of the last FP32 checkpoint. PROGRAM is test_gpt2_cpu.

Prints one line per check, then PASS or FAIL, with a matching exit code. Needs torch and transformers 4.56 or later.
"""
import argparse
import copy
import itertools
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data"))
sys.dont_write_bytecode = True
from prepare_masks import masked_file  # noqa: E402

if {"-h", "--help"} & set(sys.argv):
    print(__doc__)
    sys.exit(0)
try:
    import torch
    import transformers
    from safetensors.torch import load_file
    from transformers import (AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Olmo2Config, OlmoConfig, Qwen2Config,
                              Qwen3Config)
except ImportError as e:
    print(f"error: check_families.py needs torch and transformers 4.56 or later: pip install torch transformers ({e})",
          file=sys.stderr)
    sys.exit(2)

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)  # matmuls are small, and threads would wait for each other on a busy machine
VOCAB, B, T, UPDATES = 300, 4, 40, 30
SIZES = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.05)
SCALING = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=32)
FAMILIES = {
    "gpt2": (GPT2Config, dict(tie_word_embeddings=True, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
                              eos_token_id=None)),
    "llama": (LlamaConfig, dict(tie_word_embeddings=False, rms_norm_eps=1e-5)),
    "llama-3.2": (LlamaConfig, dict(tie_word_embeddings=True, head_dim=32, rope_theta=5e5, rope_scaling=SCALING)),
    "mistral": (MistralConfig, dict(tie_word_embeddings=False, sliding_window=None, head_dim=24)),
    # no padding token, because its row would have no gradient; few values near the clip, because there the last bit
    # decides whether a gradient is 0, which changes a loss by 1e-5
    "olmo": (OlmoConfig, dict(tie_word_embeddings=True, clip_qkv=0.9, num_key_value_heads=4, eos_token_id=None,
                              pad_token_id=None)),
    "olmo-7b": (OlmoConfig, dict(tie_word_embeddings=False, eos_token_id=None, pad_token_id=None)),
    "olmo2": (Olmo2Config, dict(tie_word_embeddings=False, rope_theta=5e5, rms_norm_eps=1e-6, eos_token_id=None,
                                pad_token_id=None)),
    "qwen2": (Qwen2Config, dict(tie_word_embeddings=True, rope_theta=1e6)),
    "qwen2.5-7b": (Qwen2Config, dict(tie_word_embeddings=False, rope_theta=1e6)),
    "qwen3-0.6b": (Qwen3Config, dict(tie_word_embeddings=True, head_dim=32, rope_theta=1e6)),
    "qwen3": (Qwen3Config, dict(tie_word_embeddings=False, head_dim=24, rope_theta=1e6)),
}
# maximum difference of a loss
TOLERANCES = {"--precision fp32": 2e-6, "--recipe bf16": 5e-3, "--recipe coat": 2e-2}
# maximum difference of a matrix after 30 updates by Muon, relative to its norm: between the program and PyTorch with FP32
# iterations, and between PyTorch with BF16 and with FP32 iterations
MUON_TOLERANCE, SHIPPED_TOLERANCE = 2e-6, 5e-3
GRADIENT_TOLERANCE = 1e-5  # maximum error of a gradient, relative to its norm
OPTIMIZER = dict(betas=(0.9, 0.95), eps=1e-8)
failures = 0


def number(x):
    return math.inf if math.isnan(x) else x


def report(name, difference, limit):
    global failures
    good = difference <= limit
    failures += not good
    print(f"{'PASS' if good else 'FAIL'}  {name}: {difference:.2e} (at most {limit:g})", flush=True)


def write_model(name, folder):
    kind, settings = FAMILIES[name]
    torch.manual_seed(1)
    sizes = {**SIZES, **settings}
    if kind is GPT2Config:
        del sizes["intermediate_size"], sizes["num_key_value_heads"]
    model = AutoModelForCausalLM.from_config(kind(**sizes), dtype=torch.float32,
                                             attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # random norms and biases, because 1 and 0 would hide errors
                parameter.add_(torch.randn_like(parameter) * 0.1)
            parameter.copy_(parameter.bfloat16().float())
    model.save_pretrained(folder)
    return model


def some_tokens(count):
    tokens = torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(2))
    return tokens * tokens // VOCAB  # draws small ids more often, so that there is something to learn


class Stream:
    """Writes a token file and makes PyTorch's batches of it: consecutive tokens, all of them with a loss."""

    flags = ("--micro-batch", B)

    def __init__(self, path):
        count = UPDATES * B * T + T + 1
        self.tokens = some_tokens(count)
        with open(path, "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
            file.write(struct.pack(f"<{count}H", *self.tokens.tolist()))

    def loss(self, model, step):
        first = step * B * T
        rows = torch.stack([self.tokens[first + i * T : first + i * T + T + 1] for i in range(B)])
        logits = model(rows[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


def first_fit(lengths):
    """Packs examples of these lengths into sequences of T tokens by first fit, longest first. Returns the examples of each
    sequence; sequences and their examples are in file order."""
    rows, left = [], []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((row for row, room in enumerate(left) if room >= lengths[i]), len(left))
        if row == len(left):
            left.append(T)
            rows.append([])
        left[row] -= lengths[i]
        rows[row].append(i)
    return sorted(sorted(row) for row in rows)


class Packed:
    """Writes a token file with a loss mask and makes PyTorch's packed batches of it: examples of 2 to T tokens, of which the
    first 30 to 70 % are masked."""

    flags = ("--micro-batch", B // 2, "--batch-tokens", B * T, "--documents", "apart")

    def __init__(self, path):
        pick = random.Random(3)
        lengths, tokens = [pick.randint(2, T) for _ in range(12 * UPDATES)], some_tokens(12 * UPDATES * T)
        prompts = [max(1, int(length * pick.uniform(0.3, 0.7))) for length in lengths]
        self.examples = [(tokens[i * T : i * T + lengths[i]], prompts[i]) for i in range(len(lengths))]
        mask = b"".join(bytes(prompt) + b"\1" * (length - prompt) for length, prompt in zip(lengths, prompts))
        text = b"".join(struct.pack(f"<{len(ids)}H", *ids.tolist()) for ids, _ in self.examples)
        starts = [0, *itertools.accumulate(lengths)][:-1]
        with open(path, "wb") as file:
            file.write(masked_file(2, text, starts, mask))
        self.rows = first_fit(lengths)

    def loss(self, model, step):
        ids, positions = torch.zeros(B, T, dtype=torch.long), torch.zeros(B, T, dtype=torch.long)
        labels, sees = torch.full((B, T), -100), torch.eye(T, dtype=torch.bool).repeat(B, 1, 1)
        for b, row in enumerate(self.rows[step * B : (step + 1) * B]):
            at = 0
            for tokens, prompt in (self.examples[i] for i in row):
                end = at + len(tokens)
                ids[b, at:end], positions[b, at:end] = tokens, torch.arange(end - at)
                labels[b, at + prompt : end] = tokens[prompt:]
                sees[b, at:end, at:end] = torch.ones(end - at, end - at, dtype=torch.bool).tril()
                at = end
        hidden = torch.zeros(B, 1, T, T).masked_fill(~sees[:, None], torch.finfo(torch.float32).min)
        return model(input_ids=ids, position_ids=positions, attention_mask=hidden, labels=labels).loss


def is_in_block(name):
    return ".layers." in name or ".h." in name


def pieces(name, tensor):
    """Returns views of the matrices that Muon orthogonalizes one by one, in the layout (out, in) in which the program stores
    them."""
    rows = tensor.T if ".h." in name else tensor  # GPT-2 stores the transpose
    return rows.chunk(3) if "c_attn" in name else [rows]


def newton_schulz(matrix, coefficients, steps, eps):
    """Computes in FP32 what torch.optim.Muon computes in BF16."""
    a, b, c = coefficients
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def train_here(model, data, rates, muon=False):
    updated = {key: p for key, p in model.named_parameters() if muon and p.dim() == 2 and is_in_block(key)}
    views = {key: [torch.nn.Parameter(view) for view in pieces(key, p.data)] for key, p in updated.items()}
    matrices = [p for key, p in model.named_parameters() if p.dim() == 2 and key not in updated]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizers = [torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)],
                                    **OPTIMIZER)]
    if muon:
        optimizers.append(torch.optim.Muon([view for key in views for view in views[key]], weight_decay=0.1, momentum=0.95,
                                           nesterov=True, adjust_lr_fn="match_rms_adamw"))
    losses = []
    for step, rate in enumerate(rates):
        model.zero_grad()
        loss = data.loss(model, step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for key, p in updated.items():
            for view, grad in zip(views[key], pieces(key, p.grad)):
                view.grad = grad
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        losses.append(loss.item())
    return losses


def train_with_muon(name, model, data, rates):
    """Trains `model` with Newton-Schulz iterations in FP32, and compares it with a model trained with PyTorch's own."""
    shipped, module = copy.deepcopy(model), torch.optim._muon
    train_here(shipped, data, rates, muon=True)
    iterations, module._zeropower_via_newtonschulz = module._zeropower_via_newtonschulz, newton_schulz
    losses = train_here(model, data, rates, muon=True)
    module._zeropower_via_newtonschulz = iterations
    report(f"{name}, largest difference of a matrix from PyTorch's iterations in BF16", largest_difference(shipped, model), SHIPPED_TOLERANCE)
    return losses


def largest_difference(model, exact):
    theirs = dict(model.named_parameters())
    return max(number(((p - theirs[key]).norm() / p.norm()).item()) for key, p in exact.named_parameters() if p.dim() == 2)


def train_there(a, folder, tokens, out, recipe, updates=UPDATES, clip=1):
    command = [a.program, "--model", folder, "--train", tokens, "--no-shuffle", "--steps", updates, *a.data.flags,
               "--seq-len", T, "--lr", 1e-3, "--warmup", UPDATES, "--schedule", "constant", "--weight-decay", 0.1,
               "--beta2", 0.95, "--grad-clip", clip, "--sample-tokens", 0, "--quiet", "--out", out, *recipe.split(), *a.flags]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"failed ({done.returncode}): {' '.join(map(str, command))}\n{done.stdout}")
    lines = [json.loads(line) for line in open(os.path.join(out, "log.jsonl"), encoding="utf-8")]
    steps = [line for line in lines if "step" in line and "loss" in line]
    return [line["loss"] for line in steps], [line["lr"] for line in steps]


def worst_gradient(ours, theirs):
    """Returns the largest relative error of a gradient, and its tensor. ours: an optimizer.safetensors after one update;
    theirs: PyTorch's gradients by name. Removes the gradients that it compares from `theirs`."""
    worst, of = 0.0, ""
    for key in [key[:-2] for key in ours if key.endswith(".m")]:
        parts = [key]  # this program stores q, k, v in one tensor, and gate and up in one
        for one, several in ("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj")):
            parts = [part.replace(one, each) for part in parts for each in (several if one in part else [one])]
        expected = torch.cat([theirs.pop(part) for part in parts])
        expected = expected.reshape(len(expected), -1) if expected.dim() > 1 else expected
        factor = 10 if key + ".v" in ours else 20
        found = ours[key + ".m"].reshape(-1, *expected.shape[1:])[: len(expected)] * factor  # drops the vocabulary's padding
        if ".h." in key and expected.dim() == 2:
            found = found.reshape(expected.T.shape).T  # GPT-2's matrices are transposed in PyTorch
        difference = ((found - expected).norm() / expected.norm()).item()
        worst, of = max((worst, of), (number(difference), key))
    return worst, of


def first_gradients(a, model, data, folder, tokens):
    """Computes the gradients of the first update in both programs. Leaves PyTorch's in `model`. Returns this program's
    optimizer.safetensors, whose first moments are a tenth of the gradients."""
    out = folder + "-gradients"
    train_there(a, folder, tokens, out, "--precision fp32", updates=1, clip=0)
    model.zero_grad()
    data.loss(model, 0).backward()
    return load_file(os.path.join(out, "step-00000001", "optimizer.safetensors"))


def check_gradients(a, name, model, data, folder, tokens):
    ours = first_gradients(a, model, data, folder, tokens)
    theirs = {key: p.grad for key, p in model.named_parameters()}
    worst, of = worst_gradient(ours, theirs)
    report(f"{name}, largest relative error of a gradient ({of})", math.inf if theirs else worst, GRADIENT_TOLERANCE)


def check_logits(a, name, model, folder):
    out = folder + ".safetensors"
    subprocess.run([a.logits, "--logits", folder, out, "fp32"], check=True)
    found = load_file(out)
    with torch.no_grad():
        theirs = model(found["tokens"].long()).logits
    ours = found["logits"][..., : theirs.shape[-1]]  # drops the vocabulary's padding
    report(f"{name}, relative error of the logits of {theirs.shape[1]} tokens", ((ours - theirs).norm() / theirs.norm()).item(), 1e-5)


def check(a, name, work):
    folder, token_file = os.path.join(work, name), os.path.join(work, "tokens.bin")
    model, data = write_model(name, folder), a.data(token_file)
    if a.logits:
        check_logits(a, f"{name}, random model", model, folder)
    check_gradients(a, name, model, data, folder, token_file)
    expected = None
    for recipe, limit in TOLERANCES.items():
        out = os.path.join(work, name + recipe.replace(" ", ""))
        losses, rates = train_there(a, folder, token_file, out, recipe)
        expected = expected or (train_with_muon(name, model, data, rates) if a.muon else train_here(model, data, rates))
        largest = max(number(abs(x - y)) for x, y in zip(losses, expected, strict=True))
        report(f"{name}, {recipe}, {len(losses)} losses from {expected[0]:.4f} to {expected[-1]:.4f}", largest, limit)
        if recipe == "--precision fp32":
            opened = AutoModelForCausalLM.from_pretrained(os.path.join(out, f"step-{UPDATES:08d}"), dtype=torch.float32)
            with torch.no_grad():  # the tolerance is larger, because the weights have the FP32 errors of 30 updates
                report(f"{name}, difference of the checkpoint's loss in transformers from PyTorch's model",
                       abs(data.loss(opened, 0).item() - data.loss(model, 0).item()), 1e-5)
            if a.muon:
                report(f"{name}, largest difference of a matrix of the checkpoint from PyTorch's model", largest_difference(opened, model), MUON_TOLERANCE)
            if a.logits:
                check_logits(a, f"{name}, last checkpoint", opened, os.path.join(out, f"step-{UPDATES:08d}"))


def main():
    words, flags = sys.argv[1:], []
    if "--" in words:
        words, flags = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--program", required=True)
    parser.add_argument("--packed", dest="data", action="store_const", const=Packed, default=Stream)
    parser.add_argument("--logits", metavar="PROGRAM")
    parser.add_argument("--muon", action="store_true")
    parser.add_argument("families", nargs="*")
    a = parser.parse_args(words)
    a.flags = flags + ["--optimizer", "muon"] * a.muon
    for name in a.families:
        if name not in FAMILIES:
            sys.exit(f"{name}: must be one of {', '.join(FAMILIES)}")
    with tempfile.TemporaryDirectory() as work:
        for name in a.families or FAMILIES:
            check(a, name, work)
    print("FAIL" if failures else "PASS")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
