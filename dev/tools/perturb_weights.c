// Moves a checkpoint's weights along a random direction, to measure the loss around a minimum (scripts/lab.py
// stability).
// Usage: perturb_weights CHECKPOINT OUT SEED ALPHA
// Writes a folder OUT for the trainer's --model, with the weights w + ALPHA d. The direction d is normally distributed,
// and each of its filters has the norm of the weights' filter (Li et al., "Visualizing the Loss Landscape of Neural
// Nets", 2018). A filter consists of the weights of one output of a linear layer, or of one row of an embedding. Norms
// and biases do not move. The noise depends only on seed, tensor and element. Therefore checkpoints of one shape move
// along the same directions, each scaled to its own weights.
// The program reads the weights from the model file, not the FP32 master weights. It computes w + ALPHA d in double,
// and rounds to FP32, then to the file's format. Rounding to BF16 adds a random relative error of 1/600 (RMS) to an
// element. With ALPHA 0.1, this raises the increase of the loss by 3 parts in 10000. With ALPHA 0, the tensors do not
// change.
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "coat/io/files.h"
#include "coat/io/safetensors.h"
#include "coat/model/tensor_table.h"
#include "coat/numerics/rng.h"
#include "coat/save/hf.h"
#include "coat/save/hf_names.h"

static const char usage[] = "usage: perturb_weights CHECKPOINT OUT SEED ALPHA\n"
                            "\n"
                            "Writes a folder OUT for the trainer's --model with the weights w + ALPHA d of\n"
                            "CHECKPOINT. SEED chooses the random direction d; each of its filters has the\n"
                            "norm of the weights' filter.\n";

enum { CONFIG_LIMIT = 1 << 20, PATH_ROOM = 4096 };
// Number of random streams per layer: the number of GPT-2's parameter tensors (WTE to LNFB). Another number would
// change the random directions.
enum { STREAMS_PER_LAYER = 16 };

// Finds the parameter, its layer, and the part of the parameter that the model file's tensor `name` stores. Returns
// false if the tensor is not a parameter.
static bool find_parameter(const ModelShape *shape, const char *name, TensorId *id, int *layer, HfPart *part) {
    for (int i = 0; i < PARAMETER_COUNT; i++) {
        if (!model_has_tensor(&tensor_table[i], shape)) continue;
        for (*layer = 0; *layer < (tensor_row((TensorId)i)->per_layer ? shape->layers : 1); ++*layer) {
            HfPart parts[HF_MAX_PARTS];
            int count = hf_parts(shape, (TensorId)i, *layer, parts);
            for (int k = 0; k < count; k++) {
                *id = (TensorId)i;
                *part = parts[k];
                if (strcmp(name, part->name) == 0) return true;
            }
        }
    }
    return false;
}

// Adds alpha d to the weights w of `count` filters. In memory, elements of a filter are `stride` apart, and filters are
// `step` apart.
static void move(float *w, int64_t count, int64_t length, int64_t step, int64_t stride, uint64_t seed, uint64_t stream,
                 double alpha) {
#pragma omp parallel for schedule(static)
    for (int64_t f = 0; f < count; f++) {
        double of_w = 0, of_d = 0;
        for (int64_t i = 0; i < length; i++) {
            int64_t at = f * step + i * stride;
            double d = rng_normal(seed, stream, (uint64_t)at);
            of_w += (double)w[at] * w[at];
            of_d += d * d;
        }
        double scale = of_d > 0 ? alpha * sqrt(of_w / of_d) : 0;
        for (int64_t i = 0; i < length; i++) {
            int64_t at = f * step + i * stride;
            w[at] = (float)(w[at] + scale * rng_normal(seed, stream, (uint64_t)at));
        }
    }
}

// Reads one tensor from the input file, perturbs it, and writes it to the output file.
static bool move_tensor(const ModelShape *shape, const SafeFile *from, const SafeTensor *tensor, SafeWriter *to,
                        uint64_t seed, double alpha, Error *err) {
    TensorId id;
    int layer;
    HfPart part;
    if (!find_parameter(shape, tensor->name, &id, &layer, &part) ||
        (tensor->dtype != DTYPE_BF16 && tensor->dtype != DTYPE_F32))
        return error_set(err, EXIT_DATA, "%s: '%s' is not a weight of this program's checkpoints", from->path,
                         tensor->name);
    size_t elements = (size_t)(tensor->bytes / dtype_bytes(tensor->dtype));
    bool half = tensor->dtype == DTYPE_BF16;
    void *raw = xmalloc((size_t)tensor->bytes);
    float *w = (float *)xmalloc(elements * sizeof *w);
    uint16_t *halves = (uint16_t *)raw;
    bool good = safetensors_read(from, tensor, 0, raw, (size_t)tensor->bytes, err);
    if (good && tensor->rank == 2 && alpha != 0) {
        for (size_t i = 0; i < elements; i++) w[i] = half ? bf16_decode(halves[i]) : ((float *)raw)[i];
        int64_t rows = tensor->shape[0], cols = tensor->shape[1];
        uint64_t stream = (uint64_t)layer * STREAMS_PER_LAYER + (uint64_t)id + ((uint64_t)part.first_row << 32);
        if (part.transposed) // The tensor is (in, out), so a filter is one column.
            move(w, cols, rows, 1, cols, seed, stream, alpha);
        else
            move(w, rows, cols, cols, 1, seed, stream, alpha);
        for (size_t i = 0; i < elements; i++) {
            if (half)
                halves[i] = bf16_encode(w[i]);
            else
                ((float *)raw)[i] = w[i];
        }
    }
    good = good && safewriter_write(to, raw, (size_t)tensor->bytes, err);
    free(w);
    free(raw);
    return good;
}

static bool move_weights(const ModelShape *shape, const char *path, const char *out, uint64_t seed, double alpha,
                         Error *err) {
    SafeFile from;
    SafeWriter to;
    uint64_t hash;
    if (!safetensors_open(&from, path, err)) return false;
    memset(&to, 0, sizeof to);
    for (int i = 0; i < from.count; i++) {
        const SafeTensor *tensor = &from.tensors[i];
        safewriter_declare(&to, tensor->name, tensor->dtype, tensor->rank, tensor->shape, i);
    }
    unlink(out); // Removes the output of an earlier run.
    bool good = safewriter_begin(&to, out, err);
    for (int i = 0; good && i < to.count; i++)
        good = move_tensor(shape, &from, &from.tensors[to.tensors[i].tag], &to, seed, alpha, err);
    good = good && safewriter_end(&to, &hash, err);
    safewriter_close(&to);
    safetensors_close(&from);
    return good;
}

static bool copy_config(const char *checkpoint, const char *out, Error *err) {
    char from[PATH_ROOM], to[PATH_ROOM], *text;
    size_t size;
    if (!path_join(from, sizeof from, checkpoint, HF_CONFIG_NAME, err) ||
        !path_join(to, sizeof to, out, HF_CONFIG_NAME, err) || !file_read_all(from, CONFIG_LIMIT, &text, &size, err))
        return false;
    bool good = file_replace(to, text, size, err);
    free(text);
    return good;
}

static bool run(int argc, char **argv, Error *err) {
    char from[PATH_ROOM], to[PATH_ROOM], *seed_end = NULL, *alpha_end = NULL;
    if (argc != 5) return error_set(err, EXIT_USER, USAGE_LINE(usage));
    uint64_t seed = strtoull(argv[3], &seed_end, 10);
    double alpha = strtod(argv[4], &alpha_end);
    if (seed_end == argv[3] || *seed_end) return error_set(err, EXIT_USER, "SEED: must be a number (is %s)", argv[3]);
    if (alpha_end == argv[4] || *alpha_end || !isfinite(alpha))
        return error_set(err, EXIT_USER, "ALPHA: must be a number (is %s)", argv[4]);
    ModelShape shape;
    if (!path_join(from, sizeof from, argv[1], HF_MODEL_NAME, err) || !model_shape_from_files(argv[1], &shape, err))
        return false;
    if (shape.vision.kind != VISION_NONE)
        return error_set(err, EXIT_USER, "%s: models with a vision tower are not supported; use a language model",
                         argv[1]);
    return folder_make(argv[2], err) && path_join(to, sizeof to, argv[2], HF_MODEL_NAME, err) &&
           copy_config(argv[1], argv[2], err) && move_weights(&shape, from, to, seed, alpha, err);
}

int main(int argc, char **argv) {
    return usage_main(argc, argv, usage, run);
}
