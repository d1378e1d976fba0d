// Sets errors for unknown flags. If another trainer has a flag of that name, suggests this program's equivalent flag.
// Otherwise, suggests the flag with the most similar name. Also suggests a name for an unknown --model.
#include "config/shapes.h"
#include "flags.h"

#include <ctype.h>

enum { MAX_NAME = 64 }; // no flag is suggested for longer names

// Flags of the Hugging Face Trainer, nanoGPT or Megatron-LM, and this program's flag that replaces them.
typedef struct {
    const char *names;  // flags of other trainers, separated by spaces, with '-' for '_'
    const char *ours;   // name of the flag in this program
    const char *remark; // text printed after our flag: its unit or its values, or how it differs from the other flag
} OtherToolFlag;

static const OtherToolFlag table[] = {
    {"learning-rate", "lr", ""},
    {"max-steps max-iters train-iters", "steps", ""},
    {"num-train-epochs", "epochs", ""},
    {"per-device-train-batch-size batch-size micro-batch-size", "micro-batch", " SEQUENCES for one GPU and one pass"},
    {"gradient-accumulation-steps global-batch-size total-batch-size", "batch-tokens", " TOKENS for the whole step"},
    {"block-size seq-length", "seq-len", ""},
    {"warmup-steps warmup-iters lr-warmup-iters", "warmup", " STEPS"},
    {"max-grad-norm clip-grad", "grad-clip", ""},
    {"output-dir out-dir save", "out", ""},
    {"train-file dataset data-path", "train", " with a pattern of token files from data/prepare.py"},
    {"model-name-or-path init-from", "model", ""},
    {"n-layer num-layers", "layers", ""},
    {"n-head num-attention-heads", "heads", ""},
    {"n-embd hidden-size", "channels", ""},
    {"optim use-muon", "optimizer", " adamw or muon"},
    {"muon-lr matrix-lr", "muon-rms", " RATE, with RATE / 0.2 = Muon's learning rate / AdamW's"},
    {"adjust-lr-fn", "muon-rms", " X; the update is always scaled to AdamW's RMS"},
    {"bf16 fp16 dtype", "recipe", " bf16, fp8-linear or coat"},
};

static const OtherToolFlag *other_tool_flag(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (const char *other = table[i].names; *other; other += strcspn(other, " "), other += *other == ' ')
            if (text_is(other, strcspn(other, " "), name)) return &table[i];
    return NULL;
}

// Returns the edit distance of a and b, the minimum number of insertions, deletions, replacements and swaps of adjacent
// characters that turn a into b.
static int edit_distance(const char *a, const char *b) {
    // d[i][j] is the edit distance between the first i characters of a and the first j characters of b.
    int d[MAX_NAME + 1][MAX_NAME + 1];
    const int rows = (int)strlen(a), cols = (int)strlen(b);
    for (int i = 0; i <= rows; i++) {
        for (int j = 0; j <= cols; j++) {
            d[i][j] = i > j ? i : j;
            if (i == 0 || j == 0) continue;
            d[i][j] = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < d[i][j]) d[i][j] = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < d[i][j]) d[i][j] = d[i][j - 1] + 1;
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && d[i - 2][j - 2] + 1 < d[i][j]) d[i][j] = d[i - 2][j - 2] + 1;
        }
    }
    return d[rows][cols];
}

// True if a and b contain the same digits in the same order.
static bool same_digits(const char *a, const char *b) {
    for (;; a++, b++) {
        while (*a && !isdigit((unsigned char)*a)) a++;
        while (*b && !isdigit((unsigned char)*b)) b++;
        if (*a != *b || !*a) return *a == *b;
    }
}

typedef struct {
    const char *typed;
    bool keep_digits;    // true if a name must have the digits of `typed`: llama3-8b is not a misspelled llama2-7b
    int edits;           // edit distance of `nearest`; if `nearest` is NULL, the largest accepted distance + 1
    const char *nearest; // most similar name so far, or NULL
    int longer_count;    // number of names that begin with `typed`, the last of which is `longer`
    const char *longer;
} Search;

// The accepted edit distance grows with the typed name's length, because a short name is only a few edits from many
// names.
static Search search_begin(const char *typed, bool keep_digits) {
    const size_t length = strlen(typed);
    const Search search = {typed, keep_digits, 1 + (length >= 3) + (length >= 6), NULL, 0, NULL};
    return search;
}

static void search_compare(Search *s, const char *name) {
    const size_t length = strlen(s->typed);
    const int edits = edit_distance(s->typed, name);
    if (edits < s->edits && (!s->keep_digits || same_digits(s->typed, name))) s->nearest = name, s->edits = edits;
    if (length >= 4 && strncmp(s->typed, name, length) == 0) s->longer = name, s->longer_count++;
}

// Returns the most similar name. If no name is similar, returns the only name that begins with the typed text, or NULL.
static const char *search_result(const Search *s) {
    return s->nearest ? s->nearest : s->longer_count == 1 ? s->longer : NULL;
}

bool suggest_model(const char *name, char near[MODEL_NAME]) {
    const char *colon = strchr(name, ':'), *candidate;
    char family[MAX_NAME];
    ModelShape shape;
    if (strlen(name) >= MAX_NAME) return false;
    snprintf(family, sizeof family, "%.*s", (int)strcspn(name, ":"), name);
    Search search = search_begin(family, true);
    for (int i = 0; !colon && (candidate = model_name(i)); i++) search_compare(&search, candidate);
    for (int i = ARCHITECTURE_LLAMA; i < ARCHITECTURE_COUNT; i++)
        search_compare(&search, architecture_name((Architecture)i));
    const char *found = search_result(&search);
    // In a name such as "llama:d999", the part before ':' is correct. Only the depth is wrong, so nothing is suggested.
    if (!found || (colon && search.edits == 0)) return false;
    snprintf(near, MODEL_NAME, "%s%s", found, model_shape_named(found, &shape) ? "" : colon ? colon : ":dN");
    if (colon && !model_shape_named(near, &shape)) snprintf(near, MODEL_NAME, "%s:dN", found);
    return true;
}

// Copies the flag in `text` to `name` in lower case, without leading dashes and "=value", and with '-' for '_'. Returns
// false if the name is too long.
static bool normalize(const char *text, char name[MAX_NAME]) {
    text += strspn(text, "-");
    const size_t length = strcspn(text, "=");
    if (length >= MAX_NAME) return false;
    for (size_t i = 0; i < length; i++) name[i] = text[i] == '_' ? '-' : (char)tolower((unsigned char)text[i]);
    name[length] = '\0';
    return true;
}

bool flag_unknown(const char *text, Error *err) {
    const int length = (int)strcspn(text, "=");
    char name[MAX_NAME] = "";
    bool negated;
    const OtherToolFlag *other = normalize(text, name) ? other_tool_flag(name) : NULL;
    if (other)
        return error_set(err, EXIT_USER, "%.*s: unknown flag; use --%s%s", length, text, other->ours, other->remark);
    const bool no = strncmp(name, "no-", 3) == 0;
    Search search = search_begin(name + (no ? 3 : 0), false);
    for (const Flag *flag = flag_table; flag->name; flag++) search_compare(&search, flag->name);
    const char *found = search_result(&search);
    if (!found) return error_set(err, EXIT_USER, "%.*s: unknown flag; --help lists all flags", length, text);
    const bool has_no = flag_has_negation(flag_find(found, strlen(found), &negated));
    if (no && !has_no)
        return error_set(err, EXIT_USER, "%.*s: unknown flag; --%s has no --no- form; remove it", length, text, found);
    return error_set(err, EXIT_USER, "%.*s: unknown flag; did you mean --%s%s?", length, text, no ? "no-" : "", found);
}
