"""How does training depend on the learning rate in each recipe, and how sharp is the
minimum? Trains a small model with every recipe, rate and seed, then moves the
weights of one run per recipe along random directions. Writes the page
OUT/stability.md, and the figures to OUT/stability.tsv and OUT/sharpness.tsv.
`scripts/lab.py draw OUT` draws the figures.

    scripts/lab.py stability [--dry-run] [--out runs/stability] [TRAIN_GLOB VAL_GLOB]

Without token files it trains a byte-level model on this machine's headers. Runs that
have ended are not repeated, and a stopped run resumes from its last checkpoint: start
the same command again, or one with more rates or seeds. A run has diverged if the
trainer ends with exit code 4, or if the final loss is above the loss of the first step.
Any other failure is reported, the other runs continue, and the exit code is 1.
Expected time without token files, on two cores: 54 runs of a minute, and six minutes
for the sharpness.

Environment:
  RECIPES="bf16 fp8-linear coat"  RECIPE,FLAG=VALUE,... adds flags to a recipe
  RATES="5e-4 1e-3 2e-3 4e-3 8e-3 1.6e-2" SEEDS="1 2 3"
  MODEL="--layers 6 ..."          flags of the model
  BATCH="--seq-len ..."           flags of the batch and of the validation
  TRAINING="--schedule ..."       flags of the optimizer
  STEPS=N                         number of training steps
  DIRECTIONS=8                    random directions in which the sharpness is measured
                                  (0: none)
  CURVES=2                        number of directions whose loss curves are drawn
  POINTS=21                       points of each drawn curve, at distances from -1 to 1
  JOBS=N                          runs at a time (default: one per GPU; 1 on a CPU)
  TEXT=FOLDER                     text for the byte-level model
  BIN=. BUILD=build               folders of the programs

The last checkpoints of the runs with the first seed are kept.
"""
import os
import threading

from . import work as lab
from .results import Failure, Sample, Table, find, is_number, markdown, read_log, remove, value_at, write_file
from .work import check_built, is_built, number, recipe_flags, setting

COMMAND = ["RECIPES", "RATES", "SEEDS", "MODEL", "BATCH", "TRAINING", "STEPS", "DIRECTIONS", "CURVES", "POINTS", "TEXT"]
# (flags of the model, flags of the batch, steps): first without token files, then with token files
DEFAULTS = (("--layers 4 --heads 4 --channels 128", "--seq-len 128 --micro-batch 8 --val-batches 40", 400),
            ("--layers 6 --heads 6 --channels 384", "--seq-len 1024 --micro-batch 32 --val-batches 20", 1600))
TRAINING = "--schedule cosine --warmup %d --lr-final 0.1 --beta2 0.95 --weight-decay 0.1"


class Stability:
    def __init__(self, options):
        self.work, self.out, self.lock = lab.Work(options.out, options.dry_run), options.out, threading.Lock()
        if not is_built(lab.GPU_TRAINER):
            self.work.gpus = []
        self.trainer = lab.GPU_TRAINER if self.work.gpus else lab.CPU_TRAINER
        self.on_bytes, self.files = not options.words, lab.token_globs(options.words, self.work)
        model, batch, steps = DEFAULTS[bool(options.words)]
        self.steps = number("STEPS", setting("STEPS", steps), 1)
        self.model = setting("MODEL", model).split() + ["--tokenizer", "bytes"] * self.on_bytes
        self.batch = setting("BATCH", batch).split()
        self.training = setting("TRAINING", TRAINING % (self.steps // 10)).split()
        self.recipes, self.rates, self.seeds = (setting(name, default).split() for name, default in (
            ("RECIPES", "bf16 fp8-linear coat"), ("RATES", "5e-4 1e-3 2e-3 4e-3 8e-3 1.6e-2"), ("SEEDS", "1 2 3")))
        self.directions, self.curves, self.points, jobs = (number(name, setting(name, default)) for name, default in (
            ("DIRECTIONS", 8), ("CURVES", 2), ("POINTS", 21), ("JOBS", len(self.work.gpus))))
        if self.points % 2 == 0 or self.points < 3:
            raise Failure(f"POINTS: must be an odd number of at least 3, so that 0 is one of them (is {self.points})")
        flags = self.model + self.batch + self.training
        for recipe in self.recipes:
            lab.check_flags(f"RECIPES: {recipe}", self.trainer, flags + recipe_flags(recipe))
        for rate in self.rates:
            lab.check_flags(f"RATES: {rate}", self.trainer, [*flags, "--lr", rate])
        self.places = self.work.places(jobs or 1)
        if not options.dry_run:
            check_built([self.trainer, lab.BUILD + "/perturb_weights", lab.BUILD + "/prepare_bytes"])
        self.losses = Table(self.out + "/stability.tsv", "recipe", "rate", "seed", "ended", "loss", "first_loss")
        self.sharpness = Table(self.out + "/sharpness.tsv", "recipe", "rate", "direction", "distance", "loss")

    def add(self, results, **row):
        with self.lock:
            results.rows.append(row)
            results.save()

    # --- runs ---------------------------------------------------------------------------------------------------------

    def folder(self, recipe, rate, seed):
        return os.path.join(self.out, "runs", recipe, rate, seed)

    def train(self, recipe, rate, seed):
        folder, what = self.folder(recipe, rate, seed), f"{recipe}, rate {rate}, seed {seed}"
        if self.losses.find(recipe=recipe, rate=rate, seed=seed):
            return
        if not self.work.dry_run:
            os.makedirs(folder, exist_ok=True)
            lab.tell("training " + what)
        status = self.work.run(folder + "/output.txt", [
            self.trainer, *self.model, *recipe_flags(recipe), *self.batch, *self.training, "--train", self.files[0],
            "--val", self.files[1], "--steps", str(self.steps), "--lr", rate, "--seed", seed, "--val-every", "0",
            "--sample-tokens", "0", "--quiet", "--save-every", str(self.steps // 4 + 1), "--keep", "1", "--out", folder,
            "--resume"])
        if self.work.dry_run:
            return
        log = folder + "/log.jsonl"
        loss, first = value_at(log, self.steps, "val_loss"), value_at(log, 1, "loss")
        if status != 4 and (status or loss is None):
            raise self.work.failure(what, status, folder + "/output.txt")
        if seed != self.seeds[0]:
            remove(folder, "step-*")
        good = status == 0 and is_number(loss) and float(loss) <= float(first)
        self.add(self.losses, recipe=recipe, rate=rate, seed=seed, ended="done" if good else "diverged", loss=loss,
                 first_loss=first)

    def distances(self, direction):
        """Returns the distances to evaluate along a direction, as multiples of the weights' norm. Direction 0 stands
        for the unmoved weights: distance 0. Directions 1 to CURVES are drawn: all distances except 0. Later directions
        only need the two distances nearest to 0, from which curvature() is computed."""
        half = (self.points - 1) // 2
        near = range(-half, half + 1) if direction <= self.curves else (-1, 1)
        return ["0"] if direction == 0 else [f"{k / half:.6g}" for k in near if k]

    def look_along(self, recipe, rate, direction):
        """Moves the weights of a run, of the first seed, along a direction. Evaluates the moved weights at each
        distance that has no result yet."""
        folder = self.folder(recipe, rate, self.seeds[0])
        checkpoints = [folder + "/step-LAST"] if self.work.dry_run else sorted(find(folder, "step-*"))
        if not checkpoints:
            raise Failure(f"{folder}: contains no checkpoint, so the sharpness of {recipe} cannot be measured; choose "
                          "another --out")
        moved = f"{self.out}/.moved-{recipe}-{rate}-{direction}"
        commands = ([lab.BUILD + "/perturb_weights", checkpoints[-1], moved, str(direction)],
                    [self.trainer, "--eval-only", "--model", moved, *recipe_flags(recipe), *self.batch,
                     "--val", self.files[1], "--json", "--quiet", "--sample-tokens", "0"])
        for distance in self.distances(direction):
            at = {"recipe": recipe, "rate": rate, "direction": str(direction), "distance": distance}
            if self.work.stopped or self.sharpness.find(**at):
                continue
            for command, more in zip(commands, ([distance], [])):
                status = self.work.run(moved + ".txt", command + more)
                if status:
                    what = f"{recipe} at {distance} along direction {direction}"
                    raise self.work.failure(what, status, moved + ".txt")
            if not self.work.dry_run:
                losses = [line["val_loss"] for line in read_log(moved + ".txt") if "val_loss" in line]
                self.add(self.sharpness, **at, loss=losses[-1] if losses else "-")
        remove(self.out, os.path.basename(moved) + "*")

    # --- tables -------------------------------------------------------------------------------------------------------

    def rows(self, recipe, rate):
        found = (self.losses.find(recipe=recipe, rate=rate, seed=seed) for seed in self.seeds)
        return [row for row in found if row]

    def sample(self, recipe, rate):
        return Sample(float(row["loss"]) for row in self.rows(recipe, rate) if row["ended"] == "done")

    def best_rate(self, recipe):
        """Returns the rate with the lowest mean loss. Considers only rates at which the runs of all seeds ended without
        diverging; None if there is no such rate."""
        good = [rate for rate in self.rates if self.sample(recipe, rate).count == len(self.seeds)]
        return min(good, key=lambda rate: self.sample(recipe, rate).mean, default=None)

    def cell(self, recipe, rate):
        sample, base, rows = self.sample(recipe, rate), self.sample(self.recipes[0], rate), self.rows(recipe, rate)
        parts = [sample.with_deviation()] if sample.count else []
        if sample.count and base.count and recipe != self.recipes[0]:
            parts = [f"{parts[0]} ({100 * (sample.mean / base.mean - 1):+.2f} %)"]
        counts = (len(rows) - sample.count, "diverged"), (len(self.seeds) - len(rows), "failed")
        return ", ".join(parts + [f"{count} of {len(self.seeds)} {what}" for count, what in counts if count])

    def curvature(self, recipe, rate):
        low, high = self.distances(self.curves + 1)
        loss = {(row["direction"], row["distance"]): float(row["loss"]) for row in self.sharpness.rows
                if row["recipe"] == recipe and row["rate"] == rate and is_number(row["loss"])}
        known = [k for k in map(str, range(1, self.directions + 1)) if {(k, low), (k, high), ("0", "0")} <= set(loss)]
        return Sample((loss[k, low] - 2 * loss["0", "0"] + loss[k, high]) / float(high) ** 2 for k in known)

    def summary(self, recipe):
        rate = self.best_rate(recipe)
        if not rate:
            return [recipe] + ["–"] * 4
        lowest = self.sample(recipe, rate).mean
        limited = Sample(float(row["loss" if row["ended"] == "done" else "first_loss"])
                         for rate in self.rates for row in self.rows(recipe, rate))
        curvature = self.curvature(recipe, rate).with_deviation(3)
        return [recipe, rate, f"{lowest:.4f}", f"{limited.mean - lowest:.4f}", curvature]

    def page(self):
        where = lab.gpu_name() if self.work.gpus else "a CPU"
        lines = ["# Learning rates and sharpness", "",
                 f"`{' '.join(self.model + self.batch + self.training)}`, {self.steps} steps, on {where}; version "
                 f"{lab.version_of(self.trainer)}. Validation loss, mean ± standard deviation over the seeds "
                 f"{' '.join(self.seeds)}, and its difference from {self.recipes[0]}.", ""]
        lines += markdown(["rate"] + self.recipes, [[rate] + [self.cell(recipe, rate) for recipe in self.recipes]
                                                    for rate in self.rates])
        lines += ["", *markdown(["recipe", "best rate", "loss", "sensitivity", "curvature"],
                                map(self.summary, self.recipes)),
                  "", "Sensitivity: the mean over the rates of the loss above its best; a run that "
                  "diverged counts with the loss of its first step."]
        if self.directions:
            lines += [f"Curvature: (L(+ε) − 2 L(0) + L(−ε)) / ε², ε = {2 / (self.points - 1):g}, of the run at the "
                      f"best rate with seed {self.seeds[0]}: mean ± standard deviation over {self.directions} random "
                      "directions. They are the same for all recipes, but each filter moves in proportion to the "
                      "norm of its weights."]
        return "\n".join(lines) + "\n"

    def run(self, arguments):
        self.work.begin()
        dry = self.work.dry_run
        if not dry:
            remove(self.out, ".moved-*")
            self.losses.read()
            self.sharpness.read()
            if self.on_bytes:
                self.work.prepare_text()
            flags = " ".join(self.model + self.batch + self.training + ["--steps", str(self.steps)])
            data, validation = map(os.path.basename, self.files)
            self.losses.note("setting", "study", f"{flags}; data: {data}; validation: {validation}", "--out")
            self.losses.add_command(lab.command_line("stability", COMMAND, arguments))
            self.losses.save()
        self.work.each(self.train, [(recipe, rate, seed) for seed in self.seeds for rate in self.rates
                                    for recipe in self.recipes], self.places)
        best = [(recipe, "BEST" if dry else self.best_rate(recipe)) for recipe in self.recipes]
        directions = [1] if dry else range(self.directions + 1)
        if self.directions:
            self.work.each(self.look_along, [(*of, k) for of in best if of[1] for k in directions], self.places)
        if not dry:
            write_file(self.out + "/stability.md", self.page())
            print(f"written: {self.out}/stability.md")
        return 1 if self.work.failed else 0


def main(arguments):
    parser = lab.Parser("stability", __doc__)
    parser.add_argument("words", nargs="*", metavar="TRAIN_GLOB VAL_GLOB")
    options = parser.parse_intermixed_args(arguments)
    if len(options.words) > 2:
        raise Failure(f"{options.words[2]}: is a third argument; quote the patterns of token files")
    return Stability(options).run(arguments)
