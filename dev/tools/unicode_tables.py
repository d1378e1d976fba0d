#!/usr/bin/env python3
"""Writes the Unicode tables that tokenizers need:

    python3 dev/tools/unicode_tables.py classes > coat/text/unicode_tables.h
    python3 dev/tools/unicode_tables.py nfc > coat/text/nfc_tables.h
    python3 dev/tools/unicode_tables.py singles > coat/text/nfc_singles.h

The committed tables are those of Unicode 16.0, which tokenizers and tiktoken use: pip install unicodedata2==16.0.0. Without
that package, the tables are those of Python's Unicode version.
"""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

CLASSES = """// Code points of Unicode {version}'s general categories L (letters) and N (numbers) as inclusive ranges, in
// order. Written by dev/tools/unicode_tables.py.
#pragma once
#include <stdint.h>

typedef struct {{
    uint32_t first, last;
}} CodeRange;
"""

NFC = """// What Unicode {version}'s normalization form C needs, but for Hangul, which is computed. Written by
// dev/tools/unicode_tables.py.
#pragma once
#include <stdint.h>

typedef struct {{
    uint32_t code, first, second; // what a character consists of
}} Decomposition;

typedef struct {{
    uint32_t first, last;
    uint8_t order; // canonical combining class, never 0
}} OrderRange;
"""

SINGLES = """// Characters that are others in Unicode {version}'s normalization forms: {{code, what it is}}. Written by
// dev/tools/unicode_tables.py.
#pragma once
#include <stdint.h>
"""
HANGUL = range(0xAC00, 0xD7A4)


def ranges(value_of):
    """Returns [first, last, value] of each run of code points with the same non-zero value."""
    found = []
    for code in range(sys.maxunicode + 1):
        value = value_of(chr(code))
        if not value:
            continue
        if found and found[-1][1] == code - 1 and found[-1][2] == value:
            found[-1][1] = code
        else:
            found.append([code, code, value])
    return found


def table(declaration, entries):
    lines = [""]
    for entry in entries:
        if len(lines[-1]) + len(entry) > 115:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "    ") + entry
    print("\n// clang-format off\nstatic const %s = {" % declaration)
    print("\n".join(lines))
    print("};\n// clang-format on")


def classes():
    print(CLASSES.format(version=unicodedata.unidata_version), end="")
    for name, category in ("letters", "L"), ("numbers", "N"):
        found = ranges(lambda c: unicodedata.category(c)[0] == category)
        table("CodeRange unicode_%s[]" % name, ["{0x%x, 0x%x}," % (first, last) for first, last, _ in found])


def decompositions(parts):
    found = []
    for code in range(sys.maxunicode + 1):
        text = unicodedata.decomposition(chr(code))
        if text and not text.startswith("<") and code not in HANGUL and len(text.split()) == parts:
            found.append((code, *(int(part, 16) for part in text.split())))
    return found


def nfc():
    print(NFC.format(version=unicodedata.unidata_version), end="")
    pairs = decompositions(2)
    table("Decomposition nfc_pairs[]", ["{0x%x,0x%x,0x%x}," % pair for pair in pairs])
    # Pairs that NFC composes: indices into the table above, in the order of their two parts.
    whole = [(d[1], d[2], i) for i, d in enumerate(pairs) if unicodedata.normalize("NFC", chr(d[0])) == chr(d[0])]
    table("uint16_t nfc_compositions[]", ["%d," % i for _, _, i in sorted(whole)])
    table("OrderRange nfc_orders[]", ["{0x%x,0x%x,%d}," % tuple(r) for r in ranges(unicodedata.combining)])


def singles():
    print(SINGLES.format(version=unicodedata.unidata_version), end="")
    table("uint32_t nfc_singles[][2]", ["{0x%x,0x%x}," % single for single in decompositions(1)])


WRITERS = {"classes": classes, "nfc": nfc, "singles": singles}
if len(sys.argv) != 2 or sys.argv[1] not in WRITERS:
    sys.exit(__doc__)
WRITERS[sys.argv[1]]()
