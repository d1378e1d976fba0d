// Maps parameters to tensor names in Hugging Face's files, for each architecture. A file may store one parameter as
// several tensors: q, k and v, or gate and up.
#pragma once
#include "model/tensors.h"

C_LINKAGE_BEGIN

enum { HF_MAX_PARTS = 3, HF_NAME_LENGTH = 128 };

// A tensor in a file that stores rows [first_row, first_row + rows) of a parameter, without the vocabulary's padding.
// If the parameter has one row, it stores columns [first_col, first_col + cols).
typedef struct {
    char name[HF_NAME_LENGTH];
    bool transposed; // the file stores (columns, rows)
    int64_t first_row, rows, first_col, cols;
} HfPart;

// Fills parts[] with the tensors that store a parameter of a layer, and returns their number. layer is ignored if the
// parameter is not per layer.
int hf_parts(const ModelShape *shape, TensorId id, int layer, HfPart parts[HF_MAX_PARTS]);

// Writes the name of a parameter, under which a checkpoint stores its moments and master weights.
void hf_whole_name(const ModelShape *shape, TensorId id, int layer, char name[HF_NAME_LENGTH]);

C_LINKAGE_END
