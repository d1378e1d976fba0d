#!/usr/bin/env python3
"""Tests scripts/plot.py and scripts/lab.py draw: the values that they read, and the pictures that they draw.

    python3 dev/test/test_plot.py        skipped without matplotlib
"""
import contextlib
import importlib.util
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

sys.dont_write_bytecode = True
from tap import ROOT, check, status  # noqa: E402


def write_log(folder, name, steps, fp8=False):
    os.makedirs(os.path.join(folder, name))
    with open(os.path.join(folder, name, "log.jsonl"), "w") as file:
        for step in range(1, steps + 1):
            line = {"step": step, "loss": 2 + 3 / step, "grad_norm": 1 / step, "lr": 1e-3, "tokens": 100 * step,
                    "ms": 3600, "tokens_per_s": 27.8}
            if step == 5:
                line["loss"] = line["grad_norm"] = None
            print(json.dumps(line), file=file)
            if step % 4 == 0:
                print(json.dumps({"step": step, "val_loss": 2.5}), file=file)
                print(json.dumps({"step": step, "hellaswag": 0.3}), file=file)
            if fp8 and step % 2 == 0:
                health = {"amax": [1.5, 2.5], "saturated": [0, 1e-3], "zero": [0.5, 0.25], "clamped": [0, 0]}
                gradient = {"saturated": [0, 0.01], "zero": [0.25, 0.5], "subnormal": [0.125, 0.5]}
                print(json.dumps({"step": step, "fp8": {"x_in": health, "h": {"amax": [3.0, None]}, "dh_qt": gradient}}),
                      file=file)
        file.write('{"step":%d,"lo' % (steps + 1))  # truncated, as if the run had been killed
    return os.path.join(folder, name)


def is_picture(prefix):
    with open(prefix + ".png", "rb") as file:
        png = file.read(8) == b"\x89PNG\r\n\x1a\n"
    return png and ElementTree.parse(prefix + ".svg").getroot().tag.endswith("svg")


def without_matplotlib(script, *arguments):
    """Runs a script with a matplotlib that cannot be imported. Returns its result."""
    with tempfile.TemporaryDirectory(prefix="coat_test_plot_") as folder:
        with open(os.path.join(folder, "matplotlib.py"), "w") as file:
            file.write("raise ImportError('none here')\n")
        return subprocess.run([sys.executable, os.path.join(ROOT, "scripts", script), *arguments], capture_output=True,
                              text=True, env={**os.environ, "PYTHONPATH": folder})


def lab_figures(plot, folder):
    """Draws a folder with every kind of results, and checks the contents of the pictures."""
    sys.path.insert(0, os.path.join(ROOT, "scripts"))
    from lab import draw

    def write(name, *lines):
        path = os.path.join(folder, name)
        with open(path, "w") as file:
            file.write("".join("\t".join(map(str, line)) + "\n" for line in lines))
        return path

    eighths = ["loss_%d" % k for k in range(1, 9)]
    note = "# setting %s: --steps 8; data: a, 1 bytes; validation: b, 1 bytes"
    rows = [(recipe, seed, *(loss * (9 - k) for k in range(8)), loss)
            for recipe, seed, loss in (("bf16", 1, 1), ("bf16", 3, 1), ("coat", 1, 1.01), ("coat", 3, 1.03))]
    path = write("fidelity.tsv", [note % "262k"], ["setting", "ended", "recipe", "seed", *eighths, "val_loss"],
                 *[("262k", "done", *row) for row in rows])
    (name, figure), = draw.draw_fidelity(plot, path)
    left, right = figure.axes
    lines = [line.get_ydata() for line in left.lines if len(line.get_ydata()) == 8]
    check("fidelity: the picture has a line per pair and one of their mean", name == "262k" and len(lines) == 3 and
          [round(line[0], 6) for line in lines] == [1, 3, 2], lines)
    check("fidelity: the picture has the mean final difference", [round(float(x), 3) for x in right.containers[0][0].get_ydata()] == [2], right.containers)
    path = write("stability.tsv", ["recipe", "rate", "seed", "ended", "loss", "first_loss"], ["bf16", 1e-3, 1, "done", 3, 5],
                 ["bf16", 1e-3, 2, "done", 3.5, 5], ["bf16", 1e-2, 1, "diverged", "-", 5])
    (_, figure), = draw.draw_stability(plot, path)
    mean, lost = figure.axes[0].lines
    check("stability: the picture has mean losses, and a cross per diverged run", list(mean.get_ydata()) == [3.25] and
          list(lost.get_xdata()) == [1e-2] and lost.get_marker() == "x")
    path = write("sharpness.tsv", ["recipe", "rate", "direction", "distance", "loss"], ["bf16", 1e-3, 0, 0, 3],
                 *[["bf16", 1e-3, k, x, 3 + k * x * x] for k in (1, 2) for x in (-1, -0.5, 0.5, 1)], ["bf16", 1e-3, 3, 1, 9])
    (_, figure), = draw.draw_sharpness(plot, path)
    check("sharpness: the picture has the directions with all distances, through 0, and their mean", [list(line.get_ydata()) for line in figure.axes[0].lines] == [
        [4, 3.25, 3, 3.25, 4], [5, 3.5, 3, 3.5, 5], [4.5, 3.375, 3, 3.375, 4.5]])
    shutil.copy(os.path.join(ROOT, "scripts/results/h100/reproduce.md"), folder)
    (_, figure), = draw.draw_memory(plot, os.path.join(folder, "reproduce.md"))
    words = [text.get_text() for text in figure.axes[0].texts]
    check("memory: the bars have the values of the paper and of this program", words.count("out of memory") == 4 and "35.6" in words and
          "27.8, planned" in words and len(words) == 32, words)
    write("ranges-0.95.tsv", ["quantity", "low", "high", "mark", "mark_name", "bin_1", "bin_2"], ["m", 0, 4, 1, "k = 1", 3, 5])
    shutil.copy(os.path.join(ROOT, "scripts/results/ranges.tsv"), folder)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        draw.main([folder])
    drawn = sorted(name for name in os.listdir(folder) if name.endswith(".svg"))
    check("draw writes an SVG per result", drawn == ["262k.svg", "memory.svg", "ranges-0.95.svg", "ranges-h100-h100x2-h200-0.95.svg",
                                          "ranges-h100-h100x2-h200-0.999.svg", "ranges-h200x2-0.95.svg",
                                          "ranges-h200x2-0.999.svg", "sharpness.svg", "stability.svg"] and
          len(said.getvalue().split()) == 9 and
          all(ElementTree.parse(os.path.join(folder, name)).getroot().tag.endswith("svg") for name in drawn), drawn)


def main():
    for script, *words in (("plot.py",), ("lab.py", "draw")):
        said = without_matplotlib(script, *words, "--help")
        check("scripts/%s --help works without matplotlib" % script, said.returncode == 0 and "Needs matplotlib" in said.stdout, said)
        said = without_matplotlib(script, *words, "runs/none")
        check("scripts/%s without matplotlib names the pip command" % script, said.returncode == 1 and said.stderr.count("\n") == 1 and
              said.stderr.endswith("needs matplotlib: pip install matplotlib (none here)\n"), said)
    if importlib.util.find_spec("matplotlib") is None:
        print("skip - scripts/plot.py: the Python package matplotlib is not installed")
        return 0
    import plot

    with tempfile.TemporaryDirectory(prefix="coat_test_plot_") as folder:
        first, second = write_log(folder, "first", 12), write_log(folder, "second", 40, fp8=True)
        run = plot.find_run("name=" + first)
        check("NAME=FOLDER sets a run's name, and the run has the log's steps and tokens", run.name == "name" and run.step[-1] == 12 and run.tokens[2] == 300, vars(run))
        check("hours are summed over the steps", abs(run.hours[-1] - 12 * 0.001) < 1e-12, run.hours)
        check("null in the log is a gap", math.isnan(run.loss[4]) and math.isnan(run.norm[4]) and run.loss[5] == 2.5)
        check("evaluations have token counts", [v[0] for v in run.val] == [400, 800, 1200] and
              run.hellaswag[0][2] == 0.3, (run.val, run.hellaswag))
        check("without NAME=, a run is named after its folder", plot.find_run(first).name == "first")
        flat = plot.smoothed([2.0] * 5 + [math.nan] + [2.0] * 30, 10)
        check("smoothing a constant keeps the constant and its gap", math.isnan(flat[5]) and
              all(abs(v - 2) < 1e-12 for i, v in enumerate(flat) if i != 5), flat)
        line = plot.smoothed([float(i) for i in range(100)], 10)
        check("smoothing does not lag on a slope", all(abs(line[i] - i) < 1e-9 for i in range(90)), line)
        with contextlib.redirect_stdout(io.StringIO()):
            plot.main([first, "long=" + second, "--out", os.path.join(folder, "p", "two"), "--ref", "a line=2.2"])
            plot.main([first, "--out", os.path.join(folder, "one")])
        try:
            said = plot.main([first, "x=" + second, os.path.join(first, "log.jsonl"), "--out", os.path.join(folder, "same")])
        except SystemExit as ended:
            said = str(ended)
        check("two runs of one name are refused", said == "plot.py: two runs have the name first; give each a name: "
              "NAME=FOLDER" and not os.path.exists(os.path.join(folder, "same.png")), said)
        try:
            said = plot.main([first, "--smooth", "-5", "--out", os.path.join(folder, "same")])
        except SystemExit as ended:
            said = str(ended)
        check("a negative --smooth is refused", said == "plot.py: --smooth: must be at least 1 (is -5)", said)
        check("two runs are drawn together", is_picture(os.path.join(folder, "p", "two")))
        check("FP8 health is drawn only for runs that log it", is_picture(os.path.join(folder, "p", "two-fp8-long")) and
              not os.path.exists(os.path.join(folder, "p", "two-fp8-first.png")))
        check("one run is drawn alone", is_picture(os.path.join(folder, "one")))
        check("grid_of() returns a tensor's values by layer and step", [[v if v == v else None for v in row] for row in
                                       plot.grid_of(plot.find_run(second), "h", "amax")] == [[3.0] * 20, [None] * 20])
        check("cells are centered on their steps", plot.edges_of([10, 20, 40]) == [5, 15, 30, 50] and
              plot.edges_of([7]) == [6.5, 7.5], plot.edges_of([10, 20, 40]))
        norm = plot.decades([3e-8, 2e-5, 47.0], 12)
        check("colour scale covers small and large values", abs(math.log10(norm.vmin) + 8) < 1e-9 and
              abs(math.log10(norm.vmax) - 2) < 1e-9, (norm.vmin, norm.vmax))
        plot.plt.rcParams.update(plot.STYLE)
        axes = plot.draw_health(plot.find_run(second)).axes
        shown = axes[0].collections[0].get_array().reshape(2, -1)  # values of h, whose second layer is not finite
        check("non-finite values have a separate colour", (shown[0] == 3).all() and
              (shown[1] > axes[0].collections[0].norm.vmax).all(), shown)
        panels = {axis.get_title(loc="left"): len(axis.collections) for axis in axes}
        check("a tensor that has only some of the statistics is drawn in their panels", panels["largest value"] == 2 and
              panels["saturated, %"] == 2 and panels["subnormal, %"] == 1, panels)
        large = plot.find_run(second)
        layers = [1e-7 * 10 ** (layer / 8) for layer in range(48)]
        large.fp8 = [(step, {"t%d" % i: {"amax": layers, "saturated": [0.0] * 48, "zero": layers} for i in range(24)})
                     for step in (10, 20, 40)]
        figure = plot.draw_health(large)
        width, height = figure.get_size_inches() * 130
        titles = [axis.get_title(loc="left") for axis in figure.axes if axis.get_title(loc="left")]
        check("FP8 health has a panel per statistic", titles == ["largest value", "saturated, %", "flushed to zero, %"], titles)
        check("FP8 health has a strip per tensor", len(figure.axes[0].collections) == 24 and
              [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["t%d" % i for i in range(24)])
        check("a picture of 24 tensors fits a page", width <= 1600 and height <= 2400, (width, height))
        for name, argument in (("a missing log", os.path.join(folder, "none")), ("a log without a loss", __file__)):
            try:
                plot.find_run(argument)
                check(name + " is refused", False)
            except SystemExit as stop:
                check(name + " is refused", str(stop).startswith("plot.py: ") and "\n" not in str(stop), stop)
        os.mkdir(os.path.join(folder, "lab"))
        lab_figures(plot, os.path.join(folder, "lab"))
    return status()


if __name__ == "__main__":
    sys.exit(main())
