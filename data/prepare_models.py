"""Tokenizers of Hugging Face models. Reads tokenizer.json with the Python package tokenizers, and tokenizer.model with
sentencepiece. The model family decides which tokens surround a document; data/README.md has the table."""
import functools
import json
import os
import re

from prepare_tokenizers import (PLACES, Encoder, Failure, PackageFailure, first_line, from_package, need, no_pointer,
                                places_before)

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")  # EOS tokens; coat/text/tokenizer_json.c has the same list
SPACE = "\u2581"  # SentencePiece's space marker
LETTERS, FOLLOWING = "aZ1\u00e9\u5b57", "a1.' \n\u5b57"  # samples of the characters before and after a division
# candidates for Encoder.head_text: characters that tokenizers do not merge with line ends or spaces
HEADS = "\x01", "a"


def read_json(path, what, owner="tokenizer "):
    try:
        with open(no_pointer(path), encoding="utf-8") as file:
            parsed = json.load(file)
        if isinstance(parsed, dict):
            return parsed
        raise ValueError("not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise Failure("%s%s: is not a %s (%s)" % (owner, path, what, first_line(error)))


def config_beside(path):
    beside = os.path.join(os.path.dirname(path), "tokenizer_config.json")
    return read_json(beside, "tokenizer_config.json") if os.path.exists(beside) else {}


def token_text(entry):
    """Returns the text of a special token, given as a string or as an object; None if it is neither."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def template_token(processor):
    """Returns the name of the special token that a post_processor puts in front of a text, or None. If the
    post_processor has several templates, the last decides, because it is applied to the output of the others."""
    name = None
    for step in processor["processors"] if processor.get("type") == "Sequence" else [processor]:
        if step.get("type") == "TemplateProcessing" and step["single"]:
            name = step["single"][0].get("SpecialToken", {}).get("id", name)
    return name


class Model(Encoder):
    """Base class of JsonModel and SentencePiece. before, after: token ids that precede and follow every document; rule:
    a description of these tokens."""

    strict = True  # texts are cut only at `places`, because these tokenizers allow fewer cuts than GPT-2's

    def finish(self, path, vocab, characters, bos, end, name_of):
        """Sets the fields that JsonModel and SentencePiece have in common. characters: True if tokens consist of
        characters (SentencePiece), False if of bytes. bos, end: ids of BOS and EOS, or None. tokenizer_config.json
        overrides bos, and names EOS if end is None."""
        config = config_beside(path)
        named = self.named(config, "bos_token")
        if config.get("add_bos_token") is False:
            bos = None
        elif config.get("add_bos_token") is True and named is not None:
            bos = named
        if end is None:
            end = self.named(config, "eos_token")
        if end is None:
            raise Failure("tokenizer %s: it has no end-of-text token; name it as eos_token in a tokenizer_config.json "
                          "in the same folder" % path)
        self.vocab, self.end_of_text, self.characters = vocab, end, characters
        self.code = "H" if vocab <= 1 << 16 else "I"
        self.before = [bos] if bos is not None else [] if characters else [end]
        self.after = [end] if characters or self.before != [end] else []
        self.bos = [bos] if bos is not None else []
        rule = ["%s (%d) before" % (name_of(token), token) for token in self.before]
        rule += ["%s (%d) after" % (name_of(token), token) for token in self.after]
        self.rule = " and ".join(rule) + " each document"
        # True if all characters outside the vocabulary share one id. Adjacent characters of this kind may become one
        # token, so head_text is then "a" instead of "\x01".
        unknown = self.ids(["\x01"]) == self.ids(["\x02"])
        self.head_text = HEADS[unknown]
        self.head = self.ids([self.head_text])[0]
        self.prefixed = any(self.ids([text])[0] != self.ids([self.head_text + text])[0][len(self.head):]
                            for text in ("\n", " a"))

    def named(self, config, key):
        name = token_text(config.get(key))
        return self.token(name) if name is not None else None

    @functools.cached_property
    def places(self):
        return places_before("".join(filter(self.is_place, PLACES)))

    def is_place(self, character):
        """True if a text has the same tokens after it is divided between a letter or digit and this character."""
        joint = re.compile(r"[^\W_]" + re.escape(character))
        if any(joint.search(name.replace(SPACE, " ")) for name in self.spanning(character)):
            return False
        samples = [(a, character + b) for a in LETTERS for b in FOLLOWING]
        whole, parts = ([[] for _ in samples] for _ in range(2))
        for number, (before, after) in enumerate(samples):
            self.encode_parts([(number, before + after, False)], whole)
            self.encode_parts([(number, before, False), (number, after, self.prefixed)], parts)
        return all(b"".join(a) == b"".join(b) for a, b in zip(whole, parts))


class JsonModel(Model):
    """The tokenizer of a tokenizer.json, with the package tokenizers."""

    def __init__(self, path):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the worker processes already use all cores
        parsed = read_json(path, "tokenizer.json")
        self.tokenizer = need("tokenizers").Tokenizer.from_file(path)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        added = [token for token in parsed.get("added_tokens") or () if token["content"]]
        self.check_ids(path, added)
        special = [token["content"] for token in added if token.get("special")]
        end = next((self.token(name) for name in ENDS if name in special), None)
        bos = template_token(parsed.get("post_processor") or {})
        characters = '"ByteLevel"' not in json.dumps(parsed.get("pre_tokenizer"))
        vocab = max(self.tokenizer.get_vocab().values()) + 1
        self.finish(path, vocab, characters, bos and self.token(bos), end, self.tokenizer.id_to_token)

    def check_ids(self, path, added):
        """Fails if the package tokenizers does not use the id that the file gives an added token. The trainer uses the
        file's ids."""
        self.tokenizer.encode_special_tokens = False
        rows = self.ids([token["content"] for token in added])
        self.tokenizer.encode_special_tokens = True  # encodes <|endoftext|> in a text as ordinary text
        ids = {}
        for token, row in zip(added, rows):
            name, number = json.dumps(token["content"], ensure_ascii=False), token["id"]
            if name in ids:
                raise Failure("tokenizer %s: the added token %s is listed twice, with the ids %d and %d; remove one of "
                              "them" % (path, name, ids[name], number))
            ids[name] = number
            used = row * (len(row) == 1) + [self.token(token["content"])] * token["special"] + [number]
            if set(used) != {number}:
                raise Failure("tokenizer %s: the added token %s has the id %d in the file, but the tokenizers package "
                              "encodes it as %d; list added_tokens in the order of their ids, without a missing id"
                              % (path, name, number, next(other for other in used if other != number)))

    def token(self, name):
        return self.tokenizer.token_to_id(name)

    def add_special(self, tokens):
        """Makes the tokenizer recognize these special tokens in text, as transformers does. tokens: names, or
        dictionaries of a name and flags such as lstrip."""
        made, names = need("tokenizers").AddedToken, ("lstrip", "rstrip", "normalized", "single_word")
        for token in tokens:
            given = token if isinstance(token, dict) else {}
            flags = {name: bool(given[name]) for name in names if name in given}
            self.tokenizer.add_tokens([made(token_text(token), special=True, **flags)])

    def spanning(self, character):
        """Returns all tokens in which this character could follow a letter or digit."""
        added = self.tokenizer.get_added_tokens_decoder().values()
        names = [token.content + end for token in added for end in ("", " ", "\n")[:3 if token.rstrip else 1]]
        rule = self.tokenizer.pre_tokenizer
        if rule and all(any(begin == 1 for _, (begin, _) in rule.pre_tokenize_str(a + character + b))
                        for a in LETTERS for b in FOLLOWING):
            return names  # other tokens cannot span the division, because pre-tokenization divides texts there
        return names + (list(self.tokenizer.get_vocab()) if self.characters else ["a" + character])

    def ids(self, texts):
        return [row.ids for row in self.tokenizer.encode_batch(texts, add_special_tokens=False)]


class SentencePiece(Model):
    """The tokenizer of a tokenizer.model, with the package sentencepiece."""

    def __init__(self, path):
        self.pieces = need("sentencepiece").SentencePieceProcessor(model_file=path)
        bos, end = (token if token >= 0 else None for token in (self.pieces.bos_id(), self.pieces.eos_id()))
        self.finish(path, self.pieces.vocab_size(), True, bos, end, self.pieces.id_to_piece)

    def token(self, name):
        found = self.pieces.piece_to_id(name)
        return found if self.pieces.id_to_piece(found) == name else None

    def spanning(self, character):
        return map(self.pieces.id_to_piece, range(self.vocab))

    def ids(self, texts):
        return self.pieces.encode(texts)


def open_model(path):
    """Opens the tokenizer in a file. Returns None if the file is neither tokenizer.json nor tokenizer.model."""
    if re.search(r"\.model(\.v\d+)?$", path):
        kind = SentencePiece
        what = "SentencePiece's tokenizer.model (%s); if it contains tiktoken's ranks, name the model's tokenizer.json"
    elif path.endswith(".json") and isinstance(read_json(path, "vocabulary").get("model"), dict):
        kind, what = JsonModel, "a tokenizer.json (%s)"
    else:
        return None
    try:
        return from_package(kind, path)
    except PackageFailure as error:
        raise Failure("tokenizer %s: is not %s" % (path, what % error))
