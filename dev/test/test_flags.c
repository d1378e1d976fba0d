// Tests of the table of flags (coat/flags/flags.h): every flag, valid values and malformed values.
#include "config_fixture.h"

// Returns a valid value of the flag that differs from its default; NULL if the flag takes no value.
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
        return strcmp(flag->name, "model") == 0          ? "d6"
               : strcmp(flag->name, "vision") == 0       ? "clip:d1"
               : strcmp(flag->name, "moments-fp32") == 0 ? "wte,fc*"
                                                         : "x.bin";
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

UNIT_TEST(every_flag_accepts_a_valid_value) {
    Config *defaults = (Config *)xmalloc(sizeof *defaults);
    config_defaults(defaults);
    int count = 0;
    for (const Flag *flag = flag_table; flag->name; flag++, count++) {
        const char *value = sample_value(flag, defaults);
        if (flag->kind == FLAG_HELP || flag->kind == FLAG_VERSION || flag->kind == FLAG_CONFIG) continue;
        for (int form = 0; form < 2; form++) {
            const bool opposite = flag->kind == FLAG_BOOL && *((const bool *)((const char *)defaults + flag->offset));
            char text[128];
            if (value)
                snprintf(text, sizeof text, "--%s%c%s", flag->name, form ? ' ' : '=', value);
            else
                snprintf(text, sizeof text, "--%s%s", opposite ? "no-" : "", flag->name);
            const bool rotary = strncmp(flag->name, "rope-", 5) == 0 || strcmp(flag->name, "qkv-biases") == 0;
            const bool tower = flag->offset >= offsetof(Config, shape.vision) &&
                               flag->offset < offsetof(Config, shape.vision) + sizeof defaults->shape.vision;
            const bool muon = strncmp(flag->name, "muon-", 5) == 0 || strcmp(flag->name, "momentum-codes") == 0;
            // --channels 768 is a multiple of 48, the sample value of --heads
            accept(formatted(
                "--plan --train t --val v --out o --channels 768 --heads 48 %s %s %s %s",
                rotary || tower || flag->offset == offsetof(Config, vision) ? "--model llama:d2 --rope-factor 2" : "",
                tower ? "--vision siglip:d1" : "", muon ? "--optimizer muon" : "", text));
            const char *now = (const char *)&config + flag->offset, *before = (const char *)defaults + flag->offset;
            if (flag->size && strcmp(flag->name, "channels")) assert_memory_not_equal(now, before, flag->size);
        }
        // Each flag is refused without a value that it needs, and with a value that it does not take.
        if (flag_needs_value(flag)) refuse(formatted("--train t --%s", flag->name), EXIT_USER, "needs a value");
        if (flag->kind == FLAG_BOOL) refuse(formatted("--train t --%s=1", flag->name), EXIT_USER, "takes no value");
    }
    assert_true(count > 70);
    free(defaults);
}

UNIT_TEST(flag_names_are_unique) {
    bool negated;
    for (const Flag *flag = flag_table; flag->name; flag++)
        assert_ptr_equal(flag_find(flag->name, strlen(flag->name), &negated), flag);
}

UNIT_TEST(flag_values_are_parsed) {
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
        accept(formatted("--train x --time-limit %s", times[i].text));
        assert_int_equal(config.time_limit_ms, times[i].ms);
    }
    sets("--train x --seed 18446744073709551615", "seed 18446744073709551615");
    sets("--train x --seed 1e3", "seed 1000");
    sets("--train x --seed 2.5e2", "seed 250");
    sets("--train x --no-shuffle --shuffle --no-shuffle", "shuffle off");
    sets("--train x --warmup 700 --steps 10", "warmup 700");
    sets("--train x --grads fp32 --device cpu --schedule wsd", "grads fp32, device cpu, schedule wsd");
}

// Tests counts with a suffix: k is 1024 for TOKENS and 1000 for STEPS. Other flags refuse a suffix.
UNIT_TEST(suffix_k_is_1024_for_tokens_and_1000_for_steps) {
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
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        accept(formatted("--train x --batch-tokens %s", tokens[i].flag));
        assert_int_equal(config.batch_tokens, tokens[i].value);
    }
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        accept(formatted("--train x --steps %s", steps[i].flag));
        assert_int_equal(config.steps, steps[i].value);
    }
    sets("--train x --seq-len 2k --positions 4k --logits-chunk 1k --sample-tokens 1k --warmup 1k --layers 1e1",
         "seq-len 2048, positions 4096, logits-chunk 1024, sample-tokens 1024, warmup 1000, layers 10");
    accept("--train x --out o --save-every 5k --resume=20k");
    assert_int_equal(config.save_every, 5000);
    assert_int_equal(config.resume_step, 20000);
    // For TOKENS, k is 1024. A power of two that was divided by 1000 and rounded, such as 524k, is refused. The error
    // lists the two nearest valid counts.
    static const char *const counts[] = {"--batch-tokens 524k&512k for 524288&536576",
                                         "--batch-tokens 262k&256k for 262144&268288",
                                         "--batch-tokens 65.5k&64k for 65536&67072",
                                         "--batch-tokens 2.1M",
                                         "--batch-tokens 1049k&1024k for 1048576&1074176",
                                         "--channels 4k&tokens and steps",
                                         "--vocab 32k&tokens and steps",
                                         "--steps 1e16&-1",
                                         "--steps 1e9999999999999999999",
                                         "--steps 9999999999999M",
                                         "--seq-len 20M&16777216"};
    REFUSE_EACH("--train x", counts);
    static const char *const bad[] = {"1.3k", "10kk", "1e",   "1e+",   "1e3k", "k",
                                      ".",    "1e-3", "0x10", "1.2.3", "5g",   "''"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        refuse(formatted("--train x --batch-tokens=%s", strcmp(bad[i], "''") ? bad[i] : ""), EXIT_USER,
               "--batch-tokens");
    }
}

UNIT_TEST(numbers_of_bytes_are_parsed_with_their_unit) {
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {{"80G", 80000000000},    {"80g", 80000000000},   {"80GB", 80000000000},
                 {"1.5T", 1500000000000}, {"512mb", 512000000},   {"512k", 512000},
                 {"1.5GiB", 1610612736},  {"75GiB", 80530636800}, {"123456789B", 123456789}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        accept(formatted("--plan --memory-limit %s", sizes[i].text));
        assert_true(config.memory_limit == sizes[i].bytes);
    }
    static const char *const bad[] = {"--memory-limit 80&80GB?", "--memory-limit 79.5&79.5GB?",
                                      "--memory-limit 80000000000&80000000000B?", "--memory-limit 999999999999TB&9e18",
                                      "--memory-limit 80Gi&80GB"};
    REFUSE_EACH("--plan", bad);
}

// Tests that every --train adds a set, and that --train-weight sets the weight of the --train before it. Either all
// sets or none must have a weight.
UNIT_TEST(each_train_flag_adds_a_data_set) {
    accept("--train a --steps 3 --train=b/*.bin -i c");
    assert_string_equal(config.train, "a\n\nb/*.bin\n\nc");
    assert_int_equal(config.train_sets, 3);
    assert_null(config_weights(&config));
    accept("--train a --train-weight 0.7 --recipe bf16 --train b --train-weight=3e-1");
    assert_string_equal(config.train, "a\n\nb");
    assert_true(config_weights(&config)[0] == 0.7 && config_weights(&config)[1] == 0.3);
    accept("--train a --train-weight 1");
    assert_string_equal(config.train, "a");
    static const char *const bad[] = {"--train-weight 0&remove its --train", "--train-weight -2",
                                      "--train-weight 1e10&1e-09", "--train-weight 70%", "--train-weight nan"};
    REFUSE_EACH("--train a", bad);
    refuse("--train-weight 0.5 --train a", EXIT_USER, "--train-weight 0.5: no --train ");
    refuse("--train a --train b --train-weight 0.5 --train c --train-weight 0.5", EXIT_USER,
           "--train a: &--train-weight");
    refuse("--train a --train-weight 0.5 --train b --train c --train-weight 0.5", EXIT_USER,
           "--train b: &--train-weight");
    char many[4000] = "", *end = many;
    for (int k = 0; k <= MAX_SETS; k++) end += sprintf(end, "--train=s%d ", k);
    accept(many);
    assert_int_equal(config.train_sets, MAX_SETS + 1);
    sprintf(end, "--train-weight 1");
    refuse(many, EXIT_USER, "--train-weight: &64");
}

UNIT_TEST(errors_about_malformed_values_name_flag_and_value) {
    refuse("--tran x", EXIT_USER, "--tran: &--train?");
    refuse("--no-shufle --train x", EXIT_USER, "--no-shufle: &--no-shuffle?");
    refuse("--nosuchthingatall 5", EXIT_USER, "--nosuchthingatall: &--help");
    refuse("-train x", EXIT_USER, "-train: &--train?");
    refuse("-- --train x", EXIT_USER, "--");
    refuse("x.bin", EXIT_USER, "x.bin: ");
    refuse("--plan json", EXIT_USER, "--plan=json");
    refuse("--train x --resume 20", EXIT_USER, "--resume=20");
    // the suggested flags are accepted
    refuse("--train x --resume runs/x", EXIT_USER, "--resume runs/x: &--out runs/x --resume");
    refuse("--train x --resume=./2x/step-00000020/", EXIT_USER,
           "--resume ./2x/step-00000020/: &--out ./2x --resume=20");
    accept("--train x --out ./2x --resume=20");
    refuse("--train x --out o --resume=", EXIT_USER, "--resume=: &--resume=STEP");
    refuse("--plan x", EXIT_USER, "--plan=x: &--plan=json");
    refuse("--train x --shuffle false", EXIT_USER, "false: &write --shuffle or --no-shuffle");
    refuse("--train x --no-shuffle 1", EXIT_USER, "1: &write --shuffle or --no-shuffle");
    refuse("--train x --no-resume 1", EXIT_USER, "1: &write --resume or");
    refuse("--version 2", EXIT_USER, "2: &--version");
    refuse("--lr", EXIT_USER, "--lr needs a value: --lr RATE");
    refuse("--lr --train x", EXIT_USER, "--lr needs a value");
    refuse("--out -b 4", EXIT_USER, "--out needs a value");
    refuse("--train x -b", EXIT_USER, "-b needs a value");
    refuse("-h", EXIT_USER, "--help");
    refuse("--train x --lr=", EXIT_USER, "--lr: the value is empty; &--lr RATE");
    refuse("--train x --lr ''", EXIT_USER, "--lr: the value is empty");
    static const char *const values[] = {"--lr fast",
                                         "--lr 1e-3x",
                                         "--lr nan",
                                         "--lr inf",
                                         "--lr 0x1p3",
                                         "--lr 1e99",
                                         "--lr 1e999",
                                         "--lr -5&between 0",
                                         "--grad-clip 1e-320&1.17549e-38",
                                         "--grad-clip 1e-40",
                                         "--grad-clip 1e-999",
                                         "--steps 1.5",
                                         "--steps -2&-1",
                                         "--steps 99999999999999999999",
                                         "--micro-batch 0&1",
                                         "--micro-batch 4294967297",
                                         "--seed -1",
                                         "--seed 18446744073709551616",
                                         "--seed 1e20&2^64 - 1",
                                         "--seed -1e3",
                                         "--seed 1k",
                                         "--seed 0.5",
                                         "--beta2 1&0.999999",
                                         "--eps 0",
                                         "--recipe int8&bf16|fp8-linear|coat",
                                         "--recipe bf16|coat",
                                         "--grads e4m3&bf16|fp32",
                                         "--group-size 64&16, 32 or 128"};
    REFUSE_EACH("--train x", values);
    static const char *const sizes[] = {"--memory-limit 8x&80GB", "--memory-limit GB", "--memory-limit -8GB",
                                        "--memory-limit 1.2.3GB", "--memory-limit 0"};
    REFUSE_EACH("--plan", sizes);
    static const char *const times[] = {"90", "m3", "3m4h", "1h1h", "-1h", "0s", "1e3s", "3.5.1h", "3h50", "''"};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        refuse(formatted("--train x --time-limit=%s", times[i]), EXIT_USER, "--time-limit&3h50m");
    }
    refuse("--train x --out o --resume=abc", EXIT_USER, "--resume abc: ");
    refuse("--train x --out o --resume=-1", EXIT_USER, "--resume -1: ");
    refuse("--train x --no-resume=3", EXIT_USER, "--no-resume");
    refuse("--plan=yaml", EXIT_USER, "--plan=yaml&--plan=json");
    refuse("--help=html", EXIT_USER, "--help html: &data, model, recipe, &markdown");
    refuse("--help schedule", EXIT_USER, "--help schedule: &processes, markdown");
    refuse("--help=man", EXIT_USER, "--help man: ");
    refuse("--version=2", EXIT_USER, "--version=2: ");
    refuse("--train ''", EXIT_USER, "--train: ");
    refuse("--train=", EXIT_USER, "--train: ");
    refuse("--tokenizer byte", EXIT_DATA, "--tokenizer byte: &bytes");
    refuse("--model gpt5", EXIT_USER, "--model gpt5&gpt2-xl");
    refuse("--model no/such/folder", EXIT_DATA, "--model no/such/folder: ");
    refuse("-e nosuch.bin", EXIT_DATA, "nosuch.bin: ");
}

UNIT_TEST(a_value_that_is_too_long_is_refused) {
    char line[4000] = "--train x --out ";
    memset(line + 16, 'a', 2000);
    refuse(line, EXIT_USER, "--out: &2000&1023");
}

RUN_TESTS(NULL, NULL, NULL)
