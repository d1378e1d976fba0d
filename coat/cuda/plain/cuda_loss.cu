// Computes the cross-entropy loss of a chunk of tokens, and the gradient of the loss with respect to the logits. The
// gradient overwrites the logits, the model's widest tensor. Each element is written once. It is read once if a block's
// part of a row fits in shared memory (loss_run()). With --head fp8, the gradient is written to another tensor in FP8
// (2 bytes read, 1 written per element). A second pass transposes the FP8 gradient for wgrad (1 byte read, 1 written).
#include "cuda/fp8/fp8_kernels.h"

#include "loss_parts.h"

namespace {

constexpr int LOSS_THREADS = 512;      // number of threads of a block that processes whole rows
constexpr int LOSS_PART_THREADS = 256; // number of threads of a block that shares rows with other blocks
constexpr int LOSS_BLOCKS_PER_SM = 2;  // minimum number of resident blocks of LOSS_THREADS threads per SM
constexpr int LOSS_PARTS = 8;          // maximum number of blocks that share a row: the largest portable cluster size

struct LossArguments {
    void *logits;       // (rows, cols) logits, which the gradient overwrites unless `codes` is set
    float *losses;      // output: (rows) loss of each row; NULL: not written
    uint8_t *codes;     // output: (rows, cols) gradient in E5M2; NULL: the gradient overwrites the logits
    float *codes_scale; // output: the single FP32 scale of `codes`; NULL if `codes` is NULL
    int64_t codes_stride;
    const int32_t *targets;
    int64_t rows, stride, target_stride;
    int64_t first; // number of the first row in the micro-batch
    int cols, vocab;
    int parts; // number of blocks that share a row of logits, a power of two
    bool backward;
    StepState *state; // the step's state, which contains loss_scale
};

// Computes the maximum of a thread's logits, ignoring NaN. Only the first `real` columns of each vector are used; the
// others are padding.
template <typename T, int V> struct Largest {
    float most = NOTHING;

    __device__ void add(Pack<T, V> pack, int real) {
        float x[V];
        unpack<V>(pack, x);
#pragma unroll
        for (int j = 0; j < V; j++)
            if (j < real) most = fmaxf(most, x[j]);
    }
    __device__ float value() const {
        return most;
    }
};

template <> struct Largest<bf16, 8> {
    __nv_bfloat162 most = __float2bfloat162_rn(-INFINITY);

    __device__ void add(Pack<bf16, 8> pack, int real) {
        __nv_bfloat162 pairs[4];
        memcpy(pairs, &pack, sizeof pairs);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (2 * j + 1 == real) pairs[j] = __low2bfloat162(pairs[j]);
            if (2 * j < real) most = __hmax2(most, pairs[j]);
        }
    }
    __device__ float value() const {
        return fmaxf(NOTHING, fmaxf(__low2float(most), __high2float(most)));
    }
};

// Reads a block's part of a row; the part starts at vector `begin` of the row. With STAGED, asynchronous copies bring
// the part into shared memory. Without STAGED, the part is too long for that, and each pass reads device memory. A
// thread reads only vectors that the same thread copied, so no barrier is needed. The next row is copied while the
// current row is written.
template <typename T, int V, bool STAGED> struct RowReader {
    Pack<T, V> *staged;
    int begin;

    __device__ void fetch(const T *row, int index) const {
        if constexpr (STAGED) copy_async<V>(staged + (index - begin), row + index * V);
    }
    __device__ void wait() const {
        if constexpr (STAGED) asm volatile("cp.async.wait_all;" ::: "memory");
    }
    __device__ Pack<T, V> read(const T *row, int index) const {
        if constexpr (STAGED)
            return load<V>((const T *)(staged + (index - begin)));
        else
            return load<V>(row + index * V);
    }
    __device__ float element(const T *row, int column) const {
        float x;
        unpack<1>(load<1>(STAGED ? (const T *)staged + (column - begin * V) : row + column), &x);
        return x;
    }
};

// Writes the gradient over the logits. Callers multiply the gradient by `unit`, which is 1 because there is no scale.
template <typename T, int V> struct GradientInPlace {
    T *row;
    static constexpr float unit = 1.0f;

    __device__ GradientInPlace(const LossArguments &a, int64_t at, int, float) : row((T *)a.logits + at * a.stride) {}
    __device__ void write(int index, const float x[V]) const { store(row + index * V, packed<T, V>(x)); }
    __device__ void element(int column, float x) const { store(row + column, packed<T, 1>(&x)); }
};

// Returns 4 values, |x| <= 2^15, in E5M2, rounded stochastically as e5m2_encode_stochastic() rounds them. Adds bytes of
// `random` (loss_random_byte()) to the lower bytes of FP16 values. The upper bytes are the E5M2 values.
__device__ static inline uint32_t encode_stochastic(const float x[4], uint32_t random) {
    const __half2 pairs[2] = {__floats2half2_rn(x[0], x[1]), __floats2half2_rn(x[2], x[3])};
    uint32_t word[2];
    memcpy(word, pairs, sizeof word);
    return __byte_perm(word[0] + (random & 0x00ff00ffu), word[1] + (random >> 8 & 0x00ff00ffu), 0x7531);
}

// Writes the gradient in E5M2, rounded stochastically. Callers first multiply the gradient by `unit`, the reciprocal of
// the gradient's scale.
template <typename T, int V> struct GradientCodes {
    uint8_t *codes;
    uint64_t start;
    int row, target;
    float unit;
    static_assert(V == LOSS_RANDOM);

    __device__ GradientCodes(const LossArguments &a, int64_t at, int to, float scale)
        : codes(a.codes + at * a.codes_stride), start(loss_random_start(a.state->seed, a.state->t)),
          row((int)(a.first + at)), target(to), unit(scale_reciprocal(loss_gradient_scale(scale))) {}
    __device__ void write(int index, const float x[V]) const {
        const uint64_t random = loss_random_bits(start, row, target, index);
        Pack<uint32_t, V / 4> words;
        words.value[0] = encode_stochastic(x, (uint32_t)random);
        words.value[1] = encode_stochastic(x + 4, (uint32_t)(random >> 32));
        store((uint32_t *)(codes + index * V), words);
    }
    __device__ void element(int column, float x) const {
        const uint64_t random = loss_random_bits(start, row, target, column / V);
        codes[column] = e5m2_encode_stochastic(x, loss_random_byte(random, column % V));
    }
};

// Computes the loss and, with a.backward, the gradient. a.parts consecutive blocks share a row; if a.parts > 1, these
// blocks are a cluster. If there are `step` such groups of blocks, each group processes every step-th row.
template <typename T, int V, bool STAGED, typename Gradient>
__global__ __launch_bounds__(LOSS_THREADS, LOSS_BLOCKS_PER_SM) void loss_kernel(LossArguments a) {
    extern __shared__ uint4 dynamic[];
    const int thread = (int)threadIdx.x, threads = (int)blockDim.x, parts = a.parts, part = (int)blockIdx.x % parts;
    const int vectors = a.cols / V, length = (vectors + parts - 1) / parts;
    const int begin = part * length, end = min(begin + length, vectors), whole = min(end, a.vocab / V);
    const int64_t first = blockIdx.x / parts, step = gridDim.x / parts;
    char *const shared = (char *)dynamic;
    const RowParts row_parts = {(uint64_t *)shared, (SoftmaxSum *)(shared + 2 * sizeof(uint64_t)), part, parts,
                                threads / WARP};
    const RowReader<T, V, STAGED> reader = {(Pack<T, V> *)(shared + RowParts::bytes(parts, threads / WARP)), begin};
    T *const logits = (T *)a.logits;
    const float scale = a.state->loss_scale;
    // Calls visit(vector, columns) for each vector that this thread processes; `columns` excludes padding.
    const auto each = [&](auto visit) {
        int i = begin + thread;
        for (; i < whole; i += threads) visit(i, V);
        for (; i < end; i += threads) visit(i, max(a.vocab - i * V, 0));
    };

    if (a.codes_scale && blockIdx.x == 0 && thread == 0) *a.codes_scale = loss_gradient_scale(scale);
    if (first < a.rows) each([&](int i, int) { reader.fetch(logits + first * a.stride, i); });
    row_parts.open();
    int done = 0;
    for (int64_t row = first; row < a.rows; row += step) {
        T *const here = logits + row * a.stride;
        const T *const next = row + step < a.rows ? here + step * a.stride : nullptr;
        const int target = a.targets[row * a.target_stride];
        reader.wait();

        Largest<T, V> largest;
        each([&](int i, int real) { largest.add(reader.read(here, i), real); });
        SoftmaxSum mine = {largest.value(), 0.0f};
        each([&](int i, int real) {
            float x[V];
            unpack<V>(reader.read(here, i), x);
#pragma unroll
            for (int j = 0; j < V; j++)
                if (j < real) mine.sum += fast_exp(x[j] - mine.max);
        });
        const SoftmaxSum all = row_parts.join(mine, done++);
        const Gradient gradient(a, row, target, scale);
        const float inverse = scale / all.sum, factor = inverse * gradient.unit;

        // vector of logits that contains the target; the vector's thread computes and writes the row's loss
        const int from = target < 0 ? 0 : target / V;
        const bool owner = from >= begin && from < end && (from - begin) % threads == thread;
        float target_gradient = 0.0f;
        if (owner) {
            float loss = 0.0f;
            if (target >= 0) {
                const float logit = reader.element(here, target);
                target_gradient = (fast_exp(logit - all.max) * inverse - scale) * gradient.unit;
                loss = logf(all.sum) + all.max - logit;
                if (!isfinite(loss)) a.state->nonfinite = 1;
            }
            if (a.losses) a.losses[row] = loss;
        }
        if (a.backward) {
            each([&](int i, int real) {
                float x[V];
                unpack<V>(reader.read(here, i), x);
#pragma unroll
                for (int j = 0; j < V; j++) x[j] = j < real && target >= 0 ? fast_exp(x[j] - all.max) * factor : 0.0f;
                gradient.write(i, x);
                if (next) reader.fetch(next, i);
            });
            if (owner && target >= 0) gradient.element(target, target_gradient);
        } else if (next) {
            each([&](int i, int) { reader.fetch(next, i); });
        }
    }
}

// Launches the loss kernel with `shared` bytes of shared memory per block, and at most as many blocks as can run at
// once; if there are more rows, a block processes several. Returns false without launching if blocks share rows and the
// GPU cannot run even one cluster of a.parts blocks.
template <typename T, int V, bool STAGED, typename Gradient>
bool loss_launch(const CudaBackend *backend, const LossArguments &a, int threads, size_t shared) {
    const auto kernel = loss_kernel<T, V, STAGED, Gradient>;
    int at_once = 0;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
               "setting the shared memory of loss_kernel");
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {(unsigned)a.parts, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = a.parts;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    if (a.parts > 1) {
        config.attrs = &cluster;
        config.numAttrs = 1;
        CUDA_CHECK(cudaOccupancyMaxActiveClusters(&at_once, kernel, &config),
                   "querying how many clusters of loss_kernel fit");
        if (at_once == 0) return false;
    } else {
        CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, kernel, threads, shared),
                   "querying how many blocks of loss_kernel fit");
        at_once *= backend->sm_count;
    }
    config.gridDim = grid_of((a.rows < at_once ? a.rows : max(at_once, 1)) * a.parts);
    config.stream = backend->stream;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, a), "launching the kernel loss_kernel");
    return true;
}

// Chooses how many blocks share a row (parts), and launches the kernel. Doubles the number until four blocks, each with
// its part of a row in shared memory, fit in an SM, but not beyond LOSS_PARTS. Halves the number if the GPU cannot run
// that many blocks as a cluster. Each row has one block below compute capability 9.0 or if V is 1. Chooses STAGED if V
// is not 1 and a block's part of a row fits in shared memory.
template <typename T, int V, typename Gradient> void loss_run(const CudaBackend *backend, LossArguments a) {
    // An SM has 1 KiB more shared memory than a block may use. Each of four blocks gets a quarter of the SM's shared
    // memory. CUDA reserves 1 KiB of a quarter, and statistics take up to 2 KiB.
    const size_t four_fit = (backend->shared_bytes + (1 << 10)) / 4 - (3 << 10);
    const auto part = [&] { return (size_t)ceil_div(a.cols / V, a.parts) * sizeof(Pack<T, V>); };
    a.parts = 1;
    while (V > 1 && backend->code_capability >= 90 && a.parts < LOSS_PARTS && part() > four_fit) a.parts *= 2;
    for (bool launched = false; !launched; a.parts /= 2) {
        const int threads = a.parts > 1 ? LOSS_PART_THREADS : LOSS_THREADS;
        const size_t shared = RowParts::bytes(a.parts, threads / WARP);
        if constexpr (V > 1) {
            if (shared + part() <= backend->shared_bytes) {
                launched = loss_launch<T, V, true, Gradient>(backend, a, threads, shared + part());
                continue;
            }
        }
        launched = loss_launch<T, V, false, Gradient>(backend, a, threads, shared);
    }
}

// --- kernel that tests whether the target has the largest logit ------------------------------------------------------
// Computes best (rows): 1 if the row's target has the largest logit and no token of lower index has an equal logit,
// otherwise 0. Each block compares the logits of one row with the target's logit. loss_kernel does not compute `best`,
// because only evaluation needs it.
template <typename T, int V> __global__ __launch_bounds__(LOSS_THREADS) void best_kernel(LossArguments a, float *best) {
    const T *const row = (const T *)a.logits + blockIdx.x * a.stride;
    const int target = a.targets[blockIdx.x * a.target_stride];
    bool beaten = target < 0;
    if (target >= 0) {
        float logit;
        unpack<1>(load<1>(row + target), &logit);
        for (int i = (int)threadIdx.x * V; i < a.vocab; i += LOSS_THREADS * V) {
            float x[V];
            unpack<V>(load<V>(row + i), x);
#pragma unroll
            for (int j = 0; j < V; j++)
                beaten |= i + j < a.vocab && !(x[j] < logit || (x[j] == logit && i + j >= target));
        }
    }
    beaten = __syncthreads_or(beaten);
    if (threadIdx.x == 0) best[blockIdx.x] = beaten ? 0.0f : 1.0f;
}

// --- kernel that sums the losses of all tokens, and host code --------------------------------------------------------
constexpr int SUM_THREADS = 1024;

__global__ __launch_bounds__(SUM_THREADS) void loss_sum_kernel(const float *losses, int64_t count, StepState *state) {
    __shared__ double shared[SUM_THREADS / WARP];
    const double before = state->loss_sum; // read by all threads: a branch would delay the loads of the losses
    const float scale = state->loss_scale;
    double sum = 0.0;
// Unrolled by 4. The compiler would unroll by 16 and load the losses that remain, such as all of 4,096, one by one.
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < count; i += SUM_THREADS) sum += (double)losses[i];
    sum = block_sum<SUM_THREADS / WARP>(sum, shared);
    if (threadIdx.x == 0) state->loss_sum = before + (double)scale * sum;
}

} // namespace

// Computes the gradient of the loss in E5M2, and that gradient's transpose.
static void loss_codes(Exec *exec, const char *operation, LossArguments a, Tensor dlogits, Tensor dlogits_t,
                       Tensor logits) {
    require_format(operation, "the logits", logits, FMT_BF16);
    require_format(operation, "dlogits", dlogits, FMT_E5M2);
    require_format(operation, "the transposed dlogits", dlogits_t, FMT_E5M2);
    require_spans(operation, "the logits", logits);
    require_spans(operation, "dlogits", dlogits);
    a.codes = (uint8_t *)dlogits.data;
    a.codes_scale = (float *)dlogits.scale;
    a.codes_stride = dlogits.stride;
    loss_run<bf16, 8, GradientCodes<bf16, 8>>(cuda_backend(exec), a);
    fp8_transpose_codes(exec, dlogits_t, dlogits);
}

void cuda_loss_forward_backward(Exec *exec, Tensor dlogits, Tensor dlogits_t, Tensor losses, Tensor best, Tensor logits,
                                Tensor targets, int64_t first, int vocab, StepState *state) {
    const char *operation = "loss_forward_backward";
    require_format(operation, "losses", losses, FMT_FP32);
    require_format(operation, "targets", targets, FMT_I32);
    if (logits.rows == 0) return;
    LossArguments a = {};
    a.logits = logits.data;
    a.losses = (float *)losses.data;
    a.targets = (const int32_t *)targets.data;
    a.rows = logits.rows;
    a.first = first;
    a.stride = logits.stride;
    a.target_stride = targets.stride;
    a.cols = (int)logits.cols;
    a.vocab = vocab;
    a.backward = dlogits.data != NULL;
    a.state = state;
    if (best.data) { // before dlogits overwrites the logits
        require_format(operation, "best", best, FMT_FP32);
        for_layout(operation, logits.format, tensor_wide(logits), [&]<typename T, int V>(Layout<T, V>) {
            best_kernel<T, V><<<grid_of(a.rows), LOSS_THREADS, 0, cuda_backend(exec)->stream>>>(a, (float *)best.data);
        });
        LAUNCH_CHECK("best_kernel");
    }
    if (is_fp8(dlogits)) {
        loss_codes(exec, operation, a, dlogits, dlogits_t, logits);
        return;
    }
    if (dlogits.data && dlogits.data != logits.data)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: dlogits in %s must share the logits' memory", operation,
              format_name(dlogits.format));
    for_layout(operation, logits.format, tensor_wide(logits),
               [&]<typename T, int V>(Layout<T, V>) { loss_run<T, V, GradientInPlace<T, V>>(cuda_backend(exec), a); });
}

void cuda_loss_sum(Exec *exec, Tensor losses, StepState *state) {
    require_format("loss_sum", "losses", losses, FMT_FP32);
    loss_sum_kernel<<<1, SUM_THREADS, 0, cuda_backend(exec)->stream>>>((const float *)losses.data, losses.rows, state);
    LAUNCH_CHECK("loss_sum_kernel");
}
