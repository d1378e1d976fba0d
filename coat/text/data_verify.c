#include "data_verify.h"

#include <string.h>
#include <unistd.h>

#include "images.h"
#include "io/files.h"

#define PIECE_BYTES ((int64_t)1 << 20)
#define FOREGROUND_BYTES ((int64_t)64 << 20) // verifier_begin() starts a thread only for more bytes than this

// Continues a CRC-32 over more bytes, eight at a time ("slicing by 8"). tables[k][x] is the CRC of byte x followed by k
// bytes of 0.
static uint32_t crc32_continue(uint32_t crc, const unsigned char *bytes, size_t count) {
    uint32_t tables[8][256];
    for (uint32_t x = 0; x < 256; x++) {
        tables[0][x] = x;
        for (int bit = 0; bit < 8; bit++) tables[0][x] = tables[0][x] >> 1 ^ (tables[0][x] & 1 ? 0xEDB88320u : 0);
    }
    for (int k = 1; k < 8; k++)
        for (int x = 0; x < 256; x++) tables[k][x] = tables[k - 1][x] >> 8 ^ tables[0][tables[k - 1][x] & 255];
    crc = ~crc;
    for (; count >= 8; bytes += 8, count -= 8) {
        uint64_t word;
        memcpy(&word, bytes, sizeof word); // reads eight bytes as a little-endian integer
        word ^= crc;
        crc = 0;
        for (int k = 0; k < 8; k++) crc ^= tables[7 - k][word >> 8 * k & 255];
    }
    for (; count > 0; bytes++, count--) crc = crc >> 8 ^ tables[0][(crc ^ *bytes) & 255];
    return ~crc;
}

bool data_checksum(int fd, const char *path, int64_t bytes, const bool *stop, uint32_t *crc, Error *err) {
    unsigned char *piece = (unsigned char *)xmalloc((size_t)PIECE_BYTES);
    bool good = true;
    *crc = 0;
    for (int64_t at = 0; good && at < bytes && !(stop && __atomic_load_n(stop, __ATOMIC_RELAXED)); at += PIECE_BYTES) {
        const size_t count = (size_t)(bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES);
        good = file_read_at(fd, path, DATA_HEADER_BYTES + (uint64_t)at, piece, count, err);
        if (good) *crc = crc32_continue(*crc, piece, count);
    }
    free(piece);
    return good;
}

static bool verify(const Verifier *v, const TokenFile *file, Error *err) {
    uint32_t crc;
    if (!file->has_crc) return true;
    const int fd = token_file_open(file, err);
    if (fd < 0) return false;
    const bool read = data_checksum(fd, file->path, file->bytes - DATA_HEADER_BYTES, &v->stop, &crc, err);
    close(fd);
    if (!read || crc == file->crc || __atomic_load_n(&v->stop, __ATOMIC_RELAXED)) return read;
    return error_set(err, EXIT_DATA, "%s is damaged: its checksum does not match; copy the file again or regenerate it",
                     file->path);
}

static void *verify_all(void *argument) {
    Verifier *v = (Verifier *)argument;
    bool good = true;
    for (int i = v->rank; i < v->count && good; i += v->ranks) {
        good = verify(v, &v->files[i], &v->err);
        if (good && v->files[i].images) good = verify(v, &v->files[i].images->file, &v->err);
    }
    __atomic_store_n(&v->damaged, !good, __ATOMIC_RELEASE);
    return NULL;
}

void verifier_begin(Verifier *v, const TokenFile *files, int count, int rank, int ranks) {
    int64_t bytes = 0;
    v->files = files;
    v->count = count;
    v->rank = rank;
    v->ranks = ranks;
    for (int i = rank; i < count; i += ranks) {
        bytes += files[i].has_crc ? files[i].bytes : 0;
        bytes += files[i].images ? files[i].images->file.bytes : 0;
    }
    if (bytes > FOREGROUND_BYTES)
        background_begin(&v->thread, verify_all, v);
    else
        verify_all(v);
}

bool verifier_good(const Verifier *v, Error *err) {
    if (!__atomic_load_n(&v->damaged, __ATOMIC_ACQUIRE)) return true;
    *err = v->err;
    return false;
}

void verifier_end(Verifier *v) {
    __atomic_store_n(&v->stop, true, __ATOMIC_RELAXED);
    background_end(&v->thread);
}
