# A model of the time of one step on many GPUs: what each ZeRO stage sends per GPU, how much of it could hide behind the
# computation, and the share of the GPUs' own speed that is left at most. Prints a Markdown table of docs/many_gpus.md.
#
#   awk -f scripts/step_time.awk [-v inside=250e9] [-v outside=45e9] [-v hop=8e-6]
#
# inside, outside: bytes/s of a GPU's links within a host (measured by NCCL) and between hosts (400 Gbit/s, 90 % used);
# hop: seconds that one more GPU adds to a ring.
function beyond(a, b) { return a > b ? a - b : 0 }
# parameters of the blocks' matrices, layers, FLOP/s of one GPU in a step of COAT (measured), tokens of a GPU's
# micro-batch, micro-batches per step, GPUs, stage
function share(P, L, rate, M, k, n, stage,    speed, late, pass, reduce, gather, gather8, exposed) {
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
# first8, first: the first stage whose plan fits 80 GB, on 8 GPUs and on more; 4: none does
function row(name, P, L, rate, M, k, first8, first,    i, n, stage) {
    printf "| %s | %d | %d |", name, M, k
    for (i = 1; i <= 3; i++) {
        n = i == 1 ? 8 : i == 2 ? 64 : 1024
        for (stage = 1; stage <= 3; stage++)
            if (stage < (n == 8 ? first8 : first)) printf " – |"
            else printf " %.0f |", share(P, L, rate, M, k, n, stage)
    }
    printf " %.1f M |\n", M * k * 1024 / 1e6
}
BEGIN {
    if (!inside) inside = 250e9
    if (!outside) outside = 45e9
    if (!hop) hop = 8e-6
    printf "| model | tokens of a micro-batch | micro-batches per step | 8 GPUs: ZeRO 1 | 2 | 3 | 64 GPUs: 1 | 2 | 3 | 1024 GPUs: 1 | 2 | 3 | tokens per step on 1024 |\n"
    printf "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
    row("1558M", 1.475e9, 48, 700e12, 49152, 1, 1, 1)
    row("1558M", 1.475e9, 48, 700e12, 16384, 1, 1, 1)
    row("1558M", 1.475e9, 48, 700e12, 16384, 8, 1, 1)
    row("1558M", 1.475e9, 48, 700e12, 4096, 1, 1, 1)
    row("7B", 6.476e9, 32, 870e12, 28672, 1, 3, 3)
    row("7B", 6.476e9, 32, 870e12, 14336, 1, 1, 1)
    row("7B", 6.476e9, 32, 870e12, 14336, 8, 1, 1)
    row("7B", 6.476e9, 32, 870e12, 4096, 8, 1, 1)
    row("30B", 32.1e9, 60, 870e12, 8192, 1, 4, 3)
    row("30B", 32.1e9, 60, 870e12, 4096, 1, 3, 3)
}
