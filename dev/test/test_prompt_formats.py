#!/usr/bin/env python3
"""Tests --prompt-format: a prompt has the tokens that data/prepare.py --chat gives a question. Checkpoints contain the
format's chat template and the token that ends an answer.

    python3 dev/test/test_prompt_formats.py

Skipped without the package tokenizers. Tests of templates need jinja2, tests of SentencePiece's file need sentencepiece, and
checks of checkpoints in transformers need transformers and torch.
"""
import array
import json
import os
import shutil
import subprocess
import unittest

import test_prepare_images as pictures  # noqa: E402
import test_prepare_prompts as shared  # noqa: E402

import prepare_masks  # noqa: E402
import prepare_prompts  # noqa: E402
from prepare_tokenizers import open_tokenizer  # noqa: E402

base, messages = shared.base, shared.messages
PROGRAM = os.path.join(base.ROOT, os.environ.get("BIN", "."), "train_gpt2_fp8_cpu")
IM, HEADERS = ("<|im_start|>", "<|im_end|>"), ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
SMALL = ("--model", "llama:d1", "--channels", 32, "--heads", 1, "--seq-len", 256, "--micro-batch", 1, "--recipe", "bf16",
         "--sample-tokens", 0, "--device", "cpu")
KINDS = [  # columns: format, vocabulary, its special tokens, the token that ends an answer
    ("plain", "qwen.json", (), "<|endoftext|>"), ("alpaca", "neox.json", (), "<|endoftext|>"),
    ("alpaca", "legacy.json", (), "</s>"), ("chatml", "qwen.json", IM, IM[1]), ("chatml", "llama3.json", IM, IM[1]),
    ("qwen", "qwen.json", IM, IM[1]), ("llama2", "legacy.json", (), "</s>"),
    ("llama3", "llama3.json", HEADERS, HEADERS[2])]
PROMPTS = ["the model", " \n\t a step\u3000\x1f ", "x <|im_end|>\n\n<|eot_id|> </s> [/INST]", "caf\u00e9 \u4f60\u597d\n",
           " ", "{{ message }} <|", "\u00a0if (x) {\n    return;\n}"]


@unittest.skipUnless(base.have("tokenizers"), shared.NEEDS)
@unittest.skipUnless(os.path.exists(PROGRAM), "the program is not built")
class PromptFormatsTest(shared.ModelCase):
    def train_program(self, *arguments, code=0):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")

    def tuned(self, tokenizer, *arguments, steps=1):
        """Trains on the file of prepared(). Returns the checkpoint's folder."""
        self.train_program(*SMALL, "--tokenizer", tokenizer, "--train", self.path("c_train_000000.bin"), "--steps", steps,
                           "--out", self.path("run"), "--overwrite", "--quiet", *arguments)
        return self.path("run/step-%08d" % steps)

    def asked(self, *arguments, tokens=0):
        """Returns the tokens of a prompt and its continuation."""
        out, _ = self.train_program("--temperature", 0, "--sample-tokens", tokens, "--json", *arguments)
        found = json.loads(out.splitlines()[-1])
        return found["prompt"], found["sample"]

    def setting(self, folder):
        return base.read_json(os.path.join(folder, "state.json"))["settings"].get("prompt-format")

    def ends(self, folder):
        found = [base.read_json(os.path.join(folder, name))["eos_token_id"] for name in ("config.json", "generation_config.json")]
        self.assertEqual(found[0], found[1])
        return found[0] if isinstance(found[0], list) else [found[0]]

    def questions(self, name, tokenizer):
        rows = self.prepared([{"prompt": prompt, "response": "the step"} for prompt in PROMPTS], "--prompt-format", name,
                             tokenizer=("--tokenizer", tokenizer))
        return [ids[:mask.index(1)] for ids, mask in rows]

    @unittest.skipUnless(base.have("PIL"), "needs Pillow: pip install pillow")
    def test_prompt_with_an_image_equals_the_training_data(self):
        """A prompt of --image has the tokens that data/prepare.py --chat gives a question with an image."""
        from PIL import Image

        Image.new("RGB", (8, 8), (200, 30, 40)).save(self.path("p.png"))
        self.write("processor/processor_config.json", json.dumps({"patch_size": 4, "image_processor": {
            "image_processor_type": "SiglipImageProcessor", "size": {"height": 8, "width": 8}}}))
        images, tower = ("--image-processor", self.path("processor")), ("--vision", "siglip:d1", "--image-size", 8,
                                                                       "--patch-size", 4)
        for name, vocabulary, special in (("alpaca", "legacy.json", ()), ("qwen", "qwen.json", IM), ("llama2", "legacy.json", ())):
            tokenizer = self.model(vocabulary, *special, "<image>")[1][1]
            prompts = ["the model", "<image>\nthe model", "the <image> model", " <image>a<image>"]
            records = [{"prompt": prompt, "response": "the step", "image": ["p.png"] * max(1, prompt.count("<image>"))}
                       for prompt in prompts]
            self.run_program("--tokenizer", tokenizer, "--out", self.path("c"), "--chat", "--prompt-format", name, *images,
                             "--val-fraction", 0, "--overwrite", self.write("r.json", json.dumps(records)))
            rows = pictures.ImagesCase.read(self, "c")[0]
            self.run_program("--tokenizer", tokenizer, "--out", self.path("p"), *images, self.path("p.png"))
            folder = self.tuned(tokenizer, *tower)
            for prompt, (ids, mask) in zip(prompts, rows):
                asked = self.asked("--prompt", prompt, "--image", self.path("p.images"), "--model", folder)[0]
                self.assertEqual(asked, ids[:mask.index(1)], (name, prompt))

    def test_prompts_equal_the_training_data(self):
        for name, kind, special, end in KINDS:
            tokenizer, (_, folder) = self.model(kind, *special)
            expected = self.questions(name, folder)
            checkpoint = self.tuned(folder)
            self.assertEqual(self.setting(checkpoint), name)
            self.assertIn(tokenizer.token_to_id(end), self.ends(checkpoint))
            for prompt, ids in zip(PROMPTS, expected):
                self.assertEqual(self.asked("--model", checkpoint, "--prompt", prompt)[0], ids, (name, kind, prompt))
        _, said = self.train_program("--model", checkpoint, "--prompt", "", code=1)
        self.assertIn("--prompt: the text is empty", said)

    @unittest.skipUnless(base.have("sentencepiece"), "needs sentencepiece: scripts/setup.sh --python")
    def test_prompts_equal_the_training_data_with_sentencepiece(self):
        model = os.path.join(shared.KINDS, "llama.model")
        for name in ("llama2", "alpaca"):
            expected = self.questions(name, model)
            checkpoint = self.tuned(model)
            self.assertEqual([self.asked("--model", checkpoint, "--prompt", prompt)[0] for prompt in PROMPTS], expected)
            if base.have("jinja2", "transformers"):
                self.templated(checkpoint, expected, name)

    @unittest.skipUnless(base.have("jinja2"), "needs jinja2")
    def test_checkpoint_has_the_formats_chat_template(self):
        chats = [messages("the model", "the step"), messages("a\n", " b ", " the 'c' ", "d\n", system=" s\n")]
        for name, kind, special, _ in KINDS:
            _, (_, folder) = self.model(kind, *special)
            self.questions(name, folder)
            checkpoint = self.tuned(folder)
            tokenizer = open_tokenizer(checkpoint)
            template, fixed = prepare_prompts.Template(tokenizer, checkpoint), prepare_prompts.Fixed(tokenizer, name)

            def text(parts):
                return "".join(p if isinstance(p, str) else tokenizer.tokenizer.id_to_token(p) for p in parts)

            for chat in chats:
                parts = fixed.parts(chat, [True] * (len(chat) // 2), False)
                self.assertEqual(template.render(chat, None), text(part for part, _ in parts), (name, kind))
                first = next(at for at, (_, counts) in enumerate(parts) if counts)
                until = next(at for at, message in enumerate(chat) if message["role"] == "assistant")
                self.assertEqual(template.render(chat[:until], None, True), text(part for part, _ in parts[:first]))

    @unittest.skipUnless(base.have("jinja2", "transformers"), "needs transformers")
    def test_chat_template_in_transformers_equals_the_format(self):
        for name, kind, special, _ in KINDS:
            _, (_, folder) = self.model(kind, *special, tokenizer_class="PreTrainedTokenizerFast")
            expected = self.questions(name, folder)
            self.templated(self.tuned(folder), expected, (name, kind))

    def templated(self, checkpoint, expected, what):
        import transformers

        theirs = transformers.AutoTokenizer.from_pretrained(checkpoint)
        for at in (0, 3):
            row = theirs.apply_chat_template([{"role": "user", "content": PROMPTS[at]}], add_generation_prompt=True,
                                             return_dict=True)
            self.assertEqual(row["input_ids"], expected[at], what)

    def test_template_of_the_model_folder_is_kept(self):
        for own in ({"chat_template": "{{ messages }}"}, {}):
            _, (_, folder) = self.model("qwen.json", *IM, **own)
            if not own:
                self.write("model/chat_template.jinja", "{{ messages }}")
            self.questions("chatml", folder)
            template = os.path.join(self.tuned(folder), "chat_template.jinja")
            self.assertEqual(os.path.exists(template), not own)
            if not own:
                self.assertEqual(base.read_bytes(template), b"{{ messages }}")

    def test_template_of_an_earlier_format_is_replaced(self):
        _, (_, folder) = self.model("qwen.json", *IM)
        self.questions("alpaca", folder)
        first = shutil.copytree(self.tuned(folder), self.path("first"))

        def template(*arguments):
            path = os.path.join(self.tuned(*arguments), "chat_template.jinja")
            return base.read_bytes(path) if os.path.exists(path) else None

        for name in ("chatml", "none", "alpaca"):
            again = ("--prompt-format", name)
            self.assertEqual(template(first, *again), template(folder, *again), name)

    def test_format_with_a_missing_token_is_refused(self):
        _, (_, folder) = self.model("qwen.json")
        self.questions("plain", folder)
        checkpoint = self.tuned(folder)
        for name, token in (("chatml", IM[0]), ("llama3", HEADERS[0])):
            _, said = self.train_program("--model", checkpoint, "--prompt", "x", "--prompt-format", name, code=1)
            self.assertRegex(said, r"^error: --prompt-format %s: the tokenizer has no .*; use the format of its model, or "
                                   r"alpaca or plain\n$" % name)
        _, said = self.train_program(*SMALL, "--tokenizer", folder, "--train", self.path("c_train_000000.bin"), "--steps", 1,
                                     "--prompt-format", "qwen", code=1)
        self.assertIn("error: --prompt-format qwen: the tokenizer has no <|im_end|>;", said)

    def test_sample_stops_at_the_end_of_an_answer(self):
        tokenizer, (_, folder) = self.model("qwen.json", *IM)
        self.prepared([{"prompt": prompt, "response": "the"} for prompt in PROMPTS], "--prompt-format", "chatml",
                      tokenizer=("--tokenizer", folder))
        checkpoint = self.tuned(folder, "--lr", 1e-2, steps=60)
        answer = tokenizer.encode("the", add_special_tokens=False).ids + [tokenizer.token_to_id(IM[1])]
        question, sample = self.asked("--model", checkpoint, "--prompt", "the model", tokens=20)
        self.assertEqual(sample, answer)
        out, _ = self.train_program("--model", checkpoint, "--prompt", "the model", "--temperature", 0)
        self.assertEqual(out, "<|im_start|>user\nthe model<|im_end|>\n<|im_start|>assistant\nthe\n")
        if base.have("jinja2", "transformers", "torch"):
            import transformers

            theirs = transformers.AutoTokenizer.from_pretrained(checkpoint)
            model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
            row = theirs.apply_chat_template([{"role": "user", "content": "the model"}], add_generation_prompt=True,
                                             return_dict=True, return_tensors="pt")
            ids = model.generate(**row, max_new_tokens=20, do_sample=False)[0].tolist()
            self.assertEqual(ids, question + answer)
        # another program's folder that names no EOS token
        other = self.path("other")
        left_out = ("state.json", "manifest.json", "generation_config.json", "optim*")
        shutil.copytree(checkpoint, other, ignore=shutil.ignore_patterns(*left_out))
        config = base.read_json(os.path.join(other, "config.json"))
        config["eos_token_id"] = None
        self.write("other/config.json", json.dumps(config))
        asked = ("--model", other, "--recipe", "bf16", "--prompt", "the model", "--prompt-format")
        self.assertEqual(self.asked(*asked, "chatml", tokens=20)[1], answer)
        self.assertEqual(len(self.asked(*asked, "none", tokens=20)[1]), 20)
        self.assertEqual(self.asked(*asked, "none")[0], self.asked(*asked[:-1])[0])

    def test_end_of_answer_does_not_split_texts(self):
        """The token that ends answers, which checkpoints add to the EOS tokens, splits no text of a resumed run."""
        tokenizer, (_, folder) = self.model("qwen.json", *IM)
        self.questions("plain", folder)
        checkpoint = self.tuned(folder)
        os.remove(os.path.join(checkpoint, "generation_config.json"))
        config = base.read_json(os.path.join(checkpoint, "config.json"))
        text = shutil.copytree(checkpoint, self.path("text"), ignore=shutil.ignore_patterns("manifest.json", "state.json"))
        self.write("text/config.json", json.dumps({**config, "bos_token_id": None}))
        tokens = array.array("H", [self.end_at(i, config["eos_token_id"], tokenizer.token_to_id(IM[1])) for i in range(4097)])
        self.write("text.bin", array.array("i", [20240520, 1, len(tokens), *[0] * 253]).tobytes() + tokens.tobytes())
        run = ("--train", self.path("text.bin"), "--sample-tokens", 0, "--quiet", "--out")
        new = ("--model", text, "--seq-len", 64, "--micro-batch", 4, "--recipe", "bf16", "--documents", "apart",
               "--prompt-format", "chatml")
        self.train_program(*run, self.path("through"), *new, "--steps", 4)
        self.train_program(*run, self.path("halves"), *new, "--steps", 2)
        self.train_program(*run, self.path("halves"), "--resume", "--steps", 4)
        through, halves = (self.path(name + "/step-00000004") for name in ("through", "halves"))
        self.assertIn(tokenizer.token_to_id(IM[1]), self.ends(halves))
        for name in os.listdir(through):
            self.assertEqual(*(base.read_bytes(os.path.join(folder, name)) for folder in (through, halves)), name)

    @staticmethod
    def end_at(i, end, answer_end):
        return end if i % 23 == 0 else answer_end if i % 17 == 0 else i * i % 200

    def test_resumed_run_keeps_the_format(self):
        _, (_, folder) = self.model("qwen.json", *IM)
        self.questions("plain", folder)
        self.tuned(folder, "--prompt-format", "chatml")  # has precedence over the data's format
        resumed = ("--out", self.path("run"), "--resume")
        train = (*SMALL[8:], *resumed, "--tokenizer", folder, "--train", self.path("c_train_000000.bin"))
        self.train_program(*train, "--steps", 2)
        self.assertEqual(self.setting(self.path("run/step-00000002")), "chatml")
        ids = self.asked(*resumed, "--prompt", "x")[0]
        self.assertEqual(ids, self.asked(*resumed, "--prompt", "x", "--prompt-format", "chatml")[0])
        self.assertNotEqual(ids, self.asked(*resumed, "--prompt", "x", "--prompt-format", "none")[0])
        _, said = self.train_program(*train, "--steps", 3, "--prompt-format", "alpaca")
        self.assertIn("resume: --prompt-format was chatml and is now alpaca\n", said)
        self.assertEqual(self.setting(self.path("run/step-00000003")), "alpaca")
        self.train_program(*train, "--steps", 4, "--prompt-format", "none")
        self.train_program(*train, "--steps", 5)
        self.assertEqual(self.setting(self.path("run/step-00000005")), "none")

    def test_format_recorded_in_data_files_is_used(self):
        _, (_, folder) = self.model("qwen.json", *HEADERS)

        def file(name, number):
            return self.write(name, bytes(prepare_masks.masked_file(2, bytes(600), [0, 50], bytes([1]) * 300, number)))

        for number, name in ((1, "plain"), (6, "llama3"), (7, None), (-1, None), (0, None)):
            file("c_train_000000.bin", number)
            self.assertEqual(self.setting(self.tuned(folder)), name)
        other = ("--train", file("other.bin", 2))
        self.assertEqual(self.setting(self.tuned(folder, *other)), "alpaca")
        file("c_train_000000.bin", 1)  # differs from the other file's format
        self.assertIsNone(self.setting(self.tuned(folder, *other)))


if __name__ == "__main__":
    base.run(PromptFormatsTest)
