#include "error.h"

#include <unistd.h>

#include "utf8.h"

int error_rank = -1;
void (*error_exit_hook)(int code);

static __thread bool in_background;
static char advice[2][1280]; // two buffers: a signal handler can read one buffer while error_saved() fills the other
static const char *volatile latest = "start again with --resume";

size_t text_printable(char *text, size_t length, const char *kept) {
    size_t used = 0, bytes;
    for (size_t at = 0; at < length; at += bytes) {
        const uint32_t code = utf8_read(text + at, length - at, &bytes) & ~NO_CHARACTER;
        const bool control = (code < 32 && !(code && strchr(kept, (int)code))) || (code >= 127 && code < 160);
        if (!control) memmove(text + used, text + at, bytes);
        if (control) text[used] = '?';
        used += control ? 1 : bytes;
    }
    if (used < length) text[used] = 0;
    return used;
}

void error_saved(const char *out, int64_t step) {
    char *text = advice[latest == advice[0]];
    if (!out[0])
        snprintf(text, sizeof advice[0], "nothing was saved, because --out is not set: start again");
    else if (step <= 0)
        snprintf(text, sizeof advice[0], "no checkpoint was saved: start again from step 0 with --out %s --resume",
                 out);
    else
        snprintf(text, sizeof advice[0], "nothing was saved after step %lld: continue with --out %s --resume",
                 (long long)step, out);
    text_printable(text, strlen(text), "");
    latest = text;
}

const char *error_advice(void) {
    return latest;
}

void error_mark_background_thread(void) {
    in_background = true;
}

void error_exit(ExitCode code) {
    if (!in_background) exit((int)code);
    if (error_exit_hook) error_exit_hook((int)code);
    if (ftrylockfile(stdout) == 0) fflush_unlocked(stdout);
    _exit((int)code);
}
