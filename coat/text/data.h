// The token reader: files of token ids (data_files.h) in, rows of inputs and targets out. Sets of files, the order of
// their sequences (permute.h) and the turns that sets take (mixture.h) come together here.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

// One reader per rank. Not for use by several threads at a time (it owns the buffer that rows are read into).
typedef struct DataLoader DataLoader;

// Opens all files that match one of the patterns, which are the lines of `patterns`, in the order of their names'
// bytes, each path once, and checks each header against its file. A sequence is T tokens and the target of the last
// one, all from one file, cut from the stream of its tokens; what is left over at a file's end is not used, nor is a
// sequence none of whose targets counts. With `shuffle`, every epoch is a permutation of all sequences of all files,
// drawn from `seed`; without, file order. NULL with err (EXIT_DATA) when nothing matches, a file is not a token file,
// is damaged, has a token that is not in the vocabulary in its first sequence, or with a mask anywhere, or all files
// together hold fewer sequences than B * ranks.
DataLoader *data_open(const char *patterns, int B, int T, int rank, int ranks, uint64_t seed, bool shuffle, int vocab,
                      Error *err);

// The same of several sets, which are the paragraphs of `patterns` (an empty line ends one): the sequences of a run are
// drawn from them in the ratio of their weights (mixture.h), each set in its own order and with its own epochs. A set
// without a sequence is an error. weights NULL: none, all files are one set, whatever its weight. Where a file says
// where its examples begin, `examples` says what becomes of them: EXAMPLES_SPLIT reads all as data_open() does, else a
// sequence is as many whole examples of a file as fit (packing.h), and tokens 0 without a target behind them.
DataLoader *data_open_sets(const char *patterns, const double *weights, ExamplesKind examples, int B, int T, int rank,
                           int ranks, uint64_t seed, bool shuffle, int vocab, Error *err);

// Opens validation data: files in their order, as one process reads them. The processes divide its micro-batches among
// them. The last micro-batch is filled up with sequences without a target (tokens 0), so that all sequences of the data
// are evaluated whatever B is. Tokens at a file's end that do not fill a sequence are not used.
DataLoader *data_open_validation(const char *patterns, ExamplesKind examples, int B, int T, int vocab, Error *err);
void data_close(DataLoader *loader);

// Where documents begin in files without examples: at each of the token that begins texts, or where there is none,
// behind one that ends them. Of the `count` ways to say so the first counts whose ids are among the first
// DATA_LOOKED_AT tokens of these files; where none is, the first that has any, and *found is false. False with err
// (EXIT_USER) where there are such files, and no ids.
bool data_mask_documents(DataLoader *loader, const SpecialIds *ways, int count, bool *found, Error *err);
// What it divides by, for comparisons.
int64_t data_documents_hash(const DataLoader *loader);
enum { DATA_LOOKED_AT = 65536 }; // of each file, wherever its tokens are looked at to tell what they are

int64_t data_tokens(const DataLoader *loader);    // over all files
int64_t data_sequences(const DataLoader *loader); // of all files once, over all ranks
bool data_masked(const DataLoader *loader);       // whether a file says which of its tokens count as targets

// The prompt format that the files name, those that name one; NONE where they do not name the same: then the first two
// of them are in `different`, which are NONE elsewhere.
PromptFormat data_prompt_format(const DataLoader *loader, PromptFormat different[2]);

// How many of the targets that data_batch_at() gives count, at least one of every sequence of the data.
int64_t data_unmasked_targets(const int32_t *targets, int64_t tokens);

// Returns the number of micro-batches of B sequences in a pass over the data on one rank, limited to `most` if that is
// above 0.
// Validation data count the last one, which is filled up; training data count full ones alone.
int data_batches(const DataLoader *loader, int most);

// The micro-batch of all ranks that begins with sequence `first` >= 0 of the run: this rank has the B sequences from
// first + rank * B on. Sequence s of the run belongs to epoch s / data_sequences() (of one set), so a batch may
// reach into the next epoch. Stateless: `first` alone says which rows, so a run resumes by number, with another B
// and on any number of ranks, and the tokens of an optimizer step do not depend on either. inputs, targets,
// positions (B, T); a target that does not count is -1. positions: within documents, once data_mask_documents() was
// asked for them; NULL: not wanted. Returns false with err (EXIT_DATA) when a file cannot be read any more or holds
// a token that is not in the vocabulary.
bool data_batch_at(DataLoader *loader, int64_t first, int32_t *inputs, int32_t *targets, int32_t *positions,
                   Error *err);

// Micro-batch n >= 0 of those that follow each other from sequence 0 on: data_batch_at(n *
// ranks * B), without positions.
bool data_batch(DataLoader *loader, int64_t n, int32_t *inputs, int32_t *targets, Error *err);

// Whether the first `batches` micro-batches of data that is not shuffled can be read and are of the vocabulary; false
// with err (EXIT_DATA) as data_batch() would end later.
bool data_check(DataLoader *loader, int batches, Error *err);

// Whether the first file begins as one of bytes does (--tokenizer bytes): none of its first DATA_LOOKED_AT tokens is
// above 256. False where it has fewer than 1,024, of examples than 128, or cannot be read.
bool data_begins_with_bytes(DataLoader *loader);

// Whether some files begin so and others do not, as where they were made with different tokenizers; the paths of the
// first of each kind. It looks like a mistake and need not be one. Files of fewer tokens than that do not count.
bool data_mixes_bytes(DataLoader *loader, const char **bytes, const char **other);

// The path of a file whose tokens have 16 bits, too few for a vocabulary of more than 65,536; NULL: none.
const char *data_narrow_file(const DataLoader *loader);

// The path of a file that both have, under whatever names; NULL: none.
const char *data_shared_file(const DataLoader *a, const DataLoader *b);

// The path of a file that is named more than once in one set, which is read once all the same; NULL: none.
const char *data_repeated_file(const DataLoader *loader);

// The path of a file that two sets have, which is read for both; NULL: none.
const char *data_file_of_two_sets(const DataLoader *loader);

// What is known of one of the sets, 0 ... data_sets() - 1, when `position` sequences of the run have been read.
typedef struct {
    const char *name; // its patterns on one line; the loader's
    double share;     // of the run's sequences; those of all sets add up to 1
    int64_t tokens;   // of its files
    int64_t seen;     // sequences of it that have been read
    double epochs;    // how often its sequences have been read
} DataSet;
int data_sets(const DataLoader *loader);
DataSet data_set(DataLoader *loader, int set, int64_t position);

// "2 files, 1,234,567 tokens, uint16", with "3 sets of 5 : 3 : 2, " before it and, of files with masks, the share of
// tokens that count behind it, ", 37.5 % in the loss", into text; returns text.
const char *data_describe(const DataLoader *loader, char *text, size_t size);
bool data_describes_mask(const char *text); // whether such a text is of files with masks: checkpoints record it

// Of files that say where their examples begin, where these are not split; 0 examples: there are none.
typedef struct {
    int64_t examples, sequences, cut, left_out; // longer than a sequence, so that they lose their end; without a target
    double filled;                              // the share of the sequences' tokens that are not empty
} DataExamples;
DataExamples data_examples(const DataLoader *loader);

// A hash of the files' headers, sizes, first and last tokens, in order, and of which set each is of and the sets'
// weights; not of their names. Recorded in checkpoints, so that resuming on other data is noticed.
uint64_t data_fingerprint(const DataLoader *loader);

#ifdef __cplusplus
}
#endif
