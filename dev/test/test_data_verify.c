// Tests of the verification of token files (coat/text/data_verify.h): checksums, and files that are replaced or changed
// during a run.
#include <fcntl.h>
#include <time.h>

#include "coat/text/data_verify.h"
#include "token_files.h"

static Error err; // error of the last failed call

// Writes the checksum of the file's tokens to its header.
static void sign(const char *path) {
    uint64_t size;
    int fd;
    assert_true(file_open(path, &fd, &size, &err));
    uint32_t words[2] = {0, DATA_CHECKSUM};
    assert_true(data_checksum(fd, path, (int64_t)size - DATA_HEADER_BYTES, NULL, &words[0], &err));
    close(fd);
    fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, words, sizeof words, 32), sizeof words);
    close(fd);
}

UNIT_TEST(the_checksum_is_the_crc_32_of_the_tokens) {
    uint64_t size;
    uint32_t crc;
    char file[DATA_HEADER_BYTES + 100] = "";
    static const struct {
        const char *text;
        uint32_t crc; // expected result, from zlib.crc32()
    } known[] = {{"", 0},
                 {"a", 0xe8b7be43},
                 {"123456789", 0xcbf43926},
                 {"The quick brown fox jumps over the lazy dog", 0x414fa339}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int fd;
        const size_t bytes = strlen(known[i].text);
        memcpy(file + DATA_HEADER_BYTES, known[i].text, bytes);
        write_file(path_of("text"), file, DATA_HEADER_BYTES + bytes);
        assert_true(file_open(path_of("text"), &fd, &size, &err));
        assert_true(data_checksum(fd, "text", (int64_t)bytes, NULL, &crc, &err));
        assert_int_equal(crc, known[i].crc);
        // data_checksum() must fail, because the file is one byte shorter than requested.
        assert_false(data_checksum(fd, "text", (int64_t)bytes + 1, NULL, &crc, &err));
        assert_says(&err, "text");
        close(fd);
    }
}

// Tests that a flipped bit in the tokens or in the checksum is detected. A file without checksum is not verified.
UNIT_TEST(a_flipped_bit_in_tokens_or_checksum_is_detected) {
    for (int width = 2; width <= 4; width += 2) {
        if (width == 2)
            write_u16("a.bin", 20000, 7);
        else
            write_u32("a.bin", 10000, 7);
        sign(path_of("a.bin"));
        const size_t size = DATA_HEADER_BYTES + 40000,
                     places[] = {32, 35, DATA_HEADER_BYTES, 5000, 20000, 20001, size - 4000, size - 1};
        data_close(open_one("a.bin", 1, 16, true));
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            flip_byte(path_of("a.bin"), places[i]);
            expect_refused("a.bin", 1, 16, 1, "a.bin", "is damaged: its checksum does not match");
            flip_byte(path_of("a.bin"), places[i]);
        }
        data_close(open_one("a.bin", 1, 16, true));
    }
    write_u16("llmc.bin", 20000, 7);
    flip_byte(path_of("llmc.bin"), 20000);
    data_close(open_one("llmc.bin", 1, 16, true));
    write_u16("b_1.bin", 20000, 7); // of two ranks, rank 0 verifies b_1.bin and rank 1 verifies b_2.bin
    write_u16("b_2.bin", 20000, 7);
    sign(path_of("b_2.bin"));
    flip_byte(path_of("b_2.bin"), 20000);
    expect_refused("b_*.bin", 1, 16, 1, "b_2.bin", "is damaged");
    DataLoader *loader = data_open(path_of("b_*.bin"), 1, 16, 0, 2, 1, true, VOCAB, &err);
    assert_non_null(loader);
    data_close(loader);
    assert_null(data_open(path_of("b_*.bin"), 1, 16, 1, 2, 1, true, VOCAB, &err));
    assert_null(data_open_validation(path_of("b_*.bin"), EXAMPLES_SPLIT, 1, 16, VOCAB, NULL, &err));
}

// Tests that large files are verified in the background while they are read. The test's files are sparse.
UNIT_TEST(large_files_are_verified_in_the_background) {
    int32_t in[16], target[16];
    write_header_and_tokens("large.bin", DATA_MAGIC_U16, DATA_VERSION_U16, 34000000, 2, 100, 0, 9);
    assert_int_equal(truncate(path_of("large.bin"), DATA_HEADER_BYTES + 68000000), 0);
    sign(path_of("large.bin"));
    DataLoader *loader = open_one("large.bin", 1, 16, true);
    assert_true(data_batch(loader, 0, in, target, &err));
    nanosleep(&(struct timespec){1, 0}, NULL);
    if (!data_batch(loader, 1, in, target, &err)) fail_msg("%s", err.text);
    data_close(loader);
    int fd = open(path_of("large.bin"), O_WRONLY);
    assert_int_equal(pwrite(fd, "\1", 1, 60000000), 1);
    close(fd);
    loader = open_one("large.bin", 1, 16, true);
    bool good = true;
    for (int i = 0; i < 2000 && good; i++) {
        good = data_batch(loader, 0, in, target, &err);
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    assert_false(good);
    assert_error(&err, EXIT_DATA, "large.bin is damaged: its checksum does not match");
    assert_false(data_batch(loader, 0, in, target, &err));
    data_close(loader);
    data_close(open_one("large.bin", 1, 16, true)); // closes the reader before verification ends
    assert_int_equal(unlink(path_of("large.bin")), 0);
}

static bool reads(DataLoader *loader, int64_t sequence) {
    int32_t in[4], target[4];
    return data_batch(loader, sequence, in, target, &err);
}

// Tests more files than the reader keeps open. A file that is opened again must be unchanged since it was verified.
UNIT_TEST(a_file_that_changes_during_the_run_is_detected) {
    enum { FILES = 300 };
    for (int i = 0; i < FILES; i++) {
        write_u16(formatted("r_%03d.bin", i), 5, (uint32_t)i); // writes a token file with one sequence
    }
    for (int kind = 0; kind < 4; kind++) {
        DataLoader *loader = open_one("r_*.bin", 1, 4, false);
        assert_true(reads(loader, 0));
        assert_true(reads(loader, 256)); // opens r_256.bin, for which the reader closes r_000.bin
        assert_true(reads(loader, 0));   // reopening the unchanged file succeeds
        assert_true(reads(loader, 256));
        struct stat st;
        assert_int_equal(stat(path_of("r_000.bin"), &st), 0);
        const struct timespec times[2] = {st.st_atim, st.st_mtim};
        if (kind == 0) { // replaces the file by another one with the same size and time
            write_u16("other", 5, 1000);
            assert_int_equal(utimensat(AT_FDCWD, path_of("other"), times, 0), 0);
            assert_int_equal(rename(path_of("other"), path_of("r_000.bin")), 0);
        } else if (kind == 1) { // overwrites bytes of the file, which changes its time
            nanosleep(&(struct timespec){0, 20000000}, NULL);
            int fd = open(path_of("r_000.bin"), O_WRONLY);
            assert_int_equal(pwrite(fd, "\1\2", 2, DATA_HEADER_BYTES), 2);
            close(fd);
        } else if (kind == 2) { // changes the file's size and restores its time
            assert_int_equal(truncate(path_of("r_000.bin"), DATA_HEADER_BYTES + 12), 0);
            assert_int_equal(utimensat(AT_FDCWD, path_of("r_000.bin"), times, 0), 0);
        } else {
            assert_int_equal(unlink(path_of("r_000.bin")), 0);
        }
        assert_false(reads(loader, 0));
        if (kind < 3) assert_says(&err, "was replaced or changed during the run");
        assert_error(&err, EXIT_DATA, "r_000.bin");
        assert_true(reads(loader, 1));
        data_close(loader);
        write_u16("r_000.bin", 5, 0);
    }
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
