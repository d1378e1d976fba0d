// Finds the documents (files, or pieces of large files) that prepare_bytes converts to tokens. Memory holds only the
// hash and position of each document; prepare_bytes reads the text again to write its tokens.
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

#include "coat/io/files.h"

#define LARGE_BYTES (1 << 20)       // a file in a folder is cut into pieces if it has more bytes
#define PIECE_BYTES (1 << 16)       // bytes of a piece; small, so that pieces can be held out of only a few MB of text
#define FILE_MAX ((int64_t)1 << 30) // maximum bytes of a file named on the command line
#define FOLDER_DEPTH 32             // maximum depth of subfolders; deeper ones count as unreadable

typedef struct {
    char *path;
    int64_t offset, bytes;
    int64_t file_bytes; // size of the entire file
    // hash: of this document's text. file_hash: of the hashes of the file's pieces, as if the file were in a folder. So
    // a file has the same file_hash whether it was cut into pieces or not
    XXH128_hash_t hash, file_hash;
    int64_t val; // number of bytes at the text's end that are held out for validation
} Document;

typedef struct {
    int64_t count;
    char names[1024]; // the first three paths, separated by commas; then "..." if there are more
} Named;

typedef struct {
    dev_t device;
    ino_t inode;
} Folder;

// Why a file or folder is ignored. BEYOND: does not fit into --max-bytes. OTHER: neither a file nor a folder.
typedef enum { EQUAL, BINARY, LARGE, UNREADABLE, BEYOND, EMPTY, HIDDEN, OTHER, REASONS } Reason;

typedef struct {
    Document *list;
    int64_t count, capacity;
    int64_t cut; // number of files that were divided into several documents
    Named left_out[REASONS];
    Named links;               // links that were followed out of the folders named on the command line
    char pointer[PATH_BUFFER]; // path of a file that is a Git LFS pointer; "": none
    Folder *folders;           // folders that have been read
    int64_t folder_count;
} Documents;

// Treatment of files over LARGE_BYTES.
//   LARGE_CUT     files in a folder: cut at line ends, so that pieces can be chosen for validation
//   LARGE_WHOLE   files named on the command line: stay in one piece
//   LARGE_LEFT    headers: ignored, because large headers are generated tables
typedef enum { LARGE_CUT, LARGE_WHOLE, LARGE_LEFT } Large;

// Reads a part of a regular file. Returns NULL if the file cannot be read or no longer has `file_bytes` bytes.
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
        documents->list = (Document *)xrealloc(documents->list, (size_t)documents->capacity * sizeof *documents->list);
    }
    document.path = xstrdup(path);
    document.hash = XXH3_128bits(text, (size_t)document.bytes);
    documents->list[documents->count++] = document;
}

// Returns the length of `bytes` bytes of text up to and including the last line end; `bytes` if there is no line end.
static int64_t cut_of(const unsigned char *text, int64_t bytes) {
    int64_t cut = bytes;
    while (cut > 0 && text[cut - 1] != '\n') cut--;
    return cut ? cut : bytes;
}

// Returns the length of the next piece of a large file, of which `bytes` bytes, starting at `text`, remain.
static int64_t piece_of(const unsigned char *text, int64_t bytes) {
    return bytes > PIECE_BYTES ? cut_of(text, PIECE_BYTES) : bytes;
}

// Returns the hash of a file's first pieces. `piece` is the hash of the last of these pieces. `hash` is this function's
// result for the pieces before it; for the first piece, the hash of no bytes.
static XXH128_hash_t file_hash_of(XXH128_hash_t hash, XXH128_hash_t piece) {
    const XXH128_hash_t both[2] = {hash, piece};
    return XXH3_128bits(both, sizeof both);
}

// Counts a path. Appends the first three to named->names, then "...".
static void add_name(Named *named, const char *path) {
    enum { SHOWN = 3 };
    const size_t used = strlen(named->names), room = sizeof named->names - used;
    if (++named->count <= SHOWN + 1 && used + 8 < sizeof named->names)
        snprintf(named->names + used, room - 5, "%s%s", used ? ", " : "", named->count > SHOWN ? "..." : path);
    text_printable(named->names, strlen(named->names), "");
}

static void leave_out(Documents *documents, Reason reason, const char *path) {
    add_name(&documents->left_out[reason], path);
}

static void add_file(Documents *documents, const char *path, int64_t bytes, Large large) {
    if (bytes > (large == LARGE_LEFT ? LARGE_BYTES : large == LARGE_WHOLE ? FILE_MAX : INT64_MAX)) {
        leave_out(documents, LARGE, path);
        return;
    }
    const int64_t before = documents->count, limit = large == LARGE_CUT && bytes > LARGE_BYTES ? PIECE_BYTES : FILE_MAX;
    Reason reason = bytes ? REASONS : EMPTY; // why the file is ignored
    XXH128_hash_t hash = XXH3_128bits(NULL, 0);
    for (int64_t at = 0; at < bytes && reason == REASONS;) {
        Document document;
        memset(&document, 0, sizeof document);
        document.offset = at;
        document.bytes = bytes - at < limit ? bytes - at : limit;
        document.file_bytes = bytes;
        unsigned char *text = read_part(path, at, document.bytes, bytes);
        if (!text) {
            reason = UNREADABLE;
        } else if (memchr(text, 0, (size_t)document.bytes)) {
            reason = BINARY;
        } else {
            if (at == 0 && bytes >= (int64_t)strlen(LFS_POINTER) && !memcmp(text, LFS_POINTER, strlen(LFS_POINTER)))
                snprintf(documents->pointer, sizeof documents->pointer, "%s", path);
            if (at + document.bytes < bytes) document.bytes = cut_of(text, document.bytes);
            add_document(documents, path, text, document);
            at += document.bytes;
            for (int64_t begin = 0, piece; begin < document.bytes; begin += piece) {
                piece = bytes > LARGE_BYTES ? piece_of(text + begin, document.bytes - begin) : document.bytes;
                hash = file_hash_of(hash, XXH3_128bits(text + begin, (size_t)piece));
            }
        }
        free(text);
    }
    for (int64_t i = before; i < documents->count; i++) documents->list[i].file_hash = hash;
    if (reason != REASONS) {
        leave_out(documents, reason, path);
        while (documents->count > before) free(documents->list[--documents->count].path);
    }
    documents->cut += documents->count > before + 1;
}

// True if the open folder has not been read before, under any path. Records the folder as read.
static bool is_new_folder(Documents *documents, int fd) {
    struct stat info;
    if (fstat(fd, &info) != 0) return false;
    const int64_t count = documents->folder_count;
    for (int64_t i = 0; i < count; i++)
        if (documents->folders[i].inode == info.st_ino && documents->folders[i].device == info.st_dev) return false;
    documents->folders = (Folder *)xrealloc(documents->folders, (size_t)(count + 1) * sizeof *documents->folders);
    documents->folders[count].device = info.st_dev;
    documents->folders[count].inode = info.st_ino;
    documents->folder_count++;
    return true;
}

// True if a link leads out of the folder `root`.
static bool leads_out(const char *path, const char *root) {
    char *to = realpath(path, NULL), *from = realpath(root, NULL);
    const size_t length = from ? strlen(from) : 0;
    const bool out = to && from && (strncmp(to, from, length) != 0 || (to[length] && to[length] != '/')) && length > 1;
    free(to);
    free(from);
    return out;
}

// Adds the files of a folder and its subfolders. Follows links, and lists those that lead out of the folder `root`.
// Reads each folder once.
static void add_folder(Documents *documents, const char *folder, const char *root, int depth, Large large) {
    DIR *dir = depth > FOLDER_DEPTH ? NULL : opendir(folder);
    if (!dir) leave_out(documents, UNREADABLE, folder);
    if (dir && !is_new_folder(documents, dirfd(dir))) {
        closedir(dir);
        return;
    }
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        char path[PATH_BUFFER];
        struct stat info;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        const int length = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.') {
            leave_out(documents, HIDDEN, path);
        } else if (length >= (int)sizeof path) {
            leave_out(documents, UNREADABLE, path);
        } else if (stat(path, &info) != 0 || !(S_ISDIR(info.st_mode) || S_ISREG(info.st_mode))) {
            leave_out(documents, OTHER, path);
        } else {
            if (path_is_link(path) && leads_out(path, root)) add_name(&documents->links, path);
            if (S_ISDIR(info.st_mode))
                add_folder(documents, path, root, depth + 1, large);
            else
                add_file(documents, path, (int64_t)info.st_size, large);
        }
    }
    if (dir) closedir(dir);
}

static bool add_named(Documents *documents, const char *path, Error *err) {
    struct stat info;
    if (stat(path, &info) != 0) return error_set(err, EXIT_DATA, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        add_folder(documents, path, path, 0, LARGE_CUT);
    } else {
        const int64_t before = documents->count;
        if (S_ISREG(info.st_mode)) add_file(documents, path, (int64_t)info.st_size, LARGE_WHOLE);
        if (!S_ISREG(info.st_mode) || (documents->count == before && info.st_size > 0))
            return error_set(err, EXIT_DATA, "%s: is not a readable text file of at most %d MB", path,
                             (int)(FILE_MAX >> 20));
    }
    if (!documents->pointer[0]) return true;
    return error_set(err, EXIT_DATA, "%s: is a Git LFS pointer, not the file; run git lfs pull", documents->pointer);
}

static void add_headers(Documents *documents) {
    static const char *const places[] = {"/usr/include", "/usr/lib/gcc/*/*/include", "/usr/local/cuda/include"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        glob_t found;
        memset(&found, 0, sizeof found);
        if (glob(places[i], 0, NULL, &found) == 0)
            for (size_t k = 0; k < found.gl_pathc; k++) add_folder(documents, found.gl_pathv[k], "/", 0, LARGE_LEFT);
        globfree(&found);
    }
}
