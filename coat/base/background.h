// Work beside what the calling thread does, where there is a thread to be had.
#pragma once
#include <pthread.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    void *(*work)(void *argument);
    void *argument;
    pthread_t thread;
    bool running;
} BackgroundTask;

// Begins work(argument) in a thread of its own, which takes no signals; without one it is done before this returns. The
// result of work is not looked at.
void background_begin(BackgroundTask *aside, void *(*work)(void *argument), void *argument);

// The same, but that without a thread nothing is done, and it returns false.
bool background_try(BackgroundTask *aside, void *(*work)(void *argument), void *argument);

// Waits for it, where it is in a thread.
void background_end(BackgroundTask *aside);

#ifdef __cplusplus
}
#endif
