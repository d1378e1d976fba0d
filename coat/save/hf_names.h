// The names of a model's tensors in Hugging Face's files, a map per architecture. A file may hold a parameter in
// several tensors: q, k and v, or gate and up.
#pragma once
#include "model/tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { HF_MAX_PARTS = 3, HF_NAME_LENGTH = 128 };

// A tensor of a file: rows [first_row, first_row + rows) of a parameter, without the vocabulary's padding, or of one
// that has a single row columns [first_col, first_col + cols).
typedef struct {
    char name[HF_NAME_LENGTH];
    bool transposed; // the file holds (columns, rows)
    int64_t first_row, rows, first_col, cols;
} HfPart;

// The tensors that hold a parameter of a layer (0 where it is not per layer), and how many they are.
int hf_parts(const ModelShape *shape, TensorId id, int layer, HfPart parts[HF_MAX_PARTS]);

// The name of the whole parameter, under which a checkpoint keeps its moments and master: that of
// its tensor where there is one.
void hf_whole_name(const ModelShape *shape, TensorId id, int layer, char name[HF_NAME_LENGTH]);

#ifdef __cplusplus
}
#endif
