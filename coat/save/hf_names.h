// Maps parameters to tensor names in Hugging Face's files, for each architecture. A file may store one parameter as
// several tensors: q, k and v, or gate and up.
#pragma once
#include "model/tensors.h"

C_LINKAGE_BEGIN

enum { HF_MAX_PARTS = MAX_PIECES, HF_MAX_RANK = 4, HF_NAME_LENGTH = 128 };

// A tensor in a file, which stores rows [first_row, first_row + rows) of a parameter. Files do not contain the rows
// that pad the vocabulary. If the parameter has one row, the tensor stores the columns [first_col, first_col + cols) of
// this row. rank: number of dimensions in the file. dims: shape in the file if rank > 2.
typedef struct {
    char name[HF_NAME_LENGTH];
    bool transposed; // the file stores (columns, rows)
    int64_t first_row, rows, first_col, cols;
    int rank;
    int64_t dims[HF_MAX_RANK];
} HfPart;

// Fills parts[] with the tensors that store a parameter of a layer, and returns their number. `layer` is ignored if the
// parameter belongs to no layer.
int hf_parts(const ModelShape *shape, TensorId id, int layer, HfPart parts[HF_MAX_PARTS]);

// Writes the name of a complete parameter. Checkpoints store the parameter's moments and master weights under this name
// with the suffixes of role_suffix().
void hf_whole_name(const ModelShape *shape, TensorId id, int layer, char name[HF_NAME_LENGTH]);

// Lists the tensors in a vision tower's files that this program does not use, because the projector reads an earlier
// layer. They are the last blocks, the final norm and SigLIP's pooling head. Checkpoints store copies of these tensors,
// because other programs require them. `tower` is the tower's shape. Returns the number of tensors; *parts is
// malloc'ed.
int hf_carried_parts(const ModelShape *tower, HfPart **parts);

// Model files of other programs name the same tensors differently. Returns the name that the tensor `name` of
// hf_parts() has in layout number `layout` (0 <= layout < HF_LAYOUTS), written to `other`; NULL if the layout does not
// rename it.
enum { HF_LAYOUTS = 10 };
const char *hf_other_name(const char *name, int layout, char other[HF_NAME_LENGTH]);

C_LINKAGE_END
