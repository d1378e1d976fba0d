#include "data_files.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/files.h"

#define EDGE_BYTES 4096 // of each end of a file, hashed into the fingerprint

static bool looks_like_text(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] < 9 || (bytes[i] > 13 && bytes[i] < 32) || bytes[i] == 127) return false;
    return count > 0;
}

// What a file with a foreign first word seems to be.
static const char *foreign_kind(const unsigned char *bytes, size_t count, char *text, size_t size) {
    const bool parquet = count >= 4 && !memcmp(bytes, "PAR1", 4), words = looks_like_text(bytes, count);
    uint32_t magic = 0;
    if (count >= sizeof magic) memcpy(&magic, bytes, sizeof magic);
    uint32_t swapped = __builtin_bswap32(magic);
    if (swapped == DATA_MAGIC_U16 || swapped == DATA_MAGIC_U32 || swapped == DATA_MAGIC_MASKED)
        return "its bytes are in big-endian order; make it again on a little-endian machine";
    if (magic == 20240326) return "it is an llm.c model; give it as --model";
    if (magic == 20240328) return "it is an llm.c tokenizer; give it as --tokenizer";
    if (magic == 20240522) return "it is an llm.c multiple-choice evaluation file, which holds no token stream";
    snprintf(text, size, "%s with %s%s%s",
             parquet ? "it is a Parquet file; turn it into tokens"
             : words ? "it looks like text; turn it into tokens"
                     : "make token files",
             prepare_name(), parquet ? "" : " or ", parquet ? "" : prepare_bytes_name());
    return text;
}

static bool is_named_npy(const char *path) {
    const size_t length = strlen(path);
    return length > 4 && strcmp(path + length - 4, ".npy") == 0;
}

// Whether 16-bit words are those of 32-bit numbers below 65536: every other one is 0. Text has no such tokens.
static bool looks_wide(const uint16_t *words, size_t count) {
    for (size_t i = 1; i < count; i += 2)
        if (words[i] != 0) return false;
    return count >= 64;
}

// Tokens without a header, as OLMo's memory maps are; `head` is the file's begin. Their width is not in the file.
static bool check_bare(Shard *shard, const void *head, size_t have, int vocab, Error *err) {
    const char *path = shard->path;
    if (have >= 6 && !memcmp(head, "\x93NUMPY", 6))
        return error_set(
            err, EXIT_DATA,
            "%s is a NumPy array with a header, which OLMo's token files do not have: write its tokens with "
            "tofile() or numpy.memmap",
            path);
    shard->header_bytes = 0;
    shard->token_bytes = vocab <= 1 << 16 ? 2 : 4;
    shard->tokens = shard->bytes / shard->token_bytes;
    if (shard->bytes % shard->token_bytes != 0)
        return error_set(err, EXIT_DATA, "%s is damaged, or no token file: %" PRId64 " bytes are no tokens of %d bytes",
                         path, shard->bytes, shard->token_bytes);
    if (shard->token_bytes == 2 && looks_wide((const uint16_t *)head, have / 2))
        return error_set(err, EXIT_DATA,
                         "%s holds uint32 tokens, but the vocabulary of %d has uint16 ones: the file was made for "
                         "another --tokenizer",
                         path, vocab);
    return true;
}

static bool check_masked(Shard *shard, int fd, const int32_t *header, int vocab, Error *err) {
    MaskedFile file;
    if (!masked_read(shard->path, fd, shard->bytes, header, vocab, &file, err)) return false;
    shard->header_bytes = DATA_HEADER_BYTES;
    shard->token_bytes = file.token_bytes;
    shard->tokens = file.tokens;
    shard->counted = file.counted;
    shard->mask = file.mask;
    shard->examples = file.examples;
    shard->prompt_format = file.prompt_format;
    shard->starts = file.starts;
    return true;
}

// The header of llm.c's format, or of a file with a mask and then the rest of it.
static bool check_header(Shard *shard, int fd, const int32_t *header, size_t have, int vocab, Error *err) {
    const char *path = shard->path;
    const bool wide = header[0] == DATA_MAGIC_U32;
    char kind[160];
    if (header[0] != DATA_MAGIC_U16 && !wide && header[0] != DATA_MAGIC_MASKED)
        return error_set(err, EXIT_DATA, "%s is not a token file (first word %d, not %d, %d or %d): %s", path,
                         (int)header[0], DATA_MAGIC_U16, DATA_MAGIC_U32, DATA_MAGIC_MASKED,
                         foreign_kind((const unsigned char *)header, have, kind, sizeof kind));
    if (have < DATA_HEADER_BYTES)
        return error_set(err, EXIT_DATA, "%s is truncated: %" PRId64 " byte%s, less than its header of %d", path,
                         shard->bytes, plural(shard->bytes), DATA_HEADER_BYTES);
    if (header[0] == DATA_MAGIC_MASKED) return check_masked(shard, fd, header, vocab, err);
    const int version = wide ? DATA_VERSION_U32 : DATA_VERSION_U16;
    if (header[1] != version)
        return error_set(err, EXIT_DATA, "%s has version %d of the token format with magic %d; version %d is known",
                         path, (int)header[1], (int)header[0], version);
    shard->header_bytes = DATA_HEADER_BYTES;
    shard->token_bytes = wide ? 4 : 2;
    shard->tokens = header[2];
    shard->crc = (uint32_t)header[8];
    shard->has_crc = header[9] == DATA_CHECKSUM;
    const int64_t room = (shard->bytes - DATA_HEADER_BYTES) / shard->token_bytes;
    if (shard->tokens == 0)
        return error_set(err, EXIT_DATA, "%s is empty: its header says 0 tokens; make it again", path);
    if (shard->tokens < 0)
        return error_set(err, EXIT_DATA, "%s: its header says %" PRId64 " tokens: make it again in smaller files", path,
                         shard->tokens);
    if (shard->tokens > room)
        return error_set(err, EXIT_DATA,
                         "%s is truncated: its header says %" PRId64 " token%s, the file holds %" PRId64
                         ": copy or make it again",
                         path, shard->tokens, plural(shard->tokens), room);
    if (shard->bytes != DATA_HEADER_BYTES + shard->tokens * shard->token_bytes)
        return error_set(err, EXIT_DATA,
                         "%s is damaged: %" PRId64 " bytes, but its header says %" PRId64
                         " token%s of %d bytes: copy or make it again",
                         path, shard->bytes, shard->tokens, plural(shard->tokens), shard->token_bytes);
    return true;
}

int shard_open(const Shard *shard, Error *err) {
    const char *path = shard->path;
    struct stat info;
    uint64_t size;
    int fd = -1;
    if (path_is_folder(path))
        error_set(err, EXIT_DATA, "%s is a folder: give a pattern of its token files, such as %s/*_train*.bin", path,
                  path);
    else if (!file_open(path, &fd, &size, err) || !shard->checked)
        return fd;
    else if (fstat(fd, &info) == 0 && info.st_dev == shard->device && info.st_ino == shard->inode &&
             info.st_size == shard->bytes && info.st_mtim.tv_sec == shard->changed.tv_sec &&
             info.st_mtim.tv_nsec == shard->changed.tv_nsec)
        return fd;
    else
        error_set(err, EXIT_DATA, "%s was replaced or changed during the run; start again with --resume", path);
    if (fd >= 0) close(fd);
    return -1;
}

bool shard_check(Shard *shard, int fd, int vocab, XXH64_state_t *hash, Error *err) {
    const char *path = shard->path;
    struct stat info;
    if (fstat(fd, &info) != 0) return error_set(err, EXIT_DATA, "%s: %s", path, strerror(errno));
    shard->bytes = (int64_t)info.st_size;
    shard->device = info.st_dev;
    shard->inode = info.st_ino;
    shard->changed = info.st_mtim;
    shard->checked = true;
    if (shard->bytes == 0) return error_set(err, EXIT_DATA, "%s is empty: make it again with %s", path, prepare_name());

    int32_t header[DATA_HEADER_BYTES / 4];
    memset(header, 0, sizeof header);
    size_t have = shard->bytes < DATA_HEADER_BYTES ? (size_t)shard->bytes : sizeof header;
    if (!file_read_at(fd, path, 0, header, have, err)) return false;
    const bool named = header[0] == DATA_MAGIC_U16 || header[0] == DATA_MAGIC_U32 || header[0] == DATA_MAGIC_MASKED;
    const bool bare = is_named_npy(path) && !named;
    if (!(bare ? check_bare(shard, header, have, vocab, err) : check_header(shard, fd, header, have, vocab, err)))
        return false;
    if (!shard->mask) shard->counted = shard->tokens;

    char edge[EDGE_BYTES];
    size_t edge_bytes = shard->bytes < EDGE_BYTES ? (size_t)shard->bytes : sizeof edge;
    XXH64_update(hash, &shard->bytes, sizeof shard->bytes);
    for (int end = 0; end < 2; end++) {
        uint64_t at = end ? (uint64_t)shard->bytes - edge_bytes : 0;
        if (!file_read_at(fd, path, at, edge, edge_bytes, err)) return false;
        XXH64_update(hash, edge, edge_bytes);
    }
    return true;
}

static bool has_target(const uint8_t *mask, int64_t begin, int64_t end) {
    while (begin < end && !mask_at(mask, begin)) begin++;
    return begin < end;
}

// The stream's sequences, but for those without a target.
static void choose_sequences(Shard *shard, int T) {
    const int64_t all = (shard->tokens - 1) / T;
    shard->chosen = (int32_t *)xmalloc((size_t)(all + 1) * sizeof *shard->chosen); // never of 0 bytes
    shard->sequences = 0;
    for (int64_t s = 0; s < all; s++)
        if (has_target(shard->mask, s * T + 1, (s + 1) * T + 1)) shard->chosen[shard->sequences++] = (int32_t)s;
}

bool shard_divide(Shard *shard, int T, ExamplesKind kind, Error *err) {
    shard->sequences = (shard->tokens - 1) / T;
    if (!shard->mask) return true;
    if (kind == EXAMPLES_SPLIT) {
        choose_sequences(shard, T);
        return true;
    }
    int32_t *lengths = (int32_t *)xmalloc((size_t)shard->examples * sizeof *lengths);
    int64_t longest = 0;
    for (int64_t i = 0; i < shard->examples; i++) {
        const int64_t begin = shard->starts[i], count = shard->starts[i + 1] - begin;
        if (count > shard->starts[longest + 1] - shard->starts[longest]) longest = i;
        shard->cut += count > T + 1;
        const bool trains = has_target(shard->mask, begin + 1, begin + (count < T + 1 ? count : T + 1));
        lengths[i] = !trains ? 0 : count < T ? (int32_t)count : T;
    }
    const int64_t most = shard->longest = shard->starts[longest + 1] - shard->starts[longest];
    if (shard->cut > 0 && kind == EXAMPLES_WHOLE) {
        free(lengths);
        return error_set(err, EXIT_DATA,
                         "--examples whole: %s: example %" PRId64 " of %" PRId64 " has %" PRId64 " tokens, and %" PRId64
                         " are longer than a sequence: use --seq-len %" PRId64 ", or --examples cut",
                         shard->path, longest + 1, shard->examples, most, shard->cut, most - 1);
    }
    shard->packing = pack_examples(lengths, shard->examples, T);
    shard->sequences = shard->packing.rows;
    free(lengths);
    return true;
}

// Reads `count` tokens from `first` on: the first `length` as inputs, and as the target of each the one behind it; the
// last has none where nothing is read behind it.
static bool read_tokens(const Shard *shard, int fd, int64_t first, int64_t count, int64_t length, int vocab,
                        void *buffer, int32_t *inputs, int32_t *targets, Error *err) {
    const uint64_t at = (uint64_t)shard->header_bytes + (uint64_t)first * (uint64_t)shard->token_bytes;
    if (!file_read_at(fd, shard->path, at, buffer, (size_t)count * (size_t)shard->token_bytes, err)) return false;
    const uint16_t *narrow = (const uint16_t *)buffer;
    const uint32_t *wide = (const uint32_t *)buffer;
    for (int64_t t = 0; t < count; t++) {
        uint32_t token = shard->token_bytes == 2 ? narrow[t] : wide[t];
        if (token >= (uint32_t)vocab)
            return error_set(err, EXIT_DATA,
                             "%s: token %" PRId64 " is %" PRIu32 ", but the vocabulary ends at %d: the file was made "
                             "for another --tokenizer, which is to be named, or is damaged",
                             shard->path, first + t, token, vocab - 1);
        if (t > 0) targets[t - 1] = mask_at(shard->mask, first + t) ? (int32_t)token : -1;
        if (t < length) inputs[t] = (int32_t)token;
    }
    if (count == length) targets[length - 1] = -1;
    return true;
}

// The positions of the stream's tokens from `first` on: those of the first example count from the sequence's beginning.
static void count_positions(const Shard *shard, int64_t first, int T, int32_t *positions) {
    int64_t low = 0, high = shard->starts ? shard->examples : 0; // the next example, among low ... high
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (shard->starts[middle] > first)
            high = middle;
        else
            low = middle + 1;
    }
    for (int t = 0; t < T; t++) {
        const bool begins = shard->starts && low < shard->examples && shard->starts[low] == first + t;
        positions[t] = t == 0 || begins ? 0 : positions[t - 1] + 1;
        low += begins;
    }
}

bool shard_read(const Shard *shard, int fd, int64_t sequence, int T, int vocab, void *buffer, int32_t *inputs,
                int32_t *targets, int32_t *positions, Error *err) {
    const Packing *packing = &shard->packing;
    if (!packing->members) {
        const int64_t first = (shard->chosen ? shard->chosen[sequence] : sequence) * T;
        if (positions) count_positions(shard, first, T, positions);
        return read_tokens(shard, fd, first, T + 1, T, vocab, buffer, inputs, targets, err);
    }
    int64_t place = 0;
    for (int32_t i = packing->first[sequence]; i < packing->first[sequence + 1]; i++) {
        const int64_t begin = shard->starts[packing->members[i]], end = shard->starts[packing->members[i] + 1];
        const int64_t count = end - begin < T + 1 ? end - begin : T + 1, length = count < T ? count : T;
        if (!read_tokens(shard, fd, begin, count, length, vocab, buffer, inputs + place, targets + place, err))
            return false;
        for (int64_t t = 0; positions && t < length; t++) positions[place + t] = (int32_t)t;
        place += length;
    }
    for (; place < T; place++) {
        inputs[place] = 0;
        targets[place] = -1;
        if (positions) positions[place] = 0; // each alone: nothing for attention to do
    }
    return true;
}

static int compare_paths(const void *a, const void *b) {
    return strcmp(((const Shard *)a)->path, ((const Shard *)b)->path);
}

// Appends what matches one pattern, in any order.
static bool add_matches(const char *pattern, Shard **shards, int *count, Error *err) {
    glob_t found;
    memset(&found, 0, sizeof found);
    // glob sorts by the locale's rules; the order of the data must not depend on those
    int status = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (status == GLOB_NOMATCH && access(pattern, F_OK) == 0) // a name that itself has [ or * in it
        status = glob(pattern, GLOB_NOSORT | GLOB_NOCHECK, NULL, &found);
    if (status != 0 || found.gl_pathc == 0 || found.gl_pathc > (size_t)(INT32_MAX - *count)) {
        globfree(&found);
        return error_set(err, EXIT_DATA, "no file matches %s: make token files with %s or %s, or correct the pattern",
                         pattern, prepare_name(), prepare_bytes_name());
    }
    *shards = (Shard *)realloc(*shards, ((size_t)*count + found.gl_pathc) * sizeof **shards);
    if (!*shards) fatal(EXIT_DEVICE, "host memory: could not hold a list of the token files");
    for (size_t i = 0; i < found.gl_pathc; i++) {
        size_t length = strlen(found.gl_pathv[i]) + 1;
        Shard *shard = &(*shards)[(*count)++];
        memset(shard, 0, sizeof *shard);
        shard->path = (char *)memcpy(xmalloc(length), found.gl_pathv[i], length);
    }
    globfree(&found);
    return true;
}

bool shards_find(const char *patterns, size_t length, Shard **shards, int *count, Error *err) {
    const int before = *count;
    for (const char *at = patterns, *end = patterns + length; at < end;) {
        const char *line_end = (const char *)memchr(at, '\n', (size_t)(end - at));
        if (!line_end) line_end = end;
        if (line_end > at) {
            char *pattern = (char *)xcalloc((size_t)(line_end - at) + 1, 1);
            memcpy(pattern, at, (size_t)(line_end - at));
            const bool good = add_matches(pattern, shards, count, err);
            free(pattern);
            if (!good) return false;
        }
        at = line_end + 1;
    }
    if (*count == before) return error_set(err, EXIT_DATA, "no token files are named");
    Shard *mine = *shards + before;
    int kept = 1;
    qsort(mine, (size_t)(*count - before), sizeof *mine, compare_paths);
    for (int i = 1; i < *count - before; i++) { // two patterns may match the same
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

void shards_free(Shard *shards, int count) {
    for (int i = 0; i < count; i++) {
        free(shards[i].path);
        free(shards[i].mask);
        free(shards[i].chosen);
        free(shards[i].starts);
        packing_free(&shards[i].packing);
    }
    free(shards);
}
