// llm.c's weight file (coat/save/llmc_weights.c) and the loading of its weights. Input: the file.
#include "dev/fuzz/fuzz_load.h"

#include "coat/save/llmc_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("weights.bin", data, size);
    LlmcFile file;
    ModelShape shape;
    Error err;
    bool is = llmc_is_weights(path), opens = llmc_open(&file, path, &err);
    fuzz_check(is || !opens);
    if (!opens) {
        fuzz_refused(&err, path);
        if (is) fuzz_check(!model_shape_from_files(path, &shape, &err));
        return 0;
    }
    uint64_t at = LLMC_HEADER_BYTES;
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        if (file.rows[id] == 0) continue; // GPT-2 has no such parameter
        uint64_t layers = tensor_row((TensorId)id)->per_layer ? (uint64_t)file.shape.layers : 1;
        fuzz_check(file.rows[id] >= 1 && file.cols[id] >= 1 && file.offset[id] == at);
        at += layers * (uint64_t)file.rows[id] * (uint64_t)file.cols[id] * dtype_bytes(file.dtype);
    }
    fuzz_check(at == size);
    llmc_close(&file);
    fuzz_check(model_shape_from_files(path, &shape, &err));
    fuzz_check(shape.vocab >= 1 && shape.vocab_padded >= shape.vocab);
    fuzz_load_weights(path, &shape, path);
    return 0;
}
