#!/usr/bin/env python3
"""Uploads the log.jsonl of a run to Weights & Biases, during the run or after
it.

    scripts/upload_wandb.py runs/gpt2 --project coat
        what is there now
    scripts/upload_wandb.py runs/gpt2 --project coat --follow
        goes on until the training has ended
    WANDB_MODE=offline scripts/upload_wandb.py runs/gpt2
        into a local folder, without an account

The curves have the names of the log's fields (loss, val_loss, grad_norm, lr,
tokens, tokens_per_s, ms, skipped, hellaswag); FP8 health becomes
fp8/TENSOR/FIGURE and products/TENSOR/FIGURE, the largest over the layers. The
step is the optimizer's. Uploading the same folder again adds the steps that are
new. Steps that a resumed training has done again stay as they were uploaded:
W&B does not take a step twice; --id NAME begins a run of its own instead.

The trainer itself never talks to a network. Needs wandb (pip install wandb) and
a login (wandb login).
"""
import argparse
import hashlib
import json
import os
import sys
import time


def fail(text):
    sys.exit("upload_wandb.py: " + text)


def flatten(fields):
    """The numbers of a line of the log; what is null is left out."""
    figures = {}
    for key, value in fields.items():
        if key in ("fp8", "products") and isinstance(value, dict):
            for tensor, health in value.items():
                for figure, layers in health.items():
                    known = [v for v in (layers if isinstance(layers, list) else [layers]) if v is not None]
                    if known:
                        figures["%s/%s/%s" % (key, tensor, figure)] = max(known, key=abs)
        elif key != "step" and isinstance(value, (int, float)):
            figures[key] = value
    return figures


class Log:
    """The steps of a log.jsonl that were not asked for yet, each with all its lines."""

    def __init__(self, path):
        self.path, self.offset, self.step, self.figures = path, 0, None, {}

    def lines(self):
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, os.SEEK_END) < self.offset:  # trimmed by a resumed training: read it again
                    self.offset = 0
                file.seek(self.offset)
                while True:
                    line = file.readline()
                    if not line.endswith(b"\n"):  # the end, or a line that is being written
                        return
                    self.offset += len(line)
                    yield line
        except OSError as error:
            fail("%s cannot be read: %s" % (self.path, error.strerror))

    def steps(self, ended):
        """(step, figures) of steps that are complete: another has begun, or the training has ended."""
        for line in self.lines():
            try:
                fields = json.loads(line)
                step = int(fields["step"])
            except (ValueError, KeyError, TypeError):
                continue
            if self.figures and step != self.step:
                yield self.step, self.figures
                self.figures = {}
            self.step = step
            self.figures.update(flatten(fields))
        if ended and self.figures:
            yield self.step, self.figures
            self.figures = {}


def model_of(folder):
    """What config.json of the newest checkpoint says of the model, for W&B's table of runs."""
    steps = sorted(name for name in os.listdir(folder) if name.startswith("step-")) if os.path.isdir(folder) else []
    try:
        with open(os.path.join(folder, steps[-1], "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (IndexError, OSError, ValueError):
        return {}
    return {key: config[key] for key in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size") if key in config}


def upload(run, log, first, ended):
    """Sends the steps from `first` on; returns how many."""
    count = 0
    for step, figures in log.steps(ended):
        if step >= first:
            run.log(figures, step=step)
            count += 1
    return count


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of the run, or its log.jsonl")
    parser.add_argument("--project", default="coat", help="W&B project (default coat)")
    parser.add_argument("--entity", help="W&B user or team (default: the login's)")
    parser.add_argument("--name", help="name of the run (default: that of its folder)")
    parser.add_argument("--id", help="W&B's id of the run (default: from its folder's path)")
    parser.add_argument("--follow", action="store_true", help="wait for new lines until none has come for --patience")
    parser.add_argument("--patience", type=float, default=900, metavar="SECONDS", help="of --follow (default 900)")
    options = parser.parse_args(arguments)
    path = os.path.join(options.run, "log.jsonl") if os.path.isdir(options.run) else options.run
    if not os.path.isfile(path):
        fail("%s: there is no log" % path)
    try:
        import wandb
    except ImportError as error:
        fail("needs the Python package wandb: pip install wandb (%s)" % error)
    folder = os.path.dirname(os.path.abspath(path))
    identity = options.id or hashlib.sha256(folder.encode()).hexdigest()[:16]
    run = wandb.init(project=options.project, entity=options.entity, name=options.name or os.path.basename(folder),
                     id=identity, resume="allow", config=model_of(folder))
    first, log, total, last = run.step or 0, Log(path), 0, time.time()
    while True:
        quiet = time.time() - last > options.patience
        count = upload(run, log, first, ended=quiet or not options.follow)
        total += count
        if not options.follow or quiet:
            break
        if count:
            last = time.time()
        time.sleep(min(5, max(0.05, options.patience / 10)))
    run.finish()
    print("%s: %d steps uploaded" % (path, total))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
