"""How corpus.py writes."""
import os

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def write(target, name, data):
    folder = os.path.join(ROOT, target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())


def sections(**files):
    """The form of an input of several files, see fuzz_section() in fuzz.h; __ in a name stands for a dot."""
    return b"\n".join(b"=== " + name.replace("__", ".").encode() + b"\n" +
                      (data if isinstance(data, bytes) else data.encode()) for name, data in files.items())
