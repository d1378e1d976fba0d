"""The inputs of prepare.py: finding them, telling their kinds, and cutting them into units of work.

An input is (kind, path): "text" (one document), "documents" (text with separators between them), "jsonl" or
"parquet". A piece of one is (kind, path, begin, end, split, starts, ends): bytes, of Parquet a row group. The bytes of
a text belong to a split, and start and end a document or not; the documents of the other kinds are divided by their
hashes (split None). A unit of work is (pieces, weight in bytes); the units and their order depend on the inputs alone.
"""
import glob
import hashlib
import mmap
import os
import shlex
import urllib.request

from prepare_records import Malformed, Place, foreign_encoding, parsed, text_in, without_field
from prepare_tokenizers import NAME, Failure, first_line, need, not_downloaded, say, write_atomically

UNIT_BYTES = 1 << 20  # text that a worker gets at a time
HEAD = 1 << 16  # bytes that tell whether a file is text
SEPARATOR = b"<|endoftext|>"
LOCAL = "name local files instead"
CHUNK_ROWS = 1024  # rows of a Parquet file read at a time

SETS = {
    "tinyshakespeare": {
        "url": "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    },
    "tinystories": {"repo": "roneneldan/TinyStories", "files": "TinyStoriesV2-GPT4-train.txt"},
    "fineweb": {"repo": "HuggingFaceFW/fineweb", "files": "sample/{sample}/"},
    "fineweb-edu": {"repo": "HuggingFaceFW/fineweb-edu", "files": "sample/{sample}/"},
}


def kind_of(path):
    lower = path.lower()
    if lower.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    if lower.endswith(".parquet"):
        return "parquet"
    if lower.endswith((".gz", ".zst", ".xz", ".bz2", ".zip")):
        raise Failure("%s is compressed: unpack it first" % path)
    with open(path, "rb") as file:
        if b"\0" in file.read(HEAD):
            return None
        if os.path.getsize(path) == 0:
            return "text"
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return "documents" if text.find(SEPARATOR) >= 0 else "text"


def files_under(folder):
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(parent, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path


def file_hash(path):
    """Of the whole file: an edit anywhere in an input makes it another."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def lacks_text(path, field):
    """A Parquet file that was only found, not named, may be a table of other things."""
    return field not in open_parquet(path).schema_arrow.names


def local_inputs(arguments, field):
    """(inputs, identities) of files, folders and patterns; equal files count once. field None: they hold records."""
    paths = []
    for argument in arguments:
        if os.path.isdir(argument):
            paths += [(path, False) for path in files_under(argument)]
        elif os.path.isfile(argument):
            paths.append((argument, True))
        else:
            found = [path for path in sorted(glob.glob(argument, recursive=True)) if os.path.isfile(path)]
            if not found:
                named = "" if field is None else ", nor one of the named sets " + ", ".join(SETS)
                raise Failure("%s: no such file or folder, nor a pattern that matches one%s" % (argument, named))
            paths += [(path, True) for path in found]
    inputs, identities, seen = [], [], set()
    for path, named in paths:
        try:
            kind = kind_of(path)
        except OSError as error:
            raise Failure("%s: %s" % (path, error.strerror or error))
        except Failure:
            if named:
                raise
            continue
        if field is None and kind in ("text", "documents"):
            if named:
                raise Failure("%s is neither JSONL nor Parquet by its name; of a JSON array, jq -c '.[]' %s >NEW.jsonl "
                              "makes lines" % (path, shlex.quote(path)))
            continue
        if kind is None and named:
            encoding = foreign_encoding(path)
            raise Failure("%s: %s" % (path, encoding) if encoding else "%s is not a text file" % path)
        if kind is None or os.path.getsize(path) == 0:
            continue
        if kind == "parquet" and not named and field is not None and lacks_text(path, field):
            say("%s: %s has no column %s and is left out" % (NAME, path, field))
            continue
        try:
            identity = file_hash(path)
        except OSError as error:
            raise Failure("%s: %s" % (path, error.strerror or error))
        if identity in seen:
            continue
        seen.add(identity)
        inputs.append((kind, path))
        identities.append(identity)
    if not inputs:
        raise Failure("no %s found in %s" % ("text" if field is not None else "records", ", ".join(arguments)))
    return inputs, identities


def named_inputs(name, sample, cache):
    """(inputs, identities) of a public data set; its files come through the cache."""
    entry = SETS[name]
    if "url" in entry:
        path = os.path.join(cache, name + ".txt")
        if not os.path.exists(path):
            try:
                with urllib.request.urlopen(entry["url"], timeout=60) as reply:
                    write_atomically(path, reply.read())
            except OSError as error:
                raise not_downloaded(name, error, LOCAL)
        return [(kind_of(path), path)], [name]
    hub = need("huggingface_hub")
    prefix = entry["files"].format(sample=sample)
    try:
        info = hub.HfApi().dataset_info(entry["repo"])
        names = sorted(f.rfilename for f in info.siblings if f.rfilename.startswith(prefix))
        if not names:
            raise Failure("%s has no files %s: another --sample?" % (entry["repo"], prefix))
        paths = [hub.hf_hub_download(entry["repo"], n, repo_type="dataset", revision=info.sha) for n in names]
    except Failure:
        raise
    except Exception as error:
        raise not_downloaded(name, error, LOCAL)
    return [(kind_of(path), path) for path in paths], ["%s@%s/%s" % (entry["repo"], info.sha, n) for n in names]


def cut_before_last_newline(text, at, end, strict=False):
    """A place at or after `at` where cutting changes no token of GPT-2: before a line end that text follows.
    strict: nor one of Llama's, OLMo's and Qwen's, which join a line end with what is no letter or number before it."""
    while True:
        at = text.find(b"\n", at, end)
        if at < 0 or at + 1 >= end:
            return end
        before = text[max(0, at - 4) : at].decode("utf-8", errors="replace")[-1:].isalnum()
        if not text[at + 1 : at + 2].isspace() and text[at + 1] < 0x80 and (before or not strict):
            return at
        at += 1


def cuts(kind, path, strict=False):
    """Places that divide a text-like file into pieces of about UNIT_BYTES, from 0 to its size."""
    size = os.path.getsize(path)
    found = [0]
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        while found[-1] < size:
            at = found[-1] + UNIT_BYTES
            if at >= size:
                at = size
            elif kind == "text":
                at = cut_before_last_newline(text, at, size, strict)
            elif kind == "documents":
                at = text.find(SEPARATOR, at)
                at = size if at < 0 else at + len(SEPARATOR)
            else:
                at = text.find(b"\n", at) + 1 or size
            found.append(at)
    return found


def held_out(inputs, identities, fraction):
    """The split of every text file: {path: "val"} for those held out whole, by the order of their hashes."""
    files = [(identity, path) for (kind, path), identity in zip(inputs, identities) if kind == "text"]
    if len(files) == 0 or len(inputs) == 1 or fraction <= 0:
        return {}
    sizes = {path: os.path.getsize(path) for _, path in files}
    target, total, chosen = fraction * sum(sizes.values()), 0, {}
    for _, path in sorted(files):
        if total + sizes[path] <= target:
            total += sizes[path]
            chosen[path] = "val"
    if not chosen and len(files) == len(inputs):  # none is small enough, and nothing else gives validation text
        chosen[min(files, key=lambda f: (sizes[f[1]], f))[1]] = "val"
    return chosen


def text_pieces(path, split, tail, strict):
    """The pieces of a text; where `tail` is not 0, its last part is validation text and a document of its own."""
    places = cuts("text", path, strict)
    size = places[-1]
    if not tail:
        return [("text", path, begin, end, split, begin == 0, end == size) for begin, end in zip(places, places[1:])]
    at = int((1 - tail) * size)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        border = cut_before_last_newline(text, at, size, strict)
    border = at if border == size else border
    places = sorted(set(places + [border]))
    return [("text", path, begin, end, "val" if begin >= border else "train", begin in (0, border),
             end in (border, size)) for begin, end in zip(places, places[1:])]


def open_parquet(path):
    parquet = need("pyarrow.parquet", "pyarrow")
    try:
        return parquet.ParquetFile(path)
    except Exception as error:
        raise Failure("%s is not a readable Parquet file (%s)" % (path, first_line(error)))


def units(inputs, identities, fraction, strict=False):
    """The units of work, in order."""
    chosen = held_out(inputs, identities, fraction)
    batch, weight = [], 0
    for kind, path in inputs:
        if kind == "parquet":
            groups = open_parquet(path).num_row_groups
            pieces = [(kind, path, group, group + 1, None, True, True) for group in range(groups)]
            weights = [os.path.getsize(path) // groups] * groups if groups else []
        else:
            if kind == "text":
                pieces = text_pieces(path, chosen.get(path, "train"), fraction if len(inputs) == 1 else 0, strict)
            else:
                places = cuts(kind, path)
                pieces = [(kind, path, begin, end, None, True, True) for begin, end in zip(places, places[1:])]
            weights = [end - begin for _, _, begin, end, *_ in pieces]
        for piece, piece_weight in zip(pieces, weights):
            batch.append(piece)
            weight += piece_weight
            if weight >= UNIT_BYTES or kind == "parquet":
                yield batch, weight
                batch, weight = [], 0
    if batch:
        yield batch, weight


def documents_of(piece, field):
    """The documents of a piece that is not of a text, as bytes."""
    kind, path, begin, end, *_ = piece
    if kind == "parquet":
        yield from parquet_documents(path, begin, field)
        return
    with open(path, "rb") as file:
        file.seek(begin)
        text = file.read(end - begin)
    if kind == "documents":
        for document in text.split(SEPARATOR):
            yield document.strip(b"\r\n")
        return
    for number, line in enumerate(text.split(b"\n")):
        if line.strip():
            try:
                document = text_in(parsed(line, path), field)
            except Malformed as error:
                raise Failure("%s: %s" % (Place(path, begin, number), error))
            yield document.encode("utf-8", errors="replace")


def parquet_documents(path, group, field):
    file = open_parquet(path)
    names = file.schema_arrow.names
    if field not in names:
        raise Failure("%s: %s" % (path, without_field(names, field)))
    try:
        for batch in file.iter_batches(CHUNK_ROWS, row_groups=[group], columns=[field]):
            for text in batch.column(0).to_pylist():
                if text is not None and not isinstance(text, str):
                    raise Failure("%s: column %s holds no text: use --field" % (path, field))
                yield (text or "").encode("utf-8")
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise Failure("%s could not be read (%s)" % (path, first_line(error)))
