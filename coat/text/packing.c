#include "packing.h"

#include "base/error.h"

// A segment tree of maxima over the free space of the packed rows, in tokens. most[leaves + r] is the space left in row
// r; most[1] is the largest space left in any row.
typedef struct {
    int64_t leaves;
    int32_t *most;
} Room;

static Room room_open(int64_t rows, int T) {
    Room room = {1, NULL};
    while (room.leaves < rows) room.leaves *= 2;
    room.most = (int32_t *)xmalloc((size_t)(2 * room.leaves) * sizeof *room.most);
    for (int64_t i = 0; i < 2 * room.leaves; i++) room.most[i] = T;
    return room;
}

// Reserves `length` tokens in the first row that has this many free tokens. Returns the row.
static int32_t room_take(Room *room, int32_t length) {
    int64_t at = 1;
    while (at < room->leaves) at = 2 * at + (room->most[2 * at] < length);
    const int32_t row = (int32_t)(at - room->leaves);
    room->most[at] -= length;
    while ((at /= 2) > 0) {
        const int32_t left = room->most[2 * at], right = room->most[2 * at + 1];
        room->most[at] = left > right ? left : right;
    }
    return row;
}

// Sorts the examples that are not dropped: the longest first, examples of the same length by index. Returns their
// number.
static int64_t sort_by_length(const int32_t *lengths, int64_t examples, int T, int32_t *sorted) {
    int64_t *begin = (int64_t *)xcalloc((size_t)T + 1, sizeof *begin), count = 0;
    for (int64_t i = 0; i < examples; i++) begin[lengths[i]]++;
    for (int length = T; length > 0; length--) {
        const int64_t of_length = begin[length];
        begin[length] = count;
        count += of_length;
    }
    for (int64_t i = 0; i < examples; i++)
        if (lengths[i] > 0) sorted[begin[lengths[i]]++] = (int32_t)i;
    free(begin);
    return count;
}

// Renumbers the rows in the order of their first examples, and lists the examples row by row. rows[i] is the old number
// of the row that example i was packed into.
static void list_rows(Packing *packing, const int32_t *lengths, int64_t examples, int64_t most, const int32_t *rows) {
    // number[row] is the new number of the row plus 1, or 0 before the row has a new number
    int32_t *number = (int32_t *)xcalloc((size_t)most + 1, sizeof *number);
    int64_t *next = (int64_t *)xcalloc((size_t)most + 1, sizeof *next);
    for (int64_t i = 0; i < examples; i++) {
        if (lengths[i] == 0) continue;
        if (number[rows[i]] == 0) number[rows[i]] = (int32_t)++packing->rows;
        next[number[rows[i]] - 1]++;
    }
    packing->first = (int32_t *)xmalloc((size_t)(packing->rows + 1) * sizeof *packing->first);
    int32_t place = 0;
    for (int64_t row = 0; row < packing->rows; row++) {
        packing->first[row] = place;
        place += (int32_t)next[row];
        next[row] = packing->first[row];
    }
    packing->first[packing->rows] = place;
    for (int64_t i = 0; i < examples; i++)
        if (lengths[i] > 0) packing->members[next[number[rows[i]] - 1]++] = (int32_t)i;
    free(number);
    free(next);
}

Packing pack_examples(const int32_t *lengths, int64_t examples, int T) {
    Packing packing = {0, NULL, (int32_t *)xmalloc((size_t)(examples + 1) * sizeof(int32_t))};
    int32_t *rows = (int32_t *)xmalloc((size_t)(examples + 1) * sizeof *rows);
    int64_t places = 0;
    const int64_t count = sort_by_length(lengths, examples, T, packing.members);
    for (int64_t i = 0; i < examples; i++) places += lengths[i];
    int64_t most = 2 * places / T + 2; // upper bound of the rows, because first fit leaves at most one row half empty
    if (most > count) most = count;
    Room room = room_open(most, T);
    for (int64_t i = 0; i < count; i++) rows[packing.members[i]] = room_take(&room, lengths[packing.members[i]]);
    free(room.most);
    list_rows(&packing, lengths, examples, most, rows);
    free(rows);
    return packing;
}

void packing_free(Packing *packing) {
    free(packing->first);
    free(packing->members);
}
