// Tests of the checks before a GPU is used: every refusal, with its line and exit code, and the table of peaks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "coat/cuda/device_check.h"

static DeviceQuery good_query(void) {
    DeviceQuery q;
    memset(&q, 0, sizeof q);
    q.driver_version = 13000;
    q.runtime_version = 13000;
    q.count = 2;
    q.index = 1;
    snprintf(q.name, sizeof q.name, "NVIDIA H200");
    q.major = 9;
    q.kernels_match = true;
    q.needs_fp8 = true;
    return q;
}

// The query is refused with EXIT_DEVICE in one line that contains both texts.
static void assert_refused(const DeviceQuery *q, const char *what, const char *fix) {
    Error err;
    memset(&err, 0, sizeof err);
    assert_false(device_check(q, &err));
    assert_int_equal(err.code, EXIT_DEVICE);
    if (!strstr(err.text, what)) fail_msg("'%s' does not say '%s'", err.text, what);
    if (!strstr(err.text, fix)) fail_msg("'%s' does not offer '%s'", err.text, fix);
    assert_null(strchr(err.text, '\n'));
}

static void test_good(void **state) {
    (void)state;
    DeviceQuery q = good_query();
    Error err;
    assert_true(device_check(&q, &err));
    q.major = 8, q.minor = 9;
    assert_true(device_check(&q, &err));
    q.minor = 0, q.needs_fp8 = false;
    assert_true(device_check(&q, &err));
    q.driver_version = 13020; // newer than the program
    assert_true(device_check(&q, &err));
}

static void test_no_driver(void **state) {
    (void)state;
    DeviceQuery q = good_query();
    q.driver_version = 0;
    q.driver_too_old = true; // what the runtime says when there is none
    q.count = 0;
    assert_refused(&q, "no NVIDIA driver", "--device cpu");
}

static void test_old_driver(void **state) {
    (void)state;
    DeviceQuery q = good_query();
    q.driver_version = 12040;
    q.driver_too_old = true;
    q.count = 0;
    assert_refused(&q, "supports CUDA 12.4", "update the driver");
    assert_refused(&q, "CUDA 13.0", "--device cpu");
}

static void test_no_gpu(void **state) {
    (void)state;
    DeviceQuery q = good_query();
    q.count = 0;
    assert_refused(&q, "no GPU", "CUDA_VISIBLE_DEVICES");
}

static void test_failure(void **state) {
    (void)state;
    DeviceQuery q = good_query();
    snprintf(q.failure, sizeof q.failure, "system not yet initialized");
    assert_refused(&q, "system not yet initialized", "nvidia-smi");
}

static void test_more_processes_than_gpus(void **state) {
    (void)state;
    DeviceQuery q = good_query();
    q.index = 2;
    assert_refused(&q, "process 2", "fewer processes");
    q.index = -1;
    assert_refused(&q, "process -1", "fewer processes");
}

static void test_old_gpu(void **state) {
    (void)state;
    DeviceQuery q = good_query();
    snprintf(q.name, sizeof q.name, "Tesla V100-SXM2-32GB");
    q.major = 7;
    assert_refused(&q, "Tesla V100-SXM2-32GB has compute capability 7.0", "--device cpu");
}

static void test_no_fp8(void **state) {
    (void)state;
    DeviceQuery q = good_query();
    q.major = 8;
    assert_refused(&q, "compute capability 8.0", "--linear bf16");
    q.minor = 6;
    assert_refused(&q, "compute capability 8.6", "--recipe bf16");
}

static void test_has_fp8(void **state) {
    (void)state;
    assert_true(device_has_fp8(8, 9) && device_has_fp8(9, 0) && device_has_fp8(12, 0));
    assert_false(device_has_fp8(8, 6) || device_has_fp8(8, 0) || device_has_fp8(7, 5));
}

static void test_other_build(void **state) {
    (void)state;
    DeviceQuery q = good_query();
    q.major = 10;
    q.kernels_match = false;
    assert_refused(&q, "not built for NVIDIA H200 (compute capability 10.0)", "build it again");
}

static void test_peaks(void **state) {
    (void)state;
    assert_true(device_peak_flops("NVIDIA H200") == 989.4e12);
    assert_true(device_peak_flops("NVIDIA H100 80GB HBM3") == 989.4e12);
    assert_true(device_peak_flops("NVIDIA H100 PCIe") == 756e12);
    assert_true(device_peak_flops("NVIDIA A100-SXM4-80GB") == 312e12);
    assert_true(device_peak_flops("NVIDIA A10") == 125e12);
    assert_true(device_peak_flops("NVIDIA A10G") == 70e12);
    assert_true(device_peak_flops("NVIDIA L40S") == 362e12);
    assert_true(device_peak_flops("NVIDIA L4") == 121e12);
    assert_true(device_peak_flops("NVIDIA GH200 480GB") == 989.4e12);
    assert_true(device_peak_flops("NVIDIA GeForce RTX 3090 Ti") == 80e12);
    assert_true(device_peak_flops("NVIDIA GeForce RTX 3090") == 71e12);
    assert_true(device_peak_flops("Some Other GPU") == 0);
    assert_true(device_peak_flops("") == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),        cmocka_unit_test(test_no_driver),
        cmocka_unit_test(test_old_driver),  cmocka_unit_test(test_no_gpu),
        cmocka_unit_test(test_failure),     cmocka_unit_test(test_more_processes_than_gpus),
        cmocka_unit_test(test_old_gpu),     cmocka_unit_test(test_no_fp8),
        cmocka_unit_test(test_other_build), cmocka_unit_test(test_peaks),
        cmocka_unit_test(test_has_fp8),
    };
    return cmocka_run_group_tests_name("device_check", tests, NULL, NULL);
}
