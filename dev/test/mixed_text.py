"""Texts on which tokenizers are likely to differ: code, many scripts, emoji, odd spaces, marks, control characters."""
import glob
import random
import unicodedata

RANGES = [(0x20, 0x7F)] * 6 + [(0xA0, 0x250), (0x2B0, 0x370), (0x370, 0x530), (0x530, 0x700), (0x900, 0xE00),
          (0xE00, 0x1000), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2C00), (0x3000, 0x3100),
          (0x3100, 0x3400), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0xFB00), (0xFB00, 0x10000),
          (0x1F300, 0x1FAFF), (0x1D400, 0x1D800), (0x20000, 0x2A6D0), (0x2F800, 0x2FA20)]
SPACES = [
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b",
    "\u2028", "\u0085", "\x0b", "\x0c", "\x1c", "\ufeff", " " * 24, " " * 61,
]
WORDS = [
    "don't", "I'LL", "we'Ve", "'\u017f", "it's", "''s", "2024", "12345678", "3.14159", "x\u00b2",
    "\u0663\u0664\u0665", "e\u0301", "\u212b", "\u0344", "<|endoftext|>", "<s>", "</s>", "<unk>", "<0x0A>",
    "\u2581", "|||IP_ADDRESS|||", "<|extra_id_3|>", "<|im_start|>", "na\u00efve", "\u4f60\u597d",
    "\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1e9\U0001f1ea", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0645\u0631\u062d\u0628\u0627",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "q\u0307\u0323", "q\u0323\u0307", "a\u0315\u0300\u05ae\u0300\u0062",
    "_id", "==", "->", "/*", "*/", "...", "\u2014",
]


# combining marks of Unicode 10 to 14, which the NFC of the package tokenizers (Unicode 9) does not reorder
NEW_MARKS = "\u09fe\u0c3c\u0d3b\u0d3c\u0eba"


def is_known(character):
    return unicodedata.category(character) not in ("Cn", "Cs", "Co") and character not in NEW_MARKS


def random_text(random_, length):
    parts = []
    while sum(map(len, parts)) < length:
        kind = random_.random()
        if kind < 0.35:
            parts.append(random_.choice(WORDS))
        elif kind < 0.6:
            parts.append(random_.choice(SPACES))
        elif kind < 0.9:
            first, end = random_.choice(RANGES)
            run = [chr(random_.randrange(first, end)) for _ in range(random_.randrange(1, 12))]
            parts.append("".join(c for c in run if is_known(c)))
        elif kind < 0.95:
            parts.append(random_.choice("aeiou \n.01") * random_.randrange(1, 300))
        else:
            parts.append("".join(chr(random_.randrange(1, 32)) for _ in range(random_.randrange(1, 4))))
        if random_.random() < 0.5:
            parts.append(" ")
    return "".join(parts)


def texts(size, seed=1, sources=("coat/**/*.c", "dev/test/*.py", "docs/*.md", "scripts/*.sh")):
    """Returns files of this repository and random texts, about `size` bytes in total, without zero bytes."""
    random_ = random.Random(seed)
    found, total = ["", " ", "\n", "a", " a", "\u2581", "\u2581 a", "<s>a</s> b"], 0
    for pattern in sources:
        for path in sorted(glob.glob(pattern, recursive=True)):
            if total < size // 2:
                with open(path, encoding="utf-8") as file:
                    found.append(file.read())
                total += len(found[-1].encode())
    while total < size:
        found.append(random_text(random_, random_.choice((5, 20, 100, 1000, 20000))))
        total += len(found[-1].encode())
    return found
