// Fuzz target for a model folder in Hugging Face's layout (coat/save/hf.c): config.json, the weights in one file or in
// several with an index, and loading them (coat/save/checkpoint_load.c). The input has sections "=== NAME", one per
// file.
#include "coat/save/hf_names.h"
#include "dev/fuzz/fuzz_load.h"

static const char *const names[] = {"config.json",           "model.safetensors", "model.safetensors.index.json",
                                    "a.safetensors",         "b.safetensors",     "manifest.json",
                                    "generation_config.json"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) fuzz_section_file(data, size, names[i]);
    const char *folder = fuzz_folder();
    ModelShape shape;
    HfWeights weights;
    Error err;
    bool has_shape = model_shape_from_files(folder, &shape, &err);
    if (!has_shape) fuzz_refused(&err, folder);
    if (hf_weights_open(&weights, folder, &err)) {
        for (int i = 0; i < weights.count; i++) { // Every weight file that was opened must be inside the model folder.
            const char *path = weights.files[i].path;
            size_t length = strlen(folder);
            fuzz_check(strncmp(path, folder, length) == 0 && path[length] == '/' && !strchr(path + length + 1, '/'));
            for (int k = 0; k < weights.files[i].count; k++) {
                const SafeFile *file;
                const SafeTensor *tensor;
                const char *name = weights.files[i].tensors[k].name + strlen(weights.prefix);
                fuzz_check(strlen(name) >= HF_NAME_LENGTH || hf_weights_find(&weights, name, &file, &tensor));
            }
        }
        hf_weights_close(&weights);
    } else {
        fuzz_refused(&err, folder);
    }
    if (has_shape) fuzz_load_weights(folder, &shape, folder);
    return 0;
}
