"""Trains a model with pyllmq, for dev/baselines/baselines.sh. Prints a line of JSON per step.

    llmq_train.py --model olmo-1b|llama2-7b|qwen2.5-1.5b|qwen2.5-7b --tokens FILE [--matmul e4m3|bf16]
                  [--micro-batch 32] [--seq-len 1024] [--passes 8] [--steps 12] [--parameters N]

olmo-1b has Llama's block with the widths of OLMo-1B. Moments are in BF16, as in pyllmq's own benchmarks. --passes:
micro-batches per step. --parameters N: refuses a model whose parameter count differs from N, apart from the
vocabulary's padding and the weights of norms.
"""
import argparse
import json
import subprocess
import sys
import time

import numpy
import pyllmq

HEADER_BYTES = 1024


def configuration(name, expected):
    shapes = {
        "olmo-1b": ("llama", 2048, 8192, 16, 16, 16, 50304, True),
        "llama2-7b": ("llama", 4096, 11008, 32, 32, 32, 32000, False),
        "qwen2.5-1.5b": ("qwen2", 1536, 8960, 28, 12, 2, 151936, True),
        "qwen2.5-7b": ("qwen2", 3584, 18944, 28, 28, 4, 152064, False),
    }
    if name not in shapes:
        sys.exit(f"error: --model {name}: must be one of {', '.join(shapes)}")
    architecture, hidden, intermediate, layers, heads, kv_heads, vocabulary, tied = shapes[name]
    width = hidden // heads * (heads + 2 * kv_heads)  # rows of the packed q, k and v
    block = hidden * (width + hidden + 3 * intermediate + 2) + (width if architecture == "qwen2" else 0)
    parameters = layers * block + hidden + (1 if tied else 2) * vocabulary * hidden
    if expected and abs(parameters - expected) > 128 * hidden * 2:
        sys.exit(f"error: --model {name}: has {parameters} parameters; --parameters requires {expected}")
    return vocabulary, pyllmq.LLamaConfig(
        architecture=architecture, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=vocabulary, tie_word_embeddings=tied,
        max_position_embeddings=4096, rms_norm_eps=1e-5, dtype="bfloat16")


def memory_in_use():
    said = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True, check=True).stdout
    return int(said.split()[0]) * 1024 * 1024


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--matmul", default="e4m3", choices=["e4m3", "bf16"])
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--parameters", type=int, default=0)
    a = parser.parse_args()

    vocabulary, config = configuration(a.model, a.parameters)
    header = numpy.fromfile(a.tokens, dtype=numpy.int32, count=HEADER_BYTES // 4)
    dtype = numpy.uint16 if header[1] == 1 else numpy.uint32
    tokens = numpy.memmap(a.tokens, dtype=dtype, mode="r", offset=HEADER_BYTES)
    largest = int(tokens[: 1 << 24].max())
    if largest >= vocabulary:
        sys.exit(f"error: {a.tokens}: token {largest} is not below the model's vocabulary size, {vocabulary}")
    options = pyllmq.LLamaOptions()
    options.momentum_type = options.variance_type = "bf16"
    options.matmul_type = a.matmul
    options.use_cuda_graphs = True
    trainer = pyllmq.LLMQTrainer(ngpu=1, config=config, options=options, batch_size=a.micro_batch, seq_len=a.seq_len,
                                 grad_accum=a.passes)
    trainer.init_weights()
    per_pass, at = a.micro_batch * a.seq_len, 0
    for step in range(1, a.steps + 1):
        begin = time.perf_counter()
        for _ in range(a.passes):
            if at + per_pass + 1 > len(tokens):
                at = 0
            piece = tokens[at : at + per_pass + 1].astype(numpy.int32)
            at += per_pass
            trainer.step(piece[:-1].reshape(a.micro_batch, -1).copy(), piece[1:].reshape(a.micro_batch, -1).copy())
        result = trainer.update(3e-4, 0.9, 0.95, step, 0.1, 1.0)
        seconds = time.perf_counter() - begin
        print(json.dumps({"step": step, "loss": float(result["loss"]), "ms": seconds * 1e3,
                          "tokens_per_s": a.passes * per_pass / seconds, "driver_bytes": memory_in_use()}), flush=True)


if __name__ == "__main__":
    main()
