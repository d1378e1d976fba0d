#!/usr/bin/env python3
"""Tests data/prepare.py: its output, and that interrupted or damaged output is regenerated identically.

    python3 dev/test/test_prepare.py

Needs nothing but Python; the parts that need tiktoken, tokenizers or pyarrow are skipped without them.
"""
import array
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "data"))

import prepare  # noqa: E402
import prepare_inputs  # noqa: E402
import prepare_output  # noqa: E402
import prepare_splits  # noqa: E402
import prepare_tokenizers  # noqa: E402
import tiktoken_json  # noqa: E402

TOKENIZE = os.path.join(ROOT, os.environ.get("BUILD", "build"), "tokenize")
GPT2 = os.path.join(ROOT, "..", "shared", "data", "gpt2")
SHAKESPEARE = os.path.join(ROOT, "..", "shared", "data", "tinyshakespeare.txt")
NEEDS = "needs %s, and GPT-2's encoder.json and vocab.bpe in ../shared/data/gpt2"


def have(*modules):
    found = [importlib.util.find_spec(module) for module in modules]
    # origin is None for the folder tokenizers next to this file, which is not a package
    return all(spec and spec.origin for spec in found)


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def words(seed, count):
    """Returns lines of words with spaces, digits, accents and runs of white space."""
    pick = random.Random(seed)
    kinds = ["the", "model", "don't", "we'll", "caf\u00e9", "4096", "x = y;", " ", "\t", "\u4f60\u597d", "\u00a0"]
    return "".join(pick.choice(kinds) + pick.choice([" ", " ", " ", "\n", "\n\n", "\r\n", "."]) for _ in range(count))


class Case(unittest.TestCase):
    """Shared by the tests of data/prepare.py: a folder for files, runs of the program, and readers of its output."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="coat_test_prepare_")
        self.addCleanup(shutil.rmtree, self.folder)
        self.addCleanup(setattr, prepare_inputs, "UNIT_BYTES", prepare_inputs.UNIT_BYTES)
        prepare_inputs.UNIT_BYTES = 5000  # small units, so that small inputs have many of them

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return self.path(name)

    def run_program(self, *arguments, code=0):
        """Runs data/prepare.py. Returns its stdout and stderr."""
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            got = prepare.main([str(argument) for argument in arguments])
        self.assertEqual(got, code, errors.getvalue())
        return out.getvalue(), errors.getvalue()

    def stop_everywhere(self, arguments, expected):
        """Kills one run after each unit, restarts it, and checks that it ends with the expected files. Returns the number
        of killed runs."""
        original, runs, finished = prepare.work, 0, False
        while not finished:
            for name in os.listdir(self.folder):
                if name.startswith("r_"):
                    os.remove(self.path(name))
            left = [runs]

            def dying(job):
                if left[0] == 0:
                    raise KeyboardInterrupt
                left[0] -= 1
                return original(job)

            prepare.work = dying
            try:
                with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                    finished = prepare.main(arguments) == 0
            finally:
                prepare.work = original
            self.run_program(*arguments)
            self.assertEqual(self.snapshot(), expected)
            runs += not finished
        return runs

    def refused(self, words_expected, *arguments, code=2):
        _, errors = self.run_program(*arguments, code=code)
        for word in words_expected:
            self.assertIn(word, errors)
        self.assertEqual(errors.count("\n"), 1, errors)

    def tokens(self, out, split):
        """Returns the tokens of all files of a split, in order. Checks the files' headers."""
        tokens, number = [], 0
        while os.path.exists("%s_%s_%06d.bin" % (out, split, number)):
            data = read_bytes("%s_%s_%06d.bin" % (out, split, number))
            header = array.array("i", data[:1024])
            self.assertEqual(list(header[:2]), [20240520, 1])
            self.assertEqual(len(data), 1024 + 2 * header[2])
            self.assertEqual([header[8] & 0xFFFFFFFF, header[9]], [zlib.crc32(data[1024:]), 1])
            tokens += array.array("H", data[1024:])
            number += 1
        return tokens

    def documents(self, tokens, end_of_text=256):
        self.assertTrue(not tokens or tokens[0] == end_of_text)
        found = []
        for token in tokens:
            if token == end_of_text:
                found.append([])
            else:
                found[-1].append(token)
        return [bytes(document) for document in found]

    def snapshot(self):
        """Returns {name: contents} of the token files and the files of images."""
        return {name: read_bytes(self.path(name)) for name in os.listdir(self.folder) if name.endswith((".bin", ".images"))}


class Report(unittest.TestResult):
    """Prints one TAP line per test."""

    @staticmethod
    def name(test):
        return test.id().split(".")[-1]

    def addSuccess(self, test):
        print("ok - " + self.name(test), flush=True)

    def addSkip(self, test, reason):
        print("skip - %s: %s" % (self.name(test), reason), flush=True)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        print("not ok - %s\n%s" % (self.name(test), self.failures[-1][1]), flush=True)

    def addError(self, test, error):
        super().addError(test, error)
        print("not ok - %s\n%s" % (self.name(test), self.errors[-1][1]), flush=True)


def run(case):
    """Runs a class of tests. Ends with the exit code 1 if one failed."""
    report = Report()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(report)
    sys.exit(not report.wasSuccessful())


class PrepareTest(Case):
    # --- contents

    def test_one_text_is_divided_for_training_and_validation(self):
        text = words(1, 5000).encode()
        source, out = self.write("one.txt", text), self.path("tokens/one")
        self.run_program("--bytes", "--out", out, "--workers", 1, "--val-fraction", 0.1, source)
        train, val = self.documents(self.tokens(out, "train")), self.documents(self.tokens(out, "val"))
        self.assertEqual((len(train), len(val)), (1, 1))
        self.assertEqual(train[0] + val[0], text)  # the text's end is for validation
        self.assertAlmostEqual(len(val[0]) / len(text), 0.1, delta=0.01)

    def test_folder_is_read_completely(self):
        texts = {"a/%d.txt" % i: words(i, 300).encode() for i in range(20)}
        for name, text in texts.items():
            self.write("in/" + name, text)
        self.write("in/copy.txt", texts["a/7.txt"])
        self.write("in/.hidden", b"hidden")
        self.write("in/binary.txt", b"\0\1\2")
        self.write("in/empty.txt", b"")
        out = self.path("f")
        self.run_program("--bytes", "--out", out, "--workers", 2, "--val-fraction", 0.2, self.path("in"))
        train, val = self.documents(self.tokens(out, "train")), self.documents(self.tokens(out, "val"))
        self.assertEqual(sorted(train + val), sorted(texts.values()))  # complete, and each document once
        self.assertTrue(1 <= len(val) <= 6)

    def test_jsonl_and_separated_text(self):
        texts = ["document %d: %s" % (i, words(i, 40)) for i in range(400)]
        lines = "".join(json.dumps({"body": text, "n": i}) + "\n\n" for i, text in enumerate(texts))
        source, out = self.write("d.jsonl", lines), self.path("j")
        self.run_program("--bytes", "--field", "body", "--out", out, "--workers", 2, "--val-fraction", 0.1, source)
        train, val = self.documents(self.tokens(out, "train")), self.documents(self.tokens(out, "val"))
        encoded = [text.encode() for text in texts]
        self.assertEqual(train, [text for text in encoded if text not in set(val)])  # in the order of the input
        self.assertEqual(val, [text for text in encoded if text in set(val)])
        self.assertTrue(15 <= len(val) <= 70)
        stripped = [text.strip("\r\n").encode() for text in texts]
        source, out = self.write("d.txt", "\n<|endoftext|>\n".join(texts)), self.path("s")
        self.run_program("--bytes", "--out", out, "--workers", 1, "--val-fraction", 0.1, source)
        train, val = self.documents(self.tokens(out, "train")), self.documents(self.tokens(out, "val"))
        self.assertEqual(sorted(train + val), sorted(stripped))

    def test_tokens_do_not_depend_on_shards_and_workers(self):
        source = self.write("one.txt", words(3, 20000))
        outs = {}
        for workers, shard in ((1, "1G"), (2, 10000), (1, 7777), (3, "5k")):
            out = self.path("w%s_%s" % (workers, shard))
            self.run_program("--bytes", "--out", out, "--workers", workers, "--shard-tokens", shard, source)
            outs[out] = (self.tokens(out, "train"), self.tokens(out, "val"))
        self.assertEqual(len(set(map(str, outs.values()))), 1)
        self.assertTrue(os.path.exists(self.path("w1_7777_train_000005.bin")))

    def test_pattern_of_text_and_records_is_read(self):
        self.write("m/a.txt", "plain text\n" * 50)
        self.write("m/b.jsonl", '{"text": "one"}\n{"text": "two"}')
        out = self.path("m")
        text, _ = self.run_program("--bytes", "--out", out, "--workers", 1, "--val-fraction", 0, self.path("m/*"))
        self.assertRegex(text, r"training tokens in 1 file, 0 validation tokens in 0 files\n")
        self.assertEqual(self.documents(self.tokens(out, "train")), [b"plain text\n" * 50, b"one", b"two"])
        self.assertFalse(os.path.exists(out + "_val_000000.bin"))

    def test_large_validation_fraction_prints_a_note(self):
        source = self.write("one.txt", words(3, 3000))
        _, errors = self.run_program("--bytes", "--out", self.path("o"), "--workers", 1, "--val-fraction", 0.5, source)
        self.assertEqual(errors, "note: 50 % of the text is held out for validation, as --val-fraction asks\n")
        _, errors = self.run_program("--bytes", "--out", self.path("p"), "--workers", 1, "--val-fraction", 0.15, source)
        self.assertEqual(errors, "")

    # --- resuming

    def test_complete_output_is_not_written_again(self):
        source, out = self.write("one.txt", words(4, 9000)), self.path("r")
        arguments = ("--bytes", "--out", out, "--workers", 1, "--shard-tokens", 9000, source)
        self.run_program(*arguments)
        times = {name: os.stat(self.path(name)).st_mtime_ns for name in os.listdir(self.folder)}
        text, _ = self.run_program(*arguments)
        self.assertIn("already complete", text)
        self.assertEqual(times, {name: os.stat(self.path(name)).st_mtime_ns for name in os.listdir(self.folder)})

    def test_killed_run_continues_with_the_same_bytes(self):
        """A run killed at any unit and restarted writes the same bytes as an uninterrupted run."""
        lines = "".join(json.dumps({"text": words(i, 30)}) + "\n" for i in range(300))
        source = self.write("d.jsonl", lines)
        arguments = ["--bytes", "--workers", "1", "--shard-tokens", "6000", "--val-fraction", "0.3", source, "--out"]
        self.run_program(*arguments, self.path("r"))
        expected = self.snapshot()
        self.assertGreater(len(expected), 8)
        self.assertGreater(self.stop_everywhere([*arguments, self.path("r")], expected), 10)
        sources = [self.write("%d.txt" % i, words(i, 4000)) for i in range(2)]  # whose ends are for validation
        arguments[-2:] = [*sources, "--overwrite", "--out"]
        self.run_program(*arguments, self.path("r"))
        expected = self.snapshot()
        arguments.remove("--overwrite")
        self.assertGreater(self.stop_everywhere([*arguments, self.path("r")], expected), 5)

    def test_second_run_with_the_same_output_is_refused(self):
        source, out, original, ended = self.write("d.txt", words(1, 3000)), self.path("r"), prepare.work, []
        arguments = ["--bytes", "--workers", "1", "--val-fraction", "0", "--out", out, source]

        def with_second_run(job):
            if not ended:
                ended.append(subprocess.run([sys.executable, prepare.__file__, *arguments, "--shard-tokens", "9000"],
                                            capture_output=True, text=True))
            return original(job)

        with unittest.mock.patch.object(prepare, "work", with_second_run):
            self.run_program(*arguments)
        self.assertEqual((ended[0].returncode, ended[0].stderr), (2, (
            "prepare.py: %s: another run writes these files; wait for it, or use another --out\n" % out)))
        self.assertEqual(os.listdir(self.folder).count("r_train_000001.bin"), 0)
        self.run_program(*arguments, "--overwrite")  # the lock has ended with the run

    @unittest.skipUnless(os.path.exists("/proc/thread-self/children"), "needs /proc with the children of a thread")
    def test_workers_end_when_their_parent_is_killed(self):
        def runs(worker):
            try:
                with open("/proc/%s/stat" % worker) as file:
                    return file.read().rpartition(")")[2].split()[0] != "Z"  # Z: ended, but not waited for
            except OSError:
                return False

        arguments = ["--bytes", "--workers", "2", "--val-fraction", "0", "--out", self.path("r"),
                     self.write("d.txt", words(1, 20000) * 400)]
        process = subprocess.Popen([sys.executable, prepare.__file__, *arguments], stdout=subprocess.DEVNULL)
        workers, end = [], time.time() + 60
        while len(workers) < 2 and process.poll() is None:
            with open("/proc/%d/task/%d/children" % (process.pid, process.pid)) as file:
                workers = file.read().split()
        process.kill()
        process.wait()
        self.assertEqual(len(workers), 2)
        while any(map(runs, workers)) and time.time() < end:
            time.sleep(0.05)
        left = list(filter(runs, workers))
        for worker in left:
            os.kill(int(worker), signal.SIGKILL)
        self.assertEqual(left, [])

    def test_temporary_files_of_killed_runs_are_removed(self):
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        dead = self.write("r_train_000000.bin.tmp.%d" % process.pid, "dead")
        # temporary files of a process that runs, and of no process
        others = [self.write("r_train_000000.bin.tmp." + end, "kept") for end in (str(os.getppid()), "notes")]
        self.run_program("--bytes", "--val-fraction", 0, "--out", self.path("r"), self.write("d.txt", words(1, 30)))
        self.assertFalse(os.path.exists(dead))
        self.assertTrue(all(map(os.path.exists, others)))

    def test_failed_run_names_incomplete_files(self):
        """A failing run names the incomplete files of each split, and the same command continues it."""
        good = [json.dumps({"text": words(i, 30)}) for i in range(100)]
        source, out = self.write("d.jsonl", "\n".join(good + ["{"])), self.path("r")
        arguments = ("--bytes", "--workers", 1, "--shard-tokens", 3000, "--val-fraction", 0, "--out", out, source)
        note = ("note: %s_train_*.bin are not complete; run the same command again to continue, or use --overwrite if "
                "inputs or flags have changed" % out)
        for _ in range(2):  # the second run fails again, before it writes a file
            errors = self.run_program(*arguments, code=2)[1].splitlines()
            self.assertEqual((errors[0], len(errors)), (note, 2))
            self.assertIn("d.jsonl, line 101: it is not JSON", errors[1])
        self.write("d.jsonl", "\n".join(good))
        self.refused(["the inputs"], *arguments)
        self.run_program(*arguments, "--overwrite")
        expected, original = self.snapshot(), prepare_output.write_atomically

        def full(path, *parts):
            if path.endswith("_000003.bin"):
                raise prepare_tokenizers.Failure("no space")
            original(path, *parts)

        with unittest.mock.patch.object(prepare_output, "write_atomically", full):
            _, errors = self.run_program(*arguments, "--overwrite", code=2)
        self.assertEqual(errors, "note: %s_train_*.bin are not complete; run the same command again without --overwrite "
                                 "to continue\nprepare.py: no space\n" % out)
        self.assertEqual(self.run_program(*arguments)[1], "")
        self.assertEqual(self.snapshot(), expected)
        _, errors = self.run_program("--bytes", "--out", self.path("e"), self.write("e.jsonl", "{"), code=2)
        self.assertNotIn("note", errors)  # no files are left

    def test_damaged_and_missing_files_are_regenerated(self):
        source, out = self.write("one.txt", words(5, 9000)), self.path("r")
        arguments = ("--bytes", "--out", out, "--workers", 1, "--shard-tokens", 4000, source)
        self.run_program(*arguments)
        expected = self.snapshot()
        self.assertGreater(len(expected), 5)
        for name in ("r_train_000000.bin", "r_train_000003.bin", "r_val_000000.bin"):
            with open(self.path(name), "r+b") as file:
                file.seek(2000)
                file.write(b"\xff")
            _, errors = self.run_program(*arguments)
            self.assertIn(name + " is damaged", errors)
            self.assertEqual(self.snapshot(), expected)
        os.remove(self.path("r_train_000002.bin"))
        _, errors = self.run_program(*arguments)
        self.assertIn("r_train_000002.bin is missing", errors)
        self.assertEqual(self.snapshot(), expected)
        manifest = read_json(out + "_manifest.json")
        for shards in manifest["shards"].values():
            for shard in shards:
                self.assertEqual(hashlib.sha256(expected[shard["file"]]).hexdigest(), shard["sha256"])

    def test_other_settings_are_refused(self):
        source, out = self.write("one.txt", words(6, 3000)), self.path("r")
        self.run_program("--bytes", "--out", out, "--workers", 1, source)
        self.refused(["val_fraction (0.01, now 0.5)", "--overwrite"],
                     "--bytes", "--out", out, "--workers", 1, "--val-fraction", 0.5, source)
        self.write("one.txt", words(7, 3000))
        self.refused(["the inputs", "--overwrite"], "--bytes", "--out", out, "--workers", 1, source)
        self.run_program("--bytes", "--out", out, "--workers", 1, "--overwrite", source)
        self.write("r_manifest.json", "{")
        self.refused(["r_manifest.json"], "--bytes", "--out", out, "--workers", 1, source)
        os.remove(self.path("r_manifest.json"))
        self.refused(["r_manifest.json does not"], "--bytes", "--out", out, "--workers", 1, source)

    def test_files_that_no_manifest_names_are_removed(self):
        """A run that was killed before its manifest named a validation file leaves none to a run without validation."""
        source, out = self.write("one.txt", words(6, 3000)), self.path("r")
        self.run_program("--bytes", "--out", out, "--workers", 1, source)
        manifest = read_json(out + "_manifest.json")
        self.write("r_manifest.json", json.dumps({**manifest, "complete": False, "shards": {"train": [], "val": []}}))
        self.assertTrue(os.path.exists(out + "_val_000000.bin"))
        self.run_program("--bytes", "--out", out, "--workers", 1, "--val-fraction", 0, source)
        self.assertEqual(sorted(self.snapshot()), ["r_train_000000.bin"])

    def test_edit_of_an_input_is_detected(self):
        """One changed byte in the middle of a text is detected: on resume, and between two files of equal length."""
        text = bytearray((words(8, 1000) * 100).encode()[:300000])
        source, arguments = self.write("one.txt", bytes(text)), ("--bytes", "--workers", 1, "--out", self.path("r"))
        self.run_program(*arguments, source)
        self.assertIn("already complete", self.run_program(*arguments, source)[0])
        text[150000] ^= 1
        self.write("one.txt", bytes(text))
        self.refused(["r_manifest.json: was started with other settings, the inputs"],
                     *arguments, source)
        text[150000] ^= 1
        self.run_program(*arguments, "--overwrite", source, self.write("two.txt", bytes(text)))
        both = self.tokens(self.path("r"), "train") + self.tokens(self.path("r"), "val")
        self.assertEqual(len(self.documents(both)), 4)  # the end of each is for validation

    def test_input_that_changes_during_the_run_is_refused(self):
        for size in (1000, 200000):  # truncated, and appended to
            source, original = self.write("one.txt", words(8, 20000)), prepare.work

            def changing(job):
                os.truncate(source, size)
                return original(job)

            with unittest.mock.patch.object(prepare, "work", changing):
                self.refused(["one.txt: changed while it was read; run this command again with --overwrite"],
                             "--bytes", "--overwrite", "--workers", 1, "--out", self.path("r"), source)
            self.assertFalse(read_json(self.path("r_manifest.json"))["complete"])

    # --- errors

    def test_wrong_arguments_and_inputs_are_refused(self):
        out = self.path("e")
        self.refused(["--out"], "--bytes", "x", code=1)
        self.refused(["--tokenizer gpt2: has no effect with --bytes"], "--bytes", "--tokenizer", "gpt2", "--out", out, "x", code=1)
        for more in ("--chat",), ("--image-processor", "x"), ("--field", "x"), ("--skip-malformed",):
            self.refused([more[0] + ": has no effect with --hellaswag"], "--hellaswag", *more, "--out", out, "x", code=1)
        self.refused(["--out", "must end in a name"], "--bytes", "--out", self.path("folder") + "/", "x", code=1)
        for share in (2, "nan", "half"):
            self.refused(["--val-fraction", "below 1"], "--bytes", "--out", out, "--val-fraction", share, "x", code=1)
        self.refused(["no such file"], "--bytes", "--out", out, self.path("absent"))
        self.refused(["so it is not text"], "--bytes", "--out", out, self.write("b.txt", b"a\0b"))
        os.makedirs(self.path("nothing"))
        self.refused(["no text found"], "--bytes", "--out", out, self.path("nothing"))
        bad = self.write("bad.jsonl", b'{"text": "a"}\n{"body": "b"}\n')
        for workers in (1, 2):
            self.refused(["bad.jsonl, line 2: it has no \"text\" but body"],
                         "--bytes", "--out", out, "--workers", workers, "--overwrite", bad)
        lines = {b"{": "not JSON (Expecting property name enclosed in double quotes, column 2)",
                 b'{"text": "a" "b"}': "not JSON (Expecting ',' delimiter, column 14)", b"[1]": "not a JSON object",
                 b'"x"': "not a JSON object", b'{"text": 1}': '"text" is not text', b"[" * 100000: "not JSON",
                 b'{"text": "caf\xe9"}': "not UTF-8 (byte 0xe9 in column 14); if it is Latin-1, run iconv -f latin1 ",
                 b'{"prompt": "a", "response": "b"}': "it has prompt and response",
                 b'{"messages": []}': "it has messages",
                 b'{"conversations": []}': "it has conversations",
                 b'{"instruction": "a", "output": "b"}': "it has instruction and output"}
        for line, reason in lines.items():
            bad = self.write("bad.jsonl", b"\n" + line)
            self.refused(["bad.jsonl, line 2: ", reason], "--bytes", "--out", out, "--workers", 1, "--overwrite", bad)
        blank = self.write("blank.jsonl", b"\n \n")
        self.refused(["no text left in " + blank], "--bytes", "--out", self.path("blank"), "--workers", 1, blank)
        self.assertFalse(os.path.exists(self.path("blank_manifest.json")))
        for flag in (("--prompt-format", "plain"), ("--trained", "all")):
            self.refused(["%s: needs --chat" % flag[0]], "--bytes", "--out", out, *flag, bad, code=1)
        source = self.write("a.txt", b"text\n")
        self.refused(["no such file"], "--tokenizer", self.path("absent"), "--out", out, source)
        self.refused(["contains no tokenizer.json"], "--tokenizer", self.path("nothing"), "--out", out, source)
        self.write("t/encoder.json", "{}")
        self.refused(["merges are missing"], "--tokenizer", self.path("t"), "--out", out, source)
        ranks = self.write("qwen.tiktoken", "IQ== 0\nIg== 1\n")
        self.refused(["qwen.tiktoken: tiktoken's ranks"], "--tokenizer", ranks, "--out", out, source)
        self.refused(["absent.jsonl: no such file or folder, nor a pattern that matches one, nor one of the public data "
                      "sets "],
                     "--bytes", "--out", out, self.path("absent.jsonl"))
        _, errors = self.run_program("--bytes", "--chat", "--prompt-format", "plain", "--out", out,
                                     self.path("absent.jsonl"), code=2)
        self.assertTrue(errors.endswith("absent.jsonl: no such file or folder, nor a pattern that matches one\n"), errors)
        self.write("t/vocab.bpe", "#version: 0.2\na b\n")
        self.refused(["not a vocabulary"], "--tokenizer", self.path("t"), "--out", out, source)
        pairs = {'"ab": 2, "<|endoftext|>": 3': "tokenizer_config.json says Qwen2Tokenizer",
                 '"ab": 3, "<|endoftext|>": 2': "its last token is not <|endoftext|>"}
        self.write("t/tokenizer_config.json", '{"tokenizer_class": "Qwen2Tokenizer"}')
        for rest, why in pairs.items():
            self.write("t/encoder.json", '{"a": 0, "b": 1, %s}' % rest)
            self.refused([why + ", so GPT-2's"], "--tokenizer", self.path("t"),
                         "--out", out, source)
            self.write("t/tokenizer_config.json", '{"tokenizer_class": "GPT2Tokenizer"}')
        if have("tiktoken", "tokenizers"):
            for number, (vocabulary, merges) in enumerate((('"a": 0, "\u5b57": 1', ""), ('"a": 0, "b": 1', "a b"), (
                    '"a": 0, "b": 1, "ab": 2', "a b\nb a"), ("1", ""))):
                folder = os.path.dirname(self.write("v%d/vocab.bpe" % number, merges))
                self.write("v%d/encoder.json" % number, '{%s, "<|endoftext|>": 3}' % vocabulary)
                self.refused(["v%d/encoder.json: is not a vocabulary" % number], "--tokenizer", folder, "--out", out, source)
        blocked = self.write("file", b"x")
        self.refused(["could not be written"], "--bytes", "--out", os.path.join(blocked, "x"), source)

    def test_files_in_other_encodings_are_refused(self):
        """A file in another encoding is named as such, with the command that converts it."""
        records = [{"text": "caf\u00e9"}, {"text": "b"}]
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        encodings = {"utf-16": "utf-16", "utf-16-le": "utf-16le", "utf-16-be": "utf-16be", "utf-32": "utf-32"}
        out = ("--bytes", "--workers", 1, "--overwrite", "--out", self.path("o"))
        chat = ("--chat", "--prompt-format", "plain", "--skip-malformed")
        for encoding, name in encodings.items():
            path = self.write("a file.jsonl", lines.encode(encoding))
            for more in ((), chat):
                self.refused(["a file.jsonl: it is %s, not UTF-8; run iconv -f %s -t utf-8 '%s' >NEW.jsonl" % (
                    name.upper(), name, path)], *out, *more, path)
        self.refused(["text.txt: it is UTF-16, not UTF-8; run iconv -f utf-16 -t utf-8 "], *out,
                     self.write("text.txt", lines.encode("utf-16")))
        self.refused(["it is UTF-16, not UTF-8"], *out, "--hellaswag", self.write("h.jsonl", lines.encode("utf-16")))
        arrays = [json.dumps(records, indent=indent) for indent in (None, 2)]
        arrays += ["\n[\n%s\n]\n" % ",\n".join(json.dumps(record) for record in records)]
        for text in arrays:
            path = self.write("array.jsonl", text)
            self.run_program(*out, "--val-fraction", 0, path)
            self.assertEqual(self.documents(self.tokens(self.path("o"), "train")), ["caf\u00e9".encode(), b"b"])
        self.run_program(*out, self.write("bom.jsonl", b"\xef\xbb\xbf" + lines.encode()))  # this file is UTF-8

    def test_text_that_is_not_utf8_prints_a_note(self):
        """Text that is not UTF-8 is tokenized, with a note per file. Byte tokens lose nothing and need no note."""
        latin = "caf\u00e9 au lait\n".encode("latin1")
        text = self.path("a b.txt")
        self.assertEqual(prepare.not_utf8("caf\u00e9\n".encode(), text), {})
        note = prepare.not_utf8(latin, text)[text]
        self.assertEqual(note, "%s is not UTF-8 (byte 0xe9), so some of its characters are lost; if it is Latin-1, run "
                         "iconv -f latin1 -t utf-8 '%s' >NEW.txt" % (text, text))
        self.write("t/a b.txt", latin * 2000)  # has several units
        self.write("t/good.txt", "caf\u00e9\n" * 2000)
        out = ("--out", self.path("o"), "--workers", 1, "--val-fraction", 0)
        self.assertEqual(self.run_program(*out, "--bytes", self.path("t"))[1], "")
        if os.path.exists(GPT2) and have("tokenizers"):
            _, errors = self.run_program(*out, "--overwrite", "--tokenizer", GPT2, self.path("t"))
            self.assertEqual(errors, "note: %s\n" % note.replace(self.path(""), self.path("t/")))

    # --- GPT-2

    def gpt2(self, name, without):
        """Tokenizes Shakespeare while the package `without` cannot be imported."""
        hidden = {module: sys.modules.get(module) for module in (without,)}
        sys.modules[without] = None
        try:
            self.run_program("--tokenizer", GPT2, "--out", self.path(name), "--workers", 1, "--val-fraction", 0,
                             SHAKESPEARE)
        finally:
            for module, value in hidden.items():
                sys.modules.pop(module) if value is None else sys.modules.update({module: value})
        return self.tokens(self.path(name), "train")

    def test_download_errors_are_one_line(self):
        """Every library error becomes one line, whichever of the two packages is installed."""
        import socket
        import types
        import urllib.error

        class ConnectionFailed(ConnectionError):  # derives from a download error, as in requests
            pass

        def failing(error):
            def download(_):
                raise error
            return download

        source, url = self.write("a.txt", "text\n"), "HTTPSConnectionPool(host='example.invalid', port=443): " * 9
        answers = [(ConnectionFailed(url), "no connection"),
                   (urllib.error.URLError(socket.gaierror(-2, url)), "no connection"),
                   (urllib.error.HTTPError(url, 503, url, None, None), "the server answered 503"),
                   (ImportError(url, name="requests"), "the Python package requests is missing")]
        for error, why in answers:
            tiktoken = types.SimpleNamespace(get_encoding=failing(error))
            tokenizers = types.SimpleNamespace(Tokenizer=types.SimpleNamespace(from_pretrained=failing(error)))
            for modules in ({"tiktoken": tiktoken}, {"tiktoken": None, "tokenizers": tokenizers}):
                with unittest.mock.patch.dict(sys.modules, modules):
                    _, errors = self.run_program("--out", self.path("n"), source, code=2)
                self.assertEqual(errors, "prepare.py: GPT-2's vocabulary could not be downloaded (%s); "
                                 "put its encoder.json and vocab.bpe in a folder and name it, --tokenizer FOLDER\n" % why)
        with unittest.mock.patch.object(prepare_inputs.urllib.request, "urlopen", side_effect=answers[1][0]):
            self.refused(["tinyshakespeare could not be downloaded (no connection); name local files"], "--bytes",
                         "--cache", self.path("cache"), "--out", self.path("n"), "tinyshakespeare")

    def test_public_data_sets_are_pinned(self):
        """Repositories are pinned by commit and single files by checksum, downloaded or cached."""
        import types

        source, asked = self.write("a.txt", "text\n" * 100), []

        def dataset_info(repo, revision=None):
            asked.append((repo, revision))
            return types.SimpleNamespace(sha="the newest", siblings=[types.SimpleNamespace(rfilename=name) for name in (
                "README.md", "TinyStoriesV2-GPT4-train.txt", "sample/10BT/0.parquet")])

        def download(repo, name, repo_type, revision):
            asked.append((repo, revision))
            return source if name.endswith(".txt") else self.write("0.parquet", "")

        hub = types.SimpleNamespace(HfApi=lambda: types.SimpleNamespace(dataset_info=dataset_info), hf_hub_download=download)
        for name in ("tinystories", "fineweb", "fineweb-edu"):
            entry = prepare_inputs.SETS[name]
            with unittest.mock.patch.dict(sys.modules, {"huggingface_hub": hub}):
                inputs = prepare_inputs.named_inputs(name, "10BT", self.path("cache"))
            self.assertRegex(entry["revision"], "^[0-9a-f]{40}$")
            self.assertEqual(asked, 2 * [(entry["repo"], entry["revision"])])
            # a single file is identified by its own hash
            named = [entry["repo"] + "@" + entry["revision"]] if name != "tinystories" else []
            self.assertEqual([i.identity.split("/sample/")[0] for i in inputs if "@" in i.identity], named)
            asked.clear()

        arguments = ("--bytes", "--cache", self.path("cache"), "--out", self.path("s"), "tinyshakespeare")
        cached, says = self.path("cache/tinyshakespeare.txt"), ["tinyshakespeare.txt is damaged: its checksum does not match; "]
        for text in (b"", b"First Citizen:\n"):
            self.write("cache/tinyshakespeare.txt", text)
            self.refused(says, *arguments)
        os.remove(cached)
        reply = unittest.mock.patch.object(prepare_inputs.urllib.request, "urlopen", side_effect=lambda *_, **__: io.BytesIO(text))
        with reply:
            self.refused(says, *arguments)
            os.remove(cached)
            with unittest.mock.patch.dict(prepare_inputs.SETS["tinyshakespeare"], sha256=hashlib.sha256(text).hexdigest()):
                self.run_program(*arguments)
        if os.path.exists(SHAKESPEARE):
            self.assertEqual(prepare_inputs.file_hash(SHAKESPEARE), prepare_inputs.SETS["tinyshakespeare"]["sha256"])

    def test_missing_package_names_the_pip_command(self):
        text = "the Python package no_such_package is missing: "
        for listed, how in ((), ""), (("no_such_package",), "scripts/setup.sh --python installs it, or "):
            with unittest.mock.patch.object(prepare_tokenizers, "SETUP_HAS", listed):
                with self.assertRaisesRegex(prepare_tokenizers.Failure, "^%s%spip install no_such_package$" % (text, how)):
                    prepare_tokenizers.need("no_such_package")

    @unittest.skipUnless(os.path.exists(GPT2) and have("tiktoken"), NEEDS % "tiktoken")
    def test_tiktoken_gives_gpt2_tokens(self):
        tokens = self.gpt2("t", "tokenizers")
        self.check_shakespeare(tokens)
        whole = prepare_tokenizers.open_tokenizer(GPT2).encode([read_bytes(SHAKESPEARE)])[0]
        self.assertEqual(tokens[1:], list(array.array("H", whole)))  # as if encoded in one piece

    @unittest.skipUnless(os.path.exists(GPT2) and have("tokenizers"), NEEDS % "tokenizers")
    def test_tokenizers_gives_gpt2_tokens(self):
        self.check_shakespeare(self.gpt2("t", "tiktoken"))

    def check_shakespeare(self, tokens):
        self.assertEqual(len(tokens), 1 + 338025)
        self.assertEqual(tokens[:5], [50256, 5962, 22307, 25, 198])

    @unittest.skipUnless(os.path.exists(GPT2) and have("tiktoken"), NEEDS % "tiktoken")
    def test_dividing_a_text_changes_no_gpt2_token(self):
        text = words(9, 30000)
        tokenizer = prepare_tokenizers.open_tokenizer(GPT2)
        source = self.write("one.txt", text)
        places = [0] + list(prepare_inputs.cuts("text", source, os.path.getsize(source)))
        self.assertGreater(len(places), 10)
        data = text.encode()
        parts = b"".join(tokenizer.encode([data[a:b] for a, b in zip(places, places[1:])]))
        self.assertEqual(parts, tokenizer.encode([data])[0])

    def pairs(self):
        """Writes GPT-2's pair of files with few merges, most of them of white space."""
        character = tiktoken_json.characters()
        names = [character[byte] for byte in range(256)]
        merges = [("a", "b"), *((character[byte],) * 2 for byte in (*b" \t\n", 0xA0))]
        space, wide = character[0x20], "".join(character[byte] for byte in "\u3000".encode())
        merges += [(space * 2, space * 2), (space, "a"), (wide[0], wide[1]), (wide[:2], wide[2]), (wide, wide)]
        vocabulary = {name: number for number, name in enumerate([*names, *map("".join, merges), "<|endoftext|>"])}
        self.write("pair/vocab.bpe", "#version: 0.2\n" + "".join("%s %s\n" % pair for pair in merges))
        return os.path.dirname(self.write("pair/encoder.json", json.dumps(vocabulary)))

    @unittest.skipUnless(have("tiktoken"), "needs tiktoken: scripts/setup.sh --python")
    def test_long_runs_of_white_space_are_tokenized(self):
        """White space runs that are too long for tiktoken's regular expressions get the trainer's tokens."""
        folder = self.pairs()
        tokenizer = prepare_tokenizers.open_tokenizer(folder)
        self.assertIsNotNone(tokenizer.encoding)
        pick, short = random.Random(5), prepare_tokenizers.LONG_RUN.pattern.replace("{65536,}", "{3,}")
        spaces = "\t\n\x0b\r \x85\u00a0\u1680\u2003\u2028\u202f\u205f\u3000"
        for _ in range(1000):
            text = "".join(pick.choice(["ab", "1", "'s", "\x1c", "\u200b", "\u5b57", " a"]) if pick.random() < 0.5 else
                           pick.choice(spaces) * pick.choice((1, 2, 3, 4, 7)) for _ in range(pick.randrange(9)))
            with unittest.mock.patch.object(prepare_tokenizers, "LONG_RUN", re.compile(short)):
                self.assertEqual(tokenizer.ids([text]), [tokenizer.encoding.encode_ordinary(text)], repr(text))
        around = [("a ", "ab"), ("", ""), ("ab", " ab"), ("1", "")]
        texts = [before + space * 1000001 + after for space, (before, after) in zip(" \n\u3000", around)]
        texts += [before + space * 65537 + after for space in "\t\n\u00a0" for before, after in around]
        rows = [list(array.array("H", row)) for row in tokenizer.encode([text.encode() for text in texts])]
        if os.path.exists(TOKENIZE):
            path = self.write("runs", "\0".join(texts))
            done = subprocess.run([TOKENIZE, folder, path], capture_output=True, check=True)
            expected = [token for row in rows for token in (*row, 0xFFFFFFFF)]
            self.assertTrue(list(array.array("I", done.stdout)) == expected)
        source = self.write("r.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts[:2]))
        for workers in (1, 2):
            self.run_program("--tokenizer", folder, "--val-fraction", 0, "--workers", workers, "--out",
                             self.path("r%d" % workers), source)
            end = tokenizer.end_of_text
            self.assertTrue(self.tokens(self.path("r%d" % workers), "train") == [end, *rows[0], end, *rows[1]])

    # --- Parquet

    @unittest.skipUnless(have("pyarrow"), "needs pyarrow")
    def test_parquet_text_is_read(self):
        import pyarrow
        import pyarrow.parquet

        texts = [words(i, 20) for i in range(300)]
        table = pyarrow.table({"content": texts + [None, ""]})
        pyarrow.parquet.write_table(table, self.path("t.parquet"), row_group_size=64)
        out = self.path("p")
        self.run_program("--bytes", "--field", "content", "--out", out, "--workers", 2, self.path("t.parquet"))
        both = self.documents(self.tokens(out, "train")) + self.documents(self.tokens(out, "val"))
        self.assertEqual(sorted(both), sorted(text.encode() for text in texts))
        self.refused(['t.parquet: it has no "text" but content'], "--bytes", "--out", self.path("q"), self.path("t.parquet"))
        self.refused(["not a readable Parquet"], "--bytes", "--out", self.path("z"), self.write("x.parquet", b"PAR1"))


if __name__ == "__main__":
    run(PrepareTest)
