// Other configurations of the memory-bound kernels than those that are used, timed side by side: how many rows a
// block takes at a time, how far ahead it loads, how many blocks share a multiprocessor. The numbers of norm_bwd are
// blocks per multiprocessor, rows, stages; those of the others rows under way per thread. The row marked with a star
// is what the operation uses. Included by bench_kernels.cu.
#pragma once
#include "bench_operands.h"
#include "coat/cuda/common/cuda_norm.h"
#include "coat/cuda/fp8/fp8_kernels.h"

#include <cub/device/device_radix_sort.cuh>

namespace variants {
#include "coat/cuda/plain/cuda_embed.cu"
#include "coat/cuda/plain/plain_norm.cu"
#include "coat/cuda/plain/plain_norm_backward.cu"

// --- embedding ----------------------------------------------------------------------------------------------
template <int ROWS> void embed(Bench *bench, void *context) {
    const Operands *o = operands_next(context);
    const Tensor r = o->r[o->set];
    const EmbedForward<bf16> a = {(bf16 *)r.data,
                                  (const int32_t *)o->tokens.data,
                                  (const bf16 *)o->wte.data,
                                  (const bf16 *)o->wpe.data,
                                  r.stride,
                                  o->wte.stride,
                                  o->wpe.stride,
                                  r.rows,
                                  (int)r.cols,
                                  o->model.T};
    embed_forward_run<bf16, 8, ROWS>(cuda_backend(&bench->exec), a);
}

// --- norms --------------------------------------------------------------------------------------------------
NormBackward<bf16> backward_arguments(const Operands *o) {
    NormBackward<bf16> a = {};
    const Tensor g = o->r[o->set];
    a.g = (bf16 *)g.data;
    a.dn = (const bf16 *)o->y[o->set].data;
    a.x = (const bf16 *)o->x[o->set].data;
    a.weight = (const bf16 *)o->weight.data;
    a.mean = (const float *)o->mean.data;
    a.rstd = (const float *)o->rstd.data;
    a.g_stride = a.dn_stride = a.x_stride = g.stride;
    a.rows = g.rows;
    a.cols = (int)g.cols;
    a.add = true;
    return a;
}

template <int THREADS, int BLOCKS_PER_SM, int ROWS, int STAGES> void backward(Bench *bench, void *context) {
    const Operands *o = operands_next(context);
    norm_backward_ring<bf16, THREADS, BLOCKS_PER_SM, ROWS, STAGES>(&bench->exec, backward_arguments(o),
                                                                   (float *)o->sums.data, (float *)o->sums2.data, true);
}

// --- the walk over columns ----------------------------------------------------------------------------------
template <typename Op, int UNROLL, bool BATCH> struct Unrolled : Op {
    static constexpr int unroll = UNROLL;
    static constexpr bool rolling = !BATCH;
};

// The first stage alone.
template <int V, typename Op> void columns_first(Exec *exec, Op op, int64_t rows, int64_t cols) {
    const int64_t tiles = ceil_div(cols, WARP * V);
    const int64_t share = (int64_t)cuda_backend(exec)->sm_count * COLUMN_BLOCKS_PER_SM / tiles;
    columns_kernel<Op, V>
        <<<dim3((unsigned)tiles, (unsigned)share), COLUMN_WARPS * WARP, 0, cuda_backend(exec)->stream>>>(
            op, rows, cols, (float *)exec->workspace);
    LAUNCH_CHECK("columns_kernel");
}

template <int UNROLL, bool BATCH> void rebuild(Bench *bench, void *context) {
    const Operands *o = operands_next(context);
    Unrolled<NormRebuild<bf16, 8>, UNROLL, BATCH> op = {};
    const Tensor n = o->n[o->set];
    op.n = (bf16 *)n.data;
    op.x = (const bf16 *)o->x[o->set].data;
    op.weight = (const bf16 *)o->weight.data;
    op.bias = (const bf16 *)o->bias.data;
    op.mean = (const float *)o->mean.data;
    op.rstd = (const float *)o->rstd.data;
    op.n_stride = op.x_stride = n.stride;
    columns_first<8>(&bench->exec, op, n.rows, n.cols);
}

template <int UNROLL, bool BATCH> struct ColumnTotal {
    static constexpr int unroll = UNROLL;
    static constexpr bool sums = true, rolling = !BATCH;
    typedef Pack<bf16, 8> Loaded;
    const bf16 *x;
    int64_t stride;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const { return load_streaming<8>(x + row * stride + column); }
    __device__ void apply(int64_t, int64_t, Loaded loaded, float *sum) const {
        float value[8];
        unpack<8>(loaded, value);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += value[i];
    }
};

// STAGES 2: the whole operation; 1: its first stage.
template <int UNROLL, bool BATCH, int STAGES> void total(Bench *bench, void *context) {
    const Operands *o = operands_next(context);
    const Tensor x = o->r[o->set];
    const ColumnTotal<UNROLL, BATCH> op = {(const bf16 *)x.data, x.stride};
    if (STAGES == 2)
        columns_run<8>(&bench->exec, op, x.rows, x.cols, (float *)o->sums.data, true);
    else
        columns_first<8>(&bench->exec, op, x.rows, x.cols);
}

typedef struct {
    int cols, activations; // width it is for, 0 for any; how many activations it reads and writes, 0: embed_forward
    const char *name;
    void (*run)(Bench *, void *);
} Variant;

const Variant all[] = {
    {0, 0, "embed_forward 2 *", embed<2>},
    {0, 0, "embed_forward 4", embed<4>},
    {0, 0, "embed_forward 8", embed<8>},
    {0, 0, "embed_forward 16", embed<16>},
    {768, 4, "norm_bwd 6 2 3", backward<128, 6, 2, 3>},
    {768, 4, "norm_bwd 7 2 2", backward<128, 7, 2, 2>},
    {768, 4, "norm_bwd 4 4 2 *", backward<128, 4, 4, 2>},
    {768, 4, "norm_bwd 8 1 4", backward<128, 8, 1, 4>},
    {1600, 4, "norm_bwd 3 2 3 *", backward<256, 3, 2, 3>},
    {1600, 4, "norm_bwd 3 2 2", backward<256, 3, 2, 2>},
    {1600, 4, "norm_bwd 4 2 2", backward<224, 4, 2, 2>},
    {1600, 4, "norm_bwd 4 1 3", backward<256, 4, 1, 3>},
    {1600, 4, "norm_bwd 4 1 5", backward<256, 4, 1, 5>},
    {1600, 4, "norm_bwd 3 1 6", backward<256, 3, 1, 6>},
    {1600, 4, "norm_bwd 2 4 2", backward<256, 2, 4, 2>},
    {0, 2, "rebuild rolling 2", rebuild<2, false>},
    {0, 2, "rebuild rolling 4", rebuild<4, false>},
    {0, 2, "rebuild batch 2", rebuild<2, true>},
    {0, 2, "rebuild batch 4", rebuild<4, true>},
    {0, 1, "col_sum rolling 6", total<6, false, 2>},
    {0, 1, "col_sum batch 3", total<3, true, 2>},
    {0, 1, "col_sum batch 6 *", total<6, true, 2>},
    {0, 1, "col_sum 6, stage 1", total<6, true, 1>},
};

} // namespace variants

// `row` is one activation in bytes.
static void bench_variants(Report *r, Operands *o, const char *shape, double row, double embed_bytes) {
    for (const variants::Variant &v : variants::all)
        if (v.cols == 0 || v.cols == o->model.C)
            report(r, o, v.name, shape, v.activations ? v.activations * row : embed_bytes, v.run);
}
