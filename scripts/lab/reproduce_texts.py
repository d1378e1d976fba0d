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
ONE_BY_ONE = """Rows of the same batch one by one. Llama's TOKENS are what `build/narrow_tokens 32000 %d GPT2_TOKENS \
OUT.bin` writes:"""
FIDELITY = ["RECIPES='bf16 fp8-linear coat' SEEDS=4", "TO=480 RECIPES='bf16 coat' SEEDS='5 6 7'",
            "FROM=240 TO=640 RECIPES='bf16 coat b16:coat,bf16-blocks=16' SEEDS=4",
            "FROM=240 TO=640 RECIPES=bf16 SEEDS=4@4"]
LOSSES = [
    """The paper's are training losses of one run each, far from the end of its schedule: at 300 billion tokens \
OLMo-1B's rate is by its schedule still 98 % of the peak. Here:""",
    """OLMo-1B from scratch, 105 million tokens (`TO=480` ends after 63 million, `TO=344` after 45), each recipe on \
the same tokens in the same order. The page of these commands has the difference by eighths of the run and, with \
`TEXTS="NAME=GLOB ..."`, perplexities on further texts, as the paper has them of WikiText, C4 and the Pile. \
TRAIN_GLOB and VAL_GLOB are GPT-2 tokens from `data/prepare.py`. The rows "here" are of runs in scripts/results, on \
Python sources, which the paper did not read: they compare with their BF16 and not with the paper. Each is one pair; \
the one of 45M tokens is of older kernels. From scratch seed 4 ends 1.73 % apart, seed 5 after 63M tokens at −0.04 %, \
so one pair tells little. From a checkpoint of BF16 COAT ends 0.15 % above, and BF16 with other micro-batches stays \
within 0.01 %: docs/loss.md, "Is OLMo-1B's pair chance?\"""",
    """Training losses by eighths of the steps, of BF16 and in percent of them; all runs: \
scripts/results/fidelity-olmo-1b/fidelity.md. `b16` is COAT with `--bf16-blocks 16`, of all blocks; seed 4@4 is seed \
4 in micro-batches of 4 instead of 8.""",
    """What each part costs, in a small OLMo (4 layers of 128, bytes, 400 steps of 1,024 tokens, on a CPU; \
scripts/results/fidelity-olmo-small/fidelity.md):""",
    """Further: pairs at 124M and 1558M, with their standard errors, in docs/loss.md; what each part of COAT costs, \
in docs/loss.md, "Which part costs what?"; a fine-tuning pair of Llama-2-7B (+0.10 % at the end, no eighth more than \
0.12 %), in docs/finetuning.md. The paper's accuracies (COPA, ARC-E, SciQ and HellaSwag) have no counterpart, because \
models guess after so few tokens; nor have its fine-tuning on mathematics and of VILA, whose data are not at hand. \
Perplexities of these models of Python on other texts vary by 9 % (docs/loss.md). Its table 8, formats with DE8, is \
among the pairs of table 1 above.""",
]
