"""Times PyTorch's causal attention in BF16 at shapes of build/bench_attention_backward_gpu. Prints a table of
milliseconds and TFLOP/s for FlashAttention 2 and cuDNN. Counts two matmuls in forward and five in backward, each for
the visible half of the scores.

    torch_attention.py [--device cuda] [--repeat 9]
"""
import argparse
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SHAPES = [(64, 1024, 12, 64), (16, 1024, 25, 64), (16, 4096, 12, 64), (16, 1024, 16, 128), (4, 2048, 16, 128),
          (4, 4096, 16, 128), (4, 2048, 32, 128), (4, 4096, 32, 128)]
BACKENDS = {"FlashAttention 2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def median_ms(run, repeat, device):
    """Returns the median time of run(). Measures groups of ten calls, so that the device does not wait for the host."""
    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    times = []
    for _ in range(repeat + 3):  # the first three warm up
        wait()
        begin = time.perf_counter()
        for _ in range(10):
            run()
        wait()
        times.append(100 * (time.perf_counter() - begin))
    return sorted(times[3:])[repeat // 2]


def measured(backend, shape, repeat, device):
    """Returns the milliseconds of forward and of backward. q, k and v (B, H, T, D) are views of a (B, T, 3, H, D)
    tensor."""
    batch, length, heads, width = shape
    qkv = torch.randn(batch, length, 3, heads, width, device=device, dtype=torch.bfloat16)
    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in qkv.unbind(2))
    with sdpa_kernel(backend):
        def attention():
            return scaled_dot_product_attention(q, k, v, is_causal=True)

        out = attention()
        gradient = torch.randn_like(out)
        forward = median_ms(attention, repeat, device)
        backward = median_ms(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), repeat, device)
    return forward, backward


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeat", type=int, default=9)
    arguments = parser.parse_args()
    print("| B, T, heads | | forward, ms (TFLOP/s) | backward, ms (TFLOP/s) |\n| --- | --- | --- | --- |")
    for batch, length, heads, width in SHAPES:
        matmul = batch * heads * length * length * width  # half of the pairs, two operations each
        for name, backend in BACKENDS.items():
            try:
                forward, backward = measured(backend, (batch, length, heads, width), arguments.repeat, arguments.device)
                cells = (f"{forward:.3f} ({2 * matmul / forward / 1e9:.0f}) | "
                         f"{backward:.3f} ({5 * matmul / backward / 1e9:.0f})")
            except RuntimeError as error:  # the backend does not support the shape or the device
                cells = f"{str(error).splitlines()[0][:60]} | "
            print(f"| {batch}, {length}, {heads} of {width} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
