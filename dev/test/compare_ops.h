// Compares every operation of the CPU and GPU backends on the same random inputs, with awkward shapes. Outputs are
// filled with NaN first, so that skipped elements are detected. Included by test_gpt2.cu; skipped without a GPU.
#pragma once
#include <initializer_list>

#include "coat/cuda/attention/attention_hopper.h"
#include "coat/cuda/attention/attention_portable.h"
#include "coat/cuda/common/cuda_internal.h"
#include "dev/test/bench_cuda.h"
#include "dev/test/texts.h"

// The CPU and GPU backends with their workspaces.
typedef struct {
    Exec exec[2]; // [0]: the CPU backend, which is the reference; [1]: the GPU backend
    Config config;
    StepState *state[2];
    char shape[64]; // description of the shape under test, for the names of the checks; may be empty
} Backends;

// A tensor that exists in CPU memory and in GPU memory.
typedef struct {
    Tensor t[2];
} Pair;

static void backends_open(Backends *b, Config config) {
    Error err;
    memset(b, 0, sizeof *b);
    b->config = config;
    for (int s = 0; s < 2; s++) {
        Exec *ex = &b->exec[s];
        config.device = s == 0 ? DEVICE_CPU : DEVICE_CUDA;
        bench_exec_open(ex, s == 0 ? cpu_ops() : cuda_ops(), config.device, &config);
        b->state[s] = (StepState *)ex->ops->allocate(ex, sizeof(StepState), &err);
        StepState zero;
        memset(&zero, 0, sizeof zero);
        zero.loss_scale = 0.37f;
        ex->ops->upload(ex, b->state[s], &zero, sizeof zero);
    }
}

static void backends_close(Backends *b) {
    for (int s = 0; s < 2; s++) {
        b->exec[s].ops->release(&b->exec[s], b->exec[s].workspace);
        b->exec[s].ops->release(&b->exec[s], b->state[s]);
        b->exec[s].ops->close(&b->exec[s]);
    }
}

static Pair pair_of_bytes(Backends *b, int64_t rows, int64_t cols, Format format, const void *host) {
    Pair p;
    Error err;
    size_t bytes = (size_t)(rows * cols) * format_bytes(format);
    memset(&p, 0, sizeof p);
    for (int s = 0; s < 2; s++) {
        Exec *ex = &b->exec[s];
        p.t[s].data = ex->ops->allocate(ex, bytes, &err);
        if (!p.t[s].data) fatal(err.code, "%s", err.text);
        ex->ops->upload(ex, p.t[s].data, host, bytes);
        p.t[s].rows = rows;
        p.t[s].cols = p.t[s].stride = cols;
        p.t[s].format = format;
    }
    return p;
}

// Returns a tensor of normal random values with standard deviation `spread`, with a copy in CPU and one in GPU memory.
static Pair pair_random(Backends *b, int64_t rows, int64_t cols, Format format, float spread, uint64_t stream) {
    int64_t n = rows * cols;
    void *host = xmalloc((size_t)n * format_bytes(format));
    for (int64_t i = 0; i < n; i++) {
        float x = spread * rng_normal(77, stream, (uint64_t)i);
        if (format == FMT_BF16)
            ((uint16_t *)host)[i] = bf16_encode(x);
        else
            ((float *)host)[i] = x;
    }
    Pair p = pair_of_bytes(b, rows, cols, format, host);
    free(host);
    return p;
}

// Returns a tensor, with a copy in CPU and one in GPU memory, filled with 0xff bytes, which are NaN in every format.
static Pair pair_poisoned(Backends *b, int64_t rows, int64_t cols, Format format) {
    size_t bytes = (size_t)(rows * cols) * format_bytes(format);
    void *host = xmalloc(bytes);
    memset(host, 0xff, bytes);
    Pair p = pair_of_bytes(b, rows, cols, format, host);
    free(host);
    return p;
}

static Pair pair_integers(Backends *b, int64_t rows, int limit, uint64_t stream) {
    int32_t *host = (int32_t *)xcalloc((size_t)rows, sizeof *host);
    for (int64_t i = 0; i < rows; i++) // every fourth id is 0, 1 or 2, so that tokens repeat
        host[i] = (int32_t)(rng_hash(77, stream, (uint64_t)i) % (uint64_t)(i % 4 ? limit : 3));
    Pair p = pair_of_bytes(b, rows, 1, FMT_I32, host);
    free(host);
    return p;
}

// Returns each token's position in its document, for B sequences of T tokens. The sequences alternate between three
// layouts: documents that end at or next to multiples of 64 and 128; two halves, of which the first continues a
// document; and documents of random length.
static Pair pair_positions(Backends *b, int B, int T) {
    static const int lengths[] = {70, 59, 1, 62, 64, 300, 84, 63, 65, 127, 128, 129};
    int32_t *host = (int32_t *)xcalloc((size_t)B * (size_t)T, sizeof *host);
    for (int s = 0; s < B; s++) {
        const int way = (s + T) % 3;
        for (int t = 0, end = 0, position = 0, document = 0; t < T; t++, position++) {
            if (t == end) {
                const uint64_t random = rng_hash(77 + (uint64_t)T, 60, (uint64_t)(s * T + t));
                const int drawn = 1 + (int)((random >> 8) % (random % 3 ? 90 : 600));
                end += way == 0 ? lengths[document % 12] : way == 1 ? (T + 1) / 2 : drawn;
                position = way == 1 && document == 0 ? T / 4 : 0;
                document++;
            }
            host[(int64_t)s * T + t] = position;
        }
    }
    Pair p = pair_of_bytes(b, (int64_t)B * T, 1, FMT_I32, host);
    free(host);
    return p;
}

static void pair_free(Backends *b, Pair p) {
    for (int s = 0; s < 2; s++) b->exec[s].ops->release(&b->exec[s], p.t[s].data);
}

static double *pair_values(Backends *b, Pair p, int side) {
    size_t n = (size_t)tensor_elements(p.t[side]), bytes = n * format_bytes(p.t[side].format);
    void *raw = xmalloc(bytes);
    double *out = (double *)xmalloc(n * sizeof *out);
    b->exec[side].ops->download(&b->exec[side], raw, p.t[side].data, bytes);
    for (size_t i = 0; i < n; i++)
        out[i] = p.t[side].format == FMT_BF16  ? (double)bf16_decode(((uint16_t *)raw)[i])
                 : p.t[side].format == FMT_U16 ? (double)((uint16_t *)raw)[i]
                                               : (double)((float *)raw)[i];
    free(raw);
    return out;
}

// Passes if the relative error ||gpu - cpu|| / ||cpu|| is at most `limit`. Fails if an element is NaN, that is, was not
// written.
static void pair_check(Backends *b, Pair p, double limit, const char *operation, const char *output) {
    double *cpu = pair_values(b, p, 0), *gpu = pair_values(b, p, 1);
    double error = relative_error(gpu, cpu, (size_t)tensor_elements(p.t[0]));
    check(error <= limit, formatted("GPU against CPU%s: %s, %s %s (%lld, %lld): %.1e", b->shape, operation, output,
                                    format_name(p.t[0].format), (long long)p.t[0].rows, (long long)p.t[0].cols, error));
    free(cpu);
    free(gpu);
}

// Passes if on both backends the largest of the stored amax values is the tensor's largest magnitude.
static void check_maxima(Backends *b, Pair p, Pair maxima, const char *operation) {
    for (int s = 0; s < 2; s++) {
        double *x = pair_values(b, p, s), *left = pair_values(b, maxima, s), largest = 0, found = 0;
        for (int64_t i = 0; i < tensor_elements(p.t[s]); i++) largest = fmax(largest, fabs(x[i]));
        bool ok = true;
        for (int64_t i = 0; i < tensor_elements(maxima.t[s]); i++) {
            ok = ok && left[i] >= 0; // negative if the amax is still poisoned
            found = fmax(found, left[i]);
        }
        char name[200];
        snprintf(name, sizeof name, "%s%s, %s: the largest amax is %g, the values' %g", b->exec[s].ops->name, b->shape,
                 operation, found, largest);
        check(ok && found == largest, name);
        free(x);
        free(left);
    }
}

// Passes if two runs of one operation on the GPU gave bit-identical results.
static void check_repeated(Backends *b, Pair first, Pair second, const char *operation) {
    size_t bytes = (size_t)tensor_elements(first.t[1]) * format_bytes(first.t[1].format);
    void *x = xmalloc(bytes), *y = xmalloc(bytes);
    b->exec[1].ops->download(&b->exec[1], x, first.t[1].data, bytes);
    b->exec[1].ops->download(&b->exec[1], y, second.t[1].data, bytes);
    char name[200];
    snprintf(name, sizeof name, "%s%s, %s %s (%lld, %lld): the same bits again", b->exec[1].ops->name, b->shape,
             operation, format_name(first.t[1].format), (long long)first.t[1].rows, (long long)first.t[1].cols);
    check(memcmp(x, y, bytes) == 0, name);
    free(x);
    free(y);
}

#define ON_BOTH(b) for (int s = 0; s < 2; s++)
#define CALL(b, op, ...) (b)->exec[s].ops->op(&(b)->exec[s], __VA_ARGS__)

typedef struct {
    int B, T, C, heads;
    Format format;
    double tight, loose; // error limits: tight for element-wise operations, loose for sums of rounded values
} OpShape;

static Norm pair_norm(Pair x, Pair mean, Pair rstd, Pair w, Pair bias, int side) {
    Norm n;
    memset(&n, 0, sizeof n);
    n.x = x.t[side];
    n.mean = mean.t[side];
    n.rstd = rstd.t[side];
    n.weight = w.t[side];
    n.bias = bias.t[side];
    n.eps = 1e-5f;
    n.from_saved = true;
    return n;
}

static void compare_norm(Backends *b, OpShape o) {
    int64_t M = (int64_t)o.B * o.T, C = o.C;
    Pair r = pair_random(b, M, C, o.format, 1.0f, 1), y = pair_random(b, M, C, o.format, 0.5f, 2);
    Pair yb = pair_random(b, 1, C, o.format, 0.5f, 3), w = pair_random(b, 1, C, o.format, 1.0f, 4);
    Pair bias = pair_random(b, 1, C, o.format, 1.0f, 5), dn = pair_random(b, M, C, o.format, 1.0f, 6);
    Pair x = pair_poisoned(b, M, C, o.format), n = pair_poisoned(b, M, C, o.format),
         n2 = pair_poisoned(b, M, C, o.format);
    Pair mean = pair_poisoned(b, M, 1, FMT_FP32), rstd = pair_poisoned(b, M, 1, FMT_FP32);
    Pair dw = pair_poisoned(b, 1, C, FMT_FP32), db = pair_poisoned(b, 1, C, FMT_FP32),
         g = pair_poisoned(b, M, C, o.format);
    ON_BOTH(b) {
        Norm norm = pair_norm(x, mean, rstd, w, bias, s);
        CALL(b, residual_norm_forward, n.t[s], norm, x.t[s], r.t[s], y.t[s], yb.t[s]);
        CALL(b, norm_recompute, n2.t[s], no_tensor(), norm);
        CALL(b, norm_backward, g.t[s], dw.t[s], db.t[s], dn.t[s], norm, false, false);
    }
    pair_check(b, x, o.tight, "residual + norm", "x");
    pair_check(b, n, o.tight, "residual + norm", "n");
    pair_check(b, mean, 1e-4, "residual + norm", "mean");
    pair_check(b, rstd, 1e-4, "residual + norm", "rstd");
    pair_check(b, n2, o.tight, "norm recompute", "n");
    pair_check(b, g, o.tight, "norm backward", "g");
    pair_check(b, dw, 1e-4, "norm backward", "dweight");
    pair_check(b, db, 1e-4, "norm backward", "dbias");
    // Tests norm_backward with accumulation, and residual_norm_forward without a residual to add.
    ON_BOTH(b) {
        Norm norm = pair_norm(x, mean, rstd, w, bias, s);
        CALL(b, norm_backward, g.t[s], dw.t[s], db.t[s], dn.t[s], norm, true, true);
        CALL(b, residual_norm_forward, n.t[s], norm, x.t[s], x.t[s], no_tensor(), no_tensor());
    }
    pair_check(b, g, o.tight, "norm backward, added", "g");
    pair_check(b, dw, 1e-4, "norm backward, accumulated", "dweight");
    pair_check(b, n, o.tight, "norm without a residual to add", "n");
    for (Pair p : {r, y, yb, w, bias, dn, x, n, n2, mean, rstd, dw, db, g}) pair_free(b, p);
}

static void compare_gelu(Backends *b, OpShape o, ActivationKind kind) {
    int64_t M = (int64_t)o.B * o.T, F = 4 * (int64_t)o.C;
    Pair y = pair_random(b, M, F, o.format, 1.5f, 11), bias = pair_random(b, 1, F, o.format, 0.5f, 12);
    Pair dg = pair_random(b, M, F, o.format, 1.0f, 13), h = pair_poisoned(b, M, F, o.format);
    Pair g = pair_poisoned(b, M, F, o.format), g2 = pair_poisoned(b, M, F, o.format),
         db = pair_poisoned(b, 1, F, FMT_FP32);
    ON_BOTH(b) {
        CALL(b, activation_forward, g.t[s], h.t[s], y.t[s], bias.t[s], true, kind);
        CALL(b, activation_forward, g2.t[s], h.t[s], h.t[s], no_tensor(), true, kind);
    }
    pair_check(b, h, o.tight, "gelu forward", "h");
    pair_check(b, g, o.tight, "gelu forward", "g");
    pair_check(b, g2, o.tight, "gelu forward in place", "g");
    ON_BOTH(b) {
        CALL(b, activation_recompute, g2.t[s], no_tensor(), h.t[s], kind);
        CALL(b, activation_backward, dg.t[s], dg.t[s], db.t[s], dg.t[s], h.t[s], false, kind);
    }
    pair_check(b, g2, o.tight, "gelu recompute", "g");
    pair_check(b, dg, o.tight, "gelu backward", "dh");
    pair_check(b, db, 1e-4, "gelu backward", "dbias");
    ON_BOTH(b) CALL(b, grad_quantize, dg.t[s], dg.t[s], db.t[s], dg.t[s], true);
    pair_check(b, db, 1e-4, "bias gradient, accumulated", "dbias");
    for (Pair p : {y, bias, dg, h, g, g2, db}) pair_free(b, p);
}

static void compare_swiglu(Backends *b, OpShape o) {
    int64_t M = (int64_t)o.B * o.T, F = 2 * (int64_t)o.C;
    Pair h = pair_random(b, M, 2 * F, o.format, 1.5f, 61), dg = pair_random(b, M, F, o.format, 1.0f, 62);
    Pair g = pair_poisoned(b, M, F, o.format), g2 = pair_poisoned(b, M, F, o.format),
         dh = pair_poisoned(b, M, 2 * F, o.format);
    ON_BOTH(b) {
        CALL(b, activation_forward, g.t[s], h.t[s], h.t[s], no_tensor(), true, ACT_SWIGLU);
        CALL(b, activation_recompute, g2.t[s], no_tensor(), h.t[s], ACT_SWIGLU);
        CALL(b, activation_backward, dh.t[s], dh.t[s], no_tensor(), dg.t[s], h.t[s], false, ACT_SWIGLU);
    }
    pair_check(b, g, o.tight, "swiglu forward", "g");
    pair_check(b, g2, o.tight, "swiglu recompute", "g");
    pair_check(b, dh, o.tight, "swiglu backward", "dh");
    for (Pair p : {h, dg, g, g2, dh}) pair_free(b, p);
}

// Compares the operations of vision towers on images. If `odd`, an image has 18 x 18 pixels, 3 x 3 patches of 5 x 5
// pixels, and a row for the class token. Otherwise it has 16 x 16 pixels and 4 x 4 patches of 4 x 4 pixels. Gathers the
// rows in reverse order; every third index is -1.
static void compare_images(Backends *b, OpShape o, bool odd) {
    const int side = odd ? 18 : 16, patch = odd ? 5 : 4, T = (side / patch) * (side / patch) + odd;
    const int64_t images = 3, C = 3 * (int64_t)patch * patch;
    Pair bytes = pair_random(b, images, 3 * (int64_t)side * side / 2, FMT_BF16, 1.0f, 91); // read as bytes
    Pair table = pair_random(b, 3, 256, FMT_FP32, 1.0f, 92), index = pair_random(b, images * T, 1, FMT_FP32, 1.0f, 93);
    Pair class_row = pair_random(b, 1, C, o.format, 1.0f, 94), wpe = pair_random(b, T, C, o.format, 1.0f, 95);
    Pair patches = pair_poisoned(b, images * T, C, o.format), r = pair_poisoned(b, images * T, C, o.format);
    Pair gathered = pair_poisoned(b, images * T, C, o.format);
    for (int64_t i = 0; i < images * T; i++)
        ((int32_t *)index.t[0].data)[i] = i % 3 == 1 ? -1 : (int32_t)(images * T - 1 - i);
    b->exec[1].ops->upload(&b->exec[1], index.t[1].data, index.t[0].data, (size_t)(images * T) * sizeof(int32_t));
    ON_BOTH(b) {
        Tensor pixels = bytes.t[s], from = index.t[s];
        pixels.format = FMT_U8, pixels.cols = pixels.stride = 2 * bytes.t[s].cols;
        from.format = FMT_I32;
        CALL(b, patches_forward, patches.t[s], pixels, table.t[s], side, patch, T);
        CALL(b, image_embed_forward, r.t[s], patches.t[s], odd ? class_row.t[s] : no_tensor(), wpe.t[s], T);
        CALL(b, rows_gather, gathered.t[s], no_tensor(), from, false);
        CALL(b, rows_gather, gathered.t[s], r.t[s], from, true);
    }
    pair_check(b, patches, 0, "patches_forward", "patches");
    pair_check(b, r, o.tight, "image_embed_forward", "r");
    pair_check(b, gathered, o.tight, "rows_gather", "rows");
    for (Pair p : {bytes, table, index, class_row, wpe, patches, r, gathered}) pair_free(b, p);
}

// Compares norms without weight and bias on CPU and GPU.
static void compare_bare_norm(Backends *b, OpShape o) {
    int64_t M = (int64_t)o.B * o.T, C = o.C;
    Pair r = pair_random(b, M, C, o.format, 1.0f, 71), dn = pair_random(b, M, C, o.format, 1.0f, 72);
    Pair n = pair_poisoned(b, M, C, o.format), n2 = pair_poisoned(b, M, C, o.format),
         g = pair_poisoned(b, M, C, o.format);
    Pair mean = pair_poisoned(b, M, 1, FMT_FP32), rstd = pair_poisoned(b, M, 1, FMT_FP32);
    for (int centred = 0; centred < 2; centred++) {
        ON_BOTH(b) {
            Norm norm;
            memset(&norm, 0, sizeof norm);
            norm.x = r.t[s];
            if (centred) norm.mean = mean.t[s];
            norm.rstd = rstd.t[s];
            norm.eps = 1e-5f;
            CALL(b, residual_norm_forward, n.t[s], norm, r.t[s], r.t[s], no_tensor(), no_tensor());
            CALL(b, norm_recompute, n2.t[s], no_tensor(), norm);
            CALL(b, norm_backward, g.t[s], no_tensor(), no_tensor(), dn.t[s], norm, false, false);
        }
        pair_check(b, n, o.tight, centred ? "layer norm without weights" : "RMS norm without weights", "n");
        pair_check(b, n2, o.tight,
                   centred ? "layer norm without weights, recompute" : "RMS norm without weights, recompute", "n");
        pair_check(b, g, o.tight,
                   centred ? "layer norm without weights, backward" : "RMS norm without weights, backward", "g");
    }
    for (Pair p : {r, dn, n, n2, g, mean, rstd}) pair_free(b, p);
}

// Compares post-norm residuals (OLMo 2) on CPU and GPU in three variants: with mean and bias; without both, in place,
// without saving y; without y, so that r_out is a copy of r_in.
static void compare_postnorm_residual(Backends *b, OpShape o) {
    int64_t M = (int64_t)o.B * o.T, C = o.C;
    Pair r = pair_random(b, M, C, o.format, 1.0f, 81), y = pair_random(b, M, C, o.format, 0.5f, 82);
    Pair w = pair_random(b, 1, C, o.format, 1.0f, 83), bias = pair_random(b, 1, C, o.format, 1.0f, 84);
    Pair x = pair_poisoned(b, M, C, o.format), out = pair_poisoned(b, M, C, o.format),
         n = pair_poisoned(b, M, C, o.format), moved = pair_poisoned(b, M, C, o.format);
    Pair mean = pair_poisoned(b, M, 1, FMT_FP32), rstd = pair_poisoned(b, M, 1, FMT_FP32),
         rstd2 = pair_poisoned(b, M, 1, FMT_FP32);
    ON_BOTH(b) {
        Norm norm = pair_norm(x, mean, rstd, w, bias, s), bare = norm;
        CALL(b, postnorm_residual_forward, out.t[s], norm, out.t[s], r.t[s], y.t[s]);
        bare.x = bare.mean = bare.weight = bare.bias = no_tensor();
        bare.rstd = rstd2.t[s];
        CALL(b, postnorm_residual_forward, n.t[s], bare, r.t[s], r.t[s], y.t[s]);
        CALL(b, postnorm_residual_forward, moved.t[s], bare, moved.t[s], y.t[s], no_tensor());
        CALL(b, residual_backward, y.t[s], r.t[s]);
    }
    pair_check(b, x, 0, "post-norm residual", "x");
    pair_check(b, out, o.tight, "post-norm residual", "r");
    pair_check(b, mean, 1e-4, "post-norm residual", "mean");
    pair_check(b, rstd, 1e-4, "post-norm residual", "rstd");
    pair_check(b, r, o.tight, "post-norm residual, RMS norm without weights, in place", "r");
    pair_check(b, n, o.tight, "post-norm residual, RMS norm without weights, in place", "n");
    pair_check(b, rstd2, 1e-4, "post-norm residual, RMS norm without weights, in place", "rstd");
    pair_check(b, moved, 0, "post-norm residual without y", "r");
    pair_check(b, y, o.tight, "residual backward", "g");
    for (Pair p : {r, y, w, bias, x, out, n, moved, mean, rstd, rstd2}) pair_free(b, p);
}

static void compare_linear(Backends *b, OpShape o) {
    int64_t M = (int64_t)o.B * o.T, K = o.C, N = 3 * (int64_t)o.C;
    Pair x = pair_random(b, M, K, o.format, 1.0f, 21), w = pair_random(b, N, K, o.format, 0.05f, 22);
    Pair bias = pair_random(b, 1, N, o.format, 0.5f, 23), dy = pair_random(b, M, N, o.format, 1.0f, 24);
    Pair y = pair_poisoned(b, M, N, o.format), y2 = pair_poisoned(b, M, N, o.format),
         dx = pair_poisoned(b, M, K, o.format);
    Pair dw = pair_poisoned(b, N, K, o.format), dwf = pair_poisoned(b, N, K, FMT_FP32);
    ON_BOTH(b) {
        Weight weight_;
        memset(&weight_, 0, sizeof weight_);
        weight_.value = w.t[s];
        CALL(b, linear_forward, y.t[s], x.t[s], weight_, bias.t[s]);
        CALL(b, linear_forward, y2.t[s], x.t[s], weight_, no_tensor());
        CALL(b, linear_backward_data, dx.t[s], dy.t[s], weight_);
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            CALL(b, linear_backward_weight, dw.t[s], dy.t[s], x.t[s], accumulate != 0);
            CALL(b, linear_backward_weight, dwf.t[s], dy.t[s], x.t[s], accumulate != 0);
        }
    }
    pair_check(b, y, o.tight, "linear forward with bias", "y");
    pair_check(b, y2, o.tight, "linear forward", "y");
    pair_check(b, dx, o.tight, "dgrad", "dx");
    pair_check(b, dw, 2 * o.tight, "wgrad, accumulated", "dw");
    pair_check(b, dwf, 1e-4, "wgrad, accumulated", "dw");
    for (Pair p : {x, w, bias, dy, y, y2, dx, dw, dwf}) pair_free(b, p);
}

// Returns the columns of Q (`which` 0), K (1) or V (2) of a packed QKV projection.
static Tensor attention_part(AttentionShape s, Tensor packed, int which) {
    const int64_t q = (int64_t)s.heads * s.head_dim, kv = (int64_t)s.kv_heads * s.head_dim;
    return tensor_cols(packed, which == 0 ? 0 : q + (which - 1) * kv, which == 0 ? q : kv);
}

// Returns a new GPU tensor with the shape and format of `like`, filled with the byte `poison`.
static Tensor gpu_like(Backends *b, Tensor like, int poison) {
    Error err;
    const size_t bytes = (size_t)tensor_elements(like) * format_bytes(like.format);
    Exec *ex = &b->exec[1];
    void *host = xmalloc(bytes);
    memset(host, poison, bytes);
    like.data = ex->ops->allocate(ex, bytes, &err);
    if (!like.data) fatal(err.code, "%s", err.text);
    ex->ops->upload(ex, like.data, host, bytes);
    free(host);
    return like;
}

// A comparison of our own attention kernels with the CPU reference. run_own() calls the Hopper or the portable kernels
// directly, because attention_forward chooses kernels by GPU and shape.
typedef struct {
    AttentionShape shape;
    Pair qkv, d_o, positions, o, lse, dqkv; // inputs, and both backends' results, from compare_attention_over()
    bool masked, portable;
    double limit;
} AttentionCase;

static const char *kernels_name(const AttentionCase *c) {
    return c->portable ? "portable kernels" : "Hopper kernels";
}

// Runs forward and backward on the GPU. Returns false if the Hopper kernels do not support the shape.
static bool run_own(Backends *b, const AttentionCase *c, Tensor qkv, Tensor d_o, Tensor o, Tensor lse, Tensor dqkv) {
    Tensor part[3], d_part[3];
    Exec *ex = &b->exec[1];
    const Tensor at = c->masked ? c->positions.t[1] : no_tensor();
    for (int i = 0; i < 3; i++) part[i] = attention_part(c->shape, qkv, i);
    for (int i = 0; i < 3; i++) d_part[i] = attention_part(c->shape, dqkv, i);
    if (!c->portable)
        return attention_forward_hopper(ex, o, lse, part[0], part[1], part[2], at, c->shape) &&
               attention_backward_hopper(ex, d_part[0], d_part[1], d_part[2], d_o, o, lse, part[0], part[1], part[2],
                                         at, no_tensor(), c->shape);
    attention_portable_forward(ex, o, lse, part[0], part[1], part[2], at, c->shape);
    attention_portable_backward(ex, d_part[0], d_part[1], d_part[2], d_o, o, lse, part[0], part[1], part[2], at,
                                c->shape);
    return true;
}

// True if two GPU tensors with rows of `width` elements are bit-identical, except in the columns from .. to - 1.
static bool same_but(Backends *b, Tensor x, Tensor y, int64_t width, int64_t from, int64_t to) {
    const size_t element = format_bytes(x.format), bytes = (size_t)tensor_elements(x) * element;
    Exec *ex = &b->exec[1];
    char *p = (char *)xmalloc(bytes), *q = (char *)xmalloc(bytes);
    ex->ops->download(ex, p, x.data, bytes);
    ex->ops->download(ex, q, y.data, bytes);
    bool same = true;
    for (int64_t i = 0; i < (int64_t)(bytes / element); i++)
        if (i % width < from || i % width >= to)
            same = same && memcmp(p + (size_t)i * element, q + (size_t)i * element, element) == 0;
    free(p);
    free(q);
    return same;
}

// Changes one document of the first sequence. Fails if the attention result of any other document changes a bit.
static void check_no_leak(Backends *b, const AttentionCase *c, const Tensor kept[3]) {
    Exec *ex = &b->exec[1];
    const int T = c->shape.T;
    const int64_t M = (int64_t)c->shape.B * T;
    int32_t *positions = (int32_t *)xmalloc((size_t)M * sizeof *positions);
    ex->ops->download(ex, positions, c->positions.t[1].data, (size_t)M * sizeof *positions);
    int begin = 1, end;
    while (begin < T && positions[begin] != 0) begin++; // finds the second document; if none, uses the first
    if (begin == T) begin = 0;
    for (end = begin + 1; end < T && positions[end] != 0;) end++;
    free(positions);
    Tensor changed[2] = {c->qkv.t[1], c->d_o.t[1]}, out[3];
    for (int i = 0; i < 2; i++) {
        const Tensor x = changed[i];
        const size_t row = (size_t)x.cols * sizeof(uint16_t), bytes = (size_t)x.rows * row;
        uint16_t *host = (uint16_t *)xmalloc(bytes);
        ex->ops->download(ex, host, x.data, bytes);
        for (int64_t j = begin * x.cols; j < end * x.cols; j++) host[j] ^= 0x8000; // flips the sign bit of a BF16 value
        changed[i] = gpu_like(b, x, 0);
        ex->ops->upload(ex, changed[i].data, host, bytes);
        free(host);
    }
    for (int i = 0; i < 3; i++) out[i] = gpu_like(b, kept[i], 0xff);
    run_own(b, c, changed[0], changed[1], out[0], out[1], out[2]);
    const int64_t o_cols = out[0].cols, d_cols = out[2].cols;
    // lse has one row per head and sequence. The rows of the first sequence come first.
    bool same = same_but(b, kept[0], out[0], M * o_cols, begin * o_cols, end * o_cols) &&
                same_but(b, kept[2], out[2], M * d_cols, begin * d_cols, end * d_cols);
    Tensor first[2] = {tensor_rows(kept[1], 0, c->shape.heads), tensor_rows(out[1], 0, c->shape.heads)};
    same = same && same_but(b, first[0], first[1], T, begin, end);
    check(same, formatted("gpu%s, attention, %s: no other document changes (tokens %d to %d changed)", b->shape,
                          kernels_name(c), begin, end));
    for (int i = 0; i < 2; i++) ex->ops->release(ex, changed[i].data);
    for (int i = 0; i < 3; i++) ex->ops->release(ex, out[i].data);
}

// Compares our own kernels with the CPU reference. Two runs must be bit-identical.
static void compare_own(Backends *b, const AttentionCase *c) {
    Pair run[2][3];
    bool supported = true;
    for (int i = 0; i < 2; i++) {
        const Pair like[] = {c->o, c->lse, c->dqkv};
        for (int j = 0; j < 3; j++) run[i][j] = like[j], run[i][j].t[1] = gpu_like(b, like[j].t[1], 0xff);
        supported =
            run_own(b, c, c->qkv.t[1], c->d_o.t[1], run[i][0].t[1], run[i][1].t[1], run[i][2].t[1]) && supported;
    }
    static const char *const outputs[] = {"o", "lse", "dqkv"};
    const double limits[] = {c->limit, 2e-5, c->limit};
    const Tensor made[] = {run[0][0].t[1], run[0][1].t[1], run[0][2].t[1]};
    const char *masked = c->masked ? ", documents masked" : "";
    const char *name = formatted("attention, %s%s", kernels_name(c), masked);
    check(supported, formatted("gpu%s, attention%s: the %s support it", b->shape, masked, kernels_name(c)));
    for (int j = 0; j < 3; j++) {
        pair_check(b, run[0][j], limits[j], name, outputs[j]);
        check_repeated(b, run[0][j], run[1][j], name);
    }
    if (c->masked && !c->portable) {
        check_repeated(b, c->o, run[0][0], "attention forward uses the Hopper kernels");
        check_repeated(b, c->dqkv, run[0][2], "attention backward uses the Hopper kernels");
    }
    if (c->masked) check_no_leak(b, c, made);
    for (int i = 0; i < 6; i++) b->exec[1].ops->release(&b->exec[1], run[i / 3][i % 3].t[1].data);
}

// Checks that attention_backward with inverse RoPE of dq and dk gives the same bits as attention_backward followed by
// qk_norm_rope_backward.
static void compare_attention_rotated(Backends *b, const AttentionCase *c) {
    const AttentionShape shape = c->shape;
    const Tensor d = c->dqkv.t[1];
    const char *name = c->masked ? "attention backward with RoPE, documents masked" : "attention backward with RoPE";
    Pair rope_table = pair_random(b, shape.T, shape.head_dim, FMT_FP32, 1.0f, 34),
         maxima = pair_poisoned(b, d.rows, 1, FMT_FP32);
    Pair made = pair_poisoned(b, d.rows, d.cols, d.format), separate = pair_poisoned(b, d.rows, d.cols, d.format);
    ON_BOTH(b) {
        const Tensor at = c->masked ? c->positions.t[s] : no_tensor(), none = no_tensor();
        Tensor part[3], made_part[3], separate_part[3], packed = made.t[s];
        if (d.format == FMT_BF16) packed.amax = (uint32_t *)maxima.t[s].data;
        for (int i = 0; i < 3; i++) part[i] = attention_part(shape, c->qkv.t[s], i);
        for (int i = 0; i < 3; i++) made_part[i] = attention_part(shape, packed, i);
        for (int i = 0; i < 3; i++) separate_part[i] = attention_part(shape, separate.t[s], i);
        CALL(b, attention_backward, made_part[0], made_part[1], made_part[2], c->d_o.t[s], c->o.t[s], c->lse.t[s],
             part[0], part[1], part[2], at, rope_table.t[s], shape);
        CALL(b, attention_backward, separate_part[0], separate_part[1], separate_part[2], c->d_o.t[s], c->o.t[s],
             c->lse.t[s], part[0], part[1], part[2], at, none, shape);
        const QkRope h = {shape, at, rope_table.t[s], none, none, 0.0f, 0.0f};
        CALL(b, qk_norm_rope_backward, separate.t[s], none, none, c->qkv.t[s], h, false);
    }
    pair_check(b, made, c->limit, name, "dqkv");
    check_repeated(b, separate, made, name);
    if (d.format == FMT_BF16) check_maxima(b, made, maxima, name);
    for (Pair p : {rope_table, maxima, made, separate}) pair_free(b, p);
}

// Compares attention forward and backward on CPU and GPU. On the GPU, two runs of backward must be bit-identical.
static void compare_attention_over(Backends *b, AttentionShape shape, Format format, double limit, bool masked) {
    const int64_t M = (int64_t)shape.B * shape.T, C = (int64_t)shape.heads * shape.head_dim;
    const int64_t packed = C + 2 * (int64_t)shape.kv_heads * shape.head_dim;
    Pair qkv = pair_random(b, M, packed, format, 1.0f, 31), d_o = pair_random(b, M, C, format, 1.0f, 32);
    Pair out = pair_poisoned(b, M, C, format),
         lse = pair_poisoned(b, (int64_t)shape.B * shape.heads, shape.T, FMT_FP32);
    Pair dqkv[2], maxima[2], positions = pair_positions(b, shape.B, shape.T);
    const char *forward = masked ? "attention forward, documents masked" : "attention forward";
    const char *backward = masked ? "attention backward, documents masked" : "attention backward";
    for (int run = 0; run < 2; run++) {
        dqkv[run] = pair_poisoned(b, M, packed, format);
        maxima[run] = pair_poisoned(b, M, 1, FMT_FP32);
    }
    ON_BOTH(b) {
        const Tensor at = masked ? positions.t[s] : no_tensor();
        Tensor part[3];
        for (int i = 0; i < 3; i++) part[i] = attention_part(shape, qkv.t[s], i);
        CALL(b, attention_forward, out.t[s], lse.t[s], part[0], part[1], part[2], at, shape);
        for (int run = 0; run < 2; run++) {
            Tensor d = dqkv[run].t[s], d_part[3];
            if (format == FMT_BF16) d.amax = (uint32_t *)maxima[run].t[s].data;
            for (int i = 0; i < 3; i++) d_part[i] = attention_part(shape, d, i);
            CALL(b, attention_backward, d_part[0], d_part[1], d_part[2], d_o.t[s], out.t[s], lse.t[s], part[0], part[1],
                 part[2], at, no_tensor(), shape);
        }
    }
    pair_check(b, out, limit, forward, "o");
    pair_check(b, lse, 1e-3, forward, "lse");
    pair_check(b, dqkv[0], limit, backward, "dqkv");
    check_repeated(b, dqkv[0], dqkv[1], backward);
    if (format == FMT_BF16) {
        check_maxima(b, dqkv[0], maxima[0], backward);
        check_repeated(b, maxima[0], maxima[1], backward);
    }
    AttentionCase c = {shape, qkv, d_o, positions, out, lse, dqkv[0], masked, true, limit};
    if (shape.head_dim % 2 == 0) compare_attention_rotated(b, &c);
    if (format == FMT_BF16) compare_own(b, &c);
    c.portable = false;
    if (format == FMT_BF16 && attention_hopper_supported(shape, cuda_backend(&b->exec[1])->hopper)) compare_own(b, &c);
    for (Pair p : {qkv, d_o, out, lse, dqkv[0], maxima[0], dqkv[1], maxima[1], positions}) pair_free(b, p);
}

static void compare_attention_of(Backends *b, AttentionShape shape, Format format, double limit) {
    compare_attention_over(b, shape, format, limit, false);
    if (!shape.bidirectional) compare_attention_over(b, shape, format, limit, true);
}

// Compares attention of `queries` new tokens that follow `before` tokens in a KV cache, as in sampling.
static void compare_attention_cached(Backends *b, int before, int queries, AttentionShape shape, Format format,
                                     double limit) {
    const int64_t C = (int64_t)shape.heads * shape.head_dim, packed = C + 2 * (int64_t)shape.kv_heads * shape.head_dim;
    Pair qkv = pair_random(b, before + queries, packed, format, 1.0f, 33);
    Pair out = pair_poisoned(b, queries, C, format), lse = pair_poisoned(b, shape.heads, queries, FMT_FP32);
    shape.B = 1, shape.T = queries;
    ON_BOTH(b) {
        const Tensor q = tensor_rows(attention_part(shape, qkv.t[s], 0), before, queries);
        CALL(b, attention_forward, out.t[s], lse.t[s], q, attention_part(shape, qkv.t[s], 1),
             attention_part(shape, qkv.t[s], 2), no_tensor(), shape);
    }
    snprintf(b->shape, sizeof b->shape, " (%d after %d, heads %d/%d of %d)", queries, before, shape.heads,
             shape.kv_heads, shape.head_dim);
    pair_check(b, out, limit, "attention forward, cached", "o");
    pair_check(b, lse, 1e-5, "attention forward, cached", "lse");
    for (Pair p : {qkv, out, lse}) pair_free(b, p);
}

static void compare_attention(Backends *b, OpShape o) {
    const AttentionShape shape = {o.B, o.T, o.heads, o.heads, o.C / o.heads, false};
    compare_attention_of(b, shape, o.format, o.loose);
}

// Compares QKV clip, QK norm and RoPE on CPU and GPU in three variants: RoPE in place; RoPE and QK norm of each head,
// with documents; RoPE and QK norm of all heads together, with clip.
static void compare_heads(Backends *b, OpShape o) {
    const int64_t M = (int64_t)o.B * o.T, D = o.C / o.heads;
    const AttentionShape shape = {o.B, o.T, o.heads, o.heads % 2 ? o.heads : o.heads / 2, (int)D, false};
    const int64_t widths[3][2] = {{0, 0}, {D, D}, {shape.heads * D, shape.kv_heads * D}};
    const int64_t cols = (shape.heads + 2 * shape.kv_heads) * D;
    Pair rope_table = pair_random(b, o.T, D, FMT_FP32, 1.0f, 51), positions = pair_positions(b, o.B, o.T);
    for (int way = 0; way < 3; way++) {
        const int64_t q_width = way ? widths[way][0] : 1, k_width = way ? widths[way][1] : 1;
        Pair qkv = pair_random(b, M, cols, o.format, 1.0f, 52), kept = pair_random(b, M, cols, o.format, 1.0f, 52);
        Pair again = pair_random(b, M, cols, o.format, 1.0f, 52); // copy of qkv for the in-place variant
        Pair separate = pair_poisoned(b, M, cols, o.format), d = pair_random(b, M, cols, o.format, 1.0f, 53);
        Pair q_weight = pair_random(b, 1, q_width, o.format, 1.0f, 54),
             k_weight = pair_random(b, 1, k_width, o.format, 1.0f, 55);
        Pair dq = pair_random(b, 1, q_width, FMT_FP32, 1.0f, 56), dk = pair_random(b, 1, k_width, FMT_FP32, 1.0f, 57);
        Pair maxima = pair_poisoned(b, M, 1, FMT_FP32);
        Pair out = way ? separate : qkv;
        ON_BOTH(b) {
            const Tensor none = no_tensor();
            QkRope h = {shape,
                        way == 1 ? positions.t[s] : none,
                        rope_table.t[s],
                        way ? q_weight.t[s] : none,
                        way ? k_weight.t[s] : none,
                        1e-5f,
                        way == 2 ? 0.7f : 0.0f};
            d.t[s].amax = (uint32_t *)maxima.t[s].data;
            CALL(b, qk_norm_rope_forward, out.t[s], qkv.t[s], h);
            CALL(b, qk_norm_rope_forward, again.t[s], again.t[s], h);
            CALL(b, qk_norm_rope_backward, d.t[s], way ? dq.t[s] : none, way ? dk.t[s] : none, kept.t[s], h, true);
        }
        pair_check(b, out, o.tight, "RoPE and QK norm forward",
                   way == 0   ? "rotated"
                   : way == 1 ? "normed by head"
                              : "clipped and normed");
        check_repeated(b, out, again, "RoPE and QK norm forward, in place");
        pair_check(b, d, o.tight, "RoPE and QK norm backward", "dqkv");
        if (way) pair_check(b, dq, 1e-4, "RoPE and QK norm backward", "dq_weight");
        if (way) pair_check(b, dk, 1e-4, "RoPE and QK norm backward", "dk_weight");
        check_maxima(b, d, maxima, "RoPE and QK norm backward");
        for (Pair p : {qkv, kept, again, separate, d, q_weight, k_weight, dq, dk, maxima}) pair_free(b, p);
    }
    for (Pair p : {rope_table, positions}) pair_free(b, p);
}

static void compare_embedding_and_loss(Backends *b, OpShape o) {
    int64_t M = (int64_t)o.B * o.T, C = o.C, V = b->config.shape.vocab, Vp = b->config.shape.vocab_padded;
    Pair tokens = pair_integers(b, M, (int)V, 41), targets = pair_integers(b, M, (int)V, 42);
    Pair wte = pair_random(b, Vp, C, o.format, 1.0f, 43), wpe = pair_random(b, o.T + 5, C, o.format, 1.0f, 44);
    Pair r = pair_poisoned(b, M, C, o.format), g = pair_random(b, M, C, o.format, 1.0f, 45);
    Pair dwte = pair_random(b, Vp, C, FMT_FP32, 0.1f, 46), dwpe = pair_poisoned(b, o.T + 5, C, FMT_FP32);
    Pair positions = pair_positions(b, o.B, o.T), r_masked = pair_poisoned(b, M, C, o.format);
    Pair dwpe_masked = pair_poisoned(b, o.T + 5, C, FMT_FP32);
    Pair logits = pair_random(b, M, Vp, o.format, 3.0f, 47), losses = pair_poisoned(b, M, 1, FMT_FP32);
    Pair best = pair_poisoned(b, M, 1, FMT_FP32);
    double *x = pair_values(b, logits, 0);
    for (int64_t i = 0; i < M; i += 2) { // the target of every even row has the row's largest logit
        int32_t top = 0;
        for (int32_t j = 1; j < V; j++) top = x[i * Vp + j] > x[i * Vp + top] ? j : top;
        for (int s = 0; s < 2; s++)
            b->exec[s].ops->upload(&b->exec[s], tensor_rows(targets.t[s], i, 1).data, &top, sizeof top);
    }
    free(x);
    ON_BOTH(b) {
        CALL(b, embed_forward, r.t[s], tokens.t[s], no_tensor(), wte.t[s], wpe.t[s], o.T);
        for (int accumulate = 0; accumulate < 2; accumulate++)
            CALL(b, embed_backward, dwte.t[s], dwpe.t[s], g.t[s], tokens.t[s], no_tensor(), o.T, accumulate != 0);
        CALL(b, embed_forward, r_masked.t[s], tokens.t[s], positions.t[s], wte.t[s], wpe.t[s], o.T);
        for (int accumulate = 0; accumulate < 2; accumulate++)
            CALL(b, embed_backward, dwte.t[s], dwpe_masked.t[s], g.t[s], tokens.t[s], positions.t[s], o.T,
                 accumulate != 0);
        CALL(b, loss_forward_backward, logits.t[s], logits.t[s], losses.t[s], best.t[s], logits.t[s], targets.t[s], 0,
             (int)V, b->state[s]);
        CALL(b, loss_sum, losses.t[s], b->state[s]);
    }
    pair_check(b, r, o.tight, "embedding forward", "r");
    pair_check(b, dwte, 1e-5, "embedding backward", "dwte");
    pair_check(b, dwpe, 1e-5, "embedding backward", "dwpe");
    pair_check(b, r_masked, o.tight, "embedding forward, documents masked", "r");
    pair_check(b, dwpe_masked, 1e-5, "embedding backward, documents masked", "dwpe");
    pair_check(b, losses, 1e-5, "loss", "losses");
    pair_check(b, best, 0, "loss", "best");
    pair_check(b, logits, o.tight, "loss", "dlogits");
    StepState a, c;
    b->exec[0].ops->download(&b->exec[0], &a, b->state[0], sizeof a);
    b->exec[1].ops->download(&b->exec[1], &c, b->state[1], sizeof c);
    check(fabs(a.loss_sum - c.loss_sum) < 1e-5 * fabs(a.loss_sum) && a.nonfinite == 0 && c.nonfinite == 0,
          formatted("GPU against CPU%s: sum of losses %.6f and %.6f", b->shape, c.loss_sum, a.loss_sum));
    for (Pair p : {tokens, targets, wte, wpe, r, g, dwte, dwpe, logits, losses, best, positions, r_masked, dwpe_masked})
        pair_free(b, p);
}

static void compare_shape(OpShape o, const char *how) {
    Small small = {2, o.heads, o.C, 3001, o.B, o.T, o.format == FMT_BF16, 0};
    Backends b;
    backends_open(&b, small_config(small));
    snprintf(b.shape, sizeof b.shape, " (B %d, T %d, C %d%s)", o.B, o.T, o.C, how);
    compare_norm(&b, o);
    compare_bare_norm(&b, o);
    compare_postnorm_residual(&b, o);
    compare_gelu(&b, o, ACT_GELU_TANH);
    compare_gelu(&b, o, ACT_GELU_QUICK);
    compare_gelu(&b, o, ACT_GELU_ERF);
    compare_images(&b, o, false);
    compare_images(&b, o, true);
    compare_swiglu(&b, o);
    compare_linear(&b, o);
    compare_attention(&b, o);
    compare_heads(&b, o);
    compare_embedding_and_loss(&b, o);
    backends_close(&b);
}

// Compares attention on CPU and GPU: grouped or not, causal or not. The head widths are those for which there are
// kernels and narrower ones, which the kernels pad. Most lengths are not multiples of the kernels' tiles.
static void compare_grouped_attention(bool small_only) {
    static const AttentionShape shapes[] = {
        {2, 150, 4, 2, 64, false},   {2, 150, 4, 2, 128, false},  {2, 67, 4, 2, 64, false},
        {3, 1300, 2, 2, 64, false},  {3, 1300, 4, 2, 64, false},  {3, 1300, 2, 2, 128, false},
        {3, 1300, 2, 1, 128, false}, {3, 899, 3, 1, 64, false},   {1, 130, 4, 2, 128, false},
        {3, 190, 12, 4, 64, false},  {1, 515, 7, 1, 128, false},  {2, 300, 32, 8, 64, false},
        {9, 33, 28, 4, 64, false},   {2, 129, 16, 8, 128, false}, {2, 77, 4, 2, 80, false},
        {1, 130, 6, 3, 96, false},   {3, 100, 4, 2, 24, false},   {2, 61, 6, 1, 40, false},
        {2, 61, 3, 3, 112, false},   {3, 577, 4, 4, 64, true},    {2, 729, 3, 3, 72, true},
        {5, 9, 2, 2, 16, true},      {2, 196, 4, 2, 64, true},    {2, 1, 4, 2, 64, false},
        {2, 17, 6, 3, 128, false},   {1, 1000, 4, 1, 80, false},  {1, 1000, 4, 2, 96, false},
        {2, 257, 3, 1, 72, false},   {1, 1000, 2, 2, 128, true},  {1, 577, 4, 1, 80, true},
        {2, 196, 4, 2, 96, true},    {3, 65, 2, 1, 104, true},
    };
    const AttentionShape exact[] = {{2, 45, 6, 2, 40, false}, {2, 45, 6, 2, 40, true}};
    const Small small = {2, 4, 512, 3001, 3, 1300, true, 0}; // longest sequence and widest heads in `shapes`
    Backends b;
    backends_open(&b, small_config(small));
    for (size_t i = 0; i < (small_only ? 2 : sizeof shapes / sizeof *shapes); i++) {
        const AttentionShape s = shapes[i];
        snprintf(b.shape, sizeof b.shape, " (B %d, T %d, heads %d/%d of %d%s)", s.B, s.T, s.heads, s.kv_heads,
                 s.head_dim, s.bidirectional ? ", bidirectional" : "");
        compare_attention_of(&b, s, FMT_BF16, 8e-3);
    }
    for (int i = 0; i < 2; i++) {
        const AttentionShape s = exact[i];
        snprintf(b.shape, sizeof b.shape, " (FP32, heads %d/%d of %d%s)", s.heads, s.kv_heads, s.head_dim,
                 s.bidirectional ? ", bidirectional" : "");
        compare_attention_of(&b, s, FMT_FP32, 1e-5);
    }
    backends_close(&b);
}

// Compares attention with a KV cache on CPU and GPU, from fewer keys than a thread block reads at once up to more keys
// than any test model has.
static void compare_all_cached_attention(bool small_only) {
    static const struct {
        int before, queries, heads, kv_heads, head_dim;
    } cases[] = {
        {1, 1, 4, 4, 64},      {40, 16, 6, 2, 80},     {15, 1, 12, 12, 64}, {31, 1, 5, 1, 96},    {500, 1, 32, 8, 128},
        {4096, 1, 32, 4, 128}, {1024, 16, 28, 4, 128}, {96, 16, 8, 2, 64},  {2000, 1, 4, 2, 256}, {33, 1, 3, 3, 8},
    };
    const Small small = {2, 4, 512, 3001, 1, 4112, true, 0}; // its T is the longest KV cache
    Backends b;
    backends_open(&b, small_config(small));
    for (size_t i = 0; i < (small_only ? 2 : sizeof cases / sizeof *cases); i++) {
        const AttentionShape shape = {0, 0, cases[i].heads, cases[i].kv_heads, cases[i].head_dim, false};
        compare_attention_cached(&b, cases[i].before, cases[i].queries, shape, FMT_BF16, 2e-3);
        compare_attention_cached(&b, cases[i].before, cases[i].queries, shape, FMT_FP32, 1e-5);
    }
    backends_close(&b);
}

// Returns random shape number `index`, always the same: an odd batch size, up to 150 tokens per sequence, and the width
// of a known model.
static OpShape random_shape(uint64_t index) {
    static const int widths[][2] = {
        {768, 12}, {1600, 25}, {2048, 16}}; // {channels, heads}: GPT-2 124M and 1558M, OLMo-1B
    const uint64_t random = rng_hash(79, 1, index);
    const int *width = widths[index % 3];
    OpShape o = {
        1 + 2 * (int)(random >> 8 & 3), 1 + (int)((random >> 16) % 150), width[0], width[1], FMT_BF16, 2e-3, 8e-3};
    return o;
}

static void compare_operations(bool small_only) {
    enum { RANDOM = 6 };
    static const OpShape shapes[] = {
        {3, 77, 768, 12, FMT_BF16, 2e-3, 8e-3},  {1, 130, 1600, 25, FMT_BF16, 2e-3, 8e-3},
        {2, 61, 2048, 16, FMT_BF16, 2e-3, 8e-3}, {3, 333, 384, 3, FMT_BF16, 2e-3, 8e-3},
        {1, 256, 256, 2, FMT_BF16, 2e-3, 8e-3},  {1, 1090, 256, 2, FMT_BF16, 2e-3, 8e-3},
        {5, 33, 72, 3, FMT_FP32, 1e-5, 1e-5},    {1, 19, 768, 12, FMT_FP32, 1e-5, 1e-5},
        {2, 37, 192, 3, FMT_BF16, 2e-3, 8e-3},
    };
    const size_t count = sizeof shapes / sizeof *shapes;
    for (size_t i = small_only ? count - 1 : 0; i < count; i++) compare_shape(shapes[i], "");
    for (uint64_t i = 0; i < (small_only ? 0 : RANDOM); i++) compare_shape(random_shape(i), ", drawn");
    compare_grouped_attention(small_only);
    compare_all_cached_attention(small_only);
}
