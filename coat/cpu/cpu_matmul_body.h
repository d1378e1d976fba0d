// Defines the inner loops of matmuls, which pack operands into panels and multiply panels. Included by
// cpu_kernels_body.h. A panel contains PANEL_ROWS rows of A or PANEL_COLUMNS columns of B. The summation index is
// outermost in a panel, so that the innermost loop reads both panels sequentially. One iteration multiplies PANEL_ROWS
// values of A by two vectors of B; the sums stay in registers.
#ifdef VARIANT

typedef real VARIANT(wide) __attribute__((vector_size(VECTOR_BYTES)));

#define WIDE_LANES (VECTOR_BYTES / (int)sizeof(real))
#define PANEL_COLUMNS (2 * WIDE_LANES)
// The number of rows computed in an incomplete last panel of A is rounded up to a multiple of PANEL_PART.
#define PANEL_PART (PANEL_ROWS / 3)

INLINE VARIANT(wide) VARIANT(load_wide)(const real *x) {
    VARIANT(wide) v;
    memcpy(&v, x, sizeof v);
    return v;
}

// Computes c (rows, PANEL_COLUMNS) = (add ? c : 0) + a b for one panel a of A and one panel b of B. Callers pass a
// constant as `rows`, so that the compiler unrolls the loops over rows.
INLINE void VARIANT(multiply_panel)(real *c, int64_t ldc, const real *a, const real *b, int64_t depth, bool add,
                                    const int rows) {
    VARIANT(wide) sum[PANEL_ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (VARIANT(wide)){0};
    for (int64_t k = 0; k < depth; k++, a += PANEL_ROWS, b += PANEL_COLUMNS) {
        VARIANT(wide) b0 = VARIANT(load_wide)(b), b1 = VARIANT(load_wide)(b + WIDE_LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            sum[r][0] += a[r] * b0;
            sum[r][1] += a[r] * b1;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        real *row = c + r * ldc;
        if (add) {
            sum[r][0] += VARIANT(load_wide)(row);
            sum[r][1] += VARIANT(load_wide)(row + WIDE_LANES);
        }
        memcpy(row, &sum[r][0], sizeof sum[r][0]);
        memcpy(row + WIDE_LANES, &sum[r][1], sizeof sum[r][1]);
    }
}

static void VARIANT(multiply)(real *c, int64_t ldc, const real *a, const real *b, int64_t m, int64_t n, int64_t depth,
                              bool add) {
    for (int64_t j = 0; j < n; j += PANEL_COLUMNS, b += panel_stride(PANEL_COLUMNS, depth)) {
        const real *panel = a;
        for (int64_t i = 0; i < m; i += PANEL_ROWS, panel += panel_stride(PANEL_ROWS, depth)) {
            real *block = c + i * ldc + j;
            if (m - i > 2 * PANEL_PART)
                VARIANT(multiply_panel)(block, ldc, panel, b, depth, add, PANEL_ROWS);
            else if (m - i > PANEL_PART)
                VARIANT(multiply_panel)(block, ldc, panel, b, depth, add, 2 * PANEL_PART);
            else
                VARIANT(multiply_panel)(block, ldc, panel, b, depth, add, PANEL_PART);
        }
    }
}

// Packs one panel: out[k * width + r] = r < rows ? x[r * ld + k] : 0. Transposes complete 4x4 blocks in registers.
INLINE void VARIANT(transpose_panel)(real *restrict out, const int width, const real *restrict x, int64_t ld,
                                     int64_t rows, int64_t depth) {
    typedef real four __attribute__((vector_size(4 * sizeof(real))));
    typedef lane_index mask __attribute__((vector_size(4 * sizeof(lane_index))));
    int64_t full = rows / 4 * 4, even = depth / 4 * 4;
    for (int64_t r = 0; r < full; r += 4)
        for (int64_t k = 0; k < even; k += 4) {
            four a, b, c, d;
            memcpy(&a, x + r * ld + k, sizeof a);
            memcpy(&b, x + (r + 1) * ld + k, sizeof b);
            memcpy(&c, x + (r + 2) * ld + k, sizeof c);
            memcpy(&d, x + (r + 3) * ld + k, sizeof d);
            four ab0 = __builtin_shuffle(a, b, (mask){0, 4, 1, 5}), ab1 = __builtin_shuffle(a, b, (mask){2, 6, 3, 7});
            four cd0 = __builtin_shuffle(c, d, (mask){0, 4, 1, 5}), cd1 = __builtin_shuffle(c, d, (mask){2, 6, 3, 7});
            a = __builtin_shuffle(ab0, cd0, (mask){0, 1, 4, 5});
            b = __builtin_shuffle(ab0, cd0, (mask){2, 3, 6, 7});
            c = __builtin_shuffle(ab1, cd1, (mask){0, 1, 4, 5});
            d = __builtin_shuffle(ab1, cd1, (mask){2, 3, 6, 7});
            memcpy(out + k * width + r, &a, sizeof a);
            memcpy(out + (k + 1) * width + r, &b, sizeof b);
            memcpy(out + (k + 2) * width + r, &c, sizeof c);
            memcpy(out + (k + 3) * width + r, &d, sizeof d);
        }
    for (int64_t k = 0; k < depth; k++) {
        for (int64_t r = k < even ? full : 0; r < rows; r++) out[k * width + r] = x[r * ld + k];
        for (int64_t r = rows; r < width; r++) out[k * width + r] = 0;
    }
}

static void VARIANT(transpose_a)(real *out, const real *x, int64_t ld, int64_t rows, int64_t depth) {
    VARIANT(transpose_panel)(out, PANEL_ROWS, x, ld, rows, depth);
}

static void VARIANT(transpose_b)(real *out, const real *x, int64_t ld, int64_t rows, int64_t depth) {
    VARIANT(transpose_panel)(out, PANEL_COLUMNS, x, ld, rows, depth);
}

// Writes one row of consecutive panels: `count` values of x, then zeros up to the end of the last panel.
INLINE void VARIANT(deal_row)(real *restrict out, const int width, const real *restrict x, int64_t count,
                              int64_t depth) {
    int64_t i = 0;
    for (; i + width <= count; i += width, out += panel_stride(width, depth))
        memcpy(out, x + i, (size_t)width * sizeof(real));
    if (i == count) return;
    for (int64_t r = 0; r < width; r++) out[r] = i + r < count ? x[i + r] : 0;
}

static void VARIANT(deal_a)(real *out, const real *x, int64_t count, int64_t depth) {
    VARIANT(deal_row)(out, PANEL_ROWS, x, count, depth);
}

static void VARIANT(deal_b)(real *out, const real *x, int64_t count, int64_t depth) {
    VARIANT(deal_row)(out, PANEL_COLUMNS, x, count, depth);
}

static const PanelKernels VARIANT(panels) = {
    PANEL_ROWS,           PANEL_COLUMNS,   VARIANT(multiply), VARIANT(transpose_a),
    VARIANT(transpose_b), VARIANT(deal_a), VARIANT(deal_b),
};

#undef WIDE_LANES
#undef PANEL_COLUMNS
#undef PANEL_PART
#endif
