// Tests of the ways to give flags: llm.c's command lines, unknown names, lists of files, files of flags.
#include "coat/flags/flags.h"
#include "config_fixture.h"
#include "test_folder.h"

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
    refuse("-i a -b4", EXIT_USER, "-b4: unknown flag");
    refuse("-1", EXIT_USER, "-1: unknown flag; --help lists them all");
}

// Another trainer's flag is refused with its name here, a misspelled one with the nearest name.
static void test_unknown(void **state) {
    (void)state;
    static const char *const names[][2] = {{"--learning-rate", "use --lr"},
                                           {"--max_steps", "use --steps"},
                                           {"--max-iters", "use --steps"},
                                           {"--train-iters", "use --steps"},
                                           {"--num-train-epochs", "use --epochs"},
                                           {"--per_device_train_batch_size", "use --micro-batch"},
                                           {"--batch-size", "use --micro-batch"},
                                           {"--gradient-accumulation-steps", "use --batch-tokens"},
                                           {"--block-size", "use --seq-len"},
                                           {"--warmup_iters", "use --warmup"},
                                           {"--clip-grad", "use --grad-clip"},
                                           {"--out_dir", "use --out"},
                                           {"--dataset", "use --train"},
                                           {"-init-from", "use --model"},
                                           {"--n_layer", "use --layers"},
                                           {"--n-head", "use --heads"},
                                           {"--hidden-size", "use --channels"},
                                           {"--dtype", "use --recipe"},
                                           // other letters, dashes and line
                                           {"--batch_tokens", "did you mean --batch-tokens?"},
                                           {"--LR", "did you mean --lr?"},
                                           {"-train", "did you mean --train?"},
                                           {"--no_shuffle", "did you mean --no-shuffle?"},
                                           // misspelled, or only the beginning
                                           {"--stpes", "did you mean --steps?"},
                                           {"--micro-bacth", "did you mean --micro-batch?"},
                                           {"--overfit", "did you mean --overfit-one-batch?"},
                                           {"--lrr", "did you mean --lr?"},
                                           {"--fast", "did you mean --fast-accumulation-data?"},
                                           {"--no-quite", "did you mean --no-quiet?"},
                                           {"--no-val", "--val"},
                                           // far from every name
                                           {"--maximum", "--help"},
                                           {"--mask", "--help"},
                                           {"--stop", "--help"},
                                           {"--no-dropout", "--help"},
                                           {"---", "--help"},
                                           {"-1", "--help"}};
    char line[128], said[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int joined = 0; joined < 2; joined++) {
            snprintf(line, sizeof line, "--train x %s%c5", names[i][0], joined ? '=' : ' ');
            snprintf(said, sizeof said, "%s: unknown flag; &%s", names[i][0], names[i][1]);
            refuse(line, EXIT_USER, said);
            bool negated; // the flag that is named exists
            const char *flag = strrchr(error.text, ';');
            if ((flag = strstr(flag, "use --")) && !flag_find(flag + 6, strcspn(flag + 6, " "), &negated))
                fail_msg("%s", error.text);
        }
    char longest[200] = "--";
    memset(longest + 2, 'x', sizeof longest - 3);
    refuse(longest, EXIT_USER, "unknown flag; --help");
    static const char *const meant[][2] = {{"-v", "-v &--val-every &--version"},
                                           {"-n", "-n &--save-every"},
                                           {"-f", "-f &remove it"},
                                           {"-y", "-y &--resume&--no-resume"}};
    for (size_t i = 0; i < sizeof meant / sizeof *meant; i++) refuse(meant[i][0], EXIT_USER, meant[i][1]);
}

static void test_unknown_models(void **state) {
    (void)state;
    static const char *const models[][2] = {{"lama:d4", "did you mean llama:d4?"},
                                            {"llama", "did you mean llama:dN?"},
                                            {"lama:d100", "did you mean llama:dN?"},
                                            {"gtp2", "did you mean gpt2?"},
                                            {"gpt2-larg", "did you mean gpt2-large?"},
                                            {"mistral", "did you mean mistral-7b?"},
                                            {"qwen2.5-0.5", "did you mean qwen2.5-0.5b?"},
                                            {"olno2:d8", "did you mean olmo2:d8?"},
                                            {"llama:d100", "llama:dN, of 1 to 96 layers"},
                                            {"d100", "dN, of 1 to 96 layers"},
                                            // another number is another model
                                            {"gpt5", "gpt2, "},
                                            {"llama2", "gpt2, "},
                                            {"llama2-70b", "gpt2, "},
                                            {"qwen:d4", "gpt2, "},
                                            {"xyz", "gpt2, "},
                                            {":", "gpt2, "},
                                            {"d", "gpt2, "}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char given[64], wanted[128];
        snprintf(given, sizeof given, "--model %s", models[i][0]);
        snprintf(wanted, sizeof wanted, "%s: &%s", given, models[i][1]);
        refuse(given, EXIT_USER, wanted);
    }
}

// What a shell makes of a pattern without quotes: one list, a name per line.
static void test_files(void **state) {
    (void)state;
    accept("--train a.bin b.bin c*.bin --val v.bin w.bin --steps 3");
    assert_string_equal(config.train, "a.bin\nb.bin\nc*.bin");
    assert_string_equal(config.val, "v.bin\nw.bin");
    assert_int_equal(config.steps, 3);
    accept("--val v.bin w.bin --train=a.bin b.bin --val=x.bin");
    assert_string_equal(config.train, "a.bin\nb.bin");
    assert_string_equal(config.val, "x.bin");
    accept("-i a.bin b.bin c.bin -j v.bin -b 8");
    assert_string_equal(config.train, "a.bin\nb.bin\nc.bin");
    assert_string_equal(config.val, "v.bin");
    assert_int_equal(config.micro_batch, 8);
    accept("--train only.bin");
    assert_string_equal(config.train, "only.bin");
    refuse("--train a.bin --steps 5 b.bin", EXIT_USER, "b.bin: not a flag");
    refuse("--train a.bin --shuffle b.bin", EXIT_USER, "b.bin: not a flag");
    refuse("--train a.bin -stepz 4", EXIT_USER, "-stepz: unknown flag");
    refuse("--train a.bin '' b.bin", EXIT_USER, "not a flag");
    refuse("--train a.bin --train=", EXIT_USER, "--train: the value is empty");
    refuse("--train --val v.bin", EXIT_USER, "--train needs a value: --train GLOB");
    // 120 names of 40 characters are taken, 600 are not
    static char names[600][48];
    char *argv[602] = {(char *)"./train_gpt2_fp8", (char *)"--train"};
    for (int i = 0; i < 600; i++) {
        snprintf(names[i], sizeof names[i], "data/tokens/fineweb/fineweb_train_%06d.bin", i);
        argv[i + 2] = names[i];
    }
    assert_true(parse_words(122, argv));
    assert_int_equal(strlen(config.train), 120 * 45 - 1);
    assert_false(parse_words(602, argv));
    assert_message("--train with 600 names", EXIT_USER,
                   "--train: its files' names have 26999 characters, the limit is 16383; quote the pattern");
}

static const char *config_file(const char *name, const char *text) {
    const char *path = path_of(name);
    write_text(path, text);
    return path;
}

// The file is refused, in its line `number` (0: as a whole).
static void refuse_file(const char *text, int number, ExitCode code, const char *parts) {
    char line[4096], said[2048];
    const char *path = config_file("bad", text);
    snprintf(line, sizeof line, "--train x --config %s", path);
    refuse(line, code, parts);
    snprintf(said, sizeof said, "%s:%d: ", path, number);
    if (number && strncmp(error.text, said, strlen(said)) != 0) fail_msg("%s\n  says: %s", text, error.text);
}

static void test_config_file(void **state) {
    (void)state;
    char line[4096];
    const char *path = config_file("run", "# a run\n"
                                          "--train 'data/my tokens.bin' b*.bin c#.bin  # three\n"
                                          "\n"
                                          "\t--lr 6e-4\r\n"
                                          "--steps=20k\n"
                                          "-b 16\n"
                                          "--no-shuffle\n"
                                          "--prompt \"a # b\"");
    snprintf(line, sizeof line, "--config %s", path);
    accept(line);
    assert_string_equal(config.train, "data/my tokens.bin\nb*.bin\nc#.bin");
    assert_true(config.lr == 6e-4f);
    assert_int_equal(config.steps, 20000);
    assert_int_equal(config.micro_batch, 16);
    assert_false(config.shuffle);
    assert_string_equal(config.prompt, "a # b");
    // what is on the command line wins, on either side; the presets are those of both together
    snprintf(line, sizeof line, "--lr 1e-4 --config=%s --train d.bin --shuffle --micro-batch 8", path);
    accept(line);
    assert_string_equal(config.train, "d.bin");
    assert_true(config.lr == 1e-4f && config.shuffle);
    assert_int_equal(config.micro_batch, 8);
    assert_int_equal(config.steps, 20000);
    // of two files the later one
    char first[TEST_PATH];
    snprintf(first, sizeof first, "%s", path);
    path = config_file("more", "--steps 5\n--recipe bf16\n--train e.bin\n");
    snprintf(line, sizeof line, "--config %s --config %s --moments fp8", first, path);
    accept(line);
    assert_int_equal(config.steps, 5);
    assert_string_equal(config.train, "e.bin");
    assert_int_equal(config.recipe.kind, RECIPE_BF16);
    assert_int_equal(config.recipe.moments, MOMENTS_FP8);
    snprintf(line, sizeof line, "--config %s --train x", config_file("empty", ""));
    accept(line);
    // as other systems' editors write it
    snprintf(
        line, sizeof line, "--config %s",
        config_file("windows", "\xEF\xBB\xBF--train 'a b.bin'\r\n\r\n# \\\r\n--steps 7 # \\\r\n--prompt \"c\\\"\r\n"));
    accept(line);
    assert_string_equal(config.train, "a b.bin");
    assert_int_equal(config.steps, 7);
    assert_string_equal(config.prompt, "c\\");
    // a list takes the place of the file's, weights and all
    snprintf(line, sizeof line, "--config %s --train y z --train w",
             config_file("sets", "--train a\n--train-weight 1\n--train b\n--train-weight 2\n"));
    accept(line);
    assert_string_equal(config.train, "y\nz\n\nw");
    assert_null(config_weights(&config));
    // a weight on the command line is of a --train there
    char sets[TEST_PATH];
    snprintf(sets, sizeof sets, "%s", path_of("sets"));
    snprintf(line, sizeof line, "--config %s --train y --train-weight 3 --train z --train-weight 4", sets);
    accept(line);
    assert_string_equal(config.train, "y\n\nz");
    assert_true(config_weights(&config)[0] == 3.0 && config_weights(&config)[1] == 4.0);
    snprintf(line, sizeof line, "--config %s --train-weight 0.5", sets);
    refuse(line, EXIT_USER,
           "--train-weight 0.5: no --train stands before it here, and that of --config keeps what the "
           "file says; write it behind the one that it is of");
    snprintf(line, sizeof line, "--train-weight=0.5 --train y --config %s", sets);
    refuse(line, EXIT_USER, "--train-weight 0.5: no --train stands before it here, and that of --config");
    snprintf(line, sizeof line, "--config %s --config %s", sets, config_file("weight", "--lr 1\n--train-weight 2\n"));
    refuse(line, EXIT_USER, "weight:2: --train-weight 2: no --train stands before it here, and that of --config");
    // a list takes the place of the file's
    Arguments args;
    char notes[8] = "", *argv[] = {(char *)"x", (char *)"--config", first, (char *)"--train", (char *)"f", (char *)"g"};
    int lists = 0;
    assert_true(arguments_rewrite(&args, 6, argv, notes, sizeof notes, &error));
    for (int i = 0; i < args.count; i++) {
        if (strncmp(args.text[i], "--train=", 8) != 0) continue;
        assert_string_equal(args.text[i], "--train=f\ng");
        lists++;
    }
    assert_int_equal(lists, 1);
    arguments_free(&args);
}

static void test_config_file_errors(void **state) {
    (void)state;
    char line[4096];
    refuse_file("--lr 1\n\n--max-steps 5\n", 3, EXIT_USER, ":3: --max-steps: &--steps");
    refuse_file("# one\n--lr fast", 2, EXIT_USER, ":2: --lr fast: not a number");
    refuse_file("--steps 5\n--lr\n--seed 3\n", 2, EXIT_USER, ":2: --lr needs a value: --lr RATE");
    refuse_file("--steps 5\n--resume runs/x\n", 2, EXIT_USER, ":2: --resume runs/x: &: --out runs/x --resume");
    refuse_file("--shuffle yes\n", 1, EXIT_USER,
                ":1: yes: not a flag, and --shuffle takes no value; write --shuffle or");
    refuse_file("--steps 5 6\n", 1, EXIT_USER, ":1: 6: not a flag");
    refuse_file("lr 3e-4\n", 1, EXIT_USER, ":1: lr: write the line as on the command line: --lr 3e-4");
    refuse_file("--steps 5\nlr = 3e-4\n", 2, EXIT_USER, ":2: lr: write the line as on the command line: --lr 3e-4");
    refuse_file("--lr = 3e-4\n", 1, EXIT_USER, "--lr: write the line as on the command line: --lr 3e-4");
    refuse_file("lr=3e-4\n", 1, EXIT_USER, "write the line as on the command line: --lr=3e-4");
    refuse_file("--prompt 'a b\n", 1, EXIT_USER, ":1: a ' is missing: quotes end on the line that they begin on");
    static const char *const continued[] = {"--lr 1\n--steps 5 \\\n--seed 3\n", "--lr 1\n--steps 5\\\r\n",
                                            "#\n--steps 5 \\ \t"};
    for (size_t i = 0; i < sizeof continued / sizeof *continued; i++)
        refuse_file(continued[i], 2, EXIT_USER,
                    ":2: the line ends in \\, which joins no lines here: write a flag and all its values on one line, "
                    "without the \\");
    refuse_file("\xEF\xBB\xBFlr 1\n", 1, EXIT_USER, ":1: lr: write the line as on the command line: --lr 1");
    refuse_file("-y 2\n", 1, EXIT_USER, ":1: -y 2: must be 0 or 1");
    // no file reads another, nor itself
    refuse_file("--lr 1\n--config other\n", 2, EXIT_USER, ":2: --config: a file of flags reads no other; name both");
    refuse_file("--config=bad\n", 1, EXIT_USER, ":1: --config: a file of flags reads no other");
    // a flag that is wrong in the file is so, too, where the command line has another
    snprintf(line, sizeof line, "--train x --lr 1 --config %s", config_file("bad", "--lr fast\n"));
    refuse(line, EXIT_USER, "bad:1: --lr fast: not a number");
    // of both together
    snprintf(line, sizeof line, "--train x --out o --overwrite --config %s", config_file("good", "--resume\n"));
    refuse(line, EXIT_USER, "--resume contradicts --overwrite");
    snprintf(line, sizeof line, "--train x --config %s", path_of("none"));
    refuse(line, EXIT_DATA, "--config: cannot open &/none: No such file");
    snprintf(line, sizeof line, "--train x --config %s", test_folder);
    refuse(line, EXIT_DATA, "--config: &is not a regular file");
    refuse("--train x --config", EXIT_USER, "--config needs a value: --config FILE");
    refuse("--train x --config --lr 1", EXIT_USER, "--config needs a value: --config FILE");
    refuse("--train x --config=", EXIT_USER, "--config: the value is empty");
    const char *path = path_of("binary");
    write_file(path, "--lr 1\n\0", 8);
    snprintf(line, sizeof line, "--train x --config %s", path);
    refuse(line, EXIT_DATA, "--config: &is no text");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llmc_scripts),
        cmocka_unit_test(test_short_flags),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_unknown_models),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_config_file),
        cmocka_unit_test(test_config_file_errors),
    };
    return cmocka_run_group_tests_name("flags as given", tests, test_folder_make, test_folder_remove);
}
