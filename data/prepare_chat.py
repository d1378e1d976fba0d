"""prepare.py --chat: converts records of questions and answers, in JSONL or Parquet, to token files with a loss mask.

The keys of a record are one of these:
    messages                       a list of {role, content}
    conversations                  a list of {from, value} (ShareGPT)
    instruction, [input,] output   (Alpaca)
    prompt, response
    query, response
    input_ids, labels              lists of the same length; a token with label -100 has no loss. If a record has
                                   input_ids, its texts are ignored.
The key `image` or `images` of a record has one image or a list of images. An image is a path, or an object with the key
`bytes` or `path`.
Answers with weight 0 have no loss. Tokens whose `attention_mask` is 0 are dropped.
"""
import hashlib
import itertools
import json
import os
import sys

from prepare_images import MARK, Decoder, expanded, sources_of, with_marks
from prepare_inputs import records_of
from prepare_prompts import Fixed, Template, read_template, special_tokens
from prepare_records import Malformed, kind_of_record
from prepare_tokenizers import encode_each, pack, say, several, width_of

IGNORED = -100  # label of a token without a loss
LABELS = '"labels" is not a list as long as "input_ids"'
ENDLESS = ("the chat template ends answers without a special token that has a loss, so the model would not learn to "
           "stop; use a fixed --prompt-format, or a template whose answers end with a special token")
SPEAKERS = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant",
            "assistant": "assistant"}


def text_of(record, key):
    value = record[key]
    if not isinstance(value, str):
        raise Malformed('"%s" is not text' % key)
    return value


def turns_of(record):
    """Returns the messages of a ShareGPT record: the text of "system", if any, then the turns of "conversations"."""
    turns = record["conversations"]
    if not isinstance(turns, list) or not turns:
        raise Malformed('"conversations" is not a list of turns')
    messages = [{"role": "system", "content": text_of(record, "system")}] if record.get("system") else []
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise Malformed('a turn lacks a "value" that is text')
        speaker = turn.get("from")
        if not isinstance(speaker, str) or speaker not in SPEAKERS:
            raise Malformed('a turn has "from" %s, which must be one of %s' % (
                json.dumps(speaker)[:40], ", ".join(SPEAKERS)))
        messages.append({"role": SPEAKERS[speaker], "content": turn["value"]})
        if turn.get("weight") is not None:
            messages[-1]["weight"] = turn["weight"]
    return messages


def messages_of(record, kind, name, lists):
    """Returns the messages of a record, and True if it is an Alpaca record with an input. name: prompt format. lists:
    True if the content of a message may be a list of parts."""
    if kind == ("messages",):
        messages = record["messages"]
        if not isinstance(messages, list) or not messages:
            raise Malformed('"messages" is not a list of messages')
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise Malformed('a message lacks a "role"')
            if not isinstance(message.get("content"), (str, list) if lists else str) and (
                    name != "template" or "content" not in message):
                raise Malformed('a message lacks a "content" that is text')
        return messages, False
    if kind == ("conversations",):
        return turns_of(record), False
    user, answer = (text_of(record, key) for key in kind)
    given = (record.get("input") or "") if kind == ("instruction", "output") else ""
    if not isinstance(given, str):
        raise Malformed('"input" is not text')
    if given:
        user += "\n\n%s%s" % ("### Input:\n" if name == "alpaca" else "", given)
    return [{"role": "user", "content": user}, {"role": "assistant", "content": answer}], bool(given)


def answers_that_count(messages, trained):
    """Returns a list with True for each answer that has a loss. trained: "all": every answer; "answers": every answer
    except those with weight 0; "last": the last answer whose weight is not 0."""
    weights = [message.get("weight") for message in messages]
    wrong = next((weight for weight in weights if weight is not None and (
        isinstance(weight, bool) or weight not in (0, 1))), None)
    if wrong is not None:
        raise Malformed("the weight of a turn is %s, not 0 or 1" % json.dumps(wrong, default=str)[:40])
    counted = [trained == "all" or weight != 0 for message, weight in zip(messages, weights)
               if message["role"] == "assistant"]
    if trained == "last" and any(counted):
        last = len(counted) - 1 - counted[::-1].index(True)
        return [number == last for number in range(len(counted))]
    return counted


def identity_of(messages):
    """Returns bytes whose hash chooses an example's split. They depend on roles and contents alone, not on the kind of
    record."""
    return json.dumps([(message["role"], message["content"]) for message in messages], sort_keys=True,
                      default=str).encode()


def without_padding(ids, labels, kept):
    """Returns (ids, labels or None) without padding. kept: the record's attention_mask, 0 for padding, or None."""
    if kept is None:
        return ids, labels
    if not isinstance(kept, list) or len(kept) != len(ids) or not all(type(k) is int and k in (0, 1) for k in kept):
        raise Malformed('"attention_mask" is not a list of 0 and 1 as long as "input_ids"')
    if isinstance(labels, list) and len(labels) == len(ids):
        labels = list(itertools.compress(labels, kept))
    elif labels is not None:
        raise Malformed(LABELS)
    return list(itertools.compress(ids, kept)), labels


def labelled(record, vocab, trained):
    """Returns (ids, mask) of a record with input_ids. A token with a loss has 1 in the mask. vocab: number of
    tokens."""
    ids = record["input_ids"]
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise Malformed('"input_ids" is not a list of whole numbers')
    labels = None if trained == "all" else record.get("labels")
    ids, labels = without_padding(ids, labels, record.get("attention_mask"))
    beyond = next((token for token in ids if not 0 <= token < vocab), None)
    if beyond is not None:
        raise Malformed("token %d is outside the vocabulary of %d" % (beyond, vocab))
    if trained == "all":
        return ids, bytearray(b"\1" * len(ids))
    if not isinstance(labels, list) or len(labels) != len(ids):
        raise Malformed(LABELS)
    wrong = next((label for label, token in zip(labels, ids) if label not in (IGNORED, token)), IGNORED)
    if wrong != IGNORED:
        raise Malformed("a label is %s; it must be %d or the token itself" % (
            json.dumps(wrong, default=str)[:40], IGNORED))
    mask = bytearray(label != IGNORED for label in labels)
    if trained == "last":
        begin = mask.rfind(0, 0, mask.rfind(1) + 1) + 1  # first token of the last run of tokens with a loss
        mask[:begin] = bytes(begin)
    return ids, mask


def without_nulls(record):
    """Removes null fields, except "content", from the messages of a Parquet row, because Parquet gives every message
    all fields. Returns the row."""
    turns = record.get("messages")
    for message in filter(lambda m: isinstance(m, dict), turns if isinstance(turns, list) else ()):
        for key in [key for key, value in message.items() if value is None and key != "content"]:
            del message[key]
    return record


class Chat:
    """Makes examples from records, in one worker process. name: prompt format; images: an Images, or None without
    --image-processor."""

    def __init__(self, tokenizer, spec, name, trained, images, skipped):
        self.images, self.decode = images, None
        self.tokenizer, self.trained, self.skipped = tokenizer, trained, skipped
        # the prompt format is opened at first use, because records with input_ids do not need one
        self.spec, self.name, self.format = spec, name, None

    def parts(self, record, folder):
        """Returns (key, images, parts) of an example. key: bytes whose hash chooses the split; parts: the result of the
        prompt format's parts(), or (ids, mask) if the record has input_ids. folder: the folder that paths of images are
        relative to."""
        if isinstance(record, Malformed):
            raise record
        kind = kind_of_record(record)
        if kind == ("input_ids",):
            ids, mask = labelled(record, self.tokenizer.vocab, self.trained)
            return pack(ids, self.tokenizer.vocab), [], (ids, mask)
        if self.images is None and (record.get("image") or record.get("images")):
            raise Malformed("it has images; add --image-processor")
        sources = sources_of(record, folder)
        messages, has_input = messages_of(record, kind, self.name, self.images is not None)
        if self.images is not None:
            messages, lists = with_marks(messages, len(sources))
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        if not answers:
            raise Malformed("it has no answer")
        if not all(answer.strip() for answer in answers if isinstance(answer, str)):
            raise Malformed("its answer is empty")
        if self.format is None:
            template = self.name == "template"
            image = self.images and self.images.token
            self.format = (Template(self.tokenizer, self.spec, image is not None) if template else
                           Fixed(self.tokenizer, self.name, image))
            self.takes_parts = template and image is not None and self.format.takes_parts()
        counted = answers_that_count(messages, self.trained)
        identity = identity_of(messages)
        if self.takes_parts:
            messages = lists
        elif self.images is not None and self.name == "template":
            messages = [{**message, "content": message["content"].replace(MARK, self.images.name)} if isinstance(
                message["content"], str) else message for message in messages]
        made = self.format.parts(messages, counted, has_input, record.get("tools"))
        images = [self.decode(source) for source in sources]
        return identity + b"".join(digest for digest, _ in images), images, made

    def notes(self):
        """Returns {name: warning}: a warning if the chat template ended an answer without a special token, else {}."""
        return {"endless": ENDLESS} if self.format is not None and self.format.endless else {}

    def examples(self, pieces):
        """Returns [(key, tokens, mask, images), ...] of the examples of a unit, whose pieces are `pieces`. The hash of
        key chooses the split."""
        kept, rows, self.decode = [], [], Decoder(self.images)
        for piece in pieces:
            folder = self.images and self.images.folder or os.path.dirname(piece[1])
            for place, record in records_of(piece):
                try:
                    identity, images, made = self.parts(
                        without_nulls(record) if piece[0] == "parquet" else record, folder)
                except Malformed as error:
                    self.skipped.wrong(place, error)
                    continue
                except RecursionError:
                    self.skipped.wrong(place, "its values are nested too deeply")
                    continue
                tokens = isinstance(made, tuple)
                kept.append((place, identity, images, made if tokens else None))
                if not tokens:
                    rows.append(made)
        places = [place for place, _, _, made in kept if made is None]
        encoded = iter(encode_each(self.format.encode, rows, places) if rows else ())
        examples = []
        for place, identity, images, made in kept:
            tokens, mask = (identity, made[1]) if made else next(encoded)
            if self.trained == "all":
                mask = bytearray(b"\1" * len(mask))
            mask[:1] = bytes(len(mask[:1]))  # masks the first token, which no token predicts
            if self.images is not None:
                tokens, mask, count = expanded(tokens, mask, self.images, width_of(self.tokenizer.vocab))
                if count != len(images):
                    self.skipped.wrong(place, "its tokens have %d placeholders of images, but it has %d images"
                                       % (count, len(images)))
                    continue
            if any(mask):
                examples.append((identity, bytes(tokens), bytes(mask), images))
            else:
                self.skipped.wrong(place, "none of its %d tokens has a loss" % len(mask))
        return examples


def chat_settings(options, images):
    """Returns the manifest's record of all settings that change the examples of --chat."""
    path, _, text, config = read_template(options.tokenizer) if options.prompt_format == "template" else (None,) * 4
    template = json.dumps([text, special_tokens(path, config)]) if path else ""
    return {"field": None, "prompt_format": options.prompt_format, "trained": options.trained,
            "template": hashlib.sha256(template.encode()).hexdigest(), **({"images": list(images)} if images else {})}


def describe(splits, skipped):
    """Prints the numbers of images, examples and skipped records, and the percentage of tokens with a loss."""
    shards = [shard for split in splits for shard in split.finished]
    tokens, counted, examples = (sum(shard[key] for shard in shards) for key in ("tokens", "counted", "examples"))
    longest = max((shard["longest"] for shard in shards), default=0)
    images, places = (sum(shard.get(key, 0) for shard in shards) for key in ("images", "places"))
    if places:
        say("%s, shown in %s" % (several(images, "image"), several(places, "place")), sys.stdout)
    left_out = "; %s %s skipped" % (several(skipped, "malformed record"), "was" if skipped == 1 else "were")
    say("%s, the longest of %s; %.3g %% of all tokens have a loss%s"
        % (several(examples, "example"), several(longest, "token"), 100 * counted / max(1, tokens),
           left_out if skipped else ""), sys.stdout)
