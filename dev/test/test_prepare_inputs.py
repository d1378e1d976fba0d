#!/usr/bin/env python3
"""Tests the inputs of data/prepare.py: which files of a folder are read, and how ignored files are reported.

    python3 dev/test/test_prepare_inputs.py

Needs nothing but Python; the parts that need pyarrow or zstandard are skipped without them.
"""
import gzip
import json
import os
import resource
import subprocess
import sys
import unittest
import unittest.mock

import test_prepare as base  # noqa: E402

prepare = base.prepare


class InputsTest(base.Case):
    def prepared(self, *inputs, more=("--bytes", "--val-fraction", 0)):
        """Returns (training documents, stderr) of a run that replaces the previous one."""
        _, errors = self.run_program(*more, "--workers", 1, "--overwrite", "--out", self.path("o"), *inputs)
        return self.documents(self.tokens(self.path("o"), "train")), errors

    # --- messages

    def check_printable(self, text):
        for character in text.replace("\n", ""):
            code = ord(character)
            self.assertFalse(code < 32 or 127 <= code < 160 or 0xD800 <= code < 0xE000, repr(text))

    def test_escape_sequences_do_not_reach_the_terminal(self):
        """Escapes in names of files, keys, texts and output paths are printed as visible characters."""
        for escape in ("\x1b[31m", "\x9b31m", "\x7f", "\r", "\n", os.fsdecode(b"\xff")):
            bad = self.write("bad%s.jsonl" % escape, json.dumps({escape: 1}))
            out, errors = self.run_program("--bytes", "--out", self.path("o"), "--workers", 1, bad, code=2)
            self.check_printable(out + errors)
            self.assertEqual(errors.count("\n"), 1, errors)
            self.assertIn("bad%s.jsonl, line 1" % repr(escape)[1:-1], errors)
            out, errors = self.run_program("--bytes", "--out", self.path("o" + escape), "--workers", 1,
                                           self.write("a.txt", "text\n" * 99))
            self.check_printable(out + errors)
            self.assertIn("o%s: " % repr(escape)[1:-1], out)
            chat = self.write("chat.jsonl", json.dumps({"conversations": [{"from": escape, "value": "x"}]}))
            for code, arguments in ((2, ("--chat", "--prompt-format", "plain", chat)), (1, ("--no" + escape,)),
                                    (2, (self.path(escape),)), (1, ("--chat", "--prompt-format", "x" + escape, chat))):
                _, errors = self.run_program("--bytes", "--out", self.path("o"), *arguments, code=code)
                self.check_printable(errors)

    def test_unexpected_errors_are_one_line(self):
        """Unexpected errors, out of memory and endless numbers are also reported in one line."""
        source = self.write("a.txt", "text\n")
        for error, words in ((MemoryError(), "out of memory"), (KeyError("x"), "internal error: 'x' (KeyError)")):
            with unittest.mock.patch.object(prepare, "local_inputs", side_effect=error):
                self.refused([words], "--bytes", "--out", self.path("o"), source)
        for number in ("1e400", "nan", "-1", "x"):
            self.refused(["--workers"], "--bytes", "--out", self.path("o"), "--workers", number, source, code=1)

    # --- what is read

    def packed(self, name, text, ending):
        if ending == ".gz":
            text = gzip.compress(text[:99]) + gzip.compress(text[99:])  # a gzip file with two members
        elif ending == ".zst":
            import zstandard

            text = zstandard.compress(text[:99]) + zstandard.compress(text[99:])
        return self.write(name + ending, text)

    @unittest.skipUnless(base.have("zstandard"), "needs zstandard")
    def test_compressed_files_are_read(self):
        """Compressed files of every kind yield the tokens of their contents, alone and in a folder."""
        texts = {"a.jsonl": "".join(json.dumps({"text": base.words(i, 40)}) + "\n" for i in range(99)),
                 "b.json": json.dumps([{"text": base.words(i, 40)} for i in range(100, 150)], indent=1),
                 "c.txt": base.words(1, 9000), "d.txt": "\n<|endoftext|>\n".join(base.words(i, 9) for i in range(99))}
        made = {}
        for ending in ("", ".gz", ".zst", ".GZ"):
            names = ["%s/%s%s" % (ending or "plain", name, ending) for name in texts]
            for (name, text), path in zip(texts.items(), names):
                self.packed(path[:len(path) - len(ending)], text.encode(), ending.lower())
                if ending == ".GZ":
                    os.rename(self.path(path[:-3] + ".gz"), self.path(path))
            inputs = [[self.path(name)] for name in names] + [[self.path(name) for name in names]]
            inputs += [[self.path(os.path.dirname(names[0]) + "/" + name)] for name in ("[ab]*", "c.txt*", "*.txt*")]
            for number, paths in enumerate(inputs):
                self.run_program("--bytes", "--val-fraction", 0.2, "--workers", 1 + number % 2, "--overwrite", "--out",
                                 self.path("o"), *paths)
                self.assertEqual(made.setdefault(number, self.snapshot()), self.snapshot(), (ending, number))
            self.assertGreater(len(made[len(texts)]), 1)

    def test_damaged_compressed_files_are_reported(self):
        """Truncated data, damaged data and missing packages are reported. Uncompressed .gz files are read unchanged."""
        out, text = ("--bytes", "--overwrite", "--workers", 1, "--out", self.path("o")), base.words(1, 9000).encode()
        data = gzip.compress(text)
        self.refused(["a.txt.gz: its compressed data is truncated"], *out, self.write("a.txt.gz", data[:-9]))
        self.refused(["a.txt.gz: its compressed data is damaged"], *out,
                     self.write("a.txt.gz", data[:999] + bytes(99) + data[999:]))
        with unittest.mock.patch.dict(sys.modules, {"zstandard": None}):
            self.refused(["the Python package zstandard is missing"], *out,
                         self.write("a.txt.zst", b"\x28\xb5\x2f\xfd" + bytes(20)))
        if base.have("zstandard"):
            import zstandard

            data = zstandard.compress(text)
            self.refused(["a.txt.zst: its compressed data is truncated"], *out, self.write("a.txt.zst", data[:-999]))
        self.assertEqual(self.prepared(self.write("a.jsonl.gz", '{"text": "x"}'))[0], [b"x"])
        for name in ("a.txt.bz2", "a.XZ", "a.zip", "a.tar.gz"):
            self.refused([name + ": only gzip and zstd are unpacked; unpack it first"], *out, self.write(name, "text"))
            self.assertIn("1 compressed or archives (%s)" % self.write("in/" + name, "text"), self.prepared(
                self.path("in"), self.path("a.jsonl.gz"))[1])
            os.remove(self.path("in/" + name))
        self.refused(["binary.gz: it contains zero bytes, so it is not text"], *out, self.write("binary.gz", gzip.compress(bytes(99))))
        latin = self.write("latin.jsonl.gz", gzip.compress(b'{"text": "caf\xe9"}'))
        self.refused(["gzip -dc %s | iconv -f latin1 -t utf-8 >NEW.jsonl" % latin], *out, latin)

    def test_records_are_recognized_whatever_the_file_name(self):
        """Records are recognized whatever the file name: one per line, one array or one object."""
        records = [{"text": "caf\u00e9 \u2028 %d" % i, "n": [{}]} for i in range(999)]
        expected = [record["text"].encode() for record in records]
        lines, array = "\n".join(map(json.dumps, records)), json.dumps(records)
        forms = {"lines": lines, "array": array, "indented": json.dumps(records, indent=2, ensure_ascii=False),
                 "marked": b"\xef\xbb\xbf" + array.encode(), "spaced": "\n [\n" + array[1:]}
        for ending in (".json", ".JSON", ".jsonl", ".jsonlines", ".jl", ".ndjson", ".json.gz"):
            for form, text in forms.items():
                data = text.encode() if isinstance(text, str) else text
                path = self.write(form + ending, gzip.compress(data) if ending.endswith(".gz") else data)
                self.assertEqual(self.prepared(path)[0], expected, path)
                self.write("folder/x" + ending, data)
                self.assertEqual(self.prepared(self.path("folder"))[0], expected, path)
                os.remove(self.path("folder/x" + ending))
        one = self.write("one.json", json.dumps(records[0], indent=1))
        self.assertEqual(self.prepared(one)[0], expected[:1])
        out = ("--bytes", "--overwrite", "--workers", 1, "--out", self.path("o"))
        self.refused(["cut.json: it is not JSON"], *out, self.write("cut.json", array[:-20]))
        self.refused(["many.json: it is not JSON (Extra data, line 6", "jq -c . "], *out,
                     self.write("many.json", json.dumps(records[0], indent=1) * 2))
        self.refused(['bad.json, record 2: it is not a JSON object'], *out,
                     self.write("bad.json", '[{"text": "a"}, 1]'))
        self.refused(['bad.json, record 1: it has no "text" but body'], *out,
                     self.write("bad.json", '[{"body": "a"}]'))
        with unittest.mock.patch("prepare_records.VALUE_BYTES", 99):
            self.refused(["array.json: it is one JSON value of more than 1 GiB", "jq"], *out, self.path("array.json"))
        chat = self.write("chat.json", json.dumps([{"prompt": "a", "response": "b"}] * 9))
        said, _ = self.run_program(*out, "--chat", "--prompt-format", "plain", chat)
        self.assertIn("9 examples", said)

    def test_too_long_lines_are_refused(self):
        """A text without a line end is cut; a line of JSON or a document that is longer than the limit is refused."""
        text = "caf\u00e9 \u4f60\u597d" * 9000
        out = ("--bytes", "--val-fraction", 0, "--overwrite", "--workers", 1, "--out", self.path("o"))
        with unittest.mock.patch.object(base.prepare_inputs, "PIECE_BYTES", 20000):
            self.assertEqual(self.prepared(self.write("a.txt", text))[0], [text.encode()])
            places = list(base.prepare_inputs.cuts("text", self.path("a.txt"), len(text.encode())))
            self.assertGreater(len(places), 3)
            for begin, end in zip([0] + places, places):
                text.encode()[begin:end].decode()
            line = json.dumps({"text": text})
            self.refused(["a.jsonl, line 3: more than 0 MiB without a line end"], *out,
                         self.write("a.jsonl", '{"text": "x"}\n\n%s\n{"text": "x"}' % line))
            self.refused(["b.txt, line 1: more than 0 MiB without <|endoftext|>"], *out,
                         self.write("b.txt", text + "<|endoftext|>" + text))
            self.assertEqual(self.prepared(self.write("c.jsonl", json.dumps({"text": text[:3000]})))[0],
                             [text[:3000].encode()])

    # --- ignored files

    def test_ignored_files_of_a_folder_are_named(self):
        texts = ["text %d\n" % i for i in range(9)]
        for i, text in enumerate(texts):
            self.write("in/%d.txt" % i, text)
        self.write("in/again.txt", texts[3])
        self.write("in/empty.txt", "")
        self.write("in/.git/x", "hidden")
        self.write("in/.DS_Store", "hidden")
        self.write("in/utf16.txt", "text".encode("utf-16"))
        self.write("in/utf32.txt", "text".encode("utf-32-be"))
        for i in range(5):
            self.write("in/tokens%d.bin" % i, b"\1\0\2\0\3\0" * 99)
        self.write("in/nul.txt", b"text" * 999 + b"\0")
        self.write("in/package.json", '{"name": "x",\n "text": "y"\n}\n')
        self.write("in/tsconfig.json", "{ // not JSON\n}")
        self.write("in/list.json", "[1, 2]")
        os.symlink("nowhere", self.path("in/broken"))
        os.mkfifo(self.path("in/pipe"))
        notes = ["1 equal to another (again.txt)", "1 empty (empty.txt)", "2 hidden (.DS_Store, .git)",
                 "1 in UTF-16 (utf16.txt)", "1 in UTF-32BE", "6 binary (nul.txt, tokens0.bin, tokens1.bin, ...)",
                 '2 JSON without "text" (--field) (list.json, tsconfig.json)',
                 "2 neither a file nor a folder (broken, pipe)"]
        got, errors = self.prepared(self.path("in"))
        self.assertEqual(got, [b"y"])  # package.json contains a record
        self.assertIn("10 text next to data files, read only if named (0.txt, 1.txt, 2.txt, ...)", errors.replace(
            self.path("in/"), ""))
        self.write("in/package.json", '{"name": "x"}\n')
        got, errors = self.prepared(self.path("in"))
        self.assertEqual(got, [text.encode() for text in texts])
        self.assertEqual(errors.count("\n"), 1, errors)
        notes[-2] = '3 JSON without "text" (--field) (list.json, package.json, tsconfig.json)'
        for note in notes:
            self.assertIn(note, errors.replace(self.path("in/"), ""))
        self.assertEqual(self.prepared(self.path("i*"))[0], got)  # a pattern that matches a folder

    def test_ignored_files_of_a_chat_folder_are_named(self):
        self.write("in/a.jsonl", '{"prompt": "a", "response": "b"}\n')
        self.write("in/b.json", '[{"prompt": "c", "response": "d"}]')
        self.write("in/c.jsonl.gz", gzip.compress(b'{"prompt": "e", "response": "f"}\n'))
        self.write("in/notes.txt", "text\n")
        self.write("in/info.json", '{"default": {"features": {}}}')
        self.write("in/x.bin", b"\0")
        said, errors = self.run_program("--bytes", "--chat", "--prompt-format", "plain", "--val-fraction", 0,
                                        "--out", self.path("c"), self.path("in"))
        self.assertIn("3 examples", said)
        for note in ("1 neither JSON nor Parquet (", "1 JSON without examples of --chat (", "1 binary ("):
            self.assertIn(note, errors)
        self.assertEqual(errors.count("\n"), 1)
        if base.have("pyarrow"):
            import pyarrow as pa
            import pyarrow.parquet

            for path in (self.path("in/ids.parquet"), self.path("ids.parquet")):
                pa.parquet.write_table(pa.table({"id": [1], "messages": [5]} if "in/" not in path else {"id": [1]}), path)
            said, errors = self.run_program("--bytes", "--chat", "--prompt-format", "plain", "--val-fraction", 0,
                                            "--out", self.path("d"), self.path("in"))
            self.assertIn("1 Parquet without examples of --chat (", errors)
            self.refused(["ids.parquet, row 1: "], "--bytes", "--chat", "--prompt-format", "plain", "--workers", 1,
                         "--out", self.path("e"), self.path("ids.parquet"))

    def test_descriptions_in_data_set_folders_are_ignored(self):
        """In a folder with JSONL or Parquet, texts and other JSON files are ignored unless named."""
        self.write("set/README.md", "# Data\n")
        self.write("set/LICENSE", "License\n")
        self.write("set/dataset_infos.json", json.dumps({"default": {"features": {"text": {"dtype": "string"}}}}))
        self.write("set/data/train.jsonl", '{"text": "one"}\n')
        got, errors = self.prepared(self.path("set"))
        self.assertEqual(got, [b"one"])
        self.assertIn("2 text next to data files", errors)
        self.assertIn("1 JSON without", errors)
        self.assertEqual(self.prepared(self.path("set"), self.path("set/LICENSE"))[0], [b"one", b"License\n"])
        self.assertEqual(self.prepared(self.path("set/[LRd]*[aEd]"))[0], [b"License\n", b"# Data\n", b"one"])
        if base.have("pyarrow"):
            import pyarrow as pa
            import pyarrow.parquet

            os.remove(self.path("set/data/train.jsonl"))
            for name, column in (("train", "text"), ("ids", "id")):
                pa.parquet.write_table(pa.table({column: ["two"]}), self.path("set/data/%s.parquet" % name))
            got, errors = self.prepared(self.path("set"))
            self.assertEqual(got, [b"two"])
            self.assertIn('1 Parquet without "text" (--field) (%s)' % self.path("set/data/ids.parquet"), errors)
            self.assertIn("2 text next to data files", errors)

    def test_linked_folders_are_read_once(self):
        """Linked folders are read once, even in cycles. A note names links to outside the given folders."""
        self.write("in/a/one.txt", "one\n")
        self.write("other/two.txt", "two\n")
        self.write("other/deep/three.txt", "three\n")
        self.write("four.txt", "four\n")
        os.symlink("..", self.path("in/a/up"))
        os.symlink("a", self.path("in/b"))
        self.assertEqual(self.prepared(self.path("in")), ([b"one\n"], ""))
        os.symlink(self.path("other"), self.path("in/c"))
        os.symlink("../other", self.path("in/d"))
        os.symlink("../../in", self.path("other/deep/back"))
        os.symlink("../four.txt", self.path("in/e.txt"))
        got, errors = self.prepared(self.path("in"))
        self.assertEqual(sorted(got), [b"four\n", b"one\n", b"three\n", b"two\n"])
        self.assertEqual(errors, "note: links to outside the given folders were followed: 3 links (%s)\n" % ", ".join(
            self.path("in/" + name) for name in ("c", "d", "e.txt")))
        os.symlink(self.path("in"), self.path("whole"))
        self.assertEqual(sorted(self.prepared(self.path("whole"))[0]), sorted(got))

    def test_unreadable_folder_is_refused(self):
        self.write("in/a.txt", "text\n")
        with unittest.mock.patch.object(os, "scandir", side_effect=PermissionError(13, "Permission denied", "in/x")):
            self.refused(["in/x: Permission denied"], "--bytes", "--out", self.path("o"), self.path("in"))

    def test_git_lfs_pointers_are_refused(self):
        """A Git LFS pointer is an error wherever a file is opened, and never becomes tokens."""
        pointer = ("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12345\n" % ("0" * 64)).encode()
        words = "%s: is a Git LFS pointer"
        out = ("--overwrite", "--workers", 1, "--out", self.path("o"))
        for name in ("a.txt", "a.jsonl", "a.json", "a.parquet", "a.txt.gz", "a.bin", "a.npy"):
            path = self.write("in/" + name, pointer)
            self.refused([words % path], "--bytes", *out, path)
            self.write("in/b.txt", "text\n")
            self.refused([words % path], "--bytes", *out, self.path("in"))
            os.remove(path)
        path = self.write("chat.jsonl", pointer)
        self.refused([words % path], "--bytes", "--chat", "--prompt-format", "plain", *out, path)
        self.refused([words % path], "--bytes", "--hellaswag", *out, path)
        source = self.write("a.txt", "text\n")
        for names in (["tokenizer.json"], ["tokenizer.model"], ["encoder.json"], ["vocab.json"],
                      ["vocab.bpe", "encoder.json:{}"], ["merges.txt", "vocab.json:{}"],
                      ["tokenizer_config.json", "encoder.json:{}", "vocab.bpe:"]):
            folder = "t-" + names[0]
            for name in names:
                name, _, text = name.partition(":")
                self.write(folder + "/" + name, text if name != names[0] else pointer)
            if names[0] == "tokenizer_config.json":
                self.write(folder + "/encoder.json", '{"a": 0, "<|endoftext|>": 1}')
            self.refused([words % self.path(folder + "/" + names[0])], "--tokenizer", self.path(folder), *out, source)

    # --- records

    def written(self, name, texts):
        """Writes a file of records with these texts, which may be null or (in JSON) of another type."""
        if not name.endswith(".parquet"):
            lines = [json.dumps({"text": text}) for text in texts]
            return self.write(name, "[%s]" % ", ".join(lines) if name.endswith(".json") else "\n".join(lines))
        import pyarrow as pa
        import pyarrow.parquet

        pa.parquet.write_table(pa.table({"text": pa.array(texts, pa.string())}), self.path(name), row_group_size=7)
        return self.path(name)

    def test_null_and_empty_texts_are_counted(self):
        """Records without text are skipped and counted in every form of records, by this run and the next."""
        texts = ["one", None, "two", "", None, "three"] + [None] * 20
        for name in ("a.jsonl", "a.json") + ("a.parquet",) * base.have("pyarrow"):
            source = self.written(name, texts)
            where = {"a.jsonl": "line", "a.json": "record", "a.parquet": "row"}[name]
            arguments = ("--bytes", "--val-fraction", 0, "--out", self.path("o"), source)
            for workers in (1, 2):
                said, errors = self.run_program(*arguments, "--workers", workers, "--overwrite")
                self.assertEqual(self.documents(self.tokens(self.path("o"), "train")), [b"one", b"two", b"three"])
                self.assertIn("0 validation tokens in 0 files, 23 records skipped\n", said)
                self.assertEqual(errors.splitlines()[:3], ["skipped: %s, %s %d: its text is %s" % (
                    source, where, number, kind) for number, kind in ((2, "null"), (4, "empty"), (5, "null"))])
                self.assertEqual(errors.count("\n"), 10)
            self.assertIn("23 records skipped (already complete)", self.run_program(*arguments)[0])
            source = self.written("none" + name[1:], [None, ""])
            _, errors = self.run_program("--bytes", "--workers", 1, "--out", self.path("n"), source, code=2)
            self.assertIn("no text left in %s (2 skipped)" % source, errors)

    def test_malformed_records_are_refused_or_counted(self):
        """The error about a malformed or truncated line names the line. With --skip-malformed, such lines are counted."""
        for bad, reason in (('{"text": "thr', "it is not JSON"), ('{"text": 3}', '"text" is not text'),
                            ('{"body": "x"}', 'it has no "text" but body'), ("3", "it is not a JSON object"),
                            (b'{"text": "caf\xe9"}', "it is not UTF-8"), ("{", "it is not JSON"),
                            ("[" * 99999, "it is not JSON"), ('{"text": %s}' % ("9" * 9999), "")):
            bad = bad if isinstance(bad, bytes) else bad.encode()
            for name, data in (("a.jsonl", bad), ("a.jsonl.gz", gzip.compress(b'{"text": "one"}\n' + bad))):
                source = self.write(name, data if name.endswith("gz") else b'{"text": "one"}\n' + bad)
                arguments = ("--bytes", "--val-fraction", 0, "--workers", 1, "--overwrite", "--out", self.path("o"), source)
                self.refused([name + ", line 2: ", reason, "--skip-malformed"], *arguments)
                said, errors = self.run_program(*arguments, "--skip-malformed")
                self.assertIn("4 training tokens in 1 file, 0 validation tokens in 0 files, 1 record skipped\n", said)
                self.assertIn("skipped: %s, line 2: " % source, errors)
        source = self.write("a.json", '[{"text": "one"}, {"body": "x"}, 3, {"text": 3}]')
        self.assertIn("3 records skipped", self.run_program("--bytes", "--val-fraction", 0, "--overwrite", "--workers", 1,
                                                             "--skip-malformed", "--out", self.path("o"), source)[0])

    def test_many_skipped_records_are_counted_quickly(self):
        """Line numbers are computed only for reported records, because computing one reads the file from its start."""
        source = self.write("a.jsonl", '{"text": null}\n' * 9999 + '{"text": "x"}')
        with unittest.mock.patch.object(base.prepare_inputs.Place, "__str__", return_value="x") as described:
            self.assertIn("9,999 records skipped", self.run_program("--bytes", "--val-fraction", 0, "--workers", 1,
                                                                      "--out", self.path("o"), source)[0])
            self.assertEqual(described.call_count, 10)

    # --- Parquet

    @unittest.skipUnless(base.have("pyarrow"), "needs pyarrow")
    def test_large_parquet_row_groups_are_divided(self):
        """Dividing row groups larger than a unit keeps the documents and their order."""
        texts = [base.words(i, i % 50) or "x" for i in range(900)]
        import pyarrow as pa
        import pyarrow.parquet

        made = []
        for size, more in ((900, {}), (64, {}), (900, {"use_dictionary": False}),
                           (500, {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY", "n": "PLAIN"}})):
            pa.parquet.write_table(pa.table({"n": list(range(900)), "text": texts}), self.path("a.parquet"),
                                   row_group_size=size, **more)
            for workers in (1, 2):
                self.run_program("--bytes", "--val-fraction", 0.2, "--workers", workers, "--overwrite", "--out",
                                 self.path("o"), self.path("a.parquet"))
                made.append(self.snapshot())
        self.assertEqual(made, made[:1] * len(made))
        self.assertEqual(len(self.documents(self.tokens(self.path("o"), "train")) + self.documents(
            self.tokens(self.path("o"), "val"))), 900)
        pieces = list(base.prepare_inputs.row_pieces(self.path("a.parquet"), ["text"], 5000))
        self.assertGreater(len(pieces), 20)
        self.assertEqual([begin for begin, _, _ in pieces], [0] + [end for _, end, _ in pieces[:-1]])

    @unittest.skipUnless(base.have("pyarrow"), "needs pyarrow")
    def test_parquet_bombs_are_refused(self):
        """A Parquet file of less than 2 KB with gigabytes of text, or with too long a cell, is refused with one line, before it
        needs much memory."""
        import pyarrow as pa
        import pyarrow.parquet

        def repeated(first, count, longest):
            numbers = pa.array([0] + [1] * count, pa.int32())
            return pa.table({"text": pa.DictionaryArray.from_arrays(numbers, [first, "a" * longest])})

        deltas = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
        cases = {"dictionary": (repeated("x", 1 << 14, 10**6), {}, "rows 1 to "),
                 "deltas": (repeated("x", 400, 10**6).cast(pa.schema({"text": pa.string()})), deltas, "rows 1 to "),
                 "cell": (repeated("x", 1, 3 * 10**8), {"use_dictionary": False}, "row 2: ")}
        for name, (table, more, words) in cases.items():
            path = self.path(name + ".parquet")
            pa.parquet.write_table(table, path, compression="brotli", store_schema=False, **more)
            self.assertLess(os.path.getsize(path), 2000)
            program = [sys.executable, os.path.join(base.ROOT, "data", "prepare.py"), "--bytes", "--workers", "1"]
            run = subprocess.run([*program, "--out", self.path("o"), path], capture_output=True, text=True)
            self.assertEqual((run.returncode, run.stderr.count("\n")), (2, 1), run.stderr)
            self.assertIn("%s, %s" % (path, words), run.stderr)
            self.assertIn("more than 256 MiB of text", run.stderr)
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 4 << 20)  # KiB

    # --- validation

    def halves(self, fraction, *inputs, more=()):
        """Returns (training documents, validation documents) of a run. Checks that validation gets --val-fraction of the
        text."""
        arguments = ("--bytes", "--workers", 1, "--overwrite", "--out", self.path("o"), "--val-fraction", fraction)
        _, errors = self.run_program(*arguments, *more, *inputs)
        self.assertFalse([line for line in errors.splitlines() if "held out" in line and fraction < 0.2], errors)
        made = [self.documents(self.tokens(self.path("o"), split)) for split in ("train", "val")]
        got = sum(map(len, made[1])) / sum(len(document) for documents in made for document in documents)
        self.assertLess(abs(got - fraction), 0.01, (fraction, inputs))
        return made

    def test_few_documents_are_split_at_their_ends(self):
        """With few documents, validation gets the end of each, cut at a line end, so that the fraction is right."""
        texts = [base.words(i, 400 + 700 * i).encode() for i in range(2)]
        records = self.write("two.jsonl", "".join(json.dumps({"text": text.decode()}) + "\n" for text in texts))
        forms = [[self.write("%d.txt" % i, text) for i, text in enumerate(texts)], [records],
                 [self.write("two.txt", b"<|endoftext|>".join(texts))]]
        if base.have("pyarrow"):
            forms.append([self.written("two.parquet", [text.decode() for text in texts])])
        for inputs in forms:
            for fraction in (0.01, 0.05, 0.1, 0.3):
                train, val = self.halves(fraction, *inputs)
                whole = texts if "two.txt" not in inputs[0] else [text.strip(b"\r\n") for text in texts]
                self.assertEqual([a + b for a, b in zip(train, val)], whole)
                self.assertEqual([text[-1:] for text in train], [b"\n"] * 2)
        more = [self.write("large.txt", base.words(5, 20000)), *forms[0]]
        self.assertEqual(len(self.halves(0.05, *more)[1]), 3)
        train, val = self.halves(0.05, records, *more)  # two of them equal two others
        self.assertEqual((len(val), set(train) & set(val)), (5, set()))
        train, val = self.halves(0.05, self.write("line.txt", "\u4f60\u597d" * 9000), self.write("b.txt", "caf\u00e9" * 9000))
        for text in train + val:
            text.decode()  # not cut inside a character
        _, errors = self.run_program("--bytes", "--out", self.path("short"), self.write("short.jsonl", '{"text": "one"}'))
        self.assertIn("no document was chosen for validation", errors)

    def test_many_documents_are_split_entirely(self):
        """With many documents, validation gets entire ones, and identical ones stay together."""
        texts = ["%d: %s" % (i % 900, base.words(i % 900, 5 + i % 90)) for i in range(1800)]
        forms = [[self.write("many.jsonl", "\n".join(json.dumps({"text": text}) for text in texts))],
                 [self.write("in/%d.txt" % i, text) for i, text in enumerate(texts[:900])],
                 [self.write("many.txt", "<|endoftext|>".join(text.strip() for text in texts))]]
        for inputs in forms:
            for fraction in (0.01, 0.05, 0.3, 0.9):
                train, val = self.halves(fraction, *inputs)
                whole = {text.encode() for text in texts}
                self.assertTrue(whole.issuperset(train + val) or inputs == forms[2])
                self.assertFalse(set(train) & set(val))
        made = self.halves(0.05, forms[0][0], *forms[1][:300])  # records identical to files
        self.assertFalse(set(made[0]) & set(made[1]))
        with unittest.mock.patch.object(base.prepare_splits, "MANY", 100):  # no more documents are read
            train, val = self.halves(0.3, forms[0][0])
            self.assertFalse(set(train) & set(val))

    def test_large_or_identical_documents_count_once(self):
        """Large or identical documents do not count as many documents, in any order."""
        splits = base.prepare_splits
        keys = ["%016x" % (i * 0x9E3779B97F4A7C15 % 2**64) for i in range(99999)]
        self.assertEqual(splits.rule_of(((key, 7) for key in keys), 0.05), splits.BY_HASH)
        self.assertEqual(splits.rule_of([(keys[0], 7)] * 99999, 0.05), splits.ENDS)
        self.assertEqual(splits.rule_of([(keys[0], 10**9), *((key, 7) for key in keys[1:9999])], 0.05), splits.ENDS)
        self.assertEqual(splits.rule_of([(key, 7) for key in keys[:9]], 0), frozenset())
        held = splits.rule_of([(key, 7) for key in keys[:1000]], 0.05)
        self.assertEqual(sorted(held), sorted(keys[:1000])[:50])

    # --- manifests

    def test_invalid_manifests_are_refused(self):
        """A manifest with wrong types, huge numbers or names of other files is refused with one line, and no file changes."""
        source, name = self.write("a.txt", base.words(1, 3000)), self.path("o_manifest.json")
        arguments = ("--bytes", "--workers", 1, "--shard-tokens", 3000, "--out", self.path("o"), source)
        self.run_program(*arguments)
        good = base.read_bytes(name)
        files = self.snapshot()
        shard = json.loads(good)["shards"]["train"][1]
        values = [None, [], {}, "x", -1, 1.5, True, 10**30, float("inf"), "../" + shard["file"]]
        changes = [(("shards", "train", 1, key), value) for key in shard for value in values]
        changes += [(("shards", "train"), value) for value in values[3:] + [5, {"0": shard}]]
        changes += [(key, value) for key in (("shards",), ("settings",), ("skipped",)) for value in values if value != {}]
        changes += [(("skipped",), value) for value in ({"x": 1}, {"-1": 1}, {"1": "x"}, {"1": 1e99}, {"9" * 5000: 1})]
        changes += [(("settings", key), value) for key in ("vocab", "inputs", "version") for value in values]
        for keys, value in changes:
            manifest = json.loads(good)
            manifest["complete"] = False
            place = manifest
            for key in keys[:-1]:
                place = place[key]
            if keys[-1] == "sha256" and isinstance(value, str) or keys == ("settings", "field"):
                continue
            place[keys[-1]] = value
            self.write("o_manifest.json", json.dumps(manifest))
            _, errors = self.run_program(*arguments, code=2)
            self.assertEqual(errors.count("\n"), 1, (keys, value, errors))
            self.assertIn(name, errors)
            self.assertNotIn("internal error", errors)
            self.assertEqual(self.snapshot(), files)
        for text in ("", "[]", "5", "{}", "[" * 99999, "\xff", "9" * 9999, '{"settings": {"field": "x\x1b"}}'):
            self.write("o_manifest.json", text)
            self.refused([name + ": cannot be read"], *arguments)
        manifest = json.loads(good)
        manifest["shards"]["train"][-1]["unit"] = 10**9
        manifest["complete"] = False
        self.write("o_manifest.json", json.dumps(manifest))
        self.assertIn("%s: does not match the inputs" % name, self.run_program(*arguments, code=2)[1])


if __name__ == "__main__":
    base.run(InputsTest)
