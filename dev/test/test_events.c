// Tests of TensorBoard event files (coat/log/events.h): checksums, records, the order of files of several starts, and a
// full disk. The parser of event files in this test shares no code with the writer.
#include <fcntl.h>
#include <math.h>
#include <signal.h>

#include "coat/log/events.h"
#include "coat/log/log.h"
#include "coat/save/outdir.h"
#include "test_folder.h"

static Error err;

UNIT_TEST(crc32c_has_published_check_values) {
    uint8_t bytes[32];
    assert_int_equal(crc32c("", 0), 0);
    assert_int_equal(crc32c("123456789", 9),
                     0xE3069283); // check value of the CRC catalogue; other values: RFC 3720, appendix B.4
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(crc32c(bytes, 32), 0x8A9136AA);
    memset(bytes, 0xFF, sizeof bytes);
    assert_int_equal(crc32c(bytes, 32), 0x62A8AB43);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    assert_int_equal(crc32c(bytes, 32), 0x46DD794E);
    assert_int_equal(crc32c_masked("", 0), 0xA282EAD8);
    assert_int_equal(crc32c_masked("123456789", 9), 0xC78AB0E5);
}

// --- independent parser of event files -----------------------------------------------------------------------------

typedef struct {
    double wall_time;
    int64_t step;
    char version[32];
    bool session_start;
    int scalars;
    char tag[12][32];
    float value[12];
} Event;

typedef struct {
    const uint8_t *at, *end;
} Reader;

static uint64_t read_fixed(Reader *r, int count) {
    uint64_t value = 0;
    assert_true(r->end - r->at >= count);
    for (int i = 0; i < count; i++) value |= (uint64_t)*r->at++ << 8 * i;
    return value;
}

static uint64_t read_varint(Reader *r) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(r->at < r->end && shift < 64);
        value |= (uint64_t)(*r->at & 0x7F) << shift;
        if (*r->at++ < 0x80) return value;
    }
}

static Reader read_bytes(Reader *r) {
    uint64_t length = read_varint(r);
    assert_true((uint64_t)(r->end - r->at) >= length);
    Reader inner = {r->at, r->at + length};
    r->at += length;
    return inner;
}

static void read_string(Reader *r, char *text, size_t size) {
    Reader inner = read_bytes(r);
    assert_true((size_t)(inner.end - inner.at) < size);
    memcpy(text, inner.at, (size_t)(inner.end - inner.at));
    text[inner.end - inner.at] = '\0';
}

static void read_value(Reader value, Event *event) {
    assert_true(event->scalars < 12);
    while (value.at < value.end) {
        uint64_t key = read_varint(&value);
        if (key == (1 << 3 | 2)) {
            read_string(&value, event->tag[event->scalars], 32);
        } else {
            assert_int_equal(key, 2 << 3 | 5);
            uint32_t bits = (uint32_t)read_fixed(&value, 4);
            memcpy(&event->value[event->scalars], &bits, sizeof bits);
        }
    }
    event->scalars++;
}

static void read_event(Reader r, Event *event) {
    memset(event, 0, sizeof *event);
    while (r.at < r.end) {
        uint64_t key = read_varint(&r), bits;
        Reader inner;
        switch (key) {
        case 1 << 3 | 1:
            bits = read_fixed(&r, 8);
            memcpy(&event->wall_time, &bits, sizeof bits);
            break;
        case 2 << 3 | 0: event->step = (int64_t)read_varint(&r); break;
        case 3 << 3 | 2: read_string(&r, event->version, sizeof event->version); break;
        case 5 << 3 | 2:
            for (inner = read_bytes(&r); inner.at < inner.end;) {
                assert_int_equal(read_varint(&inner), 1 << 3 | 2);
                read_value(read_bytes(&inner), event);
            }
            break;
        case 7 << 3 | 2:
            inner = read_bytes(&r);
            assert_int_equal(read_varint(&inner), 1 << 3);
            event->session_start = read_varint(&inner) == 1;
            break;
        default: fail_msg("field %d", (int)key);
        }
    }
}

// Reads all events of a file, at most `room`. Returns their number. Asserts that every record is complete and that its
// checksums match.
static int read_events(const char *path, Event *events, int room) {
    size_t size;
    char *data = read_file(path, &size);
    Reader r = {(uint8_t *)data, (uint8_t *)data + size};
    int count = 0;
    for (; r.at < r.end; count++) {
        assert_true(count < room);
        uint32_t length_crc = crc32c_masked(r.at, 8);
        uint64_t length = read_fixed(&r, 8);
        assert_int_equal(read_fixed(&r, 4), length_crc);
        assert_true((uint64_t)(r.end - r.at) >= length + 4);
        uint32_t crc = crc32c_masked(r.at, length);
        read_event((Reader){r.at, r.at + length}, &events[count]);
        r.at += length;
        assert_int_equal(read_fixed(&r, 4), crc);
    }
    free(data);
    return count;
}

// --- tests of the writer of event files ----------------------------------------------------------------------------

UNIT_TEST(written_scalars_are_read_back) {
    static Event events[8];
    EventWriter *writer = events_open(test_folder, 1, &err);
    assert_non_null(writer);
    const Scalar first[] = {{"loss", 3.25}, {"lr", 6e-4}}, second[] = {{"val_loss", NAN}},
                 third[] = {{"loss", INFINITY}};
    assert_true(events_write(writer, 1, first, 2));
    assert_int_equal(read_events(events_path(writer), events, 8), 3); // in the file as soon as events_write() returns
    assert_true(events_write(writer, 300, second, 1));
    assert_true(events_write(writer, (int64_t)1 << 40, third, 1));
    const char *path = formatted("%s", events_path(writer));
    events_close(writer);

    assert_int_equal(read_events(path, events, 8), 5);
    assert_string_equal(events[0].version, "brain.Event:2");
    assert_true(events[1].session_start && events[1].step == 0);
    assert_int_equal(events[2].step, 1);
    assert_int_equal(events[2].scalars, 2);
    assert_string_equal(events[2].tag[0], "loss");
    assert_true(events[2].value[0] == 3.25f && events[2].value[1] == 6e-4f);
    assert_string_equal(events[2].tag[1], "lr");
    assert_int_equal(events[3].step, 300);
    assert_true(isnan(events[3].value[0]));
    assert_true(events[4].step == (int64_t)1 << 40 && isinf(events[4].value[0]));
    for (int i = 0; i < 5; i++) assert_true(events[i].wall_time > 1.6e9 && events[i].wall_time < 1e11);
    unlink(path);
}

// Tests that the names of event files sort in the order of the starts, even if the clock is set back. A file without
// scalars is removed when it is closed.
UNIT_TEST(event_files_sort_by_start_of_the_run) {
    static Event events[4];
    char last[TEST_PATH] = "";
    const char *name = path_of("events.out.tfevents.4000000000.elsewhere"); // its time is in the future
    write_text(name, "");
    snprintf(last, sizeof last, "%s", name);
    for (int i = 0; i < 3; i++) { // several starts within a second
        EventWriter *writer = events_open(test_folder, 7 + i, &err);
        assert_non_null(writer);
        assert_true(strcmp(events_path(writer), last) > 0);
        assert_true(events_is_name(path_base(events_path(writer))));
        snprintf(last, sizeof last, "%s", events_path(writer));
        assert_int_equal(read_events(last, events, 4), 2);
        const Scalar scalar = {"loss", 1};
        if (i < 2) assert_true(events_write(writer, 7 + i, &scalar, 1));
        events_close(writer);
        assert_int_equal(access(last, F_OK), i < 2 ? 0 : -1); // the last file has no scalars
        if (i < 2) assert_int_equal(read_events(last, events, 4), 3);
        assert_true(events[1].session_start);
        assert_int_equal(events[1].step, 7 + i);
    }
    assert_false(events_is_name("log.jsonl"));
    assert_false(events_is_name("events"));
}

UNIT_TEST(too_long_tag_is_refused) {
    static Event events[4];
    EventWriter *writer = events_open(test_folder, 1, &err);
    assert_non_null(writer);
    char tag[4000];
    memset(tag, 'x', sizeof tag - 1);
    tag[sizeof tag - 1] = '\0';
    const Scalar scalar = {tag, 1};
    assert_false(events_write(writer, 1, &scalar, 1));
    const Scalar next = {"loss", 1};
    assert_true(events_write(writer, 2, &next, 1)); // succeeds, because the refused tag left nothing in the file
    assert_int_equal(read_events(events_path(writer), events, 4), 3);
    assert_int_equal(events[2].step, 2);
    events_close(writer);
}

// Tests a full disk (simulated by a limit of the file size). Events are queued, and the file ends with a complete
// record. When there is space, all queued events are written in order. One line is printed when writing first fails and
// one when writing succeeds again.
UNIT_TEST(a_full_disk_queues_events_until_there_is_space) {
    static Event events[16];
    signal(SIGXFSZ, SIG_IGN);
    fflush(stderr);
    int kept = dup(STDERR_FILENO), said = open(path_of("said"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(said, STDERR_FILENO);
    EventWriter *writer = events_open(test_folder, 1, &err);
    assert_non_null(writer);
    const Scalar scalar = {"loss", 2};
    bool good[7];
    for (int step = 1; step <= 6; step++) {
        struct stat file;
        assert_int_equal(stat(events_path(writer), &file), 0);
        if (step == 3) limit_files((rlim_t)file.st_size + 20); // space for a part of a record
        if (step == 6) limit_files(RLIM_INFINITY);
        good[step] = events_write(writer, step, &scalar, 1);
        if (step == 5) assert_int_equal(read_events(events_path(writer), events, 16), 4);
    }
    dup2(kept, STDERR_FILENO);
    close(kept);
    for (int step = 1; step <= 6; step++) assert_int_equal(good[step], step < 3 || step == 6);
    assert_int_equal(read_events(events_path(writer), events, 16), 8);
    for (int step = 1; step <= 6; step++) assert_int_equal(events[step + 1].step, step);
    char text[2048] = "";
    assert_true(pread(said, text, sizeof text - 1, 0) > 0);
    close(said);
    const char *note = strstr(text, "\nnote: ");
    assert_true(strncmp(text, "warning: ", 9) == 0 && strstr(text, "step 3 ") && note);
    assert_true(strchr(note + 1, '\n')[1] == '\0'); // the output has two lines
    events_close(writer);
}

UNIT_TEST(event_files_in_a_missing_folder_are_an_error) {
    assert_null(events_open(path_of("missing"), 1, &err));
    assert_error(&err, EXIT_DATA, "events.out.tfevents.");
}

// --- tests of the event files that the log writes ------------------------------------------------------------------

// Returns the path of a folder's newest event file, or "" if there is none. Valid until the next call.
static const char *event_file(const char *folder) {
    static char path[TEST_PATH];
    FILE *list = popen(formatted("ls %s/events.out.tfevents.* 2>/dev/null | tail -n 1", folder), "r");
    assert_non_null(list);
    if (!fgets(path, sizeof path, list)) path[0] = '\0';
    path[strcspn(path, "\n")] = '\0';
    pclose(list);
    return path;
}

static Config *new_config(const char *name) {
    static Config config;
    memset(&config, 0, sizeof config);
    snprintf(config.out, sizeof config.out, "%s/%s", test_folder, name);
    config.quiet = true;
    config.seq_len = 128;
    return &config;
}

// Tests that the log of rank 0 writes every scalar of log.jsonl to an event file, too. Other ranks write none.
UNIT_TEST(log_writes_event_files) {
    static Event events[8];
    Config *config = new_config("run");
    Log *log = log_open(config, 0, 4, 3, 0, &err);
    assert_non_null(log);
    log_step(log, 3, 2.5, 0.75, 1e-3, 10, 3000, 1000, 0, 0);
    log_val(log, 3, 2.625, NAN);
    log_step(log, 4, NAN, INFINITY, 1e-3, 20, 4000, 1000, 0, 1);
    log_object(log, 4, "fp8", "{\"h\":{\"amax\":[1,4,2],\"bias\":[0.5,0.25,-0.75]},\"w.m\":{\"amax\":[3,null,1]}}");
    assert_int_equal(read_events(event_file(config->out), events, 8), 7);
    static const char *const tags[] = {"loss", "grad_norm", "lr", "ms", "tokens_per_s", "skipped"};
    const float values[] = {2.5f, 0.75f, 1e-3f, 10, 100000, 0};
    assert_int_equal(events[1].step, 3);
    assert_int_equal(events[2].step, 3);
    assert_int_equal(events[2].scalars, 6);
    for (int i = 0; i < 6; i++) {
        assert_string_equal(events[2].tag[i], tags[i]);
        assert_true(events[2].value[i] == values[i]);
    }
    assert_string_equal(events[3].tag[0], "val_loss");
    assert_true(events[3].step == 3 && events[3].value[0] == 2.625f);
    assert_true(events[4].step == 4 && isnan(events[4].value[0]) && events[4].value[5] == 1);
    assert_true(events[5].step == 4 && events[5].scalars == 2 &&
                events[6].scalars == 1); // one scalar per tensor and statistic: the value of largest magnitude
    assert_string_equal(events[5].tag[0], "fp8/h/amax");
    assert_string_equal(events[5].tag[1], "fp8/h/bias");
    assert_string_equal(events[6].tag[0], "fp8/w.m/amax");
    assert_true(events[5].value[0] == 4 && events[5].value[1] == -0.75f && isnan(events[6].value[0]));
    log_close(log);

    // null means a BF16 matmul in the first --bf16-blocks blocks, and a value that is not finite in later blocks.
    config = new_config("blocks");
    config->recipe.linear = LINEAR_FP8;
    config->recipe.bf16_blocks = 2;
    config->shape.layers = 3;
    log = log_open(config, 0, 4, 1, 0, &err);
    assert_non_null(log);
    log_object(
        log, 1, "fp8",
        "{\"n1\":{\"amax\":[null,null,2]},\"n2\":{\"amax\":[null,3,null]},\"h\":{\"amax\":[null,3,1],\"zero\":[0,0,0]},"
        "\"oq\":{\"amax\":[null,null]}}");
    assert_int_equal(read_events(event_file(config->out), events, 8), 5);
    assert_true(events[2].value[0] == 2 && isnan(events[3].value[0]) && isnan(events[4].value[0]));
    assert_true(events[4].scalars == 2 && events[4].value[1] == 0);
    log_close(log);

    // rank 1 writes no event file
    config = new_config("other");
    log_close(log_open(config, 1, 4, 1, 0, &err));
    assert_string_equal(event_file(config->out), "");
}

UNIT_TEST(overwrite_removes_event_files) {
    Config *config = new_config("again");
    log_close(log_open(config, 0, 4, 1, 0, &err));
    assert_false(event_file(config->out)[0]); // none, because the run has no steps
    write_text(path_of("again/events.out.tfevents.1.host"), "");
    unlink(path_of("again/log.jsonl"));
    write_text(path_of("again/matmul_table.txt"), "");
    write_text(path_of("again/notes.txt"), "mine");
    OutFolder folder;
    assert_false(out_prepare(config, &folder, &err)); // fails, because event files alone count as a run
    out_close(&folder);
    assert_says(&err, "--overwrite");
    config->overwrite = true;
    assert_true(out_prepare(config, &folder, &err));
    out_close(&folder);
    assert_true(event_file(config->out)[0]);
    assert_true(out_clear(config, &err));
    assert_string_equal(event_file(config->out), "");
    assert_false(path_is_file(path_of("again/matmul_table.txt")));
    assert_true(path_is_file(path_of("again/notes.txt")));
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
