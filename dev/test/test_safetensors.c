// Tests of the safetensors reader and writer (coat/io/safetensors.h): round trips, bit-identical files for equal
// contents, and invalid headers.
#include "dev/test/test_folder.h"

#include <errno.h>
#include <sys/syscall.h>

#include <xxhash.h>

#include "coat/io/safetensors.h"

static Error err; // error of the last failed call

// Replaces the C library's pread(), which fails with this errno unless it is 0.
static int pread_fails;

ssize_t pread(int fd, void *to, size_t bytes, off_t offset) {
    if (pread_fails == 0) return (ssize_t)syscall(SYS_pread64, fd, to, bytes, offset);
    errno = pread_fails;
    return -1;
}

// Writes a safetensors file of five tensors, one of them empty and one a scalar. turn: index of the tensor that is
// declared first. piece: number of bytes per write.
static void write_sample(const char *path, int turn, size_t piece) {
    static const struct {
        const char *name;
        Dtype dtype;
        int rank;
        int64_t shape[2];
    } all[5] = {{"b.bytes", DTYPE_U8, 1, {5, 0}},
                {"a.matrix", DTYPE_BF16, 2, {3, 5}},
                {"c.single", DTYPE_F32, 1, {7, 0}},
                {"d.empty", DTYPE_F32, 2, {0, 4}},
                {"e.scalar", DTYPE_I64, 0, {0, 0}}};
    SafeWriter writer;
    memset(&writer, 0, sizeof writer);
    for (int i = 0; i < 5; i++) {
        int k = (i + turn) % 5;
        safewriter_declare(&writer, all[k].name, all[k].dtype, all[k].rank, all[k].shape, k);
    }
    if (!safewriter_begin(&writer, path, &err)) fail_msg("%s", err.text);
    unsigned char bytes[5 + 30 + 28 + 8];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37 + 11);
    for (size_t at = 0; at < sizeof bytes; at += piece)
        assert_true(safewriter_write(&writer, bytes + at, sizeof bytes - at < piece ? sizeof bytes - at : piece, &err));
    uint64_t hash;
    assert_true(safewriter_end(&writer, &hash, &err));
    size_t size;
    char *data = read_file(path, &size);
    assert_int_equal(size, writer.bytes);
    assert_true(XXH3_64bits(data, size) == hash);
    // The file's tensors are sorted by element width, widest first, then by name. Each tensor has its own hash.
    const char *order[5] = {"e.scalar", "c.single", "d.empty", "a.matrix", "b.bytes"};
    for (int i = 0; i < 5; i++) {
        const SafeTensor *t = &writer.tensors[i];
        assert_string_equal(t->name, order[i]);
        assert_true(t->hash == XXH3_64bits(bytes + t->begin, t->bytes));
        assert_string_equal(all[t->tag].name, t->name);
    }
    free(data);
    safewriter_close(&writer);
}

UNIT_TEST(written_tensors_are_read_back) {
    SafeFile file;
    write_sample(path_of("a.safetensors"), 0, 1000);
    if (!safetensors_open(&file, path_of("a.safetensors"), &err)) fail_msg("%s", err.text);
    assert_int_equal(file.count, 5);
    assert_int_equal(file.data_begin % 8, 0);
    const SafeTensor *t = safetensors_find(&file, "a.matrix");
    assert_non_null(t);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[0], 3);
    assert_int_equal(t->shape[1], 5);
    assert_int_equal(t->dtype, DTYPE_BF16);
    unsigned char got[30];
    assert_true(safetensors_read(&file, t, 0, got, 30, &err));
    for (size_t i = 0; i < 30; i++) assert_int_equal(got[i], (unsigned char)((36 + i) * 37 + 11));
    assert_true(safetensors_read(&file, t, 28, got, 2, &err));
    assert_false(safetensors_read(&file, t, 28, got, 3, &err));
    assert_false(safetensors_read(&file, t, UINT64_MAX, got, 2, &err));
    for (int i = 0; i < file.count; i++)
        assert_int_equal((file.data_begin + file.tensors[i].begin) % dtype_bytes(file.tensors[i].dtype), 0);
    assert_null(safetensors_find(&file, "a.matri"));
    assert_null(safetensors_find(&file, "__metadata__"));
    assert_int_equal(safetensors_find(&file, "d.empty")->bytes, 0);
    assert_int_equal(safetensors_find(&file, "e.scalar")->rank, 0);
    safetensors_close(&file);
}

UNIT_TEST(equal_contents_give_equal_files) {
    write_sample(path_of("b0.safetensors"), 0, 1000);
    for (int turn = 1; turn < 5; turn++) {
        const char *name = formatted("b%d.safetensors", turn);
        write_sample(path_of(name), turn, (size_t)turn * 3);
        assert_same_files(path_of("b0.safetensors"), path_of(name));
    }
}

UNIT_TEST(the_writer_refuses_invalid_tensors) {
    SafeWriter writer;
    uint64_t hash;
    int64_t shape[1] = {4};
    for (int tries = 0; tries < 2; tries++) {
        memset(&writer, 0, sizeof writer);
        safewriter_declare(&writer, "x", DTYPE_U8, 1, shape, 0);
        bool began = safewriter_begin(&writer, path_of("c.safetensors"), &err);
        assert_int_equal(began, tries == 0); // The writer does not overwrite an existing file.
        if (began) {
            assert_true(safewriter_write(&writer, "abc", 3, &err));
            assert_false(safewriter_end(&writer, &hash, &err));
            assert_says(&err, "'x' was not written completely");
            assert_false(safewriter_write(&writer, "de", 2, &err));
            assert_says(&err, "more bytes");
        } else {
            assert_says(&err, "c.safetensors");
        }
        safewriter_close(&writer);
    }
    memset(&writer, 0, sizeof writer);
    assert_false(safewriter_begin(&writer, path_of("no/such/folder.safetensors"), &err));
    assert_int_equal(err.code, EXIT_DATA);
    safewriter_close(&writer);
}

UNIT_TEST(invalid_headers_are_refused) {
#define ENTRY(dtype, shape, range) "{\"x\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" range "}}"
    static const struct {
        const char *header;
        uint64_t data;
        const char *says;
    } bad[] = {
        {"", 0, "JSON"},
        {"[]", 0, "object"},
        {"{\"x\":1}", 0, "not an object"},
        {"{\"x\":{}}", 0, "no dtype"},
        {ENTRY("F7", "[1]", "[0,4]"), 4, "type F7"},
        {ENTRY("BOOL", "[4]", "[0,5]"), 5, "5 bytes, but its shape and type need 4"},
        {ENTRY("F32", "1", "[0,4]"), 4, "shape"},
        {ENTRY("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "shape"},
        {ENTRY("F32", "[-1]", "[0,4]"), 4, "shape"},
        {ENTRY("F32", "[1.0]", "[0,4]"), 4, "shape"},
        {ENTRY("F32", "[\"1\"]", "[0,4]"), 4, "shape"},
        {ENTRY("F32", "[99999999999999999999]", "[0,4]"), 4, "JSON"},
        {ENTRY("F32", "[4294967296,4294967296]", "[0,4]"), 4, "exceeds 64 bits"},
        {ENTRY("U8", "[4294967296,4294967296]", "[0,0]"), 0, "exceeds 64 bits"},
        {ENTRY("F32", "[4611686018427387905]", "[0,4]"), 4, "exceeds 64 bits"},
        {ENTRY("F32", "[1]", "[0]"), 4, "data_offsets"},
        {ENTRY("F32", "[1]", "[0,4,8]"), 4, "data_offsets"},
        {ENTRY("F32", "[1]", "{}"), 4, "data_offsets"},
        {ENTRY("F32", "[1]", "[4,0]"), 4, "outside"},
        {ENTRY("F32", "[1]", "[-4,0]"), 4, "outside"},
        {ENTRY("F32", "[1]", "[0,4]"), 3, "outside"},
        {ENTRY("F32", "[1]", "[0,8]"), 8, "8 bytes, but its shape and type need 4"},
        {ENTRY("F32", "[1]", "[4,8]"), 8, "gap"},
        {ENTRY("F32", "[1]", "[0,4]"), 5, "1 byte after the last tensor belongs to no tensor"},
        {ENTRY("F32", "[1]", "[0,4]") "x", 4, "JSON"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "overlaps"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         2, "overlaps"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "JSON"},
    };
#undef ENTRY
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        SafeFile file;
        if (safetensors_parse(&file, "bad", bad[i].header, strlen(bad[i].header), bad[i].data, &err))
            fail_msg("accepted %s", bad[i].header);
        assert_error(&err, EXIT_DATA, bad[i].says);
    }
    static const char good[] = "{\"__metadata__\":{\"x\":\"y\"},\"z\":{\"dtype\":\"F64\",\"shape\":[0,"
                               "9223372036854775807],\"data_offsets\":[0,0]}}   ";
    SafeFile file;
    if (!safetensors_parse(&file, "good", good, strlen(good), 0, &err)) fail_msg("%s", err.text);
    assert_int_equal(file.count, 1);
    safetensors_close(&file);
}

static bool opens(const char *path) {
    SafeFile file;
    bool good = safetensors_open(&file, path, &err);
    safetensors_close(&file);
    return good;
}

// Files truncated at any byte are refused. A flipped bit in the header must not crash the reader; if it refuses the
// file, the error names it.
UNIT_TEST(truncated_or_changed_files_are_refused) {
    size_t size;
    write_sample(path_of("d.safetensors"), 0, 1000);
    char *data = read_file(path_of("d.safetensors"), &size);
    for (size_t length = 0; length < size; length++) {
        write_file(path_of("cut.safetensors"), data, length);
        assert_false(opens(path_of("cut.safetensors")));
        assert_says(&err, "cut.safetensors");
    }
    for (size_t at = 0; at < size - 71; at++) {
        for (int bit = 0; bit < 8; bit += 3) {
            data[at] = (char)(data[at] ^ 1 << bit);
            write_file(path_of("flip.safetensors"), data, size);
            if (!opens(path_of("flip.safetensors"))) assert_says(&err, "flip.safetensors");
            data[at] = (char)(data[at] ^ 1 << bit);
        }
    }
    static const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 7, INT64_MAX, 100000001, 1 << 20};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(data, &lengths[i], 8);
        write_file(path_of("huge.safetensors"), data, size);
        assert_false(opens(path_of("huge.safetensors")));
    }
    free(data);
    write_text(path_of("pointer.safetensors"), "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
    assert_false(opens(path_of("pointer.safetensors")));
    assert_says(&err, "git lfs pull");
    assert_false(opens(path_of("missing.safetensors")));
    assert_says(&err, "No such file");
    assert_false(opens(test_folder));
    assert_says(&err, "not a regular file");
}

// If a file cannot be read, the error must not call the file truncated.
UNIT_TEST(read_errors_are_reported) {
    write_sample(path_of("e.safetensors"), 0, 1000);
    pread_fails = EIO;
    assert_false(opens(path_of("e.safetensors")));
    pread_fails = 0;
    assert_says(&err, strerror(EIO));
    assert_int_equal(err.unread, EIO);
    assert_true(opens(path_of("e.safetensors")));
}

UNIT_TEST(shapes_are_printed_in_full) {
    char text[SHAPE_TEXT];
    int64_t largest[SAFETENSORS_MAX_RANK];
    for (int i = 0; i < SAFETENSORS_MAX_RANK; i++) largest[i] = INT64_MAX;
    assert_string_equal(safetensors_shape_text(text, 0, largest), "()");
    assert_string_equal(safetensors_shape_text(text, 2, (const int64_t[]){4096, 512}), "(4096, 512)");
    safetensors_shape_text(text, SAFETENSORS_MAX_RANK, largest);
    assert_int_equal(strlen(text), 2 + 19 * SAFETENSORS_MAX_RANK + 2 * (SAFETENSORS_MAX_RANK - 1));
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
