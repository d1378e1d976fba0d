// Provides main() for fuzz targets that gcc builds, because gcc has no libFuzzer. Runs the target once on each file of
// the command line. Ignores flags.
#include <sanitizer/lsan_interface.h>

#include "dev/fuzz/fuzz.h"

enum { MAX_INPUT = 1 << 20, MAX_SECONDS = 20 };

int main(int argc, char **argv) {
    static uint8_t bytes[MAX_INPUT];
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') continue;
        fprintf(stderr, "Running: %s\n", argv[i]);
        FILE *file = fopen(argv[i], "rb");
        fuzz_check(file != NULL);
        const size_t size = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        // The copy has exactly the file's size, so that the address sanitizer detects reads after its end.
        uint8_t *input = (uint8_t *)memcpy(xmalloc(size), bytes, size);
        alarm(MAX_SECONDS);
        LLVMFuzzerTestOneInput(input, size);
        free(input);
        if (__lsan_do_recoverable_leak_check()) return 1;
        fprintf(stderr, "Executed %s\n", argv[i]);
    }
    return 0;
}
