#include "data.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "files.h"

// Files open at a time. A shuffled epoch jumps between all files, and there may be more of them than a process
// may hold open: file i shares its descriptor with the files i + k * OPEN_FILES.
#define OPEN_FILES 256
#define EDGE_BYTES 4096 // of each end of a file, hashed into the fingerprint

typedef struct {
    char *path;
    int64_t bytes;          // of the whole file
    int64_t tokens;         // after the header
    int64_t first_sequence; // number of this file's first sequence
    int token_bytes;        // 2 or 4
} Shard;

struct DataLoader {
    Shard *shards;
    int count;
    int descriptors[OPEN_FILES]; // -1 = closed
    int open_shard[OPEN_FILES];  // whose descriptor it is
    int B, T, rank, ranks, vocab;
    uint64_t seed, fingerprint;
    bool shuffle;
    int64_t tokens, sequences;
    void *buffer; // (T + 1) tokens as stored
};

static uint64_t mix(uint64_t x) { // a bijection whose every output bit depends on every input bit
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

int64_t data_permute(int64_t i, int64_t n, uint64_t seed, int64_t epoch) {
    // A Feistel network permutes 0 .. 4^half - 1; walking along its cycles until a number below n comes permutes
    // 0 .. n-1. At least 8 bits, because a network on fewer reaches only few of the permutations.
    int half = 4;
    while (((uint64_t)1 << (2 * half)) < (uint64_t)n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, key = mix(mix(seed) + (uint64_t)epoch), x = (uint64_t)i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 1; round <= 6; round++) {
            uint64_t next = left ^ (mix(key + round * 0x9e3779b97f4a7c15u + right) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

static bool looks_like_text(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] < 9 || (bytes[i] > 13 && bytes[i] < 32) || bytes[i] == 127) return false;
    return count > 0;
}

// What a file with a foreign first word is, as far as it can be told.
static const char *foreign_kind(const unsigned char *bytes, size_t count) {
    uint32_t magic = 0;
    if (count >= sizeof magic) memcpy(&magic, bytes, sizeof magic);
    uint32_t swapped = __builtin_bswap32(magic);
    if (swapped == DATA_MAGIC_U16 || swapped == DATA_MAGIC_U32)
        return "its bytes are in big-endian order; make it again on a little-endian machine";
    if (magic == 20240326) return "it is an llm.c model; give it as --model";
    if (magic == 20240328) return "it is an llm.c tokenizer; give it as --tokenizer";
    if (magic == 20240522) return "it is an llm.c multiple-choice evaluation file, which holds no token stream";
    if (count >= 4 && !memcmp(bytes, "PAR1", 4))
        return "it is a Parquet file; turn it into tokens with data/prepare.py";
    if (looks_like_text(bytes, count))
        return "it looks like text; turn it into tokens with data/prepare.py or prepare_bytes";
    return "make token files with data/prepare.py or prepare_bytes";
}

// Checks the header of an open file against its size and fills the shard.
static bool check_header(Shard *shard, int fd, XXH64_state_t *hash, Error *err) {
    const char *path = shard->path;
    struct stat info;
    if (fstat(fd, &info) != 0) return error_set(err, EXIT_DATA, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return error_set(err, EXIT_DATA, "%s is a folder: give a pattern of its token files, such as %s/*_train*.bin",
                         path, path);
    if (!S_ISREG(info.st_mode)) return error_set(err, EXIT_DATA, "%s is not a regular file", path);
    shard->bytes = (int64_t)info.st_size;
    if (shard->bytes == 0) return error_set(err, EXIT_DATA, "%s is empty: make it again with data/prepare.py", path);

    int32_t header[DATA_HEADER_BYTES / 4];
    memset(header, 0, sizeof header);
    size_t have = shard->bytes < DATA_HEADER_BYTES ? (size_t)shard->bytes : sizeof header;
    if (!file_read_at(fd, path, 0, header, have, err)) return false;
    bool wide = header[0] == DATA_MAGIC_U32;
    if (header[0] != DATA_MAGIC_U16 && !wide)
        return error_set(err, EXIT_DATA, "%s is not a token file (first word %d, not %d or %d): %s", path,
                         (int)header[0], DATA_MAGIC_U16, DATA_MAGIC_U32,
                         foreign_kind((const unsigned char *)header, have));
    if (have < sizeof header)
        return error_set(err, EXIT_DATA, "%s is truncated: %" PRId64 " bytes, less than its header of %d", path,
                         shard->bytes, DATA_HEADER_BYTES);
    int version = wide ? DATA_VERSION_U32 : DATA_VERSION_U16;
    if (header[1] != version)
        return error_set(err, EXIT_DATA, "%s has version %d of the token format with magic %d; version %d is known",
                         path, (int)header[1], (int)header[0], version);
    shard->token_bytes = wide ? 4 : 2;
    shard->tokens = header[2];
    int64_t room = (shard->bytes - DATA_HEADER_BYTES) / shard->token_bytes;
    if (shard->tokens <= 0)
        return error_set(err, EXIT_DATA, "%s: its header says %" PRId64 " tokens: make it again in smaller files", path,
                         shard->tokens);
    if (shard->tokens > room)
        return error_set(err, EXIT_DATA,
                         "%s is truncated: its header says %" PRId64 " tokens, the file holds %" PRId64
                         ": copy or make it again",
                         path, shard->tokens, room);
    if (shard->bytes != DATA_HEADER_BYTES + shard->tokens * shard->token_bytes)
        return error_set(err, EXIT_DATA,
                         "%s is damaged: %" PRId64 " bytes, but its header says %" PRId64
                         " tokens of %d bytes: copy or make it again",
                         path, shard->bytes, shard->tokens, shard->token_bytes);

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

// The descriptor of a shard, opened when it is not. -1 with err.
static int shard_descriptor(DataLoader *loader, int index, Error *err) {
    int slot = index % OPEN_FILES;
    if (loader->descriptors[slot] >= 0 && loader->open_shard[slot] == index) return loader->descriptors[slot];
    if (loader->descriptors[slot] >= 0) close(loader->descriptors[slot]);
    // non-blocking, so that a pipe among the files is refused instead of waited for
    loader->descriptors[slot] = open(loader->shards[index].path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    loader->open_shard[slot] = index;
    if (loader->descriptors[slot] < 0)
        error_set(err, EXIT_DATA, "%s: could not be opened: %s", loader->shards[index].path, strerror(errno));
    return loader->descriptors[slot];
}

static int compare_paths(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// Fills loader->shards with the paths that match.
static bool find_shards(DataLoader *loader, const char *pattern, Error *err) {
    glob_t found;
    memset(&found, 0, sizeof found);
    // glob sorts by the locale's rules; the order of the data must not depend on those
    int status = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (status == GLOB_NOMATCH && access(pattern, F_OK) == 0) // a name that itself has [ or * in it
        status = glob(pattern, GLOB_NOSORT | GLOB_NOCHECK, NULL, &found);
    if (status != 0 || found.gl_pathc == 0 || found.gl_pathc > INT32_MAX) {
        globfree(&found);
        return error_set(err, EXIT_DATA,
                         "no file matches %s: make token files with data/prepare.py or prepare_bytes, or correct the "
                         "pattern",
                         pattern);
    }
    qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, compare_paths);
    loader->count = (int)found.gl_pathc;
    loader->shards = (Shard *)xcalloc(found.gl_pathc, sizeof *loader->shards);
    for (int i = 0; i < loader->count; i++) {
        size_t length = strlen(found.gl_pathv[i]) + 1;
        loader->shards[i].path = (char *)memcpy(xmalloc(length), found.gl_pathv[i], length);
    }
    globfree(&found);
    return true;
}

static bool check_shards(DataLoader *loader, const char *pattern, Error *err) {
    XXH64_state_t *hash = XXH64_createState();
    if (!hash) fatal(EXIT_DEVICE, "host memory: could not allocate the state of a checksum");
    XXH64_reset(hash, 0);
    bool ok = true;
    for (int i = 0; ok && i < loader->count; i++) {
        Shard *shard = &loader->shards[i];
        int fd = shard_descriptor(loader, i, err);
        ok = fd >= 0 && check_header(shard, fd, hash, err);
        shard->first_sequence = loader->sequences;
        loader->tokens += shard->tokens;
        loader->sequences += ok ? (shard->tokens - 1) / loader->T : 0;
    }
    loader->fingerprint = XXH64_digest(hash);
    XXH64_freeState(hash);
    if (!ok) return false;
    int64_t needed = (int64_t)loader->B * loader->ranks;
    if (loader->sequences < needed)
        return error_set(err, EXIT_DATA,
                         "%s: %" PRId64 " tokens make %" PRId64
                         " sequences of %d + 1 tokens, but one micro-batch needs "
                         "%" PRId64 " (%d rows on %d %s): use a smaller --micro-batch or --seq-len, or more data",
                         pattern, loader->tokens, loader->sequences, loader->T, needed, loader->B, loader->ranks,
                         loader->ranks == 1 ? "process" : "processes");
    return true;
}

DataLoader *data_open(const char *glob_pattern, int B, int T, int rank, int ranks, uint64_t seed, bool shuffle,
                      int vocab, Error *err) {
    if (B < 1 || T < 1 || T > INT32_MAX / 8 || ranks < 1 || rank < 0 || rank >= ranks || vocab < 1) {
        error_set(err, EXIT_USER, "token reader: micro-batch %d, sequence length %d, rank %d of %d, vocabulary %d", B,
                  T, rank, ranks, vocab);
        return NULL;
    }
    DataLoader *loader = (DataLoader *)xcalloc(1, sizeof *loader);
    for (int i = 0; i < OPEN_FILES; i++) loader->descriptors[i] = -1;
    loader->B = B;
    loader->T = T;
    loader->rank = rank;
    loader->ranks = ranks;
    loader->seed = seed;
    loader->shuffle = shuffle;
    loader->vocab = vocab;
    if (!find_shards(loader, glob_pattern, err) || !check_shards(loader, glob_pattern, err)) {
        data_close(loader);
        return NULL;
    }
    loader->buffer = xmalloc(((size_t)T + 1) * 4);
    return loader;
}

void data_close(DataLoader *loader) {
    if (!loader) return;
    for (int i = 0; i < OPEN_FILES; i++)
        if (loader->descriptors[i] >= 0) close(loader->descriptors[i]);
    for (int i = 0; i < loader->count; i++) free(loader->shards[i].path);
    free(loader->shards);
    free(loader->buffer);
    free(loader);
}

int64_t data_tokens(const DataLoader *loader) {
    return loader->tokens;
}

int64_t data_sequences(const DataLoader *loader) {
    return loader->sequences;
}

uint64_t data_fingerprint(const DataLoader *loader) {
    return loader->fingerprint;
}

bool data_begins_with_bytes(DataLoader *loader) {
    const Shard *shard = &loader->shards[0];
    const size_t count = shard->tokens < 65536 ? (size_t)shard->tokens : 65536, width = (size_t)shard->token_bytes;
    Error ignored;
    if (count < 1024) return false;
    void *tokens = xmalloc(count * width);
    const int fd = shard_descriptor(loader, 0, &ignored);
    bool bytes = fd >= 0 && file_read_at(fd, shard->path, DATA_HEADER_BYTES, tokens, count * width, &ignored);
    for (size_t i = 0; i < count && bytes; i++)
        bytes = (width == 2 ? ((const uint16_t *)tokens)[i] : ((const uint32_t *)tokens)[i]) <= 256;
    free(tokens);
    return bytes;
}

// The shard that sequence s of an epoch lies in: the last one whose first sequence is not after s. (A shard
// without a whole sequence shares its first_sequence with the next and is never the last.)
static int shard_of_sequence(const DataLoader *loader, int64_t s) {
    int low = 0, high = loader->count - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (loader->shards[middle].first_sequence <= s)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// Reads one sequence into inputs (T), targets (T).
static bool read_sequence(DataLoader *loader, int64_t sequence, int32_t *inputs, int32_t *targets, Error *err) {
    int index = shard_of_sequence(loader, sequence);
    const Shard *shard = &loader->shards[index];
    int T = loader->T;
    int64_t first = (sequence - shard->first_sequence) * T; // token of the file
    int fd = shard_descriptor(loader, index, err);
    if (fd < 0) return false;
    uint64_t at = DATA_HEADER_BYTES + (uint64_t)first * (uint64_t)shard->token_bytes;
    if (!file_read_at(fd, shard->path, at, loader->buffer, ((size_t)T + 1) * (size_t)shard->token_bytes, err))
        return false;
    const uint16_t *narrow = (const uint16_t *)loader->buffer;
    const uint32_t *wide = (const uint32_t *)loader->buffer;
    uint32_t before = 0;
    for (int t = 0; t <= T; t++) {
        uint32_t token = shard->token_bytes == 2 ? narrow[t] : wide[t];
        if (token >= (uint32_t)loader->vocab)
            return error_set(err, EXIT_DATA,
                             "%s: token %" PRId64 " is %" PRIu32 ", but the vocabulary ends at %d: the file was made "
                             "for another --tokenizer, or is damaged",
                             shard->path, first + t, token, loader->vocab - 1);
        if (t > 0) {
            inputs[t - 1] = (int32_t)before;
            targets[t - 1] = (int32_t)token;
        }
        before = token;
    }
    return true;
}

bool data_batch(DataLoader *loader, int64_t n, int32_t *inputs, int32_t *targets, Error *err) {
    int64_t rows = (int64_t)loader->B * loader->ranks; // of all ranks
    if (n < 0 || n >= INT64_MAX / rows)
        return error_set(err, EXIT_DATA, "token reader: there is no micro-batch number %" PRId64, n);
    return data_batch_at(loader, n * rows, inputs, targets, err);
}

bool data_batch_at(DataLoader *loader, int64_t first, int32_t *inputs, int32_t *targets, Error *err) {
    if (first < 0 || first > INT64_MAX - (int64_t)loader->B * loader->ranks)
        return error_set(err, EXIT_DATA, "token reader: there is no sequence number %" PRId64, first);
    int64_t row = first + (int64_t)loader->rank * loader->B;
    for (int b = 0; b < loader->B; b++, row++) {
        int64_t epoch = row / loader->sequences, sequence = row % loader->sequences;
        if (loader->shuffle) sequence = data_permute(sequence, loader->sequences, loader->seed, epoch);
        int64_t at = (int64_t)b * loader->T;
        if (!read_sequence(loader, sequence, inputs + at, targets + at, err)) return false;
    }
    return true;
}

int data_batches(const DataLoader *loader, int most) {
    int64_t available = loader->sequences / loader->B;
    return most > 0 && most < available ? most : (int)available;
}

// 1234567 -> "1,234,567".
static void format_thousands(int64_t value, char text[32]) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRId64, value), out = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) text[out++] = ',';
        text[out++] = digits[i];
    }
    text[out] = 0;
}

const char *data_describe(const DataLoader *loader, char *text, size_t size) {
    bool narrow = false, wide = false;
    for (int i = 0; i < loader->count; i++) {
        if (loader->shards[i].token_bytes == 2)
            narrow = true;
        else
            wide = true;
    }
    char tokens[32];
    format_thousands(loader->tokens, tokens);
    snprintf(text, size, "%d shard%s, %s tokens, %s", loader->count, loader->count == 1 ? "" : "s", tokens,
             narrow && wide ? "uint16 and uint32"
             : wide         ? "uint32"
                            : "uint16");
    return text;
}
