// prepare_bytes: converts text files to token files in llm.c's uint16 format, NAME_train.bin and NAME_val.bin (--out
// NAME). Tokens 0 to 255 are bytes; token 256 is the end-of-text token and precedes every document. No tokenizer file
// is needed, so a model can be trained on any machine. --headers adds text from this machine's C, C++, Linux and CUDA
// headers.
//
// The output does not depend on the names or the order of the files: identical files count once, and documents are
// ordered by their hashes. The validation file gets entire files, or pieces of large files, as long as they fit into
// --val-fraction. If these are too little text, the validation file also gets the end of another file or piece.
#include <inttypes.h>
#include <stdio.h>

#include "coat/text/data_verify.h"
#include "documents.h"

#define END_OF_TEXT 256
// maximum shortfall from --val-fraction, as a fraction of all text; also the maximum distance that document_part()
// moves a cut, as a fraction of the document
#define TOLERANCE 0.01
// a note is printed if the fraction of validation tokens is below LITTLE_VAL times --val-fraction
#define LITTLE_VAL 0.2
#define MUCH_VAL 0.2          // a note is printed if more than this fraction of all tokens are validation tokens
#define FEW_HEADERS (1 << 20) // with --headers, a warning is printed if all text together has fewer bytes

typedef struct {
    const char *out;
    double val_fraction;
    int64_t max_bytes; // approximate size of the training text; 0: no limit
    bool headers, overwrite;
} Options;

static const char usage[] =
    "usage: prepare_bytes --out NAME [--val-fraction 0.05] [--max-bytes N] [--headers] [--overwrite]\n"
    "                     [FILE|FOLDER ...]\n"
    "\n"
    "Writes NAME_train.bin and NAME_val.bin: token = byte, 256 = end of text, for\n"
    "--tokenizer bytes. Folders are searched for text files, of which those over 1 MB\n"
    "are cut into pieces. Links are followed. Hidden and binary files are\n"
    "ignored, identical files count once. A note names ignored files.\n"
    "\n"
    "  --out NAME           path of the output, without _train.bin\n"
    "  --val-fraction F     fraction of the text for validation: entire files or\n"
    "                       pieces and, if these are too little text, the end of\n"
    "                       one more (default 0.05)\n"
    "  --max-bytes N        about N bytes of training text: selects texts by their\n"
    "                       hashes, up to N / (1 - F) bytes with the validation text\n"
    "                       (default: no limit; with --headers 12000000; 0: no limit)\n"
    "  --headers            add the headers of libc, Linux, libstdc++ and CUDA of\n"
    "                       this machine, except those over 1 MB\n"
    "  --overwrite          replace the output of an earlier run\n";

// --- choosing ----------------------------------------------------------------------------------------------

static int compare_documents(const void *a, const void *b) {
    const Document *x = (const Document *)a, *y = (const Document *)b;
    int order = XXH128_cmp(&x->hash, &y->hash);
    if (!order) order = XXH128_cmp(&x->file_hash, &y->file_hash);
    return order ? order : (x->offset > y->offset) - (x->offset < y->offset);
}

// True if the preceding document has the same text, file contents and position. So equal pieces of different files, or
// at different positions of a file, are not duplicates.
static bool is_duplicate(const Document *document) {
    const Document *before = document - 1;
    return XXH128_isEqual(before->hash, document->hash) && XXH128_isEqual(before->file_hash, document->file_hash) &&
           before->offset == document->offset;
}

// True if `document` is an entire large file that the list also contains in pieces. This happens if the file was named
// and is also in a named folder.
static bool is_also_cut(const Documents *documents, const Document *document) {
    if (document->bytes < document->file_bytes || document->bytes <= LARGE_BYTES) return false;
    for (int64_t i = 0; i < documents->count; i++) {
        const Document *other = &documents->list[i];
        if (other->bytes < other->file_bytes && XXH128_isEqual(other->file_hash, document->file_hash)) return true;
    }
    return false;
}

static int64_t total_bytes(const Documents *documents) {
    int64_t sum = 0;
    for (int64_t i = 0; i < documents->count; i++) sum += documents->list[i].bytes;
    return sum;
}

// Removes document i if keep[i] is false. The other documents stay in order.
static void drop(Documents *documents, const bool *keep) {
    int64_t kept = 0;
    for (int64_t i = 0; i < documents->count; i++) {
        if (keep[i])
            documents->list[kept++] = documents->list[i];
        else
            free(documents->list[i].path);
    }
    documents->count = kept;
}

// Sorts the documents by hash and drops duplicates. Keeps as many documents as fit into max_bytes / (1 - val_fraction)
// bytes, which are max_bytes of training text plus the text for validation.
static void choose(Documents *documents, const Options *options) {
    if (documents->count == 0) return;
    qsort(documents->list, (size_t)documents->count, sizeof *documents->list, compare_documents);
    double limit = options->max_bytes > 0 ? (double)options->max_bytes / (1 - options->val_fraction) : 1e18;
    bool *keep = (bool *)xmalloc((size_t)documents->count * sizeof *keep);
    int64_t sum = 0;
    for (int64_t i = 0; i < documents->count; i++) {
        const Document *document = &documents->list[i];
        bool duplicate = (i > 0 && is_duplicate(document)) || is_also_cut(documents, document);
        if (duplicate && document->offset == 0) leave_out(documents, EQUAL, document->path);
        bool fits = (double)(sum + document->bytes) <= limit;
        keep[i] = !duplicate && fits;
        if (keep[i]) sum += document->bytes;
        if (!duplicate && !fits) leave_out(documents, BEYOND, document->path);
    }
    drop(documents, keep);
    free(keep);
}

// True if another document has the same text. Requires documents that are sorted by hash.
static bool is_repeated(const Documents *documents, int64_t i) {
    const Document *list = documents->list;
    return (i > 0 && XXH128_isEqual(list[i - 1].hash, list[i].hash)) ||
           (i + 1 < documents->count && XXH128_isEqual(list[i + 1].hash, list[i].hash));
}

// Marks the last `bytes` bytes of one document for validation. Takes the first document that is longer than `bytes`,
// not yet marked and not repeated. Returns false if there is no such document.
static bool hold_out_end(Documents *documents, int64_t bytes) {
    if (bytes < 1) bytes = 1;
    for (int64_t i = 0; i < documents->count; i++) {
        Document *document = &documents->list[i];
        if (document->val > 0 || document->bytes <= bytes || is_repeated(documents, i)) continue;
        document->val = bytes;
        return true;
    }
    return false;
}

// Marks documents for validation, in the order of their hashes, as long as they fit into --val-fraction. Documents with
// the same text are marked together or not at all. If the marked documents are too little text, also marks the end of
// another document. If still nothing is marked, marks the smallest document.
static void hold_out(Documents *documents, double fraction) {
    Document *list = documents->list;
    const int64_t total = total_bytes(documents), target = (int64_t)(fraction * (double)total);
    int64_t sum = 0, smallest = 0, next;
    if (fraction <= 0) return;
    for (int64_t i = 0; i < documents->count; i = next) {
        int64_t bytes = 0;
        for (next = i; next < documents->count && XXH128_isEqual(list[next].hash, list[i].hash); next++)
            bytes += list[next].bytes;
        const bool val = sum + bytes <= target;
        for (int64_t k = i; k < next; k++) list[k].val = val ? list[k].bytes : 0;
        if (val) sum += bytes;
        if (list[i].bytes < list[smallest].bytes) smallest = i;
    }
    const bool enough = sum > 0 && 2 * sum >= target && (double)(target - sum) <= TOLERANCE * (double)total;
    if (!enough && !hold_out_end(documents, target - sum) && sum == 0) list[smallest].val = list[smallest].bytes;
}

// --- writing -----------------------------------------------------------------------------------------------

// Writes bytes [begin, end) of a text as tokens.
static bool write_tokens(FILE *file, const unsigned char *text, int64_t begin, int64_t end) {
    unsigned char tokens[8192]; // uint16, little-endian
    memset(tokens, 0, sizeof tokens);
    for (int64_t i = begin; i < end;) {
        size_t n = 0;
        for (; i < end && n < sizeof tokens; i++, n += 2) tokens[n] = text[i];
        if (fwrite(tokens, 1, n, file) != n) return false;
    }
    return true;
}

// Sets [*begin, *end) to the bytes of a document that belong to the validation file (val) or to the training file. If
// only the end of the document is held out, the cut is nominally document->val bytes before the end. The cut is moved
// to the nearest line end, unless this line end is farther away than TOLERANCE allows.
static void document_part(const Document *document, const unsigned char *text, bool val, int64_t *begin, int64_t *end) {
    const int64_t even = document->bytes - document->val, smaller = even < document->val ? even : document->val;
    const int64_t allowed = (int64_t)(TOLERANCE * (double)document->bytes);
    const int64_t most = allowed < smaller / 2 ? allowed : smaller / 2;
    int64_t cut = even;
    for (int64_t away = 0; smaller > 0 && away <= most; away++) {
        if (text[even - away - 1] == '\n') cut = even - away;
        if (text[even + away - 1] == '\n') cut = even + away;
        if (text[cut - 1] == '\n') break;
    }
    *begin = val ? cut : 0;
    *end = val ? document->bytes : cut;
}

// Writes the path of the validation file (val), NAME_val.bin, or of the training file, NAME_train.bin, to `path`.
static void output_path(char path[PATH_BUFFER], const Options *options, bool val) {
    snprintf(path, PATH_BUFFER, "%s_%s.bin", options->out, val ? "val" : "train");
}

// Writes the validation file (val) or the training file under a temporary name, then renames the file. Reads each
// document again, so that memory holds one document at a time. Fails if a document has changed since it was chosen.
static bool write_file(const Documents *documents, const Options *options, bool val, int64_t *tokens, Error *err) {
    char path[PATH_BUFFER], temporary[PATH_BUFFER + 32];
    output_path(path, options, val);
    snprintf(temporary, sizeof temporary, "%s.tmp.%ld", path, (long)getpid());
    unlink(temporary); // removes a temporary file of a crashed run, or a link to another place
    FILE *file = file_create_stream(temporary, err);
    if (!file) return false;

    int32_t header[DATA_HEADER_BYTES / 4] = {DATA_MAGIC_U16, DATA_VERSION_U16, 0};
    const unsigned char end_of_text[2] = {END_OF_TEXT & 0xff, END_OF_TEXT >> 8};
    bool ok = fwrite(header, sizeof header, 1, file) == 1, changed = false;
    *tokens = 0;
    for (int64_t i = 0; ok && !changed && i < documents->count; i++) {
        const Document *document = &documents->list[i];
        if (val ? document->val == 0 : document->val == document->bytes) continue;
        unsigned char *text = read_part(document->path, document->offset, document->bytes, document->file_bytes);
        changed = !text || !XXH128_isEqual(XXH3_128bits(text, (size_t)document->bytes), document->hash);
        if (changed) {
            error_set(err, EXIT_DATA, "%s: changed while it was read; run this command again", document->path);
        } else {
            int64_t begin, end;
            document_part(document, text, val, &begin, &end);
            ok = fwrite(end_of_text, sizeof end_of_text, 1, file) == 1 && write_tokens(file, text, begin, end);
            *tokens += 1 + end - begin;
        }
        free(text);
    }
    uint32_t crc = 0;
    Error unread;
    ok = ok && !changed && fflush(file) == 0;
    ok = ok && data_checksum(fileno(file), temporary, 2 * *tokens, NULL, &crc, &unread);
    header[2] = (int32_t)*tokens;
    header[8] = (int32_t)crc;
    header[9] = DATA_CHECKSUM;
    ok = ok && fseek(file, 0, SEEK_SET) == 0 && fwrite(header, sizeof header, 1, file) == 1;
    ok = ok && fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (fclose(file) != 0) ok = false;
    if (ok && rename(temporary, path) == 0) return true;
    if (!changed) error_set(err, EXIT_DATA, "%s: could not be written: %s", path, strerror(errno));
    unlink(temporary);
    return false;
}

// --- the program -------------------------------------------------------------------------------------------

static bool parse_number(const char *flag, const char *text, double low, double high, double *value, Error *err) {
    char *end;
    *value = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end || !(*value >= low && *value <= high))
        return error_set(err, EXIT_USER, "%s: must be a number from %g to %g%s%s", flag, low, high,
                         text ? ", not " : "", text ? text : "");
    return true;
}

// True if `word` is the flag, as "--out NAME" or "--out=NAME". Sets *value to the text after "=", else to the next word
// `next`, which may be NULL.
static bool takes_value(const char *word, const char *flag, const char *next, const char **value) {
    const size_t length = strlen(flag);
    if (strncmp(word, flag, length) != 0 || (word[length] && word[length] != '=')) return false;
    *value = word[length] ? word + length + 1 : next;
    return true;
}

// Parses the flags. Moves the other arguments to the front of argv, and sets *count to their number.
static bool parse(Options *options, int argc, char **argv, int *count, Error *err) {
    double number;
    int64_t max_bytes = -1;
    options->val_fraction = 0.05;
    *count = 0;
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL, *value = NULL;
        if (!strcmp(flag, "--headers")) {
            options->headers = true;
        } else if (!strcmp(flag, "--overwrite")) {
            options->overwrite = true;
        } else if (takes_value(flag, "--out", next, &value)) {
            if (!value || !*value)
                return error_set(err, EXIT_USER, "--out: needs a path, for example --out data/tokens/mytext");
            options->out = value;
        } else if (takes_value(flag, "--val-fraction", next, &value)) {
            if (!parse_number("--val-fraction", value, 0, 0.9, &options->val_fraction, err)) return false;
        } else if (takes_value(flag, "--max-bytes", next, &value)) {
            if (!parse_number("--max-bytes", value, 0, 2e9, &number, err)) return false;
            max_bytes = (int64_t)number;
        } else if (flag[0] == '-') {
            return error_set(err, EXIT_USER, "unknown flag %s; see %s --help", flag, program_invocation_short_name);
        } else {
            argv[(*count)++] = argv[i];
        }
        i += value && value == next;
    }
    if (!options->out)
        return error_set(err, EXIT_USER, "--out is missing; name the output, for example --out data/tokens/mytext");
    if (options->out[strlen(options->out) - 1] == '/')
        return error_set(err, EXIT_USER,
                         "--out %s: must not end in /; name the files in the folder, for example --out %stext",
                         options->out, options->out);
    if (strlen(options->out) > PATH_BUFFER - 64) return error_set(err, EXIT_USER, "--out is too long");
    if (*count == 0 && !options->headers)
        return error_set(err, EXIT_USER, "no input: name files or folders, or use --headers");
    options->max_bytes = max_bytes >= 0 ? max_bytes : options->headers ? 12000000 : 0;
    return true;
}

// Fails if output of an earlier run exists and --overwrite is not given.
static bool check_output(const Options *options, Error *err) {
    char path[PATH_BUFFER];
    for (int val = 0; val < 2 && !options->overwrite; val++) {
        output_path(path, options, val);
        if (access(path, F_OK) == 0)
            return error_set(err, EXIT_DATA, "%s: exists; use --overwrite to replace it, or another --out", path);
    }
    return true;
}

// Prints the files that were ignored in the given folders, and the links to outside these folders that were followed.
static void say_left_out(const Documents *documents) {
    static const char *const reasons[REASONS] = {[BINARY] = "binary or in UTF-16",
                                                 [LARGE] = "over 1 GB",
                                                 [UNREADABLE] = "unreadable",
                                                 [EMPTY] = "empty",
                                                 [HIDDEN] = "hidden",
                                                 [OTHER] = "neither a file nor a folder"};
    const char *before = "note: ignored files: ";
    for (int i = 0; i < REASONS; i++) {
        const Named *named = &documents->left_out[i];
        if (!named->count) continue;
        fprintf(stderr, "%s%" PRId64 " %s (%s)", before, named->count, reasons[i], named->names);
        before = "; ";
    }
    if (*before == ';') fprintf(stderr, "\n");
    const Named *links = &documents->links;
    if (links->count)
        fprintf(stderr, "note: links to outside the given folders were followed: %" PRId64 " link%s (%s)\n",
                links->count, plural(links->count), links->names);
}

static bool gather(Documents *documents, const Options *options, int count, char **paths, Error *err) {
    for (int i = 0; i < count; i++)
        if (!add_named(documents, paths[i], err)) return false;
    say_left_out(documents);
    if (options->headers) add_headers(documents);
    choose(documents, options);
    int64_t bytes = total_bytes(documents);
    if (documents->count == 0 && documents->left_out[BEYOND].count > 0)
        return error_set(err, EXIT_DATA,
                         "--max-bytes %" PRId64
                         ": every text is longer; use a larger --max-bytes, or name a folder, whose files over 1 MB "
                         "are cut into pieces",
                         options->max_bytes);
    if (documents->count == 0)
        return error_set(err, EXIT_DATA, "no text found; name files or folders of text: %s --out %s FOLDER",
                         program_invocation_short_name, options->out);
    if (options->headers && bytes < FEW_HEADERS)
        fprintf(stderr,
                "warning: with this machine's headers, there are only %" PRId64
                " bytes of text, too little to learn from; add text of "
                "your own: %s --headers --out %s FOLDER\n",
                bytes, program_invocation_short_name, options->out);
    if (bytes + documents->count > INT32_MAX)
        return error_set(err, EXIT_DATA,
                         "%" PRId64 " bytes of text are too many for one token file; use --max-bytes %" PRId64 ", or "
                         "several runs",
                         bytes, (int64_t)(2e9 * (1 - options->val_fraction)));
    hold_out(documents, options->val_fraction);
    return true;
}

// Removes the validation file of an earlier run if this run writes none. Otherwise, the new training text might contain
// the old validation text.
static bool remove_old_val(const Options *options, Error *err) {
    char path[PATH_BUFFER];
    output_path(path, options, true);
    if (unlink(path) == 0 || errno == ENOENT) return true;
    return error_set(err, EXIT_DATA, "%s: could not be removed: %s", path, strerror(errno));
}

// Writes to text[size] how many texts are held out for validation: "2 held out", "2 held out, and the end of another",
// "the end of one held out" or, if there is only one text, "its end held out".
static void held_out_text(char *text, size_t size, const Documents *documents) {
    int64_t whole = 0, ends = 0;
    for (int64_t i = 0; i < documents->count; i++) {
        const Document *document = &documents->list[i];
        whole += document->val == document->bytes;
        ends += document->val > 0 && document->val < document->bytes;
    }
    if (ends && whole)
        snprintf(text, size, "%" PRId64 " held out, and the end of another", whole);
    else if (ends)
        snprintf(text, size, "%s held out", documents->count > 1 ? "the end of one" : "its end");
    else
        snprintf(text, size, "%" PRId64 " held out", whole);
}

static void say_result(const Documents *documents, const Options *options, int64_t train_tokens, int64_t val_tokens) {
    char cut[80], held_out[80], out[PATH_BUFFER];
    snprintf(out, sizeof out, "%s", options->out);
    text_printable(out, strlen(out), "");
    snprintf(cut, sizeof cut, " file%s", plural(documents->count));
    if (documents->cut)
        snprintf(cut, sizeof cut, " texts, with the pieces of %" PRId64 " file%s over 1 MB", documents->cut,
                 plural(documents->cut));
    held_out_text(held_out, sizeof held_out, documents);
    const Named *left_out = documents->left_out;
    printf("%s: %" PRId64 " training and %" PRId64 " validation tokens from %" PRId64 "%s (%s); ignored: %" PRId64
           " equal, %" PRId64 " binary, %" PRId64 " large, %" PRId64 " unreadable, %" PRId64 " beyond --max-bytes\n",
           out, train_tokens, val_tokens, documents->count, cut, held_out, left_out[EQUAL].count,
           left_out[BINARY].count, left_out[LARGE].count, left_out[UNREADABLE].count, left_out[BEYOND].count);
    const double share = (double)val_tokens / (double)(train_tokens + val_tokens);
    const bool much = share > MUCH_VAL, asked = share <= 1.1 * options->val_fraction;
    if (much || share < LITTLE_VAL * options->val_fraction)
        fprintf(stderr, "note: %.3g %% of the text is held out for validation, %s\n", 100 * share,
                much && asked ? "as --val-fraction asks"
                              : "because equal or tiny texts are not divided; add other text");
}

int main(int argc, char **argv) {
    Options options;
    Documents documents;
    Error err;
    memset(&options, 0, sizeof options);
    memset(&documents, 0, sizeof documents);
    if (usage_asked(argc, argv, usage)) return EXIT_DONE;
    char folder[PATH_BUFFER];
    int count;
    int64_t train_tokens = 0, val_tokens = 0;
    bool ok = parse(&options, argc, argv, &count, &err) && check_output(&options, &err) &&
              gather(&documents, &options, count, argv, &err) &&
              path_folder(folder, sizeof folder, options.out, &err) && folder_make(folder, &err) &&
              write_file(&documents, &options, false, &train_tokens, &err) &&
              (options.val_fraction > 0 ? write_file(&documents, &options, true, &val_tokens, &err)
                                        : remove_old_val(&options, &err));
    if (ok) say_result(&documents, &options, train_tokens, val_tokens);
    for (int64_t i = 0; i < documents.count; i++) free(documents.list[i].path);
    free(documents.list);
    free(documents.folders);
    if (ok) return EXIT_DONE;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, err.text);
    return (int)err.code;
}
