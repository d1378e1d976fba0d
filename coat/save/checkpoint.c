#ifndef _GNU_SOURCE
#define _GNU_SOURCE // declares renameat2()
#endif
#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/utf8.h"
#include "checkpoint_shards.h"
#include "hf.h"
#include "io/files.h"
#include "log/terminal.h"
#include "run_state.h"
#include "text/data.h"
#include "tokenizer_files.h"

#define NAME_BUFFER 64

// ---------------------------------------------------------------- naming and listing checkpoint folders

// Writes the path OUT/[prefix]step-00000020[suffix] of a checkpoint folder to path[size].
static bool step_path(char *path, size_t size, const char *out, const char *prefix, int64_t step, const char *suffix,
                      Error *err) {
    char name[NAME_BUFFER];
    snprintf(name, sizeof name, "%sstep-%08" PRId64 "%s", prefix, step, suffix);
    return path_join(path, size, out, name, err);
}

bool checkpoint_folder(const char *out, int64_t step, char *folder, size_t size, Error *err) {
    return step_path(folder, size, out, "", step, "", err);
}

// Returns the step in a folder name like "step-00000020"; -1 if the name has a different form.
static int64_t step_of(const char *name) {
    if (strncmp(name, "step-", 5) != 0) return -1;
    const size_t digits = strspn(name + 5, "0123456789");
    if (digits < 8 || digits > 18 || (digits > 8 && name[5] == '0') || name[5 + digits]) return -1;
    return strtoll(name + 5, NULL, 10);
}

int64_t checkpoint_step(const char *folder) {
    char path[PATH_BUFFER];
    size_t length = strlen(folder);
    while (length > 0 && folder[length - 1] == '/') length--;
    if (length >= sizeof path) return -1;
    snprintf(path, sizeof path, "%.*s", (int)length, folder);
    return step_of(path_base(path));
}

bool checkpoint_is_leftover(const char *name, const char *suffix) {
    char step[NAME_BUFFER];
    if (name[0] != '.' || !text_ends_with(name, suffix)) return false;
    snprintf(step, sizeof step, "%.*s", (int)(strlen(name) - strlen(suffix)) - 1, name + 1);
    return step_of(step) >= 0;
}

int64_t checkpoint_weights_step(const char *folder) {
    RunState recorded;
    run_state_summary(folder, &recorded);
    return recorded.step >= 0 ? recorded.step : checkpoint_step(folder);
}

bool checkpoint_is_masked(const char *folder) {
    RunState recorded;
    run_state_summary(folder, &recorded);
    return data_describes_mask(recorded.data);
}

static int compare_descending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

int checkpoint_steps(const char *out, int64_t **steps, Error *err) {
    int count = 0;
    *steps = NULL;
    DIR *dir = opendir(out);
    for (struct dirent *entry; dir && (errno = 0, entry = readdir(dir));) {
        const int64_t step = step_of(entry->d_name);
        if (step < 0) continue;
        *steps = (int64_t *)xrealloc(*steps, (size_t)(count + 1) * sizeof **steps);
        (*steps)[count++] = step;
    }
    // errno is the error of opendir() or of the last readdir(); it is 0 if readdir() reached the folder's end
    const bool good = errno == 0 || (!dir && errno == ENOENT);
    if (!good) error_set(err, EXIT_DATA, "the folder %s cannot be read: %s", out, strerror(errno));
    if (dir) closedir(dir);
    if (count > 0) qsort(*steps, (size_t)count, sizeof **steps, compare_descending);
    return good ? count : -1;
}

// ---------------------------------------------------------------- writing a checkpoint

// Writes the text of model.safetensors.index.json to `t`. Without this file, vLLM would read every .safetensors file of
// the folder as weights, including the optimizer's.
static void index_text(JsonText *t, const CheckpointTensor *list, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += checkpoint_tensor_bytes(&list[i]);
    json_text_begin(t, true);
    json_text_open(t, "metadata", '{');
    json_text_int(t, "total_size", (int64_t)bytes);
    json_text_close(t, '}');
    json_text_open(t, "weight_map", '{');
    for (int i = 0; i < count; i++) json_text_string(t, list[i].name, HF_MODEL_NAME);
    json_text_close(t, '}');
    json_text_close(t, '}');
}

// Writes preprocessor_config.json and processor_config.json of a vision-language model. Their image token is the
// tokenizer's text of v->image_token, or "<image>" if the tokenizer has no valid UTF-8 text for it.
static bool write_processor(const char *folder, const Snapshot *s, JsonText *manifest, Error *err) {
    const VisionShape *v = &s->arena->config->shape.vision;
    JsonText images, processor;
    char token[256];
    const bool known = s->tokenizer && v->image_token >= 0;
    size_t length = known ? tokenizer_decode(s->tokenizer, v->image_token, token, sizeof token - 1) : 0;
    if (length >= sizeof token) length = 0;
    for (size_t at = 0, bytes; at < length; at += bytes)
        if (utf8_read(token + at, length - at, &bytes) & NO_CHARACTER) length = 0;
    token[length] = '\0';
    hf_processor_texts(&images, &processor, s->processor, v, length ? token : "<image>");
    const bool good = manifest_write_text(manifest, folder, HF_IMAGE_PROCESSOR_NAME, &images, err);
    if (!good) json_text_free(&processor);
    return good && manifest_write_text(manifest, folder, HF_PROCESSOR_NAME, &processor, err);
}

static bool write_tensor_files(const char *folder, Snapshot *s, JsonText *manifest, Error *err) {
    JsonText text;
    char shard[NAME_BUFFER];
    const ModelShape *shape = &s->arena->config->shape;
    checkpoint_shard_name(shard, sizeof shard, 0, s->exec->ranks);
    const TensorFile files[] = {{HF_MODEL_NAME, s->model, s->model_count, &s->nonfinite},
                                {shard, s->optimizer, s->optimizer_count, NULL}};
    if (!checkpoint_write_tensors(folder, files, 2, s->exec, manifest, err) ||
        !hf_config_text(&text, shape, s->model[0].dtype, err) ||
        !manifest_write_text(manifest, folder, HF_CONFIG_NAME, &text, err))
        return false;
    hf_generation_text(&text, shape, s->generation);
    if (!manifest_write_text(manifest, folder, HF_GENERATION_NAME, &text, err)) return false;
    if (s->arena->vision && !write_processor(folder, s, manifest, err)) return false;
    index_text(&text, s->model, s->model_count);
    return manifest_write_text(manifest, folder, HF_INDEX_NAME, &text, err);
}

static bool write_folder(const char *folder, Snapshot *s, const char *tokenizer_file, Error *err) {
    const Config *c = s->arena->config;
    const int image_token = s->arena->vision ? c->shape.vision.image_token : -1;
    JsonText manifest, text;
    char path[PATH_BUFFER];
    manifest_begin(&manifest);
    bool good =
        write_tensor_files(folder, s, &manifest, err) &&
        (!tokenizer_file || !tokenizer_file[0] ||
         tokenizer_files_copy(folder, tokenizer_file, s->tokenizer, c->prompt_format, image_token, &manifest, err)) &&
        (!s->algos || manifest_write(&manifest, folder, MATMUL_TABLE_NAME, s->algos, strlen(s->algos), err)) &&
        checkpoint_collect_shards(folder, s, &manifest, err);
    if (good) {
        run_state_text(&text, &s->run, c, s->exec->ranks);
        good = manifest_write_text(&manifest, folder, STATE_NAME, &text, err);
    }
    manifest_finish(&manifest);
    good = good && path_join(path, sizeof path, folder, MANIFEST_NAME, err) &&
           file_create(path, manifest.text, manifest.size, err) && folder_sync(folder, err);
    json_text_free(&manifest);
    return good;
}

// Renames the complete new folder `temporary` to `final`. If `final` exists, exchanges the two folders and removes the
// replaced one, so that a folder named `final` exists at every moment. On a file system that cannot exchange folders,
// renames `final` to `old` first.
static bool put_in_place(const char *temporary, const char *final, const char *old, Error *err) {
    if (rename(temporary, final) == 0) return true;
    if (!path_is_folder(final))
        return error_set(err, EXIT_DATA, "cannot rename %s to %s: %s", temporary, final, strerror(errno));
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) == 0) return folder_remove(temporary, err);
    if (!call_is_unsupported(errno))
        return error_set(err, EXIT_DATA, "cannot replace %s with %s: %s", final, temporary, strerror(errno));
    bool moved = rename(final, old) == 0;
    if (!moved || rename(temporary, final) != 0) {
        error_set(err, EXIT_DATA, "cannot replace %s with %s: %s", final, temporary, strerror(errno));
        if (moved && rename(old, final) != 0)
            error_set(err, EXIT_DATA, "cannot rename the checkpoint %s back to %s: %s", old, final, strerror(errno));
        return false;
    }
    return folder_remove(old, err);
}

// Writes the paths of a checkpoint's folder: `temporary` while the files are written, `final` when all are complete,
// and `old` for a folder that a new one replaces.
static bool save_paths(const char *out, int64_t step, char temporary[PATH_BUFFER], char final[PATH_BUFFER],
                       char old[PATH_BUFFER], Error *err) {
    return step_path(temporary, PATH_BUFFER, out, ".", step, ".tmp", err) &&
           step_path(old, PATH_BUFFER, out, ".", step, ".old", err) &&
           step_path(final, PATH_BUFFER, out, "", step, "", err);
}

// Removes folders under `out` that remain from interrupted saves and removals: ".step-00000020.tmp" and, if `replaced`,
// ".step-00000020.old". A checkpoint may exist only as an .old folder, so the caller sets `replaced` only if another
// checkpoint is complete.
static void remove_leftovers(const char *out, bool replaced) {
    DIR *dir = opendir(out);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[PATH_BUFFER];
        Error err;
        if (!checkpoint_is_leftover(entry->d_name, ".tmp") &&
            !(replaced && checkpoint_is_leftover(entry->d_name, ".old")))
            continue;
        if (!path_join(path, sizeof path, out, entry->d_name, &err) || !folder_remove(path, &err))
            print_remark("", "%s", err.text);
    }
    if (dir) closedir(dir);
}

bool checkpoint_prepare(const char *out, int64_t step, Error *err) {
    char temporary[PATH_BUFFER], final[PATH_BUFFER], old[PATH_BUFFER];
    if (!save_paths(out, step, temporary, final, old, err)) return false;
    remove_leftovers(out, false); // frees disk space for the new checkpoint
    if (!folder_remove(temporary, err) || !folder_remove(old, err)) return false;
    if (mkdir(temporary, 0777) == 0) return true;
    return error_set(err, EXIT_DATA, "cannot create the folder %s: %s", temporary, strerror(errno));
}

bool checkpoint_write(const char *out, Snapshot *s, const char *tokenizer_file, Error *err) {
    char temporary[PATH_BUFFER], final[PATH_BUFFER], old[PATH_BUFFER];
    Error ignored;
    if (!save_paths(out, s->run.step, temporary, final, old, err)) return false;
    if (s->exec->rank > 0) return checkpoint_write_shard(temporary, s, err);
    if (s->exec->ranks == 1 && !checkpoint_prepare(out, s->run.step, err)) return false;
    bool good = write_folder(temporary, s, tokenizer_file, err) && put_in_place(temporary, final, old, err) &&
                folder_sync(out, err);
    if (!good) folder_remove(temporary, &ignored);
    return good;
}

bool checkpoint_save(const char *out, const Arena *arena, Exec *exec, const RunState *run, const char *tokenizer_file,
                     Error *err) {
    Snapshot snapshot;
    Error ignored;
    if (!folder_make(out, err)) return false;
    Tokenizer *tokenizer = tokenizer_file ? tokenizer_open(tokenizer_file, &ignored) : NULL;
    snapshot_open(&snapshot, arena, exec);
    snapshot_read_carried(&snapshot);
    snapshot.tokenizer = tokenizer;
    snapshot_copy(&snapshot, run);
    bool good = checkpoint_write(out, &snapshot, tokenizer_file, err);
    snapshot_close(&snapshot);
    tokenizer_close(tokenizer);
    return good;
}

// ---------------------------------------------------------------- finding, verifying and removing checkpoints

// Fails if state.json in `folder` records a step that differs from the folder's name, for example after a manual
// rename.
static bool check_name(const char *folder, Error *err) {
    const int64_t step = checkpoint_weights_step(folder), named = checkpoint_step(folder);
    return step == named || error_set(err, EXIT_DATA,
                                      "%s: its " STATE_NAME " records step %" PRId64
                                      ", unlike its name; rename it to step-%08" PRId64 ", or move it elsewhere",
                                      folder, step, step);
}

// True if a checkpoint is complete. Verifies all checksums if `deep`, otherwise only file names and sizes.
static bool check_folder(const char *folder, bool deep, Error *err) {
    static const char *const required[] = {HF_MODEL_NAME, HF_CONFIG_NAME, STATE_NAME};
    Manifest manifest;
    int shards;
    if (!manifest_open(&manifest, folder, err)) return false;
    bool good = manifest_check_all(&manifest, deep, err) && checkpoint_shard_count(&manifest, &shards, err);
    for (int i = 0; good && i < 3; i++) good = manifest_entry(&manifest, required[i], err);
    manifest_close(&manifest);
    return good;
}

bool checkpoint_expect(const char *out, int64_t step, Error *err) {
    int64_t *steps;
    const int count = checkpoint_steps(out, &steps, err);
    bool found = step < 0 && count > 0;
    char newest[96] = "";
    for (int i = 0; i < count; i++) {
        found = found || steps[i] == step;
        if (i < 3) text_append(newest, sizeof newest, "%s%" PRId64, i ? ", " : "", steps[i]);
    }
    free(steps);
    if (found || count < 0) return found;
    if (count > 0)
        return error_set(err, EXIT_DATA,
                         "%s: there is no checkpoint of step %" PRId64 ", only of %s%s; use one of these, or --resume "
                         "without a step for the newest valid one",
                         out, step, newest, count > 3 ? " and others" : "");
    if (step >= 0)
        return error_set(err, EXIT_DATA,
                         "%s: there is no checkpoint of step %" PRId64 ", nor any other; name the run's folder with "
                         "--out",
                         out, step);
    return error_set(err, EXIT_DATA, "--resume: there is no checkpoint in %s; name the run's folder with --out", out);
}

static bool find_step(const char *out, int64_t step, char *folder, size_t size, Error *err) {
    if (!checkpoint_expect(out, step, err) || !checkpoint_folder(out, step, folder, size, err)) return false;
    if (check_folder(folder, true, err)) return check_name(folder, err);
    const Error why = *err;
    return !why.unread &&
           error_set(err, why.code, "%.900s; use --resume without a step for the newest valid checkpoint", why.text);
}

// Returns the newest step that has a checkpoint folder under `out`; -1 if there is none.
static int64_t newest_step(const char *out) {
    int64_t *steps;
    Error ignored;
    const int count = checkpoint_steps(out, &steps, &ignored);
    const int64_t newest = count > 0 ? steps[0] : -1;
    free(steps);
    return newest;
}

// Sets `folder` to the newest valid checkpoint under `out`. If `out` has no checkpoints, returns true with folder "".
static bool find_newest(const char *out, char *folder, size_t size, Error *err) {
    int64_t *steps;
    const int count = checkpoint_steps(out, &steps, err);
    const int64_t newest = count > 0 ? steps[0] : -1;
    bool good = count >= 0, found = false;
    for (int i = 0; i < count && good && !found; i++) {
        Error why;
        if (!checkpoint_folder(out, steps[i], folder, size, err))
            good = false;
        else if (check_folder(folder, true, &why))
            good = found = check_name(folder, err);
        // a checkpoint that cannot be read may be valid, so the user must decide whether to resume from an older one
        else if (why.unread)
            good = error_set(err, EXIT_DATA, "%.900s; fix this, or resume from an older checkpoint with --resume=STEP",
                             why.text);
        else if (access(folder, F_OK) == 0) // false if a run that writes to `out` has removed the checkpoint
            print_remark("", "skipping the checkpoint %s: %s", folder, why.text);
    }
    free(steps);
    if (good && !found && newest_step(out) > newest) return find_newest(out, folder, size, err);
    if (good && !found && count > 0)
        return error_set(err, EXIT_DATA,
                         "%s: none of its checkpoints (%d) is valid; restore a backup, start from intact weights with "
                         "--model FOLDER and another --out, or use --overwrite to delete all and start again",
                         out, count);
    if (!found) folder[0] = 0;
    return good;
}

bool checkpoint_unread(const char *folder, Error *err) {
    if (access(folder, F_OK) == 0 || errno != ENOENT) return false;
    return error_set(
        err, EXIT_DATA,
        "%s was removed while it was read; run this command again, or give the training run a larger --keep", folder);
}

bool checkpoint_find(const char *out, int64_t step, char *folder, size_t size, Error *err) {
    const bool good = step < 0 ? find_newest(out, folder, size, err) : find_step(out, step, folder, size, err);
    if (!good) folder[0] = 0;
    return good;
}

bool checkpoint_rename_later(const char *out, int64_t step, bool damaged, Error *err) {
    const char *why = damaged ? "is damaged" : "belongs to the run that is abandoned now";
    int64_t *steps;
    int count = checkpoint_steps(out, &steps, err);
    bool good = count >= 0;
    for (int i = 0; i < count && good && steps[i] > step; i++) {
        char prefix[NAME_BUFFER], folder[PATH_BUFFER], to[PATH_BUFFER];
        good = checkpoint_folder(out, steps[i], folder, sizeof folder, err);
        bool moved = false;
        for (int number = 1; good && !moved && number < 1000; number++) {
            snprintf(prefix, sizeof prefix, "%s-%d-", damaged ? "damaged" : "abandoned", number);
            good = step_path(to, sizeof to, out, prefix, steps[i], "", err);
            moved = good && !path_is_folder(to) && rename(folder, to) == 0;
        }
        if (good && !moved)
            good = error_set(err, EXIT_DATA, "%s %s and cannot be renamed: %s", folder, why, strerror(errno));
        if (good) print_remark("note: ", "%s %s: renamed to %s", folder, why, to);
    }
    free(steps);
    return good;
}

// Removes a checkpoint. Renames its folder to .step-00000020.old first, so that an interrupted removal leaves no
// incomplete folder under a checkpoint's name. Fails before the first change if permissions forbid the removal.
static bool remove_step(const char *out, const char *folder, int64_t step, Error *err) {
    char old[PATH_BUFFER];
    if (!step_path(old, sizeof old, out, ".", step, ".old", err) || !folder_may_remove(folder, err)) return false;
    if (rename(folder, old) != 0)
        return error_set(err, EXIT_DATA, "cannot rename %s to %s: %s", folder, old, strerror(errno));
    return folder_remove(old, err);
}

void checkpoint_prune(const char *out, int64_t saved, int keep, int64_t keep_every) {
    static int64_t reported = -1; // newest step whose checkpoint could not be removed; each failure is printed once
    remove_leftovers(out, true);
    if (keep <= 0) return;
    int64_t *steps, newest_failed = reported;
    Error err;
    // complete: number of complete checkpoints found so far, including the one of step `saved`
    int count = checkpoint_steps(out, &steps, &err), complete = 1;
    if (count < 0) print_remark("", "%s", err.text);
    for (int i = 0; i < count; i++) {
        char folder[PATH_BUFFER];
        if (steps[i] >= saved || !checkpoint_folder(out, steps[i], folder, sizeof folder, &err)) continue;
        if (!check_folder(folder, false, &err) || ++complete <= keep) continue;
        if (keep_every > 0 && steps[i] % keep_every == 0) continue;
        if (remove_step(out, folder, steps[i], &err) || steps[i] <= reported) continue;
        print_remark("", "%s", err.text);
        if (steps[i] > newest_failed) newest_failed = steps[i];
    }
    reported = newest_failed;
    free(steps);
}
