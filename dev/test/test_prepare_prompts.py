#!/usr/bin/env python3
"""Tests of data/prepare.py --chat with the tokens of models: formats by name, chat templates, transformers' own.

    python3 dev/test/test_prepare_prompts.py

Skipped without the package tokenizers, chat templates without jinja2, the last without transformers.
"""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_prepare_chat as shared  # noqa: E402

base, messages = shared.base, shared.messages
KINDS = os.path.join(base.ROOT, "dev", "test", "tokenizers")
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


class PromptsTest(unittest.TestCase):
    setUp, path, write = base.PrepareTest.setUp, base.PrepareTest.path, base.PrepareTest.write
    run_program, refused = base.PrepareTest.run_program, base.PrepareTest.refused
    read, prepared = shared.ChatTest.read, shared.ChatTest.prepared

    def model(self, kind, *special, **config):
        """A folder with one of the test's vocabularies and further special tokens."""
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(os.path.join(KINDS, kind))
        tokenizer.add_special_tokens(list(special))
        folder = self.path("model")
        os.makedirs(folder, exist_ok=True)
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        tokenizer.encode_special_tokens = True
        return tokenizer, ("--tokenizer", folder)

    def check_model(self, tokenizer, arguments, record, expected, *more):
        """expected: (text or name of a token in <>, whether it counts), encoded one by one."""
        ids, mask = [], []
        for text, counts in expected:
            token = tokenizer.token_to_id(text)
            is_token = token is not None and text[0] == "<"
            part = [token] if is_token else tokenizer.encode(text, add_special_tokens=False).ids
            ids += part
            mask += [int(counts)] * len(part)
        self.assertEqual(self.prepared([record], *more, tokenizer=arguments), [(ids, mask)])

    @unittest.skipUnless(base.have("tokenizers"), NEEDS)
    def test_chatml_and_qwen(self):
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
    def test_llama3(self):
        tokenizer, arguments = self.model("llama3.json", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

        def turn(role, text, counts=0):
            return [("<|start_header_id|>", 0), (role, 0), ("<|end_header_id|>", 0)] + (
                [("\n\n", 0), (text, 1)] if counts else [("\n\n" + text, 0)]) + [("<|eot_id|>", counts)]

        self.check_model(tokenizer, arguments, {"messages": messages(" u ", "the model ", "v", "w", system="s")},
                         [("<|begin_of_text|>", 0)] + turn("system", "s") + \
                           turn("user", "u") + turn("assistant", "the model", 1)
                         + turn("user", "v") + turn("assistant", "w", 1), "--prompt-format", "llama3")

    @unittest.skipUnless(base.have("tokenizers"), NEEDS)
    def test_llama2(self):
        tokenizer, arguments = self.model("legacy.json")
        record = {"messages": messages("the model", "a step ", "x", "y", system="S")}
        got = self.prepared([record], "--prompt-format", "llama2", tokenizer=arguments)

        def ids(text):
            return tokenizer.encode(text, add_special_tokens=False).ids

        def after(text):  # within a text: without the blank that begins one
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
        """(ids, mask) of a text of which spans count."""
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        row = tokenizer.encode(text, add_special_tokens=False)
        return row.ids, [int(any(a < max(e, b + 1) and b < z for a, z in spans)) for b, e in row.offsets]

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_template(self):
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
        self.write("model/chat_template.jinja", "{{ raise_exception('roles must alternate') }}")  # goes first
        self.refused(["r.jsonl, line 1: the chat template refuses it (roles must alternate)"], *arguments, "--chat",
                     "--overwrite", "--out", self.path("c"), self.path("r.jsonl"))
        self.write("model/chat_template.jinja", "{{ messages | length }}")
        self.refused(["line 1: the chat template does not write an answer behind its prompt"], *arguments, "--chat",
                     "--overwrite", "--out", self.path("c"), self.path("r.jsonl"))
        self.write("model/chat_template.jinja", "{% if %}")
        self.refused(["not one that Jinja2 reads"], *arguments, "--chat", "--overwrite", "--out", self.path("c"),
                     self.path("r.jsonl"))
        self.write("model/chat_template.jinja", "{{ ''.__class__.__mro__ }}")  # the sandbox
        self.refused(["refuses it"], *arguments, "--chat", "--overwrite", "--out", self.path("c"), self.path("r.jsonl"))

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_weight(self):
        """In every format the tokens of an answer are the same whether it counts or not."""
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
        self.refused(["does not write an answer behind its prompt"], *arguments, "--chat", "--overwrite", "--out",
                     self.path("c"), self.path("r.jsonl"))
        part = "{% generation %}a{% endgeneration %}"
        self.write("model/chat_template.jinja", "{% for m in messages %}" + part * 2 + "{% endfor %}")
        self.refused(["marks 10 parts by {% generation %} for 2 answers"], *arguments, "--chat", "--overwrite", "--out",
                     self.path("c"), "--trained", "last", self.path("r.jsonl"))

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_answers_without_an_end_are_noted(self):
        record = {"messages": messages("the model", "the step", "a", "b")}
        kept = "{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}"
        ends = {CHATML: True, MARKED: True, CHATML.replace("<|im_end|>", ""): False,
                CHATML.replace("<|im_end|>", "<|endoftext|>"): True,
                MARKED.replace("{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}", kept): False}
        for template, ended in ends.items():
            _, arguments = self.model("qwen.json", "<|im_start|>", "<|im_end|>", chat_template=template,
                                      bos_token="<|endoftext|>", eos_token="<|im_end|>")
            self.prepared([record] * 100, tokenizer=arguments)  # several units
            self.assertEqual(self.said[1], "" if ended else "note: of the chat template no special token counts at the "
                             "end of an answer, so that the model does not learn to stop: name a fixed --prompt-format,"
                             " or use a template whose answers end with a token\n")

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2")
    def test_formats_are_the_templates(self):
        special = {"chatml": ("<|im_start|>", "<|im_end|>"), "llama3": ("<|start_header_id|>", "<|end_header_id|>",
                                                                       "<|eot_id|>")}
        for name, kind, template in (("chatml", "qwen.json", CHATML), ("llama3", "llama3.json", LLAMA3)):
            _, arguments = self.model(kind, *special[name], chat_template=template, bos_token="<|begin_of_text|>")
            records = [{"messages": messages("the model", "the step", "a", "caf\u00e9", system="s")},
                       {"prompt": "the training", "response": "step of a token"}]
            self.assertEqual(self.prepared(records, tokenizer=arguments),
                             self.prepared(records, "--prompt-format", name, tokenizer=arguments))

    @unittest.skipUnless(base.have("tokenizers", "jinja2", "transformers"), "needs transformers")
    def test_template_as_transformers(self):
        import transformers

        chats = [messages("the model", "the step"), messages("u", "\n\n a", system="be <|im_end|> short"),
                 messages(" x", " the step of a model ", "b", "caf\u00e9 \u4f60\u597d", "c", "d")]
        kinds = {"qwen.json": "<|endoftext|>", "llama3.json": "<|begin_of_text|>", "legacy.json": "<s>",
                 "neox.json": "<|endoftext|>"}
        for kind, special in kinds.items():
            for template in (MARKED, CHATML):
                _, arguments = self.model(kind, "<|im_start|>", "<|im_end|>", chat_template=template, bos_token=special,
                                          eos_token="<|im_end|>", tokenizer_class="PreTrainedTokenizerFast")
                theirs = transformers.AutoTokenizer.from_pretrained(arguments[1])
                got = self.prepared([{"messages": chat} for chat in chats], tokenizer=arguments)
                marked = template == MARKED
                for chat, (ids, mask) in zip(chats, got):
                    row = theirs.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=marked)
                    self.assertEqual(ids, row["input_ids"])
                    if marked:
                        self.assertEqual(mask, row["assistant_masks"])


if __name__ == "__main__":
    report = base.Report()
    unittest.defaultTestLoader.loadTestsFromTestCase(PromptsTest).run(report)
    sys.exit(not report.wasSuccessful())
