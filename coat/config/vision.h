// Derives the shape and the configuration of a vision tower from the configuration of the entire vision-language model.
#pragma once
#include "base/error.h"
#include "config.h"

C_LINKAGE_BEGIN

enum { MAX_VISION_DEPTH = 48 }; // largest N of vision towers named clip:dN and siglip:dN
#define BYTE_IMAGE_TOKEN 255    // image token of the byte vocabulary; no UTF-8 text contains this byte
#define DOWNSAMPLE 2            // PROJECTOR_DOWNSAMPLE joins 2 x 2 patches into one row

// Sets the shape of a vision tower known by name: clip-l14-336, siglip-b16-224, siglip-so400m-384, or clip:dN and
// siglip:dN with N layers and 64 N channels. Does not change vision->projector, nor an image or patch size that is not
// 0. Returns false if the name is unknown.
bool vision_named(const char *name, VisionShape *vision);

// Completes the shape of a vision-language model from --vision: sets a named tower, the projector's output width and
// the byte vocabulary's image token. If --vision is a folder whose shape has not been read, does nothing. Fails
// (EXIT_USER) if the flags contradict each other, the tower is unknown, or the language model cannot read images.
bool vision_finish(Config *config, Error *err);

extern const char *const part_names[3]; // names of parts in --freeze; part_names[i]: part with bit 1 << i

// Sets config->freeze from the names in config->frozen, and makes config->frozen empty if it is "none". Also checks the
// other flags of training a vision-language model (--lr-vision, --vision-recipe, ...). Fails (EXIT_USER) if:
//   - a name is unknown, or the names are all three parts;
//   - one of these flags is given for a model without a vision tower;
//   - --lr-vision or --lr-projector is given with --lr 0.
bool vision_freeze(Config *config, Error *err);

#define IMAGE_MARK "<image>" // text in a prompt that marks the place of the image of --image

// Checks --image, and sets config->image_rows. Fails (EXIT_USER) if there is no prompt or no vision tower.
bool vision_image(Config *config, Error *err);

// Returns the number of patches on a side of an image.
static inline int vision_grid(const VisionShape *v) {
    return v->image_size / v->patch_size;
}

// Returns the number of rows of an image in the vision tower: one per patch, and with CLIP one for the class token.
static inline int vision_tokens(const VisionShape *v) {
    return vision_grid(v) * vision_grid(v) + (v->kind == VISION_CLIP);
}

// Returns the number of rows of the projector's output for one image, each of which replaces one token's embedding.
static inline int vision_rows(const VisionShape *v) {
    const int side = (vision_grid(v) + DOWNSAMPLE - 1) / DOWNSAMPLE;
    if (v->projector == PROJECTOR_DOWNSAMPLE) return side * side;
    return vision_tokens(v) - v->drops_class_row;
}

// Returns the number of rows of the tower's output that are concatenated into one row of the projector's input.
static inline int vision_merged(const VisionShape *v) {
    return v->projector == PROJECTOR_DOWNSAMPLE ? DOWNSAMPLE * DOWNSAMPLE : 1;
}

// Fills `select` (vision_rows * vision_merged entries, for one image) with the rows of the tower's output that the
// projector's input reads, in order; -1: a row of zeros, beyond the edge of an odd grid. Fills `back` (vision_tokens
// entries) with the inverse; -1: the projector does not read the row.
void vision_select(const VisionShape *v, int32_t *select, int32_t *back);

// Sets the mean and standard deviation of each color's pixel values to those that CLIP or SigLIP towers were trained
// with.
void vision_pixel_defaults(VisionKind kind, float mean[3], float deviation[3]);

// Returns the largest number of images in a micro-batch; 0 if the model reads text only.
int vision_images(const Config *config);

// Returns the number of images that a pass computes if its micro-batch has `images` images. The additional images are
// black. `images` is rounded up so that at most 32 different results occur, because a GPU stores matmul plans for each.
// The result is at least 1, because all processes must run the same collectives. With FP8 matmuls, the tower's tokens
// are a multiple of 16. tower: from vision_config().
int vision_pass_images(const Config *tower, int images);

// Returns the bytes of the pixels of vision_images() images.
int64_t vision_pixel_bytes(const Config *config);

// Sets `tower` to the configuration of config's vision tower: the tower's shape, a micro-batch of vision_images()
// images, and the formats of --vision-recipe. The optimizer's settings are those of `config`.
void vision_config(Config *tower, const Config *config);

C_LINKAGE_END
