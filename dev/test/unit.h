// Defines unit tests: UNIT_TEST(name) { ... } defines one test, and RUN_TESTS() at the end of the file defines main().
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "dev/test/texts.h"

typedef struct {
    struct CMUnitTest list[64]; // cmocka ignores entries without a name
    size_t count;
} UnitTests;

static inline UnitTests *unit_tests(void) {
    static UnitTests tests;
    return &tests;
}

static inline void unit_test_add(const char *name, CMUnitTestFunction function) {
    UnitTests *tests = unit_tests();
    if (tests->count == sizeof tests->list / sizeof *tests->list) abort();
    tests->list[tests->count].name = name;
    tests->list[tests->count++].test_func = function;
}

// Defines a test and registers it before main(), so that tests run in the order of the file.
#define UNIT_TEST(function)                                                                                            \
    static void function(void **unit_state);                                                                           \
    __attribute__((constructor)) static void add_##function(void) {                                                    \
        unit_test_add(#function, function);                                                                            \
    }                                                                                                                  \
    static void function(void **unit_state __attribute__((unused)))

// The name of a test, for cmocka_set_test_filter(). Does not compile if there is no such test, because a filter that
// matches no test reports success.
#define UNIT_TEST_NAME(function) ((void)(function), #function)

// Runs all tests of the file. The three setup and teardown functions may be NULL. Returns main()'s exit status.
static inline int unit_main(CMFixtureFunction before_all, CMFixtureFunction after_all, CMFixtureFunction before_each) {
    UnitTests *tests = unit_tests();
    for (size_t i = 0; i < tests->count; i++) tests->list[i].setup_func = before_each;
    return cmocka_run_group_tests_name(__FILE__, tests->list, before_all, after_all);
}

#define RUN_TESTS(before_all, after_all, before_each)                                                                  \
    int main(void) {                                                                                                   \
        return unit_main(before_all, after_all, before_each);                                                          \
    }
