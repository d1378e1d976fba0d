"""Reads the trainer's log.jsonl, reads and writes TSV files of results, and makes means and Markdown tables."""
import contextlib
import glob
import json
import math
import os
import re
import shutil


class Failure(Exception):
    """An error for the user, printed as one line; an empty text is not printed. If one of several runs raises the
    error, the other runs continue. The program's exit code is 1."""


def read_text(path):
    """Returns the text of a file; "" if it cannot be read."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def write_file(path, text):
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


def find(folder, *patterns):
    return [path for pattern in patterns for path in glob.glob(os.path.join(glob.escape(folder), pattern))]


def remove(folder, *patterns):
    for path in find(folder, *patterns):
        (shutil.rmtree if os.path.isdir(path) else os.remove)(path)


def read_log(path):
    """Returns each line of a log.jsonl as a dictionary whose numbers are text. Skips damaged lines."""
    lines = []
    for line in read_text(path).splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            fields = json.loads(line, parse_float=str, parse_int=str)
            lines.append({**fields, "step": int(fields["step"])})
    return lines


def value_at(log, step, key):
    """Returns the last value of `key` at step `step` of a log.jsonl; None if the log has none."""
    return ([line[key] for line in read_log(log) if line["step"] == step and key in line] or [None])[-1]


def is_number(text):
    return isinstance(text, str) and re.match("-?[0-9]", text) is not None


def markdown(columns, rows):
    """Returns the lines of a Markdown table."""
    return ["| " + " | ".join(cells) + " |" for cells in [columns, ["---"] * len(columns), *rows]]


class Table:
    """A TSV file.

    notes: {(KIND, NAME): TEXT} of comment lines `# KIND NAME: TEXT`
    commands: texts of comment lines `# command: TEXT`
    rows: a dictionary per row, {column: text}; "-" stands for a missing figure"""

    def __init__(self, path, *columns):
        self.path, self.first_columns = path, columns
        self.read()

    def read(self):
        self.notes, self.commands, self.rows, self.columns, lines = {}, [], [], list(self.first_columns), []
        with contextlib.suppress(FileNotFoundError), open(self.path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        for line in lines:
            note = re.match(r"# (?:command|(\w+) (\S+)): (.*)", line)
            if note and note[1]:
                self.notes[note[1], note[2]] = note[3]
            elif note:
                self.commands.append(note[3])
            elif line.startswith(self.columns[0] + "\t"):
                self.columns = line.split("\t")
            elif not line.startswith("#"):
                self.rows.append(dict(zip(self.columns, line.split("\t"))))

    def save(self):
        self.columns += dict.fromkeys(column for row in self.rows for column in row if column not in self.columns)
        lines = [f"# {kind} {name}: {text}" for (kind, name), text in self.notes.items()]
        lines += ["# command: " + command for command in self.commands] + ["\t".join(self.columns)]
        lines += ["\t".join(row.get(column) or "-" for column in self.columns) for row in self.rows]
        write_file(self.path, "\n".join(lines) + "\n")

    def note(self, kind, name, text, remedy):
        """Adds the note `text` of (kind, name). Fails if the file has another note of (kind, name). remedy: what the
        error message suggests to change."""
        there = self.notes.setdefault((kind, name), text)
        if there != text:
            raise Failure(f"{kind} {name}: {self.path} has '{there}', this command '{text}'; "
                          f"choose another {remedy}")

    def add_command(self, command):
        """Adds a command unless the file already contains the command."""
        if command not in self.commands:
            self.commands.append(command)

    def find(self, **cells):
        """Returns the first row that has these values in these columns; None if there is none."""
        return next((row for row in self.rows if cells.items() <= row.items()), None)


class Sample:
    """Mean, standard deviation and standard error of the mean. Values that are None are ignored."""

    def __init__(self, values):
        values = [value for value in values if value is not None]
        self.count = len(values)
        self.mean = sum(values) / self.count if values else 0.0
        squares = sum((value - self.mean) ** 2 for value in values)
        self.deviation = math.sqrt(squares / (self.count - 1)) if self.count > 1 else 0.0
        self.error = self.deviation / math.sqrt(self.count) if values else 0.0

    def text(self, digits=4):
        return f"{self.mean:.{digits}f}" if self.count else "–"

    def with_deviation(self, digits=4):
        return self.text(digits) + (f" ± {self.deviation:.{digits}f}" if self.count > 1 else "")
