#!/usr/bin/env python3
"""Tests of data/prepare.py with the tokenizers of models: what is put around documents, uint32, and that cutting a
text changes no token. The vocabularies are those of dev/test/tokenizers.

    python3 dev/test/test_prepare_models.py

Skipped without the packages of scripts/setup.sh --python.
"""
import array
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_prepare as base  # noqa: E402

prepare_tokenizers = base.prepare_tokenizers
KINDS = os.path.join(base.ROOT, "dev", "test", "tokenizers")
TOKENIZE = os.path.join(base.ROOT, os.environ.get("BUILD", "build"), "tokenize")
NEEDS = "needs tokenizers and sentencepiece: scripts/setup.sh --python"


@unittest.skipUnless(base.have("tokenizers", "sentencepiece"), NEEDS)
class ModelsTest(unittest.TestCase):
    setUp, path, write = base.PrepareTest.setUp, base.PrepareTest.path, base.PrepareTest.write
    run_program, refused = base.PrepareTest.run_program, base.PrepareTest.refused

    def tokens(self, name):
        """(tokens, bytes of one) of a file."""
        with open(self.path(name), "rb") as file:
            data = file.read()
        magic, version, count = array.array("i", data[:12])
        width = {(20240520, 1): 2, (20240801, 7): 4}[magic, version]
        self.assertEqual(len(data), 1024 + width * count)
        return list(array.array("H" if width == 2 else "I", data[1024:])), width

    def prepared(self, kind, source, *arguments):
        """(tokens, what was printed, manifest) of a text under a vocabulary."""
        out, _ = self.run_program("--tokenizer", kind, "--out", self.path("p"), "--workers", 1, "--val-fraction", 0,
                                  "--overwrite", *arguments, source)
        with open(self.path("p_manifest.json"), encoding="utf-8") as file:
            return self.tokens("p_train_000000.bin")[0], out, json.load(file)

    def documents(self, kind, before, after, rule):
        texts = ["the model", " 2024 ", "<s><|endoftext|></s>", "\u4f60\u597d"]
        source = self.write("d.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
        path = os.path.join(KINDS, kind)
        got, out, manifest = self.prepared(path, source)
        tokenizer = prepare_tokenizers.open_tokenizer(path)
        expected = []
        for row in tokenizer.encode([text.encode() for text in texts]):
            expected += before + list(array.array("H", row)) + after
        self.assertTrue(got == expected, kind)
        self.assertIn(rule, out)
        self.assertEqual(manifest["documents"], rule)

    def test_documents(self):
        self.documents("llama3.json", [0], [1], "<|begin_of_text|> (0) before and <|end_of_text|> (1) after each document")
        self.documents("qwen.json", [0], [], "<|endoftext|> (0) before each document")
        self.documents("neox.json", [0], [], "<|endoftext|> (0) before each document")
        for kind in ("llama.model", "legacy.json", "first.json"):
            self.documents(kind, [1], [2], "<s> (1) before and </s> (2) after each document")

    def test_cutting_changes_no_token(self):
        text = base.words(9, 9000)  # of many units
        source = self.write("one.txt", text)
        for kind in sorted(os.listdir(KINDS)):
            if not kind.endswith((".json", ".model")) or kind == "unknown.model":
                continue  # unknown characters on both sides of a cut would be one token in the whole text
            path = os.path.join(KINDS, kind)
            places = [0] + list(base.prepare_inputs.cuts("text", source, os.path.getsize(source), True))
            self.assertGreater(len(places), 5)
            tokenizer = prepare_tokenizers.open_tokenizer(path)
            whole = list(array.array("H", tokenizer.encode([text.encode()])[0]))
            got, _, _ = self.prepared(path, source)
            self.assertTrue(got == tokenizer.before + whole + tokenizer.after, kind)  # Equal would explain for minutes

    def test_folder_with_both(self):
        model, made = self.path("f/tokenizer.model"), self.path("f/tokenizer.json")
        with open(os.path.join(KINDS, "legacy.json"), encoding="utf-8") as file:
            own = file.read()
        self.write("f/tokenizer.json", own.replace('"type":"BPE",', '"type":"BPE","made_from":"tokenizer.model",'))
        for text, found in (None, made), (b"", model), (own, made):
            if text is not None:
                self.write("f/tokenizer.model" if text == b"" else "f/tokenizer.json", text)
            self.assertEqual(prepare_tokenizers.Pairs.find(self.path("f")), found)
            self.assertEqual(prepare_tokenizers.Pairs.find(made), made)  # as it is named

    def test_both_ends_of_a_single_text(self):
        source = self.write("one.txt", base.words(3, 9000))
        path = os.path.join(KINDS, "llama.model")
        self.run_program("--tokenizer", path, "--out", self.path("v"), "--workers", 2, "--val-fraction", 0.3, source)
        for split in ("train", "val"):
            tokens, _ = self.tokens("v_%s_000000.bin" % split)
            self.assertEqual([tokens[0], tokens[-1], tokens.count(1), tokens.count(2)], [1, 2, 1, 1])

    def wide(self):
        with open(os.path.join(KINDS, "llama3.json"), encoding="utf-8") as file:
            parsed = json.load(file)
        parsed["post_processor"] = None
        parsed["model"]["vocab"]["<|endoftext|>"] = 70000
        parsed["added_tokens"].append(dict(parsed["added_tokens"][0], id=70000, content="<|endoftext|>"))
        return self.write("tokenizer.json", json.dumps(parsed))

    def test_uint32(self):
        source = self.write("one.txt", "the model")
        got, out, _ = self.prepared(self.wide(), source)
        self.assertEqual(self.tokens("p_train_000000.bin")[1], 4)
        self.assertEqual(got[0], 70000)
        self.assertIn("70,001 tokens, uint32; <|endoftext|> (70000) before each document", out)

    def hellaswag(self, kind):
        line = {"ctx": "the model", "endings": ["is", "a", "the step", "x"], "label": 2}
        source = self.write("h.jsonl", json.dumps(line) + "\n")
        self.run_program("--tokenizer", kind, "--out", self.path("h"), "--hellaswag", source)
        with open(self.path("h.bin"), "rb") as file:
            return file.read()

    def test_hellaswag(self):
        data = self.hellaswag(self.wide())
        self.assertEqual(list(array.array("i", data[:12])), [20240522, 2, 1])
        words = array.array("I", data[1024:])
        self.assertEqual(list(words[:5]), [65535, 4 * len(words), 0, 2, 4])
        path = os.path.join(KINDS, "llama.model")
        words = array.array("H", self.hellaswag(path)[1024:])
        count, pieces = words[5], prepare_tokenizers.open_tokenizer(path).pieces
        self.assertEqual(list(words[6:6 + count]), [1] + pieces.encode("the model"))  # <s> begins every text
        at = 6 + count
        self.assertEqual(pieces.decode(list(words[6:at]) + list(words[at + 1:at + 1 + words[at]])), "the model is")

    def test_config_decides(self):
        with open(os.path.join(KINDS, "llama3.json"), "rb") as file:
            path = self.write("c/tokenizer.json", file.read())
        self.assertEqual(prepare_tokenizers.open_tokenizer(os.path.dirname(path)).before, [0])
        self.write("c/tokenizer_config.json", '{"add_bos_token": false, "eos_token": "<|end_of_text|>"}')
        self.assertEqual(prepare_tokenizers.open_tokenizer(path).before, [1])

    def ends(self, name, data, config):
        """What begins and ends a text, -1 for none: the trainer and prepare.py agree."""
        path = self.write("t/" + name, data)
        self.write("t/tokenizer_config.json", json.dumps(config))
        done = subprocess.run([TOKENIZE, path], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        begin, end, vocab = map(int, done.stdout.split())
        if end < 0:
            with self.assertRaisesRegex(prepare_tokenizers.Failure, "has no end-of-text token"):
                prepare_tokenizers.open_tokenizer(path)
        else:
            ours = prepare_tokenizers.open_tokenizer(path)
            self.assertEqual(((ours.bos or [-1])[0], ours.end_of_text, ours.vocab), (begin, end, vocab))
        return begin, end

    def json_ends(self, parsed, config):
        return self.ends("tokenizer.json", json.dumps(parsed), config)

    @unittest.skipUnless(os.path.exists(TOKENIZE), "build/tokenize is not built")
    def test_end_of_text(self):
        with open(os.path.join(KINDS, "qwen.json"), encoding="utf-8") as file:
            parsed = json.load(file)
        vocab, added = parsed["model"]["vocab"], parsed["added_tokens"][0]
        del vocab[added["content"]]
        names = "</s>", "<eos>", "<|endoftext|>", "<|end|>", "<|im_end|>"
        vocab.update({name: 390 + i for i, name in enumerate(names)})  # that alone makes them text, as </s> is Qwen's
        cases = [  # special tokens, eos_token, what ends a text
            (("<|end|>",), None, -1), (("<|end|>",), "absent", -1), (("<|end|>", "<|im_end|>"), "<|end|>", 393),
            (("</s>", "<|im_end|>"), "<|im_end|>", 390),  # which ends an answer
            (("</s>", "<eos>", "<|endoftext|>"), "<eos>", 392), (("<|end|>",), "</s>", 390)]
        for names, eos, end in cases:
            parsed["added_tokens"] = [dict(added, id=vocab[name], content=name, special=True) for name in names]
            self.assertEqual(self.json_ends(parsed, {"eos_token": eos}), (-1, end), names)
        parsed["added_tokens"] = [dict(added, id=390, content="</s>", special=False)]  # a tag of HTML, as Gemma's
        self.assertEqual(self.json_ends(parsed, {}), (-1, -1))

    @unittest.skipUnless(os.path.exists(TOKENIZE), "build/tokenize is not built")
    def test_begin_of_text(self):
        with open(os.path.join(KINDS, "llama3.json"), encoding="utf-8") as file:
            parsed = json.load(file)
        bos, eos = ({"SpecialToken": {"id": token["content"], "type_id": 0}} for token in parsed["added_tokens"])
        text, template = {"Sequence": {"id": "A", "type_id": 0}}, parsed["post_processor"]
        template["special_tokens"] = {token["content"]: {"id": token["content"], "ids": [token["id"]],
                                                         "tokens": [token["content"]]} for token in parsed["added_tokens"]}
        steps = {"bos": [bos, text], "eos": [eos, text], "two": [bos, eos, text], "around": [bos, text, eos],
                 "after": [text, eos], "plain": [text]}
        steps = {name: dict(template, single=step) for name, step in steps.items()}
        bytes_step = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
        cases = [([name], begin) for name, begin in zip(steps, (0, 1, 0, 0, -1, -1))]
        cases += [(["bos", "eos"], 1), (["eos", "plain"], 1), ([], -1)]
        for names, begin in cases:
            used = [bytes_step] + [steps[name] for name in names]
            parsed["post_processor"] = used[1] if len(used) == 2 else {"type": "Sequence", "processors": used}
            self.assertEqual(self.json_ends(parsed, {}), (begin, 1), names)
        end = eos["SpecialToken"]["id"]
        for config, begin in (({"add_bos_token": False}, -1), ({"add_bos_token": True}, 0),
                              ({"add_bos_token": True, "bos_token": {"content": end}}, 1), ({"bos_token": end}, 0),
                              ({"add_bos_token": None, "bos_token": end}, 0), ({"add_bos_token": True, "bos_token": "no"}, 0)):
            parsed["post_processor"] = steps["two"]
            self.assertEqual(self.json_ends(parsed, config), (begin, 1), config)

    @unittest.skipUnless(os.path.exists(TOKENIZE), "build/tokenize is not built")
    def test_ends_of_pieces(self):
        with open(os.path.join(KINDS, "llama.model"), "rb") as file:
            data = file.read()
        text = data  # with <s> and </s> as pieces that text has, user-defined ones
        for name in b"<s>", b"</s>":
            text = text.replace(name + b"\x15\0\0\0\0\x18\x03", name + b"\x15\0\0\0\0\x18\x04")
        add = {"add_bos_token": True, "bos_token": "</s>", "eos_token": "<s>"}
        for model, config, expected in ((data, {}, (1, 2)), (data, {"add_bos_token": False}, (-1, 2)), (data, add, (2, 2)),
                                        (text, {}, (-1, -1)), (text, add, (2, 1))):
            self.assertEqual(self.ends("tokenizer.model", model, config), expected, config)

    def test_errors(self):
        source, out = self.write("a.txt", "text\n"), self.path("e")
        bad = {"x/tokenizer.json": ('{"model": {}}', "not a tokenizer.json"), "y.json": ("[", "not a vocabulary"),
               "z/tokenizer.model": ("IQ== 0\n", "tiktoken's ranks")}
        for name, (text, expected) in bad.items():
            self.refused([expected], "--tokenizer", self.write(name, text), "--out", out, source)


if __name__ == "__main__":
    report = base.Report()
    unittest.defaultTestLoader.loadTestsFromTestCase(ModelsTest).run(report)
    sys.exit(not report.wasSuccessful())
