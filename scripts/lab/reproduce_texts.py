"""The paragraphs of the page that `scripts/lab.py reproduce` writes."""

HEAD = """Cells show the paper's figure (H100 of 80 GB) → this program's figure and, in brackets, the second divided \
by the first. Cells without an arrow are this program's. Tables have the numbers of the paper's first version; in its \
third version, the numbers from 4 on are higher by one. The paper's ratios are recomputed from its figures, because it \
printed them rounded down. GB means 10⁹ bytes. The paper's GB are probably 1000 MiB (1.05 × 10⁹ bytes), because its \
optimizer columns then equal 2 and 8 bytes per parameter. "planned" marks memory that was not measured but comes from \
`--plan`; CUDA's context adds about 0.6 GB, with NCCL 1.5. "–" means that there is no figure."""
TABLE1 = """The errors are squared errors of m/√v, in thousandths of its square, after both moments were quantized in \
groups of 128. The moments come from BF16 runs whose rate rises over the first fifth of the steps and then stays \
constant: %s. The errors were measured %s. A gain is the error of plain E4M3 divided by the error with expansion. "a \
group's gain" shows the median and, in brackets, the range of 90 %% of the groups. The columns m and v show the \
standard deviation of ln|x| within a group, the dynamic range of 90 %% of the groups, and the mean exponent k."""
TABLE2 = """One U is 2 C bytes per token, where C is the number of channels. The figures are those of the memory plan \
for OLMo-7B's layer, which has the paper's widths. The column "attention" contains q, k, v and the softmax's sums; \
attention's output o counts as an input of a matmul, as in the paper's 5.66 U (3 and 2.66). BF16 saves 22.66 U in the \
paper and 16.1 U here, because this program saves a single copy of each tensor that backward reads. The paper's norms \
save FP32 inputs, and its SwiGLU also saves silu's output. Here q and k are saved only after RoPE. Of the matmuls' \
inputs, COAT saves only o, in BF16; backward recomputes the others from the saved inputs of the norms and the \
activation function."""
TABLE6 = """`olmo` is the layer of the paper's benchmark: OLMo's layer with heads of 128 and an MLP of 2.69 times the \
width. The other rows are layers of named models. The batch has 4 sequences of normally distributed values; the \
paper's values are uniform from 0 to 1. (Matmuls run faster on constant values.) The paper's times match a batch of 4, \
but its MB match a batch of 8. This page therefore shows bytes per token and layer, and divides the paper's MB by \
eight sequences."""
TABLE6_RATIO = """Part of the paper's ratio comes from its baseline. Per token and channel, the paper's BF16 saves \
45.3 bytes (22.66 U), this program's BF16 32.1. The paper's COAT (13.33 U) saves 1.70 times less than its own BF16, \
but only 1.2 times less than this program's BF16; the remaining factor of 1.41 comes from tensors that the paper's \
BF16 saves twice. `bf16 --recompute 2` recomputes the activation function and the norms, as COAT does. `fp8-linear` is \
compared with TransformerEngine."""
FIGURE4 = """"plain" reads the tensor once more to find its amax. Group Scaling reduces the amaxes of groups of 128, \
which the preceding kernel has written. This program's kernels write the amax of each row instead."""
TABLE7 = """Each recipe is shown at the same batch, then at the largest batch that fits in 80·10⁹ bytes. Several GPUs \
shard weights, gradients and states (ZeRO 3). Tokens/s and memory are per GPU. `driver` is the peak that the driver \
reports; the optimizer's memory (both moments), the activations (saved for backward) and `plan` come from `--plan`. \
The paper's tokens/s are at each method's own largest batch. OLMo-7B is shown next to Llama-2-7B, because the paper's \
columns add up with OLMo-7B's parameters and its benchmark files name that model. `fp8-linear` is compared with \
TransformerEngine; its FP32 master weights take 2 bytes per parameter more than those of the other recipes. `coat` \
computes dgrad and wgrad of the output head in FP8; `coat-paper`, with the paper's settings, computes the head in \
BF16."""
NARROW = """The text consists of GPT-2 tokens. For Llama, tokens from 32,000 on (the rarer words) are dropped. Only \
the speed of the embedding's gradient depends on the text."""
PLANNED = """`TRAIN=GLOB scripts/lab.py reproduce table7 gpt2`, without `QUICK=1`, measures the planned rows, \
including those of GPT-2. It needs that many GPUs with FP8 and enough memory."""
ONE_BY_ONE = """These commands measure the rows with the same batch one by one. `build/narrow_tokens 32000 %d \
GPT2_TOKENS OUT.bin` writes Llama's TOKENS:"""
FOOT = """Figures that were not measured for this page are stored in scripts/results: losses.md (table 3), \
baselines.md (other programs on one card) and differences.md (differences from the paper's method)."""
