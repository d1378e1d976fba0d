"""prepare.py --hellaswag: converts HellaSwag's published JSON lines to llm.c's evaluation file.

A line has "ctx" (the context), "endings" (four texts) and "label" (the number of the right ending). An ending is
encoded with a space before it, because it follows the context. If the tokenizer's family has a BOS token, the context
starts with it.
The file begins with 256 int32: magic, version, number of examples, bytes of the longest example, then zeros. Each
example follows as uint16: 65535, bytes of the example, number of the example, label, number of endings, context,
endings. The context and each ending consist of the number of tokens and the tokens. If the vocabulary has more than
65536 tokens, examples are uint32 and the version is 2, which llm.c cannot read.
"""
import array
import os
import sys

from prepare_files import blocks
from prepare_records import Malformed, foreign_encoding, encoding_error, parsed
from prepare_tokenizers import (Failure, encode_each, little_endian, open_tokenizer, say, several, width_of,
                                write_atomically)

MAGIC, VERSIONS, START, ENDINGS = 20240522, {2: 1, 4: 2}, 65535, 4  # VERSIONS: by bytes per token


def examples_of(path):
    """Yields ([context, ending, ending, ending, ending], label) of every line. Texts are UTF-8 bytes."""
    text = b"".join(blocks(path))
    encoding = foreign_encoding(text)
    if encoding:
        raise Failure("%s: %s" % (path, encoding_error(path, encoding)))
    for number, line in enumerate(text.split(b"\n"), 1):
        if line.strip():
            try:
                example = parsed(line, path)
                situation, endings, label = example["ctx"], list(example["endings"]), int(example["label"])
                if len(endings) != ENDINGS or not 0 <= label < ENDINGS:
                    raise ValueError
                texts = [situation.encode(), *((" " + ending).encode() for ending in endings)]
            except Malformed as error:
                raise Failure("%s, line %d: %s" % (path, number, error))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise Failure('%s, line %d: not an example with "ctx", four "endings" and a "label"' % (path, number))
            yield texts, label


def packed(tokenizer, number, texts, label):
    width = width_of(tokenizer.vocab)
    words = array.array("H" if width == 2 else "I", [START, 0, number, label, ENDINGS])
    rows = tokenizer.encode(texts[:1]) + tokenizer.encode(texts[1:], continued=True)
    for i, tokens in enumerate(rows):
        part = array.array(words.typecode, tokens)
        if sys.byteorder == "big":
            part.byteswap()
        if len(part) == 0:
            raise Failure("example %d has a text without tokens" % number)
        if i == 0:
            part = array.array(words.typecode, tokenizer.bos) + part
        words.append(len(part))
        words.extend(part)
    if width * len(words) >= 1 << 16:
        raise Failure("example %d is too long: %d tokens" % (number, len(words)))
    words[1] = width * len(words)
    return words


def make_hellaswag(inputs, out, spec):
    """Writes OUT.bin from one JSONL file."""
    if len(inputs) != 1 or not os.path.isfile(inputs[0]):
        raise Failure("--hellaswag: needs exactly one input file; name the published hellaswag_val.jsonl", 1)
    tokenizer = open_tokenizer(spec)
    width = width_of(tokenizer.vocab)
    stream, longest, count = bytearray(), 0, 0
    for texts, label in examples_of(inputs[0]):
        if count == 1 << 16:
            raise Failure("%s has more than 65536 examples" % inputs[0])
        words, = encode_each(lambda rows: [packed(tokenizer, count, *row) for row in rows], [(texts, label)], inputs)
        longest = max(longest, words[1])
        stream += little_endian(words)
        count += 1
    if not count:
        raise Failure("%s contains no examples" % inputs[0])
    header = b"".join(n.to_bytes(4, "little") for n in (MAGIC, VERSIONS[width], count, longest)).ljust(1024, b"\0")
    path = out + ("" if out.endswith(".bin") else ".bin")
    write_atomically(path, header, stream)
    say("%s: %s" % (path, several(count, "example")), sys.stdout)
