// Describes the data for reports: its files, their kind, and how much of each set was read.
#include <inttypes.h>
#include <string.h>

#include "data_loader.h"
#include "images.h"
#include "io/files.h"

// True if a file has enough tokens to decide whether they are byte-level tokens. The minimum is lower for files with a
// loss mask, because fine-tuning files are often small.
static bool is_telling(const TokenFile *file) {
    return file->tokens >= (file->mask ? 128 : 1024);
}

typedef enum { ALL_MATCH, NOT_ALL, UNREAD } Begins;

// Returns ALL_MATCH if matches() is true for each of the first DATA_LOOKED_AT tokens of a file, otherwise NOT_ALL;
// UNREAD if the file cannot be read.
static Begins begins_with(DataLoader *loader, int index, bool (*matches)(const SpecialIds *ids, uint32_t token),
                          const SpecialIds *ids) {
    enum { PIECE = 2048 };
    const TokenFile *file = &loader->files[index];
    const size_t count = file->tokens < DATA_LOOKED_AT ? (size_t)file->tokens : DATA_LOOKED_AT;
    const size_t width = (size_t)file->token_bytes;
    uint32_t piece[PIECE];
    Error ignored;
    const int fd = token_file_descriptor(loader, index, &ignored);
    if (fd < 0) return UNREAD;
    for (size_t at = 0; at < count; at += PIECE) {
        const size_t n = count - at < PIECE ? count - at : PIECE;
        if (!file_read_at(fd, file->path, (uint64_t)file->header_bytes + at * width, piece, n * width, &ignored))
            return UNREAD;
        for (size_t i = 0; i < n; i++)
            if (!matches(ids, width == 2 ? ((const uint16_t *)piece)[i] : piece[i])) return NOT_ALL;
    }
    return ALL_MATCH;
}

static bool is_byte(const SpecialIds *unused, uint32_t token) {
    (void)unused;
    return token <= 256;
}

// True if the token does not mark a document boundary.
static bool is_no_boundary(const SpecialIds *ids, uint32_t token) {
    return ids->bos >= 0 ? (int32_t)token != ids->bos : !is_eos(ids, (int32_t)token);
}

bool data_has_ids(DataLoader *loader, const SpecialIds *ids) {
    for (int i = 0; i < loader->count; i++)
        if (!loader->files[i].starts && begins_with(loader, i, is_no_boundary, ids) == NOT_ALL) return true;
    return false;
}

static bool begins_with_bytes(DataLoader *loader, int index) {
    return is_telling(&loader->files[index]) && begins_with(loader, index, is_byte, NULL) == ALL_MATCH;
}

bool data_begins_with_bytes(DataLoader *loader) {
    return begins_with_bytes(loader, 0);
}

PromptFormat data_prompt_format(const DataLoader *loader, PromptFormat different[2]) {
    PromptFormat found = PROMPT_FORMAT_NONE;
    different[0] = different[1] = PROMPT_FORMAT_NONE;
    for (int i = 0; i < loader->count; i++) {
        const PromptFormat named = loader->files[i].prompt_format;
        if (named == PROMPT_FORMAT_NONE) continue;
        if (found != PROMPT_FORMAT_NONE && found != named) {
            different[0] = found, different[1] = named;
            return PROMPT_FORMAT_NONE;
        }
        found = named;
    }
    return found;
}

bool data_mixes_bytes(DataLoader *loader, const char **bytes, const char **other) {
    *bytes = *other = NULL;
    for (int i = 0; i < loader->count; i++) {
        if (!is_telling(&loader->files[i])) continue;
        const char **kind = begins_with_bytes(loader, i) ? bytes : other;
        if (!*kind) *kind = loader->files[i].path;
    }
    return *bytes && *other;
}

static bool is_same_file(const TokenFile *a, const TokenFile *b) {
    return a->inode == b->inode && a->device == b->device;
}

const char *data_shared_file(const DataLoader *a, const DataLoader *b) {
    for (int i = 0; i < a->count; i++)
        for (int j = 0; j < b->count; j++)
            if (is_same_file(&a->files[i], &b->files[j])) return b->files[j].path;
    return NULL;
}

const char *data_file_of_two_sets(const DataLoader *loader) {
    for (int k = 1; k < loader->set_count; k++)
        for (int i = 0; i < loader->sets[k].first_file; i++) {
            const int end = k + 1 < loader->set_count ? loader->sets[k + 1].first_file : loader->count;
            for (int j = loader->sets[k].first_file; j < end; j++)
                if (is_same_file(&loader->files[i], &loader->files[j])) return loader->files[j].path;
        }
    return NULL;
}

const char *data_narrow_file(const DataLoader *loader) {
    for (int i = 0; i < loader->count; i++)
        if (loader->files[i].token_bytes == 2) return loader->files[i].path;
    return NULL;
}

const char *data_repeated_file(const DataLoader *loader) {
    for (int i = 0; i < loader->count; i++)
        if (loader->files[i].again) return loader->files[i].path;
    return NULL;
}

// Writes a number with separators: 1234567 as "1,234,567".
static void format_thousands(int64_t value, char text[32]) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRId64, value), out = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) text[out++] = ',';
        text[out++] = digits[i];
    }
    text[out] = 0;
}

int data_sets(const DataLoader *loader) {
    return loader->set_count;
}

DataSet data_set(DataLoader *loader, int number, int64_t position) {
    const Set *set = &loader->sets[number];
    double weights = 0;
    for (int k = 0; k < loader->set_count; k++) weights += loader->sets[k].weight;
    const int64_t seen = loader->set_count > 1 ? mixture_count(&loader->mixture, number, position) : position;
    DataSet result = {set->name, set->weight / weights, set->tokens, seen, (double)seen / (double)set->sequences};
    return result;
}

DataExamples data_examples(const DataLoader *loader) {
    DataExamples all = {0, 0, 0, 0, 0};
    int64_t places = 0;
    for (int i = 0; i < loader->count; i++) {
        const TokenFile *file = &loader->files[i];
        const Packing *packing = &file->packing;
        if (!packing->members) continue;
        const int32_t kept = packing->first[packing->rows];
        all.examples += file->examples;
        all.sequences += packing->rows;
        all.cut += file->cut;
        all.left_out += file->examples - kept;
        for (int32_t k = 0; k < kept; k++) {
            const int64_t length = token_file_kept(file, packing->members[k], loader->T);
            places += length < loader->T ? length : loader->T;
        }
    }
    if (all.sequences > 0) all.filled = (double)places / ((double)all.sequences * loader->T);
    return all;
}

#define IN_THE_LOSS "in the loss"

bool data_describes_mask(const char *text) {
    return strstr(text, IN_THE_LOSS) != NULL;
}

const char *data_describe(const DataLoader *loader, char *text, size_t size) {
    int wide = 0;
    int64_t images = 0;
    for (int i = 0; i < loader->count; i++) {
        wide += loader->files[i].token_bytes == 4;
        images += loader->files[i].images ? loader->files[i].images->count : 0;
    }
    char tokens[32], rest[192] = "", weight[32];
    format_thousands(loader->tokens, tokens);
    text_append(rest, sizeof rest, "%d shard%s, %s token%s, %s", loader->count, plural(loader->count), tokens,
                plural(loader->tokens),
                wide == 0               ? "uint16"
                : wide == loader->count ? "uint32"
                                        : "uint16 and uint32");
    if (loader->masked)
        text_append(rest, sizeof rest, ", %.3g %% " IN_THE_LOSS,
                    100.0 * (double)loader->counted / (double)loader->tokens);
    if (images > 0) text_append(rest, sizeof rest, ", %" PRId64 " image%s", images, plural(images));
    text[0] = 0;
    if (loader->set_count > 1) {
        text_append(text, size, "%d sets of ", loader->set_count);
        for (int k = 0; k < loader->set_count; k++) {
            snprintf(weight, sizeof weight, "%s%.3g", k ? " : " : "", loader->sets[k].weight);
            const bool fits = strlen(text) + strlen(weight) + strlen(" : ..., ") + strlen(rest) < size;
            text_append(text, size, "%s", fits ? weight : " : ...");
            if (!fits) break;
        }
        text_append(text, size, ", ");
    }
    text_append(text, size, "%s", rest);
    return text;
}
