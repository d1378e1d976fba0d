#!/usr/bin/env python3
"""Writes coat/text/unicode_tables.h: the code points of Unicode's classes L (letters) and N (numbers) as ranges.

    python3 dev/tools/unicode_tables.py > coat/text/unicode_tables.h
"""
import sys
import unicodedata

HEAD = """// Code points of Unicode {version}'s general categories L (letters) and N (numbers) as inclusive ranges, in
// order. Written by dev/tools/unicode_tables.py.
#pragma once
#include <stdint.h>

typedef struct {{
    uint32_t first, last;
}} CodeRange;
"""


def ranges(category):
    found = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] != category:
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def table(name, category):
    entries = ["{0x%x, 0x%x}," % (first, last) for first, last in ranges(category)]
    lines = [""]
    for entry in entries:
        if len(lines[-1]) + len(entry) > 115:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "    ") + entry
    print("\n// clang-format off\nstatic const CodeRange %s[] = {" % name)
    print("\n".join(lines))
    print("};\n// clang-format on")


print(HEAD.format(version=unicodedata.unidata_version), end="")
table("unicode_letters", "L")
table("unicode_numbers", "N")
