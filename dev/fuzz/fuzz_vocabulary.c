// Fuzz target for GPT-2's vocabularies and BPE merges (coat/text/tokenizer.c, coat/text/bpe.c). The input has sections
// "=== encoder.json", "=== vocab.bpe", "=== gpt2_tokenizer.bin", and "=== text", the text to encode.
#include "dev/fuzz/fuzz.h"

#include "coat/text/bpe.h"
#include "coat/text/tokenizer.h"

#define MAX_TEXT 512

// Decodes every token of the vocabulary into a buffer of 64 bytes, which may truncate the text.
static void decode_all(const Tokenizer *t) {
    char bytes[64];
    int vocab = tokenizer_vocab(t), end = tokenizer_eos(t);
    fuzz_check(vocab >= 1 && vocab <= VOCABULARY_MAX && end >= -1 && end < vocab);
    for (int id = 0; id < vocab && id < 1000; id++) tokenizer_decode(t, id, bytes, sizeof bytes);
    fuzz_check(tokenizer_decode(t, vocab, bytes, sizeof bytes) == 0 &&
               tokenizer_decode(t, -1, bytes, sizeof bytes) == 0);
}

// Checks that encoding the text and decoding the token ids returns the same text.
static void round_trip(const Tokenizer *t, const uint8_t *text, size_t bytes) {
    char copy[MAX_TEXT + 1], back[2 * MAX_TEXT];
    int32_t ids[MAX_TEXT];
    Error err;
    size_t used = 0;
    if (bytes > MAX_TEXT) bytes = MAX_TEXT;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    int count = tokenizer_encode(t, copy, ids, MAX_TEXT, &err);
    if (count < 0) {
        fuzz_refused(&err, "tokenizer");
        return;
    }
    for (int i = 0; i < count; i++) {
        fuzz_check(ids[i] >= 0 && ids[i] < tokenizer_vocab(t));
        size_t length = tokenizer_decode(t, ids[i], back + used, sizeof back - used);
        fuzz_check(length > 0 && length <= sizeof back - used);
        used += length;
    }
    fuzz_check(used == strlen(copy) && memcmp(back, copy, used) == 0);
    if (count > 0) fuzz_check(tokenizer_encode(t, copy, ids, count - 1, &err) == -1 && err.code == EXIT_USER);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_section_file(data, size, "encoder.json");
    fuzz_section_file(data, size, "vocab.bpe");
    fuzz_section_file(data, size, "gpt2_tokenizer.bin");
    size_t bytes;
    const uint8_t *text = fuzz_section(data, size, "text", &bytes);
    const char *folder = fuzz_folder();
    Error err;
    Tokenizer *t = tokenizer_open(folder, &err);
    if (t) {
        decode_all(t);
        if (text) round_trip(t, text, bytes);
    } else {
        fuzz_refused(&err, folder);
    }
    tokenizer_close(t);
    return 0;
}
