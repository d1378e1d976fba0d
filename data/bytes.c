// prepare_bytes: text files in, byte-level token files out (token = byte, 256 = end of text, before every
// document), in llm.c's uint16 form: OUT_train.bin and OUT_val.bin. Needs nothing but text, so that a model can
// be trained on any machine; --headers takes the text from the machine's own C, C++, Linux and CUDA headers.
//
// The output depends on the files' contents alone, neither on their names nor on the file system's order: equal
// files count once, and documents come in the order of their hashes. Validation files are held out whole.
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "data.h"
#include "error.h"
#include "files.h"

#define PATH_BYTES 4096
#define END_OF_TEXT 256
#define FOLDER_FILE_MAX (1 << 20)   // larger files in a folder are seldom text that somebody wrote
#define FILE_MAX ((int64_t)1 << 30) // of a file named on the command line
#define FOLDER_DEPTH 32
#define FEW_HEADERS (1 << 20) // with less text than this, a sample will not look like C

typedef struct {
    char *path;
    int64_t bytes;
    XXH128_hash_t hash;
    bool val;
} Document;

typedef struct {
    Document *list;
    int64_t count, capacity;
    int64_t duplicates, binary, large, unreadable, beyond; // files left out; beyond: of --max-bytes
} Documents;

typedef struct {
    const char *out;
    double val_fraction;
    int64_t max_bytes; // of the training file; 0 = no limit
    bool headers;
} Options;

static const char usage[] =
    "usage: prepare_bytes --out NAME [--val-fraction 0.05] [--max-bytes N] [--headers] [FILE|FOLDER ...]\n"
    "\n"
    "Writes NAME_train.bin and NAME_val.bin: token = byte, 256 = end of text, for --tokenizer bytes.\n"
    "Folders are searched for text files up to 1 MB; hidden and binary files are left out, equal ones count once.\n"
    "\n"
    "  --out NAME           path of the output, without _train.bin\n"
    "  --val-fraction F     share of the text held out for validation, in whole files (default 0.05)\n"
    "  --max-bytes N        at most N bytes of training text, a fixed choice by content (default: no limit;\n"
    "                       with --headers 12000000; 0 = no limit)\n"
    "  --headers            adds the headers of libc, Linux, libstdc++ and CUDA found on this machine\n";

// --- gathering ---------------------------------------------------------------------------------------------

// Reads a regular file whole; NULL when it cannot be read.
static unsigned char *read_file(const char *path, int64_t bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    unsigned char *text = (unsigned char *)xmalloc((size_t)bytes + 1);
    size_t got = fread(text, 1, (size_t)bytes + 1, file); // one more, to see that it has not grown
    fclose(file);
    if (got == (size_t)bytes) return text;
    free(text);
    return NULL;
}

static void add_file(Documents *documents, const char *path, int64_t bytes, int64_t limit) {
    if (bytes == 0) return;
    if (bytes > limit) {
        documents->large++;
        return;
    }
    unsigned char *text = read_file(path, bytes);
    if (!text) {
        documents->unreadable++;
        return;
    }
    if (memchr(text, 0, (size_t)bytes)) {
        documents->binary++;
    } else {
        if (documents->count == documents->capacity) {
            documents->capacity = documents->capacity ? 2 * documents->capacity : 1024;
            documents->list =
                (Document *)realloc(documents->list, (size_t)documents->capacity * sizeof *documents->list);
            if (!documents->list) fatal(EXIT_DEVICE, "host memory: could not hold a list of the files");
        }
        Document *document = &documents->list[documents->count++];
        memset(document, 0, sizeof *document);
        size_t length = strlen(path) + 1;
        document->path = (char *)memcpy(xmalloc(length), path, length);
        document->bytes = bytes;
        document->hash = XXH3_128bits(text, (size_t)bytes);
    }
    free(text);
}

// Adds a folder's files and those of the folders in it; links to folders are not followed, so there is no loop.
static void add_folder(Documents *documents, const char *folder, int depth) {
    DIR *dir = opendir(folder);
    if (!dir || depth > FOLDER_DEPTH) {
        documents->unreadable++;
        if (dir) closedir(dir);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[PATH_BYTES];
        struct stat link, info;
        int length = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.' || length >= (int)sizeof path) continue;
        if (lstat(path, &link) != 0 || stat(path, &info) != 0) continue;
        if (S_ISDIR(link.st_mode))
            add_folder(documents, path, depth + 1);
        else if (S_ISREG(info.st_mode))
            add_file(documents, path, (int64_t)info.st_size, FOLDER_FILE_MAX);
    }
    closedir(dir);
}

static bool add_named(Documents *documents, const char *path, Error *err) {
    struct stat info;
    if (stat(path, &info) != 0) return error_set(err, EXIT_DATA, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        add_folder(documents, path, 0);
        return true;
    }
    int64_t refused = documents->binary + documents->large + documents->unreadable;
    if (S_ISREG(info.st_mode)) add_file(documents, path, (int64_t)info.st_size, FILE_MAX);
    if (!S_ISREG(info.st_mode) || documents->binary + documents->large + documents->unreadable > refused)
        return error_set(err, EXIT_DATA, "%s is not a readable text file of at most %d MB", path,
                         (int)(FILE_MAX >> 20));
    return true;
}

static void add_headers(Documents *documents) {
    static const char *const places[] = {"/usr/include", "/usr/lib/gcc/*/*/include", "/usr/local/cuda/include"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        glob_t found;
        memset(&found, 0, sizeof found);
        if (glob(places[i], 0, NULL, &found) == 0)
            for (size_t k = 0; k < found.gl_pathc; k++) add_folder(documents, found.gl_pathv[k], 0);
        globfree(&found);
    }
}

// --- choosing ----------------------------------------------------------------------------------------------

static int compare_documents(const void *a, const void *b) {
    const Document *x = (const Document *)a, *y = (const Document *)b;
    int by_hash = XXH128_cmp(&x->hash, &y->hash);
    return by_hash ? by_hash : strcmp(x->path, y->path);
}

static int64_t total_bytes(const Documents *documents, bool val) {
    int64_t sum = 0;
    for (int64_t i = 0; i < documents->count; i++)
        if (documents->list[i].val == val) sum += documents->list[i].bytes;
    return sum;
}

// Keeps those documents for which `keep` says so, in order.
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

// Sorts by hash, drops duplicates, and keeps as many as fit into max_bytes and its share of validation text.
static void choose(Documents *documents, const Options *options) {
    if (documents->count == 0) return;
    qsort(documents->list, (size_t)documents->count, sizeof *documents->list, compare_documents);
    double limit = options->max_bytes > 0 ? (double)options->max_bytes / (1 - options->val_fraction) : 1e18;
    bool *keep = (bool *)xmalloc((size_t)documents->count * sizeof *keep);
    int64_t sum = 0;
    for (int64_t i = 0; i < documents->count; i++) {
        const Document *document = &documents->list[i];
        bool duplicate = i > 0 && XXH128_isEqual(document[-1].hash, document->hash);
        documents->duplicates += duplicate;
        bool fits = (double)(sum + document->bytes) <= limit;
        keep[i] = !duplicate && fits;
        if (keep[i]) sum += document->bytes;
        documents->beyond += !duplicate && !fits;
    }
    drop(documents, keep);
    free(keep);
}

// Marks files for validation, in the order of their hashes, as long as they fit into the share that is asked
// for; the smallest file if none does.
static void hold_out(Documents *documents, double fraction) {
    int64_t target = (int64_t)(fraction * (double)total_bytes(documents, false)), sum = 0, smallest = 0;
    for (int64_t i = 0; i < documents->count; i++) {
        Document *document = &documents->list[i];
        document->val = sum + document->bytes <= target;
        if (document->val) sum += document->bytes;
        if (document->bytes < documents->list[smallest].bytes) smallest = i;
    }
    if (sum == 0 && fraction > 0) documents->list[smallest].val = true;
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

// The bytes of a document that belong to one of the two files. Files are not divided, but for the case that
// there is only one: then its last lines are the validation text.
static void document_part(const Documents *documents, const Document *document, const unsigned char *text,
                          double fraction, bool val, int64_t *begin, int64_t *end) {
    *begin = 0;
    *end = document->bytes;
    if (documents->count != 1 || fraction <= 0) return;
    int64_t cut = (int64_t)((1 - fraction) * (double)document->bytes);
    while (cut > 0 && text[cut - 1] != '\n') cut--;
    if (cut == 0) cut = (int64_t)((1 - fraction) * (double)document->bytes); // a single line
    *(val ? begin : end) = cut;
}

// Writes one of the two files under a temporary name and renames it. The text is read again, so that memory
// holds only one document at a time; one that has changed since it was chosen is an error.
static bool write_file(const Documents *documents, const Options *options, bool val, int64_t *tokens, Error *err) {
    char path[PATH_BYTES], temporary[PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s_%s.bin", options->out, val ? "val" : "train");
    snprintf(temporary, sizeof temporary, "%s.tmp.%ld", path, (long)getpid());
    FILE *file = fopen(temporary, "wb");
    if (!file) return error_set(err, EXIT_DATA, "%s could not be written: %s", temporary, strerror(errno));

    int32_t header[DATA_HEADER_BYTES / 4] = {DATA_MAGIC_U16, DATA_VERSION_U16, 0};
    const unsigned char end_of_text[2] = {END_OF_TEXT & 0xff, END_OF_TEXT >> 8};
    bool ok = fwrite(header, sizeof header, 1, file) == 1, changed = false;
    *tokens = 0;
    for (int64_t i = 0; ok && !changed && i < documents->count; i++) {
        const Document *document = &documents->list[i];
        if (documents->count > 1 && document->val != val) continue;
        unsigned char *text = read_file(document->path, document->bytes);
        changed = !text || !XXH128_isEqual(XXH3_128bits(text, (size_t)document->bytes), document->hash);
        if (changed) {
            error_set(err, EXIT_DATA, "%s changed while it was read: run this again", document->path);
        } else {
            int64_t begin, end;
            document_part(documents, document, text, options->val_fraction, val, &begin, &end);
            ok = fwrite(end_of_text, sizeof end_of_text, 1, file) == 1 && write_tokens(file, text, begin, end);
            *tokens += 1 + end - begin;
        }
        free(text);
    }
    header[2] = (int32_t)*tokens;
    ok = ok && !changed && fseek(file, 0, SEEK_SET) == 0 && fwrite(header, sizeof header, 1, file) == 1;
    ok = ok && fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (fclose(file) != 0) ok = false;
    if (ok && rename(temporary, path) == 0) return true;
    if (!changed) error_set(err, EXIT_DATA, "%s could not be written: %s", path, strerror(errno));
    unlink(temporary);
    return false;
}

// --- the program -------------------------------------------------------------------------------------------

static bool parse_number(const char *flag, const char *text, double low, double high, double *value, Error *err) {
    char *end;
    *value = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end || !(*value >= low && *value <= high))
        return error_set(err, EXIT_USER, "%s needs a number from %g to %g%s%s", flag, low, high, text ? ", not " : "",
                         text ? text : "");
    return true;
}

// Moves what is no flag to the front of argv; *count says how many.
static bool parse(Options *options, int argc, char **argv, int *count, Error *err) {
    double number;
    int64_t max_bytes = -1;
    options->val_fraction = 0.05;
    *count = 0;
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(flag, "--headers")) {
            options->headers = true;
        } else if (!strcmp(flag, "--out")) {
            if (!value || !*value) return error_set(err, EXIT_USER, "--out needs a path: --out data/tokens/mytext");
            options->out = value;
            i++;
        } else if (!strcmp(flag, "--val-fraction")) {
            if (!parse_number(flag, value, 0, 0.9, &options->val_fraction, err)) return false;
            i++;
        } else if (!strcmp(flag, "--max-bytes")) {
            if (!parse_number(flag, value, 0, 2e9, &number, err)) return false;
            max_bytes = (int64_t)number;
            i++;
        } else if (flag[0] == '-') {
            return error_set(err, EXIT_USER, "unknown flag %s: see prepare_bytes --help", flag);
        } else {
            argv[(*count)++] = argv[i];
        }
    }
    if (!options->out)
        return error_set(err, EXIT_USER, "--out is missing: say where to write, as --out data/tokens/mytext");
    if (strlen(options->out) > PATH_BYTES - 64) return error_set(err, EXIT_USER, "--out is too long");
    if (*count == 0 && !options->headers)
        return error_set(err, EXIT_USER, "no text: name files or folders, or use --headers");
    options->max_bytes = max_bytes >= 0 ? max_bytes : options->headers ? 12000000 : 0;
    return true;
}

static bool gather(Documents *documents, const Options *options, int count, char **paths, Error *err) {
    for (int i = 0; i < count; i++)
        if (!add_named(documents, paths[i], err)) return false;
    if (options->headers) add_headers(documents);
    choose(documents, options);
    int64_t bytes = total_bytes(documents, false);
    if (documents->count == 0)
        return error_set(err, EXIT_DATA, "no text found: name files or folders of text, prepare_bytes --out %s FOLDER",
                         options->out);
    if (options->headers && bytes < FEW_HEADERS)
        fprintf(stderr,
                "warning: this machine has few headers (%" PRId64
                " bytes of text), too little to learn from; add text of "
                "your own: prepare_bytes --headers --out %s FOLDER\n",
                bytes, options->out);
    if (bytes + documents->count > INT32_MAX)
        return error_set(err, EXIT_DATA,
                         "%" PRId64 " bytes of text are more than a token file holds: use --max-bytes 2000000000, or "
                         "several runs",
                         bytes);
    hold_out(documents, options->val_fraction);
    return true;
}

int main(int argc, char **argv) {
    Options options;
    Documents documents;
    Error err;
    memset(&options, 0, sizeof options);
    memset(&documents, 0, sizeof documents);
    if (usage_asked(argc, argv, usage)) return EXIT_DONE;
    char folder[PATH_BYTES];
    int count;
    int64_t train_tokens = 0, val_tokens = 0, val_files = 0;
    bool ok = parse(&options, argc, argv, &count, &err) && gather(&documents, &options, count, argv, &err) &&
              path_folder(folder, sizeof folder, options.out, &err) && folder_make(folder, &err) &&
              write_file(&documents, &options, false, &train_tokens, &err) &&
              (options.val_fraction <= 0 || write_file(&documents, &options, true, &val_tokens, &err));
    for (int64_t i = 0; i < documents.count; i++) {
        val_files += documents.list[i].val;
        free(documents.list[i].path);
    }
    free(documents.list);
    if (!ok) {
        fprintf(stderr, "prepare_bytes: %s\n", err.text);
        return (int)err.code;
    }
    printf("%s: %" PRId64 " training and %" PRId64 " validation tokens from %" PRId64 " files (%" PRId64
           " held out); left out: %" PRId64 " equal, %" PRId64 " binary, %" PRId64 " large, %" PRId64
           " unreadable, %" PRId64 " beyond --max-bytes\n",
           options.out, train_tokens, val_tokens, documents.count, documents.count > 1 ? val_files : 0,
           documents.duplicates, documents.binary, documents.large, documents.unreadable, documents.beyond);
    return EXIT_DONE;
}
