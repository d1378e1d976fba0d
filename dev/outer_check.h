// The producers' operands on values as training has them, the one-pass producers against the host in sampled rows, and
// the quantisation error of what the products read. Included by bench_outer_vector.cu.
#pragma once
#include "outer_products.h"

#include "outer_kernels.h"

typedef enum { PRODUCE_NORM, PRODUCE_QUANTIZE, PRODUCE_GELU, PRODUCERS } Producer;

// What one producer reads and writes, (rows, cols). Both ways write memory of their own.
typedef struct {
    Producer producer;
    int64_t rows, cols;
    int set;                       // in use
    bool many_blocks;              // of the one-pass gelu
    Tensor in[SETS], y[SETS];      // BF16; y: of the norm only
    Tensor weight, bias, y_bias;   // BF16
    Tensor r_out[WAYS][SETS];      // BF16; of the norm only
    Tensor saved[WAYS][SETS];      // E4M3 per group: x or h
    Tensor codes[WAYS][SETS];      // E4M3: n, o or g; BY_ROW: with a scale per row
    Tensor mean[WAYS], rstd[WAYS]; // FP32
} Operand;

// --- values -------------------------------------------------------------------------------------------------
// Student's t with 4 degrees of freedom, in rows and columns of different size: exp(spread * normal).
__global__ static void realistic_kernel(uint16_t *data, int64_t rows, int64_t cols, uint64_t seed, float size,
                                        float row_spread, float col_spread) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols; i += step) {
        const float squares = // of 4 normal deviates
            -2.0f * (logf(1.0f - rng_uniform(seed, 1, (uint64_t)i)) + logf(1.0f - rng_uniform(seed, 2, (uint64_t)i)));
        const float spread = row_spread * bench_normal(seed + 1, (uint64_t)(i / cols)) +
                             col_spread * bench_normal(seed + 2, (uint64_t)(i % cols));
        data[i] = bf16_encode(bench_normal(seed, (uint64_t)i) * rsqrtf(squares / 4 + 1e-6f) * size * expf(spread));
    }
}

static Tensor realistic(Bench *bench, int64_t rows, int64_t cols, float size, float row_spread, float col_spread) {
    static uint64_t seed = 1000;
    Tensor t = bench_tensor(bench, rows, cols, FMT_BF16, 1.0f);
    realistic_kernel<<<1024, 256, 0, cuda_backend(&bench->exec)->stream>>>((uint16_t *)t.data, rows, cols, seed += 10,
                                                                           size, row_spread, col_spread);
    LAUNCH_CHECK("realistic");
    return t;
}

// Codes to be written, with room for their scales: per group, per row, or one and the maxima of the rows.
static Tensor codes_tensor(Bench *bench, int64_t rows, int64_t cols, int group, Way way) {
    Tensor t = {};
    t.rows = rows, t.cols = t.stride = cols, t.format = FMT_E4M3;
    t.granularity = group ? SCALE_GROUP : SCALE_TENSOR;
    t.group = group;
    t.data = bench_allocate(bench, (size_t)(rows * cols));
    t.scale = bench_allocate(bench, group           ? (size_t)(rows * cols / group) * sizeof(uint16_t)
                                    : way == BY_ROW ? (size_t)rows * sizeof(float)
                                                    : sizeof(float));
    if (!group && way == BY_TENSOR) t.amax = (uint32_t *)bench_allocate(bench, (size_t)rows * sizeof(uint32_t));
    return t;
}

static void operand_open(Bench *bench, Operand *o, Producer producer, int64_t rows, int64_t cols) {
    const bool norm = producer == PRODUCE_NORM;
    *o = {};
    o->producer = producer, o->rows = rows, o->cols = cols, o->many_blocks = true;
    for (int s = 0; s < SETS; s++) {
        o->in[s] = realistic(bench, rows, cols, 1.0f, producer == PRODUCE_QUANTIZE ? 1.0f : 0.5f, norm ? 0.5f : 0.2f);
        if (norm) o->y[s] = realistic(bench, rows, cols, 0.3f, 0.5f, 0.2f);
        for (int way = 0; way < WAYS; way++) {
            if (norm) o->r_out[way][s] = bench_tensor(bench, rows, cols, FMT_BF16, 1.0f);
            if (producer != PRODUCE_QUANTIZE) o->saved[way][s] = codes_tensor(bench, rows, cols, OUTER_GROUP, (Way)way);
            o->codes[way][s] = codes_tensor(bench, rows, cols, 0, (Way)way);
        }
    }
    for (int way = 0; norm && way < WAYS; way++) {
        o->mean[way] = bench_tensor(bench, rows, 1, FMT_FP32, 1.0f);
        o->rstd[way] = bench_tensor(bench, rows, 1, FMT_FP32, 1.0f);
    }
    if (norm) o->weight = realistic(bench, 1, cols, 0.5f, 0.0f, 0.2f);
    if (norm) o->y_bias = realistic(bench, 1, cols, 0.1f, 0.0f, 0.0f);
    o->bias = realistic(bench, 1, cols, 0.1f, 0.0f, 0.0f);
}

static void operand_close(Bench *bench, Operand *o) {
    for (int s = 0; s < SETS; s++) {
        bench_release(bench, o->in[s]);
        bench_release(bench, o->y[s]);
        for (int way = 0; way < WAYS; way++) {
            if (o->codes[way][s].amax) bench->exec.ops->release(&bench->exec, o->codes[way][s].amax);
            bench_release(bench, o->r_out[way][s]);
            bench_release(bench, o->saved[way][s]);
            bench_release(bench, o->codes[way][s]);
        }
    }
    const Tensor once[] = {o->weight, o->bias, o->y_bias, o->mean[0], o->mean[1], o->rstd[0], o->rstd[1]};
    for (Tensor t : once) bench_release(bench, t);
}

// --- both ways ----------------------------------------------------------------------------------------------
static Norm operand_norm(const Operand *o, Way way, int s) {
    Norm n = {};
    n.x = o->saved[way][s], n.mean = o->mean[way], n.rstd = o->rstd[way], n.weight = o->weight, n.bias = o->bias;
    n.eps = 1e-5f;
    n.from_saved = true;
    return n;
}

// The operation of the trainer, by Group Scaling.
static void run_by_tensor(Bench *bench, void *context) {
    Operand *o = (Operand *)context;
    Exec *e = &bench->exec;
    const int s = o->set = (o->set + 1) % SETS;
    const Tensor codes = o->codes[BY_TENSOR][s];
    if (o->producer == PRODUCE_NORM)
        e->ops->residual_norm_forward(e, codes, operand_norm(o, BY_TENSOR, s), o->r_out[BY_TENSOR][s], o->in[s],
                                      o->y[s], o->y_bias);
    else if (o->producer == PRODUCE_QUANTIZE)
        e->ops->quantize_forward(e, codes, o->in[s]);
    else
        e->ops->gelu_forward(e, codes, o->saved[BY_TENSOR][s], o->in[s], o->bias, true);
}

static void run_by_row(Bench *bench, void *context) {
    Operand *o = (Operand *)context;
    Exec *e = &bench->exec;
    const int s = o->set = (o->set + 1) % SETS;
    const Tensor saved = o->saved[BY_ROW][s], codes = o->codes[BY_ROW][s];
    const bf16 *in = (const bf16 *)o->in[s].data, *bias = (const bf16 *)o->bias.data;
    uint8_t *const out = (uint8_t *)codes.data;
    float *const scale = (float *)codes.scale;
    if (o->producer == PRODUCE_NORM)
        outer_norm<>(e, {in, (const bf16 *)o->y[s].data, (const bf16 *)o->y_bias.data, (const bf16 *)o->weight.data,
                         bias, (bf16 *)o->r_out[BY_ROW][s].data, (uint8_t *)saved.data, (bf16 *)saved.scale, out, scale,
                         (float *)o->mean[BY_ROW].data, (float *)o->rstd[BY_ROW].data, e->state, o->rows, (int)o->cols,
                         1e-5f});
    else if (o->producer == PRODUCE_QUANTIZE)
        outer_quantize<>(e, {in, out, scale, e->state, o->rows, (int)o->cols});
    else
        outer_gelu(e,
                   {in, bias, (uint8_t *)saved.data, (bf16 *)saved.scale, out, scale, e->state, (int)o->rows,
                    (int)o->cols, LOAD_ORDER},
                   o->many_blocks);
}

// --- check --------------------------------------------------------------------------------------------------
// One row on the host, as the operations are defined.
typedef struct {
    int64_t cols;
    uint16_t *in, *y, *y_bias, *weight, *bias, *r_out; // r_out: found
    uint8_t *saved, *codes;                            // found
    uint16_t *saved_scales;                            // found
    double *plain;                                     // what the codes are of
} HostRow;

// Rows of a device's tensor; NULL where there is none.
static void *row_download(Bench *bench, const void *data, int64_t row, size_t bytes) {
    if (!data) return NULL;
    void *host = xmalloc(bytes);
    bench->exec.ops->download(&bench->exec, host, (const char *)data + (size_t)row * bytes, bytes);
    return host;
}

static HostRow host_row(Bench *bench, const Operand *o, int64_t row) {
    const int s = o->set;
    const size_t cols = (size_t)o->cols, wide = cols * sizeof(uint16_t);
    HostRow h = {};
    h.cols = o->cols;
    h.in = (uint16_t *)row_download(bench, o->in[s].data, row, wide);
    h.y = (uint16_t *)row_download(bench, o->y[s].data, row, wide);
    h.y_bias = (uint16_t *)row_download(bench, o->y_bias.data, 0, wide);
    h.weight = (uint16_t *)row_download(bench, o->weight.data, 0, wide);
    h.bias = (uint16_t *)row_download(bench, o->bias.data, 0, wide);
    h.r_out = (uint16_t *)row_download(bench, o->r_out[BY_ROW][s].data, row, wide);
    h.saved = (uint8_t *)row_download(bench, o->saved[BY_ROW][s].data, row, cols);
    h.saved_scales = (uint16_t *)row_download(bench, o->saved[BY_ROW][s].scale, row, wide / OUTER_GROUP);
    h.codes = (uint8_t *)row_download(bench, o->codes[BY_ROW][s].data, row, cols);
    h.plain = (double *)xcalloc(cols, sizeof *h.plain);
    return h;
}

static void host_row_free(HostRow *h) {
    free(h->in), free(h->y), free(h->y_bias), free(h->weight), free(h->bias), free(h->r_out);
    free(h->saved), free(h->saved_scales), free(h->codes), free(h->plain);
}

// `value` (cols) becomes what its codes per group stand for; returns how many codes and scales are not as found.
static int host_groups(const HostRow *h, float *value) {
    int wrong = 0;
    for (int64_t first = 0; first < h->cols; first += OUTER_GROUP) {
        uint32_t maximum = 0;
        for (int i = 0; i < OUTER_GROUP; i++) {
            const uint32_t bits = magnitude_bits(value[first + i]);
            if (bits > maximum) maximum = bits;
        }
        const uint16_t rounded = group_scale_from_maximum(maximum, E4M3_MAX);
        const float scale = bf16_decode(rounded), reciprocal = scale_reciprocal(scale);
        wrong += rounded != h->saved_scales[first / OUTER_GROUP];
        for (int i = 0; i < OUTER_GROUP; i++) {
            const uint8_t code = e4m3_encode(value[first + i] * reciprocal);
            wrong += code != h->saved[first + i];
            value[first + i] = e4m3_decode(code) * scale;
        }
    }
    return wrong;
}

// The plain values of the row in FP64; returns how many stored elements on the way are not as found.
static int host_plain(const Operand *o, HostRow *h) {
    float *value = (float *)xmalloc((size_t)h->cols * sizeof *value);
    int wrong = 0;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < h->cols; i++) {
        value[i] = bf16_decode(h->in[i]);
        if (o->producer == PRODUCE_GELU) value[i] += bf16_decode(h->bias[i]);
        if (o->producer != PRODUCE_NORM) continue;
        const uint16_t r = bf16_encode(value[i] + bf16_decode(h->y[i]) + bf16_decode(h->y_bias[i]));
        wrong += r != h->r_out[i];
        value[i] = bf16_decode(r);
    }
    if (o->producer != PRODUCE_QUANTIZE) wrong += host_groups(h, value);
    for (int64_t i = 0; i < h->cols; i++) sum += (double)value[i];
    const double mean = sum / (double)h->cols;
    for (int64_t i = 0; i < h->cols; i++) squares += ((double)value[i] - mean) * ((double)value[i] - mean);
    const double rstd = 1 / sqrt(squares / (double)h->cols + 1e-5);
    for (int64_t i = 0; i < h->cols; i++) {
        const double x = (double)value[i];
        h->plain[i] = x;
        if (o->producer == PRODUCE_NORM)
            h->plain[i] = (x - mean) * rstd * (double)bf16_decode(h->weight[i]) + (double)bf16_decode(h->bias[i]);
        if (o->producer == PRODUCE_GELU)
            h->plain[i] = 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    }
    free(value);
    return wrong;
}

// Whether a row's scale is that of its maximum, and each code's value is within half a step of the plain one.
static int host_codes(const HostRow *h, float scale) {
    double largest = 0;
    int wrong = 0;
    for (int64_t i = 0; i < h->cols; i++) largest = fmax(largest, fabs(h->plain[i]));
    const double expected = largest > 0 ? largest / (double)E4M3_MAX : 1;
    wrong += !(fabs((double)scale - expected) <= 1e-4 * expected);
    for (int64_t i = 0; i < h->cols; i++) {
        const double found = (double)(e4m3_decode(h->codes[i]) * scale);
        // half a step of 3 bits, or of the subnormals; and what the kernels' FP32 may differ by
        const double step = fmax(fabs(h->plain[i]) / 16, (double)scale * 0x1p-10);
        wrong += !(fabs(found - h->plain[i]) <= step * 1.01 + 1e-5 * largest);
    }
    return wrong;
}

static bool same_bytes(Bench *bench, const Tensor *a, const Tensor *b, size_t bytes) {
    if (!a->data) return true;
    void *first = xmalloc(bytes), *second = xmalloc(bytes);
    bench->exec.ops->download(&bench->exec, first, a->data, bytes);
    bench->exec.ops->download(&bench->exec, second, b->data, bytes);
    const bool same = memcmp(first, second, bytes) == 0;
    free(first), free(second);
    return same;
}

// The one-pass producer: what it saves besides is, bit for bit, what the trainer's operation saves, and sampled rows
// are what the host makes of them.
static bool producer_right(Bench *bench, Operand *o, const char *name) {
    enum { ROWS = 64 };
    const size_t elements = (size_t)(o->rows * o->cols);
    int wrong = 0, nonfinite;
    o->set = -1;
    run_by_tensor(bench, o);
    o->set = -1;
    run_by_row(bench, o);
    const int s = o->set;
    const bool same = same_bytes(bench, &o->r_out[0][s], &o->r_out[1][s], 2 * elements) &&
                      same_bytes(bench, &o->saved[0][s], &o->saved[1][s], elements) &&
                      same_bytes(bench, &o->mean[0], &o->mean[1], (size_t)o->rows * sizeof(float)) &&
                      same_bytes(bench, &o->rstd[0], &o->rstd[1], (size_t)o->rows * sizeof(float));
    for (int i = 0; i < ROWS; i++) {
        const int64_t row = sample_of(i, ROWS, o->rows);
        HostRow h = host_row(bench, o, row);
        float scale;
        bench->exec.ops->download(&bench->exec, &scale, (const float *)o->codes[BY_ROW][s].scale + row, sizeof scale);
        wrong += host_plain(o, &h);
        wrong += host_codes(&h, scale);
        host_row_free(&h);
    }
    bench->exec.ops->download(&bench->exec, &nonfinite, &bench->exec.state->nonfinite, sizeof nonfinite);
    const bool right = same && wrong == 0 && !nonfinite;
    printf("%-22s one pass: %d rows on the host, %d elements differ; what else is saved is %s as in two passes%s: %s\n",
           name, ROWS, wrong, same ? "the same" : "NOT the same", nonfinite ? "; NOT FINITE" : "",
           right ? "ok" : "WRONG");
    return right;
}

// --- quantisation error -------------------------------------------------------------------------------------
typedef struct {
    double size, error[WAYS]; // sums of squares over a row
} RowErrors;

// A block per row. Plain: the norm of x, x itself, gelu of h.
__global__ static void errors_kernel(RowErrors *out, Operand o) {
    __shared__ double shared[3][256];
    const int64_t row = blockIdx.x;
    const Tensor saved = o.saved[BY_ROW][o.set];
    double sum[3] = {};
    for (int64_t column = threadIdx.x; column < o.cols; column += blockDim.x) {
        const int64_t i = row * o.cols + column;
        float x;
        if (o.producer == PRODUCE_QUANTIZE)
            x = bench_decode(o.in[o.set].data, FMT_BF16, i);
        else
            x = bench_decode(saved.data, FMT_E4M3, i) * bf16_decode(((const uint16_t *)saved.scale)[i / OUTER_GROUP]);
        if (o.producer == PRODUCE_NORM)
            x = norm_affine(
                x, hat_of(((const float *)o.mean[BY_ROW].data)[row], ((const float *)o.rstd[BY_ROW].data)[row]),
                bench_decode(o.weight.data, FMT_BF16, column), bench_decode(o.bias.data, FMT_BF16, column));
        if (o.producer == PRODUCE_GELU) x = gelu_of(x);
        sum[0] += (double)x * (double)x;
        for (int way = 0; way < WAYS; way++) {
            const Tensor codes = o.codes[way][o.set];
            const float scale = ((const float *)codes.scale)[way == BY_ROW ? row : 0];
            const double error = (double)(bench_decode(codes.data, FMT_E4M3, i) * scale) - (double)x;
            sum[1 + way] += error * error;
        }
    }
    for (int k = 0; k < 3; k++) shared[k][threadIdx.x] = sum[k];
    __syncthreads();
    if (threadIdx.x >= 3) return;
    double total = 0;
    for (unsigned t = 0; t < blockDim.x; t++) total += shared[threadIdx.x][t];
    ((double *)(out + row))[threadIdx.x] = total;
}

// Relative errors in the root mean square: over the tensor, and the mean of those of the rows, in which small rows
// count as much as large ones. What producer_right() left is compared.
static void report_errors(Bench *bench, const Operand *o, const char *name) {
    const size_t bytes = (size_t)o->rows * sizeof(RowErrors);
    RowErrors *device = (RowErrors *)bench_allocate(bench, bytes), *host = (RowErrors *)xmalloc(bytes), all = {};
    double of_rows[WAYS] = {};
    errors_kernel<<<(unsigned)o->rows, 256, 0, cuda_backend(&bench->exec)->stream>>>(device, *o);
    LAUNCH_CHECK("errors");
    bench->exec.ops->download(&bench->exec, host, device, bytes);
    for (int64_t row = 0; row < o->rows; row++) {
        all.size += host[row].size;
        for (int way = 0; way < WAYS; way++) {
            all.error[way] += host[row].error[way];
            if (host[row].size > 0) of_rows[way] += sqrt(host[row].error[way] / host[row].size) / (double)o->rows;
        }
    }
    printf("%-22s relative error: tensor scale %.3f %%, row scales %.3f %%; mean of the rows' %.3f %% and %.3f %%\n",
           name, 100 * sqrt(all.error[BY_TENSOR] / all.size), 100 * sqrt(all.error[BY_ROW] / all.size),
           100 * of_rows[BY_TENSOR], 100 * of_rows[BY_ROW]);
    free(host);
    bench->exec.ops->release(&bench->exec, device);
}
