#!/usr/bin/env python3
"""Reads a run's event files with TensorBoard: the curves must equal log.jsonl's, also after a resume.

    python3 dev/test/test_tensorboard.py        skipped without the Python package tensorboard

Runs the CPU program. BIN and BUILD name the folders of the build, as in the other tests.
"""
import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from tap import ROOT, check, status  # noqa: E402

PROGRAM = os.path.join(os.environ.get("BIN", "."), "train_gpt2_fp8_cpu")
PREPARE = os.path.join(os.environ.get("BUILD", "build"), "prepare_bytes")


def curves_of_log(path):
    """Returns {tag: {step: value}} of the log's figures that the event files also contain."""
    curves = {}
    with open(path) as file:
        for line in file:
            fields = json.loads(line)
            for tag in ("loss", "val_loss", "grad_norm", "lr", "ms", "tokens_per_s"):
                if tag in fields:
                    curves.setdefault(tag, {})[fields["step"]] = fields[tag]
    return curves


def curves_of_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    curves = {}
    for tag in events.Tags()["scalars"]:
        scalars = events.Scalars(tag)
        steps = [s.step for s in scalars]
        check("TensorBoard, %s: steps increase, none occurs twice" % tag, steps == sorted(set(steps)), steps)
        curves[tag] = {s.step: s.value for s in scalars}
    return curves


def compare(name, out):
    log, board = curves_of_log(os.path.join(out, "log.jsonl")), curves_of_tensorboard(out)
    for tag in log:
        digits = {"ms": 6e-4, "tokens_per_s": 0.06}.get(tag, 0)  # the log has fewer decimals
        same = sorted(log[tag]) == sorted(board.get(tag, {})) and all(
            abs(board[tag][step] - value) <= digits + 1e-6 * abs(value) for step, value in log[tag].items())
        check("TensorBoard, %s run: %s equals log.jsonl" % (name, tag), same, (log[tag], board.get(tag)))


def main():
    if importlib.util.find_spec("tensorboard") is None:
        print("skip - TensorBoard reads the event files: the Python package tensorboard is not installed")
        return 0
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="coat_test_tensorboard_") as folder:
        out = os.path.join(folder, "run")
        subprocess.run([PREPARE, "--out", os.path.join(folder, "t"), "coat", "dev"], check=True, capture_output=True)
        flags = [PROGRAM, "--tokenizer", "bytes", "--layers", "1", "--heads", "1", "--channels", "32", "--seq-len", "32",
                 "--micro-batch", "2", "--sample-tokens", "0", "--quiet", "--train", os.path.join(folder, "t_train.bin"),
                 "--val", os.path.join(folder, "t_val.bin"), "--val-every", "2", "--val-batches", "1", "--out", out]
        subprocess.run(flags + ["--steps", "8", "--save-every", "5"], check=True, capture_output=True)
        compare("straight", out)
        # resumes from step 5 at another rate, as if the run had been killed after step 8; repeats steps 6 and 7
        shutil.rmtree(os.path.join(out, "step-00000008"))
        subprocess.run(flags + ["--steps", "7", "--lr", "1e-2", "--resume"], check=True, capture_output=True)
        check("each start writes a separate event file", len(glob.glob(os.path.join(out, "events.out.tfevents.*"))) == 2)
        compare("resumed", out)
        # as if killed in the middle of a record
        newest = sorted(glob.glob(os.path.join(out, "events.out.tfevents.*")))[-1]
        os.truncate(newest, os.path.getsize(newest) - 9)
        shutil.rmtree(os.path.join(out, "step-00000007"))
        subprocess.run(flags + ["--steps", "10", "--resume"], check=True, capture_output=True)
        compare("resumed after a torn record", out)
    return status()


if __name__ == "__main__":
    sys.exit(main())
