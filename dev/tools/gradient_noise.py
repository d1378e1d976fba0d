#!/usr/bin/env python3
"""Measures how far a recipe's gradients are from BF16's. Weights each element as AdamW does, by its second moment.

    train=(--model CHECKPOINT --train TRAIN --steps 20 --lr 0 --beta1 0 --grad-clip 0 --moments fp32)
    ./train_gpt2_fp8 "${train[@]}" --recipe bf16 --out runs/bf16
    ./train_gpt2_fp8 "${train[@]}" --recipe coat --out runs/coat
    dev/tools/gradient_noise.py runs/bf16/step-00000020 runs/coat/step-00000020

With --lr 0 the weights do not change. With --beta1 0 the first moment is the last step's gradient g. The second moment,
with AdamW's bias correction, is v: the mean square of about the last 1 / (1 - beta2) gradients. The first checkpoint
has g and v, the second g' and v'. Prints for each kind of tensor (over all layers), for each layer and for all tensors:
    error   |g' - g| / |g|
    noise   mean of (g' - g)^2 / v: mean square of the gradient's error, relative to the mean square of the gradient
    rate    <u', u> / <u, u> - 1 with u = g / sqrt v and u' = g' / sqrt v', the relative change of AdamW's learning rate
Needs numpy.
"""
import json
import re
import struct
import sys

import numpy


class States:
    """Reads the FP32 moments in a checkpoint that a single process saved."""

    def __init__(self, folder):
        self.path = folder + "/optimizer.safetensors"
        try:
            with open(self.path, "rb") as file:
                size = struct.unpack("<Q", file.read(8))[0]
                self.header = json.loads(file.read(size))
        except (OSError, ValueError, struct.error) as e:
            sys.exit(f"error: {folder}: must be a checkpoint with optimizer states that one process saved ({e})")
        self.begin = 8 + size
        self.header.pop("__metadata__", None)
        try:
            with open(folder + "/state.json") as file:
                step = json.load(file)["step_state"]
            self.correction = 1 / (1 - step["beta2"] ** step["t"])
        except (OSError, ValueError, KeyError, ZeroDivisionError) as e:
            sys.exit(f"error: {folder}/state.json: contains no AdamW step ({e})")

    def names(self):
        return [name[:-2] for name in self.header if name.endswith(".m")]

    def read(self, name):
        entry = self.header.get(name)
        if entry is None or entry["dtype"] != "F32":
            sys.exit(f"error: {self.path}: contains no {name} in FP32; train with --moments fp32 on one process")
        begin, end = entry["data_offsets"]
        values = numpy.fromfile(self.path, numpy.float32, (end - begin) // 4, offset=self.begin + begin)
        return values * self.correction if name.endswith(".v") else values


class Sums:
    def __init__(self):
        self.error = self.total = self.noise = self.along = self.update = self.count = 0.0

    def add(self, g, v, other_g, other_v):
        used = (v > 0) & (other_v > 0)  # ignores elements without a gradient, such as those of tokens that do not occur
        g, v, other_g, other_v = (x[used].astype(numpy.float64) for x in (g, v, other_g, other_v))
        square = (other_g - g) ** 2
        self.error += square.sum()
        self.total += (g**2).sum()
        self.noise += (square / v).sum()
        self.along += (other_g * g / numpy.sqrt(v * other_v)).sum()
        self.update += (g**2 / v).sum()
        self.count += g.size

    def row(self, name):
        error = (self.error / self.total) ** 0.5 if self.total else 0.0
        noise = self.noise / max(self.count, 1.0)
        rate = self.along / self.update - 1 if self.update else 0.0
        print(f"{name:28} {100 * error:8.2f} % {100 * noise:8.3f} % {100 * rate:+8.3f} %")


def main():
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    first, second = States(sys.argv[1]), States(sys.argv[2])
    if first.names() != second.names():
        sys.exit(f"error: {second.path}: its tensors differ from those of {first.path}")
    kinds, layers, everything = {}, {}, Sums()
    for name in first.names():
        values = [states.read(name + part) for states in (first, second) for part in (".m", ".v")]
        layer = re.search(r"\.(\d+)\.", name)
        kind = re.sub(r".*\.\d+\.", "", name)
        groups = [everything, kinds.setdefault(kind, Sums())]
        if layer:
            groups.append(layers.setdefault(int(layer[1]), Sums()))
        for group in groups:
            group.add(*values)
    print(f"{'':28} {'error':>10} {'noise':>10} {'rate':>10}")
    for kind, sums in kinds.items():
        sums.row(kind)
    for layer, sums in sorted(layers.items()):
        sums.row(f"layer {layer + 1}")
    everything.row("all")


if __name__ == "__main__":
    main()
