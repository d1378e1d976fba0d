// Fuzz target for the tokenizers of models and encoding with them. Reads tokenizer.json (coat/text/tokenizer_json.c,
// tokenizer_json_text.c) and SentencePiece's tokenizer.model (coat/text/tokenizer_model.c). The input has sections "===
// tokenizer.json", "=== tokenizer.model", "=== tokenizer_config.json", and "=== text", the text to encode.
#include "dev/fuzz/fuzz.h"

#include "coat/text/bpe.h"
#include "coat/text/tokenizer.h"

#define MAX_TEXT 512
#define MAX_IDS (8 * MAX_TEXT) // maximum token ids: NFC may lengthen a text, and each segment gets a space before it

static void check_ids(const Tokenizer *t) {
    char bytes[64];
    const int vocab = tokenizer_vocab(t), end = tokenizer_eos(t), begin = tokenizer_bos(t);
    fuzz_check(vocab >= 1 && vocab <= VOCABULARY_MAX && end >= -1 && end < vocab && begin >= -1 && begin < vocab);
    for (int id = 0; id < vocab && id < 1000; id++) tokenizer_decode(t, id, bytes, sizeof bytes);
    fuzz_check(tokenizer_decode(t, vocab, bytes, sizeof bytes) == 0);
}

// Checks that all ids are in the vocabulary, and that encoding the text a second time gives the same ids.
static void encode(const Tokenizer *t, const uint8_t *text, size_t bytes) {
    char copy[MAX_TEXT + 1];
    static int32_t ids[MAX_IDS], again[MAX_IDS];
    Error err;
    if (bytes > MAX_TEXT) bytes = MAX_TEXT;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    const int count = tokenizer_encode(t, copy, ids, MAX_IDS, &err);
    if (count < 0) {
        fuzz_refused(&err, "tokenizer");
        return;
    }
    for (int i = 0; i < count; i++) fuzz_check(ids[i] >= 0 && ids[i] < tokenizer_vocab(t));
    fuzz_check(tokenizer_encode(t, copy, again, count, &err) == count);
    fuzz_check(memcmp(ids, again, (size_t)count * sizeof *ids) == 0);
    if (count > 0) fuzz_check(tokenizer_encode(t, copy, again, count - 1, &err) == -1 && err.code == EXIT_USER);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const bool model = !fuzz_section_file(data, size, "tokenizer.json");
    fuzz_section_file(data, size, "tokenizer.model");
    fuzz_section_file(data, size, "tokenizer_config.json");
    size_t bytes;
    const uint8_t *text = fuzz_section(data, size, "text", &bytes);
    Error err;
    tokenizer_usual_name(fuzz_path(model ? "tokenizer.model" : "tokenizer.json"));
    Tokenizer *t = tokenizer_open(fuzz_folder(), &err);
    if (t) {
        check_ids(t);
        if (tokenizer_is_sentencepiece(t)) {
            JsonText json;
            tokenizer_write_json(t, &json);
            json_text_free(&json);
        }
        if (text) encode(t, text, bytes);
    } else {
        fuzz_refused(&err, fuzz_folder());
    }
    tokenizer_close(t);
    return 0;
}
