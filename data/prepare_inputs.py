"""The inputs of prepare.py: finds them, determines their kinds, and divides them into units of work.

Kinds of an Input: "text" (one document), "documents" (text with <|endoftext|> between documents), "jsonl" (a record per
line), "json" (an array of records, or one record), "parquet". A piece of an Input is a tuple:
    kind, path    of the Input
    begin, end    bytes or, in Parquet, rows [begin, end); array_pieces() defines another meaning
    split         "train" or "val" if all text of the piece belongs to this split; None: chosen per document
    starts, ends  True if the piece contains the start or the end of a document
A unit of work is (pieces, weight in bytes). Units and their order depend only on the inputs and on the rule that
chooses validation documents.
"""
import collections
import hashlib
import os
import urllib.request

from prepare_files import Contents, Notes, blocks, contents, files_of, head, stem
from prepare_parquet import open_parquet, row_pieces, rows_of
from prepare_records import (DESCRIBED, Malformed, Place, Skipped, as_record, foreign_encoding, is_one_value, kinds_in,
                             encoding_error, parsed, text_in, value_records, without_field)
from prepare_splits import end_of, key_of, split_of
from prepare_tokenizers import Failure, need, not_downloaded, write_atomically

UNIT_BYTES = 1 << 20  # bytes of text per unit of work
IMAGE_UNIT_BYTES = 1 << 14  # bytes per unit if records name images; their pixels need much more memory
PIECE_BYTES = 1 << 28  # maximum bytes of a line of JSON or of a document; longer lines of text are cut
SEPARATOR = b"<|endoftext|>"
LOCAL = "name local files instead"
RECORDS = (".jsonl", ".ndjson", ".jsonlines", ".jl", ".json")  # file name extensions
# file name extensions of compressed files and archives that are not supported
ARCHIVES = (".bz2", ".xz", ".lzma", ".lz4", ".br", ".zip", ".7z", ".rar", ".tar", ".tgz")

# Public data sets. Each is pinned by the checksum of its file or by a commit of its repository.
SETS = {
    "tinyshakespeare": {
        "url": "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "sha256": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    },
    "tinystories": {"repo": "roneneldan/TinyStories", "files": "TinyStoriesV2-GPT4-train.txt",
                    "revision": "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"},
    "fineweb": {"repo": "HuggingFaceFW/fineweb", "files": "sample/{sample}/",
                "revision": "9bb295ddab0e05d785b879661af7260fed5140fc"},
    "fineweb-edu": {"repo": "HuggingFaceFW/fineweb-edu", "files": "sample/{sample}/",
                    "revision": "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"},
}

Input = collections.namedtuple("Input", "kind path identity size")  # identity: SHA-256 or repo@commit/file; size: bytes
stamps = {}  # {path: (size, time of the last change) of the file when text_input() read it}


class Unfit(Exception):
    """The reason why a file is ignored. named: error message that ends the program if the user named the file itself;
    None: a named file is ignored, too."""

    def __init__(self, reason, named):
        super().__init__(reason)
        self.named = named


def file_hash(path):
    """Returns the SHA-256 of the entire file, so that every edit of an input is detected."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def first_keys(kind, path):
    """Returns the keys of a file's first record, or the columns of Parquet. Returns [] if the record is malformed."""
    if kind == "parquet":
        return open_parquet(path)[1]
    try:
        if kind == "json":
            record = next(iter(value_records(path)), None)
        else:
            text = Contents(path)
            end = text.find(b"\n", 0, PIECE_BYTES)
            record = parsed(text.part(0, end if end >= 0 else PIECE_BYTES), path)
    except Malformed:
        return []
    return list(record) if isinstance(record, dict) else []


def kind_of(path, named, field):
    """Returns the kind of a file by its name and first bytes; "text" also for files of kind "documents". Raises Unfit
    if the file is to be ignored. named: True if the user named the file itself."""
    name, start = stem(path).lower(), head(path)
    encoding = foreign_encoding(start)
    if encoding:
        raise Unfit("in %s" % encoding, encoding_error(path, encoding))
    if not start:
        raise Unfit("empty", None)
    if name.endswith(ARCHIVES):
        raise Unfit("compressed or archives", "only gzip and zstd are unpacked; unpack it first")
    kind = "parquet" if name.endswith(".parquet") else "text"
    if name.endswith(RECORDS):
        kind = "json" if is_one_value(name, start) else "jsonl"
    elif kind == "parquet" and name != path.lower():
        raise Unfit("compressed Parquet", "compressed Parquet is not supported; unpack it first")
    elif kind == "text" and b"\0" in start:
        raise Unfit("binary", "it contains zero bytes, so it is not text in UTF-8; convert it, for example from UTF-16")
    elif kind == "text" and field is None:
        raise Unfit("neither JSON nor Parquet", "it is neither JSON nor Parquet by its name")
    # ignores descriptions in JSON and unrelated tables that a folder of data may contain
    if kind == "parquet" and field is not None or not named and name.endswith((".json", ".parquet")):
        keys = first_keys(kind, path)
        if not (field in keys if field is not None else kinds_in(keys)):
            raise Unfit("%s without %s" % ("Parquet" if kind == "parquet" else "JSON", "examples of --chat"
                                           if field is None else '"%s" (--field)' % field), without_field(keys, field))
    return kind


def stamp_of(path):
    info = os.stat(path)
    return info.st_size, info.st_mtime_ns


def check_unchanged(inputs):
    """Fails if a file has changed since text_input() read it."""
    for made in inputs:
        if made.path in stamps and stamp_of(made.path) != stamps[made.path]:
            raise Failure("%s: changed while it was read; run this command again with --overwrite" % made.path)


def text_input(kind, path):
    """Returns the Input of a file. A text that contains <|endoftext|> becomes an Input of kind "documents"."""
    digest, size, end, separated = hashlib.sha256(), 0, b"", False
    stamps[path] = stamp_of(path)
    for block in blocks(path):
        digest.update(block)
        size += len(block)
        if kind == "text":
            end += block
            separated = separated or SEPARATOR in end
            end = end[-len(SEPARATOR):]
    return Input("documents" if separated else kind, path, digest.hexdigest(), size)


def local_inputs(arguments, field):
    """Returns one Input for each readable file that the arguments (files, folders, patterns) name. Leaves out
    duplicates and unsuitable files, with notes. field: key of a record's text; None: the files contain chat records."""
    inputs, seen, notes = [], set(), Notes()
    for argument in arguments:
        paths, found = list(files_of(argument, notes)), []
        if not paths and not os.path.exists(argument):
            named = "" if field is None else ", nor one of the public data sets " + ", ".join(SETS)
            raise Failure("%s: no such file or folder, nor a pattern that matches one%s" % (argument, named))
        for path, named in paths:
            try:
                found.append((kind_of(path, named, field), path, named))
            except Unfit as error:
                if named and error.named:
                    raise Failure("%s: %s" % (path, error.named))
                notes.leave_out(path, str(error))
        data = any(kind != "text" and not named for kind, _, named in found)
        for kind, path, named in found:
            if data and kind == "text" and not named:
                notes.leave_out(path, "text next to data files, read only if named")
                continue
            made = text_input(kind, path)
            if made.identity in seen:
                notes.leave_out(path, "equal to another")
                continue
            seen.add(made.identity)
            inputs.append(made)
    notes.say()
    if not inputs:
        raise Failure("no %s found in %s" % ("text" if field is not None else "records", ", ".join(arguments)))
    return inputs


def named_inputs(name, sample, cache):
    """Returns the Inputs of the public data set `name`. Downloads missing files to the folder `cache`."""
    entry = SETS[name]
    if "url" in entry:
        path = os.path.join(cache, name + ".txt")
        if not os.path.exists(path):
            try:
                with urllib.request.urlopen(entry["url"], timeout=60) as reply:
                    write_atomically(path, reply.read())
            except OSError as error:
                raise not_downloaded(name, error, LOCAL)
        found = text_input("text", path)
        if found.identity != entry["sha256"]:
            raise Failure("%s is damaged: its checksum does not match; delete it to download %s again" % (path, name))
        return [found]
    hub = need("huggingface_hub")
    prefix, revision = entry["files"].format(sample=sample), entry["revision"]
    try:
        info = hub.HfApi().dataset_info(entry["repo"], revision=revision)
        names = sorted(f.rfilename for f in info.siblings if f.rfilename.startswith(prefix))
        if not names:
            raise Failure("%s: has no files %s; use another --sample" % (entry["repo"], prefix))
        paths = [hub.hf_hub_download(entry["repo"], n, repo_type="dataset", revision=revision) for n in names]
    except Failure:
        raise
    except Exception as error:
        raise not_downloaded(name, error, LOCAL)
    return [Input("parquet", path, "%s@%s/%s" % (entry["repo"], revision, n), os.path.getsize(path))
            if path.endswith(".parquet") else text_input("text", path) for path, n in zip(paths, names)]


def text_cut(text, at, size, places):
    """Returns a position from `at` on where a text can be cut without changing GPT-2's tokens: before a line end that
    is followed by an ASCII character other than white space. places: also without changing tokens of Llama, OLMo and
    Qwen: the line end matches this pattern of places_before(); None: not needed. Without such a position in the next
    PIECE_BYTES bytes, returns their end."""
    last = min(size, at + PIECE_BYTES)
    while True:
        at = text.find(b"\n", at, last - 1)
        if at < 0:
            while last < size and text.part(last, last + 1)[0] & 0xC0 == 0x80:  # not the start of a UTF-8 character
                last += 1
            return last
        after = text.part(at + 1, at + 2)
        joins = places and not places.search(text.part(at - 4, at + 1).decode("utf-8", errors="replace")[-2:])
        if not after.isspace() and after < b"\x80" and not joins:
            return at
        at += 1


def cuts(kind, path, size, places=None, unit=None):
    """Yields the position after each piece of a file that is not Parquet. A piece has at least `unit` bytes (default
    UNIT_BYTES), except the last, which ends at `size`, the file's size. A file of kind "json" is one piece."""
    text, at = Contents(path), 0
    while at < size:
        begin, mark = at + (unit or UNIT_BYTES), SEPARATOR if kind == "documents" else b"\n"
        if begin >= size or kind == "json":
            at = size
        else:
            text.move(begin - 4)
            if kind == "text":
                at = text_cut(text, begin, size, places)
            else:
                found = text.find(mark, begin, begin + PIECE_BYTES)
                if found < 0 and size - begin > PIECE_BYTES:
                    raise Failure("%s: more than %d MiB without %s" % (
                        Place(path, begin, 0), PIECE_BYTES >> 20, "a line end" if mark == b"\n" else mark.decode()))
                at = size if found < 0 else found + len(mark)
        yield at


def text_pieces(path, size, split, fraction, places):
    """Returns the pieces of a text. split: "train" or "val" for the entire text; None: the last `fraction` of the text
    becomes a separate validation document."""
    border = {"train": size, "val": 0}.get(split)
    if border is None:
        border = end_of(size, fraction, lambda begin, end: contents(path, begin, end))
    begins = sorted({0, border, *cuts("text", path, size, places)})
    return [("text", path, begin, end, "val" if begin >= border else "train", begin in (0, border),
             end in (border, size)) for begin, end in zip(begins, begins[1:])]


def array_pieces(path, size):
    """Yields (piece, weight) of a file that is one JSON value and whose records name images. `begin` of a piece is the
    number of its first record, and `end` is the list of its records. Several processes can thus share one file."""
    try:
        records = value_records(path)
    except Malformed as error:
        raise Failure("%s: %s" % (path, error))
    step = max(1, len(records) * IMAGE_UNIT_BYTES // size)
    for begin in range(0, len(records), step):
        weight = size * (begin + step) // len(records) - size * begin // len(records)
        yield ("json", path, begin, records[begin:begin + step], None, True, True), weight


def record_pieces(made, field, images=False):
    """Yields (piece, weight in bytes) of an Input whose kind is not "text". images: True if records may name images."""
    kind, path, _, size = made
    if kind == "parquet":
        for begin, end, weight in row_pieces(path, None if field is None else [field], UNIT_BYTES):
            yield (kind, path, begin, end, None, True, True), weight
        return
    if kind == "json" and images:
        yield from array_pieces(path, size)
        return
    begin = 0
    for end in cuts(kind, path, size, unit=IMAGE_UNIT_BYTES if images else None):
        yield (kind, path, begin, end, None, True, True), end - begin
        begin = end


def documents_in(inputs, field):
    """Yields (key, size in bytes) of every document. Identical documents have the same key."""
    ignored = Skipped(True, DESCRIBED)
    yield from ((made.identity[:16], made.size) for made in inputs if made.kind == "text")
    for made in inputs:
        for piece, _ in record_pieces(made, field) if made.kind != "text" else ():
            yield from ((key_of(document), len(document)) for _, document in documents_of(piece, field, ignored))
            ignored.take()


def units(inputs, rule, fraction, field, places=None, images=False):
    """Yields (pieces, weight in bytes) of each unit of work, in order. images: True if records may name images."""
    batch, weight, unit = [], 0, IMAGE_UNIT_BYTES if images else UNIT_BYTES
    for made in inputs:
        if made.kind == "text":
            split = split_of(made.identity[:16], rule, fraction)
            pieces = ((piece, piece[3] - piece[2])
                      for piece in text_pieces(made.path, made.size, split, fraction, places))
        else:
            pieces = record_pieces(made, field, images)
        for piece, piece_weight in pieces:
            batch.append(piece)
            weight += piece_weight
            if weight >= unit or made.kind == "parquet":
                yield batch, weight
                batch, weight = [], 0
    if batch:
        yield batch, weight


def records_of(piece, columns=None):
    """Yields (place, record) for each record in a piece; a Malformed instead of a malformed record. place: position of
    the record, for messages. columns: Parquet columns to read; None: all."""
    kind, path, begin, end, *_ = piece
    if kind == "parquet":
        for number, row in rows_of(path, begin, end, columns):
            yield "%s, row %d" % (path, number), row
    elif kind == "json":
        try:
            records = end if isinstance(end, list) else value_records(path)
            for number, record in enumerate(records, 1 + begin):
                yield "%s, record %d" % (path, number), as_record(record)
        except Malformed as error:
            raise Failure("%s: %s" % (path, error))
    else:
        for number, line in enumerate(contents(path, begin, end).split(b"\n")):
            if line.strip():
                try:
                    record = as_record(parsed(line, path))
                except Malformed as error:
                    record = error
                yield Place(path, begin, number), record


def documents_of(piece, field, skipped):
    """Yields (place, document as bytes) for each document in a piece of kind "documents" or of records. place: position
    of the document, for messages. Adds records without text to `skipped`."""
    kind, path, begin, end, *_ = piece
    if kind == "documents":
        for document in contents(path, begin, end).split(SEPARATOR):
            if document.strip(b"\r\n"):
                yield "%s, document at byte %d" % (path, begin), document.strip(b"\r\n")
            begin += len(document) + len(SEPARATOR)
        return
    for place, record in records_of(piece, [field]):
        try:
            document = text_in(record, field)
        except Malformed as error:
            skipped.wrong(place, error)
            continue
        if document:
            yield place, document.encode("utf-8", errors="replace")
        else:
            skipped.add(place, "its text is %s" % ("null" if document is None else "empty"))
