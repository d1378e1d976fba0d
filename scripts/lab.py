#!/usr/bin/env python3
"""Runs experiments that compare recipes with BF16 and with the COAT paper. Each one writes a page to its --out folder.

    scripts/lab.py fidelity     losses of recipes compared with BF16's, over several seeds
    scripts/lab.py stability    loss at several learning rates, and sharpness of the minimum
    scripts/lab.py time-to-loss steps, tokens and seconds to a target loss, with AdamW and Muon
    scripts/lab.py reproduce    the paper's tables, measured with this program
    scripts/lab.py draw         figures of these experiments
    scripts/lab.py COMMAND --help

Needs Python 3.9 or later; draw needs matplotlib.
"""
import importlib
import os
import sys

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMANDS = ["fidelity", "stability", "time-to-loss", "reproduce", "draw"]


def main(command="", *arguments):
    from lab.results import Failure
    if command in ("", "-h", "--help"):
        print(__doc__.strip())
        return 0 if command else 1
    os.chdir(ROOT)
    try:
        if command not in COMMANDS:
            raise Failure(f"{command}: must be one of {', '.join(COMMANDS)}")
        return importlib.import_module("lab." + command.replace("-", "_")).main(list(arguments))
    except (Failure, OSError) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
