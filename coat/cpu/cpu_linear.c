// The matrix products of the linear layers. C is cut into tiles that threads work on independently; the panels of
// A and B that a tile needs are decoded to FP32 while they are packed, so that BF16 operands cost no memory and
// stay in the cache. Every element of C is summed in steps of CPU_TILE_K in the same order whatever tile it is
// in, so the cut may follow the number of threads while the result does not.
#include "cpu_internal.h"

// One factor of a product, packed into panels along the summation index k.
typedef struct {
    Tensor tensor;
    bool k_inside; // element (i, k) is in row i, column k of the tensor; else in row k, column i
} Factor;

// c (m, n) = sum over k of a (m, k) b (n, k), plus c where accumulate, plus bias.
typedef struct {
    Factor a, b;
    Tensor c;
    const real *bias; // (n), or NULL
    int64_t m, n, k, tile_m, tile_n;
    bool accumulate;
} Product;

typedef struct {
    void (*transpose)(real *out, const real *x, int64_t ld, int64_t rows, int64_t depth);
    void (*deal)(real *out, const real *x, int64_t count, int64_t depth);
    int width;
} Packing;

// Packs elements [first, first + count) x [k, k + depth).
static void pack(const Cpu *cpu, Packing packing, Factor f, int64_t first, int64_t count, int64_t k, int64_t depth,
                 real *out, real *buffer) {
    int64_t width = packing.width;
    if (f.k_inside) {
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

static void product_tile(const Cpu *cpu, Scratch slot, const Product *p, int64_t i, int64_t j) {
    const PanelKernels *panels = cpu->kernels->panels;
    const Packing pack_a = {panels->transpose_a, panels->deal_a, panels->rows};
    const Packing pack_b = {panels->transpose_b, panels->deal_b, panels->columns};
    int64_t rows = smaller(p->tile_m, p->m - i), cols = smaller(p->tile_n, p->n - j);
    real *a = scratch_take(&slot, CPU_PACKED(CPU_TILE_M)), *b = scratch_take(&slot, CPU_PACKED(CPU_TILE_N));
    real *tile = scratch_take(&slot, CPU_TILE_M * CPU_TILE_N);
    real *buffer = scratch_take(&slot, CPU_PANEL_WIDTH * CPU_TILE_K);
    for (int64_t k = 0; k < p->k; k += CPU_TILE_K) {
        int64_t depth = smaller(CPU_TILE_K, p->k - k);
        pack(cpu, pack_a, p->a, i, rows, k, depth, a, buffer);
        pack(cpu, pack_b, p->b, j, cols, k, depth, b, buffer);
        panels->multiply(tile, CPU_TILE_N, a, b, rows, cols, depth, k > 0);
    }
    for (int64_t row = 0; row < rows; row++) {
        real *sum = tile + row * CPU_TILE_N;
        if (p->bias) cpu->kernels->add(sum, p->bias + j, cols);
        if (p->accumulate) cpu->kernels->add(sum, row_load(cpu, p->c, i + row, j, cols, buffer), cols);
        row_store(cpu, p->c, i + row, j, cols, sum);
    }
}

// The length of equal parts of n, at most `limit` and a multiple of `unit`, which divides the limit.
static int64_t part_length(int64_t n, int64_t limit, int64_t unit) {
    int64_t parts = (n + limit - 1) / limit, length = (n + parts - 1) / parts;
    return (length + unit - 1) / unit * unit;
}

static int64_t tile_count(const Product *p) {
    return (p->m + p->tile_m - 1) / p->tile_m * ((p->n + p->tile_n - 1) / p->tile_n);
}

// Tiles as large as the cache allows, but enough of them for all threads.
static void choose_tiles(const Cpu *cpu, Product *p) {
    const PanelKernels *panels = cpu->kernels->panels;
    p->tile_m = part_length(p->m, CPU_TILE_M, panels->rows);
    p->tile_n = part_length(p->n, CPU_TILE_N, panels->columns);
    while (cpu->threads > 1 && tile_count(p) < 6 * cpu->threads && p->tile_m > 4 * panels->rows)
        p->tile_m = part_length(p->m, p->tile_m - panels->rows, panels->rows);
}

static void product(Exec *exec, Product *p, Tensor bias) {
    require_plain("product", p->a.tensor);
    require_plain("product", p->b.tensor);
    require_plain("product", p->c);
    const Cpu *cpu = cpu_of(exec);
    Scratch scratch = scratch_begin(exec);
    p->bias = scratch_vector(&scratch, cpu, bias);
    choose_tiles(cpu, p);
    int64_t columns = (p->n + p->tile_n - 1) / p->tile_n, tiles = tile_count(p);
    int threads = scratch_slots(&scratch, cpu, cpu_product_slot());
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t tile = 0; tile < tiles; tile++)
        product_tile(cpu, scratch_slot(&scratch), p, tile / columns * p->tile_m, tile % columns * p->tile_n);
}

void cpu_linear_forward(Exec *exec, Tensor y, Tensor x, Weight w, Tensor bias) {
    Product p = {.a = {x, true}, .b = {w.value, true}, .c = y, .m = x.rows, .n = w.value.rows, .k = x.cols};
    product(exec, &p, bias);
}

void cpu_linear_backward_data(Exec *exec, Tensor dx, Tensor dy, Weight w) {
    Product p = {.a = {dy, true}, .b = {w.value, false}, .c = dx, .m = dy.rows, .n = w.value.cols, .k = dy.cols};
    Tensor none = {0};
    product(exec, &p, none);
}

void cpu_linear_backward_weight(Exec *exec, Tensor dw, Tensor dy, Tensor x, bool accumulate) {
    Product p = {.a = {dy, false}, .b = {x, false}, .c = dw, .m = dy.cols, .n = x.cols, .k = dy.rows};
    Tensor none = {0};
    p.accumulate = accumulate;
    product(exec, &p, none);
}
