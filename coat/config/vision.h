// Shapes and configuration of the vision tower of a vision-language model, derived from those of the whole model.
#pragma once
#include "base/error.h"
#include "config.h"

C_LINKAGE_BEGIN

enum { MAX_VISION_DEPTH = 48 }; // largest depth N of a tower named by its depth
#define BYTE_IMAGE_TOKEN 255    // image token of the byte vocabulary; no UTF-8 text contains this byte
#define DOWNSAMPLE 2            // PROJECTOR_DOWNSAMPLE: side of the square of patches that becomes one row

// Sets the shape of a vision tower known by name: clip-l14-336, siglip-b16-224, siglip-so400m-384, and by depth clip:dN
// and siglip:dN with 64 channels per layer. Keeps the projector, and a size that is not 0. Returns false if the name is
// unknown.
bool vision_named(const char *name, VisionShape *vision);

// Completes a new vision-language model: checks its sizes, and sets the projector's output width and the image token.
// Fails with EXIT_USER.
bool vision_finish(Config *config, Error *err);

// Sets config->freeze from config->frozen. Fails with EXIT_USER if a name is unknown or the model has no such part.
bool vision_freeze(Config *config, Error *err);

// Returns the number of patches on a side of an image.
static inline int vision_grid(const VisionShape *v) {
    return v->image_size / v->patch_size;
}

// Returns the number of rows of an image in the tower: its patches, and with CLIP the class token's row.
static inline int vision_tokens(const VisionShape *v) {
    return vision_grid(v) * vision_grid(v) + (v->kind == VISION_CLIP);
}

// Returns the number of rows of the projector's output for one image: its places in the token sequence.
static inline int vision_rows(const VisionShape *v) {
    const int side = (vision_grid(v) + DOWNSAMPLE - 1) / DOWNSAMPLE;
    if (v->projector == PROJECTOR_DOWNSAMPLE) return side * side;
    return vision_tokens(v) - v->drops_class_row;
}

// Returns how many rows of the tower's output stand side by side in a row of the projector's input.
static inline int vision_merged(const VisionShape *v) {
    return v->projector == PROJECTOR_DOWNSAMPLE ? DOWNSAMPLE * DOWNSAMPLE : 1;
}

// Fills `select` (vision_rows * vision_merged entries) with the row of the tower's output that each row of the
// projector's input reads, for one image; -1: a row of zeros, beyond the edge of an odd grid. Fills `back`
// (vision_tokens entries) with the inverse; -1: the projector does not read the row.
void vision_select(const VisionShape *v, int32_t *select, int32_t *back);

// Sets the mean and deviation of each color's pixel values to those that CLIP's or SigLIP's towers were trained with.
void vision_pixel_defaults(VisionKind kind, float mean[3], float deviation[3]);

// Returns the largest number of images in a micro-batch; 0 if the model reads text only.
int vision_images(const Config *config);

// Returns the size of the pixels of vision_images() images in bytes.
int64_t vision_pixel_bytes(const Config *config);

// Sets `tower` to the configuration of the vision tower of `config`: its shape, a micro-batch of vision_images()
// images, BF16 or FP32 matmuls and activations. Optimizer and optimizer states are those of `config`.
void vision_config(Config *tower, const Config *config);

C_LINKAGE_END
