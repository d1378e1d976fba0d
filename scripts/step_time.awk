# Models the time of one step on many GPUs: the bytes that each ZeRO stage sends per GPU, and how much of the transfer
# can overlap with the computation. Prints the table of docs/many_gpus.md: the highest percentage of a single GPU's
# speed that each GPU can reach.
#
#   awk -f scripts/step_time.awk [-v inside=250e9] [-v outside=45e9] [-v hop=8e-6]
#
#   inside    bytes/s of a GPU within a host of 8 GPUs, as measured with NCCL
#   outside   bytes/s of a GPU between hosts: 90 % of 400 Gbit/s
#   hop       seconds that a ring between hosts takes longer for each additional GPU; within a host, hop / 8

# Returns the part of a communication time a that a concurrent computation of time b does not hide.
function beyond(a, b) { return a > b ? a - b : 0 }
# Returns the speed of each of n GPUs as a percentage of a single GPU's speed.
# P: parameters of the blocks' matrices; L: layers; rate: FLOP/s that one GPU reached in training steps of COAT; M:
# tokens of a GPU's micro-batch; k: micro-batches per step; n: GPUs. Times are in seconds.
function percent(P, L, rate, M, k, n, stage,    speed, late, pass, reduce, gather8, exposed) {
    speed = n > 8 ? outside : inside
    late = L * (n - 1) * (n > 8 ? hop : hop / 8) # latency of L collectives, one per layer
    pass = 6 * P * M / rate                      # computation of a micro-batch: a third is forward
    reduce = 2 * P * (n - 1) / n / speed + late  # reduce-scatter of BF16 gradients, or all-gather of BF16 weights
    gather8 = P * (n - 1) / n / speed + late     # all-gather of FP8 weights
    exposed = (stage == 2 ? k : 1) * beyond(reduce, pass * 2 / 3) + beyond(reduce, pass / 3)
    if (stage == 3) exposed = k * (beyond(gather8, pass / 3) + beyond(reduce + gather8, pass * 2 / 3))
    return 100 * k * pass / (k * pass + exposed)
}
# first8: the lowest ZeRO stage whose memory plan fits in 80 GB on 8 GPUs; 4: none fits. first: this stage on more GPUs.
function row(name, P, L, rate, M, k, first8, first,    i, n, stage) {
    printf "| %s | %d | %d |", name, M, k
    split("8 64 1024", n, " ")
    for (i = 1; i <= 3; i++)
        for (stage = 1; stage <= 3; stage++)
            printf stage < (n[i] == 8 ? first8 : first) ? " – |" : " %.0f |", percent(P, L, rate, M, k, n[i], stage)
    printf " %.1f M |\n", M * k * 1024 / 1e6
}
BEGIN {
    if (!inside) inside = 250e9
    if (!outside) outside = 45e9
    if (!hop) hop = 8e-6
    print "| model | tokens of a micro-batch | micro-batches per step | 8 GPUs, ZeRO 1 | 8, ZeRO 2 | 8, ZeRO 3 | 64 GPUs, ZeRO 1 | 64, ZeRO 2 | 64, ZeRO 3 | 1024 GPUs, ZeRO 1 | 1024, ZeRO 2 | 1024, ZeRO 3 | tokens per step on 1024 GPUs |"
    print "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    row("1558M", 1.475e9, 48, 700e12, 49152, 1, 1, 1)
    row("1558M", 1.475e9, 48, 700e12, 16384, 1, 1, 1)
    row("1558M", 1.475e9, 48, 700e12, 16384, 8, 1, 1)
    row("7B", 6.476e9, 32, 870e12, 28672, 1, 3, 3)
    row("7B", 6.476e9, 32, 870e12, 14336, 1, 1, 1)
    row("7B", 6.476e9, 32, 870e12, 14336, 8, 1, 1)
    row("30B", 32.1e9, 60, 870e12, 8192, 1, 4, 3)
    row("30B", 32.1e9, 60, 870e12, 4096, 1, 3, 3)
}
