// Measures errors of 8-bit moments in the GPU's optimizer kernel after one rounding, after a hundred, and over 10,000
// updates compared with FP32 moments on the same GPU. dev/test/test_moments_error.c tests the host's functions.
#include "moment_device.h"
#include "moment_drift.h"

static Bench bench; // The Bench is static because it is too large for the stack.

// Returns groups of lognormal values with the given spread; if `second` is true, their squares have that spread.
static std::vector<float> lognormal_groups(uint64_t groups, double spread, uint64_t stream, bool second) {
    std::vector<float> x(groups * GROUP);
    for (uint64_t g = 0; g < groups; g++)
        lognormal(x.data() + g * GROUP, GROUP, second ? spread / 2 : spread, true, stream + g);
    return x;
}

// Returns the mean relative error of the values `have` in percent, averaged over groups.
static double mean_error(const std::vector<float> &want, const std::vector<float> &have) {
    double sum = 0;
    for (size_t i = 0; i < want.size(); i += GROUP) sum += relative_error(want.data() + i, have.data() + i, GROUP);
    return 100 * sum / ((double)want.size() / GROUP);
}

// Returns the mean relative error in percent of the moments stored for gradients x. which: 0 first, 1 second moment.
static double stored_error(Bank *bank, const std::vector<float> &x, int which) {
    const BankStates s = bank_states(bank, which);
    std::vector<float> want = x, have(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        if (which) want[i] = x[i] * x[i];
        have[i] = states_decode(s, i);
    }
    return mean_error(want, have);
}

static void error_of_lognormal_groups(Bank *bank) {
    bank_open(bank, &bench, (size_t)SPREAD_GROUPS * GROUP);
    for (int way = 0; way < 2 * SPREADS; way++) {
        const SpreadError *row = &spread_errors[way / 2];
        const std::vector<float> x = lognormal_groups(SPREAD_GROUPS, row->spread, SPREAD_STREAM, false);
        const std::vector<float> roots = lognormal_groups(SPREAD_GROUPS, row->spread, SPREAD_STREAM, true);
        bank->odd = way & 1;
        bank->kind = MOMENTS_FP8;
        optimizer_recipe(&bench, bank->kind);
        bank_store(bank, x.data(), true);
        const double plain = mean_error(x, bank_decode_first(bank));
        bank->kind = MOMENTS_COAT;
        optimizer_recipe(&bench, bank->kind);
        bank_store(bank, x.data(), true);
        const double first = mean_error(x, bank_decode_first(bank));
        bank_store(bank, roots.data(), false);
        const double second = stored_error(bank, roots, 1);
        char name[96];
        snprintf(name, sizeof name, "lognormal groups of spread %.1f, %s", row->spread,
                 bank->odd ? "group by group" : "in chunks");
        tap_check(fabs(first / row->expanded - 1) < SPREAD_MARGIN && fabs(second / row->expanded - 1) < SPREAD_MARGIN &&
                      fabs(plain / row->plain - 1) < SPREAD_MARGIN,
                  name, "first %.3f %%, second %.3f %%, without expansion %.2f %%", first, second, plain);
    }
    bank_close(bank);
}

static void zeros_sprinkled_in(Bank *bank) {
    enum { GROUPS = 200 };
    bank_open(bank, &bench, GROUPS * GROUP);
    optimizer_recipe(&bench, MOMENTS_COAT);
    std::vector<float> x(bank->elements);
    for (uint64_t g = 0; g < GROUPS; g++) group_sprinkled(x.data() + g * GROUP, g);
    for (int way = 0; way < 2; way++) {
        bank->odd = way;
        bank_store(bank, x.data(), true);
        const std::vector<float> y = bank_decode_first(bank);
        int zeros = 0;
        for (size_t i = 0; i < x.size(); i++) zeros += (x[i] == 0.0f) != (y[i] == 0.0f);
        const double error = mean_error(x, y);
        tap_check(zeros == 0 && error > 0.5 && error < 2,
                  way ? "zeros sprinkled in, group by group" : "zeros sprinkled in, in chunks",
                  "error of the others %.2f %%, %d zeros are wrong", error, zeros);
    }
    bank_close(bank);
}

// Storing decoded groups a second time keeps their FP8 values, except that the first repetition may increase k.
static void requantising_changes_nothing(Bank *bank) {
    enum { GROUPS = 400, TIMES = 100 };
    static const double spreads[] = {0.1, 0.5, 1, 2, 4};
    bank_open(bank, &bench, GROUPS * GROUP);
    optimizer_recipe(&bench, MOMENTS_COAT);
    for (int way = 0; way < 4; way++) {
        const int which = way & 1;
        bank->odd = way & 2;
        for (double spread : spreads) {
            const std::vector<float> x = lognormal_groups(GROUPS, spread, 3000, which);
            bank_store(bank, x.data(), which == 0);
            const BankStates once = bank_states(bank, which);
            const double one = stored_error(bank, x, which);
            for (int i = 1; i < TIMES; i++) bank_store_again(bank);
            const BankStates many = bank_states(bank, which);
            const double hundred = stored_error(bank, x, which);
            int moved = 0, shrunk = 0;
            for (size_t g = 0; g < GROUPS; g++) {
                moved += many.k[g] != once.k[g];
                shrunk += many.k[g] < once.k[g] || many.a[g] != once.a[g];
            }
            char name[96];
            snprintf(name, sizeof name, "%d roundings of spread %.1f, %s moment, %s", TIMES, spread,
                     which ? "second" : "first", bank->odd ? "group by group" : "in chunks");
            tap_check(hundred < 1.1 * one && shrunk == 0, name,
                      "error %.3f %%, at first %.3f %%; of %d groups %d have another k, %d a smaller one", hundred, one,
                      GROUPS, moved, shrunk);
        }
    }
    bank_close(bank);
}

// Each gradient pattern has one parameter with FP32 moments and one with E4M3 moments. COUNT is a number of full chunks
// plus two groups, so that the kernel for tails runs, too. COUNT elements measure the mean update under noise to 0.1 %.
enum { DRIFT_GROUPS = 4 * 64 + 2, COUNT = DRIFT_GROUPS * GROUP, WAYS = 2, PARAMETERS = PATTERNS * WAYS };
#define SPREAD 0.5

// Gradients, values and moments of all parameters. The struct exists on the device and as a copy on the host.
typedef struct {
    float grad[PATTERNS][COUNT], value[PARAMETERS][COUNT];
    // m and v have room for FP32 moments; E4M3 moments use only the first quarter of each array.
    float m[PARAMETERS][COUNT], v[PARAMETERS][COUNT];
    float a[2][PARAMETERS][DRIFT_GROUPS];
    uint8_t k[2][PARAMETERS][DRIFT_GROUPS];
} DriftMemory;
static_assert(COUNT * sizeof(float) % 16 == 0, "all arrays except a and k must start at multiples of 16 bytes");

static void drift_parameters(DriftMemory *device, Parameter parameters[PARAMETERS]) {
    for (int i = 0; i < PARAMETERS; i++) {
        Parameter *p = &parameters[i];
        *p = Parameter{};
        p->weight.value = flat_tensor(device->value[i], COUNT, FMT_FP32);
        p->grad = flat_tensor(device->grad[i / WAYS], COUNT, FMT_FP32);
        p->index = (uint64_t)i * COUNT;
        if (i % WAYS) {
            p->m = expanded_tensor(device->m[i], device->a[0][i], device->k[0][i], COUNT, FMT_E4M3);
            p->v = expanded_tensor(device->v[i], device->a[1][i], device->k[1][i], COUNT, FMT_E4M3);
        } else {
            p->m = flat_tensor(device->m[i], COUNT, FMT_FP32);
            p->v = flat_tensor(device->v[i], COUNT, FMT_FP32);
        }
    }
}

// Adds the errors of one step to `sums`. The step's updates are minus the values, because values were 0 before, with lr
// = 1 and no decay. Unrounded v is recomputed from the previous v, because the kernel does not store it.
static void drift_measure(const DriftMemory *before, const DriftMemory *after, float beta2,
                          DriftSums sums[PARAMETERS]) {
    for (int i = 1; i < PARAMETERS; i += WAYS) {
        const int exact = i - 1;
        for (int j = 0; j < COUNT; j++) {
            const int g = j / GROUP;
            const MomentGroup group = moment_group(before->a[1][i][g], before->k[1][i][g], FMT_E4M3);
            const float grad = after->grad[i / WAYS][j];
            const float v = beta2 * moment_decode(((const uint8_t *)before->v[i])[j], group, FMT_E4M3) +
                            (1.0f - beta2) * grad * grad;
            drift_add(&sums[i], -(double)after->value[i][j], -(double)after->value[exact][j], (double)v,
                      (double)after->v[exact][j]);
        }
    }
}

static void drift_gradients(DriftMemory *host, int64_t t) {
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int i = 0; i < COUNT; i++)
            host->grad[pattern][i] = drift_gradient((Pattern)pattern, drift_size(SPREAD, i), t, i);
}

static void drift_say(const DriftSums sums[PARAMETERS], const StepState *end) {
    for (int i = 1; i < PARAMETERS; i += WAYS) {
        const Pattern pattern = (Pattern)(i / WAYS);
        const Drift drift = drift_of(&sums[i]);
        char name[128];
        snprintf(name, sizeof name, "%d steps, gradients %s", STEPS, pattern_names[pattern]);
        tap_check(drift_is_small(drift, pattern) && end->t == STEPS && end->nonfinite == 0, name,
                  "v %+.2f %%, update %.2f %%, rate %+.2f %%", 100 * drift.v_mean, 100 * drift.update,
                  100 * drift.rate);
    }
}

static void drift_from_fp32(void) {
    const float beta2 = 0.95f;
    static DriftMemory host, before; // before, host: optimizer states before and after a measured step
    static float gradients[100][PATTERNS][COUNT];
    Exec *exec = &bench.exec;
    DriftMemory *device = (DriftMemory *)bench_allocate(&bench, sizeof *device);
    StepState *state = (StepState *)bench_allocate(&bench, sizeof *state);
    StepState start = step_state(1.0f, 0.9f, beta2, 1e-8f);
    Parameter parameters[PARAMETERS];
    DriftSums sums[PARAMETERS] = {};
    start.seed = 1;
    optimizer_recipe(&bench, MOMENTS_COAT);
    memset(&host, 0, sizeof host);
    memset(host.k, MOMENT_K_ONE, sizeof host.k);
    for (int t = 0; t < 100; t++) { // All gradient patterns repeat after 100 steps.
        drift_gradients(&host, t);
        memcpy(gradients[t], host.grad, sizeof host.grad);
    }
    drift_parameters(device, parameters);
    exec->ops->upload(exec, device, &host, sizeof host);
    exec->ops->upload(exec, state, &start, sizeof start);
    for (int64_t t = 1; t <= STEPS; t++) {
        exec->ops->upload(exec, device->grad, gradients[t % 100], sizeof host.grad);
        if (t == STEPS - MEASURED + 1) exec->ops->download(exec, &host, device, sizeof host);
        if (t > STEPS - MEASURED) {
            before = host;
            exec->ops->zero(exec, device->value, sizeof host.value);
        }
        exec->ops->adamw_update(exec, parameters, PARAMETERS, state);
        if (t <= STEPS - MEASURED) continue;
        exec->ops->download(exec, &host, device, sizeof host);
        drift_measure(&before, &host, beta2, sums);
    }
    exec->ops->download(exec, &start, state, sizeof start);
    drift_say(sums, &start);
    exec->ops->release(exec, device);
    exec->ops->release(exec, state);
}

int main(void) {
    static Bank bank;
    optimizer_device_open(&bench);
    error_of_lognormal_groups(&bank);
    zeros_sprinkled_in(&bank);
    requantising_changes_nothing(&bank);
    drift_from_fp32();
    bench_close(&bench);
    return tap_status();
}
