// Tests of the table of flags: every flag, its values, malformed ones.
#include "config_fixture.h"

// A value that differs from the default, for each kind of flag.
static const char *sample_value(const Flag *flag, const Config *defaults) {
    static char text[64];
    int first = (int)strcspn(flag->placeholder, "|");
    switch (flag->kind) {
    case FLAG_INT:
        snprintf(text, sizeof text, "%d", flag->max == 2 ? 2 : flag->max == 3 ? 3 : flag->min == 16 ? 32 : 48);
        break;
    case FLAG_INT64: return "49152";
    case FLAG_SEED: return "18446744073709551615";
    case FLAG_FLOAT: return flag->min < 1 ? "0.0625" : "16";
    case FLAG_STRING:
        return strcmp(flag->name, "model") == 0 ? "d6" : strcmp(flag->name, "moments-fp32") == 0 ? "wte,fc*" : "x.bin";
    case FLAG_CHOICE:
    case FLAG_FORMAT: {
        const char *name = flag->placeholder + first + 1;
        int now = 0;
        memcpy(&now, (const char *)defaults + flag->offset, sizeof now);
        if (flag->kind == FLAG_CHOICE && now == 1) name = flag->placeholder;
        if (flag->kind == FLAG_FORMAT && strcmp(name, format_name((Format)now)) == 0) name = flag->placeholder;
        snprintf(text, sizeof text, "%.*s", (int)strcspn(name, "|"), name);
        break;
    }
    case FLAG_BYTES: return "2GB";
    case FLAG_DURATION: return "3h50m";
    case FLAG_TOKENIZER: return "bytes";
    case FLAG_TRAIN: return "x.bin";
    case FLAG_WEIGHT: return "0.25";
    default: return NULL;
    }
    return text;
}

static void test_every_flag_parses(void **state) {
    (void)state;
    int count;
    const Flag *table = flag_table(&count);
    assert_true(count > 70);
    Config *defaults = (Config *)xmalloc(sizeof *defaults);
    config_defaults(defaults);
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        const char *value = sample_value(flag, defaults);
        if (flag->kind == FLAG_HELP || flag->kind == FLAG_VERSION || flag->kind == FLAG_CONFIG) continue;
        for (int form = 0; form < 2; form++) {
            const bool opposite = flag->kind == FLAG_BOOL && *((const bool *)((const char *)defaults + flag->offset));
            char line[256], text[128];
            if (value)
                snprintf(text, sizeof text, "--%s%c%s", flag->name, form ? ' ' : '=', value);
            else
                snprintf(text, sizeof text, "--%s%s", opposite ? "no-" : "", flag->name);
            // the width is set so that 48 heads divide it
            const bool rotary = strncmp(flag->name, "rope-", 5) == 0 || strcmp(flag->name, "qkv-biases") == 0;
            snprintf(line, sizeof line, "--plan --train t --val v --out o --channels 768 --heads 48 %s %s",
                     rotary ? "--model llama:d2 --rope-factor 2" : "", text);
            accept(line);
            const char *now = (const char *)&config + flag->offset, *before = (const char *)defaults + flag->offset;
            if (flag->size && strcmp(flag->name, "channels")) assert_memory_not_equal(now, before, flag->size);
        }
        // by its kind, a value is wanted or unwanted
        char line[256];
        snprintf(line, sizeof line, "--train t --%s", flag->name);
        if (flag_needs_value(flag)) refuse(line, EXIT_USER, "needs a value");
        snprintf(line, sizeof line, "--train t --%s=1", flag->name);
        if (flag->kind == FLAG_BOOL) refuse(line, EXIT_USER, "takes no value");
    }
    free(defaults);
}

static void test_names_are_unique(void **state) {
    (void)state;
    int count;
    bool negated;
    const Flag *table = flag_table(&count);
    for (int i = 0; i < count; i++)
        assert_ptr_equal(flag_find(table[i].name, strlen(table[i].name), &negated), &table[i]);
}

static void test_values(void **state) {
    (void)state;
    sets("--train x --lr 1e-3 --lr=6e-4 --steps 10 --steps=20", "lr 0.0006, steps 20");
    accept("--train x --out o --resume");
    assert_true(config.resume && config.resume_step == -1);
    accept("--train x --out o --resume=20");
    assert_true(config.resume && config.resume_step == 20);
    accept("--train x --out o --resume=20 --no-resume");
    assert_false(config.resume);
    accept("--plan");
    assert_int_equal(config.plan, PLAN_TABLE);
    sets("--plan=json --gpus 8 --zero 3", "gpus 8, zero 3");
    assert_int_equal(config.plan, PLAN_JSON);
    static const struct {
        const char *text;
        int64_t ms;
    } times[] = {{"3h50m", 13800000}, {"1d12h", 129600000}, {"90s", 90000}, {"0.25s", 250}, {"1d2h3m4.5s", 93784500}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "--train x --time-limit %s", times[i].text);
        accept(line);
        assert_int_equal(config.time_limit_ms, times[i].ms);
    }
    sets("--train x --seed 18446744073709551615", "seed 18446744073709551615");
    sets("--train x --seed 1e3", "seed 1000");
    sets("--train x --seed 2.5e2", "seed 250");
    sets("--train x --no-shuffle --shuffle --no-shuffle", "shuffle off");
    sets("--train x --warmup 700 --steps 10", "warmup 700");
    sets("--train x --grads fp32 --device cpu --schedule wsd", "grads fp32, device cpu, schedule wsd");
}

// Counts as people write them: of tokens k is 1024, of steps 1000, elsewhere it is refused.
static void test_counts(void **state) {
    (void)state;
    static const struct {
        const char *flag;
        int64_t value;
    } tokens[] = {{"512k", 524288}, {"512K", 524288},  {"0.5M", 524288},   {"1M", 1048576},
                  {"1e6", 1000000}, {"1E+6", 1000000}, {"2.5e3", 2500},    {"524288", 524288},
                  {"500k", 512000}, {"1.5k", 1536},    {"32k", 32768},     {"5242.880e2", 524288},
                  {"0", 0},         {"0.0k", 0},       {"65536.0", 65536}, {"0e-99", 0}},
      steps[] = {{"20k", 20000},
                 {"1.5k", 1500},
                 {"1.1k", 1100},
                 {"2M", 2000000},
                 {"1m", 1000000},
                 {"1e6", 1000000},
                 {"524k", 524000},
                 {"-1", -1},
                 {"2e4", 20000},
                 {"0.001k", 1},
                 {"9e15", 9000000000000000}};
    char line[128];
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        snprintf(line, sizeof line, "--train x --batch-tokens %s", tokens[i].flag);
        accept(line);
        assert_int_equal(config.batch_tokens, tokens[i].value);
    }
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        snprintf(line, sizeof line, "--train x --steps %s", steps[i].flag);
        accept(line);
        assert_int_equal(config.steps, steps[i].value);
    }
    sets("--train x --seq-len 2k --positions 4k --logits-chunk 1k --sample-tokens 1k --warmup 1k --layers 1e1",
         "seq-len 2048, positions 4096, logits-chunk 1024, sample-tokens 1024, warmup 1000, layers 10");
    accept("--train x --out o --save-every 5k --resume=20k");
    assert_int_equal(config.save_every, 5000);
    assert_int_equal(config.resume_step, 20000);
    // a power of two rounded to thousands is not a number of 1024s
    refuse("--train x --batch-tokens 524k", EXIT_USER,
           "--batch-tokens 524k: of tokens k is 1024, M 1024 k; write 512k for 524288, or 536576");
    refuse("--train x --batch-tokens 262k", EXIT_USER, "write 256k for 262144, or 268288");
    refuse("--train x --batch-tokens 65.5k", EXIT_USER, "write 64k for 65536, or 67072");
    refuse("--train x --batch-tokens 2.1M", EXIT_USER, "not a whole number");
    refuse("--train x --batch-tokens 1049k", EXIT_USER, "write 1024k for 1048576, or 1074176");
    refuse("--train x --channels 4k", EXIT_USER,
           "--channels 4k: k and M are for TOKENS and STEPS alone; write the number out");
    refuse("--train x --vocab 32k", EXIT_USER, "--vocab 32k: k and M are for TOKENS and STEPS alone");
    static const char *const bad[] = {"1.3k", "10kk", "1e",   "1e+",   "1e3k", "k",
                                      ".",    "1e-3", "0x10", "1.2.3", "5g",   "''"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(line, sizeof line, "--train x --batch-tokens=%s", strcmp(bad[i], "''") ? bad[i] : "");
        refuse(line, EXIT_USER, "--batch-tokens&: not a whole number");
    }
    refuse("--train x --steps 1e16", EXIT_USER, "--steps 1e16: must be between -1 and");
    refuse("--train x --steps 1e9999999999999999999", EXIT_USER, "must be between");
    refuse("--train x --steps 9999999999999M", EXIT_USER, "must be between");
    refuse("--train x --seq-len 20M", EXIT_USER, "--seq-len 20M: must be between 1 and 16777216");
}

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {{"80G", 80000000000},    {"80g", 80000000000},   {"80GB", 80000000000},
                 {"1.5T", 1500000000000}, {"512mb", 512000000},   {"512k", 512000},
                 {"1.5GiB", 1610612736},  {"75GiB", 80530636800}, {"123456789B", 123456789}};
    char line[128];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(line, sizeof line, "--plan --memory-limit %s", sizes[i].text);
        accept(line);
        assert_true(config.memory_limit == sizes[i].bytes);
    }
    refuse("--plan --memory-limit 80", EXIT_USER, "--memory-limit 80: a size needs its unit; 80GB?");
    refuse("--plan --memory-limit 79.5", EXIT_USER, "79.5GB?");
    refuse("--plan --memory-limit 80000000000", EXIT_USER, "needs its unit; 80000000000B?");
    refuse("--plan --memory-limit 999999999999TB", EXIT_USER, "999999999999TB: must be at most 9e18 bytes");
    refuse("--plan --memory-limit 80Gi", EXIT_USER, "--memory-limit 80Gi: must be a size such as 80GB or 80G (10^9");
}

// --train adds up, however often the command line is read; weights are of the one before them.
static void test_sets(void **state) {
    (void)state;
    accept("--train a --steps 3 --train=b/*.bin -i c");
    assert_string_equal(config.train, "a\n\nb/*.bin\n\nc");
    assert_int_equal(config.train_sets, 3);
    assert_null(config_weights(&config));
    accept("--train a --train-weight 0.7 --recipe bf16 --train b --train-weight=3e-1");
    assert_string_equal(config.train, "a\n\nb");
    assert_true(config_weights(&config)[0] == 0.7 && config_weights(&config)[1] == 0.3);
    accept("--train a --train-weight 1");
    assert_string_equal(config.train, "a");
    refuse("--train a --train-weight 0", EXIT_USER, "--train-weight 0: must be above 0; remove a --train");
    refuse("--train a --train-weight -2", EXIT_USER, "--train-weight -2: must be above 0");
    refuse("--train a --train-weight 1e10", EXIT_USER, "--train-weight 1e10: must be between 1e-09 and");
    refuse("--train a --train-weight 70%", EXIT_USER, "--train-weight 70%: not a number");
    refuse("--train a --train-weight nan", EXIT_USER, "--train-weight nan: not a number");
    refuse("--train-weight 0.5 --train a", EXIT_USER, "--train-weight 0.5: no --train precedes it");
    refuse("--train a --train b --train-weight 0.5 --train c --train-weight 0.5", EXIT_USER,
           "--train a: has no --train-weight, but others have");
    refuse("--train a --train-weight 0.5 --train b --train c --train-weight 0.5", EXIT_USER,
           "--train b: has no --train-weight, but others have");
    char many[4000] = "", *end = many;
    for (int k = 0; k <= MAX_SETS; k++) end += sprintf(end, "--train=s%d ", k);
    accept(many);
    assert_int_equal(config.train_sets, MAX_SETS + 1);
    sprintf(end, "--train-weight 1");
    refuse(many, EXIT_USER, "--train-weight: at most 64 --train can have one");
}

static void test_malformed(void **state) {
    (void)state;
    refuse("--tran x", EXIT_USER, "--tran: unknown flag&did you mean --train?");
    refuse("--no-shufle --train x", EXIT_USER, "--no-shufle: unknown flag; did you mean --no-shuffle?");
    refuse("--nosuchthingatall 5", EXIT_USER, "--nosuchthingatall: unknown flag&--help");
    refuse("-train x", EXIT_USER, "-train: &did you mean --train?");
    refuse("-- --train x", EXIT_USER, "--");
    refuse("x.bin", EXIT_USER, "x.bin: not a flag");
    refuse("--plan json", EXIT_USER, "--plan=json");
    refuse("--train x --resume 20", EXIT_USER, "--resume=20");
    // what is suggested is not refused in its turn
    refuse("--train x --resume runs/x", EXIT_USER,
           "--resume runs/x: not a whole number; the run's folder goes to --out: --out runs/x --resume");
    refuse("--train x --resume=./2x/step-00000020/", EXIT_USER,
           "--resume ./2x/step-00000020/: not a whole number; the run's folder goes to --out: --out ./2x --resume=20");
    accept("--train x --out ./2x --resume=20");
    refuse("--train x --out o --resume=", EXIT_USER, "--resume=: the value is empty; write --resume, or --resume=STEP");
    refuse("--plan x", EXIT_USER, "--plan=x: must be --plan or --plan=json");
    refuse("--train x --shuffle false", EXIT_USER,
           "false: not a flag, and --shuffle takes no value; write --shuffle or --no-shuffle");
    refuse("--train x --no-shuffle 1", EXIT_USER, "1: not a flag, and --no-shuffle takes no value; write --shuffle or");
    refuse("--train x --no-resume 1", EXIT_USER, "1: not a flag, and --no-resume takes no value; write --resume or");
    refuse("--version 2", EXIT_USER, "2: not a flag, and --version takes no value");
    refuse("--lr", EXIT_USER, "--lr needs a value: --lr RATE");
    refuse("--lr --train x", EXIT_USER, "--lr needs a value");
    refuse("--out -b 4", EXIT_USER, "--out needs a value");
    refuse("--train x -b", EXIT_USER, "-b needs a value");
    refuse("-h", EXIT_USER, "--help");
    refuse("--train x --lr=", EXIT_USER, "--lr&not a number");
    refuse("--train x --lr ''", EXIT_USER, "--lr&not a number");
    refuse("--train x --lr fast", EXIT_USER, "--lr fast: not a number");
    refuse("--train x --lr 1e-3x", EXIT_USER, "--lr 1e-3x: not a number");
    refuse("--train x --lr nan", EXIT_USER, "not a number");
    refuse("--train x --lr inf", EXIT_USER, "not a number");
    refuse("--train x --lr 0x1p3", EXIT_USER, "not a number");
    refuse("--train x --lr 1e99", EXIT_USER, "--lr 1e99: must be between");
    refuse("--train x --lr 1e999", EXIT_USER, "must be between");
    refuse("--train x --lr -5", EXIT_USER, "--lr -5: must be between 0 and");
    refuse("--train x --grad-clip 1e-320", EXIT_USER, "--grad-clip 1e-320: must be 0 or at least 1.17549e-38");
    refuse("--train x --grad-clip 1e-40", EXIT_USER, "--grad-clip 1e-40: must be 0 or at least");
    refuse("--train x --grad-clip 1e-999", EXIT_USER, "--grad-clip 1e-999: must be 0 or at least");
    refuse("--train x --steps 1.5", EXIT_USER, "--steps 1.5: not a whole number");
    refuse("--train x --steps -2", EXIT_USER, "--steps -2: must be between -1 and");
    refuse("--train x --steps 99999999999999999999", EXIT_USER, "must be between");
    refuse("--train x --micro-batch 0", EXIT_USER, "--micro-batch 0: must be between 1 and");
    refuse("--train x --micro-batch 4294967297", EXIT_USER, "must be between");
    static const char *const times[] = {"90", "m3", "3m4h", "1h1h", "-1h", "0s", "1e3s", "3.5.1h", "3h50", "''"};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "--train x --time-limit=%s", times[i]);
        refuse(line, EXIT_USER, "--time-limit&3h50m");
    }
    refuse("--train x --seed -1", EXIT_USER, "--seed -1: must be a whole number from 0");
    refuse("--train x --seed 18446744073709551616", EXIT_USER, "must be a whole number from 0");
    refuse("--train x --seed 1e20", EXIT_USER, "--seed 1e20: must be a whole number from 0 to 2^64 - 1");
    refuse("--train x --seed -1e3", EXIT_USER, "--seed -1e3: must be a whole number from 0");
    refuse("--train x --seed 1k", EXIT_USER, "--seed 1k: must be a whole number from 0");
    refuse("--train x --seed 0.5", EXIT_USER, "--seed 0.5: must be a whole number from 0");
    refuse("--train x --beta2 1", EXIT_USER, "--beta2 1: must be between 0 and 0.999999");
    refuse("--train x --eps 0", EXIT_USER, "--eps 0: must be between");
    refuse("--train x --recipe int8", EXIT_USER, "--recipe int8: must be one of bf16|fp8-linear|coat");
    refuse("--train x --recipe bf16|coat", EXIT_USER, "must be one of");
    refuse("--train x --grads e4m3", EXIT_USER, "--grads e4m3: must be one of bf16|fp32");
    refuse("--train x --group-size 64", EXIT_USER, "--group-size 64: must be 16, 32 or 128");
    refuse("--train x --out o --resume=abc", EXIT_USER, "--resume abc: not a whole number");
    refuse("--train x --out o --resume=-1", EXIT_USER, "--resume -1: must be between 0");
    refuse("--train x --no-resume=3", EXIT_USER, "takes no value");
    refuse("--plan=yaml", EXIT_USER, "--plan=yaml&--plan=json");
    refuse("--help=html", EXIT_USER, "--help html: &data, model, recipe, &markdown");
    refuse("--help schedule", EXIT_USER, "--help schedule: &processes, markdown");
    refuse("--help=man", EXIT_USER, "--help man: ");
    refuse("--version=2", EXIT_USER, "--version=2: takes no value");
    refuse("--train ''", EXIT_USER, "--train: the value is empty");
    refuse("--train=", EXIT_USER, "--train: the value is empty");
    refuse("--plan --memory-limit 8x", EXIT_USER, "--memory-limit 8x&80GB");
    refuse("--plan --memory-limit GB", EXIT_USER, "--memory-limit GB");
    refuse("--plan --memory-limit -8GB", EXIT_USER, "--memory-limit -8GB");
    refuse("--plan --memory-limit 1.2.3GB", EXIT_USER, "--memory-limit 1.2.3GB");
    refuse("--plan --memory-limit 0", EXIT_USER, "--memory-limit 0");
    refuse("--tokenizer byte", EXIT_DATA, "--tokenizer byte: no such file&bytes");
    refuse("--model gpt5", EXIT_USER, "--model gpt5&gpt2-xl");
    refuse("--model no/such/folder", EXIT_DATA, "--model no/such/folder: no such file");
    refuse("-e nosuch.bin", EXIT_DATA, "nosuch.bin: no such file");
}

static void test_too_long(void **state) {
    (void)state;
    char line[4000] = "--train x --out ";
    memset(line + 16, 'a', 2000);
    refuse(line, EXIT_USER, "--out: the value has 2000 characters, the limit is 1023");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_flag_parses),
        cmocka_unit_test(test_names_are_unique),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_sets),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_too_long),
    };
    return cmocka_run_group_tests_name("flags", tests, NULL, NULL);
}
