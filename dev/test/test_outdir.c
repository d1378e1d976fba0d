// Tests of a run's folder (coat/save/outdir.h): its lock, the checks that it was not removed, replaced or taken over by
// another run, the free space on its disk, and --overwrite.
#include <fcntl.h>

#include "dev/test/test_folder.h"

#include "coat/save/outdir.h"

static Config config;
static OutFolder out = {.fd = -1, .lock = {.fd = -1}};
static Error err;
static char text[4096], run_folder[TEST_PATH];

// Closes the run's folder of the previous test, and creates and locks an empty one.
static int begin(void **state) {
    out_close(&out);
    test_folder_empty(state);
    memset(&config, 0, sizeof config);
    snprintf(run_folder, sizeof run_folder, "%s", path_of("disk/run"));
    snprintf(config.out, sizeof config.out, "%s", run_folder);
    return out_prepare(&config, &out, &err) ? 0 : -1;
}

static void assert_text(const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' does not say '%s'", text, part);
}

// Calls out_ensure(), which must return `good` and set *taken to `taken`: true if another run took over the folder.
// Returns the number of lines printed to stderr.
static int ensure(bool good, bool taken) {
    bool is_taken;
    fflush(stderr);
    int kept = dup(STDERR_FILENO), said = open(path_of("said"), O_RDWR | O_CREAT | O_TRUNC, 0600), lines = 0;
    dup2(said, STDERR_FILENO);
    if (out_ensure(&out, &is_taken, &err) != good) fail_msg("%s", err.text);
    dup2(kept, STDERR_FILENO);
    ssize_t length = pread(said, text, sizeof text - 1, 0);
    text[length > 0 ? length : 0] = 0;
    for (const char *at = text; *at; at++) lines += *at == '\n';
    close(kept);
    close(said);
    assert_int_equal(is_taken, taken);
    if (!good) assert_int_equal(err.code, EXIT_DATA);
    if (lines) assert_text(run_folder);
    return lines;
}

// Asserts that no other run can lock the run's folder.
static void assert_locked(void) {
    Lock other;
    assert_int_equal(ensure(true, false), 0);
    assert_false(lock_acquire(&other, out.path, &err));
    assert_true(other.taken);
}

UNIT_TEST(an_unchanged_folder_stays_locked) {
    assert_locked();
    config.resume = true;
    OutFolder other;
    assert_false(out_prepare(&config, &other, &err));
    assert_says(&err, run_folder);
    out_close(&out);
    assert_false(path_is_file(path_of("disk/run/.lock")));
}

// If the run's folder or its parent was removed or renamed, out_ensure() creates the folder and locks it. It also locks
// a folder without files of a run, or a link to one, that has replaced the folder. If only .lock was removed, it locks
// the folder again. Each time it prints one warning.
UNIT_TEST(a_removed_or_replaced_folder_is_recreated) {
    const char *const commands[] = {"rm -r run",
                                    "mv run aside",
                                    "rm -r ../disk",
                                    "mv ../disk ../unmounted",
                                    "mv run aside2; mkdir run; echo mine >run/notes.txt",
                                    "mv run aside3; mkdir target; ln -s target run",
                                    "rm run/.lock; touch run/log.jsonl"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        assert_int_equal(system(formatted("cd '%s' && %s", path_of("disk"), commands[i])), 0);
        assert_int_equal(ensure(true, false), 1);
        assert_text("warning: ");
        assert_locked();
    }
}

// If the run's folder cannot be created, out_ensure() fails, but a later call may succeed.
UNIT_TEST(a_folder_that_cannot_be_created_is_tried_again_later) {
    assert_int_equal(rename(path_of("disk"), path_of("unmounted")), 0);
    write_text(path_of("disk"), "mine");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ensure(false, false), 0);
        assert_says(&err, run_folder);
    }
    assert_int_equal(unlink(path_of("disk")), 0);
    assert_int_equal(rename(path_of("unmounted"), path_of("disk")), 0);
    assert_locked();
}

// If the run's folder was replaced by a folder with files of another run, or another run has locked the folder,
// out_ensure() fails, reports that the folder is taken, and changes no file in it.
UNIT_TEST(the_folder_of_another_run_is_not_changed) {
    Lock other;
    const char *const files[] = {"log.jsonl", "events.out.tfevents.1.host", "step-00000020"};
    for (int i = 0; i < 5; i++) {
        out_close(&out);
        test_folder_empty(NULL);
        assert_true(out_prepare(&config, &out, &err));
        assert_int_equal(i == 4 ? unlink(path_of("disk/run/.lock")) : rename(run_folder, path_of("disk/aside")), 0);
        if (i < 4) assert_int_equal(mkdir(run_folder, 0777), 0);
        const char *file = formatted("%s/%s", run_folder, i < 3 ? files[i] : "notes.txt");
        write_text(file, "theirs");
        if (i >= 3) assert_true(lock_acquire(&other, run_folder, &err));
        assert_int_equal(ensure(false, true), 0);
        assert_says(&err, run_folder);
        assert_true(path_is_file(file));
        assert_int_equal(path_is_file(path_of("disk/run/.lock")), i >= 3);
        if (i < 3) continue;
        assert_true(lock_is_held(&other));
        lock_release(&other);
        assert_int_equal(ensure(true, false), 1); // The other run ended without a checkpoint or log.
    }
}

// Calls out_fits() with `gigabytes` GB of free space, `held` existing checkpoints, checkpoints of 1.7 GB, and a run
// from step `begun` to step 1000.
static bool fits(double gigabytes, int64_t held, int64_t begun) {
    const OutRoom room = {gigabytes * 1e9, held, 4096};
    return out_fits(&config, room, begun, 1000, 1.7e9, text, sizeof text, &err);
}

// Asserts that out_fits() needs space for exactly `count` new checkpoints: with that space it writes no note, and with
// slightly less it does, unless count is 1. The space includes a margin of 2 %, 512 bytes of log per step, and rounding
// to blocks.
static void fits_all(int64_t count, int64_t held, int64_t begun) {
    const double room = (double)count * 1.02 * (1.7 + 12 * 4096e-9) + (double)(1000 - begun) * 512e-9;
    assert_true(fits(room + 1e-6, held, begun));
    assert_string_equal(text, "");
    const char *part = formatted("for %d of the %d more checkpoints that", (int)count - 1, (int)count);
    assert_true(fits(room - 1e-6, held, begun));
    if (count > 1) assert_text(part);
    if (count == 1) assert_string_equal(text, ""); // a single checkpoint needs no margin
}

UNIT_TEST(free_space_for_the_checkpoints_of_a_run) {
    assert_false(fits(0.9, 0, 0));
    assert_error(&err, EXIT_DATA, "disk/run: &1.70 GB&900.00 MB");
    assert_false(fits(4e-6, 0, 0));
    assert_says(&err, "4.00 KB");
    fits_all(1, 0, 0); // saves the last step only
    config.save_every = 100;
    fits_all(10, 0, 0);
    fits_all(10, 7, 0); // the existing checkpoints are retained, so 10 more need space
    fits_all(3, 0, 700);
    config.save_every = 300; // saves the last step, too
    fits_all(4, 0, 0);
    fits_all(1, 3, 900);
    config.save_every = 100;
    config.keep = 3; // While a checkpoint is written, four exist.
    fits_all(4, 0, 0);
    fits_all(3, 1, 100);
    fits_all(1, 3, 300);
    fits_all(1, 5, 500); // more checkpoints exist than --keep retains
    fits_all(2, 0, 800);
    assert_true(fits(5.25, 0, 0));
    assert_text("for 3 of the 4 more checkpoints that");
    assert_text("--keep 2");
    assert_true(fits(3.4, 0, 0));                        // space for two, without a margin
    assert_text("for 1 of the 4 more checkpoints that"); // a checkpoint is written before an old one is removed
    assert_null(strstr(text, "or set --keep"));
    config.keep_every = 250; // retains steps 500 and 1000
    fits_all(6, 0, 0);
    config.save_every = 0;
    fits_all(1, 0, 0);
}

// out_room() does not count incomplete checkpoints, checkpoints that --overwrite deletes when the run starts, and a
// user's copies.
UNIT_TEST(incomplete_and_overwritten_checkpoints_do_not_count_as_used) {
    OutRoom room;
    assert_int_equal(mkdir(path_of("disk/run/step-00000010"), 0777), 0);
    assert_int_equal(mkdir(path_of("disk/run/.step-00000020.tmp"), 0777), 0);
    assert_int_equal(mkdir(path_of("disk/run/step-00000010-good"), 0777), 0);
    assert_true(out_room(&config, &room));
    assert_int_equal(room.held, 1);
    assert_true(room.free >= 0);
    config.overwrite = true;
    assert_true(out_room(&config, &room));
    assert_int_equal(room.held, 0);
    snprintf(config.out, sizeof config.out, "%s", path_of("nowhere"));
    assert_false(out_room(&config, &room));
}

static bool clear_as_user(void) {
    test_as_user(true);
    const bool cleared = out_clear(&config, &err);
    test_as_user(false);
    return cleared;
}

// --overwrite deletes either all files of the old run, including folders that a user has created in it, or nothing. It
// does not follow links.
UNIT_TEST(overwrite_deletes_all_files_of_the_old_run_or_none) {
    const char *const folders[] = {"disk/run/step-00000010", "disk/run/step-00000010/gguf",
                                   "disk/run/step-00000010/gguf/deep", "disk/run/step-00000020"};
    for (int i = 0; i < 4; i++) assert_int_equal(mkdir(path_of(folders[i]), 0777), 0);
    write_text(path_of("disk/run/log.jsonl"), "{}\n");
    write_text(path_of("disk/run/step-00000010/gguf/deep/a"), "a");
    write_text(path_of("disk/run/step-00000020/a"), "a");
    write_text(path_of("disk/a"), "elsewhere");
    assert_int_equal(symlink("../../..", path_of("disk/run/step-00000010/gguf/link")), 0);
    assert_int_equal(symlink("../a", path_of("disk/run/step-00000030")), 0);
    config.overwrite = true;
    const mode_t forbidden[] = {0555, 0444, 0333};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(chmod(path_of(folders[2]), forbidden[i]), 0);
        assert_false(clear_as_user());
        assert_says(&err, "run/step-00000010/gguf/deep: &nothing is deleted");
        assert_true(path_is_file(path_of("disk/run/step-00000020/a")));
        assert_true(path_is_file(path_of("disk/run/log.jsonl")));
        assert_true(path_is_link(path_of("disk/run/step-00000030")));
    }
    assert_int_equal(chmod(path_of(folders[2]), 0777), 0);
    if (!clear_as_user()) fail_msg("%s", err.text);
    OutFolder fresh;
    out_close(&out);
    config.overwrite = false;
    assert_true(out_prepare(&config, &fresh, &err)); // the folder has no files of a run
    out_close(&fresh);
    assert_true(path_is_file(path_of("disk/a")));
}

// out_is_run_file() is false for names that users give to copies of a checkpoint.
UNIT_TEST(copies_of_a_checkpoint_are_not_files_of_the_run) {
    const char *const own[] = {"step-00000020", "step-123456789", ".step-00000020.tmp", ".step-00000020.old",
                               "log.jsonl"};
    const char *const others[] = {"step-00000020-good", "step-00000020.bak", "step-20",
                                  ".step-00000020",     "a-step-00000020",   "log.jsonl.bak",
                                  ".step-notes.old",    ".step-20.tmp",      ".step-00000020-good.old"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) assert_true(out_is_run_file(own[i]));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) assert_false(out_is_run_file(others[i]));
}

RUN_TESTS(test_folder_make, test_folder_remove, begin)
