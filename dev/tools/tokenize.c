// Encodes texts as the trainer encodes a prompt, to compare the token ids with those of other libraries.
#include <string.h>

#include "coat/io/files.h"
#include "coat/text/tokenizer.h"

static const char usage[] = "usage: tokenize TOKENIZER [FILE]\n"
                            "\n"
                            "Writes the token ids of FILE to standard output as little-endian uint32. Zero\n"
                            "bytes in FILE separate texts. Each text is encoded alone; 4294967295 follows its ids.\n"
                            "Without FILE, prints the BOS and EOS ids (-1: none) and the size of the\n"
                            "vocabulary. TOKENIZER is a value of the trainer's --tokenizer.\n";

static bool write_text(const Tokenizer *t, const char *text, int32_t *ids, int max, Error *err) {
    const int count = tokenizer_encode(t, text, ids, max - 1, err);
    if (count < 0) return false;
    ids[count] = -1;
    return fwrite(ids, sizeof *ids, (size_t)count + 1, stdout) == (size_t)count + 1 ||
           error_set(err, EXIT_DATA, "standard output could not be written");
}

static bool write_texts(const Tokenizer *t, const char *path, Error *err) {
    char *text;
    size_t size;
    if (!file_read_all(path, 1 << 29, &text, &size, err)) return false;
    const int max = (int)(2 * size + 16);
    int32_t *ids = (int32_t *)xmalloc((size_t)max * sizeof *ids);
    bool good = true;
    for (size_t at = 0; good && at < size; at += strlen(text + at) + 1) good = write_text(t, text + at, ids, max, err);
    free(ids);
    free(text);
    return good;
}

static bool run(int argc, char **argv, Error *err) {
    if ((argc != 2 && argc != 3) || argv[1][0] == '-') return error_set(err, EXIT_USER, USAGE_LINE(usage));
    Tokenizer *t = strcmp(argv[1], "bytes") == 0 ? tokenizer_bytes() : tokenizer_open(argv[1], err);
    const bool good = t && (argc == 2 || write_texts(t, argv[2], err));
    if (good && argc == 2) printf("%d %d %d\n", tokenizer_bos(t), tokenizer_eos(t), tokenizer_vocab(t));
    tokenizer_close(t);
    return good;
}

int main(int argc, char **argv) {
    return usage_main(argc, argv, usage, run);
}
