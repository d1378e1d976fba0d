#!/usr/bin/env python3
"""A run's event files, read by TensorBoard itself: the same curves as in log.jsonl, through a resume too.

    python3 dev/test/test_tensorboard.py        needs the Python package tensorboard, else it is skipped

On the CPU's program. BIN and BUILD say where the build is, as in the other tests.
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
    """{tag: {step: value}} of what TensorBoard is told too."""
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
        check("%s: steps rise, none twice" % tag, steps == sorted(set(steps)), steps)
        curves[tag] = {s.step: s.value for s in scalars}
    return curves


def compare(name, out):
    log, board = curves_of_log(os.path.join(out, "log.jsonl")), curves_of_tensorboard(out)
    for tag in log:
        digits = {"ms": 6e-4, "tokens_per_s": 0.06}.get(tag, 0)  # the log has fewer decimals of these
        same = sorted(log[tag]) == sorted(board.get(tag, {})) and all(
            abs(board[tag][step] - value) <= digits + 1e-6 * abs(value) for step, value in log[tag].items())
        check("%s: %s as in log.jsonl" % (name, tag), same, (log[tag], board.get(tag)))


def main():
    if importlib.util.find_spec("tensorboard") is None:
        print("skip - TensorBoard reads the event files: the Python package tensorboard is not installed")
        return 0
    os.chdir(ROOT)
    folder = tempfile.mkdtemp(prefix="coat_test_tensorboard_")
    try:
        out = os.path.join(folder, "run")
        subprocess.run([PREPARE, "--out", os.path.join(folder, "t"), "coat", "dev"], check=True, capture_output=True)
        flags = [PROGRAM, "--tokenizer", "bytes", "--layers", "1", "--heads", "1", "--channels", "32", "--seq-len", "32",
                 "--micro-batch", "2", "--sample-tokens", "0", "--quiet", "--train", os.path.join(folder, "t_train.bin"),
                 "--val", os.path.join(folder, "t_val.bin"), "--val-every", "2", "--val-batches", "1", "--out", out]
        subprocess.run(flags + ["--steps", "8", "--save-every", "5"], check=True, capture_output=True)
        compare("straight", out)
        # as if killed after step 8 with a checkpoint of step 5: steps 6 to 8 are done again, at another rate
        shutil.rmtree(os.path.join(out, "step-00000008"))
        subprocess.run(flags + ["--steps", "7", "--lr", "1e-2", "--resume"], check=True, capture_output=True)
        check("a start writes a file of its own", len(glob.glob(os.path.join(out, "events.out.tfevents.*"))) == 2)
        compare("resumed", out)
        # and as if killed in the middle of a record
        newest = sorted(glob.glob(os.path.join(out, "events.out.tfevents.*")))[-1]
        os.truncate(newest, os.path.getsize(newest) - 9)
        shutil.rmtree(os.path.join(out, "step-00000007"))
        subprocess.run(flags + ["--steps", "10", "--resume"], check=True, capture_output=True)
        compare("resumed after a torn record", out)
    finally:
        shutil.rmtree(folder)
    return status()


if __name__ == "__main__":
    sys.exit(main())
