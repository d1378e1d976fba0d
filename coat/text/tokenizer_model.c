// Reads SentencePiece's tokenizer.model, a protobuf message ModelProto of sentencepiece_model.proto. Supports BPE
// models without normalization, such as Llama-2's and Mistral's.
#include <math.h>
#include <string.h>

#include "tokenizer_parts.h"

typedef enum { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_UNUSED, PIECE_BYTE } PieceType;

// The part of a protobuf message that has not been read yet; `bad` is true if the message is damaged.
typedef struct {
    const unsigned char *at, *end;
    bool bad;
} Reader;

typedef struct {
    int number;     // field number; 0: end of the message
    uint64_t value; // value of a number field, or length of a bytes field
    Reader content; // contents of a length-delimited, fixed32 or fixed64 field; a varint is in `value`
} Field;

// A token of the model, which SentencePiece calls a piece.
typedef struct {
    const char *text;
    size_t length;
    float score;
    PieceType type;
} Piece;

typedef struct {
    Piece *pieces;
    int count, room;
    int64_t kind, unknown, begin, end; // kind: 1: unigram, 2: BPE. Others: ids of the unknown, BOS and EOS tokens
    bool byte_fallback, suffix, prefix, remove_spaces, escape, normalized;
} Model;

static uint64_t read_number(Reader *r) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (r->at >= r->end) break;
        const unsigned char byte = *r->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
    r->bad = true;
    return 0;
}

// Reads the next field of a protobuf message. Returns field number 0 at the end of the message, or if the message is
// damaged (then r->bad is true).
static Field read_field(Reader *r) {
    Field field = {0, 0, {NULL, NULL, false}};
    if (r->bad || r->at >= r->end) return field;
    const uint64_t key = read_number(r);
    const int wire = (int)(key & 7);
    uint64_t bytes = wire == 1 ? 8 : wire == 5 ? 4 : 0;
    if (wire == 0 || wire == 2) field.value = read_number(r);
    if (wire == 2) bytes = field.value;
    r->bad = r->bad || key >> 3 == 0 || key >> 3 > 1 << 29 || !(wire == 0 || wire == 1 || wire == 2 || wire == 5) ||
             bytes > (uint64_t)(r->end - r->at);
    if (r->bad) return field;
    field.content = (Reader){r->at, r->at + bytes, false};
    r->at += bytes;
    field.number = (int)(key >> 3);
    return field;
}

static bool read_piece(Model *m, Reader r) {
    Piece piece = {"", 0, 0.0f, PIECE_NORMAL};
    for (Field f; (f = read_field(&r)).number > 0;) {
        const size_t bytes = (size_t)(f.content.end - f.content.at);
        if (f.number == 1) {
            piece.text = (const char *)f.content.at;
            piece.length = bytes;
        }
        if (f.number == 2 && bytes == sizeof piece.score) memcpy(&piece.score, f.content.at, sizeof piece.score);
        if (f.number == 3) piece.type = (PieceType)(f.value <= PIECE_BYTE ? f.value : 0);
    }
    if (m->count == m->room) {
        m->room = m->room ? 2 * m->room : 1024;
        m->pieces = (Piece *)xrealloc(m->pieces, (size_t)m->room * sizeof *m->pieces);
    }
    m->pieces[m->count++] = piece;
    return !r.bad && m->count <= VOCABULARY_MAX;
}

static bool read_trainer(Model *m, Reader r) {
    for (Field f; (f = read_field(&r)).number > 0;) {
        if (f.number == 3) m->kind = (int64_t)f.value;
        if (f.number == 24) m->suffix = f.value != 0;
        if (f.number == 35) m->byte_fallback = f.value != 0;
        if (f.number == 40) m->unknown = (int64_t)f.value;
        if (f.number == 41) m->begin = (int64_t)f.value;
        if (f.number == 42) m->end = (int64_t)f.value;
    }
    return !r.bad;
}

static bool read_normalizer(Model *m, Reader r) {
    for (Field f; (f = read_field(&r)).number > 0;) {
        if (f.number == 2) m->normalized = f.content.end > f.content.at;
        if (f.number == 3) m->prefix = f.value != 0;
        if (f.number == 4) m->remove_spaces = f.value != 0;
        if (f.number == 5) m->escape = f.value != 0;
    }
    return !r.bad;
}

static bool read_message(Model *m, Reader r) {
    bool good = true;
    for (Field f; good && (f = read_field(&r)).number > 0;) {
        if (f.number == 1) good = read_piece(m, f.content);
        if (f.number == 2) good = read_trainer(m, f.content);
        if (f.number == 3) good = read_normalizer(m, f.content);
    }
    return good && !r.bad;
}

static bool check_model(const Model *m, const char *path, Error *err) {
    static const char advice[] = "convert it to tokenizer.json with transformers and use that";
    if (m->count == 0) return error_set(err, EXIT_DATA, "tokenizer %s has no tokens; download the file again", path);
    if (m->kind != 2)
        return error_set(err, EXIT_DATA, "tokenizer %s: its model type %lld is not supported, only BPE (2) is", path,
                         (long long)m->kind);
    if (m->normalized || m->remove_spaces || m->suffix || !m->escape)
        return error_set(err, EXIT_DATA, "tokenizer %s: its normalization is not supported, only Llama's is; %s", path,
                         advice);
    for (int i = 0; i < m->count; i++)
        if (m->pieces[i].type == PIECE_UNUSED || m->pieces[i].type < PIECE_NORMAL)
            return error_set(err, EXIT_DATA,
                             "tokenizer %s: token %d has type UNUSED or an invalid type, which is not supported; %s",
                             path, i, advice);
    return true;
}

static int compare_scores(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

// Sets the ranks of the merges: tokens with higher scores are merged first. Returns false if a score is not finite.
static bool rank_pieces(Tokenizer *t, const Model *m) {
    float *scores = (float *)xmalloc((size_t)m->count * sizeof *scores);
    t->bpe.merges.rank = (int32_t *)xmalloc((size_t)m->count * sizeof *t->bpe.merges.rank);
    bool good = true;
    for (int i = 0; i < m->count; i++) {
        scores[i] = m->pieces[i].score;
        good = good && isfinite(scores[i]);
    }
    if (good) qsort(scores, (size_t)m->count, sizeof *scores, compare_scores); // NaN would have no place in the order
    for (int i = 0; good && i < m->count; i++) {
        int low = 0, high = m->count - 1; // binary search for the first of the equal scores
        while (low < high) {
            const int middle = low + (high - low) / 2;
            if (scores[middle] > m->pieces[i].score)
                low = middle + 1;
            else
                high = middle;
        }
        t->bpe.merges.rank[i] = low;
    }
    free(scores);
    return good;
}

static int byte_of_piece(const Piece *piece) {
    char name[8];
    unsigned byte;
    if (piece->length != 6) return -1;
    snprintf(name, sizeof name, "%.6s", piece->text);
    return sscanf(name, "<0x%2X>", &byte) == 1 && byte < 256 ? (int)byte : -1;
}

static bool set_piece(Tokenizer *t, const char *path, const Piece *piece, int id, bool fallback, char *scratch,
                      Error *err) {
    size_t length = piece->length;
    memcpy(scratch, piece->text, length);
    if (piece->type == PIECE_BYTE) {
        const int byte = byte_of_piece(piece);
        if (byte < 0)
            return error_set(err, EXIT_DATA, "tokenizer %s: token %d has type BYTE, but no name like <0x0A>", path, id);
        if (fallback) t->bpe.byte_id[byte] = id;
        scratch[0] = (char)byte;
        length = 1;
    } else if (piece->type != PIECE_CONTROL && piece->type != PIECE_UNKNOWN) {
        length = spaces_from_marks(scratch, length);
    }
    vocabulary_set(&t->bpe.vocabulary, id, scratch, length);
    t->bpe.vocabulary.hidden[id] = piece->type != PIECE_NORMAL;
    return true;
}

static bool set_pieces(Tokenizer *t, const Model *m, const char *path, size_t size, Error *err) {
    char *scratch = (char *)xmalloc(size);
    AddedToken *added = (AddedToken *)xcalloc((size_t)m->count, sizeof *added);
    int added_count = 0;
    bool good = true;
    vocabulary_init(&t->bpe.vocabulary, m->count, size);
    const Vocabulary *v = &t->bpe.vocabulary;
    for (int i = 0; good && i < m->count; i++) {
        good = set_piece(t, path, &m->pieces[i], i, m->byte_fallback, scratch, err);
        if (good && m->pieces[i].type == PIECE_USER_DEFINED)
            added[added_count++] = (AddedToken){v->text + v->offset[i], (size_t)v->length[i], i, false, true};
    }
    if (good) {
        added_tokens_set(&t->added, added, added_count);
        vocabulary_index(&t->bpe.vocabulary);
    }
    free(added);
    free(scratch);
    return good;
}

// Returns `id` if that token has type CONTROL, as BOS and EOS must have; otherwise -1.
static int control_id(const Model *m, int64_t id) {
    return id >= 0 && id < m->count && m->pieces[id].type == PIECE_CONTROL ? (int)id : -1;
}

bool tokenizer_read_model(Tokenizer *t, const char *path, const char *text, size_t size, Error *err) {
    Model m = {.unknown = 0, .begin = 1, .end = 2, .kind = 1, .prefix = true, .remove_spaces = true, .escape = true};
    const Reader all = {(const unsigned char *)text, (const unsigned char *)text + size, false};
    bool good = read_message(&m, all);
    if (!good)
        error_set(err, EXIT_DATA,
                  "tokenizer %s: it is damaged, or neither SentencePiece's tokenizer.model nor another known kind",
                  path);
    good = good && check_model(&m, path, err) && set_pieces(t, &m, path, size, err);
    if (good && !rank_pieces(t, &m))
        good = error_set(err, EXIT_DATA, "tokenizer %s is damaged: a token's score is not finite", path);
    if (good) {
        t->bpe.characters = t->bpe.merges.by_text = t->bpe.fuse_unknown = t->can_merge = t->marks = true;
        t->bpe.unknown = m.unknown >= 0 && m.unknown < m.count ? (int)m.unknown : -1;
        t->add_space = m.prefix;
        t->pretokens.kind = PRETOKENS_NONE;
        t->bos = control_id(&m, m.begin);
        t->eos = control_id(&m, m.end);
    }
    free(m.pieces);
    return good;
}
