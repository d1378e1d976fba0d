# Included by the Makefile. Builds the fuzz targets: build/fuzz/fuzz_NAME from dev/fuzz/fuzz_NAME.c.
#   make fuzz FUZZ_SECONDS=600    runs each target on its corpus, then on mutations for 600 s; needs clang
#   make fuzz-short               the same with 1 s of mutations, or none without clang; `make test` does it, too
#   make fuzz-targets             only builds them
# clang's libFuzzer makes the mutations. Without it, gcc builds targets that run given files once (replay.c).

FUZZ_SECONDS ?= 60
FUZZ_BUILD := build/fuzz
FUZZ_NAMES := $(patsubst dev/fuzz/%.c,%,$(wildcard dev/fuzz/fuzz_*.c))
FUZZ_TARGETS := $(addprefix $(FUZZ_BUILD)/,$(FUZZ_NAMES))
# the modules that read files and, of the CPU backend, those that plan memory
FUZZ_MODULES := $(filter-out coat/cpu/% coat/run/%,$(wildcard coat/*.c coat/*/*.c coat/*/*/*.c)) coat/cpu/cpu_workspace.c
.PHONY: fuzz fuzz-short fuzz-targets

ifneq ($(filter fuzz%,$(GOALS)),)
FUZZ_CC := $(or $(shell echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | \
	clang -x c -fsanitize=fuzzer - -o /dev/null 2>/dev/null && echo clang),$(CC))
FUZZ_CLANG := $(findstring clang,$(FUZZ_CC))
# -Wno-missing-field-initializers: the tables' rows omit fields that are 0
FUZZ_FLAGS := -std=gnu11 -D_GNU_SOURCE -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined \
	$(if $(FUZZ_CLANG),-fsanitize=fuzzer-no-link) -fno-sanitize-recover=all -ffp-contract=off -fno-math-errno \
	-Wall -Wextra -Wshadow -Wno-missing-field-initializers -Wno-unknown-pragmas -Wno-unknown-warning-option \
	-Wno-format-truncation -Wno-maybe-uninitialized $(if $(WERROR),-Werror) -I. -Icoat
FUZZ_LIBS := $(filter %jansson %jansson.a %xxhash %xxhash.a -lm,$(HOST_LIBS))
$(call remember,fuzz,$(FUZZ_CC) $(FUZZ_FLAGS))
$(call remember,fuzz_modules,$(FUZZ_MODULES))
endif

fuzz-targets: $(FUZZ_TARGETS)

fuzz fuzz-short: fuzz-targets
	@dev/test/test_fuzz.sh --built $(if $(filter fuzz,$@),--seconds $(FUZZ_SECONDS))

$(FUZZ_BUILD)/%.o: %.c $(BUILD)/flags/fuzz
	@mkdir -p $(@D) && echo "  CC    $@"
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) -MMD -MP -c $< -o $@

$(FUZZ_BUILD)/lib.a: $(FUZZ_MODULES:%.c=$(FUZZ_BUILD)/%.o) $(BUILD)/flags/fuzz_modules
	$(archive)

FUZZ_MAIN := $(if $(FUZZ_CLANG),,$(FUZZ_BUILD)/dev/fuzz/replay.o)
$(FUZZ_TARGETS): $(FUZZ_BUILD)/%: $(FUZZ_BUILD)/dev/fuzz/%.o $(FUZZ_MAIN) $(FUZZ_BUILD)/lib.a
	@echo "  LINK  $@"
	$(Q)$(FUZZ_CC) -fsanitize=address,undefined $(if $(FUZZ_CLANG),-fsanitize=fuzzer) $^ $(FUZZ_LIBS) -o $@
