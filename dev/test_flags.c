// Tests of the table of flags: every flag, malformed values, llm.c's command lines, the help.
#include <unistd.h>

#include "coat/flags.h"
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
    case FLAG_FLOAT: return "0.0625";
    case FLAG_FILES: return "x.bin";
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
        if (flag->kind == FLAG_HELP || flag->kind == FLAG_VERSION) continue;
        for (int form = 0; form < 2; form++) {
            const bool opposite = flag->kind == FLAG_BOOL && *((const bool *)((const char *)defaults + flag->offset));
            char line[256], text[128];
            if (value)
                snprintf(text, sizeof text, "--%s%c%s", flag->name, form ? ' ' : '=', value);
            else
                snprintf(text, sizeof text, "--%s%s", opposite ? "no-" : "", flag->name);
            // the width is set so that 48 heads divide it; weight gradients in E4M3 want data gradients in it, too
            snprintf(line, sizeof line,
                     "--plan --train t --val v --out o --channels 768 --heads 48 --gradient-codes-data e4m3 %s", text);
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
    accept("--train x --lr 1e-3 --lr=6e-4 --steps 10 --steps=20");
    assert_true(config.lr == 6e-4f);
    assert_int_equal(config.steps, 20);
    accept("--train x --out o --resume");
    assert_true(config.resume && config.resume_step == -1);
    accept("--train x --out o --resume=20");
    assert_true(config.resume && config.resume_step == 20);
    accept("--train x --out o --resume=20 --no-resume");
    assert_false(config.resume);
    accept("--plan");
    assert_int_equal(config.plan, PLAN_TABLE);
    accept("--plan=json --memory-limit 80GB --gpus 8 --zero 3");
    assert_int_equal(config.plan, PLAN_JSON);
    assert_true(config.memory_limit == 80000000000);
    assert_int_equal(config.gpus, 8);
    accept("--plan --memory-limit 1.5GiB");
    assert_true(config.memory_limit == 1610612736);
    accept("--plan --memory-limit 512mb");
    assert_true(config.memory_limit == 512000000);
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
    accept("--train x --seed 18446744073709551615");
    assert_true(config.seed == UINT64_MAX);
    accept("--train x --no-shuffle --shuffle --no-shuffle");
    assert_false(config.shuffle);
    accept("--train x --warmup 700 --steps 10");
    accept(
        "--train x --grads fp32 --second-moment e5m2 --second-moment-rounding stochastic --device cpu --schedule wsd");
    assert_int_equal(config.recipe.grads, FMT_FP32);
    assert_int_equal(config.recipe.second_moment, FMT_E5M2);
    assert_int_equal(config.recipe.second_moment_round, ROUND_STOCHASTIC);
    assert_int_equal(config.device, DEVICE_CPU);
    assert_int_equal(config.schedule, SCHEDULE_WSD);
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
    accept("--train x --seq-len 2k --positions 4k --logits-chunk 1k --sample-tokens 1k --warmup 1k --layers 1e1");
    assert_int_equal(config.seq_len, 2048);
    assert_int_equal(config.shape.positions, 4096);
    assert_int_equal(config.logits_chunk, 1024);
    assert_int_equal(config.sample_tokens, 1024);
    assert_int_equal(config.warmup, 1000);
    assert_int_equal(config.shape.layers, 10);
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
    } sizes[] = {{"80G", 80000000000}, {"80g", 80000000000}, {"80GB", 80000000000},  {"1.5T", 1500000000000},
                 {"512M", 512000000},  {"512k", 512000},     {"75GiB", 80530636800}, {"123456789B", 123456789}};
    char line[128];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(line, sizeof line, "--plan --memory-limit %s", sizes[i].text);
        accept(line);
        assert_true(config.memory_limit == sizes[i].bytes);
    }
    refuse("--plan --memory-limit 80", EXIT_USER, "--memory-limit 80: a size needs its unit; 80GB?");
    refuse("--plan --memory-limit 79.5", EXIT_USER, "79.5GB?");
    refuse("--plan --memory-limit 80000000000", EXIT_USER, "needs its unit; 80000000000B?");
    refuse("--plan --memory-limit 80Gi", EXIT_USER, "--memory-limit 80Gi: must be a size such as 80GB or 80G (10^9");
}

static void test_malformed(void **state) {
    (void)state;
    refuse("--tran x", EXIT_USER, "--tran: unknown flag&did you mean --train?");
    refuse("--no-shufle --train x", EXIT_USER, "--no-shufle&--shuffle");
    refuse("--nosuchthingatall 5", EXIT_USER, "--nosuchthingatall: unknown flag&--help");
    refuse("-train x", EXIT_USER, "-train: here it is --train");
    refuse("-- --train x", EXIT_USER, "--");
    refuse("x.bin", EXIT_USER, "x.bin: not a flag");
    refuse("--plan json", EXIT_USER, "--plan=json");
    refuse("--train x --resume 20", EXIT_USER, "--resume=20");
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
    refuse("--help=html", EXIT_USER, "--help=html&--help=markdown");
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

// What other trainers call a flag is answered with its name here; other words get a suggestion only where it is near.
static void test_unknown(void **state) {
    (void)state;
    static const char *const names[][2] = {{"--learning-rate", "lr"},
                                           {"--lr-rate", "lr"},
                                           {"--max-steps", "steps"},
                                           {"--max-iters", "steps"},
                                           {"--train-iters", "steps"},
                                           {"--num_iterations", "steps"},
                                           {"--block-size", "seq-len"},
                                           {"--warmup-steps", "warmup"},
                                           {"--warmup_iters", "warmup"},
                                           {"--lr-warmup-iters", "warmup"},
                                           {"--output-dir", "out"},
                                           {"--out_dir", "out"},
                                           {"--save-interval", "save-every"},
                                           {"--eval_interval", "val-every"},
                                           {"--wd", "weight-decay"},
                                           {"--hidden-size", "channels"},
                                           {"--n_layer", "layers"},
                                           {"--n-head", "heads"},
                                           {"--n-embd", "channels"},
                                           {"--max-grad-norm", "grad-clip"},
                                           {"--adam-beta2", "beta2"},
                                           {"--vocab-size", "vocab"},
                                           {"--total_batch_size", "batch-tokens"},
                                           {"--save-total-limit", "keep"},
                                           {"--input_bin", "train"},
                                           {"--optimizer.lr", "lr"},
                                           {"--training.seq_len", "seq-len"},
                                           {"--lr_scheduler.warmup_steps", "warmup"},
                                           {"--checkpoint.interval", "save-every"},
                                           {"--batch_tokens", "batch-tokens"},
                                           {"--no_shuffle", "no-shuffle"},
                                           {"--disable-bias-linear", "no-biases"},
                                           {"-learning-rate", "lr"}};
    char line[128], said[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int joined = 0; joined < 2; joined++) {
            snprintf(line, sizeof line, "--train x %s%c5", names[i][0], joined ? '=' : ' ');
            snprintf(said, sizeof said, "%s: here it is --%s", names[i][0], names[i][1]);
            refuse(line, EXIT_USER, said);
        }
    refuse("--max-steps 5", EXIT_USER, "--max-steps: here it is --steps");
    assert_string_equal(error.text, "--max-steps: here it is --steps");
    refuse("--batch-size 5", EXIT_USER, "--batch-size: here it is --micro-batch; sequences per GPU&--batch-tokens");
    refuse("--per-device-train-batch-size 5", EXIT_USER, "here it is --micro-batch");
    refuse("--global-batch-size 5", EXIT_USER, "here it is --batch-tokens; in tokens: the sequences times --seq-len");
    refuse("--gradient-accumulation-steps 5", EXIT_USER, "here it is --batch-tokens; that many passes");
    refuse("--min-lr 6e-5", EXIT_USER, "--min-lr: here it is --lr-final; a share of --lr");
    refuse("--warmup-ratio 0.1", EXIT_USER, "here it is --warmup; in steps: the share x --steps");
    refuse("--dtype bfloat16", EXIT_USER, "--dtype: here it is --recipe; bf16, fp8-linear or coat");
    refuse("--epochs 3", EXIT_USER, "--epochs: unknown flag; --steps counts steps: -1 is one epoch");
    refuse("--num-train-epochs 3", EXIT_USER, "--num-train-epochs: unknown flag; --steps counts steps");
    refuse("--dropout=0.1", EXIT_USER, "--dropout: unknown flag; there is no dropout; leave it away");
    refuse("--tensor-model-parallel-size 2", EXIT_USER, "unknown flag; GPUs share a model by --zero");
    // slips, also of a foreign name, and beginnings
    refuse("--stpes 5", EXIT_USER, "--stpes: unknown flag; did you mean --steps?");
    refuse("--learing-rate 5", EXIT_USER, "--learing-rate: unknown flag; did you mean --lr?");
    refuse("--micro-bacth 5", EXIT_USER, "did you mean --micro-batch?");
    refuse("--overfit", EXIT_USER, "did you mean --overfit-one-batch?");
    refuse("--lrr 5", EXIT_USER, "did you mean --lr?");
    static const char *const far[] = {"--maximum", "--mask",     "--colour", "--stop",
                                      "--zz",      "--gradient", "--fast",   "---"};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        refuse(far[i], EXIT_USER, "unknown flag; --help lists them all");
        assert_null(strstr(error.text, "did you mean"));
    }
    char longest[200] = "--";
    memset(longest + 2, 'x', sizeof longest - 3);
    refuse(longest, EXIT_USER, "unknown flag; --help lists them all");
}

// A foreign name that is also one of ours would never be answered; what it is answered with must exist.
static void test_unknown_names_flags(void **state) {
    (void)state;
    int count, rows = 0;
    bool negated;
    for (const Foreign *row = flag_foreign(&count); rows < count; rows++, row++) {
        if (row->ours && !flag_find(row->ours, strlen(row->ours), &negated)) fail_msg("--%s is no flag", row->ours);
        if (!row->ours) assert_non_null(row->remark);
        for (const char *name = row->names; *name; name += strcspn(name, " "), name += *name == ' ')
            if (flag_find(name, strcspn(name, " "), &negated)) fail_msg("%s is a flag of ours", name);
    }
    assert_true(rows > 50);
}

static void test_too_long(void **state) {
    (void)state;
    char line[4000] = "--train x --out ";
    memset(line + 16, 'a', 2000);
    refuse(line, EXIT_USER, "--out: the value has 2000 characters, the limit is 1023");
}

// What a shell makes of a pattern without quotes, and a flag that is given more than once: one list, a name per line.
static void test_files(void **state) {
    (void)state;
    accept("--train a.bin b.bin c*.bin --val v.bin w.bin --steps 3");
    assert_string_equal(config.train, "a.bin\nb.bin\nc*.bin");
    assert_string_equal(config.val, "v.bin\nw.bin");
    assert_int_equal(config.steps, 3);
    accept("--train=a.bin b.bin --val v.bin --train c.bin d.bin --val=w.bin");
    assert_string_equal(config.train, "a.bin\nb.bin\nc.bin\nd.bin");
    assert_string_equal(config.val, "v.bin\nw.bin");
    accept("-i a.bin b.bin -j v.bin -b 8 --train c.bin");
    assert_string_equal(config.train, "a.bin\nb.bin\nc.bin");
    assert_string_equal(config.val, "v.bin");
    assert_int_equal(config.micro_batch, 8);
    accept("--train only.bin");
    assert_string_equal(config.train, "only.bin");
    refuse("--train a.bin --steps 5 b.bin", EXIT_USER, "b.bin: not a flag");
    refuse("--train a.bin --shuffle b.bin", EXIT_USER, "b.bin: not a flag");
    refuse("--train a.bin -stepz 4", EXIT_USER, "-stepz: unknown flag");
    refuse("--train a.bin '' b.bin", EXIT_USER, "--train: the value is empty");
    refuse("--train a.bin --train=", EXIT_USER, "--train: the value is empty");
    refuse("--train --val v.bin", EXIT_USER, "--train needs a value: --train GLOB");
    // 120 names of 40 characters are taken, 600 are not
    static char names[600][48];
    char *argv[602] = {(char *)"./train_gpt2_fp8", (char *)"--train"};
    for (int i = 0; i < 600; i++) {
        snprintf(names[i], sizeof names[i], "data/tokens/fineweb/fineweb_train_%06d.bin", i);
        argv[i + 2] = names[i];
    }
    assert_true(config_parse(&config, 122, argv, &printed, &error));
    assert_int_equal(strlen(config.train), 120 * 45 - 1);
    assert_false(config_parse(&config, 602, argv, &printed, &error));
    assert_message("--train with 600 names", EXIT_USER,
                   "--train: the names of 600 files have 26999 characters, the limit is 16383; quote the pattern");
}

// The command lines of llm.c's launch scripts, with their shell variables filled in.
static void test_llmc_scripts(void **state) {
    (void)state;
    accept_run("-i fineweb_train_*.bin -j fineweb_val_*.bin -o log_gpt2_124M -v 250 -s 20000 -g 144 -h 1 -b 64 -t 1024 "
               "-d 524288 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 700 -n 5000 -y 1 -e d12",
               1);
    assert_string_equal(config.train, "fineweb_train_*.bin");
    assert_string_equal(config.val, "fineweb_val_*.bin");
    assert_string_equal(config.out, "log_gpt2_124M");
    assert_int_equal(config.val_every, 250);
    assert_int_equal(config.sample_every, 20000);
    assert_int_equal(config.sample_tokens, 144);
    assert_int_equal(config.micro_batch, 64);
    assert_int_equal(config.batch_tokens, 524288);
    assert_true(config.weight_decay == 0.1f && config.lr == 0.0006f && config.lr_final == 0.0f);
    assert_int_equal(config.warmup, 700);
    assert_int_equal(config.save_every, 5000);
    assert_int_equal(config.zero, 1);
    assert_true(config.resume && !config.overwrite && config.resume_step == -1);
    assert_int_equal(config.shape.layers, 12);
    assert_non_null(strstr(config.notes, "HellaSwag"));
    assert_int_equal(config.recipe.kind, RECIPE_COAT);
    assert_int_equal(config.recipe.recompute, 0); // by -r 0
    assert_null(strstr(config.notes, "--recipe"));

    accept("-i a -j b -o c -v 250 -s 300000 -g 384 -h 1 -b 16 -t 1024 -d 1048576 -r 0 -z 1 -c 0.1 -k cosine -l 0.0006 "
           "-q 0.1 -u 700 -n 2000 -x 32000 -ge 1 -y 1 -e d48");
    assert_int_equal(config.steps, 32000);
    assert_int_equal(config.shape.channels, 1600);
    accept(
        "-i a -j b -o c -v 250 -s 100000 -g 144 -h 1 -b 64 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 -l 0.0003 -q 0.0 -u 700 "
        "-n 2000 -x 60000 -y 1 -e d24");
    accept(
        "-i a -j b -o c -v 250 -s 300000 -g 144 -h 1 -b 32 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 -l 0.00025 -q 0.0 -u 700 "
        "-n 4000 -x 286102 -y 1 -e d36");
    accept_run(
        "-i a -j b -o c -v 250 -s 20000 -g 144 -h 1 -b 32 -t 2048 -d 524288 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.1 -u 700 "
        "-n 10000 -nk 5 -nm 50000 -ge 1 -sl 7.0 -sg 7.0 -y 1 -x 572204 -e gpt3:c768",
        1);
    assert_int_equal(config.shape.positions, 2048);
    assert_int_equal(config.keep_every, 50000);
    assert_true(config.skip_loss_z == 7.0f && config.skip_grad_z == 7.0f);
    assert_null(strstr(config.notes, "--skip-loss-z"));
    // a batch that FP8 cannot take runs too; what the short flags mean stays
    accept_run("-i a -j b -o c -b 3 -t 60 -r 1 -w 1 -e d12", 1);
    assert_int_equal(config.recipe.kind, RECIPE_BF16);
    assert_int_equal(config.recipe.linear, LINEAR_BF16);
    assert_int_equal(config.recipe.recompute, 1);
    assert_int_equal(config.recipe.master, MASTER_FP32);
    assert_non_null(
        strstr(config.notes, "note: --recipe bf16: not coat, the default, because --micro-batch, --seq-len"));
    // several nodes: with a shared folder, TCP, and MPI
    accept(
        "-i a -j b -o c -v 250 -s 20000 -g 144 -h 1 -b 64 -t 1024 -d 2097152 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 700 "
        "-n 5000 -y 1 -e d12 -pn 16 -pr 3 -pg 8 -pf /shared -pi fs");
    assert_int_equal(config.world_size, 16);
    assert_int_equal(config.rank, 3);
    accept("-i a -j b -o c -b 64 -d 2097152 -e d12 -pn 16 -pr 3 -pg 8 -ps 10.0.1.220 -pi tcp");
    assert_string_equal(config.rendezvous, "10.0.1.220");
    accept("-i a -j b -o c -n 1000 -y 0 -e d12 -pi mpi");
    assert_true(!config.overwrite && !config.resume); // nothing is replaced that was not said to be
    accept("-i data/TinyStories -v 250 -s 250 -g 144 -l 0.0001 -o stories1.log");
}

static void test_short_flags(void **state) {
    (void)state;
    accept("-i a -d -1 -m -1 -x -1 -a 1 -w 0 -f 1 -lg -1 -h 0 -k wsd");
    assert_int_equal(config.batch_tokens, 0);
    assert_int_equal(config.val_batches, -1);
    assert_int_equal(config.steps, -1);
    assert_true(config.overfit_one_batch);
    assert_int_equal(config.recipe.master, MASTER_NONE);
    assert_int_equal(config.schedule, SCHEDULE_WSD);
    assert_string_equal(config.notes, "");
    accept("-i a -b 8 --micro-batch 16"); // short and long ones are the same flag: the last wins
    assert_int_equal(config.micro_batch, 16);
    accept("--micro-batch 16 -b 8 -i a -o o -y 0 -y 1");
    assert_int_equal(config.micro_batch, 8);
    assert_true(config.resume && !config.overwrite);
    accept("-i a -e d60");
    assert_int_equal(config.shape.channels, 1920);
    refuse("-i a -y 2 -o o", EXIT_USER, "-y 2: must be 0 or 1");
    refuse("-i a -b x", EXIT_USER, "--micro-batch x: not a whole number");
    refuse("-i a -zz 3", EXIT_USER, "-zz: unknown flag");
}

// Reads what print() writes.
static char *capture(void (*print)(FILE *out)) {
    char *text = (char *)xcalloc(1, 1 << 16);
    FILE *file = tmpfile();
    assert_non_null(file);
    print(file);
    rewind(file);
    size_t length = fread(text, 1, (1 << 16) - 1, file);
    fclose(file);
    assert_in_range(length, 1000, (1 << 16) - 2);
    return text;
}

static void print_help(FILE *out) {
    flags_help(out, "train_gpt2_fp8");
}

static void test_help(void **state) {
    (void)state;
    int count, rows = 0;
    const Flag *table = flag_table(&count);
    char *help = capture(print_help), *markdown = capture(flags_help_markdown);
    int *seen = (int *)xcalloc((size_t)count, sizeof *seen);
    for (char *p = markdown; (p = strstr(p, "\n| `--")); p++) rows++;
    assert_int_equal(rows, count);
    for (char *line = strtok(help, "\n"); line; line = strtok(NULL, "\n")) {
        assert_in_range(strlen(line), 1, 100);
        bool negated;
        if (strncmp(line, "  --", 4) != 0) continue;
        const Flag *flag = flag_find(line + 4, strcspn(line + 4, " =[,"), &negated);
        assert_non_null(flag);
        seen[flag - table]++;
    }
    for (int i = 0; i < count; i++) assert_int_equal(seen[i], 1);
    free(seen);
    free(help);
    free(markdown);
}

static void test_help_defaults(void **state) {
    (void)state;
    char *help = capture(print_help);
    assert_non_null(strstr(help, "tokens per sequence (default 1024; -t)"));
    assert_non_null(strstr(help, "(default 0.0003; -l)"));
    assert_non_null(strstr(help, "order (default coat)"));
    free(help);
}

static void test_exit_now(void **state) {
    (void)state;
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    int saved = dup(1);
    dup2(fileno(file), 1);
    bool version = parse("--version") && printed, help = parse("--train x --help") && printed;
    bool markdown = parse("--help=markdown") && printed, none = parse("--train x") && !printed;
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    char text[64] = "";
    rewind(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, "train_gpt2_fp8 " COAT_VERSION "\n");
    assert_true(version && help && markdown && none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_flag_parses),
        cmocka_unit_test(test_names_are_unique),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_unknown_names_flags),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_short_flags),
        cmocka_unit_test(test_llmc_scripts),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_help_defaults),
        cmocka_unit_test(test_exit_now),
    };
    return cmocka_run_group_tests_name("flags", tests, NULL, NULL);
}
