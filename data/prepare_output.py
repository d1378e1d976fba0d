"""The output of prepare.py: token files, their manifest, and the progress line."""
import contextlib
import fcntl
import hashlib
import json
import os
import sys
import time
import zlib

from prepare_images import ImageFile, Images
from prepare_inputs import file_hash
from prepare_masks import VERSION, VERSION_IMAGES, masked_file
from prepare_prompts import FORMATS
from prepare_tokenizers import Failure, first_line, say, width_of, write_atomically

HEADER_BYTES = 1024


class Split:
    """The token files of one split. finished: manifest entries of finished files; waiting: tokens for the next file."""

    def __init__(self, name, out, settings, finished):
        self.name, self.out, self.finished = name, out, finished
        self.width = width_of(settings["vocab"])
        self.shard_bytes = settings["shard_tokens"] * self.width
        self.waiting = bytearray()
        self.unit = finished[-1]["unit"] if finished else 0  # number of the unit in which the next file begins
        # number of bytes of unit self.unit that finished files already contain
        self.skip = finished[-1]["unit_bytes"] if finished else 0

    def add(self, unit, tokens):
        """Adds the tokens of unit `unit`, except tokens that finished files contain. Returns True if a file was
        written."""
        begin = self.skip if unit == self.unit else 0
        if unit < self.unit:
            return False
        wrote = False
        while begin < len(tokens):
            end = min(len(tokens), begin + self.shard_bytes - len(self.waiting))
            self.waiting += memoryview(tokens)[begin:end]
            begin = end
            if len(self.waiting) == self.shard_bytes:
                self.write(unit, end)
                wrote = True
        return wrote

    def contents(self):
        """Returns (blocks of bytes of the next file, dictionary of additional manifest entries of this file)."""
        magic, version = (20240520, 1) if self.width == 2 else (20240801, 7)
        tokens = len(self.waiting) // self.width
        words = (magic, version, tokens, 0, 0, 0, 0, 0, zlib.crc32(self.waiting), 1)
        header = b"".join(n.to_bytes(4, "little") for n in words).ljust(HEADER_BYTES, b"\0")
        return (header, self.waiting), {}

    def write(self, unit, unit_bytes):
        path = "%s_%s_%06d.bin" % (self.out, self.name, len(self.finished))
        parts, facts = self.contents()
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        write_atomically(path, *parts)
        self.finished.append({"file": os.path.basename(path), "tokens": len(self.waiting) // self.width, **facts,
                              "sha256": digest.hexdigest(), "unit": unit, "unit_bytes": unit_bytes})
        self.waiting = bytearray()

    def tokens(self):
        return sum(shard["tokens"] for shard in self.finished)


class ExampleSplit(Split):
    """The token files of one split of chat examples. An example is (tokens, mask, images); mask has one byte per token,
    1 if the token has a loss. An example is never divided between files, and "unit_bytes" of the manifest counts
    examples instead of bytes."""

    def __init__(self, name, out, settings, finished):
        super().__init__(name, out, settings, finished)
        self.prompt_format = ("template", *FORMATS).index(settings["prompt_format"])
        self.starts, self.mask = [], bytearray()
        self.images = ImageFile(out, Images(*settings["images"])) if "images" in settings else None

    def add(self, unit, examples):
        if unit < self.unit:
            return False
        wrote = False
        for number in range(self.skip if unit == self.unit else 0, len(examples)):
            tokens, mask, images = examples[number]
            if self.waiting and len(self.waiting) + len(tokens) > self.shard_bytes:
                self.write(unit, number)
                wrote = True
            self.starts.append(len(self.mask))
            self.waiting += tokens
            self.mask += mask
            if images:
                self.images.add(images)
        return wrote

    def contents(self):
        starts, mask = self.starts, self.mask
        self.starts, self.mask = [], bytearray()
        longest = max(end - start for start, end in zip(starts, starts[1:] + [len(mask)]))
        facts = {"examples": len(starts), "counted": sum(mask), "longest": longest}
        if self.images is not None:
            facts.update(self.images.write(images_path("%s_%s_%06d.bin" % (self.out, self.name, len(self.finished)))))
        version = VERSION_IMAGES if facts.get("places") else VERSION
        return (masked_file(self.width, self.waiting, starts, mask, self.prompt_format, version),), facts


def images_path(path):
    """Returns the path of the .images file that belongs to the token file `path`."""
    return path[:-len(".bin")] + ".images"


def verified(out, shards):
    """Returns the manifest entries before the first file that is missing or whose checksum does not match."""
    folder = os.path.dirname(out)
    for i, shard in enumerate(shards):
        path = os.path.join(folder, shard["file"])
        for path, digest in ((path, shard["sha256"]), (images_path(path), shard.get("images_sha256"))):
            if digest and (not os.path.exists(path) or file_hash(path) != digest):
                state = "is damaged" if os.path.exists(path) else "is missing"
                say("note: %s %s; this file and those after it will be written again" % (path, state))
                return shards[:i]
    return shards


@contextlib.contextmanager
def locked(out):
    """Locks the output `out` while the body runs. Fails if another run has locked it. If the folder cannot be written
    or its file system has no locks, the body runs without a lock."""
    with contextlib.ExitStack() as stack:
        try:
            os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
            path = os.path.join(os.path.dirname(out), ".%s.lock" % os.path.basename(out))
            # lockf(), because workers do not inherit its lock; a lock of flock() would last until all workers end
            fcntl.lockf(stack.enter_context(open(path, "a")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure("%s: another run writes these files; wait for it, or use another --out" % out)
        except OSError:
            pass
        yield


def nothing():
    """Returns what read_manifest() returns if there is no earlier run: no files, no skipped records, not complete."""
    return {"train": [], "val": []}, {}, False


def check_manifest(manifest, out):
    """Raises an exception, for example KeyError or ValueError, if an entry lacks a value or has an invalid one."""
    def number(value):
        return type(value) is int and 0 <= value < 1 << 62

    chat = manifest["settings"]["field"] is None
    images = "images" in manifest["settings"]
    numbers = ("tokens", "unit", "unit_bytes") + ("examples", "counted", "longest") * chat
    numbers += ("images", "places") * images
    for split in ("train", "val"):
        for i, shard in enumerate(manifest["shards"][split]):
            if shard["file"] != "%s_%s_%06d.bin" % (os.path.basename(out), split, i) or not all(
                    number(shard[key]) for key in numbers) or not all(
                    isinstance(shard[key], str) for key in ("sha256", "images_sha256")[:1 + images]):
                raise ValueError("its entry of file %d of %s is damaged" % (i, split))
    if not all(unit.isdecimal() and number(int(unit)) and number(count) for unit, count in manifest["skipped"].items()):
        raise ValueError("its count of skipped records is damaged")


def read_manifest(path, out, settings):
    """Returns ({split: manifest entries of finished files}, {unit: number of skipped records}, True if the run is
    complete) of an earlier run. Fails if the earlier run has finished files and other settings."""
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        check_manifest(manifest, out)
    except (FileNotFoundError, NotADirectoryError):
        return nothing()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Failure("%s: cannot be read (%s); use --overwrite to start again" % (path, first_line(error)))
    before, shards, skipped = manifest["settings"], manifest["shards"], manifest["skipped"]
    if not shards["train"] and not shards["val"]:  # no finished file would be lost
        return nothing()
    for key in settings:
        if before.get(key) != settings[key]:
            what = "the inputs" if key == "inputs" else "%s (%.40s, now %s)" % (key, before.get(key), settings[key])
            raise Failure("%s: was started with other settings, %s; use another --out, or --overwrite to start again"
                          % (path, what))
    return shards, skipped, manifest.get("complete") is True


class Progress:
    """Shows progress with tqdm if it is installed, else as one line. Shows nothing if stderr is not a terminal."""

    def __init__(self, total):
        self.total, self.done, self.start, self.last, self.bar = max(1, total), 0, time.time(), 0.0, None
        self.shown = sys.stderr.isatty()
        if self.shown:
            try:
                from tqdm import tqdm

                self.bar = tqdm(total=total, unit="B", unit_scale=True, desc="tokenizing")
            except ImportError:
                pass

    def add(self, amount):
        self.done += amount
        if self.bar is not None:
            self.bar.update(amount)
        elif self.shown and time.time() - self.last > 0.5:
            self.last = time.time()
            left = (self.last - self.start) * (self.total - self.done) / max(1, self.done)
            print("\rtokenizing %3d %%, %d s left " % (100 * self.done // self.total, left), end="", file=sys.stderr)

    def close(self):
        if self.bar is not None:
            self.bar.close()
        elif self.shown:
            print(file=sys.stderr)
