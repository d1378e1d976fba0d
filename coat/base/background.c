#include "background.h"

#include <signal.h>

#include "error.h"

// stack size of a background thread in bytes; less than the default of 8 MiB, because ulimit -v counts stacks
#define STACK_BYTES ((size_t)1 << 20)

static void *work_in_background(void *argument) {
    const BackgroundTask *task = (const BackgroundTask *)argument;
    error_mark_background_thread();
    task->work(task->argument);
    return NULL;
}

bool background_try(BackgroundTask *task, void *(*work)(void *argument), void *argument) {
    sigset_t all, before;
    pthread_attr_t small;
    task->work = work;
    task->argument = argument;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    task->running = pthread_create(&task->thread, &small, work_in_background, task) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&small);
    return task->running;
}

void background_begin(BackgroundTask *task, void *(*work)(void *argument), void *argument) {
    if (!background_try(task, work, argument)) work(argument);
}

void background_end(BackgroundTask *task) {
    if (task->running) pthread_join(task->thread, NULL);
    task->running = false;
}
