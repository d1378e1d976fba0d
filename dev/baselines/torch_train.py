"""Trains a model with PyTorch, for dev/baselines/baselines.sh: Hugging Face's model, torch.compile and fused AdamW.
Weights are FP32 under BF16 autocast, or BF16. Linear layers run in BF16 or, with torchao or TransformerEngine, in FP8.
Prints a line of JSON per step.

    torch_train.py --model NAME --tokens FILE [--linear bf16|float8-tensorwise|float8-rowwise|te|coat]
                   [--weights fp32|bf16] [--micro-batch 64] [--seq-len 1024] [--passes 8] [--steps 12]
                   [--device cuda] [--parameters N]

--linear te uses TransformerEngine's layers with current scaling, without torch.compile. --linear coat uses fp8-coat's
model and optimizer, for models with Llama's block. --passes: micro-batches per step. --parameters N: refuses a model
whose parameter count differs from N, apart from the vocabulary's padding.
"""
import argparse
import contextlib
import functools
import json
import sys
import time

import numpy
import torch
import transformers

HEADER_BYTES = 1024


def configuration(name):
    llama = dict(hidden_act="silu", rms_norm_eps=1e-5)
    known = {
        "gpt2": lambda: gpt2(12, 12, 768),
        "gpt2-xl": lambda: gpt2(48, 25, 1600),
        "olmo-1b": lambda: transformers.OlmoConfig(
            vocab_size=50304, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=16,
            tie_word_embeddings=True),
        "llama2-7b": lambda: transformers.LlamaConfig(
            vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
            max_position_embeddings=4096, **llama),
        "qwen2.5-1.5b": lambda: transformers.Qwen2Config(
            vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
            num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-6, rope_theta=1e6),
        "qwen2.5-7b": lambda: transformers.Qwen2Config(
            vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
            num_key_value_heads=4, tie_word_embeddings=False, rms_norm_eps=1e-6, rope_theta=1e6),
        "tiny": lambda: transformers.LlamaConfig(
            vocab_size=50257, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            **llama),
    }
    if name not in known:
        sys.exit(f"error: --model {name}: must be one of {', '.join(known)}")
    return known[name]()


def gpt2(layers, heads, channels):
    """Returns a GPT-2 configuration. Its vocabulary is padded to a multiple of 64, which matmuls need."""
    return transformers.GPT2Config(vocab_size=50304, n_layer=layers, n_head=heads, n_embd=channels, resid_pdrop=0.0,
                                   embd_pdrop=0.0, attn_pdrop=0.0)


class WithLoss(torch.nn.Module):
    """Computes the mean loss from the model's BF16 logits. transformers' own loss would also store the logits in
    FP32."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, targets):
        logits = self.model(input_ids=ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def with_linear_layers(model):
    """Replaces GPT-2's transposed Conv1D layers by nn.Linear, because torchao converts only nn.Linear."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ == "Conv1D":
                rows, columns = child.weight.shape
                linear = torch.nn.Linear(rows, columns, device=child.weight.device, dtype=child.weight.dtype)
                linear.weight.data.copy_(child.weight.data.t())
                linear.bias.data.copy_(child.bias.data)
                setattr(module, name, linear)
    return model


def in_float8(model, recipe):
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(recipe)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda module, name: "lm_head" not in name)


def in_transformer_engine(model):
    """Replaces all linear layers except the head by TransformerEngine's. Returns a function that creates the context
    manager for a pass."""
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import Float8CurrentScaling

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear and name != "lm_head":
                linear = te.Linear(child.in_features, child.out_features, bias=child.bias is not None,
                                   params_dtype=child.weight.dtype, device=child.weight.device)
                linear.load_state_dict(child.state_dict(), strict=False)
                setattr(module, name, linear)
    return lambda: te.fp8_autocast(enabled=True, fp8_recipe=Float8CurrentScaling())


def in_coat(config):
    """Returns fp8-coat's Llama model with BF16 weights, and the function that makes its optimizer."""
    from dataclasses import asdict

    from coat.models.coat_llama import CoatLlamaConfig, CoatLlamaForCausalLM
    from coat.optimizer.fp8_adamw import CoatAdamW
    from coat.utils._fp8_quantization_config import QuantizationConfig

    if config.model_type != "llama":
        sys.exit(f"error: --linear coat: fp8-coat can train only models with Llama's block, not {config.model_type}")
    own = CoatLlamaConfig(**config.to_dict())
    own.coat_fp8_args = asdict(QuantizationConfig())
    if not hasattr(CoatAdamW, "_cuda_graph_capture_health_check"):  # renamed in torch 2.11; fp8-coat uses the old name
        CoatAdamW._cuda_graph_capture_health_check = CoatAdamW._accelerator_graph_capture_health_check
    return CoatLlamaForCausalLM(own), functools.partial(CoatAdamW, qargs=QuantizationConfig())


def read_tokens(path, vocabulary):
    header = numpy.fromfile(path, dtype=numpy.int32, count=HEADER_BYTES // 4)
    kind = {1: numpy.uint16, 7: numpy.uint32}.get(int(header[1]))
    if kind is None:
        sys.exit(f"error: {path}: must be a token file of version 1 or 7")
    tokens = numpy.memmap(path, dtype=kind, mode="r", offset=HEADER_BYTES)
    largest = int(tokens[: 1 << 24].max())
    if largest >= vocabulary:
        sys.exit(f"error: {path}: token {largest} is not below the model's vocabulary size, {vocabulary}")
    return tokens


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--linear", default="bf16",
                        choices=["bf16", "float8-tensorwise", "float8-rowwise", "te", "coat"])
    parser.add_argument("--weights", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parameters", type=int, default=0)
    a = parser.parse_args()

    config = configuration(a.model)
    tokens = read_tokens(a.tokens, config.vocab_size)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    optimizer_class = torch.optim.AdamW
    with torch.device(a.device):
        if a.linear == "coat":
            model, optimizer_class = in_coat(config)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    count = sum(p.numel() for p in model.parameters())
    if a.parameters and abs(count - a.parameters) > 128 * config.hidden_size * 2:
        sys.exit(f"error: --model {a.model}: has {count} parameters; --parameters requires {a.parameters}")
    model = with_linear_layers(model).to(torch.float32 if a.weights == "fp32" else torch.bfloat16).train()
    if a.linear.startswith("float8"):
        in_float8(model, a.linear.removeprefix("float8-"))
    around = in_transformer_engine(model) if a.linear == "te" else contextlib.nullcontext
    with_loss = WithLoss(model)
    compiled = with_loss if a.linear in ("coat", "te") else torch.compile(with_loss)
    optimizer = optimizer_class(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                fused=a.device == "cuda")
    per_pass = a.micro_batch * a.seq_len
    at = 0
    for step in range(1, a.steps + 1):
        begin, loss_sum = time.perf_counter(), 0.0
        for _ in range(a.passes):
            if at + per_pass + 1 > len(tokens):
                at = 0
            some = torch.from_numpy(tokens[at : at + per_pass + 1].astype(numpy.int64)).to(a.device, non_blocking=True)
            ids, targets = (part.view(a.micro_batch, a.seq_len) for part in (some[:-1], some[1:]))
            at += per_pass
            with torch.autocast(a.device, torch.bfloat16, enabled=a.weights == "fp32"), around():
                loss = compiled(ids, targets) / a.passes
            loss.backward()
            loss_sum += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = float(loss_sum)  # waits for the device
        seconds = time.perf_counter() - begin
        line = {"step": step, "loss": value, "ms": seconds * 1e3, "tokens_per_s": a.passes * per_pass / seconds}
        if a.device == "cuda":
            free, total = torch.cuda.mem_get_info()
            line["driver_bytes"] = total - free
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
