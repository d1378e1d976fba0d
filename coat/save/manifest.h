// manifest.json, the last file written into a checkpoint's folder: size and XXH3 hash of every other file, and of
// every tensor in them. A folder without a sound one is not a checkpoint; with it, a flipped bit is found and
// named.
#pragma once
#include "io/json.h"
#include "io/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MANIFEST_NAME "manifest.json"

// --- writing: begin, one call per file, finish

void manifest_begin(JsonText *t);
// tensors may be NULL for a file that holds none.
void manifest_add(JsonText *t, const char *name, uint64_t bytes, uint64_t hash, const SafeWriter *tensors);
// Writes a small file into the folder, and adds it.
bool manifest_write(JsonText *t, const char *folder, const char *name, const void *data, size_t bytes, Error *err);
// The same of a text, which it frees.
bool manifest_write_text(JsonText *t, const char *folder, const char *name, JsonText *text, Error *err);
// Closes the text, which ends with its own hash.
void manifest_finish(JsonText *t);

// --- reading

typedef struct {
    char *folder;
    json_t *root;
} Manifest;

// Reads and checks the manifest itself. On failure nothing needs closing.
bool manifest_open(Manifest *manifest, const char *folder, Error *err);
void manifest_close(Manifest *manifest);
// Checks one file it lists: there, of the right size and hash. A file that is not listed is an error, so is a link: a
// checkpoint holds its files itself, and what it names is never looked for elsewhere.
bool manifest_check_file(const Manifest *manifest, const char *name, Error *err);
// The same for all files it lists that hold no tensors: those are small.
bool manifest_check_texts(const Manifest *manifest, Error *err);
// The same for all files it lists; with `deep` false only that they are there in the right size.
bool manifest_check_all(const Manifest *manifest, bool deep, Error *err);
bool manifest_tensor_hash(const Manifest *manifest, const char *file, const char *tensor, uint64_t *hash, Error *err);

#ifdef __cplusplus
}
#endif
