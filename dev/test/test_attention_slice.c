// Tests how attention backward on the GPU is split into slices. Every slice must fit the memory limit and not be empty.
// Slices are equal if they can then use at least 3/4 of the limit. Also tests the planned workspace of our own kernels.
#include "coat/cuda/attention/attention.h"
#include "coat/cuda/attention/attention_hopper.h"
#include "coat/cuda/attention/attention_portable.h"
#include "dev/test/unit.h"

static AttentionShape shape_of(int B, int T, int heads, int kv_heads, int head_dim) {
    AttentionShape s;
    s.B = B;
    s.T = T;
    s.heads = heads;
    s.kv_heads = kv_heads;
    s.head_dim = head_dim;
    return s;
}

static void assert_slice(AttentionShape s, int sequences, int kv_heads) {
    AttentionSlice slice = attention_slice(s, ATTENTION_WORKSPACE_LIMIT);
    assert_int_equal(slice.sequences, sequences);
    assert_int_equal(slice.kv_heads, kv_heads);
}

// Tests the workspace size of a slice. One sequence of GPT-2 124M needs 25 MB, about 2 * heads * T^2 bytes.
UNIT_TEST(workspace_of_a_slice_has_the_expected_bytes) {
    AttentionSlice one = {1, 12}, two = {2, 12}, grouped = {1, 2};
    AttentionShape s = shape_of(64, 1024, 12, 12, 64);
    size_t expected = (size_t)12 * (2 * 1024 * 1024 + 4 * 1024);
    assert_int_equal(attention_slice_bytes(s, one), expected);
    assert_int_equal(attention_slice_bytes(s, two), 2 * expected);
    // Lengths are padded to tiles of 64 x 128. dk and dv are stored for each of the 4 query heads of a key-value head.
    s = shape_of(1, 100, 8, 2, 64);
    assert_int_equal(attention_slice_bytes(s, grouped), (size_t)8 * (128 * 128 * 2 + 400 + 100 * 64 * 4));
}

UNIT_TEST(slices_of_known_models_have_the_expected_size) {
    assert_slice(shape_of(64, 1024, 12, 12, 64), 8, 12); // 10 sequences would fit, but 8 divides the batch of 64
    assert_slice(shape_of(16, 1024, 25, 25, 64), 4, 25);
    assert_slice(shape_of(11, 1024, 12, 12, 64), 10, 12); // 11 sequences: a slice of 10 and a slice of 1
    assert_slice(shape_of(3, 1024, 12, 12, 64), 3, 12);   // 3 sequences fit in one slice
    assert_slice(shape_of(1, 8, 2, 2, 32), 1, 2);
}

// Tests that a single sequence that exceeds the limit is split by heads, down to one head per slice.
UNIT_TEST(a_sequence_beyond_the_limit_is_split_by_heads) {
    assert_slice(shape_of(4, 8192, 12, 12, 64), 1, 1);
    assert_slice(shape_of(4, 4096, 32, 32, 128), 1, 7);
    assert_slice(shape_of(4, 4096, 32, 8, 128), 1, 1);
    assert_slice(shape_of(1, 32768, 16, 16, 128), 1, 1);
}

// Tests slices of a given workspace per head: 64 sequences at once if a head needs little, a few heads of one sequence
// if a head needs much, and one head if a head alone exceeds the limit.
UNIT_TEST(slices_follow_the_given_workspace_per_head) {
    static const struct {
        size_t head_bytes;
        int sequences, kv_heads;
    } cases[] = {{1, 64, 12},
                 {5000, 64, 12},
                 {ATTENTION_WORKSPACE_LIMIT / 12, 1, 12},
                 {ATTENTION_WORKSPACE_LIMIT / 4, 1, 4},
                 {ATTENTION_WORKSPACE_LIMIT + 1, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AttentionSlice slice =
            attention_slice_of(shape_of(64, 1024, 12, 12, 64), cases[i].head_bytes, ATTENTION_WORKSPACE_LIMIT);
        assert_int_equal(slice.sequences, cases[i].sequences);
        assert_int_equal(slice.kv_heads, cases[i].kv_heads);
    }
}

UNIT_TEST(every_slice_fits_the_memory_limit) {
    for (int B = 1; B <= 64; B += 7)
        for (int T = 64; T <= 4096; T *= 2)
            for (int heads = 1; heads <= 32; heads++) {
                AttentionShape s = shape_of(B, T, heads, heads, 64);
                AttentionSlice slice = attention_slice(s, ATTENTION_WORKSPACE_LIMIT);
                assert_in_range(slice.sequences, 1, B);
                assert_in_range(slice.kv_heads, 1, heads);
                assert_true(slice.sequences == 1 || slice.kv_heads == heads);
                assert_true(attention_slice_bytes(s, slice) <= ATTENTION_WORKSPACE_LIMIT);
                assert_true(attention_workspace_bytes(s) > attention_slice_bytes(s, slice));
            }
}

UNIT_TEST(planned_workspace_of_our_attention_kernels) {
    Config c;
    config_defaults(&c);
    ModelShape *s = &c.shape;
    s->heads = 32, s->kv_heads = 8, s->head_dim = 128, s->channels = 4096;
    c.micro_batch = 4096, c.seq_len = 128; // many short sequences, for which cuDNN needs little workspace
    const AttentionShape shape = attention_shape(s, c.micro_batch, c.seq_len);
    assert_true(cuda_workspace(&c).bytes >= attention_backward_bytes(shape));
    assert_true(cuda_workspace(&c).bytes >= attention_portable_bytes(shape));
    assert_true(cuda_workspace(&c).bytes >= attention_workspace_bytes(shape));
}

RUN_TESTS(NULL, NULL, NULL)
