# Included by the Makefile. Finds compilers and libraries and sets their flags. Reports each missing compiler or library
# with the features that the build lacks. Ends make with an error only if nothing can be built.

HASH := \#

# $(call probe,HEADERS,VALUE,FLAGS): VALUE after expansion of the macros of HEADERS. Empty if $(CXX) FLAGS does not find
# HEADERS.
probe = $(shell out=$$({ printf '$(HASH)include <%s>\n' $(1); echo 'probed $(2)'; } | $(CXX) $(3) -E -P -x c++ - 2>/dev/null) \
	&& echo "$$out" | tr -d ' ' | sed -n '$$s/^probed//p')
# $(call library,NAME): links libNAME.a if it exists, else libNAME.so.
library = $(if $(findstring /,$(shell $(CC) -print-file-name=lib$(1).a)),-l:lib$(1).a,-l$(1))
# $(call report,NAME,FOUND,COST): prints that NAME was found, with the version FOUND or, if FOUND is empty, that NAME is
# missing, with the COST of building without it.
report = $(info $(if $(2),found    $(1)$(if $(filter yes,$(2)),, $(2)),missing  $(1): $(3)))
# $(call named,NAME,VARIABLE): the compiler NAME and, if VARIABLE names another one, the setting. Other compilers than
# GCC's do not know -dumpfullversion and count as missing.
named = $(1)$(if $(filter-out $(1),$($(2))), ($(2)=$($(2))))
# $(call wanted,VARIABLE): empty if the user set VARIABLE=0, otherwise not empty.
wanted = $(filter-out 0,$(or $($(1)),1))

FOUND_CC := $(shell $(CC) -dumpfullversion 2>/dev/null)
FOUND_CXX := $(shell $(CXX) -dumpfullversion 2>/dev/null)

# --- the host's libraries ----------------------------------------------------------------------------------------

FOUND_JANSSON := $(call probe,jansson.h,JANSSON_MAJOR_VERSION.JANSSON_MINOR_VERSION)
FOUND_XXHASH := $(call probe,xxhash.h,XXH_VERSION_MAJOR.XXH_VERSION_MINOR)
FOUND_CMOCKA := $(call probe,stdarg.h stddef.h stdint.h setjmp.h cmocka.h,yes)
HOST_LIBS := $(call library,jansson) $(call library,xxhash)
HOST_DEFINES :=
HOST_INCLUDES := -I. -Icoat

ifneq ($(call wanted,OPENBLAS),)
FOUND_OPENBLAS := $(call probe,cblas.h openblas_config.h,yes)
endif
ifneq ($(FOUND_OPENBLAS),)
HOST_DEFINES += -DCOAT_OPENBLAS
HOST_LIBS += $(call library,openblas)
endif

ifneq ($(call wanted,MPI),)
MPI_INCLUDES := $(patsubst -I%,-isystem %,$(filter -I%,\
	$(shell mpicc -showme:compile 2>/dev/null || pkg-config --cflags mpich 2>/dev/null)))
MPI_LIBS := $(filter -L% -l%,$(shell mpicc -showme:link 2>/dev/null || pkg-config --libs mpich 2>/dev/null))
FOUND_MPI := $(if $(MPI_LIBS),$(call probe,mpi.h,MPI_VERSION.MPI_SUBVERSION,$(MPI_INCLUDES)))
endif
ifneq ($(FOUND_MPI),)
HOST_DEFINES += -DCOAT_MPI
HOST_INCLUDES += $(MPI_INCLUDES)
HOST_LIBS += $(MPI_LIBS)
endif
# Links OpenMP's library statically if possible, because the program sets GOMP_SPINCOUNT when it starts
# (coat/cpu/cpu_exec.c). A shared library would already have read the variable.
HOST_LIBS += $(call library,gomp) -lm -lpthread -ldl

# --- CUDA --------------------------------------------------------------------------------------------------------

ifneq ($(call wanted,CUDA),)
NVCC ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
endif
ifneq ($(NVCC),)
NVCC_RELEASE := $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
# Folder of the CUDA toolkit that nvcc uses, also if nvcc is a link or a wrapper.
CUDA_ROOT := $(abspath $(shell $(NVCC) --dryrun -x cu /dev/null 2>&1 | sed -n 's/^.. TOP=//p'))
# $(call folders,HOMES,NAMES): the existing folders among HOME/NAME and, for conda, HOME/targets/*/NAME. Omits
# /usr/include, because g++ does not find its own headers after -isystem /usr/include.
folders = $(filter-out /usr/include,$(wildcard $(foreach h,$(abspath $(1)),$(foreach n,$(2),$(h)/$(n) $(h)/targets/*/$(n)))))
CUDA_INCLUDE := $(call folders,$(CUDA_ROOT),include)
# Major version of the newest g++ that CUDA's headers accept; they stop with an #error for later versions.
NEWEST_CXX := $(shell sed -n 's/^$(HASH)if __GNUC__ > \([0-9]*\)$$/\1/p' \
	$(firstword $(wildcard $(CUDA_INCLUDE:%=%/crt/host_config.h)) /dev/null))
# $(call later,A,B): "yes" if version A is later than version B, else empty.
later = $(shell printf '%s\n' $(1) $(2) | sort -CV || echo yes)
ifneq ($(call later,12.4,$(NVCC_RELEASE)),)
NVCC_PROBLEM := $(NVCC) belongs to CUDA $(NVCC_RELEASE), but 12.4 or later is needed; set CUDA_HOME to a newer one
else ifneq ($(and $(NEWEST_CXX),$(call later,$(firstword $(subst ., ,$(FOUND_CXX))),$(NEWEST_CXX))),)
NVCC_PROBLEM := CUDA $(NVCC_RELEASE) accepts g++ $(NEWEST_CXX) or earlier, but $(CXX) is $(FOUND_CXX); use \
	CXX=g++-$(NEWEST_CXX)
else
FOUND_NVCC := $(NVCC_RELEASE)
endif
endif
ifneq ($(FOUND_NVCC),)
# Uses -I for cuDNN and NCCL, so that nvcc searches their folders before CUDA's. Folders of -isystem come after CUDA's.
CUDA_INCLUDES := $(addprefix -I,$(call folders,$(CUDNN_HOME) $(NCCL_HOME),include)) $(CUDA_INCLUDE:%=-isystem %)
CUDA_LIB := $(call folders,$(CUDNN_HOME) $(NCCL_HOME) $(CUDA_ROOT),lib64 lib)
CUDA_LIBS := $(CUDA_LIB:%=-L%)
CUDA_DEFINES := -DCOAT_CUDA
FOUND_CUDNN := $(filter 9.%,$(call probe,cudnn_version.h,CUDNN_MAJOR.CUDNN_MINOR,$(CUDA_INCLUDES)))

CUDNN_FRONTEND ?= $(firstword $(wildcard third_party/cudnn-frontend/include))
CUDA_INCLUDES += $(addprefix -isystem ,$(CUDNN_FRONTEND))
FOUND_FRONTEND := $(call probe,cudnn_frontend_version.h,\
	CUDNN_FRONTEND_MAJOR_VERSION.CUDNN_FRONTEND_MINOR_VERSION,$(CUDA_INCLUDES))
ifneq ($(call wanted,NCCL),)
FOUND_NCCL := $(call probe,nccl.h,NCCL_MAJOR.NCCL_MINOR,$(CUDA_INCLUDES))
endif
ifneq ($(FOUND_NCCL),)
CUDA_DEFINES += -DCOAT_NCCL
endif
# cuDNN and NCCL are not linked, because the program loads them at run time (coat/cuda/libraries.cu).
CUDA_LIBS += -lcublasLt -lcublas -lcuda
endif

# --- the report --------------------------------------------------------------------------------------------------

ifneq ($(filter all,$(GOALS)),)
$(call report,$(call named,gcc,CC),$(FOUND_CC),nothing can be built)
$(call report,$(call named,g++,CXX),$(FOUND_CXX),nothing can be built (it searches for headers and compiles the GPU program))
$(call report,jansson,$(FOUND_JANSSON),nothing can be built (it reads and writes JSON))
$(call report,xxHash,$(FOUND_XXHASH),nothing can be built (it computes the checksums of checkpoints))
$(call report,OpenBLAS,$(FOUND_OPENBLAS),the CPU's matmuls are several times slower)
$(call report,MPI,$(FOUND_MPI),no runs over several processes on CPUs)
$(call report,cmocka,$(FOUND_CMOCKA),no unit tests)
ifeq ($(call wanted,CUDA),)
$(info ignored  nvcc, because of CUDA=0: no GPU program; train_gpt2_fp8_cpu runs everywhere)
else
$(call report,nvcc,$(FOUND_NVCC),$(or $(NVCC_PROBLEM),no GPU program; train_gpt2_fp8_cpu runs everywhere))
endif
ifneq ($(FOUND_NVCC),)
$(call report,cuDNN,$(FOUND_CUDNN),no GPU program; cuDNN 9 computes attention)
$(call report,cuDNN frontend,$(FOUND_FRONTEND),no GPU program; scripts/setup.sh downloads its headers (or set CUDNN_FRONTEND=FOLDER))
$(call report,NCCL,$(FOUND_NCCL),one GPU only)
endif
endif
ifneq ($(and $(FOUND_CC),$(FOUND_CXX),$(FOUND_JANSSON),$(FOUND_XXHASH)),)
else
# Without g++, the probes of libraries fail, too, so only g++ is named.
MISSING := $(if $(FOUND_CC),,$(call named,gcc,CC)) \
	$(if $(FOUND_CXX),$(if $(FOUND_JANSSON),,jansson) $(if $(FOUND_XXHASH),,xxHash),$(call named,g++,CXX))
$(error nothing can be built without $(strip $(MISSING)); run scripts/setup.sh, which installs it or prints the command)
endif
