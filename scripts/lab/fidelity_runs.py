"""The runs of `scripts/lab.py fidelity`. Trains or resumes every run that has not ended, and evaluates its last
checkpoint."""
import collections
import dataclasses
import glob
import os
import re
import shutil
import statistics
import threading

from . import work as lab
from .fidelity_page import EIGHTHS
from .results import Failure, find, is_number, read_log, remove, value_at, write_file
from .work import number, setting

KEY = "setting", "recipe", "seed"


def bytes_of(pattern):
    return sum(os.path.getsize(path) for path in glob.glob(pattern))


def flags_of(name, row):
    """Returns the trainer's flags of a row of SETTINGS as three strings: model, batch, optimizer."""
    training = "--lr %s --schedule cosine --warmup %s --lr-final %s --beta2 0.95 --weight-decay 0.1" % row[2]
    return (row[0], "--seq-len %s --micro-batch %s --batch-tokens %s" % row[1],
            training + " --eps 1e-5" * (name == "olmo-1b"))


def list_settings(settings):
    """Returns the part of --help that lists the settings."""
    lines = [f"  {name:8} {row[-1]}\n           {' '.join(flags_of(name, row))}, {row[3]} steps\n"
             for name, row in settings.items()]
    return "\nSettings:\n" + "".join(lines)


def read_settings(words, work, settings, default, start=None, end=None):
    """Returns a Setting per SETTING in the arguments [TRAIN_GLOB VAL_GLOB [SETTING...]]. Without SETTING, returns
    `default` or, without token files, `bytes`. start, end: FROM and TO."""
    files, own = lab.token_globs(words, work), lab.token_globs([], work)
    names = words[2:] or [default if words else "bytes"]
    for name in names:
        if name not in settings:
            raise Failure(f"{name}: must be one of the settings {', '.join(settings)}")
    return [Setting(name, settings[name], own if name == "bytes" else files, start, end) for name in names]


def choose_trainer(work, settings):
    """Returns the path of the GPU trainer if a GPU is usable or a setting other than `bytes` is requested, else of the
    CPU trainer. Outside a dry run, fails if programs are not built, or if such a setting has no GPU."""
    large = [of.name for of in settings if not of.on_bytes]
    if not lab.is_built(lab.GPU_TRAINER):
        work.gpus = []
    trainer = lab.GPU_TRAINER if work.gpus or large else lab.CPU_TRAINER
    if not work.dry_run:
        lab.check_built([trainer] + [lab.BUILD + "/prepare_bytes"] * any(of.on_bytes for of in settings))
        if large and not work.gpus:
            raise Failure(f"{large[0]}: needs a GPU for FP8, compute capability 8.9 or later; without token files a "
                          "byte-level model is trained on the CPU")
    return trainer


class Setting:
    """A setting, named SETTING[-from-STEP][-to-STEP]. The schedule has `schedule` steps; runs end after the first
    `steps` of them. If `start` > 0, only the baseline trains the first `start` steps, and all runs continue from its
    checkpoint."""

    def __init__(self, name, row, files, start, end):
        model, batch, training = flags_of(name, row)
        self.name = name + (f"-from-{start}" if start else "") + (f"-to-{end}" if end else "")
        self.train, self.val, self.on_bytes = *files, name == "bytes"
        batch = setting("BATCH", batch).split()
        self.flags = setting("MODEL", model).split() + ["--tokenizer", "bytes"] * self.on_bytes + batch
        self.flags += setting("TRAINING", training).split()
        value = dict(zip(batch, batch[1:]))  # {flag: its last value}
        self.length = number("--seq-len", value.get("--seq-len", "missing"), 1)
        self.micro_batch = number("--micro-batch", value.get("--micro-batch", "missing"), 1)
        self.schedule = number("STEPS", setting("STEPS", row[3]))
        self.val_tokens = 40960 if self.on_bytes else 2097152
        self.start, self.steps = start or 0, end or self.schedule
        if self.steps > self.schedule:
            raise Failure(f"TO: must be at most {self.schedule}, the steps of {name} (is {self.steps})")
        if self.steps - self.start < 8:
            after = " after FROM" if start else ""
            raise Failure(f"{'TO' if end else 'STEPS'}: at least 8 steps{after} are needed, one for each window of 1/8 "
                          f"of the run (are {self.steps - self.start})")

    def note(self, baseline):
        """Returns the flags, the data and the branch point as text. Runs are comparable only if this text is equal."""
        files = [f"{name}: {os.path.basename(files)}, {bytes_of(files)} bytes"
                 for name, files in (("data", self.train), ("validation", self.val))]
        start = [f"from step {self.start} of {baseline}"] if self.start else []
        return "; ".join([" ".join(self.flags + ["--steps", str(self.schedule)]), *files, *start])

    def micro_batch_of(self, seed):
        return int(seed.split("@")[1]) if "@" in seed else self.micro_batch

    def tokens_of(self, pattern):
        """Returns a lower bound of the number of tokens in complete sequences of these files, if tokens have 2 bytes.
        The number is too large for tokens of 4 bytes; the trainer then stops evaluating at the end of the data."""
        return bytes_of(pattern) // 2 - len(glob.glob(pattern)) * (512 + self.length)

    def val_batches(self, seed, pattern):
        """Returns --val-batches of a run: a number of micro-batches with which all seeds of the setting evaluate the
        same tokens."""
        tokens = min(self.val_tokens, self.tokens_of(pattern)) if glob.glob(pattern) else self.val_tokens
        batches = tokens // (self.micro_batch * self.length)
        return str(batches * (self.micro_batch // self.micro_batch_of(seed)) if batches > 0 else 1)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of the setting `of`. The run's folder contains the log, the output and, until the run ends, checkpoints."""

    of: Setting
    recipe: str
    seed: str
    out: str

    @property
    def key(self):
        return self.of.name, self.recipe, self.seed

    @property
    def folder(self):
        return os.path.join(self.out, *self.key)

    @property
    def log(self):
        return self.folder + "/log.jsonl"

    def checkpoint(self, step):
        return f"{self.folder}/step-{step:08}"

    def is_validated(self):
        return value_at(self.log, self.of.steps, "val_loss") is not None

    def __str__(self):
        return f"{self.of.name}, {self.recipe}, seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class Point(Run):
    """A branch point: the baseline's run to step FROM. All runs with the same seed continue from its checkpoint."""

    @property
    def folder(self):
        return os.path.join(self.out, "branch-points", re.sub("-to-.*", "", self.of.name), self.seed)

    def __str__(self):
        return f"{super().__str__()}, to step {self.of.start}"


class Runs:
    def __init__(self, study):
        self.study, self.work, self.results, self.dry = study, study.work, study.results, study.work.dry_run
        self.machine = lab.gpu_name() if self.work.gpus else "CPU"
        self.version = "" if self.dry else lab.version_of(study.trainer)
        self.lock, self.point_locks, self.lost_points = threading.Lock(), collections.defaultdict(threading.Lock), set()
        # orders runs by seed, so that two GPUs train the two runs of a pair at the same time
        self.runs = list(dict.fromkeys(Run(of, recipe, re.sub(f"@{of.micro_batch}$", "", seed), study.out)
                                       for of in study.settings for seed in study.seeds for recipe in study.recipes))

    def row_of(self, run):
        """Returns the run's row of fidelity.tsv; None if the run has not ended."""
        return self.results.find(**dict(zip(KEY, run.key)))

    def tell_what_is_missing(self):
        """Prints the ended runs that lack an evaluation of EVALUATE or TEXTS. Their checkpoints are deleted, so they
        cannot be evaluated."""
        for column in ["in " + name for name in self.study.evaluations] + ["on " + name for name in self.study.texts]:
            rows = [row for row in map(self.row_of, self.runs) if row and row["ended"] == "done"]
            names = [" ".join(row[key] for key in KEY) for row in rows if row.get(column, "-") == "-"]
            if names:
                lab.tell(f"note: not evaluated {column}: {', '.join(names)}; these runs ended earlier, and their "
                         "checkpoints are deleted; use another --out to train them again")

    def work_on(self, run):
        if isinstance(run, Point):
            if self.is_needed(run):
                self.train_point(run)
            return
        try:
            self.train(run)
        finally:
            point = self.point_of(run)
            if run.of.start and not self.dry and not setting("KEEP_BRANCH_POINTS"):
                with self.point_locks[point]:  # because two runs of a seed may end at the same time
                    if not self.is_needed(point):
                        remove(point.folder, "step-*", "events.*")

    def command(self, run, save_every, *more):
        """Returns the command that trains or resumes a run. more: further flags of the trainer."""
        of, (seed, *cut) = run.of, run.seed.split("@")
        flags = of.flags + self.study.flags(run.recipe) + ["--micro-batch", *cut] * len(cut)
        end = ["--val-every", str(of.steps)] if of.steps < of.schedule else []
        return [self.study.trainer, "--health-every", "0", "--val-every", "0", *flags,
                "--train", of.train, "--val", of.val, "--steps", str(of.schedule), "--seed", seed, *end,
                "--val-batches", of.val_batches(run.seed, of.val), "--sample-tokens", "0", "--quiet",
                "--save-every", str(save_every), *more, "--out", run.folder, "--resume"]

    def is_trained(self, run):
        """True if the log has the final validation loss. If EVALUATE or TEXTS are set, the last checkpoint must exist,
        too."""
        needed = self.study.evaluations or self.study.texts
        return run.is_validated() and (not needed or os.path.exists(run.checkpoint(run.of.steps)))

    def train(self, run):
        if self.row_of(run):
            return
        of, output, status = run.of, run.folder + "/output.txt", 0
        if not self.is_trained(run):
            if not self.dry:
                os.makedirs(run.folder, exist_ok=True)
                self.start_from_point(run)
                lab.tell(f"training {run}")
            if of.steps < of.schedule:
                status = self.work.run(output, self.command(run, of.steps), run.is_validated)
                if self.dry:
                    print(f"# ended at step {of.steps}")
            else:
                save_every = of.steps // (self.study.saves + 1) + 1
                status = self.work.run(output, self.command(run, save_every, "--keep", "1"))
            if status != 4 and not self.dry and not self.is_trained(run):
                raise self.work.failure(run, status, output)
        losses = self.evaluate(run) if status != 4 else {}
        if self.dry:
            return
        row = {**dict(zip(KEY, run.key)), **figures(run.log, of.start, of.steps, status == 4), **losses,
               "machine": self.machine, "version": self.version}
        with self.lock:
            self.results.rows.append(row)
            self.results.save()
        remove(run.folder, "step-*", "events.*")

    def evaluate(self, run):
        """Evaluates a run's last checkpoint in the recipes of EVALUATE and, in the run's own recipe, on TEXTS. Returns
        {column: value}."""
        of, losses = run.of, {}
        jobs = [("in " + name, name, f"evaluated-{name}.txt", of.val) for name in self.study.evaluations]
        jobs += [("on " + name, run.recipe, f"text-{name}.txt", files) for name, files in self.study.texts.items()]
        for column, recipe, log, files in jobs:
            log = os.path.join(run.folder, log)
            status = self.work.run(log, [
                self.study.trainer, "--eval-only", "--model", run.checkpoint(of.steps), *self.study.flags(recipe),
                "--micro-batch", str(of.micro_batch_of(run.seed)), "--val", files,
                "--val-batches", of.val_batches(run.seed, files), "--quiet", "--json"])
            losses[column], right = (value_at(log, of.steps, key) for key in ("val_loss", "val_accuracy"))
            if right is not None:
                losses["right " + column] = right
            if losses[column] is None and not self.dry:
                raise self.work.failure(f"{run}, evaluated {column}", status, log)
        return losses

    # --- branch points ------------------------------------------------------------------------------------------------

    def point_of(self, run):
        return Point(run.of, self.study.baseline, run.seed.split("@")[0], run.out)

    def has_begun(self, run):
        return self.row_of(run) or find(run.folder, "step-*") or self.is_trained(run)

    def is_needed(self, point):
        return any(self.point_of(run) == point and not self.has_begun(run) for run in self.runs)

    def with_branch_points(self):
        """Returns the runs and branch points as arguments of work_on(), in order. A branch point comes JOBS seeds
        before the runs that continue from it, so that its training has usually ended when these runs start."""
        if not setting("FROM"):
            return [(run,) for run in self.runs]
        runs, items = collections.defaultdict(list), []
        for run in self.runs:
            runs[self.point_of(run)].append((run,))
        for k in range(len(runs) + self.study.jobs):
            items += list(runs.values())[k - self.study.jobs] if k >= self.study.jobs else []
            items += [(point,) for point in list(runs)[k:k + 1]]
        return items

    def train_point(self, point):
        """Trains the baseline until step FROM is saved, unless its checkpoint exists. If several threads need the
        branch point, the first trains it and the others wait."""
        checkpoint, output = point.checkpoint(point.of.start), point.folder + "/output.txt"
        command = self.command(point, point.of.start)
        if self.dry:
            self.work.run(output, command)
            print(f"# ended after saving step {point.of.start}, from which the runs below continue")
            return
        with self.point_locks[point]:
            if point in self.lost_points:
                raise Failure("")  # no message: the thread that trained the branch point reports the failure
            if os.path.exists(checkpoint):
                return
            self.lost_points.add(point)
            lab.tell(f"training {point}")
            os.makedirs(point.folder, exist_ok=True)
            status = self.work.run(output, command, lambda: os.path.exists(checkpoint))
            if not os.path.exists(checkpoint):
                raise self.work.failure(point, status, output)
            for path in set(find(point.folder, "step-*")) - {checkpoint}:  # removes checkpoints of steps after FROM
                shutil.rmtree(path)
            self.check_point(point, checkpoint)
            self.lost_points.remove(point)

    @staticmethod
    def check_point(point, checkpoint):
        """Compares loss and gradient norm at step FROM in the logs of the branch point and of earlier runs. If one of
        them differs, removes the checkpoint and fails, because earlier runs continued from another checkpoint."""
        start, seed = point.of.start, point.seed
        runs = find(os.path.join(point.out, point.of.name), f"*/{seed}/log.jsonl", f"*/{seed}@*/log.jsonl")
        ways = {(value_at(log, start, "loss"), value_at(log, start, "grad_norm")) for log in [point.log, *runs]}
        if len(ways - {(None, None)}) > 1:
            shutil.rmtree(checkpoint)
            raise Failure(f"{point}: was trained again, but its loss or gradient norm differs from that of earlier "
                          "runs, for example because they ran on another machine; choose another --out")

    def start_from_point(self, run):
        """Copies the branch point's checkpoint and log to a run's folder, unless the run has begun. Files of the
        checkpoint become hard links if possible, because checkpoints are never modified in place."""
        if not run.of.start or self.has_begun(run):
            return
        point, copy = self.point_of(run), run.folder + "/.copy"
        self.train_point(point)
        remove(run.folder, ".copy")
        try:
            shutil.copytree(point.checkpoint(run.of.start), copy, copy_function=os.link)
        except OSError:  # hard links are not possible here (shutil.Error is an OSError)
            remove(run.folder, ".copy")
            shutil.copytree(point.checkpoint(run.of.start), copy)
        with open(point.log, encoding="utf-8") as log:
            lines = [line for line in log if int(re.search("[0-9]+", line)[0]) <= run.of.start]
        write_file(run.log, "".join(lines))
        os.rename(copy, run.checkpoint(run.of.start))


def figures(path, start, steps, failed):
    """Returns the columns of fidelity.tsv that come from the log `path`: {column: text}. failed: True if the trainer
    reported divergence."""
    sums, counts, times, largest, first, val, last = [0.0] * 8, [0] * 8, [], 0.0, None, None, 0
    for line in read_log(path):
        step = line["step"]
        if step > steps:  # a run that TO ended may have trained a few more steps
            continue
        val = line.get("val_loss", val) if step == steps else val
        if "loss" not in line:
            continue
        first, last = line["loss"] if step == 1 else first, step
        if step > start and is_number(line["loss"]):
            eighth = (8 * (step - start) - 1) // (steps - start)
            sums[eighth] += float(line["loss"])
            counts[eighth] += 1
        if step > start and is_number(line.get("grad_norm")):
            largest = max(largest, float(line["grad_norm"]))
        if step > start and is_number(line.get("ms")):
            times.append(float(line["ms"]))
    good = not failed and is_number(val) and is_number(first) and float(val) <= float(first)
    row = {"ended": "done" if good else "diverged", "steps": str(steps), "val_loss": val if is_number(val) else "-",
           "first_loss": first if is_number(first) else "-", "largest_grad_norm": f"{largest:.6g}",
           "ms": f"{statistics.median(times):.3f}" if times else "-"}
    for k, key in enumerate(EIGHTHS):
        complete = counts[k] and last >= start + (k + 1) * (steps - start) // 8
        row[key] = f"{sums[k] / counts[k]:.8g}" if complete else "-"
    return row
