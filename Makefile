# make · make run · make test · make bench · make install · make help
#
# Without nvcc, this builds train_gpt2_fp8_cpu, which contains no CUDA. With nvcc, it also builds train_gpt2_fp8, which
# has both backends. make first reports the libraries that it found and, for each missing one, the features that the
# build lacks. Object files and small programs go to build/.
#
#   GPU=native                       code for this machine's GPUs (default if it has GPUs)
#   GPU=90a                          code for GPUs of another compute capability
#   GPU=all                          code for compute capabilities 8.0, 8.9, 9.0a, 10.0 and 12.0, and PTX of 9.0, which
#                                    the driver compiles for later GPUs
#   GPU=ptx80                        only PTX of 8.0, for tests: newer GPUs then run the code paths for 8.0
#   ARCH=native                      code for this processor only (default: code for all processors, whose inner loops
#                                    choose an instruction set when the program starts)
#   WERROR=1                         warnings are errors
#   SANITIZE=1                       address and undefined-behaviour sanitizers, built in build/asan
#   RACECHECK=1                      kernels that compute-sanitizer's racecheck can follow, built in build/racecheck
#   OPENBLAS=0 MPI=0 NCCL=0 CUDA=0   do not use an installed library
#   CUDA_HOME CUDNN_HOME NCCL_HOME   folders of libraries that the compiler does not find by itself
#   CUDNN_FRONTEND                   include folder of the cuDNN frontend
#   PREFIX=/usr/local DESTDIR=       target of make install; DESTDIR is put in front of PREFIX, for packages
#   V=1                              show the commands

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
GOALS := $(or $(MAKECMDGOALS),all)
ifneq ($(filter fuzz%,$(GOALS)),)
SANITIZE := 1 # gcc's fuzz targets use the objects of the sanitizers' build
endif
BUILD := build$(if $(SANITIZE),/asan)$(if $(RACECHECK),/racecheck)
BIN := $(if $(SANITIZE)$(RACECHECK),$(BUILD)/,)
Q := $(if $(V),,@)

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
# Keeps object files, which make would delete as intermediate files. With .SECONDARY, which also keeps them, make would
# not rebuild an object after one of its headers was removed.
.PRECIOUS: $(addprefix $(BUILD)/,cpu/%.o double/%.o gpu/%.o gpu/dev/%.o)
.PHONY: all tests unit-tests tools bench benches run test test-long format check-format clean help install uninstall

# --- goals that run scripts -------------------------------------------------------------------------------------------

run:
	@scripts/run.sh

test:
	@scripts/test.sh

test-long:
	@scripts/test.sh --long

# Installs the programs that exist and builds nothing, because a build by root might find fewer libraries than the
# user's build did.
PREFIX ?= /usr/local
install uninstall:
	@BUILD="$(BUILD)" BIN="$(or $(BIN:/=),.)" PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install.sh $@

SOURCES = $(wildcard *.cu $(foreach d,coat coat/* coat/cuda/* dev/* data,$(addprefix $(d)/*.,c h cu cpp)))
CLANG_FORMAT ?= $(firstword $(wildcard third_party/python/clang_format/data/bin/clang-format) clang-format)

format:
	$(Q)$(CLANG_FORMAT) -i $(SOURCES)

# clang-format ignores the width of comments. Comments with three spaces between words are tables and may be wider.
check-format:
	$(Q)$(CLANG_FORMAT) --dry-run -Werror $(SOURCES)
	$(Q)awk '/^ *\/\// && length > 120 && !/[^ ]   +[^ ]/ { bad = 1; \
	    print FILENAME ":" FNR ": error: a comment of " length " columns; wrap it at 120" } END { exit bad }' $(SOURCES)
	@echo "format: $(words $(SOURCES)) files match .clang-format"

clean:
	$(Q)rm -rf build train_gpt2_fp8 train_gpt2_fp8_cpu test_gpt2 test_gpt2_cpu

help:
	@echo "make               build train_gpt2_fp8_cpu and, with nvcc, train_gpt2_fp8; report what was found"
	@echo "make run           train a small model on text of this machine, and print a sample"
	@echo "make test          run every test that this machine supports; the last line counts them"
	@echo "make test-long     also run tests that take long or need PyTorch (dev/test/long_*.sh, and long parts of others)"
	@echo "make bench         run the microbenchmarks (dev/bench), without a GPU only those of the CPU"
	@echo "make fuzz          fuzz the parsers, FUZZ_SECONDS=60 each (dev/fuzz/README.md)"
	@echo "make tests tools benches   only build tests, small programs of dev/ and data/, microbenchmarks"
	@echo "make format        format all sources with clang-format"
	@echo "make check-format  list sources that clang-format would change, and comments of more than 120 columns"
	@echo "make install       install built programs to PREFIX=/usr/local (below DESTDIR=): the trainers with their man pages"
	@echo "                   and bash completion, and small programs as coat-prepare, coat-prepare-bytes, coat-plot-loss,"
	@echo "                   coat-quant-error and coat-gradient-stats"
	@echo "make uninstall     remove exactly what make install created"
	@echo "make clean         remove everything that was built"
	@echo "Settings, explained in the Makefile: GPU=native|90a|all ARCH=native WERROR=1 SANITIZE=1 OPENBLAS=0"
	@echo "MPI=0 NCCL=0 CUDA=0 CUDA_HOME= CUDNN_HOME= NCCL_HOME= CUDNN_FRONTEND= V=1"

# --- flags -----------------------------------------------------------------------------------------------------------

ifneq ($(filter-out run test test-long format check-format clean help install uninstall,$(GOALS)),)
include scripts/find.mk
endif

WARNINGS := -Wall -Wextra -Wshadow -Wno-psabi -Wno-format-truncation $(if $(WERROR),-Werror)
ifneq ($(SANITIZE),)
OPTIMISE ?= -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
WARNINGS += -Wno-maybe-uninitialized # gcc reports false positives, because the sanitizers' checks hide assignments
else
OPTIMISE ?= -O3
endif
# Forbids the compiler to contract a * b + c, so that results do not depend on its choice. Code on the host and on the
# device calls fmaf if a fused multiply-add is intended.
FLAGS := $(OPTIMISE) $(ARCH:%=-march=%) -ffp-contract=off -fno-math-errno -fopenmp $(WARNINGS)
HOST_FLAGS := $(FLAGS) $(HOST_INCLUDES) $(HOST_DEFINES)
C_FLAGS := -std=gnu11 -D_GNU_SOURCE -Wstrict-prototypes
LINK_FLAGS := $(filter -fsanitize% -fopenmp,$(FLAGS)) -Wl,--as-needed

ifneq ($(FOUND_NVCC),)
# KNOWN: architectures that this nvcc knows. NATIVE: architectures of this machine's GPUs, for example 90 if the driver
# reports "9.0"; `all` if nvcc does not know one of them, because the driver then compiles the PTX.
KNOWN := $(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code))
NATIVE := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
	awk '$$1 + 0 >= 8 { print $$1 * 10 }' | sort -un)
NATIVE := $(if $(filter-out $(KNOWN),$(NATIVE)),all,$(NATIVE))
# Replaces 90 by 90a, because on GPUs of compute capability 9.0 the program launches kernels that need the features of
# 9.0a.
GPU_ARCH := $(patsubst 90,90a,$(or $(patsubst native,$(NATIVE),$(GPU)),$(NATIVE),all))
ALL_ARCH := $(patsubst 90,90a,$(filter 80 89 90 100 120,$(KNOWN)))
GENCODE := $(foreach a,$(patsubst all,$(ALL_ARCH) ptx90,$(GPU_ARCH)),-gencode \
	arch=compute_$(a:ptx%=%),code=$(if $(filter ptx%,$(a)),compute_$(a:ptx%=%),sm_$(a)))
comma := ,
space := $(subst ,, )
as_host = -Xcompiler $(subst $(space),$(comma),$(strip $(1)))
GPU_FLAGS := $(HOST_FLAGS) $(CUDA_INCLUDES) $(CUDA_DEFINES)
NVCC_FLAGS := -std=c++20 -O3 -lineinfo -fmad=false -Xfatbin -compress-all -ccbin $(CXX) $(GENCODE) \
	$(if $(WERROR),-Werror all-warnings) \
	$(call as_host,$(ARCH:%=-march=%) -ffp-contract=off -fopenmp -Wall -Wextra -Wshadow $(if $(WERROR),-Werror)) \
	$(HOST_INCLUDES) $(CUDA_INCLUDES) $(HOST_DEFINES) $(CUDA_DEFINES) $(if $(RACECHECK),-DRACECHECK)
NVCC_LINK := -ccbin $(CXX) $(call as_host,-fopenmp) -Xlinker --as-needed$(comma)-rpath=$(subst $(space),:,$(CUDA_LIB))
endif

# --- what is built ---------------------------------------------------------------------------------------------------
# A file's folder decides how it is built:
#   coat/**/*.c                 linked into every program
#   coat/cuda/**/*.cu, *.cpp    linked into every GPU program
#   dev/test/test_*.c, *.cu     unit tests; tests on the GPU
#   dev/test/check_NAME.cu      linked into test_gpt2 and into build/bench_NAME_gpu
#   dev/bench/*                 benchmarks
#   dev/tools/NAME.c            program build/NAME
#   dev/tools/NAME.cu           two programs: build/NAME, compiled as C, and build/NAME_gpu
#   data/NAME.c                 program build/prepare_NAME

MODULES := $(wildcard coat/*.c coat/*/*.c coat/*/*/*.c)
# Files that take longest to compile come first, so that no core is idle while the last of them is compiled.
SLOW_KERNELS := $(wildcard $(addprefix coat/cuda/*/,attention.cpp attention_backward.cu fp8_activation.cu fp8_norm.cu))
KERNELS := $(SLOW_KERNELS) $(filter-out $(SLOW_KERNELS),$(wildcard coat/cuda/*.cu coat/cuda/*/*.cu coat/cuda/*/*.cpp))
# $(call names,PATTERN): for each existing file that matches PATTERN, the part of its path that % stands for
names = $(patsubst $(1),%,$(wildcard $(subst %,*,$(1))))

PROGRAMS := $(BIN)train_gpt2_fp8_cpu
TOOL_PAIRS := $(call names,dev/tools/%.cu)
TOOLS := $(addprefix $(BUILD)/,$(call names,dev/tools/%.c) $(TOOL_PAIRS) $(addprefix prepare_,$(call names,data/%.c)))
UNIT_TESTS := $(if $(FOUND_CMOCKA),$(addprefix $(BUILD)/,$(call names,dev/test/%.c)))
MODEL_TESTS := $(BIN)test_gpt2_cpu $(BUILD)/gradient_check
BENCHES := $(addprefix $(BUILD)/,$(call names,dev/bench/%.c))

# Not empty if everything that GPU programs need exists. scripts/find.mk reports what is missing.
HAVE_GPU_BUILD := $(and $(FOUND_NVCC),$(FOUND_CXX),$(FOUND_CUDNN),$(FOUND_FRONTEND),$(if $(SANITIZE),,yes))
ifneq ($(HAVE_GPU_BUILD),)
ifneq ($(filter all,$(GOALS)),)
$(info for GPUs: $(if $(filter all,$(GPU_ARCH)),8.0 and later,only $(addprefix sm_,$(GPU_ARCH)); GPU=all also builds for the others))
endif
PROGRAMS += $(BIN)train_gpt2_fp8
MODEL_TESTS += $(BIN)test_gpt2
TOOLS += $(TOOL_PAIRS:%=$(BUILD)/%_gpu)
UNIT_TESTS += $(addprefix $(BUILD)/,$(addsuffix _gpu,$(filter test_%,$(call names,dev/test/%.cu))))
BENCHES += $(addprefix $(BUILD)/,$(addsuffix _gpu,$(call names,dev/bench/%.cu)))
BENCHES += $(if $(wildcard $(CUDA_ROOT)/include/cupti.h),$(BUILD)/libtrace.so)
else ifneq ($(filter all,$(GOALS)),)
$(info train_gpt2_fp8 is not built: see what is missing above)
endif

all: $(PROGRAMS) tools
tools: $(TOOLS)
unit-tests: $(UNIT_TESTS)
tests: all $(UNIT_TESTS) $(MODEL_TESTS) $(filter %/bench_traffic,$(BENCHES))

# $(call remember,NAME,TEXT): writes TEXT to build/flags/NAME if the file has another text. Objects depend on files with
# their flags, archives on files with their module lists, so a change rebuilds them. make -n does not change the files.
remember = $(if $(and $(findstring n,$(firstword -$(MAKEFLAGS))),$(wildcard $(BUILD)/flags/$(1))),,$(shell \
	mkdir -p $(BUILD)/flags && echo "$(2)" | cmp -s - $(BUILD)/flags/$(1) || echo "$(2)" > $(BUILD)/flags/$(1)))
# Skipped for goals that build nothing, because they do not include scripts/find.mk and therefore have no flags.
ifneq ($(HOST_INCLUDES),)
$(call remember,modules,$(MODULES))
$(call remember,kernels,$(KERNELS))
$(call remember,host,$(CC) $(FOUND_CC) $(HOST_FLAGS) $(HOST_LIBS))
ifneq ($(FOUND_NVCC),)
$(call remember,gpu,$(NVCC) $(FOUND_NVCC) $(CUDA_ROOT) $(GPU_FLAGS) $(NVCC_FLAGS) $(CUDA_LIBS))
endif
endif

define archive
@rm -f $@ && echo "  AR    $@"
$(Q)ar rcs $@ $(filter %.o,$^)
endef

# GPU_MODULES: modules that test a macro of CUDA_DEFINES. DOUBLE_MODULES: modules that may depend on COAT_DOUBLE, which
# replaces FP32 values by doubles.
GPU_MODULES := $(shell grep -lE 'COAT_(CUDA|NCCL)' $(MODULES) /dev/null)
DOUBLE_MODULES := $(filter-out $(addprefix coat/,$(addsuffix /%,base flags io log text)),$(MODULES))

# $(call compile,VARIANT,FLAGS,FILES): rules for build/VARIANT/x.o from x.c, and for build/VARIANT/lib.a. The archive
# contains FILES, compiled with FLAGS, and build/cpu's objects of all other modules.
define compile
$$(BUILD)/$(1)/%.o: %.c $$(BUILD)/flags/host
	@mkdir -p $$(@D) && echo "  CC    $$@"
	$$(Q)$$(CC) $$(C_FLAGS) $$(HOST_FLAGS) $(2) -MMD -MP -c $$< -o $$@
$$(BUILD)/$(1)/lib.a: $(patsubst %.c,$(BUILD)/$(1)/%.o,$(3)) $(patsubst %.c,$(BUILD)/cpu/%.o,$(filter-out $(3),$(MODULES))) $$(BUILD)/flags/modules
	$$(archive)
endef
# $(call compile_as_c,VARIANT,FLAGS): a rule for build/VARIANT/x.o from x.cu, compiled as C for CPU programs
define compile_as_c
$$(BUILD)/$(1)/%.o: %.cu $$(BUILD)/flags/host
	@mkdir -p $$(@D) && echo "  CC    $$@"
	$$(Q)$$(CC) -x c $$(C_FLAGS) $$(HOST_FLAGS) $(2) -MMD -MP -c $$< -o $$@
endef
# Test code is compiled with -O1 to save compile time, because tests spend their run time in the code that they call.
$(BUILD)/cpu/dev/test/%.o: HOST_FLAGS += $(if $(SANITIZE),,-O1)
$(eval $(call compile,cpu,,$(MODULES)))
$(eval $(call compile_as_c,cpu))
$(eval $(call compile,double,-DCOAT_DOUBLE,$(DOUBLE_MODULES)))
$(eval $(call compile_as_c,double,-DCOAT_DOUBLE))
$(eval $(call compile,gpu,$(CUDA_INCLUDES) $(CUDA_DEFINES),$(GPU_MODULES)))

# If test_x.c and test_x.cu both exist, build/gpu/dev/test/test_x.o must come from test_x.cu. The rule for dev/ achieves
# this, because it is more specific than compile()'s rule for .c files, and make prefers specific rules.
define compile_cuda
$$(BUILD)/gpu/$(1)%.o: $(1)%.cu $$(BUILD)/flags/gpu
	@mkdir -p $$(@D) && echo "  NVCC  $$@"
	$$(Q)$$(NVCC) $$(NVCC_FLAGS) -MMD -MP -MF $$(@:.o=.d) -c $$< -o $$@
endef
$(eval $(call compile_cuda))
$(eval $(call compile_cuda,dev/))

# -O1 halves the time that the cuDNN frontend's templates take to compile. The compiled code only prepares calls of
# cuDNN, so it need not be fast.
$(BUILD)/gpu/%.o: %.cpp $(BUILD)/flags/gpu
	@mkdir -p $(@D) && echo "  CXX   $@"
	$(Q)$(CXX) -std=c++20 $(GPU_FLAGS) -O1 -MMD -MP -c $< -o $@

# The CUDA driver loads this library into a traced program (scripts/profile.sh).
$(BUILD)/libtrace.so: dev/tools/trace.cpp $(BUILD)/flags/gpu
	@echo "  CXX   $@"
	$(Q)$(CXX) -std=c++20 $(GPU_FLAGS) -fPIC -shared $< $(addprefix -L,$(CUDA_LIB)) -lcupti -o $@

$(BUILD)/gpu/kernels.a: $(patsubst %,$(BUILD)/gpu/%.o,$(basename $(KERNELS))) $(BUILD)/flags/kernels
	$(archive)

LINK = $(CC) $(LINK_FLAGS) $(filter %.o %.a,$^) $(HOST_LIBS) -o $@
# --start-group, because kernels.a and lib.a call functions of each other.
LINK_GPU = $(NVCC) $(NVCC_LINK) -Xlinker --start-group $(filter %.o %.a,$^) -Xlinker --end-group $(HOST_LIBS) $(CUDA_LIBS) -o $@

$(BIN)train_gpt2_fp8_cpu $(BIN)test_gpt2_cpu: $(BIN)%_cpu: $(BUILD)/cpu/%.o $(BUILD)/cpu/lib.a
	@echo "  LINK  $@"
	$(Q)$(LINK)

$(BUILD)/gradient_check: $(BUILD)/double/test_gpt2.o $(BUILD)/double/lib.a
	@echo "  LINK  $@"
	$(Q)$(LINK)

$(filter $(BUILD)/%,$(filter-out %_gpu,$(UNIT_TESTS))): $(BUILD)/%: $(BUILD)/cpu/dev/test/%.o $(BUILD)/cpu/lib.a
	@echo "  LINK  $@"
	$(Q)$(LINK) -lcmocka

$(BUILD)/%: $(BUILD)/cpu/dev/tools/%.o $(BUILD)/cpu/lib.a
	@echo "  LINK  $@"
	$(Q)$(LINK)

$(BUILD)/bench_%: $(BUILD)/cpu/dev/bench/bench_%.o $(BUILD)/cpu/lib.a
	@echo "  LINK  $@"
	$(Q)$(LINK)

$(BUILD)/prepare_%: $(BUILD)/cpu/data/%.o $(BUILD)/cpu/lib.a
	@echo "  LINK  $@"
	$(Q)$(LINK)

$(BIN)train_gpt2_fp8 $(BIN)test_gpt2: $(BIN)%: $(BUILD)/gpu/%.o $(BUILD)/gpu/kernels.a $(BUILD)/gpu/lib.a
	@echo "  LINK  $@"
	$(Q)$(LINK_GPU)

# check_NAME.cu compares GPU operations with the CPU reference. test_gpt2 links all check_*.cu, bench_NAME_gpu only
# check_NAME.cu.
CHECKS := $(call names,dev/test/check_%.cu)
$(BIN)test_gpt2: $(CHECKS:%=$(BUILD)/gpu/dev/test/check_%.o)
$(CHECKS:%=$(BUILD)/bench_%_gpu): $(BUILD)/bench_%_gpu: $(BUILD)/gpu/dev/test/check_%.o

define link_gpu
$$(BUILD)/$(1)%_gpu: $$(BUILD)/gpu/$(2)/$(1)%.o $$(BUILD)/gpu/kernels.a $$(BUILD)/gpu/lib.a
	@echo "  LINK  $$@"
	$$(Q)$$(LINK_GPU)
endef
$(eval $(call link_gpu,test_,dev/test))
$(eval $(call link_gpu,bench_,dev/bench))
$(eval $(call link_gpu,,dev/tools))

# Benchmarks run one after the other, so that they do not disturb each other. GPU benchmarks are skipped without a GPU.
HAVE_GPU = $(shell nvidia-smi -L 2>/dev/null | grep -q GPU && echo yes)
benches: $(BENCHES)
bench: $(BENCHES)
	$(Q)set -e; for b in $(if $(HAVE_GPU),$^,$(filter-out %_gpu,$^)); do echo "== $$b"; ./$$b; done

include dev/fuzz/fuzz.mk

-include $(shell find $(BUILD) $(FUZZ_BUILD) -name '*.d' 2>/dev/null)
