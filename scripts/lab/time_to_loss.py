"""How many steps, tokens and seconds do AdamW and Muon need to reach the same loss, in
BF16 and with COAT? Trains four arms (combinations of recipe and optimizer) on one GPU:
BF16 AdamW, COAT AdamW, BF16 Muon and COAT Muon. Writes the page OUT/time-to-loss.md, and
a row per finished run to OUT/time-to-loss.tsv.

    scripts/lab.py time-to-loss [--dry-run] [--out runs/time-to-loss]
        [TRAIN_GLOB VAL_GLOB [SETTING...]]

SETTING: see the list below (default: gpt2). Without token files the setting is
`bytes`, a small model that reads this machine's headers.

1. BF16 trains the full length with three learning rates per optimizer. Both arms of an
   optimizer then use its rate with the lowest final validation loss.
2. The target is the lowest final validation loss of BF16 AdamW.
3. Each other arm trains the full length. If the final loss reaches the target, shorter
   runs follow until one ends above the target. Otherwise longer runs follow until one
   reaches the target. Every run has a complete schedule. Its warm-up is shortened or
   extended like the run, but has at least 10 steps.
4. The steps to the target are interpolated, linearly over log(steps), between the run
   that ends above the target and the run that reaches it. The seconds are these steps
   times the median time per step of the arm's full-length run.

Finished runs are not repeated, and a stopped run resumes from its last checkpoint: start
the same command again. A run that diverges (exit code 4) counts as above the target.
Any other failure is reported, the other runs continue, and the exit code is 1.
Expected time: an hour for gpt2 or llama on an H200, 15 minutes for bytes on two cores.

Environment:
  RATES_ADAMW="3e-4 6e-4 1.2e-3"   learning rates; --lr in TRAINING has no effect
  RATES_MUON="1.2e-3 2.4e-3 4.8e-3"
  FRACTIONS="0.75 0.6 0.45 0.3"    lengths of shorter and longer runs, as fractions of the
                                   full length, each at most 2. Default: these for Muon,
                                   0.9 1.1 1.2 for AdamW
  SEED=1
  STEPS=N                          replaces the setting's steps
  MODEL="--layers ..."             replaces the setting's model; BATCH="--seq-len N
                                   --micro-batch N --batch-tokens N" its batch;
                                   TRAINING="--schedule ... --warmup N" its optimizer
  TEXT=FOLDER                      text for the byte-level model
  BIN=. BUILD=build                folders of the programs
  VERSION=NAME                     version on the page (default: git describe)
"""
import copy
import math
import re

from . import fidelity
from . import work as lab
from .fidelity_page import heading
from .fidelity_runs import KEY, Run, Runs, choose_trainer, list_settings, read_settings
from .results import Failure, Table, markdown, write_file
from .work import number, setting

GPT2 = fidelity.SETTINGS["65k"]
SETTINGS = {"gpt2": (*GPT2[:-1], "GPT-2 of 124M, 65,536 tokens per step"),
            "llama": ("--model llama:d12", *GPT2[1:-1], "a Llama of 124M, 65,536 tokens per step"),
            "bytes": fidelity.SETTINGS["bytes"]}
OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon"}
BASE = ("bf16", "adamw")  # the arm that defines the target
ARMS = [(recipe, optimizer) for optimizer in OPTIMIZERS for recipe in ("bf16", "coat")]
RATES = {"adamw": "3e-4 6e-4 1.2e-3", "muon": "1.2e-3 2.4e-3 4.8e-3"}
FRACTIONS = {"adamw": "0.9 1.1 1.2", "muon": "0.75 0.6 0.45 0.3"}
COMMAND = ["RATES_ADAMW", "RATES_MUON", "FRACTIONS", "SEED", "STEPS", "MODEL", "BATCH", "TRAINING", "TEXT"]


def name_of(recipe, optimizer):
    return f"{recipe.upper()} {OPTIMIZERS[optimizer]}"


def loss_text(row):
    return row["val_loss"] if row["ended"] == "done" else "diverged"


def loss_of(row):
    """Returns a run's final validation loss; infinity if it diverged."""
    return float(row["val_loss"]) if row["ended"] == "done" else math.inf


def steps_to(target, rows):
    """Returns (steps to the target loss, True if the number is only an upper bound); None if no run reaches the target.
    rows: the rows of an arm's runs, longest run first."""
    points = [(math.log(int(row["steps"])), loss_of(row)) for row in rows]
    reached = [k for k, (_, loss) in enumerate(points) if loss <= target]
    if not reached:
        return None
    x, loss = points[reached[-1]]
    above_x, above = (points + [(0, math.inf)])[reached[-1] + 1]
    if above == math.inf:
        return math.exp(x), True
    return math.exp(x + (above_x - x) * (target - loss) / (above - loss)), False


class TimeToLoss:
    """The study that the command requests. Checks all settings before anything is written."""

    def __init__(self, options):
        self.out, self.work = options.out, lab.Work(options.out, options.dry_run)
        self.settings = read_settings(options.words, self.work, SETTINGS, "gpt2")
        self.rates = {name: setting("RATES_" + name.upper(), rates).split() for name, rates in RATES.items()}
        self.fractions = {name: setting("FRACTIONS", fractions).split() for name, fractions in FRACTIONS.items()}
        for word in sum(self.fractions.values(), []):
            if not re.fullmatch(r"[0-9]*\.?[0-9]+", word) or not 0 < float(word) <= 2:
                raise Failure(f"FRACTIONS: {word}: must be a number above 0 and at most 2")
        self.seeds, self.saves = [str(number("SEED", setting("SEED", "1")))], 4
        self.recipes, self.evaluations, self.texts = [], [], {}  # Runs reads these fields
        for of in self.settings:
            value = dict(zip(of.flags, of.flags[1:]))
            of.warmup, of.batch_tokens = (number(name, value.get(name, "missing")) for name in
                                          ("--warmup", "--batch-tokens"))
        self.trainer = choose_trainer(self.work, self.settings)
        for of in self.settings:
            for optimizer, rates in self.rates.items():
                for rate in rates:
                    lab.check_flags(of.name, self.trainer, of.flags + self.flags(f"coat-{optimizer}-{rate}"))
        self.results = Table(self.out + "/time-to-loss.tsv", *KEY, "ended", "steps", "val_loss", "ms")
        self.best = {}  # {(setting, optimizer): rate}

    @staticmethod
    def flags(name):
        """Returns the trainer's flags of the name RECIPE-OPTIMIZER-RATE. In all arms, --master split16 makes weights
        and masters together take 4 bytes per parameter."""
        recipe, optimizer, rate = name.split("-", 2)
        return ["--recipe", recipe, "--master", "split16", "--optimizer", optimizer, "--lr", rate]

    # --- runs ---------------------------------------------------------------------------------------------------------

    def run_of(self, of, recipe, optimizer, rate, steps):
        """Returns the Run of an arm in the setting `of` with a schedule of `steps` steps. The warm-up has the same
        fraction of the steps as in the setting, but at least 10 steps."""
        length = copy.copy(of)
        length.name, length.schedule, length.steps = f"{of.name}-{steps}", steps, steps
        length.flags = of.flags + ["--warmup", str(max(10, round(of.warmup * steps / of.schedule)))]
        return Run(length, f"{recipe}-{optimizer}-{rate}", self.seeds[0], self.out)

    def row_of(self, *arguments):
        return self.runs.row_of(self.run_of(*arguments))

    def train(self, *arguments):
        """Trains the run run_of(*arguments) unless it has ended. Returns the run's row; None in a dry run."""
        run = self.run_of(*arguments)
        self.runs.train(run)
        return self.runs.row_of(run)

    def choose_rates(self, of):
        """Chooses the learning rate of each optimizer: the rate with which BF16's full-length run has the lowest
        loss."""
        for optimizer, rates in self.rates.items():
            rows = {rate: self.row_of(of, "bf16", optimizer, rate, of.schedule) for rate in rates}
            if self.work.dry_run:
                self.best[of, optimizer] = "BEST"
                continue
            if None in rows.values():
                raise Failure("")  # the failed run has been reported
            rate = min(rates, key=lambda rate: loss_of(rows[rate]))
            if loss_of(rows[rate]) == math.inf:
                raise Failure(f"{of.name}: BF16 {OPTIMIZERS[optimizer]} diverges at all of RATES_{optimizer.upper()}; "
                              "add lower rates")
            self.best[of, optimizer] = rate

    def target(self, of):
        return loss_of(self.row_of(of, "bf16", "adamw", self.best[of, "adamw"], of.schedule))

    def rows(self, of, recipe, optimizer, get):
        """Returns the rows of an arm's runs, longest run first; None instead of the row of a run that has not ended.
        get: self.train, to train missing runs, or self.row_of."""
        lengths = sorted({max(1, round(float(word) * of.schedule)) for word in self.fractions[optimizer]})
        shorter = [steps for steps in reversed(lengths) if steps < of.schedule]
        longer = [steps for steps in lengths if steps > of.schedule]
        if (recipe, optimizer) == BASE:
            shorter = longer = []
        rate, rows = self.best[of, optimizer], {}
        if self.work.dry_run:  # full-length BF16 runs have been printed for the choice of the rates
            for steps in [of.schedule] * (recipe != "bf16") + shorter + longer:
                get(of, recipe, optimizer, rate, steps)
            return []

        def reaches(steps):
            """True if the run of `steps` steps reaches the target, False if not, None if the run has not ended."""
            rows[steps] = get(of, recipe, optimizer, rate, steps)
            return rows[steps] and loss_of(rows[steps]) <= self.target(of)

        full = reaches(of.schedule)
        for steps in shorter if full else longer if full is False else []:
            if reaches(steps) != full:
                break
        return [rows[steps] for steps in sorted(rows, reverse=True)]

    # --- the page -----------------------------------------------------------------------------------------------------

    def cells(self, of, recipe, optimizer):
        """Returns steps, tokens and seconds to the target as text, then the seconds as a number, or None if unknown."""
        rows = self.rows(of, recipe, optimizer, self.row_of)
        if None in rows:
            return ["not finished", "–", "–"], None
        found = steps_to(self.target(of), rows) if (recipe, optimizer) != BASE else (of.schedule, False)
        if not found:
            return [f"not reached (loss {loss_text(rows[0])})", "–", "–"], None
        steps, sign = found[0], "≤ " if found[1] else ""
        seconds = steps * float(self.row_of(of, recipe, optimizer, self.best[of, optimizer], of.schedule)["ms"]) / 1000
        texts = f"{steps:,.0f}", f"{steps * of.batch_tokens:,.0f}", f"{seconds:,.1f}"
        return [sign + text for text in texts], seconds

    def section(self, of):
        flags, files = self.results.notes["setting", of.name].split("; ", 1)
        lines = ["", "## " + of.name, f"`{flags}`; {files}.", ""]
        if any((of, optimizer) not in self.best for optimizer in OPTIMIZERS):
            return lines + ["The runs that choose the rates are not finished."]
        lines += [f"Target: {self.target(of):.4f}, the final loss of BF16 AdamW after {of.schedule:,} steps.", ""]
        base, table = self.cells(of, "bf16", "adamw")[1], []
        for recipe, optimizer in ARMS:
            cells, seconds = self.cells(of, recipe, optimizer)
            ratio = f"{'≤ ' * cells[0].startswith('≤')}{seconds / base:.3f}" if seconds and base else "–"
            table.append([name_of(recipe, optimizer), self.best[of, optimizer], *cells, ratio])
        lines += markdown(["arm", "rate", "steps", "tokens", "seconds", "seconds / BF16 AdamW's"], table)
        for optimizer, rates in self.rates.items():
            if len(rates) > 1 and self.best[of, optimizer] in (rates[0], rates[-1]):
                lines += ["", f"The best rate of BF16 {OPTIMIZERS[optimizer]} is the first or the last of "
                          f"{' '.join(rates)}; a rate outside may be better."]
        return lines

    def page(self):
        lines = heading("Time to the loss of BF16 AdamW", self.results.rows)
        lines += [line for command in self.results.commands for line in ("", "    " + command)]
        lines += ["", f"All losses are final validation losses with seed {self.seeds[0]}. Every run has a complete "
                  "schedule with its own `--lr` and `--warmup`. The steps to the target are interpolated over "
                  "log(steps) between two lengths; ≤: the shortest run that did not diverge also reaches the target. "
                  "Seconds are steps times the median time per step of the arm's run of full length, without "
                  "evaluation."]
        for of in self.settings:
            lines += self.section(of)
        runs = []
        for row in self.results.rows:
            name, (*arm, rate) = row["setting"].rsplit("-", 1)[0], row["recipe"].split("-", 2)
            runs.append([name, name_of(*arm), rate, row["seed"], row["steps"], loss_text(row), row["ms"]])
        columns = ["setting", "arm", "rate", "seed", "steps", "validation loss", "ms per step"]
        return "\n".join([*lines, "", "## Runs", *markdown(columns, runs)]) + "\n"

    def run(self, arguments):
        self.work.begin()
        self.results.read()  # reads time-to-loss.tsv again, because another process may have changed it before begin()
        self.runs = Runs(self)
        if not self.work.dry_run:
            if any(of.on_bytes for of in self.settings):
                self.work.prepare_text()
            for of in self.settings:
                self.results.note("setting", of.name, of.note(""), "--out")
            self.results.add_command(lab.command_line("time-to-loss", COMMAND, arguments))
            self.results.save()
        place = self.work.places(1)
        self.work.each(self.train, [(of, "bf16", optimizer, rate, of.schedule) for of in self.settings
                                    for optimizer, rates in self.rates.items() for rate in rates], place)
        self.work.each(self.choose_rates, [(of,) for of in self.settings], place)
        self.work.each(self.rows, [(of, *arm, self.train) for of in self.settings for arm in ARMS
                                   if (of, "muon") in self.best], place)
        if not self.work.dry_run:
            write_file(self.out + "/time-to-loss.md", self.page())
            print(f"written: {self.out}/time-to-loss.md")
        return 1 if self.work.failed else 0


def main(arguments):
    parser = lab.Parser("time-to-loss", __doc__ + list_settings(SETTINGS))
    parser.add_argument("words", nargs="*", metavar="TRAIN_GLOB VAL_GLOB SETTING")
    options = parser.parse_intermixed_args(arguments)
    return TimeToLoss(options).run(arguments)
