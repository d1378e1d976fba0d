#ifndef _GNU_SOURCE
#define _GNU_SOURCE // renameat2
#endif
#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_shards.h"
#include "hf.h"
#include "io/files.h"
#include "log/step_line.h"
#include "run_state.h"
#include "text/data.h"
#include "tokenizer_files.h"

#define PATH_BUFFER 4096
#define NAME_BUFFER 64

// ---------------------------------------------------------------- names

static void step_name(char name[NAME_BUFFER], const char *before, int64_t step, const char *after) {
    snprintf(name, NAME_BUFFER, "%sstep-%08" PRId64 "%s", before, step, after);
}

// The step of "step-00000020"; -1 for any other name.
static int64_t step_of(const char *name) {
    if (strncmp(name, "step-", 5) != 0) return -1;
    size_t digits = strspn(name + 5, "0123456789");
    if (digits < 8 || digits > 18 || name[5 + digits]) return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    char canonical[NAME_BUFFER];
    step_name(canonical, "", step, "");
    return strcmp(canonical, name) == 0 ? step : -1;
}

bool checkpoint_folder(const char *out, int64_t step, char *folder, size_t size, Error *err) {
    char name[NAME_BUFFER];
    step_name(name, "", step, "");
    return path_join(folder, size, out, name, err);
}

int64_t checkpoint_step(const char *folder) {
    char path[PATH_BUFFER];
    int length = snprintf(path, sizeof path, "%s", folder);
    if (length < 0 || (size_t)length >= sizeof path) return -1;
    while (length > 0 && path[length - 1] == '/') path[--length] = 0;
    return step_of(path_base(path));
}

int64_t checkpoint_weights_step(const char *folder) {
    char path[PATH_BUFFER];
    Error ignored;
    const int64_t recorded = path_join(path, sizeof path, folder, STATE_NAME, &ignored) ? run_state_step(path) : -1;
    return recorded >= 0 ? recorded : checkpoint_step(folder);
}

bool checkpoint_is_masked(const char *folder) {
    char path[PATH_BUFFER], data[sizeof((RunState *)0)->data] = "";
    Error ignored;
    if (path_join(path, sizeof path, folder, STATE_NAME, &ignored)) run_state_data(path, data, sizeof data);
    return data_describes_mask(data);
}

static int compare_descending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

int checkpoint_steps(const char *out, int64_t **steps, Error *err) {
    int count = 0, capacity = 16;
    *steps = (int64_t *)xmalloc((size_t)capacity * sizeof **steps);
    DIR *dir = opendir(out);
    bool good = dir || errno == ENOENT;
    for (struct dirent *entry; dir && (errno = 0, (entry = readdir(dir)) || (good = errno == 0, false));) {
        int64_t step = step_of(entry->d_name);
        if (step < 0) continue;
        if (count == capacity) {
            capacity *= 2;
            *steps = (int64_t *)realloc(*steps, (size_t)capacity * sizeof **steps);
            if (!*steps) fatal(EXIT_DEVICE, "host memory: could not grow the list of checkpoints");
        }
        (*steps)[count++] = step;
    }
    if (!good) error_set(err, EXIT_DATA, "the folder %s cannot be read: %s", out, strerror(errno));
    if (dir) closedir(dir);
    qsort(*steps, (size_t)count, sizeof **steps, compare_descending);
    return good ? count : -1;
}

// ---------------------------------------------------------------- saving

// vLLM reads all .safetensors files of a folder without an index, the optimizer's among them.
static void index_text(JsonText *t, const CheckpointTensor *list, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += checkpoint_tensor_bytes(&list[i]);
    memset(t, 0, sizeof *t);
    t->pretty = true;
    json_text_open(t, NULL, '{');
    json_text_open(t, "metadata", '{');
    json_text_int(t, "total_size", (int64_t)bytes);
    json_text_close(t, '}');
    json_text_open(t, "weight_map", '{');
    for (int i = 0; i < count; i++) json_text_string(t, list[i].name, HF_MODEL_NAME);
    json_text_close(t, '}');
    json_text_close(t, '}');
}

static bool write_tensor_files(const char *folder, Snapshot *s, JsonText *manifest, Error *err) {
    JsonText text;
    char share[NAME_BUFFER];
    const ModelShape *shape = &s->arena->config.shape;
    checkpoint_share_name(share, sizeof share, 0, s->exec->ranks);
    const TensorFile files[] = {{HF_MODEL_NAME, s->model, s->model_count, &s->nonfinite},
                                {share, s->optimizer, s->optimizer_count, NULL}};
    if (!checkpoint_write_tensors(folder, files, 2, s->exec, manifest, err)) return false;
    if (!hf_config_text(&text, shape, s->model[0].dtype, err)) return false;
    if (!manifest_write_text(manifest, folder, HF_CONFIG_NAME, &text, err)) return false;
    hf_generation_text(&text, shape, s->generation);
    if (!manifest_write_text(manifest, folder, HF_GENERATION_NAME, &text, err)) return false;
    index_text(&text, s->model, s->model_count);
    return manifest_write_text(manifest, folder, HF_INDEX_NAME, &text, err);
}

static bool write_folder(const char *folder, Snapshot *s, const char *tokenizer_file, Error *err) {
    JsonText manifest, text;
    char path[PATH_BUFFER];
    manifest_begin(&manifest);
    bool good = write_tensor_files(folder, s, &manifest, err);
    if (good && tokenizer_file && tokenizer_file[0])
        good =
            tokenizer_files_copy(folder, tokenizer_file, s->tokenizer, s->arena->config.prompt_format, &manifest, err);
    if (good && s->algos) good = manifest_write(&manifest, folder, MATMUL_TABLE_NAME, s->algos, strlen(s->algos), err);
    good = good && checkpoint_collect_shards(folder, s, &manifest, err);
    if (good) {
        run_state_text(&text, &s->run, &s->arena->config, s->exec->ranks);
        good = manifest_write_text(&manifest, folder, STATE_NAME, &text, err);
    }
    if (good) {
        manifest_finish(&manifest);
        good = path_join(path, sizeof path, folder, MANIFEST_NAME, err) &&
               file_create(path, manifest.text, manifest.size, err) && folder_sync(folder, err);
    }
    json_text_free(&manifest);
    return good;
}

// Renames the complete new folder to `final`. Exchanges it with a folder of that name, so that one with the name exists
// at every moment. A file system without such an exchange needs two renames.
static bool put_in_place(const char *temporary, const char *final, const char *old, Error *err) {
    if (rename(temporary, final) == 0) return true;
    if (!path_is_folder(final))
        return error_set(err, EXIT_DATA, "cannot rename %s to %s: %s", temporary, final, strerror(errno));
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) == 0) return folder_remove(temporary, err);
    if (!call_is_unsupported(errno))
        return error_set(err, EXIT_DATA, "cannot replace %s by %s: %s", final, temporary, strerror(errno));
    bool moved = rename(final, old) == 0;
    if (!moved || rename(temporary, final) != 0) {
        error_set(err, EXIT_DATA, "cannot replace %s by %s: %s", final, temporary, strerror(errno));
        if (moved && rename(old, final) != 0)
            error_set(err, EXIT_DATA, "cannot name the checkpoint %s %s again: %s", old, final, strerror(errno));
        return false;
    }
    return folder_remove(old, err);
}

// The names of a checkpoint: while it is written, when it is whole, and of one that it replaces.
static bool save_paths(const char *out, int64_t step, char temporary[PATH_BUFFER], char final[PATH_BUFFER],
                       char old[PATH_BUFFER], Error *err) {
    char name[NAME_BUFFER];
    step_name(name, ".", step, ".tmp");
    if (!path_join(temporary, PATH_BUFFER, out, name, err)) return false;
    step_name(name, ".", step, ".old");
    if (!path_join(old, PATH_BUFFER, out, name, err)) return false;
    step_name(name, "", step, "");
    return path_join(final, PATH_BUFFER, out, name, err);
}

// Removes what an interrupted save or removal left: ".step-00000020.tmp", and, once another checkpoint is whole,
// ".step-00000020.old", which may be all that is left of one.
static void remove_leftovers(const char *out, bool replaced) {
    DIR *dir = opendir(out);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[PATH_BUFFER];
        Error err;
        size_t length = strlen(entry->d_name);
        if (strncmp(entry->d_name, ".step-", 6) != 0 || length < 10) continue;
        const char *end = entry->d_name + length - 4;
        if (strcmp(end, ".tmp") != 0 && (!replaced || strcmp(end, ".old") != 0)) continue;
        if (!path_join(path, sizeof path, out, entry->d_name, &err) || !folder_remove(path, &err))
            print_remark("", "%s", err.text);
    }
    if (dir) closedir(dir);
}

bool checkpoint_prepare(const char *out, int64_t step, Error *err) {
    char temporary[PATH_BUFFER], final[PATH_BUFFER], old[PATH_BUFFER];
    if (!save_paths(out, step, temporary, final, old, err)) return false;
    remove_leftovers(out, false); // they may take the room that this one needs
    if (!folder_remove(temporary, err) || !folder_remove(old, err)) return false;
    if (mkdir(temporary, 0777) == 0) return true;
    return error_set(err, EXIT_DATA, "cannot create the folder %s: %s", temporary, strerror(errno));
}

bool checkpoint_write(const char *out, Snapshot *s, const char *tokenizer_file,
                      bool (*may_place)(const void *context, Error *err), const void *context, Error *err) {
    char temporary[PATH_BUFFER], final[PATH_BUFFER], old[PATH_BUFFER];
    Error ignored;
    if (!save_paths(out, s->run.step, temporary, final, old, err)) return false;
    if (s->exec->rank > 0) return checkpoint_write_share(temporary, s, err);
    if (s->exec->ranks == 1 && !checkpoint_prepare(out, s->run.step, err)) return false;
    bool good = write_folder(temporary, s, tokenizer_file, err) && (!may_place || may_place(context, err)) &&
                put_in_place(temporary, final, old, err) && folder_sync(out, err);
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
    snapshot.tokenizer = tokenizer;
    snapshot_take(&snapshot, run);
    bool good = checkpoint_write(out, &snapshot, tokenizer_file, NULL, NULL, err);
    snapshot_close(&snapshot);
    tokenizer_close(tokenizer);
    return good;
}

// ---------------------------------------------------------------- finding and pruning

// A folder that has another checkpoint's name was renamed or copied by hand.
static bool check_name(const char *folder, Error *err) {
    const int64_t step = checkpoint_weights_step(folder), named = checkpoint_step(folder);
    return step == named || error_set(err, EXIT_DATA,
                                      "%s holds the checkpoint of step %" PRId64 ", by its " STATE_NAME
                                      "; name it step-%08" PRId64 ", or move it elsewhere",
                                      folder, step, step);
}

// Complete and undamaged; with `deep` false, only there in full length.
static bool check_folder(const char *folder, bool deep, Error *err) {
    static const char *const required[] = {HF_MODEL_NAME, HF_CONFIG_NAME, STATE_NAME};
    Manifest manifest;
    int shares;
    if (!manifest_open(&manifest, folder, err)) return false;
    bool good = manifest_check_all(&manifest, deep, err) && checkpoint_share_count(&manifest, &shares, err);
    const json_t *files = json_object_get(manifest.root, "files");
    for (int i = 0; good && i < 3; i++)
        if (!json_object_get(files, required[i]))
            good = error_set(err, EXIT_DATA, "%s: " MANIFEST_NAME " does not list %s", folder, required[i]);
    manifest_close(&manifest);
    return good;
}

bool checkpoint_expect(const char *out, int64_t step, Error *err) {
    int64_t *steps;
    const int count = checkpoint_steps(out, &steps, err);
    bool found = step < 0 && count > 0;
    char there[96] = "";
    for (int i = 0; i < count && i < 3; i++)
        snprintf(there + strlen(there), sizeof there - strlen(there), "%s%" PRId64, i ? ", " : "", steps[i]);
    for (int i = 0; i < count && !found; i++) found = steps[i] == step;
    if (!found && count > 0)
        error_set(err, EXIT_DATA,
                  "%s: there is no checkpoint of step %" PRId64
                  ", but of %s%s; --resume takes the newest that is whole",
                  out, step, there, count > 3 ? " and others" : "");
    else if (!found && count == 0 && step >= 0)
        error_set(err, EXIT_DATA,
                  "%s: there is no checkpoint of step %" PRId64 ", nor any other; is --out the run's folder?", out,
                  step);
    else if (!found && count == 0)
        error_set(err, EXIT_DATA, "--resume: there is no checkpoint in %s; is --out the run's folder?", out);
    free(steps);
    return found;
}

static bool find_step(const char *out, int64_t step, char *folder, size_t size, Error *err) {
    if (!checkpoint_expect(out, step, err) || !checkpoint_folder(out, step, folder, size, err)) return false;
    if (check_folder(folder, true, err)) return check_name(folder, err);
    const Error why = *err;
    return why.unread
               ? false
               : error_set(err, why.code, "%.900s; --resume without a step takes the newest checkpoint that is whole",
                           why.text);
}

bool checkpoint_find(const char *out, int64_t step, char *folder, size_t size, Error *err) {
    bool good = true, found = false;
    if (step >= 0) {
        good = found = find_step(out, step, folder, size, err);
    } else {
        int64_t *steps;
        int count = checkpoint_steps(out, &steps, err);
        good = count >= 0;
        for (int i = 0; i < count && good && !found; i++) {
            char name[NAME_BUFFER];
            Error why;
            step_name(name, "", steps[i], "");
            good = path_join(folder, size, out, name, err);
            found = good && check_folder(folder, true, &why);
            if (found) good = check_name(folder, err);
            if (!good || found) break;
            if (why.unread) // it may be whole: to go back behind it is the user's to say
                good = error_set(err, EXIT_DATA,
                                 "%.900s; mend that, or go on from an older checkpoint by --resume=STEP", why.text);
            else
                print_remark("", "skipping the checkpoint %s: %s", folder, why.text);
        }
        if (good && !found && count == 1)
            good = error_set(err, EXIT_DATA,
                             "%s: its only checkpoint is not whole; --overwrite starts again and deletes it", out);
        else if (good && !found && count > 1)
            good = error_set(err, EXIT_DATA,
                             "%s: none of the %d checkpoints is whole; --overwrite starts again and deletes them", out,
                             count);
        free(steps);
    }
    if (!found && size) folder[0] = 0;
    return good;
}

bool checkpoint_set_aside(const char *out, int64_t step, bool damaged, Error *err) {
    const char *what = damaged ? "is damaged" : "belongs to the run that is abandoned now";
    int64_t *steps;
    int count = checkpoint_steps(out, &steps, err);
    bool good = count >= 0;
    for (int i = 0; i < count && good; i++) {
        char name[NAME_BUFFER], folder[PATH_BUFFER], aside[PATH_BUFFER];
        if (steps[i] <= step) continue;
        step_name(name, "", steps[i], "");
        good = path_join(folder, sizeof folder, out, name, err);
        bool moved = false;
        for (int number = 1; good && !moved && number < 1000; number++) {
            snprintf(name, sizeof name, "%s-%d-step-%08" PRId64, damaged ? "damaged" : "abandoned", number, steps[i]);
            good = path_join(aside, sizeof aside, out, name, err);
            moved = good && !path_is_folder(aside) && rename(folder, aside) == 0;
        }
        if (good && !moved)
            good = error_set(err, EXIT_DATA, "%s %s and cannot be renamed: %s", folder, what, strerror(errno));
        if (good) print_remark("note: ", "%s %s: renamed to %s", folder, what, aside);
    }
    free(steps);
    return good;
}

// First out of the way by its name, so that an interrupted removal leaves no half checkpoint. One that permissions keep
// stays whole.
static bool remove_step(const char *out, const char *folder, int64_t step, Error *err) {
    char name[NAME_BUFFER], old[PATH_BUFFER];
    step_name(name, ".", step, ".old");
    if (!path_join(old, sizeof old, out, name, err) || !folder_may_remove(folder, err)) return false;
    if (rename(folder, old) != 0)
        return error_set(err, EXIT_DATA, "cannot rename %s to %s: %s", folder, old, strerror(errno));
    return folder_remove(old, err);
}

void checkpoint_prune(const char *out, int64_t saved, int keep, int64_t keep_every) {
    remove_leftovers(out, true);
    if (keep <= 0) return;
    int64_t *steps;
    Error unread;
    static int64_t told = -1; // the last step of those that stay, each of which one line has named
    int64_t stays = told;
    int count = checkpoint_steps(out, &steps, &unread), complete = 1; // the one just saved
    if (count < 0) print_remark("", "%s", unread.text);
    for (int i = 0; i < count; i++) {
        if (steps[i] >= saved) continue;
        char name[NAME_BUFFER], folder[PATH_BUFFER];
        Error err;
        step_name(name, "", steps[i], "");
        if (!path_join(folder, sizeof folder, out, name, &err)) continue;
        if (!check_folder(folder, false, &err) || ++complete <= keep)
            continue; // what is damaged is the user's to judge
        if (keep_every > 0 && steps[i] % keep_every == 0) continue;
        if (remove_step(out, folder, steps[i], &err) || steps[i] <= told) continue;
        print_remark("", "%s", err.text);
        if (steps[i] > stays) stays = steps[i];
    }
    told = stays;
    free(steps);
}
