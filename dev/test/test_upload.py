#!/usr/bin/env python3
"""Tests scripts/upload_wandb.py with a replacement of the package wandb that records all calls.

    python3 dev/test/test_upload.py
"""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import types

sys.dont_write_bytecode = True
from tap import ROOT, check, status  # noqa: E402
import upload_wandb  # noqa: E402


class Run:
    def __init__(self, arguments, step):
        self.arguments, self.step, self.logged, self.finished = arguments, step, [], False

    def log(self, figures, step):
        assert not self.logged or step > self.logged[-1][0], "W&B drops steps that do not rise"
        self.logged.append((step, dict(figures)))

    def finish(self):
        self.finished = True


def upload(*arguments, step=0):
    """Uploads a run. Returns the recorded calls of wandb."""
    runs = []

    def init(**given):
        runs.append(Run(given, step))
        return runs[-1]

    sys.modules["wandb"] = types.SimpleNamespace(init=init)
    with contextlib.redirect_stdout(io.StringIO()):
        upload_wandb.main(list(arguments))
    del sys.modules["wandb"]
    return runs[0]


def line(step, **fields):
    return json.dumps(dict({"step": step}, **fields)) + "\n"


def main():
    with tempfile.TemporaryDirectory(prefix="coat_test_upload_") as folder:
        out = os.path.join(folder, "a run")
        os.makedirs(os.path.join(out, "step-00000002"))
        with open(os.path.join(out, "step-00000002", "config.json"), "w") as file:
            json.dump({"n_layer": 3, "n_embd": 64, "other": 1}, file)
        log = os.path.join(out, "log.jsonl")
        with open(log, "w") as file:
            file.write(line(1, loss=3.5, grad_norm=None, lr=0.1, tokens=10))
            file.write(line(2, loss=3.25, grad_norm=1.5, lr=0.1, tokens=20))
            file.write(line(2, val_loss=3.0) + "not a line\n" + line(2, hellaswag=0.25))
            file.write(line(2, fp8={"h": {"amax": [1.0, 4.0, None], "flushed": [0, 0.5, 0]}}))
            file.write(line(3, loss=3.125, tokens=30))
            file.write(line(3, products={"qkvw": {"error": [0.1, 0.3], "bias": [0.01, -0.02]}}) + '{"step":4,"lo')
        run = upload(out, "--project", "p")
        check("upload sends one entry per step, without values that are null", [step for step, _ in run.logged] == [1, 2, 3] and
              run.logged[0][1] == {"loss": 3.5, "lr": 0.1, "tokens": 10}, run.logged)
        check("upload merges the lines of a step", run.logged[1][1] == {
            "loss": 3.25, "grad_norm": 1.5, "lr": 0.1, "tokens": 20, "val_loss": 3.0, "hellaswag": 0.25,
            "fp8/h/amax": 4.0, "fp8/h/flushed": 0.5}, run.logged[1])
        check("upload sends the value of the layer with the largest magnitude, with its sign", run.logged[2][1] == {
            "loss": 3.125, "tokens": 30, "products/qkvw/error": 0.3, "products/qkvw/bias": -0.02}, run.logged[2])
        check("upload sends name and model", (run.arguments["project"], run.arguments["name"], run.arguments["config"]) ==
              ("p", "a run", {"n_layer": 3, "n_embd": 64}), run.arguments)
        check("upload ends the run when training has ended", run.finished)
        again = upload(log, step=3)
        check("a second upload adds only new steps to the run", [step for step, _ in again.logged] == [3] and
              again.arguments["id"] == run.arguments["id"] and again.arguments["resume"] == "allow", again.logged)

        def train():
            time.sleep(0.3)
            with open(log, "a") as file:
                file.write('ss":3.0}\n')
                file.flush()
                time.sleep(0.3)
                file.write(line(4, val_loss=2.75) + line(5, loss=2.5))

        training = threading.Thread(target=train)
        training.start()
        followed = upload(out, "--follow", "--patience", "1.5")
        training.join()
        check("--follow uploads lines as they are written", [step for step, _ in followed.logged] == [1, 2, 3, 4, 5] and
              followed.logged[3][1] == {"loss": 3.0, "val_loss": 2.75}, followed.logged)

        def refused(*arguments):
            done = subprocess.run([sys.executable, "-S", os.path.join(ROOT, "scripts", "upload_wandb.py"), *arguments],
                                  capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
            return done.returncode == 1 and done.stderr.count("\n") == 1 and done.stderr

        said = refused(out)
        check("without wandb, the error names the pip command", said and "pip install wandb" in said, said)
        said = refused(os.path.join(folder, "none"))
        check("a folder without a log is refused", said and "there is no log" in said, said)
    return status()


if __name__ == "__main__":
    sys.exit(main())
