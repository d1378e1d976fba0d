#!/usr/bin/env python3
"""Converts text to token files for train_gpt2_fp8: local text, JSON and Parquet files, or public data sets by name.

    data/prepare.py --out data/tokens/shakespeare tinyshakespeare
    data/prepare.py --out data/tokens/mine --tokenizer FOLDER notes/ 'logs/*.jsonl' more.parquet
    data/prepare.py --out data/tokens/mine --bytes notes/
    data/prepare.py --out data/tokens/hellaswag_val --hellaswag hellaswag_val.jsonl
    data/prepare.py --out data/tokens/chat --tokenizer FOLDER --chat chat.jsonl
    data/prepare.py --out data/tokens/vision --tokenizer FOLDER --chat --image-processor FOLDER llava.json
    data/prepare.py --out picture --tokenizer FOLDER --image-processor FOLDER picture.png

Writes OUT_train_000000.bin, ..., OUT_val_000000.bin, ... in llm.c's format (uint16, or uint32 for a vocabulary of more
than 65536 tokens) and OUT_manifest.json. Documents get the BOS and EOS tokens of the tokenizer's family. The program
prints these tokens and records them in the manifest; with GPT-2, the end-of-text token precedes each document. After an
interruption, the same command verifies the checksums of the finished files and continues. With --chat, the inputs are
records of questions and answers, and the token files contain a loss mask.

A document is a text file, a record of JSON or Parquet, or the text between two <|endoftext|>. The hash of a
document decides whether all of it is for validation. If there are too few documents for --val-fraction, the end of each
document is for validation. Examples of --chat are never divided; the hash of their messages or tokens decides.
"""
import argparse
import collections
import glob
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading

from prepare_chat import Chat, chat_settings, describe
from prepare_files import contents, readers
from prepare_hellaswag import make_hellaswag
from prepare_images import ASPECTS, Images, make_images, read_processor
from prepare_inputs import (SETS, check_unchanged, documents_in, documents_of, file_hash, local_inputs, named_inputs,
                            units)
from prepare_output import ExampleSplit, Progress, Split, locked, nothing, read_manifest, verified
from prepare_prompts import FORMATS
from prepare_records import DESCRIBED, Skipped, to_utf8
from prepare_splits import BY_HASH, parts_of, rule_of
from prepare_tokenizers import (COMMAND, NAME, Bytes, Failure, Pairs, encode_each, first_line, open_tokenizer, say,
                                several, width_of, write_atomically)

VERSION = 2  # increased when the order or the split of documents changes; a run of another version is not continued
MUCH_VAL = 0.2  # a note is printed if more than this fraction of the tokens is held out for validation
# {flag: default} of the flags that need --chat, and of those that need --image-processor
OF_CHAT = {"--prompt-format": "template", "--trained": "answers"}
OF_IMAGES = {"--image-folder": None, "--image-aspect": "processor", "--image-token": None}

# --- work ---------------------------------------------------------------------------------------------------

worker = None  # this worker process's (tokenizer, --field, validation rule, --val-fraction, Chat or None, Skipped)


def start_worker(spec, field, rule, fraction, chat, skip_malformed):
    global worker
    tokenizer, skipped = open_tokenizer(spec), Skipped(skip_malformed)
    worker = (tokenizer, field, rule, fraction, chat and Chat(tokenizer, spec, *chat, skipped), skipped)
    readers.clear()


def end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def start_process(*initial):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers ignore Ctrl-C; the parent process ends the workers
    threading.Thread(target=end_with_parent, daemon=True).start()  # ends this worker if the parent is killed
    start_worker(*initial)


def is_val(document, fraction):
    return int.from_bytes(hashlib.blake2b(document, digest_size=8).digest(), "little") < fraction * 2.0**64


def work_examples(number, pieces, wanted, chat, fraction):
    """Tokenizes unit `number`, whose pieces contain chat records. Returns (number, {split: [(tokens, mask, images),
    ...]}, descriptions of skipped records, {name: warning}). wanted: names of the splits to return."""
    out = {split: [] for split in wanted}
    for identity, tokens, mask, images in chat.examples(pieces):
        split = "val" if is_val(identity, fraction) else "train"
        if split in wanted:
            out[split].append((tokens, mask, images))
    return number, out, chat.skipped.take(), chat.notes()


def not_utf8(text, path):
    """Returns {path: warning} if a text of this file is not UTF-8, else {}."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return {path: "%s is not UTF-8 (byte 0x%02x), so some of its characters are lost; if it is Latin-1, run %s"
                      % (path, text[error.start], to_utf8(path, "latin1"))}
    return {}


def work(job):
    """Tokenizes a unit. job: (number of the unit, pieces of the unit, names of the splits whose files still lack the
    unit). Returns (number, {split: bytes of the unit's tokens}, descriptions of skipped records, {path: warning})."""
    number, pieces, wanted = job
    tokenizer, field, rule, fraction, chat, skipped = worker
    if chat:
        return work_examples(number, pieces, wanted, chat, fraction)
    texts, places, splits, ends, notes = [], [], [], [], {}
    for piece in pieces:
        kind, path, begin, end, split, start, last = piece
        if kind != "text":
            documents = list(documents_of(piece, field, skipped))
        elif split in wanted:
            documents = [(path, contents(path, begin, end))]
        else:
            continue
        if kind in ("text", "documents") and not isinstance(tokenizer, Bytes):
            for _, document in documents:
                notes.update(not_utf8(document, path))
        for place, document in documents:
            for part, text in [(split, document)] if split else parts_of(document, rule, fraction):
                if part in wanted:
                    texts.append((text, not start))
                    places.append(place)
                    splits.append(part)
                    ends.append(last)
    width = width_of(tokenizer.vocab)
    before = b"".join(token.to_bytes(width, "little") for token in tokenizer.before)
    after = b"".join(token.to_bytes(width, "little") for token in tokenizer.after)
    out = {split: [] for split in wanted}
    rows = encode_each(lambda rows: tokenizer.encode([text for text, _ in rows], [flag for _, flag in rows]), texts,
                       places)
    for tokens, (_, continued), split, last in zip(rows, texts, splits, ends):
        out[split] += [b"" if continued else before, tokens, after if last else b""]
    return number, {split: b"".join(parts) for split, parts in out.items()}, skipped.take(), notes


def run_jobs(jobs, workers, initial):
    """Yields work(job) for every job, in order. `workers` processes run the jobs; at most 4 * workers jobs are queued
    or running."""
    if workers == 1:
        start_worker(*initial)
        for job in jobs:
            yield work(job)
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    with ProcessPoolExecutor(workers, initializer=start_process, initargs=initial) as pool:
        waiting = collections.deque()
        try:
            for job in jobs:
                waiting.append(pool.submit(work, job))
                if len(waiting) >= 4 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise Failure("a worker process was killed, perhaps because memory ran out; start again with fewer "
                          "--workers")
        finally:
            for future in waiting:
                future.cancel()


# --- the run -------------------------------------------------------------------------------------------------


def tokenize(options, inputs, tokenizer):
    spec = options.tokenizer
    path, identities = Pairs.find(spec), json.dumps([[made.kind, made.identity] for made in inputs])
    settings = {"version": VERSION, "inputs": hashlib.sha256(identities.encode()).hexdigest(),
                "tokenizer": file_hash(path) if path else spec, "vocab": tokenizer.vocab, "field": options.field,
                "val_fraction": options.val_fraction, "shard_tokens": options.shard_tokens,
                "skip_malformed": options.skip_malformed}
    if options.chat:
        images = read_processor(options, tokenizer) if options.image_processor is not None else None
        settings.update(chat_settings(options, images))
    if tokenizer.strict:  # the token files also depend on which tokens surround documents
        settings["documents"] = tokenizer.rule
    manifest = options.out + "_manifest.json"
    shards, skipped, complete = nothing() if options.overwrite else read_manifest(manifest, options.out, settings)
    kept = {name: verified(options.out, shards[name]) for name in ("train", "val")}
    complete = complete and all(len(kept[name]) == len(shards[name]) for name in kept)
    kind = ExampleSplit if options.chat else Split
    splits = {name: kind(name, options.out, settings, kept[name]) for name in ("train", "val")}
    rule = "prompt format %s" % options.prompt_format if options.chat else tokenizer.rule
    width = 8 * width_of(tokenizer.vocab)
    say("tokenizer %s: %s tokens, uint%d; %s" % (spec, format(tokenizer.vocab, ","), width, rule), sys.stdout)
    if not complete:
        try:
            places = tokenizer.places if tokenizer.strict else None
            skipped = make(options, inputs, settings, manifest, splits, skipped, rule, places)
        except (Failure, OSError):
            left = ["%s_%s_*.bin" % (options.out, name) for name, split in splits.items() if split.finished]
            if left:
                say("note: %s are not complete; run the same command again %s" % (" and ".join(left), (
                    "without --overwrite to continue" if options.overwrite else
                    "to continue, or use --overwrite if inputs or flags have changed")))
            raise
    what = ["%s in %s" % (several(split.tokens(), kind + " token"), several(len(split.finished), "file"))
            for kind, split in (("training", splits["train"]), ("validation", splits["val"]))]
    left_out = sum(skipped.values())
    if left_out and not options.chat:
        what.append("%s skipped" % several(left_out, "record"))
    say("%s: %s%s" % (options.out, ", ".join(what), " (already complete)" if complete else ""), sys.stdout)
    if options.chat:
        describe(splits.values(), left_out)
    share = splits["val"].tokens() / max(1, splits["train"].tokens() + splits["val"].tokens())
    if share > MUCH_VAL:
        why = (", as --val-fraction asks" if share <= 1.1 * options.val_fraction else ", as %s are not divided; name "
               "more of them, or use a smaller --val-fraction" % ("examples" if options.chat else "documents"))
        say("note: %.0f %% of the text is held out for validation%s" % (100 * share, why))
    if options.val_fraction > 0 and not splits["val"].finished:
        say("no %s was chosen for validation; use a larger --val-fraction, or train without --val"
            % ("example" if options.chat else "document"))


def make(options, inputs, settings, manifest, splits, skipped, rule, places):
    """Writes the missing token files. Returns {unit: number of skipped records}. skipped: this dictionary as an
    earlier, interrupted run recorded it."""
    def save(complete):
        record = {"settings": settings, "documents": rule, "complete": complete, "skipped": skipped,
                  "shards": {n: s.finished for n, s in splits.items()}}
        write_atomically(manifest, (json.dumps(record, indent=1) + "\n").encode())

    present = [path for name in splits for end in ("bin", "images")
               for path in glob.glob("%s_%s_??????.%s" % (glob.escape(options.out), name, end))]
    if options.overwrite:
        for path in present:
            os.remove(path)
    elif present and not os.path.exists(manifest):
        raise Failure("%s: exists, but %s does not; use another --out, or --overwrite" % (present[0], manifest))
    field = None if options.chat else options.field
    held_out = BY_HASH if options.chat else rule_of(documents_in(inputs, field), options.val_fraction)
    plan = list(units(inputs, held_out, options.val_fraction, field, places, "images" in settings))
    progress = Progress(sum(weight for _, weight in plan))

    def jobs():
        for number, (pieces, weight) in enumerate(plan):
            wanted = [name for name, split in splits.items() if number >= first[name]]
            if wanted:
                yield number, pieces, wanted
            else:  # finished files already contain this unit
                progress.add(weight)

    first = {name: split.unit for name, split in splits.items()}
    if max(first.values()) > len(plan):
        raise Failure("%s: does not match the inputs; use --overwrite to start again" % manifest)
    skipped = {unit: count for unit, count in skipped.items() if int(unit) < min(first.values())}
    save(False)
    shown = 0
    images = Images(*settings["images"]) if "images" in settings else None
    chat = (options.prompt_format, options.trained, images) if options.chat else None
    initial = (options.tokenizer, options.field, held_out, options.val_fraction, chat, options.skip_malformed)
    noted = set()
    for number, tokens, records, notes in run_jobs(jobs(), options.workers, initial):
        for record in records[:max(0, DESCRIBED - shown)]:
            say("skipped: " + record)
        shown += len(records)
        if records:
            skipped[str(number)] = len(records)
        for path in sorted(notes.keys() - noted):
            if len(noted) < DESCRIBED:
                say("note: " + notes[path])
            noted.add(path)
        wrote = [splits[name].add(number, part) for name, part in tokens.items()]
        if any(wrote):
            save(False)
        progress.add(plan[number][1])
    check_unchanged(inputs)
    for split in splits.values():
        if split.waiting:
            split.write(len(plan), 0)
    if len(noted) > DESCRIBED:
        say("note: %s files in total are not UTF-8" % format(len(noted), ","))
    if not any(split.finished for split in splits.values()):
        os.remove(manifest)
        raise Failure("no %s left in %s%s" % ("examples" if options.chat else "text", ", ".join(options.inputs),
                                              " (%s skipped)" % format(shown, ",") if shown or options.chat else ""))
    made = {"%s_%s_%06d" % (options.out, name, i) for name, split in splits.items() for i in range(len(split.finished))}
    for path in present:  # removes files of an earlier run that are not in the new manifest
        if os.path.splitext(path)[0] not in made and os.path.exists(path):
            os.remove(path)
    save(True)
    progress.close()
    return skipped


# --- the program --------------------------------------------------------------------------------------------

def number(text):
    """Returns the number written as 100M, 64k or 1000."""
    scale = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}.get(text[-1:].lower(), 1)
    value = float(text[:-1] if scale > 1 else text) * scale
    if not 1 <= value < 2**31:
        raise ValueError
    return int(value)


def fraction(text):
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError("%s: must be a fraction of at least 0 and below 1" % text)
    return value


def output(text):
    if os.path.basename(text) in ("", ".", ".."):
        raise argparse.ArgumentTypeError("%s: must end in a name, such as %s"
                                         % (text, os.path.join(text, "mine")))
    return text


def parse(arguments):
    class Parser(argparse.ArgumentParser):
        def error(self, message):
            raise Failure(message, 1)

    parser = Parser(prog=NAME, description=__doc__.replace("data/prepare.py", COMMAND),
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", metavar="INPUT",
                        help="input files, folders or patterns, or one public data set: %s" % ", ".join(SETS))
    parser.add_argument("--out", required=True, type=output, help="path of the output files without _train_000000.bin")
    parser.add_argument("--tokenizer", help="folder or file of the tokenizer: tokenizer.json, "
                        "tokenizer.model, GPT-2's encoder.json with vocab.bpe, or vocab.json with merges.txt (default "
                        "gpt2: downloaded once)")
    parser.add_argument("--bytes", action="store_true", help="write byte-level tokens (token = byte, 256 = end of "
                        "text), without a tokenizer")
    parser.add_argument("--hellaswag", action="store_true", help="convert HellaSwag's JSONL file to OUT.bin, for "
                        "the trainer's --hellaswag")
    parser.add_argument("--chat", action="store_true", help="write examples with a loss mask from JSON or Parquet "
                        "records of messages, instruction and output, prompt or query and response, or input_ids and "
                        "labels")
    parser.add_argument("--prompt-format", choices=["template", *FORMATS],
                        help="with --chat: format that turns messages into text (default template: the chat template "
                        "in the tokenizer's folder)")
    parser.add_argument("--trained", choices=["answers", "last", "all"],
                        help="with --chat: tokens that have a loss; answers: those of all answers (default); last: "
                        "those of the last answer; all: all tokens")
    parser.add_argument("--image-processor", metavar="FOLDER", help="prepare images with the settings of this model "
                        "folder's image processor: with --chat the images of the records; otherwise the inputs, as "
                        "OUT.images for the trainer's --image")
    parser.add_argument("--image-folder", metavar="DIR", help="folder that the paths of images are relative to "
                        "(default: that of each input file)")
    parser.add_argument("--image-aspect", choices=ASPECTS, help="how images become square; processor: as the "
                        "processor's settings say (default); pad: pad with the mean color first; resize: distort")
    parser.add_argument("--image-token", metavar="NAME|ID", help="placeholder token of images (default: the image "
                        "processor's image_token or <image>, if the tokenizer has it; else the image token of "
                        "config.json in --image-processor, else the id after the tokenizer's last; 255 with --bytes)")
    parser.add_argument("--skip-malformed", action="store_true", help="skip and count malformed records "
                        "(default: the first one is an error)")
    parser.add_argument("--field", help="key or column with the text of a record (default text)")
    parser.add_argument("--val-fraction", type=fraction, default=0.01,
                        help="fraction of the text for validation (default 0.01)")
    parser.add_argument("--shard-tokens", type=number, default=10**8, help="tokens per file (default 100M)")
    parser.add_argument("--workers", type=number, default=os.cpu_count() or 1,
                        help="number of worker processes (default: one per core)")
    parser.add_argument("--sample", default="10BT", help="sample of fineweb or fineweb-edu (default 10BT)")
    parser.add_argument("--cache", default=os.path.join(os.path.expanduser("~"), ".cache", "train_gpt2_fp8"),
                        help="folder of downloaded texts (default ~/.cache/train_gpt2_fp8)")
    parser.add_argument("--overwrite", action="store_true",
                        help="replace the output of an earlier run instead of continuing it")
    options = parser.parse_args(arguments)
    for flags, needed, given in ((OF_CHAT, "--chat", options.chat),
                                 (OF_IMAGES, "--image-processor", options.image_processor is not None)):
        for flag, default in flags.items():
            name = flag[2:].replace("-", "_")
            if getattr(options, name) is None:
                setattr(options, name, default)
            elif not given:
                raise Failure("%s: needs %s; add %s, or remove it" % (flag, needed, needed), 1)
    if options.prompt_format == "caption" and options.image_processor is None:
        raise Failure("--prompt-format caption: needs --image-processor; add it, or use another format", 1)
    if options.field is not None and options.chat:
        raise Failure("--field: has no effect with --chat, whose records have fixed keys; remove it", 1)
    for flag in ("--chat", "--image-processor", "--field", "--skip-malformed") if options.hellaswag else ():
        if getattr(options, flag[2:].replace("-", "_")):
            raise Failure("%s: has no effect with --hellaswag; remove it" % flag, 1)
    options.field = options.field or "text"
    if options.bytes and options.tokenizer is not None:
        raise Failure("--tokenizer %s: has no effect with --bytes; remove one of them" % options.tokenizer, 1)
    options.tokenizer = "bytes" if options.bytes else options.tokenizer or "gpt2"
    return options


def main(arguments):
    try:
        options = parse(arguments)
        if options.hellaswag:
            make_hellaswag(options.inputs, options.out, options.tokenizer)
            return 0
        if options.image_processor is not None and not options.chat:
            make_images(options, open_tokenizer(options.tokenizer))
            return 0
        named = [name for name in options.inputs if name in SETS and not os.path.exists(name) and not options.chat]
        if named and len(options.inputs) > 1:
            raise Failure("a public data set cannot be combined with other inputs: %s" % named[0], 1)
        if named:
            inputs = named_inputs(named[0], options.sample, options.cache)
        else:
            inputs = local_inputs(options.inputs, None if options.chat else options.field)
        tokenizer = open_tokenizer(options.tokenizer)  # in this process, too, so that its errors are reported once
        with locked(options.out):
            tokenize(options, inputs, tokenizer)
        return 0
    except Failure as failure:
        say("%s: %s" % (NAME, failure))
        return failure.code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        say("%s: stopped before the files were complete; start the same command%s again to continue" % (
            NAME, " without --overwrite" if "--overwrite" in arguments else ""))
        return 130
    except MemoryError:
        say("%s: out of memory; use fewer --workers" % NAME)
    except OSError as error:  # an input disappeared, or a disk failed
        say("%s: %s" % (NAME, "%s: %s" % (error.filename, error.strerror) if error.filename else error))
    except Exception as error:
        say("%s: internal error: %s (%s)" % (NAME, first_line(error), type(error).__name__))
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
