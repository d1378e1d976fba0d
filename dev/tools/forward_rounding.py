#!/usr/bin/env python3
"""Measures by how much rounding the operands of FP8 matmuls raises a trained model's loss, for each operand, matmul and
layer. Evaluates a checkpoint in PyTorch in BF16, then with operands of the blocks' matmuls rounded as in COAT's forward
pass: E4M3, with one scale per tensor for weights and qkv's input, and a power of two per token for other activations.

    dev/tools/forward_rounding.py CHECKPOINT VAL.bin [--sequences 192] [--length 1024]

Prints one line per case, with the loss and its difference from BF16's in percent. The cases:
    rounding of one operand, of one matmul's input, of one layer's inputs, or of all blocks but the first ones
    rounding with centered norms (the mean per channel subtracted from the norms' outputs) in the first six blocks, as
    in earlier versions of the recipe coat, with the matmuls of some blocks in BF16
    both operands multiplied by a Hadamard matrix in blocks of channels before rounding; without rounding, this would
    not change the result
    the mean per channel, or per channel and position, subtracted before rounding
    for the channels with the largest sums of squares, the rounding errors also rounded to FP8 and added to the values
Needs torch and transformers, and a GPU for all but small models.
"""
import argparse
import re

import numpy
import torch
from transformers import AutoModelForCausalLM

MATMULS = {  # patterns of module names
    "qkv": "c_attn|q_proj|k_proj|v_proj",
    "proj": r"attn\.c_proj|o_proj",
    "fc": "c_fc|gate_proj|up_proj",
    "fcproj": r"mlp\.c_proj|down_proj",
}
NORMS = ("qkv", "fc")  # matmuls that read a norm's output
LARGEST = 448.0  # largest E4M3 value


def tokens_of(path, count):
    header = numpy.fromfile(path, dtype=numpy.int32, count=256)
    widths = {20240520: numpy.uint16, 20240801: numpy.uint32}
    if len(header) < 256 or int(header[0]) not in widths or int(header[2]) < count:
        raise SystemExit("error: %s: must be a token file in llm.c's format with at least %d tokens; use another file "
                         "or a smaller --sequences" % (path, count))
    width = widths[int(header[0])]
    return torch.from_numpy(numpy.fromfile(path, dtype=width, offset=1024, count=count).astype(numpy.int64))


def e4m3(x, scale):
    return (x / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float() * scale


def by_tensor(x):
    return e4m3(x, x.abs().max() / LARGEST)


def by_token(x):
    largest = x.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    return e4m3(x, torch.exp2(torch.ceil(torch.log2(largest / LARGEST))))


def turned(x, block):
    """Multiplies x by the orthogonal Hadamard matrix of each `block` channels. block: a power of two."""
    rows = x.unflatten(-1, (-1, block))
    for half in (block >> i for i in range(1, block.bit_length())):
        pairs = rows.unflatten(-1, (-1, 2, half))
        rows = torch.stack((pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]), -2).flatten(-3)
    return rows.flatten(-2) / block**0.5


class Matmul:
    """Replaces one matmul of a block. `mode` is (input, weight). "": BF16; "fp8": rounded to FP8. For the input also:
    "centred": minus the mean of its channel; "placed": minus the mean of its channel at its position; "turned B" or
    "centred turned B": both operands multiplied by a Hadamard matrix of B channels; N > 0: for the N channels with the
    largest sums of squares, the rounding errors are also rounded to FP8 and added; N < 0: as for N > 0, but for the -N
    channels with the largest sums of squares in the output of the previous norm (qkv's and fc's norms alternate)."""

    def __init__(self, module, kind, layer):
        self.kind, self.layer, self.mode = kind, layer, ("", "")
        transposed = type(module).__name__ == "Conv1D"
        self.weight = (module.weight.t() if transposed else module.weight).detach().float().contiguous()
        self.bias = None if module.bias is None else module.bias.detach().float()
        self.fp8 = by_tensor(self.weight)
        self.turned = None, None
        # from the first evaluation: sums of the inputs per position and channel, sums of their squares per channel, and
        # the number of sequences
        self.sums, self.squares, self.sequences = 0.0, 0.0, 0
        self.counts = True  # True during the first evaluation
        self.before = self  # the matmul that reads the previous norm
        module.forward = self.forward

    def rounded(self, x, mode):
        x_fp8 = by_tensor(x) if self.kind == "qkv" else by_token(x)
        if mode == "fp8":
            return x_fp8
        of = self if mode > 0 else self.before
        most = torch.argsort(of.squares, descending=True)[: abs(mode)]
        x_fp8[..., most] += by_token((x - x_fp8)[..., most])
        return x_fp8

    def turned_weight(self, block):
        """Returns the weight after the Hadamard transform. Computes it once per evaluation."""
        key = block, self.mode[1]
        if self.turned[0] != key:
            weight = turned(self.weight, block)
            self.turned = key, by_tensor(weight) if self.mode[1] else weight
        return self.turned[1]

    def forward(self, x):
        kept, out = x.dtype, 0.0
        x = x.float()
        if self.counts:
            self.sums, self.squares = self.sums + x.sum(0), self.squares + x.square().sum((0, 1))
            self.sequences += len(x)
        mode, weight = self.mode[0], self.fp8 if self.mode[1] else self.weight
        if isinstance(mode, int):
            x = self.rounded(x, mode)
        elif mode:
            if "centred" in mode or mode == "placed":
                mean = self.sums / self.sequences
                mean = mean if mode == "placed" else mean.mean(0)
                x, out = x - mean, torch.nn.functional.linear(mean, weight)
            if "turned" in mode:
                block = int(mode.split()[-1])
                x, weight = turned(x, block), self.turned_weight(block)
            x = self.rounded(x, "fp8")
        out = out + torch.nn.functional.linear(x, weight)
        return (out if self.bias is None else out + self.bias).to(kept)


class Study:
    def __init__(self, options):
        torch.backends.cuda.matmul.allow_tf32 = True  # TF32 rounds weights and scaled FP8 values to 11 bits
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype=torch.bfloat16).to(device).eval()
        self.matmuls = []
        for name, module in self.model.named_modules():
            kind = [k for k, pattern in MATMULS.items() if re.search("(%s)$" % pattern, name)]
            if kind:
                self.matmuls.append(Matmul(module, kind[0], int(re.search(r"\.(\d+)\.", name).group(1))))
        after_norms = sorted((p for p in self.matmuls if p.kind in NORMS), key=lambda p: (p.layer, p.kind == "fc"))
        for p in after_norms:
            earlier = [q for q in after_norms if (q.layer, q.kind == "fc") < (p.layer, p.kind == "fc")]
            p.before = earlier[-1] if earlier else p
        self.layers = 1 + max(p.layer for p in self.matmuls)
        self.channels = next(p.weight.shape[1] for p in self.matmuls if p.kind == "qkv")
        tokens = tokens_of(options.val, options.sequences * options.length + 1).to(device)
        self.inputs = tokens[:-1].view(-1, options.length)
        self.targets = tokens[1:].view(-1, options.length)
        self.baseline = None

    @torch.no_grad()
    def evaluate(self, name, mode):
        for p in self.matmuls:
            p.mode = mode(p.kind, p.layer)
        total = 0.0
        for x, y in zip(self.inputs.split(4), self.targets.split(4)):
            logits = self.model(x, use_cache=False).logits.float()
            total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum").item()
        loss = total / self.targets.numel()
        self.baseline = self.baseline or loss
        print("%-44s %.5f %+.3f %%" % (name, loss, 100 * (loss / self.baseline - 1)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("val")
    parser.add_argument("--sequences", type=int, default=192)
    parser.add_argument("--length", type=int, default=1024)
    study = Study(parser.parse_args())
    exact, inputs, both = ("", ""), ("fp8", ""), ("fp8", "fp8")
    study.evaluate("BF16", lambda kind, layer: exact)
    for p in study.matmuls:
        p.counts = False
    study.evaluate("all", lambda kind, layer: both)
    study.evaluate("activations", lambda kind, layer: inputs)
    study.evaluate("weights", lambda kind, layer: ("", "fp8"))
    for one in MATMULS:
        study.evaluate("input of %s" % one, lambda kind, layer: inputs if kind == one else exact)
    for one in range(study.layers):
        study.evaluate("inputs of layer %d" % one, lambda kind, layer: inputs if layer == one else exact)
    for count in range(1, min(5, study.layers)):
        study.evaluate("all but the first %d" % count, lambda kind, layer: both if layer >= count else exact)

    def as_default(name, is_exact):
        """Evaluates with all operands rounded, after subtracting channel means from the norms' outputs in the first six
        blocks (the default of earlier versions). A matmul other than fcproj is in BF16 if is_exact(kind, layer) is
        true."""
        centred = ("centred", "fp8")
        study.evaluate(name, lambda kind, layer: exact if kind != "fcproj" and is_exact(kind, layer) else
                       centred if kind in NORMS and layer < 6 else both)

    few = min(4, study.layers - 1)
    for count in (*range(few + 1), study.layers):
        as_default("centered norms, BF16: first %d blocks" % count, lambda kind, layer: layer < count)
    for kinds in ("qkv", "proj", "fc", "qkv proj", "qkv fc", "proj fc"):
        as_default("centered norms, BF16: block 0, and %s of blocks 1 to %d" % (kinds, few - 1),
                   lambda kind, layer: layer < 1 or layer < few and kind in kinds.split())
        as_default("centered norms, BF16: block 0, and %s of all blocks" % kinds,
                   lambda kind, layer: layer < 1 or kind in kinds.split())
    study.evaluate("all, norms' outputs in BF16", lambda kind, layer: ("", "fp8") if kind in NORMS else both)
    blocks = [block for block in (16, 64, 256) if study.channels % block == 0]
    for block in blocks:
        study.evaluate("all, Hadamard transform of norms' outputs in blocks of %d" % block,
                       lambda kind, layer: ("turned %d" % block, "fp8") if kind in NORMS else both)
        study.evaluate("all, Hadamard transform of all inputs in blocks of %d" % block,
                       lambda kind, layer: ("turned %d" % block, "fp8"))
        study.evaluate("all, norms' outputs minus channel means, transform in blocks of %d" % block,
                       lambda kind, layer: ("centred turned %d" % block, "fp8") if kind in NORMS else both)
    study.evaluate("all, norms' outputs minus channel means",
                   lambda kind, layer: ("centred", "fp8") if kind in NORMS else both)
    study.evaluate("all, norms' outputs minus channel means by position",
                   lambda kind, layer: ("placed", "fp8") if kind in NORMS else both)
    study.evaluate("all, inputs minus channel means", lambda kind, layer: ("centred", "fp8"))
    study.evaluate("all, inputs minus channel means by position", lambda kind, layer: ("placed", "fp8"))
    for count in (16, 32, 64, 128):
        study.evaluate("all, with FP8 remainders of %d channels of norms" % count,
                       lambda kind, layer: (count, "fp8") if kind in NORMS else both)
    for count in (32, 64):
        study.evaluate("all, with FP8 remainders of %d channels, chosen at the previous norm" % count,
                       lambda kind, layer: (-count, "fp8") if kind in NORMS else both)
    for one in NORMS:
        study.evaluate("all, with FP8 remainders of 64 channels of %s's input only" % one,
                       lambda kind, layer: (64, "fp8") if kind == one else both)
    for count in (64, 128):
        study.evaluate("all, with FP8 remainders of %d channels" % count, lambda kind, layer: (count, "fp8"))


if __name__ == "__main__":
    main()
