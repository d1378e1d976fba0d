#!/usr/bin/env python3
"""Tests of the inputs of data/prepare.py: which files of a folder are read, how, and how the others are reported.

    python3 dev/test/test_prepare_inputs.py

Needs nothing but Python; the parts that need pyarrow or zstandard are skipped without them.
"""
import json
import os
import sys
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_prepare as base  # noqa: E402

prepare = base.prepare


class InputsTest(unittest.TestCase):
    setUp, path, write = base.PrepareTest.setUp, base.PrepareTest.path, base.PrepareTest.write
    run_program, refused, tokens = base.PrepareTest.run_program, base.PrepareTest.refused, base.PrepareTest.tokens
    documents, snapshot = base.PrepareTest.documents, base.PrepareTest.snapshot

    def prepared(self, *inputs, more=("--bytes", "--val-fraction", 0)):
        """(training documents, standard error) of a run that replaces the run before it."""
        _, errors = self.run_program(*more, "--workers", 1, "--overwrite", "--out", self.path("o"), *inputs)
        return self.documents(self.tokens(self.path("o"), "train")), errors

    # --- messages

    def check_printable(self, text):
        for character in text.replace("\n", ""):
            code = ord(character)
            self.assertFalse(code < 32 or 127 <= code < 160 or 0xD800 <= code < 0xE000, repr(text))

    def test_no_escape_reaches_the_terminal(self):
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
            for arguments in (("--chat", "--prompt-format", "plain", chat), ("--no" + escape,), (self.path(escape),)):
                _, errors = self.run_program("--bytes", "--out", self.path("o"), *arguments, code=1 + (
                    not arguments[0].startswith("--no")))
                self.check_printable(errors)

    def test_no_traceback(self):
        """An error that no code expects, a lack of memory and a number without end are one line, too."""
        source = self.write("a.txt", "text\n")
        for error, words in ((MemoryError(), "out of memory"), (KeyError("x"), "internal error: 'x' (KeyError)")):
            with unittest.mock.patch.object(prepare, "local_inputs", side_effect=error):
                self.refused([words], "--bytes", "--out", self.path("o"), source)
        for number in ("1e400", "nan", "-1", "x"):
            self.refused(["--workers"], "--bytes", "--out", self.path("o"), "--workers", number, source, code=1)


if __name__ == "__main__":
    report = base.Report()
    unittest.defaultTestLoader.loadTestsFromTestCase(InputsTest).run(report)
    sys.exit(not report.wasSuccessful())
