// TMA tensor maps for the operands of attention on Hopper.
#pragma once
#include "attention_fragments.h"

typedef CUresult (*EncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Returns the driver's cuTensorMapEncodeTiled, looked up at run time so that the program starts without a driver; NULL
// if the driver lacks this function.
static EncodeTiled encode_tiled() {
    static EncodeTiled found = NULL;
    if (found) return found;
    void *address = NULL;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &result),
               "looking up the driver's cuTensorMapEncodeTiled");
#else
    CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &address, cudaEnableDefault, &result),
               "looking up the driver's cuTensorMapEncodeTiled");
#endif
    found = (EncodeTiled)address;
    return found;
}

// Creates a TMA map of the tensor `view`. A copy with this map reads a box of `rows` rows and one panel of columns.
// Rows from T on are read as zeros. Returns false on failure.
template <int HEAD> static bool tile_map(CUtensorMap *map, Tensor view, AttentionShape shape, int heads, int rows) {
    EncodeTiled encode = encode_tiled();
    cuuint64_t row = (cuuint64_t)view.stride * sizeof(bf16);
    cuuint64_t size[] = {(cuuint64_t)heads * HEAD, (cuuint64_t)shape.T, (cuuint64_t)shape.B};
    cuuint64_t stride[] = {row, row * (cuuint64_t)shape.T};
    cuuint32_t box[] = {PANEL, (cuuint32_t)rows, 1}, step[] = {1, 1, 1};
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, view.data, size, stride, box, step,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// True if the Hopper kernels can access the view by TMA and 16-byte stores: BF16, not transposed, rows 16-byte aligned.
static bool view_fits(Tensor view) {
    return view.format == FMT_BF16 && !view.transposed && view.stride % 8 == 0 && (uintptr_t)view.data % 16 == 0;
}
