// Group Scaling against its alternative in forward, outer-vector scales: one scale per token for activations, one per
// output channel for weights (cuBLASLt's OUTER_VEC_32F). A row's maximum is known inside the block that makes the row,
// so that no second pass over the activations is needed. Measured here for one block of GPT-2: the products with either
// kind of scales, what produces their inputs in two passes (the trainer's operations) and in one, the quantisation
// error, and the sum over a block's forward. Products are checked against each other and against sums on the host, the
// one-pass producers against the trainer's operations and the host.
//
//   bench_outer_vector [--quick]      --quick: GPT-2 1558M only, fewer repetitions
//
// What backward would have to change. A scale can be taken out of a sum only where it does not depend on the index that
// is summed over, and each of a layer's three products sums over another one:
// - forward, y = x w^T, over input channels: x per token and w per output channel are possible, as measured here.
// - weight gradient, dw = dy^T x, over tokens: a scale per token is not. n, g and o are quantised again with a scale per
//   tensor when they are rebuilt transposed, which happens anyway: from the saved x and h, and from o. The tensor's
//   maximum is the maximum of the row maxima, so its scale is the largest of the row scales: a reduction of M numbers, no
//   pass over the tensor. What that changes: the codes that backward multiplies are no longer those of forward but of
//   the same values rounded on another grid, and n, g or o that was saved cannot just be transposed. (The other way: the
//   token's scale goes into dy before dy is quantised for this product, dw = (s dy)^T codes. Then forward's codes serve
//   as they are, but dy is needed twice, quantised differently: one more write of it, and its transpose cannot come from
//   the same codes.)
// - gradient of the input, dx = dy w, over output channels: w's scales per output channel lie along the sum. w^T gets
//   codes of its own, with a scale per tensor or per input channel, whose maxima are those of columns: the optimizer
//   would have to leave both, and w^T cannot be made from w's codes by transposing (as it is without
//   --cache-transposed). dy could be per token.
#include "outer_check.h"

#define MOST_PARTS 8

// What a block's forward has of one operation, both ways.
typedef struct {
    const char *name;
    int times; // in a block
    double ms[WAYS];
} Part;

typedef struct {
    Report report;
    double product_rate; // of a large FP8 product, operations per second
    Model model;
    Part parts[MOST_PARTS];
    int count, producers; // the first parts are producers
    double attention_ms;
    int wrong;
} Block;

// --- time ---------------------------------------------------------------------------------------------------
typedef struct {
    void (*run)(Bench *, void *);
    void *context;
} Timed;

// Milliseconds of both ways, in turns, so that a clock that falls meets both: the median of three each.
static void time_in_turns(Bench *bench, const Timed timed[WAYS], double ms[WAYS]) {
    enum { ROUNDS = 3 };
    float times[WAYS][ROUNDS];
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++)
            times[way][round] = (float)bench_steady_ms(bench, timed[way].run, timed[way].context);
    for (int way = 0; way < WAYS; way++) {
        qsort(times[way], ROUNDS, sizeof times[way][0], bench_compare);
        ms[way] = (double)times[way][ROUNDS / 2];
    }
}

static Part *part_add(Block *block, const char *name, int times) {
    Part *part = &block->parts[block->count++];
    part->name = name, part->times = times;
    return part;
}

// --- producers ----------------------------------------------------------------------------------------------
// Bytes per element that the passes read and write, scales of rows and statistics apart.
typedef struct {
    const char *name;
    Producer producer;
    int times; // in a block
    bool wide; // 4 C columns
    double bytes[WAYS];
} ProducerRow;

static constexpr double SAVED = 1 + 2.0 / OUTER_GROUP; // a code and its part of a scale
static const ProducerRow producer_rows[PRODUCERS] = {
    {"residual + norm", PRODUCE_NORM, 2, false, {6 + 2 * SAVED + 1, 6 + SAVED + 1}},
    {"quantise o", PRODUCE_QUANTIZE, 1, false, {5, 3}},
    {"gelu", PRODUCE_GELU, 1, true, {2 + 2 * SAVED + 1, 2 + SAVED + 1}}};

// The one-pass gelu as few or as many blocks as its registers allow, whichever is faster.
static void gelu_choose(Bench *bench, Operand *o) {
    double ms[2];
    for (int many = 0; many < 2; many++) {
        o->many_blocks = many;
        ms[many] = bench_median_ms(bench, run_by_row, o);
    }
    o->many_blocks = ms[1] < ms[0];
    printf("gelu in one pass: %.4f ms with few blocks, %.4f ms with many\n", ms[0], ms[1]);
}

static void bench_producer(Block *block, const ProducerRow *p) {
    Bench *bench = block->report.bench;
    const int64_t M = (int64_t)block->model.B * block->model.T, cols = (int64_t)block->model.C * (p->wide ? 4 : 1);
    Operand o;
    operand_open(bench, &o, p->producer, M, cols);
    if (p->producer == PRODUCE_GELU) gelu_choose(bench, &o);
    block->wrong += !producer_right(bench, &o, p->name);
    report_errors(bench, &o, p->name);
    Part *part = part_add(block, p->name, p->times);
    const Timed timed[WAYS] = {{run_by_tensor, &o}, {run_by_row, &o}};
    time_in_turns(bench, timed, part->ms);
    for (int way = 0; way < WAYS; way++) {
        char name[32], shape[48];
        snprintf(name, sizeof name, "%s, %s", p->name, way_names[way]);
        snprintf(shape, sizeof shape, "%lld x %lld", (long long)M, (long long)cols);
        report_line(&block->report, name, shape, p->bytes[way] * (double)M * (double)cols, part->ms[way]);
    }
    operand_close(bench, &o);
}

// --- products -----------------------------------------------------------------------------------------------
typedef struct {
    Tensor y, x, bias;
    Weight w;
} TrainerProduct;

static void run_trainer_product(Bench *bench, void *context) {
    const TrainerProduct *p = (const TrainerProduct *)context;
    bench->exec.ops->linear_forward(&bench->exec, p->y, p->x, p->w, p->bias);
}

static void product_print(const Block *block, const OuterProduct *p, const char *how, double ms) {
    const double flops = 2.0 * (double)p->x.rows * (double)p->x.cols * (double)p->w.rows;
    printf("%-8s %-7s %7lld x %5lld <- %5lld %-9s %9.4f ms %6.0f TFLOP/s %5.1f %%  %s\n", p->name, way_names[p->way],
           (long long)p->x.rows, (long long)p->w.rows, (long long)p->x.cols, p->bias.data ? "with bias" : "", ms,
           flops / ms * 1e-9, 100 * flops / ms * 1e3 / block->product_rate, how);
}

// Both ways with the library's first choice, and with the fastest of its algorithms. The latter counts; where there is
// none for outer vectors, not a number.
static void time_products(Block *block, OuterProduct product[WAYS], Part *part) {
    Bench *bench = block->report.bench;
    const Timed timed[WAYS] = {{run_outer_product, &product[BY_TENSOR]}, {run_outer_product, &product[BY_ROW]}};
    double first[WAYS];
    time_in_turns(bench, timed, first);
    for (int way = 0; way < WAYS; way++) product_choose(bench, &product[way]);
    time_in_turns(bench, timed, part->ms);
    for (int way = 0; way < WAYS; way++) {
        char how[64];
        product_print(block, &product[way], "the library's first choice", first[way]);
        snprintf(how, sizeof how, "number %d of %d, the fastest", product[way].chosen + 1, product[way].count);
        product_print(block, &product[way], how, part->ms[way]);
    }
}

static void bench_product(Block *block, const char *name, int64_t in, int64_t out, bool with_bias) {
    Bench *bench = block->report.bench;
    const int64_t M = (int64_t)block->model.B * block->model.T;
    Part *part = part_add(block, name, 1);
    part->ms[BY_TENSOR] = part->ms[BY_ROW] = NAN;
    OuterProduct product[WAYS] = {};
    TrainerProduct trainer = {};
    trainer.x = bench_tensor(bench, M, in, FMT_E4M3, CODE_DEVIATION);
    trainer.w.codes = trainer.w.value = bench_tensor(bench, out, in, FMT_E4M3, CODE_DEVIATION);
    if (with_bias) trainer.bias = bench_tensor(bench, 1, out, FMT_BF16, 1000.0f); // not lost in the sums
    bool open = true;
    for (int way = 0; way < WAYS; way++) {
        OuterProduct *p = &product[way];
        p->name = name, p->way = (Way)way;
        p->x = trainer.x, p->w = trainer.w.codes, p->bias = trainer.bias;
        p->y = bench_tensor(bench, M, out, FMT_BF16, 1.0f);
        p->scale_x = (float *)bench_allocate(bench, (size_t)M * sizeof(float));
        p->scale_w = (float *)bench_allocate(bench, (size_t)out * sizeof(float));
        product_scales(bench, p, true);
        open = product_open(bench, p) && open;
    }
    trainer.y = product[BY_TENSOR].y;
    if (open) {
        // a bias that outer vectors do not allow is left out of the comparison of the results, but not of the times
        const bool same_bias = product[BY_TENSOR].bias.data == product[BY_ROW].bias.data;
        time_products(block, product, part);
        if (same_bias) block->wrong += !products_agree(bench, product);
        block->wrong += !product_right(bench, &product[BY_ROW]);
    } else if (product[BY_TENSOR].count > 0) {
        product_choose(bench, &product[BY_TENSOR]);
        part->ms[BY_TENSOR] = bench_steady_ms(bench, run_outer_product, &product[BY_TENSOR]);
        product_print(block, &product[BY_TENSOR], "the fastest", part->ms[BY_TENSOR]);
    }
    if (product[BY_TENSOR].count > 0)
        product_print(block, &product[BY_TENSOR], "as the trainer runs it",
                      bench_steady_ms(bench, run_trainer_product, &trainer));
    for (OuterProduct &p : product) {
        product_close(&p);
        bench_release(bench, p.y);
        bench->exec.ops->release(&bench->exec, p.scale_x);
        bench->exec.ops->release(&bench->exec, p.scale_w);
    }
    bench_release(bench, trainer.x);
    bench_release(bench, trainer.w.codes);
    bench_release(bench, trainer.bias);
}

// --- attention ----------------------------------------------------------------------------------------------
// The rest of a block's forward, the same both ways.
typedef struct {
    AttentionShape shape;
    Tensor qkv, o, lse;
} Attention;

static void run_attention(Bench *bench, void *context) {
    const Attention *a = (const Attention *)context;
    const int64_t C = a->o.cols;
    bench->exec.ops->attention_forward(&bench->exec, a->o, a->lse, tensor_cols(a->qkv, 0, C), tensor_cols(a->qkv, C, C),
                                       tensor_cols(a->qkv, 2 * C, C), a->shape);
}

static double attention_ms(Bench *bench, const AttentionShape *shape) {
    const int64_t M = (int64_t)shape->B * shape->T, C = (int64_t)shape->heads * shape->head_dim;
    Attention a = {};
    a.shape = *shape;
    a.qkv = bench_tensor(bench, M, 3 * C, FMT_BF16, 1.0f);
    a.o = bench_tensor(bench, M, C, FMT_BF16, 1.0f);
    a.lse = bench_tensor(bench, (int64_t)shape->B * shape->heads, shape->T, FMT_FP32, 1.0f);
    const double ms = bench_steady_ms(bench, run_attention, &a);
    bench_release(bench, a.qkv);
    bench_release(bench, a.o);
    bench_release(bench, a.lse);
    return ms;
}

// --- a block ------------------------------------------------------------------------------------------------
static void print_row(const char *name, int times, const double ms[WAYS], double forward) {
    printf("| %s | %d | %.4f | %.4f | %+.4f | %+.2f %% |\n", name, times, ms[BY_TENSOR], ms[BY_ROW],
           ms[BY_ROW] - ms[BY_TENSOR], 100 * (ms[BY_ROW] - ms[BY_TENSOR]) / forward);
}

// Per operation as often as a block has it, with the difference in percent of the block's forward by tensor scales.
static void print_table(const Block *block) {
    double sums[3][WAYS] = {}; // producers, products, all
    for (int i = 0; i < block->count; i++) {
        for (int way = 0; way < WAYS; way++) {
            const double ms = block->parts[i].times * block->parts[i].ms[way];
            sums[i >= block->producers][way] += ms;
            sums[2][way] += ms;
        }
    }
    for (double &ms : sums[2]) ms += block->attention_ms;
    const double forward = sums[2][BY_TENSOR];
    printf(
        "\n| %s, one block's forward | times | tensor scales, ms | outer vectors, ms | difference | of the forward |\n"
        "| --- | --- | --- | --- | --- | --- |\n",
        block->model.name);
    for (int i = 0; i < block->count; i++) {
        const Part *part = &block->parts[i];
        const double ms[WAYS] = {part->times * part->ms[BY_TENSOR], part->times * part->ms[BY_ROW]};
        print_row(part->name, part->times, ms, forward);
    }
    const double attention[WAYS] = {block->attention_ms, block->attention_ms};
    print_row("attention", 1, attention, forward);
    print_row("all producers", 1, sums[0], forward);
    print_row("all products", 1, sums[1], forward);
    print_row("forward", 1, sums[2], forward);
    if (isnan(sums[2][BY_ROW])) printf("incomplete: a product could not be run, see above\n");
}

// Scales are FP32; one of a tensor takes 16 bytes, to be aligned. By row: a row's width of weights (3 C + C + 4 C + C)
// and, for all layers together, a vector per product's input; its tensor scale as before, for backward.
static void print_memory(const Model *model) {
    const double M = (double)model->B * model->T, C = model->C, L = model->L, tensors = 8 * 16;
    printf(
        "\nmemory for scales: by tensor %.1f KB in %d layers; outer vectors %.1f KB for the weights, %.1f KB for the "
        "inputs of one layer's products, shared by all, and %.1f KB of tensor scales for backward\n",
        L * tensors * 1e-3, model->L, L * 9 * C * 4 * 1e-3, 4 * M * 4 * 1e-3, L * tensors * 1e-3);
}

static void bench_block(Block *block) {
    const int64_t C = block->model.C;
    const AttentionShape shape = {block->model.B, block->model.T, (int)C / 64, (int)C / 64, 64};
    printf("\n%s, %lld tokens, C %lld\n", block->model.name, (long long)block->model.B * block->model.T, (long long)C);
    for (const ProducerRow &p : producer_rows) bench_producer(block, &p);
    block->producers = block->count;
    bench_product(block, "qkv", C, 3 * C, true);
    bench_product(block, "proj", C, C, false);
    bench_product(block, "fc", C, 4 * C, false);
    bench_product(block, "fcproj", 4 * C, C, false);
    block->attention_ms = attention_ms(block->report.bench, &shape);
    print_table(block);
    print_memory(&block->model);
}

// Opens the GPU with the workspace of this model, measures, closes. Returns how many checks failed.
static int bench_model(Bench *bench, const Model *model) {
    ModelShape *shape = &bench->config.shape;
    bench->exec = {};
    bench->config.micro_batch = model->B, bench->config.seq_len = model->T;
    shape->heads = shape->kv_heads = model->C / 64, shape->head_dim = 64;
    shape->channels = model->C, shape->ffn = 4 * model->C;
    bench_open(bench);
    bench->exec.state = (StepState *)bench_allocate(bench, sizeof(StepState));
    bench->exec.ops->zero(&bench->exec, bench->exec.state, sizeof(StepState));
    Block block = {};
    block.model = *model;
    block.report = report_open(bench);
    block.product_rate = bench_product_ceiling(bench, FMT_E4M3);
    bench_block(&block);
    report_close(&block.report);
    bench->exec.ops->release(&bench->exec, bench->exec.state);
    bench_close(bench);
    return block.wrong;
}

int main(int argc, char **argv) {
    static Bench bench; // zero; its configuration is large
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            bench.quick = true;
        else
            fatal(EXIT_USER, "usage: bench_outer_vector [--quick], not %s", argv[i]);
    }
    const Model models[] = {{"GPT-2 1558M", 16, 1024, 1600, 48}, {"GPT-2 124M", 64, 1024, 768, 12}};
    int wrong = 0;
    for (int i = 0; i < (bench.quick ? 1 : 2); i++) wrong += bench_model(&bench, &models[i]);
    printf("\n%s\n", wrong ? "WRONG results, see above" : "all results are right");
    return wrong ? EXIT_USER : EXIT_DONE;
}
