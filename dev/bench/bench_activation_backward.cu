// Would one pass serve for the activation's gradient and gelu made again? Today there are three: the gradient's codes with
// a scale per row, which need the whole row before the first code (4.125 bytes per element read and written), their
// transpose (2), and gelu's transpose from the kept h (2.125). Were the rows' scales known before, from a bound on
// |dg| <= |dy| |w|, one walk down tiles would write all of it, with 6.125 bytes. Here the scales are those that the
// operations of today have found, so that its codes must be theirs.
//
//   bench_activation_backward [--quick] [--check]     --check: no timing; ends with 1 where a code differs
#include "bench_report.h"
#include "coat/cuda/fp8/fp8_gelu.h"
#include "coat/cuda/fp8/fp8_tile.h"

namespace {

constexpr int GROUP = 16, COLUMNS = 128, BLOCKS = 2;

// --- the pass -----------------------------------------------------------------------------------------------
struct OnePass {
    Bf16Reader<true> dg;
    GroupReader<true> h;
    const float *row_scales; // of dh's codes
    const float *scale_t;    // of their transpose
    const float *scale_g;    // of gelu's transpose
    char *codes;             // (rows, cols)
    uint8_t *dh_t, *g_t;     // (cols, rows)
    float *sums;             // (gridDim.y, cols)
    int rows, cols, codes_bytes, transposed_bytes;
    LoadOrder order;

    struct Loaded {
        Bf16Words<SPAN> dg;
        GroupReader<true>::Loaded h;
        float row_scale;
    };
    __device__ Loaded load(int row, int column) const {
        return {dg.load(row, column), h.load(row, column), row_scales[row]};
    }
    __device__ static uint32_t word(const Loaded &loaded) {
        return loaded.dg.word[SPAN / 2 - 1] ^ GroupReader<true>::word(loaded.h) ^ __float_as_uint(loaded.row_scale);
    }
};

// d gelu'(x), and gelu(x) times a reciprocal: both from one gate.
__device__ inline void both(const OnePass::Loaded &now, float reciprocal_g, float d[SPAN], float g[SPAN]) {
    const float scale = GroupReader<true>::scale(now.h);
    const GeluScaled gelu(scale);
    const float factor = scale * reciprocal_g;
    float t[SPAN];
    GroupReader<true>::unscaled(now.h, t);
    unpack<SPAN>(now.dg, d);
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
        const float gate = fast_reciprocal(1.0f + gelu.power(t[i]));
        g[i] = t[i] * factor * gate;
        d[i] = d[i] * gate * fmaf(fmaf(gelu.slope_square, t[i] * t[i], gelu.slope), fmaf(-gate, t[i], t[i]), 1.0f);
    }
}

// A block takes the tiles blockIdx.y, blockIdx.y + gridDim.y, ... down the tensor; a thread has its next row on its way.
__global__ __launch_bounds__(TILE_THREADS<COLUMNS>, BLOCKS) void one_pass_kernel(const __grid_constant__ OnePass w) {
    __shared__ Tile<COLUMNS> dh_tile, g_tile;
    second_stage_allow();
    const int first_column = (int)blockIdx.x * COLUMNS;
    const int column = first_column + (int)threadIdx.x % TILE_LANES<COLUMNS> * SPAN;
    const int from = min(column, w.cols - SPAN), limit = column < w.cols ? w.rows : 0;
    const int step = (int)gridDim.y * TILE_ROWS;
    int row = (int)blockIdx.y * TILE_ROWS + (int)threadIdx.x / TILE_LANES<COLUMNS> * THREAD_ROWS;
    OnePass::Loaded next = w.load(min(row, w.rows - 1), from);
    const float reciprocal_t = row_scale_reciprocal(*w.scale_t), reciprocal_g = scale_reciprocal(*w.scale_g);
    float sum[SPAN] = {};
    for (int first_row = (int)blockIdx.y * TILE_ROWS; first_row < w.rows; first_row += step, row += step) {
        uint32_t dh_code[THREAD_ROWS][SPAN / 4], g_code[THREAD_ROWS][SPAN / 4];
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++) {
            const OnePass::Loaded now = next;
            const int here = row + r, ahead = r + 1 < THREAD_ROWS ? here + 1 : row + step;
            next = w.load(min(ahead + (int)(OnePass::word(now) & w.order.zero), w.rows - 1), from);
            if (here == w.order.never) continue;
            float d[SPAN], g[SPAN];
            both(now, reciprocal_g, d, g);
            const bool inside = here < limit;
#pragma unroll
            for (int i = 0; i < SPAN; i++) sum[i] += inside ? d[i] : 0.0f;
            Pack<uint32_t, SPAN / 4> words;
            encode<FMT_E4M3, SPAN>(d, row_scale_reciprocal(now.row_scale), words.value);
            encode<FMT_E4M3, SPAN>(g, 1.0f, g_code[r]);
            rescale_codes<FMT_E4M3, FMT_E5M2, SPAN>(words.value, now.row_scale * reciprocal_t, dh_code[r]);
            if (inside) store((uint32_t *)((w.codes + column) + (int64_t)here * w.codes_bytes), words);
        }
        tile_put(&dh_tile, dh_code);
        tile_put(&g_tile, g_code);
        __syncthreads();
        tile_write(&dh_tile, w.dh_t, w.transposed_bytes, first_row, first_column, w.rows, w.cols);
        tile_write(&g_tile, w.g_t, w.transposed_bytes, first_row, first_column, w.rows, w.cols);
        __syncthreads();
    }
    tile_sums(&dh_tile, sum, w.sums + (int64_t)blockIdx.y * w.cols + first_column, w.cols - first_column);
}

// --- operands -----------------------------------------------------------------------------------------------
struct Operands {
    int set; // in use
    Tensor dg[SETS], h[SETS], dh[SETS], dh_t[SETS], g_t[SETS];
    Tensor again[SETS], again_t[SETS], g_again[SETS]; // made by one pass
    Tensor sums, sums_again, g_scales;
};

Tensor grouped(Bench *bench, int64_t rows, int64_t cols) {
    Tensor t = bench_tensor(bench, rows, cols, FMT_E4M3, 64.0f);
    const int64_t count = rows * (cols / GROUP);
    uint16_t *host = (uint16_t *)xmalloc((size_t)count * sizeof *host);
    for (int64_t i = 0; i < count; i++) host[i] = bf16_encode(0.01f + 0.0001f * (float)(i % 64));
    bench->exec.ops->release(&bench->exec, t.scale);
    t.granularity = SCALE_GROUP, t.group = GROUP;
    t.scale = bench_allocate(bench, (size_t)count * sizeof *host);
    bench->exec.ops->upload(&bench->exec, t.scale, host, (size_t)count * sizeof *host);
    free(host);
    return t;
}

Tensor row_scaled(Bench *bench, int64_t rows, int64_t cols) {
    Tensor t = bench_tensor(bench, rows, cols, FMT_E4M3, 1.0f);
    bench->exec.ops->release(&bench->exec, t.scale);
    t.granularity = SCALE_ROW;
    t.scale = bench_allocate(bench, (size_t)rows * sizeof(float));
    return t;
}

void operands_make(Bench *bench, Operands *o, int64_t rows, int64_t cols) {
    memset(o, 0, sizeof *o);
    for (int s = 0; s < SETS; s++) {
        o->dg[s] = bench_tensor(bench, rows, cols, FMT_BF16, 1.0f);
        o->h[s] = grouped(bench, rows, cols);
        o->dh[s] = row_scaled(bench, rows, cols);
        o->again[s] = bench_tensor(bench, rows, cols, FMT_E4M3, 1.0f);
        o->dh_t[s] = bench_tensor_transposed(bench, rows, cols, FMT_E5M2, 1.0f);
        o->again_t[s] = bench_tensor_transposed(bench, rows, cols, FMT_E5M2, 1.0f);
        o->g_t[s] = bench_tensor_transposed(bench, rows, cols, FMT_E4M3, 1.0f);
        o->g_again[s] = bench_tensor_transposed(bench, rows, cols, FMT_E4M3, 1.0f);
    }
    o->sums = bench_tensor(bench, 1, cols, FMT_FP32, 1.0f);
    o->sums_again = bench_tensor(bench, 1, cols, FMT_FP32, 1.0f);
    o->g_scales = row_scaled(bench, rows, 16);
    float *host = (float *)xmalloc((size_t)rows * sizeof *host);
    for (int64_t i = 0; i < rows; i++) host[i] = i % 2 ? 0x1p-7f : 0x1p-8f;
    bench->exec.ops->upload(&bench->exec, o->g_scales.scale, host, (size_t)rows * sizeof *host);
    free(host);
}

void operands_free(Bench *bench, Operands *o) {
    for (int s = 0; s < SETS; s++) {
        Tensor all[] = {o->dg[s], o->h[s], o->dh[s], o->dh_t[s], o->again[s], o->again_t[s], o->g_t[s], o->g_again[s]};
        for (Tensor t : all) bench_release(bench, t);
    }
    bench_release(bench, o->sums);
    bench_release(bench, o->sums_again);
    bench_release(bench, o->g_scales);
}

// --- what is timed ------------------------------------------------------------------------------------------
void run_today(Bench *bench, void *context) {
    Operands *o = (Operands *)context;
    Exec *e = &bench->exec;
    const int s = o->set = (o->set + 1) % SETS;
    Tensor scales = o->g_scales;
    scales.data = NULL;
    e->ops->activation_rebuild(e, o->g_t[s], scales, o->h[s]);
    e->ops->activation_backward(e, o->dh[s], o->dh_t[s], o->sums, o->dg[s], o->h[s], false);
}

void run_one_pass(Bench *bench, void *context) {
    Operands *o = (Operands *)context;
    Exec *e = &bench->exec;
    const int s = o->set = (o->set + 1) % SETS, rows = (int)o->h[s].rows, cols = (int)o->h[s].cols;
    const int64_t across = ceil_div(cols, COLUMNS), down = ceil_div(rows, TILE_ROWS);
    const int64_t slots = (int64_t)cuda_backend(e)->sm_count * BLOCKS, most = tile_sum_parts(e, "one pass", cols);
    int64_t splits = 1; // so many tiles one below the other that the last turn is nearly full
    for (int64_t n = 1, least = INT64_MAX; n <= down && n <= most && across * n <= 16 * slots; n++) {
        const int64_t turns = ceil_div(across * n, slots) * ceil_div(down, n);
        if (turns < least) splits = n, least = turns;
    }
    OnePass w = {
        bf16_reader<true>(o->dg[s]),
        {(const uint8_t *)o->h[s].data, (const char *)o->h[s].scale, cols, 2 * cols / GROUP, group_bits_of(o->h[s])},
        (const float *)o->dh[s].scale,
        (const float *)o->dh_t[s].scale,
        (const float *)o->g_t[s].scale,
        (char *)o->again[s].data,
        (uint8_t *)o->again_t[s].data,
        (uint8_t *)o->g_again[s].data,
        (float *)e->workspace,
        rows,
        cols,
        cols,
        rows,
        LOAD_ORDER};
    one_pass_kernel<<<dim3((unsigned)across, (unsigned)splits), TILE_THREADS<COLUMNS>, 0, cuda_backend(e)->stream>>>(w);
    LAUNCH_CHECK("one_pass_kernel");
    partials_sum(e, (float *)o->sums_again.data, w.sums, (int)splits, cols, false);
}

// --- what is compared ---------------------------------------------------------------------------------------
// The share of codes that differ.
double differing(Bench *bench, Tensor a, Tensor b) {
    const size_t bytes = (size_t)(a.rows * a.cols);
    uint8_t *x = (uint8_t *)xmalloc(bytes), *y = (uint8_t *)xmalloc(bytes);
    int64_t different = 0;
    bench->exec.ops->download(&bench->exec, x, a.data, bytes);
    bench->exec.ops->download(&bench->exec, y, b.data, bytes);
    for (size_t i = 0; i < bytes; i++) different += x[i] != y[i];
    free(x);
    free(y);
    return (double)different / (double)bytes;
}

bool compare(Bench *bench, int64_t rows, int64_t cols) {
    Operands o;
    operands_make(bench, &o, rows, cols);
    o.set = 1;
    run_today(bench, &o);
    o.set = 1;
    run_one_pass(bench, &o);
    const double dh = differing(bench, o.dh[2], o.again[2]), dh_t = differing(bench, o.dh_t[2], o.again_t[2]);
    const double g = differing(bench, o.g_t[2], o.g_again[2]);
    float *x = (float *)xmalloc((size_t)cols * sizeof *x), *y = (float *)xmalloc((size_t)cols * sizeof *y);
    double worst = 0.0;
    bench->exec.ops->download(&bench->exec, x, o.sums.data, (size_t)cols * sizeof *x);
    bench->exec.ops->download(&bench->exec, y, o.sums_again.data, (size_t)cols * sizeof *y);
    for (int64_t i = 0; i < cols; i++) {
        const double difference = fabs((double)x[i] - (double)y[i]) / sqrt((double)rows);
        if (difference > worst) worst = difference;
    }
    free(x);
    free(y);
    operands_free(bench, &o);
    const bool good = dh == 0.0 && dh_t == 0.0 && g < 1e-3 && worst < 1e-5;
    printf("%s - %lld x %lld: of dh %.2g, of its transpose %.2g, of gelu's %.2g codes differ; sums within %.2g\n",
           good ? "ok" : "not ok", (long long)rows, (long long)cols, dh, dh_t, g, worst);
    return good;
}

void time_both(Bench *bench, const Report *r, const char *name, int64_t rows, int64_t cols) {
    const double elements = (double)rows * (double)cols, group = 1 + 2.0 / GROUP;
    char shape[48];
    Operands o;
    snprintf(shape, sizeof shape, "%lld x %lld", (long long)rows, (long long)cols);
    printf("\n%s\n", name);
    operands_make(bench, &o, rows, cols);
    const double today = report(r, &o, "rebuild and backward, today", shape, (2 * group + 6) * elements, run_today);
    const double one = report(r, &o, "in one pass", shape, (group + 5) * elements, run_one_pass);
    printf("one pass takes %.1f %% less\n", 100 * (1 - one / today));
    operands_free(bench, &o);
}

} // namespace

int main(int argc, char **argv) {
    static Bench bench; // zero; its configuration is large
    const bool only_check = bench_flags(&bench, "bench_activation_backward", argc, argv);
    recipe_apply(&bench.config.recipe, RECIPE_COAT);
    bench_configure(&bench.config, 64, 1600, 6400);
    bench_open(&bench);
    bool good = compare(&bench, 1000 * SPAN, 768);
    good = compare(&bench, 4096, 6400) && good;
    if (!only_check) {
        Report r = report_open(&bench);
        time_both(&bench, &r, "GPT-2 1558M", 16384, 6400);
        time_both(&bench, &r, "GPT-2 124M", 65536, 3072);
        report_close(&r);
    }
    bench_close(&bench);
    return good ? EXIT_DONE : EXIT_USER;
}
