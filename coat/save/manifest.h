// manifest.json, the last file that is written into a checkpoint's folder. It stores the size and XXH3 hash of every
// other file, and the hash of every tensor. A folder without a valid manifest is not a checkpoint. Checking files
// against the manifest finds damage and names the file.
#pragma once
#include "io/json.h"
#include "io/safetensors.h"

#define MANIFEST_NAME "manifest.json"

// ---------------------------------------------------------------- writing a manifest: begin, one call per file, finish

void manifest_begin(JsonText *t);
// Adds the entry of a written file to the manifest. tensors: the file's tensors with their hashes; NULL: no tensors.
void manifest_add(JsonText *t, const char *name, uint64_t bytes, uint64_t hash, const SafeWriter *tensors);
// Writes the file folder/name and adds its entry to the manifest.
bool manifest_write(JsonText *t, const char *folder, const char *name, const void *data, size_t bytes, Error *err);
// Writes `text` to the file folder/name, adds the file's entry to the manifest, and frees `text`.
bool manifest_write_text(JsonText *t, const char *folder, const char *name, JsonText *text, Error *err);
// Completes the manifest's JSON text. The text's last value is the hash of all text before this value's line.
void manifest_finish(JsonText *t);

// ---------------------------------------------------------------- reading a manifest and checking files

typedef struct {
    char *folder;
    json_t *root;
} Manifest;

// Reads folder/manifest.json and checks the hash of its own text. After a failure, do not call manifest_close().
bool manifest_open(Manifest *manifest, const char *folder, Error *err);
void manifest_close(Manifest *manifest);
// Returns the entry of a file in the manifest, which is valid until manifest_close(); NULL with err if the manifest
// does not list the file.
const json_t *manifest_entry(const Manifest *manifest, const char *name, Error *err);
// Checks the size and hash of one file of a checkpoint. Fails if the manifest does not list the file, or if the file is
// a symbolic link, because a checkpoint must contain its own files.
bool manifest_check_file(const Manifest *manifest, const char *name, Error *err);
// Checks the sizes and hashes of all listed files that contain no tensors. Such files are small.
bool manifest_check_texts(const Manifest *manifest, Error *err);
// Checks all files that the manifest lists: sizes and hashes if `deep`, otherwise only sizes.
bool manifest_check_all(const Manifest *manifest, bool deep, Error *err);
// Sets *hash to the hash that the manifest records for a tensor of a file.
bool manifest_tensor_hash(const Manifest *manifest, const char *file, const char *tensor, uint64_t *hash, Error *err);
