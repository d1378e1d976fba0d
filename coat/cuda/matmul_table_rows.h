// The committed table of product algorithms: what `bench_matmul --autotune` printed. A row: cuBLAS version; m n k;
// formats of A, B, D and the bias; A, B transposed; fast accumulation; the algorithm; the GPU.
#pragma once

static const char matmul_table_rows[] = R"()";
