#include "flags.h"

#include <strings.h>

#include "model/schedule.h"

#define AT(field) offsetof(Config, field), sizeof(((Config *)0)->field)
#define NOWHERE 0, 0
#define BIG 9e15 // largest value of an integer flag; a double represents all integers up to this value exactly

// Functions for the field .matters of a table row. They return true if training results depend on the flag's value.
static bool not_fp32(const Config *c) {
    return c->recipe.precision != PRECISION_FP32;
}
static bool has_vision(const Config *c) {
    return c->shape.vision.kind != VISION_NONE;
}
// True if a vision tower that is trained has FP8 matmuls and saved activations. The tower uses --group-size,
// --fast-accumulation-data and, without --recompute-vision, --recompute, even if the language model has no FP8.
static bool tower_is_fp8(const Config *c) {
    return not_fp32(c) && has_vision(c) && c->vision_recipe == VISION_RECIPE_COAT && !(c->freeze & PART_VISION);
}
static bool blocks_are_fp8(const Config *c) {
    return blocks_in_fp8(&c->recipe);
}
static bool matmuls_are_fp8(const Config *c) {
    return blocks_are_fp8(c) || tower_is_fp8(c);
}
static bool saves_fp8(const Config *c) {
    return saves_groups(&c->recipe) || tower_is_fp8(c);
}
static bool compresses_moments(const Config *c) {
    return not_fp32(c) && c->recipe.moments != MOMENTS_FP32;
}
static bool uses_muon(const Config *c) {
    return c->optimizer == OPTIMIZER_MUON;
}
// True if the format of Muon's momentum depends on --momentum-codes.
static bool compresses_momentum(const Config *c) {
    return uses_muon(c) && not_fp32(c) && (c->recipe.moments == MOMENTS_FP8 || c->recipe.moments == MOMENTS_COAT);
}
// True if the values that backward recomputes may differ from forward's: backward reads saved FP8 values or uses
// another scale.
static bool recompute_differs(const Config *c) {
    return ((saves_groups(&c->recipe) || blocks_are_fp8(c)) && !recipe_is_paper(&c->recipe)) ||
           (tower_is_fp8(c) && c->recompute_vision < 0) || (blocks_are_fp8(c) && c->recipe.bf16_blocks > 0);
}
static bool is_scheduled(const Config *c) {
    return c->schedule != SCHEDULE_CONSTANT;
}
static bool is_scheduled_by_epochs(const Config *c) {
    return schedule_falls(c) && c->steps < 0;
}
static bool is_wsd(const Config *c) {
    return c->schedule == SCHEDULE_WSD;
}

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" // most rows have no .matters
// clang-format off
const Flag flag_table[] = {
    {GROUP_DATA, "train", FLAG_TRAIN, NOWHERE, SHARED | LOGGED, "GLOB", 0, 0, "none",
     "token files to train on, as a quoted pattern or as several names; each --train adds a data set"},
    {GROUP_DATA, "train-weight", FLAG_WEIGHT, NOWHERE, 0, "X", 1e-9, 1e9, "none",
     "relative probability with which sequences are drawn from the preceding --train set; none: all sets are pooled"},
    {GROUP_DATA, "val", FLAG_STRING, AT(val), SHARED | LOGGED, "GLOB", 0, 0, "none",
     "token files for validation, as a quoted pattern or as several names; if --val is repeated, only the last one is used"},
    {GROUP_DATA, "tokenizer", FLAG_TOKENIZER, NOWHERE, RESTARTED | LOGGED, "bytes|gpt2|FILE", 0, 0, "gpt2",
     "tokenizer of the token files; FILE: tokenizer.json, tokenizer.model, GPT-2's vocabulary, or a folder with one of them"},
    {GROUP_DATA, "shuffle", FLAG_BOOL, AT(shuffle), TRAINING, "", 0, 0, NULL,
     "read the training sequences in random order instead of the order of the files"},

    {GROUP_MODEL, "model", FLAG_STRING, AT(model), RESTARTED | LOGGED, "NAME|PATH", 0, 0, "gpt2",
     "PATH of a checkpoint folder or weight file, or NAME of a new model: gpt2, gpt2-medium, gpt2-large, gpt2-xl, "
     "llama2-7b, llama2-13b, llama-30b, llama3-8b, llama3.1-8b, llama3.2-1b, llama3.2-3b, mistral-7b, tinyllama, "
     "smollm2-135m, olmo-1b, olmo-7b, olmo2-1b, olmo2-7b, olmo2-13b, qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-3b, qwen2.5-7b, "
     "qwen2.5-14b, qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b; with N layers: dN (GPT-2), llama:dN, olmo:dN, olmo2:dN, "
     "qwen2:dN, qwen3:dN; with N channels: gpt3:cN; --resume uses the checkpoint's model"},
    {GROUP_MODEL, "layers", FLAG_INT, AT(shape.layers), SHAPE | RECORDED, "N", 1, MAX_LAYERS, "%s for gpt2, otherwise from --model",
     "number of transformer blocks"},
    {GROUP_MODEL, "heads", FLAG_INT, AT(shape.heads), SHAPE | RECORDED, "N", 1, MAX_HEADS, "%s for gpt2, otherwise from --model; channels / 64 if --channels is given and a multiple of 64",
     "number of attention heads"},
    {GROUP_MODEL, "kv-heads", FLAG_INT, AT(shape.kv_heads), SHAPE | RECORDED, "N", 1, MAX_HEADS, "%s for gpt2, otherwise from --model; if --channels or --heads is given: as --heads, but a model with grouped heads keeps its number if it divides --heads",
     "number of key and value heads; must divide --heads"},
    {GROUP_MODEL, "head-dim", FLAG_INT, AT(shape.head_dim), SHAPE | RECORDED, "N", 1, MAX_HEAD_WIDTH, "%s for gpt2, otherwise from --model; channels / heads if --channels or --heads is given",
     "number of channels per attention head"},
    {GROUP_MODEL, "channels", FLAG_INT, AT(shape.channels), SHAPE | RECORDED, "N", 1, MAX_CHANNELS, "%s for gpt2, otherwise from --model",
     "number of channels of the residual stream"},
    {GROUP_MODEL, "ffn", FLAG_INT, AT(shape.ffn), SHAPE | RECORDED, "N", 1, MAX_FFN, "%s for gpt2, otherwise from --model; the usual width if --channels is given",
     "inner width of the MLP; usual width: 4 * channels; with --activation swiglu: 8/3 * channels, rounded up to a multiple of 128"},
    {GROUP_MODEL, "vocab", FLAG_INT, AT(shape.vocab), SHAPE | RECORDED, "N", 1, MAX_VOCAB, "%s for gpt2, otherwise from --model or --tokenizer",
     "number of token ids in the vocabulary; tensors in memory are padded to a multiple of 128 ids"},
    {GROUP_MODEL, "positions", FLAG_INT, AT(shape.positions), SHAPE | RECORDED, "TOKENS", 1, MAX_POSITIONS, "%s for gpt2, otherwise from --model; at least --seq-len",
     "longest sequence that the model supports, in tokens"},
    {GROUP_MODEL, "norm", FLAG_CHOICE, AT(shape.norm), SHAPE, "layer|rms|plain", 0, 0, NULL,
     "normalization in the model; layer: LayerNorm; rms: RMSNorm; plain: LayerNorm without weights and biases"},
    {GROUP_MODEL, "norm-place", FLAG_CHOICE, AT(shape.norm_place), SHAPE, "before|after", 0, 0, NULL,
     "place of the norms in a block; before: on the input of attention and MLP; after: on their output, as in OLMo 2"},
    {GROUP_MODEL, "norm-eps", FLAG_FLOAT, AT(shape.norm_eps), SHAPE, "X", MIN_NORM_EPS, MAX_NORM_EPS, NULL,
     "epsilon of LayerNorm and RMSNorm, added to the variance or mean square"},
    {GROUP_MODEL, "activation", FLAG_CHOICE, AT(shape.activation), SHAPE, "gelu|swiglu", 0, 0, NULL,
     "activation function of the MLP; gelu: the tanh approximation; swiglu: gated SiLU"},
    {GROUP_MODEL, "position-encoding", FLAG_CHOICE, AT(shape.position_kind), SHAPE, "learned|rotary", 0, 0, NULL,
     "position encoding; learned: an embedding; rotary: RoPE"},
    {GROUP_MODEL, "biases", FLAG_BOOL, AT(shape.biases), SHAPE, "", 0, 0, NULL,
     "use biases in the linear layers and norms"},
    {GROUP_MODEL, "qkv-biases", FLAG_BOOL, AT(shape.qkv_biases), SHAPE, "", 0, 0, NULL,
     "with --no-biases: use biases for q, k and v, as in Qwen2"},
    {GROUP_MODEL, "qk-norm", FLAG_CHOICE, AT(shape.qk_norm), SHAPE, "none|row|head", 0, 0, NULL,
     "RMSNorm of q and k before RoPE; none: no norm; row: over all heads together, as in OLMo 2; head: over each head, as in Qwen3"},
    {GROUP_MODEL, "clip-qkv", FLAG_FLOAT, AT(shape.clip_qkv), SHAPE, "X", 0, MAX_CLIP_QKV, NULL,
     "largest absolute value of q, k and v, which are clipped to it, as in OLMo 0424; 0: no clipping"},
    {GROUP_MODEL, "rope-theta", FLAG_FLOAT, AT(shape.rope_theta), SHAPE, "X", MIN_ROPE_THETA, MAX_ROPE_THETA, NULL,
     "base (theta) of the RoPE frequencies"},
    {GROUP_MODEL, "rope-factor", FLAG_FLOAT, AT(shape.rope.factor), SHAPE, "X", MIN_ROPE_FACTOR, MAX_ROPE_FACTOR, NULL,
     "factor by which long RoPE wavelengths are stretched, as in Llama 3.1; 1: no stretching"},
    {GROUP_MODEL, "rope-low", FLAG_FLOAT, AT(shape.rope.low), SHAPE, "X", MIN_ROPE_BAND, MAX_ROPE_BAND, NULL,
     "with --rope-factor: RoPE wavelengths above --rope-positions / X tokens are stretched by the full factor"},
    {GROUP_MODEL, "rope-high", FLAG_FLOAT, AT(shape.rope.high), SHAPE, "X", MIN_ROPE_BAND, MAX_ROPE_BAND, NULL,
     "with --rope-factor: RoPE wavelengths below --rope-positions / X tokens are not stretched"},
    {GROUP_MODEL, "rope-positions", FLAG_INT, AT(shape.rope.positions), SHAPE, "TOKENS", 1, MAX_POSITIONS, NULL,
     "with --rope-factor: longest sequence, in tokens, that the model supported before RoPE was stretched"},
    {GROUP_MODEL, "init", FLAG_CHOICE, AT(shape.init), SHAPE, "normal|mitchell|truncated", 0, 0, NULL,
     "initial weights; normal: N(0, 0.02), as in GPT-2; mitchell: scaled by width and layer, as in OLMo; truncated: N(0, 0.02) within 3 sigma, as in OLMo 2"},
    {GROUP_MODEL, "tied-head", FLAG_BOOL, AT(shape.tied_head), SHAPE, "", 0, 0, NULL,
     "use the token embedding as the weights of the output head"},
    {GROUP_MODEL, "vision", FLAG_STRING, AT(vision), SHAPE, "NAME|PATH", 0, 0, "none",
     "vision tower to add, with a new projector: folder of a CLIP or SigLIP model, or a tower with random weights: "
     "clip-l14-336, siglip-b16-224, siglip-so400m-384, clip:dN, siglip:dN", .matters = has_vision},
    {GROUP_MODEL, "image-size", FLAG_INT, AT(shape.vision.image_size), SHAPE, "PIXELS", 1, MAX_IMAGE_SIZE, "from --vision",
     "side of the vision tower's square input image, in pixels", .matters = has_vision},
    {GROUP_MODEL, "patch-size", FLAG_INT, AT(shape.vision.patch_size), SHAPE, "PIXELS", 1, MAX_IMAGE_SIZE, "from --vision",
     "side of a square image patch, in pixels; each patch becomes one input row of the vision tower", .matters = has_vision},
    {GROUP_MODEL, "projector", FLAG_CHOICE, AT(shape.vision.projector), SHAPE, PROJECTOR_NAMES, 0, 0, NULL,
     "layers after the vision tower; mlp: two layers, as in LLaVA-1.5; mlp_downsample: first merge 2 x 2 patches, as in VILA", .matters = has_vision},

    {GROUP_RECIPE, "recipe", FLAG_CHOICE, AT(recipe.kind), RECORDED | LOGGED, RECIPE_NAMES, 0, 0, NULL,
     "defaults of the Recipe flags; bf16: no FP8; fp8-linear: FP8 matmuls; coat: also FP8 activations and moments; coat-paper: the paper's settings", .matters = not_fp32},
    {GROUP_RECIPE, "precision", FLAG_CHOICE, AT(recipe.precision), RECORDED | LOGGED, PRECISION_NAMES, 0, 0, NULL,
     "number formats; recipe: as set by --recipe and the other Recipe flags; fp32: FP32 everywhere, for exact comparisons"},
    {GROUP_RECIPE, "linear", FLAG_CHOICE, AT(recipe.linear), RECORDED | LOGGED, LINEAR_NAMES, 0, 0, "%s, by --recipe",
     "number format of the inputs of the matmuls in the transformer blocks", .matters = not_fp32},
    {GROUP_RECIPE, "bf16-blocks", FLAG_INT, AT(recipe.bf16_blocks), RECORDED | LOGGED, "N", -1, MAX_LAYERS, "%s, by --recipe",
     "with --linear fp8: in the first N blocks, forward matmuls whose input is a norm's or attention's output run in BF16; -1: a third of the blocks, at least 1 and at most 4", .matters = blocks_are_fp8},
    {GROUP_RECIPE, "head", FLAG_CHOICE, AT(recipe.head), RECORDED | LOGGED, HEAD_NAMES, 0, 0, "%s, by --recipe",
     "number format of the output head's matmuls; fp8: all in FP8; fp8-backward: dgrad and wgrad in FP8, logits in BF16; default if --model is a path: bf16", .matters = not_fp32},
    {GROUP_RECIPE, "saved", FLAG_CHOICE, AT(recipe.saved), RECORDED | LOGGED, SAVED_NAMES, 0, 0, "%s, by --recipe",
     "number format of the activations saved for backward; coat: FP8 with one scale per group of elements", .matters = not_fp32},
    {GROUP_RECIPE, "recompute", FLAG_INT, AT(recipe.recompute), RECORDED | LOGGED, "0|1|2|3", 0, 3, "%s, by --recipe",
     "forward work repeated in backward; 0: none; 1: activation function, with --saved coat also norms; 2: both; 3: whole blocks", .matters = recompute_differs},
    {GROUP_RECIPE, "vision-recipe", FLAG_CHOICE, AT(vision_recipe), TRAINING | EVALUATED | SAMPLED | UNLESS_DEFAULT, VISION_RECIPE_NAMES, 0, 0, NULL,
     "number formats of matmuls and saved activations in the vision tower's blocks; coat: FP8, as with --recipe coat", .matters = has_vision},
    {GROUP_RECIPE, "recompute-vision", FLAG_INT, AT(recompute_vision), TRAINING | UNLESS_DEFAULT, "0|1|2|3", -1, 3, "as --recompute",
     "forward work that backward repeats in the vision tower; the values mean the same as for --recompute", .matters = has_vision},
    {GROUP_RECIPE, "group-size", FLAG_INT, AT(recipe.group_size), RECORDED | LOGGED, "16|32|128", 16, 128, "%s, by --recipe",
     "number of elements that share one scale in FP8 saved activations", .matters = saves_fp8},
    {GROUP_RECIPE, "grads", FLAG_FORMAT, AT(recipe.grads), RECORDED | LOGGED, "bf16|fp32", 0, 0, "%s, by --recipe",
     "number format of the gradients of the transformer blocks' weight matrices; all other weight gradients are FP32", .matters = not_fp32},
    {GROUP_RECIPE, "moments", FLAG_CHOICE, AT(recipe.moments), RECORDED | LOGGED, MOMENTS_NAMES, 0, 0, "%s, by --recipe",
     "number format of AdamW's two moments and of Muon's momentum; fp8: 8 bits; coat: 8 bits with dynamic range expansion"},
    {GROUP_RECIPE, "momentum-codes", FLAG_CHOICE, AT(recipe.momentum_codes), RECORDED | UNLESS_DEFAULT | LOGGED_UNLESS_DEFAULT, MOMENTUM_NAMES, 0, 0, NULL,
     "with --optimizer muon: format of the momentum if --moments is fp8 or coat; e4m3: FP8, as AdamW's moments; i8: INT8", .matters = compresses_momentum},
    {GROUP_RECIPE, "moments-fp32", FLAG_STRING, AT(recipe.moments_fp32), RECORDED | LOGGED, "PATTERN", 0, 0, "none",
     "tensors whose moments stay in FP32: wte, qkvw, projw, fcw, fcprojw, headw or prefixes such as fc*, separated by commas", .matters = compresses_moments},
    {GROUP_RECIPE, "master", FLAG_CHOICE, AT(recipe.master), RECORDED | LOGGED, MASTER_NAMES, 0, 0, "%s, by --recipe",
     "format of the master weights; split16: the 16 bits that BF16 weights lack; none: no master weights, stochastic rounding", .matters = not_fp32},
    {GROUP_RECIPE, "cache-transposed", FLAG_BOOL, AT(recipe.cache_transposed), LOGGED, "", 0, 0, NULL,
     "store transposed copies of the FP8 weights, which makes steps faster but takes memory"},
    {GROUP_RECIPE, "fast-accumulation-data", FLAG_BOOL, AT(recipe.fast_accumulation_data), RECORDED | LOGGED, "", 0, 0, NULL,
     "use the tensor cores' fast, less exact accumulation in FP8 dgrad matmuls, as in forward matmuls", .matters = matmuls_are_fp8},

    {GROUP_BATCH, "micro-batch", FLAG_INT, AT(micro_batch), TRAINING | EVALUATED, "B", 1, MAX_MICRO_BATCH, NULL,
     "number of sequences per GPU in one forward and backward pass"},
    {GROUP_BATCH, "seq-len", FLAG_INT, AT(seq_len), TRAINING | EVALUATED | SAMPLED, "TOKENS", 1, MAX_POSITIONS, NULL,
     "number of tokens per sequence; in sampling, the longest context"},
    {GROUP_BATCH, "examples", FLAG_CHOICE, AT(examples), TRAINING | EVALUATED | UNLESS_DEFAULT, EXAMPLES_NAMES, 0, 0, NULL,
     "handling of examples longer than --seq-len in files with a loss mask; cut: truncate; whole: refuse; split: spread over several sequences"},
    {GROUP_BATCH, "documents", FLAG_CHOICE, AT(documents), TRAINING | EVALUATED | UNLESS_DEFAULT, DOCUMENTS_NAMES, 0, 0, NULL,
     "attention between the documents of a sequence; joined: allowed; apart: masked, and positions restart at each document"},
    {GROUP_BATCH, "images-per-sequence", FLAG_INT, AT(images_per_sequence), TRAINING | EVALUATED | UNLESS_DEFAULT, "N", 0, MAX_POSITIONS, NULL,
     "maximum number of images in a sequence, which bounds memory; 0: as many as fit", .matters = has_vision},
    {GROUP_BATCH, "batch-tokens", FLAG_INT64, AT(batch_tokens), TRAINING, "TOKENS", 0, BIG, "one micro-batch per GPU",
     "number of tokens per optimizer step over all GPUs; 512k means 524288; 0: one micro-batch per GPU"},
    {GROUP_BATCH, "logits-chunk", FLAG_INT, AT(logits_chunk), TRAINING | UNLESS_DEFAULT, "TOKENS", 0, 1 << 30, "automatic",
     "number of tokens whose logits are computed at a time; a smaller number takes less memory"},

    {GROUP_OPTIMIZER, "steps", FLAG_INT64, AT(steps), TRAINING, "STEPS", -1, BIG, NULL,
     "number of optimizer steps; 20k means 20000; -1: as many as --epochs needs", .matters = schedule_falls},
    {GROUP_OPTIMIZER, "epochs", FLAG_INT, AT(epochs), TRAINING | UNLESS_DEFAULT, "N", 1, 1 << 20, NULL,
     "number of passes over the training data, each in a different order; used if --steps is not given", .matters = is_scheduled_by_epochs},
    {GROUP_OPTIMIZER, "optimizer", FLAG_CHOICE, AT(optimizer), TRAINING_UNLESS_DEFAULT, OPTIMIZER_NAMES, 0, 0, NULL,
     "optimizer of the blocks' weight matrices; muon: orthogonalized momentum; all other parameters are updated by AdamW"},
    {GROUP_OPTIMIZER, "muon-momentum", FLAG_FLOAT, AT(muon_momentum), TRAINING_UNLESS_DEFAULT, "X", 0, 0.999999, NULL,
     "with --optimizer muon: decay rate of the momentum", .matters = uses_muon},
    {GROUP_OPTIMIZER, "muon-rms", FLAG_FLOAT, AT(muon_rms), TRAINING_UNLESS_DEFAULT, "X", 1e-6, 1e3, NULL,
     "with --optimizer muon: RMS of an orthogonalized update at learning rate 1; the RMS of AdamW's updates is about 0.2; another X multiplies only Muon's learning rate by X / 0.2", .matters = uses_muon},
    {GROUP_OPTIMIZER, "lr", FLAG_FLOAT, AT(lr), TRAINING, "RATE", 0, 1e3, NULL,
     "peak learning rate"},
    {GROUP_OPTIMIZER, "lr-vision", FLAG_FLOAT, AT(lr_vision), TRAINING | UNLESS_DEFAULT, "RATE", 0, 1e3, "as --lr",
     "peak learning rate of the vision tower; the schedule is that of --lr"},
    {GROUP_OPTIMIZER, "lr-projector", FLAG_FLOAT, AT(lr_projector), TRAINING | UNLESS_DEFAULT, "RATE", 0, 1e3, "as --lr",
     "peak learning rate of the projector; the schedule is that of --lr"},
    {GROUP_OPTIMIZER, "freeze", FLAG_STRING, AT(frozen), TRAINING | UNLESS_DEFAULT, "PARTS", 0, 0, "none",
     "parts of a vision-language model that are not trained: vision, projector, language, separated by commas; none: no part"},
    {GROUP_OPTIMIZER, "warmup", FLAG_INT64, AT(warmup), TRAINING, "STEPS", 0, BIG, NULL,
     "number of steps of linear learning-rate warm-up; may exceed --steps"},
    {GROUP_OPTIMIZER, "schedule", FLAG_CHOICE, AT(schedule), TRAINING, SCHEDULE_NAMES, 0, 0, NULL,
     "learning rate after the warm-up; cosine, linear: decays; wsd: constant, then decays (--decay-fraction); constant: stays at --lr"},
    {GROUP_OPTIMIZER, "lr-final", FLAG_FLOAT, AT(lr_final), TRAINING | UNLESS_DEFAULT, "FRACTION", 0, 1, NULL,
     "learning rate at the end of the decay, as a fraction of --lr", .matters = is_scheduled},
    {GROUP_OPTIMIZER, "decay-fraction", FLAG_FLOAT, AT(decay_fraction), TRAINING, "FRACTION", 0, 1, NULL,
     "with --schedule wsd: length of the final decay of the learning rate, as a fraction of all steps", .matters = is_wsd},
    {GROUP_OPTIMIZER, "weight-decay", FLAG_FLOAT, AT(weight_decay), TRAINING, "X", 0, 1e3, NULL,
     "decoupled weight decay, applied to 2-D weights only"},
    {GROUP_OPTIMIZER, "beta1", FLAG_FLOAT, AT(beta1), TRAINING, "X", 0, 0.999999, NULL,
     "decay rate of AdamW's first moment"},
    {GROUP_OPTIMIZER, "beta2", FLAG_FLOAT, AT(beta2), TRAINING, "X", 0, 0.999999, NULL,
     "decay rate of AdamW's second moment"},
    {GROUP_OPTIMIZER, "eps", FLAG_FLOAT, AT(eps), TRAINING, "X", 1e-30, 1, NULL,
     "epsilon of AdamW, added to the square root of the second moment"},
    {GROUP_OPTIMIZER, "grad-clip", FLAG_FLOAT, AT(grad_clip), TRAINING, "NORM", 0, 1e30, NULL,
     "maximum norm of the whole model's gradient; a larger gradient is scaled down; 0: no clipping"},
    {GROUP_OPTIMIZER, "seed", FLAG_SEED, AT(seed), TRAINING, "N", 0, 0, NULL,
     "random seed for initial weights, data order, stochastic rounding and samples"},
    {GROUP_OPTIMIZER, "max-skipped", FLAG_INT, AT(max_skipped), TRAINING | UNLESS_DEFAULT, "N", 1, 1 << 30, NULL,
     "number of consecutive skipped updates after which the run stops"},
    {GROUP_OPTIMIZER, "skip-loss-z", FLAG_FLOAT, AT(skip_loss_z), TRAINING | UNLESS_DEFAULT, "Z", 0, 1e6, NULL,
     "skip an update whose loss is more than Z standard deviations above the mean of the last 128 accepted steps; 0: never"},
    {GROUP_OPTIMIZER, "skip-grad-z", FLAG_FLOAT, AT(skip_grad_z), TRAINING | UNLESS_DEFAULT, "Z", 0, 1e6, NULL,
     "skip an update whose gradient norm is more than Z standard deviations above the mean of the last 128 accepted steps; 0: never"},

    {GROUP_EVALUATION, "val-every", FLAG_INT64, AT(val_every), SHARED | LOGGED, "STEPS", 0, BIG, NULL,
     "number of steps between validations; 0: only at the end"},
    {GROUP_EVALUATION, "val-batches", FLAG_INT, AT(val_batches), SHARED | LOGGED, "N", -1, 1 << 30, NULL,
     "number of micro-batches per validation; -1: all full sequences of the --val files"},
    {GROUP_EVALUATION, "hellaswag", FLAG_STRING, AT(hellaswag), SHARED | LOGGED, "FILE", 0, 0, "none",
     "file of HellaSwag questions in llm.c's format; if given, the HellaSwag accuracy is reported"},
    {GROUP_EVALUATION, "hellaswag-every", FLAG_INT64, AT(hellaswag_every), SHARED | LOGGED, "STEPS", 0, BIG, "as --val-every",
     "number of steps between HellaSwag evaluations; 0: only at the end"},
    {GROUP_EVALUATION, "sample-every", FLAG_INT64, AT(sample_every), SHARED | LOGGED, "STEPS", 0, BIG, NULL,
     "number of steps between text samples; 0: only at the end"},
    {GROUP_EVALUATION, "sample-tokens", FLAG_INT, AT(sample_tokens), SHARED | LOGGED, "TOKENS", 0, 1 << 24, NULL,
     "number of tokens per sample; a sample of --prompt ends earlier at an end-of-text token; 0: no samples"},
    {GROUP_EVALUATION, "health-every", FLAG_INT64, AT(health_every), SHARED | LOGGED, "STEPS", 0, BIG, NULL,
     "number of steps between log lines about FP8 tensors, attention logits, outliers and moments; 0: no such lines"},
    {GROUP_EVALUATION, "health-products", FLAG_INT64, AT(health_matmuls), SHARED | LOGGED, "STEPS", 0, BIG, NULL,
     "number of steps between comparisons of the qkv layers' FP8 weight gradients with BF16; 0: no comparisons"},
    {GROUP_EVALUATION, "prompt", FLAG_STRING, AT(prompt), SHARED | LOGGED, "TEXT", 0, 0, "none",
     "text that samples continue; without --train, the program prints the samples and exits"},
    {GROUP_EVALUATION, "image", FLAG_STRING, AT(image), SHARED | LOGGED, "FILE", 0, 0, "none",
     "image file written by data/prepare.py; its first image is placed at <image> in --prompt or, without <image>, before the text of --prompt"},
    {GROUP_EVALUATION, "prompt-format", FLAG_CHOICE, AT(prompt_format), TRAINING | EVALUATED | SAMPLED | UNLESS_DEFAULT, "none|plain|alpaca|chatml|qwen|llama2|llama3|data", 0, 0, NULL,
     "chat format that wraps --prompt and is recorded in checkpoints; none: no format; data: the format recorded in --train's files"},
    {GROUP_EVALUATION, "samples", FLAG_INT, AT(samples), SHARED | LOGGED, "N", 1, 1 << 20, NULL,
     "number of samples to generate each time"},
    {GROUP_EVALUATION, "temperature", FLAG_FLOAT, AT(temperature), SHARED | LOGGED, "X", 0, 100, NULL,
     "sampling temperature; 0: always the most likely token"},
    {GROUP_EVALUATION, "top-k", FLAG_INT, AT(top_k), SHARED | LOGGED, "K", 0, 1 << 24, NULL,
     "number of most likely tokens from which a sample's next token is drawn; 0: all tokens"},
    {GROUP_EVALUATION, "top-p", FLAG_FLOAT, AT(top_p), SHARED | LOGGED, "P", 0, 1, NULL,
     "draw each token from the smallest set of most likely tokens whose probabilities sum to at least P; 1: all tokens"},
    {GROUP_EVALUATION, "eval-only", FLAG_BOOL, AT(eval_only), SHARED | LOGGED, "", 0, 0, NULL,
     "report the validation loss and, with --hellaswag, the HellaSwag accuracy, then exit"},
    {GROUP_EVALUATION, "overfit-one-batch", FLAG_BOOL, AT(overfit_one_batch), RECORDED | SHARED | LOGGED, "", 0, 0, NULL,
     "train on the first batch in every step, to check that the model can learn it; not restored by --resume"},

    {GROUP_FILES, "config", FLAG_CONFIG, NOWHERE, 0, "FILE", 0, 0, "none",
     "file of flags, one per line (such as --lr 3e-4), with # for comments; flags on the command line override them"},
    {GROUP_FILES, "out", FLAG_STRING, AT(out), SHARED | LOGGED, "DIR", 0, 0, "none",
     "folder for logs and checkpoints; none: nothing is written"},
    {GROUP_FILES, "save-every", FLAG_INT64, AT(save_every), SHARED | LOGGED, "STEPS", 0, BIG, NULL,
     "number of steps between checkpoints; 0: only at the end"},
    {GROUP_FILES, "keep", FLAG_INT, AT(keep), SHARED | LOGGED, "N", 0, 1 << 30, NULL,
     "number of newest checkpoints to keep; older checkpoints are deleted; 0: keep all"},
    {GROUP_FILES, "keep-every", FLAG_INT64, AT(keep_every), SHARED | LOGGED, "STEPS", 0, BIG, NULL,
     "keep every checkpoint whose step is a multiple of STEPS, regardless of --keep; 0: none"},
    {GROUP_FILES, "resume", FLAG_RESUME, NOWHERE, SHARED, "STEP", 0, BIG, "off",
     "continue from the newest checkpoint in --out, or from the checkpoint of STEP; given flags override its recorded settings"},
    {GROUP_FILES, "allow-other-data", FLAG_BOOL, AT(allow_other_data), SHARED, "", 0, 0, NULL,
     "resume although the --train data has changed; skip as many of its sequences as were read before"},
    {GROUP_FILES, "overwrite", FLAG_BOOL, AT(overwrite), 0, "", 0, 0, NULL,
     "delete the files of an earlier run in --out before the run starts"},

    {GROUP_RUN, "device", FLAG_CHOICE, AT(device), LOGGED, "auto|cpu|cuda", 0, 0, NULL,
     "device that runs the model; auto: the GPU if there is one, otherwise the CPU"},
    {GROUP_RUN, "threads", FLAG_INT, AT(threads), LOGGED, "N", 1, 4096, "all cores",
     "number of CPU threads if the model runs on the CPU"},
    {GROUP_RUN, "offload-states", FLAG_BOOL, AT(offload_states), LOGGED, "", 0, 0, NULL,
     "store moments and master weights in host memory, where the GPU updates them over the bus; no effect on a CPU"},
    {GROUP_RUN, "plan", FLAG_PLAN, NOWHERE, 0, "json", 0, 0, "off",
     "print the memory plan and exit, without reading data or using a GPU; json: print the plan as JSON"},
    {GROUP_RUN, "memory-limit", FLAG_BYTES, AT(memory_limit), 0, "SIZE", 0, 0, "none",
     "with --plan: find the largest micro-batch whose plan fits into SIZE, for example 80GB (10^9 bytes) or 75GiB "
     "(2^30)"},
    {GROUP_RUN, "gpus", FLAG_INT, AT(gpus), 0, "N", 1, 1 << 20, NULL,
     "with --plan: number of GPUs of the planned run"},
    {GROUP_RUN, "profile", FLAG_INT64, AT(profile), LOGGED, "STEP", 1, BIG, "none",
     "step that cudaProfilerStart() and cudaProfilerStop() mark for a profiler"},
    {GROUP_RUN, "autotune", FLAG_BOOL, AT(autotune), LOGGED, "", 0, 0, NULL,
     "time the GPU's matmul algorithms in training, use the fastest, write them to matmul_table.txt in --out; one process only"},
    {GROUP_RUN, "matmul-table", FLAG_STRING, AT(matmul_table), LOGGED, "FILE", 0, 0, "none",
     "file of matmul algorithms that --autotune wrote; a resumed run uses it only for matmuls that its checkpoint's table lacks"},
    {GROUP_RUN, "time-limit", FLAG_DURATION, AT(time_limit_ms), 0, "TIME", 0, 0, "none",
     "time limit of the process, such as 3h50m, 1d12h or 90s; before it, the run saves a checkpoint and exits"},
    {GROUP_RUN, "log-every", FLAG_INT64, AT(log_every), 0, "STEPS", 1, BIG, NULL,
     "number of steps between progress lines on the terminal; log.jsonl records every step"},
    {GROUP_RUN, "quiet", FLAG_BOOL, AT(quiet), 0, "", 0, 0, NULL,
     "print only results and errors; this is the default with --prompt and without --train"},
    {GROUP_RUN, "json", FLAG_BOOL, AT(json), 0, "", 0, 0, NULL,
     "print the log, evaluation results, the plan, or the tokens of samples as JSON"},
    {GROUP_RUN, "help", FLAG_HELP, NOWHERE, 0, "GROUP|markdown", 0, 0, "",
     "print all flags, the flags of one group, or all flags as a Markdown table, and exit"},
    {GROUP_RUN, "version", FLAG_VERSION, NOWHERE, 0, "", 0, 0, "",
     "print the version and exit"},

    {GROUP_PROCESSES, "zero", FLAG_INT, AT(zero), SHARED | LOGGED, "0|1|2|3", 0, 3, NULL,
     "ZeRO stage: what the processes shard; 0: nothing; 1: moments and master weights; 2: also gradients; 3: also weights"},
    {GROUP_PROCESSES, "world-size", FLAG_INT, AT(world_size), LOGGED, "N", 1, 1 << 20, "from the launcher",
     "number of processes in the run, one per GPU; 1: one process, even under a launcher"},
    {GROUP_PROCESSES, "rank", FLAG_INT, AT(rank), 0, "N", 0, 1 << 20, "from the launcher",
     "rank of this process, from 0 to --world-size minus 1"},
    {GROUP_PROCESSES, "rendezvous", FLAG_STRING, AT(rendezvous), 0, "HOST[:PORT]", 0, 0, "from the launcher",
     "host of rank 0, to which the other ranks connect if there is no MPI; the default port is MASTER_PORT or 29500"},
    {.name = NULL},
};
// clang-format on

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

const Flag *flag_find(const char *name, size_t length, bool *negated) {
    *negated = false;
    for (const Flag *flag = flag_table; flag->name; flag++) {
        if (text_is(name, length, flag->name)) return flag;
        if (flag_has_negation(flag) && length > 3 && memcmp(name, "no-", 3) == 0 &&
            text_is(name + 3, length - 3, flag->name)) {
            *negated = true;
            return flag;
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
