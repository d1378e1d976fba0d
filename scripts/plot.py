#!/usr/bin/env python3
"""Draws the curves of one run, or of several for comparison, from the log.jsonl in each
--out folder.

    scripts/plot.py runs/gpt2
        writes curves.png and curves.svg
    scripts/plot.py BF16=runs/bf16 COAT=runs/coat --out loss
        writes loss.png and loss.svg, with BF16 and COAT as names in the legend
    scripts/plot.py runs/gpt2 --ref 'OpenAI GPT-2=3.42'
        adds a dashed line at loss 3.42

Draws training loss (every step faint, smoothed values on top) and validation loss (dots)
over tokens and over hours of training. Also draws gradient norm and tokens per second
and, if HellaSwag was evaluated, HellaSwag and the learning rate. If the log of a run has
statistics of FP8 tensors (--health-every), a second picture, OUT-fp8-NAME, shows them.
It has panels for amax, for the percentages of saturated, zero and subnormal values, and
for the percentage of groups with clamped k. In a panel, each tensor has a strip with one
row per layer.

Needs matplotlib (pip install matplotlib). Without Python, build/plot_loss draws the
loss of one run.
"""
import argparse
import json
import math
import os
import re
import sys

missing = None  # a missing matplotlib is reported after the arguments are parsed, so that --help works without it
try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
except ImportError as error:
    if __name__ != "__main__":
        raise
    missing = error

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F4FC9", "#5F5F5F"]
DASHES = ["-", (0, (5, 1.5)), (0, (1.5, 1.2))]  # line styles of runs 1 to 8, 9 to 16, ...
GREY, DASHED = "#6B7280", (0, (4, 3))
STYLE = {"font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left",
         "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#E3E5E8",
         "grid.linewidth": 0.8, "axes.axisbelow": True, "axes.edgecolor": "#8A8F98", "axes.labelcolor": "#333333",
         "xtick.color": "#555555", "ytick.color": "#555555", "legend.frameon": False, "legend.fontsize": 9,
         "svg.hashsalt": "coat", "svg.fonttype": "path", "savefig.facecolor": "white"}


# --- logs -------------------------------------------------------------------------------------------------------------

class Run:
    """The values in a log.jsonl: a list of values per step, and evaluations as (tokens, hours, value)."""

    def __init__(self, name, path):
        self.name, self.path, self.val, self.hellaswag, self.fp8 = name, path, [], [], []
        lists = self.step, self.tokens, self.hours, self.loss, self.norm, self.speed, self.lr = [[] for _ in range(7)]
        hours = tokens = 0
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.readlines()
        except OSError as error:
            sys.exit("plot.py: %s: cannot be read: %s" % (path, error.strerror))
        for line in lines:
            try:
                fields = json.loads(line)
                step = fields["step"]
            except (ValueError, KeyError, TypeError):  # the line was truncated when the run was killed
                continue
            if "loss" in fields:
                hours, tokens = hours + (fields.get("ms") or 0) / 3.6e6, fields.get("tokens") or tokens
                values = [number(fields.get(key)) for key in ("loss", "grad_norm", "tokens_per_s", "lr")]
                for series, value in zip(lists, (step, tokens, hours, *values)):
                    series.append(value)
            for key, series in (("val_loss", self.val), ("hellaswag", self.hellaswag)):
                if fields.get(key) is not None:
                    series.append((tokens, hours, fields[key]))
            if isinstance(fields.get("fp8"), dict):
                self.fp8.append((step, fields["fp8"]))
        if not finite(self.loss):
            sys.exit("plot.py: %s: contains no training loss" % path)


def number(value):
    return float(value) if value is not None else math.nan


def finite(values):
    return [value for value in values if math.isfinite(value)]


def find_run(argument):
    """Returns the Run of [NAME=]PATH. PATH: the folder of a run, or its log.jsonl."""
    name, _, path = argument.partition("=") if "=" in argument and not os.path.exists(argument) else ("", "", argument)
    log = os.path.join(path, "log.jsonl") if os.path.isdir(path) else path
    return Run(name or os.path.basename(os.path.dirname(os.path.abspath(log))), log)


def smoothed(values, steps):
    """Returns a moving average over about `steps` values. The average of values near the start is over fewer values,
    because curves bend there. NaN stays NaN."""
    sums, counts, out = [0.0], [0], []
    for value in values:
        good = math.isfinite(value)
        sums.append(sums[-1] + (value if good else 0.0))
        counts.append(counts[-1] + good)
    for i, value in enumerate(values):
        reach = int(min(steps / 2, i / 5))
        begin, end = i - reach, min(len(values), i + reach + 1)
        count = counts[end] - counts[begin]
        out.append((sums[end] - sums[begin]) / count if math.isfinite(value) and count else math.nan)
    return out


# --- curves -----------------------------------------------------------------------------------------------------------

def short(value, _=None):
    """Returns a number with a unit prefix, for example 1.5M for 1500000."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return "%.4g%s" % (value / size, unit)
    return "%.4g" % value


def power(value, _=None):
    """Returns the label of a power of ten on a logarithmic scale."""
    return short(value) if value >= 1e-3 else ("%.0e" % value).replace("e-0", "e-")


def percentile(values, part):
    values = sorted(finite(values))
    return values[min(len(values) - 1, int(part * len(values)))] if values else math.nan


def mark(axis, text, value):
    """Draws a dashed horizontal line at `value`, with a label."""
    axis.axhline(value, color=GREY, linestyle=DASHED, linewidth=1)
    axis.annotate(text, (1, value), (-2, 3), xycoords=axis.get_yaxis_transform(), textcoords="offset points",
                  ha="right", va="bottom", fontsize=8, color=GREY)


def loss_limits(runs, curves, references):
    """Returns the limits (low, high) of the loss axis. Ignores the first 1/12 of the losses, because with their range
    all later losses would look flat."""
    lows = [min(finite(curve)) for curve in curves] + [value for run in runs for _, _, value in run.val]
    lows += [percentile(run.loss[len(run.loss) // 2:], 0.02) for run in runs if len(run.loss) > 4]
    lines = [value for _, value in references]
    low = min(finite(lows + lines))
    high = max(lines + [max(finite(curve[len(curve) // 12:]) or finite(curve)) for curve in curves])
    margin = 0.05 * (high - low) or 0.1
    return low - margin, high + margin


def draw_series(axis, run, x, values, smooth):
    """Draws every step faint, and the smoothed values on top."""
    axis.plot(x, values, color=run.colour, alpha=0.22, linewidth=0.7)
    axis.plot(x, smooth, color=run.colour, linestyle=run.dashes, linewidth=1.7)


def draw_loss(axis, runs, curves, over, references):
    minutes = over == "hours" and max(run.hours[-1] for run in runs) < 1
    factor = 60 if minutes else 1
    for run, curve in zip(runs, curves):
        draw_series(axis, run, [factor * value for value in getattr(run, over)], run.loss, curve)
        if run.val:
            axis.plot([factor * v[0 if over == "tokens" else 1] for v in run.val], [v[2] for v in run.val],
                      color=run.colour, marker="o", markersize=4.5 if len(run.val) < 40 else 2.5,
                      markeredgecolor="white", markeredgewidth=0.6, linestyle="none", zorder=4)
    for name, value in references:
        mark(axis, "%s %.4g" % (name, value), value)
    axis.set_ylim(*loss_limits(runs, curves, references))
    axis.set_ylabel("loss, nats per token")
    axis.set_title("Loss over %s" % ("tokens" if over == "tokens" else "time"))
    if over == "hours":
        axis.set_xlabel("%s of training, without evaluations" % ("minutes" if minutes else "hours"))


def draw_key(axis, runs, key, steps, title, label):
    for run in runs:
        values = getattr(run, key)
        # ignores the speed of the first step, which includes setup
        smooth = [math.nan] + values[1:] if key == "speed" else values
        draw_series(axis, run, run.tokens, values, smoothed(smooth, steps(run)))
    found = finite([value for run in runs for value in getattr(run, key)])
    if key == "norm" and found and min(found) > 0 and percentile(found, 0.99) > 8 * percentile(found, 0.01):
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_formatter(NullFormatter())
    elif found:  # begins the axis at 0, so that heights are comparable; rare spikes are cut off
        axis.set_ylim(0, 1.12 * max(percentile(found, 0.99), percentile(found, 0.5)) or 1)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: "0" if v == 0 else power(v) if key == "lr" else short(v)))
    axis.set_title(title)
    axis.set_ylabel(label)


def draw_hellaswag(axis, runs):
    for run in (run for run in runs if run.hellaswag):
        axis.plot([v[0] for v in run.hellaswag], [100 * v[2] for v in run.hellaswag], color=run.colour,
                  linestyle=run.dashes, marker="o", markersize=3.5, linewidth=1.7)
    mark(axis, "guessing", 25)
    axis.set_xlim(0, 1.02 * max(run.tokens[-1] for run in runs))
    axis.set_title("HellaSwag")
    axis.set_ylabel("right, %")


def label_of(run):
    last = (finite(smoothed(run.loss, len(run.loss) / 50)) or [math.nan])[-1]
    return "%s: loss %.4f" % (run.name, last) + (", validation %.4f" % run.val[-1][2] if run.val else "")


def draw_curves(runs, options):
    def steps(run):
        return options.smooth or max(3, len(run.loss) / 50)

    curves = [smoothed(run.loss, steps(run)) for run in runs]
    columns = 3 if any(run.hellaswag for run in runs) else 2
    figure, grid = plt.subplots(2, columns, figsize=(16 if columns == 3 else 11.5, 7.6), layout="constrained")
    draw_loss(grid[0, 0], runs, curves, "tokens", options.ref)
    draw_loss(grid[0, 1], runs, curves, "hours", options.ref)
    draw_key(grid[1, 0], runs, "norm", steps, "Gradient norm", "before clipping")
    draw_key(grid[1, 1], runs, "speed", steps, "Speed", "tokens per second")
    if columns == 3:
        draw_hellaswag(grid[0, 2], runs)
        draw_key(grid[1, 2], runs, "lr", lambda run: 1, "Learning rate", "")
    for axis in grid.flatten():
        axis.margins(x=0.01)
        if axis is not grid[0, 1]:
            axis.set_xlabel("tokens")
            axis.xaxis.set_major_formatter(FuncFormatter(short))
    handles = [plt.Line2D([], [], color=run.colour, linestyle=run.dashes, linewidth=2.2) for run in runs]
    labels = [label_of(run) for run in runs]
    if any(run.val for run in runs):
        handles.append(plt.Line2D([], [], color="#555555", marker="o", markersize=4.5, linestyle="none"))
        labels.append("validation")
    figure.legend(handles, labels, loc="outside upper left",
                  ncols=max(1, min(len(handles), 130 // max(len(text) + 8 for text in labels))))
    return figure


# --- FP8 health -------------------------------------------------------------------------------------------------------

HEALTH = (("amax", "largest value"), ("saturated", "saturated, %"), ("zero", "flushed to zero, %"),
          ("subnormal", "subnormal, %"), ("clamped", "groups with k clamped, %"))
NO_VALUE, ZERO, NOT_FINITE = "#FFFFFF", "#ECEEF1", "#E6007E"


def grid_of(run, tensor, key):
    """Returns the values of a statistic, a list per layer with one value per log line. NaN stands for a missing value.
    Returns None if the log does not have the statistic for this tensor."""
    columns = [line.get(tensor, {}).get(key) for _, line in run.fp8]
    layers = max((len(column) for column in columns if isinstance(column, list)), default=0)
    filled = [list(column or []) + [None] * layers for column in columns]
    return [[number(column[layer]) for column in filled] for layer in range(layers)] or None


def edges_of(centres):
    """Returns the edges of cells whose centres are `centres`: one edge more than centres."""
    if len(centres) == 1:
        return [centres[0] - 0.5, centres[0] + 0.5]
    between = [(x + y) / 2 for x, y in zip(centres, centres[1:])]
    return [2 * centres[0] - between[0]] + between + [2 * centres[-1] - between[-1]]


def decades(values, most):
    """Returns a logarithmic colour scale of one to `most` complete decades whose end is above the largest value."""
    top = math.ceil(math.log10(max(values)) + 1e-9)
    low = math.floor(math.log10(min(values)) + 1e-9)
    return LogNorm(10.0 ** max(min(low, top - 1), top - most), 10.0**top)


def draw_health(run):
    """Draws a panel per statistic in HEALTH. A panel has a strip per tensor; the first layer is the bottom row of the
    strip. Returns the figure, or None if the log has no such statistics."""
    tensors = list(dict.fromkeys(tensor for _, line in run.fp8 for tensor in line))
    grids = {key: {tensor: grid_of(run, tensor, key) for tensor in tensors} for key, _ in HEALTH}
    panels = [(key, title) for key, title in HEALTH if any(grids[key].values())]
    if not panels:
        return None
    strips, top = {}, 0.0  # {tensor: (bottom, top) of its strip}; the first tensor is on top
    for tensor in reversed(tensors):
        layers = max(len(grids[key][tensor] or []) for key, _ in panels)
        strips[tensor] = (top, top + (1.0 if layers > 1 else 0.6))
        top = strips[tensor][1] + 0.14
    figure, axes = plt.subplots(1, len(panels), sharey=True, squeeze=False, layout="constrained",
                                figsize=(1.4 + 10.8 * len(panels) / len(HEALTH), min(18.2, 1.9 + 0.62 * top)))
    figure.suptitle("FP8 health of %s over steps; the first layer of each tensor is at the bottom" % run.name,
                    fontsize=11, fontweight="bold", x=0.01, ha="left")
    for axis, (key, title) in zip(axes[0], panels):
        draw_health_panel(figure, axis, run, key, grids[key], strips)
        axis.set_title(title, fontsize=10)
        axis.set_ylim(-0.14, top)
        axis.spines[["left", "bottom"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    axes[0, 0].set_yticks([sum(strips[tensor]) / 2 for tensor in tensors], tensors)
    figure.supxlabel("grey: exactly 0;  pink: not finite;  white: not in the log", fontsize=8, color=GREY, x=0.99,
                     ha="right")
    return figure


def draw_health_panel(figure, axis, run, key, grids, strips):
    """Draws the statistic `key` of all tensors. They share one logarithmic colour scale, so that their colours are
    comparable."""
    scale = 1 if key == "amax" else 100
    positive = [scale * value for grid in grids.values() for row in grid or [] for value in row if value > 0]
    norm = decades(positive, 12 if scale == 1 else 4) if positive else LogNorm(0.01, 1)
    colours = plt.get_cmap("viridis" if scale == 1 else "YlOrRd").with_extremes(over=NOT_FINITE, bad=ZERO)
    steps = edges_of([step for step, _ in run.fp8])
    axis.grid(False)
    axis.set_xlim(steps[0], steps[-1])
    axis.set_xlabel("step")
    axis.xaxis.set_major_formatter(FuncFormatter(short))
    for tensor, (low, high) in strips.items():
        grid = grids[tensor]
        if not grid:
            continue
        rows = [low + (high - low) * i / len(grid) for i in range(len(grid) + 1)]
        shown = [[scale * v if v > 0 else 10 * norm.vmax if math.isnan(v) else math.nan for v in row] for row in grid]
        mesh = axis.pcolormesh(steps, rows, shown, norm=norm, cmap=colours, rasterized=True)
        for i, (_, line) in enumerate(run.fp8):
            if not isinstance(line.get(tensor, {}).get(key), list):
                axis.fill_between(steps[i:i + 2], low, high, color=NO_VALUE, linewidth=0)
    if positive:
        bar = figure.colorbar(mesh, ax=axis, location="bottom", aspect=24, pad=0.02, shrink=0.92)
        bar.ax.xaxis.set_major_locator(LogLocator(numticks=7))
        bar.ax.xaxis.set_major_formatter(FuncFormatter(power))
        bar.ax.xaxis.set_minor_formatter(NullFormatter())


# --- the program ------------------------------------------------------------------------------------------------------

def reference(text):
    name, _, value = text.rpartition("=")
    return name, float(value)


def save(figure, prefix):
    os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
    figure.savefig(prefix + ".png", dpi=130)
    figure.savefig(prefix + ".svg", metadata={"Date": None})
    plt.close(figure)
    print("%s.png %s.svg" % (prefix, prefix))


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN",
                        help="folder of a run, or NAME=FOLDER to name it in the legend")
    parser.add_argument("--out", default="curves", help="path of the pictures, without .png (default curves)")
    parser.add_argument("--smooth", type=float, metavar="STEPS",
                        help="number of steps of the smoothing mean (default: steps / 50)")
    parser.add_argument("--ref", type=reference, action="append", default=[], metavar="NAME=LOSS",
                        help="dashed reference line in the loss")
    options = parser.parse_args(arguments)
    if missing:
        sys.exit("plot.py needs matplotlib: pip install matplotlib (%s)" % missing)
    if options.smooth is not None and not options.smooth >= 1:
        sys.exit("plot.py: --smooth: must be at least 1 (is %g)" % options.smooth)
    runs = [find_run(argument) for argument in options.runs]
    names = [re.sub(r"[^\w.-]+", "_", run.name) for run in runs]  # also parts of file names
    for i, name in enumerate(names):
        if name in names[:i]:
            sys.exit("plot.py: two runs have the name %s; give each a name: NAME=FOLDER" % name)
    for i, run in enumerate(runs):
        run.colour, run.dashes = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
    with plt.rc_context(STYLE):
        save(draw_curves(runs, options), options.out)
        for run, name in zip(runs, names):
            figure = draw_health(run) if run.fp8 else None
            if figure:
                save(figure, "%s-fp8-%s" % (options.out, name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
