#!/usr/bin/env python3
"""What the rounding of FP8 products costs a trained model's loss, and where: a checkpoint's weights are evaluated in
PyTorch in BF16, then with the inputs of some of the blocks' products rounded as COAT's forward pass rounds them: E4M3,
weights and qkv's input with one scale per tensor, other activations with a power of two per token.

    dev/tools/forward_rounding.py CHECKPOINT VAL.bin [--sequences 192] [--length 1024]

Prints the loss and its difference in percent per line: by operand, by product, by layer; without the first blocks; as the
default rounds, with products of some blocks in BF16; with both operands turned by a Hadamard matrix in blocks of channels
before rounding, which changes no product; with a mean per channel, or per channel and position, taken out before rounding;
and with what rounding loses of the channels that hold most of the sum of squares added in codes of its own. Needs torch and
transformers, and a GPU for more than a small model.
"""
import argparse
import re

import numpy
import torch
from transformers import AutoModelForCausalLM

PRODUCTS = {  # by the names of modules
    "qkv": "c_attn|q_proj|k_proj|v_proj",
    "proj": r"attn\.c_proj|o_proj",
    "fc": "c_fc|gate_proj|up_proj",
    "fcproj": r"mlp\.c_proj|down_proj",
}
NORMS = ("qkv", "fc")  # products that read a norm's output
LARGEST = 448.0  # of E4M3


def tokens_of(path, count):
    header = numpy.fromfile(path, dtype=numpy.int32, count=256)
    widths = {20240520: numpy.uint16, 20240801: numpy.uint32}
    if len(header) < 256 or int(header[0]) not in widths or int(header[2]) < count:
        raise SystemExit("error: %s: not a token file of llm.c's with %d tokens; see --sequences" % (path, count))
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
    """By an orthogonal matrix: the Hadamard matrix of every `block` channels, a power of two."""
    rows = x.unflatten(-1, (-1, block))
    for half in (block >> i for i in range(1, block.bit_length())):
        pairs = rows.unflatten(-1, (-1, 2, half))
        rows = torch.stack((pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]), -2).flatten(-3)
    return rows.flatten(-2) / block**0.5


class Product:
    """One product of a block in place of the module's own. `mode` is (input, weight): "" as in BF16, "codes"; of the
    input also "centred", less the mean of its channel, or "placed", less that of its channel at its position; "turned B"
    or "centred turned B", both operands turned in blocks of B channels; or the number of channels whose remainder has
    codes, too: those that hold most of the squares, or (negative) that do so in what the norm before this one made."""

    def __init__(self, module, kind, layer):
        self.kind, self.layer, self.mode = kind, layer, ("", "")
        transposed = type(module).__name__ == "Conv1D"
        self.weight = (module.weight.t() if transposed else module.weight).detach().float().contiguous()
        self.bias = None if module.bias is None else module.bias.detach().float()
        self.codes = by_tensor(self.weight)
        self.turned = None, None
        self.sums, self.squares, self.sequences = 0.0, 0.0, 0  # by position and channel, in the first evaluation
        self.counts = True
        self.before = self
        module.forward = self.forward

    def rounded(self, x, mode):
        x_codes = by_tensor(x) if self.kind == "qkv" else by_token(x)
        if mode == "codes":
            return x_codes
        of = self if mode > 0 else self.before
        most = torch.argsort(of.squares, descending=True)[: abs(mode)]
        x_codes[..., most] += by_token((x - x_codes)[..., most])
        return x_codes

    def turned_weight(self, block):
        """Made once for all batches of an evaluation."""
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
        mode, weight = self.mode[0], self.codes if self.mode[1] else self.weight
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
            x = self.rounded(x, "codes")
        out = out + torch.nn.functional.linear(x, weight)
        return (out if self.bias is None else out + self.bias).to(kept)


class Study:
    def __init__(self, options):
        torch.backends.cuda.matmul.allow_tf32 = True  # rounds weights and scaled codes to 11 bits
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype=torch.bfloat16).to(device).eval()
        self.products = []
        for name, module in self.model.named_modules():
            kind = [k for k, pattern in PRODUCTS.items() if re.search("(%s)$" % pattern, name)]
            if kind:
                self.products.append(Product(module, kind[0], int(re.search(r"\.(\d+)\.", name).group(1))))
        halves = sorted((p for p in self.products if p.kind in NORMS), key=lambda p: (p.layer, p.kind == "fc"))
        for p in halves:
            earlier = [q for q in halves if (q.layer, q.kind == "fc") < (p.layer, p.kind == "fc")]
            p.before = earlier[-1] if earlier else p
        self.layers = 1 + max(p.layer for p in self.products)
        self.channels = next(p.weight.shape[1] for p in self.products if p.kind == "qkv")
        tokens = tokens_of(options.val, options.sequences * options.length + 1).to(device)
        self.inputs = tokens[:-1].view(-1, options.length)
        self.targets = tokens[1:].view(-1, options.length)
        self.baseline = None

    @torch.no_grad()
    def evaluate(self, name, mode):
        for p in self.products:
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
    exact, inputs, both = ("", ""), ("codes", ""), ("codes", "codes")
    study.evaluate("BF16", lambda kind, layer: exact)
    for p in study.products:
        p.counts = False
    study.evaluate("all", lambda kind, layer: both)
    study.evaluate("activations", lambda kind, layer: inputs)
    study.evaluate("weights", lambda kind, layer: ("", "codes"))
    for one in PRODUCTS:
        study.evaluate("input of %s" % one, lambda kind, layer: inputs if kind == one else exact)
    for one in range(study.layers):
        study.evaluate("inputs of layer %d" % one, lambda kind, layer: inputs if layer == one else exact)
    for count in range(1, min(5, study.layers)):
        study.evaluate("all but the first %d" % count, lambda kind, layer: both if layer >= count else exact)

    def as_default(name, is_exact):
        """Norms of six blocks minus their channel means, and in BF16 what is_exact(kind, layer); fcproj never is."""
        centred = ("centred", "codes")
        study.evaluate(name, lambda kind, layer: exact if kind != "fcproj" and is_exact(kind, layer) else
                       centred if kind in NORMS and layer < 6 else both)

    few = min(4, study.layers - 1)
    for count in (*range(few + 1), study.layers):
        as_default("as the default, %d blocks in BF16" % count, lambda kind, layer: layer < count)
    for kinds in ("qkv", "proj", "fc", "qkv proj", "qkv fc", "proj fc"):
        as_default("of blocks 1 to %d only %s, and block 0" % (few - 1, kinds),
                   lambda kind, layer: layer < 1 or layer < few and kind in kinds.split())
        as_default("of all blocks only %s, and block 0" % kinds, lambda kind, layer: layer < 1 or kind in kinds.split())
    study.evaluate("all, norms' outputs exact", lambda kind, layer: ("", "codes") if kind in NORMS else both)
    blocks = [block for block in (16, 64, 256) if study.channels % block == 0]
    for block in blocks:
        study.evaluate("all, norms' outputs turned in blocks of %d" % block,
                       lambda kind, layer: ("turned %d" % block, "codes") if kind in NORMS else both)
        study.evaluate("all, turned in blocks of %d" % block, lambda kind, layer: ("turned %d" % block, "codes"))
        study.evaluate("all, norms' outputs less means, turned, %d" % block,
                       lambda kind, layer: ("centred turned %d" % block, "codes") if kind in NORMS else both)
    study.evaluate("all, norms' outputs less means",
                   lambda kind, layer: ("centred", "codes") if kind in NORMS else both)
    study.evaluate("all, norms' outputs less means by position",
                   lambda kind, layer: ("placed", "codes") if kind in NORMS else both)
    study.evaluate("all, inputs less means", lambda kind, layer: ("centred", "codes"))
    study.evaluate("all, inputs less means by position", lambda kind, layer: ("placed", "codes"))
    for count in (16, 32, 64, 128):
        study.evaluate("all, remainders of %d channels of norms" % count,
                       lambda kind, layer: (count, "codes") if kind in NORMS else both)
    for count in (32, 64):
        study.evaluate("the same, %d by the norm before" % count,
                       lambda kind, layer: (-count, "codes") if kind in NORMS else both)
    for one in NORMS:
        study.evaluate("the same, 64, of %s alone" % one, lambda kind, layer: (64, "codes") if kind == one else both)
    for count in (64, 128):
        study.evaluate("all, remainders of %d channels" % count, lambda kind, layer: (count, "codes"))


if __name__ == "__main__":
    main()
