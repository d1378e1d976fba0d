// Computes the cross-entropy loss of a chunk of tokens, and the gradient of the loss by the logits, on the CPU. An
// unscaled gradient overwrites the logits; an FP8 gradient has separate memory.
#include "cpu_quantize.h"

#include <math.h>
#include <string.h>

#include "numerics/quantize.h"

#define CHUNK 1024 // number of columns processed at a time, so that decoded logits stay in the L1 cache

static real row_maximum(const Cpu *cpu, Tensor logits, int64_t row, int64_t vocab) {
    real buffer[CHUNK], best = -(real)INFINITY;
    for (int64_t begin = 0; begin < vocab; begin += CHUNK) {
        int64_t count = smaller(CHUNK, vocab - begin);
        real highest = cpu->kernels->maximum(row_load(cpu, logits, row, begin, count, buffer), count);
        best = highest > best ? highest : best;
    }
    return best;
}

// Returns the log-sum-exp of a row of logits; NaN if a logit is NaN or +inf.
static real row_log_sum(const Cpu *cpu, Tensor logits, int64_t row, int64_t vocab) {
    real buffer[CHUNK], highest = row_maximum(cpu, logits, row, vocab);
    double sum = 0;
    for (int64_t begin = 0; begin < vocab; begin += CHUNK) {
        int64_t count = smaller(CHUNK, vocab - begin);
        sum += (double)cpu->kernels->exponentials(buffer, row_load(cpu, logits, row, begin, count, buffer), 1, highest,
                                                  count);
    }
    return highest + (real)log(sum);
}

static real element(Tensor t, int64_t row, int64_t column) {
    return t.format == FMT_FP32 ? ((const real *)row_address(t, row))[column]
                                : (real)bf16_decode(((const uint16_t *)row_address(t, row))[column]);
}

// True if logit `target` is the largest of the row's first `vocab` logits, and no earlier logit is equally large. False
// if one of these logits is NaN.
static bool is_best(const Cpu *cpu, Tensor logits, int64_t row, int64_t vocab, int32_t target) {
    const real logit = element(logits, row, target);
    real buffer[CHUNK];
    for (int64_t begin = 0; begin < vocab; begin += CHUNK) {
        int64_t count = smaller(CHUNK, vocab - begin);
        const real *x = row_load(cpu, logits, row, begin, count, buffer);
        for (int64_t i = 0; i < count; i++)
            if (!(x[i] < logit || (x[i] == logit && begin + i >= target))) return false;
    }
    return true;
}

// Computes one row of dlogits = (softmax - onehot) * scale. log_sum: log-sum-exp of the row's logits. For an FP8
// dlogits: random_start is loss_random_start() of the step, `first` the number of row 0 in the micro-batch.
static void gradient_row(const Cpu *cpu, Tensor dlogits, Tensor logits, int64_t row, int64_t vocab, int32_t target,
                         real log_sum, real scale, uint64_t random_start, int64_t first) {
    const bool fp8 = format_is_fp8(dlogits.format);
    const float r = fp8 ? scale_reciprocal(*(const float *)dlogits.scale) : 1.0f;
    real buffer[CHUNK];
    uint8_t random[CHUNK];
    for (int64_t begin = 0; begin < vocab; begin += CHUNK) {
        int64_t count = smaller(CHUNK, vocab - begin);
        const real *x = row_load(cpu, logits, row, begin, count, buffer);
        cpu->kernels->exponentials(buffer, x, 1, log_sum, count);
        if (target >= begin && target < begin + count) buffer[target - begin] -= 1;
        for (int64_t i = 0; i < count; i++) buffer[i] *= scale;
        if (!fp8) {
            row_store(cpu, dlogits, row, begin, count, buffer);
            continue;
        }
        for (int64_t i = 0; i < count; i += LOSS_RANDOM) {
            const uint64_t bits = loss_random_bits(random_start, first + row, target, (begin + i) / LOSS_RANDOM);
            for (int j = 0; j < LOSS_RANDOM; j++) random[i + j] = (uint8_t)loss_random_byte(bits, j);
        }
        cpu->kernels->encode_stochastic((uint8_t *)row_address(dlogits, row) + begin, buffer, random, count, r);
    }
}

static void zero_columns(Tensor t, int64_t row, int64_t begin) {
    size_t bytes = format_bytes(t.format);
    memset((char *)row_address(t, row) + (size_t)begin * bytes, 0, (size_t)(t.cols - begin) * bytes);
}

static void require_gradient(Tensor dlogits, Tensor dlogits_t, Tensor logits) {
    if (!dlogits.data) return;
    bool fp8 = dlogits.format == FMT_E5M2 && dlogits.scale && dlogits.data != logits.data && dlogits_t.transposed;
    if (!fp8 && dlogits.data != logits.data)
        fatal(EXIT_DEVICE, "internal error: the CPU backend's loss: a %s gradient must overwrite the logits",
              format_name(dlogits.format));
}

void cpu_loss_forward_backward(Exec *exec, Tensor dlogits, Tensor dlogits_t, Tensor losses, Tensor best, Tensor logits,
                               Tensor targets, int64_t first, int vocab, StepState *state) {
    require_plain("loss_forward_backward", logits);
    require_gradient(dlogits, dlogits_t, logits);
    const Cpu *cpu = cpu_of(exec);
    const float scale = state->loss_scale;
    const bool backward = dlogits.data != NULL, fp8 = backward && format_is_fp8(dlogits.format);
    const uint64_t random_start = loss_random_start(state->seed, state->t);
    if (fp8) *(float *)dlogits.scale = loss_gradient_scale(scale);
    int bad = 0;
#pragma omp parallel for num_threads(cpu->threads) schedule(static) reduction(| : bad)
    for (int64_t row = 0; row < logits.rows; row++) {
        int32_t target = ((const int32_t *)targets.data)[row * targets.stride];
        real loss = 0;
        if (best.data)
            *(real *)row_address(best, row) = target >= 0 && is_best(cpu, logits, row, vocab, target) ? 1 : 0;
        if (target >= 0) {
            real log_sum = row_log_sum(cpu, logits, row, vocab);
            loss = log_sum - element(logits, row, target);
            if (backward)
                gradient_row(cpu, dlogits, logits, row, vocab, target, log_sum, (real)scale, random_start, first);
        }
        if (backward) zero_columns(dlogits, row, target >= 0 ? vocab : 0);
        if (losses.data) *(real *)row_address(losses, row) = loss;
        bad |= !isfinite(loss);
    }
    if (bad) state->nonfinite = 1;
    if (fp8) transpose_codes(exec, dlogits_t, dlogits);
}

void cpu_loss_sum(Exec *exec, Tensor losses, StepState *state) {
    (void)exec;
    double sum = 0;
    for (int64_t row = 0; row < losses.rows; row++) sum += (double)*(const real *)row_address(losses, row);
    state->loss_sum += (double)state->loss_scale * sum;
}
