#!/usr/bin/env python3
"""Text to token files for train_gpt2_fp8: local text, JSONL and Parquet, or named public data sets.

    data/prepare.py --out data/tokens/shakespeare tinyshakespeare
    data/prepare.py --out data/tokens/mine --tokenizer FOLDER notes/ 'logs/*.jsonl' more.parquet
    data/prepare.py --out data/tokens/mine --bytes notes/

Writes OUT_train_000000.bin, ... and OUT_val_000000.bin, ... in llm.c's format (uint16, or uint32 where the
vocabulary needs it) and OUT_manifest.json. Every document begins with the end-of-text token. A run that was
stopped continues where it was when started again; finished files are checked against their checksums first.

Validation text: documents (of JSONL, Parquet, or text that holds <|endoftext|> between them) go by the hash of
their text; plain text files are held out whole; of a single text file it is the end.
"""
import argparse
import array
import collections
import glob
import hashlib
import json
import mmap
import os
import sys
import time

UNIT_BYTES = 1 << 20  # text that a worker gets at a time
EDGE = 1 << 16  # bytes of each end of an input that tell whether it is the same as in an earlier run
SEPARATOR = b"<|endoftext|>"
CHUNK_ROWS = 1024  # rows of a Parquet file read at a time
HEADER_BYTES = 1024

SETS = {
    "tinyshakespeare": {"url": "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"},
    "tinystories": {"repo": "roneneldan/TinyStories", "files": "TinyStoriesV2-GPT4-train.txt"},
    "fineweb": {"repo": "HuggingFaceFW/fineweb", "files": "sample/{sample}/"},
    "fineweb-edu": {"repo": "HuggingFaceFW/fineweb-edu", "files": "sample/{sample}/"},
}


class Failure(Exception):
    """Ends the program with one line and exit code 2 (data) unless another is given."""

    def __init__(self, text, code=2):
        super().__init__(text)
        self.code = code


def need(module, package=None):
    """Imports what only some runs need."""
    try:
        return __import__(module, fromlist=["_"])
    except ImportError:
        raise Failure("the Python package %s is missing: pip install %s" % (package or module, package or module))


# --- tokenizers ---------------------------------------------------------------------------------------------


class Bytes:
    """Token = byte, 256 = end of text."""

    vocab, end_of_text = 257, 256

    def encode(self, texts):
        """Documents (bytes) to little-endian uint16 tokens, one bytes object each."""
        out = []
        for text in texts:
            tokens = bytearray(2 * len(text))
            tokens[0::2] = text
            out.append(bytes(tokens))
        return out


class Pairs:
    """Byte-pair encoding, by tiktoken where it is installed and the vocabulary fits it, else by tokenizers."""

    def __init__(self, spec):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
        self.encoding = None
        path = self.find(spec)
        if path is None:
            self.open_published()
        elif os.path.basename(path) == "tokenizer.json":
            self.tokenizer = need("tokenizers").Tokenizer.from_file(path)
            self.tokenizer.encode_special_tokens = True  # a name such as <|endoftext|> within text is text
            vocabulary = self.tokenizer.get_vocab()
            self.vocab = max(vocabulary.values()) + 1
            self.end_of_text = self.find_end(vocabulary, path)
        else:
            self.open_pair(path)
        self.code = "H" if self.vocab <= 1 << 16 else "I"

    @staticmethod
    def find(spec):
        """The file of a tokenizer that is given as a folder or a file; None for the published GPT-2."""
        if spec == "gpt2":
            return None
        if os.path.isdir(spec):
            for name in ("encoder.json", "vocab.json", "tokenizer.json"):
                if os.path.exists(os.path.join(spec, name)):
                    return os.path.join(spec, name)
            raise Failure("tokenizer %s: the folder holds no encoder.json, vocab.json or tokenizer.json" % spec)
        if not os.path.exists(spec):
            raise Failure("tokenizer %s: there is no such file or folder" % spec)
        return spec

    @staticmethod
    def find_end(vocabulary, path):
        for name in ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"):
            if name in vocabulary:
                return vocabulary[name]
        raise Failure("tokenizer %s: it has no end-of-text token" % path)

    def open_published(self):
        """GPT-2's own, which the package downloads once and caches."""
        advice = "give a local folder with encoder.json and vocab.bpe as --tokenizer"
        try:
            import tiktoken
        except ImportError:
            tokenizers = need("tokenizers", "tiktoken")
            try:
                self.tokenizer = tokenizers.Tokenizer.from_pretrained("gpt2")
            except Exception as error:
                raise Failure("GPT-2's vocabulary could not be downloaded (%s): %s" % (first_line(error), advice))
            self.tokenizer.encode_special_tokens = True
        else:
            try:
                self.encoding = tiktoken.get_encoding("gpt2")
            except Exception as error:
                raise Failure("GPT-2's vocabulary could not be downloaded (%s): %s" % (first_line(error), advice))
        self.vocab, self.end_of_text = 50257, 50256

    def open_pair(self, path):
        """encoder.json with vocab.bpe, or vocab.json with merges.txt."""
        folder = os.path.dirname(path)
        merges = [os.path.join(folder, name) for name in ("vocab.bpe", "merges.txt")]
        merges = [name for name in merges if os.path.exists(name)]
        if not merges:
            raise Failure("tokenizer %s: its merges are missing, vocab.bpe or merges.txt in the same folder" % path)
        try:
            with open(path, encoding="utf-8") as file:
                vocabulary = json.load(file)
            with open(merges[0], encoding="utf-8") as file:
                pairs = [line.rstrip("\r\n") for line in file]
            pairs = [tuple(line.split(" ")) for line in pairs if line and not line.startswith("#version")]
            self.vocab = max(vocabulary.values()) + 1
            self.end_of_text = self.find_end(vocabulary, path)
            ordered = all(vocabulary[a + b] == 256 + rank for rank, (a, b) in enumerate(pairs))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise Failure("tokenizer %s: not a vocabulary with its merges (%s)" % (path, first_line(error)))
        if ordered:  # tiktoken takes a token's id for the rank of its merge
            try:
                import tiktoken
            except ImportError:
                pass
            else:
                self.encoding = self.make_encoding(tiktoken, vocabulary)
        if self.encoding is None:
            tokenizers = need("tokenizers")
            self.tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs))
            self.tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)

    def make_encoding(self, tiktoken, vocabulary):
        # GPT-2 writes a byte as a character: the printable ones of Latin-1 as themselves, the others from 256 on
        same = [b for b in range(256) if 0x20 < b < 0x7F or (b > 0xA0 and b != 0xAD)]
        others = [b for b in range(256) if b not in same]
        byte_of = {chr(b): b for b in same}
        byte_of.update({chr(256 + i): b for i, b in enumerate(others)})
        ranks = {}
        for token, rank in vocabulary.items():
            if rank != self.end_of_text:
                ranks[bytes(byte_of[c] for c in token)] = rank
        pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
        special = {"<|endoftext|>": self.end_of_text}
        return tiktoken.Encoding("local", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)

    def encode(self, texts):
        texts = [text.decode("utf-8", errors="replace") for text in texts]
        if self.encoding is not None:
            rows = [self.encoding.encode_ordinary(text) for text in texts]
        else:
            rows = [row.ids for row in self.tokenizer.encode_batch(texts, add_special_tokens=False)]
        return [little_endian(array.array(self.code, row)) for row in rows]


def little_endian(tokens):
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


def open_tokenizer(spec):
    return Bytes() if spec == "bytes" else Pairs(spec)


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


# --- inputs -------------------------------------------------------------------------------------------------
# An input is (kind, path): "text", "documents" (text with separators), "jsonl" or "parquet". It is cut into
# units of work, (pieces, weight), in an order that depends on nothing but the inputs. A piece is
# (kind, path, begin, end, split): of a text, bytes that belong to a split, or, where begin is 0, start a
# document; of the others, bytes or a row group whose documents are divided by their hashes (split None).


def kind_of(path):
    lower = path.lower()
    if lower.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    if lower.endswith(".parquet"):
        return "parquet"
    if lower.endswith((".gz", ".zst", ".xz", ".bz2", ".zip")):
        raise Failure("%s is compressed: unpack it first" % path)
    with open(path, "rb") as file:
        if b"\0" in file.read(EDGE):
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


def edge_hash(path):
    """Tells files apart by size and both ends, without reading large ones whole."""
    size = os.path.getsize(path)
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        digest.update(file.read(EDGE))
        if size > EDGE:
            file.seek(max(EDGE, size - EDGE))
            digest.update(file.read(EDGE))
    return digest.hexdigest()[:32]


def file_hash(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def local_inputs(arguments):
    """(inputs, identities) of files, folders and patterns; equal files count once."""
    paths = []
    for argument in arguments:
        if os.path.isdir(argument):
            paths += [(path, False) for path in files_under(argument)]
        elif os.path.isfile(argument):
            paths.append((argument, True))
        else:
            found = [path for path in sorted(glob.glob(argument, recursive=True)) if os.path.isfile(path)]
            if not found:
                raise Failure("%s: no such file or folder, nor a pattern that matches one, nor one of the named sets %s"
                              % (argument, ", ".join(SETS)))
            paths += [(path, True) for path in found]
    inputs, identities, seen = [], [], {}
    for path, named in paths:
        try:
            kind, identity = kind_of(path), edge_hash(path)
        except OSError as error:
            raise Failure("%s: %s" % (path, error.strerror or error))
        except Failure:
            if named:
                raise
            continue
        if kind is None and named:
            raise Failure("%s is not a text file" % path)
        if kind is None or os.path.getsize(path) == 0:
            continue
        if identity in seen and (os.path.getsize(path) <= 2 * EDGE or file_hash(path) == file_hash(seen[identity])):
            continue
        seen.setdefault(identity, path)
        inputs.append((kind, path))
        identities.append(identity)
    if not inputs:
        raise Failure("no text found in %s" % ", ".join(arguments))
    return inputs, identities


def named_inputs(name, sample, cache):
    """(inputs, identities) of a public data set; its files come through the cache."""
    entry = SETS[name]
    if "url" in entry:
        import urllib.request

        path = os.path.join(cache, name + ".txt")
        if not os.path.exists(path):
            try:
                with urllib.request.urlopen(entry["url"], timeout=60) as reply:
                    write_atomically(path, reply.read())
            except OSError as error:
                raise Failure("%s could not be downloaded (%s): without a network, name local files" % (name, first_line(error)))
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
        raise Failure("%s could not be downloaded (%s): without a network, name local files" % (name, first_line(error)))
    return [(kind_of(path), path) for path in paths], ["%s@%s/%s" % (entry["repo"], info.sha, n) for n in names]


def cut_before_last_newline(text, at, end):
    """A place at or after `at` where cutting changes no token of GPT-2: before a line end that text follows."""
    while True:
        at = text.find(b"\n", at, end)
        if at < 0 or at + 1 >= end:
            return end
        if not text[at + 1 : at + 2].isspace() and text[at + 1] < 0x80:
            return at
        at += 1


def cuts(kind, path):
    """Places that divide a text-like file into pieces of about UNIT_BYTES, from 0 to its size."""
    size = os.path.getsize(path)
    found = [0]
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        while found[-1] < size:
            at = found[-1] + UNIT_BYTES
            if at >= size:
                at = size
            elif kind == "text":
                at = cut_before_last_newline(text, at, size)
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


def units(inputs, identities, fraction):
    """The units of work, in order."""
    chosen = held_out(inputs, identities, fraction)
    batch, weight = [], 0
    for kind, path in inputs:
        if kind == "parquet":
            parquet = need("pyarrow.parquet", "pyarrow").ParquetFile(path)
            pieces = [(kind, path, group, 0, None, os.path.getsize(path) // max(1, parquet.num_row_groups))
                      for group in range(parquet.num_row_groups)]
        else:
            places = cuts(kind, path)
            if kind == "text" and len(inputs) == 1 and fraction > 0:  # a single text: its end is validation text
                with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                    border = cut_before_last_newline(text, int((1 - fraction) * places[-1]), places[-1])
                if border == places[-1]:
                    border = int((1 - fraction) * places[-1])
                places = sorted(set(places + [border]))
            else:
                border = 0 if path in chosen else places[-1]
            pieces = []
            for begin, end in zip(places, places[1:]):
                split = None if kind != "text" else "val" if begin >= border else "train"
                pieces.append((kind, path, begin, end, split, end - begin))
                # the validation part of a single text begins a document of its own
            if kind == "text" and 0 < border < places[-1]:
                pieces = [("tail",) + p[1:] if p[2] == border else p for p in pieces]
        for piece in pieces:
            batch.append(piece[:5])
            weight += piece[5]
            if weight >= UNIT_BYTES or kind == "parquet":
                yield batch, weight
                batch, weight = [], 0
    if batch:
        yield batch, weight


# --- work ---------------------------------------------------------------------------------------------------

worker = None  # (tokenizer, field, fraction) of this process


def start_worker(spec, field, fraction):
    global worker
    worker = (open_tokenizer(spec), field, fraction)


def documents_of(piece, field):
    """The documents of a piece whose split their hashes decide, as bytes."""
    kind, path, begin, end, _ = piece
    if kind == "parquet":
        file = need("pyarrow.parquet", "pyarrow").ParquetFile(path)
        if field not in file.schema_arrow.names:
            raise Failure("%s has no column %s but %s: use --field" % (path, field, ", ".join(file.schema_arrow.names)))
        for batch in file.iter_batches(CHUNK_ROWS, row_groups=[begin], columns=[field]):
            for text in batch.column(0).to_pylist():
                yield (text or "").encode("utf-8")
        return
    with open(path, "rb") as file:
        file.seek(begin)
        text = file.read(end - begin)
    if kind == "documents":
        for document in text.split(SEPARATOR):
            yield document.strip(b"\r\n")
        return
    at = begin
    for line in text.split(b"\n"):
        if line.strip():
            try:
                document = json.loads(line)[field]
                if not isinstance(document, str):
                    raise TypeError
            except (ValueError, KeyError, TypeError):
                raise Failure('%s: the line at byte %d is not a JSON object with a text "%s": use --field' % (path, at, field))
            yield document.encode("utf-8", errors="replace")
        at += len(line) + 1


def is_val(document, fraction):
    return int.from_bytes(hashlib.blake2b(document, digest_size=8).digest(), "little") < fraction * 2.0**64


def work(job):
    """Tokenizes a unit: {split: bytes of its tokens} of the splits that are still needed."""
    number, pieces, wanted = job
    tokenizer, field, fraction = worker
    texts, splits, starts = [], [], []
    for piece in pieces:
        kind, path, begin, end, split = piece
        if kind in ("text", "tail"):
            if split in wanted:
                with open(path, "rb") as file:
                    file.seek(begin)
                    texts.append(file.read(end - begin))
                splits.append(split)
                starts.append(begin == 0 or kind == "tail")
            continue
        for document in documents_of(piece, field):
            if not document:
                continue
            split = "val" if fraction > 0 and is_val(document, fraction) else "train"
            if split in wanted:
                texts.append(document)
                splits.append(split)
                starts.append(True)
    end_of_text = tokenizer.end_of_text.to_bytes(width_of(tokenizer.vocab), "little")
    out = {split: [] for split in wanted}
    for tokens, split, start in zip(tokenizer.encode(texts), splits, starts):
        if start:
            out[split].append(end_of_text)
        out[split].append(tokens)
    return number, {split: b"".join(parts) for split, parts in out.items()}


def width_of(vocab):
    return 2 if vocab <= 1 << 16 else 4


def run_jobs(jobs, workers, initial):
    """work() of every job, in order, on several processes, with a bounded number of them under way."""
    if workers == 1:
        start_worker(*initial)
        for job in jobs:
            yield work(job)
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    with ProcessPoolExecutor(workers, initializer=start_worker, initargs=initial) as pool:
        waiting = collections.deque()
        try:
            for job in jobs:
                waiting.append(pool.submit(work, job))
                if len(waiting) >= 4 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise Failure("a worker process was killed, perhaps for want of memory: use fewer --workers and start again")
        finally:
            for future in waiting:
                future.cancel()


# --- output -------------------------------------------------------------------------------------------------


def write_atomically(path, *parts):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = "%s.tmp.%d" % (path, os.getpid())
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise Failure("%s could not be written: %s" % (path, error.strerror or error))


class Split:
    """The files of one split: what is finished, and the tokens of the next file."""

    def __init__(self, name, out, settings, finished):
        self.name, self.out, self.finished = name, out, finished
        self.width = width_of(settings["vocab"])
        self.shard_bytes = settings["shard_tokens"] * self.width
        self.waiting = bytearray()
        self.unit = finished[-1]["unit"] if finished else 0  # where the next file begins: in this unit,
        self.skip = finished[-1]["unit_bytes"] if finished else 0  # after so many bytes of its tokens

    def add(self, unit, tokens):
        """Takes a unit's tokens; returns whether files were finished by it."""
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

    def write(self, unit, unit_bytes):
        path = "%s_%s_%06d.bin" % (self.out, self.name, len(self.finished))
        tokens = len(self.waiting) // self.width
        magic, version = (20240520, 1) if self.width == 2 else (20240801, 7)
        header = b"".join(n.to_bytes(4, "little") for n in (magic, version, tokens)).ljust(HEADER_BYTES, b"\0")
        digest = hashlib.sha256(header)
        digest.update(self.waiting)
        write_atomically(path, header, self.waiting)
        self.finished.append({"file": os.path.basename(path), "tokens": tokens, "sha256": digest.hexdigest(),
                              "unit": unit, "unit_bytes": unit_bytes})
        self.waiting = bytearray()

    def tokens(self):
        return sum(shard["tokens"] for shard in self.finished)


def verified(out, shards):
    """The leading finished files that still have their checksums."""
    folder = os.path.dirname(out)
    for i, shard in enumerate(shards):
        path = os.path.join(folder, shard["file"])
        if not os.path.exists(path) or file_hash(path) != shard["sha256"]:
            state = "is damaged" if os.path.exists(path) else "is missing"
            print("%s %s: it and what follows it are made again" % (path, state), file=sys.stderr)
            return shards[:i]
    return shards


def read_manifest(path, settings):
    """(finished files per split, whether the run was complete) of an earlier run with the same settings."""
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        before, shards, complete = manifest["settings"], manifest["shards"], manifest["complete"]
    except FileNotFoundError:
        return {"train": [], "val": []}, False
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure("%s cannot be read (%s): use --overwrite to start again" % (path, first_line(error)))
    for key in settings:
        if before.get(key) != settings[key]:
            what = "the inputs" if key == "inputs" else "%s (%s, now %s)" % (key, before.get(key), settings[key])
            raise Failure("%s was begun with other settings, %s: use another --out, or --overwrite to start again" % (path, what))
    return shards, complete


class Progress:
    """A bar by tqdm where it is installed, else a line of our own; nothing where nobody looks."""

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


def tokenize(options, inputs, identities):
    spec = "bytes" if options.bytes else options.tokenizer
    tokenizer = open_tokenizer(spec)  # here too, so that what is wrong with it is said once
    if spec not in ("bytes", "gpt2"):
        spec_identity = file_hash(Pairs.find(spec))
    else:
        spec_identity = spec
    settings = {"inputs": hashlib.sha256(json.dumps(identities).encode()).hexdigest(), "tokenizer": spec_identity,
                "vocab": tokenizer.vocab, "field": options.field, "val_fraction": options.val_fraction,
                "shard_tokens": options.shard_tokens}
    manifest = options.out + "_manifest.json"
    shards, complete = ({"train": [], "val": []}, False) if options.overwrite else read_manifest(manifest, settings)
    kept = {name: verified(options.out, shards[name]) for name in ("train", "val")}
    complete = complete and all(len(kept[name]) == len(shards[name]) for name in kept)
    splits = {name: Split(name, options.out, settings, kept[name]) for name in ("train", "val")}
    if not complete:
        make(options, inputs, identities, spec, settings, manifest, splits)
    print("%s: %s training tokens in %d files, %s validation tokens in %d files%s"
          % (options.out, format(splits["train"].tokens(), ","), len(splits["train"].finished),
             format(splits["val"].tokens(), ","), len(splits["val"].finished), " (were complete)" if complete else ""))
    if options.val_fraction > 0 and not splits["val"].finished:
        print("no document was chosen for validation: raise --val-fraction", file=sys.stderr)


def make(options, inputs, identities, spec, settings, manifest, splits):
    def save(complete):
        record = {"settings": settings, "complete": complete, "shards": {n: s.finished for n, s in splits.items()}}
        write_atomically(manifest, (json.dumps(record, indent=1) + "\n").encode())

    if options.overwrite:
        for path in glob.glob(glob.escape(options.out) + "_train_??????.bin") + glob.glob(glob.escape(options.out) + "_val_??????.bin"):
            os.remove(path)
    plan = list(units(inputs, identities, options.val_fraction))
    progress = Progress(sum(weight for _, weight in plan))

    def jobs():
        for number, (pieces, _) in enumerate(plan):
            wanted = [name for name, split in splits.items() if number >= first[name]]
            if wanted:
                yield number, pieces, wanted

    first = {name: split.unit for name, split in splits.items()}
    save(False)
    for number, tokens in run_jobs(jobs(), options.workers, (spec, options.field, options.val_fraction)):
        wrote = [splits[name].add(number, part) for name, part in tokens.items()]
        if any(wrote):
            save(False)
        progress.add(plan[number][1])
    for split in splits.values():
        if split.waiting:
            split.write(len(plan), 0)
    save(True)
    progress.close()


# --- the program --------------------------------------------------------------------------------------------


def number(text):
    """100M, 64k or 1000."""
    scale = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}.get(text[-1:].lower(), 1)
    value = int(float(text[:-1] if scale > 1 else text) * scale)
    if not 1 <= value < 2**31:
        raise ValueError
    return value


def fraction(text):
    value = float(text)
    if not 0 <= value < 1:
        raise ValueError
    return value


def parse(arguments):
    class Parser(argparse.ArgumentParser):
        def error(self, message):
            raise Failure(message, 1)

    parser = Parser(prog="prepare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", metavar="INPUT",
                        help="files, folders, patterns, or one of: %s" % ", ".join(SETS))
    parser.add_argument("--out", required=True, help="path of the output, without _train_000000.bin")
    parser.add_argument("--tokenizer", default="gpt2", help="folder or file: encoder.json with vocab.bpe, vocab.json "
                        "with merges.txt, or tokenizer.json (default gpt2: downloaded once)")
    parser.add_argument("--bytes", action="store_true", help="byte-level tokens (256 = end of text), no tokenizer")
    parser.add_argument("--field", default="text", help="where JSONL and Parquet hold the text (default text)")
    parser.add_argument("--val-fraction", type=fraction, default=0.01, help="share held out (default 0.01)")
    parser.add_argument("--shard-tokens", type=number, default=10**8, help="tokens per file (default 100M)")
    parser.add_argument("--workers", type=number, default=os.cpu_count() or 1, help="processes (default all cores)")
    parser.add_argument("--sample", default="10BT", help="which sample of fineweb, fineweb-edu (default 10BT)")
    parser.add_argument("--cache", default=os.path.join(os.path.expanduser("~"), ".cache", "train_gpt2_fp8"),
                        help="where a downloaded text is kept (default ~/.cache/train_gpt2_fp8)")
    parser.add_argument("--overwrite", action="store_true", help="start again instead of continuing")
    return parser.parse_args(arguments)


def main(arguments):
    try:
        options = parse(arguments)
        named = [name for name in options.inputs if name in SETS and not os.path.exists(name)]
        if named and len(options.inputs) > 1:
            raise Failure("a named set comes alone: %s" % named[0], 1)
        if named:
            inputs, identities = named_inputs(named[0], options.sample, options.cache)
        else:
            inputs, identities = local_inputs(options.inputs)
        tokenize(options, inputs, identities)
        return 0
    except Failure as failure:
        print("prepare.py: %s" % failure, file=sys.stderr)
        return failure.code
    except KeyboardInterrupt:
        print("\nprepare.py: stopped; the same command continues", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
