#include "checkpoint_shards.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/files.h"

#define NAME_BUFFER 64
#define NOTE_LIMIT (16u << 20) // maximum size of a note file in bytes
#define ABSENT_SECONDS 300   // seconds to wait for a rank's file, which never appears if --out is local to its machine
#define STALLED_SECONDS 3600 // seconds to wait while a rank's file does not grow; includes flushing the file to disk

void checkpoint_shard_name(char *name, size_t size, int rank, int ranks) {
    if (ranks == 1)
        snprintf(name, size, "optimizer.safetensors");
    else
        snprintf(name, size, "optimizer-%05d-of-%05d.safetensors", rank, ranks);
}

// Writes the name of a rank's note file to name[size]. A note is a manifest that lists only the rank's shard file. It
// tells rank 0 that the shard file is complete.
static void note_name(char *name, size_t size, int rank) {
    snprintf(name, size, "share-%05d.json", rank);
}

// ---------------------------------------------------------------- writing and collecting the ranks' shard files

bool checkpoint_write_shard(const char *folder, const Snapshot *s, Error *err) {
    char name[NAME_BUFFER], note[NAME_BUFFER], path[PATH_BUFFER];
    int rank = s->exec->rank;
    JsonText text;
    checkpoint_shard_name(name, sizeof name, rank, s->exec->ranks);
    manifest_begin(&text);
    const TensorFile file = {name, s->optimizer, s->optimizer_count, NULL};
    bool good = checkpoint_write_tensors(folder, &file, 1, s->exec, &text, err);
    manifest_finish(&text);
    note_name(note, sizeof note, rank);
    good = good && path_join(path, sizeof path, folder, note, err) && file_replace(path, text.text, text.size, err);
    json_text_free(&text);
    return good;
}

// Waits until a rank's note file exists, and writes the note's path to `path`. Fails if another rank failed, the folder
// disappears, or the rank's shard file does not appear or stops growing.
static bool await_note(const char *folder, int rank, const Snapshot *s, char *path, size_t size, Error *err) {
    char name[NAME_BUFFER], file[PATH_BUFFER];
    const struct timespec pause = {0, 5000000};
    checkpoint_shard_name(name, sizeof name, rank, s->exec->ranks);
    if (!path_join(file, sizeof file, folder, name, err)) return false;
    note_name(name, sizeof name, rank);
    if (!path_join(path, size, folder, name, err)) return false;
    int64_t bytes = -1;
    for (double waited = 0; !path_is_file(path); waited += 0.005) {
        if (__atomic_load_n(&s->others_failed, __ATOMIC_ACQUIRE)) {
            *err = s->others_error;
            return false;
        }
        if (!path_is_folder(folder))
            return error_set(err, EXIT_DATA, "cannot write %.900s: the folder was removed", file);
        struct stat st;
        const int64_t now = stat(file, &st) == 0 ? (int64_t)st.st_size : -1;
        if (now != bytes) waited = 0;
        bytes = now;
        const int timeout = now < 0 ? ABSENT_SECONDS : STALLED_SECONDS;
        if (waited > timeout)
            return error_set(err, EXIT_DATA,
                             "%s: rank %d has written nothing for %d s; check that all processes see this folder", file,
                             rank, timeout);
        nanosleep(&pause, NULL);
    }
    return true;
}

// Copies the entry of the file `name` from a rank's note file to the manifest.
static bool copy_entry(JsonText *manifest, const char *note, const char *name, Error *err) {
    json_t *root = json_read_object(note, NOTE_LIMIT, err), *value;
    const json_t *files, *entry, *tensors;
    const char *tensor;
    int64_t bytes;
    uint64_t hash;
    bool good = root && json_get_object(root, note, "files", &files, err) &&
                json_get_object(files, note, name, &entry, err) &&
                json_get_int(entry, note, "bytes", 0, INT64_MAX, &bytes, err) &&
                json_get_hex(entry, note, "xxh3", &hash, err) && json_get_object(entry, note, "tensors", &tensors, err);
    if (good) {
        json_text_open(manifest, name, '{');
        json_text_int(manifest, "bytes", bytes);
        json_text_hex(manifest, "xxh3", hash);
        json_text_open(manifest, "tensors", '{');
        json_object_foreach((json_t *)tensors, tensor, value) json_text_value(manifest, tensor, value);
        json_text_close(manifest, '}');
        json_text_close(manifest, '}');
    }
    json_decref(root);
    return good;
}

bool checkpoint_collect_shards(const char *folder, const Snapshot *s, JsonText *manifest, Error *err) {
    for (int rank = 1; rank < s->exec->ranks; rank++) {
        char name[NAME_BUFFER], note[PATH_BUFFER];
        checkpoint_shard_name(name, sizeof name, rank, s->exec->ranks);
        if (!await_note(folder, rank, s, note, sizeof note, err)) return false;
        if (!copy_entry(manifest, note, name, err)) return false;
        unlink(note);
    }
    return true;
}

// ---------------------------------------------------------------- finding the shard files of a checkpoint

bool checkpoint_shard_count(const Manifest *manifest, int *count, Error *err) {
    char name[NAME_BUFFER];
    const char *file;
    json_t *entry;
    *count = 1;
    json_object_foreach(json_object_get(manifest->root, "files"), file, entry) {
        int rank, ranks, length = 0;
        if (sscanf(file, "optimizer-%5d-of-%5d.safetensors%n", &rank, &ranks, &length) == 2 && length > 0 && ranks > 1)
            *count = ranks;
    }
    for (int rank = 0; rank < *count; rank++) {
        checkpoint_shard_name(name, sizeof name, rank, *count);
        if (!manifest_entry(manifest, name, err)) return false;
    }
    return true;
}
