#!/usr/bin/env python3
"""Means over micro-batches of what gradient_stats wrote with --json, checkpoint by checkpoint.

    dev/tools/gradient_table.py OUT FILE.json ...

Writes OUT/gradients.csv, a line per checkpoint, gradient, layer, format and scale, and OUT/gradients.md, the worst layer of
each gradient. A bias is <p, e> / <e, e> - 1 of the product p with codes against the product e without; behind ± is the
standard error of the mean over the micro-batches, _se in the CSV.
"""

import collections
import csv
import json
import math
import os
import re
import sys

FIGURES = ["flushed", "flushed_squares", "data_error", "data_bias", "weight_error", "weight_bias"]
# What COAT takes by default, and both formats with one scale: (format, scale, product).
SHOWN = [("e4m3", "token", "data"), ("e4m3", "tensor", "data"), ("e5m2", "tensor", "weight"), ("e4m3", "tensor", "weight")]


def read(files):
    """{(step, gradient, layer, format, scale): [line, one per micro-batch]}, and which micro-batches of which run."""
    lines = collections.defaultdict(list)
    runs = {}
    for name in files:
        step = None
        with open(name, encoding="utf-8") as file:
            for line in map(json.loads, file):
                if line["line"] == "run":
                    step = int(re.search(r"step-(\d+)", line["model"]).group(1))
                    runs[step, line["batch"]] = line
                elif line["line"] == "variant":
                    lines[step, line["gradient"], line.get("layer", 0), line["format"], line["scale"]].append(line)
    return lines, runs


def mean(values):
    """Mean and its standard error; of one value no error."""
    average = sum(values) / len(values)
    if len(values) < 2:
        return average, 0.0
    return average, math.sqrt(sum((v - average) ** 2 for v in values) / (len(values) - 1) / len(values))


def write_csv(path, lines):
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["step", "gradient", "layer", "codes", "scale", "micro_batches"]
                       + [column for figure in FIGURES for column in (figure, figure + "_se")])
        for key, found in sorted(lines.items()):
            if any(key[3:] == shown[:2] for shown in SHOWN):
                figures = [f"{v:.3g}" for figure in FIGURES for v in mean([line[figure] for line in found])]
                table.writerow([*key, len(found), *figures])


def write_page(path, lines, runs):
    steps = sorted({key[0] for key in lines})
    with open(path, "w", encoding="utf-8") as page:
        run = next(iter(runs.values()))
        print("# Errors and biases of products with gradients' codes", file=page)
        print(f"{run['layers']} layers of {run['channels']} channels, micro-batches of {run['micro_batch']} × {run['seq_len']} tokens, "
              f"on {run['device'].split(',')[0]}; the layer whose bias is furthest from 0, and the largest error, means over "
              "micro-batches. Each product is in [gradients.csv](gradients.csv). COAT's default takes the first and the third of these "
              "tables, and dlogits only with --head fp8.\n", file=page)
        for codes, scale, product in SHOWN:
            print(f"## {product.capitalize()} gradients: {codes.upper()}, a scale per {scale}\n", file=page)
            print("| step | micro-batches | gradient | bias, all layers | furthest bias | layer | largest error | flushed, of the squares |", file=page)
            print("| --- | --- | --- | --- | --- | --- | --- | --- |", file=page)
            for step in steps:
                gradients = dict.fromkeys(key[1] for key in lines if key[0] == step)
                for gradient in gradients:
                    layers = {key[2]: found for key, found in lines.items() if key[:2] == (step, gradient) and key[3:] == (codes, scale)}
                    bias = {layer: mean([line[product + "_bias"] for line in found]) for layer, found in layers.items()}
                    error = max(mean([line[product + "_error"] for line in found])[0] for found in layers.values())
                    flushed = max(line["flushed_squares"] for found in layers.values() for line in found)
                    worst = max(bias, key=lambda layer: abs(bias[layer][0]))
                    print(f"| {step} | {len(layers[worst])} | {gradient} | {100 * sum(b for b, _ in bias.values()) / len(bias):+.2f} % "
                          f"| {100 * bias[worst][0]:+.2f} ± {100 * bias[worst][1]:.2f} % | {worst + 1 if len(bias) > 1 else '–'} | {error:.4f} | {flushed:.0e} |", file=page)
            print(file=page)


def main():
    if len(sys.argv) < 3 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__.strip())
    lines, runs = read(sys.argv[2:])
    if not lines:
        sys.exit(f"error: no lines of gradient_stats --json in {', '.join(sys.argv[2:])}")
    os.makedirs(sys.argv[1], exist_ok=True)
    write_csv(os.path.join(sys.argv[1], "gradients.csv"), lines)
    write_page(os.path.join(sys.argv[1], "gradients.md"), lines, runs)


if __name__ == "__main__":
    main()
