#include "aside.h"

#include <signal.h>

#include "error.h"

#define STACK_BYTES ((size_t)1 << 20) // a default one of 8 MiB, kept for the next thread, counts where ulimit -v is set

static void *work_aside(void *argument) {
    const Aside *aside = (const Aside *)argument;
    error_beside();
    aside->work(aside->argument);
    return NULL;
}

bool aside_try(Aside *aside, void *(*work)(void *argument), void *argument) {
    sigset_t all, before;
    pthread_attr_t small;
    aside->work = work;
    aside->argument = argument;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    aside->running = pthread_create(&aside->thread, &small, work_aside, aside) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&small);
    return aside->running;
}

void aside_begin(Aside *aside, void *(*work)(void *argument), void *argument) {
    if (!aside_try(aside, work, argument)) work(argument);
}

void aside_end(Aside *aside) {
    if (aside->running) pthread_join(aside->thread, NULL);
    aside->running = false;
}
