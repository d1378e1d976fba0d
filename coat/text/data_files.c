#include "data_files.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "images.h"
#include "io/files.h"

#define EDGE_BYTES 4096 // number of bytes at each end of a file that are hashed into the fingerprint

static bool looks_like_text(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] < 9 || (bytes[i] > 13 && bytes[i] < 32) || bytes[i] == 127) return false;
    return count > 0;
}

// Returns text for an error about a file that does not begin with the magic number of a token file. The text says what
// the file seems to be and what to do.
static const char *other_kind(const unsigned char *bytes, size_t count, char *text, size_t size) {
    const bool parquet = count >= 4 && !memcmp(bytes, "PAR1", 4), words = looks_like_text(bytes, count);
    uint32_t magic = 0;
    if (count >= sizeof magic) memcpy(&magic, bytes, sizeof magic);
    uint32_t swapped = __builtin_bswap32(magic);
    if (swapped == DATA_MAGIC_U16 || swapped == DATA_MAGIC_U32 || swapped == DATA_MAGIC_MASKED)
        return "its bytes are in big-endian order; regenerate the file on a little-endian machine";
    if (magic == 20240326) return "it is an llm.c model; use --model";
    if (magic == 20240328) return "it is an llm.c tokenizer; use --tokenizer";
    if (magic == 20240522)
        return "it is an llm.c multiple-choice evaluation file; use --hellaswag if it contains HellaSwag";
    snprintf(text, size, "%s with %s%s%s",
             parquet ? "it is a Parquet file; turn it into tokens"
             : words ? "it looks like text; turn it into tokens"
                     : "make token files",
             prepare_name(), parquet ? "" : " or ", parquet ? "" : prepare_bytes_name());
    return text;
}

// True if 16-bit words are probably 32-bit tokens below 65536: every second word is 0, unlike in 16-bit tokens of text.
static bool looks_wide(const uint16_t *words, size_t count) {
    for (size_t i = 1; i < count; i += 2)
        if (words[i] != 0) return false;
    return count >= 64;
}

// Checks a token file without a header, such as OLMo's. `head` contains the file's first `have` bytes. The size of the
// vocabulary determines the width of tokens.
static bool check_bare(TokenFile *file, const void *head, size_t have, int vocab, Error *err) {
    const char *path = file->path;
    if (have >= 6 && !memcmp(head, "\x93NUMPY", 6))
        return error_set(
            err, EXIT_DATA,
            "%s is a NumPy array with a header, which OLMo's token files do not have; write its tokens with "
            "tofile() or numpy.memmap",
            path);
    file->header_bytes = 0;
    file->token_bytes = vocab <= 1 << 16 ? 2 : 4;
    file->tokens = file->bytes / file->token_bytes;
    if (file->bytes % file->token_bytes != 0)
        return error_set(err, EXIT_DATA,
                         "%s is damaged or is not a token file: its %" PRId64 " bytes are not a multiple of %d", path,
                         file->bytes, file->token_bytes);
    if (file->token_bytes == 2 && looks_wide((const uint16_t *)head, have / 2))
        return error_set(err, EXIT_DATA,
                         "%s has uint32 tokens, but the vocabulary of %d needs uint16; use the --tokenizer that the "
                         "file was made with",
                         path, vocab);
    return true;
}

// Reads a token file with a loss mask and, if its version is DATA_VERSION_IMAGES, opens its images.
static bool check_masked(TokenFile *file, int fd, const int32_t *header, int vocab, VisionShape *vision,
                         XXH64_state_t *hash, Error *err) {
    MaskedFile masked;
    if (header[1] == DATA_VERSION_IMAGES && !(file->images = images_open(file->path, vision, hash, err))) return false;
    if (!masked_read(file->path, fd, file->bytes, header, vocab, file->images, &masked, err)) return false;
    file->header_bytes = DATA_HEADER_BYTES;
    file->token_bytes = masked.token_bytes;
    file->tokens = masked.tokens;
    file->counted = masked.counted;
    file->mask = masked.mask;
    file->examples = masked.examples;
    file->prompt_format = masked.prompt_format;
    file->starts = masked.starts;
    return true;
}

// Checks the header of a file in llm.c's format. Checks the entire file if it has a loss mask.
static bool check_header(TokenFile *file, int fd, const int32_t *header, size_t have, int vocab, VisionShape *vision,
                         XXH64_state_t *hash, Error *err) {
    const char *path = file->path;
    const bool wide = header[0] == DATA_MAGIC_U32;
    char kind[160];
    if (header[0] != DATA_MAGIC_U16 && !wide && header[0] != DATA_MAGIC_MASKED)
        return error_set(err, EXIT_DATA,
                         "%s is not a token file (its first 32-bit integer is %d, not %d, %d or %d): %s", path,
                         (int)header[0], DATA_MAGIC_U16, DATA_MAGIC_U32, DATA_MAGIC_MASKED,
                         other_kind((const unsigned char *)header, have, kind, sizeof kind));
    if (have < DATA_HEADER_BYTES)
        return error_set(err, EXIT_DATA,
                         "%s is truncated: %" PRId64
                         " byte%s, less than its header of %d; copy the file again or regenerate it",
                         path, file->bytes, plural(file->bytes), DATA_HEADER_BYTES);
    if (header[0] == DATA_MAGIC_MASKED) return check_masked(file, fd, header, vocab, vision, hash, err);
    const int version = wide ? DATA_VERSION_U32 : DATA_VERSION_U16;
    if (header[1] != version)
        return error_set(err, EXIT_DATA,
                         "%s has version %d of the token format with magic %d, but only version %d is supported; "
                         "regenerate it with %s",
                         path, (int)header[1], (int)header[0], version, prepare_name());
    file->header_bytes = DATA_HEADER_BYTES;
    file->token_bytes = wide ? 4 : 2;
    file->tokens = header[2];
    file->crc = (uint32_t)header[8];
    file->has_crc = header[9] == DATA_CHECKSUM;
    const int64_t room = (file->bytes - DATA_HEADER_BYTES) / file->token_bytes;
    if (file->tokens == 0)
        return error_set(err, EXIT_DATA, "%s is empty: its header says 0 tokens; regenerate the file", path);
    if (file->tokens < 0)
        return error_set(err, EXIT_DATA,
                         "%s: its header says %" PRId64 " tokens; regenerate the data as files of at most %d tokens",
                         path, file->tokens, INT32_MAX);
    if (file->tokens > room)
        return error_set(err, EXIT_DATA,
                         "%s is truncated: its header says %" PRId64 " token%s, but the file has %" PRId64
                         "; copy the file again or regenerate it",
                         path, file->tokens, plural(file->tokens), room);
    if (file->bytes != DATA_HEADER_BYTES + file->tokens * file->token_bytes)
        return error_set(err, EXIT_DATA,
                         "%s is damaged: %" PRId64 " bytes, but its header says %" PRId64
                         " token%s of %d bytes; copy the file again or regenerate it",
                         path, file->bytes, file->tokens, plural(file->tokens), file->token_bytes);
    return true;
}

int token_file_open(const TokenFile *file, Error *err) {
    const char *path = file->path;
    struct stat info;
    uint64_t size;
    int fd = -1;
    if (path_is_folder(path))
        error_set(err, EXIT_DATA, "%s is a folder; use a pattern of its token files, such as %s/*_train*.bin", path,
                  path);
    else if (!file_open(path, &fd, &size, err) || !file->checked)
        return fd;
    else if (fstat(fd, &info) == 0 && info.st_dev == file->device && info.st_ino == file->inode &&
             info.st_size == file->bytes && info.st_mtim.tv_sec == file->changed.tv_sec &&
             info.st_mtim.tv_nsec == file->changed.tv_nsec)
        return fd;
    else
        error_set(err, EXIT_DATA, "%s was replaced or changed during the run; restore it, then continue with --resume",
                  path);
    if (fd >= 0) close(fd);
    return -1;
}

bool token_file_stat(TokenFile *file, int fd, Error *err) {
    struct stat info;
    if (fstat(fd, &info) != 0) return error_set(err, EXIT_DATA, "%s: %s", file->path, strerror(errno));
    file->bytes = (int64_t)info.st_size;
    file->device = info.st_dev;
    file->inode = info.st_ino;
    file->changed = info.st_mtim;
    file->checked = true;
    return true;
}

bool token_file_check(TokenFile *file, int fd, int vocab, VisionShape *vision, XXH64_state_t *hash, Error *err) {
    const char *path = file->path;
    if (!token_file_stat(file, fd, err)) return false;
    if (file->bytes == 0) return error_set(err, EXIT_DATA, "%s is empty; regenerate it with %s", path, prepare_name());

    int32_t header[DATA_HEADER_BYTES / 4];
    memset(header, 0, sizeof header);
    size_t have = file->bytes < DATA_HEADER_BYTES ? (size_t)file->bytes : sizeof header;
    if (!file_read_at(fd, path, 0, header, have, err)) return false;
    const bool named = header[0] == DATA_MAGIC_U16 || header[0] == DATA_MAGIC_U32 || header[0] == DATA_MAGIC_MASKED;
    const bool bare = text_ends_with(path, ".npy") && !named;
    if (!(bare ? check_bare(file, header, have, vocab, err)
               : check_header(file, fd, header, have, vocab, vision, hash, err)))
        return false;
    if (!file->mask) file->counted = file->tokens;

    char edge[EDGE_BYTES];
    size_t edge_bytes = file->bytes < EDGE_BYTES ? (size_t)file->bytes : sizeof edge;
    XXH64_update(hash, &file->bytes, sizeof file->bytes);
    for (int end = 0; end < 2; end++) {
        uint64_t at = end ? (uint64_t)file->bytes - edge_bytes : 0;
        if (!file_read_at(fd, path, at, edge, edge_bytes, err)) return false;
        XXH64_update(hash, edge, edge_bytes);
    }
    return true;
}

static bool has_target(const uint8_t *mask, int64_t begin, int64_t end) {
    while (begin < end && !mask_at(mask, begin)) begin++;
    return begin < end;
}

// Lists in file->chosen the sequences of the token stream that have an unmasked target.
static void choose_sequences(TokenFile *file, int T) {
    const int64_t all = (file->tokens - 1) / T;
    file->chosen = (int32_t *)xmalloc((size_t)(all + 1) * sizeof *file->chosen); // + 1, so that the size is never 0
    file->sequences = 0;
    for (int64_t s = 0; s < all; s++)
        if (has_target(file->mask, s * T + 1, (s + 1) * T + 1)) file->chosen[file->sequences++] = (int32_t)s;
}

int64_t token_file_kept(const TokenFile *file, int64_t example, int T) {
    const int64_t begin = file->starts[example], count = file->starts[example + 1] - begin;
    if (count <= T) return count;
    const ImageFile *images = file->images;
    // number of images in the file that begin at or before the example's last input
    const int64_t k = images ? images_before(images, begin + T) : 0;
    const int64_t last = k > 0 ? (int64_t)images->starts[k - 1] : -1;
    return last >= begin && last + images->rows > begin + T ? last - begin : T + 1;
}

// Packs examples into sequences with at most `most` images each. lengths[i] is the number of tokens of example i, 0 if
// the example is dropped. If more than `most` images would fit into a sequence, increases the lengths of examples with
// images, so that more no longer fit. Returns false with err if an example has more than `most` images.
static bool pack(TokenFile *file, int T, int32_t *lengths, int64_t most, Error *err) {
    const int64_t room = file->images ? (T + most - 1) / most : 0; // tokens reserved per image; `most` images fill T
    const bool limited = file->images && (most + 1) * file->images->rows <= T;
    int64_t largest = 0, found = 0; // index of the example with the most images, and the number of its images
    for (int64_t i = 0; limited && i < file->examples; i++) {
        const int64_t begin = file->starts[i], end = lengths[i] > 0 ? begin + token_file_kept(file, i, T) : begin;
        const int64_t images = images_before(file->images, end) - images_before(file->images, begin);
        if (images > found) largest = i, found = images;
        const int64_t reserved = images * room < T ? images * room : T;
        if (lengths[i] < reserved) lengths[i] = (int32_t)reserved;
    }
    if (found > most)
        return error_set(err, EXIT_DATA,
                         "--images-per-sequence %" PRId64 ": %s: example %" PRId64 " of %" PRId64 " has %" PRId64
                         " images; use --images-per-sequence %" PRId64,
                         most, file->path, largest + 1, file->examples, found, found);
    file->packing = pack_examples(lengths, file->examples, T);
    file->sequences = file->packing.rows;
    return true;
}

bool token_file_divide(TokenFile *file, int T, ExamplesKind kind, int images, Error *err) {
    file->sequences = (file->tokens - 1) / T;
    if (!file->mask) return true;
    if (kind == EXAMPLES_SPLIT && file->images)
        return error_set(err, EXIT_DATA,
                         "--examples split: %s has images, which the end of a sequence could cut; use --examples cut",
                         file->path);
    if (kind == EXAMPLES_SPLIT) {
        choose_sequences(file, T);
        return true;
    }
    int32_t *lengths = (int32_t *)xmalloc((size_t)file->examples * sizeof *lengths);
    int64_t longest = 0;
    for (int64_t i = 0; i < file->examples; i++) {
        const int64_t begin = file->starts[i], count = file->starts[i + 1] - begin;
        if (count > file->starts[longest + 1] - file->starts[longest]) longest = i;
        const int64_t kept = token_file_kept(file, i, T);
        file->cut += kept < count;
        const bool trains = has_target(file->mask, begin + 1, begin + kept);
        lengths[i] = !trains ? 0 : kept < T ? (int32_t)kept : T;
    }
    const int64_t most = file->longest = file->starts[longest + 1] - file->starts[longest];
    if (file->cut > 0 && kind == EXAMPLES_WHOLE) {
        free(lengths);
        return error_set(err, EXIT_DATA,
                         "--examples whole: %s: example %" PRId64 " of %" PRId64 " has %" PRId64 " tokens, and %" PRId64
                         " example%s %s longer than a sequence; use --seq-len %" PRId64 ", or --examples cut",
                         file->path, longest + 1, file->examples, most, file->cut, plural(file->cut),
                         file->cut == 1 ? "is" : "are", file->images ? most : most - 1);
    }
    const bool packed = pack(file, T, lengths, images, err);
    free(lengths);
    return packed;
}

// Reads `count` tokens of a file, starting with token `first`. The first `length` tokens are inputs, and the token
// after each input is its target. If count == length, the last input has no target (-1).
static bool read_tokens(const TokenFile *file, int fd, int64_t first, int64_t count, int64_t length, int vocab,
                        void *buffer, int32_t *inputs, int32_t *targets, Error *err) {
    const uint64_t at = (uint64_t)file->header_bytes + (uint64_t)first * (uint64_t)file->token_bytes;
    if (!file_read_at(fd, file->path, at, buffer, (size_t)count * (size_t)file->token_bytes, err)) return false;
    const uint16_t *narrow = (const uint16_t *)buffer;
    const uint32_t *wide = (const uint32_t *)buffer;
    for (int64_t t = 0; t < count; t++) {
        uint32_t token = file->token_bytes == 2 ? narrow[t] : wide[t];
        if (token >= (uint32_t)vocab)
            return error_set(err, EXIT_DATA,
                             "%s: token %" PRId64 " is %" PRIu32 ", but the vocabulary ends at %d; use the "
                             "--tokenizer that the file was made with, or copy the file again if it is damaged",
                             file->path, first + t, token, vocab - 1);
        if (t > 0) targets[t - 1] = mask_at(file->mask, first + t) ? (int32_t)token : -1;
        if (t < length) inputs[t] = (int32_t)token;
    }
    if (count == length) targets[length - 1] = -1;
    return true;
}

// Writes positions[T] of the file's tokens [first, first + T). Positions restart at 0 at the start of each example. If
// `first` is within an example, or the file has no examples, positions count from `first`.
static void count_positions(const TokenFile *file, int64_t first, int T, int32_t *positions) {
    // binary search for the first example that starts after `first`
    int64_t low = 0, high = file->starts ? file->examples : 0;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (file->starts[middle] > first)
            high = middle;
        else
            low = middle + 1;
    }
    for (int t = 0; t < T; t++) {
        const bool begins = file->starts && low < file->examples && file->starts[low] == first + t;
        positions[t] = t == 0 || begins ? 0 : positions[t - 1] + 1;
        low += begins;
    }
}

bool token_file_read(const TokenFile *file, int fd, int64_t sequence, int T, int vocab, void *buffer, int32_t *inputs,
                     int32_t *targets, int32_t *positions, Error *err) {
    const Packing *packing = &file->packing;
    if (!packing->members) {
        const int64_t first = (file->chosen ? file->chosen[sequence] : sequence) * T;
        if (positions) count_positions(file, first, T, positions);
        return read_tokens(file, fd, first, T + 1, T, vocab, buffer, inputs, targets, err);
    }
    int64_t place = 0;
    for (int32_t i = packing->first[sequence]; i < packing->first[sequence + 1]; i++) {
        const int64_t begin = file->starts[packing->members[i]];
        const int64_t count = token_file_kept(file, packing->members[i], T), length = count < T ? count : T;
        if (!read_tokens(file, fd, begin, count, length, vocab, buffer, inputs + place, targets + place, err))
            return false;
        for (int64_t t = 0; positions && t < length; t++) positions[place + t] = (int32_t)t;
        place += length;
    }
    for (; place < T; place++) {
        inputs[place] = 0;
        targets[place] = -1;
        // Position 0 starts a new example, so each padding token is its own example and attends only to itself.
        if (positions) positions[place] = 0;
    }
    return true;
}

bool token_file_read_images(const TokenFile *file, int64_t sequence, int T, int32_t *image_rows, uint8_t *pixels,
                            int *count, Error *err) {
    const Packing *packing = &file->packing;
    if (!file->images) return true;
    for (int32_t i = packing->first[sequence]; i < packing->first[sequence + 1]; i++) {
        const int64_t begin = file->starts[packing->members[i]], kept = token_file_kept(file, packing->members[i], T);
        const int64_t length = kept < T ? kept : T;
        if (!images_read(file->images, begin, begin + length, image_rows, pixels, count, err)) return false;
        image_rows += length;
    }
    return true;
}

static int compare_paths(const void *a, const void *b) {
    return strcmp(((const TokenFile *)a)->path, ((const TokenFile *)b)->path);
}

// Appends the files that match one pattern to *files, in any order.
static bool add_matches(const char *pattern, TokenFile **files, int *count, Error *err) {
    glob_t found;
    memset(&found, 0, sizeof found);
    // GLOB_NOSORT, because glob() would sort by the locale's rules, and the order of the data must not depend on the
    // locale.
    int status = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (status == GLOB_NOMATCH && access(pattern, F_OK) == 0) // the pattern is a file name that contains [ or *
        status = glob(pattern, GLOB_NOSORT | GLOB_NOCHECK, NULL, &found);
    if (status != 0 || found.gl_pathc == 0 || found.gl_pathc > (size_t)(INT32_MAX - *count)) {
        globfree(&found);
        return error_set(err, EXIT_DATA, "no file matches %s; make token files with %s or %s, or correct the pattern",
                         pattern, prepare_name(), prepare_bytes_name());
    }
    *files = (TokenFile *)xrealloc(*files, ((size_t)*count + found.gl_pathc) * sizeof **files);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        TokenFile *file = &(*files)[(*count)++];
        memset(file, 0, sizeof *file);
        file->path = xstrdup(found.gl_pathv[i]);
    }
    globfree(&found);
    return true;
}

bool token_files_find(const char *patterns, size_t length, TokenFile **files, int *count, Error *err) {
    const int before = *count;
    for (const char *at = patterns, *end = patterns + length; at < end;) {
        const char *line_end = (const char *)memchr(at, '\n', (size_t)(end - at));
        if (!line_end) line_end = end;
        if (line_end > at) {
            char *pattern = (char *)xcalloc((size_t)(line_end - at) + 1, 1);
            memcpy(pattern, at, (size_t)(line_end - at));
            const bool good = add_matches(pattern, files, count, err);
            free(pattern);
            if (!good) return false;
        }
        at = line_end + 1;
    }
    if (*count == before)
        return error_set(err, EXIT_DATA,
                         "--train or --val names no token files: its pattern is empty; write a path or a glob pattern");
    TokenFile *mine = *files + before;
    int kept = 1;
    qsort(mine, (size_t)(*count - before), sizeof *mine, compare_paths);
    for (int i = 1; i < *count - before; i++) { // two patterns may match the same file
        if (compare_paths(&mine[i], &mine[kept - 1]) == 0) {
            mine[kept - 1].again = true;
            free(mine[i].path);
        } else {
            mine[kept++] = mine[i];
        }
    }
    *count = before + kept;
    return true;
}

void token_files_free(TokenFile *files, int count) {
    for (int i = 0; i < count; i++) {
        free(files[i].path);
        free(files[i].mask);
        free(files[i].chosen);
        free(files[i].starts);
        packing_free(&files[i].packing);
        images_close(files[i].images);
    }
    free(files);
}
