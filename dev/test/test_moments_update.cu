// Tests the GPU's optimizer kernel on special groups of 8-bit moments, against their definition in double precision.
// Also tests the nonfinite flag, and the first step. All tests run in full chunks and in the kernel for tails.
#include "moment_device.h"

#include <string>

static Bench bench; // The Bench is static because it is too large for the stack.

typedef struct {
    std::vector<float> x;
    std::vector<std::string> name; // name of each test group, for messages
} Cases;

static float *case_add(Cases *cases, const char *name) {
    cases->name.push_back(name);
    cases->x.resize(cases->x.size() + GROUP);
    return cases->x.data() + cases->x.size() - GROUP;
}

static Cases cases_make(void) {
    static const double spreads[] = {0, 0.001, 0.1, 0.5, 1, 2, 4, 8, 12};
    Cases c;
    memset(case_add(&c, "zero"), 0, GROUP * sizeof(float));
    c.x[5] = -0.0f;
    for (float value : single_values) {
        group_constant(case_add(&c, "constant"), value);
        for (int place = 0; place < SINGLE_PLACES; place++) group_single(case_add(&c, "one not zero"), value, place);
    }
    for (uint64_t g = 0; g < 200; g++) group_sprinkled(case_add(&c, "zeros sprinkled in"), g);
    for (int bits = 16; bits <= 60; bits += 4) group_range(case_add(&c, "a wide range"), bits);
    group_ends(case_add(&c, "1e38 and 1e-38"));
    group_all_exponents(case_add(&c, "all exponents"));
    group_subnormal(case_add(&c, "subnormal"));
    for (size_t s = 0; s < sizeof spreads / sizeof spreads[0]; s++)
        for (uint64_t g = 0; g < 100; g++) group_scaled(case_add(&c, "lognormal"), spreads[s], s, g);
    return c;
}

// Counts the groups that are not stored as defined. want: the unrounded moments. Describes the first wrong group in
// `why`.
static int groups_wrong(const Bank *bank, const std::vector<float> &want, const BankStates &s, int which, char why[WHY],
                        size_t *first) {
    int wrong = 0;
    for (size_t g = 0; g < bank->groups; g++) {
        const size_t begin = g * GROUP, n = bank->elements - begin < GROUP ? bank->elements - begin : GROUP;
        char text[WHY];
        if (group_follows(want.data() + begin, (int)n, s.codes.data() + begin, s.a[g], s.k[g], FMT_E4M3,
                          bank->kind == MOMENTS_COAT, which, text))
            continue;
        if (wrong++ == 0) snprintf(why, WHY, "%s", text), *first = g;
    }
    return wrong;
}

// Counts the first moments for which kernel and host decode different values. Differences up to the error of the
// special-function unit, or up to the smallest subnormal number, are allowed.
static int decoded_wrong(Bank *bank, const BankStates &s) {
    int wrong = 0;
    const std::vector<float> have = bank_decode_first(bank);
    for (size_t i = 0; i < bank->elements; i++) {
        const double want = (double)states_decode(s, i);
        const bool largest = (s.codes[i] & 0x7f) == 0x7e && s.a[i / GROUP] > 0.0f;
        // The limit is tighter for the group's largest value, because its amax is stored exactly.
        const double relative = largest ? 1e-6 : 1e-4;
        wrong += !(fabs((double)have[i] - want) <= relative * fabs(want) + 0x1p-147);
    }
    return wrong;
}

static void check_cases(Bank *bank, const Cases &cases, bool second) {
    char name[128], why[WHY] = "";
    std::vector<float> gradients = cases.x, want[2];
    size_t first = 0;
    optimizer_recipe(bank->bench, bank->kind);
    if (second)
        for (float &g : gradients) g = sqrtf(fabsf(g));
    want[0] = want[1] = gradients;
    for (float &m : want[0]) m += 0.0f; // A moment of 0 with a gradient of -0 becomes +0.
    for (float &v : want[1]) v *= v;
    const bool finite = bank_store(bank, gradients.data(), !second);
    for (int which = 0; which <= (second ? 1 : 0); which++) {
        const BankStates s = bank_states(bank, which);
        const int wrong = groups_wrong(bank, want[which], s, which, why, &first);
        snprintf(name, sizeof name, "%s moment of %s, %s, %s", which ? "second" : "first", second ? "roots" : "values",
                 bank->kind == MOMENTS_COAT ? "expanded" : "k = 1", bank->odd ? "group by group" : "in chunks");
        tap_check(finite && wrong == 0, name, "%d of %zu groups are wrong%s%s%s%s", wrong, bank->groups,
                  wrong ? "; the first, " : "", wrong ? cases.name[first].c_str() : "", wrong ? ": " : "", why);
    }
    if (second) return;
    const BankStates s = bank_states(bank, 0);
    const int wrong = decoded_wrong(bank, s);
    tap_check(wrong == 0, (std::string(name) + ", decoded").c_str(), "%d of %zu elements are wrong", wrong,
              bank->elements);
}

static void cases_that_must_hold(void) {
    const Cases cases = cases_make();
    Bank bank;
    bank_open(&bank, &bench, cases.x.size());
    for (int way = 0; way < 4; way++) {
        bank.odd = way & 1;
        bank.kind = way & 2 ? MOMENTS_FP8 : MOMENTS_COAT;
        check_cases(&bank, cases, false);
        check_cases(&bank, cases, true);
    }
    bank_close(&bank);
}

// Tests parameters whose last group is short, alone and after full groups. The kernel must not write after the end.
static void tails(void) {
    static const size_t sizes[] = {1, 2, 3, 127, 129, 5 * GROUP + 77, 8 * GROUP + 1, 4 * GROUP};
    optimizer_recipe(&bench, MOMENTS_COAT);
    for (size_t size : sizes) {
        Bank bank;
        char name[64], why[WHY] = "";
        size_t first = 0;
        int wrong = 0, guards = 0;
        bank_open(&bank, &bench, size);
        std::vector<float> x(bank.groups * GROUP), want[2];
        for (uint64_t g = 0; g < bank.groups; g++) lognormal(x.data() + g * GROUP, GROUP, 2, true, g);
        want[0] = want[1] = x;
        for (float &v : want[1]) v *= v;
        bank_store(&bank, x.data(), false);
        for (int which = 0; which < 2; which++) {
            const BankStates s = bank_states(&bank, which);
            wrong += groups_wrong(&bank, want[which], s, which, why, &first);
            const uint8_t *a = (const uint8_t *)(s.a.data() + bank.groups);
            for (size_t i = 0; i < BANK_GUARD; i++)
                guards += (s.codes[size + i] != BANK_GUARD_BYTE) + (s.k[bank.groups + i] != BANK_GUARD_BYTE) +
                          (a[i] != BANK_GUARD_BYTE);
        }
        snprintf(name, sizeof name, "%zu elements", size);
        tap_check(wrong == 0 && guards == 0, name, "%d groups are wrong%s%s, %d bytes after the end", wrong,
                  wrong ? ", the first: " : "", why, guards);
        bank_close(&bank);
    }
}

// True if group g, which has the NaN or inf gradient `bad`, stores it as amax of both moments, so that every nonzero
// element decodes to NaN or inf.
static bool group_is_lost(const BankStates states[2], const std::vector<float> &x, const std::vector<float> &decoded,
                          size_t g, float bad) {
    bool good = true;
    for (int which = 0; which < 2; which++)
        good = good && (isnan(bad) ? isnan(states[which].a[g]) : isinf(states[which].a[g]));
    for (size_t i = g * GROUP; i < (g + 1) * GROUP; i++)
        good = good && (x[i] == 0.0f ? decoded[i] == 0.0f : !isfinite(decoded[i]));
    return good;
}

static void not_finite_is_reported_and_stays(void) {
    const float bad[] = {INFINITY, -INFINITY, NAN, bits_float(0xffc00000u), bits_float(0x7f800001u), 1e30f};
    enum { GROUPS = 6, AT = 40 }; // Four groups are in a full chunk of the kernel, two in the tail.
    Bank bank;
    bank_open(&bank, &bench, GROUPS * GROUP);
    for (int way = 0; way < 4; way++) {
        const size_t lost = way & 1 ? 5 : 1;
        bank.kind = way & 2 ? MOMENTS_FP8 : MOMENTS_COAT;
        optimizer_recipe(&bench, bank.kind);
        for (float value : bad) {
            std::vector<float> x(bank.elements);
            for (uint64_t g = 0; g < GROUPS; g++) lognormal(x.data() + g * GROUP, GROUP, 1, true, g);
            x[lost * GROUP + AT] = value, x[lost * GROUP + AT + 1] = 0.0f;
            bank_clear(&bank);
            const StepState state = bank_step(&bank, x.data(), step_state(1e-3f, 0.9f, 0.95f, 1e-8f));
            const BankStates states[2] = {bank_states(&bank, 0), bank_states(&bank, 1)};
            const std::vector<float> decoded = bank_decode_first(&bank);
            bool good = state.nonfinite == 1;
            if (value == 1e30f) // The gradient 1e30 is finite, but its square overflows.
                good = good && isinf(states[1].a[lost]) && isfinite(states[0].a[lost]);
            else
                good = good && group_is_lost(states, x, decoded, lost, value);
            for (size_t g = 0; g < GROUPS; g++)
                good = good && (g == lost || (isfinite(states[0].a[g]) && isfinite(states[1].a[g])));
            char name[96];
            snprintf(name, sizeof name, "%g, bits %08x, %s, %s", (double)value, float_bits(value),
                     way & 1 ? "group by group" : "in chunks", way & 2 ? "k = 1" : "expanded");
            tap_check(good, name, "flag %d, amax %g and %g", state.nonfinite, (double)states[0].a[lost],
                      (double)states[1].a[lost]);
        }
    }
    bank_close(&bank);
}

static void first_step_from_zero(void) {
    enum { COUNT = 3 * 4096 + 1000 };
    static const MomentsKind kinds[] = {MOMENTS_FP32, MOMENTS_BF16, MOMENTS_FP8, MOMENTS_COAT};
    static const char *const names[] = {"first step, fp32", "first step, bf16", "first step, fp8", "first step, coat"};
    Bank bank;
    bank_open(&bank, &bench, COUNT);
    std::vector<float> start(COUNT), gradients(COUNT), after(COUNT);
    for (int i = 0; i < COUNT; i++) start[(size_t)i] = update_start(i), gradients[(size_t)i] = update_gradient(0, i);
    for (int kind = 0; kind < 4; kind++) {
        Exec *exec = &bench.exec;
        StepState state = step_state(1e-3f, 0.9f, 0.95f, 1e-8f);
        state.weight_decay = 0.1f;
        bank.kind = kinds[kind];
        optimizer_recipe(&bench, bank.kind);
        bank_clear(&bank);
        exec->ops->upload(exec, bank.value, start.data(), COUNT * sizeof(float));
        state = bank_step(&bank, gradients.data(), state);
        exec->ops->download(exec, after.data(), bank.value, COUNT * sizeof(float));
        int wrong = 0, zeros = 0;
        for (size_t i = 0; i < COUNT; i++) wrong += !first_step_follows(start[i], gradients[i], after[i]);
        if (bank_is_fp8(&bank)) {
            const BankStates m = bank_states(&bank, 0), v = bank_states(&bank, 1);
            for (size_t i = 0; i < COUNT; i++) {
                zeros += (v.codes[i] == 0) != (gradients[i] == 0.0f);
                zeros += gradients[i] == 0.0f && m.codes[i] != 0;
            }
            zeros += m.a[0] != 0.0f || m.k[0] != MOMENT_K_ONE || v.a[0] != 0.0f || v.k[0] != MOMENT_K_ONE;
        }
        tap_check(wrong == 0 && zeros == 0 && state.t == 1 && state.nonfinite == 0, names[kind],
                  "%d of %d parameters are wrong, %d zeros", wrong, COUNT, zeros);
    }
    bank_close(&bank);
}

static void masters_open(Bank *bank, size_t elements, MomentsKind kind, bool odd, Format format) {
    Exec *exec = &bench.exec;
    std::vector<uint16_t> upper(elements), low(elements);
    std::vector<float> full(elements);
    bank_open(bank, &bench, elements);
    bank->kind = kind, bank->odd = odd, bank->master_format = format;
    bank->half = (uint16_t *)bench_allocate(&bench, elements * sizeof(uint16_t));
    bank->master = bench_allocate(&bench, elements * format_bytes(format));
    for (size_t i = 0; i < elements; i++) {
        full[i] = update_start((int)i);
        upper[i] = master_bf16(full[i]);
        low[i] = (uint16_t)float_bits(full[i]);
    }
    bank_clear(bank);
    exec->ops->upload(exec, bank->half, upper.data(), elements * sizeof(uint16_t));
    exec->ops->upload(exec, bank->master, format == FMT_U16 ? (void *)low.data() : (void *)full.data(),
                      elements * format_bytes(format));
}

// Returns the FP32 bits of the master weights.
static std::vector<uint32_t> masters_read(Bank *bank) {
    Exec *exec = &bench.exec;
    std::vector<uint16_t> upper(bank->elements), low(bank->elements);
    std::vector<uint32_t> bits(bank->elements);
    exec->ops->download(exec, upper.data(), bank->half, bank->elements * sizeof(uint16_t));
    if (bank->master_format == FMT_FP32) {
        exec->ops->download(exec, bits.data(), bank->master, bank->elements * sizeof(float));
        // Inverts the bits if the BF16 value is not the rounded master weight, so that the comparison fails.
        for (size_t i = 0; i < bank->elements; i++)
            if (upper[i] != master_bf16(bits_float(bits[i]))) bits[i] = ~bits[i];
    } else {
        exec->ops->download(exec, low.data(), bank->master, bank->elements * sizeof(uint16_t));
        for (size_t i = 0; i < bank->elements; i++) bits[i] = float_bits(master_join(upper[i], low[i]));
    }
    return bits;
}

// A thousand updates with split16 and with FP32 master weights give bit-identical parameters and moments.
static void masters_in_two_halves(void) {
    enum { COUNT = 3 * 4096 + 1000, STEPS = 1000, BANKS = 2 };
    static const Format formats[BANKS] = {FMT_FP32, FMT_U16};
    for (int way = 0; way < 4; way++) {
        const MomentsKind kind = way & 2 ? MOMENTS_FP32 : MOMENTS_COAT;
        Bank bank[BANKS];
        StepState state[BANKS];
        std::vector<float> gradients(COUNT);
        std::vector<uint32_t> masters[BANKS];
        optimizer_recipe(&bench, kind);
        for (int b = 0; b < BANKS; b++) {
            masters_open(&bank[b], COUNT, kind, way & 1, formats[b]);
            state[b] = step_state(1e-3f, 0.9f, 0.95f, 1e-8f);
            state[b].weight_decay = 0.1f;
        }
        const std::vector<uint32_t> start = masters_read(&bank[0]);
        for (uint64_t t = 1; t <= STEPS; t++) {
            for (int i = 0; i < COUNT; i++) gradients[(size_t)i] = update_gradient(t, i);
            for (int b = 0; b < BANKS; b++) state[b] = bank_step(&bank[b], gradients.data(), state[b]);
        }
        int differ = 0, moved = 0;
        for (int b = 0; b < BANKS; b++) masters[b] = masters_read(&bank[b]);
        for (size_t i = 0; i < COUNT; i++) differ += masters[0][i] != masters[1][i], moved += masters[0][i] != start[i];
        bool same = state[0].t == STEPS && state[1].t == STEPS && state[0].nonfinite + state[1].nonfinite == 0;
        for (int which = 0; which < 2 && bank_is_fp8(&bank[0]); which++) {
            const BankStates x = bank_states(&bank[0], which), y = bank_states(&bank[1], which);
            same = same && x.codes == y.codes && x.k == y.k &&
                   memcmp(x.a.data(), y.a.data(), x.a.size() * sizeof(float)) == 0;
        }
        char name[96];
        snprintf(name, sizeof name, "%d updates with FP32 and with split16 masters, moments %s, %s", STEPS,
                 kind == MOMENTS_COAT ? "coat" : "fp32", way & 1 ? "group by group" : "in chunks");
        tap_check(differ == 0 && same && moved == COUNT, name, "%d of %d parameters differ, %d have moved, moments %s",
                  differ, COUNT, moved, same ? "agree" : "differ");
        for (Bank &b : bank) {
            bench.exec.ops->release(&bench.exec, b.half);
            bench.exec.ops->release(&bench.exec, b.master);
            bank_close(&b);
        }
    }
}

int main(void) {
    optimizer_device_open(&bench);
    cases_that_must_hold();
    tails();
    not_finite_is_reported_and_stays();
    first_step_from_zero();
    masters_in_two_halves();
    bench_close(&bench);
    return tap_status();
}
