// Muon is not implemented on the GPU. config_check_recipe() refuses runs that would call these operations.
#include "cuda_optimizer.h"

static void refuse(const char *operation) {
    fatal(EXIT_DEVICE, "internal error: %s is not implemented on the GPU", operation);
}

void cuda_muon_momentum(Exec *, const Parameter *, int, StepState *) {
    refuse("muon_momentum");
}

void cuda_muon_apply(Exec *, const Parameter *, int, StepState *) {
    refuse("muon_apply");
}

void cuda_muon_orthogonalize(Exec *, Tensor, Tensor, Tensor, Tensor, float, StepState *) {
    refuse("muon_orthogonalize");
}
