#include "flops.h"

#include "base/memory.h"
#include "config/vision.h"
#include "tensors.h"

// Returns the FLOPs of attention's two matmuls in forward, in all layers, for one row that attends to `rows` rows.
static double attention_flops(const ModelShape *s, double rows) {
    return 4.0 * s->layers * s->heads * s->head_dim * rows;
}

TrainFlops train_flops(const Config *c) {
    const bool trains_vision = !(c->freeze & PART_VISION), trains_projector = !(c->freeze & PART_PROJECTOR);
    const double parameters = (double)model_parameters(&c->shape), rows = 0.5 * c->seq_len; // causal: half on average
    TrainFlops flops = {(c->freeze & PART_LANGUAGE ? 4.0 : 6.0) * parameters + 3.0 * attention_flops(&c->shape, rows),
                        0.0};
    if (c->shape.vision.kind == VISION_NONE) return flops;
    Config *tower = (Config *)xmalloc(sizeof *tower);
    vision_config(tower, c);
    const ModelShape *s = &tower->shape;
    const double tower_parameters = (double)part_parameters(s, PART_VISION), tokens = tower->seq_len,
                 projector_parameters = (double)part_parameters(s, PART_PROJECTOR);
    const double per_row = 2.0 * tower_parameters + attention_flops(s, tokens);
    const int projector_matmuls = 1 + (trains_vision || trains_projector) + trains_projector; // forward, dgrad, wgrad
    flops.per_image = tokens * per_row * (trains_vision ? 3.0 : 1.0) +
                      vision_rows(&s->vision) * 2.0 * projector_matmuls * projector_parameters;
    free(tower);
    return flops;
}
