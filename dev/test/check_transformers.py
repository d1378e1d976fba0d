#!/usr/bin/env python3
"""Checks that transformers loads a checkpoint's folder, and that transformers and the program compute the same.

    dev/test/check_transformers.py FOLDER                      loads it, and compares every tensor with the file
    dev/test/check_transformers.py FOLDER --val GLOB --program ./train_gpt2_fp8_cpu [-- FLAGS]
                                                               compares the validation losses
    dev/test/check_transformers.py FOLDER --val GLOB --loss 3.21
                                                               compares transformers' validation loss with this one
    dev/test/check_transformers.py FOLDER --hellaswag FILE --program ./train_gpt2_fp8_cpu [-- FLAGS]
                                                               compares the chosen endings of HellaSwag
    dev/test/check_transformers.py FOLDER --prompts [TEXT...] --program ./train_gpt2_fp8_cpu [-- FLAGS]
                                                               compares the tokens that continue prompts
    dev/test/check_transformers.py FOLDER --logits FILE        compares logits; FILE: safetensors of the program with
                                                               tokens (B, T) I32 and logits (B, T, V) F32
    dev/test/check_transformers.py --make-random FOLDER [--layers 2 --dtype float16 --shards 3 --bare]
                                                               writes a random GPT-2 with transformers

Computes in FP32 (--double: FP64) on the CPU. Prints the differences, then PASS or FAIL, with a matching exit code. The
tolerances depend on the type of the weights, because BF16 results cannot agree to FP32 precision.
Needs torch, safetensors and transformers 4.56 or later.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys


def needs(what):
    """Ends the program with an error. Without the packages, it can only print its help."""
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        sys.exit(0)
    print("error: check_transformers.py needs torch, safetensors and transformers 4.56 or later: pip install torch "
          f"safetensors 'transformers>=4.56' ({what})", file=sys.stderr)
    sys.exit(2)


try:
    import transformers

    if tuple(map(int, re.findall(r"\d+", transformers.__version__)[:2])) < (4, 56):  # for from_pretrained(dtype=...)
        needs(f"this is transformers {transformers.__version__}")
    import numpy as np
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
except ImportError as e:
    needs(e)
from vocabularies import vocabulary_of

# (maximum relative error of the logits in the L2 norm, maximum difference of the mean loss, maximum gap of a greedy token).
# The gap is the difference between the largest logit in transformers and the logit of the token that the program chose,
# as a fraction of the largest magnitude of these logits. BF16 rounding of two logits causes 0.8 %; small models were within
# 0.2 %, and wrong weights are 8 % off.
TOLERANCES = {"float32": (1e-4, 1e-5, 1e-4), "float16": (1e-3, 1e-3, 1e-3), "bfloat16": (2e-2, 1e-2, 2e-2)}
PROMPTS = ["The meaning of life is", "#include <std", "Zürich, at 10 °C:"]
FORMATS = {(20240520, 1): np.uint16, (20240801, 7): np.uint32}  # llm.c's token files: (magic, version)
MASKED = 20261124  # magic of files with a loss mask
failures = 0


def report(name, good, text):
    global failures
    failures += not good
    print(f"{'PASS' if good else 'FAIL'}  {name}: {text}")


def load(folder, dtype):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    keys = {k: sorted(v) for k, v in info.items() if k in ("missing_keys", "unexpected_keys", "mismatched_keys") and v}
    keys.pop("missing_keys", None) if keys.get("missing_keys") == ["lm_head.weight"] else None  # the tied head
    report("loads", not keys, "no tensor is missing, unexpected or of a wrong shape" if not keys else json.dumps(keys))
    return model.eval()


def stored_tensors(folder):
    tensors = {}
    for path in sorted(glob.glob(os.path.join(folder, "model*.safetensors"))):
        tensors.update(load_file(path))
    return tensors


def check_values(model, folder):
    stored, wrong = stored_tensors(folder), []
    parameters = dict(model.named_parameters())
    for name, value in parameters.items():
        found = stored.get(name, stored.get(name.removeprefix("transformer.")))
        if found is None or not torch.equal(found.to(value.dtype), value.detach()):
            wrong.append(name)
    report("values", not wrong, f"{len(parameters)} tensors equal the file's" if not wrong else f"differ: {wrong[:5]}")


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.as_tensor(tokens, dtype=torch.long)).logits


def check_logits(model, path, tolerance):
    dump = load_file(path)
    ours = dump["logits"].double()
    theirs = logits_of(model, dump["tokens"]).double()
    ours = ours[..., : theirs.shape[-1]]  # drops the vocabulary's padding
    if ours.shape != theirs.shape:
        return report("logits", False, f"shape {tuple(ours.shape)}, in transformers {tuple(theirs.shape)}")
    largest = (ours - theirs).abs().max().item()
    relative = ((ours - theirs).norm() / theirs.norm()).item()
    report("logits", relative <= tolerance, f"largest difference {largest:.3e}, relative L2 {relative:.3e} "
                                            f"(at most {tolerance:g})")


def read_tokens(path):
    header = np.fromfile(path, dtype=np.int32, count=256)
    kind = FORMATS.get((int(header[0]), int(header[1])))
    if header[0] == MASKED:
        sys.exit(f"{path}: has a loss mask, which this check does not support; name files without a mask")
    if kind is None:
        sys.exit(f"{path}: is not a token file")
    return np.fromfile(path, dtype=kind, count=int(header[2]), offset=1024).astype(np.int64)


def sequences(pattern, length):
    """Yields rows of length + 1 tokens, file by file, like the program's validation."""
    for path in sorted(glob.glob(pattern)):
        tokens = read_tokens(path)
        for at in range(0, len(tokens) - length, length):
            yield tokens[at : at + length + 1]


def validation_loss(model, a):
    total, count, wanted, rows = 0.0, 0, a.micro_batch * a.batches, []

    def add():
        nonlocal total, count
        batch = torch.from_numpy(np.stack(rows))
        logits = logits_of(model, batch[:, :-1])
        total += F.cross_entropy(logits.flatten(0, 1).double(), batch[:, 1:].flatten(), reduction="sum").item()
        count += batch.shape[0]
        rows.clear()

    for row in sequences(a.val, a.seq_len):
        rows.append(row)
        if len(rows) == a.micro_batch:
            add()
        if wanted and count + len(rows) == wanted:
            break
    if rows:
        add()
    if not count or count < wanted:
        sys.exit(f"--val {a.val}: {count} sequences of {a.seq_len} tokens; {wanted or 1} are needed; "
                 "use a smaller --batches or --micro-batch")
    return total / (count * a.seq_len), count


def program_loss(a):
    command = [a.program, "--model", a.folder, "--val", a.val, "--eval-only", "--recipe", "bf16",
               "--micro-batch", str(a.micro_batch), "--seq-len", str(a.seq_len), "--val-batches",
               str(a.batches), "--json", "--quiet", *a.flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    found = re.findall(r'"val_loss":([^,}]+)', done.stdout)
    if done.returncode or not found:
        sys.exit(f"failed ({done.returncode}): {' '.join(command)}")
    return float(found[-1])


def hellaswag_examples(path):
    """Yields (context, endings, label) of llm.c's evaluation file, or of its variant with 32-bit words."""
    wide = np.fromfile(path, dtype=np.int32, count=2)[1] == 2
    words = np.fromfile(path, dtype=np.uint32 if wide else np.uint16, offset=1024).astype(np.int64).tolist()
    at = 0
    while at < len(words):
        label, endings, texts, next_text = words[at + 3], words[at + 4], [], at + 5
        for _ in range(1 + endings):
            count = words[next_text]
            texts.append(words[next_text + 1 : next_text + 1 + count])
            next_text += 1 + count
        yield texts[0], texts[1:], label
        at += words[at + 1] // (4 if wide else 2)


def hellaswag_share(model, path):
    """Returns the fraction of right endings, the number of examples that are too close to decide, and that of all examples."""
    right = close = total = 0
    for situation, endings, label in hellaswag_examples(path):
        means = []
        for ending in endings:
            logits = logits_of(model, [situation + ending[:-1]])[0, len(situation) - 1 :]
            means.append(F.cross_entropy(logits.double(), torch.tensor(ending)).item())
        order = sorted(means)
        close += order[1] - order[0] < 1e-3
        right += means.index(order[0]) == label
        total += 1
    return right / total, close, total


def program_share(a):
    command = [a.program, "--model", a.folder, "--hellaswag", a.hellaswag, "--eval-only", "--recipe", "bf16",
               "--micro-batch", str(a.micro_batch), "--seq-len", str(a.seq_len), "--json", "--quiet", *a.flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    found = re.findall(r'"hellaswag":([^,}]+)', done.stdout)
    if done.returncode or not found:
        sys.exit(f"failed ({done.returncode}): {' '.join(command)}")
    return float(found[-1])


def check_hellaswag(model, a):
    theirs, close, total = hellaswag_share(model, a.hellaswag)
    ours = program_share(a)
    report("HellaSwag", abs(ours - theirs) * total <= close + 0.5,
           f"{ours:.6f}, transformers {theirs:.6f} of {total} examples, {close} of them too close to decide")


def shown(text):
    """Returns any bytes as one printable line."""
    return json.dumps(text.decode("utf-8", "backslashreplace"), ensure_ascii=False)


def program_continues(a, text):
    """Returns (the prompt's tokens, the tokens that the program continues it with by greedy decoding)."""
    command = [a.program, "--model", a.folder, "--prompt", text, "--temperature", "0", "--sample-tokens",
               str(a.prompt_tokens), "--prompt-format", "none", "--recipe", "bf16", "--micro-batch", "1", "--seq-len", str(a.seq_len), "--json",
               "--quiet", *(["--tokenizer", a.tokenizer] if a.tokenizer else []), *a.flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # because its text may not be UTF-8
    if done.returncode:
        sys.exit(f"failed ({done.returncode}): {' '.join(command)}\n{done.stderr.decode('utf-8', 'replace')}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["prompt"], found["sample"]


def transformers_continues(model, prompt, count):
    given = torch.tensor([prompt])
    model.generation_config.eos_token_id = None  # because the comparison needs `count` tokens, also after an EOS token
    with torch.no_grad():
        return model.generate(given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=count,
                              pad_token_id=0)[0, len(prompt):].tolist()


def check_prompt(model, vocabulary, a, text, tolerance):
    prompt, ours = program_continues(a, text)
    ours = ours[: a.seq_len - len(prompt)]  # because after --seq-len tokens, the program drops the first ones
    if not ours:
        sys.exit(f"--prompts {text!r}: its {len(prompt)} tokens fill --seq-len {a.seq_len}; use a shorter text")
    theirs = transformers_continues(model, prompt, len(ours))
    wanted = vocabulary.tokens(text)
    same_prompt = wanted in (None, prompt) and vocabulary.spells(prompt, text)
    # transformers gets the program's tokens as context at every position
    logits = logits_of(model, [prompt + ours[:-1]])[0, len(prompt) - 1 :].double()
    best, scale = logits.max(dim=-1).values, logits.abs().max(dim=-1).values
    gap = ((best - logits[torch.arange(len(ours)), ours]) / scale).max().item()
    most_likely = sum(x == y for x, y in zip(logits.argmax(dim=-1).tolist(), ours))
    equal = sum(x == y for x, y in zip(ours, theirs))
    print(f"      program       {shown(vocabulary.text(prompt + ours))}")
    print(f"      transformers  {shown(vocabulary.text(prompt + theirs))}")
    name = f"prompt {shown(os.fsencode(text))}"
    if not same_prompt:
        return report(name, False, f"the program's tokens are {prompt}, the vocabulary's {wanted}")
    report(name, gap <= tolerance,
           f"{most_likely} of {len(ours)} tokens are transformers' most likely; the logits of the others are at most {gap:.1e} "
           f"below the largest logit, relative to it (at most {tolerance:g}); {100 * equal / len(ours):.0f} % of the tokens are equal "
           "if each program continues by itself")


def check_prompts(model, a, tolerance):
    vocabulary = vocabulary_of(a.tokenizer or a.folder, not a.tokenizer and model.config.vocab_size)
    if not vocabulary:
        sys.exit(f"--prompts: {a.tokenizer or a.folder}: has no tokenizer.json, tokenizer.model, or vocab.json with "
                 "merges.txt; use --tokenizer FOLDER")
    a.seq_len = min(a.seq_len, model.config.max_position_embeddings)
    for text in a.prompts or PROMPTS:
        check_prompt(model, vocabulary, a, text, tolerance)


def make_random(a):
    torch.manual_seed(a.seed)
    config = GPT2Config(n_layer=a.layers, n_head=a.heads, n_embd=a.channels, vocab_size=a.vocab,
                        n_positions=a.positions, bos_token_id=a.vocab - 1, eos_token_id=a.vocab - 1)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():  # random norms and biases, because 1 and 0 would hide an error
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))
        for name, p in model.named_parameters():
            if p.dim() == 2 and ".h." in name:
                p.mul_(a.gain)
    model = model.to(getattr(torch, a.dtype))
    os.makedirs(a.make_random, exist_ok=True)
    bytes_in_all = sum(p.numel() * p.element_size() for p in model.parameters())
    if a.bare:  # as in the first GPT-2 folders: names without prefix, and buffers
        tensors = {k: v.contiguous() for k, v in model.transformer.state_dict().items()}
        for layer in range(a.layers):
            tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, a.positions, a.positions).tril()
        save_file(tensors, os.path.join(a.make_random, "model.safetensors"), metadata={"format": "pt"})
        config.architectures, config.dtype = ["GPT2LMHeadModel"], a.dtype
        config.save_pretrained(a.make_random)
    else:
        limit = bytes_in_all if a.shards == 1 else -(-bytes_in_all // a.shards)
        model.save_pretrained(a.make_random, max_shard_size=int(limit) + 1)
    print(f"{a.make_random}: {sorted(os.listdir(a.make_random))}")


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", nargs="?", help="folder to check")
    p.add_argument("--logits", help="safetensors file with tokens and logits")
    p.add_argument("--val", help="token files of the validation loss")
    p.add_argument("--loss", type=float, help="the validation loss that the program reports")
    p.add_argument("--program", help="the trainer; it computes its loss with --eval-only")
    p.add_argument("--hellaswag", metavar="FILE", help="HellaSwag in llm.c's format; needs --program")
    p.add_argument("--prompts", metavar="TEXT", nargs="*", help="texts to continue (default: three texts); needs --program")
    p.add_argument("--prompt-tokens", type=int, default=32, help="number of tokens that continue a prompt")
    p.add_argument("--tokenizer", metavar="bytes|PATH", help="tokenizer of the prompts (default: FOLDER's)")
    p.add_argument("--micro-batch", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=128)
    p.add_argument("--batches", type=int, default=4, help="number of micro-batches of the loss")
    p.add_argument("--double", action="store_true", help="compute in FP64")
    p.add_argument("--tolerance", choices=TOLERANCES, help="type that sets the tolerances (default: that of the weights)")
    p.add_argument("--make-random", metavar="DIR", help="write a random model to this folder, and check nothing")
    for name, default in dict(layers=2, heads=2, channels=64, vocab=257, positions=128, seed=1, shards=1).items():
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--dtype", choices=TOLERANCES, default="float32")
    p.add_argument("--gain", type=float, default=1.0,
                   help="factor on the initial values of the blocks' matrices; with 1 the most likely token is the previous one")
    p.add_argument("--bare", action="store_true", help="write names without 'transformer.', and the mask buffers")
    ours, flags = sys.argv[1:], []
    if "--" in ours:
        ours, flags = ours[: ours.index("--")], ours[ours.index("--") + 1 :]
    a = p.parse_args(ours)
    a.flags = flags
    if not a.folder and not a.make_random:
        p.error("name a FOLDER, or use --make-random FOLDER")
    if a.folder and not os.path.exists(os.path.join(a.folder, "config.json")):
        p.error(f"{a.folder}: has no config.json; name the folder of a model, for example OUT/step-00000020")
    prompts = a.prompts is not None
    if (a.loss is not None and not a.val) or (a.program and not a.val and not a.hellaswag and not prompts):
        p.error("--loss needs --val, --program needs --val, --hellaswag or --prompts")
    if (a.hellaswag or prompts) and not a.program:
        p.error("--hellaswag and --prompts need --program")
    if a.prompt_tokens < 1 or (prompts and "" in a.prompts):
        p.error("--prompt-tokens must be at least 1, and no text of --prompts may be empty")
    return a


def main():
    a = parse()
    if a.make_random:
        return make_random(a)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = load(a.folder, torch.float64 if a.double else torch.float32)
    check_values(model, a.folder)
    stored = str(next(iter(stored_tensors(a.folder).values())).dtype).removeprefix("torch.")
    logits_tolerance, loss_tolerance, prompt_tolerance = TOLERANCES[a.tolerance or stored]
    if a.logits:
        check_logits(model, a.logits, logits_tolerance)
    if a.val:
        theirs, count = validation_loss(model, a)
        print(f"      transformers' loss over {count} sequences of {a.seq_len} tokens: {theirs:.6f}")
        ours = program_loss(a) if a.program else a.loss
        if ours is not None:
            report("loss", abs(ours - theirs) <= loss_tolerance,
                   f"{ours:.6f}, difference {abs(ours - theirs):.2e} (at most {loss_tolerance:g})")
    if a.hellaswag:
        check_hellaswag(model, a)
    if a.prompts is not None:
        check_prompts(model, a, prompt_tolerance)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
