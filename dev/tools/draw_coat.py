#!/usr/bin/env python3
"""Draws docs/coat.svg: one transformer block, forward and backward, as COAT runs it. Shows the saved tensors with
format, scale and size (bytes per token, in units of C channels), and the optimizer's states.

    dev/tools/draw_coat.py [docs/coat.svg]
"""
import sys

WIDTH, HEIGHT = 960, 1024
INK, SOFT, LINE = "#1f2933", "#5b6672", "#9aa5b1"
GROUP, TENSOR, GRADIENT, BF16, FP32 = "#cfeedd", "#cfe2f7", "#fbdcc0", "#e6e8eb", "#f6efc9"  # colours by format
EDGE = {GROUP: "#2f8f5b", TENSOR: "#2f6fb5", GRADIENT: "#c96f1c", BF16: "#8a949e", FP32: "#b39a22"}
ROWS, TOP, STEP, BOX = 8, 128, 66, 44
FORWARD, SAVED, BACKWARD = (66, 262), (376, 208), (632, 262)  # left edge and width of each column
RAIL = (34, WIDTH - 34)  # x coordinates of the residual stream and of its gradient

# Rows of two lines each: forward, the saved tensor (name, format, bytes per token in C, colour), backward.
BLOCK = [
    (("add, LayerNorm, quantize", "the norm reads the sum itself"), ("x_in", "E4M3, scale per 16", 1.125, GROUP),
     ("LayerNorm backward", "from the FP8 x_in")),
    (("q, k, v = n1 · Wᵀ + bias", "matmul in FP8"), ("q, k, v", "BF16", 6, BF16),
     ("dgrad, wgrad in FP8", "n1 recomputed from x_in")),
    (("flash attention", "BF16"), ("o", "BF16", 2, BF16), ("attention backward", "BF16, deterministic")),
    (("projection: y = ô · Wᵀ", "matmul in FP8"), None, ("dgrad, wgrad in FP8", "ô recomputed from o")),
    (("add, LayerNorm, quantize", "the norm reads the sum itself"), ("x_mid", "E4M3, scale per 16", 1.125, GROUP),
     ("LayerNorm backward", "from the FP8 x_mid")),
    (("y = n2 · Wᵀ", "matmul in FP8"), None, ("dgrad, wgrad in FP8", "n2 recomputed from x_mid")),
    (("h = y + bias, GELU, quantize", "GELU reads y + bias itself"), ("h", "E4M3, scale per 16", 4.5, GROUP),
     ("GELU backward, quantize", "from the FP8 h")),
    (("y = g · Wᵀ", "matmul in FP8"), None, ("dgrad, wgrad in FP8", "g recomputed from h")),
]
# Tensors passed from one row to the next, forward and backward: name and colour.
DOWN = [("n1", TENSOR), ("q, k, v", BF16), ("ô", TENSOR), None, ("n2", TENSOR), ("y", BF16), ("g", TENSOR)]
UP = [("dn1", BF16), ("dq, dk, dv", GRADIENT), ("do", BF16), None, ("dn2", BF16), ("dh", GRADIENT), ("dg", BF16)]

out = []


def put(text):
    out.append(text)


def text(x, y, words, size=13, anchor="start", fill=INK, bold=False):
    put('<text x="%g" y="%g" font-size="%g" text-anchor="%s" fill="%s"%s>%s</text>'
        % (x, y, size, anchor, fill, ' font-weight="bold"' if bold else "", words))


def box(x, y, width, height, fill, edge=None, dashed=False):
    put('<rect x="%g" y="%g" width="%g" height="%g" rx="5" fill="%s" stroke="%s"%s/>'
        % (x, y, width, height, fill, edge or EDGE.get(fill, LINE), ' stroke-dasharray="4 3"' if dashed else ""))


def arrow(x1, y1, x2, y2, colour=SOFT, width=1.4, dashed=False):
    put('<path d="M%g %g L%g %g" stroke="%s" stroke-width="%g" fill="none" marker-end="url(#%s)"%s/>'
        % (x1, y1, x2, y2, colour, width, "tip" + colour[1:], ' stroke-dasharray="4 3"' if dashed else ""))


def row_top(row):
    return TOP + row * STEP


def operation(x, width, row, lines):
    y = row_top(row)
    box(x, y, width, BOX, "#ffffff", SOFT)
    text(x + width / 2, y + 18, lines[0], 13, "middle", bold=True)
    text(x + width / 2, y + 35, lines[1], 12, "middle", SOFT)


def tag(x, y, label, colour):
    """Draws a small label on a vertical arrow, in the colour of its format."""
    width = 7.2 * len(label) + 14
    box(x + 12, y - 9, width, 18, colour)
    text(x + 12 + width / 2, y + 4, label, 12, "middle")


def draw_head():
    text(24, 32, "COAT in one block: operations, saved tensors, formats", 18, bold=True)
    x = 24
    for label, colour in (("E4M3, a scale per group", GROUP), ("E4M3, a scale per tensor or token", TENSOR),
                          ("gradients in FP8", GRADIENT), ("BF16", BF16), ("FP32", FP32)):
        box(x, 48, 18, 14, colour)
        text(x + 24, 60, label, 12.5)
        x += 24 + 6.6 * len(label) + 22
    for (left, width), label in ((FORWARD, "forward ↓"), (SAVED, "saved for backward"), (BACKWARD, "backward ↑")):
        text(left + width / 2, 108, label, 15, "middle", bold=True)


def draw_rails():
    bottom = row_top(ROWS - 1) + BOX + 22
    arrow(RAIL[0], 92, RAIL[0], bottom, EDGE[BF16], 5)
    arrow(RAIL[1], bottom, RAIL[1], 92, EDGE[BF16], 5)
    for x, words, angle in ((RAIL[0] - 12, "residual stream r, BF16: carried, never saved", -90),
                            (RAIL[1] + 12, "gradient of the residual stream, BF16", 90)):
        y = (92 + bottom) / 2
        put('<text transform="translate(%g %g) rotate(%g)" font-size="12.5" text-anchor="middle" fill="%s">%s</text>'
            % (x, y, angle, SOFT, words))
    for row in (0, 4):  # norms read the stream and add to its gradient
        y = row_top(row) + BOX / 2
        arrow(RAIL[0] + 3, y, FORWARD[0] - 2, y)
        arrow(BACKWARD[0] + BACKWARD[1], y, RAIL[1] - 5, y)
    for row in (3, 7):  # each sublayer's last matmul adds to the stream and reads its gradient in FP8
        y = row_top(row) + BOX / 2
        arrow(FORWARD[0], y, RAIL[0] + 5, y)
        arrow(RAIL[1] - 3, y, BACKWARD[0] + BACKWARD[1] + 2, y, EDGE[GRADIENT])


def draw_block():
    draw_rails()
    for row, (forward, saved, backward) in enumerate(BLOCK):
        y = row_top(row)
        operation(*FORWARD, row, forward)
        operation(*BACKWARD, row, backward)
        if saved:
            name, how, size, colour = saved
            box(SAVED[0], y, SAVED[1], BOX, colour)
            text(SAVED[0] + 12, y + 18, name, 14, bold=True)
            text(SAVED[0] + 12, y + 35, how, 12)
            text(SAVED[0] + SAVED[1] - 12, y + 27, "%g C" % size, 15, "end", bold=True)
            arrow(FORWARD[0] + FORWARD[1], y + BOX / 2, SAVED[0] - 2, y + BOX / 2)
            arrow(SAVED[0] + SAVED[1], y + BOX / 2, BACKWARD[0] - 2, y + BOX / 2)
        else:
            text(SAVED[0] + SAVED[1] / 2, y + 27, "nothing", 12.5, "middle", SOFT)
    draw_passed()


def draw_passed():
    for row in range(ROWS - 1):
        top, bottom = row_top(row) + BOX, row_top(row + 1)
        for passed, (left, width), up in ((DOWN[row], FORWARD, False), (UP[row], BACKWARD, True)):
            if not passed:
                continue
            x = left + width / 2
            arrow(x, bottom if up else top, x, top + 2 if up else bottom - 2)
            tag(x, (top + bottom) / 2, *passed)


def draw_sums():
    y = row_top(ROWS - 1) + BOX + 50
    text(24, y, "Saved per layer and token, in bytes × C", 15, bold=True)
    parts = [(saved[0], saved[2], saved[3]) for _, saved, _ in BLOCK if saved]
    rows = (("COAT, recomputing n1, n2 and g", parts),
            ("COAT, saving them, as published", parts + [("n1, n2, g", 6, TENSOR)]),
            ("BF16, saving everything", [("", 32, BF16)]))
    left, scale = 248, 19.4
    for i, (label, pieces) in enumerate(rows):
        x, top = left, y + 14 + i * 30
        text(24, top + 16, label, 13)
        for name, size, colour in pieces:
            box(x, top, size * scale, 22, colour)
            if size * scale > 7.5 * len(name):
                text(x + size * scale / 2, top + 16, name, 12, "middle")
            x += size * scale
        text(x + 8, top + 16, "%g" % sum(size for _, size, _ in pieces), 14, bold=True)
    text(left, y + 118, "and in FP32: mean and rstd of each norm, 8 bytes per token; log-sum-exp, 4 bytes per token "
         "and head", 12, fill=SOFT)


def draw_optimizer():
    y = 840
    put('<path d="M24 %g H%g" stroke="%s"/>' % (y - 26, WIDTH - 24, "#d5dae0"))
    text(24, y, "The optimizer: AdamW's moments in FP8, with dynamic range expansion", 15, bold=True)
    columns = [(24, 198, GROUP, "m and v: E4M3", ("per group of 128: largest |x| a", "(FP32) and exponent k (8 bits);",
                                                         "1.04 bytes instead of 4, each")),
               (258, 190, FP32, "read", ("log₂ |x| = log₂ a", "+ log₂ (value / 448) / k,", "in FP32")),
               (484, 190, FP32, "AdamW step", ("m, v from the gradient,", "update from the fresh",
                                               "m, v; all in FP32")),
               (710, 226, FP32, "write: expand", ("k so that the group's range fills",
                                                  "E4M3's; value = 448 (|x| / a)ᵏ,", "rounded, with the sign of x"))]
    for left, width, fill, title, lines in columns:
        box(left, y + 18, width, 84, fill)
        text(left + width / 2, y + 38, title, 13, "middle", bold=True)
        for i, line in enumerate(lines):
            text(left + width / 2, y + 57 + 17 * i, line, 12, "middle")
    for left, right in ((222, 258), (448, 484), (674, 710)):
        arrow(left, y + 60, right - 2, y + 60)
    put('<path d="M823 %g v14 H123 v-10" stroke="%s" stroke-width="1.4" fill="none" marker-end="url(#tip%s)"/>'
        % (y + 102, SOFT, SOFT[1:]))
    y += 138
    text(24, y + 13, "a group's values, from its smallest to its largest:", 12.5)
    full = 584  # E4M3's range, from 2^-9 to 448
    for i, (label, share) in enumerate((("plain: a group of m takes 2⁹ of E4M3's 2¹⁸", 9 / 17.8),
                                        ("expanded by k = 1.9: nearly all of it", 16.8 / 17.8))):
        top, width = y - 2 + i * 24, full * share
        box(WIDTH - 24 - full, top, full, 20, "#ffffff", LINE, True)
        box(WIDTH - 24 - width, top, width, 20, GROUP)
        text(WIDTH - 24 - width / 2, top + 14.5, label, 12, "middle")


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "docs/coat.svg"
    if path.startswith("-"):
        sys.exit(__doc__)
    put('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" '
        'font-family="Helvetica, Arial, sans-serif">' % (WIDTH, HEIGHT, WIDTH, HEIGHT))
    put('<rect width="100%" height="100%" fill="#ffffff"/>')
    put("<defs>")
    for colour in (SOFT, EDGE[BF16], EDGE[GRADIENT]):
        size = 3 if colour == EDGE[BF16] else 7
        put('<marker id="tip%s" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="%g" markerHeight="%g" '
            'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="%s"/></marker>'
            % (colour[1:], size, size, colour))
    put("</defs>")
    draw_head()
    draw_block()
    draw_sums()
    draw_optimizer()
    put("</svg>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


main()
