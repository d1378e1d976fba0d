"""Draws the figures of an experiment as SVG files in its folder.

    scripts/lab.py draw FOLDER...

  fidelity.tsv    makes SETTING.svg: differences from the baseline during the run and
                  at the end of the run; a thin line per pair of runs, a thick line
                  for their mean. Differences beyond ±10 percent are cut off
  stability.tsv   makes stability.svg: mean loss over learning rates; a band shows the
                  range over the seeds, a cross a diverged run
  sharpness.tsv   makes sharpness.svg: loss over the distance by which the weights
                  move along each random direction, and the mean over the directions
  reproduce.md    makes memory.svg: peak memory of table 7. The paper's bars are light
  ranges*.tsv     makes histograms of the groups' dynamic ranges and expansion
                  exponents of the optimizer's states, from build/quant_error

Needs matplotlib (pip install matplotlib).
"""
import math
import os
import re

from .fidelity_page import EIGHTH_NAMES, EIGHTHS, Comparison, Results
from .results import Failure, Sample, Table, find, is_number, read_text
from .work import Parser


def draw_fidelity(plot, path):
    results = Results(os.path.dirname(path))
    for study in (Comparison(results, name) for name in results.settings()):
        figure, (left, right) = plot.plt.subplots(1, 2, sharey=True, figsize=(9.2, 4.6), layout="constrained",
                                                  width_ratios=[8, 2])
        lowest, highest = 0.0, 0.1
        for k, recipe in enumerate(study.runs):
            base = recipe == study.baseline
            style = {"color": "#52606D" if base else plot.COLOURS[k % len(plot.COLOURS)]}
            for row in study.runs[recipe]:
                line = [study.difference(row, key) for key in [*EIGHTHS, "val_loss"]]
                found = [x for x in line if x is not None]
                if not found:
                    continue
                lowest, highest = min([lowest, *found]), max([highest, *found])
                line = [math.nan if x is None else x for x in line]
                left.plot(range(1, 9), line[:8], **style, alpha=0.5, linewidth=0.9, linestyle="--" if base else "-")
                right.plot([k], line[8:], ".", **style, alpha=0.6)
            if base:
                continue
            means = [study.differences(recipe, key) for key in [*EIGHTHS, "val_loss"]]
            left.plot(range(1, 9), [mean.mean if mean.count else math.nan for mean in means[:8]], **style,
                      linewidth=2.4, marker="o", markersize=4, label=recipe)
            if means[8].count:
                right.errorbar([k], [means[8].mean], [means[8].error], **style, marker="o", markersize=6, capsize=3)
        low, high = max(-10, lowest), min(10, highest)
        left.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        left.set_xticks(range(1, 9), EIGHTH_NAMES)
        left.set_xlabel("training loss, windows of 1/8 of the run")
        left.set_ylabel(f"difference from {study.baseline}, %")
        left.set_title(study.name)
        right.set_xticks([])
        right.set_xlim(-0.6, max(len(study.runs), 1) - 0.4)
        right.set_xlabel("validation loss")
        for axis in (left, right):
            axis.axhline(0, color="#333333", linewidth=1)
        if left.get_legend_handles_labels()[0]:
            left.legend(loc="best")
        yield study.name, figure


def draw_stability(plot, path):
    figure, axis = plot.plt.subplots(figsize=(7.2, 4.6), layout="constrained")
    rows, everything = Table(path, "recipe").rows, []
    for k, recipe in enumerate(dict.fromkeys(row["recipe"] for row in rows)):
        losses, colour, runs = {}, plot.COLOURS[k % len(plot.COLOURS)], [row for row in rows if row["recipe"] == recipe]
        for row in (row for row in runs if row["ended"] == "done"):
            losses.setdefault(float(row["rate"]), []).append(float(row["loss"]))
        rates = sorted(losses)
        axis.fill_between(rates, [min(losses[rate]) for rate in rates], [max(losses[rate]) for rate in rates],
                          color=colour, alpha=0.16, linewidth=0)
        axis.plot(rates, [Sample(losses[rate]).mean for rate in rates], color=colour, marker="o", markersize=4,
                  label=recipe)
        lost = [float(row["rate"]) for row in runs if row["ended"] == "diverged"]
        axis.plot(lost, [0.97 - 0.03 * k] * len(lost), "x", color=colour, transform=axis.get_xaxis_transform())
        everything = sorted(everything + [loss for found in losses.values() for loss in found])
    low, middle, high = (everything[k] for k in (0, len(everything) // 2, -1)) if everything else (0, 0, 0)
    # limits the axis, so that a run that nearly diverged does not make the other losses look flat
    high = min(high, low + 6 * (middle - low)) if middle > low else high
    axis.set_ylim(low - 0.05 * (high - low) - 1e-3, high + 0.2 * (high - low) + 1e-3)
    axis.set_xscale("log")
    axis.set_xlabel("learning rate")
    axis.set_ylabel("validation loss")
    axis.set_title("Final loss over learning rates (×: runs that diverged)")
    axis.legend(loc="best")
    yield "stability", figure


def draw_sharpness(plot, path):
    figure, axis = plot.plt.subplots(figsize=(7.2, 4.6), layout="constrained")
    recipes = {}  # {recipe: {direction: {distance: loss}}}
    for row in (row for row in Table(path, "recipe").rows if is_number(row["loss"])):
        directions = recipes.setdefault(row["recipe"], {})
        directions.setdefault(row["direction"], {})[float(row["distance"])] = float(row["loss"])
    for k, (recipe, directions) in enumerate(recipes.items()):
        colour, middle = plot.COLOURS[k % len(plot.COLOURS)], directions.pop("0", {})
        points = max(map(len, directions.values()), default=0)
        drawn = [{**line, **middle} for line in directions.values() if len(line) == points]
        mean = {x: Sample(line.get(x) for line in drawn).mean for line in drawn for x in line}
        for line in [*drawn, mean]:
            axis.plot(sorted(line), [line[x] for x in sorted(line)], color=colour, linewidth=2 if line is mean else 0.7,
                      alpha=1 if line is mean else 0.45, label=recipe if line is mean else None)
    axis.set_xlabel("distance, in norms of the weights")
    axis.set_ylabel("validation loss")
    axis.set_title("Loss along random directions (thin) and its mean")
    axis.legend(loc="upper center")
    yield "sharpness", figure


def draw_memory(plot, path):
    """Draws peak memory, in BF16 and COAT, of the equal-batch rows of table 7 for which the paper has a figure."""
    lines = [line for line in read_text(path).splitlines() if "| equal batch |" in line]
    rows = [[x.strip() for x in line.split("|")[1:-1]] for line in lines]
    rows = [row for row in rows if " → " in row[11] and row[4] in ("bf16", "coat")]
    figure, axis = plot.plt.subplots(figsize=(9.2, 1 + 0.42 * len(rows)), layout="constrained")
    for k, (model, gpus, length, _, recipe, batch, *_, plan, driver, _, _) in enumerate(rows):
        paper, _, here = driver.partition(" → ")
        planned, colour = not is_number(here), plot.COLOURS[2] if recipe == "coat" else "#8A949E"
        here = plan + ", planned" if planned else here.split()[0]
        for text, at, alpha in ((paper, k - 0.2, 0.45), (here, k + 0.2, 1)):
            size = float(text.split(",")[0]) if is_number(text) else 0
            axis.barh(at, size, 0.36, color=colour, alpha=alpha)
            axis.annotate(text, (min(size, 105), at), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axis.axvline(80, color="#B42318", linestyle="--", linewidth=1)
    axis.set_xlim(0, 125)
    axis.set_yticks(range(len(rows)), [f"{row[0]}, {row[1]} GPU, {row[5]} × {row[2]}, {row[4]}" for row in rows],
                    fontsize=8)
    axis.invert_yaxis()
    axis.grid(False, axis="y")
    axis.set_title("Peak memory per GPU, GB: the paper (light) and this program")
    if rows:
        yield "memory", figure


def draw_ranges(plot, path):
    """Yields (name, figure). Rows of the file that agree in all columns before `quantity` are the panels of one
    figure."""
    head, *rows = [line.split("\t") for line in read_text(path).splitlines() if line[0] != "#"]
    first = head.index("quantity")
    for key in dict.fromkeys(tuple(row[:first]) for row in rows):
        mine = [row[first:] for row in rows if tuple(row[:first]) == key]
        figure, axes = plot.plt.subplots(2, -(-len(mine) // 2), figsize=(9.6, 5.6), layout="constrained", squeeze=False)
        for axis, (name, low, high, mark, mark_name, *bins) in zip(axes.flatten(), mine):
            width = (float(high) - float(low)) / len(bins)
            axis.bar([float(low) + (k + 0.5) * width for k in range(len(bins))], list(map(float, bins)), width * 0.9)
            axis.axvline(float(mark), color="#D9600A", linestyle="--")
            axis.set_title(f"{name} (dashed: {mark_name})")
            axis.set_yticks([])
        figure.suptitle(", ".join(["Optimizer states: how many groups of 128", *key]))
        yield re.sub(r"[^\w.]+", "-", "-".join([os.path.basename(path)[:-4], *key])), figure


KINDS = {"fidelity.tsv": draw_fidelity, "stability.tsv": draw_stability, "sharpness.tsv": draw_sharpness,
         "reproduce.md": draw_memory, "ranges*.tsv": draw_ranges}


def main(arguments):
    parser = Parser("draw", __doc__, runs=False)
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    folders = parser.parse_args(arguments).folders
    try:
        import plot
    except ImportError as error:
        raise Failure(f"scripts/lab.py draw needs matplotlib: pip install matplotlib ({error})")
    for folder in folders:
        jobs = [(draw, path) for pattern, draw in KINDS.items() for path in find(folder, pattern)]
        if not jobs:
            raise Failure(f"{folder}: contains no results of scripts/lab.py to draw")
        with plot.plt.rc_context(plot.STYLE):
            for draw, path in jobs:
                for name, figure in draw(plot, path):
                    figure.savefig(f"{folder}/{name}.svg", metadata={"Date": None})
                    plot.plt.close(figure)
                    print(f"{folder}/{name}.svg")
    return 0
