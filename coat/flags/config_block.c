#include "config_block.h"

#include <string.h>

#include "config/shapes.h"
#include "flags.h"

// Returns the architecture that supports the most settings of the shape; among equally good ones, the architecture of
// --model. Sets *flag to the flag of the first unsupported setting, or to NULL if all are supported.
static Architecture nearest_architecture(const Config *c, const char **flag) {
    ModelShape named;
    const char *unused;
    int nearest = model_shape_named(c->model, &named) ? (int)shape_architecture(&named) : 0;
    int fewest = shape_mismatches(&c->shape, (Architecture)nearest, &unused);
    for (int i = 0; i < ARCHITECTURE_COUNT; i++) {
        const int count = shape_mismatches(&c->shape, (Architecture)i, &unused);
        if (count < fewest) nearest = i, fewest = count;
    }
    *flag = NULL;
    shape_mismatches(&c->shape, (Architecture)nearest, flag);
    return (Architecture)nearest;
}

// Writes the flag `name` with its value in the config to text, such as "--norm rms" or "--no-biases".
static void flag_with_value(const Config *c, const char *name, char text[FLAG_TEXT_LENGTH]) {
    bool negated;
    char value[FLAG_TEXT_LENGTH];
    const Flag *flag = flag_find(name, strlen(name), &negated);
    flag_value(flag, c, value);
    if (flag->kind == FLAG_BOOL)
        snprintf(text, FLAG_TEXT_LENGTH, "--%s%.40s", strcmp(value, "on") == 0 ? "" : "no-", name);
    else
        snprintf(text, FLAG_TEXT_LENGTH, "--%.40s %.60s", name, value);
}

bool config_check_block(const Config *c, Error *err) {
    const ModelShape *s = &c->shape;
    const char *flag;
    char given[FLAG_TEXT_LENGTH], supported[FLAG_TEXT_LENGTH];
    const Architecture architecture = nearest_architecture(c, &flag);
    if (!flag) return true;
    if (strcmp(flag, "head-dim") == 0 && s->channels % s->heads)
        return error_set(err, EXIT_USER, "--heads %d: must divide --channels %d in %s models", s->heads, s->channels,
                         architecture_name(architecture));
    Config *other = (Config *)xcalloc(1, sizeof *other); // config with the values of the nearest architecture
    architecture_shape(architecture, &other->shape);
    other->shape.kv_heads = s->heads;
    other->shape.head_dim = s->channels / s->heads;
    flag_with_value(c, flag, given);
    flag_with_value(other, flag, supported);
    free(other);
    return error_set(err, EXIT_USER, "%s: not supported in %s models; use %s, or another --model", given,
                     architecture_name(architecture), supported);
}

bool config_check_idle(const Config *c, bool (*given)(const void *context, const char *name), const void *context,
                       Error *err) {
    static const char *const rope[] = {"rope-theta", "rope-factor", "rope-low", "rope-high", "rope-positions"};
    static const char *const qkv[] = {"qkv-biases", "no-qkv-biases"};
    for (int i = 0; i < 5; i++) {
        if (!given(context, rope[i])) continue;
        if (c->shape.position_kind == POSITIONS_LEARNED)
            return error_set(err, EXIT_USER,
                             "--%s: has no effect on learned positions; remove it, or use --model llama:dN", rope[i]);
        if (i > 1 && c->shape.rope.factor == 1.0f)
            return error_set(err, EXIT_USER,
                             "--%s: has no effect without --rope-factor; add --rope-factor X, or remove it", rope[i]);
    }
    for (int i = 0; i < 2; i++)
        if (c->shape.biases && given(context, qkv[i]))
            return error_set(err, EXIT_USER, "--%s: has no effect because --biases includes q, k and v; remove it",
                             qkv[i]);
    return true;
}
