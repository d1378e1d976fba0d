// Computes matmuls C = A B on the CPU. C is divided into tiles that threads compute independently. Panels of A and B
// are decoded to FP32 while they are packed, so BF16 and FP8 operands need no FP32 copy.
//
// Results do not depend on the number of threads:
//   panel kernels   The number of threads affects the tile size, but no element of C is summed in another order.
//   OpenBLAS        The tile size affects the order of sums, so the tile size does not depend on the number of threads.
#include "cpu_internal.h"

#define BLAS_TILE_THREADS 16 // with OpenBLAS, tiles are sized for this number of threads

// Functions that pack a matmul operand into panels. width: rows (operand A) or columns (operand B) of a panel.
typedef struct {
    void (*transpose)(real *out, const real *x, int64_t ld, int64_t rows, int64_t depth);
    void (*deal)(real *out, const real *x, int64_t count, int64_t depth);
    int width;
} Packing;

// Packs rows [first, first + count) of operand A, or columns of operand B, for the summation indices [k, k + depth).
static void pack(const Cpu *cpu, Packing packing, Operand f, int64_t first, int64_t count, int64_t k, int64_t depth,
                 real *out, real *buffer) {
    int64_t width = packing.width;
    if (f.k_is_column) {
        for (int64_t i = 0; i < count; i += width) {
            int64_t rows = smaller(width, count - i), ld;
            const real *x = block_load(cpu, f.tensor, first + i, rows, k, depth, buffer, &ld);
            packing.transpose(out + i / width * panel_stride(width, depth), x, ld, rows, depth);
        }
    } else {
        for (int64_t i = 0; i < depth; i++)
            packing.deal(out + i * width, row_load(cpu, f.tensor, k + i, first, count, buffer), count, depth);
    }
}

// Buffers of a thread for one tile of C: packed A, packed B, the tile, and one panel before packing.
typedef struct {
    real *a, *b, *tile, *row;
} TileBuffers;

static TileBuffers tile_buffers(Scratch slot) {
    TileBuffers t;
    t.a = scratch_take(&slot, CPU_PACKED(CPU_TILE_M));
    t.b = scratch_take(&slot, CPU_PACKED(CPU_TILE_N));
    t.tile = scratch_take(&slot, CPU_TILE_M * CPU_TILE_N);
    t.row = scratch_take(&slot, CPU_PANEL_WIDTH * CPU_TILE_K);
    return t;
}

// Computes c (rows, cols) = (add ? c : 0) + the block at (i, j) of the matmul's unscaled sum, without the bias.
static void sum_block(const Cpu *cpu, TileBuffers t, const Matmul *p, int64_t i, int64_t rows, int64_t j, int64_t cols,
                      real *c, int64_t ldc, bool add) {
    const PanelKernels *panels = cpu->kernels->panels;
    const Packing pack_a = {panels->transpose_a, panels->deal_a, panels->rows};
    const Packing pack_b = {panels->transpose_b, panels->deal_b, panels->columns};
    for (int64_t k = 0; k < p->k; k += CPU_TILE_K) {
        int64_t depth = smaller(CPU_TILE_K, p->k - k), lda, ldb;
        if (cpu->blas) {
            const real *a = p->a.k_is_column ? block_load(cpu, p->a.tensor, i, rows, k, depth, t.a, &lda)
                                             : block_load(cpu, p->a.tensor, k, depth, i, rows, t.a, &lda);
            const real *b = p->b.k_is_column ? block_load(cpu, p->b.tensor, j, cols, k, depth, t.b, &ldb)
                                             : block_load(cpu, p->b.tensor, k, depth, j, cols, t.b, &ldb);
            blas_matmul(!p->a.k_is_column, p->b.k_is_column, rows, cols, depth, a, lda, b, ldb, add || k > 0, c, ldc);
        } else {
            pack(cpu, pack_a, p->a, i, rows, k, depth, t.a, t.row);
            pack(cpu, pack_b, p->b, j, cols, k, depth, t.b, t.row);
            panels->multiply(c, ldc, t.a, t.b, rows, cols, depth, add || k > 0);
        }
    }
}

// Computes the tile of C at (i, j) and stores it with scale, bias and accumulation.
static void matmul_tile(const Cpu *cpu, Scratch slot, const Matmul *p, int64_t i, int64_t j) {
    const PanelKernels *panels = cpu->kernels->panels;
    TileBuffers t = tile_buffers(slot);
    int64_t rows = smaller(p->tile_m, p->m - i), cols = smaller(p->tile_n, p->n - j);
    // Sums directly in C's memory if C is FP32 and multiply() writes nothing outside the tile. With `accumulate`, this
    // requires a single step over k, because otherwise C would be added first instead of last and round differently.
    bool whole = rows % (panels->rows / 3) == 0 && cols % panels->columns == 0;
    if (p->c.format == FMT_FP32 && whole && !p->bias && !p->addend.data && p->scale == 1 &&
        (!p->accumulate || p->k <= CPU_TILE_K)) {
        sum_block(cpu, t, p, i, rows, j, cols, (real *)row_address(p->c, i) + j, p->c.stride, p->accumulate);
        return;
    }
    sum_block(cpu, t, p, i, rows, j, cols, t.tile, CPU_TILE_N, false);
    for (int64_t row = 0; row < rows; row++) {
        real *sum = t.tile + row * CPU_TILE_N;
        for (int64_t col = 0; p->scale != 1 && col < cols; col++) sum[col] *= p->scale;
        if (p->bias) cpu->kernels->add(sum, p->bias + j, cols);
        if (p->accumulate) cpu->kernels->add(sum, row_load(cpu, p->c, i + row, j, cols, t.row), cols);
        const real *added = p->addend.data ? row_load(cpu, p->addend, i + row, j, cols, t.row) : NULL;
        for (int64_t col = 0; added && col < cols; col++) sum[col] += p->beta * added[col];
        row_store(cpu, p->c, i + row, j, cols, sum);
    }
}

// Divides n into the fewest nearly equal parts whose length is at most `limit`, and returns the length. The length is a
// multiple of `unit`, which must divide `limit`; the last part may be shorter.
static int64_t part_length(int64_t n, int64_t limit, int64_t unit) {
    int64_t parts = (n + limit - 1) / limit, length = (n + parts - 1) / parts;
    return (length + unit - 1) / unit * unit;
}

static int64_t tile_count(const Matmul *p) {
    return (p->m + p->tile_m - 1) / p->tile_m * ((p->n + p->tile_n - 1) / p->tile_n);
}

// Chooses the largest tiles that fit in the cache and yield at least 4 tiles per thread, or the smallest allowed tiles
// if C is small. Prefers square tiles, because the work of packing a tile's operands grows with the tile's sides.
static void choose_tiles(const Cpu *cpu, Matmul *p, int threads) {
    const int64_t unit_m = cpu->kernels->panels->rows, unit_n = cpu->kernels->panels->columns;
    p->tile_m = part_length(p->m, CPU_TILE_M, unit_m);
    p->tile_n = part_length(p->n, CPU_TILE_N, unit_n);
    while (threads > 1 && tile_count(p) < 4 * threads) {
        if (p->tile_n > p->tile_m && p->tile_n > 2 * unit_n)
            p->tile_n = part_length(p->n, p->tile_n - unit_n, unit_n);
        else if (p->tile_m > 4 * unit_m)
            p->tile_m = part_length(p->m, p->tile_m - unit_m, unit_m);
        else
            return;
    }
}

static void matmul_tile_number(const Cpu *cpu, Scratch slot, const Matmul *p, int64_t number) {
    int64_t columns = (p->n + p->tile_n - 1) / p->tile_n;
    matmul_tile(cpu, slot, p, number / columns * p->tile_m, number % columns * p->tile_n);
}

// Returns t's scale if t has one scale per tensor, otherwise 1. After this call, row_load() reads t's FP8 values
// without that scale.
static real take_scale(Tensor *t) {
    if (t->granularity != SCALE_TENSOR) return 1;
    t->granularity = SCALE_NONE;
    return (real)(*(const float *)t->scale);
}

static void set_scale(Matmul *p) {
    p->scale = take_scale(&p->a.tensor) * take_scale(&p->b.tensor);
    if (p->alpha != 0) p->scale *= p->alpha;
}

void matmul_on_thread(const Cpu *cpu, Scratch slot, Matmul p) {
    set_scale(&p);
    choose_tiles(cpu, &p, 1);
    for (int64_t tile = 0; tile < tile_count(&p); tile++) matmul_tile_number(cpu, slot, &p, tile);
}

void matmul_on_all(const Cpu *cpu, Scratch scratch, Matmul p) {
    set_scale(&p);
    choose_tiles(cpu, &p, cpu->blas ? BLAS_TILE_THREADS : cpu->threads);
    int64_t tiles = tile_count(&p);
    int threads = scratch_slots(&scratch, cpu, cpu_matmul_slot());
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t tile = 0; tile < tiles; tile++) matmul_tile_number(cpu, scratch_slot(&scratch), &p, tile);
}
