"""The results of `scripts/lab.py fidelity`, their statistics, and the page.

OUT/fidelity.tsv has comment lines that describe the study (`# setting NAME: ...`, `# recipe NAME: ...`, `# text NAME:
...`, `# command: ...`), then a row per run that has ended. Training columns cover the steps after FROM:

    ended               done, or diverged: exit code 4, or a final loss above the loss of the first step
    val_loss            validation loss at the last step
    loss_1 ... loss_8   mean training loss in each of eight equal windows of the steps
    largest_grad_norm   largest gradient norm
    ms                  median time per step in milliseconds
    in RECIPE           loss of the last checkpoint if it is evaluated in this recipe
    on TEXT             loss of the last checkpoint on this text
    right on TEXT       fraction of right answers in this text, for vision-language models
"""
import datetime
import math
import os
import re

from .results import Sample, Table, find, is_number, markdown

EIGHTHS = [f"loss_{k}" for k in range(1, 9)]
EIGHTH_NAMES = [f"{k}/8" for k in range(1, 9)]
COLUMNS = ["setting", "recipe", "seed", "ended", "steps", "val_loss", "first_loss", "largest_grad_norm", *EIGHTHS,
           "machine", "version"]


def natural(text):
    """Returns a sort key that puts 2 before 10, and 1 before 1@16."""
    return [int(part) if part.isdigit() else part for part in re.split("([0-9]+)", text)]


def by_seed(row):
    return natural(row["seed"])


def base_of(name):
    return re.sub("-(from|to)-.*", "", name)


class Results(Table):
    """A fidelity.tsv. settings, recipes: names in the order in which rows and tables list them."""

    def __init__(self, folder, settings=(), recipes=("bf16", "coat")):
        super().__init__(os.path.join(folder, "fidelity.tsv"), *COLUMNS)
        self.order, self.recipes = list(settings), list(recipes)

    def save(self):
        settings, recipes = self.settings(), list(dict.fromkeys(self.recipes + [row["recipe"] for row in self.rows]))
        self.rows.sort(key=lambda row: (settings.index(row["setting"]), recipes.index(row["recipe"]), by_seed(row)))
        super().save()

    def settings(self):
        names = [name for kind, name in self.notes if kind == "setting"]
        return sorted(names, key=lambda name: (self.order.index(base_of(name)), natural(name))) if self.order else names


class Difference(Sample):
    """Differences in percent, one for each pair of a run and a run of the baseline."""

    def percent(self):
        """Returns the mean difference and its standard error as text, for example "+0.22 ± 0.10 %"."""
        return signed(self.mean) + (f" ± {self.error:.2f}" if self.count > 1 else "") + " %" if self.count else "–"

    def is_within(self, limit):
        """True if the mean is at most `limit` percent from 0. Also true if the mean is within two standard errors of 0
        and the standard error is at most 0.15 %."""
        return abs(self.mean) <= limit or (self.count > 1 and self.error <= 0.15 and abs(self.mean) <= 2 * self.error)


class Comparison:
    """The runs of one setting. Compares each run with the baseline's run of the same seed. The baseline is the first
    recipe."""

    def __init__(self, results, name):
        self.name, self.baseline = name, results.recipes[0]
        rows = [row for row in results.rows if row["setting"] == name]
        there = [row["recipe"] for row in rows]
        self.runs = {recipe: sorted((row for row in rows if row["recipe"] == recipe), key=by_seed)
                     for recipe in dict.fromkeys(results.recipes + there) if recipe in there}
        self.all = [row for runs in self.runs.values() for row in runs]
        found = dict.fromkeys(key for row in self.all for key in row if row[key] != "-")
        self.evaluations, self.texts = ([key for key in found if key.startswith(kind)] for kind in ("in ", "on "))
        self.answers, self.timed = any(key.startswith("right ") for key in found), "ms" in found
        folders = find(os.path.join(os.path.dirname(results.path), name), "*/*")
        ended = {(row["recipe"], row["seed"]) for row in rows}
        self.unfinished = sorted({tuple(path.split(os.sep)[-2:]) for path in folders} - ended)

    def value(self, row, key):
        """Returns the value of column `key` in a run's row; None if there is none. A diverged run has no final loss and
        no loss on texts."""
        lost = row["ended"] != "done" and (key == "val_loss" or key.startswith("on "))
        return float(row[key]) if is_number(row.get(key)) and not lost else None

    def difference(self, row, key):
        """Returns by how many percent a loss (column `key`) of the run `row` exceeds that of the baseline's run with
        the same seed; None without such a run. A run of the baseline with a micro-batch in its seed (1@16) is compared
        with the baseline's run of the plain seed (1); for other runs of the baseline, returns None."""
        seed = row["seed"].split("@")[0] if row["recipe"] == self.baseline else row["seed"]
        if row["recipe"] == self.baseline and seed == row["seed"]:
            return None
        other = [self.value(run, key) for run in self.runs.get(self.baseline, []) if run["seed"] == seed]
        mine = self.value(row, key)
        return 100 * (mine / other[0] - 1) if mine is not None and other and other[0] is not None else None

    def values(self, recipe, key):
        return Sample(self.value(row, key) for row in self.runs.get(recipe, []))

    def differences(self, recipe, key):
        return Difference(self.difference(row, key) for row in self.runs[recipe])

    def diverged(self, recipe, without=()):
        """Returns the seeds, except those in `without`, with which runs of a recipe diverged."""
        lost = [row["seed"] for row in self.runs.get(recipe, []) if row["ended"] == "diverged"]
        return [seed for seed in lost if seed not in without]


def signed(x, unit=""):
    return "" if x is None else f"{0 if abs(x) < 0.005 else x:+.2f}{unit}"


def named(rows):
    return ", ".join(f"{row['recipe']} {row['seed']}" for row in rows)


# --- tables -----------------------------------------------------------------------------------------------------------

def recipe_rows(study):
    for recipe in study.runs:
        mine, lost = recipe == study.baseline, len(study.diverged(recipe))
        end = "" if mine else study.differences(recipe, "val_loss").percent()
        cells = [recipe, f"{len(study.runs[recipe])}" + (f", {lost} diverged" if lost else ""),
                 *[study.values(recipe, "ms").text(1)] * study.timed, study.values(recipe, "val_loss").text(), end]
        for key in EIGHTHS:
            sample = study.differences(recipe, key)
            cells.append(study.values(recipe, key).text(3) if mine else signed(sample.mean) if sample.count else "–")
        yield cells + [study.values(recipe, key).text() if mine else study.differences(recipe, key).percent()
                       for key in study.evaluations]


def run_rows(study):
    for row in study.all:
        losses = [study.value(row, key) for key in ["val_loss", *study.evaluations]]
        yield [row["recipe"], row["seed"], "diverged" if losses[0] is None else f"{losses[0]:.4f}",
               signed(study.difference(row, "val_loss"), " %"),
               *(signed(study.difference(row, key)) for key in EIGHTHS), f"{float(row['largest_grad_norm']):.3g}",
               *("" if loss is None else f"{loss:.4f}" for loss in losses[1:])]


def unpaired_rows(study):
    base = study.values(study.baseline, "val_loss")
    for recipe in study.runs:
        mine, cell = study.values(recipe, "val_loss"), ""
        if recipe != study.baseline and mine.count and base.count:
            error = f" ± {100 * math.hypot(mine.error, base.error) / base.mean:.2f}"
            cell = signed(100 * (mine.mean / base.mean - 1), error * (mine.count > 1 and base.count > 1) + " %")
        yield [recipe, f"{mine.count}", mine.with_deviation(), cell]


def text_table(study):
    """Returns the table of losses on TEXTS, perplexities, and differences from the baseline's losses."""
    recipes = [name for name in study.runs if any(study.values(name, key).count for key in study.texts)]
    head, rows, lacking = ["text"], [], []
    for recipe in recipes:
        head += [recipe + ", loss", "perplexity"] + ["difference"] * (recipe != study.baseline)
    head += [recipe + ", right answers" for recipe in recipes if study.answers]
    for key in study.texts:
        cells = [key[3:]]
        for recipe in recipes:
            sample = study.values(recipe, key)
            cells += [sample.text(), f"{math.exp(sample.mean):.3f}" if sample.count else "–"]
            cells += [] if recipe == study.baseline else [study.differences(recipe, key).percent()]
        rows.append(cells)
        for recipe in recipes if study.answers else []:
            values = [study.value(row, "right " + key) for row in study.runs[recipe]]
            right = Sample(100 * value for value in values if value is not None)
            cells.append(right.with_deviation(1) + " %" if right.count else "–")
        runs = [row for row in study.all if row["ended"] == "done" and study.value(row, key) is None]
        lacking += [f"- not evaluated on {key[3:]}: {named(runs)}"] if runs else []
    return ["", *markdown(head, rows), "",
            "This table evaluates the final weights on further texts, each in the recipe of its run: the mean loss per "
            "token, the perplexity exp(loss), and the difference of the losses."] + [""] * bool(lacking) + lacking


def remarks(study):
    """Yields paragraphs about run-to-run noise of the baseline, pairs that ran on different GPUs, and unfinished
    runs."""
    base = study.runs.get(study.baseline, [])
    losses = {row["seed"]: study.value(row, "val_loss") for row in base if study.value(row, "val_loss") is not None}
    for seed in dict.fromkeys(key.split("@")[0] for key in losses):
        ways = [key for key in losses if key.split("@")[0] == seed]
        low, high, total = (of(losses[key] for key in ways) for of in (min, max, sum))
        gaps = [study.difference(row, key) for row in base if row["seed"] in ways for key in EIGHTHS]
        gaps = [abs(gap) for gap in gaps if gap is not None]
        if len(ways) > 1:
            yield (f"- noise of **{study.baseline}** with {len(ways)} sizes of the micro-batch (seeds "
                   f"{', '.join(ways)}): final losses {low:.4f} to {high:.4f}, "
                   f"**{100 * (high - low) / (total / len(ways)):.2f} %** apart" +
                   (f"; largest difference of a window {max(gaps):.2f} %" if gaps else ""))
    cards = {row["seed"]: row["machine"] for row in base}
    other = [row for row in study.all if cards.get(row["seed"], row["machine"]) != row["machine"]]
    if other:
        yield f"- trained on another kind of GPU than {study.baseline}: {named(other)}"
    if study.unfinished:
        yield "- not finished: " + ", ".join(map(" ".join, study.unfinished))


def verdict_rows(study, limit=0.2, eighth_limit=0.4):
    for recipe in (name for name in study.runs if name != study.baseline):
        end, lost = study.differences(recipe, "val_loss"), len(study.diverged(recipe, study.diverged(study.baseline)))
        eighths = [study.differences(recipe, key) for key in EIGHTHS]
        worst = max((sample for sample in eighths if sample.count), key=lambda sample: abs(sample.mean), default=None)
        good = not lost and all(sample.is_within(eighth_limit) for sample in eighths)
        yield [study.name, recipe, f"{end.count}" + (f", {lost} diverged" if lost else ""), end.percent(),
               "beyond" if lost else "–" if not end.count else "within" if end.is_within(limit) else "beyond",
               f"{worst.percent()} ({eighths.index(worst) + 1}/8)" if worst else "–",
               "–" if not worst else "within" if good else "beyond"]


# --- the page ---------------------------------------------------------------------------------------------------------

def section(study, note, about):
    flags, files, start = re.fullmatch("(.*?); (data: .*?)(?:; from step (.*))?", note).groups()
    end = re.search("-to-([0-9]+)", study.name)
    words = [about[:1].upper() + about[1:] + "."] * bool(about)
    if end:
        words += [f"Runs end at step {end[1]} of their schedule."]
    if start:
        words += [f"All runs of a seed continue from one checkpoint: step {start}. Windows and gradient norms "
                  f"cover steps {int(start.split()[0]) + 1} to {end[1] if end else flags.split()[-1]}."]
    lines = ["", "## " + study.name, *[" ".join(words), ""] * bool(words), f"`{flags}`; {files}.", ""]
    lines += markdown(["recipe", "runs", *["ms per step"] * study.timed, "validation loss", "difference", *EIGHTH_NAMES,
                       *study.evaluations], recipe_rows(study))
    if study.evaluations:
        lines += ["", "The last columns evaluate the final weights of all recipes in one recipe. They show the "
                  f"validation loss of {study.baseline} and the differences of the other recipes, which come from the "
                  "weights alone. The rest of a difference at the end comes from rounding in the forward pass."]
    more = list(remarks(study))
    lines += [""] * bool(more) + more
    lines += ["", *markdown(["recipe, not paired", "runs", "mean ± standard deviation",
                             "difference of the means ± standard error"], unpaired_rows(study))]
    lines += text_table(study) if study.texts else []
    return lines + ["", *markdown(["run", "seed", "validation loss", "difference", *EIGHTH_NAMES,
                                   "largest gradient norm", *study.evaluations], run_rows(study))]


def heading(title, rows):
    """Returns the first two lines of a page: its title, and the date, machines and versions of the runs in `rows`."""
    machines, versions = (", ".join(dict.fromkeys(row[key] for row in rows)) for key in ("machine", "version"))
    return ["# " + title, f"{datetime.datetime.now(datetime.timezone.utc).date()}, " +
            (f"on {machines}; version {versions}." if machines else "no run has ended yet.")]


def page(results, abouts, limits):
    """Returns the text of the page. abouts: {setting: description or ""}; limits: (LIMIT, EIGHTH_LIMIT) in percent, as
    text."""
    baseline, studies = results.recipes[0], [Comparison(results, name) for name in results.settings()]
    lines = heading("Recipes compared with " + baseline, [row for study in studies for row in study.all])
    for kind in ("recipe", "text"):
        notes = [(name, text) for (of, name), text in results.notes.items() if of == kind]
        lines += [""] * bool(notes)
        for name, text in notes:
            file, _, size = text.rpartition(", ")
            recipe = text.replace(",", " --")
            lines.append(f"- text {name}: `{file}`, {size}" if kind == "text" else f"- {name}: `--recipe {recipe}`")
    lines += [line for command in results.commands for line in ("", "    " + command)]
    lines += ["", f"A difference compares a run with the run of {baseline} of the same seed and micro-batch, in "
              f"percent of {baseline}'s loss. Positive values are worse than {baseline}. ± is the standard error of the "
              "mean over the pairs. The columns 1/8 to 8/8 are mean training losses over eight equal windows of the run: "
              f"the row of {baseline} shows losses, other rows show differences. Seed 1@16 means seed 1 with micro-batches of 16 "
              "sequences."]
    verdicts = [row for study in studies for row in verdict_rows(study, *map(float, limits))]
    if verdicts:
        lines += ["", *markdown(["setting", "recipe", "pairs", "loss difference at the end", f"within {limits[0]} %",
                                 "largest loss difference in a window", f"within {limits[1]} %"], verdicts), "",
                  "A mean within two standard errors of 0 also counts as within its limit, if the standard error is "
                  "at most 0.15 %."]
    for study in studies:
        lines += section(study, results.notes["setting", study.name], abouts[study.name])
    return "\n".join(lines) + "\n"
