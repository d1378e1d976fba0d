#include "aside.h"

#include <signal.h>
#include <stddef.h>

static __thread bool current;

static void *work_aside(void *argument) {
    const Aside *aside = (const Aside *)argument;
    current = true;
    aside->work(aside->argument);
    return NULL;
}

void aside_begin(Aside *aside, void *(*work)(void *argument), void *argument) {
    sigset_t all, before;
    aside->work = work;
    aside->argument = argument;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    aside->running = pthread_create(&aside->thread, NULL, work_aside, aside) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!aside->running) work(argument);
}

void aside_end(Aside *aside) {
    if (aside->running) pthread_join(aside->thread, NULL);
    aside->running = false;
}

bool aside_is_current(void) {
    return current;
}
