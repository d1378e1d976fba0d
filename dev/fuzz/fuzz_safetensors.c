// Fuzz target for the safetensors reader (coat/io/safetensors.c). The input is the file. The target opens the file,
// then parses its bytes after the first 8 as a header, with these 8 bytes as the length of the tensor data. So the
// length can be larger than any file.
#include "dev/fuzz/fuzz.h"

#include "coat/io/safetensors.h"

#define MAX_READ 4096

static void check_tensors(const SafeFile *file) {
    uint64_t at = 0;
    for (int i = 0; i < file->count; i++) {
        const SafeTensor *t = &file->tensors[i];
        uint64_t bytes = dtype_bytes(t->dtype);
        fuzz_check(bytes > 0 && t->rank >= 0 && t->rank <= SAFETENSORS_MAX_RANK && t->begin == at);
        for (int k = 0; k < t->rank; k++) bytes *= (uint64_t)t->shape[k];
        fuzz_check(bytes == t->bytes);
        fuzz_check(safetensors_find(file, t->name) == t);
        at += bytes;
    }
    fuzz_check(at == file->data_bytes);
    fuzz_check(!safetensors_find(file, "__metadata__"));
}

static void read_tensors(const SafeFile *file) {
    Error err;
    char bytes[MAX_READ];
    for (int i = 0; i < file->count; i++) {
        const SafeTensor *t = &file->tensors[i];
        size_t piece = t->bytes < sizeof bytes ? (size_t)t->bytes : sizeof bytes;
        fuzz_check(safetensors_read(file, t, 0, bytes, piece, &err));
        fuzz_check(safetensors_read(file, t, t->bytes - piece, bytes, piece, &err));
        fuzz_check(!safetensors_read(file, t, t->bytes - piece + 1, bytes, piece, &err));
        fuzz_check(!safetensors_read(file, t, UINT64_MAX, bytes, 1, &err));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    SafeFile file;
    Error err;
    const char *path = fuzz_file("x.safetensors", data, size);
    if (safetensors_open(&file, path, &err)) {
        check_tensors(&file);
        read_tensors(&file);
        fuzz_check(truncate(path, (off_t)(size / 2)) == 0); // Truncates the file after its header has been read.
        for (int i = 0; i < file.count; i++) {
            char byte;
            if (file.tensors[i].bytes && !safetensors_read(&file, &file.tensors[i], 0, &byte, 1, &err))
                fuzz_refused(&err, path);
        }
        safetensors_close(&file);
    } else {
        fuzz_refused(&err, path);
    }
    if (size < 8) return 0;
    uint64_t data_bytes; // length of the tensor data, taken from the input's first 8 bytes
    memcpy(&data_bytes, data, sizeof data_bytes);
    if (safetensors_parse(&file, "header", (const char *)data + 8, size - 8, data_bytes, &err)) {
        check_tensors(&file);
        safetensors_close(&file);
    } else {
        fuzz_refused(&err, "header");
    }
    return 0;
}
