"""The paragraphs of the page that `scripts/lab.py reproduce` writes."""

HEAD = """A cell is the paper's figure (H100 80 GB) → this program's (in brackets: the second divided by the first), \
or this program's alone. Tables are numbered as in the paper's first version; in its third, those from 4 on have a \
number more. The paper's ratios are computed from its figures; it printed them rounded down. GB = 10⁹ bytes. The \
paper's are probably 1000 MiB, with which its optimizer column is 2 and 8 bytes per parameter: 1.05 of these. What \
was not measured is marked: "planned" is the memory plan of `--plan`, to which CUDA's context adds about 0.6 GB, with \
NCCL 1.5, and "–" means that there is no figure."""
TABLE1 = """Squared error of m/√v, in thousandths of its square, after both moments were quantized in groups of 128. \
The states are of runs in BF16 whose rate rises for a fifth of the steps and then is constant: %s. Measured%s. The \
columns of gains divide the error of plain E4M3 by that with expansion. A group's gain: the median and, in brackets, \
90 %% of the groups. m and v: the deviation of ln|x| within a group, the range of 90 %% of the groups, and the mean \
exponent k."""
TABLE2 = """U = 2 C bytes per token, of C channels. OLMo-7B's layer, which has the paper's widths, counted by the \
memory plan. Attention: q, k, v and its sums; its output o counts among the matmuls' inputs, as in the paper's 5.66 U \
(3 and 2.66). The paper's BF16 saves 22.66 U. 16.1 are enough to save every tensor that backward reads once: the \
paper's norms save FP32 inputs, and its SwiGLU saves silu's result, too. Here the rotated q and k replace those \
before RoPE. COAT saves only o of the matmuls' inputs, in BF16: backward recomputes the others from what norms and \
activation function save."""
TABLE6 = """`olmo`: the layer of the paper's benchmark, OLMo's with heads of 128 and an MLP of 2.69 times the width; \
below it those of models by name. Batch 4, values normally distributed (the paper's are uniform from 0 to 1; matmuls \
run faster on constant values). The paper's times fit a batch of 4 and its MB one of 8: so bytes are per token and \
layer here, and its U are its MB over eight sequences."""
TABLE6_RATIO = """Part of the paper's ratio is due to its baseline: its BF16 saves 22.66 U, 45.3 bytes per token and \
channel, this one 32.1, so that BF16 would gain a factor of 1.41 of its 1.70 (13.33 U) without what it saves twice. \
Compared with this BF16 the paper's COAT is 1.2 times smaller. `bf16 --recompute 2` recomputes the activation \
function and norms, as COAT does. `fp8-linear` is compared with TransformerEngine."""
FIGURE4 = """Plain: one more pass over the tensor. Group Scaling: a reduction of the amax of groups of 128 that the \
kernel before has written; this program's kernels write those of rows."""
TABLE7 = """Each recipe at the same batch, then at the largest that 80·10⁹ bytes hold. Several GPUs shard weights, \
gradients and states (ZeRO 3). Tokens/s and memory are of one GPU. `driver` is the peak that the driver reports; the \
optimizer (the two moments), activations (saved) and `plan` are the plan's. The paper's tokens/s are at each method's \
own largest batch. The paper's columns add up with OLMo-7B's parameters, and its benchmark files name that model: so \
OLMo-7B is next to Llama-2-7B. `fp8-linear` is compared with TransformerEngine and has FP32 masters, 2 bytes per \
parameter more than the others."""
NARROW = """Text: GPT-2 tokens; for Llama those from 32,000 on, the rarer words, were dropped. Among the speeds, only \
that of the embedding's gradient depends on it."""
PLANNED = """Planned rows, GPT-2's too, are measured by `TRAIN=GLOB scripts/lab.py reproduce table7 gpt2`, without \
`QUICK=1`, on a machine with that many GPUs for FP8 and this memory."""
ONE_BY_ONE = """Rows with the same batch, one by one. Llama's TOKENS are written by `build/narrow_tokens 32000 %d GPT2_TOKENS \
OUT.bin`:"""
FOOT = """Stored figures, which nothing measured for this page, are in scripts/results: losses.md (table 3), baselines.md \
(other programs on one card) and differences.md (what differs from the paper's method)."""
