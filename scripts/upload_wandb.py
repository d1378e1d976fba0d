#!/usr/bin/env python3
"""Uploads the log.jsonl of a run to Weights & Biases, during the run or after it.

    scripts/upload_wandb.py runs/gpt2 --project coat
        uploads the existing steps
    scripts/upload_wandb.py runs/gpt2 --project coat --follow
        also uploads new steps, and ends when no step has appeared for 15 minutes
    WANDB_MODE=offline scripts/upload_wandb.py runs/gpt2
        writes to a local folder, without an account

Curves are named after the log's fields (loss, val_loss, grad_norm, lr, tokens,
tokens_per_s, ms, skipped, hellaswag). Statistics of tensors become FIELD/TENSOR/STATISTIC,
for example fp8/h/amax. FIELD is fp8, attention, activation or optimizer; with
--health-products, the log also has products/TENSOR/STATISTIC. If the log has a value per
layer, the value with the largest magnitude is uploaded. W&B's step is the optimizer step.
A second upload of a folder adds only new steps. If a resumed training repeats steps, W&B
keeps their first values, because it accepts a step only once. --id NAME uploads to
another W&B run.

Needs wandb (pip install wandb) and a login (wandb login). The trainer itself never uses
the network.
"""
import argparse
import hashlib
import json
import os
import sys
import time


def flatten(fields):
    """Returns {curve: value} of a log line, without null values. Of a list over layers, takes the value of the largest
    magnitude."""
    figures = {}
    for key, value in fields.items():
        if key in ("fp8", "products", "attention", "activation", "optimizer") and isinstance(value, dict):
            for tensor, health in value.items():
                for figure, layers in health.items():
                    known = [v for v in (layers if isinstance(layers, list) else [layers]) if v is not None]
                    if known:
                        figures["%s/%s/%s" % (key, tensor, figure)] = max(known, key=abs)
        elif key != "step" and isinstance(value, (int, float)):
            figures[key] = value
    return figures


class Log:
    """Reads a log.jsonl that may still grow."""

    def __init__(self, path):
        self.path, self.offset, self.step, self.figures = path, 0, None, {}

    def new_steps(self, ended):
        """Yields (step, {curve: value}) of each new step whose lines are complete: a later step has begun, or `ended`
        is true."""
        try:
            with open(self.path, "rb") as file:
                # a shorter file was truncated by a resumed training, so it is read from the beginning
                if file.seek(0, os.SEEK_END) < self.offset:
                    self.offset = 0
                file.seek(self.offset)
                lines = file.read().split(b"\n")[:-1]  # the last line may still be incomplete
        except OSError as error:
            sys.exit("upload_wandb.py: %s: cannot be read: %s" % (self.path, error.strerror))
        self.offset += sum(len(line) + 1 for line in lines)
        for line in lines:
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
    """Returns the model's sizes from config.json of the newest checkpoint, for W&B's table of runs; {} without
    checkpoint."""
    steps = sorted(name for name in os.listdir(folder) if name.startswith("step-"))
    try:
        with open(os.path.join(folder, steps[-1], "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (IndexError, OSError, ValueError):
        return {}
    return {key: config[key] for key in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size") if key in config}


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of the run, or its log.jsonl")
    parser.add_argument("--project", default="coat", help="W&B project (default coat)")
    parser.add_argument("--entity", help="W&B user or team (default: that of the login)")
    parser.add_argument("--name", help="name of the run (default: its folder's name)")
    parser.add_argument("--id", help="W&B's id of the run (default: hash of its folder's path)")
    parser.add_argument("--follow", action="store_true",
                        help="wait for new steps; end after --patience seconds without any")
    parser.add_argument("--patience", type=float, default=900, metavar="SECONDS",
                        help="seconds that --follow waits for a new step (default 900)")
    options = parser.parse_args(arguments)
    path = os.path.join(options.run, "log.jsonl") if os.path.isdir(options.run) else options.run
    if not os.path.isfile(path):
        sys.exit("upload_wandb.py: %s: there is no log; name the --out folder of a run" % path)
    try:
        import wandb
    except ImportError as error:
        sys.exit("upload_wandb.py: the Python package wandb is missing; run: pip install wandb (%s)" % error)
    folder = os.path.dirname(os.path.abspath(path))
    run = wandb.init(project=options.project, entity=options.entity, name=options.name or os.path.basename(folder),
                     id=options.id or hashlib.sha256(folder.encode()).hexdigest()[:16], resume="allow",
                     config=model_of(folder))
    first, log, total, last, ended = run.step or 0, Log(path), 0, time.time(), False
    while not ended:
        ended = not options.follow or time.time() - last > options.patience
        for step, figures in log.new_steps(ended):
            last = time.time()
            if step >= first:
                run.log(figures, step=step)
                first, total = step + 1, total + 1
        if not ended:
            time.sleep(min(5, max(0.05, options.patience / 10)))
    run.finish()
    print("%s: %d steps uploaded" % (path, total))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
