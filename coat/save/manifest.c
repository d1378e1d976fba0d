#include "manifest.h"

#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/background.h"
#include "io/files.h"

// maximum size of manifest.json in bytes; each process adds 140 kB for a model of 64 layers
#define MANIFEST_LIMIT (1u << 30)
#define READ_PIECE (1u << 20)
#define CHECKERS 8 // number of threads that hash files
#define TAIL_BYTES 64

// Writes the last lines of manifest.json, which contain the hash of all text before them. Returns their length.
static int tail_text(char tail[TAIL_BYTES], uint64_t hash) {
    return snprintf(tail, TAIL_BYTES, ",\n  \"xxh3\": \"%016llx\"\n}\n", (unsigned long long)hash);
}

void manifest_begin(JsonText *t) {
    json_text_begin(t, true);
    json_text_int(t, "format", 1);
    json_text_open(t, "files", '{');
}

void manifest_add(JsonText *t, const char *name, uint64_t bytes, uint64_t hash, const SafeWriter *tensors) {
    json_text_open(t, name, '{');
    json_text_int(t, "bytes", (int64_t)bytes);
    json_text_hex(t, "xxh3", hash);
    if (tensors) {
        json_text_open(t, "tensors", '{');
        for (int i = 0; i < tensors->count; i++) json_text_hex(t, tensors->tensors[i].name, tensors->tensors[i].hash);
        json_text_close(t, '}');
    }
    json_text_close(t, '}');
}

bool manifest_write(JsonText *t, const char *folder, const char *name, const void *data, size_t bytes, Error *err) {
    char path[PATH_BUFFER];
    if (!path_join(path, sizeof path, folder, name, err) || !file_create(path, data, bytes, err)) return false;
    manifest_add(t, name, bytes, XXH3_64bits(data, bytes), NULL);
    return true;
}

bool manifest_write_text(JsonText *t, const char *folder, const char *name, JsonText *text, Error *err) {
    const bool good = manifest_write(t, folder, name, text->text, text->size, err);
    json_text_free(text);
    return good;
}

void manifest_finish(JsonText *t) {
    json_text_close(t, '}');
    json_text_hex(t, "xxh3", XXH3_64bits(t->text, t->size));
    json_text_close(t, '}');
}

bool manifest_open(Manifest *manifest, const char *folder, Error *err) {
    char path[PATH_BUFFER], tail[TAIL_BYTES], *text;
    size_t size;
    memset(manifest, 0, sizeof *manifest);
    if (!path_join(path, sizeof path, folder, MANIFEST_NAME, err) || !path_check_no_link(path, err)) return false;
    if (!file_read_all(path, MANIFEST_LIMIT, &text, &size, err)) return false;
    size_t length = (size_t)tail_text(tail, 0);
    bool good = size > length;
    if (good) tail_text(tail, XXH3_64bits(text, size - length));
    good = (good && memcmp(text + size - length, tail, length) == 0) ||
           error_set(err, EXIT_DATA, "%s is damaged: its checksum does not match", path);
    const json_t *files;
    int64_t format;
    good = good && (manifest->root = json_parse_object(text, size, path, err)) &&
           json_get_int(manifest->root, path, "format", 1, 1, &format, err) &&
           json_get_object(manifest->root, path, "files", &files, err);
    free(text);
    manifest->folder = xstrdup(folder);
    if (!good) manifest_close(manifest);
    return good;
}

void manifest_close(Manifest *manifest) {
    json_decref(manifest->root);
    free(manifest->folder);
    memset(manifest, 0, sizeof *manifest);
}

static bool hash_file(int fd, const char *path, uint64_t size, uint64_t *hash, Error *err) {
    XXH3_state_t *state = XXH3_createState();
    if (!state) fatal(EXIT_DEVICE, "host memory: could not allocate a checksum's state");
    XXH3_64bits_reset(state);
    char *piece = (char *)xmalloc(size < READ_PIECE ? (size_t)size : READ_PIECE);
    bool good = true;
    for (uint64_t at = 0; good && at < size;) {
        size_t part = size - at < READ_PIECE ? (size_t)(size - at) : READ_PIECE;
        good = file_read_at(fd, path, at, piece, part, err);
        XXH3_64bits_update(state, piece, part);
        at += part;
    }
    *hash = XXH3_64bits_digest(state);
    free(piece);
    XXH3_freeState(state);
    return good;
}

const json_t *manifest_entry(const Manifest *manifest, const char *name, Error *err) {
    const json_t *entry = json_object_get(json_object_get(manifest->root, "files"), name);
    if (!entry) error_set(err, EXIT_DATA, "%s: " MANIFEST_NAME " does not list %.200s", manifest->folder, name);
    return entry;
}

// Checks the size of a file that the manifest lists and, if `deep`, its hash.
static bool check_file(const Manifest *manifest, const char *name, bool deep, Error *err) {
    char path[PATH_BUFFER];
    const json_t *entry = manifest_entry(manifest, name, err);
    int64_t bytes;
    uint64_t expected, hash = 0, size;
    int fd;
    if (!entry) return false;
    if (!name_is_plain(name))
        return error_set(err, EXIT_DATA,
                         "%s: " MANIFEST_NAME " lists '%.200s', which is not the name of a file in this folder",
                         manifest->folder, name);
    if (!path_join(path, sizeof path, manifest->folder, name, err) || !path_check_no_link(path, err) ||
        !json_get_int(entry, path, "bytes", 0, INT64_MAX, &bytes, err) ||
        !json_get_hex(entry, path, "xxh3", &expected, err) || !file_open(path, &fd, &size, err))
        return false;
    bool good = size == (uint64_t)bytes || error_set(err, EXIT_DATA, "%s is damaged: %llu byte%s instead of %lld", path,
                                                     (unsigned long long)size, plural(size), (long long)bytes);
    if (good && deep)
        good = hash_file(fd, path, size, &hash, err) &&
               (hash == expected || error_set(err, EXIT_DATA, "%s is damaged: its checksum does not match", path));
    close(fd);
    return good;
}

bool manifest_check_file(const Manifest *manifest, const char *name, Error *err) {
    return check_file(manifest, name, true, err);
}

bool manifest_check_texts(const Manifest *manifest, Error *err) {
    json_t *files = json_object_get(manifest->root, "files"), *entry;
    const char *name;
    json_object_foreach(files, name, entry) {
        if (!json_object_get(entry, "tensors") && !check_file(manifest, name, true, err)) return false;
    }
    return true;
}

// A file that one thread checks, and the result of the check.
typedef struct {
    const Manifest *manifest;
    const char *name;
    bool deep, good;
    Error err;
    BackgroundTask task;
} CheckWork;

static void *check_in_background(void *argument) {
    CheckWork *w = (CheckWork *)argument;
    w->good = check_file(w->manifest, w->name, w->deep, &w->err);
    return NULL;
}

// If `deep`, up to CHECKERS files are hashed in parallel, because each process of a run wrote one large file.
bool manifest_check_all(const Manifest *manifest, bool deep, Error *err) {
    json_t *files = json_object_get(manifest->root, "files");
    CheckWork work[CHECKERS];
    bool good = true;
    for (void *at = json_object_iter(files); at && good;) {
        int count = 0;
        for (; at && count < CHECKERS; at = json_object_iter_next(files, at), count++) {
            work[count] = (CheckWork){.manifest = manifest, .name = json_object_iter_key(at), .deep = deep};
            if (deep)
                background_begin(&work[count].task, check_in_background, &work[count]);
            else
                check_in_background(&work[count]);
        }
        for (int i = 0; i < count; i++) {
            background_end(&work[i].task);
            if (good && !work[i].good) *err = work[i].err;
            good = good && work[i].good;
        }
    }
    return good;
}

bool manifest_tensor_hash(const Manifest *manifest, const char *file, const char *tensor, uint64_t *hash, Error *err) {
    const json_t *entry = json_object_get(json_object_get(manifest->root, "files"), file);
    char path[PATH_BUFFER];
    if (!path_join(path, sizeof path, manifest->folder, MANIFEST_NAME, err)) return false;
    return json_get_hex(json_object_get(entry, "tensors"), path, tensor, hash, err);
}
