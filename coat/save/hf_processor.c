// Reads and writes the processor files of a vision-language model. transformers 4 reads preprocessor_config.json and
// processor_config.json. transformers 5 reads both, too, but writes only processor_config.json. In this file, the value
// of the key image_processor is the object that transformers 4 stores in preprocessor_config.json.
#include <math.h>
#include <string.h>

#include "config/vision.h"
#include "hf.h"
#include "io/files.h"

#define LIMIT ((size_t)1 << 20)
// names, for messages, of the files that may contain the image processor
#define IMAGE_FILES HF_IMAGE_PROCESSOR_NAME " or " HF_PROCESSOR_NAME
#define INNER "image_processor" // key in processor_config.json; its object has the contents of preprocessor_config.json

// Reads the file folder/name. Sets *object to NULL if there is no such file.
static bool read_object(const char *folder, const char *name, json_t **object, Error *err) {
    char path[PATH_BUFFER];
    *object = NULL;
    if (!path_join(path, sizeof path, folder, name, err)) return false;
    return !path_is_file(path) || (*object = json_read_object(path, LIMIT, err)) != NULL;
}

json_t *hf_processor_open(const char *path, Error *err) {
    char parent[PATH_BUFFER];
    json_t *processor = NULL, *images = NULL;
    const char *folder = path_is_folder(path) ? path : parent;
    if (path[0] && ((folder == parent && !path_folder(parent, sizeof parent, path, err)) ||
                    !read_object(folder, HF_PROCESSOR_NAME, &processor, err) ||
                    !read_object(folder, HF_IMAGE_PROCESSOR_NAME, &images, err))) {
        json_decref(processor);
        return NULL;
    }
    const char *kind = json_string_value(json_object_get(processor, "processor_class"));
    if (kind && strcmp(kind, "LlavaProcessor") != 0) { // a CLIP or SigLIP processor's other keys do not apply to Llava
        json_t *all = processor;
        processor = json_pack("{s:O*}", INNER, json_object_get(all, INNER));
        json_decref(all);
    }
    if (!processor) processor = json_object();
    if (json_is_object(json_object_get(processor, INNER)))
        json_decref(images);
    else if (images)
        json_object_set_new(processor, INNER, images);
    else
        json_object_del(processor, INNER);
    return processor;
}

// Sets values[] to the list of three numbers of the key. Leaves values[] unchanged if the key is absent.
static bool read_colors(const json_t *images, const char *path, const char *key, float values[3], Error *err) {
    const json_t *list = json_object_get(images, key);
    bool good = !list || json_array_size(list) == 3;
    for (size_t i = 0; list && good && i < 3; i++) {
        good = json_is_number(json_array_get(list, i));
        values[i] = (float)json_number_value(json_array_get(list, i));
    }
    return good ||
           error_set(err, EXIT_DATA, "%s: " IMAGE_FILES " has a wrong %s; it must be a list of 3 numbers", path, key);
}

bool hf_processor_pixels(const json_t *processor, const char *path, VisionShape *v, Error *err) {
    const json_t *images = json_object_get(processor, INNER), *factor = json_object_get(images, "rescale_factor");
    const char *const steps[] = {"do_rescale", "do_normalize"};
    if (!images) return true;
    vision_pixel_defaults(v->kind, v->mean, v->deviation);
    for (int i = 0; i < 2; i++)
        if (json_is_false(json_object_get(images, steps[i])))
            return error_set(err, EXIT_DATA, "%s: " IMAGE_FILES " has %s false, which is not supported", path,
                             steps[i]);
    if (factor && (float)json_number_value(factor) != 1.0f / 255.0f)
        return error_set(err, EXIT_DATA, "%s: " IMAGE_FILES " has rescale_factor %g; it must be 1/255", path,
                         json_number_value(factor));
    if (!read_colors(images, path, "image_mean", v->mean, err) ||
        !read_colors(images, path, "image_std", v->deviation, err))
        return false;
    for (int i = 0; i < 3; i++)
        if (!isfinite(v->mean[i]) || !isfinite(v->deviation[i]) || !(v->deviation[i] > 0))
            return error_set(err, EXIT_DATA,
                             "%s: " IMAGE_FILES " has image_mean %g and image_std %g; both must be finite, and "
                             "image_std positive",
                             path, (double)v->mean[i], (double)v->deviation[i]);
    return true;
}

// Returns a JSON list of three numbers, each the shortest decimal number that rounds to the float.
static json_t *colors(const float values[3]) {
    json_t *list = json_array();
    for (int i = 0; i < 3; i++) {
        char text[32] = "";
        for (int digits = 1; digits <= 9 && strtof(text, NULL) != values[i]; digits++)
            snprintf(text, sizeof text, "%.*g", digits, (double)values[i]);
        json_array_append_new(list, json_real(strtod(text, NULL)));
    }
    return list;
}

// Returns an image processor of CLIP or SigLIP for the images of `v` as a JSON object.
static json_t *usual_image_processor(const VisionShape *v) {
    const bool clip = v->kind == VISION_CLIP;
    const int side = v->image_size, bicubic = 3;
    float mean[3], deviation[3];
    vision_pixel_defaults(v->kind, mean, deviation);
    const bool known = v->deviation[0] > 0;
    json_t *images =
        json_pack("{s:s, s:b, s:b, s:i}", "image_processor_type", clip ? "CLIPImageProcessor" : "SiglipImageProcessor",
                  "do_convert_rgb", 1, "do_resize", 1, "resample", bicubic);
    json_t *square = json_pack("{s:i, s:i}", "height", side, "width", side);
    json_object_set_new(images, "size", clip ? json_pack("{s:i}", "shortest_edge", side) : json_incref(square));
    if (clip) json_object_set_new(images, "do_center_crop", json_true());
    if (clip) json_object_set(images, "crop_size", square);
    json_decref(square);
    json_t *rest =
        json_pack("{s:b, s:f, s:b, s:o, s:o}", "do_rescale", 1, "rescale_factor", 1.0 / 255.0, "do_normalize", 1,
                  "image_mean", colors(known ? v->mean : mean), "image_std", colors(known ? v->deviation : deviation));
    json_object_update(images, rest);
    json_decref(rest);
    return images;
}

// Begins the JSON text of a processor file and writes all keys of `source` except image_processor.
static void begin(JsonText *t, const json_t *source) {
    const char *key;
    json_t *value;
    json_text_begin(t, true);
    json_object_foreach((json_t *)source, key, value) {
        if (strcmp(key, INNER) != 0) json_text_value(t, key, value);
    }
}

void hf_processor_texts(JsonText *images, JsonText *processor, const json_t *source, const VisionShape *v,
                        const char *image_token) {
    const json_t *inner = json_object_get(source, INNER);
    json_t *usual = inner ? NULL : usual_image_processor(v);
    begin(images, inner ? inner : usual);
    json_decref(usual);
    json_text_close(images, '}');
    begin(processor, source);
#define MISSING(key) (!json_object_get(source, key))
    if (MISSING("processor_class")) json_text_string(processor, "processor_class", "LlavaProcessor");
    if (MISSING("patch_size")) json_text_int(processor, "patch_size", v->patch_size);
    if (MISSING("num_additional_image_tokens"))
        json_text_int(processor, "num_additional_image_tokens", v->kind == VISION_CLIP);
    if (MISSING("vision_feature_select_strategy"))
        json_text_string(processor, "vision_feature_select_strategy", v->drops_class_row ? "default" : "full");
    if (MISSING("image_token")) json_text_string(processor, "image_token", image_token);
#undef MISSING
    json_text_close(processor, '}');
}
