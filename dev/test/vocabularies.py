"""What check_transformers.py needs to know of a model's vocabulary: the tokens of a text, and the text of tokens."""
import json
import os

BYTES_VOCAB = 257  # 256 bytes, and the end of a text


class Bytes:
    """The vocabulary of models of bytes: the text's bytes are its tokens."""

    def tokens(self, text):
        return list(os.fsencode(text))

    def text(self, tokens):
        return bytes(t for t in tokens if t < 256)  # without the end of text

    def spells(self, tokens, text):
        return self.text(tokens) == os.fsencode(text)


class Pairs(Bytes):
    """GPT-2's byte pairs, from vocab.json and merges.txt or, as OpenAI names them, encoder.json and vocab.bpe."""

    def __init__(self, vocabulary, merges):
        from tokenizers import ByteLevelBPETokenizer
        self.encoder = ByteLevelBPETokenizer(vocabulary, merges)
        with open(vocabulary, encoding="utf-8") as file:
            self.names = {number: name for name, number in json.load(file).items()}
        # each byte is written as a character that can be seen: itself, or one from 256 on
        seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in seen]
        self.bytes = {chr(byte): byte for byte in seen} | {chr(256 + i): byte for i, byte in enumerate(hidden)}

    def tokens(self, text):
        try:
            return self.encoder.encode(text.encode().decode()).ids
        except UnicodeEncodeError:
            return None  # the library takes UTF-8 alone

    def text(self, tokens):
        return b"".join(bytes(self.bytes[c] for c in self.names.get(t, "")) for t in tokens)


class Folder:
    """What AutoTokenizer makes of a folder."""

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
        return True  # the tokens are compared; characters may be composed, and a blank be put before the text


def vocabulary_of(path, vocab_size):
    """The vocabulary at a path; vocab_size: of a model's folder, False of others. None where there is none."""
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
