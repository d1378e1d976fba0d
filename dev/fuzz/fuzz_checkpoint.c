// Fuzz target for manifest.json and state.json of a checkpoint (coat/save/manifest.c, coat/save/run_state.c,
// coat/io/json.c). The input has sections "=== NAME", one per file. The target appends the manifest's own hash, because
// mutations would never find it. link.json is a symbolic link out of the folder; reading it must fail.
#include "dev/fuzz/fuzz.h"

#include <sys/mman.h>
#include <xxhash.h>

#include "coat/save/manifest.h"
#include "coat/save/run_state.h"

static void write_manifest(const uint8_t *text, size_t size) {
    char tail[64], *copy = (char *)xmalloc(size + sizeof tail);
    memcpy(copy, text, size);
    int length =
        snprintf(tail, sizeof tail, ",\n  \"xxh3\": \"%016llx\"\n}\n", (unsigned long long)XXH3_64bits(text, size));
    memcpy(copy + size, tail, (size_t)length);
    fuzz_file(MANIFEST_NAME, copy, size + (size_t)length);
    free(copy);
}

// Creates link.json at the first call. The file that it points to contains "{}", whose hash cases.py knows.
static void make_link(void) {
    static int fd;
    char path[32];
    if (fd) return;
    fd = memfd_create("outside", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    fuzz_check(write(fd, "{}", 2) == 2 && symlink(path, fuzz_path("link.json")) == 0);
}

static void check_manifest(const char *folder) {
    Manifest manifest;
    Error err;
    if (!manifest_open(&manifest, folder, &err)) {
        fuzz_refused(&err, MANIFEST_NAME);
        return;
    }
    bool all_good = manifest_check_all(&manifest, true, &err);
    if (!all_good) fuzz_refused(&err, folder);
    if (all_good) fuzz_check(manifest_check_all(&manifest, false, &err));
    const char *key;
    json_t *entry;
    json_object_foreach(json_object_get(manifest.root, "files"), key, entry) {
        bool good = manifest_check_file(&manifest, key, &err);
        if (!good) fuzz_refused(&err, folder);
        fuzz_check(good || !all_good);
        fuzz_check(!good || (!strchr(key, '/') && strcmp(key, "link.json") != 0));
        uint64_t hash;
        if (!manifest_tensor_hash(&manifest, key, "x", &hash, &err)) fuzz_refused(&err, folder);
    }
    fuzz_check(!manifest_check_file(&manifest, "not listed", &err));
    fuzz_check(!manifest_check_file(&manifest, "link.json", &err));
    manifest_close(&manifest);
}

static void check_state(const char *path) {
    RunState run;
    Config config;
    Exec exec;
    Error err;
    config_defaults(&config);
    memset(&exec, 0, sizeof exec);
    exec.rank = 1; // rank 0 would print changed settings
    exec.ranks = 2;
    if (!run_state_read(path, &run, &config, &exec, &err)) {
        fuzz_refused(&err, path);
        return;
    }
    fuzz_check(run.step >= 0 && run.tokens >= 0 && run.sequences >= 0 && run.state.t >= 0);
    fuzz_check(run.step + 1 > 0 && run.tokens + INT32_MAX > 0 && run.sequences + INT32_MAX > 0);
    // Writing the parsed run state as JSON and parsing that text must return an equal run state.
    JsonText text;
    RunState again;
    run_state_text(&text, &run, &config, 2);
    fuzz_file("again.json", text.text, text.size);
    json_text_free(&text);
    fuzz_check(run_state_read(fuzz_path("again.json"), &again, &config, &exec, &err));
    fuzz_check(again.step == run.step && again.tokens == run.tokens && again.state.t == run.state.t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t bytes;
    make_link();
    fuzz_section_file(data, size, "config.json");
    bool has_state = fuzz_section_file(data, size, "state.json");
    const uint8_t *manifest = fuzz_section(data, size, MANIFEST_NAME, &bytes);
    unlink(fuzz_path(MANIFEST_NAME));
    if (manifest) write_manifest(manifest, bytes);
    if (fuzz_section_file(data, size, "unsigned.json")) // unsigned.json is a manifest without its own hash.
        fuzz_check(rename(fuzz_path("unsigned.json"), fuzz_path(MANIFEST_NAME)) == 0);
    check_manifest(fuzz_folder());
    if (has_state) check_state(fuzz_path("state.json"));
    return 0;
}
