#include "evaluate.h"

#include <math.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/signals.h"
#include "config/vision.h"
#include "sampler.h"

bool stop_at_once(const Model *m) {
    return m->exec.ranks == 1 && (signals_stop() || (m->deadline_ms > 0 && now_ms() > m->deadline_ms));
}

// Adds the number of answers in a micro-batch to answers[0], and the number of right answers to answers[1]. best (B*T)
// is above 0 if the target has the largest logit. An answer never continues into the next example, because an example's
// last target is masked.
static void count_answers(const int32_t *targets, const float *best, int B, int T, int64_t answers[2]) {
    for (int row = 0; row < B; row++, targets += T, best += T) {
        bool right = true;
        for (int t = 0; t < T; t++) {
            if (targets[t] < 0) continue;
            right = right && best[t] > 0;
            if (t + 1 < T && targets[t + 1] >= 0) continue;
            answers[0]++;
            answers[1] += right;
            right = true;
        }
    }
}

bool evaluate_loss(Model *m, DataLoader *loader, int batches, double *loss, double *accuracy, Error *err) {
    const Config *c = m->config;
    size_t tokens = (size_t)config_micro_tokens(c);
    int32_t *inputs = (int32_t *)xcalloc(4 * tokens, sizeof(int32_t)), *targets = inputs + tokens;
    int32_t *positions = c->documents == DOCUMENTS_MASKED ? inputs + 2 * tokens : NULL;
    int32_t *image_rows = inputs + 3 * tokens;
    uint8_t *pixels = (uint8_t *)xmalloc((size_t)vision_pixel_bytes(c) + 1); // + 1 avoids a size of 0
    bool ok = true;
    float *best = m->vision && data_masked(loader) ? (float *)xmalloc(tokens * sizeof *best) : NULL;
    int64_t counted = 0, answers[2] = {0, 0}; // numbers of unmasked targets, of answers and of right answers
    StepState before = m->host;
    m->host.loss_sum = 0.0;
    m->host.loss_scale = 1.0f;
    state_upload(m);
    for (int first = 0; first < batches && (ok || m->exec.ranks > 1) && !stop_at_once(m); first += m->exec.ranks) {
        int i = first + m->exec.rank, mine = i < batches ? i : batches - 1, images = 0;
        const int64_t sequence = (int64_t)mine * c->micro_batch;
        ok = ok && data_batch_at(loader, sequence, inputs, targets, positions, err) &&
             data_images_at(loader, sequence, image_rows, pixels, &images, err);
        if (!ok) memset(inputs, 0, 2 * tokens * sizeof(int32_t));
        if (i >= batches) memset(targets, 0xff, tokens * sizeof *targets); // all targets are -1, which means masked
        batch_upload(m, c->micro_batch, c->seq_len, inputs, targets, positions);
        images_upload(m, images, pixels, images ? image_rows : NULL);
        counted += data_unmasked_targets(targets, (int64_t)tokens);
        vision_forward(m);
        model_forward(m, NO_KV_CACHE);
        model_loss(m, false, false);
        if (!best) continue;
        m->ops->download(&m->exec, best, act(m, BEST, 0).data, tokens * sizeof *best);
        count_answers(targets, best, c->micro_batch, c->seq_len, answers);
    }
    shards_sum_loss(&m->shards, m->state);
    state_download(m);
    counted = comm_sum_i64(m->comm, counted);
    for (int i = 0; i < 2; i++) answers[i] = comm_sum_i64(m->comm, answers[i]);
    *loss = m->host.loss_sum / (double)counted;
    *accuracy = answers[0] > 0 ? (double)answers[1] / (double)answers[0] : (double)NAN;
    m->host = before;
    state_upload(m);
    free(best);
    free(pixels);
    free(inputs);
    return ok;
}

int evaluate_hellaswag(Model *m, HellaSwag *set) {
    int B = m->config->micro_batch, T = (hellaswag_length(set) + 63) / 64 * 64;
    if (T > m->config->seq_len) T = m->config->seq_len;
    size_t tokens = (size_t)B * (size_t)T;
    int32_t *inputs = (int32_t *)xmalloc(2 * tokens * sizeof(int32_t)), *targets = inputs + tokens;
    float *losses = (float *)xmalloc(tokens * sizeof *losses);
    int row;
    for (int n = 0; (row = hellaswag_pass(set, n, B, m->exec.rank, m->exec.ranks)) >= 0 && !stop_at_once(m); n++) {
        hellaswag_batch(set, row, B, T, inputs, targets);
        batch_upload(m, B, T, inputs, targets, NULL);
        images_upload(m, 0, NULL, NULL);
        model_forward(m, NO_KV_CACHE);
        model_loss(m, false, false);
        m->ops->download(&m->exec, losses, act(m, LOSSES, 0).data, tokens * sizeof *losses);
        hellaswag_add_losses(set, row, B, T, losses);
    }
    state_upload(m); // resets the loss sum on the device, which HellaSwag's losses have changed
    free(losses);
    free(inputs);
    return (int)comm_sum_i64(m->comm, hellaswag_right(set));
}

static float decode_value(const void *data, Format format, int i) {
    return format == FMT_BF16 ? bf16_decode(((const uint16_t *)data)[i]) : (float)((const real *)data)[i];
}

// Returns the number of tokens of a pass over the first `length` tokens of a window of T tokens. Returns
// config_sample_rows(), a multiple of `rows`, if it is less than T. Otherwise returns the largest multiple of `rows`
// that is at most T, or T if T < rows. The result is less than `length` only if T is not a multiple of `rows`.
static int padded_length(int length, int T, int rows) {
    const int padded = config_sample_rows(length, T);
    return padded < T || T < rows ? padded : T / rows * rows;
}

// Sets rows[i - begin] to the row of the image's features that replaces token ids[i], for i in [begin, end). The n-th
// image token of ids, counted from 0, gets row n % vision_rows(), so every <image> in the prompt shows the same image.
// All other tokens get -1.
static void find_image_rows(const VisionShape *vision, const int32_t *ids, int begin, int end, int32_t *rows) {
    int placeholders = 0;
    for (int i = 0; i < end; i++) {
        const bool is_placeholder = ids[i] == vision->image_token;
        if (i >= begin) rows[i - begin] = is_placeholder ? placeholders % vision_rows(vision) : -1;
        placeholders += is_placeholder;
    }
}

// Runs a forward pass over T tokens of a sample's window. The window is the last `length` tokens of ids[0 .. count).
// The pass starts after the window's first cached_tokens tokens, which are in the KV cache. Zeros fill the pass after
// the window's end. A pass without cached tokens also computes the features of the prompt's image, which later passes
// read.
static void sample_pass(Model *m, const int32_t *ids, int count, int length, int cached_tokens, int T) {
    const int B = config_sample_sequences(m->config), begin = count - length + cached_tokens;
    const int end = count - begin < T ? count : begin + T;
    const KvCache cache = {true, cached_tokens};
    const size_t size = (size_t)B * (size_t)T;
    int32_t *tokens = (int32_t *)xcalloc(2 * size, sizeof *tokens), *rows = tokens + size;
    const bool computes = m->sample_image && cached_tokens == 0;
    memcpy(tokens, ids + begin, (size_t)(end - begin) * sizeof *ids);
    memset(rows, 0xff, size * sizeof *rows); // -1: no image
    if (m->sample_image) find_image_rows(&m->config->shape.vision, ids, begin, end, rows);
    batch_upload(m, B, T, tokens, NULL, NULL);
    images_upload(m, computes, m->sample_image, rows);
    if (computes) vision_forward(m);
    model_forward(m, cache);
    free(tokens);
}

void sample_logits(Model *m, const int32_t *ids, int count, bool incremental, float *logits) {
    const Config *c = m->config;
    const int window = c->seq_len, vocab = c->shape.vocab, rows = config_min_tokens(c);
    const int length = count < window ? count : window;
    const int head_rows = config_sample_logits(c);
    if (count > window || rows > window) incremental = false;
    int T = incremental ? rows : padded_length(length, window, rows);
    int cached_tokens = incremental ? (count - 1) / rows * rows : 0;
    // If `window` is not a multiple of `rows`, a second pass reads the last `rows` tokens of the window.
    if (!incremental && T < length) {
        sample_pass(m, ids, count, length, 0, T);
        cached_tokens = window - rows, T = rows;
    }
    if (incremental && cached_tokens > window - rows) cached_tokens = window - rows;
    sample_pass(m, ids, count, length, cached_tokens, T);
    const int last = length - 1 - cached_tokens, first = last / head_rows * head_rows;
    const Tensor few = tensor_rows(act(m, LOGITS, 0), 0, head_rows);
    const size_t bytes = (size_t)vocab * format_bytes(few.format);
    void *raw = xmalloc(bytes);
    m->ops->linear_forward(&m->exec, few, tensor_rows(act(m, NF, 0), first, head_rows),
                           weight(m, head_weight(&c->shape), 0), no_tensor());
    m->ops->download(&m->exec, raw, tensor_rows(few, last - first, 1).data, bytes);
    for (int i = 0; i < vocab; i++) logits[i] = decode_value(raw, few.format, i);
    free(raw);
}

int sample_tokens(Model *m, int32_t *ids, int count, int more, int number, const SpecialIds *ends, bool *ended) {
    const Config *c = m->config;
    float *logits = (float *)xmalloc((size_t)c->shape.vocab * sizeof *logits);
    int n = count;
    bool found = false;
    for (; n < count + more && !found && !stop_at_once(m); n++) {
        const uint64_t draw = (uint64_t)number << 32 | (uint64_t)n;
        sample_logits(m, ids, n, n > count, logits);
        ids[n] = sample_token(logits, c->shape.vocab, c->temperature, c->top_k, c->top_p, c->seed, draw);
        found = ends && is_eos(ends, ids[n]);
    }
    free(logits);
    if (ended) *ended = found;
    return n;
}

void print_tokens(const Tokenizer *tokenizer, const int32_t *ids, int count, int hidden, FILE *out) {
    // index of the first token that is text
    const int first = tokenizer && count > 0 && ids[0] == tokenizer_bos(tokenizer);
    char *all = NULL; // text of all tokens, collected because a character may span several tokens
    size_t bytes = 0;
    FILE *memory = open_memstream(&all, &bytes);
    if (!memory) fatal(EXIT_DEVICE, "could not allocate host memory for the text of %d tokens", count);
    for (int i = 0; i < count; i++) {
        char text[512];
        if (ids[i] == hidden) continue;
        size_t length = tokenizer ? tokenizer_decode(tokenizer, ids[i], text, sizeof text) : 0;
        if (length > sizeof text) length = sizeof text; // a token of a vocabulary file may be longer than `text`
        if (i == first && length > 0 && text[0] == ' ' && tokenizer_adds_space(tokenizer))
            memmove(text, text + 1, --length);
        if (tokenizer)
            fwrite(text, 1, length, memory);
        else
            fprintf(memory, "%d ", ids[i]);
    }
    if (fclose(memory) != 0) fatal(EXIT_DEVICE, "could not allocate host memory for the text of %d tokens", count);
    if (isatty(fileno(out))) bytes = text_printable(all, bytes, "\n\t");
    fwrite(all, 1, bytes, out);
    fprintf(out, "\n");
    fflush(out);
    free(all);
}

void print_tokens_json(const char *name, const int32_t *ids, int count) {
    printf(",\"%s\":[", name);
    for (int i = 0; i < count; i++) printf(i ? ",%d" : "%d", ids[i]);
    printf("]");
}
