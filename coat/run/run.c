#include "run.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/signals.h"
#include "config/vision.h"
#include "evaluate.h"
#include "io/json.h"
#include "log/step_line.h"
#include "log/terminal.h"
#include "model/flops.h"
#include "model/schedule.h"
#include "save/checkpoint.h"
#include "text/prompt_format.h"

static bool due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

// Pointers to one micro-batch of the next step in run->next, run->next_images and run->next_pixels.
typedef struct {
    int32_t *inputs, *targets, *positions; // positions is NULL unless documents are masked
    int32_t *image_rows;
    int *images; // number of images
    uint8_t *pixels;
} MicroBatch;

static MicroBatch micro_batch(const Run *run, int64_t i) {
    const Config *c = run->config;
    const int64_t tokens = config_micro_tokens(c);
    int32_t *inputs = run->next + BATCH_PLANES * i * tokens;
    return (MicroBatch){inputs,
                        inputs + tokens,
                        c->documents == DOCUMENTS_MASKED ? inputs + 2 * tokens : NULL,
                        inputs + 3 * tokens,
                        run->next_images + i,
                        run->next_pixels + i * vision_pixel_bytes(c)};
}

// Reads micro-batch i of the next step, which starts at sequence `sequences`. Must be called before that step: within a
// step, processes wait for each other, so a rank that cannot read its data could not send the error to the others.
static void read_ahead(Run *run, int64_t sequences, int64_t i) {
    const Config *c = run->config;
    const int64_t first = (c->overfit_one_batch ? 0 : sequences) + i * c->micro_batch * run->place.ranks;
    const MicroBatch b = micro_batch(run, i);
    Error *err = &run->pending_error;
    if (err->code == EXIT_DONE && data_batch_at(run->train, first, b.inputs, b.targets, b.positions, err))
        data_images_at(run->train, first, b.image_rows, b.pixels, b.images, err);
}

// Returns the number of unmasked targets in the next step, summed over all processes. The number is above 0, because
// every sequence has an unmasked target.
static int64_t count_targets(Run *run) {
    const int64_t tokens = config_micro_tokens(run->config);
    const int64_t accumulation = config_accumulation(run->config, run->place.ranks);
    if (!run->masked) return accumulation * tokens * run->place.ranks;
    int64_t unmasked = 0;
    for (int64_t i = 0; i < accumulation; i++) unmasked += data_unmasked_targets(micro_batch(run, i).targets, tokens);
    return comm_sum_i64(run->model.comm, unmasked);
}

// Returns the FLOPs of the next step over all processes. Excludes black images, which only fill up a pass
// (vision_pass_images()).
static double count_flops(Run *run) {
    const Config *c = run->config;
    const int64_t accumulation = config_accumulation(c, run->place.ranks);
    const TrainFlops flops = train_flops(c);
    int64_t images = 0;
    for (int64_t i = 0; i < accumulation; i++) images += run->next_images[i];
    images = flops.per_image > 0 ? comm_sum_i64(run->model.comm, images) : 0;
    return flops.per_token * (double)config_batch_tokens(c, run->place.ranks) + flops.per_image * (double)images;
}

// Runs one step: all micro-batches of --batch-tokens, then the update. Stores the results in model.host. If a signal or
// --time-limit ends the run within the step, the gradients are discarded and run->done does not change.
static void train_step(Run *run) {
    Model *m = &run->model;
    const Config *c = m->config;
    int64_t accumulation = config_accumulation(c, m->exec.ranks), tokens = config_micro_tokens(c);
    // number of sequences after this step
    int64_t sequences = run->done.sequences + accumulation * c->micro_batch * m->exec.ranks;
    const int64_t targets = count_targets(run);
    const double unmasked = (double)targets / (double)(accumulation * tokens * m->exec.ranks);
    if (run->masked) log_counted(run->log, unmasked);
    run->warned.uncounted = 1 - unmasked;
    run->step_flops = count_flops(run);
    step_begin(m, schedule_lr(c, run->done.step, run->steps), targets);
    const bool logs = m->exec.rank == 0;
    const int64_t step = run->done.step + 1;
    m->counts_codes = logs && due(step, c->health_every) && m->arena.layout[OUTLIERS][VALUE].exists;
    m->compares_matmuls = logs && due(step, c->health_matmuls) && m->arena.layout[QKVW_REFERENCE][VALUE].exists;
    for (int64_t i = 0; i < accumulation; i++) {
        if (stop_at_once(m)) return;
        const MicroBatch b = micro_batch(run, i);
        batch_upload(m, c->micro_batch, c->seq_len, b.inputs, b.targets, b.positions);
        images_upload(m, *b.images, b.pixels, b.image_rows);
        micro_step(m, i > 0, i + 1 == accumulation);
        if (run->done.step + 1 < run->steps) read_ahead(run, sequences, i); // reads data while the device computes
    }
    if (logs && due(step, c->health_every)) health_sample(&m->arena, &m->exec, &run->warned);
    step_end(m);
    run->done.step++;
    run->done.sequences = sequences;
    run->done.tokens += accumulation * tokens * m->exec.ranks;
    run->done.state = m->host;
}

bool run_validate(Run *run, Error *err) {
    if (!run->val) return true;
    double loss, accuracy;
    int batches = data_batches(run->val, run->config->val_batches);
    bool ok = evaluate_loss(&run->model, run->val, batches, &loss, &accuracy, err);
    if (!all_ranks_ok(&run->errors, ok, err)) return false;
    // An incomplete validation is not logged, because the resumed run repeats it.
    if (!stop_at_once(&run->model)) log_val(run->log, run->done.step, loss, accuracy);
    return true;
}

static void test_hellaswag(Run *run) {
    if (!run->hellaswag) return;
    int right = evaluate_hellaswag(&run->model, run->hellaswag);
    if (!stop_at_once(&run->model)) log_hellaswag(run->log, run->done.step, right, hellaswag_examples(run->hellaswag));
}

int run_prompt(const Run *run, int32_t ids[MAX_PROMPT_TOKENS], Error *err) {
    const Config *c = run->config;
    const int begin = run->tokenizer ? tokenizer_bos(run->tokenizer) : -1;
    ids[0] = begin < 0 && run->tokenizer ? tokenizer_eos(run->tokenizer) : begin;
    const SpecialIds *known = &c->shape.ids;
    if (ids[0] < 0) ids[0] = known->bos < 0 && known->eos_count > 0 ? known->eos[0] : known->bos;
    if (ids[0] < 0) ids[0] = c->shape.vocab - 1; // the last id, because no BOS or EOS id is known
    int count = 1;
    if (c->prompt[0]) {
        if (!run->tokenizer) {
            error_set(err, EXIT_USER, "--prompt: encoding the text needs a tokenizer; add --tokenizer FILE");
            return 0;
        }
        const int first = begin >= 0; // index of the first token that is text
        const PromptImage image = {c->shape.vision.image_token, c->image[0] ? vision_rows(&c->shape.vision) : 0};
        count = prompt_encode(run->tokenizer, run->prompt_format, c->prompt, c->image[0] ? &image : NULL, ids + first,
                              MAX_PROMPT_TOKENS - first, err);
        if (count == 0)
            error_set(err, EXIT_USER, "--prompt: the text is empty; give the text that the sample continues");
        if (count <= 0) return 0;
        count += first;
    }
    if (c->image[0] && count > c->seq_len) {
        error_set(err, EXIT_USER,
                  "--image %s: prompt and image have %d tokens, more than --seq-len %d; use --seq-len %d", c->image,
                  count, c->seq_len, count + c->sample_tokens);
        return 0;
    }
    for (int i = 0; i < count; i++) {
        if (ids[i] >= 0 && ids[i] < c->shape.vocab) continue;
        error_set(err, EXIT_USER,
                  "--tokenizer: token %d is outside the model's vocabulary of %d; use the model's own tokenizer",
                  ids[i], c->shape.vocab);
        return 0;
    }
    return count;
}

int64_t run_evaluated_step(const Run *run) {
    const Config *c = run->config;
    int64_t named = c->model_from_files && run->done.step == 0 ? checkpoint_weights_step(c->model) : -1;
    return named > 0 ? named : run->done.step;
}

bool run_samples(Run *run, Error *err) {
    const Config *c = run->config;
    const bool lines = c->json && !run->train, text = !lines || !c->quiet;
    FILE *out = c->json ? stderr : stdout;
    int32_t prompt[MAX_PROMPT_TOKENS];
    int count = run_prompt(run, prompt, err), more = c->sample_tokens;
    if (count == 0) return false;
    int32_t *ids = (int32_t *)xcalloc((size_t)(count + more), sizeof *ids);
    memcpy(ids, prompt, (size_t)count * sizeof *ids);
    SpecialIds ends = c->shape.ids;
    if (ends.eos_count == 0 && run->tokenizer && tokenizer_eos(run->tokenizer) >= 0)
        ends.eos[ends.eos_count++] = tokenizer_eos(run->tokenizer);
    for (int i = 0; i < c->samples && !stop_at_once(&run->model); i++) {
        bool ended;
        const int length = sample_tokens(&run->model, ids, count, more, i, c->prompt[0] ? &ends : NULL, &ended);
        if (run->place.rank > 0) continue;
        if (text && c->samples > 1) fprintf(out, "--- sample %d of %d\n", i + 1, c->samples);
        const int placeholder = c->image[0] ? c->shape.vision.image_token : -1;
        if (text) print_tokens(run->tokenizer, ids, length - ended, placeholder, out);
        if (!lines) continue;
        printf("{\"step\":%lld", (long long)run_evaluated_step(run));
        print_tokens_json("prompt", ids, count);
        print_tokens_json("sample", ids + count, length - count);
        printf("}\n");
        fflush(stdout);
    }
    free(ids);
    return true;
}

// Returns the time in ms at which the last save must start to meet --time-limit; 0 if there is no limit.
static double deadline(const Run *run) {
    // spare: ms that remain for ending the process
    double limit = (double)run->config->time_limit_ms, spare = fmin(0.05 * limit, 20e3);
    // saves: ms for the last save and, as a margin, for a second one, each 20 % longer than expected
    double saves = run->saver ? 2.4 * saver_expected_ms(run->saver) : 0.0;
    return limit > 0 ? run->start_ms + limit - spare - saves : 0.0;
}

static bool time_is_up(const Run *run) {
    // If an evaluation stopped early, its results are incomplete, so the run must end even if deadline() is later now
    // because saves became faster.
    if (stop_at_once(&run->model)) return true;
    double last = deadline(run);
    return last > 0 && now_ms() + 1.2 * run->longest_ms > last;
}

// Returns the reason for ending the run before its last step, or NULL. Reasons are a signal, or --time-limit if the
// next step and the saves after that step might exceed the limit. Shares each process's requests, failed saves and
// pending errors with all processes.
static const char *end_early(Run *run) {
    enum { FAILED_SAVE = 1, SAVE, PENDING_ERROR, TIME_LIMIT, SIGNAL }; // the largest request of all processes wins
    int64_t request = signals_stop()                         ? SIGNAL + signals_stop()
                      : time_is_up(run)                      ? TIME_LIMIT
                      : run->pending_error.code != EXIT_DONE ? PENDING_ERROR
                                                             : 0;
    if (run->place.ranks > 1) {
        if (request == 0 && signals_consume_save()) request = SAVE;
        if (request == 0 && run->saver && saver_has_failed(run->saver)) request = FAILED_SAVE;
        request = comm_max_i64(run->model.comm, request);
        run->save_asked = request == SAVE;
        if (request == FAILED_SAVE) saver_give_up(run->saver);
    }
    run->any_rank_failed = request == PENDING_ERROR;
    return request > SIGNAL ? signals_name((int)request - SIGNAL) : request == TIME_LIMIT ? "--time-limit" : NULL;
}

// True if end_early() found no pending error on any process. Otherwise sets err on all processes.
static bool can_continue(Run *run, Error *err) {
    if (!run->any_rank_failed) return true;
    *err = run->pending_error;
    return all_ranks_ok(&run->errors, err->code == EXIT_DONE, err);
}

// Waits until the save in progress is written. Returns false with err on all processes if the save failed on one of
// them, or if another run uses the folder.
static bool finish_saving(Run *run, Error *err) {
    comm_set_timeout(run->model.comm, FILES_TIMEOUT_S);
    bool saved = all_ranks_ok(&run->errors, !run->saver || saver_finish(run->saver, err), err);
    comm_set_timeout(run->model.comm, 0);
    return saved;
}

// Ends the run early: saves a checkpoint if a step was done after step `begun`, waits until the checkpoint is written,
// and prints `reason` and how to resume.
static bool stop(Run *run, const char *reason, int64_t begun, Error *err) {
    const Config *c = run->config;
    bool saves = run->saver && run->done.step > begun;
    if (saves) saver_save_last(run->saver, &run->done);
    if (!finish_saving(run, err)) return false;
    if (run->place.rank > 0) return true;
    log_show_step(run->log);
    print_remark("", "ended by %s after step %lld of %lld: %s%s%s", reason, (long long)run->done.step,
                 (long long)run->steps,
                 saves        ? "saved; continue with --out "
                 : run->saver ? "this process has done no step, so nothing new is saved in "
                              : "nothing is saved without --out",
                 c->out, saves ? " --resume" : "");
    return true;
}

// After an error such as unreadable data, saves a last checkpoint with the weights and states of the last complete
// step. Saves nothing if training has diverged. With several processes, saves only if all processes know the error,
// because saving needs all of them.
static void rescue(Run *run, int64_t begun, Error *err) {
    Comm *comm = run->model.comm;
    if (!run->saver || (run->place.ranks > 1 && !run->errors.failed)) return;
    bool saves = run->done.step > begun && err->code != EXIT_DIVERGED;
    if (saves) saver_save_last(run->saver, &run->done);
    comm_set_timeout(comm, FILES_TIMEOUT_S);
    saver_is_taken(run->saver, err);
    saver_close(run->saver); // waits until the checkpoint is written
    run->saver = NULL;
    comm_barrier(comm);
    comm_set_timeout(comm, 0);
}

// True if --out has a checkpoint to resume from. Waits until the checkpoint in progress is written.
static bool has_saved(Run *run) {
    int64_t *steps;
    Error ignored;
    if (!run->saver) return false;
    saver_step(run->saver);
    const bool saved = checkpoint_steps(run->config->out, &steps, &ignored) > 0;
    free(steps);
    return saved;
}

// Logs a step whose update was skipped as an outlier. Fails (EXIT_DIVERGED) after --max-skipped consecutive skipped
// updates.
static bool check_skips(Run *run, Error *err) {
    const Model *m = &run->model;
    if (m->host.nonfinite == SKIP_OUTLIER)
        log_text(run->log, "step %lld is an outlier: its update is skipped", (long long)run->done.step);
    if (m->host.skipped_run < m->config->max_skipped) return true;
    error_set(err, EXIT_DIVERGED, "training diverged: %lld update%s in a row had %s loss or gradient; %s",
              (long long)m->host.skipped_run, plural(m->host.skipped_run),
              m->guard ? "an outlying or non-finite" : "a non-finite", diverged_advice(has_saved(run)));
    return on_all_ranks(&run->errors);
}

// On rank 0, logs the statistics that health() returns under `key`, and prints its warnings. After a skipped step,
// prints none of the once-per-run warnings, because a skipped step's values can be infinite whatever the scales are.
static void log_health(Run *run, const char *key, char *(*health)(const Arena *, Exec *, HealthWarned *, char *)) {
    Model *m = &run->model;
    char warning[HEALTH_WARNING];
    if (m->exec.rank != 0) return;
    // waits for this step's FP8 weights, so that all ZeRO stages measure the same values
    shards_weights_wait(&m->shards);
    char *json = health(&m->arena, &m->exec, m->host.nonfinite ? NULL : &run->warned, warning);
    if (json) log_object(run->log, run->done.step, key, json);
    if (warning[0]) log_show_step(run->log);
    if (warning[0]) log_text(run->log, "%s", warning);
    free(json);
}

// If the run has several training sets, reports how much of each set has been read: in log.jsonl, or as lines of text
// if as_text is true.
static void log_sets(Run *run, bool as_text) {
    const int sets = data_sets(run->train);
    if (sets == 1 || run->config->overfit_one_batch) return;
    const int T = run->config->seq_len;
    JsonText t;
    memset(&t, 0, sizeof t);
    json_text_open(&t, NULL, '[');
    for (int k = 0; k < sets; k++) {
        const DataSet set = data_set(run->train, k, run->done.sequences);
        if (as_text)
            log_text(run->log, "%s: %lld sequence%s, %lld token%s, %.3g epoch%s", set.name, (long long)set.seen,
                     plural(set.seen), (long long)(set.seen * T), plural(set.seen * T), set.epochs, plural(set.epochs));
        json_text_open(&t, NULL, '{');
        json_text_string(&t, "set", set.name);
        json_text_int(&t, "sequences", set.seen);
        json_text_int(&t, "tokens", set.seen * T);
        json_text_double(&t, "epochs", set.epochs);
        json_text_close(&t, '}');
    }
    json_text_close(&t, ']');
    if (!as_text) log_object(run->log, run->done.step, "train", t.text);
    json_text_free(&t);
}

bool run_missed_evaluations(Run *run, bool val, bool hellaswag, Error *err) {
    Comm *comm = run->model.comm;
    bool first = run->place.rank == 0;
    if (comm_max_i64(comm, first && val && !log_has_val(run->log, run->done.step)) && !run_validate(run, err))
        return false;
    if (comm_max_i64(comm, first && hellaswag && !log_has_hellaswag(run->log, run->done.step))) test_hellaswag(run);
    return true;
}

// Opens the saver. The processes of one machine open savers one after the other, because each process sizes its buffer
// by the host memory that is left.
static void open_saver(Run *run) {
    Model *m = &run->model;
    const int64_t barriers = comm_serialize_begin(m->comm, run->place.local_rank);
    run->saver = saver_open(m->config, &m->arena, &m->exec, run->log);
    comm_serialize_end(m->comm, barriers);
    saver_vocabulary(run->saver, run->tokenizer);
    if (run->folder) saver_watch(run->saver, run->folder);
}

// Completes a step of `tokens` tokens that started at time `begin` (ms): logs it, then saves, validates and samples if
// due. Saves before validating and sampling, because these may fail or take long.
static bool after_step(Run *run, int64_t tokens, float lr, double begin, Error *err) {
    Model *m = &run->model;
    const Config *c = m->config;
    const int64_t step = run->done.step;
    const bool last = step == run->steps, validates = last || due(step, c->val_every);
    bool saves = run->save_asked || last || due(step, c->save_every);
    if (run->place.ranks == 1 && signals_consume_save()) saves = true;
    log_step(run->log, step, m->host.loss_sum, m->host.grad_norm, lr, now_ms() - begin, run->done.tokens, tokens,
             run->step_flops, m->host.skipped);
    if (due(step, c->health_every)) {
        log_health(run, "fp8", health_json);
        log_health(run, "attention", health_attention_json);
        log_health(run, "activation", health_activation_json);
        log_health(run, "optimizer", health_optimizer_json);
    }
    if (due(step, c->health_matmuls)) log_health(run, "products", health_matmuls_json);
    if (validates) log_sets(run, false);
    bool ok = check_skips(run, err);
    if (ok && run->saver && saves) saver_save(run->saver, &run->done);
    if (ok && validates) ok = run_validate(run, err);
    if (ok && (last || due(step, config_hellaswag_every(c)))) test_hellaswag(run);
    if (ok && c->sample_tokens > 0 && (last || due(step, c->sample_every))) {
        log_show_step(run->log);
        ok = all_ranks_ok(&run->errors, run_samples(run, err), err);
    }
    if (run->saver) saver_poll(run->saver, &run->pending_error);
    return ok && comm_check(m->comm, err);
}

bool run_train(Run *run, Error *err) {
    Model *m = &run->model;
    const Config *c = m->config;
    const int64_t begun = run->done.step;
    const char *reason = NULL;
    if (c->out[0]) open_saver(run);
    error_saved(c->out, begun);
    bool ok = m->exec.ranks == 1 || !run->saver || saver_set_shards(run->saver, &m->shards, err);
    ok = all_ranks_ok(&run->errors, ok, err);
    comm_set_timeout(m->comm, 0);
    if (ok && begun > 0)
        ok = run_missed_evaluations(run, due(begun, c->val_every), due(begun, config_hellaswag_every(c)), err);
    int64_t accumulation = config_accumulation(c, m->exec.ranks);
    run->next = (int32_t *)xmalloc((size_t)(BATCH_PLANES * accumulation * config_micro_tokens(c)) * sizeof(int32_t));
    run->next_images = (int *)xcalloc((size_t)accumulation, sizeof *run->next_images);
    run->next_pixels = (uint8_t *)xmalloc((size_t)(accumulation * vision_pixel_bytes(c)) + 1);
    for (int64_t i = 0; ok && i < accumulation; i++) read_ahead(run, run->done.sequences, i);
    while (ok && run->done.step < run->steps && !(reason = end_early(run))) {
        double begin = now_ms();
        // The process's first step has no deadline and is always completed, so that repeated short runs progress.
        m->deadline_ms = run->done.step > begun ? deadline(run) : 0;
        float lr = schedule_lr(c, run->done.step, run->steps);
        int64_t before = run->done.tokens;
        ok = can_continue(run, err);
        bool marked = ok && run->done.step + 1 == c->profile;
        if (marked) m->ops->profile(&m->exec, true);
        if (ok) train_step(run);
        if (marked) m->ops->profile(&m->exec, false);
        if (!ok || run->done.tokens == before) continue;
        ok = after_step(run, run->done.tokens - before, lr, begin, err);
        run->longest_ms = fmax(run->longest_ms, now_ms() - begin);
    }
    free(run->next);
    free(run->next_images);
    free(run->next_pixels);
    free(run->warned.sample);
    if (!ok) {
        rescue(run, begun, err);
        return false;
    }
    log_sets(run, true);
    if (!reason && stop_at_once(m)) reason = end_early(run); // end_early() returns why a validation was stopped
    if (reason) return stop(run, reason, begun, err);
    if (run->saver) saver_save_last(run->saver, &run->done);
    return finish_saving(run, err);
}
