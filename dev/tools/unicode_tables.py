#!/usr/bin/env python3
"""Writes the Unicode tables that tokenizers need:

    python3 dev/tools/unicode_tables.py > coat/text/unicode_tables.h

The committed file contains Unicode 16.0, which tiktoken and Hugging Face's tokenizers use: pip install
unicodedata2==16.0.0. Without that package, the tables contain the Unicode version of this Python.
"""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

HEAD = """// Tables of Unicode {version}, written by dev/tools/unicode_tables.py. Each table is a list of numbers, packed as
// text. A number is written in base 31, the lowest digit first. A digit is one of the 62 characters from '@' to
// '~', without the backslash: one of the first 31 if it ends the number, one of the other 31 if another digit
// follows. A range is stored as {{first - last of the previous range, last - first, value}}.
"""
HANGUL = range(0xAC00, 0xD7A4)  # decomposed by a formula


def pack(number):
    text = ""
    while True:
        number, digit = divmod(number, 31)
        digit += 31 if number else 0
        text += chr(ord("@") + digit + (digit >= ord("\\") - ord("@")))
        if not number:
            return text


def table(name, comment, rows):
    print("\n// %s\n#define %s_COUNT %d" % (comment, name.upper(), len(rows)))
    print("static const char %s_packed[] =" % name)
    text = "".join(pack(number) for row in rows for number in row)
    lines = [text[at:at + 114] for at in range(0, len(text), 114)]
    print("\n".join('    "%s"' % line for line in lines) + ";")


def ranges(value_of):
    """Returns [first - last of the previous range, last - first, value] of each range of code points that have the same
    value_of(character), which is not 0."""
    found, last = [], 0
    for code in range(sys.maxunicode + 1):
        value = value_of(chr(code))
        if value and found and last == code - 1 and found[-1][2] == value:
            found[-1][1] += 1
        elif value:
            found.append([code - last, 0, value])
        if value:
            last = code
    return found


def decompositions():
    found, last = [], 0
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(code)).split()
        if not parts or parts[0].startswith("<") or code in HANGUL:
            continue
        first, second = int(parts[0], 16), int(parts[1], 16) - 0x2FF if len(parts) == 2 else 0
        composes = second > 0 and unicodedata.normalize("NFC", chr(code)) == chr(code)
        found.append((2 * (code - last) + composes, first, second))
        last = code
    return found


print(HEAD.format(version=unicodedata.unidata_version) + "#pragma once\n\n// clang-format off", end="")
table("classes", "Ranges of the general categories L (value 1: CHAR_LETTER) and N (value 2: CHAR_NUMBER).",
      ranges(lambda c: "LN".find(unicodedata.category(c)[0]) + 1))
table("orders", "Ranges of the canonical combining classes, except class 0.", ranges(unicodedata.combining))
table("decompositions", "Canonical decompositions, except Hangul's: {2 * (code - previous code) + c, first part,\n"
      "// second part - 0x2ff or 0 without a second part}. c is 1 if normalization form C composes the two parts, else 0.",
      decompositions())
print("// clang-format on")
