// Tests of checkpoints in the background (coat/save/saver.h): the files hold the state as it was handed over, a save
// that fails is said once and leaves nothing, and the ways to wait for one wait.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "dev/test/checkpoint_run.h"

#include "coat/save/saver.h"

// A run with a log and a saver in the folder `out`.
typedef struct {
    Run *run;
    Config config;
    Log *log;
    Saver *saver;
} Saving;

static Saving saving_open(Run *run, const char *out) {
    Error err;
    Saving s;
    s.run = run;
    s.config = run->config;
    s.config.quiet = true;
    s.config.save_every = 10;
    snprintf(s.config.out, sizeof s.config.out, "%s", path_of(out));
    s.log = log_open(&s.config, 0, 100, 1, 0, 1000, &err);
    if (!s.log) fail_msg("%s", err.text);
    return s;
}

static void saving_close(Saving *s) {
    saver_close(s->saver);
    log_close(s->log);
}

static void wait_for(Saving *s) {
    Error err;
    if (!saver_finish(s->saver, &err)) fail_msg("%s", err.text);
}

static void assert_same_checkpoints(const char *a, const char *b, const char *step) {
    char one[TEST_PATH], other[TEST_PATH];
    snprintf(one, sizeof one, "%s/%s", path_of(a), step);
    snprintf(other, sizeof other, "%s/%s", path_of(b), step);
    for (size_t i = 0; i < FILES; i++) assert_same_files(in(one, files[i]), in(other, files[i]));
}

// The run continues at once; what it then does to its states does not reach the files.
static void test_copy(void **state) {
    (void)state;
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

static int rows_said;

static char *changing_algos(Exec *exec) {
    (void)exec;
    char text[32];
    snprintf(text, sizeof text, "row %d\n", rows_said++);
    return strdup(text);
}

static void assert_text(const char *path, const char *expected) {
    size_t size;
    char *text = read_file(path, &size);
    assert_string_equal(text, expected);
    free(text);
}

// The matmuls' algorithms are those of the moment of saving; with --autotune people find them in the run's folder.
static void test_algos(void **state) {
    (void)state;
    Run *run = run_new(RECIPE_BF16);
    run->ops.algos_text = changing_algos;
    RunState rs = fill(run, 3);
    for (int tunes = 0; tunes < 2; tunes++) {
        Saving s = saving_open(run, tunes ? "tuned" : "untuned");
        s.config.autotune = tunes == 1;
        s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
        rows_said = 0;
        rs.step = 20;
        saver_save(s.saver, &rs);
        rows_said = 7;
        rs.step = 30;
        saver_save(s.saver, &rs);
        wait_for(&s);
        saving_close(&s);
        assert_text(in(s.config.out, "step-00000020/matmul_table.txt"), "row 0\n");
        assert_text(in(s.config.out, "step-00000030/matmul_table.txt"), "row 7\n");
        if (tunes)
            assert_text(in(s.config.out, "matmul_table.txt"), "row 7\n");
        else
            assert_false(path_is_file(in(s.config.out, "matmul_table.txt")));
    }
    run_close(run);
}

static void *no_memory(Exec *exec, size_t bytes) {
    (void)exec, (void)bytes;
    return NULL;
}

static void test_without_memory(void **state) {
    (void)state;
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 4);
    save(run, "plain4", &rs);
    run->ops.host_allocate = no_memory;
    Saving s = saving_open(run, "foreground");
    s.config.quiet = false;
    int kept = quiet_begin();
    s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
    char *said = quiet_end(kept);
    assert_non_null(strstr(said, "note: there is no room for a copy"));
    free(said);
    saver_save(s.saver, &rs);
    assert_true(path_is_file(path_of("foreground/step-00000020/manifest.json"))); // before it returns
    each_state(run, fill_rubbish, NULL);
    saving_close(&s);
    assert_same_checkpoints("plain4", "foreground", "step-00000020");
    // nor is there any where only the end is saved
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

// One save after the other, each pruning: the newest and the multiples stay.
static void test_keep(void **state) {
    (void)state;
    Error err;
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 5);
    each_state(run, fill_rubbish, NULL); // any bits at all would not be finite
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
        char name[64];
        snprintf(name, sizeof name, "keep/step-%08d", step);
        assert_int_equal(path_is_folder(path_of(name)), step % 30 == 0 || step >= 90);
    }
    // while updates are skipped nothing from before is removed
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

// Weights that are not finite are noticed where they are saved, copied or not, and in either format; nothing from
// before is removed, and the run's last line says so until a checkpoint is well again.
static void test_not_finite(void **state) {
    (void)state;
    static const struct {
        TensorId id;
        const char *name;
    } spoilt[] = {{WTE, "transformer.wte.weight"}, {LN1W, "transformer.h.1.ln_1.weight"}};
    for (int variant = 0; variant < 4; variant++) {
        Run *run = run_new(variant < 2 ? RECIPE_BF16 : RECIPE_COAT);
        RunState rs = fill(run, 5);
        each_state(run, fill_rubbish, NULL);
        rs.state.skipped_run = 0;
        run->config.json = true; // then it is said on standard error
        char name[32], said[256];
        snprintf(name, sizeof name, "not-finite-%d", variant);
        snprintf(said, sizeof said,
                 "warning: the weights are not finite (%s): resume from an earlier checkpoint with a smaller --lr\n",
                 spoilt[variant % 2].name);
        for (int heals = 0; heals < 2; heals++) {
            Saving s = saving_open(run, name);
            s.config.keep = 1;
            s.config.json = true;                     // then it is said on standard error
            if (variant % 2) s.config.save_every = 0; // then nothing is copied
            s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
            log_step(s.log, 1, 3, 1, 1, 1, 1, 1, 0);
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
            char *text = quiet_end(kept);
            if ((strstr(text, said) != NULL) == heals) fail_msg("variant %d, %d: %s", variant, heals, text);
            free(text);
            memcpy(last, before, format_bytes(t.format));
            assert_int_equal(path_is_folder(in(s.config.out, "step-00000010")), !heals);
        }
        run_close(run);
    }
}

static int lines_of(const char *text) {
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

// As on a full disk, which a limit of the files' size stands for.
static void test_failing_save(void **state) {
    (void)state;
    Error err;
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
    saver_save(s.saver, &rs); // waits for the first, which failed, and says so
    assert_false(saver_finish(s.saver, &err));
    assert_true(saver_poll(s.saver, &err));
    limit_files(RLIM_INFINITY);
    char *said = quiet_end(kept);
    assert_int_equal(lines_of(said), 1);
    assert_non_null(strstr(said, "warning: the checkpoint of step 30 could not be saved: cannot write "));
    assert_non_null(strstr(said, "; the run continues, and earlier checkpoints are untouched\n"));
    assert_int_equal(err.code, EXIT_DATA);
    assert_says(&err, "step 40");
    free(said);
    assert_true(path_is_folder(path_of("full/step-00000020")));
    assert_false(path_is_folder(path_of("full/step-00000030")));
    assert_false(path_is_folder(path_of("full/.step-00000030.tmp")));
    assert_false(path_is_folder(path_of("full/.step-00000040.tmp")));
    rs.step = 50; // there is room again
    saver_save(s.saver, &rs);
    wait_for(&s);
    assert_true(path_is_file(path_of("full/step-00000050/manifest.json")));
    saving_close(&s);
    run_close(run);
}

// The folder goes, and comes again with the next save, its lock and log; where its parent is gone and no
// name is short enough for another one beside it or above, the save fails, and the folder may come back.
static void test_folder_gone(void **state) {
    (void)state;
    Error err;
    OutFolder out;
    char name[256] = "mount/";
    memset(name + 6, 'x', 249);
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 7);
    Saving s = saving_open(run, name);
    s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
    saver_save(s.saver, &rs);
    wait_for(&s);
    s.config.overwrite = true;
    assert_true(out_prepare(&s.config, &out, &err));
    saver_watch(s.saver, &out);
    assert_int_equal(rename(s.config.out, path_of("mount/aside")), 0);
    rs.step = 30;
    int kept = quiet_begin();
    saver_save(s.saver, &rs);
    wait_for(&s);
    char *said = quiet_end(kept);
    assert_int_equal(lines_of(said), 1);
    assert_non_null(strstr(said, "xxx: the folder was renamed to "));
    assert_non_null(strstr(said, "made again"));
    free(said);
    assert_true(path_is_file(in(s.config.out, "step-00000030/manifest.json")));
    assert_true(path_is_file(in(s.config.out, "log.jsonl")));
    assert_true(path_is_file(in(s.config.out, ".lock")));
    assert_true(path_is_file(path_of("mount/aside/step-00000020/manifest.json")));
    assert_int_equal(rename(path_of("mount"), path_of("unmounted")), 0);
    rs.step = 40;
    saver_save(s.saver, &rs);
    assert_false(saver_finish(s.saver, &err));
    assert_says(&err, "step 40 could not be saved: cannot create the folder ");
    assert_says(&err, "mount/xxx");
    assert_false(path_is_folder(path_of("mount")));
    assert_int_equal(rename(path_of("unmounted"), path_of("mount")), 0);
    kept = quiet_begin();
    saver_save(s.saver, &rs);
    wait_for(&s);
    said = quiet_end(kept);
    assert_non_null(strstr(said, "note: --out "));
    assert_non_null(strstr(said, "xxx can be used again, and the run is saved there\n"));
    free(said);
    assert_true(path_is_file(in(s.config.out, "step-00000040/manifest.json")));
    saving_close(&s);
    out_close(&out);
    run_close(run);
}

// Another run has the folder by the time of a save: nothing is written there, and the state is saved beside it.
static void test_folder_taken(void **state) {
    (void)state;
    Error err;
    OutFolder out;
    Lock other;
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 8);
    save(run, "plain8", &rs);
    for (int away = 0; away < 2; away++) { // away: there is no room beside it
        Saving s = saving_open(run, away ? "disk1/taken" : "disk0/taken");
        s.config.overwrite = true;
        assert_true(out_prepare(&s.config, &out, &err));
        s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
        saver_watch(s.saver, &out);
        rs.step = 10;
        saver_save(s.saver, &rs);
        wait_for(&s);
        assert_int_equal(saver_step(s.saver), 10);
        assert_int_equal(rename(s.config.out, path_of(away ? "disk1/old" : "disk0/old")), 0);
        assert_int_equal(mkdir(s.config.out, 0777), 0);
        assert_true(lock_take(&other, s.config.out, &err));
        write_text(in(s.config.out, "step-00000005"), "theirs");
        for (int i = 1; away && i < 1000; i++) {
            char name[64];
            snprintf(name, sizeof name, "disk1/taken-rescued-%d", i);
            write_text(path_of(name), "");
        }
        rs.step = 20;
        int kept = quiet_begin();
        saver_save(s.saver, &rs);
        assert_false(saver_finish(s.saver, &err));
        Error why;
        assert_false(saver_poll(s.saver, &why));
        char *said = quiet_end(kept);
        assert_int_equal(err.code, EXIT_DATA);
        assert_says(&err, "the folder was renamed to ");
        assert_says(&err, "another run is writing there: process ");
        assert_int_equal(lines_of(said), away);
        if (away) {
            assert_says(&err, "the last checkpoint of this one is ");
            assert_says(&err, "disk1/old/step-00000010");
            assert_non_null(strstr(said, "warning: the checkpoint of step 20 could not be saved: cannot create"));
            assert_int_equal(saver_step(s.saver), -1);
        } else {
            assert_says(&err, "disk0/taken-rescued-1 --resume");
            assert_int_equal(saver_step(s.saver), 20);
            assert_same_checkpoints("plain8", "disk0/taken-rescued-1", "step-00000020");
            assert_true(path_is_file(path_of("disk0/taken-rescued-1/log.jsonl")));
        }
        free(said);
        assert_false(path_is_folder(in(s.config.out, "step-00000020")));
        assert_false(path_is_file(in(s.config.out, "log.jsonl")));
        assert_text(in(s.config.out, "step-00000005"), "theirs");
        assert_true(lock_is_held(&other));
        lock_release(&other);
        saving_close(&s);
        out_close(&out);
    }
    run_close(run);
}

static const char *lost_folder; // is removed while it is saved to,
static int lost_times;          // so often
static bool lost_to_another;    // an empty one takes its place

static char *removing_algos(Exec *exec) {
    Error err;
    (void)exec;
    if (lost_times-- <= 0) return strdup("");
    if (!folder_remove(lost_folder, &err)) fail_msg("%s", err.text);
    if (lost_to_another) assert_int_equal(mkdir(lost_folder, 0777), 0);
    return strdup("");
}

// The folder goes while the last save is written: it is made again and saved to once more, and no more than that. One
// that has taken its place has nothing of the first save, which would look like another run's.
static void test_folder_gone_at_last(void **state) {
    (void)state;
    Error err, again;
    OutFolder out;
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 9);
    run->ops.algos_text = removing_algos;
    save(run, "plain9", &rs);
    for (int variant = 0; variant < 3; variant++) {
        const char *const names[] = {"replaced1", "lost1", "lost2"};
        const int times = variant < 2 ? 1 : 2;
        lost_to_another = variant == 0;
        Saving s = saving_open(run, names[variant]);
        s.config.overwrite = true;
        assert_true(out_prepare(&s.config, &out, &err));
        s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
        saver_watch(s.saver, &out);
        lost_folder = s.config.out;
        lost_times = times;
        int kept = quiet_begin();
        saver_save_last(s.saver, &rs);
        bool good = saver_finish(s.saver, &err);
        saver_save_last(s.saver, &rs); // a third time where that is asked for
        assert_true(saver_finish(s.saver, &again));
        char *said = quiet_end(kept);
        assert_int_equal(good, times == 1);
        assert_int_equal(lines_of(said), times);
        assert_non_null(strstr(said, "the folder was removed during the run; it is made again, with the whole log"));
        if (!good) assert_says(&err, "the checkpoint of step 20 could not be saved: ");
        if (!good) assert_says(&err, "lost2: the folder was removed, renamed or replaced");
        free(said);
        assert_same_checkpoints("plain9", names[variant], "step-00000020");
        saving_close(&s);
        out_close(&out);
    }
    run_close(run);
}

// One that cannot be made again is left at once, for the next folder above that takes another one; the run stays there,
// also where that one is lost, and ends with an error.
static void test_folder_away(void **state) {
    (void)state;
    Error err;
    OutFolder out, other;
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 9);
    Saving s = saving_open(run, "top/mount/away");
    s.config.overwrite = true;
    assert_true(out_prepare(&s.config, &out, &err));
    s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
    saver_watch(s.saver, &out);
    assert_int_equal(rename(path_of("top/mount"), path_of("top/unmounted")), 0);
    int kept = quiet_begin();
    rs.step = 20;
    saver_save(s.saver, &rs);
    assert_int_equal(saver_step(s.saver), 20);
    assert_string_equal(saver_out(s.saver), path_of("top/away-rescued-1"));
    assert_int_equal(rename(path_of("top/unmounted"), path_of("top/mount")), 0); // comes back too late
    rs.step = 30;
    saver_save(s.saver, &rs);
    assert_true(saver_poll(s.saver, &err)); // the run continues
    assert_int_equal(saver_step(s.saver), 30);
    char *said = quiet_end(kept);
    assert_non_null(strstr(said, "warning: --out "));
    assert_non_null(strstr(said, "mount/away cannot be used: cannot create the folder "));
    assert_non_null(strstr(said, "mount/away: No such file or directory; what it wrote before is in "));
    assert_non_null(strstr(said, "top/unmounted/away; the run continues in "));
    assert_non_null(strstr(said, "top/away-rescued-1\n"));
    assert_int_equal(lines_of(said), 1);
    free(said);
    assert_true(path_is_file(path_of("top/away-rescued-1/step-00000020/manifest.json")));
    assert_true(path_is_file(path_of("top/away-rescued-1/.lock")));
    Config resuming = s.config;
    resuming.resume = true;
    assert_true(out_prepare(&resuming, &other, &err)); // who finds it there may go on from it
    out_close(&other);
    assert_false(path_is_folder(path_of("top/mount/away/step-00000030")));
    assert_int_equal(rename(path_of("top/away-rescued-1"), path_of("top/second")), 0);
    kept = quiet_begin();
    rs.step = 40;
    saver_save_last(s.saver, &rs);
    assert_false(saver_finish(s.saver, &err));
    free(quiet_end(kept));
    assert_int_equal(err.code, EXIT_DATA);
    assert_says(&err, "mount/away: No such file or directory; this one is saved: go on with --out ");
    assert_says(&err, "top/away-rescued-1 --resume; what it wrote before is in ");
    assert_says(&err, "what it wrote before is in "); // where that is by now
    assert_string_equal(err.text + strlen(err.text) - strlen(s.config.out), s.config.out);
    assert_true(path_is_file(path_of("top/second/step-00000030/manifest.json")));
    assert_true(path_is_file(path_of("top/away-rescued-1/step-00000040/manifest.json")));
    assert_true(path_is_file(path_of("top/away-rescued-1/log.jsonl")));
    saving_close(&s);
    out_close(&out);
    run_close(run);
}

// With the working directory a relative --out is gone, too: it is made again where it was, or left for one above.
static void test_working_directory(void **state) {
    (void)state;
    Error err;
    OutFolder out;
    char before[TEST_PATH], command[TEST_PATH * 2];
    assert_non_null(getcwd(before, sizeof before));
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 9);
    for (int variant = 0; variant < 3; variant++) { // another one has its name; and a file that of its parent
        assert_int_equal(mkdir(path_of("work"), 0777), 0);
        assert_int_equal(chdir(path_of("work")), 0);
        Saving s = saving_open(run, "unused");
        log_close(s.log);
        snprintf(s.config.out, sizeof s.config.out, "runs/mine");
        s.log = log_open(&s.config, 0, 100, 1, 0, 1000, &err);
        assert_non_null(s.log);
        s.config.overwrite = true;
        assert_true(out_prepare(&s.config, &out, &err));
        s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
        saver_watch(s.saver, &out);
        snprintf(command, sizeof command, "rm -r '%s'", path_of("work"));
        assert_int_equal(system(command), 0);
        if (variant > 0) assert_int_equal(mkdir(path_of("work"), 0777), 0);
        if (variant == 2) write_text(path_of("work/runs"), "mine");
        rs.step = 20;
        int kept = quiet_begin();
        saver_save(s.saver, &rs);
        bool good = saver_finish(s.saver, &err);
        char *said = quiet_end(kept);
        assert_int_equal(lines_of(said), 1);
        const char *in_place = "work/runs/mine: the folder was removed during the run; it is made again";
        assert_int_equal(good, variant < 2);
        if (!strstr(said, good ? in_place : "what it wrote before is gone; the run continues in "))
            fail_msg("%s", said);
        if (!good) assert_says(&err, "work/mine-rescued-1 --resume; what it wrote before is gone");
        free(said);
        assert_string_equal(saver_out(s.saver), path_of(good ? "work/runs/mine" : "work/mine-rescued-1"));
        assert_true(path_is_file(in(saver_out(s.saver), "step-00000020/manifest.json")));
        assert_true(path_is_file(in(saver_out(s.saver), "log.jsonl")));
        saving_close(&s);
        out_close(&out);
        assert_int_equal(chdir(before), 0);
        assert_int_equal(system(command), 0);
    }
    run_close(run);
}

// However long the paths are: what has happened, and the whole line to go on with.
static void test_long_paths(void **state) {
    (void)state;
    Error err;
    OutFolder out;
    Lock other;
    char name[3 * 201] = "", hint[TEST_PATH + 64], aside[TEST_PATH];
    for (size_t i = 0; i + 1 < sizeof name; i++) name[i] = i % 201 == 200 ? '/' : 'x';
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 9);
    Saving s = saving_open(run, name);
    s.config.overwrite = true;
    assert_true(out_prepare(&s.config, &out, &err));
    s.saver = saver_open(&s.config, &run->arena, &run->exec, s.log);
    saver_watch(s.saver, &out);
    snprintf(aside, sizeof aside, "%s-old", s.config.out);
    assert_int_equal(rename(s.config.out, aside), 0);
    assert_int_equal(mkdir(s.config.out, 0777), 0);
    assert_true(lock_take(&other, s.config.out, &err));
    int kept = quiet_begin();
    saver_save_last(s.saver, &rs);
    assert_false(saver_finish(s.saver, &err));
    free(quiet_end(kept));
    snprintf(hint, sizeof hint, "; this one is saved: go on with --out %s-rescued-1 --resume", s.config.out);
    assert_string_equal(err.text + strlen(err.text) - strlen(hint), hint);
    assert_says(&err, "the folder was renamed to ...xxx");
    assert_says(&err, "xx-old during the run, and another run is writing there: process ");
    lock_release(&other);
    saving_close(&s);
    out_close(&out);
    run_close(run);
}

// exit() in the middle of a write: the process ends when the files are whole.
static void test_exit(void **state) {
    (void)state;
    Error err;
    char folder[TEST_PATH];
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 8);
    Saving s = saving_open(run, "exit");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy),           cmocka_unit_test(test_algos),
        cmocka_unit_test(test_without_memory), cmocka_unit_test(test_keep),
        cmocka_unit_test(test_not_finite),     cmocka_unit_test(test_failing_save),
        cmocka_unit_test(test_folder_gone),    cmocka_unit_test(test_folder_taken),
        cmocka_unit_test(test_exit),           cmocka_unit_test(test_folder_gone_at_last),
        cmocka_unit_test(test_folder_away),    cmocka_unit_test(test_working_directory),
        cmocka_unit_test(test_long_paths)};
    return cmocka_run_group_tests_name("saver", tests, test_folder_make, test_folder_remove);
}
