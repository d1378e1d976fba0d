// Tests of coat/text/packing.h, which chooses the examples that share a sequence.
#include "coat/base/error.h"
#include "coat/numerics/rng.h"
#include "coat/text/packing.h"
#include "test_folder.h"

// Packs by first fit, longest examples first. rows[i] becomes the row of example i. Returns the number of rows.
static int plain_first_fit(const int32_t *lengths, int examples, int T, int *rows) {
    int *room = (int *)xmalloc((size_t)(examples + 1) * sizeof *room), count = 0;
    for (int length = T; length > 0; length--)
        for (int i = 0; i < examples; i++) {
            if (lengths[i] != length) continue;
            int row = 0;
            while (row < count && room[row] < length) row++;
            if (row == count) room[count++] = T;
            room[row] -= length;
            rows[i] = row;
        }
    free(room);
    return count;
}

// Fails unless pack_examples() packs like plain_first_fit(), sorts the rows by their first example, and lists each
// example once, in order.
static void check(const int32_t *lengths, int examples, int T) {
    int *rows = (int *)xcalloc((size_t)examples + 1, sizeof *rows);
    bool *seen = (bool *)xcalloc((size_t)examples + 1, sizeof *seen);
    const int expected = plain_first_fit(lengths, examples, T, rows);
    Packing p = pack_examples(lengths, examples, T);
    assert_int_equal(p.rows, expected);
    assert_int_equal(p.first[0], 0);
    int kept = 0;
    for (int64_t row = 0; row < p.rows; row++) {
        int used = 0;
        assert_true(p.first[row] < p.first[row + 1]);
        if (row > 0) assert_true(p.members[p.first[row - 1]] < p.members[p.first[row]]);
        for (int32_t k = p.first[row]; k < p.first[row + 1]; k++, kept++) {
            const int32_t i = p.members[k];
            assert_true(i >= 0 && i < examples && !seen[i]);
            assert_true(k == p.first[row] || p.members[k - 1] < i);
            assert_int_equal(rows[i], rows[p.members[p.first[row]]]);
            used += lengths[i];
            seen[i] = true;
        }
        assert_true(used > 0 && used <= T);
    }
    for (int i = 0; i < examples; i++) kept -= lengths[i] > 0;
    assert_int_equal(kept, 0);
    packing_free(&p);
    free(rows);
    free(seen);
}

UNIT_TEST(examples_are_packed_first_fit_longest_first) {
    enum { MAX_EXAMPLES = 700 };
    int32_t lengths[MAX_EXAMPLES];
    for (int trial = 0; trial < 400; trial++) {
        const int T = 1 + (int)(rng_hash(1, 1, (uint64_t)trial) % (trial % 3 ? 40 : 3000));
        const int examples = (int)(rng_hash(1, 2, (uint64_t)trial) % (trial % 2 ? MAX_EXAMPLES : 9));
        const int longest = 1 + (int)(rng_hash(1, 3, (uint64_t)trial) % (uint64_t)T);
        for (int i = 0; i < examples; i++)
            lengths[i] = (int32_t)(rng_hash(2, (uint64_t)trial, (uint64_t)i) % (uint64_t)(longest + 1));
        check(lengths, examples, T);
    }
}

UNIT_TEST(packing_edge_cases) {
    const int32_t none[] = {0, 0, 0}, whole[] = {5, 5, 5}, halves[] = {3, 2, 0, 3, 2, 1, 1, 4},
                  ones[] = {1, 1, 1, 1, 1, 1, 1};
    check(none, 3, 5);
    check(none, 0, 5);
    check(whole, 3, 5);
    check(halves, 8, 5);
    check(ones, 7, 1);
    check(ones, 7, 3);
    // The rows contain examples of the lengths 3 2 | 3 2 | 1 4 | 1, and are sorted by their first example.
    Packing p = pack_examples(halves, 8, 5);
    const int32_t first[] = {0, 2, 4, 6, 7}, members[] = {0, 1, 3, 4, 5, 7, 6};
    assert_int_equal(p.rows, 4);
    assert_memory_equal(p.first, first, sizeof first);
    assert_memory_equal(p.members, members, sizeof members);
    packing_free(&p);
}

RUN_TESTS(NULL, NULL, NULL)
