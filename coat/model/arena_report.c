// Prints the memory plan for --plan and the start-up report, as text or as JSON.
#include "arena.h"
#include "base/memory.h"

#include <inttypes.h>

// Returns the bytes of a tensor in all layers, including scales and amaxes.
static size_t total_bytes(const TensorLayout *t) {
    size_t layers = (size_t)(t->per_layer ? t->layers : 1);
    size_t scale_layers = (size_t)(t->per_layer_scale || t->per_layer ? t->layers : 1);
    // a PLAIN activation stores the amaxes of each layer, any other activation those of one layer
    size_t amax_layers = (size_t)(t->amax_stride ? t->layers : 1);
    return t->data_bytes * layers + t->scale_bytes * scale_layers + t->exponent_bytes * layers +
           t->amax_bytes * amax_layers;
}

static void print_fraction(FILE *out, const char *name, size_t bytes, size_t total) {
    char text[MEMORY_TEXT];
    fprintf(out, "  %-16s %12s %6.1f %%\n", name, memory_text(text, bytes), 100.0 * (double)bytes / (double)total);
}

void arena_report(const Arena *arena, bool saved_tensors, FILE *out) {
    char text[MEMORY_TEXT];
    fprintf(out, "memory per process (1 GB = 10^9 bytes)\n");
    for (int c = 0; c < CATEGORY_COUNT; c++) {
        if (!arena->category_bytes[c]) continue;
        if (arena_on_host(arena, (Category)c)) continue;
        print_fraction(out, category_name((Category)c), arena->category_bytes[c], arena->total_bytes);
        if (c != CATEGORY_SAVED || !saved_tensors) continue;
        for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++) {
            const TensorLayout *t = &arena->layout[id][VALUE];
            if (layout_owns_memory(t) && t->category == CATEGORY_SAVED)
                fprintf(out, "    %-14s %12s  %s%s\n", tensor_row((TensorId)id)->name,
                        memory_text(text, total_bytes(t)), format_name(t->format),
                        t->granularity == SCALE_GROUP ? " per group"
                        : t->granularity == SCALE_ROW ? " per token"
                                                      : "");
        }
    }
    print_fraction(out, "total", arena->total_bytes, arena->total_bytes);
    for (int c = 0; c < CATEGORY_COUNT; c++)
        if (arena_on_host(arena, (Category)c) && arena->category_bytes[c] > 0)
            fprintf(out, "  %-16s %12s  in host memory\n", category_name((Category)c),
                    memory_text(text, arena->category_bytes[c]));
}

void arena_report_json(const Arena *arena, int largest_micro_batch, FILE *out) {
    fprintf(out, "{\"parameters\": %" PRId64 ", \"total_bytes\": %zu, ", model_parameters(&arena->config->shape),
            arena->total_bytes);
    if (arena->host_bytes) fprintf(out, "\"host_bytes\": %zu, ", arena->host_bytes);
    fprintf(out, "\"categories\": {");
    for (int c = 0; c < CATEGORY_COUNT; c++)
        fprintf(out, "%s\"%s\": %zu", c ? ", " : "", category_name((Category)c),
                arena_on_host(arena, (Category)c) ? 0 : arena->category_bytes[c]);
    fprintf(out, "}, \"tensors\": [");
    bool first = true;
    for (int id = 0; id < TENSOR_COUNT; id++) {
        for (int role = 0; role < ROLE_COUNT; role++) {
            const TensorLayout *t = &arena->layout[id][role];
            if (!layout_owns_memory(t)) continue;
            fprintf(out, "%s{\"name\": \"%s%s\", \"format\": \"%s\", \"category\": \"%s\", \"bytes\": %zu}",
                    first ? "" : ", ", tensor_row((TensorId)id)->name, role_suffix((Role)role), format_name(t->format),
                    category_name(t->category), total_bytes(t));
            first = false;
        }
    }
    fprintf(out, ", {\"name\": \"%s\", \"format\": \"u8\", \"category\": \"workspace\", \"bytes\": %zu}",
            arena->workspace.name, arena->workspace.bytes);
    fprintf(out, "]");
    if (largest_micro_batch > 0) fprintf(out, ", \"largest_micro_batch\": %d", largest_micro_batch);
    fprintf(out, "}\n");
}
