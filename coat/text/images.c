#include "images.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "config/vision.h"
#include "io/files.h"

static const char *values_text(const float *m, const float *d, char *text, size_t size) {
    snprintf(text, size, "mean %.9g %.9g %.9g and deviation %.9g %.9g %.9g", (double)m[0], (double)m[1], (double)m[2],
             (double)d[0], (double)d[1], (double)d[2]);
    return text;
}

// Checks the words of the header that do not depend on the model.
static bool check_words(const ImageFile *f, const int32_t *header, Error *err) {
    enum { MAX_SIDE = 1 << 14 };
    static const struct {
        int32_t word, least, most;
        const char *what;
    } words[] = {{IMAGES_WORD_COUNT, 1, INT32_MAX, "number of images"},
                 {IMAGES_WORD_SIDE, 1, MAX_SIDE, "side of an image"},
                 {IMAGES_WORD_CHANNELS, 3, 3, "number of channels"},
                 {IMAGES_WORD_ROWS, 1, INT32_MAX, "number of tokens per image"},
                 {IMAGES_WORD_PLACES, 1, INT32_MAX, "number of places"},
                 {IMAGES_WORD_PREPARATION, 0, 2, "kind of preparation"},
                 {IMAGES_WORD_CHECKSUM, DATA_CHECKSUM, DATA_CHECKSUM, "mark of a checksum"},
                 {IMAGES_WORD_TOKEN, 0, INT32_MAX, "placeholder token"}};
    const char *path = f->file.path;
    if (header[IMAGES_WORD_MAGIC] != IMAGES_MAGIC)
        return error_set(
            err, EXIT_DATA,
            "%s is not a file of images (its first 32-bit integer is %d, not %d); make one with %s --image-processor",
            path, (int)header[IMAGES_WORD_MAGIC], IMAGES_MAGIC, prepare_name());
    if (header[IMAGES_WORD_VERSION] != IMAGES_VERSION)
        return error_set(err, EXIT_DATA,
                         "%s has version %d of the format of images, but only version %d is supported; regenerate it "
                         "with %s",
                         path, (int)header[IMAGES_WORD_VERSION], IMAGES_VERSION, prepare_name());
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const int32_t word = header[words[i].word];
        char upper[16] = ""; // the maximum, if it differs from the minimum
        if (words[i].least < words[i].most) snprintf(upper, sizeof upper, " to %d", (int)words[i].most);
        if (word < words[i].least || word > words[i].most)
            return error_set(err, EXIT_DATA,
                             "%s is damaged: its header has the %s %d, not %d%s; copy the file again or regenerate it",
                             path, words[i].what, (int)word, (int)words[i].least, upper);
    }
    bool good = true;
    for (int i = 0; i < 3; i++) good = good && isfinite(f->mean[i]) && isfinite(f->deviation[i]) && f->deviation[i] > 0;
    for (int i = IMAGES_WORDS_USED; i < DATA_HEADER_BYTES / 4; i++) good = good && header[i] == 0;
    return good || error_set(err, EXIT_DATA,
                             "%s is damaged: its mean, deviation or unused words are not valid; copy the file again or "
                             "regenerate it",
                             path);
}

// Fails unless the file's images match the shape `v` that the model reads. If `v` has no image token, or no mean and
// deviation, copies these values from the file.
static bool matches_model(const ImageFile *f, int side, VisionShape *v, Error *err) {
    if (v->image_token < 0) v->image_token = f->token;
    if (side != v->image_size || f->rows != vision_rows(v) || f->token != v->image_token)
        return error_set(
            err, EXIT_DATA,
            "%s does not match the model: its images have %d x %d pixels and take %d tokens with the id %d, but the "
            "model needs %d x %d pixels, %d tokens and the id %d; regenerate it with --image-processor and the model's "
            "folder",
            f->file.path, side, side, f->rows, f->token, v->image_size, v->image_size, vision_rows(v), v->image_token);
    const size_t bytes = sizeof f->mean;
    if (v->deviation[0] == 0) {
        memcpy(v->mean, f->mean, bytes);
        memcpy(v->deviation, f->deviation, bytes);
    }
    char found[128], expected[128];
    return (memcmp(v->mean, f->mean, bytes) == 0 && memcmp(v->deviation, f->deviation, bytes) == 0) ||
           error_set(
               err, EXIT_DATA,
               "%s does not match the model or earlier files: it normalizes pixels with %s, not %s; regenerate all "
               "files with --image-processor and the model's folder",
               f->file.path, values_text(f->mean, f->deviation, found, sizeof found),
               values_text(v->mean, v->deviation, expected, sizeof expected));
}

// Checks the size of a file of images, then reads which stored image each place of the token file shows.
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
                             "%s is damaged: place %" PRId64 " shows image %" PRIu32 ", but the file has %" PRId64
                             " image%s; copy the file again or regenerate it",
                             path, i, f->shown[i], f->count, plural(f->count));
    return true;
}

static bool read_header(ImageFile *f, int fd, VisionShape *vision, XXH64_state_t *hash, Error *err) {
    int32_t header[DATA_HEADER_BYTES / 4];
    if (!token_file_stat(&f->file, fd, err)) return false;
    if (f->file.bytes < DATA_HEADER_BYTES)
        return error_set(err, EXIT_DATA,
                         "%s is truncated: %" PRId64
                         " byte%s, less than its header of %d; make a file of images with %s --image-processor",
                         f->file.path, f->file.bytes, plural(f->file.bytes), DATA_HEADER_BYTES, prepare_name());
    if (!file_read_at(fd, f->file.path, 0, header, sizeof header, err)) return false;
    memcpy(f->mean, header + IMAGES_WORD_MEAN, sizeof f->mean);
    memcpy(f->deviation, header + IMAGES_WORD_DEVIATION, sizeof f->deviation);
    if (!check_words(f, header, err)) return false;
    f->count = header[IMAGES_WORD_COUNT];
    f->image_bytes = 3 * (int64_t)header[IMAGES_WORD_SIDE] * header[IMAGES_WORD_SIDE];
    f->places = header[IMAGES_WORD_PLACES];
    f->rows = header[IMAGES_WORD_ROWS];
    f->token = header[IMAGES_WORD_TOKEN];
    f->file.has_crc = true;
    f->file.crc = (uint32_t)header[IMAGES_WORD_CRC];
    if (hash) XXH64_update(hash, header, sizeof header);
    return read_places(f, fd, err) && matches_model(f, header[IMAGES_WORD_SIDE], vision, err);
}

// Opens the file of images whose path is the first `kept` bytes of `path`, followed by `extension`. `hash` may be NULL.
static ImageFile *open_images(const char *path, size_t kept, const char *extension, VisionShape *vision,
                              XXH64_state_t *hash, Error *err) {
    ImageFile *f = (ImageFile *)xcalloc(1, sizeof *f);
    f->file.path = (char *)xcalloc(kept + strlen(extension) + 1, 1);
    memcpy(f->file.path, path, kept);
    strcpy(f->file.path + kept, extension);
    f->broken = -1;
    int fd = -1;
    uint64_t size;
    bool good = false;
    if (extension[0] && access(f->file.path, F_OK) != 0)
        error_set(err, EXIT_DATA, "%s is missing, but %s has images; copy it to the same folder, or regenerate both",
                  f->file.path, path);
    else
        good = file_open(f->file.path, &fd, &size, err) && read_header(f, fd, vision, hash, err);
    if (fd >= 0) close(fd);
    if (good) return f;
    images_close(f);
    return NULL;
}

ImageFile *images_open(const char *path, VisionShape *vision, XXH64_state_t *hash, Error *err) {
    if (vision->kind == VISION_NONE) {
        error_set(err, EXIT_DATA,
                  "%s has images, but the model reads text only; name a vision-language model with --model, or add "
                  "--vision NAME to a new model",
                  path);
        return NULL;
    }
    const size_t kept = strlen(path) - (text_ends_with(path, ".bin") ? strlen(".bin") : 0);
    return open_images(path, kept, ".images", vision, hash, err);
}

uint8_t *images_read_first(const char *path, VisionShape *vision, Error *err) {
    ImageFile *f = open_images(path, strlen(path), "", vision, NULL, err);
    if (!f) return NULL;
    uint8_t *pixels = (uint8_t *)xmalloc((size_t)f->image_bytes);
    const int fd = token_file_open(&f->file, err);
    const uint64_t at = (uint64_t)(DATA_HEADER_BYTES + 4 * f->places);
    const bool good = fd >= 0 && file_read_at(fd, path, at, pixels, (size_t)f->image_bytes, err);
    if (fd >= 0) close(fd);
    images_close(f);
    if (good) return pixels;
    free(pixels);
    return NULL;
}

void images_close(ImageFile *f) {
    if (!f) return;
    free(f->file.path);
    free(f->shown);
    free(f->starts);
    free(f);
}

void images_add_placeholder(ImageFile *f, int64_t at) {
    const int64_t place = f->found / f->rows, row = f->found % f->rows;
    if (row == 0 && place < f->places) f->starts[place] = (uint32_t)at;
    if (row > 0 && at != f->last + 1 && f->broken < 0) f->broken = f->last;
    f->last = at;
    f->found++;
}

bool images_check_placeholders(ImageFile *f, const char *path, const uint32_t *starts, int64_t examples, Error *err) {
    if (f->broken >= 0)
        return error_set(err, EXIT_DATA,
                         "%s is damaged: the placeholders of an image end at token %" PRId64
                         ", and their number is not a multiple of %d; copy the file again or regenerate it",
                         path, f->broken, f->rows);
    if (f->found != f->places * f->rows)
        return error_set(err, EXIT_DATA,
                         "%s does not match %s: it has %" PRId64 " placeholder%s of images instead of %" PRId64
                         " (%" PRId64 " image%s, %d placeholders each); copy both files again or regenerate them",
                         path, f->file.path, f->found, plural(f->found), f->places * f->rows, f->places,
                         plural(f->places), f->rows);
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
