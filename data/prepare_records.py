"""Records of prepare.py: JSON to a record, where it is, what is wrong with it, and the kinds of --chat."""
import json
import os
import re
import shlex

from prepare_files import blocks, stem
from prepare_tokenizers import Failure

DESCRIBED = 10  # of the records that are left out
VALUE_BYTES = 1 << 30  # of a file that is one JSON value, at most
SHOWN = 8  # keys of a record that fits nothing
# keys of a question and its answer, or of all of an example
KINDS = (("messages",), ("conversations",), ("instruction", "output"), ("prompt", "response"), ("query", "response"),
         ("input_ids",))
OTHERS = {"question": "prompt", "completion": "response", "answer": "response"}  # names of other programs


class Malformed(Exception):
    """What is wrong with a record."""


class Skipped:
    """Records that a process leaves out. malformed: True if it leaves out malformed ones, too; described: how many
    have been described, of DESCRIBED."""

    def __init__(self, malformed, described=0):
        self.malformed, self.described, self.of_unit = malformed, described, []

    def add(self, place, reason):
        self.of_unit.append("%s: %s" % (place, reason) if self.described < DESCRIBED else None)
        self.described += 1

    def wrong(self, place, reason):
        """Leaves out a malformed record, or ends the program."""
        if not self.malformed:
            raise Failure("%s: %s (--skip-malformed leaves out such records)" % (place, reason))
        self.add(place, reason)

    def take(self):
        """What was left out since the last call, as text or None."""
        taken, self.of_unit = self.of_unit, []
        return taken


class Place:
    """Where a record is. Its line is counted when something is wrong with it."""

    def __init__(self, path, begin, number):
        self.path, self.begin, self.number = path, begin, number

    def __str__(self):
        lines, left = 1, self.begin
        for block in blocks(self.path) if left else ():
            lines += block.count(b"\n", 0, left)
            left = max(0, left - len(block))
            if not left:
                break
        return "%s, line %d" % (self.path, self.number + lines)


def to_utf8(path, encoding):
    """The command that converts a file, which may be compressed."""
    name, shown = stem(path), shlex.quote(path)
    unpacked = "" if name == path else "%s -dc %s | " % ("gzip" if path.lower().endswith(".gz") else "zstd", shown)
    return "%siconv -f %s -t utf-8 %s>NEW%s" % (unpacked, encoding, "" if unpacked else shown + " ",
                                                os.path.splitext(name)[1])


def foreign_encoding(head):
    """UTF-16 or UTF-32, as iconv names it, of a file that begins with these bytes; None for any other file."""
    found = json.detect_encoding(head[:4])
    if found.startswith("utf-8"):
        return None
    text = head[:256 - 256 % 4].decode(found, errors="replace")
    if not head.startswith((b"\xff\xfe", b"\xfe\xff")) and not all(c.isprintable() or c.isspace() for c in text):
        return None  # numbers
    return re.sub("-(?=[bl]e$)", "", found).upper()


def encoding_error(path, encoding):
    return "it is %s, not UTF-8: %s" % (encoding, to_utf8(path, encoding.lower()))


def parsed(text, path):
    """The JSON value of bytes of a file: a line, or all of it."""
    try:
        return json.loads(text.decode("utf-8-sig", "surrogatepass"))  # an unpaired surrogate is no other encoding
    except UnicodeDecodeError as error:
        reason = "it is not UTF-8 (byte 0x%02x in column %d): if it is Latin-1, %s" % (
            text[error.start], error.start - text.rfind(b"\n", 0, error.start), to_utf8(path, "latin1"))
    except json.JSONDecodeError as error:
        line = "line %d, " % error.lineno if b"\n" in text else ""
        reason = "it is not JSON (%s, %scolumn %d)" % (error.msg, line, error.colno)
        if line and error.msg == "Extra data":
            reason += "; write a line per record, with jq -c . %s >NEW.jsonl" % shlex.quote(path)
    except (ValueError, RecursionError) as error:  # a number of too many digits, arrays in arrays
        reason = "it is not JSON (%s)" % error
    raise Malformed(reason)


def is_one_value(name, head):
    """True if a file that begins with these bytes is one array, or in .json one object, and not a record per line."""
    if re.match(rb"(\xef\xbb\xbf)?\s*\[\s*([{\]]|$)", head):
        return True
    line, end, _ = head.lstrip().partition(b"\n")
    try:
        parsed(line, name)
    except Malformed:
        return name.endswith(".json") and bool(end)
    return False


def value_records(path):
    """The records of a file that is one array or one object. Malformed if it is not."""
    text = bytearray()
    for block in blocks(path):
        text += block
        if len(text) > VALUE_BYTES:
            raise Malformed("it is one JSON value of more than 1 GiB; write a line per record, with jq -c '.[]' %s "
                            ">NEW.jsonl" % shlex.quote(path))
    value = parsed(text, path)
    return value if isinstance(value, list) else [value]


def as_record(value):
    """The value, if it is an object; else what is wrong with it."""
    return value if isinstance(value, (dict, Malformed)) else Malformed("it is not a JSON object")


def listed(keys):
    return " and ".join(filter(None, (", ".join(keys[:-1]), keys[-1])))


def kinds_in(keys):
    """The kinds of records of which all keys are there."""
    return [kind for kind in KINDS if all(key in keys for key in kind)]


def kind_of_record(record):
    """The one kind of a record's keys. Those that are null, as of a table's other rows, are not there."""
    keys = [key for key, value in record.items() if value is not None]
    found = kinds_in(keys)
    if ("input_ids",) in found:  # made from the texts beside them
        return ("input_ids",)
    if len(found) == 1:
        return found[0]
    if found:
        named = [key for key in keys if any(key in kind for kind in found)]
        raise Malformed("it has %s, which are keys of %d kinds of records: keep those of one" % (
            listed(named), len(found)))
    known = [key for key in keys if key in OTHERS or key in ("prompt", "query", "response")]
    if any(key in OTHERS for key in known):
        raise Malformed("it has %s: did you mean %s?" % (listed(known), listed([OTHERS.get(k, k) for k in known])))
    for kind in KINDS:
        missing = [key for key in kind if key not in keys]
        if len(missing) < len(kind):
            given = next(key for key in kind if key in keys)
            raise Malformed("it has %s but no %s" % (
                given, "prompt or query" if given == "response" else missing[0]))
    raise Malformed("it has none of messages, conversations, instruction and output, prompt and response, query and "
                    "response, input_ids")


def text_in(record, field):
    """The text of a record without --chat; None if it is null."""
    if isinstance(record, Malformed):
        raise record
    text = record.get(field)
    if text is not None and not isinstance(text, str):
        raise Malformed('"%s" is not text: use --field' % field)
    if field not in record:
        raise Malformed(without_field([key for key, value in record.items() if value is not None], field))
    return text


def without_field(keys, field):
    """What is said of a record or a table without this key or column."""
    found = kinds_in(keys)
    if found:
        return "it has %s: add --chat" % listed(list(found[0]))
    shown = keys[:SHOWN] + ["..."] * (len(keys) > SHOWN)
    return 'it has no "%s"%s: use --field' % (field, " but " + ", ".join(shown) if keys else "")
