#!/usr/bin/env python3
"""Writes the fuzz targets' corpus to build/fuzz/corpus/TARGET: the cases of cases.py and the inputs of found.txt.

    corpus.py                       writes the corpus
    corpus.py --add TARGET FILE...  adds inputs that fuzzing found to found.txt
"""
import argparse
import ast
import hashlib
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
from cases import CASES  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE.parents[1] / "build/fuzz/corpus"
FOUND = HERE / "found.txt"  # each line: the target, a space, the input as a Python bytes literal


def read_found():
    lines = (line.split(" ", 1) for line in FOUND.read_text("ascii").splitlines())
    return [(target, ast.literal_eval(literal)) for target, literal in lines]


def write_corpus():
    inputs = [(target, name, data) for target, cases in CASES.items() for name, data in cases.items()]
    inputs += [(target, "found-" + hashlib.sha1(data).hexdigest()[:8], data) for target, data in read_found()]
    shutil.rmtree(CORPUS, ignore_errors=True)
    for target, name, data in inputs:
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        (CORPUS / target / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def add(target, files):
    found = set(read_found()) | {(target, pathlib.Path(file).read_bytes()) for file in files}
    FOUND.write_text("".join("%s %r\n" % line for line in sorted(found)), "ascii")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--add", metavar="TARGET", choices=CASES)
parser.add_argument("files", nargs="*", metavar="FILE")
arguments = parser.parse_args()
if bool(arguments.add) != bool(arguments.files):
    parser.error("--add TARGET needs one FILE or more")
try:
    if arguments.add:
        add(arguments.add, arguments.files)
    else:
        write_corpus()
except OSError as error:
    sys.exit("corpus.py: %s" % error)
