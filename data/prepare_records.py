"""Records of prepare.py: a line of JSONL to a record, where it is, what is wrong with it, and the kinds of --chat."""
import json
import os
import re
import shlex

from prepare_tokenizers import Failure

READ = 1 << 20  # bytes at a time
HEAD = 1 << 16  # bytes that tell what a file is
SHOWN = 8  # keys of a record that fits nothing
# keys of a question and its answer, or of all of an example
KINDS = (("messages",), ("conversations",), ("instruction", "output"), ("prompt", "response"), ("query", "response"),
         ("input_ids",))
OTHERS = {"question": "prompt", "completion": "response", "answer": "response"}  # names of other programs


class Malformed(Exception):
    """What is wrong with a record."""


class Place:
    """Where a record is. Its line is counted when something is wrong with it."""

    def __init__(self, path, begin, number):
        self.path, self.begin, self.number = path, begin, number

    def __str__(self):
        lines = 1
        with open(self.path, "rb") as file:
            for left in range(self.begin, 0, -READ):
                lines += file.read(min(left, READ)).count(b"\n")
        return "%s, line %d" % (self.path, self.number + lines)


def to_utf8(path, encoding):
    return "iconv -f %s -t utf-8 %s >NEW%s" % (encoding, shlex.quote(path), os.path.splitext(path)[1])


def foreign_encoding(path):
    """What to do with a file in UTF-16 or UTF-32; None for any other."""
    with open(path, "rb") as file:
        found = json.detect_encoding(file.read(4))
    if found.startswith("utf-8"):
        return None
    name = re.sub("-(?=[bl]e$)", "", found).upper()  # iconv has no UTF-16-LE
    return "it is %s, not UTF-8: %s" % (name, to_utf8(path, name.lower()))


def check_file(path):
    """Ends the program where the file, not this line of it, is what is wrong."""
    reason = foreign_encoding(path)
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if reason is None and re.match(rb"(\xef\xbb\xbf)?\s*\[\s*([{\]]|$)", head):
        reason = "it is one JSON array, not a record per line: jq -c '.[]' %s >NEW.jsonl" % shlex.quote(path)
    if reason is not None:
        raise Failure("%s: %s" % (path, reason))


def parsed(line, path):
    """The JSON object of a line of bytes."""
    try:
        record = json.loads(line.decode("utf-8-sig", "surrogatepass"))  # an unpaired surrogate is no other encoding
        if isinstance(record, dict):
            return record
        reason = "it is no JSON object"
    except UnicodeDecodeError as error:
        reason = "it is not UTF-8 (byte 0x%02x in column %d): if it is Latin-1, %s" % (
            line[error.start], error.start + 1, to_utf8(path, "latin1"))
    except json.JSONDecodeError as error:
        reason = "it is not JSON (%s, column %d)" % (error.msg, error.colno)
        if line.strip() == b"{":
            reason += ": jq -c . %s >NEW.jsonl makes a line of each object" % shlex.quote(path)
    except (ValueError, RecursionError) as error:  # a number of too many digits, arrays in arrays
        reason = "it is not JSON (%s)" % error
    check_file(path)
    raise Malformed(reason)


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
    """The text of a record without --chat."""
    text = record.get(field)
    if isinstance(text, str):
        return text
    if text is not None:
        raise Malformed('"%s" is no text: use --field' % field)
    raise Malformed(without_field([key for key, value in record.items() if value is not None], field))


def without_field(keys, field):
    """What is said of a record or a table without this key or column."""
    found = kinds_in(keys)
    if found:
        return "it has %s: add --chat" % listed(list(found[0]))
    shown = keys[:SHOWN] + ["..."] * (len(keys) > SHOWN)
    return 'it has no "%s"%s: use --field' % (field, " but " + ", ".join(shown) if keys else "")
