#!/usr/bin/env python3
"""Extracts functions from local Python sources as examples for fine-tuning. The prompt is a function's head with its
docstring, the response is the rest of its body.

    dev/tools/functions.py OUT.jsonl FOLDER [FOLDER...]
    python3 data/prepare.py --out data/tokens/functions --chat --prompt-format plain OUT.jsonl

Writes a line of JSON, {"prompt", "response"}, per function that has a docstring and 2 to 60 lines after the docstring.
If several functions have the same response, writes only the first.
"""
import ast
import concurrent.futures
import hashlib
import json
import os
import sys
import warnings

LINES = range(2, 61)  # allowed numbers of lines of a response
LONGEST = 6000  # maximum characters of an example


def files_of(folders):
    return sorted({os.path.join(at, name) for folder in folders for at, _, names in os.walk(folder) for name in names
                   if name.endswith(".py")})


def examples_of(path):
    """Returns [(prompt, response), ...] of the functions of a file; [] if this Python cannot parse it."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    lines, found = text.splitlines(keepends=True), []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not ast.get_docstring(node):
            continue
        begin, docs, end = node.lineno - 1, node.body[0].end_lineno, node.end_lineno
        if end - docs in LINES and sum(map(len, lines[begin:end])) <= LONGEST:
            found.append(("".join(lines[begin:docs]), "".join(lines[docs:end])))
    return found


def main():
    if len(sys.argv) < 3 or {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        sys.exit(0 if {"-h", "--help"} & set(sys.argv) else 2)
    out, folders = sys.argv[1], sys.argv[2:]
    for folder in folders:
        if not os.path.isdir(folder):
            sys.exit("error: %s: no such folder" % folder)
    sys.setrecursionlimit(10000)
    seen, count = set(), 0
    with concurrent.futures.ProcessPoolExecutor() as pool, open(out, "w", encoding="utf-8") as file:
        for found in pool.map(examples_of, files_of(folders), chunksize=64):
            for prompt, response in found:
                key = hashlib.sha256(response.encode(errors="surrogatepass")).digest()
                if key not in seen:
                    seen.add(key)
                    count += 1
                    file.write(json.dumps({"prompt": prompt, "response": response}) + "\n")
    if count == 0:
        sys.exit("error: %s: contains no function with a docstring" % " ".join(folders))
    print("%s: %d examples" % (out, count))


if __name__ == "__main__":
    main()
