"""Does a recipe train as well as BF16? Trains every recipe with the same seeds and
data, one run per GPU at a time. Writes OUT/fidelity.md: final validation losses,
and the mean difference from BF16 with its standard error. Also divides the run into
eight windows, and compares the mean training losses of each. The windows show a
drift long before the end, with a single seed.

    scripts/lab.py fidelity [--dry-run] [--out runs/fidelity] [--page-only]
        [TRAIN_GLOB VAL_GLOB [SETTING...]]

SETTING: see the list below (default: 262k). Without token files the setting is
`bytes`, a small model that reads this machine's headers.

OUT/fidelity.tsv has the figures of all runs that have ended. Runs that have ended
are not repeated, and a stopped run resumes from its last checkpoint: start the
same command again, or one with more seeds, recipes or settings. The page is built
from OUT/fidelity.tsv alone. A run that diverges (exit code 4) is a result. Any other
failure is reported, the other runs continue, and the exit code is 1.
`scripts/lab.py draw OUT` draws the differences.
Expected time per run: 3 minutes for 65k or 262k on an H200, 8 for 524k, 8 for
1558M; 18 (coat) to 24 (bf16) for olmo-1b on an H100; 1 for bytes on two cores.

Environment:
  RECIPES="bf16 coat"   the first is the baseline. RECIPE,FLAG=VALUE,... adds flags,
                        NAME:RECIPE,... names a recipe: paper:coat-paper,head=fp8.
                        A recipe's flags override the setting's: slow:bf16,lr=2.9e-4
  SEEDS="1 2 3"         1@16 is seed 1 with micro-batches of 16 sequences and the same
                        tokens per step. The page reports by how much 1 and 1@16 of
                        the baseline differ. Differences between recipes below this
                        run-to-run noise mean nothing
  FROM=STEP             trains the baseline to STEP of its schedule, once per seed.
                        All recipes continue from this checkpoint, so that random
                        differences of the first steps do not count.
                        With 262k and FROM=150, runs of BF16 end within 0.06 % of
                        each other
  TO=STEP               ends runs at STEP of their schedule, to save time. A drift is
                        visible within a hundred steps after FROM
  KEEP_BRANCH_POINTS=1  keeps the checkpoints of FROM for further recipes (124M: 1.7
                        GB each)
  EVALUATE="bf16 coat"  also evaluates the last checkpoint of every run in each of
                        these recipes. If two runs are evaluated in one recipe, their
                        losses differ only because of the weights, not because of
                        rounding in the forward pass
  TEXTS="NAME=GLOB ..." also evaluates the last checkpoint of every run on these token
                        files. A run that ended before a NAME was added is not
                        evaluated on it, because its checkpoint is deleted. The
                        program lists such runs
  LIMIT=0.2             percent; the page states whether the mean difference of the
                        final losses is within this limit
  EIGHTH_LIMIT=0.4      percent; limit for the mean difference in each window
  STEPS=N               replaces the setting's steps
  MODEL="--layers ..."  replaces the setting's model; BATCH="--seq-len N --micro-batch
                        N ..." its batch; TRAINING="--schedule ..." its optimizer.
                        --health-every N or --val-every N in one of them logs FP8
                        health or validation losses every N steps. TO replaces
                        --val-every
  SAVES=4               checkpoints during a run; all are removed when the run ends
  JOBS=N                runs at a time (default: one per GPU; 1 on a CPU)
  TEXT=FOLDER           text for the byte-level model
  BIN=. BUILD=build     folders of the programs
  VERSION=NAME          version on the page (default: git describe)
"""
import os
import re

from . import work as lab
from .fidelity_page import Results, base_of, page
from .fidelity_runs import Runs, bytes_of, choose_trainer, flags_of, list_settings, read_settings
from .results import Failure, write_file
from .work import number, recipe_flags, setting

GPT2 = "--model gpt2"
# columns: flags of the model; (sequence length, micro-batch, tokens per step); (--lr, --warmup, --lr-final); steps;
# description
SETTINGS = {
    "65k": (GPT2, (1024, 64, 65536), ("6e-4", 100, "0.1"), 1526, "124M, 65,536 tokens per step, as in docs/loss.md"),
    "262k": (GPT2, (1024, 64, 262144), ("3e-4", 80, 0), 400, "124M, 262,144 tokens per step: seeds vary by 0.4 %"),
    "524k": (GPT2, (1024, 64, 524288), ("3e-4", 120, 0), 600, "124M, 524,288 tokens per step"),
    "stress": (GPT2, (1024, 64, 262144), ("6e-4", 40, 0), 400, "124M, 262,144 tokens per step, a high rate"),
    "1558M": ("--model gpt2-xl", (1024, 16, 131072), ("1e-4", 48, 0), 240, "1558M, 131,072 tokens per step"),
    "olmo-1b": ("--model olmo-1b", (2048, 8, 131072), ("2e-4", 160, 0), 800,
                "OLMo-1B, 131,072 tokens per step in sequences of 2,048, 105 million tokens, OLMo's eps"),
    "vision": ("--model llama:d12 --vision siglip-b16-224 --tokenizer bytes --documents apart --images-per-sequence 2",
               (512, 128, 65536), ("3e-4", 60, 0), 600, "a vision-language model, 65,536 tokens per step"),
    "bytes": ("--layers 4 --heads 4 --channels 128", (128, 8, 1024), ("2e-3", 40, 0), 400,
              "a byte-level model with 4 layers of 128 channels, 1,024 tokens per step"),
}
RECIPE = r"(?:([A-Za-z0-9_.+-]+):)?([A-Za-z0-9,=_.+-]+)"
COMMAND = ["RECIPES", "SEEDS", "FROM", "TO", "EVALUATE", "TEXTS", "STEPS", "MODEL", "BATCH", "TRAINING", "TEXT",
           "LIMIT", "EIGHTH_LIMIT"]


class Fidelity:
    """The study that the command requests. Checks all settings before anything is written."""

    def __init__(self, out, dry_run):
        self.out, self.work, self.named = out, lab.Work(out, dry_run), {}
        self.recipes = self.read_recipes("RECIPES", "bf16 coat")
        self.evaluations, self.texts, self.baseline = self.read_recipes("EVALUATE"), {}, self.recipes[0]
        for word in setting("TEXTS").split():
            name, _, pattern = word.partition("=")
            if not re.fullmatch("[A-Za-z0-9_.+-]+", name) or not pattern:
                raise Failure(f"TEXTS: {word}: must be NAME=GLOB, with a name of letters, digits and _ . + -")
            if name in self.texts:
                raise Failure(f"TEXTS: {name}: two texts have this name")
            self.texts[name] = pattern
        self.limits = [setting("LIMIT", "0.2"), setting("EIGHTH_LIMIT", "0.4")]
        for name, limit in zip(("LIMIT", "EIGHTH_LIMIT"), self.limits):
            if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", limit):
                raise Failure(f"{name}: must be a percentage such as 0.2 (is {limit})")
        self.results = Results(out, SETTINGS, self.recipes)

    def read_recipes(self, variable, default=""):
        names = []
        for word in setting(variable, default).split():
            found = re.fullmatch(RECIPE, word)
            if not found:
                raise Failure(f"{variable}: {word}: must be RECIPE, RECIPE,FLAG=VALUE,... or NAME:RECIPE,...")
            names.append(found[1] or found[2])
            if found[1] and self.named.setdefault(found[1], found[2]) != found[2]:
                raise Failure(f"{variable}: {word}: two recipes have the name {found[1]}")
        return names

    def read_arguments(self, words):
        start, end = (number(name, setting(name), 1) if setting(name) else None for name in ("FROM", "TO"))
        self.settings = read_settings(words, self.work, SETTINGS, "262k", start, end)
        self.seeds, self.saves = setting("SEEDS", "1 2 3").split(), number("SAVES", setting("SAVES", "4"))
        for of in self.settings:
            self.check(of)
        self.trainer = choose_trainer(self.work, self.settings)
        self.jobs = number("JOBS", setting("JOBS", len(self.work.gpus))) or 1
        for of in self.settings:
            for name in self.recipes:
                lab.check_flags(f"RECIPES: {name}", self.trainer, of.flags + self.flags(name))
            for name in self.evaluations:
                lab.check_flags(f"EVALUATE: {name}", self.trainer, of.flags + self.flags(name))

    def check(self, of):
        for seed in self.seeds:
            if not re.fullmatch("[0-9]+(@[1-9][0-9]*)?", seed):
                raise Failure(f"SEEDS: {seed}: must be NUMBER or NUMBER@MICRO_BATCH")
            if of.micro_batch % of.micro_batch_of(seed):
                raise Failure(f"SEEDS: {seed}: the micro-batch must divide {of.micro_batch}, that of {of.name}")
        for name, pattern in {} if self.work.dry_run else self.texts.items():
            lab.check_tokens(f"TEXTS: {name}: ", pattern)
            if of.tokens_of(pattern) < of.micro_batch * of.length:
                raise Failure(f"TEXTS: {name}: is too short for {of.name}, whose micro-batches read "
                              f"{of.micro_batch * of.length} tokens")

    def flags(self, name):
        """Returns the trainer's flags of a recipe. By default, all recipes get --master split16, so that BF16 weights
        and masters together take 4 bytes per parameter."""
        flags = recipe_flags(self.named.get(name, name))
        return flags[:2] + ["--master", "split16"] + flags[2:]

    def record(self, arguments):
        """Records in fidelity.tsv the command, the flags and data of settings, and the meanings of recipe and text
        names."""
        for of in self.settings:
            self.results.note("setting", of.name, of.note(self.baseline), "--out")
        for name, recipe in self.named.items():
            self.results.note("recipe", name, recipe, "name")
        for name, pattern in self.texts.items():
            self.results.note("text", name, f"{os.path.basename(pattern)}, {bytes_of(pattern)} bytes", "name")
        self.results.add_command(lab.command_line("fidelity", COMMAND, arguments))
        self.results.save()

    def run(self, arguments):
        self.work.begin()
        self.results.read()  # reads fidelity.tsv again, because another process may have changed it before begin()
        runs = Runs(self)
        if not self.work.dry_run:
            if any(of.on_bytes for of in self.settings):
                self.work.prepare_text()
            self.record(arguments)
        runs.tell_what_is_missing()
        self.work.each(runs.work_on, runs.with_branch_points(), self.work.places(self.jobs))
        if not self.work.dry_run:
            self.write_page()
        return 1 if self.work.failed else 0

    @staticmethod
    def about(name, note):
        """Returns the description of the setting `name`; "" if MODEL, BATCH or TRAINING replaced flags of the
        setting."""
        base = base_of(name)
        model, batch, training = flags_of(base, SETTINGS[base])
        flags = [model + " --tokenizer bytes" * (base == "bytes"), batch, training, "--steps "]
        return SETTINGS[base][-1] if note.startswith(" ".join(flags)) else ""

    def write_page(self):
        if not self.results.settings():
            raise Failure(f"{self.results.path}: contains no results of scripts/lab.py fidelity")
        abouts = {name: self.about(name, self.results.notes["setting", name]) for name in self.results.settings()}
        write_file(self.out + "/fidelity.md", page(self.results, abouts, self.limits))
        print(f"written: {self.out}/fidelity.md")


def main(arguments):
    parser = lab.Parser("fidelity", __doc__ + list_settings(SETTINGS))
    parser.add_argument("--page-only", action="store_true", help="only write the page from OUT/fidelity.tsv")
    parser.add_argument("words", nargs="*", metavar="TRAIN_GLOB VAL_GLOB SETTING")
    options = parser.parse_intermixed_args(arguments)
    study = Fidelity(options.out, options.dry_run)
    if options.page_only:
        study.write_page()
        return 0
    study.read_arguments(options.words)
    return study.run(arguments)
