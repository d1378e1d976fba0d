// Converts token files for a model with a smaller vocabulary, by dropping all tokens outside that vocabulary. The
// remaining text lacks words, so the output is only suitable for measuring speed.
#include <string.h>

#include "coat/io/files.h"
#include "coat/text/data.h"
#include "coat/text/data_files.h"

static const char usage[] = "usage: narrow_tokens VOCABULARY MOST TOKENS.bin OUT.bin\n"
                            "\n"
                            "Writes the tokens below VOCABULARY of TOKENS.bin, a file or a pattern of files,\n"
                            "to OUT.bin, at most MOST of them. Prints the number of tokens written, and their\n"
                            "percentage of the tokens read. Reads parts of 64 tokens; up to 64 tokens at a\n"
                            "file's end are not read.\n";

enum { LENGTH = 64, LARGEST_VOCABULARY = 1 << 16, LARGEST_FILE = 1 << 28 };

// Copies the tokens below `vocabulary` from the files to `tokens`, at most `most` of them. Returns how many were
// copied, or -1 on failure. Adds the number of tokens read to *read.
static int64_t narrow(DataLoader *data, int vocabulary, int64_t most, uint16_t *tokens, int64_t *read, Error *err) {
    int32_t in[LENGTH], target[LENGTH];
    int64_t count = 0;
    for (int64_t n = 0; n < data_sequences(data) && count < most; n++) {
        if (!data_batch(data, n, in, target, err)) return -1;
        for (int i = 0; i < LENGTH && count < most; i++, ++*read)
            if (in[i] < vocabulary) tokens[count++] = (uint16_t)in[i];
    }
    return count;
}

static bool run(int argc, char **argv, Error *err) {
    char *end[2], **argument = argv + 1;
    if (argc != 5) return error_set(err, EXIT_USER, USAGE_LINE(usage));
    const int64_t vocabulary = strtoll(argument[0], &end[0], 10), most = strtoll(argument[1], &end[1], 10);
    if (*end[0] || *end[1] || vocabulary < 1 || vocabulary > LARGEST_VOCABULARY || most < 1 || most > LARGEST_FILE)
        return error_set(err, EXIT_USER, "%s, %s: VOCABULARY must be a number from 1 to %d, and MOST from 1 to %d",
                         argument[0], argument[1], LARGEST_VOCABULARY, LARGEST_FILE);
    DataLoader *data = data_open(argument[2], 1, LENGTH, 0, 1, 0, false, LARGEST_VOCABULARY, err);
    if (!data) return false;
    const size_t room = DATA_HEADER_BYTES + (size_t)most * sizeof(uint16_t);
    char *file = (char *)xcalloc(room, 1);
    int32_t *header = (int32_t *)file;
    int64_t read = 0;
    const int64_t count = narrow(data, (int)vocabulary, most, (uint16_t *)(file + DATA_HEADER_BYTES), &read, err);
    data_close(data);
    header[0] = DATA_MAGIC_U16;
    header[1] = DATA_VERSION_U16;
    header[2] = (int32_t)count;
    bool good = count >= 0;
    if (count == 0) good = error_set(err, EXIT_DATA, "%s: contains no token below %s", argument[2], argument[0]);
    good = good && file_replace(argument[3], file, DATA_HEADER_BYTES + (size_t)count * sizeof(uint16_t), err);
    free(file);
    if (good)
        printf("%lld tokens below %lld, %.1f %% of those read\n", (long long)count, (long long)vocabulary,
               100.0 * (double)count / (double)read);
    return good;
}

int main(int argc, char **argv) {
    return usage_main(argc, argv, usage, run);
}
