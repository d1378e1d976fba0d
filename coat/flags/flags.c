// The table of flags, and how one is found in it.
#include "flags.h"

#include <strings.h>

#define AT(field) offsetof(Config, field), sizeof(((Config *)0)->field)
#define NOWHERE 0, 0
#define BIG 9e15 // the largest count a flag takes: exact in a double

// clang-format off
static const Flag table[] = {
    {GROUP_DATA, "train", FLAG_TRAIN, NOWHERE, "GLOB", 0, 0, "none",
     "token files to train on: a quoted pattern, or several names and patterns; several --train add up"},
    {GROUP_DATA, "train-weight", FLAG_WEIGHT, NOWHERE, "X", 1e-9, 1e9, "none",
     "share of the sequences that come from the --train before it, beside the weights of the others: "
     "--train 'a/*.bin' --train-weight 0.7 --train 'b/*.bin' --train-weight 0.3; none: as if one --train named all"},
    {GROUP_DATA, "val", FLAG_STRING, AT(val), "GLOB", 0, 0, "none", "token files held out for validation: a quoted pattern, or several names and patterns; the last --val counts"},
    {GROUP_DATA, "tokenizer", FLAG_TOKENIZER, NOWHERE, "bytes|gpt2|FILE", 0, 0, "gpt2",
     "what the tokens are; fixes the vocabulary of a new model (257 for bytes, 50257 for gpt2); FILE: tokenizer.json, tokenizer.model, "
     "GPT-2's vocabulary, or the folder of one"},
    {GROUP_DATA, "shuffle", FLAG_BOOL, AT(shuffle), "", 0, 0, NULL, "visit the training windows in random order"},

    {GROUP_MODEL, "model", FLAG_STRING, AT(model), "NAME|PATH", 0, 0, "gpt2",
     "gpt2, gpt2-medium, gpt2-large, gpt2-xl, d1 to d96 (a new GPT-2 of that depth), gpt3:cN (of that width), "
     "llama2-7b -13b, llama-30b, llama3-8b, llama3.1-8b, llama3.2-1b -3b, mistral-7b, tinyllama, smollm2-135m, olmo-1b -7b, olmo2-1b -7b -13b, "
     "qwen2.5-0.5b to -14b, qwen3-0.6b to -8b, llama:dN, olmo:dN, olmo2:dN, qwen2:dN, qwen3:dN (of that depth), "
     "or a checkpoint folder or weight file to start from; a run that is resumed has its own"},
    {GROUP_MODEL, "layers", FLAG_INT, AT(shape.layers), "N", 1, MAX_LAYERS, "%s, from --model", "number of blocks"},
    {GROUP_MODEL, "heads", FLAG_INT, AT(shape.heads), "N", 1, MAX_HEADS, "%s, from --model, else channels / 64 where that is whole",
     "attention heads"},
    {GROUP_MODEL, "kv-heads", FLAG_INT, AT(shape.kv_heads), "N", 1, MAX_HEADS, "%s, from --model, else as --heads",
     "key and value heads; divides --heads"},
    {GROUP_MODEL, "head-dim", FLAG_INT, AT(shape.head_dim), "N", 1, WIDEST_HEAD, "%s, from --model, else channels / heads", "width of a head"},
    {GROUP_MODEL, "channels", FLAG_INT, AT(shape.channels), "N", 1, MAX_CHANNELS, "%s, from --model",
     "width of the residual stream"},
    {GROUP_MODEL, "ffn", FLAG_INT, AT(shape.ffn), "N", 1, MAX_FFN, "%s, from --model, else 4 * channels",
     "inner width of the MLP; with swiglu its default is 8/3 * channels, up to a multiple of 128"},
    {GROUP_MODEL, "vocab", FLAG_INT, AT(shape.vocab), "N", 1, MAX_VOCAB, "%s, from --tokenizer",
     "number of token ids; padded to a multiple of 128 in memory"},
    {GROUP_MODEL, "positions", FLAG_INT, AT(shape.positions), "TOKENS", 1, MAX_POSITIONS, "%s, from --model, at least --seq-len",
     "the longest sequence that the model can take"},
    {GROUP_MODEL, "norm", FLAG_CHOICE, AT(shape.norm), "layer|rms|plain", 0, 0, NULL, "normalisation"},
    {GROUP_MODEL, "norm-place", FLAG_CHOICE, AT(shape.norm_place), "before|after", 0, 0, NULL,
     "the norms of a block: of what attention and MLP read, or of what they add, as in OLMo 2"},
    {GROUP_MODEL, "norm-eps", FLAG_FLOAT, AT(shape.norm_eps), "X", MIN_NORM_EPS, MAX_NORM_EPS, NULL,
     "added to the variance in the norms"},
    {GROUP_MODEL, "activation", FLAG_CHOICE, AT(shape.activation), "gelu|swiglu", 0, 0, NULL,
     "of the MLP; gelu is the tanh form"},
    {GROUP_MODEL, "position-encoding", FLAG_CHOICE, AT(shape.position_kind), "learned|rotary", 0, 0, NULL,
     "how positions enter the model"},
    {GROUP_MODEL, "biases", FLAG_BOOL, AT(shape.biases), "", 0, 0, NULL, "biases in linear layers and norms"},
    {GROUP_MODEL, "qkv-biases", FLAG_BOOL, AT(shape.qkv_biases), "", 0, 0, NULL,
     "with --no-biases: biases of q, k and v alone, as Qwen2 has them"},
    {GROUP_MODEL, "qk-norm", FLAG_CHOICE, AT(shape.qk_norm), "none|row|head", 0, 0, NULL,
     "an RMS norm of q and of k before they are rotated: none, over all heads, or of each head, as Qwen3 has it"},
    {GROUP_MODEL, "clip-qkv", FLAG_FLOAT, AT(shape.clip_qkv), "X", 0, MAX_CLIP_QKV, NULL,
     "limit q, k and v to -X ... X, as OLMo 0424 does; 0: no limit"},
    {GROUP_MODEL, "rope-theta", FLAG_FLOAT, AT(shape.rope_theta), "X", MIN_ROPE_THETA, MAX_ROPE_THETA, NULL,
     "base of the rotary frequencies"},
    {GROUP_MODEL, "rope-factor", FLAG_FLOAT, AT(shape.rope.factor), "X", MIN_ROPE_FACTOR, MAX_ROPE_FACTOR, NULL,
     "long rotary wavelengths are stretched X times, as in Llama 3.1; 1: none"},
    {GROUP_MODEL, "rope-low", FLAG_FLOAT, AT(shape.rope.low), "X", MIN_ROPE_BAND, MAX_ROPE_BAND, NULL,
     "with --rope-factor: wavelengths above --rope-positions / X are stretched"},
    {GROUP_MODEL, "rope-high", FLAG_FLOAT, AT(shape.rope.high), "X", MIN_ROPE_BAND, MAX_ROPE_BAND, NULL,
     "with --rope-factor: those below --rope-positions / X are not"},
    {GROUP_MODEL, "rope-positions", FLAG_INT, AT(shape.rope.positions), "TOKENS", 1, MAX_POSITIONS, NULL,
     "with --rope-factor: the longest sequence of the model that is stretched"},
    {GROUP_MODEL, "init", FLAG_CHOICE, AT(shape.init), "normal|mitchell|truncated", 0, 0, NULL,
     "first weights. normal: N(0, 0.02), GPT-2's; mitchell: OLMo's, by the widths and the layer; truncated: "
     "N(0, 0.02) within 3 deviations"},
    {GROUP_MODEL, "tied-head", FLAG_BOOL, AT(shape.tied_head), "", 0, 0, NULL,
     "the output head is the token embedding"},

    {GROUP_RECIPE, "recipe", FLAG_CHOICE, AT(recipe.kind), RECIPE_NAMES, 0, 0, NULL,
     "sets the flags of this group; single ones override it, in any order"},
    {GROUP_RECIPE, "precision", FLAG_CHOICE, AT(recipe.precision), PRECISION_NAMES, 0, 0, NULL,
     "fp32: everything in FP32, for exact comparisons"},
    {GROUP_RECIPE, "linear", FLAG_CHOICE, AT(recipe.linear), LINEAR_NAMES, 0, 0, "%s, by --recipe",
     "the blocks' matmuls"},
    {GROUP_RECIPE, "bf16-blocks", FLAG_INT, AT(recipe.bf16_blocks), "N", -1, MAX_LAYERS, "%s, by --recipe",
     "with --linear fp8: in the first N blocks forward's matmuls of attention, and of norms that --recompute makes again, "
     "stay in BF16; -1: a third of all, 1 to 4"},
    {GROUP_RECIPE, "head", FLAG_CHOICE, AT(recipe.head), HEAD_NAMES, 0, 0, "%s, by --recipe",
     "the output head's matmuls; fp8: at 124M 12 % faster, and the loss 0.1 % higher; fp8-backward: logits in BF16, "
     "gradients from FP8 codes, 8 % faster"},
    {GROUP_RECIPE, "saved", FLAG_CHOICE, AT(recipe.saved), SAVED_NAMES, 0, 0, "%s, by --recipe",
     "what is saved for backward; coat: FP8 per group"},
    {GROUP_RECIPE, "recompute", FLAG_INT, AT(recipe.recompute), "0|1|2|3", 0, 3, "%s, by --recipe",
     "0: save all; 1: recompute the activation function in backward; 2: the norms too (with --saved coat, 1 does both); 3: "
     "whole blocks, of which only the residual stream that each began with is saved"},
    {GROUP_RECIPE, "group-size", FLAG_INT, AT(recipe.group_size), "16|32|128", 16, 128, "%s, by --recipe",
     "elements that share a scale in saved activations"},
    {GROUP_RECIPE, "grads", FLAG_FORMAT, AT(recipe.grads), "bf16|fp32", 0, 0, "%s, by --recipe",
     "gradients of the linear layers' weights"},
    {GROUP_RECIPE, "moments", FLAG_CHOICE, AT(recipe.moments), MOMENTS_NAMES, 0, 0, "%s, by --recipe",
     "AdamW's two moments; coat: FP8 with dynamic range expansion"},
    {GROUP_RECIPE, "moments-fp32", FLAG_STRING, AT(recipe.moments_fp32), "PATTERN", 0, 0, "none",
     "tensors whose moments stay FP32, of wte, qkvw, projw, fcw, fcprojw, headw: names or beginnings (fc*), comma-separated; or none"},
    {GROUP_RECIPE, "master", FLAG_CHOICE, AT(recipe.master), MASTER_NAMES, 0, 0, "%s, by --recipe",
     "master weights; split16: the 16 bits that BF16 lacks; none: stochastic rounding"},
    {GROUP_RECIPE, "cache-transposed", FLAG_BOOL, AT(recipe.cache_transposed), "", 0, 0, NULL,
     "keep the transposed FP8 weight codes too: more memory, less work"},
    {GROUP_RECIPE, "fast-accumulation-data", FLAG_BOOL, AT(recipe.fast_accumulation_data), "", 0, 0, NULL,
     "the tensor cores' shorter accumulation in the FP8 matmuls of data gradients, as in those of forward; at 124M the loss is 0.06 % higher"},

    {GROUP_BATCH, "micro-batch", FLAG_INT, AT(micro_batch), "B", 1, MAX_MICRO_BATCH, NULL,
     "sequences per GPU in one forward and backward pass"},
    {GROUP_BATCH, "seq-len", FLAG_INT, AT(seq_len), "TOKENS", 1, MAX_POSITIONS, NULL,
     "tokens per sequence; of a sample alone the most that it reads"},
    {GROUP_BATCH, "examples", FLAG_CHOICE, AT(examples), EXAMPLES_NAMES, 0, 0, NULL,
     "of files with a mask. Sequences are made of whole ones, and longer ones lose their end (cut) or are refused (whole); "
     "or all follow each other and are split wherever a sequence ends (split)"},
    {GROUP_BATCH, "documents", FLAG_CHOICE, AT(documents), DOCUMENTS_NAMES, 0, 0, NULL,
     "apart: attention and positions begin anew with each document, or example, of a sequence"},
    {GROUP_BATCH, "batch-tokens", FLAG_INT64, AT(batch_tokens), "TOKENS", 0, BIG, "one micro-batch per GPU",
     "tokens per optimizer step over all GPUs; 512k is 524288; 0: one micro-batch per GPU"},
    {GROUP_BATCH, "logits-chunk", FLAG_INT, AT(logits_chunk), "TOKENS", 0, 1 << 30, "chosen",
     "tokens whose logits exist at a time"},

    {GROUP_OPTIMIZER, "steps", FLAG_INT64, AT(steps), "STEPS", -1, BIG, NULL,
     "optimizer steps, 20k is 20000; -1: as --epochs says"},
    {GROUP_OPTIMIZER, "epochs", FLAG_INT, AT(epochs), "N", 1, 1 << 20, NULL,
     "in place of --steps: passes over the training data, each in an order of its own"},
    {GROUP_OPTIMIZER, "lr", FLAG_FLOAT, AT(lr), "RATE", 0, 1e3, NULL, "the largest learning rate"},
    {GROUP_OPTIMIZER, "warmup", FLAG_INT64, AT(warmup), "STEPS", 0, BIG, NULL,
     "steps of linear warm-up; may exceed --steps"},
    {GROUP_OPTIMIZER, "schedule", FLAG_CHOICE, AT(schedule), SCHEDULE_NAMES, 0, 0, NULL,
     "the learning rate after the warm-up"},
    {GROUP_OPTIMIZER, "lr-final", FLAG_FLOAT, AT(lr_final), "FRACTION", 0, 1, NULL,
     "last learning rate, as a share of --lr"},
    {GROUP_OPTIMIZER, "decay-fraction", FLAG_FLOAT, AT(decay_fraction), "FRACTION", 0, 1, NULL,
     "wsd: the share of the steps in the final decay"},
    {GROUP_OPTIMIZER, "weight-decay", FLAG_FLOAT, AT(weight_decay), "X", 0, 1e3, NULL, "decoupled, on 2-D weights only"},
    {GROUP_OPTIMIZER, "beta1", FLAG_FLOAT, AT(beta1), "X", 0, 0.999999, NULL, "decay of the first moment"},
    {GROUP_OPTIMIZER, "beta2", FLAG_FLOAT, AT(beta2), "X", 0, 0.999999, NULL, "decay of the second moment"},
    {GROUP_OPTIMIZER, "eps", FLAG_FLOAT, AT(eps), "X", 1e-30, 1, NULL, "added to the root of the second moment"},
    {GROUP_OPTIMIZER, "grad-clip", FLAG_FLOAT, AT(grad_clip), "NORM", 0, 1e30, NULL,
     "largest norm of the whole gradient; 0: no clipping"},
    {GROUP_OPTIMIZER, "seed", FLAG_SEED, AT(seed), "N", 0, 0, NULL, "of initialisation, data order and samples"},
    {GROUP_OPTIMIZER, "max-skipped", FLAG_INT, AT(max_skipped), "N", 1, 1 << 30, NULL,
     "stop after this many skipped updates in a row"},
    {GROUP_OPTIMIZER, "skip-loss-z", FLAG_FLOAT, AT(skip_loss_z), "Z", 0, 1e6, NULL,
     "skip an update whose loss is this many standard deviations high; 0: off"},
    {GROUP_OPTIMIZER, "skip-grad-z", FLAG_FLOAT, AT(skip_grad_z), "Z", 0, 1e6, NULL,
     "the same for the norm of the gradient; 0: off"},

    {GROUP_EVALUATION, "val-every", FLAG_INT64, AT(val_every), "STEPS", 0, BIG, NULL,
     "steps between validations; 0: only at the end"},
    {GROUP_EVALUATION, "val-batches", FLAG_INT, AT(val_batches), "N", -1, 1 << 30, NULL,
     "micro-batches per validation; -1: every full sequence of the data, whatever the micro-batch"},
    {GROUP_EVALUATION, "hellaswag", FLAG_STRING, AT(hellaswag), "FILE", 0, 0, "none",
     "examples of HellaSwag in llm.c's format, to report how many endings the model gets right"},
    {GROUP_EVALUATION, "hellaswag-every", FLAG_INT64, AT(hellaswag_every), "STEPS", 0, BIG, "as --val-every",
     "steps between these; 0: only at the end"},
    {GROUP_EVALUATION, "sample-every", FLAG_INT64, AT(sample_every), "STEPS", 0, BIG, NULL,
     "steps between samples of text; 0: only at the end"},
    {GROUP_EVALUATION, "sample-tokens", FLAG_INT, AT(sample_tokens), "TOKENS", 0, 1 << 24, NULL,
     "tokens per sample, fewer where a text from --prompt ends; 0: no samples"},
    {GROUP_EVALUATION, "health-every", FLAG_INT64, AT(health_every), "STEPS", 0, BIG, NULL,
     "steps between lines in the log on how the FP8 tensors fit their scales; 0: none"},
    {GROUP_EVALUATION, "health-products", FLAG_INT64, AT(health_products), "STEPS", 0, BIG, NULL,
     "steps between comparisons of a weight gradient of every layer, made by FP8 matmuls, with BF16's; 0: none"},
    {GROUP_EVALUATION, "prompt", FLAG_STRING, AT(prompt), "TEXT", 0, 0, "none",
     "start of the samples; without --train, print them and end"},
    {GROUP_EVALUATION, "prompt-format", FLAG_CHOICE, AT(prompt_format), "none|plain|alpaca|chatml|qwen|llama2|llama3|data", 0, 0, NULL,
     "what is around it, as data/prepare.py --chat has it; none: nothing, data: what the files of --train name. "
     "Checkpoints have the format's chat template and the token that ends its answers"},
    {GROUP_EVALUATION, "samples", FLAG_INT, AT(samples), "N", 1, 1 << 20, NULL, "samples each time"},
    {GROUP_EVALUATION, "temperature", FLAG_FLOAT, AT(temperature), "X", 0, 100, NULL,
     "of the samples; 0: always the most likely token"},
    {GROUP_EVALUATION, "top-k", FLAG_INT, AT(top_k), "K", 0, 1 << 24, NULL,
     "sample from the K most likely tokens only; 0: from all"},
    {GROUP_EVALUATION, "top-p", FLAG_FLOAT, AT(top_p), "P", 0, 1, NULL,
     "of these from the fewest most likely whose probabilities sum to P; 1: from all"},
    {GROUP_EVALUATION, "eval-only", FLAG_BOOL, AT(eval_only), "", 0, 0, NULL, "report the validation loss, and HellaSwag if asked for, and end"},
    {GROUP_EVALUATION, "overfit-one-batch", FLAG_BOOL, AT(overfit_one_batch), "", 0, 0, NULL,
     "train on the first batch again and again, as a check"},

    {GROUP_FILES, "config", FLAG_CONFIG, NOWHERE, "FILE", 0, 0, "none",
     "take flags from FILE, one per line as here (--lr 3e-4), # for comments; those on the command line win"},
    {GROUP_FILES, "out", FLAG_STRING, AT(out), "DIR", 0, 0, "none",
     "where logs and checkpoints go; none are written without it"},
    {GROUP_FILES, "save-every", FLAG_INT64, AT(save_every), "STEPS", 0, BIG, NULL,
     "steps between checkpoints; 0: only at the end"},
    {GROUP_FILES, "keep", FLAG_INT, AT(keep), "N", 0, 1 << 30, NULL, "newest checkpoints that are kept; 0: all"},
    {GROUP_FILES, "keep-every", FLAG_INT64, AT(keep_every), "STEPS", 0, BIG, NULL,
     "checkpoints at multiples of this step are never removed; 0: none"},
    {GROUP_FILES, "resume", FLAG_RESUME, NOWHERE, "STEP", 0, BIG, "off",
     "continue from the newest checkpoint in --out, or from that of STEP, with its model and settings; flags win; before "
     "the first checkpoint begin with those in --out's log"},
    {GROUP_FILES, "allow-other-data", FLAG_BOOL, AT(allow_other_data), "", 0, 0, NULL,
     "resume although --train names other data than before; the position is kept as a number of sequences"},
    {GROUP_FILES, "overwrite", FLAG_BOOL, AT(overwrite), "", 0, 0, NULL, "replace what an earlier run left in --out"},

    {GROUP_RUN, "device", FLAG_CHOICE, AT(device), "auto|cpu|cuda", 0, 0, NULL, "where the model runs"},
    {GROUP_RUN, "threads", FLAG_INT, AT(threads), "N", 1, 4096, "all cores", "of the CPU backend"},
    {GROUP_RUN, "offload-states", FLAG_BOOL, AT(offload_states), "", 0, 0, NULL,
     "keep moments and master weights in the host's memory, where the GPU updates them through the bus; a CPU has them there "
     "anyway"},
    {GROUP_RUN, "plan", FLAG_PLAN, NOWHERE, "json", 0, 0, "off",
     "print the memory plan and end; reads no data, needs no GPU"},
    {GROUP_RUN, "memory-limit", FLAG_BYTES, AT(memory_limit), "SIZE", 0, 0, "none",
     "with --plan, find the largest micro-batch whose plan is within SIZE, what is beside it not counted: 80GB or 80G "
     "(10^9 bytes), 75GiB (2^30)"},
    {GROUP_RUN, "gpus", FLAG_INT, AT(gpus), "N", 1, 1 << 20, NULL, "with --plan, how many GPUs to plan for"},
    {GROUP_RUN, "profile", FLAG_INT64, AT(profile), "STEP", 1, BIG, "none",
     "mark this step for a profiler (cudaProfilerStart and -Stop around it)"},
    {GROUP_RUN, "autotune", FLAG_BOOL, AT(autotune), "", 0, 0, NULL,
     "time the GPU's matmul algorithms as training meets them; one process; writes --out's matmul_table.txt"},
    {GROUP_RUN, "matmul-table", FLAG_STRING, AT(matmul_table), "FILE", 0, 0, "none",
     "take matmul algorithms from such a table; what is resumed takes those of its checkpoint first"},
    {GROUP_RUN, "time-limit", FLAG_DURATION, AT(time_limit_ms), "TIME", 0, 0, "none",
     "save and end before this time has passed since the start (3h50m, 1d12h, 90s)"},
    {GROUP_RUN, "log-every", FLAG_INT64, AT(log_every), "STEPS", 1, BIG, NULL,
     "steps between lines on the terminal; the first, the last and those with a validation, a sample or a warning are shown too, and log.jsonl has all"},
    {GROUP_RUN, "quiet", FLAG_BOOL, AT(quiet), "", 0, 0, NULL, "print only results and errors; so does --prompt without --train (--no-quiet: its page goes to standard error)"},
    {GROUP_RUN, "json", FLAG_BOOL, AT(json), "", 0, 0, NULL,
     "print the log, the plan, or the tokens of a sample by --prompt as JSON"},
    {GROUP_RUN, "help", FLAG_HELP, NOWHERE, "GROUP|markdown", 0, 0, "",
     "print all flags, those of one group, or all as a Markdown table, and end"},
    {GROUP_RUN, "version", FLAG_VERSION, NOWHERE, "", 0, 0, "", "print the version and end"},

    {GROUP_PROCESSES, "zero", FLAG_INT, AT(zero), "0|1|2|3", 0, 3, NULL,
     "ZeRO stage: what GPUs share (1: moments and master, 2: gradients too, 3: weights too)"},
    {GROUP_PROCESSES, "world-size", FLAG_INT, AT(world_size), "N", 1, 1 << 20, "from the launcher",
     "number of processes, one per GPU; 1: this one alone, whatever a launcher has set"},
    {GROUP_PROCESSES, "rank", FLAG_INT, AT(rank), "N", 0, 1 << 20, "from the launcher", "number of this process"},
    {GROUP_PROCESSES, "rendezvous", FLAG_STRING, AT(rendezvous), "HOST[:PORT]", 0, 0, "from the launcher",
     "machine of rank 0, which listens there while the processes find each other without MPI; port: MASTER_PORT or 29500"},
};
// clang-format on

#define TABLE_COUNT ((int)(sizeof table / sizeof table[0]))

const Flag *flag_table(int *count) {
    *count = TABLE_COUNT;
    return table;
}

const char *flag_group_name(FlagGroup group) {
    static const char *const names[GROUP_COUNT] = {
        "Data", "Model", "Recipe", "Batch", "Optimizer", "Evaluation and samples", "Files", "Run", "Processes"};
    return names[group];
}

bool flag_has_negation(const Flag *flag) {
    return flag->kind == FLAG_BOOL || flag->kind == FLAG_RESUME;
}

bool flag_needs_value(const Flag *flag) {
    return flag->kind < FLAG_RESUME && flag->kind != FLAG_BOOL;
}

bool flag_takes_list(const Flag *flag) {
    return strcmp(flag->placeholder, "GLOB") == 0;
}

static bool name_is(const char *name, size_t length, const char *other) {
    return strlen(other) == length && memcmp(name, other, length) == 0;
}

const Flag *flag_find(const char *name, size_t length, bool *negated) {
    *negated = false;
    for (int i = 0; i < TABLE_COUNT; i++) {
        if (name_is(name, length, table[i].name)) return &table[i];
        if (flag_has_negation(&table[i]) && length > 3 && memcmp(name, "no-", 3) == 0 &&
            name_is(name + 3, length - 3, table[i].name)) {
            *negated = true;
            return &table[i];
        }
    }
    return NULL;
}

static size_t first_word(FlagGroup group) {
    return strcspn(flag_group_name(group), " ");
}

bool flag_group_find(const char *name, FlagGroup *group) {
    for (int i = 0; i < GROUP_COUNT; i++) {
        *group = (FlagGroup)i;
        if (strlen(name) == first_word(*group) && strncasecmp(name, flag_group_name(*group), strlen(name)) == 0)
            return true;
    }
    return false;
}

void flag_group_list(char text[FLAG_TEXT_LENGTH]) {
    size_t used = 0;
    for (int i = 0; i < GROUP_COUNT; i++) {
        const char *name = flag_group_name((FlagGroup)i);
        used += (size_t)snprintf(text + used, FLAG_TEXT_LENGTH - used, "%s%c%.*s", i ? ", " : "", name[0] | 32,
                                 (int)first_word((FlagGroup)i) - 1, name + 1);
    }
}
