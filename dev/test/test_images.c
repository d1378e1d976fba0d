// Tests of images in training data (coat/text/images.h): images of micro-batches, truncation and packing of examples,
// and damaged files.
#include <math.h>

#include "coat/config/vision.h"
#include "coat/text/data.h"
#include "image_files.h"

enum { N = 4, SIDE = 8, IMAGE_BYTES = 3 * SIDE * SIDE, TOKEN = 9, VOCAB = 1000, MAX_T = 64, MAX_B = 8 };

static Error err; // error of the last failed call

// Returns a vision model that reads each image of 8 x 8 pixels as 4 tokens. per_sequence: --images-per-sequence.
static DataImages model(int per_sequence) {
    DataImages images = {{.kind = VISION_SIGLIP, .image_size = SIDE, .patch_size = 4, .image_token = TOKEN},
                         per_sequence};
    assert_int_equal(vision_rows(&images.vision), N);
    return images;
}

// Writes NAME.bin with the examples that `text` describes (see add_examples()), and NAME.images with `count` images.
static void write_both(const char *name, const char *text, int count) {
    static Examples e;
    int places = 0;
    memset(&e, 0, sizeof e);
    add_examples(&e, text, 100, TOKEN, N);
    for (const char *c = text; *c; c++) places += *c == 'I' || *c == 'J';
    write_examples(formatted("%s.bin", name), &e);
    const Images m = make_images(count, SIDE, N, places, TOKEN);
    write_images(formatted("%s.images", name), &m, count, SIDE, places);
    free(m.pixels);
}

static DataLoader *open_with(const char *glob, ExamplesKind kind, int B, int T, const DataImages *images) {
    memset(&err, 0, sizeof err);
    return data_open_sets(path_of(glob), NULL, kind, B, T, 0, 1, 7, false, VOCAB, images, &err);
}

static DataLoader *open_good(const char *glob, int B, int T, int per_sequence) {
    const DataImages images = model(per_sequence);
    DataLoader *loader = open_with(glob, EXAMPLES_CUT, B, T, &images);
    if (!loader) fail_msg("%s", err.text);
    return loader;
}

// Asserts that opening the files fails with EXIT_DATA and an error of one line that contains word1 and word2.
static void expect_refused(const char *glob, ExamplesKind kind, int T, const DataImages *images, const char *word1,
                           const char *word2) {
    assert_null(open_with(glob, kind, 1, T, images));
    assert_error(&err, EXIT_DATA, formatted("%s&%s", word1, word2));
}

typedef struct {
    int32_t inputs[MAX_B * MAX_T], targets[MAX_B * MAX_T], rows[MAX_B * MAX_T];
    uint8_t pixels[MAX_B * MAX_T / N * IMAGE_BYTES];
    int count;
} Batch;

// Reads a micro-batch. Asserts that its placeholders are the rows of its images, in order, and never targets.
static void read_batch(DataLoader *loader, int64_t first, int tokens, Batch *b) {
    assert_true(data_batch_at(loader, first, b->inputs, b->targets, NULL, &err));
    assert_true(data_images_at(loader, first, b->rows, b->pixels, &b->count, &err));
    int32_t next = 0;
    for (int i = 0; i < tokens; i++) {
        assert_int_equal(b->rows[i], b->inputs[i] == TOKEN ? next++ : -1);
        assert_int_not_equal(b->targets[i], TOKEN);
    }
    assert_int_equal(next, b->count * N);
}

static void expect_image(const Batch *b, int place, const Images *m, int image) {
    assert_memory_equal(b->pixels + place * IMAGE_BYTES, m->pixels + image * IMAGE_BYTES, IMAGE_BYTES);
}

UNIT_TEST(images_of_a_micro_batch_match_its_placeholders) {
    enum { T = 16, B = 3 };
    static Batch b;
    write_both("a", "tIttAA|ttA|JtIA|tA|IIIA", 3); // 6 places, which show the images 0 1 2 0 1 2
    const Images m = make_images(3, SIDE, N, 6, TOKEN);
    DataLoader *loader = open_good("a.bin", B, T, 4);
    char text[128];
    assert_string_equal(data_describe(loader, text, sizeof text),
                        "1 shard, 37 tokens, uint32, 16.2 % in the loss, 3 images");
    assert_int_equal(data_sequences(loader), 3);
    read_batch(loader, 0, B * T, &b);
    // Packed sequences: example 0; examples 1 and 4; examples 2 and 3.
    const int32_t inputs[B * T] = {100, 9,   9,   9, 9,   101, 102, 103, 104, 0,   0,   0,   0, 0, 0, 0,
                                   105, 106, 107, 9, 9,   9,   9,   9,   9,   9,   9,   9,   9, 9, 9, 112,
                                   9,   9,   9,   9, 108, 9,   9,   9,   9,   109, 110, 111, 0, 0, 0, 0};
    assert_memory_equal(b.inputs, inputs, sizeof inputs);
    assert_int_equal(b.count, 6);
    const int shown[] = {0, 0, 1, 2, 1, 2};
    for (int i = 0; i < 6; i++) expect_image(&b, i, &m, shown[i]);
    assert_int_equal(data_unmasked_targets(b.targets, B * T), 6); // placeholders of J are never targets
    assert_int_equal(b.targets[2 * T + 8], 109);
    data_close(loader);
    // Smaller micro-batches, and micro-batches that begin at any sequence, read the same images.
    loader = open_good("a.bin", 1, T, 4);
    for (int64_t s = 0; s < 6; s++) {
        const int places[] = {0, 1, 4, 6}, from = places[s % 3];
        read_batch(loader, s, T, &b);
        assert_int_equal(b.count, places[s % 3 + 1] - from);
        for (int i = 0; i < b.count; i++) expect_image(&b, i, &m, shown[from + i]);
    }
    data_close(loader);
    free(m.pixels);
}

// Tests that the images of all ranks are those of their tokens. Example i has the images of places 2 i and 2 i + 1.
UNIT_TEST(images_of_all_ranks_match_their_tokens) {
    enum { T = 24, B = 2, EXAMPLES = 60 };
    static Batch b;
    static Examples e;
    memset(&e, 0, sizeof e);
    for (int i = 0; i < EXAMPLES; i++) add_examples(&e, i % 3 ? "IIA" : "IttIA", 100 + 10 * i, TOKEN, N);
    write_examples("r.bin", &e);
    Images m = make_images(2 * EXAMPLES, SIDE, N, 2 * EXAMPLES, TOKEN);
    for (uint32_t i = 0; i < 2 * EXAMPLES; i++) m.shown[i] = 2 * EXAMPLES - 1 - i;
    write_images("r.images", &m, 2 * EXAMPLES, SIDE, 2 * EXAMPLES);
    const DataImages images = model(4);
    for (int rank = 0; rank < 3; rank++) {
        DataLoader *loader =
            data_open_sets(path_of("r.bin"), NULL, EXAMPLES_CUT, B, T, rank, 3, 5, true, VOCAB, &images, &err);
        assert_non_null(loader);
        for (int64_t first = 0; first < 100; first++) {
            read_batch(loader, first, B * T, &b);
            int place = 0; // index of the next image in the micro-batch
            for (int at = 0; at < B * T; at++) {
                if (b.inputs[at] < 100) continue;
                const int example = (b.inputs[at] - 100) / 10; // both images are before the last token
                if (example % 3 == 0 && (b.inputs[at] - 100) % 10 < 2) continue;
                expect_image(&b, place++, &m, 2 * EXAMPLES - 1 - 2 * example);
                expect_image(&b, place++, &m, 2 * EXAMPLES - 2 - 2 * example);
            }
            assert_int_equal(place, b.count);
        }
        data_close(loader);
    }
    free(m.pixels);
}

UNIT_TEST(an_example_is_truncated_before_an_incomplete_image) {
    static Batch b;
    static Examples e;
    const char *text = "tAItAIIAtAIA";
    write_both("c", text, 2);
    memset(&e, 0, sizeof e);
    add_examples(&e, text, 100, TOKEN, N);
    const int all = e.count;
    assert_int_equal(all, 8 + 4 * N);
    for (int T = 2; T <= all + 2; T++) {
        int kept = T < all ? T : all; // inputs
        while (kept < all && e.tokens[kept - 1] == TOKEN && e.tokens[kept] == TOKEN) {
            int begin = 0, k = 0; // finds the image of the last input token
            for (k = 0; k < kept; k += e.tokens[k] == TOKEN ? N : 1) begin = k;
            if (k == kept) break; // a complete image ends here
            kept = begin;
        }
        DataLoader *loader = open_good("c.bin", 1, T, MAX_T);
        const DataExamples found = data_examples(loader);
        assert_int_equal(data_sequences(loader), 1);
        assert_int_equal(found.cut, kept < all && (kept < T || all > T + 1));
        assert_true(fabs(found.filled - (double)kept / T) < 1e-12);
        read_batch(loader, 0, T, &b);
        for (int t = 0; t < T; t++) {
            assert_int_equal(b.inputs[t], t < kept ? e.tokens[t] : 0);
            // The token after the last input is a target, unless the example was truncated before an image.
            const bool target = t < kept && t + 1 < all && (t + 1 < kept || kept == T) && e.mask[t + 1];
            assert_int_equal(b.targets[t], target ? e.tokens[t + 1] : -1);
        }
        data_close(loader);
        const DataImages images = model(MAX_T);
        loader = open_with("c.bin", EXAMPLES_WHOLE, 1, T, &images);
        assert_int_equal(loader != NULL, found.cut == 0);
        if (!loader) assert_says(&err, "use --seq-len 24, or --examples cut");
        data_close(loader);
    }
    // An example is dropped if no unmasked target is left before the image at which it is truncated.
    write_both("d", "tIAA|tA", 1);
    DataLoader *loader = open_good("d.bin", 1, 3, 1);
    assert_int_equal(data_examples(loader).left_out, 1);
    assert_int_equal(data_sequences(loader), 1);
    read_batch(loader, 0, 3, &b);
    assert_int_equal(b.count, 0);
    assert_int_equal(b.inputs[0], 103);
    data_close(loader);
    const DataImages images = model(1);
    write_both("e", "IAA", 1);
    expect_refused("e.bin", EXAMPLES_CUT, 3, &images, "--seq-len", "all unmasked targets are cut off");
    expect_refused("c.bin", EXAMPLES_SPLIT, 16, &images, "--examples split", "--examples cut");
}

UNIT_TEST(packing_limits_the_images_per_sequence) {
    enum { T = 40 };
    static Batch b;
    write_both("p", "tIA|tA|IA|tA|ttIIA|tA|IA|IttA|tA|IIIA|A|tA", 2);
    int64_t sequences[6] = {0};
    for (int most = 3; most <= 5; most++) {
        DataLoader *loader = open_good("p.bin", 1, T, most);
        sequences[most] = data_sequences(loader);
        int seen = 0, largest = 0;
        for (int64_t s = 0; s < sequences[most]; s++) {
            read_batch(loader, s, T, &b);
            if (b.count > largest) largest = b.count;
            seen += b.count;
        }
        assert_int_equal(seen, 9);
        assert_true(largest <= most);
        assert_int_equal(data_examples(loader).left_out, 1); // the example with one token
        data_close(loader);
    }
    assert_true(sequences[3] >= 3 && sequences[5] < sequences[3]);
    const DataImages images = model(2);
    expect_refused("p.bin", EXAMPLES_CUT, T, &images,
                   "--images-per-sequence 2: ", "example 10 of 12 has 3 images; use --images-per-sequence 3");
    // A limit of as many images as fit into a sequence anyway must not change the packing.
    for (int length = 13; length < 40; length++) {
        DataLoader *limited = open_good("p.bin", 1, length, (length + 1) / N),
                   *free_one = open_good("p.bin", 1, length, MAX_T);
        assert_int_equal(data_sequences(limited), data_sequences(free_one));
        data_close(limited);
        data_close(free_one);
    }
}

UNIT_TEST(the_last_validation_batch_is_padded_without_images) {
    enum { T = 8, B = 4 };
    static Batch b;
    const DataImages images = model(2);
    write_both("v", "IttA|IttA|IttA|IttA|IttA|IttA", 6);
    DataLoader *loader = data_open_validation(path_of("v.bin"), EXAMPLES_CUT, B, T, VOCAB, &images, &err);
    assert_non_null(loader);
    assert_int_equal(data_batches(loader, -1), 2);
    read_batch(loader, 0, B * T, &b);
    assert_int_equal(b.count, 4);
    read_batch(loader, B, B * T, &b);
    assert_int_equal(b.count, 2);
    data_close(loader);
}

// Tests that mean and deviation of pixels come from the files of images. All files and the model must agree.
UNIT_TEST(mean_and_deviation_of_pixels_must_agree) {
    write_both("a", "IttA", 1);
    write_both("b", "IttA", 2);
    DataImages images = model(4);
    DataLoader *loader = open_good("[ab].bin", 1, 8, 4);
    const float *mean = data_vision(loader)->mean, *deviation = data_vision(loader)->deviation;
    assert_true(mean[0] == 0.25f && mean[2] == 0.75f && deviation[0] == 0.125f && deviation[2] == 1.5f);
    memcpy(images.vision.mean, mean, sizeof images.vision.mean);
    memcpy(images.vision.deviation, deviation, sizeof images.vision.deviation);
    data_close(loader);
    loader = open_with("[ab].bin", EXAMPLES_CUT, 1, 8, &images);
    assert_non_null(loader);
    data_close(loader);
    images.vision.deviation[1] = nextafterf(images.vision.deviation[1], 1);
    expect_refused("[ab].bin", EXAMPLES_CUT, 8, &images, "a.images does not match the model or earlier files",
                   "deviation 0.125 0.50000006 1.5");
    Images m = make_images(1, SIDE, N, 1, TOKEN);
    const float other = 0.26f;
    memcpy(m.header + IMAGES_WORD_MEAN, &other, sizeof other);
    write_images("b.images", &m, 1, SIDE, 1);
    free(m.pixels);
    images = model(4);
    expect_refused("[ab].bin", EXAMPLES_CUT, 8, &images, "b.images does not match", "mean 0.25999999 0.5 0.75");
}

// Tests that a vision-language model reads data without images, and that a text model refuses data with images.
UNIT_TEST(a_text_model_refuses_data_with_images) {
    static Batch b;
    static Examples e;
    const DataImages images = model(4);
    write_both("a", "IttA|IttA", 1);
    expect_refused("a.bin", EXAMPLES_CUT, 8, NULL, "a.bin has images, but the model reads text only", "--model");
    assert_int_equal(unlink(path_of("a.images")), 0);
    expect_refused("a.bin", EXAMPLES_CUT, 8, &images, "a.images is missing", "a.bin has images");
    memset(&e, 0, sizeof e);
    add_examples(&e, "ttA|ttAttA", 100, TOKEN, N);
    e.version = DATA_VERSION_MASKED;
    write_examples("t.bin", &e);
    DataLoader *loader = open_with("t.bin", EXAMPLES_CUT, 1, 8, &images),
               *text = open_with("t.bin", EXAMPLES_CUT, 1, 8, NULL);
    assert_non_null(loader);
    assert_true(data_fingerprint(loader) == data_fingerprint(text));
    read_batch(loader, 0, 8, &b);
    assert_int_equal(b.count, 0);
    assert_true(data_vision(loader)->deviation[0] == 0);
    data_close(loader);
    data_close(text);
    // Data may mix text and images. If a token file's name lacks .bin, .images is appended to the name.
    write_both("m", "IttA|IttA", 1);
    assert_int_equal(rename(path_of("m.bin"), path_of("m")), 0);
    data_close(open_good("[tm]*[!s]", 1, 8, 4));
}

UNIT_TEST(data_fingerprint_depends_on_the_images) {
    uint64_t hash[3];
    for (int i = 0; i < 3; i++) {
        write_both("f", "IttA|IttA", i == 1 ? 2 : 1);
        DataLoader *loader = open_good("f.bin", 1, 8, 4);
        hash[i] = data_fingerprint(loader);
        data_close(loader);
    }
    assert_true(hash[0] != hash[1] && hash[0] == hash[2]);
}

UNIT_TEST(a_file_of_images_that_changes_is_an_error) {
    static Batch b;
    write_both("a", "IttA", 3);
    for (int i = 0; i < 2; i++) {
        DataLoader *loader = open_good("a.bin", 1, 8, 4);
        read_batch(loader, 0, 8, &b);
        if (i == 0)
            assert_int_equal(truncate(path_of("a.images"), 1100), 0);
        else
            assert_int_equal(unlink(path_of("a.images")), 0);
        assert_false(data_images_at(loader, 0, b.rows, b.pixels, &b.count, &err));
        assert_error(&err, EXIT_DATA, "a.images");
        assert_true(b.count == 0 && b.rows[0] == -1);
        data_close(loader);
        write_both("a", "IttA", 3);
    }
}

UNIT_TEST(invalid_headers_of_image_files_are_refused) {
    const DataImages images = model(4);
    const int32_t nan = 0x7fc00000, infinite = 0x7f800000, minus = (int32_t)0xbf800000;
    const struct {
        int word;
        int32_t value;
        const char *words;
    } heads[] = {{0, 0, "is not a file of images"},
                 {0, DATA_MAGIC_MASKED, "is not a file of images"},
                 {1, 0, "version 0"},
                 {1, 2, "version 2"},
                 {2, 0, "number of images 0, not 1 to"},
                 {2, -1, "number of images -1"},
                 {2, 2, "is damaged: 1620 bytes, but its header says 1428"},
                 {2, 4, "is truncated: 1620 bytes, but its header says 1812"},
                 {2, INT32_MAX, "is truncated"},
                 {3, 0, "side of an image 0"},
                 {3, -8, "side of an image -8"},
                 {3, 7, "is damaged: 1620 bytes"},
                 {3, 16, "is truncated"},
                 {3, 16385, "not 1 to 16384"},
                 {3, INT32_MAX, "side of an image 2147483647"},
                 {4, 1, "number of channels 1, not 3;"},
                 {4, 4, "number of channels 4"},
                 {5, 0, "tokens per image 0"},
                 {5, -4, "tokens per image -4"},
                 {5, 5, "take 5 tokens with the id 9, but the model needs 8 x 8 pixels, 4 tokens and the id 9"},
                 {5, INT32_MAX, "take 2147483647 tokens"},
                 {6, 0, "number of places 0"},
                 {6, -1, "number of places -1"},
                 {6, 4, "is damaged: 1620 bytes"},
                 {6, 6, "is truncated: 1620 bytes"},
                 {6, INT32_MAX, "is truncated"},
                 {7, 3, "kind of preparation 3, not 0 to 2"},
                 {7, -1, "kind of preparation -1"},
                 {9, 0, "mark of a checksum 0, not 1;"},
                 {10, -1, "placeholder token -1"},
                 {10, 8, "with the id 8, but the model needs 8 x 8 pixels, 4 tokens and the id 9"},
                 {11, nan, "mean, deviation or unused"},
                 {12, infinite, "mean, deviation or unused"},
                 {14, 0, "mean, deviation or unused"},
                 {15, minus, "mean, deviation or unused"},
                 {16, nan, "mean, deviation or unused"},
                 {17, 1, "mean, deviation or unused words"},
                 {255, 1, "mean, deviation or unused words"}};
    write_both("h", "tIIA|IAA|tIIA", 3); // 5 places
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        Images m = make_images(3, SIDE, N, 5, TOKEN);
        m.header[heads[i].word] = heads[i].value;
        write_images("h.images", &m, 3, SIDE, 5);
        expect_refused("h.bin", EXAMPLES_CUT, 16, &images, heads[i].words, "h.images");
        free(m.pixels);
    }
    Images m = make_images(3, 16, N, 5, TOKEN); // a file of another side
    write_images("h.images", &m, 3, 16, 5);
    expect_refused("h.bin", EXAMPLES_CUT, 16, &images,
                   "have 16 x 16 pixels and take 4 tokens with the id 9, but the model needs 8 x 8", "h.images");
    free(m.pixels);
    m = make_images(3, SIDE, N, 5, TOKEN);
    for (m.extra = -DATA_HEADER_BYTES; m.extra < 3; m.extra++) {
        write_images("h.images", &m, 3, SIDE, 5);
        if (m.extra)
            expect_refused("h.bin", EXAMPLES_CUT, 16, &images, m.extra < 0 ? "is truncated" : "is damaged", "h.images");
        else
            data_close(open_good("h.bin", 1, 16, 4));
    }
    m.extra = 0;
    const uint32_t shown[] = {3, 4, INT32_MAX, UINT32_MAX};
    for (int i = 0; i < 4; i++) {
        m.shown[i] = shown[i];
        write_images("h.images", &m, 3, SIDE, 5);
        expect_refused("h.bin", EXAMPLES_CUT, 16, &images, "but the file has 3 images", "h.images");
        m.shown[i] = 0;
    }
    m.damaged = true;
    write_images("h.images", &m, 3, SIDE, 5);
    expect_refused("h.bin", EXAMPLES_CUT, 16, &images, "is damaged: its checksum does not match", "h.images");
    write_file(path_of("h.images"), "", 0);
    expect_refused("h.bin", EXAMPLES_CUT, 16, &images, "is truncated: 0 bytes", "h.images");
    assert_int_equal(unlink(path_of("h.images")), 0);
    assert_int_equal(mkdir(path_of("h.images"), 0700), 0);
    expect_refused("h.bin", EXAMPLES_CUT, 16, &images, "not a regular file", "h.images");
    assert_int_equal(rmdir(path_of("h.images")), 0);
    free(m.pixels);
}

UNIT_TEST(placeholders_that_do_not_match_the_images_are_refused) {
    const DataImages images = model(4);
    const struct {
        const char *text;  // examples of p.bin (see add_examples())
        int places;        // number of places for images that p.images records
        const char *words; // part of the error
    } cases[] = {{"tpA", 1, "it has 1 placeholder of images instead of 4 (1 image, 4 placeholders each)"},
                 {"tpppA", 1, "it has 3 placeholders of images instead of 4"},
                 {"tIpA", 1, "it has 5 placeholders of images instead of 4"},
                 {"tIA|ttpA", 2, "it has 5 placeholders of images instead of 8"},
                 {"tIA|ppAIA", 3, "end at token 7, and their number is not a multiple of 4"},
                 {"tppAppA", 1, "end at token 2, and their number"},
                 {"tIA", 2, "it has 4 placeholders of images instead of 8 (2 images, 4 placeholders each)"},
                 {"tIIIA", 2, "it has 12 placeholders of images instead of 8 (2 images, 4 placeholders each)"},
                 {"tA", 1, "it has 0 placeholders"},
                 {"tApp|ppA", 1, "example 2 begins inside the image at token 2"},
                 {"tAIp|pppA", 2, "example 2 begins inside the image at token 6"},
                 {"tAppp|pIA", 2, "example 2 begins inside the image at token 2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static Examples e;
        memset(&e, 0, sizeof e);
        add_examples(&e, cases[i].text, 100, TOKEN, N);
        write_examples("p.bin", &e);
        const Images m = make_images(1, SIDE, N, cases[i].places, TOKEN);
        write_images("p.images", &m, 1, SIDE, cases[i].places);
        free(m.pixels);
        expect_refused("p.bin", EXAMPLES_CUT, 32, &images, cases[i].words, "p.bin");
    }
    // Examples may end with an image and begin with an image.
    write_both("q", "tAI|IA|I|IIA", 2);
    data_close(open_good("q.bin", 1, 16, 4));
}

// Tests images_read_first(), which reads the image of --image.
UNIT_TEST(the_image_of_a_prompt_is_read) {
    DataImages images = model(0);
    write_both("f", "tIA|J", 3);
    const Images m = make_images(3, SIDE, N, 2, TOKEN);
    images.vision.image_token = -1;
    uint8_t *pixels = images_read_first(path_of("f.images"), &images.vision, &err);
    if (!pixels) fail_msg("%s", err.text);
    assert_memory_equal(pixels, m.pixels, IMAGE_BYTES);
    assert_int_equal(images.vision.image_token, TOKEN);
    assert_true(images.vision.deviation[0] > 0);
    free(pixels);
    free(m.pixels);
    static const char *const refused[][2] = {{"f.bin", "is not a file of images"}, {"g.images", "g.images"}};
    for (int i = 0; i < 2; i++) {
        assert_null(images_read_first(path_of(refused[i][0]), &images.vision, &err));
        assert_error(&err, EXIT_DATA, refused[i][1]);
    }
    images.vision.image_size = 16;
    assert_null(images_read_first(path_of("f.images"), &images.vision, &err));
    assert_says(&err, "does not match the model");
    images = model(0);
    assert_int_equal(truncate(path_of("f.images"), 1024 + 2 * 4 + 2 * IMAGE_BYTES), 0);
    assert_null(images_read_first(path_of("f.images"), &images.vision, &err));
    assert_says(&err, "truncated");
}

RUN_TESTS(test_folder_make, test_folder_remove, test_folder_empty)
