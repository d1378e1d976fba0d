// Tests of resuming if the checkpoint stores optimizer states in other formats than the run (coat/save/states_read.h).
// Converted states must equal those that the optimizer stores, states in equal formats must keep their bits, and
// unreadable states must be refused.
#include "dev/test/checkpoint_run.h"

#include "coat/config/shapes.h"
#include "coat/numerics/moments.h"
#include "coat/numerics/moments_host.h"
#include "coat/ops.h"
#include "coat/save/snapshot.h"

static Error err; // error of the last failed call

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" // most Kinds have no values for Muon

// Formats of a run's optimizer states. second: FP8 format of second moments, E4M3 in current runs; old checkpoints may
// have E5M2. exempt: parameters with FP32 moments.
typedef struct {
    MomentsKind moments;
    Format second;
    MasterKind master;
    const char *exempt;
    int vocab;
    OptimizerKind optimizer;
    MomentumCodes codes;
} Kind;

static void run_states(Run *run, Kind kind) {
    Recipe *r = &run->config.recipe;
    r->moments = kind.moments;
    r->master = kind.master;
    r->momentum_codes = kind.codes;
    run->config.optimizer = kind.optimizer;
    snprintf(r->moments_fp32, sizeof r->moments_fp32, "%s", kind.exempt);
    model_shape_vocab(&run->config.shape, kind.vocab);
}

static void run_second(Run *run, Kind kind) {
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        TensorLayout *v = &run->arena.layout[id][MOMENT_V];
        if (format_is_fp8(v->format)) v->format = kind.second;
    }
}

static Run *run_as(Kind kind) {
    Run *run = run_open(RECIPE_COAT, 2);
    run_states(run, kind);
    run_allocate(run);
    run_second(run, kind);
    return run;
}

static const Kind plain = {MOMENTS_FP32, FMT_E4M3, MASTER_FP32, "", 257};
static const Kind coat = {MOMENTS_COAT, FMT_E4M3, MASTER_SPLIT16, "", 257};

// Value, optimizer states and master weight of one parameter in one layer.
typedef struct {
    Tensor m, v, master, value;
} States;

static int list_states(Run *run, States *out) {
    int count = 0;
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < run->arena.layout[id][VALUE].layers; layer++) {
            if (out) {
                out[count].m = arena_tensor(&run->arena, (TensorId)id, MOMENT_M, layer);
                out[count].v = arena_tensor(&run->arena, (TensorId)id, MOMENT_V, layer);
                out[count].master = arena_tensor(&run->arena, (TensorId)id, MASTER, layer);
                out[count].value = arena_tensor(&run->arena, (TensorId)id, VALUE, layer);
            }
            count++;
        }
    }
    return count;
}

#define STATES 64

// Fills a run's FP32 states with realistic values: master weights that match the BF16 values, moments of many
// magnitudes with some zeros, and some groups of moments that are all 0.
static RunState fill_training(Run *run) {
    RunState rs = fill(run, 9);
    States s[STATES];
    int count = list_states(run, s);
    for (int k = 0; k < count; k++) {
        for (int64_t i = 0; i < tensor_elements(s[k].value); i++) {
            uint64_t at = (uint64_t)i, stream = (uint64_t)k;
            float x = 0.02f * rng_normal(1, stream, at);
            bool padding = k == 0 && i / s[k].value.cols >= run->config.shape.vocab;
            bool zero = padding || i / 128 % 5 == 3 || rng_hash(4, stream, at) % 9 == 0;
            if (padding) x = 0.0f;
            ((float *)s[k].master.data)[i] = x;
            ((uint16_t *)s[k].value.data)[i] = master_bf16(x);
            ((float *)s[k].m.data)[i] = zero ? 0.0f : 1e-4f * rng_normal(2, stream, at);
            if (s[k].v.data) ((float *)s[k].v.data)[i] = zero ? 0.0f : 1e-8f * expf(2.0f * rng_normal(3, stream, at));
        }
    }
    return rs;
}

// Saves the run `from` and loads its checkpoint into the run `to`. Returns the messages that loading printed.
static const char *resume_as(Run *from, Run *to, const RunState *rs, const char *name) {
    RunState got;
    const char *folder = save(from, name, rs);
    each_state(to, fill_rubbish, NULL);
    const char *said = load_checkpoint(to, folder, &got);
    assert_memory_equal(&got, rs, sizeof got);
    return said;
}

static Tensor flat(Tensor t) {
    t.cols = t.stride = tensor_elements(t);
    t.rows = 1;
    return t;
}

// Returns the values of a moment tensor in FP32. The caller frees them.
static float *values_of(Tensor t) {
    int64_t n = tensor_elements(t);
    float *x = (float *)xmalloc((size_t)n * sizeof *x);
    if (t.granularity == SCALE_EXPAND) moments_load(flat(t), 0, n, x);
    for (int64_t i = 0; i < n && t.granularity != SCALE_EXPAND; i++)
        x[i] = t.format == FMT_BF16 ? bf16_decode(((uint16_t *)t.data)[i]) : ((float *)t.data)[i];
    return x;
}

// Fails unless the moments `have` are byte for byte the moments `from`, stored in the format of `have`. The mean error
// must be at most 6 %. Zeros must stay 0, and nonzero second moments must not become 0. expand: true if `have` has
// dynamic range expansion.
static void assert_encoded(Tensor from, Tensor have, bool second, bool expand) {
    int64_t n = tensor_elements(have), groups = (n + 127) / 128;
    float *x = values_of(from), *y = values_of(have);
    if (have.granularity == SCALE_EXPAND) {
        const MomentStore how = {expand, second};
        Tensor want = flat(have);
        want.data = xmalloc((size_t)n);
        want.scale = xmalloc((size_t)groups * sizeof(float));
        want.exponent = (uint8_t *)xmalloc((size_t)groups);
        moments_store(want, 0, n, x, &how);
        assert_memory_equal(have.data, want.data, (size_t)n);
        assert_memory_equal(have.scale, want.scale, (size_t)groups * sizeof(float));
        assert_memory_equal(have.exponent, want.exponent, (size_t)groups);
        free(want.data);
        free(want.scale);
        free(want.exponent);
    }
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        off += fabs((double)y[i] - (double)x[i]);
        size += fabs((double)x[i]);
        if (x[i] == 0.0f || second) assert_int_equal(x[i] == 0.0f, y[i] == 0.0f);
        if (have.format == FMT_FP32) assert_int_equal(float_bits(x[i]), float_bits(y[i]));
        if (have.format == FMT_BF16) assert_int_equal(bf16_encode(x[i]), ((uint16_t *)have.data)[i]);
    }
    assert_true(off <= 0.06 * size);
    free(x);
    free(y);
}

static void assert_moments(Run *from, Run *to) {
    States a[STATES], b[STATES];
    bool expand = to->config.recipe.moments == MOMENTS_COAT;
    int count = list_states(from, a);
    assert_int_equal(list_states(to, b), count);
    for (int k = 0; k < count; k++) {
        assert_encoded(a[k].m, b[k].m, false, expand);
        assert_encoded(a[k].v, b[k].v, true, expand);
    }
}

static void assert_same_states(Run *a, Run *b) {
    assert_same_copies(copy_of(a), copy_of(b));
}

// Fails unless both runs have the same master weights. If `exact` is false, those of `to` must be those of `from`
// rounded to BF16.
static void assert_masters(Run *from, Run *to, bool exact) {
    States a[STATES], b[STATES];
    int count = list_states(from, a);
    list_states(to, b);
    for (int k = 0; k < count; k++) {
        for (int64_t i = 0; i < tensor_elements(a[k].value); i++) {
            float x[2];
            for (int side = 0; side < 2; side++) {
                const States *s = side ? &b[k] : &a[k];
                uint16_t high = ((uint16_t *)s->value.data)[i];
                x[side] = bf16_decode(high);
                if (s->master.data)
                    x[side] = s->master.format == FMT_FP32 ? ((float *)s->master.data)[i]
                                                           : master_join(high, ((uint16_t *)s->master.data)[i]);
            }
            if (!exact) x[0] = bf16_decode(master_bf16(x[0]));
            assert_int_equal(float_bits(x[0]), float_bits(x[1]));
            assert_int_equal(((uint16_t *)a[k].value.data)[i], ((uint16_t *)b[k].value.data)[i]);
        }
    }
}

UNIT_TEST(moments_are_converted_between_all_formats) {
    static const Kind kinds[] = {{MOMENTS_COAT, FMT_E4M3, MASTER_FP32, "", 257},
                                 {MOMENTS_COAT, FMT_E5M2, MASTER_FP32, "", 257},
                                 {MOMENTS_COAT, FMT_E4M3, MASTER_FP32, "wte,fc*", 257},
                                 {MOMENTS_BF16, FMT_E4M3, MASTER_FP32, "", 257},
                                 {MOMENTS_FP32, FMT_E4M3, MASTER_FP32, "", 257}};
    Run *first = run_as(plain);
    RunState rs = fill_training(first);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        Run *to = run_as(kinds[i]);
        resume_as(first, to, &rs, "m1");
        assert_moments(first, to);
        assert_masters(first, to, true);
        for (size_t j = 0; j < sizeof kinds / sizeof *kinds; j++) { // converts from every format to every format
            Run *next = run_as(kinds[j]);
            resume_as(to, next, &rs, "m2");
            if (i == j) {
                assert_same_states(to, next);
            } else {
                States a[STATES], b[STATES];
                int count = list_states(to, a);
                list_states(next, b);
                for (int k = 0; k < count; k++) { // States in the run's own format are copied, not converted.
                    if (a[k].m.format != b[k].m.format) assert_encoded(a[k].m, b[k].m, false, true);
                    if (a[k].v.format != b[k].v.format) assert_encoded(a[k].v, b[k].v, true, true);
                }
            }
            run_close(next);
        }
        run_close(to);
    }
    run_close(first);
}

// Muon's momentum is converted between all formats; its matrices have no second moments.
UNIT_TEST(muon_momentum_is_converted_between_all_formats) {
    static const Kind kinds[] = {{MOMENTS_COAT, FMT_E4M3, MASTER_FP32, "", 257, OPTIMIZER_MUON, MOMENTUM_I8},
                                 {MOMENTS_COAT, FMT_E4M3, MASTER_FP32, "", 257, OPTIMIZER_MUON, MOMENTUM_E4M3},
                                 {MOMENTS_FP8, FMT_E4M3, MASTER_FP32, "", 257, OPTIMIZER_MUON, MOMENTUM_I8},
                                 {MOMENTS_BF16, FMT_E4M3, MASTER_FP32, "", 257, OPTIMIZER_MUON, MOMENTUM_I8},
                                 {MOMENTS_FP32, FMT_E4M3, MASTER_FP32, "", 257, OPTIMIZER_MUON, MOMENTUM_I8}};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    Run *first = run_as(kinds[KINDS - 1]);
    RunState rs = fill_training(first);
    for (int i = 0; i < KINDS; i++) {
        Run *to = run_as(kinds[i]);
        resume_as(first, to, &rs, "u1");
        assert_masters(first, to, true);
        for (int j = 0; j < KINDS; j++) {
            States a[STATES], b[STATES];
            Run *next = run_as(kinds[j]);
            resume_as(to, next, &rs, "u2");
            if (i == j) assert_same_states(to, next);
            const int count = list_states(to, a);
            list_states(next, b);
            int without = 0;
            for (int k = 0; k < count; k++) {
                const bool converted = a[k].m.format != b[k].m.format;
                if (converted) assert_encoded(a[k].m, b[k].m, false, kinds[j].moments == MOMENTS_COAT);
                without += !b[k].v.data;
            }
            assert_int_equal(without, 2 * 4);
            run_close(next);
        }
        run_close(to);
    }
    run_close(first);
}

// The checkpoint of another optimizer is refused. The error names the flag, or the folder for --model, with which the
// run can continue.
UNIT_TEST(a_checkpoint_of_another_optimizer_is_refused) {
    Kind muon = plain;
    muon.optimizer = OPTIMIZER_MUON;
    for (int i = 0; i < 2; i++) {
        Run *from = run_as(i ? plain : muon), *to = run_as(i ? muon : plain);
        RunState rs = fill_training(from), got;
        const char *folder = save(from, "o1", &rs);
        assert_false(checkpoint_load(folder, &to->arena, &to->exec, &got, &err));
        assert_int_equal(err.code, EXIT_USER);
        const char *advice = formatted("--model %s", folder);
        assert_non_null(strstr(err.text, i ? "use --optimizer adamw" : "use --optimizer muon"));
        assert_non_null(strstr(err.text, advice));
        run_close(from);
        run_close(to);
    }
}

// Adds a's number of groups to *groups. Returns how many have the same FP8 values in b. Fails if an amax differs.
static int64_t same_groups(Tensor a, Tensor b, int64_t *groups) {
    int64_t same = 0, n = tensor_elements(a);
    if (a.granularity != SCALE_EXPAND) return 0;
    for (int64_t g = 0; g * 128 < n; g++, ++*groups) {
        size_t count = (size_t)(n - g * 128 < 128 ? n - g * 128 : 128);
        assert_int_equal(float_bits(((float *)a.scale)[g]), float_bits(((float *)b.scale)[g]));
        same += memcmp((char *)a.data + g * 128, (char *)b.data + g * 128, count) == 0;
    }
    return same;
}

static void assert_same_codes(Run *a, Run *b, double share) {
    States x[STATES], y[STATES];
    int count = list_states(a, x);
    int64_t groups = 0, same = 0;
    list_states(b, y);
    for (int k = 0; k < count; k++) same += same_groups(x[k].m, y[k].m, &groups) + same_groups(x[k].v, y[k].v, &groups);
    assert_true(groups > 100);
    if ((double)same < share * (double)groups) fail_msg("%d of %d groups are the same", (int)same, (int)groups);
}

// Converts FP8 states to FP32 and back. The first conversion may change FP8 values only in groups whose exponent k can
// still increase, here in at most half of the groups. The second must leave 99.9 % of the groups unchanged.
UNIT_TEST(converting_fp8_to_fp32_and_back_keeps_the_values) {
    Run *first = run_as(plain), *wide = run_as(plain), *codes[3];
    RunState rs = fill_training(first);
    for (int i = 0; i < 3; i++) {
        codes[i] = run_as(coat);
        resume_as(i ? wide : first, codes[i], &rs, "b1");
        resume_as(codes[i], wide, &rs, "b2");
        assert_moments(codes[i], wide); // decoding FP8 moments to FP32 is exact
        assert_masters(first, wide, true);
    }
    assert_same_codes(codes[0], codes[1], 0.5);
    assert_same_codes(codes[1], codes[2], 0.999);
    for (int i = 0; i < 3; i++) run_close(codes[i]);
    run_close(first);
    run_close(wide);
}

// FP8 moments are copied unchanged, with and without dynamic range expansion.
UNIT_TEST(fp8_moments_in_equal_formats_are_copied) {
    Kind no_expansion = coat;
    no_expansion.moments = MOMENTS_FP8;
    Run *first = run_as(plain), *a = run_as(coat), *b = run_as(no_expansion);
    RunState rs = fill_training(first);
    resume_as(first, a, &rs, "c1");
    const char *said = resume_as(a, b, &rs, "c2");
    assert_string_equal(said, "resume: --moments was coat and is now fp8\n");
    assert_same_states(a, b);
    resume_as(first, b, &rs, "c1");
    assert_moments(first, b); // compares with moments that are stored without dynamic range expansion
    run_close(first);
    run_close(a);
    run_close(b);
}

UNIT_TEST(master_weights_are_converted_between_all_kinds) {
    static const MasterKind kinds[] = {MASTER_FP32, MASTER_SPLIT16, MASTER_NONE};
    Run *first = run_as(plain);
    RunState rs = fill_training(first);
    for (int i = 0; i < 3; i++) {
        Kind kind = plain;
        kind.master = kinds[i];
        Run *to = run_as(kind);
        resume_as(first, to, &rs, "p1");
        assert_masters(first, to, kinds[i] != MASTER_NONE);
        for (int j = 0; j < 3; j++) {
            kind.master = kinds[j];
            Run *next = run_as(kind);
            resume_as(to, next, &rs, "p2");
            assert_masters(to, next, kinds[j] != MASTER_NONE);
            if (i == j) assert_same_states(to, next);
            if (kinds[i] != MASTER_NONE && kinds[j] == MASTER_FP32) assert_same_states(first, next);
            run_close(next);
        }
        run_close(to);
    }
    run_close(first);
}

// Converts tensors that are larger than the conversion buffer and have a short last group.
UNIT_TEST(tensors_larger_than_the_conversion_buffer_are_converted) {
    Kind large = plain, small = coat;
    large.vocab = small.vocab = 55001;
    Run *first = run_as(large), *to = run_as(small), *back = run_as(large);
    RunState rs = fill_training(first);
    resume_as(first, to, &rs, "l1");
    assert_moments(first, to);
    assert_masters(first, to, true);
    resume_as(to, back, &rs, "l2");
    assert_moments(to, back);
    assert_masters(first, back, true);
    run_close(first);
    run_close(to);
    run_close(back);
}

UNIT_TEST(a_conversion_prints_one_line_per_setting) {
    Run *first = run_as(plain), *to = run_as(coat);
    RunState rs = fill_training(first);
    const char *said = resume_as(first, to, &rs, "said");
    assert_non_null(strstr(said, "resume: --moments was fp32 and is now coat\n"));
    assert_non_null(strstr(said, "resume: --master was fp32 and is now split16\n"));
    // Two layers and wte have 9 matrices, each with two moments. All 28 parameters have master weights.
    assert_non_null(strstr(said, "converted to this run's formats: 18 moments, 28 master weights\n"));
    resume_as(first, first, &rs, "said2");
    said = resume_as(first, first, &rs, "said2");
    assert_string_equal(said, "");
    run_close(first);
    run_close(to);
}

static void expect_refusal(const char *folder, const char *says) {
    RunState rs;
    Run *to = run_as(coat);
    int kept = quiet_begin();
    bool good = checkpoint_load(folder, &to->arena, &to->exec, &rs, &err);
    quiet_end(kept);
    if (good) fail_msg("loaded; expected '%s'", says);
    assert_error(&err, EXIT_DATA, says);
    run_close(to);
}

// --- states that several processes saved

static Run *run_of_rank(Kind kind, int zero, int rank, int ranks) {
    Run *run = run_open(RECIPE_COAT, 2);
    run_states(run, kind);
    run->config.zero = zero;
    run->exec.rank = rank;
    run->exec.ranks = ranks;
    arena_plan(&run->arena, &run->config, ranks, DEVICE_CPU);
    run_second(run, kind);
    run->arena.rank = rank;
    if (!arena_allocate(&run->arena, &run->exec, &err)) fail_msg("%s", err.text);
    return run;
}

static const char *load(Run *run, const char *folder, const RunState *rs) {
    RunState got;
    const char *said = load_checkpoint(run, folder, &got);
    assert_memory_equal(&got, rs, sizeof got);
    return said;
}

// Loads the checkpoint of `whole` on each of `ranks` ranks in turn, and saves the ranks' shards as one checkpoint.
// Returns its folder.
static const char *save_shared(Run *whole, Kind kind, int ranks, const RunState *rs, const char *name) {
    const char *alone = save(whole, "alone", rs), *out = path_of(name);
    if (!folder_make(out, &err) || !checkpoint_prepare(out, rs->step, &err)) fail_msg("%s", err.text);
    for (int rank = ranks - 1; rank >= 0; rank--) { // Rank 0 is last, because it waits for the other ranks' shards.
        Run *run = run_of_rank(kind, 1, rank, ranks);
        const char *said = load(run, alone, rs);
        assert_null(strstr(said, "converted"));
        Snapshot snapshot;
        snapshot_open(&snapshot, &run->arena, &run->exec);
        snapshot_copy(&snapshot, rs);
        if (!checkpoint_write(out, &snapshot, NULL, &err)) fail_msg("%s", err.text);
        snapshot_close(&snapshot);
        run_close(run);
    }
    return formatted("%s/step-%08d", out, (int)rs->step);
}

static void assert_bytes(const void *have, const void *whole, int64_t begin, int64_t count, size_t size) {
    assert_memory_equal(have, (const char *)whole + (size_t)begin * size, (size_t)count * size);
}

// Fails unless the states of a rank equal that rank's shard of the states in `whole`, the run of a single process.
static void assert_local_states(Run *whole, Run *rank) {
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < whole->arena.layout[id][VALUE].layers; layer++) {
            for (int i = 0; i < 4; i++) {
                int64_t begin;
                Tensor want = arena_tensor(&whole->arena, (TensorId)id, saved_roles[i], layer);
                Tensor have = arena_local(&rank->arena, (TensorId)id, saved_roles[i], layer, &begin);
                int64_t count = tensor_elements(have), groups = (count + 127) / 128;
                assert_int_equal(want.data != NULL, have.data != NULL);
                if (!have.data || count == 0) continue;
                assert_bytes(have.data, want.data, begin, count, format_bytes(want.format));
                if (want.granularity != SCALE_EXPAND) continue;
                assert_bytes(have.scale, want.scale, begin / 128, groups, sizeof(float));
                assert_bytes(have.exponent, want.exponent, begin / 128, groups, 1);
            }
        }
    }
}

// With ZeRO, every rank reads and converts only its shard, from a checkpoint of any number of ranks. The states must be
// bit-identical to those of one process, and only rank 0 reports the conversion.
UNIT_TEST(each_rank_reads_and_converts_its_shard) {
    Kind other = coat, no_master = coat;
    other.moments = MOMENTS_BF16;
    other.master = MASTER_FP32;
    no_master.second = FMT_E5M2;
    no_master.master = MASTER_NONE;
    const Kind kinds[] = {plain, coat, other, no_master};
    Run *first = run_as(plain);
    RunState rs = fill_training(first);
    for (int from = 0; from < 4; from++) {
        Run *source = run_as(kinds[from]);
        resume_as(first, source, &rs, "first");
        char folders[2][TEST_PATH * 2];
        snprintf(folders[0], sizeof folders[0], "%s", save(source, "of_one", &rs));
        snprintf(folders[1], sizeof folders[1], "%s", save_shared(source, kinds[from], 3, &rs, "of_three"));
        for (int to = 0; to < 4; to++) {
            Run *whole = run_as(kinds[to]);
            resume_as(source, whole, &rs, "source");
            for (int i = 0; i < 2 * 4; i++) {
                const char *folder = folders[i % 2];
                int zero = i / 2, ranks = 2 + zero % 3;
                for (int rank = 0; rank < ranks; rank++) {
                    Run *run = run_of_rank(kinds[to], zero, rank, ranks);
                    const char *said = load(run, folder, &rs);
                    assert_local_states(whole, run);
                    assert_int_equal(strstr(said, "are converted") != NULL, rank == 0 && from != to);
                    run_close(run);
                }
            }
            Run *alone = run_as(kinds[to]); // This run of one process loads a checkpoint of 3 ranks.
            load(alone, folders[1], &rs);
            assert_same_states(whole, alone);
            run_close(alone);
            run_close(whole);
        }
        run_close(source);
    }
    run_close(first);
}

static void replace_bytes(const char *path, const char *from, const char *to) {
    size_t size, length = strlen(from), at = 0;
    char *data = read_file(path, &size);
    while (at + length < size && memcmp(data + at, from, length) != 0) at++;
    assert_true(at + length < size && strlen(to) == length);
    memcpy(data + at, to, length);
    write_file(path, data, size);
    free(data);
}

UNIT_TEST(invalid_optimizer_states_are_refused) {
    Run *first = run_as(plain);
    RunState rs = fill_training(first);
    size_t size;
    const char *folder = save(first, "bad", &rs), *path = in(folder, "optimizer.safetensors");
    char *sound = read_file(path, &size);
    static const struct {
        const char *from, *to, *says;
    } changes[] = {{"transformer.wpe.weight.m", "transformer.wpe.weight.n", "no tensor 'transformer.wpe.weight.m'"},
                   {"\"F32\",\"shape\":[24,40]", "\"I32\",\"shape\":[24,40]", "is I32"},
                   {"[24,40]", "[40,24]", "has the shape"}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        write_file(path, sound, size);
        replace_bytes(path, changes[i].from, changes[i].to);
        expect_refusal(folder, changes[i].says);
    }
    // A checkpoint with a tensor of an unknown name is refused, here in place of an optional master weight.
    write_file(path, sound, size);
    replace_bytes(path, "transformer.wpe.weight.master", "transformer.wpe.weight.mastar");
    expect_refusal(folder, "but this run's optimizer has");
    write_file(path, sound, size);
    flip_byte(path, (long)size - 200);
    expect_refusal(folder, "damaged");
    free(sound);
    run_close(first);
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
