// Tests the GPU's optimizer kernel on a parameter of more than 2^31 elements, in BF16 without master weights and with
// 8-bit moments. Three windows (at the beginning, around element 2^31 and at the end) have nonzero values and gradients
// and are compared with the CPU. All other gradients are 0.
#include "moment_device.h"

#define ELEMENTS (((size_t)1 << 31) + 4096 + 300)
#define ELEMENT_GROUPS ((ELEMENTS + GROUP - 1) / GROUP)
enum { WINDOWS = 3, WINDOW_MAX = 2048, WINDOW_GROUPS = WINDOW_MAX / GROUP, LARGE_STEPS = 2 };

typedef struct {
    size_t begin, elements; // begin: index of the window's first element, a multiple of the group size
} Window;

static const Window windows[WINDOWS] = {
    {0, 1024}, {((size_t)1 << 31) - 1024, 2048}, {((size_t)1 << 31) + 3072, ELEMENTS - ((size_t)1 << 31) - 3072}};

// Pointers to a parameter's arrays: the whole arrays on the device, or the arrays of one window on the host.
typedef struct {
    uint16_t *value, *grad;
    uint8_t *codes[2], *k[2];
    float *a[2];
} Parts;

typedef struct {
    uint16_t value[WINDOW_MAX], grad[WINDOW_MAX];
    uint8_t codes[2][WINDOW_MAX], k[2][WINDOW_GROUPS];
    float a[2][WINDOW_GROUPS];
} WindowMemory;

static Bench bench; // The Bench is static because it is too large for the stack.

static Parameter parameter_of(const Parts &parts, size_t elements, size_t index, uint32_t *maximum) {
    Parameter p = {};
    p.weight.value = flat_tensor(parts.value, elements, FMT_BF16);
    p.weight.maximum = maximum;
    p.grad = flat_tensor(parts.grad, elements, FMT_BF16);
    p.m = expanded_tensor(parts.codes[0], parts.a[0], parts.k[0], elements, FMT_E4M3);
    p.v = expanded_tensor(parts.codes[1], parts.a[1], parts.k[1], elements, FMT_E4M3);
    p.decay = true;
    p.index = index;
    return p;
}

static Parts window_parts(WindowMemory *m) {
    return {m->value, m->grad, {m->codes[0], m->codes[1]}, {m->k[0], m->k[1]}, {m->a[0], m->a[1]}};
}

static size_t window_groups(const Window &w) {
    return (w.elements + GROUP - 1) / GROUP;
}

// Returns pointers to the window's part of the device's arrays.
static Parts parts_within(const Parts &whole, const Window &w) {
    Parts p = whole;
    p.value += w.begin, p.grad += w.begin;
    for (int i = 0; i < 2; i++) p.codes[i] += w.begin, p.k[i] += w.begin / GROUP, p.a[i] += w.begin / GROUP;
    return p;
}

static void window_upload(const Parts &whole, const Window &w, const WindowMemory *m) {
    Exec *exec = &bench.exec;
    const Parts to = parts_within(whole, w);
    exec->ops->upload(exec, to.value, m->value, w.elements * sizeof m->value[0]);
    exec->ops->upload(exec, to.grad, m->grad, w.elements * sizeof m->grad[0]);
    for (int i = 0; i < 2; i++) {
        exec->ops->upload(exec, to.codes[i], m->codes[i], w.elements);
        exec->ops->upload(exec, to.k[i], m->k[i], window_groups(w));
        exec->ops->upload(exec, to.a[i], m->a[i], window_groups(w) * sizeof(float));
    }
}

static void window_download(const Parts &whole, const Window &w, WindowMemory *m) {
    Exec *exec = &bench.exec;
    const Parts from = parts_within(whole, w);
    exec->ops->download(exec, m->value, from.value, w.elements * sizeof m->value[0]);
    for (int i = 0; i < 2; i++) {
        exec->ops->download(exec, m->codes[i], from.codes[i], w.elements);
        exec->ops->download(exec, m->k[i], from.k[i], window_groups(w));
        exec->ops->download(exec, m->a[i], from.a[i], window_groups(w) * sizeof(float));
    }
}

// Allocates the device's arrays and sets them to 0, except for the exponents k, which a step must write.
static Parts parts_make(void) {
    Parts p = {};
    p.value = (uint16_t *)bench_allocate(&bench, ELEMENTS * sizeof(uint16_t));
    p.grad = (uint16_t *)bench_allocate(&bench, ELEMENTS * sizeof(uint16_t));
    device_fill(&bench, p.value, 0, ELEMENTS * sizeof(uint16_t));
    device_fill(&bench, p.grad, 0, ELEMENTS * sizeof(uint16_t));
    for (int i = 0; i < 2; i++) {
        p.codes[i] = (uint8_t *)bench_allocate(&bench, ELEMENTS);
        p.k[i] = (uint8_t *)bench_allocate(&bench, ELEMENT_GROUPS);
        p.a[i] = (float *)bench_allocate(&bench, ELEMENT_GROUPS * sizeof(float));
        device_fill(&bench, p.codes[i], 0, ELEMENTS);
        device_fill(&bench, p.k[i], MOMENT_K_MAX, ELEMENT_GROUPS);
        device_fill(&bench, p.a[i], 0, ELEMENT_GROUPS * sizeof(float));
    }
    return p;
}

static void compare_window(const WindowMemory *want, const WindowMemory *have, const Window &w, int step) {
    int a_differ = 0, k_differ = 0, codes = 0, codes_far = 0, values = 0, values_far = 0;
    for (size_t g = 0; g < window_groups(w); g++)
        for (int i = 0; i < 2; i++) {
            a_differ += !(fabsf(want->a[i][g] - have->a[i][g]) <= (step ? 1e-4f : 0.0f) * want->a[i][g]);
            k_differ += want->k[i][g] != have->k[i][g];
        }
    for (size_t i = 0; i < w.elements; i++) {
        for (int which = 0; which < 2; which++) {
            const int apart = abs((int)want->codes[which][i] - (int)have->codes[which][i]);
            codes += apart != 0;
            codes_far += apart > 1;
        }
        const int apart = abs((int)want->value[i] - (int)have->value[i]); // distance of GPU and CPU value in BF16 steps
        values += apart != 0;
        values_far += apart > 1 && !(fabsf(bf16_decode(want->value[i]) - bf16_decode(have->value[i])) < 1e-7f);
    }
    char name[96];
    snprintf(name, sizeof name, "step %d, elements %zu to %zu", step + 1, w.begin, w.begin + w.elements - 1);
    tap_check(a_differ == 0 && k_differ == 0 && codes_far == 0 && values_far == 0 && codes <= (int)w.elements / 200 &&
                  values <= (int)w.elements / 200,
              name, "%d amax, %d k, %d FP8 values, %d values differ; %d and %d of them by more than a step", a_differ,
              k_differ, codes, values, codes_far, values_far);
}

// Fails unless every group without gradients is stored with amax a = 0 and exponent k = 1.
static void compare_rest(const Parts &whole) {
    Exec *exec = &bench.exec;
    std::vector<float> a(ELEMENT_GROUPS);
    std::vector<uint8_t> k(ELEMENT_GROUPS);
    size_t wrong = 0, first = 0;
    for (int i = 0; i < 2; i++) {
        exec->ops->download(exec, a.data(), whole.a[i], ELEMENT_GROUPS * sizeof(float));
        exec->ops->download(exec, k.data(), whole.k[i], ELEMENT_GROUPS);
        for (size_t g = 0; g < ELEMENT_GROUPS; g++) {
            bool inside = false;
            for (const Window &w : windows)
                inside = inside || (g >= w.begin / GROUP && g < w.begin / GROUP + window_groups(w));
            if (inside || (a[g] == 0.0f && k[g] == MOMENT_K_ONE)) continue;
            if (wrong++ == 0) first = g;
        }
    }
    tap_check(wrong == 0, "groups without gradients are stored as 0", "%zu of %zu are wrong, the first is %zu", wrong,
              2 * ELEMENT_GROUPS, first);
}

static uint32_t largest_bits(const WindowMemory *m, size_t elements) {
    uint32_t largest = 0;
    for (size_t i = 0; i < elements; i++) largest = largest > (m->value[i] & 0x7fffu) ? largest : m->value[i] & 0x7fffu;
    return largest << 16;
}

static void window_make(WindowMemory *m, const Window &w) {
    memset(m, 0, sizeof *m);
    memset(m->k, MOMENT_K_ONE, sizeof m->k);
    for (size_t i = 0; i < w.elements; i++) m->value[i] = bf16_encode(update_start((int)i));
}

// Takes optimizer steps on GPU and CPU. Each GPU step is compared with a CPU step from the same states.
static void more_than_2_to_31_elements(Exec *cpu) {
    static WindowMemory host[WINDOWS], have;
    Exec *exec = &bench.exec;
    const Parts whole = parts_make();
    StepState *state = (StepState *)bench_allocate(&bench, sizeof *state);
    uint32_t *maximum = (uint32_t *)bench_allocate(&bench, sizeof *maximum);
    StepState before = step_state(1e-3f, 0.9f, 0.95f, 1e-8f);
    before.weight_decay = 0.1f, before.seed = 5;
    for (int i = 0; i < WINDOWS; i++) window_make(&host[i], windows[i]);
    for (int step = 0; step < LARGE_STEPS; step++) {
        StepState after = before;
        uint32_t largest = 0, found;
        for (int i = 0; i < WINDOWS; i++) {
            for (size_t j = 0; j < windows[i].elements; j++)
                host[i].grad[j] = bf16_encode(update_gradient((uint64_t)(WINDOWS * step + i), (int)j));
            window_upload(whole, windows[i], &host[i]);
            const Parameter p = parameter_of(window_parts(&host[i]), windows[i].elements, windows[i].begin, NULL);
            after = before;
            cpu->ops->adamw_update(cpu, &p, 1, &after);
        }
        const Parameter p = parameter_of(whole, ELEMENTS, 0, maximum);
        exec->ops->upload(exec, state, &before, sizeof before);
        exec->ops->adamw_update(exec, &p, 1, state);
        for (int i = 0; i < WINDOWS; i++) {
            window_download(whole, windows[i], &have);
            compare_window(&host[i], &have, windows[i], step);
            const uint32_t bits = largest_bits(&have, windows[i].elements);
            largest = bits > largest ? bits : largest;
        }
        exec->ops->download(exec, &found, maximum, sizeof found);
        tap_check(found == largest, "the stored amax is the largest value", "%g, not %g", (double)bits_float(found),
                  (double)bits_float(largest));
        before = after;
    }
    compare_rest(whole);
}

int main(void) {
    // GPU memory in bytes that the test needs: all arrays, and 1 GiB for other allocations.
    const size_t bytes = ELEMENTS * 6 + ELEMENT_GROUPS * 10 + ((size_t)1 << 30);
    Exec cpu = {};
    Error err = {};
    optimizer_device_open(&bench);
    if ((size_t)bench.exec.ops->memory_free(&bench.exec) < bytes) {
        tap_skip("more than 2^31 elements", "15 GB of the GPU's memory are not free");
        return 0;
    }
    optimizer_recipe(&bench, MOMENTS_COAT);
    cpu.ops = cpu_ops();
    cpu.ranks = 1;
    if (!cpu.ops->open(&cpu, &bench.config, &err)) fatal(err.code, "%s", err.text);
    more_than_2_to_31_elements(&cpu);
    cpu.ops->close(&cpu);
    bench_close(&bench);
    return tap_status();
}
