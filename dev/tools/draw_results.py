#!/usr/bin/env python3
"""Draws docs/results.svg: speed and memory from the first results table in README.md, the validation losses of BF16 and
COAT from scripts/results/curve.tsv, and the times to a loss from scripts/results/time-to-loss/time-to-loss.md.

    dev/tools/draw_results.py [docs/results.svg]
"""
import math
import re
import sys

WIDTH, HEIGHT, TOP, MIDDLE = 960, 440, 64, 310
INK, SOFT, LINE = "#1f2933", "#5b6672", "#d5dade"
COLOUR = {"llm.c": "#9aa5b1", "BF16": "#2f6fb5", "COAT": "#2f8f5b"}
out = []


def text(x, y, words, size=12, anchor="start", fill=INK, bold=False):
    out.append('<text x="%g" y="%g" font-size="%g" text-anchor="%s" fill="%s"%s>%s</text>'
               % (x, y, size, anchor, fill, ' font-weight="bold"' if bold else "", words))


def line(points, colour, width=1.0):
    out.append('<path d="M%s" fill="none" stroke="%s" stroke-width="%g" stroke-linejoin="round"/>'
               % (" L".join("%.1f %.1f" % point for point in points), colour, width))


def table():
    """Returns [(model, {program: (tokens per second, GB)})] of the first table in README.md."""
    with open("README.md", encoding="utf-8") as file:
        rows = [[cell.strip(" *") for cell in row.strip("|\n").split("|")] for row in file if row.startswith("| ")]
    names = {"llm.c, BF16": "llm.c", "`--recipe bf16 --master split16`": "BF16", "`--recipe coat`": "COAT"}
    models = [(name.split(",")[0], {}) for name in rows[0][1:]]
    for row in rows[1:]:
        for (_, values), cell in zip(models, row[1:]):
            figures = re.fullmatch(r"([\d,]+), ([\d.]+) GB", cell)
            if figures and row[0] in names:
                values[names[row[0]]] = int(figures[1].replace(",", "")), float(figures[2])
    return models


def bars(left, width, title, models, figure, show):
    """Draws a bar per model and program. Bars are relative to the largest value of the model."""
    text(left, TOP - 18, title, 14, bold=True)
    y, full = TOP, width - 62
    for model, values in models:
        text(left, y + 11, model, 12, fill=SOFT)
        y += 17
        most = max(value[figure] for value in values.values())
        for program, value in values.items():
            length = full * value[figure] / most
            out.append('<rect x="%g" y="%g" width="%.1f" height="14" rx="2" fill="%s"/>'
                       % (left, y, length, COLOUR[program]))
            text(left + length + 5, y + 11.5, show(value[figure]), 11.5, bold=program == "COAT")
            y += 17
        y += 12


def curve(left, width, title):
    with open("scripts/results/curve.tsv", encoding="utf-8") as file:
        rows = [[float(value) for value in row.split("\t")] for row in file if row[0].isdigit()]
    first, last = rows[0][0], rows[-1][0]
    values = [value for row in rows for value in row[1:]]
    low, high = math.floor(min(values) * 2) / 2, math.ceil(max(values) * 2) / 2
    bottom = MIDDLE - 42

    def at(tokens, loss):
        return (left + 28 + (width - 28) * (tokens - first) / (last - first),
                bottom - (bottom - TOP) * (loss - low) / (high - low))

    text(left, TOP - 18, title, 14, bold=True)
    for step in range(int((high - low) * 2) + 1):
        loss = low + step / 2
        line([at(first, loss), at(last, loss)], LINE)
        text(left + 22, at(first, loss)[1] + 4, "%.1f" % loss, 11, "end", SOFT)
    for million in range(0, int(last) + 1, 25):
        if million >= first:
            text(at(million, low)[0], bottom + 16, "%d M" % million, 11, "middle", SOFT)
    for column, program in ((1, "BF16"), (2, "COAT")):
        line([at(row[0], row[column]) for row in rows], COLOUR[program], 3 if program == "BF16" else 1.4)
    text(left + width, TOP + 14, "end: %.3f BF16, %.3f COAT" % tuple(rows[-1][1:]), 11.5,
         "end", SOFT)


def times():
    """Draws the seconds that each recipe and optimizer needs to reach BF16 AdamW's final loss, in a panel per model."""
    names = {"gpt2": "GPT-2 124M", "llama": "Llama 124M"}
    with open("scripts/results/time-to-loss/time-to-loss.md", encoding="utf-8") as file:
        text(24, MIDDLE + 18, "Seconds to the loss that BF16 with AdamW reaches after 50 M tokens", 14, bold=True)
        name, y, first = None, 0, 0
        for row in file:
            if row.startswith("## "):
                name, y = names.get(row[3:].strip()), MIDDLE + 52
                left = 24 if name == "GPT-2 124M" else 510
                if name:
                    text(left, y - 9, name, 12, fill=SOFT)
            figures = re.match(r"\| (BF16|COAT) (AdamW|Muon) \|.*\| ([\d.]+) \| ([\d.]+) \|$", row)
            if name and figures:
                recipe, optimizer, seconds, ratio = figures.groups()
                first = first if y > MIDDLE + 52 else float(seconds)
                length = 230 * float(seconds) / first
                text(left, y + 11.5, "%s, %s" % (recipe, optimizer), 11.5)
                out.append('<rect x="%g" y="%g" width="%.1f" height="14" rx="2" fill="%s"/>'
                           % (left + 92, y, length, COLOUR[recipe]))
                text(left + 97 + length, y + 11.5, "%s s (%.2f)" % (seconds, float(ratio)), 11.5, bold=recipe == "COAT")
                y += 17


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "docs/results.svg"
    if path.startswith("-"):
        sys.exit(__doc__)
    out.append('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" '
               'font-family="Helvetica, Arial, sans-serif">' % (WIDTH, HEIGHT, WIDTH, HEIGHT))
    out.append('<rect width="100%" height="100%" fill="#ffffff"/>')
    x = 24
    for program, colour in COLOUR.items():
        out.append('<rect x="%g" y="12" width="12" height="12" rx="2" fill="%s"/>' % (x, colour))
        text(x + 18, 22.5, program, 12.5)
        x += 84
    models = table()
    bars(24, 280, "Tokens per second", models, 0, "{:,}".format)
    bars(330, 270, "GPU memory", models, 1, "{:.1f} GB".format)
    curve(626, 310, "Validation loss over tokens, GPT-2 124M")
    times()
    out.append("</svg>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
