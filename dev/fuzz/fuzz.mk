# Included by the Makefile: the fuzz targets, dev/fuzz/fuzz_NAME.c -> build/fuzz/fuzz_NAME. With clang and its
# libFuzzer where they are, else (or with FUZZ_CC=gcc) with gcc and dev/fuzz/driver.c.
#   make fuzz FUZZ_SECONDS=600    every target so long, one after the other
#   make fuzz-short               a second each, as `make test` does
#   make fuzz-targets             only build them

FUZZ_SECONDS ?= 60
FUZZ_BUILD := build/fuzz
FUZZ_NAMES := $(patsubst dev/fuzz/%.c,%,$(wildcard dev/fuzz/fuzz_*.c))
FUZZ_TARGETS := $(addprefix $(FUZZ_BUILD)/,$(FUZZ_NAMES))
# what reads files, and of the CPU's what plans
FUZZ_MODULES := $(filter-out coat/cpu/% coat/run/%,$(wildcard coat/*.c coat/*/*.c)) coat/cpu/cpu_workspace.c
.PHONY: fuzz fuzz-short fuzz-targets

ifneq ($(filter fuzz%,$(GOALS)),)
FUZZ_CC ?= $(or $(shell echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | \
	clang -x c -fsanitize=fuzzer - -o /dev/null 2>/dev/null && echo clang),$(CC))
FUZZ_CLANG := $(findstring clang,$(FUZZ_CC))
FUZZ_COVERAGE := $(if $(FUZZ_CLANG),-fsanitize=fuzzer-no-link,-fsanitize-coverage=trace-pc)
# clang wants every field of a row, where the tables name those that are not 0
FUZZ_FLAGS := -std=gnu11 -D_GNU_SOURCE -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=all -ffp-contract=off -fno-math-errno -Wall -Wextra -Wshadow -Wno-unknown-pragmas \
	-Wno-format-truncation -Wno-maybe-uninitialized \
	$(if $(FUZZ_CLANG),-Wno-unknown-warning-option -Wno-missing-field-initializers) \
	$(if $(WERROR),-Werror) -I. -Icoat
FUZZ_LIBS := $(filter %jansson %jansson.a %xxhash %xxhash.a -lm,$(HOST_LIBS))
$(call remember,fuzz,$(FUZZ_CC) $(FUZZ_FLAGS) $(FUZZ_COVERAGE))
$(call remember,fuzz_modules,$(FUZZ_MODULES))
endif

fuzz-targets: $(FUZZ_TARGETS)

fuzz fuzz-short: fuzz-targets
	@dev/test/test_fuzz.sh --built $(if $(filter fuzz,$@),--seconds $(FUZZ_SECONDS))

$(FUZZ_BUILD)/%.o: %.c $(BUILD)/flags/fuzz
	@mkdir -p $(@D) && echo "  CC    $@"
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) $(FUZZ_COVERAGE) -MMD -MP -c $< -o $@

$(FUZZ_BUILD)/dev/fuzz/driver.o: FUZZ_COVERAGE := # it counts the others' blocks, not its own

$(FUZZ_BUILD)/lib.a: $(FUZZ_MODULES:%.c=$(FUZZ_BUILD)/%.o) $(BUILD)/flags/fuzz_modules
	$(archive)

$(FUZZ_TARGETS): $(FUZZ_BUILD)/%: $(FUZZ_BUILD)/dev/fuzz/%.o $(if $(FUZZ_CLANG),,$(FUZZ_BUILD)/dev/fuzz/driver.o) $(FUZZ_BUILD)/lib.a
	@echo "  LINK  $@"
	$(Q)$(FUZZ_CC) -fsanitize=address,undefined $(if $(FUZZ_CLANG),-fsanitize=fuzzer) $^ $(FUZZ_LIBS) -o $@
