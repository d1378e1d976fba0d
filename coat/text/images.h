// Files of images: NAME.images next to a token file NAME.bin of version DATA_VERSION_IMAGES. All little-endian:
//   header   1024 bytes, with the words IMAGES_WORD_...
//   places   uint32 per place: index of the stored image that the place shows. A place is a group of IMAGES_WORD_ROWS
//            consecutive placeholder tokens in the token file. Places are listed in the order of the token file
//   images   3 * side * side bytes each: channel, row, column
#pragma once
#include "data_files.h"

C_LINKAGE_BEGIN

#define IMAGES_MAGIC 20261129
#define IMAGES_VERSION 1

// Indices of the words of an image file's header. Words are int32 unless noted. All words that have no name here are 0.
enum {
    IMAGES_WORD_MAGIC,
    IMAGES_WORD_VERSION,
    IMAGES_WORD_COUNT, // number of stored images
    IMAGES_WORD_SIDE,  // width and height in pixels
    IMAGES_WORD_CHANNELS,
    IMAGES_WORD_ROWS,        // number of placeholder tokens per place (image shown in the token file)
    IMAGES_WORD_PLACES,      // number of places; several places may show the same stored image
    IMAGES_WORD_PREPARATION, // how images became square; 0: by the image processor's settings, 1: padded, 2: distorted
    IMAGES_WORD_CRC,         // CRC-32 of all bytes after the header
    IMAGES_WORD_CHECKSUM,    // DATA_CHECKSUM
    IMAGES_WORD_TOKEN,       // id of the placeholder token
    IMAGES_WORD_MEAN,        // float32 per channel
    IMAGES_WORD_DEVIATION = IMAGES_WORD_MEAN + 3,
    IMAGES_WORDS_USED = IMAGES_WORD_DEVIATION + 3
};

// The images of one token file.
struct ImageFile {
    TokenFile file;      // path, size and checksum of the file of images
    int64_t count;       // number of stored images
    int64_t image_bytes; // bytes of an image
    int64_t places;      // number of places, each of which shows a stored image
    int rows, token;     // number of placeholders per place, and id of the placeholder token
    uint32_t *shown;     // (places) index of the stored image that each place shows
    uint32_t *starts;    // (places) index in the token file of each place's first placeholder
    float mean[3], deviation[3];
    int64_t found, last; // number of placeholders found so far, and token index of the last placeholder
    int64_t broken;      // token index of the last placeholder of the first incomplete group; -1: none
};

// Opens the images of the token file `path`, checks the header, the size and the list of places, and adds the header to
// `hash`. The Verifier verifies the checksum later. Returns NULL with err (EXIT_DATA) if the file is missing or
// damaged, or does not match the images that a model reads (`vision`). If `vision` has no image token, or no mean and
// deviation, copies these values from the file.
ImageFile *images_open(const char *path, VisionShape *vision, XXH64_state_t *hash, Error *err);
void images_close(ImageFile *images);

// Reads the first stored image of the file of images `path`, which needs no token file. Makes the checks of
// images_open(); the checksum is never verified. Returns the pixels (3 * side * side bytes), which the caller must
// free; NULL with err (EXIT_DATA) on failure. Completes `vision` like images_open().
uint8_t *images_read_first(const char *path, VisionShape *vision, Error *err);

// Records that token `at` of the token file is a placeholder. Call this for all placeholders in order.
void images_add_placeholder(ImageFile *images, int64_t at);

// Checks the placeholders that were found in the token file `path`. The placeholders must form one group for each
// image that the file shows. No example (first tokens: `starts`) may begin inside a group. Returns false with err
// (EXIT_DATA) if not.
bool images_check_placeholders(ImageFile *images, const char *path, const uint32_t *starts, int64_t examples,
                               Error *err);

// Returns how many images the token file shows before token `at`: images whose first placeholder token is before `at`.
int64_t images_before(const ImageFile *images, int64_t at);

// Adds the images of the tokens [begin, end) to a micro-batch. An image's placeholder tokens must not cross `end`.
//   image_rows   (end - begin): set to i * n + k at placeholder k of image i of the micro-batch, where an image has n
//                placeholders
//   pixels       (images of the micro-batch, image_bytes)
//   count        number of images of the micro-batch so far; increased by the number of images added
// Returns false with err (EXIT_DATA) if the file cannot be read or has changed.
bool images_read(const ImageFile *images, int64_t begin, int64_t end, int32_t *image_rows, uint8_t *pixels, int *count,
                 Error *err);

C_LINKAGE_END
