#!/usr/bin/env python3
"""The pictures of a study by scripts/stability.sh, from its losses.txt and
sharpness.txt.

    scripts/plot_stability.py runs/stability
        writes stability.png, sharpness.png and both as .svg there

stability: the final validation loss against the learning rate, a curve per
recipe through the means over the seeds, in a band from the lowest to the
highest; runs that diverged are left out of both and are crosses at the upper
edge. sharpness: the loss along random directions from the final weights, thin
lines, and their mean.

Needs matplotlib (pip install matplotlib).
"""
import math
import os
import sys

missing = None  # is said once the arguments are read: --help needs none
try:
    from plot import COLOURS, STYLE, plt, save
    from matplotlib.ticker import NullLocator
except ImportError as error:
    if __name__ != "__main__":
        raise
    missing = error

MARKS = ["o", "s", "^", "D", "v", "P", "X", "*"]


def read(path, fields):
    """The words of each line that has so many; none where there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            return [words for words in map(str.split, file) if len(words) == fields]
    except FileNotFoundError:
        return []


def losses_of(folder):
    """{recipe: {rate: ([losses], diverged runs)}}, in the order of the study."""
    study = {}
    for recipe, rate, _, status, loss, _ in read(os.path.join(folder, "losses.txt"), 6):
        losses, diverged = study.setdefault(recipe, {}).setdefault(float(rate), ([], []))
        if status == "done":
            losses.append(float(loss))
        elif status == "diverged":
            diverged.append(1)
    return {recipe: {rate: (losses, len(diverged)) for rate, (losses, diverged) in rates.items()}
            for recipe, rates in study.items()}


def sharpness_of(folder):
    """{recipe: {direction: [(distance, loss), ...]}} of the directions that are drawn; each goes through 0."""
    study = {}
    for recipe, direction, distance, loss in read(os.path.join(folder, "sharpness.txt"), 4):
        study.setdefault(recipe, {}).setdefault(int(direction), []).append((float(distance), float(loss)))
    drawn = {}
    for recipe, directions in study.items():
        middle = directions.pop(0, [])
        most = max((len(points) for points in directions.values()), default=0)
        drawn[recipe] = {direction: sorted(points + middle) for direction, points in directions.items()
                         if len(points) == most}
    return drawn


def mean(values):
    return sum(values) / len(values)


def limits_of(study):
    """Of the losses' axis. A run that all but diverged leaves the picture, so that the others can be told apart."""
    losses = sorted(loss for rates in study.values() for values, _ in rates.values() for loss in values)
    low, high = losses[0], min(losses[-1], losses[0] + 6 * (losses[len(losses) // 2] - losses[0]))
    room = high - low or 0.1
    return low - 0.05 * room, high + 0.2 * room


def rate_label(rate):
    """0.0016 -> 1.6e-3"""
    exponent = math.floor(math.log10(rate) + 1e-9)
    return "%.3ge%d" % (rate / 10.0**exponent, exponent) if rate < 0.1 else "%g" % rate


def draw_losses(study):
    figure, axis = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
    axis.set_xscale("log")
    upper = axis.get_xaxis_transform()
    if any(losses for rates in study.values() for losses, _ in rates.values()):
        axis.set_ylim(*limits_of(study))
    rates = sorted({rate for rates in study.values() for rate in rates})
    for i, (recipe, points) in enumerate(study.items()):
        colour = COLOURS[i % len(COLOURS)]
        good = sorted(rate for rate, (losses, _) in points.items() if losses)
        axis.fill_between(good, [min(points[rate][0]) for rate in good], [max(points[rate][0]) for rate in good],
                          color=colour, alpha=0.16, linewidth=0)
        axis.plot(good, [mean(points[rate][0]) for rate in good], color=colour, linewidth=1.8, label=recipe,
                  marker=MARKS[i % len(MARKS)], markersize=5)
        aside = 17 * (i - (len(study) - 1) / 2)  # points: several recipes may diverge at one rate
        for rate, (losses, diverged) in points.items():
            if diverged:
                for text, size, below in (("×", 17, 0), ("%d/%d" % (diverged, diverged + len(losses)), 7.5, -13)):
                    axis.annotate(text, (rate, 0.97), (aside, below), xycoords=upper, textcoords="offset points",
                                  ha="center", va="center", fontsize=size, color=colour)
    axis.set_xticks(rates, [rate_label(rate) for rate in rates])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlim(rates[0] / 1.3, rates[-1] * 1.3)
    axis.set_xlabel("learning rate")
    axis.set_ylabel("validation loss")
    axis.set_title("Final loss over learning rates (×: runs that diverged)")
    axis.legend(loc="best")
    return figure


def draw_sharpness(study):
    """The loss itself; and how far it rises near the weights, larger, which compares recipes of unequal losses."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 4.3), layout="constrained")
    reach = 0.3
    for i, (recipe, directions) in enumerate(study.items()):
        colour = COLOURS[i % len(COLOURS)]
        sums = {}
        for points in directions.values():
            for distance, loss in points:
                sums.setdefault(distance, []).append(loss)
        line = [(distance, mean(losses)) for distance, losses in sorted(sums.items())]
        middle = sums.get(0.0, [math.nan])[0]
        for axis, base, within in ((left, 0.0, math.inf), (right, middle, max(reach, closest(line)))):
            for points in directions.values():
                axis.plot(*columns(points, base, within), color=colour, linewidth=0.7, alpha=0.45)
            axis.plot(*columns(line, base, within), color=colour, linewidth=2, label=recipe,
                      marker=MARKS[i % len(MARKS)], markersize=3.5)
    left.set_title("Loss along random directions (thin) and its mean")
    left.set_ylabel("validation loss")
    right.set_title("Rise near the weights")
    right.set_ylabel("validation loss − that at 0")
    for axis in (left, right):
        axis.set_xlabel("distance, in norms of the weights")
    left.legend(loc="upper center")
    return figure


def closest(line):
    return min((abs(distance) for distance, _ in line if distance), default=0.0)


def columns(points, base, within):
    inside = [(distance, loss - base) for distance, loss in points if abs(distance) <= within * 1.0001]
    return [distance for distance, _ in inside], [loss for _, loss in inside]


def main(arguments):
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"]) else 1
    if missing:
        sys.exit("plot_stability.py needs matplotlib: pip install matplotlib (%s)" % missing)
    folder = arguments[0]
    losses, sharpness = losses_of(folder), sharpness_of(folder)
    if not losses:
        sys.exit("plot_stability.py: %s holds no losses.txt of a study by scripts/stability.sh" % folder)
    with plt.rc_context(STYLE):
        save(draw_losses(losses), os.path.join(folder, "stability"))
        if any(sharpness.values()):
            save(draw_sharpness(sharpness), os.path.join(folder, "sharpness"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
