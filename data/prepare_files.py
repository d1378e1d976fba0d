"""The input files of prepare.py: reads files, decompressed if needed, and finds files by folder or pattern."""
import glob
import os
import re
import zlib

from prepare_tokenizers import Failure, first_line, need, no_pointer, say, several

READ = 1 << 16  # bytes read at a time
READ_PACKED = 1 << 12  # bytes read at a time from a compressed file; 4 KiB decompress to at most 128 MiB
HEAD = 1 << 16  # number of bytes at the beginning of a file by which its kind is recognized
NAMES = 3  # maximum number of files that a note names
PACKED = re.compile(r"\.(gz|zst)$", re.I)


def stem(path):
    """Returns the path without .gz or .zst, for example "x.jsonl" for "x.jsonl.gz"."""
    return PACKED.sub("", path)


def packing(path):
    """Returns (function that makes a decompressor, exception that the decompressor raises) for a gzip or zstd file,
    else (None, None)."""
    with open(no_pointer(path), "rb") as file:
        magic = file.read(4)
    if magic.startswith(b"\x1f\x8b"):
        return lambda: zlib.decompressobj(31), zlib.error
    if magic == b"\x28\xb5\x2f\xfd" or magic[1:] == b"\x2a\x4d\x18":
        zstandard = need("zstandard")
        return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj, zstandard.ZstdError
    return None, None


def blocks(path, begin=0):
    """Yields the contents of a file from byte `begin` on, in non-empty blocks."""
    start, error_of = packing(path)
    with open(path, "rb") as file:
        if start is None:
            file.seek(begin)
            yield from iter(lambda: file.read(READ), b"")
            return
        frame, data = start(), file.read(READ_PACKED)
        while data:
            try:
                frame = start() if frame.eof else frame
                text = frame.decompress(data)
            except error_of as error:
                why = first_line(error)
                raise Failure("%s: its compressed data is damaged (%s); copy the file again" % (path, why))
            if len(text) > begin:
                yield text[begin:]
            begin = max(0, begin - len(text))
            data = frame.unused_data or file.read(READ_PACKED)
        if not frame.eof:
            raise Failure("%s: its compressed data is truncated; copy the file again" % path)


def head(path):
    """Returns the first HEAD bytes of a file's decompressed contents."""
    text = b""
    for block in blocks(path):
        text += block
        if len(text) >= HEAD:
            break
    return text[:HEAD]


class Contents:
    """Reads the decompressed contents of a file from start to end. Keeps only the bytes from position `begin` on;
    move() increases `begin`."""

    def __init__(self, path, begin=0):
        self.path, self.begin, self.text = path, begin, bytearray()
        self.blocks, self.seekable = blocks(path, begin), packing(path)[0] is None

    def more(self):
        """Reads one more block. Returns False at the end of the file."""
        block = next(self.blocks, b"")
        self.text += block
        return bool(block)

    def move(self, begin):
        """Discards the bytes before `begin`."""
        if self.seekable and begin > self.begin + len(self.text):
            self.__init__(self.path, begin)
        while begin > self.begin + len(self.text):
            self.begin += len(self.text)
            self.text.clear()
            if not self.more():
                break
        del self.text[:begin - self.begin]
        self.begin = begin

    def part(self, begin, end):
        """Returns the bytes from begin to end, fewer if the file ends before `end`."""
        while self.begin + len(self.text) < end and self.more():
            pass
        return bytes(self.text[max(0, begin - self.begin):max(0, end - self.begin)])

    def find(self, wanted, begin, end):
        """Returns the position of `wanted` in [begin, end), or -1 if it does not occur."""
        at = begin - self.begin
        while True:
            found = self.text.find(wanted, at, end - self.begin)
            at = max(at, len(self.text) - len(wanted) + 1)
            if found >= 0 or self.begin + at >= end or not self.more():
                return self.begin + found if found >= 0 else -1


readers = {}  # {class: newest object of this class}; kept because the next piece often continues the same file


def reader(kind, path, begin, *more):
    """Returns a reader (Contents or Table) of the file from which `begin` can still be read. Reuses the newest reader
    if possible."""
    last = readers.get(kind)
    if last is None or last.path != path or last.begin > begin:
        last = readers[kind] = kind(path, begin, *more)
    return last


def contents(path, begin, end):
    """Returns bytes [begin, end) of a file's decompressed contents."""
    text = reader(Contents, path, begin)
    text.move(begin)
    return text.part(begin, end)


# --- finding files ---------------------------------------------------------------------------------------------


class Notes:
    """Collects ignored files by reason, and links that were followed. say() prints one note for each of the two."""

    def __init__(self):
        self.left_out, self.links = {}, []

    def leave_out(self, path, reason):
        self.left_out.setdefault(reason, []).append(path)

    def say(self):
        def names(paths):
            return ", ".join(paths[:NAMES] + ["..."] * (len(paths) > NAMES))

        if self.left_out:
            say("note: ignored files: " + "; ".join("%s %s (%s)" % (format(len(paths), ","), reason, names(paths))
                                               for reason, paths in self.left_out.items()))
        if self.links:
            say("note: links to outside the given folders were followed: %s (%s)" % (
                several(len(self.links), "link"), names(self.links)))


def files_under(folder, notes):
    """Yields the files of a folder and its subfolders. Follows links; enters each folder once."""
    def stop(error):
        raise error

    root = os.path.realpath(folder)
    seen = {root}
    for parent, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        unread, subfolders = [], set(folders)
        for name in sorted(folders + names):
            path = os.path.join(parent, name)
            if name.startswith("."):
                notes.leave_out(path, "hidden")
                continue
            real = os.path.realpath(path) if os.path.islink(path) or name in subfolders else path
            if os.path.islink(path) and os.path.exists(real) and os.path.commonpath([real, root]) != root:
                notes.links.append(path)
            if os.path.isfile(path):
                yield path
            elif not os.path.isdir(path):
                notes.leave_out(path, "neither a file nor a folder")
            elif real not in seen:
                seen.add(real)
                unread.append(name)
        folders[:] = unread


def files_of(argument, notes):
    """Yields (path, named) for each file of an argument, which is a file, a folder or a pattern. named: True if the
    argument names or matches the file itself, False if it names or matches a folder of the file."""
    paths = [argument] if os.path.exists(argument) else sorted(glob.glob(argument, recursive=True))
    for path in paths:
        if os.path.isfile(path):
            yield path, True
        elif not os.path.isdir(path):
            raise Failure("%s: is neither a file nor a folder" % path)
        elif "**" not in argument:  # if ** matched the folder, it also matched the files in it
            for found in files_under(path, notes):
                yield found, False
