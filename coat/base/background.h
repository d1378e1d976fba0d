// Runs a function in a background thread.
#pragma once
#include <pthread.h>
#include <stdbool.h>

typedef struct {
    void *(*work)(void *argument);
    void *argument;
    pthread_t thread;
    bool running; // true: a thread was started, and background_end() has not yet joined the thread
} BackgroundTask;

// Starts work(argument) in a thread that blocks all signals. If no thread can be created, calls work(argument) before
// returning. The return value of work is ignored. *task must exist until background_end() returns.
void background_begin(BackgroundTask *task, void *(*work)(void *argument), void *argument);

// Starts work(argument) like background_begin(), but returns false and does nothing if no thread can be created.
bool background_try(BackgroundTask *task, void *(*work)(void *argument), void *argument);

// Waits until the function of the task has returned. Returns at once if no thread is running.
void background_end(BackgroundTask *task);
