"""The Markdown tables of `scripts/lab.py reproduce`: the paper's figures and this program's."""
import re

from .results import markdown, read_text

KEYS = {"table1": 2, "table2": 1, "table6": 3, "table7": 5, "figure4": 2}  # {table: words that identify a row}


def read_paper(path="scripts/results/paper.txt"):
    """Reads the paper's figures. Returns {table: {key: figures}}. A line has the table, the KEYS[table] words of the
    key, and the figures."""
    paper = {name: {} for name in KEYS}
    for name, *words in (line.split() for line in read_text(path).splitlines() if line and line[0] != "#"):
        paper[name][tuple(words[:KEYS[name]])] = words[KEYS[name]:]
    return paper


def value(x):
    """Returns a figure as a number; None for "-" (no figure), "OOM" (out of memory), 0 and None."""
    try:
        return float(x) or None
    except (TypeError, ValueError):
        return None


def quotient(a, b):
    return value(a) / value(b) if value(a) and value(b) else None


def show(x, digits):
    return "out of memory" if x == "OOM" else f"{value(x):.{digits}f}" if value(x) else "–"


def cell(paper, here, digits, paper_digits=None):
    """Returns "PAPER → HERE (HERE / PAPER)", or "HERE" if the paper has no figure. digits: decimals of the two figures;
    paper_digits: decimals of the paper's figure if different."""
    ratio = f" ({quotient(here, paper):.2f})" if quotient(here, paper) else ""
    its = show(paper, digits if paper_digits is None else paper_digits)
    return show(here, digits) if its == "–" else f"{its} → {show(here, digits)}{ratio}"


# --- table 1 ----------------------------------------------------------------------------------------------------------

def error_rows(log):
    """Returns (formats of v, {format of m: errors, one per format of v}) from the output of quant_error."""
    rows = [words for words in map(str.split, log.splitlines()) if len(words) in (6, 7)]
    rows = [words for words in rows if re.match("E4M3|E5M2|DE8", words[0])]
    return rows[0], {row[0]: list(map(float, row[1:])) for row in rows[1:]}


def error_table(paper, log):
    """Returns the table of errors for all pairs of formats of m and v, divided by the error with E4M3 for both."""
    (formats, errors), its = error_rows(log), {key: figures[0] for key, figures in paper["table1"].items()}
    base, ours = its["E4M3", "E4M3"], errors["E4M3"][0]
    return markdown(["m \\ v"] + formats, [
        [m] + [cell(quotient(its.get((m, v)), base), x / ours, 2) for v, x in zip(formats, row)]
        for m, row in errors.items()])


def states_table(logs):
    """Returns the table of how much expansion reduces the error, and of the spread of m and v within groups. logs:
    (beta2, step, output of quant_error) of each row."""
    rows = []
    for beta, step, log in logs:
        errors = error_rows(log)[1]
        (plain, second), (first, both) = errors["E4M3"][:2], errors["E4M3+exp"][:2]
        gain = re.search(r"\na group's plain.*: median (.*), 90 % of them from (.*) to (.*)\n", log).groups()
        spread = re.findall(r"\n[mv] in a group: deviation of ln ([\d.]+);.* from (2\^[-\d.]+) to (2\^[-\d.]+),.*; "
                            r"k ([\d.]+)", log)
        rows.append([beta, str(step), f"{plain:.3f}", f"{both:.3f}",
                     *(f"{plain / x:.2f}" for x in (first, second, both)),
                     "{} ({} ... {})".format(*gain), *(f"{x[0]}, {x[1]} ... {x[2]}, {x[3]}" for x in spread)])
    return markdown(["beta2", "step", "plain, ‰", "both expanded, ‰", "gain: m expanded", "v expanded",
                     "both (the paper: 1.63)", "a group's gain", "m", "v"], rows)


# --- tables 2 and 6, figure 4 -----------------------------------------------------------------------------------------

def saved_units(one, two, unit):
    """Returns the saved activations of one layer as [norms, activation function, RoPE, attention, matmuls, all], in
    units of `unit` bytes. one, two: plans of models with one layer and with two; their difference is one layer."""
    parts = ((r"x_in|x_mid|mean[12]|rstd[12]", 0), ("h", 1), ("qkv|lse", 3), ("x_final|meanf|rstdf", 5), (".*", 4))
    sums = [0.0] * 6
    for sign, plan in ((-1, one), (1, two)):
        for tensor in plan["tensors"]:
            if tensor["category"] == "saved":
                part = next(part for names, part in parts if re.fullmatch(names, tensor["name"]))
                sums[part] += sign * tensor["bytes"] / unit
    return sums[:5] + [sum(sums[:5])]


def saved_table(paper, plans, unit):
    """Returns table 2. plans: (recipe, plan of a model with one layer, plan with two layers); the first recipe is
    BF16."""
    rows, bf16 = [], saved_units(*plans[0][1:], unit)[-1]
    for recipe, one, two in plans:
        its, units = paper["table2"].get((recipe,)), saved_units(one, two, unit)
        ratio = cell(quotient(paper["table2"]["bf16",][-1], its and its[-1]), bf16 / units[-1], 2)
        cells = [f"{float(a):.2f} → {b:.2f}" if its else f"{b:.2f}" for a, b in zip(its or units, units)]
        rows.append([recipe, *cells, ratio])
    return markdown(["recipe", "norms, U", "activation function", "RoPE", "attention", "matmuls", "all",
                     "times less than BF16"], rows)


def layer_table(paper, layers):
    """Returns table 6. layers: (layer, channels, length, recipe, ms of forward, ms of backward, ms of both, saved bytes
    per token). Of each layer, the first recipe is BF16."""
    rows, none, bf16 = [], [None] * 4, {}
    for layer, hidden, length, recipe, *ms, saved in layers:
        bf16 = {"ms": ms[2], "saved": saved} if recipe == "bf16" else bf16
        its, base = (paper["table6"].get((hidden, str(length), name), none) if layer == "olmo" else none
                     for name in (recipe, "bf16"))
        unit = 2 * int(hidden)  # one U, in bytes per token; the paper's MB are for a batch of eight sequences
        rows.append([layer, f"{hidden}, {length}", recipe, *(cell(a, b, 2) for a, b in zip(its, ms)),
                     cell(quotient(base[2], its[2]), quotient(bf16["ms"], ms[2]), 2), str(saved),
                     cell(quotient(its[3], 8 * int(length) * unit / 2**20), saved / unit, 2),
                     cell(quotient(base[3], its[3]), bf16["saved"] / saved, 2),
                     "measured" if value(ms[2]) else "memory planned, time not measured"])
    return markdown(["layer of", "hidden, length", "recipe", "forward, ms", "backward, ms", "both, ms",
                     "times BF16's speed", "saved, bytes per token", "U", "times less than BF16", "how"], rows)


def maximum_table(paper, measured):
    """Returns figure 4. measured: {(columns, rows): (ms to reduce the tensor, ms to reduce row amaxes, ms to reduce
    group amaxes)}."""
    rows = []
    for key in measured or paper["figure4"]:
        (plain, group), ms = paper["figure4"].get(key, [None] * 2), measured.get(key, [None] * 3)
        ratio = cell(quotient(plain, group), quotient(ms[0], ms[2]), 1)
        rows.append([" x ".join(key), cell(plain, ms[0], 3, 2), cell(group, ms[2], 4, 2), ratio, show(ms[1], 4),
                     "measured" if ms[0] else "not measured"])
    return markdown(["tensor", "plain maximum, ms", "Group Scaling, ms", "times faster", "from row amaxes, ms", "how"],
                    rows)


# --- table 7 ----------------------------------------------------------------------------------------------------------

def models_table(paper, models, limit=80):
    """Returns table 7. models: rows of Reproduce.models_rows(); of each model and setting, the first row is BF16's.
    limit: GB of a GPU."""
    rows, none, bf16 = [], [None] * 5, {}
    for row in models:
        its, base = (paper["table7"].get((row["model"], row["gpus"], row["length"], row["batch"], recipe), none)
                     for recipe in (row["recipe"], "bf16"))
        equal, bf16 = row["setting"] == "equal batch", row if row["recipe"] == "bf16" else bf16
        # the paper reports memory at equal batches, but speed at each recipe's largest batch
        (moments, saved, driver), (micro, speed) = (its[:3], [None] * 2) if equal else ([None] * 3, its[3:])
        less, here = "–", quotient(bf16["driver"], row["driver"])
        if equal:  # not at the largest micro-batches, with which all recipes use nearly the same memory
            less = cell(quotient(base[2], driver), here or quotient(bf16["plan"], row["plan"]), 2)
            less += ", planned" if value(row["driver"]) and not here else ""
        too_large = row["plan"] == "OOM" or (equal and value(row["plan"]) > limit)
        how = {"failed": "**failed**: planned, not measured", "measured": "measured",
               "planned": "planned, not measured" + (f": does not fit in {limit} GB" if too_large else "")}[row["how"]]
        rows.append([row["model"], row["gpus"], row["length"], row["setting"], row["recipe"],
                     row["micro"] if equal else cell(micro, row["micro"], 0), cell(speed, row["speed"], 0),
                     cell(quotient(speed, None if equal else base[4]), quotient(row["speed"], bf16["speed"]), 2),
                     cell(moments, row["moments"], 1), cell(saved, row["saved"], 1), show(row["plan"], 1),
                     cell(driver, row["driver"], 1), less, how])
    return markdown(["model", "GPUs", "length", "setting", "recipe", "micro-batch", "tokens/s per GPU",
                     "times BF16's speed", "optimizer, GB", "activations, GB", "plan, GB", "driver, GB",
                     "times less than BF16", "how"], rows)
