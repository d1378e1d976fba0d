// Plans attention by cuDNN for the GPUs that this program supports, from descriptions of these GPUs. Needs no GPU, only
// the library by which test_attention_plan.sh replaces the CUDA driver. Prints each plan's workspace, and the reason if
// cuDNN refuses a plan. docs/limits.md says which GPUs need which cuDNN.
#include <cudnn.h>
#include <stdlib.h>
#include <string.h>

#include "coat/cuda/attention/attention.h"
#include "tap.h"

namespace {

struct Card {
    const char *name;
    int capability, sms, shared_kb, blocks, threads; // shared_kb: maximum per block; blocks and threads: per SM
};

constexpr int WIDTHS[] = {64, 72, 80, 96, 128}; // widths of a head
constexpr Card CARDS[] = {
    {"NVIDIA A100-SXM4-80GB", 80, 108, 163, 32, 2048},
    {"NVIDIA A40", 86, 84, 99, 16, 1536},
    {"NVIDIA L40S", 89, 142, 99, 24, 1536},
    {"NVIDIA GeForce RTX 4090", 89, 128, 99, 24, 1536},
    {"NVIDIA H100 PCIe", 90, 114, 227, 32, 2048},
    {"NVIDIA H200", 90, 132, 227, 32, 2048},
    {"NVIDIA B200", 100, 148, 227, 32, 2048},
    {"NVIDIA GeForce RTX 5090", 120, 170, 99, 24, 1536},
    {"NVIDIA RTX PRO 6000", 120, 188, 99, 24, 1536},
};

// Writes a GPU's properties in the JSON format of CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION. Clocks and sizes of memory
// and cache are the same for all GPUs, because plans do not depend on them.
void describe(const Card &card, char *json, size_t size) {
    snprintf(json, size,
             "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
             "\"multiProcessorCount\":%d,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
             "\"maxSharedMemoryPerBlockOptin\":%d,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
             "\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,\"pciDeviceId\":0,"
             "\"isTccDriver\":0,\"supportCoopLaunch\":1,\"totalGlobalMem\":85899345920,\"smClockRateKHz\":1980000,"
             "\"memClockRateKHz\":3201000,\"l2CacheSize\":52428800,\"cudaDeviceId\":0,\"deviceVer\":%d,"
             "\"driverVer\":%d,\"deviceName\":\"%s\"}",
             card.sms, card.shared_kb << 10, card.blocks, card.threads, card.capability * 10, CUDART_VERSION,
             card.name);
}

// Plans forward and backward of one shape and prints the result. Returns false if cuDNN should support the plan but
// refuses it.
bool plan_shape(AttentionState *state, const Card &card, AttentionShape shape, size_t *most) {
    bool good = true;
    for (int backward = 0; backward < 2; backward++) {
        const size_t planned = attention_workspace_bytes(shape);
        const AttentionPlan plan = attention_plan(state, shape, backward, planned);
        printf("# %s, %s%s, heads of %d: ", card.name, shape.bidirectional ? "" : "causal ",
               backward ? "backward" : "forward", shape.head_dim);
        if (plan.supported)
            printf("%.1f of %.1f MB, %d of %d sequences at once\n", (double)plan.workspace_bytes / 1e6,
                   (double)planned / 1e6, plan.slice.sequences, shape.B);
        else
            printf("refused: %s\n", attention_refusal(state));
        if (plan.workspace_bytes > *most) *most = plan.workspace_bytes;
        const bool expected = !(backward && card.capability / 10 == 10 && cudnnGetVersion() < 91800);
        // The slice must be the whole batch if the whole batch needs no more workspace than is planned.
        const size_t whole = plan.workspace_bytes / (size_t)plan.slice.sequences * (size_t)shape.B;
        good = good && (plan.supported || !expected) &&
               (!plan.supported || plan.slice.sequences == shape.B || whole > planned);
    }
    return good;
}

// Checks that a handle whose stream could not be set is destroyed and not used for the next plan. cuDNN is then a
// library of test_attention_plan.sh whose cudnnSetStream() fails, and whose cudnnCreate() accepts one handle at a time.
int check_handle() {
    AttentionState *state = attention_open(NULL, 90);
    char first[sizeof(Error::text)];
    attention_plan(state, {1, 128, 1, 1, 64, false}, false, 0);
    snprintf(first, sizeof first, "%s", attention_refusal(state));
    attention_plan(state, {1, 256, 1, 1, 64, false}, false, 0);
    tap_check(strstr(first, "the stream is bad") && strcmp(first, attention_refusal(state)) == 0,
              "a cuDNN handle without its stream is not used", "%s; then %s", first, attention_refusal(state));
    attention_close(state);
    return tap_status();
}

} // namespace

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "handle") == 0) return check_handle();
    if (cudnnGetVersion() < 90800) { // 0 if cuDNN cannot be loaded; its error texts then say why
        tap_skip("attention plans", cudnnGetVersion() ? "cuDNN before 9.8 cannot plan for a GPU from a description"
                                                      : cudnnGetErrorString(CUDNN_STATUS_NOT_INITIALIZED));
        return tap_status();
    }
    // cuDNN needs several seconds for a plan for compute capability 10.x, and about one for others. Unless TEST_LONG is
    // set, this test therefore plans only a few shapes per GPU.
    const bool all = getenv("TEST_LONG") && getenv("TEST_LONG")[0];
    for (const Card &card : CARDS) {
        char json[1024];
        Error err = {};
        describe(card, json, sizeof json);
        AttentionState *state = attention_open_described(json, card.capability, &err);
        bool good = state != NULL;
        size_t most = 0;
        for (int width : WIDTHS)
            for (int bidirectional = 0; state && bidirectional < 2; bidirectional++) {
                const bool few = card.capability / 10 == 10 ? width == 64 : width == 72 || width == 128;
                if (all || (few && bidirectional == (width == 72)))
                    good &= plan_shape(state, card, {16, 1024, 12, 12, width, bidirectional != 0}, &most);
            }
        tap_check(good, card.name, "compute capability %d.%d, at most %.1f MB%s%s", card.capability / 10,
                  card.capability % 10, (double)most / 1e6, state ? "" : "; ", err.text);
        attention_close(state);
    }
    return tap_status();
}
