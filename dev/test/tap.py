"""Shared by the Python tests: the path of the repository, and one TAP line per check."""
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
    """Returns the test's exit code: 1 if a check failed, else 0."""
    return 1 if _failures else 0
