// Fuzz target for llm.c's weight files: parses the header and loads the weights (coat/save/llmc_weights.c). The input
// is the file.
#include "dev/fuzz/fuzz_load.h"

#include "coat/save/llmc_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("weights.bin", data, size);
    SafeFile file;
    ModelShape shape;
    Error err;
    bool is = llmc_is_weights(path), opens = llmc_open(&file, &shape, path, &err);
    fuzz_check(is || !opens);
    if (!opens) {
        fuzz_refused(&err, path);
        if (is) fuzz_check(!model_shape_from_files(path, &shape, &err));
        return 0;
    }
    uint64_t at = LLMC_HEADER_BYTES;
    for (int i = 0; i < file.count; i++) at += file.tensors[i].bytes;
    fuzz_check(at == size);
    safetensors_close(&file);
    fuzz_check(model_shape_from_files(path, &shape, &err));
    fuzz_check(shape.vocab >= 1 && shape.vocab_padded >= shape.vocab);
    fuzz_load_weights(path, &shape, path);
    return 0;
}
