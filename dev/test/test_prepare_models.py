#!/usr/bin/env python3
"""Tests data/prepare.py with tokenizers of models: the tokens around documents, uint32 files, and that dividing a text
changes no token. The vocabularies are in dev/test/tokenizers.

    python3 dev/test/test_prepare_models.py

Skipped without the packages of scripts/setup.sh --python.
"""
import array
import json
import os
import random
import subprocess
import unittest
import unittest.mock

import test_prepare as base  # noqa: E402

prepare_tokenizers = base.prepare_tokenizers
KINDS = os.path.join(base.ROOT, "dev", "test", "tokenizers")
TOKENIZE = base.TOKENIZE
NEEDS = "needs tokenizers and sentencepiece: scripts/setup.sh --python"


@unittest.skipUnless(base.have("tokenizers", "sentencepiece"), NEEDS)
class ModelsTest(base.Case):
    def tokens(self, name):
        """Returns (tokens, bytes per token) of a file."""
        data = base.read_bytes(self.path(name))
        magic, version, count = array.array("i", data[:12])
        width = {(20240520, 1): 2, (20240801, 7): 4}[magic, version]
        self.assertEqual(len(data), 1024 + width * count)
        return list(array.array("H" if width == 2 else "I", data[1024:])), width

    def prepared(self, kind, source, *arguments):
        """Returns (tokens, stdout, manifest) of a text tokenized with a vocabulary."""
        out, _ = self.run_program("--tokenizer", kind, "--out", self.path("p"), "--workers", 1, "--val-fraction", 0,
                                  "--overwrite", *arguments, source)
        return self.tokens("p_train_000000.bin")[0], out, base.read_json(self.path("p_manifest.json"))

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

    def test_tokens_around_documents_of_each_family(self):
        self.documents("llama3.json", [0], [1], "<|begin_of_text|> (0) before and <|end_of_text|> (1) after each document")
        self.documents("qwen.json", [0], [], "<|endoftext|> (0) before each document")
        self.documents("neox.json", [0], [], "<|endoftext|> (0) before each document")
        for kind in ("llama.model", "legacy.json", "first.json"):
            self.documents(kind, [1], [2], "<s> (1) before and </s> (2) after each document")

    def test_cutting_a_text_changes_no_token(self):
        text = base.words(9, 9000)  # has many units
        source = self.write("one.txt", text)
        size = os.path.getsize(source)
        cut = next(base.prepare_inputs.cuts("text", source, size, prepare_tokenizers.places_before("\n")))
        cut = len(text.encode()[:cut].decode())
        parsed = base.read_json(os.path.join(KINDS, "qwen.json"))
        parsed["added_tokens"].append({**parsed["added_tokens"][1], "content": text[cut - 1:cut + 2], "id": 385})
        spanning = self.write("spanning.json", json.dumps(parsed))  # has a token that spans the line end of a cut
        paths = [os.path.join(KINDS, kind) for kind in sorted(os.listdir(KINDS)) if kind.endswith((".json", ".model"))]
        for path in paths + [spanning]:
            tokenizer = prepare_tokenizers.open_tokenizer(path)
            cuts = list(base.prepare_inputs.cuts("text", source, size, tokenizer.places))
            # without cuts: unknown characters on both sides of a cut would be one token in the undivided text
            self.assertEqual(len(cuts) < 5, path == spanning or path.endswith("unknown.model"), path)
            whole = list(array.array("H", tokenizer.encode([text.encode()])[0]))
            got, _, _ = self.prepared(path, source)
            # assertTrue, because assertEqual would take minutes to explain a difference
            self.assertTrue(got == tokenizer.before + whole + tokenizer.after, path)

    def test_choice_between_tokenizer_json_and_tokenizer_model(self):
        model, made = self.path("f/tokenizer.model"), self.path("f/tokenizer.json")
        own = base.read_bytes(os.path.join(KINDS, "legacy.json"))
        self.write("f/tokenizer.json", own.replace(b'"type":"BPE",', b'"type":"BPE","made_from":"tokenizer.model",'))
        for text, found in (None, made), (b"", model), (own, made):
            if text is not None:
                self.write("f/tokenizer.model" if text == b"" else "f/tokenizer.json", text)
            self.assertEqual(prepare_tokenizers.Pairs.find(self.path("f")), found)
            self.assertEqual(prepare_tokenizers.Pairs.find(made), made)  # a path to the file itself is not redirected

    # --- long documents

    def ours(self, path, texts):
        """Returns the trainer's ids of texts."""
        done = subprocess.run([TOKENIZE, path, self.write("texts", "\0".join(texts))], capture_output=True, check=True)
        rows = [[]]
        for token in array.array("I", done.stdout):
            rows.append([]) if token == 0xFFFFFFFF else rows[-1].append(token)
        return rows[:-1]

    def test_dividing_a_document_anywhere_changes_no_token(self):
        """A document divided anywhere has the same tokens as undivided, and the same as in the trainer."""
        pick = random.Random(4)
        ends = [" ", "  ", "\n", "\n\n", ".", ",", "\u3002", "\u3001", "\t", "'s", "\u0301", "<|extra|>", " \u5b57"]
        texts = ["".join(pick.choice(["the", "x", "\u5b57", "12345", "caf\u00e9", ")"]) + pick.choice(ends)
                         for _ in range(60)) for _ in range(60)] + [base.words(6, 3000)]
        for kind in sorted(os.listdir(KINDS)):
            if not kind.endswith((".json", ".model")):
                continue
            path = os.path.join(KINDS, kind)
            tokenizer, encoded = prepare_tokenizers.open_tokenizer(path), [text.encode() for text in texts]
            whole, parts = tokenizer.encode(encoded), 0
            for length in (1, 7, 40):
                with unittest.mock.patch.object(prepare_tokenizers, "PART", length):
                    parts += sum(len(tokenizer.divide(text)) for text in texts)
                    self.assertTrue(tokenizer.encode(encoded) == whole, (kind, length))
            self.assertGreater(parts, 3000)
            if os.path.exists(TOKENIZE):
                self.assertTrue([list(array.array("H", row)) for row in whole] == self.ours(path, texts), kind)

    def test_tokens_that_join_words_prevent_division(self):
        parsed = base.read_json(os.path.join(KINDS, "first.json"))
        path = self.write("j/tokenizer.json", json.dumps(parsed))
        self.assertIn(" ", prepare_tokenizers.open_tokenizer(path).places.pattern)
        added = dict(parsed["added_tokens"][0], special=False, id=560)
        for token in ({"content": "x y"}, {"content": "x\u2581y"}, {"content": "xyzzy", "rstrip": True}):
            parsed["added_tokens"][3:] = [{**added, **token}]
            self.write("j/tokenizer.json", json.dumps(parsed))
            pattern = prepare_tokenizers.open_tokenizer(path).places.pattern
            self.assertEqual((" " in pattern, "," in pattern), (False, True))
        del parsed["added_tokens"][3:]
        parsed["model"]["vocab"]["e\u2581"] = 560
        self.write("j/tokenizer.json", json.dumps(parsed))
        self.assertNotIn(" ", prepare_tokenizers.open_tokenizer(path).places.pattern)

    def test_packages_get_texts_of_bounded_length(self):
        """A package never gets more than one part, or one batch of small documents, at once."""
        lengths, text = [], base.words(8, 30000)
        source = self.write("d.jsonl", json.dumps({"text": text}) + 500 * '\n{"text": "the model"}')
        for kind in ("qwen.json", "legacy.json", "llama.model"):
            model = type(prepare_tokenizers.open_tokenizer(os.path.join(KINDS, kind)))
            original = model.ids

            def counting(tokenizer, texts):
                lengths.append(sum(map(len, texts)))
                return original(tokenizer, texts)

            expected = self.prepared(os.path.join(KINDS, kind), source)[0]
            with unittest.mock.patch.object(prepare_tokenizers, "PART", 1000), \
                    unittest.mock.patch.object(model, "ids", counting):
                self.assertTrue(self.prepared(os.path.join(KINDS, kind), source)[0] == expected)
            self.assertLess(max(lengths), 2100)

    def test_text_that_cannot_be_divided_is_refused(self):
        kind = os.path.join(KINDS, "qwen.json")
        word = "x" * (prepare_tokenizers.MAX_PART + 10)
        lines = json.dumps({"text": "a"}) + "\n" + json.dumps({"text": word}) + "\n"
        source = self.write("d.jsonl", lines)
        arguments = ("--tokenizer", kind, "--overwrite", "--val-fraction", 0, "--out", self.path("l"), "--workers")
        for workers in (1, 2):
            self.refused(["d.jsonl, line 2: 8,388,618 characters have no space", "at most 8,388,608"], *arguments, workers,
                         source)
        arguments += (1,)
        with unittest.mock.patch.multiple(prepare_tokenizers, PART=5, MAX_PART=200):
            self.refused(["t.txt: 300 characters have no space"], *arguments, self.write("t.txt", "x" * 300))
            text = "a<|endoftext|>%s<|endoftext|>b" % ("x" * 300)
            self.refused(["s.txt, document at byte 14: 300 characters"], *arguments, self.write("s.txt", text))
            self.refused(["h.jsonl: 300 characters"], *arguments, "--hellaswag", self.write("h.jsonl", json.dumps(
                {"ctx": "x" * 300, "endings": ["a", "b", "c", "d"], "label": 2}) + "\n"))
            chat = self.write("c.jsonl", '\n{"prompt": "a", "response": "b"}\n{"prompt": "a", "response": "%s"}' % (
                "x" * 300))
            self.refused(["c.jsonl, line 3: 300 characters"], *arguments, "--chat", "--prompt-format", "plain", chat)

    def test_panic_of_a_package_is_reported(self):
        """An error that does not derive from Exception is reported like any other."""
        class Panic(BaseException):
            pass

        def panicking(_, texts):
            if any("PANIC" in text for text in texts):
                raise Panic("called unwrap()\non an Err")
            return [[0]] * len(texts)

        kind = os.path.join(KINDS, "qwen.json")
        source = self.write("d.jsonl", '{"text": "a"}\n{"text": "PANIC"}\n{"text": "b"}')
        arguments = ("--tokenizer", kind, "--workers", 1, "--overwrite", "--out", self.path("l"))
        model = type(prepare_tokenizers.open_tokenizer(kind))
        with unittest.mock.patch.object(model, "ids", panicking), unittest.mock.patch.object(model, "check_ids"):
            self.refused(["d.jsonl, line 2: the tokenizer fails (called unwrap())"], *arguments, source)
            chat = self.write("c.jsonl", '{"prompt": "a", "response": "b"}\n{"prompt": "PANIC", "response": "b"}')
            self.refused(["c.jsonl, line 2: the tokenizer fails"], *arguments, "--chat", "--prompt-format", "plain", chat)
        import tokenizers

        path = self.write("p/tokenizer.json", json.dumps({"model": {}}))
        with unittest.mock.patch.object(tokenizers, "Tokenizer", unittest.mock.Mock(**{"from_file.side_effect": Panic("x")})):
            self.refused([path + ": is not a tokenizer.json (x)"], "--tokenizer", path, "--out", self.path("l"), source)

    # --- ids

    def test_added_tokens_with_other_ids_are_refused(self):
        """A tokenizer is refused if the package gives a token another id than the file, which the trainer uses."""
        parsed = base.read_json(os.path.join(KINDS, "qwen.json"))
        source, own = self.write("a.txt", "a<x>b"), list(parsed["added_tokens"])
        word = max(filter(str.isascii, parsed["model"]["vocab"]), key=lambda name: (name.isalpha(), len(name)))

        def added(content, number, **flags):
            return dict(own[1], content=content, id=number, **flags)

        def path_of(tokens):
            return self.write("t/tokenizer.json", json.dumps(dict(parsed, added_tokens=own + tokens)))

        cases = [([added("<x>", 900)], '"<x>" has the id 900', "as 385"),
                 ([added("<x>", 900, special=True)], '"<x>" has the id 900', "as 385"),
                 ([added("<y>", 386), added("<x>", 385)], '"<y>" has the id 386', "as 385"),
                 ([added("<x>", 385), added("<x>", 386)], '"<x>" is listed twice', "385 and 386"),
                 ([added("<x>", 385), added("<x>", 385, special=True)], '"<x>" is listed twice', "385 and 385"),
                 ([added("the", 5)], '"the" has the id 5 ', "as 385"),
                 ([added("<|endoftext|>", 385)], '"<|endoftext|>" is listed twice', "0 and 385"),
                 ([added("e\u0301", 385, normalized=True), added("\u212b", 386, normalized=True),
                   added("A\u030a", 387, normalized=True)], '"A\u030a" has the id 387', "as 386"),
                 ([added(word, 385)], '"%s" has the id 385' % word, "as %d" % parsed["model"]["vocab"][word])]
        for tokens, *expected in cases:
            path = path_of(tokens)
            self.refused([path, *expected], "--tokenizer", path, "--out", self.path("l"), source)
        tokens = [added("e\u0301", 385, normalized=True), added("<x>", 386),
                  added("the m", 387, normalized=True), added("\u00e9<x>", 388), added("", 389)]
        path, texts = path_of(tokens), ["ae\u0301 \u00e9 a<x>b\u00e9<x>", "the model the"]
        got = prepare_tokenizers.open_tokenizer(path).encode([text.encode() for text in texts])
        self.assertEqual(list(array.array("H", got[1]))[:1], [387])
        if os.path.exists(TOKENIZE):
            self.assertEqual([list(array.array("H", row)) for row in got], self.ours(path, texts))
            self.assertEqual(self.ours(path_of(cases[0][0]), ["<x>"]), [[900]])  # unlike the package's id, 385

    def test_single_text_has_bos_and_eos_in_both_splits(self):
        source = self.write("one.txt", base.words(3, 9000))
        path = os.path.join(KINDS, "llama.model")
        self.run_program("--tokenizer", path, "--out", self.path("v"), "--workers", 2, "--val-fraction", 0.3, source)
        for split in ("train", "val"):
            tokens, _ = self.tokens("v_%s_000000.bin" % split)
            self.assertEqual([tokens[0], tokens[-1], tokens.count(1), tokens.count(2)], [1, 2, 1, 1])

    def wide(self):
        parsed = base.read_json(os.path.join(KINDS, "llama3.json"))
        parsed["post_processor"] = None
        parsed["model"]["vocab"]["<|endoftext|>"] = 70000
        parsed["added_tokens"].append(dict(parsed["added_tokens"][0], id=70000, content="<|endoftext|>"))
        return self.write("tokenizer.json", json.dumps(parsed))

    def test_large_vocabulary_gives_uint32_tokens(self):
        source = self.write("one.txt", "the model")
        got, out, _ = self.prepared(self.wide(), source)
        self.assertEqual(self.tokens("p_train_000000.bin")[1], 4)
        self.assertEqual(got[0], 70000)
        self.assertIn("70,001 tokens, uint32; <|endoftext|> (70000) before each document", out)

    def hellaswag(self, kind):
        line = {"ctx": "the model", "endings": ["is", "a", "the step", "x"], "label": 2}
        source = self.write("h.jsonl", json.dumps(line) + "\n")
        self.run_program("--tokenizer", kind, "--out", self.path("h"), "--hellaswag", source)
        return base.read_bytes(self.path("h.bin"))

    def test_hellaswag_file_of_a_large_vocabulary(self):
        data = self.hellaswag(self.wide())
        self.assertEqual(list(array.array("i", data[:12])), [20240522, 2, 1])
        words = array.array("I", data[1024:])
        self.assertEqual(list(words[:5]), [65535, 4 * len(words), 0, 2, 4])
        path = os.path.join(KINDS, "llama.model")
        words = array.array("H", self.hellaswag(path)[1024:])
        count, pieces = words[5], prepare_tokenizers.open_tokenizer(path).pieces
        self.assertEqual(list(words[6:6 + count]), [1] + pieces.encode("the model"))  # <s> is the BOS token
        at = 6 + count
        self.assertEqual(pieces.decode(list(words[6:at]) + list(words[at + 1:at + 1 + words[at]])), "the model is")

    def test_tokenizer_config_sets_bos(self):
        path = self.write("c/tokenizer.json", base.read_bytes(os.path.join(KINDS, "llama3.json")))
        self.assertEqual(prepare_tokenizers.open_tokenizer(os.path.dirname(path)).before, [0])
        self.write("c/tokenizer_config.json", '{"add_bos_token": false, "eos_token": "<|end_of_text|>"}')
        self.assertEqual(prepare_tokenizers.open_tokenizer(path).before, [1])

    def ends(self, name, data, config):
        """Checks that the trainer and prepare.py find the same BOS and EOS ids (-1: none). Returns them."""
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
    def test_end_of_text_token_is_found(self):
        parsed = base.read_json(os.path.join(KINDS, "qwen.json"))
        vocab, added = parsed["model"]["vocab"], parsed["added_tokens"][0]
        del vocab[added["content"]]
        names = "</s>", "<eos>", "<|endoftext|>", "<|end|>", "<|im_end|>"
        # These names are ordinary text, as </s> is in Qwen's vocabulary, unless a case makes them special tokens or
        # the eos_token.
        vocab.update({name: 390 + i for i, name in enumerate(names)})
        cases = [  # special tokens, eos_token, the expected EOS token
            (("<|end|>",), None, -1), (("<|end|>",), "absent", -1), (("<|end|>", "<|im_end|>"), "<|end|>", 393),
            (("</s>", "<|im_end|>"), "<|im_end|>", 390),  # not <|im_end|>, because it ends an answer
            (("</s>", "<eos>", "<|endoftext|>"), "<eos>", 392), (("<|end|>",), "</s>", 390)]
        for names, eos, end in cases:
            parsed["added_tokens"] = [dict(added, id=vocab[name], content=name, special=True) for name in names]
            self.assertEqual(self.json_ends(parsed, {"eos_token": eos}), (-1, end), names)
        # an HTML tag, as in Gemma's vocabulary
        parsed["added_tokens"] = [dict(added, id=390, content="</s>", special=False)]
        self.assertEqual(self.json_ends(parsed, {}), (-1, -1))

    @unittest.skipUnless(os.path.exists(TOKENIZE), "build/tokenize is not built")
    def test_bos_token_is_found(self):
        parsed = base.read_json(os.path.join(KINDS, "llama3.json"))
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
    def test_bos_and_eos_of_sentencepiece_models(self):
        data = base.read_bytes(os.path.join(KINDS, "llama.model"))
        text = data  # <s> and </s> are user-defined pieces, which text can contain
        for name in b"<s>", b"</s>":
            text = text.replace(name + b"\x15\0\0\0\0\x18\x03", name + b"\x15\0\0\0\0\x18\x04")
        add = {"add_bos_token": True, "bos_token": "</s>", "eos_token": "<s>"}
        for model, config, expected in ((data, {}, (1, 2)), (data, {"add_bos_token": False}, (-1, 2)), (data, add, (2, 2)),
                                        (text, {}, (-1, -1)), (text, add, (2, 1))):
            self.assertEqual(self.ends("tokenizer.model", model, config), expected, config)

    def test_unsupported_tokenizers_are_refused(self):
        source, out = self.write("a.txt", "text\n"), self.path("e")
        bad = {"x/tokenizer.json": ('{"model": {}}', "not a tokenizer.json"), "y.json": ("[", "not a vocabulary"),
               "z/tokenizer.model": ("IQ== 0\n", "tiktoken's ranks"),
               "w/tokenizer.json": ('{"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}',
                                    "not a tokenizer.json")}
        for name, (text, expected) in bad.items():
            self.refused([expected], "--tokenizer", self.write(name, text), "--out", out, source)


if __name__ == "__main__":
    base.run(ModelsTest)
