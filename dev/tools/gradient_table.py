#!/usr/bin/env python3
"""Averages the output of gradient_stats --json over micro-batches, for each
checkpoint.

    dev/tools/gradient_table.py OUT FILE.json ...

Writes OUT/gradients.csv, with a line per checkpoint, gradient, layer (from 1; 0:
the head), format and scale, and OUT/gradients.md, with the worst layer of each
gradient. A bias is <p, e> / <e, e> - 1 of the matmul p with the FP8 gradient and
the matmul e with the exact gradient. In the page, ± precedes the standard error of
the mean over the micro-batches; in the CSV, columns named _se contain this error.
"""
import collections
import csv
import json
import math
import os
import re
import sys

FIGURES = ["flushed", "flushed_squares", "data_error", "data_bias", "weight_error", "weight_bias"]
# (format, scale, matmul): COAT's defaults, and E4M3 with one scale per tensor for comparison
SHOWN = [("e4m3", "token", "data"), ("e4m3", "tensor", "data"), ("e5m2", "tensor", "weight"),
         ("e4m3", "tensor", "weight")]

MATMULS = {"data": "dgrad", "weight": "wgrad"}
EXPLANATION = """\
A matmul p with the gradient in FP8 is compared with the matmul e with the exact gradient. The error is
|p − e| / |e|; the bias is <p, e> / <e, e> − 1. All figures are means over the micro-batches:

- mean bias: mean of the biases of all layers
- largest bias: bias of the layer whose bias is furthest from 0, ± its standard error
- largest error: error of the layer with the largest error
- largest flushed part: the flushed part is the sum of squares of the values that FP8 rounds to 0, divided by the sum of
  squares of all values of the gradient; the column shows the layer with the largest

[gradients.csv](gradients.csv) contains all layers. By default, `--recipe coat` uses the formats of the first table in
dgrad and of the third in wgrad. An FP8 head (`--head fp8` or `fp8-backward`) reads dlogits in E5M2 in both.
"""


class Mean:
    """The mean of values and its standard error, which is None for one value."""

    def __init__(self, values):
        self.mean = sum(values) / len(values)
        squares = sum((value - self.mean) ** 2 for value in values)
        self.error = math.sqrt(squares / (len(values) - 1) / len(values)) if len(values) > 1 else None

    def percent(self):
        return f"{100 * self.mean:+.2f}" + ("" if self.error is None else f" ± {100 * self.error:.2f}") + " %"


def read(files):
    """Returns {(step, gradient, layer, format, scale): [the line of each micro-batch]} and the first "run" line."""
    lines = collections.defaultdict(list)
    seen, first = {}, None
    for name in files:
        step = None
        with open(name, encoding="utf-8") as file:
            for line in map(json.loads, file):
                if line["line"] == "run":
                    found = re.search(r"step-(\d+)/?$", line["model"])
                    step = int(found.group(1)) if found else 0
                    first = first or line
                    for key in ("layers", "channels", "micro_batch", "seq_len"):
                        if line[key] != first[key]:
                            sys.exit(f"error: {name}: its {key} differs from that of {files[0]}")
                    if (step, line["batch"]) in seen:
                        sys.exit(f"error: {name}: {seen[step, line['batch']]} contains the same micro-batch")
                    seen[step, line["batch"]] = name
                elif line["line"] == "variant":
                    key = step, line["gradient"], line.get("layer", -1) + 1, line["format"], line["scale"]
                    lines[key].append(line)
    if not lines:
        sys.exit(f"error: {', '.join(files)}: no output of gradient_stats --json")
    return lines, first


def write_csv(path, lines):
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        columns = [column for figure in FIGURES for column in (figure, figure + "_se")]
        table.writerow(["step", "gradient", "layer", "codes", "scale", "micro_batches"] + columns)
        for key, found in sorted(lines.items()):
            if not any(key[3:] == shown[:2] for shown in SHOWN):
                continue
            means = [Mean([line[figure] for line in found]) for figure in FIGURES]
            figures = [f"{value:.3g}" for m in means for value in (m.mean, m.error or 0.0)]
            table.writerow([*key, len(found), *figures])


def row(step, gradient, layers, matmul):
    """Returns a row of the Markdown table for one gradient. layers: {layer: [the line of each micro-batch]}."""

    def means(figure):
        return {layer: Mean([line[figure] for line in found]) for layer, found in layers.items()}

    bias = means(matmul + "_bias")
    worst = max(bias, key=lambda layer: abs(bias[layer].mean))
    error = max(m.mean for m in means(matmul + "_error").values())
    flushed = max(m.mean for m in means("flushed_squares").values())
    cells = [step, len(layers[worst]), gradient, f"{100 * sum(m.mean for m in bias.values()) / len(bias):+.2f} %",
             bias[worst].percent(), worst or "–", f"{error:.4f}", f"{flushed:.0e}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def write_page(path, lines, run):
    with open(path, "w", encoding="utf-8") as page:
        print("# Errors and biases of dgrad and wgrad with FP8 gradients", file=page)
        print(f"Model: {run['layers']} layers of {run['channels']} channels. Micro-batches: {run['micro_batch']} × "
              f"{run['seq_len']} tokens. GPU: {run['device'].split(',')[0]}.\n", file=page)
        print(EXPLANATION, file=page)
        for format, scale, matmul in SHOWN:
            print(f"## {MATMULS[matmul]} with gradients in {format.upper()}, a scale per {scale}\n", file=page)
            print("| step | micro-batches | gradient | mean bias | largest bias | its layer | largest error "
                  "| largest flushed part |\n" + "| --- " * 8 + "|", file=page)
            for step in sorted({key[0] for key in lines}):
                for gradient in dict.fromkeys(key[1] for key in lines if key[0] == step):
                    layers = {key[2]: found for key, found in lines.items()
                              if key[:2] == (step, gradient) and key[3:] == (format, scale)}
                    print(row(step, gradient, layers, matmul), file=page)
            print(file=page)


def main():
    if "-h" in sys.argv or "--help" in sys.argv:
        print(__doc__.strip())
        return
    if len(sys.argv) < 3:
        sys.exit("error: OUT and FILE are missing; see --help")
    try:
        lines, run = read(sys.argv[2:])
        os.makedirs(sys.argv[1], exist_ok=True)
        write_csv(os.path.join(sys.argv[1], "gradients.csv"), lines)
        write_page(os.path.join(sys.argv[1], "gradients.md"), lines, run)
    except (OSError, ValueError, KeyError) as problem:
        sys.exit(f"error: {problem}")


if __name__ == "__main__":
    main()
