"""What the Python tests share: the repository's root, and the test's lines, one per check."""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
_failures = 0


def check(name, good, text=""):
    global _failures
    _failures += not good
    print(("ok - " if good else "not ok - ") + name + ("" if good else "\n    " + str(text)))


def status():
    """Of the test: 1 where a check failed."""
    return 1 if _failures else 0
