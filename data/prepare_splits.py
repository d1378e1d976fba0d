"""What prepare.py holds out for validation: whole documents or, where these are too few, the end of each."""
import collections
import hashlib

TOLERANCE = 0.01  # of the text: how far what is held out may be from the fraction that was asked for
MANY = 40000  # documents of one size, or as many as make up for others: their hashes give the fraction by themselves
BY_HASH, ENDS = "by hash", "ends"  # rules; a third is the set of the keys that are held out


def key_of(document):
    """What tells a document from others: equal documents are always in the same split."""
    return hashlib.sha256(document).hexdigest()[:16]


def rule_of(documents, fraction):
    """The rule by which documents are held out. documents: (key, size) of all; not all are looked at if they are many."""
    sizes, total, squares, held, keys = collections.Counter(), 0, 0, 0, set()
    if not fraction:
        return frozenset()
    for key, size in documents:
        squares += size * (size + 2 * sizes[key])
        sizes[key] += size
        total += size
        if total**2 > MANY * squares > 0:
            return BY_HASH
    for key in sorted(sizes):
        if held + sizes[key] <= fraction * total:
            held += sizes[key]
            keys.add(key)
    near = held >= max(fraction / 2, fraction - TOLERANCE) * total
    return frozenset(keys) if near else ENDS


def split_of(key, rule, fraction):
    """The split of a document; None: its end is held out."""
    if rule == ENDS:
        return None
    return "val" if (int(key, 16) < fraction * 2.0**64 if rule == BY_HASH else key in rule) else "train"


def end_of(size, fraction, part):
    """Where the end of a text that is held out begins: after a line end near by, else before a character.
    part(begin, end) returns bytes of the text."""
    at = round((1 - fraction) * size)
    slack = int(min(TOLERANCE, fraction / 2, (1 - fraction) / 2) * size)
    begin = max(0, at - slack)
    near = part(begin, min(at + slack, size - 1))
    places = [begin + place for place in (near.rfind(b"\n", 0, at - begin) + 1, near.find(b"\n", at - begin) + 1) if place]
    if places:
        return min(places, key=lambda place: abs(place - at))
    while at < size and part(at, at + 1)[0] & 0xC0 == 0x80:
        at += 1
    return at


def parts_of(document, rule, fraction):
    """(split, text) of the parts of a document."""
    split = split_of(key_of(document), rule, fraction)
    if split is not None:
        return [(split, document)]
    at = end_of(len(document), fraction, lambda begin, end: document[begin:end])
    return [(split, text) for split, text in (("train", document[:at]), ("val", document[at:])) if text]
