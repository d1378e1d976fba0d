# A model of the time of one step on many GPUs: what each ZeRO stage sends per GPU, how much of it hides behind the
# computation, and the share of the GPUs' own speed that is left. Prints the Markdown tables of docs/many_gpus.md.
#
#   awk -f scripts/step_time.awk [-v rate=700e12] [-v inside=300e9] [-v outside=45e9] [-v hop=8e-6]
#
# rate: FLOP/s of one GPU in a step (COAT at 1558M, measured); inside, outside: bytes/s of a GPU's links within a host
# (measured by NCCL) and between hosts (400 Gbit/s, 90 % used); hop: seconds that one more GPU adds to a ring.
function least(a, b) { return a < b ? a : b }
function beyond(a, b) { return a > b ? a - b : 0 }
# parameters of the blocks' matrices, layers, tokens of a GPU's micro-batch, micro-batches per step, GPUs, stage
function share(P, L, M, k, n, stage,    bytes, speed, late, pass, reduce, gather, gather8, exposed) {
    speed = n > 8 ? outside : inside
    late = L * (n - 1) * (n > 8 ? hop : hop / 8) # a collective per layer
    pass = 6 * P * M / rate                      # a third of it forward
    reduce = 2 * P * (n - 1) / n / speed + late  # BF16 gradients into shares
    gather = reduce                              # BF16 weights from shares
    gather8 = P * (n - 1) / n / speed + late     # FP8 codes
    if (stage == 1) exposed = beyond(reduce, pass * 2 / 3) + beyond(gather, pass / 3)
    if (stage == 2) exposed = k * beyond(reduce, pass * 2 / 3) + beyond(gather, pass / 3)
    if (stage == 3) exposed = k * (beyond(gather8, pass / 3) + beyond(reduce + gather8, pass * 2 / 3))
    return 100 * k * pass / (k * pass + exposed)
}
function row(name, P, L, M, k,    i, n, stage) {
    printf "| %s | %d | %d |", name, M, k
    for (i = 1; i <= 3; i++) {
        n = i == 1 ? 8 : i == 2 ? 64 : 1024
        for (stage = 1; stage <= 3; stage++) printf " %.0f |", share(P, L, M, k, n, stage)
    }
    printf " %.1f M |\n", M * k * 1024 / 1e6
}
BEGIN {
    if (!rate) rate = 700e12
    if (!inside) inside = 300e9
    if (!outside) outside = 45e9
    if (!hop) hop = 8e-6
    printf "| model | tokens of a micro-batch | micro-batches per step | 8 GPUs: ZeRO 1 | 2 | 3 | 64 GPUs: 1 | 2 | 3 | 1024 GPUs: 1 | 2 | 3 | tokens per step on 1024 |\n"
    printf "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
    row("1558M", 1.475e9, 48, 49152, 1)
    row("1558M", 1.475e9, 48, 16384, 1)
    row("1558M", 1.475e9, 48, 16384, 8)
    row("1558M", 1.475e9, 48, 4096, 1)
    row("7B", 6.44e9, 32, 28672, 1)
    row("7B", 6.44e9, 32, 4096, 1)
    row("7B", 6.44e9, 32, 4096, 8)
    row("30B", 31.9e9, 60, 12288, 1)
    row("30B", 31.9e9, 60, 6144, 1)
}
