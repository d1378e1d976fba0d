// Tests of the operations of vision towers on the CPU: cutting images into patches, embedding patches, and gathering
// rows. Compares them with their formulas.
#include "ops_fixture.h"

static Tensor random_bytes(Fixture *f, int64_t rows, int64_t cols) {
    Tensor t = poisoned(f, FMT_U8, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) ((uint8_t *)t.data)[i] = (uint8_t)(i * 37 % 251 + i % 5);
    return t;
}

// Checks patches_forward. class_rows: 1 if each image has a row for the class token before its patches, otherwise 0.
static void check_patches(Fixture *f, int64_t images, int side, int patch, int class_rows) {
    const int grid = side / patch, T = grid * grid + class_rows;
    Tensor pixels = random_bytes(f, images, 3 * (int64_t)side * side), table = random_tensor(f, FMT_FP32, 3, 256, 2);
    Tensor out = poisoned(f, f->format, images * T, 3 * (int64_t)patch * patch);
    f->exec.ops->patches_forward(&f->exec, out, pixels, table, side, patch, T);
    for (int64_t row = 0; row < out.rows; row++)
        for (int64_t j = 0; j < out.cols; j++) {
            const int64_t number = row % T - class_rows, channel = j / (patch * patch), in_patch = j % (patch * patch);
            const int64_t y = number / grid * patch + in_patch / patch, x = number % grid * patch + in_patch % patch;
            const uint8_t *image = (const uint8_t *)pixels.data + row / T * pixels.cols;
            const double expected = number < 0 ? 0 : value(table, channel, image[(channel * side + y) * side + x]);
            assert_value(out, row, j, expected, 1);
        }
}

TEST_EVERYWHERE(images_are_cut_into_patches) {
    check_patches(f, 3, 12, 4, 0);
    check_patches(f, 2, 17, 5, 1); // Two pixels on the right and at the bottom belong to no patch.
    check_patches(f, 1, 4, 4, 1);
}

TEST_EVERYWHERE(patches_are_embedded) {
    const int64_t images = 3, T = 10, C = 36;
    Tensor y = random_tensor(f, f->format, images * T, C, 1), wpe = random_tensor(f, f->format, T, C, 1);
    Tensor class_row = random_tensor(f, f->format, 1, C, 1), r = poisoned(f, f->format, images * T, C);
    for (int with_class = 0; with_class < 2; with_class++) {
        f->exec.ops->image_embed_forward(&f->exec, r, y, with_class ? class_row : no_tensor(), wpe, (int)T);
        for (int64_t i = 0; i < r.rows; i++)
            for (int64_t j = 0; j < C; j++) {
                const double patch = with_class && i % T == 0 ? value(class_row, 0, j) : value(y, i, j);
                assert_value(r, i, j, patch + value(wpe, i % T, j), 1);
            }
    }
    f->exec.ops->image_embed_forward(&f->exec, y, y, class_row, wpe, (int)T); // in place
    assert_true(same_bits(y, r));
}

TEST_EVERYWHERE(rows_are_gathered_by_index) {
    const int64_t C = 20;
    const int32_t index[6] = {3, -1, 0, 3, -1, 2};
    Tensor from = poisoned(f, FMT_I32, 6, 1), in = random_tensor(f, f->format, 4, C, 1);
    memcpy(from.data, index, sizeof index);
    for (int way = 0; way < 4; way++) {
        const bool keep = way & 1, zeros = way & 2;
        Tensor out = random_tensor(f, f->format, 6, C, 1), before = copy_of(f, out);
        f->exec.ops->rows_gather(&f->exec, out, zeros ? no_tensor() : in, from, keep);
        for (int64_t i = 0; i < 6; i++)
            for (int64_t j = 0; j < C; j++) {
                const double source = zeros ? 0 : value(in, index[i] < 0 ? 0 : index[i], j);
                const double other = keep ? value(before, i, j) : 0;
                assert_true(value(out, i, j) == (index[i] < 0 ? other : source));
            }
    }
}

RUN_TESTS(NULL, NULL, NULL)
