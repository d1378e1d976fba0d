// Quantizes all weights to FP8 in a few launches; each launch has a table of weights.
//
// Bytes of device memory per element: reads the weight (2), and reads the weight a second time (2) unless the optimizer
// has just written the weight's amax. Writes FP8 values and, with cached transposes, their transpose (1 each).
#include "fp8_readers.h"
#include "fp8_tile.h"

namespace {

constexpr int WEIGHT_ENTRIES = 60; // maximum number of weights per kernel launch
constexpr int WEIGHT_THREADS = 256;
constexpr int WEIGHT_COLUMNS = 128;        // number of columns of a tile
constexpr int64_t WEIGHT_ELEMENTS = 32768; // number of elements per block in the kernel that computes amaxes

struct WeightEntry {
    const bf16 *value;
    // FP8 values and their transpose; codes_t is NULL if a later operation writes the transpose, just before its use
    uint8_t *codes, *codes_t;
    float *scale;
    uint32_t *amax;       // amax of the weight, written by the optimizer or an earlier quantization; NULL: not stored
    uint32_t *whole_amax; // amax of the entire weight if this table entry is a shard of a weight; else NULL
    int rows, cols;
};

struct WeightTable {
    WeightEntry entry[WEIGHT_ENTRIES];
    int first_block[WEIGHT_ENTRIES + 1]; // index of each weight's first block, in the kernel that computes amaxes
    int first_tile[WEIGHT_ENTRIES + 1];  // index of each weight's first block, in the kernel that quantizes
    int count;
    uint32_t *amaxes; // one amax per block; NULL if the amaxes that the optimizer wrote are used
    StepState *state;
};
static_assert(sizeof(WeightTable) <= TABLE_BYTES, "the table must fit a kernel argument");

// Each block computes the amax of its part of a weight.
__global__ __launch_bounds__(WEIGHT_THREADS) void weight_amaxes_kernel(const __grid_constant__ WeightTable table) {
    constexpr int V = 8, UNROLL = 4;
    const int at = table_find(table.first_block, table.count, (int)blockIdx.x);
    const WeightEntry &e = table.entry[at];
    const int64_t begin = ((int)blockIdx.x - table.first_block[at]) * WEIGHT_ELEMENTS;
    const int64_t left = (int64_t)e.rows * e.cols - begin;
    const int64_t count = left < WEIGHT_ELEMENTS ? left : WEIGHT_ELEMENTS;
    float amax = 0.0f;
    for (int64_t first = threadIdx.x * V; first < count; first += UNROLL * WEIGHT_THREADS * V) {
        Pack<bf16, V> pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * WEIGHT_THREADS * V < count)
                pack[u] = load<V>(e.value + begin + first + u * WEIGHT_THREADS * V);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * WEIGHT_THREADS * V < count) amax = largest_magnitude(pack[u], amax);
    }
    block_max<WEIGHT_THREADS>(__float_as_uint(amax), [&](uint32_t x) { table.amaxes[blockIdx.x] = x; });
}

// Writes the amax and the scale of each weight. One block per weight.
__global__ __launch_bounds__(WEIGHT_THREADS) void weight_scales_kernel(const __grid_constant__ WeightTable table) {
    const WeightEntry &e = table.entry[blockIdx.x];
    const int first = table.first_block[blockIdx.x], count = table.first_block[blockIdx.x + 1] - first;
    const uint32_t amax = table.amaxes ? block_amax<WEIGHT_THREADS>(table.amaxes + first, count) : *e.amax;
    if (threadIdx.x > 0) return;
    if (e.amax) *e.amax = amax; // stores the amax for the next call, in case the next optimizer step is skipped
    scale_write(e.scale, amax, E4M3_MAX, table.state);
}

// Computes the amax of each weight shard, one block per shard. The caller reduces these amaxes over the processes.
__global__ __launch_bounds__(WEIGHT_THREADS) void shard_amaxes_kernel(const __grid_constant__ WeightTable table) {
    const int first = table.first_block[blockIdx.x], count = table.first_block[blockIdx.x + 1] - first;
    const uint32_t amax = block_amax<WEIGHT_THREADS>(table.amaxes + first, count);
    if (threadIdx.x == 0) *table.entry[blockIdx.x].whole_amax = amax;
}

// Writes the scale of each weight shard, computed from the amax of the entire weight.
__global__ void shard_scales_kernel(const __grid_constant__ WeightTable table) {
    const WeightEntry &e = table.entry[blockIdx.x];
    scale_write(e.scale, *e.whole_amax, E4M3_MAX, table.state);
}

// Quantizes a tile of a weight and, if codes_t exists, also writes the tile's transpose.
__global__ __launch_bounds__(TILE_THREADS<WEIGHT_COLUMNS>,
                             2) void weight_codes_kernel(const __grid_constant__ WeightTable table) {
    __shared__ Tile<WEIGHT_COLUMNS> tile;
    const int at = table_find(table.first_tile, table.count, (int)blockIdx.x);
    const WeightEntry &e = table.entry[at];
    const int index = (int)blockIdx.x - table.first_tile[at], across = (e.cols + WEIGHT_COLUMNS - 1) / WEIGHT_COLUMNS;
    const int first_row = index / across * TILE_ROWS, first_column = index % across * WEIGHT_COLUMNS;
    const int row = first_row + (int)threadIdx.x / TILE_LANES<WEIGHT_COLUMNS> * THREAD_ROWS;
    const int column = first_column + (int)threadIdx.x % TILE_LANES<WEIGHT_COLUMNS> * SPAN;
    const Bf16Reader<true> value = {(const char *)e.value, 2 * e.cols};
    const float reciprocal = scale_reciprocal(*e.scale);
    Bf16Words<SPAN> loaded[THREAD_ROWS];
    uint32_t code[THREAD_ROWS][SPAN / 4];
#pragma unroll
    for (int r = 0; r < THREAD_ROWS; r++)
        if (row + r < e.rows && column < e.cols) loaded[r] = value.load(row + r, column);
#pragma unroll
    for (int r = 0; r < THREAD_ROWS; r++) {
        if (row + r >= e.rows || column >= e.cols) continue;
        float x[SPAN];
        Pack<uint32_t, SPAN / 4> words;
        unpack<SPAN>(loaded[r], x);
        encode<FMT_E4M3, SPAN>(x, reciprocal, code[r]);
        memcpy(words.value, code[r], SPAN);
        store((uint32_t *)((e.codes + column) + (int64_t)(row + r) * e.cols), words);
    }
    if (!e.codes_t) return;
    tile_put(&tile, code);
    __syncthreads();
    tile_write(&tile, e.codes_t, e.rows, first_row, first_column, e.rows, e.cols);
}

// True if weight `index` has a transpose with memory of its own. A transpose that shares memory with another weight's
// transpose is written just before the matmul that reads it, not here.
bool has_own_transpose(const Parameter *parameters, int count, int index) {
    const void *const memory = parameters[index].weight.codes_t.data;
    for (int i = 0; i < count; i++)
        if (i != index && parameters[i].weight.codes_t.data == memory) return false;
    return memory != NULL;
}

enum WeightWork { QUANTIZE_WEIGHTS, QUANTIZE_SHARDS, SHARD_AMAXES };

// Launches the kernels for the weights in the table, then empties the table.
void weights_launch(Exec *exec, WeightTable *table, WeightWork work) {
    const int blocks = table->first_block[table->count], tiles = table->first_tile[table->count];
    const unsigned entries = (unsigned)table->count;
    cudaStream_t stream = cuda_backend(exec)->stream;
    if (entries == 0) return;
    if ((size_t)blocks * sizeof(uint32_t) > exec->workspace_bytes)
        fatal(EXIT_DEVICE,
              "internal error: weights_quantize on the GPU: the amaxes of the weights do not fit the workspace");
    if (work != QUANTIZE_SHARDS && table->amaxes && blocks > 0) {
        weight_amaxes_kernel<<<grid_of(blocks), WEIGHT_THREADS, 0, stream>>>(*table);
        LAUNCH_CHECK("weight_amaxes_kernel");
    }
    if (work == QUANTIZE_WEIGHTS) {
        weight_scales_kernel<<<entries, WEIGHT_THREADS, 0, stream>>>(*table);
        LAUNCH_CHECK("weight_scales_kernel");
    } else if (work == QUANTIZE_SHARDS) {
        shard_scales_kernel<<<entries, 1, 0, stream>>>(*table);
        LAUNCH_CHECK("shard_scales_kernel");
    } else {
        shard_amaxes_kernel<<<entries, WEIGHT_THREADS, 0, stream>>>(*table);
        LAUNCH_CHECK("shard_amaxes_kernel");
    }
    if (work != SHARD_AMAXES && tiles > 0) {
        weight_codes_kernel<<<grid_of(tiles), TILE_THREADS<WEIGHT_COLUMNS>, 0, stream>>>(*table);
        LAUNCH_CHECK("weight_codes_kernel");
    }
    table->count = 0;
}

// Does `work` for all weights that have FP8 values: quantizes entire weights, quantizes shards with the amaxes of the
// entire weights, or computes the amaxes of shards.
void weights_run(Exec *exec, const char *operation, const Parameter *parameters, int count, WeightWork work) {
    CudaBackend *backend = cuda_backend(exec);
    bool known = backend->amaxes_valid && work == QUANTIZE_WEIGHTS;
    // the amaxes become invalid, because weights may change without the optimizer, as when a checkpoint is loaded
    backend->amaxes_valid = false;
    for (int i = 0; i < count; i++) known = known && (!parameters[i].weight.codes.data || parameters[i].weight.maximum);
    WeightTable table = {};
    table.amaxes = known ? NULL : (uint32_t *)exec->workspace;
    table.state = exec->state;
    for (int i = 0; i < count; i++) {
        const Weight w = parameters[i].weight;
        if (!w.codes.data) continue;
        require_format(operation, "a weight", w.value, FMT_BF16);
        require_spans(operation, "a weight", w.value);
        require_spans(operation, "a weight's FP8 copy", w.codes);
        require_spans(operation, "a weight's transposed FP8 copy", w.codes_t);
        if (w.value.stride != w.value.cols || w.codes.stride != w.codes.cols)
            fatal(EXIT_DEVICE, "internal error: %s on the GPU: a weight has gaps between its rows", operation);
        const int at = table.count++;
        const int64_t rows = w.value.rows, cols = w.value.cols;
        table.entry[at] = {(const bf16 *)w.value.data,
                           (uint8_t *)w.codes.data,
                           has_own_transpose(parameters, count, i) ? (uint8_t *)w.codes_t.data : NULL,
                           (float *)w.codes.scale,
                           w.maximum,
                           w.codes.amax,
                           (int)rows,
                           (int)cols};
        table.first_block[at + 1] = table.first_block[at] + (int)ceil_div(rows * cols, WEIGHT_ELEMENTS);
        table.first_tile[at + 1] =
            table.first_tile[at] + (int)(ceil_div(rows, TILE_ROWS) * ceil_div(cols, WEIGHT_COLUMNS));
        if (table.count == WEIGHT_ENTRIES) weights_launch(exec, &table, work);
    }
    weights_launch(exec, &table, work);
}

} // namespace

void cuda_weights_quantize(Exec *exec, const Parameter *parameters, int count) {
    bool shards = false;
    for (int i = 0; i < count; i++) shards = shards || parameters[i].weight.codes.amax;
    weights_run(exec, "weights_quantize", parameters, count, shards ? QUANTIZE_SHARDS : QUANTIZE_WEIGHTS);
}

void cuda_weights_amax(Exec *exec, const Parameter *parameters, int count) {
    weights_run(exec, "weights_amax", parameters, count, SHARD_AMAXES);
}
