#include "images.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "config/vision.h"
#include "io/files.h"

#define MAX_SIDE (1 << 14)

static bool damaged(const ImageFile *f, Error *err, const char *what, int64_t found, const char *expected) {
    return error_set(err, EXIT_DATA, "%s is damaged: %s is %" PRId64 ", not %s; copy the file again or regenerate it",
                     f->file.path, what, found, expected);
}

// Checks the words of the header that do not depend on the model.
static bool check_words(const ImageFile *f, const int32_t *header, const float *mean, const float *deviation,
                        Error *err) {
    static const struct {
        int word;
        int32_t least, most;
        const char *what, *expected;
    } words[] = {{IMAGES_WORD_COUNT, 1, INT32_MAX, "its number of images", "at least 1"},
                 {IMAGES_WORD_SIDE, 1, MAX_SIDE, "the side of its images", "1 to 16384"},
                 {IMAGES_WORD_CHANNELS, 3, 3, "its number of channels", "3"},
                 {IMAGES_WORD_ROWS, 1, INT32_MAX, "its number of tokens per image", "at least 1"},
                 {IMAGES_WORD_PLACES, 1, INT32_MAX, "its number of places of images", "at least 1"},
                 {IMAGES_WORD_PREPARATION, 0, 2, "its kind of preparation", "0 to 2"},
                 {IMAGES_WORD_CHECKSUM, DATA_CHECKSUM, DATA_CHECKSUM, "the mark of its checksum", "1"},
                 {IMAGES_WORD_TOKEN, 0, INT32_MAX, "the id of its placeholder token", "at least 0"}};
    if (header[IMAGES_WORD_MAGIC] != IMAGES_MAGIC)
        return error_set(err, EXIT_DATA, "%s is not a file of images (first word %d, not %d); regenerate it with %s",
                         f->file.path, (int)header[IMAGES_WORD_MAGIC], IMAGES_MAGIC, prepare_name());
    if (header[IMAGES_WORD_VERSION] != IMAGES_VERSION)
        return error_set(err, EXIT_DATA, "%s has version %d of the format of images; version %d is known", f->file.path,
                         (int)header[IMAGES_WORD_VERSION], IMAGES_VERSION);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const int32_t word = header[words[i].word];
        if (word < words[i].least || word > words[i].most)
            return damaged(f, err, words[i].what, word, words[i].expected);
    }
    for (int i = 0; i < 3; i++)
        if (!isfinite(mean[i]) || !isfinite(deviation[i]) || !(deviation[i] > 0))
            return error_set(err, EXIT_DATA,
                             "%s is damaged: mean and deviation of channel %d are %g and %g; copy the file again or "
                             "regenerate it",
                             f->file.path, i, (double)mean[i], (double)deviation[i]);
    for (int i = IMAGES_WORDS_USED; i < DATA_HEADER_BYTES / 4; i++)
        if (header[i] != 0) return damaged(f, err, "an unused word of its header", header[i], "0");
    return true;
}

// Checks that the file has the images that the model reads.
static bool matches_model(const ImageFile *f, const int32_t *header, const float *mean, const float *deviation,
                          VisionShape *vision, Error *err) {
    const int side = header[IMAGES_WORD_SIDE], rows = vision_rows(vision);
    if (side != vision->image_size)
        return error_set(err, EXIT_DATA,
                         "%s does not match the model: its images have %d x %d pixels, the model's %d x %d; regenerate "
                         "it with --image-processor of the model's folder",
                         f->file.path, side, side, vision->image_size, vision->image_size);
    if (f->rows != rows)
        return error_set(err, EXIT_DATA,
                         "%s does not match the model: an image takes %d tokens, with the model %d; regenerate it with "
                         "--image-processor of the model's folder",
                         f->file.path, f->rows, rows);
    if (f->token != vision->image_token)
        return error_set(err, EXIT_DATA,
                         "%s does not match the model: its placeholder token is %d, the model's %d; regenerate it with "
                         "--image-token %d",
                         f->file.path, f->token, vision->image_token, vision->image_token);
    if (vision->deviation[0] == 0) {
        memcpy(vision->mean, mean, sizeof vision->mean);
        memcpy(vision->deviation, deviation, sizeof vision->deviation);
    }
    const float *m = vision->mean, *d = vision->deviation;
    if (memcmp(mean, m, 3 * sizeof *m) == 0 && memcmp(deviation, d, 3 * sizeof *d) == 0) return true;
    return error_set(
        err, EXIT_DATA,
        "%s does not match: its pixels have mean %.9g %.9g %.9g and deviation %.9g %.9g %.9g, those of the "
        "model or of earlier files have %.9g %.9g %.9g and %.9g %.9g %.9g; regenerate all files with "
        "--image-processor of the model's folder",
        f->file.path, (double)mean[0], (double)mean[1], (double)mean[2], (double)deviation[0], (double)deviation[1],
        (double)deviation[2], (double)m[0], (double)m[1], (double)m[2], (double)d[0], (double)d[1], (double)d[2]);
}

// Checks the file's size, then reads the list of places.
static bool read_places(ImageFile *f, int fd, Error *err) {
    const char *path = f->file.path;
    const int64_t said = DATA_HEADER_BYTES + 4 * f->places + f->count * f->image_bytes;
    if (f->file.bytes != said)
        return error_set(err, EXIT_DATA,
                         "%s is %s: %" PRId64 " bytes, but its header says %" PRId64
                         "; copy the file again or regenerate it",
                         path, f->file.bytes < said ? "truncated" : "damaged", f->file.bytes, said);
    const size_t bytes = (size_t)f->places * sizeof *f->shown;
    f->shown = (uint32_t *)xmalloc(bytes);
    f->starts = (uint32_t *)xmalloc(bytes);
    if (!file_read_at(fd, path, DATA_HEADER_BYTES, f->shown, bytes, err)) return false;
    for (int64_t i = 0; i < f->places; i++)
        if (f->shown[i] >= f->count)
            return error_set(err, EXIT_DATA,
                             "%s is damaged: place %" PRId64 " shows image %" PRIu32 ", but there are %" PRId64
                             "; copy the file again or regenerate it",
                             path, i, f->shown[i], f->count);
    return true;
}

static bool read_header(ImageFile *f, int fd, VisionShape *vision, XXH64_state_t *hash, Error *err) {
    int32_t header[DATA_HEADER_BYTES / 4];
    float mean[3], deviation[3];
    if (!token_file_stat(&f->file, fd, err)) return false;
    if (f->file.bytes < DATA_HEADER_BYTES)
        return error_set(err, EXIT_DATA, "%s is truncated: %" PRId64 " byte%s, less than its header of %d",
                         f->file.path, f->file.bytes, plural(f->file.bytes), DATA_HEADER_BYTES);
    if (!file_read_at(fd, f->file.path, 0, header, sizeof header, err)) return false;
    memcpy(mean, header + IMAGES_WORD_MEAN, sizeof mean);
    memcpy(deviation, header + IMAGES_WORD_DEVIATION, sizeof deviation);
    if (!check_words(f, header, mean, deviation, err)) return false;
    f->count = header[IMAGES_WORD_COUNT];
    f->image_bytes = 3 * (int64_t)header[IMAGES_WORD_SIDE] * header[IMAGES_WORD_SIDE];
    f->places = header[IMAGES_WORD_PLACES];
    f->rows = header[IMAGES_WORD_ROWS];
    f->token = header[IMAGES_WORD_TOKEN];
    f->file.has_crc = true;
    f->file.crc = (uint32_t)header[IMAGES_WORD_CRC];
    XXH64_update(hash, header, sizeof header);
    return read_places(f, fd, err) && matches_model(f, header, mean, deviation, vision, err);
}

ImageFile *images_open(const char *path, VisionShape *vision, XXH64_state_t *hash, Error *err) {
    if (vision->kind == VISION_NONE) {
        error_set(err, EXIT_DATA,
                  "%s has images, but the model reads text only; name a vision-language model with --model, or add "
                  "--vision NAME to a new model",
                  path);
        return NULL;
    }
    static const char ending[] = ".bin";
    size_t length = strlen(path);
    if (length > 4 && strcmp(path + length - 4, ending) == 0) length -= 4;
    ImageFile *f = (ImageFile *)xcalloc(1, sizeof *f);
    f->file.path = (char *)xcalloc(length + sizeof ".images", 1);
    snprintf(f->file.path, length + sizeof ".images", "%.*s.images", (int)length, path);
    f->bad = -1;
    int fd = -1;
    uint64_t size;
    bool good = false;
    if (access(f->file.path, F_OK) != 0)
        error_set(err, EXIT_DATA, "%s is missing, but %s has images; copy it to the same folder, or regenerate both",
                  f->file.path, path);
    else
        good = file_open(f->file.path, &fd, &size, err) && read_header(f, fd, vision, hash, err);
    if (fd >= 0) close(fd);
    if (good) return f;
    images_close(f);
    return NULL;
}

void images_close(ImageFile *f) {
    if (!f) return;
    free(f->file.path);
    free(f->shown);
    free(f->starts);
    free(f);
}

// Divides the run of placeholders that was found last into groups.
static void end_run(ImageFile *f) {
    const int64_t length = f->end - f->begin;
    if (f->bad < 0 && length % f->rows != 0) f->bad = f->begin, f->bad_rows = length;
    for (int64_t at = f->begin; at < f->end && f->bad < 0; at += f->rows, f->found += f->rows)
        if (f->found / f->rows < f->places) f->starts[f->found / f->rows] = (uint32_t)at;
}

void images_add_placeholder(ImageFile *f, int64_t at) {
    if (at != f->end) {
        end_run(f);
        f->begin = at;
    }
    f->end = at + 1;
}

bool images_check_placeholders(ImageFile *f, const char *path, const uint32_t *starts, int64_t examples, Error *err) {
    end_run(f);
    f->begin = f->end = 0;
    if (f->bad >= 0)
        return error_set(err, EXIT_DATA,
                         "%s: %" PRId64 " placeholder%s of images at token %" PRId64
                         " %s not a multiple of the %d of an image; regenerate it",
                         path, f->bad_rows, plural(f->bad_rows), f->bad, f->bad_rows == 1 ? "is" : "are", f->rows);
    if (f->found != f->places * f->rows)
        return error_set(err, EXIT_DATA,
                         "%s does not match %s: it has %" PRId64 " placeholders of images, not the %" PRId64
                         " of %" PRId64 " places; copy both files again or regenerate them",
                         path, f->file.path, f->found, f->places * f->rows, f->places);
    for (int64_t i = 1; i < examples; i++) {
        const int64_t k = images_before(f, starts[i]);
        if (k > 0 && (int64_t)f->starts[k - 1] + f->rows > starts[i])
            return error_set(err, EXIT_DATA,
                             "%s is damaged: example %" PRId64 " begins inside the image at token %" PRIu32
                             "; regenerate it",
                             path, i + 1, f->starts[k - 1]);
    }
    return true;
}

int64_t images_before(const ImageFile *f, int64_t at) {
    int64_t low = 0, high = f->places;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (f->starts[middle] < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool images_read(const ImageFile *f, int64_t begin, int64_t end, int32_t *image_rows, uint8_t *pixels, int *count,
                 Error *err) {
    int64_t k = images_before(f, begin);
    const int64_t last = images_before(f, end), places = DATA_HEADER_BYTES + 4 * f->places;
    if (k == last) return true;
    const int fd = token_file_open(&f->file, err);
    if (fd < 0) return false;
    bool good = true;
    for (; good && k < last; k++, ++*count) {
        for (int j = 0; j < f->rows; j++) image_rows[f->starts[k] - begin + j] = *count * f->rows + j;
        good = file_read_at(fd, f->file.path, (uint64_t)(places + f->shown[k] * f->image_bytes),
                            pixels + *count * f->image_bytes, (size_t)f->image_bytes, err);
    }
    close(fd);
    return good;
}
