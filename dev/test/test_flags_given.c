// Tests of llm.c's short flags, unknown flags and models, lists of files, and files of flags (--config).
#include "config_fixture.h"
#include "test_folder.h"

// Tests that the command lines of llm.c's launch scripts (with shell variables expanded) are accepted.
UNIT_TEST(command_lines_of_llmc_are_accepted) {
    sets("-i fineweb_train_*.bin -j fineweb_val_*.bin -o log_gpt2_124M -v 250 -s 20000 -g 144 -h 1 -b 64 -t 1024 "
         "-d 524288 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 700 -n 5000 -y 1 -e d12",
         "val-every 250, sample-every 20000, sample-tokens 144, micro-batch 64, batch-tokens 524288, weight-decay 0.1, "
         "lr 0.0006, lr-final 0, warmup 700, save-every 5000, zero 1, layers 12, recipe coat, recompute 0, "
         "overwrite off");
    assert_string_equal(config.train, "fineweb_train_*.bin");
    assert_string_equal(config.val, "fineweb_val_*.bin");
    assert_string_equal(config.out, "log_gpt2_124M");
    assert_true(config.resume && config.resume_step == -1);
    assert_non_null(strstr(config.notes, "HellaSwag"));
    assert_null(strstr(config.notes, "--recipe"));
    sets("-i a -j b -o c -v 250 -s 300000 -g 384 -h 1 -b 16 -t 1024 -d 1048576 -r 0 -z 1 -c 0.1 -k cosine -l 0.0006 "
         "-q 0.1 -u 700 -n 2000 -x 32000 -ge 1 -y 1 -e d48",
         "steps 32000, channels 1600");
    sets("-i a -j b -o c -v 250 -s 100000 -g 144 -h 1 -b 64 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 -l 0.0003 -q 0.0 -u 700 "
         "-n 2000 -x 60000 -y 1 -e d24",
         "layers 24");
    sets("-i a -j b -o c -v 250 -s 300000 -g 144 -h 1 -b 32 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 -l 0.00025 -q 0.0 "
         "-u 700 -n 4000 -x 286102 -y 1 -e d36",
         "layers 36, lr 0.00025");
    sets("-i a -j b -o c -v 250 -s 20000 -g 144 -h 1 -b 32 -t 2048 -d 524288 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.1 -u 700 "
         "-n 10000 -nk 5 -nm 50000 -ge 1 -sl 7.0 -sg 7.0 -y 1 -x 572204 -e gpt3:c768",
         "positions 2048, keep 5, keep-every 50000, skip-loss-z 7, skip-grad-z 7");
    assert_null(strstr(config.notes, "--skip-loss-z"));
    // FP8 does not support 3 x 60 tokens, so the run uses BF16. Short flags keep their meaning.
    sets("-i a -j b -o c -b 3 -t 60 -r 1 -w 1 -e d12", "recipe bf16, linear bf16, recompute 1, master fp32");
    assert_non_null(strstr(config.notes, "note: --recipe bf16: "));
    // Several nodes: the processes connect through a shared folder (fs), TCP or MPI.
    accept(
        "-i a -j b -o c -v 250 -s 20000 -g 144 -h 1 -b 64 -t 1024 -d 2097152 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 700 "
        "-n 5000 -y 1 -e d12 -pn 16 -pr 3 -pg 8 -pf /shared -pi fs");
    assert_int_equal(config.world_size, 16);
    assert_int_equal(config.rank, 3);
    accept("-i a -j b -o c -b 64 -d 2097152 -e d12 -pn 16 -pr 3 -pg 8 -ps 10.0.1.220 -pi tcp");
    assert_string_equal(config.rendezvous, "10.0.1.220");
    accept("-i a -j b -o c -n 1000 -y 0 -e d12 -pi mpi");
    assert_true(!config.overwrite && !config.resume);
    accept("-i data/TinyStories -v 250 -s 250 -g 144 -l 0.0001 -o stories1.log");
}

// Tests llm.c's short flags, alone and mixed with long flags. An invalid or missing value, or a value without a space
// before it (-b4), is an error.
UNIT_TEST(short_flags_of_llmc_have_the_same_meaning) {
    sets("-i a -d -1 -m -1 -x -1 -a 1 -w 0 -f 1 -lg -1 -h 0 -k wsd",
         "batch-tokens 0, val-batches -1, steps -1, overfit-one-batch on, master none, schedule wsd");
    assert_string_equal(config.notes, "");
    sets("-i a -b 8 --micro-batch 16", "micro-batch 16"); // short and long name of one flag: the last value counts
    sets("-i a --micro-batch 16 -b 8", "micro-batch 8");
    accept("-i a -o o -y 0 -y 1");
    assert_true(config.resume && !config.overwrite);
    sets("-i a -e d60", "channels 1920");
    static const char *const bad[] = {"-y 2&0 or 1",     "-b4&unknown flag", "-v&--val-every&--version",
                                      "-n&--save-every", "-f&remove",        "-y&--resume&--no-resume"};
    REFUSE_EACH("-i a -o o", bad);
    refuse("-i a -b x", EXIT_USER, "--micro-batch x: ");
}

// Tests errors about unknown flags: another trainer's flag suggests this program's, a misspelled flag the nearest.
UNIT_TEST(errors_about_unknown_flags_suggest_a_flag) {
    static const char *const flags[] = {
        "--learning-rate&use --lr", "--max_steps&use --steps", "--max-iters&use --steps", "--train-iters&use --steps",
        "--num-train-epochs&use --epochs", "--per_device_train_batch_size&use --micro-batch",
        "--batch-size&use --micro-batch", "--gradient-accumulation-steps&use --batch-tokens",
        "--block-size&use --seq-len", "--warmup_iters&use --warmup", "--clip-grad&use --grad-clip",
        "--out_dir&use --out", "--dataset&use --train", "-init-from&use --model", "--n_layer&use --layers",
        "--n-head&use --heads", "--hidden-size&use --channels", "--dtype&use --recipe",
        // flags in upper case, with underscores or with a single dash
        "--batch_tokens&mean --batch-tokens?", "--LR&mean --lr?", "-train&mean --train?",
        "--no_shuffle&mean --no-shuffle?",
        // misspelled or abbreviated
        "--stpes&mean --steps?", "--micro-bacth&mean --micro-batch?", "--overfit&mean --overfit-one-batch?",
        "--lrr&mean --lr?", "--fast&mean --fast-accumulation-data?", "--no-quite&mean --no-quiet?",
        "--no-val&--val has no",
        // not similar to any flag
        "--maximum&--help", "--mask&--help", "--stop&--help", "--no-dropout&--help", "---&--help", "-1&--help"};
    REFUSE_EACH("--train x", flags);
    refuse("--max-steps=5", EXIT_USER, "--max-steps&use --steps");
    char longest[200] = "--";
    memset(longest + 2, 'x', sizeof longest - 3);
    refuse(longest, EXIT_USER, "unknown flag; --help");
}

// Tests that an error about an unknown model names a similar model or lists the models.
UNIT_TEST(errors_about_unknown_models_suggest_a_model) {
    static const char *const models[] = {
        "--model lama:d4&mean llama:d4?", "--model llama&mean llama:dN?", "--model lama:d100&mean llama:dN?",
        "--model gtp2&mean gpt2?", "--model gpt2-larg&mean gpt2-large?", "--model mistral&mean mistral-7b?",
        "--model qwen2.5-0.5&mean qwen2.5-0.5b?", "--model olno2:d8&mean olmo2:d8?",
        "--model llama:d100&llama:dN, with 1 to 96 layers", "--model d100&dN, with 1 to 96 layers",
        // No correction is suggested that would change the number in a model name.
        "--model gpt5&gpt2, ", "--model llama2&gpt2, ", "--model llama2-70b&gpt2, ", "--model qwen:d4&gpt2, ",
        "--model xyz&gpt2, ", "--model :&gpt2, ", "--model d&gpt2, "};
    REFUSE_EACH("", models);
}

// Tests that --train and --val accept several names, because a shell expands unquoted patterns. Config stores the names
// one per line.
UNIT_TEST(train_and_val_accept_several_file_names) {
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
    // 120 names of 44 characters fit into the value of --train, but 600 names do not.
    static char names[600][48];
    char *argv[602] = {(char *)"./train_gpt2_fp8", (char *)"--train"};
    for (int i = 0; i < 600; i++) {
        snprintf(names[i], sizeof names[i], "data/tokens/fineweb/fineweb_train_%06d.bin", i);
        argv[i + 2] = names[i];
    }
    assert_true(parse_words(122, argv));
    assert_int_equal(strlen(config.train), 120 * 45 - 1);
    assert_false(parse_words(602, argv));
    assert_message("--train with 600 names", EXIT_USER, "--train: &26999 characters&16383&quote the pattern");
}

// Writes a file of flags into the test's folder and returns its path.
static const char *config_file(const char *name, const char *text) {
    const char *path = path_of(name);
    write_text(path, text);
    return path;
}

// Asserts that a file of flags is refused with an error that begins with its path and line number `number`.
static void refuse_file(const char *text, int number, const char *parts) {
    const char *path = config_file("bad", text);
    refuse(formatted("--train x --config %s", path), EXIT_USER, parts);
    const char *said = formatted("%s:%d: ", path, number);
    if (strncmp(error.text, said, strlen(said)) != 0) fail_msg("%s\n  says: %s", text, error.text);
}

UNIT_TEST(flags_are_read_from_a_config_file) {
    const char *path = config_file("run", "# a run\n"
                                          "--train 'data/my tokens.bin' b*.bin c#.bin  # three\n"
                                          "\n"
                                          "\t--lr 6e-4\r\n"
                                          "--steps=20k\n"
                                          "-b 16\n"
                                          "--no-shuffle\n"
                                          "--prompt \"a # b\"");
    sets(formatted("--config %s", path), "lr 0.0006, steps 20000, micro-batch 16, shuffle off");
    assert_string_equal(config.train, "data/my tokens.bin\nb*.bin\nc#.bin");
    assert_string_equal(config.prompt, "a # b");
    // Flags on the command line override the file's flags, before and after --config.
    sets(formatted("--lr 1e-4 --config=%s --train d.bin --shuffle --micro-batch 8", path),
         "lr 0.0001, shuffle on, micro-batch 8, steps 20000");
    assert_string_equal(config.train, "d.bin");
    // If two --config files set the same flag, the later file's value counts.
    sets(formatted("--config %s --config %s --moments fp8", path_of("run"),
                   config_file("more", "--steps 5\n--recipe bf16\n--train e.bin\n")),
         "steps 5, recipe bf16, moments fp8");
    assert_string_equal(config.train, "e.bin");
    accept(formatted("--config %s --train x", config_file("empty", "")));
    // A file of flags with a byte order mark and CR LF line ends.
    sets(formatted("--config %s",
                   config_file("windows",
                               "\xEF\xBB\xBF--train 'a b.bin'\r\n\r\n# \\\r\n--steps 7 # \\\r\n--prompt \"c\\\"\r\n")),
         "steps 7");
    assert_string_equal(config.train, "a b.bin");
    assert_string_equal(config.prompt, "c\\");
    // --train on the command line replaces the file's data sets and weights.
    config_file("sets", "--train a\n--train-weight 1\n--train b\n--train-weight 2\n");
    const char *sets_file = path_of("sets");
    accept(formatted("--config %s --train y z --train w", sets_file));
    assert_string_equal(config.train, "y\nz\n\nw");
    assert_null(config_weights(&config));
    // --train-weight on the command line must follow a --train on the command line.
    accept(formatted("--config %s --train y --train-weight 3 --train z --train-weight 4", sets_file));
    assert_string_equal(config.train, "y\n\nz");
    assert_true(config_weights(&config)[0] == 3.0 && config_weights(&config)[1] == 4.0);
    refuse(formatted("--config %s --train-weight 0.5", sets_file), EXIT_USER, "--train-weight 0.5: no --train ");
    refuse(formatted("--train-weight=0.5 --train y --config %s", sets_file), EXIT_USER,
           "--train-weight 0.5: no --train ");
    refuse(formatted("--config %s --config %s", sets_file, config_file("weight", "--lr 1\n--train-weight 2\n")),
           EXIT_USER, "weight:2: --train-weight 2: no --train ");
}

UNIT_TEST(errors_in_a_config_file_name_the_line) {
    static const struct {
        const char *text;
        int number;
        const char *parts;
    } files[] = {{"--lr 1\n\n--max-steps 5\n", 3, ":3: --max-steps: &--steps"},
                 {"# one\n--lr fast", 2, ":2: --lr fast: "},
                 {"--steps 5\n--lr\n--seed 3\n", 2, ":2: --lr needs a value"},
                 {"--steps 5\n--resume runs/x\n", 2, ":2: --resume runs/x: &: --out runs/x --resume"},
                 {"--shuffle yes\n", 1, ":1: yes: "},
                 {"--steps 5 6\n", 1, ":1: 6: "},
                 {"lr 3e-4\n", 1, ":1: lr: &: --lr 3e-4"},
                 {"--steps 5\nlr = 3e-4\n", 2, ":2: lr: &: --lr 3e-4"},
                 {"--lr = 3e-4\n", 1, "--lr: &: --lr 3e-4"},
                 {"lr=3e-4\n", 1, ": --lr=3e-4"},
                 {"--prompt 'a b\n", 1, ":1: a closing '"},
                 {"--lr 1\n--steps 5 \\\n--seed 3\n", 2, ":2: \\ "},
                 {"--lr 1\n--steps 5\\\r\n", 2, ":2: \\ "},
                 {"#\n--steps 5 \\ \t", 2, ":2: \\ "},
                 {"\xEF\xBB\xBFlr 1\n", 1, ":1: lr: "},
                 {"-y 2\n", 1, ":1: -y 2: "},
                 {"--lr 1\n--config other\n", 2, ":2: --config: "},
                 {"--config=bad\n", 1, ":1: --config: "}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        refuse_file(files[i].text, files[i].number, files[i].parts);
    // An invalid flag in a file of flags is refused even if the command line overrides it.
    refuse(formatted("--train x --lr 1 --config %s", config_file("bad", "--lr fast\n")), EXIT_USER,
           "bad:1: --lr fast: ");
    refuse(formatted("--train x --out o --overwrite --config %s", config_file("good", "--resume\n")), EXIT_USER,
           "--resume&--overwrite");
    refuse(formatted("--train x --config %s", path_of("none")), EXIT_DATA, "--config: &/none: ");
    refuse(formatted("--train x --config %s", test_folder), EXIT_DATA, "--config: &is not a regular file");
    refuse("--train x --config", EXIT_USER, "--config needs a value");
    refuse("--train x --config --lr 1", EXIT_USER, "--config needs a value");
    refuse("--train x --config=", EXIT_USER, "--config: the value is empty");
    write_file(path_of("binary"), "--lr 1\n\0", 8);
    refuse(formatted("--train x --config %s", path_of("binary")), EXIT_DATA, "--config: &is not a text file");
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
