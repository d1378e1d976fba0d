// Fuzz target for images in training data (coat/text/images.c). Input: 8 bytes {sequence length, images per sequence,
// ranks, flags, grid of the tower, patch size, placeholder token, cut}, then a token file, then the line "=== 2" and
// its file of images. While the files are open, the file of images is truncated by `cut` bytes.
// The bits of `flags` mean:
//   0: shuffle the sequences
//   1: write the right checksums into both files
//   2: the model reads text only
//   3: the model's mean and deviation are known
//   4: EXAMPLES_WHOLE
//   5: EXAMPLES_SPLIT
#include "dev/fuzz/fuzz.h"

#include "coat/config/vision.h"
#include "coat/text/data.h"
#include "coat/text/data_verify.h"
#include "coat/text/images.h"

enum { B = 2, VOCAB = 300 };

// Writes correct checksums into a token file that has a loss mask, and into a file of images.
static void write_checksums(uint8_t *tokens, size_t token_bytes, uint8_t *images, size_t image_bytes) {
    fuzz_write_hash(tokens, token_bytes);
    if (image_bytes < DATA_HEADER_BYTES) return;
    Error err;
    uint32_t crc;
    const int fd = open(fuzz_file("crc", images, image_bytes), O_RDONLY | O_CLOEXEC);
    fuzz_check(data_checksum(fd, "crc", (int64_t)image_bytes - DATA_HEADER_BYTES, NULL, &crc, &err));
    close(fd);
    memcpy(images + 4 * IMAGES_WORD_CRC, &crc, sizeof crc);
}

// Reads micro-batches, and checks that the rows of images belong to the placeholder tokens in order. Returns false if a
// file could not be read.
static bool read_batches(DataLoader *loader, const DataImages *model, int T, Error *err) {
    const int64_t side = model->vision.image_size;
    const size_t count = (size_t)(B * T), most = (size_t)(B * model->per_sequence);
    const bool reads = model->vision.kind != VISION_NONE;
    const int rows = reads ? vision_rows(&model->vision) : 1;
    int32_t *inputs = (int32_t *)xmalloc(3 * count * sizeof *inputs), *targets = inputs + count, *at = targets + count;
    uint8_t *pixels = (uint8_t *)xmalloc(most * (size_t)(3 * side * side) + 1);
    bool good = true;
    for (int64_t first = 0; first < 5 && good; first++) {
        int images = 0;
        good = data_batch_at(loader, first, inputs, targets, NULL, err);
        if (!good) break;
        good = data_images_at(loader, first, at, pixels, &images, err);
        fuzz_check((size_t)images <= most && (good || images == 0));
        int32_t next = 0;
        for (size_t i = 0; i < count; i++) {
            if (at[i] >= 0) fuzz_check(inputs[i] == model->vision.image_token && at[i] == next++);
            if (at[i] >= 0 && i % (size_t)T > 0) fuzz_check(targets[i - 1] < 0);
        }
        fuzz_check(next == images * rows);
    }
    free(pixels);
    free(inputs);
    return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 8) return 0;
    const int T = 1 + data[0], grid = 1 + data[4] % 4, patch = 1 + data[5] % 4, ranks = 1 + data[2] % 3,
              flags = data[3];
    const size_t cut = data[7];
    DataImages model = {{.kind = flags & 4 ? VISION_NONE : VISION_SIGLIP,
                         .image_size = grid * patch,
                         .patch_size = patch,
                         .image_token = data[6]},
                        1 + data[1] % 8};
    if (flags & 8)
        for (int i = 0; i < 3; i++) model.vision.mean[i] = model.vision.deviation[i] = 0.5f;
    data += 8;
    size -= 8;
    const uint8_t *second = (const uint8_t *)memmem(data, size, "=== 2\n", 6);
    const size_t token_bytes = second ? (size_t)(second - data) : size,
                 image_bytes = second ? size - token_bytes - 6 : 0;
    uint8_t *copy = (uint8_t *)memcpy(xmalloc(size + 1), data, size), *images = copy + size - image_bytes;
    if (flags & 2) write_checksums(copy, token_bytes, images, image_bytes);
    char path[FUZZ_PATH];
    snprintf(path, sizeof path, "%s", fuzz_file("x.bin", copy, token_bytes));
    const char *beside = fuzz_path("x.images");
    if (second)
        fuzz_file("x.images", images, image_bytes);
    else
        unlink(beside);
    free(copy);
    const ExamplesKind kind = flags & 16 ? EXAMPLES_WHOLE : flags & 32 ? EXAMPLES_SPLIT : EXAMPLES_CUT;
    Error err;
    DataLoader *loader = data_open_sets(path, NULL, kind, B, T, ranks - 1, ranks, 7, flags & 1, VOCAB, &model, &err);
    if (!loader) {
        fuzz_refused(&err, fuzz_folder());
        return 0;
    }
    const DataExamples e = data_examples(loader);
    fuzz_check(e.left_out >= 0 && e.filled <= 1);
    const float *mean = data_vision(loader)->mean, *deviation = data_vision(loader)->deviation;
    for (int i = 0; i < 3; i++) fuzz_check(mean[i] - mean[i] == 0 && deviation[i] >= 0);
    if (!read_batches(loader, &model, T, &err)) fuzz_refused(&err, fuzz_folder());
    if (cut && cut < image_bytes) {
        fuzz_check(truncate(beside, (off_t)(image_bytes - cut)) == 0);
        if (!read_batches(loader, &model, T, &err)) fuzz_refused(&err, "x.images");
    }
    data_close(loader);
    return 0;
}
