"""The tokenizers of prepare.py: encode documents (bytes) to little-endian ids. Packages are imported at first use."""
import array
import contextlib
import functools
import glob
import json
import os
import re
import sys

# the program's name for messages; make install renames the program and sets COAT_PROGRAM
COMMAND = os.environ.get("COAT_PROGRAM", "data/prepare.py")
NAME = os.path.basename(COMMAND)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SETUP = "scripts/setup.sh --python"  # `make install` does not install this script
SETUP_HAS = ("tokenizers", "sentencepiece", "tiktoken", "jinja2") if os.path.exists(
    os.path.join(ROOT, SETUP.split()[0])) else ()
sys.path.append(os.path.join(ROOT, "third_party", "python"))  # the last folder that is searched for packages
# Class names of the download errors of urllib, requests, httpx and huggingface_hub. These are names, because the
# packages may be missing.
NO_CONNECTION = {"URLError", "ConnectionError", "ConnectError", "ConnectTimeout", "Timeout", "TimeoutError",
                 "TimeoutException", "LocalEntryNotFoundError", "OfflineModeIsEnabled"}

# marks a tokenizer.json that coat/text/tokenizer_json_write.c made from a tokenizer.model
MADE = '"made_from":"tokenizer.model"'
POINTER = b"version https://git-lfs.github.com/spec/v1"  # first bytes of a Git LFS pointer
RANKS = re.compile(rb"(?:[A-Za-z0-9+/=]{4})+ [0-9]")  # a line of tiktoken's files: a token in base64, a space, its rank
PART = 1 << 20  # characters encoded at once, because the package tokenizers needs up to 260 bytes of memory for each
# maximum characters of a part, because the regular expressions of the package tokenizers fail at 10 million spaces
MAX_PART = 1 << 23
PLACES = " \n,.\u3002\u3001"  # long texts are divided between a letter or digit and one of these
# Long runs of white space, as Rust's regular expressions define it. tiktoken fails at a run of a million characters.
LONG_RUN = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]{65536,}")


class Failure(Exception):
    """An error that ends the program with one line and an exit code, by default 2 (data)."""

    def __init__(self, text, code=2):
        super().__init__(text)
        self.code = code


class PackageFailure(Failure):
    """An error raised by a package."""


def need(module, package=None):
    """Imports a package that only some runs need. Fails with the pip command if it is missing."""
    try:
        return __import__(module, fromlist=["_"])
    except ImportError:
        name = package or module
        raise Failure("the Python package %s is missing: %spip install %s" % (
            name, SETUP + " installs it, or " if name in SETUP_HAS else "", name))


def no_pointer(path):
    """Returns the path unchanged. Fails if the file is a Git LFS pointer instead of the real file."""
    with open(path, "rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise Failure("%s: is a Git LFS pointer, not the file; run git lfs pull" % path)
    return path


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def from_package(function, *arguments, **more):
    """Returns the result of a package's function. Raises the function's errors, including panics of Rust, as
    PackageFailure."""
    try:
        return function(*arguments, **more)
    except (Failure, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust does not derive from Exception
        raise PackageFailure(first_line(error))


def encode_each(encode, rows, places):
    """Returns encode(rows) as a list. If the call fails, encodes the rows one by one, so that the error names the place
    of the row that fails."""
    try:
        return from_package(lambda: list(encode(rows)))
    except Failure:
        for row, place in zip(rows, places):
            try:
                from_package(lambda: list(encode([row])))
            except PackageFailure as error:
                raise Failure("%s: the tokenizer fails (%s)" % (place, error))
            except Failure as error:
                raise Failure("%s: %s" % (place, error))
        raise


def places_before(characters):
    """Returns a pattern that matches one of `characters` if a letter or digit precedes it. Texts may be divided before
    the match. If `characters` is empty, the pattern matches nothing."""
    return re.compile(r"(?<=[^\W_])[%s]" % re.escape(characters) if characters else "(?!)")


def divided(text, places):
    """Divides a text into parts of at least PART characters, except the last, at matches of the pattern `places`. Fails
    if a part would exceed MAX_PART."""
    parts, at = [], 0
    while len(text) - at > PART:
        found = places.search(text, at + PART)
        parts.append(text[at:found.start() if found else len(text)])
        at += len(parts[-1])
    parts += [text[at:]] * (at < len(text))
    longest = max(map(len, parts))
    if longest > MAX_PART:
        raise Failure("%s characters have no space or line end after a word; at most %s are supported; divide them"
                      % (format(longest, ","), format(MAX_PART, ",")))
    return parts


def not_downloaded(what, error, instead):
    """Returns the one-line Failure of a download, because a library's own message can fill pages."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, ImportError) and error.name:
        why = "the Python package %s is missing" % error.name
    elif isinstance(status, int):
        why = "the server answered %d" % status
    elif kinds & NO_CONNECTION:
        why = "no connection"
    else:
        why = first_line(error)
    return Failure("%s could not be downloaded (%s); %s" % (what, why, instead))


def say(text, file=None):
    """Prints a line to stderr or `file`. Escapes control characters and invisible characters."""
    file = file or sys.stderr
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    encoding = getattr(file, "encoding", None) or "utf-8"
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=file)


def several(count, noun):
    """Returns "1 file" or "2,000 files"."""
    return "%s %s%s" % (format(count, ","), noun, "" if count == 1 else "s")


def width_of(vocab):
    return 2 if vocab <= 1 << 16 else 4


def remove_leftovers(path):
    """Removes temporary files of `path` whose processes no longer run on this machine."""
    for leftover in glob.glob(glob.escape(path) + ".tmp.*"):
        with contextlib.suppress(ValueError, OSError):  # not a process id, or the file cannot be removed
            try:
                os.kill(int(leftover.rpartition(".")[2]), 0)
            except ProcessLookupError:
                os.remove(leftover)


def write_atomically(path, *parts):
    """Writes a temporary file, then renames it to `path`. parts: contents, each bytes or an iterable of bytes."""
    temporary = "%s.tmp.%d" % (path, os.getpid())
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if os.path.lexists(temporary):  # a file that a crashed run left, or a link
            os.remove(temporary)
        with open(temporary, "xb") as file:
            for part in parts:
                file.writelines([part] if isinstance(part, (bytes, bytearray)) else part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        remove_leftovers(path)
    except OSError as error:
        if os.path.lexists(temporary):
            os.remove(temporary)
        raise Failure("%s could not be written: %s" % (path, error.strerror or error))


class Encoder:
    """Encodes documents with ids(texts) in parts of bounded length. Documents are divided only where this does not
    change their tokens.

    prefixed: True if ids() puts a space before each text. A part that continues a document must not get this space.
    Therefore head_text is put in front of the part, and its tokens, `head`, are removed from the result."""

    places, prefixed, head_text, head = places_before(PLACES), False, "", []

    def divide(self, text):
        return divided(text, self.places) if len(text) > PART else [text]

    def encode(self, texts, continued=False):
        """Returns the little-endian tokens of each text in `texts` (bytes). continued: True if a text continues the
        text before it; one value for all texts, or a list with one value per text."""
        flags = [continued] * len(texts) if isinstance(continued, bool) else continued
        out, batch, characters = [[] for _ in texts], [], 0
        for number, (text, flag) in enumerate(zip(texts, flags)):
            for part in self.divide(text.decode("utf-8", errors="replace")):
                batch.append((number, part, self.prefixed and flag))
                characters, flag = characters + len(part), True
                if characters >= PART:
                    self.encode_parts(batch, out)
                    batch, characters = [], 0
        self.encode_parts(batch, out)
        return [b"".join(parts) for parts in out]

    def encode_parts(self, batch, out):
        """Encodes parts (number, text, True to encode the text after head_text), and appends the tokens to
        out[number]."""
        rows = self.ids([self.head_text + text if headed else text for _, text, headed in batch])
        for (number, _, headed), row in zip(batch, rows):
            if headed and row[:len(self.head)] != self.head:
                raise Failure("this tokenizer merges tokens across the places where texts are divided; write each "
                              "document as one record of a JSONL file")
            out[number].append(little_endian(array.array(self.code, row[len(self.head):] if headed else row)))


class Plain:
    """Base class of Bytes and Pairs, which put the end-of-text token before each document."""

    strict, bos, after = False, [], []

    @property
    def before(self):
        return [self.end_of_text]

    @property
    def rule(self):
        return "<|endoftext|> (%d) before each document" % self.end_of_text

    def token(self, name):
        """Returns the id of a special token, or None."""
        return self.end_of_text if name == "<|endoftext|>" else None


class Bytes(Plain):
    """Byte-level tokens: token = byte, 256 = end of text."""

    vocab, end_of_text = 257, 256

    def encode(self, texts, continued=False):
        """Returns the little-endian uint16 tokens, as bytes, of each document (bytes)."""
        out = []
        for text in texts:
            tokens = bytearray(2 * len(text))
            tokens[0::2] = text
            out.append(bytes(tokens))
        return out


class Pairs(Encoder, Plain):
    """GPT-2's byte-pair encoding. Uses tiktoken if it is installed and supports the vocabulary, else the package
    tokenizers."""

    def __init__(self, spec):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the worker processes already use all cores
        self.encoding = None
        path = self.find(spec)
        if path is None:
            self.open_published()
        else:
            self.open_pair(path)
        self.code = "H" if self.vocab <= 1 << 16 else "I"

    @staticmethod
    def find(spec):
        """Returns the file of the tokenizer `spec`, a folder or a file; None for "bytes" and the published "gpt2"."""
        if spec in ("bytes", "gpt2"):
            return None
        if os.path.isdir(spec):
            for name in ("tokenizer.json", "tokenizer.model", "encoder.json", "vocab.json"):
                if os.path.exists(os.path.join(spec, name)):
                    return Pairs.made_of(no_pointer(os.path.join(spec, name)))
            raise Failure("tokenizer %s: the folder contains no tokenizer.json, tokenizer.model, encoder.json or "
                          "vocab.json" % spec)
        if not os.path.exists(spec):
            raise Failure("tokenizer %s: no such file or folder; for a model of Hugging Face, name the "
                          "folder that contains its downloaded tokenizer files" % spec)
        return no_pointer(spec)

    @staticmethod
    def made_of(path):
        """Returns the path of the tokenizer.model from which the trainer made this tokenizer.json; otherwise `path`."""
        model = os.path.join(os.path.dirname(path), "tokenizer.model")
        if not path.endswith("tokenizer.json") or not os.path.exists(model):
            return path
        with open(path, encoding="utf-8", errors="replace") as file:
            return no_pointer(model) if MADE in file.read(4096) else path

    def check_gpt2(self, path):
        """Fails if a pair of files seems to belong to another model than GPT-2, because such files contain no
        pre-tokenization rule."""
        from prepare_models import config_beside

        name, why = config_beside(path).get("tokenizer_class"), None
        if name not in (None, "GPT2Tokenizer", "GPT2TokenizerFast"):
            why = "tokenizer_config.json says %s" % name
        elif self.end_of_text != self.vocab - 1:
            why = "its last token is not <|endoftext|>"
        if why:
            raise Failure("tokenizer %s: %s, so GPT-2's pre-tokenization rule may be wrong for it; name a "
                          "tokenizer.json, which contains the rule" % (path, why))

    def open_published(self):
        """Opens GPT-2's published encoding. tiktoken or tokenizers downloads it once and caches it."""
        tokenizers = None
        try:
            import tiktoken
        except ImportError:
            tokenizers = need("tokenizers", "tiktoken")
        try:
            if tokenizers is None:
                self.encoding = tiktoken.get_encoding("gpt2")
            else:
                self.tokenizer = tokenizers.Tokenizer.from_pretrained("gpt2")
                self.tokenizer.encode_special_tokens = True
        except Exception as error:
            raise not_downloaded("GPT-2's vocabulary", error, "put its encoder.json and vocab.bpe in a folder and name "
                                 "it, --tokenizer FOLDER")
        self.vocab, self.end_of_text = 50257, 50256

    def open_pair(self, path):
        """Opens encoder.json with vocab.bpe, or vocab.json with merges.txt."""
        with open(path, "rb") as file:
            if RANKS.match(file.read(1 << 16)):
                raise Failure("tokenizer %s: tiktoken's ranks lack the pre-tokenization rule and the special tokens; "
                              "name the model's tokenizer.json" % path)
        folder = os.path.dirname(path)
        merges = [os.path.join(folder, name) for name in ("vocab.bpe", "merges.txt")]
        merges = [name for name in merges if os.path.exists(name)]
        if not merges:
            raise Failure("tokenizer %s: its merges are missing; put vocab.bpe or merges.txt into the same folder"
                          % path)
        try:
            from_package(self.read_pair, path, merges[0])
        except PackageFailure as error:
            raise Failure("tokenizer %s: is not a vocabulary with its merges (%s)" % (path, error))

    def read_pair(self, path, merges):
        with open(path, encoding="utf-8") as file:
            vocabulary = json.load(file)
        with open(no_pointer(merges), encoding="utf-8") as file:
            pairs = [line.rstrip("\r\n") for line in file]
        pairs = [tuple(line.split(" ")) for line in pairs if line and not line.startswith("#version")]
        self.vocab = max(vocabulary.values()) + 1
        self.end_of_text = vocabulary.get("<|endoftext|>")
        ordered = all(vocabulary[a + b] == 256 + rank for rank, (a, b) in enumerate(pairs))
        self.check_gpt2(path)
        if ordered:  # tiktoken needs merges in the order of ids, because it uses a token's id as the rank of the merge
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
        # GPT-2 represents each byte as a character: printable Latin-1 bytes as themselves, the others as characters
        # from 256 on.
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

    def divide(self, text):
        return super().divide(text) if self.encoding is None else [text]  # tiktoken needs little memory for long texts

    def ids(self, texts):
        if self.encoding is not None:
            return [self.with_long_runs(text) for text in texts]
        return [row.ids for row in self.tokenizer.encode_batch(texts, add_special_tokens=False)]

    def with_long_runs(self, text):
        """Returns the ids that tiktoken gives a text. Encodes long runs of white space separately, because tiktoken's
        pattern fails on them.

        GPT-2's pattern matches a run at the end of the text as one pretoken. In any other run, all characters except
        the last are one pretoken, and the last character is matched together with the following text."""
        ids, at = [], 0
        for run in LONG_RUN.finditer(text):
            end = run.end() - (run.end() < len(text))
            ids += self.encoding.encode_ordinary(text[at:run.start()])
            ids += self.pieces.encode_ordinary(text[run.start():end])
            at = end
        return ids + self.encoding.encode_ordinary(text[at:])

    @functools.cached_property
    def pieces(self):
        """An encoding with GPT-2's vocabulary and a pattern that matches any text as one pretoken."""
        ranks = {self.encoding.decode_single_token_bytes(token): token for token in range(self.vocab)
                 if token != self.end_of_text}
        return type(self.encoding)("pieces", pat_str="(?s:.+)", mergeable_ranks=ranks, special_tokens={})


def little_endian(tokens):
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


def pack(ids, vocab):
    """Returns token ids as little-endian bytes: uint16, or uint32 for a vocabulary of more than 65536 tokens."""
    return little_endian(array.array("H" if width_of(vocab) == 2 else "I", ids))


def open_tokenizer(spec):
    if spec == "bytes":
        return Bytes()
    from prepare_models import open_model

    path = Pairs.find(spec)
    return path and open_model(path) or Pairs(spec)
