// The token reader: reads files of token ids (data_files.h) and returns sequences of inputs and targets. Files belong
// to one or more data sets. The reader shuffles the sequences of each data set (permute.h), and chooses the data set
// that each sequence of a run comes from (mixture.h).
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

C_LINKAGE_BEGIN

// Reads the data of one rank. Not thread-safe, because each call reads tokens into the same buffer.
typedef struct DataLoader DataLoader;

// Opens the token files whose paths match a line of `patterns`: each path once, in the byte order of the paths.
//   - A sequence is T tokens and the target of the last token, cut from the stream of one file. Tokens at a file's end
//     that do not fill a sequence are not used, nor are sequences without an unmasked target.
//   - If `shuffle` is true, every epoch is a permutation of all sequences of all files, drawn from `seed`. Otherwise,
//     sequences are read in the order of the files.
// Returns NULL with err (EXIT_DATA) if a pattern has no match or a file is damaged or not a token file. Also fails if
// all files together have fewer than B * ranks sequences, or if a token is outside the vocabulary. Checks all tokens of
// a file with a mask, but only the first sequence of other files.
DataLoader *data_open(const char *patterns, int B, int T, int rank, int ranks, uint64_t seed, bool shuffle, int vocab,
                      Error *err);

// Shape and number of the images that a vision-language model reads.
typedef struct {
    VisionShape vision;
    int per_sequence; // largest number of images in a sequence
} DataImages;

// Opens several sets of token files. data_open() explains the other parameters and errors.
//   patterns   one paragraph of patterns per set; an empty line ends a paragraph
//   weights    a positive weight per set: the ratio in which the run draws sequences from the sets (mixture.h). Each
//              set has its own order and epochs. NULL: all files are one set. A set without a sequence is an error.
//   examples   how examples become sequences, in files that record them. EXAMPLES_SPLIT: the stream is cut regardless
//              of examples. Otherwise, a sequence is as many examples of a file as fit (packing.h), padded with
//              tokens 0 without targets. If an example is longer than a sequence, EXAMPLES_CUT truncates it, and
//              EXAMPLES_WHOLE is an error. EXAMPLES_SPLIT is an error if a file has images.
//   images     shape that the images of all files must have. NULL or VISION_NONE: the model reads text only, and a file
//              with images is an error.
DataLoader *data_open_sets(const char *patterns, const double *weights, ExamplesKind examples, int B, int T, int rank,
                           int ranks, uint64_t seed, bool shuffle, int vocab, const DataImages *images, Error *err);

// Opens validation data, which is not shuffled. Every process opens all of the data, as rank 0 of 1, because the caller
// divides the micro-batches among the processes. The last micro-batch is padded with sequences of tokens 0 without
// targets, so that no sequence is skipped for any B.
DataLoader *data_open_validation(const char *patterns, ExamplesKind examples, int B, int T, int vocab,
                                 const DataImages *images, Error *err);
void data_close(DataLoader *loader);

// Chooses the token ids that mark document boundaries in files that do not record them. A document starts at every BOS
// token or, if the vocabulary has none, after every EOS token.
//   ways    `count` candidate id sets, best first. Uses the first candidate whose ids occur among the first
//           DATA_LOOKED_AT tokens of one of these files. If there is none, uses the first candidate that names an id,
//           and sets *found to false.
// Returns false with err (EXIT_USER) if a file does not record its documents and no candidate has an id.
bool data_mask_documents(DataLoader *loader, const SpecialIds *ways, int count, bool *found, Error *err);
// Returns a hash of the ids that data_mask_documents() chose, for comparison between processes.
int64_t data_documents_hash(const DataLoader *loader);
// number of tokens at the start of a file in which the reader looks for document boundaries and for byte-level tokens
enum { DATA_LOOKED_AT = 65536 };

int64_t data_tokens(const DataLoader *loader);    // returns the number of tokens in all files
int64_t data_sequences(const DataLoader *loader); // returns the number of sequences in one pass over all files
bool data_masked(const DataLoader *loader);       // true if a file has a loss mask

// Returns the prompt format that the files record; files that record none are ignored. If two files record different
// formats, returns PROMPT_FORMAT_NONE and sets `different` to both formats. Otherwise, sets both entries of `different`
// to PROMPT_FORMAT_NONE.
PromptFormat data_prompt_format(const DataLoader *loader, PromptFormat different[2]);

// Returns the number of unmasked targets in targets[tokens]. Every sequence of the data has at least one such
// target.
int64_t data_unmasked_targets(const int32_t *targets, int64_t tokens);

// Returns the number of micro-batches of B sequences in a pass over all data, at most `max` if max > 0. This is the
// number for all ranks together. Counts the last, padded micro-batch of validation data, but not an incomplete last
// micro-batch of training data.
int data_batches(const DataLoader *loader, int max);

// Reads this rank's part of a micro-batch: B sequences of the run, starting with number first + rank * B, first >= 0.
//   inputs, targets   (B, T); a masked target is -1
//   positions         (B, T) positions within documents, if data_mask_documents() was called; NULL: not computed
// If all files are one set, sequence s belongs to epoch s / data_sequences(), so a batch may continue into the next
// epoch. A sequence depends only on its number and the seed. So a run that resumes with a different B or number of
// ranks trains on the same tokens.
// Returns false with err (EXIT_DATA) if a file cannot be read, is damaged or has a token outside the vocabulary.
bool data_batch_at(DataLoader *loader, int64_t first, int32_t *inputs, int32_t *targets, int32_t *positions,
                   Error *err);

// Reads the images of the micro-batch that data_batch_at() has read with the same `first`.
//   image_rows   (B, T): row i * vision_rows() + k for the k-th placeholder of image i of the micro-batch; else -1
//   pixels       (images, 3 * side * side): bytes of the images, in the order in which their placeholders occur. The
//                buffer needs room for B * per_sequence images
//   count        receives the number of images
// Returns false with err (EXIT_DATA) if a file cannot be read or has changed; *count is then 0, and image_rows all -1.
bool data_images_at(DataLoader *loader, int64_t first, int32_t *image_rows, uint8_t *pixels, int *count, Error *err);

// Returns the shape of the images that the model reads. Values that DataImages lacks (image token, mean, deviation) are
// those of the first file of images.
const VisionShape *data_vision(const DataLoader *loader);

// Reads micro-batch n >= 0 of the run: data_batch_at() with first = n * ranks * B, without positions.
bool data_batch(DataLoader *loader, int64_t n, int32_t *inputs, int32_t *targets, Error *err);

// True if the first `batches` micro-batches can be read and have no token outside the vocabulary; otherwise false with
// err (EXIT_DATA). For data that is not shuffled, this finds the errors that data_batch() would return later.
bool data_check(DataLoader *loader, int batches, Error *err);

// True if the first file seems to have been made with --tokenizer bytes: none of the first DATA_LOOKED_AT tokens
// exceeds 256. False if the file cannot be read or is too small to decide (fewer than 1,024 tokens, or fewer than 128
// in a file with a mask).
bool data_begins_with_bytes(DataLoader *loader);

// True if some files look like --tokenizer bytes and others do not, which suggests different tokenizers. Sets
// *bytes and *other to the path of the first file of each kind, NULL if there is no such file. Ignores files that are
// too small to decide.
bool data_mixes_bytes(DataLoader *loader, const char **bytes, const char **other);

// Returns the path of a file with 16-bit tokens, which cannot express a vocabulary above 65,536; NULL if there is none.
const char *data_narrow_file(const DataLoader *loader);

// Returns the path of a file that both readers read, possibly under different names; NULL if there is none.
const char *data_shared_file(const DataLoader *a, const DataLoader *b);

// Returns the path of a file that two patterns of one set match; NULL if there is none. The file is read only once.
const char *data_repeated_file(const DataLoader *loader);

// Returns the path of a file that belongs to two sets; NULL if there is none. The file is read for each of the sets.
const char *data_file_of_two_sets(const DataLoader *loader);

// Statistics of a set of files (0 <= set < data_sets()) after `position` sequences of the run.
typedef struct {
    const char *name; // first file pattern of the set, and the number of its other patterns; owned by the loader
    double share;     // the set's fraction of the run's sequences
    int64_t tokens;   // number of tokens in the set's files
    int64_t seen;     // number of the set's sequences that have been read
    double epochs;    // number of passes over the set's sequences
} DataSet;
int data_sets(const DataLoader *loader);
DataSet data_set(DataLoader *loader, int set, int64_t position);

// Describes the data in text[size], such as "2 shards, 1,234,567 tokens, uint16". Returns text.
//   several sets       "3 sets of 5 : 3 : 2, ", with as many of the weights as fit into text, is added at the start
//   files with masks   the fraction of unmasked tokens, such as ", 37.5 % in the loss", is added at the end
//   files with images  the number of stored images, such as ", 600 images", is added at the end
const char *data_describe(const DataLoader *loader, char *text, size_t size);
// true if `text`, which data_describe() wrote to a checkpoint, describes files with loss masks
bool data_describes_mask(const char *text);

// Statistics of the examples that are packed into sequences; all 0 if no examples are packed.
typedef struct {
    int64_t examples, sequences;
    int64_t cut;      // number of examples that are truncated, because they do not fit into a sequence
    int64_t left_out; // number of examples without an unmasked target after truncation, which are dropped
    double filled;    // fraction of the sequences' tokens that are not padding
} DataExamples;
DataExamples data_examples(const DataLoader *loader);

// Returns a hash of each file's size, of the first and last 4,096 bytes of each file, and of the headers of the files
// of images. If there are several sets, also hashes each set's number of files and weight. File names are not hashed.
// Checkpoints record the hash, so that resuming with other data is detected.
uint64_t data_fingerprint(const DataLoader *loader);

C_LINKAGE_END
