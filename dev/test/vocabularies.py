"""Vocabularies for check_transformers.py: each converts text to tokens and tokens to text."""
import json
import os

BYTES_VOCAB = 257  # 256 bytes and the EOS token


class Bytes:
    """The vocabulary of byte-level models: the tokens are the text's bytes."""

    def tokens(self, text):
        return list(os.fsencode(text))

    def text(self, tokens):
        return bytes(t for t in tokens if t < 256)  # without the EOS token

    def spells(self, tokens, text):
        return self.text(tokens) == os.fsencode(text)


class Pairs(Bytes):
    """GPT-2's byte pairs, from vocab.json and merges.txt or from encoder.json and vocab.bpe (OpenAI's names)."""

    def __init__(self, vocabulary, merges):
        from tokenizers import ByteLevelBPETokenizer
        self.encoder = ByteLevelBPETokenizer(vocabulary, merges)
        with open(vocabulary, encoding="utf-8") as file:
            self.names = {number: name for name, number in json.load(file).items()}
        # each byte is written as a visible character: itself, or one from 256 on
        seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in seen]
        self.bytes = {chr(byte): byte for byte in seen} | {chr(256 + i): byte for i, byte in enumerate(hidden)}

    def tokens(self, text):
        try:
            return self.encoder.encode(text.encode().decode()).ids
        except UnicodeEncodeError:
            return None  # because the library accepts only UTF-8

    def text(self, tokens):
        return b"".join(bytes(self.bytes[c] for c in self.names.get(t, "")) for t in tokens)


class Folder:
    """The vocabulary of a folder, read by AutoTokenizer."""

    def __init__(self, folder):
        from transformers import AutoTokenizer
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokens(self, text):
        try:
            return self.tokenizer(text.encode().decode())["input_ids"]
        except UnicodeEncodeError:
            return None

    def text(self, tokens):
        return self.tokenizer.decode(tokens).encode()

    def spells(self, tokens, text):
        return True  # does not compare texts, because decoding may compose characters and add a space in front


def vocabulary_of(path, vocab_size):
    """Returns the vocabulary at a path, or None. vocab_size: the model's, if the path is a model's folder, otherwise False."""
    if path == "bytes" or vocab_size == BYTES_VOCAB:
        return Bytes()
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    if any(os.path.isfile(os.path.join(folder, name)) for name in ("tokenizer.json", "tokenizer.model")):
        return Folder(folder)
    for names in ("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"):
        paths = [os.path.join(folder, name) for name in names]
        if all(map(os.path.isfile, paths)):
            return Pairs(*paths)
    return None
