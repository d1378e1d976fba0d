// Fuzz target for resuming from a checkpoint (coat/save/checkpoint_load.c, coat/save/checkpoint_tensors.c). The target
// edits a valid checkpoint of a tiny model, then writes a manifest with correct checksums, as a hostile author would.
// Input: edits of 5 bytes {file, kind, position (2 bytes), value}.
#include "dev/fuzz/fuzz_load.h"

#include <xxhash.h>

#include "coat/config/shapes.h"
#include "coat/io/files.h"
#include "coat/save/manifest.h"

enum { EDIT_BYTES = 5, MAX_EDITS = 12, FILES = 4, MAX_BYTES = 65536 };

static const char *const names[FILES] = {"config.json", "state.json", "model.safetensors", "optimizer.safetensors"};

typedef struct {
    char *bytes;
    size_t size;
} Content;

static Content saved[FILES]; // contents of the files before any edit
static Config config;
static Arena arena;
static Exec executor;
static Ops ops;

// Saves the checkpoint that all inputs edit. Does nothing from the second call on.
static void make_checkpoint(void) {
    Error err;
    ModelShape shape;
    RunState run;
    char path[FUZZ_PATH];
    if (arena.base) return;
    fuzz_check(gpt2_shape(&shape, 1, 1, 2, 3, 3, 2, "tiny", &err));
    fuzz_allocate(&arena, &config, &shape, &executor, &ops);
    memset(arena.base, 0, arena.total_bytes);
    memset(&run, 0, sizeof run);
    fuzz_check(checkpoint_save(fuzz_folder(), &arena, &executor, &run, NULL, &err));
    executor.rank = 1; // rank 0 would print changed settings
    for (int i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "%s/step-00000000/%s", fuzz_folder(), names[i]);
        fuzz_check(file_read_all(path, MAX_BYTES, &saved[i].bytes, &saved[i].size, &err));
        unlink(path);
    }
}

// Applies one edit at offset `place` of a file, which must have room for one more byte.
static void edit(Content *file, int kind, size_t place, uint8_t value) {
    if (place > file->size) place %= file->size + 1;
    size_t rest = file->size - place, count = value < rest ? value : rest;
    switch (kind % 6) {
    case 0: // flips the bits `value` of one byte
        if (rest) file->bytes[place] = (char)(file->bytes[place] ^ value);
        break;
    case 1: // inserts a byte into the file
        memmove(file->bytes + place + 1, file->bytes + place, rest);
        file->bytes[place] = (char)value;
        file->size++;
        break;
    case 2: // removes bytes from the file
        memmove(file->bytes + place, file->bytes + place + count, rest - count);
        file->size -= count;
        break;
    case 3: // truncates the file
        file->size = place;
        break;
    case 4: // replaces all digits of the number that begins at `place`
        for (size_t i = place; i < file->size && file->bytes[i] >= '0' && file->bytes[i] <= '9'; i++)
            file->bytes[i] = (char)('0' + value % 10);
        break;
    default: // copies a part of the file over the part at `place`
        if (count && (size_t)value * 7 + count <= file->size)
            memmove(file->bytes + place, file->bytes + (size_t)value * 7, count);
        break;
    }
}

// Adds a file and its hash to the manifest. For a valid safetensors file, also adds the hashes of its tensors.
static void list(JsonText *manifest, const char *name, const Content *file, const char *path) {
    SafeFile tensors;
    SafeWriter writer;
    Error err;
    uint64_t hash = XXH3_64bits(file->bytes, file->size);
    if (!safetensors_open(&tensors, path, &err)) {
        manifest_add(manifest, name, file->size, hash, NULL);
        return;
    }
    memset(&writer, 0, sizeof writer);
    writer.tensors = tensors.tensors;
    writer.count = tensors.count;
    for (int i = 0; i < tensors.count; i++)
        tensors.tensors[i].hash =
            XXH3_64bits(file->bytes + tensors.data_begin + tensors.tensors[i].begin, tensors.tensors[i].bytes);
    manifest_add(manifest, name, file->size, hash, &writer);
    safetensors_close(&tensors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Content files[FILES];
    JsonText manifest;
    RunState run;
    Error err;
    make_checkpoint();
    for (int i = 0; i < FILES; i++) {
        files[i].size = saved[i].size;
        files[i].bytes = (char *)memcpy(xmalloc(saved[i].size + MAX_EDITS), saved[i].bytes, saved[i].size);
    }
    size_t edits = size / EDIT_BYTES < MAX_EDITS ? size / EDIT_BYTES : MAX_EDITS;
    for (size_t i = 0; i < edits; i++, data += EDIT_BYTES)
        edit(&files[data[0] % FILES], data[1], (size_t)data[2] | (size_t)data[3] << 8, data[4]);
    manifest_begin(&manifest);
    for (int i = 0; i < FILES; i++)
        list(&manifest, names[i], &files[i], fuzz_file(names[i], files[i].bytes, files[i].size));
    manifest_finish(&manifest);
    fuzz_file(MANIFEST_NAME, manifest.text, manifest.size);
    json_text_free(&manifest);
    for (int i = 0; i < FILES; i++) free(files[i].bytes);

    bool good = checkpoint_load(fuzz_folder(), &arena, &executor, &run, &err);
    if (!good) fuzz_refused(&err, fuzz_folder());
    fuzz_check(good || edits > 0);
    good = checkpoint_load_weights(fuzz_folder(), &arena, &executor, &err);
    if (!good) fuzz_refused(&err, fuzz_folder());
    fuzz_check(good || edits > 0);
    return 0;
}
