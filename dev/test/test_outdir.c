// Tests of a run's folder (coat/save/outdir.h) while the run continues: it is removed, renamed,
// replaced, or another run takes it.
#include "dev/test/test_folder.h"

#include "coat/save/outdir.h"
#include "coat/save/outdir_take.h"

static Config config;
static OutFolder out;
static Error err;
static char text[4096], aside[TEST_PATH], run_folder[TEST_PATH];

// Each test has a folder of a run, locked, under a parent of its own.
static int begin(void **state) {
    (void)state;
    test_folder_empty(state);
    memset(&config, 0, sizeof config);
    snprintf(run_folder, sizeof run_folder, "%s", path_of("disk/run"));
    snprintf(aside, sizeof aside, "%s", path_of("disk/aside"));
    snprintf(config.out, sizeof config.out, "%s", run_folder);
    return out_prepare(&config, &out, &err) ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    out_close(&out);
    return 0;
}

static OutState keep(void) {
    text[0] = err.text[0] = 0;
    return out_keep(&out, text, sizeof text, &err);
}

static void assert_text(const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' does not say '%s'", text, part);
}

// Nobody else can take the folder, and it is this run's until it gives it back.
static void assert_locked(void) {
    Lock other;
    Error why;
    assert_int_equal(keep(), OUT_OURS);
    assert_false(lock_take(&other, out.path, &why));
    assert_says(&why, "another run is writing there");
}

static void test_ours(void **state) {
    (void)state;
    assert_locked();
    char place[TEST_PATH];
    assert_true(out_place(&out, place, sizeof place));
    assert_string_equal(place, run_folder);
    out_close(&out);
    assert_false(path_is_file(path_of("disk/run/.lock")));
}

static void test_removed(void **state) {
    (void)state;
    assert_int_equal(unlink(path_of("disk/run/.lock")), 0);
    assert_int_equal(rmdir(run_folder), 0);
    char place[TEST_PATH];
    assert_false(out_place(&out, place, sizeof place));
    assert_int_equal(keep(), OUT_AGAIN);
    assert_text("disk/run: the folder was removed during the run; it is made again");
    assert_locked();
}

static void test_renamed(void **state) {
    (void)state;
    assert_int_equal(rename(run_folder, aside), 0);
    assert_int_equal(keep(), OUT_AGAIN);
    assert_text("disk/run: the folder was renamed to ");
    assert_text("disk/aside during the run; it is made again");
    assert_locked();
    OutFolder second; // the old one can be taken by who resumes from it
    snprintf(config.out, sizeof config.out, "%s", aside);
    assert_true(out_prepare(&config, &second, &err));
    out_close(&second);
}

// A link that leads elsewhere by now is not a folder that was renamed.
static void test_link_that_turns(void **state) {
    (void)state;
    const char *const names[] = {"disk/one", "disk/two", "disk/link"};
    out_close(&out);
    snprintf(config.out, sizeof config.out, "%s", path_of(names[2]));
    for (int run = 0; run < 2; run++) {
        for (int i = 0; i < 2; i++) assert_int_equal(mkdir(path_of(names[i]), 0777), 0);
        if (run) write_text(path_of("disk/two/log.jsonl"), "theirs");
        assert_int_equal(symlink("one", config.out), 0);
        assert_true(out_prepare(&config, &out, &err));
        assert_int_equal(unlink(config.out), 0);
        assert_int_equal(symlink("two", config.out), 0);
        assert_int_equal(keep(), run ? OUT_TAKEN : OUT_AGAIN);
        const char *said = run ? err.text : text;
        if (!strstr(said, "the name no longer leads to the run's folder ") || !strstr(said, "disk/one"))
            fail_msg("%s", said);
        if (run) assert_says(&err, "and the one of that name holds another run (log.jsonl)");
        if (!run) assert_text("disk/one; it is begun again there, with the whole log, and the run continues in it");
        if (!run) assert_locked();
        out_close(&out);
        if (run) assert_int_equal(unlink(path_of("disk/two/log.jsonl")), 0);
        assert_int_equal(unlink(config.out), 0);
        for (int i = 0; i < 2; i++) assert_true(folder_remove(path_of(names[i]), &err));
    }
}

// What cp -a makes of the folder has its lock file, too.
static void test_copy(void **state) {
    (void)state;
    char command[3 * TEST_PATH];
    write_text(path_of("disk/run/log.jsonl"), "of before");
    assert_int_equal(rename(run_folder, aside), 0);
    snprintf(command, sizeof command, "cp -a '%s' '%s'", aside, run_folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(keep(), OUT_TAKEN);
    assert_says(&err, "the folder was renamed to ");
    assert_says(&err, "and the one of that name is a copy of it (log.jsonl)");
}

// The first folder comes back in place of the one that was made for it; not where another run has been in it.
static void test_brought_back(void **state) {
    (void)state;
    for (int other = 0; other < 2; other++) {
        write_text(path_of("disk/run/log.jsonl"), "of before");
        assert_int_equal(rename(run_folder, aside), 0);
        assert_int_equal(keep(), OUT_AGAIN);
        Lock lock;
        assert_true(!other || lock_take(&lock, aside, &err));
        if (other) lock_release(&lock);
        assert_int_equal(rename(run_folder, path_of("disk/second")), 0);
        assert_int_equal(rename(aside, run_folder), 0);
        assert_int_equal(keep(), other ? OUT_TAKEN : OUT_AGAIN);
        if (other) break;
        assert_text("disk/second during the run; the earlier one is there again, with the whole log");
        assert_locked();
        assert_true(folder_remove(path_of("disk/second"), &err));
    }
    assert_says(&err, "the one of that name holds another run (log.jsonl)");
}

// A link whose folder is gone leads to a new one, also without that one's parent where both were deleted.
static void test_link(void **state) {
    (void)state;
    const char *const targets[] = {"aside", "../disk/aside", aside};
    out_close(&out);
    assert_int_equal(rmdir(run_folder), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mkdir(aside, 0777), 0);
        assert_int_equal(symlink(targets[i], run_folder), 0);
        snprintf(config.out, sizeof config.out, "%s%s", run_folder, i == 1 ? "/" : "");
        assert_true(out_prepare(&config, &out, &err));
        assert_true(folder_remove(aside, &err));
        assert_int_equal(keep(), OUT_AGAIN);
        assert_text("the folder was removed during the run; it is made again");
        assert_true(path_is_folder(aside) && path_is_link(run_folder));
        assert_locked();
        out_close(&out);
        assert_int_equal(rmdir(aside), 0);
        assert_int_equal(unlink(run_folder), 0);
    }
    assert_int_equal(mkdir(path_of("disk/below"), 0777), 0);
    assert_int_equal(symlink("below/aside", run_folder), 0);
    assert_int_equal(mkdir(path_of("disk/below/aside"), 0777), 0);
    assert_true(out_prepare(&config, &out, &err));
    assert_int_equal(rename(path_of("disk/below"), path_of("disk/unmounted")), 0);
    assert_int_equal(keep(), OUT_AWAY);
    assert_says(&err, "cannot create the folder ");
    assert_says(&err, "disk/below/aside: No such file");
    assert_int_equal(rename(path_of("disk/unmounted"), path_of("disk/below")), 0);
    assert_true(folder_remove(path_of("disk/below/aside"), &err));
    assert_int_equal(rmdir(path_of("disk/below")), 0);
    assert_int_equal(keep(), OUT_AGAIN); // what was deleted with its parent comes back with it
    assert_true(path_is_folder(path_of("disk/below/aside")));
    assert_locked();
}

// By an empty folder, or one with other things in it.
static void test_replaced(void **state) {
    (void)state;
    assert_int_equal(rename(run_folder, aside), 0);
    assert_int_equal(mkdir(run_folder, 0777), 0);
    write_text(path_of("disk/run/notes.txt"), "mine");
    assert_int_equal(keep(), OUT_AGAIN);
    assert_locked();
    assert_true(path_is_file(path_of("disk/run/notes.txt")));
}

// The lock alone: what lies in the folder is this run's.
static void test_lock_removed(void **state) {
    (void)state;
    write_text(path_of("disk/run/log.jsonl"), "");
    assert_int_equal(unlink(path_of("disk/run/.lock")), 0);
    assert_int_equal(keep(), OUT_AGAIN);
    assert_text("disk/run: its .lock was removed during the run; it is made again");
    assert_locked();
    // until then others are kept out all the same, also the second time
    OutFolder second;
    config.resume = true;
    assert_int_equal(unlink(path_of("disk/run/.lock")), 0);
    assert_false(out_prepare(&config, &second, &err));
    assert_int_equal(err.code, EXIT_DATA);
    assert_says(&err, "another run is writing there: its .lock was removed; stop it or choose another folder");
    assert_false(path_is_file(path_of("disk/run/.lock")));
    assert_int_equal(keep(), OUT_AGAIN);
    assert_false(out_prepare(&config, &second, &err));
    assert_says(&err, "another run is writing there: process ");
    out_close(&out);
    assert_true(out_prepare(&config, &second, &err));
    out_close(&second);
}

// A disk that is away may come back: neither its place is filled nor the run ended.
static void test_away(void **state) {
    (void)state;
    assert_int_equal(rename(path_of("disk"), path_of("unmounted")), 0);
    assert_int_equal(keep(), OUT_AWAY);
    assert_says(&err, "cannot create the folder ");
    assert_says(&err, "disk/run: No such file");
    assert_false(path_is_folder(path_of("disk")));
    assert_int_equal(rename(path_of("unmounted"), path_of("disk")), 0);
    assert_locked();
}

static void test_taken(void **state) {
    (void)state;
    Lock other;
    for (int removed = 0; removed < 2; removed++) {
        if (removed)
            assert_int_equal(unlink(path_of("disk/run/.lock")), 0);
        else
            assert_int_equal(rename(run_folder, aside), 0);
        if (!removed) assert_int_equal(mkdir(run_folder, 0777), 0);
        assert_true(lock_take(&other, run_folder, &err));
        char who[64];
        snprintf(who, sizeof who, "another run is writing there: process %ld on ", (long)getpid());
        assert_int_equal(keep(), OUT_TAKEN);
        assert_int_equal(err.code, EXIT_DATA);
        assert_says(&err, who);
        assert_says(&err, removed ? "its .lock was removed" : "the folder was renamed to ");
        assert_true(lock_is_held(&other));
        lock_release(&other);
        assert_int_equal(keep(), OUT_AGAIN); // it has ended, and left nothing
    }
}

// Nobody writes there, but another run's files lie there: a copy of this run's own is another run, too.
static void test_other_run(void **state) {
    (void)state;
    const char *const files[] = {"log.jsonl", "events.out.tfevents.1.host", "step-00000020"};
    assert_int_equal(rename(run_folder, aside), 0);
    for (int i = 0; i < 3; i++) {
        char file[TEST_PATH * 2];
        assert_int_equal(mkdir(run_folder, 0777), 0);
        snprintf(file, sizeof file, "%s/%s", run_folder, files[i]);
        write_text(file, "theirs");
        assert_int_equal(keep(), OUT_TAKEN);
        assert_int_equal(err.code, EXIT_DATA);
        assert_says(&err, "the one of that name holds another run");
        assert_says(&err, files[i]);
        assert_false(path_is_file(path_of("disk/run/.lock")));
        assert_true(path_is_file(file));
        assert_int_equal(unlink(file), 0);
        assert_int_equal(rmdir(run_folder), 0);
    }
}

static void test_rescue(void **state) {
    (void)state;
    char name[TEST_PATH];
    out_rescue_path(name, sizeof name, "runs/x//", 3);
    assert_string_equal(name, "runs/x-rescued-3");
    assert_int_equal(mkdir(path_of("disk/run-rescued-1"), 0777), 0); // of an earlier run
    assert_int_equal(out_rescue(&out, false, &err), 2);
    out_rescue_path(name, sizeof name, run_folder, 2);
    assert_string_equal(out.path, name);
    assert_locked();
    assert_false(path_is_file(path_of("disk/run/.lock")));
    assert_int_equal(rename(path_of("disk"), path_of("unmounted")), 0);
    assert_int_equal(out_rescue(&out, false, &err), 0);
    assert_int_equal(err.code, EXIT_DATA);
    assert_says(&err, "run-rescued-2-rescued-1: No such file");
    int number = out_rescue(&out, true, &err); // above
    assert_true(number > 0);
    assert_true(out_rescue_path(name, sizeof name, path_of("disk/run-rescued-2"), number));
    assert_string_equal(name, path_of("run-rescued-2-rescued-1"));
    assert_string_equal(name, out.path);
    assert_locked();
    assert_false(out_rescue_path(name, sizeof name, "run", number));
    assert_true(out_rescue_path(name, sizeof name, "/disk/run", number));
    assert_string_equal(name, "/run-rescued-1");
}

// 1.7 GB a checkpoint; so many GB free, so many checkpoints there; a run from `begun` to step 1000.
static bool fits(double gigabytes, int64_t held, int64_t begun) {
    const OutRoom room = {gigabytes * 1e9, held, 4096};
    return out_fits(&config, room, begun, 1000, 1.7e9, text, sizeof text, &err);
}

// fits_all(N): there is room for N more checkpoints, as many as this run has at a time, and N - 1 would be too few. A
// margin is left: 2 %, the log's half a kilobyte a step, and blocks.
static void fits_all(int64_t count, int64_t held, int64_t begun) {
    const double room = (double)count * 1.02 * (1.7 + 12 * 4096e-9) + (double)(1000 - begun) * 512e-9;
    assert_true(fits(room + 1e-6, held, begun));
    assert_string_equal(text, "");
    char part[64];
    snprintf(part, sizeof part, "for %d of the %d more that", (int)count - 1, (int)count);
    assert_true(fits(room - 1e-6, held, begun) || count == 0);
    if (count > 1) assert_text(part);
    if (count == 1) assert_string_equal(text, ""); // a single one needs no margin
}

static void test_room(void **state) {
    (void)state;
    assert_false(fits(0.9, 0, 0));
    assert_int_equal(err.code, EXIT_DATA);
    assert_says(
        &err, "disk/run: a checkpoint takes 1.70 GB, and 900.00 MB are free there; make room or choose another folder");
    assert_false(fits(4e-6, 0, 0));
    assert_says(&err, "a checkpoint takes 1.70 GB, and 4.00 KB are free there");
    fits_all(1, 0, 0); // that of the end
    config.save_every = 100;
    fits_all(10, 0, 0);
    fits_all(10, 7, 0); // nothing of what is there goes
    fits_all(3, 0, 700);
    config.save_every = 300; // and the end
    fits_all(4, 0, 0);
    fits_all(1, 3, 900);
    config.save_every = 100;
    config.keep = 3; // and the one that is being written
    fits_all(4, 0, 0);
    fits_all(3, 1, 100);
    fits_all(1, 3, 300);
    fits_all(1, 5, 500); // of a run that kept more
    fits_all(2, 0, 800);
    assert_true(fits(5.25, 0, 0));
    assert_text("and 5.25 GB are free there, for 3 of the 4 more that --save-every and --keep hold at a time: the "
                "others cannot be saved; make room, or set --keep 2");
    assert_true(fits(3.4, 0, 0));            // two without a margin
    assert_text("for 1 of the 4 more that"); // the next is written before one goes
    assert_null(strstr(text, "or set --keep"));
    config.keep_every = 250; // steps 500 and 1000 are saved, and kept
    fits_all(6, 0, 0);
    config.save_every = 0;
    fits_all(1, 0, 0);
}

// Checkpoints that the start will delete, or that are half, are not counted. (dev/test/test_out.sh has their bytes.)
static void test_room_on_the_disk(void **state) {
    (void)state;
    OutRoom room;
    assert_int_equal(mkdir(path_of("disk/run/step-00000010"), 0777), 0);
    assert_int_equal(mkdir(path_of("disk/run/.step-00000020.tmp"), 0777), 0);
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

// The old run is deleted as a whole, with folders that others made in it, or not at all; and nothing behind a link.
static void test_overwrite(void **state) {
    (void)state;
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
        assert_says(&err, "run/step-00000010/gguf/deep: ");
        assert_says(&err, "nothing is deleted");
        assert_true(path_is_file(path_of("disk/run/step-00000020/a")));
        assert_true(path_is_file(path_of("disk/run/log.jsonl")));
        assert_true(path_is_link(path_of("disk/run/step-00000030")));
    }
    assert_int_equal(chmod(path_of(folders[2]), 0777), 0);
    if (!clear_as_user()) fail_msg("%s", err.text);
    char found[256];
    assert_true(out_find_run(run_folder, found, &err));
    assert_string_equal(found, "");
    assert_true(path_is_file(path_of("disk/a")));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

// What --overwrite deletes: nothing under a name that the user made of a checkpoint's.
static void test_names(void **state) {
    (void)state;
    const char *const own[] = {"step-00000020", "step-123456789", ".step-00000020.tmp", ".step-00000020.old",
                               "log.jsonl"};
    const char *const others[] = {"step-00000020-good", "step-00000020.bak", "step-20",
                                  ".step-00000020",     "a-step-00000020",   "log.jsonl.bak"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) assert_true(out_is_run_file(own[i]));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) assert_false(out_is_run_file(others[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names),
                                       TEST(test_ours),
                                       TEST(test_removed),
                                       TEST(test_brought_back),
                                       TEST(test_link),
                                       TEST(test_link_that_turns),
                                       TEST(test_copy),
                                       TEST(test_renamed),
                                       TEST(test_replaced),
                                       TEST(test_lock_removed),
                                       TEST(test_away),
                                       TEST(test_taken),
                                       TEST(test_other_run),
                                       TEST(test_rescue),
                                       TEST(test_room),
                                       TEST(test_room_on_the_disk),
                                       TEST(test_overwrite)};
    return cmocka_run_group_tests_name("outdir", tests, test_folder_make, test_folder_remove);
}
