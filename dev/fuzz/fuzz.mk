# Included by the Makefile. Builds the fuzz targets: build/fuzz/fuzz_NAME from dev/fuzz/fuzz_NAME.c.
#   make fuzz FUZZ_SECONDS=600    runs each target on its corpus, then on mutations for 600 s; needs clang
#   make fuzz-short               runs each target on its corpus only; part of `make test`
#   make fuzz-targets             only builds the targets
# clang's libFuzzer generates the mutations. Without it, gcc builds targets that run each given file once (replay.c),
# from the same objects as `make SANITIZE=1`.

FUZZ_SECONDS ?= 60
FUZZ_BUILD := build/fuzz
FUZZ_NAMES := $(patsubst dev/fuzz/%.c,%,$(wildcard dev/fuzz/fuzz_*.c))
FUZZ_TARGETS := $(addprefix $(FUZZ_BUILD)/,$(FUZZ_NAMES))
.PHONY: fuzz fuzz-short fuzz-targets

fuzz-targets: $(FUZZ_TARGETS)

fuzz fuzz-short: fuzz-targets
	@dev/test/test_fuzz.sh --built $(if $(filter fuzz,$@),--seconds $(FUZZ_SECONDS))

ifneq ($(filter fuzz%,$(GOALS)),)
FUZZ_CLANG := $(shell echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | \
	clang -x c -fsanitize=fuzzer - -o /dev/null 2>/dev/null && echo clang)
ifneq ($(FUZZ_CLANG),)
# all modules except coat/run and the CPU backend, whose cpu_workspace.c is needed to plan memory
FUZZ_MODULES := $(filter-out coat/cpu/% coat/run/%,$(wildcard coat/*.c coat/*/*.c coat/*/*/*.c)) coat/cpu/cpu_workspace.c
# -Wno-missing-field-initializers, because rows of tables omit fields that are 0
FUZZ_FLAGS := -std=gnu11 -D_GNU_SOURCE -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fsanitize=fuzzer-no-link -fno-sanitize-recover=all -ffp-contract=off -fno-math-errno \
	-Wall -Wextra -Wshadow -Wno-missing-field-initializers -Wno-unknown-pragmas -Wno-unknown-warning-option \
	-Wno-format-truncation -Wno-maybe-uninitialized $(if $(WERROR),-Werror) -I. -Icoat
FUZZ_LIBS := $(filter %jansson %jansson.a %xxhash %xxhash.a -lm,$(HOST_LIBS))
$(call remember,fuzz,$(FUZZ_CLANG) $(FUZZ_FLAGS))
$(call remember,fuzz_modules,$(FUZZ_MODULES))

$(FUZZ_BUILD)/%.o: %.c $(BUILD)/flags/fuzz
	@mkdir -p $(@D) && echo "  CC    $@"
	$(Q)$(FUZZ_CLANG) $(FUZZ_FLAGS) -MMD -MP -c $< -o $@

$(FUZZ_BUILD)/lib.a: $(FUZZ_MODULES:%.c=$(FUZZ_BUILD)/%.o) $(BUILD)/flags/fuzz_modules
	$(archive)

$(FUZZ_TARGETS): $(FUZZ_BUILD)/%: $(FUZZ_BUILD)/dev/fuzz/%.o $(FUZZ_BUILD)/lib.a
	@echo "  LINK  $@"
	$(Q)$(FUZZ_CLANG) -fsanitize=address,undefined,fuzzer $^ $(FUZZ_LIBS) -o $@
else
$(FUZZ_TARGETS): $(FUZZ_BUILD)/%: $(BUILD)/cpu/dev/fuzz/%.o $(BUILD)/cpu/dev/fuzz/replay.o $(BUILD)/cpu/lib.a
	@mkdir -p $(@D) && echo "  LINK  $@"
	$(Q)$(LINK)
endif
endif
