// Tests of background checkpoints (coat/save/saver.h): the files contain the run's state at the call of saver_save(), a
// failed save is reported once and leaves no files, and the run's folder is checked before each save.
#include <omp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "dev/test/checkpoint_run.h"

#include "coat/save/saver.h"

static Error err; // error of the last failed call

// A run with a log and a saver of checkpoints in the folder config.out.
typedef struct {
    Run *run;
    Config config;
    Log *log;
    Saver *saver;
} Saving;

static Saving saving_open(Run *run, const char *out) {
    Saving s;
    s.run = run;
    s.config = run->config;
    s.config.quiet = true;
    s.config.save_every = 10;
    snprintf(s.config.out, sizeof s.config.out, "%s", path_of(out));
    s.log = log_open(&s.config, 0, 100, 1, 0, &err);
    if (!s.log) fail_msg("%s", err.text);
    return s;
}

static void saving_close(Saving *s) {
    saver_close(s->saver);
    log_close(s->log);
}

static void wait_for(Saving *s) {
    if (!saver_finish(s->saver, &err)) fail_msg("%s", err.text);
}

static void assert_same_checkpoints(const char *a, const char *b, const char *step) {
    const char *one = in(path_of(a), step), *other = in(path_of(b), step);
    for (size_t i = 0; i < FILES; i++) assert_same_files(in(one, files[i]), in(other, files[i]));
}

// Changes of the run's states after saver_save() has returned must not reach the checkpoint's files.
UNIT_TEST(later_changes_do_not_reach_a_background_save) {
    for (int recipe = RECIPE_BF16; recipe <= RECIPE_COAT; recipe += RECIPE_COAT - RECIPE_BF16) {
        Run *run = run_new((RecipeKind)recipe);
        RunState rs = fill(run, 3);
        save(run, "plain", &rs);
        Saving s = saving_open(run, "copy");
        s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
        assert_int_equal(saver_step(s.saver), -1);
        assert_true(saver_expected_ms(s.saver) > 0);
        saver_save(s.saver, &rs);
        each_state(run, fill_rubbish, NULL);
        rs.tokens++;
        assert_int_equal(saver_step(s.saver), 20);
        wait_for(&s);
        assert_true(saver_expected_ms(s.saver) > 0);
        saving_close(&s);
        assert_same_checkpoints("plain", "copy", "step-00000020");
        run_close(run);
    }
}

static int algos_calls; // number of calls of changing_algos()

static char *changing_algos(Exec *exec) {
    (void)exec;
    return strdup(formatted("row %d\n", algos_calls++));
}

// A checkpoint's matmul_table.txt contains the GEMM algorithms at the call of saver_save(). With --autotune, the run's
// folder contains matmul_table.txt, too.
UNIT_TEST(saves_contain_the_gemm_algorithms_at_their_start) {
    Run *run = run_new(RECIPE_BF16);
    run->ops.algos_text = changing_algos;
    RunState rs = fill(run, 3);
    for (int tunes = 0; tunes < 2; tunes++) {
        Saving s = saving_open(run, tunes ? "tuned" : "untuned");
        s.config.autotune = tunes == 1;
        s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
        algos_calls = 0;
        rs.step = 20;
        saver_save(s.saver, &rs);
        algos_calls = 7;
        rs.step = 30;
        saver_save(s.saver, &rs);
        wait_for(&s);
        saving_close(&s);
        assert_string_equal(contents(in(s.config.out, "step-00000020/matmul_table.txt")), "row 0\n");
        assert_string_equal(contents(in(s.config.out, "step-00000030/matmul_table.txt")), "row 7\n");
        if (tunes)
            assert_string_equal(contents(in(s.config.out, "matmul_table.txt")), "row 7\n");
        else
            assert_false(path_is_file(in(s.config.out, "matmul_table.txt")));
    }
    run_close(run);
}

static void *no_memory(Exec *exec, size_t bytes) {
    (void)exec, (void)bytes;
    return NULL;
}

// Without host memory for a copy, or if only the last step is saved, saver_save() returns after writing the files.
UNIT_TEST(without_memory_for_a_copy_the_save_blocks) {
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 4);
    save(run, "plain4", &rs);
    run->ops.host_allocate = no_memory;
    Saving s = saving_open(run, "foreground");
    s.config.quiet = false;
    int kept = quiet_begin();
    s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
    const char *said = quiet_end(kept);
    assert_non_null(strstr(said, "note: there is no room for a copy"));
    saver_save(s.saver, &rs);
    assert_true(
        path_is_file(path_of("foreground/step-00000020/manifest.json"))); // written before saver_save() returned
    each_state(run, fill_rubbish, NULL);
    saving_close(&s);
    assert_same_checkpoints("plain4", "foreground", "step-00000020");
    // If only the last step is saved, the saver does not copy the states.
    run->ops.host_allocate = NULL;
    rs = fill(run, 4);
    s = saving_open(run, "single");
    s.config.save_every = 0;
    s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
    saver_save(s.saver, &rs);
    assert_true(path_is_file(path_of("single/step-00000020/manifest.json")));
    saving_close(&s);
    assert_same_checkpoints("plain4", "single", "step-00000020");
    run_close(run);
}

// Every save deletes old checkpoints, except the newest two (--keep 2) and multiples of 30 steps (--keep-every 30).
UNIT_TEST(keep_and_keep_every_choose_the_retained_checkpoints) {
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 5);
    each_state(run, fill_rubbish, NULL); // replaces the random bits, because they contain NaN
    Saving s = saving_open(run, "keep");
    s.config.keep = 2;
    s.config.keep_every = 30;
    rs.state.skipped_run = 0;
    s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
    for (int step = 10; step <= 100; step += 10) {
        rs.step = step;
        saver_save(s.saver, &rs);
        assert_true(saver_poll(s.saver, &err));
    }
    wait_for(&s);
    saving_close(&s);
    for (int step = 10; step <= 100; step += 10) {
        assert_int_equal(path_is_folder(path_of(formatted("keep/step-%08d", step))), step % 30 == 0 || step >= 90);
    }
    // While updates are being skipped, the saver deletes no checkpoint.
    s = saving_open(run, "skipping");
    s.config.keep = 1;
    s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
    for (int step = 10; step <= 30; step += 10) {
        rs.step = step;
        rs.state.skipped_run = step > 10;
        saver_save(s.saver, &rs);
    }
    wait_for(&s);
    saving_close(&s);
    assert_true(path_is_folder(path_of("skipping/step-00000010")));
    run_close(run);
}

// A save detects weights that are NaN or inf, with --recipe bf16 and coat, with and without a copy of the states. It
// then deletes no checkpoint, and the run ends with a warning unless a later checkpoint is finite.
UNIT_TEST(saves_detect_nonfinite_weights) {
    static const struct {
        TensorId id;
        const char *name;
    } spoilt[] = {{WTE, "transformer.wte.weight"}, {LN1W, "transformer.h.1.ln_1.weight"}};
    for (int variant = 0; variant < 4; variant++) {
        Run *run = run_new(variant < 2 ? RECIPE_BF16 : RECIPE_COAT);
        RunState rs = fill(run, 5);
        each_state(run, fill_rubbish, NULL);
        rs.state.skipped_run = 0;
        run->config.json = true; // prints the warning on stderr
        const char *name = formatted("not-finite-%d", variant);
        const char *said = formatted(
            "warning: the weights are not finite (%s); resume from an earlier checkpoint with a smaller --lr\n",
            spoilt[variant % 2].name);
        for (int heals = 0; heals < 2; heals++) {
            Saving s = saving_open(run, name);
            s.config.keep = 1;
            s.config.json = true;
            if (variant % 2) s.config.save_every = 0; // writes without a copy
            s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
            log_step(s.log, 1, 3, 1, 1, 1, 1, 1, 0, 0);
            Tensor t = arena_tensor(&run->arena, spoilt[variant % 2].id, VALUE, variant % 2);
            char *last =
                (char *)t.data + ((size_t)(t.rows > 1 ? 257 : 1) * (size_t)t.cols - 1) * format_bytes(t.format);
            char before[4];
            memcpy(before, last, format_bytes(t.format));
            for (int step = 10; step <= 30 + 10 * heals; step += 10) {
                rs.step = step;
                memset(last, step == 10 || step == 40 ? before[0] : 0xff, format_bytes(t.format)); // 0xffff is NaN
                saver_save(s.saver, &rs);
            }
            wait_for(&s);
            int kept = quiet_begin();
            saving_close(&s);
            const char *text = quiet_end(kept);
            if ((strstr(text, said) != NULL) == heals) fail_msg("variant %d, %d: %s", variant, heals, text);
            memcpy(last, before, format_bytes(t.format));
            assert_int_equal(path_is_folder(in(s.config.out, "step-00000010")), !heals);
        }
        run_close(run);
    }
}

// If the disk is full (here, a file-size limit), the save fails, leaves no files, and one message reports its step.
UNIT_TEST(a_save_on_a_full_disk_fails_with_one_message) {
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 6);
    Saving s = saving_open(run, "full");
    s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
    signal(SIGXFSZ, SIG_IGN);
    saver_save(s.saver, &rs);
    wait_for(&s);
    limit_files(10000);
    rs.step = 30;
    int kept = quiet_begin();
    saver_save(s.saver, &rs);
    rs.step = 40;
    saver_save(s.saver, &rs); // saver_save() waits for the save of step 30 and reports its failure.
    assert_false(saver_finish(s.saver, &err));
    assert_true(saver_poll(s.saver, &err));
    limit_files(RLIM_INFINITY);
    const char *said = quiet_end(kept);
    assert_int_equal(occurrences(said, "\n"), 1);
    assert_non_null(strstr(said, "warning: the checkpoint of step 30 "));
    assert_error(&err, EXIT_DATA, "step 40");
    assert_true(path_is_folder(path_of("full/step-00000020")));
    assert_false(path_is_folder(path_of("full/step-00000030")));
    assert_false(path_is_folder(path_of("full/.step-00000030.tmp")));
    assert_false(path_is_folder(path_of("full/.step-00000040.tmp")));
    rs.step = 50; // the disk has room again
    saver_save(s.saver, &rs);
    wait_for(&s);
    assert_true(path_is_file(path_of("full/step-00000050/manifest.json")));
    saving_close(&s);
    run_close(run);
}

// Opens the saver on a locked run folder, saves step 10, runs `command` in the parent of the folder, and logs step 11.
static void disturb(Saving *s, OutFolder *out, const char *command) {
    s->config.overwrite = true;
    assert_true(out_prepare(&s->config, out, &err));
    s->saver = saver_open(&s->config, &s->run->arena, &s->run->exec, s->log);
    saver_watch(s->saver, out);
    RunState rs = fill(s->run, 7);
    rs.step = 10;
    log_step(s->log, 10, 3, 1, 1, 1, 1, 1, 0, 0);
    saver_save(s->saver, &rs);
    wait_for(s);
    assert_int_equal(system(formatted("cd '%s/..' && %s", s->config.out, command)), 0);
    log_step(s->log, 11, 3, 1, 1, 1, 1, 1, 0,
             0); // log_step() writes to the open file, even if it was moved or removed.
}

// If the run's folder or some of its files were removed, the next save recreates them, and the log continues there.
UNIT_TEST(a_removed_folder_is_recreated_by_the_next_save) {
    const char *const commands[] = {"rm -r gone0", "mv gone1 aside1", "rm gone2/.lock",
                                    "rm gone3/log.jsonl gone3/events.*"};
    Run *run = run_new(RECIPE_BF16);
    for (int i = 0; i < 4; i++) {
        Saving s = saving_open(run, formatted("gone%d", i));
        OutFolder out;
        disturb(&s, &out, commands[i]);
        RunState rs = fill(run, 7);
        int kept = quiet_begin();
        saver_save(s.saver, &rs); // step 20
        assert_int_equal(saver_step(s.saver), 20);
        const char *said = quiet_end(kept);
        assert_int_equal(occurrences(said, "\n"), i < 3);
        if (i < 3) assert_non_null(strstr(said, s.config.out));
        assert_true(path_is_file(in(s.config.out, "step-00000020/manifest.json")));
        assert_true(path_is_file(in(s.config.out, ".lock")));
        assert_int_equal(path_is_folder(in(s.config.out, "step-00000010")), i >= 2);
        log_step(s.log, 21, 3, 1, 1, 1, 1, 1, 0, 0);
        const char *lines = contents(in(s.config.out, "log.jsonl"));
        assert_int_equal(strstr(lines, "\"step\":11,\"loss\"") != NULL, i == 2); // a new log has later lines only
        assert_int_equal(strstr(lines, "\"note\":") != NULL, i != 2);
        assert_non_null(strstr(lines, "{\"step\":21,"));
        assert_int_equal(system(formatted("ls %s/events.* | wc -l | grep -qx 1", s.config.out)), 0);
        if (i == 1) assert_true(path_is_file(path_of("aside1/step-00000010/manifest.json")));
        saving_close(&s);
        out_close(&out);
    }
    run_close(run);
}

UNIT_TEST(saves_without_a_folder_fail_and_the_run_continues) {
    Run *run = run_new(RECIPE_BF16);
    Saving s = saving_open(run, "mount/run");
    OutFolder out;
    disturb(&s, &out, "mv ../mount ../unmounted && touch ../mount");
    RunState rs = fill(run, 7);
    int kept = quiet_begin();
    saver_save(s.saver, &rs);
    assert_true(saver_poll(s.saver, &err));
    assert_int_equal(saver_step(s.saver), -1);
    assert_false(saver_finish(s.saver, &err));
    quiet_end(kept);
    assert_error(&err, EXIT_DATA, s.config.out);
    assert_int_equal(unlink(path_of("mount")), 0);
    assert_int_equal(rename(path_of("unmounted"), path_of("mount")), 0);
    saver_save_last(s.saver, &rs);
    wait_for(&s);
    assert_true(path_is_file(in(s.config.out, "step-00000020/manifest.json")));
    assert_true(path_is_file(in(s.config.out, "step-00000010/manifest.json")));
    saving_close(&s);
    out_close(&out);
    run_close(run);
}

// If another run has locked the run's folder or left its files there, the run ends and writes nothing to the folder.
UNIT_TEST(a_folder_taken_by_another_run_ends_the_run) {
    Lock other;
    Run *run = run_new(RECIPE_BF16);
    for (int locked = 0; locked < 2; locked++) {
        Saving s = saving_open(run, locked ? "taken1" : "taken0");
        OutFolder out;
        disturb(&s, &out,
                locked ? "mv taken1 old1 && mkdir taken1"
                       : "mv taken0 old0 && mkdir taken0 && echo theirs >taken0/log.jsonl");
        if (locked) assert_true(lock_acquire(&other, s.config.out, &err));
        RunState rs = fill(run, 7);
        int kept = quiet_begin();
        saver_save(s.saver, &rs);
        for (int i = 0; i < 2; i++) {
            assert_false(saver_poll(s.saver, &err));
            assert_error(&err, EXIT_DATA, s.config.out);
            saver_save_last(s.saver, &rs);
        }
        assert_int_equal(saver_step(s.saver), -1);
        assert_false(saver_finish(s.saver, &err));
        assert_int_equal(err.code, EXIT_DATA);
        log_step(s.log, 12, 3, 1, 1, 1, 1, 1, 0, 0);
        saving_close(&s);
        const char *said = quiet_end(kept);
        assert_null(strstr(said, "warning: "));
        assert_false(path_is_folder(in(s.config.out, "step-00000020")));
        if (locked) assert_false(path_is_file(in(s.config.out, "log.jsonl")));
        if (!locked) assert_string_equal(contents(in(s.config.out, "log.jsonl")), "theirs\n");
        if (locked) lock_release(&other);
        out_close(&out);
    }
    run_close(run);
}

static char *replacing_algos(Exec *exec) { // replaces the run's folder while saver_save() copies the states
    (void)exec;
    if (algos_calls++ == 0) return NULL;
    assert_int_equal(rename(path_of("swapped"), path_of("swapped-before")), 0);
    assert_int_equal(mkdir(path_of("swapped"), 0777), 0);
    return NULL;
}

// If another folder replaces the run's folder while the states are copied, the save writes nothing to it.
UNIT_TEST(a_folder_that_is_replaced_during_a_save_is_not_changed) {
    Run *run = run_new(RECIPE_BF16);
    Saving s = saving_open(run, "swapped");
    OutFolder out;
    algos_calls = 0;
    run->ops.algos_text = replacing_algos;
    disturb(&s, &out, "true");
    RunState rs = fill(run, 7);
    int kept = quiet_begin();
    saver_save(s.saver, &rs);
    assert_int_equal(saver_step(s.saver), -1);
    assert_false(saver_finish(s.saver, &err));
    quiet_end(kept);
    assert_says(&err, "renamed or replaced");
    assert_int_equal(rmdir(path_of("swapped")), 0); // the folder is empty
    assert_int_equal(rename(path_of("swapped-before"), path_of("swapped")), 0);
    saving_close(&s);
    out_close(&out);
    run_close(run);
}

// If the last checkpoint was removed after it was saved, saver_save_last() saves it a second time.
UNIT_TEST(a_removed_last_checkpoint_is_saved_again) {
    Run *run = run_new(RECIPE_BF16);
    Saving s = saving_open(run, "last");
    RunState rs = fill(run, 7);
    rs.step = 10;
    OutFolder out;
    disturb(&s, &out, "rm -r last");
    int kept = quiet_begin();
    saver_save_last(s.saver, &rs);
    wait_for(&s);
    saver_save_last(s.saver, &rs);
    const char *said = quiet_end(kept);
    assert_int_equal(occurrences(said, "\n"), 1);
    assert_true(path_is_file(in(s.config.out, "step-00000010/manifest.json")));
    saving_close(&s);
    out_close(&out);
    run_close(run);
}

// A vocabulary that cannot be read at one save is copied at the next.
UNIT_TEST(later_saves_copy_a_vocabulary_that_was_missing) {
    Run *run = run_new(RECIPE_BF16);
    Saving s = saving_open(run, "late");
    snprintf(s.config.vocabulary, sizeof s.config.vocabulary, "%s", path_of("given"));
    s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
    for (int step = 20; step <= 40; step += 10) {
        RunState rs = fill(run, 3);
        rs.step = step;
        if (step == 30) write_text(path_of("given/tokenizer.json"), "{}");
        if (step == 40) assert_int_equal(unlink(path_of("given/tokenizer.json")), 0);
        saver_save(s.saver, &rs);
        wait_for(&s);
    }
    saving_close(&s);
    assert_false(path_is_file(path_of("late/step-00000020/tokenizer.json")));
    assert_true(path_is_file(path_of("late/step-00000030/tokenizer.json")));
    assert_true(path_is_file(path_of("late/step-00000040/tokenizer.json")));
    run_close(run);
}

// If exit() is called during a save, the process ends only after the checkpoint is complete.
UNIT_TEST(exit_waits_for_the_save) {
    char folder[TEST_PATH];
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 8);
    Saving s = saving_open(run, "exit");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        omp_set_num_threads(1); // no further threads, because those of OpenMP do not survive fork()
        s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
        saver_save(s.saver, &rs);
        exit(7);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    assert_true(checkpoint_find(s.config.out, 20, folder, sizeof folder, &err));
    log_close(s.log);
    run_close(run);
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
