// Computes the gradient norm, the AdamW update and Muon's element-wise operations on the CPU.
#include "cpu_internal.h"
#include "numerics/moments_host.h"

#include <math.h>
#include <string.h>

#include "numerics/moments.h"

// number of elements processed at a time: a multiple of the moments' group size, and small enough that the buffers fit
// in the cache
#define BLOCK 4096

// Returns a contiguous tensor viewed as one row that contains all elements.
static Tensor flat(Tensor t) {
    t.cols = t.stride = t.rows * t.cols;
    t.rows = 1;
    return t;
}

static int64_t block_count(int64_t elements) {
    return (elements + BLOCK - 1) / BLOCK;
}

void cpu_gradients_add(Exec *exec, const Tensor sums[], const Tensor parts[], int count) {
    const Cpu *cpu = cpu_of(exec);
    for (int t = 0; t < count; t++) {
        require_plain("gradients_add", sums[t]);
        require_plain("gradients_add", parts[t]);
        const Tensor sum = flat(sums[t]), part = flat(parts[t]);
        const int64_t blocks = block_count(sum.cols);
#pragma omp parallel for num_threads(cpu->threads) schedule(static) if (blocks > 1)
        for (int64_t b = 0; b < blocks; b++) {
            real sum_buffer[BLOCK], part_buffer[BLOCK];
            const int64_t at = b * BLOCK, n = smaller(BLOCK, sum.cols - at);
            real *total = row_target(sum, 0, at, sum_buffer);
            row_load(cpu, sum, 0, at, n, total);
            cpu->kernels->add(total, row_load(cpu, part, 0, at, n, part_buffer), n);
            row_store(cpu, sum, 0, at, n, total);
        }
    }
}

void cpu_grad_norm(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    const Cpu *cpu = cpu_of(exec);
    double total = 0;
    for (int p = 0; p < count; p++) {
        require_plain("grad_norm", parameters[p].grad);
        Tensor grad = flat(parameters[p].grad);
        // partial sums, whose number is fixed so that the order of addition does not depend on the number of threads
        double partial[CPU_REDUCTION_BLOCKS] = {0};
        int64_t blocks = block_count(grad.cols), share = (blocks + CPU_REDUCTION_BLOCKS - 1) / CPU_REDUCTION_BLOCKS;
#pragma omp parallel for num_threads(cpu->threads) schedule(static) if (blocks > 1)
        for (int64_t i = 0; i < CPU_REDUCTION_BLOCKS; i++) {
            real buffer[BLOCK];
            for (int64_t b = i * share; b < smaller(blocks, (i + 1) * share); b++) {
                int64_t n = smaller(BLOCK, grad.cols - b * BLOCK);
                partial[i] += cpu->kernels->sum_of_squares(row_load(cpu, grad, 0, b * BLOCK, n, buffer), n);
            }
        }
        for (int i = 0; i < CPU_REDUCTION_BLOCKS; i++) total += partial[i];
    }
    state->grad_sq = total;
    cpu_grad_norm_root(exec, state);
}

void cpu_grad_norm_root(Exec *exec, StepState *state) {
    (void)exec;
    state->grad_norm = (float)sqrt(state->grad_sq);
    if (!isfinite(state->grad_norm)) state->nonfinite = 1;
}

// Returns n elements of a parameter in FP32: the FP32 master weights, or the BF16 values joined with the low 16 bits
// (split16), or the values alone if there are no master weights.
static const real *load_master(const Cpu *cpu, const Parameter *p, int64_t begin, int64_t n, real *buffer) {
    Tensor value = flat(p->weight.value);
    if (!p->master.data) return row_load(cpu, value, 0, begin, n, buffer);
    if (p->master.format == FMT_FP32) return row_load(cpu, flat(p->master), 0, begin, n, buffer);
    const uint16_t *high = (const uint16_t *)value.data + begin, *low = (const uint16_t *)p->master.data + begin;
    for (int64_t i = 0; i < n; i++) buffer[i] = (real)master_join(high[i], low[i]);
    return buffer;
}

// Stores n updated elements of a parameter. master_bf16() rounds the values with FP32 master weights, too, so that FP32
// and split16 train identically. Without master weights, a BF16 value is rounded stochastically, because rounding to
// nearest would lose every update smaller than half a BF16 ulp.
static void store_master(const Cpu *cpu, const Parameter *p, int64_t begin, int64_t n, const real *values,
                         const StepState *state) {
    Tensor value = flat(p->weight.value);
    if (!p->master.data) {
        if (value.format == FMT_BF16)
            for (int64_t i = 0; i < n; i++)
                ((uint16_t *)value.data)[begin + i] =
                    bf16_encode_stochastic((float)values[i], state->seed, state->t, p->index + (uint64_t)(begin + i));
        else
            row_store(cpu, value, 0, begin, n, values);
        return;
    }
    if (p->master.format == FMT_FP32)
        row_store(cpu, flat(p->master), 0, begin, n, values);
    else
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)p->master.data)[begin + i] = (uint16_t)float_bits((float)values[i]);
    if (value.format == FMT_BF16)
        for (int64_t i = 0; i < n; i++) ((uint16_t *)value.data)[begin + i] = master_bf16((float)values[i]);
    else
        row_store(cpu, value, 0, begin, n, values);
}

// Returns n elements of a moment in FP32: in place if the moment is stored in FP32, otherwise decoded into `buffer`.
static real *load_moment(const Cpu *cpu, Tensor moment, int64_t begin, int64_t n, real *buffer) {
    if (moment.granularity == SCALE_EXPAND) {
        moments_load(moment, begin, n, buffer);
        return buffer;
    }
    real *values = row_target(moment, 0, begin, buffer);
    row_load(cpu, moment, 0, begin, n, values);
    return values;
}

// Stores n elements of a moment. Returns false if the moment is 8-bit and a value is inf or NaN.
static bool store_moment(const Cpu *cpu, Tensor moment, int64_t begin, int64_t n, const real *values,
                         const MomentStore *how) {
    if (moment.granularity == SCALE_EXPAND) return moments_store(moment, begin, n, values, how);
    row_store(cpu, moment, 0, begin, n, values);
    return true;
}

// Returns the amax of a block of a parameter's stored values, as FP32 bits. Uses the values after they were rounded to
// the storage format, because the next quantization reads these values.
static uint32_t block_amax(const Cpu *cpu, const Parameter *p, int64_t begin, int64_t n) {
    real buffer[BLOCK];
    return cpu->kernels->amax_bits(row_load(cpu, flat(p->weight.value), 0, begin, n, buffer), n);
}

// Scalars of an update that are the same for all parameters.
typedef struct {
    const Cpu *cpu;
    const StepState *state;
    AdamwStep adamw;
} Update;

static AdamwStep adamw_step(const StepState *state) {
    bool clip = state->grad_clip > 0 && state->grad_norm > state->grad_clip;
    return (AdamwStep){(real)state->lr,
                       (real)state->beta1,
                       (real)state->beta2,
                       (real)state->eps,
                       (real)(1 / (1 - pow((double)state->beta1, (double)state->t))),
                       (real)(1 / (1 - pow((double)state->beta2, (double)state->t))),
                       clip ? (real)(state->grad_clip / state->grad_norm) : 1};
}

// Updates n elements of a parameter starting at element `begin`. Returns false if an 8-bit moment became inf or NaN.
typedef bool UpdateBlock(const Update *u, const Parameter *p, int64_t begin, int64_t n);

// Calls update() for all blocks of all parameters, on all threads. Sets state->nonfinite if update() returns false for
// a block. weights: true if update() changes the weights; the amaxes of the weights are then written.
static void update_all(const Update *u, const Parameter *parameters, int count, UpdateBlock *update, bool weights,
                       StepState *state) {
    int nonfinite = 0;
    for (int i = 0; weights && i < count; i++)
        if (parameters[i].weight.maximum) *parameters[i].weight.maximum = 0;
#pragma omp parallel num_threads(u->cpu->threads)
    for (int i = 0; i < count; i++) {
        const Parameter *p = &parameters[i];
        int64_t elements = tensor_elements(p->weight.value);
        // largest: amax of the blocks that this thread processes
        uint32_t *maximum = weights ? p->weight.maximum : NULL, largest = 0;
#pragma omp for schedule(static) nowait
        for (int64_t b = 0; b < block_count(elements); b++) {
            int64_t n = smaller(BLOCK, elements - b * BLOCK);
            bool finite = update(u, p, b * BLOCK, n);
            if (maximum) largest = larger_bits(largest, block_amax(u->cpu, p, b * BLOCK, n));
            if (finite) continue;
#pragma omp atomic write
            nonfinite = 1;
        }
        if (!maximum) continue;
#pragma omp critical(weight_maximum)
        *maximum = larger_bits(*maximum, largest);
    }
    if (nonfinite) state->nonfinite = 1;
}

// Runs AdamW on a block. The update uses the new moments before they are rounded to their storage format.
static bool adamw_block(const Update *u, const Parameter *p, int64_t begin, int64_t n) {
    const Cpu *cpu = u->cpu;
    real value[BLOCK], grad[BLOCK], m_buffer[BLOCK], v_buffer[BLOCK];
    const MomentStore how_m = {cpu->recipe.moments == MOMENTS_COAT, false};
    const MomentStore how_v = {cpu->recipe.moments == MOMENTS_COAT, true};
    AdamwStep step = u->adamw;
    step.lr *= (real)parameter_rate(p);
    const real decay = p->decay ? step.lr * (real)u->state->weight_decay : 0;
    Tensor m = flat(p->m), v = flat(p->v);
    const real *master = load_master(cpu, p, begin, n, value);
    if (master != value) memcpy(value, master, (size_t)n * sizeof(real));
    real *mi = load_moment(cpu, m, begin, n, m_buffer), *vi = load_moment(cpu, v, begin, n, v_buffer);
    cpu->kernels->adamw(value, mi, vi, row_load(cpu, flat(p->grad), 0, begin, n, grad), &step, decay, n);
    bool finite = store_moment(cpu, m, begin, n, mi, &how_m);
    finite = store_moment(cpu, v, begin, n, vi, &how_v) && finite;
    store_master(cpu, p, begin, n, value, u->state);
    return finite;
}

void cpu_adamw_update(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    const Cpu *cpu = cpu_of(exec);
    state->skips = state->nonfinite;
    if (state->skips) {
        state->skipped++;
        state->skipped_run++;
        return;
    }
    state->t++;
    state->skipped_run = 0;
    const Update u = {cpu, state, adamw_step(state)};
    update_all(&u, parameters, count, adamw_block, true, state);
    // With several processes, each process has computed only the amaxes of its shards.
    ((Cpu *)exec->backend)->amaxes_valid = exec->ranks <= 1;
}

// --- Muon -----------------------------------------------------------------------------------------------------------

// Updates the momentum's elements [begin, begin + n), and writes their Nesterov momentum to p->update. Returns false if
// the momentum is 8-bit and became inf or NaN.
static bool momentum_block(const Update *u, const Parameter *p, int64_t begin, int64_t n) {
    const Cpu *cpu = u->cpu;
    real grad_buffer[BLOCK], m_buffer[BLOCK], buffer[BLOCK];
    const MomentStore how = {cpu->recipe.moments == MOMENTS_COAT, false};
    const real mu = (real)u->state->momentum;
    Tensor m = flat(p->m), update = flat(p->update);
    const real *grad = row_load(cpu, flat(p->grad), 0, begin, n, grad_buffer);
    real *mi = load_moment(cpu, m, begin, n, m_buffer), *x = row_target(update, 0, begin, buffer);
    for (int64_t i = 0; i < n; i++) {
        const real part = (1 - mu) * (grad[i] * u->adamw.clip);
        mi[i] = mu * mi[i] + part;
        x[i] = mu * mi[i] + part;
    }
    row_store(cpu, update, 0, begin, n, x);
    return store_moment(cpu, m, begin, n, mi, &how);
}

void cpu_muon_momentum(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    const Update u = {cpu_of(exec), state, adamw_step(state)};
    if (!state->skips) update_all(&u, parameters, count, momentum_block, false, state);
}

// Applies a block of p->update to the weights.
static bool apply_block(const Update *u, const Parameter *p, int64_t begin, int64_t n) {
    const Cpu *cpu = u->cpu;
    real value[BLOCK], buffer[BLOCK];
    const real lr = u->adamw.lr * (real)parameter_rate(p), decay = p->decay ? lr * (real)u->state->weight_decay : 0;
    const real *master = load_master(cpu, p, begin, n, value);
    const real *x = row_load(cpu, flat(p->update), 0, begin, n, buffer);
    for (int64_t i = 0; i < n; i++) value[i] = master[i] - lr * x[i] - decay * master[i];
    store_master(cpu, p, begin, n, value, u->state);
    return true;
}

void cpu_muon_apply(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    const Update u = {cpu_of(exec), state, adamw_step(state)};
    if (!state->skips) update_all(&u, parameters, count, apply_block, true, state);
}
