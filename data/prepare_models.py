"""Tokenizers of models as their own files have them: tokenizer.json by the package tokenizers, SentencePiece's
tokenizer.model by sentencepiece. What is put
around documents follows from the family: data/README.md has the table."""
import array
import json
import os
import re

from prepare_tokenizers import Failure, first_line, little_endian, need, no_pointer

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")  # the trainer has the same: coat/text/tokenizer_json.c
HEADS = "\x01", "a"  # what merges with no line end and no blank, so that they are encoded as within a text


def read_json(path, what):
    try:
        with open(no_pointer(path), encoding="utf-8") as file:
            parsed = json.load(file)
        if isinstance(parsed, dict):
            return parsed
        raise ValueError("not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise Failure("tokenizer %s: not a %s (%s)" % (path, what, first_line(error)))


def config_beside(path):
    beside = os.path.join(os.path.dirname(path), "tokenizer_config.json")
    return read_json(beside, "tokenizer_config.json") if os.path.exists(beside) else {}


def config_token(config, key):
    value = config.get(key)
    return value.get("content") if isinstance(value, dict) else value


def template_token(processor):
    """The name of the special token that a post_processor puts first; None without one. The last template is outermost."""
    name = None
    for step in processor["processors"] if processor.get("type") == "Sequence" else [processor]:
        if step.get("type") == "TemplateProcessing" and step["single"]:
            name = step["single"][0].get("SpecialToken", {}).get("id", name)
    return name


class Model:
    """What both kinds share: `rule` says which tokens `before` and `after` are put around each document."""

    strict = True  # text may only be cut where no rule joins the two sides

    def finish(self, path, vocab, characters, bos, end, name_of):
        """characters: SentencePiece's kind; bos, end: ids or None, where tokenizer_config.json does not say otherwise."""
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
                          "beside it" % path)
        self.vocab, self.end_of_text = vocab, end
        self.code = "H" if vocab <= 1 << 16 else "I"
        self.before = [bos] if bos is not None else [] if characters else [end]
        self.after = [end] if characters or self.before != [end] else []
        self.bos = [bos] if bos is not None else []
        rule = ["%s (%d) before" % (name_of(token), token) for token in self.before]
        rule += ["%s (%d) after" % (name_of(token), token) for token in self.after]
        self.rule = " and ".join(rule) + " each document"
        unknown = self.ids(["\x01"]) == self.ids(["\x02"])  # it would be one with an unknown character after it
        self.head_text = HEADS[unknown]
        self.head = self.ids([self.head_text])[0]
        self.prefixed = self.ids(["\n"])[0] != self.ids([self.head_text + "\n"])[0][len(self.head):]

    def named(self, config, key):
        name = config_token(config, key)
        return self.token(name) if isinstance(name, str) else None

    def encode(self, texts, continued=False):
        """Documents (bytes) to little-endian tokens; continued: the texts go on from others (True, or one per text)."""
        texts = [text.decode("utf-8", errors="replace") for text in texts]
        within = [continued] * len(texts) if isinstance(continued, bool) else continued
        within = [flag and self.prefixed for flag in within]
        rows = self.ids([self.head_text + text if flag else text for text, flag in zip(texts, within)])
        for i, flag in enumerate(within):
            if flag and rows[i][:len(self.head)] != self.head:
                raise Failure("this tokenizer merges what a text is cut between: give texts of one document each as "
                              "JSONL")
            rows[i] = rows[i][len(self.head):] if flag else rows[i]
        return [little_endian(array.array(self.code, row)) for row in rows]


class JsonModel(Model):
    """tokenizer.json."""

    def __init__(self, path):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
        parsed = read_json(path, "tokenizer.json")
        try:
            self.tokenizer = need("tokenizers").Tokenizer.from_file(path)
        except Failure:
            raise
        except Exception as error:
            raise Failure("tokenizer %s: not a tokenizer.json (%s)" % (path, first_line(error)))
        self.tokenizer.encode_special_tokens = True  # a name such as <|endoftext|> within text is text
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        special = [token["content"] for token in parsed.get("added_tokens") or () if token.get("special")]
        end = next((self.token(name) for name in ENDS if name in special), None)
        bos = template_token(parsed.get("post_processor") or {})
        characters = '"ByteLevel"' not in json.dumps(parsed.get("pre_tokenizer"))
        vocab = max(self.tokenizer.get_vocab().values()) + 1
        self.finish(path, vocab, characters, bos and self.token(bos), end, self.tokenizer.id_to_token)

    def token(self, name):
        return self.tokenizer.token_to_id(name)

    def ids(self, texts):
        return [row.ids for row in self.tokenizer.encode_batch(texts, add_special_tokens=False)]


class SentencePiece(Model):
    """tokenizer.model."""

    def __init__(self, path):
        try:
            self.pieces = need("sentencepiece").SentencePieceProcessor(model_file=path)
        except Failure:
            raise
        except Exception as error:
            raise Failure("tokenizer %s: not SentencePiece's tokenizer.model (%s); of tiktoken's ranks, name the "
                          "model's tokenizer.json" % (path, first_line(error)))
        bos, end = (token if token >= 0 else None for token in (self.pieces.bos_id(), self.pieces.eos_id()))
        self.finish(path, self.pieces.vocab_size(), True, bos, end, self.pieces.id_to_piece)

    def token(self, name):
        found = self.pieces.piece_to_id(name)
        return found if self.pieces.id_to_piece(found) == name else None

    def ids(self, texts):
        return self.pieces.encode(texts)


def open_model(path):
    """The tokenizer of a file; None where it is neither kind."""
    if re.search(r"\.model(\.v\d+)?$", path):
        return SentencePiece(path)
    if not path.endswith(".json"):
        return None
    return JsonModel(path) if isinstance(read_json(path, "vocabulary").get("model"), dict) else None
