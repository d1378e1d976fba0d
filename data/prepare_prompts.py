"""Prompt formats of prepare.py --chat: convert messages to the parts of an example, some of which have a loss.

A fixed format yields parts (text or token id, True if the part has a loss). Parts are encoded one by one, because at
inference the prompt is encoded before the answer exists. The name of a special token in a message is ordinary text.
A model's chat template is rendered to one text, which is encoded as a whole, as in transformers. There, the name of a
special token in a message becomes the token.
"""
import contextlib
import datetime
import json
import os
import re
import signal

from prepare_images import MARK as IMAGE
from prepare_models import config_beside, read_json, token_text
from prepare_records import Malformed
from prepare_tokenizers import MAX_PART, Failure, Pairs, first_line, need, no_pointer, pack, width_of

MAX_SECONDS = 10  # limit of CPU time for parsing a chat template, and for each rendering
# Special tokens of transformers' tokenizer classes, unless a file of the model names other tokens.
END = "<|endoftext|>"
GPT2 = {"bos_token": END, "eos_token": END, "unk_token": END}
LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
QWEN2 = {"eos_token": END, "unk_token": END, "pad_token": END}
CLASS_TOKENS = {
    "GPT2Tokenizer": GPT2, "GPTNeoXTokenizer": {**GPT2, "pad_token": "<|padding|>"}, "LlamaTokenizer": LLAMA,
    "CodeLlamaTokenizer": LLAMA, "Qwen2Tokenizer": QWEN2, "Qwen3_5Tokenizer": QWEN2,
    "GemmaTokenizer": {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
                       "mask_token": "<mask>"},
    "CohereTokenizer": {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "unk_token": "<UNK>",
                        "pad_token": "<PAD>", "cls_token": "<CLS>", "sep_token": "<SEP>", "mask_token": "<MASK_TOKEN>"}}

ALPACA = "Below is an instruction that describes a task%s. Write a response that appropriately completes the request."
ALPACA_INPUT = ", paired with an input that provides further context"
VICUNA = ("A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
          "detailed, and polite answers to the user's questions.")
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


def alternating(messages):
    """Returns (text of the system message or None, [(user, answer), ...]). Raises Malformed if user and assistant do
    not alternate."""
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
    turns = messages[system is not None:]
    if [turn["role"] for turn in turns] != ["user", "assistant"] * (len(turns) // 2):
        raise Malformed("user and assistant messages do not alternate, which this prompt format requires")
    return system, [(a["content"], b["content"]) for a, b in zip(turns[::2], turns[1::2])]


def alpaca(messages, ids, has_input):
    system, turns = alternating(messages)
    before = (system or ALPACA % (ALPACA_INPUT if has_input else "")) + "\n\n"
    for user, answer in turns:
        yield "%s### Instruction:\n%s\n\n### Response:\n" % (before, user), False
        yield answer, True
        yield ids["end"], True
        before = ""


def plain(messages, ids, _):
    for message in messages:
        counts = message["role"] == "assistant"
        yield message["content"], counts
        if counts:
            yield ids["end"], True


def chatml(messages, ids, _):
    for message in messages:
        counts = message["role"] == "assistant"
        yield ids["<|im_start|>"], False
        yield message["role"] + "\n", False
        yield message["content"], counts
        yield ids["<|im_end|>"], counts
        yield "\n", False


def qwen(messages, ids, _):
    default = [] if messages[0]["role"] == "system" else [{"role": "system", "content": QWEN}]
    return chatml(default + messages, ids, _)


def llama2(messages, ids, _):
    system, turns = alternating(messages)
    before = "<<SYS>>\n%s\n<</SYS>>\n\n" % system if system is not None else ""
    for number, (user, answer) in enumerate(turns):
        if number and ids["begin"] is not None:  # Fixed.parts() adds the BOS token of the first turn in every format
            yield ids["begin"], False
        yield "[INST] %s%s [/INST]" % (before, user.strip()), False
        yield " %s " % answer.strip(), True
        yield ids["end"], True
        before = ""


def llama3(messages, ids, _):
    for message in messages:
        counts = message["role"] == "assistant"
        yield ids["<|start_header_id|>"], False
        yield message["role"], False
        yield ids["<|end_header_id|>"], False
        yield "\n\n", False
        yield message["content"].strip(), counts
        yield ids["<|eot_id|>"], counts


def vicuna(messages, ids, _):
    system, turns = alternating(messages)
    before = (system or VICUNA) + " "
    for user, answer in turns:
        yield "%sUSER: %s ASSISTANT:" % (before, user), False
        yield " " + answer, True
        yield ids["end"], True
        before = ""


def caption(messages, ids, _):
    """Yields, for each turn, the images of the question without the question's text, then the answer and EOS."""
    for user, answer in alternating(messages)[1]:
        if IMAGE in user:
            yield IMAGE * user.count(IMAGE), False
        yield answer, True
        yield ids["end"], True


# A file stores the number of its format, counted from 1. The first six have the numbers of PromptFormat in
# coat/config/config.h; coat/text/prompt_format.c has their prompts and chat templates. The trainer lacks the others.
FORMATS = {"plain": plain, "alpaca": alpaca, "chatml": chatml, "qwen": qwen, "llama2": llama2, "llama3": llama3,
           "vicuna": vicuna, "caption": caption}
IM = ("<|im_start|>", "<|im_end|>")
TOKENS = {"chatml": IM, "qwen": IM, "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")}


def check_messages(messages):
    for message in messages:
        if message["role"] not in ("system", "user", "assistant"):
            raise Malformed('role "%s" is not one of system, user, assistant' % message["role"])


class Fixed:
    """Applies a fixed prompt format. image: id of the token that replaces <image>; None: <image> stays text."""

    endless = False

    def __init__(self, tokenizer, name, image=None):
        self.tokenizer, self.name, self.image = tokenizer, name, image
        self.ids = {"begin": next(iter(tokenizer.bos), None), "end": tokenizer.end_of_text}
        for token in TOKENS.get(name, ()):
            self.ids[token] = tokenizer.token(token)
            if self.ids[token] is None:
                raise Failure("--prompt-format %s: the tokenizer has no %s; name the format of its model, or alpaca or "
                              "plain" % (name, token))

    def with_images(self, parts):
        """Yields the parts after replacing <image> by the placeholder token, which has no loss."""
        for value, counts in parts:
            first, *more = value.split(IMAGE) if self.image is not None and isinstance(value, str) else [value]
            if first or not more:
                yield first, counts
            for text in more:
                yield self.image, False
                if text:
                    yield text, counts

    def parts(self, messages, counted, has_input, _=None):
        """Returns [(text or token id, True if the part has a loss), ...]. counted: for each answer, True if it has a
        loss."""
        check_messages(messages)
        parts = [] if self.ids["begin"] is None else [(self.ids["begin"], False)]
        for value, counts in self.with_images(FORMATS[self.name](messages, self.ids, has_input)):
            if isinstance(value, str) and isinstance(parts[-1][0] if parts else None, str) and parts[-1][1] == counts:
                parts[-1] = (parts[-1][0] + value, counts)
            else:
                parts.append((value, counts))
        answers = iter(counted)
        answer = next(answers)
        for at, (value, counts) in enumerate(parts):
            if counts:
                parts[at] = (value, answer)
                if not isinstance(value, str):  # the token that ends the answer
                    answer = next(answers, None)
        return parts

    def encode(self, rows):
        """Yields (tokens as bytes, mask with a byte per token) for each example. rows: the parts of each example."""
        texts, continued = [], []
        for parts in rows:
            before = None
            for value, _ in parts:
                if isinstance(value, str):
                    texts.append(value.encode("utf-8", errors="replace"))
                    continued.append(isinstance(before, str))
                before = value
        encoded = iter(self.tokenizer.encode(texts, continued))
        width = width_of(self.tokenizer.vocab)
        for parts in rows:
            tokens, mask = bytearray(), bytearray()
            for value, counts in parts:
                part = next(encoded) if isinstance(value, str) else value.to_bytes(width, "little")
                tokens += part
                mask += bytes((counts,)) * (len(part) // width)
            yield tokens, mask


def read_template(spec):
    """Returns (path of the tokenizer, path of the file with the chat template, text of the template or None, parsed
    tokenizer_config.json)."""
    path = Pairs.find(spec)
    if path is None:
        return None, None, None, {}
    source, config = os.path.join(os.path.dirname(path), "tokenizer_config.json"), config_beside(path)
    text = config.get("chat_template")
    if isinstance(text, list):  # a list of named templates
        text = {entry.get("name"): entry.get("template") for entry in text if isinstance(entry, dict)}
    text = text.get("default") if isinstance(text, dict) else text
    own = os.path.join(os.path.dirname(path), "chat_template.jinja")
    if os.path.exists(own):
        source = own
        try:
            with open(no_pointer(own), encoding="utf-8") as file:
                text = file.read()
        except ValueError as error:
            raise Failure("the chat template %s is not UTF-8 (%s)" % (own, first_line(error)))
    return path, source, text, config


MARK = "\ufdd0\ufdd1"  # noncharacters of Unicode, which do not occur in text


def special_tokens(path, config):
    """Returns (variables, tokens) as transformers reads them from a folder. variables: {name: text} of special tokens
    that a chat template uses by name, such as bos_token. tokens: texts, or dictionaries of text and flags, of all
    special tokens."""
    name = str(config.get("tokenizer_class")).replace("Fast", "")
    if name == "LlamaTokenizer" and "ByteLevel" in json.dumps(read_json(path, "tokenizer.json").get("pre_tokenizer")):
        name = None  # transformers ignores the class that Llama-3's configuration names
    named, extra, files = dict(CLASS_TOKENS.get(name, {})), [], [config]
    own = os.path.join(os.path.dirname(path), "special_tokens_map.json")
    if "added_tokens_decoder" not in config and os.path.exists(own):  # otherwise transformers ignores this file
        files.append(read_json(own, "special_tokens_map.json"))
    for entries in files:
        named.update((key, value) for key, value in entries.items() if key.endswith("_token"))
        more = entries.get("extra_special_tokens") or not extra and entries.get("additional_special_tokens") or []
        named.update(more if isinstance(more, dict) else {})
        extra += more if isinstance(more, list) else []
    decoder = config.get("added_tokens_decoder")
    tokens = [*named.values(), *extra, *(decoder.values() if isinstance(decoder, dict) else ())]
    named = {key: token_text(value) for key, value in named.items()}
    return {key: text for key, text in named.items() if text is not None}, [t for t in tokens if token_text(t)]


@contextlib.contextmanager
def time_limit():
    """Raises Overtime in the body after MAX_SECONDS of this process's CPU time."""
    def stop(*_):
        raise Overtime("it takes more than %g s" % MAX_SECONDS)

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Overtime(BaseException):
    """Raised at the time limit. It does not derive from Exception, because Jinja2 would catch an Exception."""


class Template:
    """Applies the chat template of a tokenizer's folder. Runs the template in Jinja2's sandbox, with the functions that
    transformers provides. images: True to put BOS before a text unless the template writes BOS, as transformers'
    processors of images do."""

    def __init__(self, tokenizer, spec, images=False):
        path, self.source, text, config = read_template(spec)
        if not isinstance(text, str):
            raise Failure("--prompt-format template: tokenizer %s has no chat template (chat_template in "
                          "tokenizer_config.json, or chat_template.jinja); name a format" % spec)
        if not hasattr(tokenizer, "tokenizer") or not path.endswith(".json"):
            raise Failure("--prompt-format template: it needs the model's tokenizer.json")
        self.tokenizer, self.path, self.bos = tokenizer, path, tokenizer.bos if images else []
        self.variables, tokens = special_tokens(path, config)
        self.missing = {token_text(token) for token in tokens if tokenizer.token(token_text(token)) is None}
        tokenizer.add_special([token for token in tokens if token_text(token) not in self.missing])
        self.compile(text)
        added = tokenizer.tokenizer.get_added_tokens_decoder()
        self.ends = {token for token in added if added[token].content.strip()} | {tokenizer.end_of_text}
        self.endless = False  # True if, in any example, the last token with a loss was not a special token
        tokenizer.tokenizer.encode_special_tokens = False  # the template writes special tokens by name
        # does nothing; the tokenizer's own post_processor may shorten the offsets of tokens that begin or end in spaces
        tokenizer.tokenizer.post_processor = need("tokenizers").processors.TemplateProcessing(single="$A")

    def compile(self, text):
        jinja2 = need("jinja2")
        # Templates are untrusted code, and code can escape from the sandboxes of older versions.
        if [int(part) for part in re.findall(r"\d+", jinja2.__version__)] < [3, 1, 6]:
            raise Failure("the Python package jinja2 is version %s, whose sandbox is not safe; run: pip install "
                          "'jinja2>=3.1.6'" % jinja2.__version__)
        sandbox, extensions = need("jinja2.sandbox", "jinja2"), need("jinja2.ext", "jinja2")

        class Generation(extensions.Extension):
            """Handles {% generation %}, which encloses the model's answers: puts MARK before and after each answer,
            where parts() divides the text."""

            tags = {"generation"}

            def parse(self, parser):
                line = next(parser.stream).lineno
                body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
                return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

            def mark(self, caller):
                return MARK + caller() + MARK

        def raise_exception(message):
            raise jinja2.exceptions.TemplateError(message)

        def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                              sort_keys=sort_keys)

        def strftime_now(form):
            return datetime.datetime.now().strftime(form)

        environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                            extensions=[Generation, extensions.loopcontrols])
        environment.filters["tojson"] = tojson
        environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
        self.marks = re.search(r"\{%-?\s*generation\s*-?%\}", text) is not None
        try:
            with time_limit():
                self.template = environment.from_string(text)
        except (Exception, Overtime) as error:
            raise Failure("the chat template %s cannot be parsed by Jinja2 (%s)" % (self.source, first_line(error)))

    def render(self, messages, tools, prompt=False):
        try:
            with time_limit():
                return self.template.render(messages=messages, tools=tools, documents=None,
                                            add_generation_prompt=prompt, **self.variables)
        except (Exception, Overtime) as error:  # the template's code raised an error for this record
            lost = re.match(r"'(\w+_token)' is undefined", str(error))
            if lost:
                raise Failure("the chat template %s needs %s; name the token in tokenizer_config.json"
                              % (self.source, lost.group(1)))
            raise Malformed("the chat template %s rejects it (%s)" % (self.source, first_line(error)))

    def takes_parts(self):
        """True if the template accepts contents that are lists of parts; False if it expects text."""
        probe = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "probe"}]}]
        try:
            text = self.render(probe, None)
        except Malformed:
            return False
        return "probe" in text and "'type'" not in text

    def parts(self, messages, counted, _, tools):
        """Returns [(text, True if the text has a loss), ...]. counted: for each answer, True if it has a loss."""
        if self.marks:
            pieces = self.render(messages, tools).split(MARK)
            if all(counted):
                return [(piece, number % 2 == 1) for number, piece in enumerate(pieces)]
            if len(pieces) // 2 != len(counted):
                raise Malformed("the chat template marks %d parts by {%% generation %%} for %d answers, so that one "
                                "cannot be excluded from the loss" % (len(pieces) // 2, len(counted)))
            return [(piece, number % 2 == 1 and counted[number // 2]) for number, piece in enumerate(pieces)]
        whole, at, parts, answers = self.render(messages, tools), 0, [], iter(counted)
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or not next(answers):  # skips all but answers with a loss
                continue
            before = self.render(messages[:number], tools, True)
            after = self.render(messages[:number + 1], tools).rstrip("\n")  # now ends with the answer's end token
            if not after.startswith(before) or not whole.startswith(after) or len(before) < at:
                raise Malformed("the chat template changes earlier text when an answer or further messages follow, so "
                                "the answer's position is unknown; enclose answers in {% generation %}")
            parts += [(whole[at:len(before)], False), (whole[len(before):len(after)], True)]
            at = len(after)
        return parts + [(whole[at:], False)]

    def encode(self, rows):
        texts = ["".join(text for text, _ in parts).encode("utf-8", "replace").decode() for parts in rows]
        for text in texts:
            if len(text) > MAX_PART:
                raise Failure("its text has %s characters; at most %s are supported; divide it"
                              % (format(len(text), ","), format(MAX_PART, ",")))
            lost = next((token for token in self.missing if token in text), None)
            if lost is not None:
                raise Failure("its text has the special token %s, which %s lacks; load the folder with transformers "
                              "and save it again (save_pretrained)" % (lost, self.path))
        encoded = self.tokenizer.tokenizer.encode_batch(texts, add_special_tokens=False)
        for parts, text, row in zip(rows, texts, encoded):
            written = self.variables.get("bos_token")
            bos = [] if written and text.startswith(written) else self.bos
            spans, at = [], 0
            for part, counts in parts:
                if counts and part:
                    spans.append((at, at + len(part)))
                at += len(part)
            mask, span = bytearray(len(row.ids)), 0
            for i, (begin, end) in enumerate(row.offsets):  # offsets and spans are both in increasing order
                while span < len(spans) and spans[span][1] <= begin:
                    span += 1
                mask[i] = span < len(spans) and max(end, begin + 1) > spans[span][0]
            last = mask.rfind(1)
            self.endless = self.endless or last >= 0 and row.ids[last] not in self.ends
            yield pack(bos + row.ids, self.tokenizer.vocab), bytearray(len(bos)) + mask
