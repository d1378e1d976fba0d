// Converts settings that earlier versions wrote to checkpoints and logs.
#include <string.h>

#include "settings.h"

// Setting that earlier versions recorded and that this version derives from the recipe.
typedef struct {
    // older: value of the setting in files without the key. paper, other: value that this version uses with recipe
    // coat-paper (paper) and with all other recipes (other)
    const char *key, *older, *paper, *other;
    const char *relevant; // the key is checked only if the setting `relevant` has the value `when`; NULL: always
    const char *when;
} Removed;

static bool setting_is(const json_t *settings, const char *key, const char *value) {
    const char *text = json_string_value(json_object_get(settings, key));
    return text && strcmp(text, value) == 0;
}

bool settings_update(json_t *settings, const char *path, Error *err) {
    const bool fp8 = setting_is(settings, "linear", "fp8"), coat = setting_is(settings, "saved", "coat");
    const char *const data = coat ? "e4m3" : "e5m2";
    const Removed removed[] = {
        {"scaling", "tensor", "tensor", "token", "linear", "fp8"},
        {"norm-input", "saved", "saved", "residual", "saved", "coat"},
        {"activation-input", "saved", "saved", "product", "saved", "coat"},
        {"gradient-codes-data", "e5m2", "e5m2", data, "linear", "fp8"},
        {"gradient-codes-weights", "e5m2", "e5m2", "e5m2", "linear", "fp8"},
        {"second-moment", "e4m3", "e4m3", "e4m3", NULL, NULL},
        {"second-moment-rounding", "nearest", "nearest", "nearest", NULL, NULL},
    };
    enum { COUNT = sizeof removed / sizeof *removed };
    if (!json_object_get(settings, "linear")) return true;
    // True if the settings contain "recipe" and no removed setting, so that they need no conversion.
    bool current = json_object_get(settings, "recipe");
    for (int i = 0; i < COUNT; i++) current = current && !json_object_get(settings, removed[i].key);
    if (current) return true;
    json_t *both = json_object_get(settings, "gradient-codes"),
           *fast = json_object_get(settings, "fast-accumulation-backward");
    if (both) json_object_set(settings, "gradient-codes-data", both);
    if (both) json_object_set(settings, "gradient-codes-weights", both);
    if (fast) json_object_set(settings, "fast-accumulation-data", fast);
    if (fast) json_object_set(settings, "fast-accumulation-weights", fast);
    const bool paper =
        coat ? !setting_is(settings, "norm-input", "residual") : fp8 && !setting_is(settings, "scaling", "token");
    const char *const recipe = paper ? "coat-paper" : coat ? "coat" : fp8 ? "fp8-linear" : "bf16";
    bool good = true;
    for (int i = 0; i < COUNT; i++) {
        const Removed *r = &removed[i];
        const char *recorded = json_string_value(json_object_get(settings, r->key));
        const char *value = recorded ? recorded : r->older, *expected = paper ? r->paper : r->other;
        const bool relevant = !r->relevant || setting_is(settings, r->relevant, r->when);
        if (good && relevant && strcmp(value, expected) != 0)
            good = error_set(err, EXIT_DATA,
                             "%s: the recorded setting \"%s\": \"%s\" is no longer supported; use --recipe %s, "
                             "which has \"%s\"",
                             path, r->key, value, recipe, expected);
        json_object_del(settings, r->key);
    }
    if (good && json_is_true(json_object_get(settings, "fast-accumulation-weights")))
        good = error_set(err, EXIT_DATA,
                         "%s: the recorded setting \"fast-accumulation-weights\": true is no longer supported; use "
                         "--recipe %s",
                         path, recipe);
    static const char *const dropped[] = {"gradient-codes", "fast-accumulation-backward", "fast-accumulation-weights",
                                          "centred-blocks"};
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++) json_object_del(settings, dropped[i]);
    if (fp8 && !json_object_get(settings, "bf16-blocks")) json_object_set_new(settings, "bf16-blocks", json_integer(0));
    json_object_set_new(settings, "recipe", json_string(recipe));
    return good;
}
