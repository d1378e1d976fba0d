// Compares a whole model with PyTorch: loss, gradients and updates in a folder that dev/test/reference.py wrote. Also
// writes logits for dev/test/check_transformers.py. Included by test_gpt2.cu.
#pragma once

#include "coat/io/files.h"
#include "coat/save/checkpoint.h"
#include "coat/save/hf_names.h"
#include "dev/test/texts.h"

static void fail_if(bool bad, const Error *err) {
    if (bad) fatal(err->code, "%s", err->text);
}

// --- reading PyTorch's results --------------------------------------------------------------------------------------

static bool open_dump(SafeFile *file, const char *folder, const char *name) {
    Error err;
    char path[PATH_MAX_LENGTH];
    fail_if(!path_join(path, sizeof path, folder, name, &err), &err);
    if (!path_is_file(path)) return false;
    fail_if(!safetensors_open(file, path, &err), &err);
    return true;
}

// Reads a tensor of `count` values from the file, which must have this data type. Exits with an error if it does not.
static void *read_tensor(const SafeFile *file, const char *name, Dtype dtype, size_t count) {
    Error err;
    const SafeTensor *t = safetensors_find(file, name);
    if (!t) fatal(EXIT_DATA, "%s: no tensor %s", file->path, name);
    if (t->dtype != dtype || t->bytes != count * dtype_bytes(dtype))
        fatal(EXIT_DATA, "%s: %s is not of %zu values in %s", file->path, name, count, dtype_name(dtype));
    void *data = xmalloc((size_t)t->bytes);
    fail_if(!safetensors_read(file, t, 0, data, (size_t)t->bytes, &err), &err);
    return data;
}

// Reads the values or the gradient of a parameter: the tensor named `prefix` + the parameter's Hugging Face name.
static double *read_parameter(const SafeFile *file, const char *prefix, const ModelShape *shape, TensorId id, int layer,
                              size_t count) {
    char hf_name[HF_NAME_LENGTH];
    hf_whole_name(shape, id, layer, hf_name);
    float *values = (float *)read_tensor(file, formatted("%s%s", prefix, hf_name), DTYPE_F32, count);
    double *out = (double *)xmalloc(count * sizeof *out);
    for (size_t i = 0; i < count; i++) out[i] = values[i];
    free(values);
    return out;
}

typedef struct {
    const char *folder;
    SafeFile weights, gradients, updates;
    bool has_updates;
    int B, T, update_count;
    int32_t *tokens, *targets; // token ids and targets of the batch (B, T)
    double *loss;              // PyTorch's mean loss of the batch, one value
    // PyTorch's losses after 0 to update_count updates on one batch; [1]: with weights rounded to BF16 in each pass
    double *losses[2];
    double *adamw; // AdamW settings (6 values): lr, beta1, beta2, eps, weight decay, gradient norm limit
} Reference;

static void reference_open(Reference *r, const char *folder) {
    memset(r, 0, sizeof *r);
    r->folder = folder;
    if (!open_dump(&r->gradients, folder, "reference.safetensors") ||
        !open_dump(&r->weights, folder, "model.safetensors"))
        fatal(EXIT_DATA, "%s: not a folder that dev/test/reference.py wrote", folder);
    const SafeTensor *shape = safetensors_find(&r->gradients, "tokens");
    if (!shape || shape->rank != 2) fatal(EXIT_DATA, "%s: no tokens (B, T)", r->gradients.path);
    r->B = (int)shape->shape[0];
    r->T = (int)shape->shape[1];
    size_t count = (size_t)r->B * (size_t)r->T;
    r->tokens = (int32_t *)read_tensor(&r->gradients, "tokens", DTYPE_I32, count);
    r->targets = (int32_t *)read_tensor(&r->gradients, "targets", DTYPE_I32, count);
    r->loss = (double *)read_tensor(&r->gradients, "loss", DTYPE_F64, 1);
    r->has_updates = open_dump(&r->updates, folder, "updates.safetensors");
    if (!r->has_updates) return;
    const SafeTensor *losses = safetensors_find(&r->updates, "losses");
    if (!losses || losses->rank != 1 || losses->shape[0] < 2)
        fatal(EXIT_DATA, "%s: no losses (updates + 1)", r->updates.path);
    r->update_count = (int)losses->shape[0] - 1;
    const char *names[2] = {"losses", "bf16.losses"};
    for (int i = 0; i < 2; i++)
        r->losses[i] = (double *)read_tensor(&r->updates, names[i], DTYPE_F64, (size_t)r->update_count + 1);
    r->adamw = (double *)read_tensor(&r->updates, "adamw", DTYPE_F64, 6);
}

static void reference_close(Reference *r) {
    if (r->has_updates) safetensors_close(&r->updates);
    safetensors_close(&r->gradients);
    safetensors_close(&r->weights);
    free(r->adamw);
    for (int i = 0; i < 2; i++) free(r->losses[i]);
    free(r->loss);
    free(r->targets);
    free(r->tokens);
}

// --- creation of the model with PyTorch's weights -------------------------------------------------------------------

// Creates a model with the shape and weights of a Hugging Face folder, planned for passes of B x T tokens.
static Config *create_from_folder(Model *m, const char *folder, int B, int T, bool bf16, DeviceKind device) {
    Error err;
    Small s = {1, 1, 16, 16, B, T, bf16, 0};
    const Config small = small_config(s);
    Config *c = lasting_config(&small);
    c->device = device;
    c->logits_chunk = 0;
    fail_if(!model_shape_from_files(folder, &c->shape, &err), &err);
    fail_if(!model_create(m, c, &one_process, &err), &err);
    fail_if(!checkpoint_load_weights(folder, &m->arena, &m->exec, &err), &err);
    return c;
}

// Returns a parameter's values in Hugging Face's layout: without padding rows, and linear weights as (in, out).
static double *hugging_face_layout(Model *m, Tensor t, TensorId id, size_t *count) {
    double *values = values_of(m, t);
    int64_t rows = tensor_used_rows(id, t.rows, &m->config->shape);
    *count = (size_t)(rows * t.cols);
    HfPart parts[HF_MAX_PARTS];
    hf_parts(&m->config->shape, id, 0, parts); // parts has one entry, because GPT-2 stores every tensor whole
    if (!parts->transposed) return values;
    double *turned = (double *)xmalloc(*count * sizeof *turned);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < t.cols; j++) turned[j * rows + i] = values[i * t.cols + j];
    free(values);
    return turned;
}

static void create_for_reference(Model *m, const Reference *r, bool bf16, DeviceKind device) {
    Config *c = create_from_folder(m, r->folder, r->B, r->T, bf16, device);
    if (!r->has_updates) return;
    c->lr = (float)r->adamw[0];
    c->beta1 = (float)r->adamw[1];
    c->beta2 = (float)r->adamw[2];
    c->eps = (float)r->adamw[3];
    c->weight_decay = (float)r->adamw[4];
    c->grad_clip = (float)r->adamw[5];
}

// Runs the reference batch and returns its mean loss. With `backward`, computes gradients. update: number of the next
// update, which sets the learning rate.
static double reference_pass(Model *m, const Reference *r, int update, bool backward) {
    step_begin(m, r->update_count ? m->config->lr * (float)update / (float)r->update_count : m->config->lr,
               (int64_t)r->B * r->T);
    batch_upload(m, r->B, r->T, r->tokens, r->targets, NULL);
    pass_over_batch(m, false, backward);
    return m->host.loss_sum;
}

// --- comparison of loss, gradients and updates with PyTorch ---------------------------------------------------------

typedef struct {
    double loss;     // maximum difference of the first loss from PyTorch's loss
    double gradient; // maximum relative error of a tensor's gradient
    double losses;   // maximum difference of a loss after an update from PyTorch's loss
    double updates;  // maximum relative error of a tensor's total change over all updates
} ReferenceLimits;

// Limits for ten updates on 4 x 128 tokens. Measured errors of two models: 3 layers of 192 channels with 2000 tokens in
// the vocabulary, and GPT-2 124M.
//   FP32: losses differ by 5e-8 and 2e-6. Changes of tensors differ by no more than the rounding of master weights. The
//       limits detect a missing weight decay (error of wte 2.6e-3) and eps = 1e-7 (error 3.2e-3).
//   BF16, compared with PyTorch passes whose weights are rounded to BF16: losses differ by 2e-4 and 8e-3, changes of
//       tensors by 9e-3 and 3.4e-2 (by 0.24 without gradient clipping).
//   BF16 gradients on uniformly random tokens exceed the limit of 1e-2; see dev/NOTES.md.
static const ReferenceLimits reference_limits[2] = {
    {1e-5, 1e-4, 1e-5, 1e-4}, // limits for a model in FP32
    {1e-2, 1e-2, 3e-2, 1e-1}, // limits for a model in BF16
};

// Sets `name` to the device's name: "cpu" or the GPU's name.
static void device_called(Model *m, char *name, size_t size) {
    snprintf(name, size, "cpu");
    if (m->ops->device == DEVICE_CPU) return;
    m->ops->describe(&m->exec, name, size);
    name[strcspn(name, ",")] = '\0'; // cuts the text after the GPU's name, as in "NVIDIA H200, 132 SMs ..."
}

static double gradient_error(Model *m, const Reference *r, int i, TensorId id, int layer) {
    size_t n;
    double *have = hugging_face_layout(m, m->parameters[i].grad, id, &n);
    double *expected = read_parameter(&r->gradients, "", &m->config->shape, id, layer, n);
    double error = relative_error(have, expected, n);
    free(expected);
    free(have);
    return error;
}

// Returns the relative error of a parameter's change by all updates: ||have - expected|| / ||expected - start||.
// Compares master weights if there are any.
//   Subtracts the rounding of master weights, 2^-25 of the value per update: norm weights near 1 change only by 1e-3.
//   Skips the bias of the keys. It shifts all scores of a query equally, so its gradient is 0, and AdamW turns rounding
//       errors into full steps.
static double update_error(Model *m, const Reference *r, int i, TensorId id, int layer) {
    const Parameter *p = &m->parameters[i];
    size_t n;
    double *have = hugging_face_layout(m, p->master.data ? p->master : p->weight.value, id, &n);
    const char *training = m->config->recipe.precision == PRECISION_FP32 ? "" : "bf16.";
    double *expected = read_parameter(&r->updates, training, &m->config->shape, id, layer, n);
    double *start = read_parameter(&r->weights, "", &m->config->shape, id, layer, n);
    double value_sq = 0, way_sq = 0;
    for (size_t j = 0; j < n; j++) {
        bool key = id == QKVB && j / (n / 3) == 1;
        have[j] = key ? 0.0 : have[j] - start[j];
        expected[j] = key ? 0.0 : expected[j] - start[j];
        value_sq += start[j] * start[j];
        way_sq += expected[j] * expected[j];
    }
    double error = relative_error(have, expected, n);
    double rounding = way_sq > 0 ? r->update_count * 0x1p-25 * sqrt(value_sq / way_sq) : 0;
    error = error <= rounding ? 0 : error - rounding;
    free(start);
    free(expected);
    free(have);
    return error;
}

// Checks every kind of tensor and prints the largest error of its layers. error_of() returns the error of one tensor.
static void check_tensors(Model *m, const Reference *r, const char *where, const char *what, double limit,
                          double (*error_of)(Model *, const Reference *, int, TensorId, int)) {
    TensorId *ids = (TensorId *)xmalloc((size_t)m->parameter_count * sizeof *ids);
    int *layers = (int *)xmalloc((size_t)m->parameter_count * sizeof *layers);
    double worst[PARAMETER_COUNT];
    int at[PARAMETER_COUNT];
    for (int id = 0; id < PARAMETER_COUNT; id++) at[id] = -1;
    arena_parameters(&m->arena, m->parameters, ids, layers);
    for (int i = 0; i < m->parameter_count; i++) {
        double error = error_of(m, r, i, ids[i], layers[i]);
        if (at[ids[i]] >= 0 && error <= worst[ids[i]]) continue;
        worst[ids[i]] = error;
        at[ids[i]] = layers[i];
    }
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        if (at[id] < 0) continue;
        char name[400], layer[32] = "";
        if (tensor_row((TensorId)id)->per_layer) snprintf(layer, sizeof layer, " (layer %d)", at[id]);
        snprintf(name, sizeof name, "%s: %s of %s%s against PyTorch: relative error %.1e", where, what,
                 tensor_row((TensorId)id)->name, layer, worst[id]);
        check(worst[id] < limit, name);
    }
    free(layers);
    free(ids);
}

static void compare_on(const Reference *r, DeviceKind device, bool bf16) {
    const ReferenceLimits limit = reference_limits[bf16];
    Model m;
    char called[256];
    create_for_reference(&m, r, bf16, device);
    device_called(&m, called, sizeof called);
    const char *where = formatted("%s %s", called, bf16 ? "bf16" : "fp32");
    double loss = reference_pass(&m, r, 1, true), error = fabs(loss - *r->loss);
    check(error < limit.loss,
          formatted("%s: loss %.7f, PyTorch's %.7f, difference %.1e", where, loss, *r->loss, error));
    check_tensors(&m, r, where, "gradient", limit.gradient, gradient_error);
    for (int i = 1; i <= r->update_count; i++) {
        step_end(&m);
        loss = reference_pass(&m, r, i + 1, i < r->update_count);
        const double expected = r->losses[bf16][i];
        error = fabs(loss - expected);
        check(error < limit.losses && m.host.t == i,
              formatted("%s: loss after %d update%s %.7f, PyTorch's%s %.7f, difference %.1e", where, i,
                        i > 1 ? "s" : "", loss, bf16 ? " with weights in BF16" : "", expected, error));
    }
    if (r->has_updates) check_tensors(&m, r, where, "updates", limit.updates, update_error);
    model_destroy(&m);
}

static void compare_with_reference(const char *folder) {
    Reference r;
    reference_open(&r, folder);
    if (!r.has_updates)
        printf("skip - updates against PyTorch: %s has no updates.safetensors (dev/test/reference.py writes it)\n",
               folder);
    compare_on(&r, DEVICE_CPU, false);
    compare_on(&r, DEVICE_CPU, true);
#if defined(COAT_CUDA) && !defined(COAT_DOUBLE)
    char why[1024];
    if (gpu_present(why, sizeof why)) {
        compare_on(&r, DEVICE_CUDA, false);
        compare_on(&r, DEVICE_CUDA, true);
    } else {
        printf("skip - the GPU against PyTorch: %s\n", why);
    }
#endif
    reference_close(&r);
}

// --- writing logits for check_transformers.py -----------------------------------------------------------------------

// Writes a safetensors file with random tokens (1, T) and this model's logits (1, T, vocab) in FP32.
static void write_logits(const char *folder, const char *out, bool bf16) {
    enum { T = 64 };
    Error err;
    Model m;
    create_from_folder(&m, folder, 1, T, bf16, DEVICE_CPU);
    int vocab = m.config->shape.vocab;
    int32_t tokens[T];
    for (int i = 0; i < T; i++) tokens[i] = (int32_t)(rng_hash(1, 1, (uint64_t)i) % (uint64_t)vocab);
    batch_upload(&m, 1, T, tokens, tokens, NULL);
    model_forward(&m, NO_KV_CACHE);
    Tensor logits = tensor_rows(act(&m, LOGITS, 0), 0, T);
    m.ops->linear_forward(&m.exec, logits, act(&m, NF, 0), weight(&m, head_weight(&m.config->shape), 0), no_tensor());
    double *values = values_of(&m, logits);
    float *row = (float *)xmalloc((size_t)vocab * sizeof *row);
    SafeWriter writer;
    memset(&writer, 0, sizeof writer);
    int64_t logit_shape[3] = {1, T, vocab}, token_shape[2] = {1, T};
    uint64_t hash;
    safewriter_declare(&writer, "logits", DTYPE_F32, 3, logit_shape, 0);
    safewriter_declare(&writer, "tokens", DTYPE_I32, 2, token_shape, 1);
    fail_if(!safewriter_begin(&writer, out, &err), &err);
    for (int t = 0; t < T; t++) {
        for (int j = 0; j < vocab; j++) row[j] = (float)values[t * logits.cols + j];
        fail_if(!safewriter_write(&writer, row, (size_t)vocab * sizeof *row, &err), &err);
    }
    fail_if(!safewriter_write(&writer, tokens, sizeof tokens, &err), &err);
    fail_if(!safewriter_end(&writer, &hash, &err), &err);
    safewriter_close(&writer);
    free(row);
    free(values);
    model_destroy(&m);
}
