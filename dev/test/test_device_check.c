// Tests of the checks before a GPU is used: every error with its exit code, and the table of peak rates.
#include "coat/cuda/device_check.h"
#include "dev/test/unit.h"

static Error err; // of the last failed call

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
    assert_false(device_check(q, &err));
    assert_int_equal(err.code, EXIT_DEVICE);
    if (!strstr(err.text, what)) fail_msg("'%s' does not say '%s'", err.text, what);
    if (!strstr(err.text, fix)) fail_msg("'%s' does not offer '%s'", err.text, fix);
    assert_null(strchr(err.text, '\n'));
}

UNIT_TEST(test_good) {
    DeviceQuery q = good_query();
    assert_true(device_check(&q, &err));
    q.major = 8, q.minor = 9;
    assert_true(device_check(&q, &err));
    q.minor = 0, q.needs_fp8 = false;
    assert_true(device_check(&q, &err));
    q.driver_version = 13020; // newer than the build
    assert_true(device_check(&q, &err));
}

UNIT_TEST(test_no_driver) {
    DeviceQuery q = good_query();
    q.driver_version = 0;
    q.driver_too_old = true; // as the CUDA runtime reports it
    q.count = 0;
    assert_refused(&q, "no NVIDIA driver", "--device cpu");
}

UNIT_TEST(test_old_driver) {
    DeviceQuery q = good_query();
    q.driver_version = 12040;
    q.driver_too_old = true;
    q.count = 0;
    assert_refused(&q, "supports CUDA 12.4", "update the driver");
    assert_refused(&q, "CUDA 13.0", "--device cpu");
}

UNIT_TEST(test_no_gpu) {
    DeviceQuery q = good_query();
    q.count = 0;
    assert_refused(&q, "no GPU", "CUDA_VISIBLE_DEVICES");
}

UNIT_TEST(test_failure) {
    DeviceQuery q = good_query();
    snprintf(q.failure, sizeof q.failure, "system not yet initialized");
    assert_refused(&q, "system not yet initialized", "nvidia-smi");
}

UNIT_TEST(test_more_processes_than_gpus) {
    DeviceQuery q = good_query();
    q.index = 2;
    assert_refused(&q, "process 2", "fewer processes");
    q.index = -1;
    assert_refused(&q, "process -1", "fewer processes");
}

UNIT_TEST(test_old_gpu) {
    DeviceQuery q = good_query();
    snprintf(q.name, sizeof q.name, "Tesla V100-SXM2-32GB");
    q.major = 7;
    assert_refused(&q, "Tesla V100-SXM2-32GB has compute capability 7.0", "--device cpu");
}

UNIT_TEST(test_no_fp8) {
    DeviceQuery q = good_query();
    q.major = 8;
    assert_refused(&q, "compute capability 8.0", "--linear bf16");
    q.minor = 6;
    assert_refused(&q, "compute capability 8.6", "--recipe bf16");
}

UNIT_TEST(test_has_fp8) {
    assert_true(device_has_fp8(8, 9) && device_has_fp8(9, 0) && device_has_fp8(12, 0));
    assert_false(device_has_fp8(8, 6) || device_has_fp8(8, 0) || device_has_fp8(7, 5));
}

UNIT_TEST(test_other_build) {
    DeviceQuery q = good_query();
    q.major = 10;
    q.kernels_match = false;
    assert_refused(&q, "not built for NVIDIA H200 (compute capability 10.0)", "build it again");
}

UNIT_TEST(test_peaks) {
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

RUN_TESTS(NULL, NULL, NULL)
