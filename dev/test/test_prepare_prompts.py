#!/usr/bin/env python3
"""Tests data/prepare.py --chat with tokenizers of models: named formats, chat templates, and transformers' results.

    python3 dev/test/test_prepare_prompts.py

Skipped without the package tokenizers. Tests of chat templates need jinja2, and the last ones transformers.
"""
import json
import os
import unittest
import unittest.mock

import test_prepare_chat as shared  # noqa: E402

import prepare_prompts  # noqa: E402
from prepare_tokenizers import open_tokenizer  # noqa: E402

base, messages = shared.base, shared.messages
KINDS = os.path.join(base.ROOT, "dev", "test", "tokenizers")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
NEEDS = "needs tokenizers: scripts/setup.sh --python"
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
MARKED = ("{{ bos_token }}{% for m in messages %}\n    {%- if m.role == 'assistant' %}[A]{% generation %}"
          "{{ m.content }}{{ eos_token }}{% endgeneration %}\n    {% else %}[{{ m.role | upper }}]"
          "{{ m.content | trim }}{% endif %}{%- endfor %}")
LLAMA3 = ("{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
          "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
          "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")

CHATS = [messages("the model", "the step"), messages("u", "\n\n a", system="be <|im_end|> short"),
         messages(" x", " the step of a model ", "b", "caf\u00e9 \u4f60\u597d", "c", "d")]
# vocabulary, its BOS and EOS tokens, and a tokenizer class of transformers that has these tokens by default
CLASSES = [("qwen.json", "<|endoftext|>", "<|endoftext|>", "Qwen2Tokenizer"), ("llama3.json", "<|begin_of_text|>",
           "<|end_of_text|>", None), ("first.json", "<s>", "</s>", "LlamaTokenizer"), ("neox.json", "<|endoftext|>",
           "<|endoftext|>", "GPTNeoXTokenizer")]


def places(begin, end, class_name=None, other="<|im_end|>"):
    """Returns {place: (tokenizer_config.json, special_tokens_map.json or None)} for every place where transformers finds the
    BOS token `begin` and the EOS token `end`. class_name: a tokenizer class that has these tokens by default, or None.
    other: a third token."""
    named = {"bos_token": begin, "eos_token": end}
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    objects = {key: {"content": text, **flags} for key, text in named.items()}
    found = {"config": (named, None), "objects": ({key: {"__type": "AddedToken", **entry} for key, entry in objects.items()},
                                                  None),
             "map": ({}, named), "map of objects": ({}, objects), "both": ({"bos_token": other}, named),
             "map that is not read": ({**named, "added_tokens_decoder": {}}, {"bos_token": other}),
             "extra": ({"extra_special_tokens": named}, None), "extra of the map": ({}, {"extra_special_tokens": named}),
             "list": ({**named, "additional_special_tokens": [other]}, None)}
    for name in (class_name, class_name + "Fast") if class_name else ():
        others = {key: text for key, text in named.items() if key not in prepare_prompts.CLASS_TOKENS[class_name]}
        found[name] = ({"tokenizer_class": name, **others}, None)
    return found


def write_place(folder, template, config, names):
    """Writes one of places() to a folder that has a tokenizer.json."""
    for name, entries in ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **config}), (
            "special_tokens_map.json", names or {}):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(entries, file)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(template)


def by_transformers(folder, chats, own):
    """Returns transformers' [(ids, mask)] of chats. own: prepare.py's results. Returns `own` for a folder that transformers 4
    cannot read. Returns the masks of `own` if the template has no {% generation %}, and with transformers 4, whose masks are
    wrong if an answer starts with a space."""
    import transformers

    old = int(transformers.__version__.split(".")[0]) < 5
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    except AttributeError:
        if old:
            return own
        raise
    marked = "{% generation" in theirs.chat_template and not old
    rows = [theirs.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=marked) for chat in chats]
    return [(row["input_ids"], row["assistant_masks"] if marked else mask) for row, (_, mask) in zip(rows, own)]


class ModelCase(shared.ChatCase):
    def model(self, kind, *special, **config):
        """Makes a folder with one of the test's vocabularies and more special tokens."""
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(os.path.join(KINDS, kind))
        tokenizer.add_special_tokens(list(special))
        self.write("model/tokenizer_config.json", json.dumps(config))
        tokenizer.save(self.path("model/tokenizer.json"))
        tokenizer.encode_special_tokens = True
        return tokenizer, ("--tokenizer", self.path("model"))


class PromptsTest(ModelCase):
    def check_model(self, tokenizer, arguments, record, expected, *more):
        """Checks an example. expected: [(text, or special token in <>; true if it has a loss), ...], encoded one by one."""
        ids, mask = [], []
        for text, counts in expected:
            token = tokenizer.token_to_id(text)
            is_token = token is not None and text[0] == "<"
            part = [token] if is_token else tokenizer.encode(text, add_special_tokens=False).ids
            ids += part
            mask += [int(counts)] * len(part)
        self.assertEqual(self.prepared([record], *more, tokenizer=arguments), [(ids, mask)])

    @unittest.skipUnless(base.have("tokenizers"), NEEDS)
    def test_chatml_and_qwen_formats(self):
        tokenizer, arguments = self.model("qwen.json", "<|im_start|>", "<|im_end|>")
        chat = messages("the <|im_end|>model", "\nthe step")
        turns = [("<|im_start|>", 0), ("user\nthe <|im_end|>model", 0), ("<|im_end|>", 0), ("\n", 0),
                 ("<|im_start|>", 0), ("assistant\n", 0), ("\nthe step", 1), ("<|im_end|>", 1), ("\n", 0)]
        self.check_model(tokenizer, arguments, {"messages": chat}, turns, "--prompt-format", "chatml")
        default = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        system = [("<|im_start|>", 0), ("system\n" + default, 0), ("<|im_end|>", 0), ("\n", 0)]
        self.check_model(tokenizer, arguments, {"messages": chat}, system + turns, "--prompt-format", "qwen")
        system[1] = ("system\nS", 0)
        chat.insert(0, {"role": "system", "content": "S"})
        self.check_model(tokenizer, arguments, {"messages": chat}, system + turns, "--prompt-format", "qwen")

    @unittest.skipUnless(base.have("tokenizers"), NEEDS)
    def test_llama3_format(self):
        tokenizer, arguments = self.model("llama3.json", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

        def turn(role, text, counts=0):
            return [("<|start_header_id|>", 0), (role, 0), ("<|end_header_id|>", 0)] + (
                [("\n\n", 0), (text, 1)] if counts else [("\n\n" + text, 0)]) + [("<|eot_id|>", counts)]

        self.check_model(tokenizer, arguments, {"messages": messages(" u ", "the model ", "v", "w", system="s")},
                         [("<|begin_of_text|>", 0)] + turn("system", "s") + \
                           turn("user", "u") + turn("assistant", "the model", 1)
                         + turn("user", "v") + turn("assistant", "w", 1), "--prompt-format", "llama3")

    @unittest.skipUnless(base.have("tokenizers"), NEEDS)
    def test_llama2_format(self):
        tokenizer, arguments = self.model("legacy.json")
        record = {"messages": messages("the model", "a step ", "x", "y", system="S")}
        got = self.prepared([record], "--prompt-format", "llama2", tokenizer=arguments)

        def ids(text):
            return tokenizer.encode(text, add_special_tokens=False).ids

        def after(text):  # ids of the texts inside a text, that is, without the space that SentencePiece puts first
            return ids("a" + text)[len(ids("a")):]

        expected, mask = [], []
        first = ids("[INST] <<SYS>>\nS\n<</SYS>>\n\nthe model [/INST]")
        for part, counts in (([1], 0), (first, 0), (after(" a step "), 1), ([2], 1),
                             ([1], 0), (ids("[INST] x [/INST]"), 0), (after(" y "), 1), ([2], 1)):
            expected += part
            mask += [counts] * len(part)
        self.assertEqual(got, [(expected, mask)])

    # --- chat templates

    def by_offsets(self, folder, text, spans):
        """Returns (ids, mask) of a text whose spans have a loss."""
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        row = tokenizer.encode(text, add_special_tokens=False)
        return row.ids, [int(any(a < max(e, b + 1) and b < z for a, z in spans)) for b, e in row.offsets]

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_chat_template_marks_answers(self):
        _, arguments = self.model("qwen.json", "<|im_start|>", "<|im_end|>", chat_template=CHATML)
        record = {"messages": messages("the model", "the step", "a", "caf\u00e9\n", system="s")}
        text, spans = "", []
        for message in record["messages"]:
            text += "<|im_start|>%s\n" % message["role"]
            if message["role"] == "assistant":
                spans.append((len(text), len(text + message["content"] + "<|im_end|>")))
            text += message["content"] + "<|im_end|>\n"
        expected = self.by_offsets(arguments[1], text, spans)
        self.assertEqual(self.prepared([record], tokenizer=arguments), [expected])
        self.write("model/chat_template.jinja", "{{ raise_exception('roles must alternate') }}")  # has precedence
        self.refused(["r.jsonl, line 1: the chat template ", "chat_template.jinja rejects it (roles must alternate)"], *arguments, "--chat",
                     "--overwrite", "--out", self.path("c"), self.path("r.jsonl"))
        self.write("model/chat_template.jinja", "{{ messages | length }}")
        self.refused(["line 1: the chat template"], *arguments, "--chat",
                     "--overwrite", "--out", self.path("c"), self.path("r.jsonl"))
        self.write("model/chat_template.jinja", "{% if %}")
        self.refused(["cannot be parsed by Jinja2"], *arguments, "--chat", "--overwrite", "--out", self.path("c"),
                     self.path("r.jsonl"))
        self.write("model/chat_template.jinja", "{{ ''.__class__.__mro__ }}")  # the sandbox refuses this
        self.refused(["rejects it"], *arguments, "--chat", "--overwrite", "--out", self.path("c"), self.path("r.jsonl"))

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_space_before_an_answer_is_masked(self):
        """Also if the tokenizer.json trims the spaces of tokens from their offsets."""
        template = CHATML.replace("assistant\n", "assistant ").replace("m['role'] + '\n'", "m['role'] + ' '")
        for trims in False, True:
            _, arguments = self.model("neox.json", "<|im_start|>", "<|im_end|>", chat_template=template)
            parsed = base.read_json(self.path("model/tokenizer.json"))
            parsed["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": trims,
                                        "use_regex": True}
            self.write("model/tokenizer.json", json.dumps(parsed))
            (ids, mask), = self.prepared([{"messages": messages("a", "\u4f60")}], tokenizer=arguments)
            self.assertEqual(mask, [0] * (len(ids) - 5) + [1, 1, 1, 1, 0])  # three bytes, <|im_end|>, a space

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_weight_changes_no_token_in_any_format(self):
        """In every format, an answer has the same tokens with and without a loss."""
        chat = messages("the model", "the step", "a", "caf\u00e9", system="s")
        for template in (CHATML, MARKED, None):
            _, arguments = self.model("qwen.json", "<|im_start|>", "<|im_end|>", chat_template=template,
                                      bos_token="<|endoftext|>", eos_token="<|im_end|>")
            for name in ("template",) if template else ("plain", "alpaca", "chatml", "qwen", "llama2"):
                got = []
                for weights in ((1, 1), (1, 0), (0, 1)):
                    chat[2]["weight"], chat[4]["weight"] = weights
                    got += self.prepared([{"messages": chat}], "--prompt-format", name, tokenizer=arguments)
                (ids, both), (first_ids, first), (second_ids, second) = got
                self.assertEqual((first_ids, second_ids), (ids, ids))
                self.assertEqual([a + b for a, b in zip(first, second)], both)
                self.assertTrue(0 < first.index(1) < second.index(1) > len(ids) - first[::-1].index(1) - 1)
        chat[2]["weight"] = 1
        shorter = CHATML.replace("m['content']", "(m['content'] if loop.last or m.role != 'assistant' else '')")
        self.write("model/chat_template.jinja", shorter)
        (ids, last), = self.prepared([{"messages": chat}], "--trained", "last", tokenizer=arguments)
        self.assertEqual(sum(last), len(ids) - 1 - last.index(1))
        self.refused(["enclose answers in {% generation %}"], *arguments, "--chat", "--overwrite", "--out",
                     self.path("c"), self.path("r.jsonl"))
        part = "{% generation %}a{% endgeneration %}"
        self.write("model/chat_template.jinja", "{% for m in messages %}" + part * 2 + "{% endfor %}")
        self.refused(["marks 10 parts by {% generation %} for 2 answers"], *arguments, "--chat", "--overwrite", "--out",
                     self.path("c"), "--trained", "last", self.path("r.jsonl"))

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_template_without_an_end_of_answers_prints_a_note(self):
        record = {"messages": messages("the model", "the step", "a", "b")}
        kept = "{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}"
        ends = {CHATML: True, MARKED: True, CHATML.replace("<|im_end|>", ""): False,
                CHATML.replace("<|im_end|>", "<|endoftext|>"): True,
                MARKED.replace("{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}", kept): False}
        for template, ended in ends.items():
            _, arguments = self.model("qwen.json", "<|im_start|>", "<|im_end|>", chat_template=template,
                                      bos_token="<|endoftext|>", eos_token="<|im_end|>")
            self.prepared([record] * 100, tokenizer=arguments)  # several units
            self.assertRegex(self.said[1], "^$" if ended else "^note: the chat template .*--prompt-format.*\n$")

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_fixed_formats_equal_chat_templates(self):
        special = {"chatml": ("<|im_start|>", "<|im_end|>"), "llama3": ("<|start_header_id|>", "<|end_header_id|>",
                                                                       "<|eot_id|>")}
        for name, kind, template in (("chatml", "qwen.json", CHATML), ("llama3", "llama3.json", LLAMA3)):
            _, arguments = self.model(kind, *special[name], chat_template=template, bos_token="<|begin_of_text|>")
            records = [{"messages": messages("the model", "the step", "a", "caf\u00e9", system="s")},
                       {"prompt": "the training", "response": "step of a token"}]
            self.assertEqual(self.prepared(records, tokenizer=arguments),
                             self.prepared(records, "--prompt-format", name, tokenizer=arguments))

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_special_tokens_are_found_in_every_file(self):
        chats = [{"messages": chat} for chat in CHATS]
        for kind, begin, end, class_name in CLASSES:
            _, arguments = self.model(kind, "<|im_start|>", "<|im_end|>")
            rows = []
            for config, names in places(begin, end, class_name).values():
                write_place(arguments[1], MARKED, config, names)
                rows.append(self.prepared(chats, tokenizer=arguments))
            self.assertEqual(rows, rows[:1] * len(rows))
            self.assertEqual(rows[0][0][0][0], open_tokenizer(arguments[1]).token(begin))
        write_place(arguments[1], MARKED, {"tokenizer_class": class_name, "bos_token": None, "eos_token": None}, None)
        self.assertNotEqual(self.prepared(chats, tokenizer=arguments), rows[0])  # null removes the default of the class

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_undefined_special_tokens_are_refused(self):
        _, arguments = self.model("qwen.json", "<|im_start|>", "<|im_end|>")
        source = self.write("r.jsonl", json.dumps({"messages": messages("a <|new|>", "b")}))
        out = ("--chat", "--skip-malformed", "--overwrite", "--out", self.path("c"), source)
        for config in ({"bos_token": "<|new|>"}, {"extra_special_tokens": ["<|new|>"]}, {"eos_token": "<|new|>"}):
            write_place(arguments[1], MARKED, config, None)
            self.refused(["r.jsonl, line 1: ", "the special token <|new|>", "tokenizer.json lacks"], *arguments, *out)
        for name in ("bos_token", "image_token"):
            write_place(arguments[1], "{{ %s + messages[0].content }}" % name, {}, None)
            self.refused(["chat_template.jinja needs %s" % name], *arguments, *out)
        self.write("model/special_tokens_map.json", "[")
        self.refused(["model/special_tokens_map.json: is not a special_tokens_map.json"], *arguments, *out)
        write_place(arguments[1], CHATML, {"added_tokens_decoder": [1], "extra_special_tokens": 5, "bos_token": 3,
                                           "additional_special_tokens": [4, {"content": 6}, ""]}, None)
        self.prepared([{"messages": messages("a", "b")}], tokenizer=arguments)  # other values are ignored

    @unittest.skipUnless(base.have("tokenizers", "jinja2", "transformers"), "needs transformers")
    def test_templates_render_as_in_transformers(self):
        chats = [{"messages": chat} for chat in CHATS]
        for kind, begin, end, class_name in CLASSES:
            _, arguments = self.model(kind, "<|im_start|>", "<|im_end|>")
            for template in (MARKED, CHATML):
                for place, (config, names) in places(begin, end, class_name).items():
                    write_place(arguments[1], template, config, names)
                    got = self.prepared(chats, tokenizer=arguments)
                    self.assertEqual(got, by_transformers(arguments[1], CHATS, got), (kind, place))

    @unittest.skipUnless(base.have("tokenizers", "jinja2", "transformers"), "needs transformers")
    def test_listed_special_tokens_equal_transformers(self):
        """Tokens that are only listed as special are found in text, with the flags of their entries."""
        parsed = base.read_json(os.path.join(KINDS, "qwen.json"))
        parsed["model"]["vocab"]["<|x|>"] = len(parsed["model"]["vocab"])
        parsed["added_tokens"][1]["id"] += 1
        self.write("model/tokenizer.json", json.dumps(parsed))
        entry = {"content": "<|x|>", "lstrip": True, "rstrip": True, "normalized": False, "single_word": False}
        named = {"eos_token": "<|endoftext|>"}
        chat = messages("the <|x|> model<|x|>", " a <|x|>")
        for config, names in (
                ({"extra_special_tokens": ["<|x|>"]}, None), ({"additional_special_tokens": ["<|x|>"]}, None), (named, None),
                ({}, {"additional_special_tokens": ["<|x|>"]}), ({}, {"bos_token": entry}), ({"bos_token": "<|x|>"}, None),
                ({"extra_special_tokens": ["<|extra|>"]}, {"extra_special_tokens": [entry]}),
                ({"extra_special_tokens": ["<|extra|>"]}, {"additional_special_tokens": ["<|x|>"]}),
                ({"added_tokens_decoder": {"384": {**entry, "special": True}}}, None)):
            write_place(self.path("model"), MARKED, {**named, **config}, names)
            got = self.prepared([{"messages": chat}], tokenizer=("--tokenizer", self.path("model")))
            self.assertEqual(got, by_transformers(self.path("model"), [chat], got), (config, names))

    # --- templates that fail

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_errors_of_templates_are_one_line(self):
        """Errors of a template are one line, which names the template and, if any, the record."""
        _, arguments = self.model("qwen.json")
        source = self.write("r.jsonl", json.dumps({"messages": messages("a", "b")}))
        out = (*arguments, "--chat", "--overwrite", "--workers", 1, "--out", self.path("c"), source)
        unreadable = ["{{ %s1%s }}" % ("(" * 5000, ")" * 5000), "{{ a%s }}" % (".b" * 20000), "{{ %s }}" % ("9" * 5000),
                      "{% if 1 %}" * 2000 + "{% endif %}" * 2000, "{% for i in [1] %}" * 30 + "{% endfor %}" * 30]
        for template in unreadable:
            path = self.write("model/chat_template.jinja", template)
            self.refused([path, "cannot be parsed by Jinja2"], *out)
        refusing = {"{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}": "recursion", "{{ 'x' * 10 ** 15 }}": "MemoryError",
                    "{{ messages[0].content * 10 ** 30 }}": "integer", "{% for i in range(10 ** 12) %}{% endfor %}": "Range",
                    "{{ 2.0 ** (messages | length * 10000) }}": "out of range", "{{ 1 // 0 }}": "by zero"}
        for template, reason in refusing.items():
            path = self.write("model/chat_template.jinja", template)
            self.refused(["r.jsonl, line 1: the chat template %s rejects it (" % path, reason], *out)
        loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
        with unittest.mock.patch.object(prepare_prompts, "MAX_SECONDS", 0.2):
            for template in (loops, "{%% macro m() %%}%s{%% endmacro %%}{{ m() }}" % loops):
                path = self.write("model/chat_template.jinja", template)
                self.refused(["r.jsonl, line 1: the chat template %s rejects it (it takes more than 0.2 s)" % path], *out)
            self.write("model/chat_template.jinja", "{% if messages[0].content == 'x' %}" + loops + "{% endif %}" + CHATML)
            chats = [{"messages": messages(text, "b")} for text in "axa"]
            self.assertEqual(len(self.prepared(chats, "--skip-malformed", tokenizer=arguments)), 2)
            self.assertIn("line 2: the chat template", self.said[1])
        path = self.write("model/chat_template.jinja", b"caf\xe9")
        self.refused([path, "is not UTF-8"], *out)
        os.remove(path)
        for template in (5, [1], [{"name": "other", "template": "x"}], {"default": 5}):
            self.model("qwen.json", chat_template=template)
            self.refused(["has no chat template"], *out)
        self.model("qwen.json", "<|im_start|>", "<|im_end|>", chat_template={"default": CHATML})
        self.assertEqual(len(self.prepared([{"messages": messages("a", "b")}], tokenizer=arguments)), 1)

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_too_deep_or_too_slow_records_are_refused(self):
        _, arguments = self.model("qwen.json", "<|im_start|>", "<|im_end|>", chat_template=CHATML)
        good = json.dumps({"messages": messages("a", "b")})
        for depth in (200, 450, 900, 980):  # one of them can be parsed but not serialized
            deep = json.dumps({"messages": messages("a", "b")}).replace('"a"', "[" * depth + "]" * depth)
            source = self.write("r.jsonl", good + "\n" + deep)
            out = (*arguments, "--chat", "--overwrite", "--workers", 1, "--out", self.path("c"))
            self.refused(["r.jsonl, line 2: "], *out, source)
        with unittest.mock.patch.object(prepare_prompts, "MAX_PART", 50):
            source = self.write("r.jsonl", json.dumps({"messages": messages("a" * 100, "b")}))
            self.refused(["r.jsonl, line 1: its text has", "at most 50"], *out, source)


if __name__ == "__main__":
    base.run(PromptsTest)
