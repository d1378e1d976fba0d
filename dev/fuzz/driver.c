// A small fuzzer for machines without clang's libFuzzer: runs a target on every file of its corpus, then on mutations
// of them until the time is over, and keeps in memory those that reach new code. It takes the flags of libFuzzer that
// fuzz.mk and dev/test/test_fuzz.sh use. The sequence of inputs depends on the seed and on the corpus alone; how far it
// gets, on the machine.
#include <dirent.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/lsan_interface.h>
#include <signal.h>

#include "coat/clock.h"
#include "dev/fuzz/fuzz.h"

#define LONGEST_INPUT 8192
#define MOST_INPUTS 16384
#define MOST_WORDS 256
#define MAP_SIZE (1u << 18)
#define SECONDS_PER_INPUT 20

typedef struct {
    uint8_t *bytes;
    size_t size;
} Input;

static Input inputs[MOST_INPUTS], words[MOST_WORDS];
static int input_count, word_count;
static uint64_t random_state = 1;

// --- coverage ----------------------------------------------------------------------------------------------------

// The compiler calls this in every block of the code under test (-fsanitize-coverage=trace-pc). A pair of blocks
// that follow one another is an edge.
static uint8_t seen[MAP_SIZE];
static uint32_t previous;
static int64_t edges;
extern const char __executable_start; // by the linker: addresses count from here, wherever the program was loaded
void __sanitizer_cov_trace_pc(void);

void __sanitizer_cov_trace_pc(void) {
    uint32_t at = (uint32_t)((const char *)__builtin_return_address(0) - &__executable_start) * 2654435761u;
    uint32_t slot = (at ^ previous) % MAP_SIZE;
    edges += !seen[slot];
    seen[slot] = 1;
    previous = at >> 1;
}

// --- what is kept of a failure -------------------------------------------------------------------------------------

static const uint8_t *current;
static size_t current_size;
static const char *artifact_prefix = "";

const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

const char *__asan_default_options(void) {
    return "handle_abort=1:max_allocation_size_mb=256:detect_leaks=1";
}

const char *__ubsan_default_options(void) {
    return "abort_on_error=1:print_stacktrace=1";
}

static void save_current(void) {
    char path[FUZZ_PATH];
    if (!current) return;
    snprintf(path, sizeof path, "%scrash", artifact_prefix);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, current, current_size) != (ssize_t)current_size) return;
    fprintf(stderr, "the input is in %s\n", path);
    close(fd);
}

static void too_slow(int signal_number) {
    (void)signal_number;
    fprintf(stderr, "an input takes more than %d s\n", SECONDS_PER_INPUT);
    save_current();
    _exit(70);
}

// Runs the target on an exact copy, so that a read past its end is noticed; true if it reached new code.
static bool run(const uint8_t *bytes, size_t size) {
    int64_t before = edges;
    uint8_t *copy = (uint8_t *)xmalloc(size);
    memcpy(copy, bytes, size);
    current = copy;
    current_size = size;
    alarm(SECONDS_PER_INPUT);
    LLVMFuzzerTestOneInput(copy, size);
    alarm(0);
    bool is_new = edges > before;
    if (is_new && __lsan_do_recoverable_leak_check()) { // too slow for every input
        save_current();
        _exit(71);
    }
    current = NULL;
    free(copy);
    return is_new;
}

// --- inputs ------------------------------------------------------------------------------------------------------

static void keep(const uint8_t *bytes, size_t size) {
    if (input_count == MOST_INPUTS) return;
    inputs[input_count].bytes = (uint8_t *)memcpy(xmalloc(size), bytes, size);
    inputs[input_count++].size = size;
}

static void read_input(const char *path) {
    static uint8_t bytes[1 << 20];
    FILE *file = fopen(path, "rb");
    if (!file) fatal(EXIT_DATA, "cannot read %s", path);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    run(bytes, size);
    keep(bytes, size);
}

static int visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

// A file, or all files of a folder in the order of their names.
static void read_corpus(const char *path) {
    struct dirent **entries;
    int count = scandir(path, &entries, visible, alphasort);
    if (count < 0) {
        read_input(path);
        return;
    }
    for (int i = 0; i < count; i++) {
        char file[FUZZ_PATH];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        read_input(file);
        free(entries[i]);
    }
    free(entries);
}

// The words of a dictionary, one "..." per line as libFuzzer has them; \xHH, \" and \\ are understood.
static void read_words(const char *path) {
    char line[256];
    FILE *file = fopen(path, "r");
    if (!file) fatal(EXIT_DATA, "cannot read %s", path);
    while (fgets(line, sizeof line, file) && word_count < MOST_WORDS) {
        uint8_t word[256];
        size_t size = 0;
        if (line[0] != '"') continue;
        for (const char *c = line + 1; *c && *c != '"' && *c != '\n'; c++) {
            unsigned code = (unsigned char)*c;
            if (c[0] == '\\' && c[1] == 'x' && sscanf(c + 2, "%2x", &code) == 1)
                c += 3;
            else if (c[0] == '\\' && c[1])
                code = (unsigned char)*++c;
            word[size++] = (uint8_t)code;
        }
        words[word_count].bytes = (uint8_t *)memcpy(xmalloc(size), word, size);
        words[word_count++].size = size;
    }
    fclose(file);
}

// --- mutations -----------------------------------------------------------------------------------------------------

static size_t below(size_t n) { // 0 ... n - 1; 0 for n 0
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return n ? (size_t)(random_state >> 11) % n : 0;
}

// Replaces `old` bytes at `at` by `count` others, as far as there is room.
static size_t replace(uint8_t *bytes, size_t size, size_t at, size_t old, const uint8_t *other, size_t count) {
    if (old > size - at) old = size - at;
    if (size - old + count > LONGEST_INPUT) return size;
    memmove(bytes + at + count, bytes + at + old, size - at - old);
    memcpy(bytes + at, other, count);
    return size - old + count;
}

static size_t mutate(uint8_t *bytes, size_t size) {
    static const uint64_t numbers[] = {0,
                                       1,
                                       0x7f,
                                       0xff,
                                       0x7fff,
                                       0xffff,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       INT64_MAX,
                                       (uint64_t)INT64_MIN,
                                       UINT64_MAX,
                                       1 << 20,
                                       1024};
    uint8_t piece[LONGEST_INPUT];
    size_t at = below(size + 1), width = (size_t)1 << below(4), count;
    const Input *other = &inputs[below((size_t)input_count)];
    uint64_t number = numbers[below(sizeof numbers / sizeof *numbers)];
    switch (below(9)) {
    case 0: // a bit
        if (at < size) bytes[at] = (uint8_t)(bytes[at] ^ 1u << below(8));
        return size;
    case 1: // a byte
        if (at < size) bytes[at] = (uint8_t)below(256);
        return size;
    case 2: // a number that is a limit of something
        return replace(bytes, size, at, width, (const uint8_t *)&number, width);
    case 3: // a number, a little more or less
        if (size - at < width) return size;
        memcpy(&number, bytes + at, width);
        number += below(9) - 4;
        memcpy(bytes + at, &number, width);
        return size;
    case 4: // without some bytes
        return replace(bytes, size, at, 1 + below(below(2) ? 8 : size), piece, 0);
    case 5: // some bytes twice
        count = size - at < 64 ? size - at : 1 + below(64);
        memcpy(piece, bytes + at, count);
        return replace(bytes, size, at, 0, piece, count);
    case 6: // a word of the dictionary, inserted or in the place of something
        if (!word_count) return size;
        count = below((size_t)word_count);
        return replace(bytes, size, at, below(3) * 4, words[count].bytes, words[count].size);
    case 7: // some bytes of another input
        width = below(other->size + 1);
        count = below(other->size - width + 1);
        if (count > LONGEST_INPUT) return size;
        return replace(bytes, size, at, below(2) ? count : 0, other->bytes + width, count);
    default: // digits of a decimal number
        count = (size_t)snprintf((char *)piece, 32, "%llu", (unsigned long long)number);
        width = 0;
        while (at + width < size && bytes[at + width] >= '0' && bytes[at + width] <= '9') width++;
        return width ? replace(bytes, size, at, width, piece, count) : size;
    }
}

static int64_t fuzz(double until) {
    static uint8_t bytes[LONGEST_INPUT];
    int64_t executions = 0;
    while (now_seconds() < until) {
        // the newest half as often as all together: they are the least explored
        size_t half = (size_t)input_count / 2, from = below(2) ? half : 0;
        const Input *input = &inputs[from + below((size_t)input_count - from)];
        size_t size = input->size < LONGEST_INPUT ? input->size : LONGEST_INPUT;
        memcpy(bytes, input->bytes, size);
        for (size_t n = 1 + below(5); n > 0; n--) size = mutate(bytes, size);
        if (run(bytes, size)) keep(bytes, size);
        executions++;
    }
    return executions;
}

int main(int argc, char **argv) {
    double start = now_seconds(), limit = 0;
    __sanitizer_set_death_callback(save_current);
    signal(SIGALRM, too_slow);
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        if (strncmp(argv[i], "-max_total_time=", 16) == 0) limit = atof(equals + 1);
        if (strncmp(argv[i], "-seed=", 6) == 0) random_state = strtoull(equals + 1, NULL, 10) | 1;
        if (strncmp(argv[i], "-artifact_prefix=", 17) == 0) artifact_prefix = equals + 1;
        if (strncmp(argv[i], "-dict=", 6) == 0) read_words(equals + 1);
    }
    for (int i = 1; i < argc; i++)
        if (argv[i][0] != '-') read_corpus(argv[i]);
    if (input_count == 0) keep((const uint8_t *)"", 0);
    int64_t cases = input_count, executions = limit > 0 ? fuzz(start + limit) : 0;
    fprintf(stderr, "#%lld DONE cov: %lld corp: %lld, %lld of them new, in %.0f s\n", (long long)(cases + executions),
            (long long)edges, (long long)input_count, (long long)(input_count - cases), now_seconds() - start);
    for (int i = 0; i < input_count; i++) free(inputs[i].bytes);
    for (int i = 0; i < word_count; i++) free(words[i].bytes);
    return 0;
}
