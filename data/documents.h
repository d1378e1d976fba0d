// The texts that prepare_bytes makes tokens of, found in files and folders. Only what tells them apart is kept in
// memory: each is read again when it is written.
#pragma once
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "coat/error.h"

#define PATH_BYTES 4096
#define LARGE_BYTES (1 << 20)       // larger files of a folder are taken in pieces
#define PIECE_BYTES (1 << 16)       // few enough that some can be held out of a few MB
#define FILE_MAX ((int64_t)1 << 30) // of a file named on the command line
#define FOLDER_DEPTH 32

typedef struct {
    char *path;
    int64_t offset, bytes;
    int64_t file_bytes;            // of the whole file
    XXH128_hash_t hash, file_hash; // of the text, and of the pieces' hashes in their file
    int64_t val;                   // bytes at its end that are held out
} Document;

typedef struct {
    Document *list;
    int64_t count, capacity;
    int64_t cut;                                           // files that are more than one document
    int64_t duplicates, binary, large, unreadable, beyond; // left out; beyond: of --max-bytes
    char left_out[PATH_BYTES];                             // the names of the first that are binary or large
} Documents;

// What becomes of files over LARGE_BYTES: those of a folder are cut at ends of lines, so that some of each can be held
// out, one that is named stays whole, and large headers are tables that a program wrote.
typedef enum { LARGE_CUT, LARGE_WHOLE, LARGE_LEFT } Large;

// Reads a part of a regular file that has `file_bytes`; NULL when it cannot be read, or is longer by now.
static unsigned char *read_part(const char *path, int64_t offset, int64_t bytes, int64_t file_bytes) {
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (!file) return NULL;
    unsigned char *text = (unsigned char *)xmalloc((size_t)bytes + 1);
    bool good = fseeko(file, offset, SEEK_SET) == 0 && fread(text, 1, (size_t)bytes, file) == (size_t)bytes;
    good = good && fstat(fileno(file), &info) == 0 && (int64_t)info.st_size == file_bytes;
    fclose(file);
    if (good) return text;
    free(text);
    return NULL;
}

static void add_document(Documents *documents, const char *path, const unsigned char *text, Document document) {
    if (documents->count == documents->capacity) {
        documents->capacity = documents->capacity ? 2 * documents->capacity : 1024;
        documents->list = (Document *)realloc(documents->list, (size_t)documents->capacity * sizeof *documents->list);
        if (!documents->list) fatal(EXIT_DEVICE, "host memory: could not hold a list of the files");
    }
    size_t length = strlen(path) + 1;
    document.path = (char *)memcpy(xmalloc(length), path, length);
    document.hash = XXH3_128bits(text, (size_t)document.bytes);
    documents->list[documents->count++] = document;
}

// The end of the last line of a piece that the file goes on behind; all of it where it has none.
static int64_t cut_of(const unsigned char *text, int64_t bytes) {
    int64_t cut = bytes;
    while (cut > 0 && text[cut - 1] != '\n') cut--;
    return cut ? cut : bytes;
}

// Takes down the name of a file that is not taken, one of the first.
static void name_left_out(Documents *documents, const char *path) {
    enum { MOST_NAMED = 3 };
    const int64_t before = documents->binary + documents->large; // with this one
    const size_t used = strlen(documents->left_out), room = sizeof documents->left_out - used;
    if (before > MOST_NAMED + 1 || strlen(path) + 8 > room) return;
    snprintf(documents->left_out + used, room, "%s%s", used ? ", " : "", before > MOST_NAMED ? "..." : path);
    text_printable(documents->left_out, strlen(documents->left_out), "");
}

static void add_file(Documents *documents, const char *path, int64_t bytes, Large large) {
    if (bytes > (large == LARGE_LEFT ? LARGE_BYTES : large == LARGE_WHOLE ? FILE_MAX : INT64_MAX)) {
        documents->large++;
        if (large != LARGE_LEFT) name_left_out(documents, path);
        return;
    }
    const int64_t before = documents->count, limit = large == LARGE_CUT && bytes > LARGE_BYTES ? PIECE_BYTES : FILE_MAX;
    int64_t *reason = NULL; // why it is left out
    for (int64_t at = 0; at < bytes && !reason;) {
        Document document;
        memset(&document, 0, sizeof document);
        document.offset = at;
        document.bytes = bytes - at < limit ? bytes - at : limit;
        document.file_bytes = bytes;
        unsigned char *text = read_part(path, at, document.bytes, bytes);
        if (!text) {
            reason = &documents->unreadable;
        } else if (memchr(text, 0, (size_t)document.bytes)) {
            reason = &documents->binary;
        } else {
            if (at + document.bytes < bytes) document.bytes = cut_of(text, document.bytes);
            add_document(documents, path, text, document);
            at += document.bytes;
        }
        free(text);
    }
    XXH128_hash_t hash = XXH3_128bits(NULL, 0);
    for (int64_t i = before; i < documents->count; i++) {
        const XXH128_hash_t both[2] = {hash, documents->list[i].hash};
        hash = XXH3_128bits(both, sizeof both);
    }
    for (int64_t i = before; i < documents->count; i++) documents->list[i].file_hash = hash;
    if (reason) {
        ++*reason;
        if (reason == &documents->binary) name_left_out(documents, path);
        while (documents->count > before) free(documents->list[--documents->count].path);
    }
    documents->cut += documents->count > before + 1;
}

// Adds a folder's files and those of the folders in it; links to folders are not followed, so there is no loop.
static void add_folder(Documents *documents, const char *folder, int depth, Large large) {
    DIR *dir = opendir(folder);
    if (!dir || depth > FOLDER_DEPTH) {
        documents->unreadable++;
        if (dir) closedir(dir);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[PATH_BYTES];
        struct stat link, info;
        int length = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.' || length >= (int)sizeof path) continue;
        if (lstat(path, &link) != 0 || stat(path, &info) != 0) continue;
        if (S_ISDIR(link.st_mode))
            add_folder(documents, path, depth + 1, large);
        else if (S_ISREG(info.st_mode))
            add_file(documents, path, (int64_t)info.st_size, large);
    }
    closedir(dir);
}

static bool add_named(Documents *documents, const char *path, Error *err) {
    struct stat info;
    if (stat(path, &info) != 0) return error_set(err, EXIT_DATA, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        add_folder(documents, path, 0, LARGE_CUT);
        return true;
    }
    int64_t refused = documents->binary + documents->large + documents->unreadable;
    if (S_ISREG(info.st_mode)) add_file(documents, path, (int64_t)info.st_size, LARGE_WHOLE);
    if (!S_ISREG(info.st_mode) || documents->binary + documents->large + documents->unreadable > refused)
        return error_set(err, EXIT_DATA, "%s is not a readable text file of at most %d MB", path,
                         (int)(FILE_MAX >> 20));
    return true;
}

static void add_headers(Documents *documents) {
    static const char *const places[] = {"/usr/include", "/usr/lib/gcc/*/*/include", "/usr/local/cuda/include"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        glob_t found;
        memset(&found, 0, sizeof found);
        if (glob(places[i], 0, NULL, &found) == 0)
            for (size_t k = 0; k < found.gl_pathc; k++) add_folder(documents, found.gl_pathv[k], 0, LARGE_LEFT);
        globfree(&found);
    }
}
