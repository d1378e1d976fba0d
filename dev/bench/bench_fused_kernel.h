// An FP8 product with GELU's forward in its epilogue: y (M, N) = x (M, K) w^T, codes in E4M3, accumulated as the tensor
// cores do it ("fast"). For bench_fused_product.cu.
//
// Blocks stay. Two warpgroups compute, 64 x 256 each: in turns, a tile each, so that one has the tensor cores while the
// other is in its epilogue; or together, the halves of a tile of 128 x 256, which share w's part in shared memory. A
// third has one thread that tells the copy engine what to bring, 128 columns of x and w at a time, in a ring of
// stages. Blocks of a cluster have the same columns of neighbouring tiles: each copies a part of w's tile, to all of
// them.
//
// Barriers: full[s] counts the bytes of stage s in this block, from whichever block's copies. empty[s] counts the
// warps of all blocks of the cluster that are done with stage s of their own, as this block's copies write to all of
// them.
#pragma once
#include "bench_fused_hopper.h"
#include "coat/cuda/fp8/fp8_gelu.h"

namespace {

constexpr int HALF_M = 64, TILE_N = 256;    // of a warpgroup
constexpr int DEPTH = 128;                  // of a stage: bytes of a row, the width of the swizzle
constexpr int SUMS = HALF_M * TILE_N / 128; // of a thread
constexpr int COMPUTING = 2;                // warpgroups
constexpr int PRODUCT_THREADS = (COMPUTING + 1) * 128;
constexpr int COPYING_REGISTERS = 40, COMPUTING_REGISTERS = 232;
constexpr int BAND_ROWS = 2048; // of x, whose tiles follow each other down and then across: both operands stay in L2
constexpr int CHUNK = 64;       // columns that a warp puts in order at a time
constexpr int GROUP = SPAN;     // of h's scales
constexpr int CHUNK_BYTES = 16 * CHUNK * 2;

// How a block works. CLUSTER: blocks of a cluster; TOGETHER: both warpgroups on one tile.
template <int CLUSTER_, bool TOGETHER_> struct Design {
    static constexpr int CLUSTER = CLUSTER_;
    static constexpr bool TOGETHER = TOGETHER_;
    static constexpr int TILE_M = TOGETHER ? 2 * HALF_M : HALF_M;
    static constexpr int STAGES = TOGETHER ? 4 : 5;
    static constexpr int READERS = (TOGETHER ? 8 : 4) * CLUSTER; // warps that read what a block copies
    static constexpr uint32_t STAGE_BYTES = (TILE_M + TILE_N) * DEPTH;
};

enum Epilogue {
    STORES_Y,      // BF16
    KEEPS_LARGEST, // h = y * its row's scale + bias in E4M3 per group of 16, and the rows' largest kept h
    KEEPS_GELU,    // h, and the rows' largest |gelu(h)|
    WRITES_G       // h, and g = gelu(h) in E4M3 with scales of rows that are known ahead
};

struct FusedProduct {
    CUtensorMap x, w; // read in tiles of TILE_M rows, and of a block's part of TILE_N
    const float *w_scale;
    int first_row, N, blocks_k, tiles_m, tiles_n; // stages of a tile; tiles of a cluster down, and across
    bf16 *y;
    const float *row_scales; // of y
    const bf16 *bias;
    uint8_t *h;
    bf16 *h_scales;   // (M, N / GROUP)
    uint32_t *maxima; // (M), 0 before
    uint8_t *g;
    const float *g_scales; // (M)
};

template <typename D> struct ProductShared {
    uint8_t x[D::STAGES][D::TILE_M * DEPTH], w[D::STAGES][TILE_N * DEPTH];
    uint8_t chunk[COMPUTING * 4][CHUNK_BYTES]; // of a warp
    uint64_t full[D::STAGES], empty[D::STAGES];
};
template <typename D> constexpr size_t PRODUCT_SHARED_BYTES = sizeof(ProductShared<D>) + 1024;

// --- tiles --------------------------------------------------------------------------------------------------------
// What a cluster has to do: every step-th tile of CLUSTER * TILE_M rows. All its blocks have as many.
template <typename D> struct ClusterTiles {
    int first, step, count;

    __device__ explicit ClusterTiles(const FusedProduct &p) {
        first = (int)blockIdx.x / D::CLUSTER, step = (int)gridDim.x / D::CLUSTER;
        count = (p.tiles_m * p.tiles_n - first + step - 1) / step;
    }
    // First row of this block, first column.
    __device__ int2 place(const FusedProduct &p, int t, int rank) const {
        constexpr int band = BAND_ROWS / (D::CLUSTER * D::TILE_M);
        const int index = first + t * step, bands = index / (band * p.tiles_n), rest = index - bands * band * p.tiles_n;
        const int down = min(band, p.tiles_m - bands * band);
        return make_int2(p.first_row + ((bands * band + rest % down) * D::CLUSTER + rank) * D::TILE_M,
                         rest / down * TILE_N);
    }
};

// --- copying ------------------------------------------------------------------------------------------------------
template <typename D> __device__ void product_copy(const FusedProduct &p, ProductShared<D> *shared) {
    constexpr int part = TILE_N / D::CLUSTER;
    const ClusterTiles<D> tiles(p);
    const int rank = (int)cluster_rank();
    int stage = 0;
    uint32_t phase = 0;
    for (int t = 0; t < tiles.count; t++) {
        const int2 at = tiles.place(p, t, rank);
        for (int k = 0; k < p.blocks_k; k++) {
            uint64_t *const full = &shared->full[stage];
            barrier_wait_limited(&shared->empty[stage], phase ^ 1);
            barrier_arrive_expect(full, D::STAGE_BYTES);
            copy_rows(shared->x[stage], &p.x, k * DEPTH, at.x, full);
            copy_rows_to_all(shared->w[stage] + rank * part * DEPTH, &p.w, k * DEPTH, at.y + rank * part, full,
                             (1 << D::CLUSTER) - 1);
            if (++stage == D::STAGES) stage = 0, phase ^= 1;
        }
    }
}

// --- the epilogue -------------------------------------------------------------------------------------------------
// A thread's rows of h: lane / 4 and that + 8 of its warp's 16, and there group lane % 4 of every chunk.
struct HiddenRows {
    const bf16 *bias;
    uint32_t next_bias[SPAN / 2];        // pairs, of the next chunk
    float factor[2], reciprocal[2] = {}; // y's scale; 1 / g's
    float largest[2];                    // for maxima

    __device__ void fetch(int chunk) {
        const Bf16Words<SPAN> words = load_words<SPAN, CACHE_PARAMETER>(bias + chunk * CHUNK);
        memcpy(next_bias, &words, sizeof words);
        wgmma_hold(next_bias); // asked for here, not where it is used
    }
    template <Epilogue E> __device__ void begin(const FusedProduct &p, int row, int column) {
        bias = p.bias + column;
        fetch(0);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            factor[half] = p.row_scales[row + 8 * half];
            if constexpr (E == WRITES_G) reciprocal[half] = row_scale_reciprocal(p.g_scales[row + 8 * half]);
            largest[half] = 0.0f;
        }
        wgmma_hold(factor);
    }
    // The other row is the first.
    __device__ void swap() {
        const float f = factor[0], r = reciprocal[0], m = largest[0];
        factor[0] = factor[1], reciprocal[0] = reciprocal[1], largest[0] = largest[1];
        factor[1] = f, reciprocal[1] = r, largest[1] = m;
    }
};

// 16 columns of the first row: h's codes and scale, and what else is asked for.
template <Epilogue E>
__device__ void hidden_span(const FusedProduct &p, HiddenRows &rows, const uint4 (&y)[2], const Bf16Words<SPAN> &add,
                            int row, int column) {
    float x[SPAN], bias[SPAN], scale;
    Bf16Words<SPAN> words;
    memcpy(&words, y, sizeof words);
    unpack<SPAN>(words, x);
    unpack<SPAN>(add, bias);
#pragma unroll
    for (int i = 0; i < SPAN; i++) x[i] = fmaf(x[i], rows.factor[0], bias[i]);
    const bf16 rounded = group_scale(largest_magnitude<SPAN>(x, 0.0f), &scale);
    const float reciprocal = group_scale_reciprocal(scale);
    Pack<uint32_t, SPAN / 4> codes;
    encode<FMT_E4M3, SPAN>(x, reciprocal, codes.value);
    const uint32_t at = (uint32_t)row * (uint32_t)p.N + (uint32_t)column;
    store((uint32_t *)(p.h + at), codes);
    p.h_scales[at / GROUP] = rounded;
    if constexpr (E == KEEPS_LARGEST) { // the largest that is kept is the kept largest: codes keep the order
        float largest = 0.0f, kept[4];
#pragma unroll
        for (int i = 0; i < SPAN; i++) largest = fmaxf(largest, x[i]);
        const uint32_t code = encode_pair<FMT_E4M3>(largest * reciprocal, 0.0f);
        decode_unscaled<4>(&code, kept);
        rows.largest[0] = fmaxf(rows.largest[0], kept[0] * scale);
    } else {
        decode<SPAN>(codes.value, scale, x);
        gelu_span(x);
        if constexpr (E == KEEPS_GELU) {
            rows.largest[0] = largest_magnitude<SPAN>(x, rows.largest[0]);
        } else {
            encode<FMT_E4M3, SPAN>(x, rows.reciprocal[0], codes.value);
            store((uint32_t *)(p.g + at), codes);
        }
    }
}

// A warp's 16 rows of sums, as BF16 and put in order by way of shared memory. row, column: the warp's first.
template <Epilogue E>
__device__ void product_finish(const FusedProduct &p, uint8_t *chunk, float (&d)[SUMS], float alpha, HiddenRows &rows,
                               int row, int column) {
    const int lane = (int)threadIdx.x % WARP;
    uint32_t y[SUMS / 2];
#pragma unroll
    for (int i = 0; i < SUMS / 2; i++) y[i] = bf16_pair(d[2 * i] * alpha, d[2 * i + 1] * alpha);
    // 16 bytes of a row of the chunk, which is swizzled as tiles are
    const auto place = [&](int r, int unit) { return chunk + r * CHUNK * 2 + ((unit ^ (r & 7)) << 4); };
    const int store_row = lane % 16, store_unit = lane / 16;
#pragma unroll
    for (int c = 0; c < TILE_N / CHUNK; c++) {
        __syncwarp();
#pragma unroll
        for (int j = 0; j < CHUNK / 16; j++) {
            const uint32_t *const from = y + c * CHUNK / 4 + 4 * j;
            const uint32_t block[4] = {from[0], from[1], from[2], from[3]};
            blocks_store(place(store_row, 2 * j + store_unit), block);
        }
        __syncwarp();
        if constexpr (E == STORES_Y) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = 4 * i + lane / 8, unit = lane % 8;
                const uint4 words = *(const uint4 *)place(r, unit);
                *(uint4 *)(p.y + (int64_t)(row + r) * p.N + column + c * CHUNK + unit * 8) = words;
            }
        } else {
            Bf16Words<SPAN> add;
            memcpy(&add, rows.next_bias, sizeof add);
            if (c + 1 < TILE_N / CHUNK) rows.fetch(c + 1);
#pragma unroll
            for (int r = lane / 4; r < 16; r += 8) {
                const int group = lane % 4;
                const uint4 words[2] = {*(const uint4 *)place(r, 2 * group), *(const uint4 *)place(r, 2 * group + 1)};
                hidden_span<E>(p, rows, words, add, row + r, column + c * CHUNK + group * SPAN);
                rows.swap();
            }
        }
    }
    if constexpr (E == KEEPS_LARGEST || E == KEEPS_GELU) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float largest = lanes_maximum(rows.largest[half], 4);
            if (lane % 4 == 0) atomicMax(p.maxima + row + lane / 4 + 8 * half, __float_as_uint(largest));
        }
    }
}

// --- computing ----------------------------------------------------------------------------------------------------
template <int STEPS> __device__ void multiply_stage(float (&d)[SUMS], uint64_t x, uint64_t w) {
    constexpr int step = 32 >> 4; // 32 codes
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEPS; i++) wgmma_codes(d, x + i * step, w + i * step);
    wgmma_commit();
}

// LAST: products of 32 columns in a tile's last stage, of 4.
template <typename D, int LAST, Epilogue E>
__device__ void product_compute(const FusedProduct &p, ProductShared<D> *shared, int warpgroup) {
    constexpr int next_x = D::TILE_M * DEPTH >> 4, next_w = TILE_N * DEPTH >> 4; // stage
    const int lane = (int)threadIdx.x % WARP, warp = warp_uniform((int)threadIdx.x / WARP) % 4;
    const ClusterTiles<D> tiles(p);
    const int rank = (int)cluster_rank(), half = D::TOGETHER ? warpgroup * HALF_M : 0;
    const uint64_t x = wgmma_operand(shared->x[0] + half * DEPTH), w = wgmma_operand(shared->w[0]);
    const uint32_t empty_there = address_in_block(shared_address(shared->empty), (uint32_t)(lane % D::CLUSTER));
    const float alpha = *p.w_scale;
    const auto release = [&](int stage) { arrive_if_in_block(empty_there + 8 * (uint32_t)stage, lane < D::CLUSTER); };
    for (int t = D::TOGETHER ? 0 : warpgroup; t < tiles.count; t += D::TOGETHER ? 1 : COMPUTING) {
        const int2 at = tiles.place(p, t, rank);
        const int row = at.x + half + warp * 16;
        const uint32_t position = (uint32_t)t * (uint32_t)p.blocks_k;
        int stage = (int)(position % D::STAGES), previous = 0;
        uint32_t phase = position / D::STAGES & 1;
        float d[SUMS]; // set here: a first product that leaves them out would keep their registers over the epilogue
#pragma unroll
        for (int i = 0; i < SUMS; i++) d[i] = 0.0f;
        wgmma_hold(d);
        if (!D::TOGETHER && t > 0) turn_wait(warpgroup);
#pragma unroll 1
        for (int k = 0; k < p.blocks_k - 1; k++) {
            barrier_wait_limited(&shared->full[stage], phase);
            multiply_stage<4>(d, x + (uint64_t)(stage * next_x), w + (uint64_t)(stage * next_w));
            wgmma_wait<1>();
            if (k > 0) release(previous);
            previous = stage;
            if (++stage == D::STAGES) stage = 0, phase ^= 1;
        }
        barrier_wait_limited(&shared->full[stage], phase);
        multiply_stage<LAST>(d, x + (uint64_t)(stage * next_x), w + (uint64_t)(stage * next_w));
        if (!D::TOGETHER && t + 1 < tiles.count) turn_hand_on(warpgroup);
        HiddenRows rows;
        if constexpr (E != STORES_Y) rows.template begin<E>(p, row + lane / 4, at.y + lane % 4 * SPAN);
        wgmma_wait<1>();
        if (p.blocks_k > 1) release(previous);
        wgmma_wait<0>();
        wgmma_hold(d);
        release(stage);
        product_finish<E>(p, shared->chunk[warpgroup * 4 + warp], d, alpha, rows, row, at.y);
    }
}

template <typename D, int LAST, Epilogue E>
__global__ void __launch_bounds__(PRODUCT_THREADS, 1) product_kernel(const __grid_constant__ FusedProduct p) {
    extern __shared__ unsigned char memory[];
    if constexpr (HOPPER_CODE) {
        ProductShared<D> *const shared = (ProductShared<D> *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
        if (threadIdx.x == 0) {
            for (int i = 0; i < D::STAGES; i++) {
                barrier_init(&shared->full[i], 1);
                barrier_init(&shared->empty[i], D::READERS);
            }
            barrier_init_fence();
        }
        cluster_wait(); // before another block copies to this one
        const int warpgroup = warp_uniform((int)threadIdx.x / 128);
        if (warpgroup == COMPUTING) {
            registers_give<COPYING_REGISTERS>();
            if (threadIdx.x == COMPUTING * 128) product_copy<D>(p, shared);
            __syncwarp();
        } else {
            registers_take<COMPUTING_REGISTERS>();
            product_compute<D, LAST, E>(p, shared, warpgroup);
        }
        cluster_wait(); // before this block's barriers go, where other blocks arrive
    } else {
        __trap();
    }
}

// --- from the host ------------------------------------------------------------------------------------------------
// The driver's function, found at run time, so that the program links where there is no driver.
inline bool codes_map(CUtensorMap *map, const void *codes, int64_t rows, int64_t cols, int tile_rows) {
    typedef CUresult (*Encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                               const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                               CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void *address = NULL;
    cudaDriverEntryPointQueryResult result;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &result),
               "looking up the driver's cuTensorMapEncodeTiled");
    const cuuint64_t size[] = {(cuuint64_t)cols, (cuuint64_t)rows}, stride[] = {(cuuint64_t)cols};
    const cuuint32_t box[] = {DEPTH, (cuuint32_t)tile_rows}, step[] = {1, 1};
    return address &&
           ((Encode)address)(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, (void *)codes, size, stride, box, step,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// What does not depend on the epilogue, of the rows from first_row on. rows in whole clusters, N in whole tiles, K a
// multiple of 64.
template <typename D>
FusedProduct fused_product(const uint8_t *x, const uint8_t *w, const float *w_scale, int64_t first_row, int64_t rows,
                           int64_t N, int64_t K) {
    constexpr int cluster_rows = D::CLUSTER * D::TILE_M;
    FusedProduct p = {};
    if (rows % cluster_rows || N % TILE_N || K % 64 || !codes_map(&p.x, x, first_row + rows, K, D::TILE_M) ||
        !codes_map(&p.w, w, N, K, TILE_N / D::CLUSTER))
        fatal(EXIT_USER, "the product %lld x %lld x %lld is not built", (long long)rows, (long long)N, (long long)K);
    p.w_scale = w_scale;
    p.first_row = (int)first_row, p.N = (int)N, p.blocks_k = (int)ceil_div(K, DEPTH);
    p.tiles_m = (int)(rows / cluster_rows), p.tiles_n = (int)(N / TILE_N);
    return p;
}

// As many clusters as run at a time; `say`: only prints their number.
template <typename D, int LAST, Epilogue E>
void product_launch(const CudaBackend *backend, const FusedProduct &p, bool say = false) {
    const auto kernel = product_kernel<D, LAST, E>;
    constexpr size_t shared = PRODUCT_SHARED_BYTES<D>;
    static int at_once = 0;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {D::CLUSTER, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = D::CLUSTER;
    config.blockDim = PRODUCT_THREADS;
    config.dynamicSmemBytes = shared;
    config.stream = backend->stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    if (at_once == 0) {
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                   "giving the product its shared memory");
        CUDA_CHECK(cudaOccupancyMaxActiveClusters(&at_once, kernel, &config), "asking how many clusters fit");
        at_once = max(at_once, 1);
    }
    if (say) {
        printf("%s, clusters of %d: %d at a time, %d of %d multiprocessors\n", D::TOGETHER ? "together" : "in turns",
               D::CLUSTER, at_once, at_once * D::CLUSTER, backend->sm_count);
        return;
    }
    config.gridDim = (unsigned)(min(at_once, p.tiles_m * p.tiles_n) * D::CLUSTER);
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, p), "launching the kernel product_kernel");
}

} // namespace
