// Token ids of texts, as the trainer encodes a prompt: to compare with other libraries.
#include <string.h>

#include "coat/io/files.h"
#include "coat/text/tokenizer.h"

static const char usage[] =
    "usage: tokenize TOKENIZER FILE\n"
    "Writes the token ids of FILE to standard output, as little-endian uint32. Bytes 0 in FILE separate texts, which "
    "are\n"
    "encoded one by one; 4294967295 follows each. TOKENIZER is what --tokenizer of the trainer takes.\n";

static bool write_text(const Tokenizer *t, const char *text, int32_t *ids, int max, Error *err) {
    const int count = tokenizer_encode(t, text, ids, max - 1, err);
    if (count < 0) return false;
    ids[count] = -1;
    return fwrite(ids, sizeof *ids, (size_t)count + 1, stdout) == (size_t)count + 1 ||
           error_set(err, EXIT_DATA, "standard output could not be written");
}

int main(int argc, char **argv) {
    Error err;
    char *text = NULL;
    size_t size;
    if (argc != 3) {
        fputs(usage, argc == 2 && strcmp(argv[1], "--help") == 0 ? stdout : stderr);
        return argc == 2 && strcmp(argv[1], "--help") == 0 ? EXIT_DONE : EXIT_USER;
    }
    Tokenizer *t = strcmp(argv[1], "bytes") == 0 ? tokenizer_bytes() : tokenizer_open(argv[1], &err);
    bool good = t && file_read_all(argv[2], 1 << 30, &text, &size, &err);
    int32_t *ids = good ? (int32_t *)xmalloc((2 * size + 16) * sizeof *ids) : NULL;
    for (size_t at = 0; good && at < size; at += strlen(text + at) + 1)
        good = write_text(t, text + at, ids, (int)(2 * size + 16), &err);
    free(ids);
    free(text);
    tokenizer_close(t);
    if (!good) fprintf(stderr, "error: %s\n", err.text);
    return good ? EXIT_DONE : (int)err.code;
}
