"""Records of prepare.py: parses JSON, finds the line of a record, describes malformed records, and recognizes the kinds
of records that --chat accepts."""
import json
import os
import re
import shlex

from prepare_files import blocks, stem
from prepare_tokenizers import Failure

DESCRIBED = 10  # maximum number of skipped records that are described
VALUE_BYTES = 1 << 30  # maximum bytes of a file that is one JSON value
SHOWN = 8  # maximum number of a record's keys that an error message shows
# kinds of chat records: the keys that a record of this kind has
KINDS = (("messages",), ("conversations",), ("instruction", "output"), ("prompt", "response"), ("query", "response"),
         ("input_ids",))
OTHERS = {"question": "prompt", "completion": "response", "answer": "response"}  # {other programs' key: key of KINDS}


class Malformed(Exception):
    """The error of a malformed record."""


class Skipped:
    """Collects the records that a process skips. malformed: True to skip malformed records, False to end the program.
    described: number of records skipped so far; only the first DESCRIBED records are described."""

    def __init__(self, malformed, described=0):
        self.malformed, self.described, self.of_unit = malformed, described, []

    def add(self, place, reason):
        self.of_unit.append("%s: %s" % (place, reason) if self.described < DESCRIBED else None)
        self.described += 1

    def wrong(self, place, reason):
        """Skips a malformed record if --skip-malformed is set; otherwise ends the program."""
        if not self.malformed:
            raise Failure("%s: %s (use --skip-malformed to skip such records)" % (place, reason))
        self.add(place, reason)

    def take(self):
        """Returns a list with an entry per record skipped since the last call: a description, or None after the first
        DESCRIBED records."""
        taken, self.of_unit = self.of_unit, []
        return taken


class Place:
    """The position of a record: `number` lines after byte `begin`. str() counts the lines before `begin`."""

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
    """Returns a shell command that decompresses a file if needed and converts it to UTF-8."""
    name, shown = stem(path), shlex.quote(path)
    unpacked = "" if name == path else "%s -dc %s | " % ("gzip" if path.lower().endswith(".gz") else "zstd", shown)
    return "%siconv -f %s -t utf-8 %s>NEW%s" % (unpacked, encoding, "" if unpacked else shown + " ",
                                                os.path.splitext(name)[1])


def foreign_encoding(head):
    """Returns the encoding, by its name for iconv, if these first bytes of a file look like UTF-16 or UTF-32, else
    None."""
    found = json.detect_encoding(head[:4])
    if found.startswith("utf-8"):
        return None
    text = head[:256 - 256 % 4].decode(found, errors="replace")
    if not head.startswith((b"\xff\xfe", b"\xfe\xff")) and not all(c.isprintable() or c.isspace() for c in text):
        return None  # binary data, for example numbers
    return re.sub("-(?=[bl]e$)", "", found).upper()


def encoding_error(path, encoding):
    return "it is %s, not UTF-8; run %s" % (encoding, to_utf8(path, encoding.lower()))


def parsed(text, path):
    """Parses bytes as one JSON value. path: the file, for messages. Raises Malformed on failure."""
    try:
        # accepts unpaired surrogates, because they do not indicate another encoding
        return json.loads(text.decode("utf-8-sig", "surrogatepass"))
    except UnicodeDecodeError as error:
        reason = "it is not UTF-8 (byte 0x%02x in column %d); if it is Latin-1, run %s" % (
            text[error.start], error.start - text.rfind(b"\n", 0, error.start), to_utf8(path, "latin1"))
    except json.JSONDecodeError as error:
        line = "line %d, " % error.lineno if b"\n" in text else ""
        reason = "it is not JSON (%s, %scolumn %d)" % (error.msg, line, error.colno)
        if line and error.msg == "Extra data":
            reason += "; write a line per record, with jq -c . %s >NEW.jsonl" % shlex.quote(path)
    except (ValueError, RecursionError) as error:  # too many digits, or arrays nested too deeply
        reason = "it is not JSON (%s)" % error
    raise Malformed(reason)


def is_one_value(name, head):
    """True if a file is one JSON array or, with the extension .json, one object. False if it has a record per line.
    head: first bytes of the file."""
    if re.match(rb"(\xef\xbb\xbf)?\s*\[\s*([{\]]|$)", head):
        return True
    line, end, _ = head.lstrip().partition(b"\n")
    try:
        parsed(line, name)
    except Malformed:
        return name.endswith(".json") and bool(end)
    return False


def value_records(path):
    """Returns the records of a file that is one JSON value: the elements of an array, else a list of the value. Raises
    Malformed if the file is not one JSON value or exceeds VALUE_BYTES."""
    text = bytearray()
    for block in blocks(path):
        text += block
        if len(text) > VALUE_BYTES:
            raise Malformed("it is one JSON value of more than 1 GiB; write a line per record, with jq -c '.[]' %s "
                            ">NEW.jsonl" % shlex.quote(path))
    value = parsed(text, path)
    return value if isinstance(value, list) else [value]


def as_record(value):
    """Returns the value if it is an object or a Malformed, else a Malformed."""
    return value if isinstance(value, (dict, Malformed)) else Malformed("it is not a JSON object")


def listed(keys):
    return " and ".join(filter(None, (", ".join(keys[:-1]), keys[-1])))


def kinds_in(keys):
    """Returns those of KINDS whose keys are all in `keys`."""
    return [kind for kind in KINDS if all(key in keys for key in kind)]


def kind_of_record(record):
    """Returns the kind of a chat record, one of KINDS. A key with the value null counts as missing, because a table
    gives every row all keys."""
    keys = [key for key, value in record.items() if value is not None]
    found = kinds_in(keys)
    if ("input_ids",) in found:  # ignores the record's other texts, from which input_ids were made
        return ("input_ids",)
    if len(found) == 1:
        return found[0]
    if found:
        named = [key for key in keys if any(key in kind for kind in found)]
        raise Malformed("it has %s, which are keys of %d kinds of records; keep only the keys of one" % (
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
    """Returns record[field], a text, or None if the value is null. Raises Malformed if the key is missing."""
    if isinstance(record, Malformed):
        raise record
    text = record.get(field)
    if text is not None and not isinstance(text, str):
        raise Malformed('"%s" is not text; use --field' % field)
    if field not in record:
        raise Malformed(without_field([key for key, value in record.items() if value is not None], field))
    return text


def without_field(keys, field):
    """Returns the error message for a record without the key `field`, or a table without this column. keys: the keys or
    columns that exist."""
    found = kinds_in(keys)
    if found:
        return "it has %s; add --chat" % listed(list(found[0]))
    shown = keys[:SHOWN] + ["..."] * (len(keys) > SHOWN)
    return 'it has no "%s"%s; use --field' % (field, " but " + ", ".join(shown) if keys else "")
