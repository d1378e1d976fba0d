"""The validation split of prepare.py: entire documents or, if these are too few, the end of each document."""
import collections
import hashlib

TOLERANCE = 0.01  # the validation text may differ from --val-fraction by this fraction of all text
MANY = 40000  # from this many documents of equal size on, choosing each by its hash stays within TOLERANCE
BY_HASH, ENDS = "by hash", "ends"  # two of the three rules; the third is a set of keys of validation documents


def key_of(document):
    """Returns the key of a document, a hash of its bytes. Identical documents are therefore in the same split."""
    return hashlib.sha256(document).hexdigest()[:16]


def rule_of(documents, fraction):
    """Returns the rule that chooses validation documents: BY_HASH, ENDS, or the set of their keys. documents: iterator
    over (key, size) of all documents; not read to the end if the first ones suffice for BY_HASH."""
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
    """Returns "train" or "val"; None if the document's end is for validation and the rest for training."""
    if rule == ENDS:
        return None
    return "val" if (int(key, 16) < fraction * 2.0**64 if rule == BY_HASH else key in rule) else "train"


def end_of(size, fraction, part):
    """Returns the position where the validation part of a text of `size` bytes begins: after the line end nearest to
    (1 - fraction) * size. If no line end is near, returns the next start of a UTF-8 character. part(begin, end) returns
    bytes [begin, end) of the text."""
    at = round((1 - fraction) * size)
    slack = int(min(TOLERANCE, fraction / 2, (1 - fraction) / 2) * size)
    begin = max(0, at - slack)
    near = part(begin, min(at + slack, size - 1))
    after = near.rfind(b"\n", 0, at - begin) + 1, near.find(b"\n", at - begin) + 1  # 0: no line end
    places = [begin + place for place in after if place]
    if places:
        return min(places, key=lambda place: abs(place - at))
    while at < size and part(at, at + 1)[0] & 0xC0 == 0x80:
        at += 1
    return at


def parts_of(document, rule, fraction):
    """Divides a document by split. Returns [(split, text), ...]: one or two parts."""
    split = split_of(key_of(document), rule, fraction)
    if split is not None:
        return [(split, document)]
    at = end_of(len(document), fraction, lambda begin, end: document[begin:end])
    return [(split, text) for split, text in (("train", document[:at]), ("val", document[at:])) if text]
