// Starts a run: opens the inputs, the weights and --out, then calls training, evaluation or sampling.
#include "run_start.h"

#include <math.h>

#include "base/signals.h"
#include "config/shapes.h"
#include "evaluate.h"
#include "flags/settings.h"
#include "io/files.h"
#include "io/json.h"
#include "log/log_trim.h"
#include "log/terminal.h"
#include "model/schedule.h"
#include "model/weights.h"
#include "report.h"
#include "save/checkpoint.h"
#include "save/run_state.h"

#ifdef _OPENMP
#include <omp.h>
#endif

// True if --train has the data that the checkpoint in `folder` was trained on, or --allow-other-data is set. For the
// same data, converts the recorded position in the data if --seq-len or --examples has changed.
static bool same_data(Run *run, const char *folder, Error *err) {
    char now[sizeof run->done.data];
    uint64_t fingerprint = data_fingerprint(run->train);
    if (run->done.data_fingerprint == fingerprint) {
        run_state_scale_position(&run->done, data_sequences(run->train), run->config->seq_len);
        return true;
    }
    data_describe(run->train, now, sizeof now);
    if (!run->config->allow_other_data)
        return error_set(
            err, EXIT_DATA,
            "%s was trained on different data (%s; fingerprint %016llx) than --train names now (%s; "
            "fingerprint %016llx); name the same files in the same order and with the same weights, or add "
            "--allow-other-data",
            folder, run->done.data[0] ? run->done.data : "not described",
            (unsigned long long)run->done.data_fingerprint, now, (unsigned long long)fingerprint);
    run_note_always(run, "%s was trained on different data than --train names now", folder);
    note_data(run);
    return true;
}

// Checks, before data is read, that the checkpoint of --resume exists. If the run trains and --resume names no step,
// the checkpoint may be missing.
static bool expect_checkpoint(const Run *run, const Config *c, Error *err) {
    Error none;
    if (!c->resume || run->place.rank > 0) return true;
    if (c->resume_step >= 0 || !config_trains(c)) return checkpoint_expect(c->out, c->resume_step, err);
    // A note is printed, because the user may expect a checkpoint.
    if (!checkpoint_expect(c->out, -1, &none))
        run_note_always(run, "--resume: no checkpoint in %s, starting from the beginning%s", c->out,
                        c->settings_logged ? " with the settings in its log.jsonl, which given flags override" : "");
    return true;
}

// Sets `folder` to the checkpoint to resume from, or to "" if there is none. Rank 0 verifies the checkpoint's checksums
// and sends the checkpoint's step to the other ranks.
static bool find_checkpoint(Run *run, char *folder, size_t size, Error *err) {
    const Config *c = run->config;
    bool first = run->place.rank == 0;
    if (!all_ranks_ok(&run->errors, !first || checkpoint_find(c->out, c->resume_step, folder, size, err), err))
        return false;
    int64_t step = comm_max_i64(run->model.comm, first && folder[0] ? checkpoint_step(folder) : -1);
    return step < 0 || checkpoint_folder(c->out, step, folder, size, err);
}

// Makes new checkpoints copy tokenizer files from the resumed checkpoint in `folder`. The checkpoint that
// checkpoint_settings() found may be damaged and renamed by now. If --model is a path, keeps using its tokenizer files.
static void set_source_folder(Run *run, const char *folder) {
    Config *c = run->config;
    if (c->model_from_files) return;
    if (strcmp(c->vocabulary, c->shape_files) == 0) snprintf(c->vocabulary, sizeof c->vocabulary, "%s", folder);
    snprintf(c->shape_files, sizeof c->shape_files, "%s", folder);
}

// Initializes the parameters from the files of --model and --vision, or with random values.
static bool init_weights(Model *m, Error *err) {
    const Config *c = m->config;
    if (c->model_from_files && !checkpoint_load_weights(c->model, &m->arena, &m->exec, err)) return false;
    if (!c->model_from_files) parameters_init(&m->arena, &m->exec, c->seed);
    if (!m->vision || (c->model_from_files && !c->vision[0])) return true; // the files of --model contain the tower
    // The vision tower has a different seed, because the same tensor ids would give both models' blocks the same
    // values.
    parameters_init(&m->vision->arena, &m->vision->exec, c->seed + 1);
    return !c->vision_from_files || checkpoint_load_tower(c->vision, &m->vision->arena, &m->vision->exec, err);
}

// Initializes the parameters and the run's state from a checkpoint, from the weights of --model or with random values.
static bool start_or_resume(Run *run, Error *err) {
    Model *m = &run->model;
    const Config *c = m->config;
    char folder[PATH_MAX_LENGTH] = "";
    if (c->resume && !find_checkpoint(run, folder, sizeof folder, err)) return false;
    if (folder[0]) {
        const bool loaded =
            checkpoint_load(folder, &m->arena, &m->exec, &run->done, err) || checkpoint_unread(folder, err);
        if (!all_ranks_ok(&run->errors, loaded, err)) return false;
        set_source_folder(run, folder);
        if (run->train && !same_data(run, folder, err)) return false;
        if (run->train && c->tokenizer == TOKENIZER_BYTES && c->shape.vocab >= MIN_WITHOUT_BYTES)
            run_note_always(
                run,
                "--tokenizer bytes has 257 tokens, but the vocabulary of %s has %d; check that this checkpoint was "
                "trained on bytes",
                folder, c->shape.vocab);
        m->host = run->done.state;
        state_upload(m);
        if (!c->quiet && m->exec.rank == 0) print_remark("", "resuming from %s", folder);
        // recorded_step can also be smaller: if another run has since saved a newer checkpoint
        if (c->settings_recorded && c->recorded_step > run->done.step)
            run_note_always(run, "the settings come from the checkpoint of step %lld, whose other files are damaged",
                            (long long)c->recorded_step);
    } else if (!init_weights(m, err)) {
        return false;
    } else if (c->model_from_files && m->shards.muon.count > 0 && !run_state_has_muon(c->model)) {
        run_note(run,
                 "--optimizer muon: %s is not a checkpoint that Muon trained; if AdamW trained its weights, use "
                 "--optimizer adamw",
                 c->model);
    }
    if (!run->train || !folder[0]) note_data(run); // a resumed run with the same data prints no notes
    if (run->train) {
        run->done.data_fingerprint = data_fingerprint(run->train);
        run->done.pass = data_sequences(run->train);
        data_describe(run->train, run->done.data, sizeof run->done.data);
    }
    if (c->skip_loss_z > 0 || c->skip_grad_z > 0) m->guard = &run->done.guard;
    shards_weights_loaded(&m->shards);
    if (m->vision) shards_weights_loaded(&m->vision->shards);
    return true;
}

static void report(Run *run) {
    const Config *c = run->config;
    const bool results = c->json || (c->prompt[0] && !run->train); // true if standard output is reserved for results
    if (!c->quiet && run->place.rank == 0) report_start(run, results ? stderr : stdout);
}

// True if `mine` is equal on all ranks. All ranks must call is_common().
static bool is_common(Run *run, int64_t mine) {
    int64_t least = -comm_max_i64(run->model.comm, -mine);
    return comm_max_i64(run->model.comm, mine) == least;
}

// Returns the name of the table's last flag whose value differs between ranks, or NULL. The last one is returned,
// because --eval-only and --zero change the values of flags that precede them in the table.
static const char *different_flag(Run *run) {
    const Config *c = run->config;
    const char *different = NULL;
    if (is_common(run, flags_fingerprint(c))) return NULL;
    for (const Flag *flag = flag_table; flag->name; flag++)
        if (!is_common(run, flag_fingerprint(c, flag))) different = flag->name;
    return different;
}

// Returns false with err if the settings differ between ranks. Settings can differ even with equal flags: each rank
// chooses the recipe for its own GPU, and reads the recorded settings from its own files.
static bool same_settings(Run *run, Error *err) {
    const Config *c = run->config;
    const bool recipe = is_common(run, recipe_fingerprint(c)), training = is_common(run, training_fingerprint(c));
    const char *flag = different_flag(run);
    if (recipe && training && !flag) return true;
    on_all_ranks(&run->errors);
    if (!training && c->resume)
        return error_set(err, EXIT_USER,
                         "--resume: the processes found different checkpoints in %s; give all of them the same folder",
                         c->out);
    if (flag) // reported before different recipes, because different values of --zero can cause them
        return error_set(err, EXIT_USER, "--%s differs between the processes; start all of them with the same value",
                         flag);
    return error_set(err, EXIT_USER,
                     "--recipe: the processes chose different recipes, because their GPUs or checkpoints differ; give "
                     "all of them one --recipe (bf16 if a GPU has no FP8)");
}

// True if `data` is the same on all ranks. Compares contents, not file names, because names may differ between
// machines.
static bool is_common_data(Run *run, const DataLoader *data) {
    const bool files = is_common(run, data ? (int64_t)(data_fingerprint(data) >> 1) : 0);
    return is_common(run, data ? data_sequences(data) : 0) && files;
}

static bool same_files(Run *run, Error *err) {
    const int64_t swag = run->hellaswag ? (int64_t)(hellaswag_fingerprint(run->hellaswag) >> 1) : 0;
    const char *different = !is_common_data(run, run->train) ? "--train: the training data"
                            : !is_common_data(run, run->val) ? "--val: the validation data"
                            : !is_common(run, swag)          ? "--hellaswag: its examples"
                                                             : NULL;
    if (!different) return true;
    on_all_ranks(&run->errors);
    return error_set(err, EXIT_DATA,
                     "%s differ between the processes; name files with the same content in the same order", different);
}

// Checks that all ranks split the data into documents at the same tokens. Ranks can differ, because each rank reads its
// own tokenizer and data files.
static bool same_documents(Run *run, Error *err) {
    if (run->config->documents != DOCUMENTS_MASKED) return true;
    const bool train = is_common(run, run->train ? data_documents_hash(run->train) : 0);
    if (is_common(run, run->val ? data_documents_hash(run->val) : 0) && train) return true;
    on_all_ranks(&run->errors);
    return error_set(
        err, EXIT_DATA,
        "--documents apart: the processes split the data at different tokens; give all of them the same vocabulary and "
        "tokenizer_config.json");
}

// Abandons the steps after the step where this run starts: copies their log lines (log_copy_abandoned()) and, in a
// resumed run, renames their checkpoints. With --overwrite, deletes the old run. Prints a note if the log contradicts
// the resumed checkpoint.
static bool rename_old_run(Run *run, Error *err) {
    const Config *c = run->config;
    char path[PATH_MAX_LENGTH + 16], contradiction[2 * PATH_MAX_LENGTH] = "";
    snprintf(path, sizeof path, "%s/log.jsonl", c->out);
    if (run->done.step > 0)
        log_contradiction(path, run->done.step, run->done.state.loss_sum, contradiction, sizeof contradiction);
    if (contradiction[0])
        run_note_always(run, "the checkpoint of step %lld in %s is possibly from another run than the log: %s",
                        (long long)run->done.step, c->out, contradiction);
    if (!log_copy_abandoned(c, run->done.step + 1, contradiction[0] != '\0', err)) return false;
    bool leaves = run->done.step > 0 && run->done.step < run->steps;
    if (leaves && !checkpoint_rename_later(c->out, run->done.step, c->resume_step < 0, err)) return false;
    return out_clear(c, err);
}

// Logs the settings of the run, unless the log already contains the same settings.
static void write_settings(const Run *run) {
    Config resolved = *run->config;
    const Exec *exec = &run->model.exec;
    if (resolved.steps >= 0) resolved.epochs = 0; // with --steps, --epochs has no effect
    resolved.steps = run->steps;
    resolved.batch_tokens = config_batch_tokens(&resolved, exec->ranks);
    resolved.logits_chunk = (int)run->model.arena.layout[LOGITS][VALUE].rows;
    resolved.device = exec->ops->device;
    resolved.world_size = exec->ranks;
#ifdef _OPENMP
    if (resolved.threads == 0) resolved.threads = omp_get_max_threads();
#endif
    resolved.hellaswag_every = config_hellaswag_every(&resolved);
    JsonText text = settings_log(&resolved);
    log_settings(run->log, run->done.step, text.text);
    json_text_free(&text);
}

// True if the disk of --out has space for a checkpoint of all ranks. Prints a note if the space is not enough for all
// checkpoints that the run will keep.
static bool has_room(Run *run, Error *err) {
    Model *m = &run->model;
    const Config *c = m->config;
    char remark[PATH_MAX_LENGTH + 256];
    OutRoom room;
    int64_t bytes = comm_sum_i64(m->comm, saver_bytes(&m->arena, &m->exec));
    if (m->exec.rank > 0 || !out_room(c, &room)) return true;
    if (!out_fits(c, room, run->done.step, run->steps, (double)bytes, remark, sizeof remark, err)) return false;
    if (remark[0]) run_note(run, "%s", remark);
    return true;
}

// Sets run->steps to --steps or, with --epochs, to the number of full steps in these epochs. Sequences that were read
// before a resume count toward --epochs, even if the batch size was different. Fails if the epochs fill less than one
// step.
static bool set_steps(Run *run, Error *err) {
    const Config *c = run->config;
    // number of sequences of one step
    const int64_t sequences = config_accumulation(c, run->place.ranks) * c->micro_batch * run->place.ranks;
    run->steps = c->steps;
    if (!run->train || c->steps >= 0) return true;
    const int64_t all = c->epochs * data_sequences(run->train), left = all - run->done.sequences;
    run->steps = run->done.step + (left > 0 ? left / sequences : 0);
    if (run->steps > 0) return true;
    return error_set(err, EXIT_DATA,
                     "--train: %lld sequence%s of %d tokens in %d epoch%s %s fewer than the %lld of one step; lower "
                     "--batch-tokens",
                     (long long)all, plural(all), c->seq_len, c->epochs, plural(c->epochs), all == 1 ? "is" : "are",
                     (long long)sequences);
}

// Opens the device, the inputs and the weights, with a long timeout for ranks that wait while others read files.
static bool open_run(Run *run, Error *err) {
    Model *m = &run->model;
    const Config *config = run->config;
    bool created = model_create(m, config, &run->place, err);
    run->errors.comm = m->comm;
    if (!m->comm || !all_ranks_ok(&run->errors, created, err)) return false;
    if (!same_settings(run, err)) return false;
    comm_set_timeout(m->comm, FILES_TIMEOUT_S);
    if (!all_ranks_ok(&run->errors, expect_checkpoint(run, config, err), err)) return false;
    if (!all_ranks_ok(&run->errors, open_tokenizer(run, config, err), err)) return false;
    if (!all_ranks_ok(&run->errors, open_data(run, config, err), err) || !same_files(run, err)) return false;
    const VisionShape *vision = &config->shape.vision;
    if (m->vision && vision->deviation[0] > 0) vision_pixels_set(m, vision->mean, vision->deviation);
    if (!all_ranks_ok(&run->errors, choose_prompt_format(run, err), err)) return false;
    if (!all_ranks_ok(&run->errors, divide_documents(run, err), err) || !same_documents(run, err)) return false;
    run->masked = comm_max_i64(m->comm, run->train && data_masked(run->train)); // the same on all ranks
    if (!all_ranks_ok(&run->errors, start_or_resume(run, err), err)) return false;
    comm_set_timeout(m->comm, 0);
    return set_steps(run, err) || on_all_ranks(&run->errors);
}

// Checks before training whether the end of the run would fail, for example because the prompt cannot be encoded.
static bool check_end(const Run *run, Error *err) {
    const Config *c = run->config;
    int32_t ids[MAX_PROMPT_TOKENS];
    if (c->prompt[0] && c->sample_tokens > 0 && run_prompt(run, ids, err) == 0) return false;
    if (run->train && c->resume_step >= 0 && run->done.step >= run->steps)
        return error_set(err, EXIT_USER,
                         "--resume=%lld: the run has already reached --%s %lld at that step; raise --steps or --epochs",
                         (long long)c->resume_step, c->steps < 0 ? "epochs" : "steps",
                         (long long)(c->steps < 0 ? c->epochs : run->steps));
    // --profile may name a step before the resumed step, because users resume by repeating the same command.
    if (run->train && c->profile > run->steps)
        return error_set(err, EXIT_USER, "--profile %lld: the run ends at step %lld; use an earlier step",
                         (long long)c->profile, (long long)run->steps);
    return true;
}

// Prints a note if the learning rate jumps at the resumed step because --steps, --lr or another flag of the schedule
// has changed. The schedule counts as changed if it gives the previous step another rate than the recorded rate.
static void note_rate(const Run *run) {
    const Config *c = run->config;
    const int64_t step = run->done.step;
    if (!run->train || step == 0 || step >= run->steps) return;
    const double was = run->done.state.lr, now = schedule_lr(c, step, run->steps);
    const double again = schedule_lr(c, step - 1, run->steps);
    if (fabs(again - was) <= 1e-6 * was || fmin(was, now) >= 0.9 * fmax(was, now)) return;
    char remedy[64] = "";
    if (was > 0) snprintf(remedy, sizeof remedy, ", or use --schedule constant --lr %.3g", was);
    run_note_always(run,
                    "the learning rate jumps from %.3g at step %lld to %.3g at step %lld, because the schedule has "
                    "changed; keep --steps and --lr%s; to extend runs, use --schedule wsd from the start",
                    was, (long long)step, now, (long long)step + 1, remedy);
}

static void note_settings(const Run *run) {
    const Config *c = run->config;
    note_rate(run);
    if (run->train && run->done.step > 0 && c->steps < 0 && !c->epochs_given)
        run_note(run, "--steps is not set: the run continues to step %lld, %d pass%s over the data",
                 (long long)run->steps, c->epochs, c->epochs == 1 ? "" : "es");
    if (!run->tokenizer && !c->vocabulary[0] && !c->eval_only && c->sample_tokens > 0)
        run_note(run, "samples print token ids, because there is no vocabulary file; add --tokenizer FILE");
    if (run->train && c->schedule != SCHEDULE_CONSTANT && !schedule_falls(c))
        run_note(run, "--schedule %s: --lr-final 1 keeps the rate constant; use --lr-final 0 to let it fall",
                 choice_name(SCHEDULE_NAMES, c->schedule).text);
}

static bool evaluate(Run *run, Error *err) {
    const Config *c = run->config;
    const bool first = run->place.rank == 0;
    if (run->val) {
        double loss, accuracy;
        int batches = data_batches(run->val, c->val_batches);
        bool ok = evaluate_loss(&run->model, run->val, batches, &loss, &accuracy, err);
        if (!all_ranks_ok(&run->errors, ok, err)) return false;
        if (first && c->json) {
            printf("{\"step\":%lld,\"val_loss\":", (long long)run_evaluated_step(run));
            printf(isfinite(loss) ? "%.9g" : "null", loss); // JSON has no infinity and no NaN
            if (!isnan(accuracy)) printf(",\"val_accuracy\":%.9g", accuracy);
            puts("}");
        } else if (first) {
            printf("step %lld  val loss %.6f", (long long)run_evaluated_step(run), loss);
            if (!isnan(accuracy)) printf(", %.1f %% of answers right", 100.0 * accuracy);
            puts("");
        }
    }
    if (run->hellaswag) {
        int examples = hellaswag_examples(run->hellaswag);
        double share = (double)evaluate_hellaswag(&run->model, run->hellaswag) / examples;
        if (first)
            printf(c->json ? "{\"step\":%lld,\"hellaswag\":%.9g}\n" : "step %lld  HellaSwag %.6f of %d\n",
                   (long long)run_evaluated_step(run), share, examples);
    }
    return true;
}

// True if a signal ends the run on all ranks before the run has changed a file in --out.
static bool is_ended(const Run *run) {
    const Config *c = run->config;
    int64_t number = comm_max_i64(run->model.comm, signals_stop());
    if (number && run->place.rank == 0)
        print_remark("", "ended by %s before the first step; nothing was changed%s%s", signals_name((int)number),
                     c->out[0] ? " in " : "", c->out);
    return number != 0;
}

// Opens the log of the run in --out.
static bool open_log(Run *run, Error *err) {
    Model *m = &run->model;
    const Config *c = m->config;
    // The other ranks wait longer here, because rank 0 may have to delete an old run. run_train() resets the timeout.
    comm_set_timeout(m->comm, FILES_TIMEOUT_S);
    if (!all_ranks_ok(&run->errors, !c->out[0] || m->exec.rank > 0 || rename_old_run(run, err), err)) return false;
    int64_t total = run->steps > run->done.step ? run->steps : run->done.step;
    run->log = log_open(c, m->exec.rank, total, run->done.step + 1, m->ops->peak_flops(&m->exec) * m->exec.ranks, err);
    if (!all_ranks_ok(&run->errors, run->log != NULL, err)) return false;
    log_resume(run->log, run->done.state.skipped);
    write_settings(run);
    return true;
}

// Ends a resumed run that has no steps left: validates, and evaluates HellaSwag if the log has no result for this step.
static bool end_without_steps(Run *run, Error *err) {
    log_text(run->log, "nothing to do: the run is at step %lld of %lld; raise --%s to continue",
             (long long)run->done.step, (long long)run->steps, run->config->steps < 0 ? "epochs" : "steps");
    comm_set_timeout(run->model.comm, 0);
    return run_validate(run, err) && run_missed_evaluations(run, false, true, err);
}

static bool run_all(Run *run, Error *err) {
    const Config *config = run->config;
    if (!open_run(run, err) || !all_ranks_ok(&run->errors, check_end(run, err), err)) return false;
    note_settings(run);
    report(run);
    if (config->eval_only && !evaluate(run, err)) return false;
    if (!run->train) return !config->prompt[0] || all_ranks_ok(&run->errors, run_samples(run, err), err);
    const bool trains = run->done.step < run->steps;
    if (trains && config->out[0] && !all_ranks_ok(&run->errors, has_room(run, err), err)) return false;
    // No file in --out has changed so far, so a run that is stopped here leaves the earlier run intact.
    if (is_ended(run)) return true;
    if (!open_log(run, err)) return false;
    return trains ? run_train(run, err) : end_without_steps(run, err);
}

bool run_main(Run *run, Config *config, Error *err) {
    static OutFolder folder;
    const CommPlace *place = &run->place;
    const bool trains = config_trains(config), writes = trains && config->out[0] && place->rank == 0;
    config->threads = shards_threads(config, place->local_ranks);
    if (trains) signals_open();
    bool ok = !writes || out_prepare(config, &folder, err);
    if (ok && writes) run->folder = &folder;
    run->config = config;
    run->errors.failed = false;
    ok = ok && run_all(run, err);
    if (!ok && !run->errors.failed && place->ranks > 1) {
        fprintf(stderr, "error: rank %d: %s\n", place->rank, err->text);
        comm_abort(run->model.comm, err->code);
    }
    saver_close(run->saver);
    log_close(run->log);
    data_close(run->train);
    data_close(run->val);
    hellaswag_close(run->hellaswag);
    tokenizer_close(run->tokenizer);
    if (!ok) report_error_once(&run->errors, place->rank, err);
    model_destroy(&run->model);
    run->errors.comm = NULL;
    if (writes) out_close(&folder);
    return ok;
}
