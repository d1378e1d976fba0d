// C_LINKAGE_BEGIN and C_LINKAGE_END give C linkage to the declarations between them. Headers that CUDA code includes
// need these macros, because nvcc compiles headers as C++.
#pragma once

#ifdef __cplusplus
#define C_LINKAGE_BEGIN extern "C" {
#define C_LINKAGE_END }
#else
#define C_LINKAGE_BEGIN
#define C_LINKAGE_END
#endif
