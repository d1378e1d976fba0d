// Parses, searches and writes tables of GEMM algorithms.
#include "matmul_algos.h"

#include <inttypes.h>
#include <string.h>

#include "io/files.h"
#include "ops.h"

#define ROW_LENGTH 1024
#define MAX_SIZE ((uint64_t)1 << 40) // maximum of a matrix size or stride in elements
#define MAX_ALIGNMENT 256

bool matmul_same_key(const MatmulKey *x, const MatmulKey *y) {
    return matmul_same_shape(&x->shape, &y->shape) && x->lda == y->lda && x->ldb == y->ldb && x->ldd == y->ldd &&
           x->align_a == y->align_a && x->align_b == y->align_b && x->align_d == y->align_d &&
           x->accumulate == y->accumulate;
}

bool algo_matches(const MatmulAlgo *algo, const MatmulKey *key, bool exact) {
    const MatmulKey *row = &algo->key;
    if (exact) return !algo->any_memory && matmul_same_key(row, key);
    if (!matmul_same_shape(&row->shape, &key->shape)) return false;
    return algo->any_memory ||
           (row->align_a <= key->align_a && row->align_b <= key->align_b && row->align_d <= key->align_d);
}

// ---------------------------------------------------------------- parsing a table of algorithms
// The read_ functions with a parameter const char **at parse the item of a table row at *at and advance *at past the
// item. They return false if the item is not valid. Rows end with '\n' or 0.

static int digit_value(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16;
}

static bool read_number(const char **at, int base, uint64_t max, uint64_t *value) {
    const char *p = *at + strspn(*at, " "), *first = p;
    for (*value = 0; digit_value(*p) < base; p++) {
        uint64_t digit = (uint64_t)digit_value(*p);
        if (digit > max || *value > (max - digit) / (uint64_t)base) return false;
        *value = *value * (uint64_t)base + digit;
    }
    *at = p;
    return p > first && (*p == ' ' || *p == ')');
}

static bool read_size(const char **at, int64_t *size) {
    uint64_t value;
    bool good = read_number(at, 10, MAX_SIZE, &value) && value > 0;
    *size = (int64_t)value;
    return good;
}

static bool read_alignment(const char **at, int *alignment) {
    uint64_t value;
    bool good = read_number(at, 10, MAX_ALIGNMENT, &value) && value > 0 && (value & (value - 1)) == 0;
    *alignment = (int)value;
    return good;
}

static bool read_flag(const char **at, bool *flag) {
    uint64_t value;
    bool good = read_number(at, 10, 1, &value);
    *flag = value == 1;
    return good;
}

static bool read_format(const char **at, Format *format) {
    const char *word = *at + strspn(*at, " ");
    size_t length = strcspn(word, " \n");
    *at = word + length;
    for (int f = FMT_NONE; f < FMT_COUNT; f++) {
        const char *name = format_name((Format)f);
        *format = (Format)f;
        if (strlen(name) == length && memcmp(name, word, length) == 0) return true;
    }
    return false;
}

static bool read_shape(const char **at, MatmulShape *s) {
    return read_size(at, &s->m) && read_size(at, &s->n) && read_size(at, &s->k) && read_format(at, &s->a) &&
           read_format(at, &s->b) && read_format(at, &s->d) && read_format(at, &s->bias) &&
           read_flag(at, &s->transpose_a) && read_flag(at, &s->transpose_b) && read_flag(at, &s->fast);
}

// Parses the strides and alignments that a table row may have in parentheses. Rows without parentheses are accepted.
static bool read_memory(const char **at, MatmulAlgo *algo) {
    MatmulKey *key = &algo->key;
    *at += strspn(*at, " ");
    algo->any_memory = **at != '(';
    if (algo->any_memory) return true;
    ++*at;
    if (!read_size(at, &key->lda) || !read_size(at, &key->ldb) || !read_size(at, &key->ldd) ||
        !read_alignment(at, &key->align_a) || !read_alignment(at, &key->align_b) ||
        !read_alignment(at, &key->align_d) || !read_flag(at, &key->accumulate))
        return false;
    return *(*at)++ == ')';
}

// Parses a row. Returns false if the row is not valid or is for another GPU or cuBLAS version.
static bool read_row(const char *at, const char *gpu, size_t cublas_version, MatmulAlgo *algo) {
    uint64_t version;
    memset(algo, 0, sizeof *algo);
    if (!read_number(&at, 10, UINT64_MAX, &version) || version != cublas_version) return false;
    if (!read_shape(&at, &algo->key.shape) || !read_memory(&at, algo)) return false;
    for (int i = 0; i < 8; i++)
        if (!read_number(&at, 16, UINT64_MAX, &algo->algorithm[i])) return false;
    at += strspn(at, " ");
    size_t length = strcspn(at, "\r\n");
    return length == strlen(gpu) && memcmp(at, gpu, length) == 0;
}

void algos_add(MatmulAlgos *algos, const char *text, const char *gpu, size_t cublas_version) {
    for (int capacity = algos->count; *text; text += strcspn(text, "\n"), text += *text == '\n') {
        MatmulAlgo algo;
        if (!read_row(text, gpu, cublas_version, &algo)) continue;
        if (algos->count == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            algos->rows = (MatmulAlgo *)realloc(algos->rows, (size_t)capacity * sizeof algo);
            if (!algos->rows) fatal(EXIT_DEVICE, "host memory: could not grow the table of GEMM algorithms");
        }
        algos->rows[algos->count++] = algo;
    }
}

MatmulAlgos algos_read(const char *text, const char *gpu, size_t cublas_version) {
    MatmulAlgos algos = {NULL, 0};
    algos_add(&algos, text, gpu, cublas_version);
    return algos;
}

bool algos_read_file(const char *path, const char *gpu, size_t cublas_version, MatmulAlgos *algos, Error *err) {
    char *text;
    size_t size;
    if (!file_read_all(path, MATMUL_TABLE_LIMIT, &text, &size, err)) return false;
    *algos = algos_read(text, gpu, cublas_version);
    free(text);
    return true;
}

// ---------------------------------------------------------------- writing a table of algorithms

static void write_row(char row[ROW_LENGTH], const MatmulAlgo *algo, const char *gpu, size_t cublas_version) {
    const MatmulKey *key = &algo->key;
    const MatmulShape *s = &key->shape;
    const uint64_t *w = algo->algorithm;
    char memory[160] = "";
    if (!algo->any_memory)
        snprintf(memory, sizeof memory, " (%" PRId64 " %" PRId64 " %" PRId64 " %d %d %d %d)", key->lda, key->ldb,
                 key->ldd, key->align_a, key->align_b, key->align_d, key->accumulate);
    snprintf(row, ROW_LENGTH,
             "%zu %" PRId64 " %" PRId64 " %" PRId64 " %s %s %s %s %d %d %d%s %" PRIx64 " %" PRIx64 " %" PRIx64
             " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %.255s\n",
             cublas_version, s->m, s->n, s->k, format_name(s->a), format_name(s->b), format_name(s->d),
             format_name(s->bias), s->transpose_a, s->transpose_b, s->fast, memory, w[0], w[1], w[2], w[3], w[4], w[5],
             w[6], w[7], gpu);
}

static int compare_rows(const void *a, const void *b) {
    return strcmp((const char *)a, (const char *)b);
}

char *algos_text(const MatmulAlgo rows[], int count, const char *gpu, size_t cublas_version) {
    if (count == 0) return NULL;
    char(*lines)[ROW_LENGTH] = (char(*)[ROW_LENGTH])xmalloc((size_t)count * ROW_LENGTH);
    for (int i = 0; i < count; i++) write_row(lines[i], &rows[i], gpu, cublas_version);
    qsort(lines, (size_t)count, ROW_LENGTH, compare_rows);
    char *text = (char *)xmalloc((size_t)count * ROW_LENGTH), *end = text;
    for (int i = 0; i < count; i++) {
        if (i > 0 && strcmp(lines[i], lines[i - 1]) == 0) continue;
        size_t length = strlen(lines[i]);
        memcpy(end, lines[i], length);
        end += length;
    }
    *end = 0;
    free(lines);
    return text;
}
