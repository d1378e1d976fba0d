// Times other launch configurations of the memory-bound kernels: how many rows each thread processes at once. A star
// marks the configuration in use. Included by bench_kernels.cu.
#pragma once
#include "bench_operands.h"
#include "coat/cuda/fp8/fp8_kernels.h"

#include <cub/device/device_radix_sort.cuh>

namespace variants {
#include "coat/cuda/plain/cuda_embed.cu"

// --- embedding ----------------------------------------------------------------------------------------------
template <int ROWS> void embed(Bench *bench, void *context) {
    const Operands *o = operands_next(context);
    const Tensor r = o->r[o->set];
    const EmbedForward<bf16> a = {(bf16 *)r.data,
                                  (const int32_t *)o->tokens.data,
                                  (const bf16 *)o->wte.data,
                                  (const bf16 *)o->wpe.data,
                                  nullptr,
                                  r.stride,
                                  o->wte.stride,
                                  o->wpe.stride,
                                  r.rows,
                                  (int)r.cols,
                                  o->model.T};
    embed_forward_run<bf16, 8, ROWS>(cuda_backend(&bench->exec), a);
}

// --- the walk over columns ----------------------------------------------------------------------------------
// Runs only the first stage of the column reduction.
template <int V, typename Op> void columns_first(Exec *exec, Op op, int64_t rows, int64_t cols) {
    const int64_t tiles = ceil_div(cols, WARP * V);
    const int64_t share = (int64_t)cuda_backend(exec)->sm_count * COLUMN_BLOCKS_PER_SM / tiles;
    columns_kernel<Op, V>
        <<<dim3((unsigned)tiles, (unsigned)share), COLUMN_WARPS * WARP, 0, cuda_backend(exec)->stream>>>(
            op, rows, cols, (float *)exec->workspace);
    LAUNCH_CHECK("columns_kernel");
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

// STAGES is 2 for the complete operation and 1 for only its first stage.
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
    int activations; // number of activations that are read and written; 0 stands for embed_forward
    const char *name;
    void (*run)(Bench *, void *);
} Variant;

const Variant all[] = {
    {0, "embed_forward 2 *", embed<2>},
    {0, "embed_forward 4", embed<4>},
    {0, "embed_forward 8", embed<8>},
    {0, "embed_forward 16", embed<16>},
    {1, "col_sum rolling 6", total<6, false, 2>},
    {1, "col_sum batch 3", total<3, true, 2>},
    {1, "col_sum batch 6 *", total<6, true, 2>},
    {1, "col_sum 6, stage 1", total<6, true, 1>},
};

} // namespace variants

// Times all kernel variants. row: the bytes of one activation.
static void bench_variants(Report *r, Operands *o, const char *shape, double row, double embed_bytes) {
    for (const variants::Variant &v : variants::all)
        report(r, o, v.name, shape, v.activations ? v.activations * row : embed_bytes, v.run);
}
