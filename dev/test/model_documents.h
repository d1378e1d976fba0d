// Tests of document masking (--documents apart) for test_gpt2.cu: a document that shares its row has the same results
// as alone in a row, and no bit of its results depends on other documents.
#pragma once
#include "dev/test/texts.h"

enum { DOCUMENTS = 5, DOCUMENT_ROW = 150, LONGEST_DOCUMENT = 149 };
// Lengths of the documents: three in the first sequence, two in the second.
static const int document_tokens[DOCUMENTS] = {70, 50, 30, 149, 1};

static const char *where(DeviceKind device) {
    return device == DEVICE_CUDA ? ", on the GPU" : "";
}

// Returns the configuration of a small model. In BF16 on a GPU, the fast attention kernels support its head width.
static Config documents_config(DeviceKind device, int B, int T, bool bf16) {
    Config c = small_config((Small){2, 2, device == DEVICE_CUDA && bf16 ? 128 : 32, 50, B, T, bf16, 0});
    c.device = device;
    c.shape.positions = DOCUMENT_ROW + 3;
    c.documents = DOCUMENTS_MASKED;
    return c;
}

// Generates tokens and targets of document d. Its last token and every seventh token have no target.
static void make_document(int d, uint64_t seed, int32_t *tokens, int32_t *targets) {
    for (int t = 0; t < document_tokens[d]; t++) tokens[t] = (int32_t)(rng_hash(seed, (uint64_t)d, (uint64_t)t) % 50);
    for (int t = 0; t < document_tokens[d]; t++)
        targets[t] = t + 1 == document_tokens[d] || t % 7 == 0 ? -1 : tokens[t + 1];
}

// Runs forward and backward on all documents in rows of T tokens; seeds[d] generates document d. Sets first[d] to the
// index of the document's first token. Documents that are alone in their rows are padded with tokens without targets.
static void pass_over_documents(Model *m, const uint64_t seeds[DOCUMENTS], int64_t first[DOCUMENTS]) {
    const int B = m->config->micro_batch, T = m->config->seq_len;
    const size_t tokens = (size_t)B * (size_t)T;
    int32_t *inputs = (int32_t *)xcalloc(3 * tokens, sizeof *inputs), *targets = inputs + tokens;
    int32_t *positions = targets + tokens;
    int64_t counted = 0, at = 0;
    for (size_t i = 0; i < tokens; i++) targets[i] = -1;
    for (int d = 0; d < DOCUMENTS; d++) {
        if (T < DOCUMENT_ROW) at = (int64_t)d * T;
        first[d] = at;
        make_document(d, seeds[d], inputs + at, targets + at);
        for (int t = 0; t < document_tokens[d]; t++) positions[at + t] = t;
        at += document_tokens[d];
    }
    for (size_t i = 0; i < tokens; i++) counted += targets[i] >= 0;
    step_begin(m, 0.0f, counted);
    batch_upload(m, B, T, inputs, targets, positions);
    pass_over_batch(m, false, true);
    free(inputs);
}

// Returns the rows of tensor `id` that belong to document d, whose first row is `first`.
static Tensor document_rows(const Model *m, TensorId id, int64_t first, int d) {
    return tensor_rows(act(m, id, 0), first, document_tokens[d]);
}

static bool same_rows(Model *m, Tensor a, const void *before) {
    const size_t bytes = (size_t)tensor_elements(a) * format_bytes(a.format);
    void *now = xmalloc(bytes);
    m->ops->download(&m->exec, now, a.data, bytes);
    const bool same = memcmp(now, before, bytes) == 0;
    free(now);
    return same;
}

static void *rows_of(Model *m, Tensor a) {
    const size_t bytes = (size_t)tensor_elements(a) * format_bytes(a.format);
    void *rows = xmalloc(bytes);
    m->ops->download(&m->exec, rows, a.data, bytes);
    return rows;
}

// Tests that documents packed into rows give the same losses and weight gradients as documents in rows of their own.
static void test_documents_alone(DeviceKind device) {
    const uint64_t seeds[DOCUMENTS] = {1, 1, 1, 1, 1};
    int64_t packed_at[DOCUMENTS], alone_at[DOCUMENTS];
    Model packed, alone;
    create(&packed, documents_config(device, 2, DOCUMENT_ROW, false));
    create(&alone, documents_config(device, DOCUMENTS, LONGEST_DOCUMENT, false));
    pass_over_documents(&packed, seeds, packed_at);
    pass_over_documents(&alone, seeds, alone_at);
    double worst = fabs(packed.host.loss_sum / alone.host.loss_sum - 1);
    for (int d = 0; d < DOCUMENTS; d++) {
        double *a = values_of(&packed, document_rows(&packed, LOSSES, packed_at[d], d));
        double *b = values_of(&alone, document_rows(&alone, LOSSES, alone_at[d], d));
        for (int t = 0; t < document_tokens[d]; t++) worst = fmax(worst, fabs(a[t] - b[t]) / (1 + fabs(b[t])));
        free(a);
        free(b);
    }
    const char *tensor;
    const double error = gradients_differ(&packed, &alone, &tensor);
    check(
        worst < 1e-6 && error < 1e-5 && packed.host.loss_sum > 0,
        formatted("documents packed and alone%s: losses differ by %.1e, gradients %.1e", where(device), worst, error));
    model_destroy(&packed);
    model_destroy(&alone);
}

// Tests that changing one document changes no bit of the losses and token gradients of other documents.
static void test_documents_leak(DeviceKind device, bool bf16) {
    static const TensorId looked_at[] = {LOSSES, DRESID};
    enum { LOOKED_AT = sizeof looked_at / sizeof *looked_at };
    Model m;
    create(&m, documents_config(device, 2, DOCUMENT_ROW, bf16));
    bool same = true, changes = true;
    for (int changed = 0; changed < DOCUMENTS; changed++) {
        uint64_t seeds[DOCUMENTS] = {1, 1, 1, 1, 1};
        int64_t first[DOCUMENTS];
        void *before[LOOKED_AT][DOCUMENTS];
        pass_over_documents(&m, seeds, first);
        for (int i = 0; i < LOOKED_AT; i++)
            for (int d = 0; d < DOCUMENTS; d++)
                before[i][d] = rows_of(&m, document_rows(&m, looked_at[i], first[d], d));
        seeds[changed] = 2;
        pass_over_documents(&m, seeds, first);
        for (int i = 0; i < LOOKED_AT; i++)
            for (int d = 0; d < DOCUMENTS; d++) {
                const bool equal = same_rows(&m, document_rows(&m, looked_at[i], first[d], d), before[i][d]);
                if (d != changed) same = same && equal;
                if (d == changed && document_tokens[d] > 1) changes = changes && !equal;
                free(before[i][d]);
            }
    }
    check(same && changes,
          formatted("no document's results depend on another document%s%s", bf16 ? ", in bf16" : "", where(device)));
    model_destroy(&m);
}

static void test_documents(DeviceKind device) {
    test_documents_alone(device);
    test_documents_leak(device, false);
    test_documents_leak(device, true);
}
