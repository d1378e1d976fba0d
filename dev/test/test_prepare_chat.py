#!/usr/bin/env python3
"""Tests data/prepare.py --chat: examples from records, their loss masks, and errors for bad records.

    python3 dev/test/test_prepare_chat.py

test_prepare_prompts.py tests the formats that need a model's tokens.
"""
import array
import json
import os
import unittest
import unittest.mock

import test_prepare as base  # noqa: E402

import prepare_chat  # noqa: E402
import prepare_masks  # noqa: E402

prepare = base.prepare
PLAIN = ("--bytes", "--chat", "--prompt-format", "plain")


def messages(*contents, system=None):
    roles = ("user", "assistant")
    made = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return ([{"role": "system", "content": system}] if system is not None else []) + made


def marked(expected, special):
    """Returns (ids, mask) of a text in which [[ ]] enclose tokens with a loss. special: {letter: ids that replace it}; the
    letter @ has no loss, even inside [[ ]]."""
    ids, mask = [], []
    for number, part in enumerate(expected.replace("]]", "[[").split("[[")):
        for letter in part:
            made = special.get(letter) or list(letter.encode())
            ids += made
            mask += [number % 2 * (letter != "@")] * len(made)
    return ids, mask


class ChatCase(base.Case):
    def read(self, name, version=1):
        """Returns [(ids, mask), ...] of a file's examples. Checks the rest of the file."""
        data = base.read_bytes(self.path(name))
        magic, found, count, width, examples, counted = array.array("i", data[:24])
        self.assertEqual((magic, found), (20261124, version))
        self.assertEqual(prepare_masks.xxh64(data[:32] + bytes(8) + data[40:]).to_bytes(8, "little"), data[32:40])
        self.assertEqual(data[40:1024], bytes(984))
        end = 1024 + count * width
        ids, starts = array.array("H" if width == 2 else "I", data[1024:end]), array.array("I")
        starts.frombytes(data[end:end + 4 * examples])
        bits = data[end + 4 * examples:]
        self.assertEqual(len(bits), (count + 7) // 8)
        mask = [bits[i // 8] >> i % 8 & 1 for i in range(8 * len(bits))]
        self.assertEqual(sum(mask), counted)
        self.assertEqual((starts[0], mask[count:]), (0, [0] * (-count % 8)))
        ends = list(starts[1:]) + [count]
        return [(list(ids[a:b]), mask[a:b]) for a, b in zip(starts, ends)]

    def prepared(self, records, *arguments, tokenizer=("--bytes",)):
        source = self.write("r.jsonl", "".join(json.dumps(record) + "\n" for record in records))
        self.said = self.run_program(*tokenizer, "--chat", "--out", self.path("c"), "--workers", 1, "--val-fraction", 0,
                                     "--overwrite", *arguments, source)
        return self.read("c_train_000000.bin")


class ChatTest(ChatCase):
    def test_empty_validation_prints_a_note(self):
        source = self.write("one.jsonl", json.dumps({"prompt": "question", "response": "answer"}) + "\n")
        _, errors = self.run_program(*PLAIN, "--out", self.path("o"), "--val-fraction", "1e-6", source)
        self.assertRegex(errors, "^no example was chosen for validation; .*\n$")

    def held_out(self, lines, *more):
        """Returns the validation examples of a file with these lines."""
        source = self.write("h.jsonl", "".join(line + "\n" for line in lines))
        self.run_program(*PLAIN, "--out", self.path("h"), "--workers", 1, "--val-fraction", 0.3, "--overwrite", *more,
                         source)
        return [ids for ids, _ in self.read("h_val_000000.bin")]

    def test_split_of_an_example_does_not_depend_on_its_record(self):
        """An example gets the same split, whatever its record's key order, spaces, escapes or kind."""
        made = [["caf\u00e9 %d" % i, "a%d" % i] for i in range(60)]
        asked = [json.dumps({"prompt": q, "response": a}) for q, a in made]
        val = self.held_out(asked)
        self.assertTrue(5 <= len(val) <= 35)
        others = [json.dumps({"response": a, "id": 1, "prompt": q}, ensure_ascii=False) for q, a in made]
        others = [others, [line.replace(":", " : ") for line in asked], [json.dumps(
            {"messages": [{"content": q, "role": "user"}, {"role": "assistant", "name": "x", "content": a}]})
            for q, a in made]]
        for lines in others:
            self.assertEqual(self.held_out(lines), val)
        self.assertEqual(len(self.held_out(asked + others[0])), 2 * len(val))
        ids = [[i, i + 1, i + 2] for i in range(60)]
        val = self.held_out([json.dumps({"input_ids": row, "labels": [-100] + row[1:]}) for row in ids])
        self.assertTrue(5 <= len(val) <= 35)
        self.assertEqual(self.held_out(['{"labels":[-100,%d,%d],"text":"x","input_ids":[%d,%d,%d]}' % (*row[1:], *row)
                                        for row in ids]), val)

    def test_large_validation_fraction_prints_a_note(self):
        lines = {part: next(turns for turns in (messages("q%d" % i, "a") for i in range(1000)) if prepare.is_val(
            prepare_chat.identity_of(turns), 0.05) == (part == "val")) for part in ("train", "val")}
        source = self.write("few.jsonl", "".join(json.dumps({"messages": turns}) + "\n" for turns in lines.values()))
        _, errors = self.run_program(*PLAIN, "--out", self.path("few"), "--val-fraction", 0.05, "--workers", 1, source)
        self.assertRegex(errors, r"^note: \d+ % of the text is held out for validation, as examples .* --val-fraction\n$")

    def check_bytes(self, record, expected, *arguments):
        """Checks the example of a record. expected: the text of marked(), in which E is the EOS token."""
        self.assertEqual(self.prepared([record], *arguments), [marked(expected, {"E": [256]})])

    def test_checksum_equals_published_xxh64_values(self):
        for text, hash_ in ((b"", 0xEF46DB3751D8E999), (b"a", 0xD24EC4F1A98C6E5B), (b"abc", 0x44BC2CF5AD770999),
                            (b"as", 0x1C330FB2D66BE179), (b"Nobody inspects the spammish repetition",
                                                          0xFBCEA83C8A378BF1)):
            self.assertEqual(prepare_masks.xxh64(text), hash_)

    def test_alpaca_format(self):
        def check(record, head, rest):
            text = ("Below is an instruction that describes a task%s. Write a response that appropriately completes "
                    "the request.\n\n### Instruction:\n%s")
            self.check_bytes(record, text % (head, rest), "--prompt-format", "alpaca")

        check({"instruction": "Do", "input": "", "output": "done"}, "", "Do\n\n### Response:\n[[doneE]]")
        check({"instruction": "Do", "input": "it", "output": "caf\u00e9"},
              ", paired with an input that provides further context",
              "Do\n\n### Input:\nit\n\n### Response:\n[[caf\u00e9E]]")
        check({"prompt": "q", "response": " a\n"}, "", "q\n\n### Response:\n[[ a\nE]]")
        check({"query": "q", "response": " a\n"}, "", "q\n\n### Response:\n[[ a\nE]]")
        self.check_bytes({"messages": messages("1", "2", "3", "4", system="S")},
                         "S\n\n### Instruction:\n1\n\n### Response:\n[[2E]]"
                         "### Instruction:\n3\n\n### Response:\n[[4E]]", "--prompt-format", "alpaca")

    def test_plain_format(self):
        plain = ("--prompt-format", "plain")
        self.check_bytes({"prompt": "2+2=", "response": "4"}, "2+2=[[4E]]", *plain)
        self.check_bytes({"instruction": "i", "input": "x", "output": "o"}, "i\n\nx[[oE]]", *plain)
        self.check_bytes({"messages": messages("a", "b", "c", "d", system="s")}, "sa[[bE]]c[[dE]]", *plain)
        self.check_bytes({"prompt": "ab", "response": "c"}, "a[[bcE]]", *plain, "--trained", "all")

    def test_sharegpt_conversations(self):
        turns = [{"from": speaker, "value": value} for speaker, value in
                 (("human", "a"), ("gpt", "b"), ("user", "c"), ("assistant", "d"))]
        plain = ("--prompt-format", "plain")
        self.check_bytes({"conversations": turns}, "a[[bE]]c[[dE]]", *plain)
        self.check_bytes({"id": "x", "conversations": turns, "system": "s"}, "sa[[bE]]c[[dE]]", *plain)
        self.check_bytes({"conversations": [{"from": "system", "value": "s"}] + turns[:2]}, "sa[[bE]]", *plain)

    def test_records_of_tokens_and_labels(self):
        got = self.prepared([{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, -100, 8]},
                             {"prompt": "a", "response": "b", "input_ids": [9, 10], "labels": [9, 10]}])
        self.assertEqual(got, [([5, 6, 7, 8], [0, 1, 0, 1]), ([9, 10], [0, 1])])  # no token predicts the first one
        self.assertIn("2 examples, the longest of 4 tokens; 50 % of all tokens have a loss", self.said[0])
        self.assertEqual(self.prepared([{"input_ids": [5, 6, 7]}], "--trained", "all"), [([5, 6, 7], [0, 1, 1])])

    def test_answer_of_weight_0_has_no_loss(self):
        """An answer with weight 0 has no loss. All tokens stay the same."""
        plain = ("--prompt-format", "plain")
        turns = messages("a", "b", "c", "d")
        for weights, expected in (((0, 1), "abEc[[dE]]"), ((1, 0), "a[[bE]]cdE"), ((1, 1.0), "a[[bE]]c[[dE]]"),
                                  ((None, 0), "a[[bE]]cdE")):
            turns[1]["weight"], turns[3]["weight"] = weights
            self.check_bytes({"messages": turns}, expected, *plain)
        turns[0]["weight"] = 1  # a question never has a loss
        self.check_bytes({"messages": turns}, "a[[bE]]cdE", *plain)
        self.check_bytes({"messages": turns}, "a[[bEcdE]]", *plain, "--trained", "all")
        said = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 0}]
        self.check_bytes({"conversations": said + [{"from": "gpt", "value": "c"}]}, "abE[[cE]]", *plain)

    def test_trained_last_masks_earlier_answers(self):
        """With --trained last, only the last answer with a non-zero weight has a loss."""
        last = ("--prompt-format", "plain", "--trained", "last")
        turns = messages("a", "b", "c", "d")
        self.check_bytes({"messages": turns}, "abEc[[dE]]", *last)
        self.check_bytes({"messages": turns + messages("e")}, "abEc[[dE]]e", *last)
        self.check_bytes({"prompt": "a", "response": "b"}, "a[[bE]]", *last)
        turns[3]["weight"] = 0
        self.check_bytes({"messages": turns}, "a[[bE]]cdE", *last)
        for labels, mask in (([-100, 2, 3, -100, 5, 6, -100], [0, 0, 0, 0, 1, 1, 0]), ([1, 2, -100, 4, -100, -100, 7],
                             [0, 0, 0, 0, 0, 0, 1]), ([1, 2, 3, 4, 5, 6, 7], [0] + [1] * 6)):
            self.assertEqual(self.prepared([{"input_ids": [1, 2, 3, 4, 5, 6, 7], "labels": labels}], *last),
                             [([1, 2, 3, 4, 5, 6, 7], mask)])
        turns[1]["weight"] = 0
        source = self.write("none.jsonl", json.dumps({"messages": turns}))
        self.refused(["line 1: none of its 6 tokens has a loss"], *PLAIN, *last[2:], "--out", self.path("n"), source)

    def test_padding_of_token_records_is_removed(self):
        record = {"input_ids": [0, 0, 5, 6, 7, 0], "labels": [-100, -100, -100, 6, 7, -100],
                  "attention_mask": [0, 0, 1, 1, 1, 0]}
        self.assertEqual(self.prepared([record]), [([5, 6, 7], [0, 1, 1])])
        self.assertEqual(self.prepared([{**record, "labels": None}], "--trained", "all"), [([5, 6, 7], [0, 1, 1])])
        record["input_ids"][0], record["labels"][5] = 999, 0  # padding is not checked
        whole = {"input_ids": [1, 2], "labels": [1, 2], "attention_mask": None}
        self.assertEqual(self.prepared([record, whole]), [([5, 6, 7], [0, 1, 1]), ([1, 2], [0, 1])])

    def test_long_example_gets_its_own_file(self):
        long = {"prompt": "x" * 50000, "response": "y" * 49999}
        got = self.prepared([long, {"prompt": "a", "response": "b"}], *PLAIN[2:], "--shard-tokens", 1000)
        # this example gets a separate file
        self.assertEqual(got, [([120] * 50000 + [121] * 49999 + [256], [0] * 50000 + [1] * 50000)])
        self.assertEqual(self.read("c_train_000001.bin"), [([97, 98, 256], [0, 1, 1])])
        self.assertIn("the longest of 100,000 tokens", self.said[0])

    # --- files

    def many(self, count):
        return "".join(json.dumps({"prompt": base.words(i, 5), "response": "a" + base.words(i + 1000, i % 17)}) + "\n"
                       for i in range(count))

    def test_examples_do_not_depend_on_shards_and_workers(self):
        source, outs = self.write("m.jsonl", self.many(300)), []
        for workers, shard in ((1, 10**9), (2, 3000), (1, 700)):
            out, got = "w%d" % shard, {"train": [], "val": []}
            self.run_program(*PLAIN, "--out", self.path(out), "--workers", workers, "--shard-tokens", shard,
                             "--val-fraction", 0.2, source)
            for name in sorted(os.listdir(self.folder)):
                if name.startswith(out + "_") and name.endswith(".bin"):
                    rows = self.read(name)
                    self.assertTrue(sum(len(ids) for ids, _ in rows) <= shard)
                    got[name.split("_")[1]] += rows
            self.assertEqual(len(got["train"]) + len(got["val"]), 300)
            self.assertTrue(30 <= len(got["val"]) <= 90)
            outs.append(got)
        self.assertEqual(outs, outs[:1] * 3)

    def test_killed_run_continues_with_the_same_bytes(self):
        source = self.write("m.jsonl", self.many(200))
        arguments = [*PLAIN, "--workers", "1", "--shard-tokens", "1500", "--val-fraction", "0.3", source]
        arguments += ["--out", self.path("r")]
        self.run_program(*arguments)
        expected = self.snapshot()
        self.assertGreater(len(expected), 8)
        self.assertGreater(self.stop_everywhere(arguments, expected), 3)
        self.assertIn("already complete", self.run_program(*arguments)[0])
        self.refused(["trained (answers, now all)", "--overwrite"], *arguments, "--trained", "all")
        of_chat = ("--chat", "--prompt-format", "plain")
        self.refused(["field (None, now text)"], *[argument for argument in arguments if argument not in of_chat])

    # --- errors

    def test_malformed_records_are_refused_or_skipped(self):
        good = json.dumps({"prompt": "a", "response": "b"})
        bad = [
            ('{"prompt": "a"', "it is not JSON (Expecting ',' delimiter, column 15)"),
            ("[" * 100000, "it is not JSON"),
            ("[1]", "not a JSON object"),
            ({"text": "x"}, "it has none of messages"),
            ({"prompt": "a"}, "it has prompt but no response"),
            ({"prompt": "a", "response": None}, "it has prompt but no response"),
            ({"query": "a"}, "it has query but no response"),
            ({"response": "b"}, "it has response but no prompt or query"),
            ({"instruction": "a", "response": "b"}, "it has instruction but no output"),
            ({"prompt": "a", "completion": "b"}, "it has prompt and completion: did you mean prompt and response?"),
            ({"question": "a", "answer": "b"}, "it has question and answer: did you mean prompt and response?"),
            ({"prompt": "a", "response": "b", "instruction": "c", "output": "d"},
             "it has prompt, response, instruction and output, which are keys of 2 "
             "kinds of records"),
            ({"query": "c", "prompt": "a", "response": "b"}, "it has query, prompt and response, which are keys of 2"),
            ({"prompt": "a", "response": ""}, "its answer is empty"),
            ({"prompt": "a", "response": " \n"}, "its answer is empty"),
            ({"prompt": 1, "response": "b"}, '"prompt" is not text'),
            ({"instruction": "a", "input": 3, "output": "b"}, '"input" is not text'),
            ({"messages": []}, "not a list of messages"),
            ({"conversations": []}, "not a list of turns"),
            ({"conversations": [{"from": "human"}]}, 'lacks a "value"'),
            ({"conversations": [{"from": "dog", "value": "x"}]}, '"from" "dog"'),
            ({"conversations": ["x"]}, 'lacks a "value"'),
            ({"conversations": [{"from": ["a"], "value": "x"}]}, '"from" ["a"]'),
            ({"conversations": [{"from": "gpt", "value": "x"}], "system": 1}, '"system" is not text'),
            ({"conversations": [{"from": "human", "value": "x"}]}, "it has no answer"),
            ({"messages": "x"}, "not a list of messages"),
            ({"messages": ["x"]}, 'lacks a "role"'),
            ({"messages": [{"role": "user"}]}, 'lacks a "content"'),
            ({"messages": messages("a")}, "it has no answer"),
            ({"messages": [{"role": "tool", "content": "x"}] + messages("a", "b")}, 'role "tool" is not one of'),
            ({"input_ids": [1, 257], "labels": [1, 257]}, "token 257 is outside the vocabulary of 257"),
            ({"input_ids": [1, -1], "labels": [1, -1]}, "token -1 is outside"),
            ({"input_ids": [1, 2]}, '"labels" is not a list'),
            ({"input_ids": [1, 2], "labels": [1]}, '"labels" is not a list'),
            ({"input_ids": [1, 2], "labels": [-100, 3]}, "a label is 3; it must be -100"),
            ({"input_ids": [1, 2], "labels": [None, 2]}, "a label is null; it must be -100"),
            ({"messages": [*messages("a"), {"role": "assistant", "content": "b", "weight": 0}]}, "tokens has a loss"),
            *(({"messages": [*messages("a"), {"role": "assistant", "content": "b", "weight": weight}]},
               "the weight of a turn is %s, not 0 or 1" % json.dumps(weight)) for weight in (2, 0.5, "1", True, [0])),
            *(({"input_ids": [1, 2], "labels": [1, 2], "attention_mask": mask},
               '"attention_mask" is not a list of 0 and 1') for mask in ([1], [1, 1, 1], [1, 2], [1, True], [1, None], 1)),
            ({"input_ids": [1, 2], "labels": [1], "attention_mask": [1, 0]}, '"labels" is not a list as long as'),
            ({"input_ids": [1, 2], "labels": [1, 2], "attention_mask": [0, 0]}, "none of its 0 tokens has a loss"),
            ({"input_ids": [1, True], "labels": [1, 1]}, "not a list of whole numbers"),
            ({"input_ids": [1, 2], "labels": [1, -100]}, "none of its 2 tokens has a loss"),
            ({"input_ids": [], "labels": []}, "none of its 0 tokens"),
        ]
        lines = [record if isinstance(record, str) else json.dumps(record) for record, _ in bad]
        arguments = (*PLAIN, "--overwrite", "--out", self.path("b"), "--workers")
        for line, (_, reason) in zip(lines, bad):
            source = self.write("bad.jsonl", "\n%s\n\n%s\n%s" % (good, line, good))
            self.refused(["bad.jsonl, line 4: ", reason, "--skip-malformed"], *arguments, 1, source)
        # an error in a later unit, which another process reads
        source = self.write("far.jsonl", self.many(300) + lines[0] + "\n")
        self.refused(["far.jsonl, line 301: it is not JSON"], *arguments, 2, source)
        source = self.write("latin1.jsonl", good.encode() + b'\n{"prompt": "caf\xe9", "response": "b"}\n')
        self.refused(["latin1.jsonl, line 2: it is not UTF-8 (byte 0xe9 in column 16); if it is Latin-1, run iconv -f "
                      "latin1 -t utf-8 %s >NEW.jsonl" % source], *arguments, 1, source)
        source = self.write("skip.jsonl", "\n".join(lines + [good]))
        out, errors = self.run_program(*arguments, 1, "--skip-malformed", "--val-fraction", 0, source)
        self.assertEqual(self.read("b_train_000000.bin"), [([97, 98, 256], [0, 1, 1])])
        self.assertIn("; %d malformed records were skipped" % len(bad), out)
        self.assertEqual(errors.count("skipped: "), 10)
        source = self.write("turns.jsonl", json.dumps({"messages": messages("a", "b", "c")}))
        for name in ("alpaca", "llama2"):
            self.refused(["line 1: user and assistant"], *arguments, 1, source, "--prompt-format",
                         name)

    def test_malformed_record_next_to_a_valid_one_is_skipped(self):
        got = self.prepared([{"prompt": "a"}, {"input_ids": [5, 6], "labels": [5, 6]}], "--skip-malformed")
        self.assertEqual(got, [([5, 6], [0, 1])])
        self.assertRegex(self.said[0], "\n1 example, the longest of 2 tokens; 50 % of all tokens have a loss; 1 malformed "
                         "record was skipped\n$")

    def test_skipped_records_are_counted_in_every_run(self):
        """Skipped records are also counted by a run that finds complete files, and by one that continues."""
        lines = self.many(300).splitlines()
        lines[::20] = ["{"] * 15
        source, original = self.write("m.jsonl", "\n".join(lines)), prepare.work
        arguments = (*PLAIN, "--skip-malformed", "--workers", 1, "--shard-tokens", 700, "--val-fraction", 0.2, "--out",
                     self.path("r"), source)
        said = self.run_program(*arguments)[0].splitlines()[-1]
        self.assertIn("285 examples", said)
        self.assertIn("; 15 malformed records were skipped", said)
        self.assertEqual(self.run_program(*arguments)[0].splitlines()[-1], said)
        for name in ("r_val_000000.bin", "r_train_000003.bin"):
            os.remove(self.path(name))
            out, errors = self.run_program(*arguments)
            self.assertEqual(out.splitlines()[-1], said)
            self.assertIn(name + " is missing", errors)
        jobs = []

        def dying(job):
            jobs.append(job)
            if len(jobs) == 4:
                raise KeyboardInterrupt
            return original(job)

        with unittest.mock.patch.object(prepare, "work", dying):
            self.run_program(*arguments, "--overwrite", code=130)
        self.assertGreater(len([name for name in os.listdir(self.folder) if name.startswith("r_train")]), 1)
        self.assertEqual(self.run_program(*arguments)[0].splitlines()[-1], said)

    def test_null_keys_do_not_make_a_record_ambiguous(self):
        """One key of a second kind, or null keys, do not make a record ambiguous."""
        turns = messages("a", "b")
        for record in ({"prompt": "a", "messages": turns}, {"query": None, "prompt": "a", "response": "b"},
                       {"messages": None, "question": "q", "instruction": "a", "output": "b", "response": None}):
            self.assertEqual(self.prepared([record], *PLAIN[2:]), [([97, 98, 256], [0, 1, 1])])

    def test_input_without_examples_is_refused(self):
        bad = self.write("bad.jsonl", '{"prompt": "a"}\n{\n')
        for source, skipped in ((self.write("blank.jsonl", "\n \n\n"), 0), (bad, 2)):
            for workers in (1, 2):
                _, errors = self.run_program(*PLAIN, "--skip-malformed", "--out", self.path("n"), "--workers", workers,
                                             source, code=2)
                self.assertEqual(errors.splitlines()[-1], "prepare.py: no examples left in %s (%d skipped)" % (
                    source, skipped))
                self.assertEqual(errors.count("\n"), skipped + 1)
                self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("n_")], [])

    def test_wrong_arguments_are_refused(self):
        source = self.write("a.jsonl", '{"prompt": "a", "response": "b"}')
        arguments = ("--out", self.path("e"), "--bytes", "--chat")
        self.refused(["--prompt-format"], *arguments, "--prompt-format", "none", source, code=1)
        self.refused(["--field"], *arguments, "--field", "text", source, code=1)
        self.refused(["has no chat template"], *arguments, source)
        for name in ("chatml", "qwen", "llama3"):
            self.refused(["--prompt-format %s: the tokenizer has no <|" % name], *arguments, "--prompt-format", name,
                         "--overwrite", source)
        self.refused(["a.txt: it is neither JSON nor Parquet"], *arguments, self.write("a.txt", "[]"))
        self.refused(["no examples left in"], *arguments, "--overwrite", self.write("a.json", "[]"))
        self.refused(["no such file"], *arguments, "tinyshakespeare")
        os.makedirs(self.path("empty"))
        self.refused(["no records found"], *arguments, self.path("empty"))

    @unittest.skipUnless(base.have("pyarrow"), "needs pyarrow")
    def test_parquet_examples_are_read(self):
        import pyarrow as pa
        import pyarrow.parquet

        rows = [{"prompt": "a", "response": "b"}, {"messages": messages("c", "d")},
                {"input_ids": [1, 2], "labels": [-100, 2]}, {"instruction": "e", "output": "f"}] * 3
        message = pa.struct([(key, pa.string()) for key in ("role", "content", "name")])
        columns = [(key, pa.string()) for key in ("prompt", "response", "instruction", "output")]
        columns += [(key, pa.list_(pa.int64())) for key in ("input_ids", "labels")] + [("messages", pa.list_(message))]
        table = self.path("t.parquet")
        pa.parquet.write_table(pa.Table.from_pylist(rows, pa.schema(columns)), table, row_group_size=5)
        arguments = (*PLAIN, "--workers", 1, "--val-fraction", 0, "--out", self.path("p"), "--overwrite")
        self.run_program(*arguments, table)
        expected = [([97, 98, 256], [0, 1, 1]), ([99, 100, 256], [0, 1, 1]), ([1, 2], [0, 1]),
                    ([101, 102, 256], [0, 1, 1])]
        self.assertEqual(self.read("p_train_000000.bin"), expected * 3)
        rows = [{"messages": messages("c%d" % i, "d")} for i in range(60)]
        pa.parquet.write_table(pa.Table.from_pylist(rows, pa.schema(columns)), table, row_group_size=7)
        self.run_program(*PLAIN, "--workers", 1, "--val-fraction", 0.3, "--out", self.path("p"), "--overwrite", table)
        self.assertEqual([ids for ids, _ in self.read("p_val_000000.bin")], self.held_out(map(json.dumps, rows)))
        rows = [{"prompt": "a", "response": "b"}] * 7 + [{"prompt": "a", "response": ""}]
        pa.parquet.write_table(pa.Table.from_pylist(rows), table, row_group_size=3)
        self.refused(["t.parquet, row 8: its answer is empty"], *arguments, table)
        self.refused(["not a readable Parquet"], *arguments, self.write("x.parquet", b"PAR1"))


if __name__ == "__main__":
    base.run(ChatTest)
