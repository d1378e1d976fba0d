#!/usr/bin/env python3
"""Tests of scripts/plot.py: what it reads of a log, and that it draws it.

    python3 dev/test_plot.py        needs matplotlib, else it is skipped
"""
import contextlib
import importlib.util
import io
import json
import math
import os
import shutil
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

sys.dont_write_bytecode = True
from tap import check, status  # noqa: E402


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
                health = {"amax": [1.5, 2.5], "saturated": [0, 1e-3], "flushed": [0.5, 0.25], "clamped": [0, 0]}
                print(json.dumps({"step": step, "fp8": {"x_in": health, "h": {"amax": [3.0, None]}}}), file=file)
        file.write('{"step":%d,"lo' % (steps + 1))  # killed while it wrote
    return os.path.join(folder, name)


def is_picture(prefix):
    with open(prefix + ".png", "rb") as file:
        png = file.read(8) == b"\x89PNG\r\n\x1a\n"
    return png and ElementTree.parse(prefix + ".svg").getroot().tag.endswith("svg")


def main():
    if importlib.util.find_spec("matplotlib") is None:
        print("skip - scripts/plot.py: the Python package matplotlib is not installed")
        return 0
    import plot

    folder = tempfile.mkdtemp(prefix="coat_test_plot_")
    try:
        first, second = write_log(folder, "first", 12), write_log(folder, "second", 40, fp8=True)
        run = plot.find_run("name=" + first)
        check("name, steps and tokens", run.name == "name" and run.step[-1] == 12 and run.tokens[2] == 300, vars(run))
        check("hours add up", abs(run.hours[-1] - 12 * 0.001) < 1e-12, run.hours)
        check("null is a gap", math.isnan(run.loss[4]) and math.isnan(run.norm[4]) and run.loss[5] == 2.5)
        check("evaluations know their tokens", [v[0] for v in run.val] == [400, 800, 1200] and
              run.hellaswag[0][2] == 0.3, (run.val, run.hellaswag))
        check("a folder names its run", plot.find_run(first).name == "first")
        flat = plot.smoothed([2.0] * 5 + [math.nan] + [2.0] * 30, 10)
        check("smoothing keeps a constant and its gap", math.isnan(flat[5]) and
              all(abs(v - 2) < 1e-12 for i, v in enumerate(flat) if i != 5), flat)
        line = plot.smoothed([float(i) for i in range(100)], 10)
        check("and does not lag behind a slope", all(abs(line[i] - i) < 1e-9 for i in range(90)), line)
        with contextlib.redirect_stdout(io.StringIO()):
            plot.main([first, "long=" + second, "--out", os.path.join(folder, "p", "two"), "--ref", "a line=2.2"])
            plot.main([first, "--out", os.path.join(folder, "one")])
        check("two runs", is_picture(os.path.join(folder, "p", "two")))
        check("FP8 health of the run that has it", is_picture(os.path.join(folder, "p", "two-fp8-long")) and
              not os.path.exists(os.path.join(folder, "p", "two-fp8-first.png")))
        check("one run", is_picture(os.path.join(folder, "one")))
        check("the grid of a tensor", [[v if v == v else None for v in row] for row in
                                       plot.grid_of(plot.find_run(second), "h", "amax")] == [[3.0] * 20, [None] * 20])
        for name, argument in (("a missing log", os.path.join(folder, "none")), ("a log without a loss", __file__)):
            try:
                plot.find_run(argument)
                check(name + " is refused", False)
            except SystemExit as stop:
                check(name + " is refused", str(stop).startswith("plot.py: ") and "\n" not in str(stop), stop)
    finally:
        shutil.rmtree(folder)
    return status()


if __name__ == "__main__":
    sys.exit(main())
