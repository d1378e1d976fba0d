// Reading and writing the rows of matmul_table.h.
#include "matmul_table.h"

#include "matmul_table_rows.h"

#include <inttypes.h>
#include <stdlib.h>

#define ROW_LENGTH 1024

static Format format_named(const char *name) {
    for (int f = FMT_NONE; f < FMT_COUNT; f++)
        if (strcmp(format_name((Format)f), name) == 0) return (Format)f;
    return FMT_COUNT;
}

// A row for this GPU and version; false for all others.
static bool read_row(const char *row, const char *gpu, size_t cublas_version, MatmulChoice *choice) {
    MatmulShape *s = &choice->shape;
    uint64_t *w = choice->algorithm;
    size_t version;
    char a[8], b[8], d[8], bias[8];
    int transpose_a, transpose_b, fast, at = 0;
    int fields = sscanf(row,
                        "%zu %" SCNd64 " %" SCNd64 " %" SCNd64 " %7s %7s %7s %7s %d %d %d %" SCNx64 " %" SCNx64
                        " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %n",
                        &version, &s->m, &s->n, &s->k, a, b, d, bias, &transpose_a, &transpose_b, &fast, &w[0], &w[1],
                        &w[2], &w[3], &w[4], &w[5], &w[6], &w[7], &at);
    if (fields != 19 || version != cublas_version || strcmp(row + at, gpu) != 0) return false;
    s->a = format_named(a), s->b = format_named(b), s->d = format_named(d), s->bias = format_named(bias);
    s->transpose_a = transpose_a != 0, s->transpose_b = transpose_b != 0, s->fast = fast != 0;
    return s->a != FMT_COUNT && s->b != FMT_COUNT && s->d != FMT_COUNT && s->bias != FMT_COUNT;
}

int matmul_table_read(const char *path, const char *gpu, size_t cublas_version, MatmulChoice choices[], int most) {
    FILE *file = path ? fopen(path, "r") : NULL;
    if (path && !file) return 0;
    const char *rows = matmul_table_rows;
    char row[ROW_LENGTH];
    int count = 0;
    while (count < most) {
        if (file) {
            if (!fgets(row, sizeof row, file)) break;
            row[strcspn(row, "\n")] = 0;
        } else {
            if (!*rows) break;
            size_t length = strcspn(rows, "\n");
            snprintf(row, sizeof row, "%.*s", (int)(length < sizeof row ? length : sizeof row - 1), rows);
            rows += length + (rows[length] == '\n');
        }
        count += read_row(row, gpu, cublas_version, &choices[count]);
    }
    if (file) fclose(file);
    return count;
}

void matmul_table_write(FILE *out, const char *gpu, size_t cublas_version, const MatmulChoice *choice) {
    const MatmulShape *s = &choice->shape;
    fprintf(out, "%zu %" PRId64 " %" PRId64 " %" PRId64 " %s %s %s %s %d %d %d", cublas_version, s->m, s->n, s->k,
            format_name(s->a), format_name(s->b), format_name(s->d), format_name(s->bias), s->transpose_a,
            s->transpose_b, s->fast);
    for (int w = 0; w < 8; w++) fprintf(out, " %" PRIx64, choice->algorithm[w]);
    fprintf(out, " %s\n", gpu);
}
