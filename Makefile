# make help says what there is. Sources are found by wildcard: a file attention/NAME.cuh is all that `make train_NAME` needs.
# Flags of your own go into CXXFLAGS (make CXXFLAGS="-Og -g"), nvcc's into CUDAFLAGS, another compiler into CXX, another processor into
# ARCH, another GPU into CUDA_ARCH. Where nvcc is found the training programs have both devices in them; USE_CUDA=0 leaves the GPU
# out, USE_NCCL=0 and USE_MPI=0 those.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PRECIOUS: build/%.o
MAKEFLAGS += --no-builtin-rules

VARIANTS := $(sort $(basename $(notdir $(wildcard attention/*.cuh))))
TRAINERS := $(VARIANTS:%=train_%)
BUNDLED  := data/bundled/sotu_manifest.json

# What this machine has (libraries, MPI, processor flags): probed once, only for goals that compile.
NOT_COMPILED := help clean configure quickstart check test $(VARIANTS:%=test-%) test-gpu kernel-report labs lab lab-hint \
                lab-check experiments
ifneq ($(filter-out $(NOT_COMPILED),$(MAKECMDGOALS)),)
include build/config.mk
endif

USE_MPI  ?= $(HAVE_MPI)
USE_CUDA ?= $(HAVE_CUDA)
WITH_CUDA = $(filter 1,$(USE_CUDA))
override CPPFLAGS += -I. $(BLAS_CXXFLAGS) $(if $(filter 1,$(USE_MPI)),-DUSE_MPI $(MPI_CXXFLAGS))
FLAGS    := -std=c++20 -O3 $(ARCH) -fopenmp -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-psabi
LIBS     := $(BLAS_LIBS) $(TEXT_LIBS) $(if $(filter 1,$(USE_MPI)),$(MPI_LIBS)) -lpthread
USE_NCCL ?= $(HAVE_NCCL)
# 20050: a kernel's `inline` does what it should, one definition in several units, though nvcc says that it ignores it.
NVCCFLAGS := $(NVCC_FLAGS) -O3 -diag-suppress=20050 $(CUDA_ARCH) $(CUDAFLAGS) $(if $(filter 1,$(USE_NCCL)),-DUSE_NCCL $(NCCL_CXXFLAGS)) \
             $(addprefix -Xcompiler=,$(filter-out -std=% -W%,$(FLAGS) $(CXXFLAGS)) -Wno-psabi)
GPU_LIBS := $(CUDA_LIBS) $(if $(filter 1,$(USE_NCCL)),$(NCCL_LIBS))
EMULATED := -DEMULATED_GPU -DUSE_NCCL -Idev/emulator/include -O1 -fno-strict-aliasing -Wno-unknown-pragmas

# $(call COMPILE,ARGUMENTS): objects and dependency lists are written under temporary names, of this shell's number, and renamed when
# they are complete: whatever interrupts a build, and whoever else builds here, no half-written file is taken for a whole one.
NEW = $@.$$$$.new
TO_NEW = -MMD -MP -MT $@ -MF $(NEW).d -c -o $(NEW) $(1) && mv -f $(NEW).d $(@:.o=.d) && mv -f $(NEW) $@ || { rm -f $(NEW)*; exit 1; }
SAY = @mkdir -p $(@D) && echo "$(1) $@$(patsubst %, %,$(filter -DATTENTION=%,$(2)))"
COMPILE = $(call SAY,compile,$(1)) && $(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS) $(TO_NEW)
COMPILE_EMULATED = $(call COMPILE,$(EMULATED) $(1))
COMPILE_CUDA = $(call SAY,nvcc   ,$(1)) && $(NVCC) -x cu $(CPPFLAGS) $(NVCCFLAGS) $(TO_NEW)
LINK    = @mkdir -p $(@D) && echo "link    $@" && $(CXX) $(FLAGS) $(CXXFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^)

# RECIPE $(IF_CHANGED): replaces the target only when the output differs. The recipe runs in every build (FORCED), but not when
# scripts/build.sh counts what there is to do.
IF_CHANGED = > $(NEW) && { cmp -s $(NEW) $@ && rm $(NEW) || mv -f $(NEW) $@; }
FORCED = $(if $(COUNTING),,FORCE)

# The engine, compiled once: a library for hosts, with all that the CPU computes, and for GPUs and emulated GPUs one that goes with
# it. A source of data/ whose library is missing (WITHOUT) is replaced by that of its name in data/without/, which refuses in a sentence.
HOST_SOURCES := $(wildcard model/*.cpp model/*/*.cpp attention/layers.cpp attention/inference/*.cpp data/*.cpp data/documents/*.cpp data/tokenizers/*.cpp)
HOST_UNITS   := $(basename $(filter-out data/tokenize.cpp $(foreach unit,$(WITHOUT),data/%/$(unit).cpp),$(HOST_SOURCES))) \
                $(WITHOUT:%=data/without/%) $(basename $(BLAS_SOURCE))
DEVICE_UNITS := model/gpt model/gpt_memory model/generate/sample attention/causal   # causal: what layers of every program may have
ENGINE       := build/engine.a
GPU_ENGINE   := build/gpu/engine.a $(ENGINE)
EMULATED_ENGINE := build/emulated/engine.a $(ENGINE)

# A variant is attention/variant.cu compiled with its name, for the CPU and for the GPU; programs for all of them have a table.
CPU_VARIANTS := $(VARIANTS:%=build/attention/%.o) build/attention/all_variants.o
GPU_VARIANTS := $(VARIANTS:%=build/gpu/attention/%.o) build/gpu/attention/all_variants.o $(CPU_VARIANTS)
EMULATED_VARIANTS := $(VARIANTS:%=build/emulated/attention/%.o) build/gpu/attention/all_variants.o $(CPU_VARIANTS)

TESTS := $(patsubst %.cpp,build/%.o,$(wildcard tests/*.cpp tests/variant/*.cpp))
# Tests of the GPU half: build/emulated/ runs them on the CPU, build/gpu/ on a GPU.
GPU_TESTS := $(patsubst %.cpp,%.o,$(filter-out %_program.cpp,$(wildcard tests/gpu/*.cpp tests/gpu/variant/*.cpp)))
EMULATOR_TESTS := $(patsubst %.cpp,%.o,$(wildcard tests/emulator/test_*.cpp))

.PHONY: help
help: ## this list
	@echo "make TARGET (add -j to use every core):"
	@sed -n 's/^\([a-z][a-z_ -]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-21s %s\n", $$1, $$2 }'
	@echo "  train_VARIANT       the training program of one attention variant; mpirun -np N ./train_VARIANT for N ranks"
	@echo "                      VARIANT is one of: $(VARIANTS)"
	@echo "  test-VARIANT        the tests of one variant, on the CPU and on the emulated GPU"
	@echo "  tokenize, generate  text to token shards; text from a checkpoint"
	@echo "  build/dev/NAME      a benchmark or tool from dev/NAME.cpp or, with nvcc, dev/NAME.cu"
	@echo "  build/emulated/train_VARIANT   the same program with its GPU emulated on the CPU (dev/emulator)"

.PHONY: all quickstart check test test-gpu kernel-report experiments labs lab lab-hint lab-check configure clean
all: $(TRAINERS) tokenize generate ## every program

quickstart: ## install what is missing, build, train a small ASGA model on the bundled text, sample, plot
	@scripts/quickstart.sh

check: ## what to run before a commit: the tests of no variant, and those of causal, asga and the variants that have changed
	@scripts/run_tests.sh check

test: ## install what is missing, build and run every test; GPU code runs on the emulator
	@scripts/run_tests.sh all

.PHONY: $(VARIANTS:%=test-%)
$(VARIANTS:%=test-%): test-%:
	@scripts/run_tests.sh $*

test-gpu: ## the tests of the GPU half on a real GPU, and compute-sanitizer over a step
	@scripts/run_gpu_tests.sh

labs: ## list the labs: errors to find by their symptoms in a copy of the tree (dev/labs/README.md)
	@dev/labs/lab.py list

lab: ## plant the error of lab N in out/labs/N (make lab N=1), or in LAB=FOLDER, and say what a user would notice
	@dev/labs/lab.py start "$(N)"

lab-hint: ## the one hint for lab N
	@dev/labs/lab.py hint "$(N)"

lab-check: ## whether the error of lab N is gone: hidden tests on the sources in out/labs/N
	@dev/labs/lab.py check "$(N)"

kernel-report: build/config.mk ## what the GPU kernels cost on paper: their machine code, counted (KERNEL_REPORT=OPTIONS)
	@$(or $(PYTHON),python3) dev/kernel_report/report.py $(KERNEL_REPORT)

experiments: ## published claims run again, out/experiments/report.html (SCALE=smoke, ONLY="e1_asga e2_dsa", EXPERIMENT_OPTIONS=...)
	@$(or $(PYTHON),python3) scripts/experiments/run.py $(or $(ONLY),all) --scale $(or $(SCALE),reduced) --out out/experiments \
	    $(EXPERIMENT_OPTIONS)
	@$(or $(PYTHON),python3) scripts/experiments/report.py --ledger out/experiments/ledger.jsonl --out out/experiments \
	    --scale $(or $(SCALE),reduced) $(ONLY)

configure: ## look again for compilers and libraries; the next make takes what there is
	@CXX="$(CXX)" scripts/probe.sh build/config.mk

clean: ## remove everything that was built (keeps out/ and data/)
	rm -rf build $(filter-out train_gpt.cu,$(wildcard train_*)) tokenize generate

# ---- programs
# What programs are linked with; it changes when USE_CUDA or LDFLAGS do.
$(TRAINERS) tokenize generate $(VARIANTS:%=build/generate_%): build/linked
build/linked: $(FORCED)
	@mkdir -p $(@D) && echo '$(WITH_CUDA) $(LDFLAGS) $(LIBS) $(if $(WITH_CUDA),$(GPU_LIBS))' $(IF_CHANGED)
ifeq ($(WITH_CUDA),1)
$(TRAINERS): train_%: build/gpu/train_gpt.o build/gpu/attention/%.o build/gpu/attention/selected_%.o build/attention/%.o \
                      build/attention/selected_%.o $(GPU_ENGINE) | $(BUNDLED)
	$(LINK) $(LIBS) $(GPU_LIBS)
else
$(TRAINERS): train_%: build/train_gpt.o build/attention/%.o build/attention/selected_%.o $(ENGINE) | $(BUNDLED)
	$(LINK) $(LIBS)
endif

$(VARIANTS:%=build/emulated/train_%): build/emulated/train_%: build/emulated/train_gpt.o build/emulated/attention/%.o \
        build/gpu/attention/selected_%.o build/attention/%.o build/attention/selected_%.o $(EMULATED_ENGINE) | $(BUNDLED) \
        build/emulated/data
	$(LINK) $(LIBS)
build/emulated/data $(SANITIZER:%=build/%/data):   # programs look for the bundled text beside themselves
	@mkdir -p $(@D) && ln -sfn ../../data $@

# The same program with model and variant in one unit, and with the variant alone in it, by both compilers: files, options, ranks and
# what else is in no loop come from the engine's library.
ONE_UNIT = $(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS) -DATTENTION=$*
$(VARIANTS:%=build/one_unit/train_%): build/one_unit/train_%: FORCE $(ENGINE)
	@mkdir -p $(@D) && echo "compile $@" && $(ONE_UNIT) -DONE_UNIT -x c++ train_gpt.cu -x none $(ENGINE) $(LDFLAGS) $(LIBS) -o $@
$(VARIANTS:%=build/one_unit/linked_%): build/one_unit/linked_%: FORCE $(ENGINE)
	@mkdir -p $(@D) && echo "compile $@" && $(ONE_UNIT) -x c++ train_gpt.cu -x none $(ENGINE) $(LDFLAGS) $(LIBS) -o $@
$(VARIANTS:%=build/one_unit/cuda_%): build/one_unit/cuda_%: FORCE $(GPU_ENGINE)
	@mkdir -p $(@D) && echo "nvcc    $@" && $(NVCC) -x cu $(CPPFLAGS) $(NVCCFLAGS) -DATTENTION=$* -c -o $@.unit train_gpt.cu
	@$(CXX) $(FLAGS) $(LDFLAGS) -o $@ -x none $@.unit $(filter %.a,$^) $(LIBS) $(GPU_LIBS)

# make SANITIZER=thread build/thread/train_asga: the emulated program with the sanitizer in what launches a training step's kernels.
ifneq ($(SANITIZER),)
SANITIZED := $(SANITIZER:%=build/%)
$(VARIANTS:%=$(SANITIZED)/train_%): $(SANITIZED)/train_%: $(SANITIZED)/train_gpt.o $(SANITIZED)/attention/%.o \
        $(SANITIZED)/model/gpt.o build/gpu/attention/selected_%.o build/attention/%.o build/attention/selected_%.o $(EMULATED_ENGINE) \
        | $(BUNDLED) $(SANITIZED)/data
	$(LINK) $(LIBS) -fsanitize=$(SANITIZER)
$(VARIANTS:%=$(SANITIZED)/attention/%.o): $(SANITIZED)/attention/%.o: attention/variant.cu build/flags
	$(call COMPILE_EMULATED,-g1 -fsanitize=$(SANITIZER) -DATTENTION=$* -x c++ $<)
$(SANITIZED)/%.o: %.cu build/flags
	$(call COMPILE_EMULATED,-g1 -fsanitize=$(SANITIZER) -x c++ $<)
endif

tokenize: build/data/tokenize.o $(ENGINE)
	$(LINK) $(LIBS)

# Text from checkpoints of all variants, or of one, which is built sooner.
ifeq ($(WITH_CUDA),1)
generate: build/model/generate/generate.o build/gpu/model/generate/generate_gpu.o $(GPU_VARIANTS) $(GPU_ENGINE)
	$(LINK) $(LIBS) $(GPU_LIBS)
$(VARIANTS:%=build/generate_%): build/generate_%: build/model/generate/generate.o build/gpu/model/generate/generate_gpu.o build/gpu/attention/%.o \
        build/gpu/attention/only_%.o build/attention/%.o build/attention/only_%.o $(GPU_ENGINE)
	$(LINK) $(LIBS) $(GPU_LIBS)
else
generate: build/model/generate/generate.o $(CPU_VARIANTS) $(ENGINE)
	$(LINK) $(LIBS)
$(VARIANTS:%=build/generate_%): build/generate_%: build/model/generate/generate.o build/attention/%.o build/attention/only_%.o $(ENGINE)
	$(LINK) $(LIBS)
endif
$(VARIANTS:%=build/emulated/generate_%): build/emulated/generate_%: build/model/generate/generate.o \
        build/emulated/model/generate/generate_gpu.o build/emulated/attention/%.o build/gpu/attention/only_%.o build/attention/%.o build/attention/only_%.o $(EMULATED_ENGINE)
	$(LINK) $(LIBS)
build/emulated/generate: build/model/generate/generate.o build/emulated/model/generate/generate_gpu.o $(EMULATED_VARIANTS) $(EMULATED_ENGINE)
	$(LINK) $(LIBS)

build/tests/run_tests build/emulated/run_tests build/gpu/run_tests build/emulated/operation_tests: build/units
build/tests/run_tests: $(TESTS) $(CPU_VARIANTS) $(ENGINE)
	$(LINK) $(CATCH2_LIBS) $(LIBS)

build/emulated/run_tests: $(GPU_TESTS:%=build/emulated/%) $(EMULATOR_TESTS:%=build/emulated/%) build/tests/main.o \
                          $(EMULATED_VARIANTS) $(EMULATED_ENGINE)
	$(LINK) $(CATCH2_LIBS) $(LIBS)

# What makes system calls on files fail (tests/faults/shim.c); dev/faults.py loads it before libc.
build/tests/faults.so: tests/faults/shim.c
	@mkdir -p $(@D) && echo "compile $@" && $(CC) -std=gnu11 -O1 -g -Wall -Wextra -shared -fPIC -o $@ $< -ldl

# The test programs of one variant (make test-NAME), and the tests that belong to none.
VARIANT_TESTS := $(filter build/tests/variant/%,$(TESTS)) build/tests/main.o
$(VARIANTS:%=build/tests/test_%): build/tests/test_%: $(VARIANT_TESTS) build/attention/%.o build/attention/only_%.o $(ENGINE)
	$(LINK) $(CATCH2_LIBS) $(LIBS)
$(VARIANTS:%=build/emulated/test_%): build/emulated/test_%: $(patsubst %,build/emulated/%,$(filter tests/gpu/variant/%,$(GPU_TESTS))) \
        build/tests/main.o build/emulated/attention/%.o build/gpu/attention/only_%.o build/attention/%.o build/attention/only_%.o \
        $(EMULATED_ENGINE)
	$(LINK) $(CATCH2_LIBS) $(LIBS)
build/emulated/operation_tests: $(patsubst %,build/emulated/%,$(filter-out tests/gpu/variant/%,$(GPU_TESTS)) $(EMULATOR_TESTS)) \
                                build/tests/main.o $(CPU_VARIANTS) $(EMULATED_ENGINE)
	$(LINK) $(CATCH2_LIBS) $(LIBS)

build/gpu/run_tests: $(GPU_TESTS:%=build/gpu/%) build/tests/main.o $(GPU_VARIANTS) $(GPU_ENGINE)
	$(LINK) $(CATCH2_LIBS) $(LIBS) $(GPU_LIBS)

build/emulated/collectives_program: build/emulated/tests/gpu/collectives_program.o $(EMULATED_ENGINE)
	$(LINK) $(LIBS)

# The first lecture: C of its own, without the engine.
.PHONY: reference_qwen
reference_qwen: build/reference_qwen | $(BUNDLED) ## build/reference_qwen: Qwen3 and ASGA in one file of plain C, the first to read
build/reference_qwen: tests/reference_qwen.c
	@mkdir -p $(@D) && echo "compile $@" && $(CC) -std=c11 -O3 $(ARCH) -fopenmp -Wall -Wextra -o $@ $< -lm

# Benchmarks and tools. Only those that look variants up by name take the time to compile them.
CUDA_TOOLS := $(basename $(wildcard dev/*.cu dev/ladder/*.cu))
build/dev/bench_patterns_gpu: $(GPU_VARIANTS)
build/emulated/dev/bench_patterns_gpu: $(EMULATED_VARIANTS)
build/dev/attention_layer build/dev/bench_cpu build/dev/bench_decode build/dev/bench_patterns build/dev/logits: $(CPU_VARIANTS)
$(CUDA_TOOLS:%=build/%): build/%: build/gpu/%.o $(GPU_ENGINE)
	$(LINK) $(LIBS) $(GPU_LIBS)
$(CUDA_TOOLS:%=build/emulated/%): build/emulated/%: build/emulated/%.o $(EMULATED_ENGINE)
	$(LINK) $(LIBS)
build/dev/%: build/dev/%.o $(ENGINE)
	$(LINK) $(LIBS)

# The bundled text as token shards: what training reads when it is given no data.
$(BUNDLED): data/bundled/sotu.jsonl | tokenize
	./tokenize --tokenizer bytes --out data/bundled --name sotu $<

# ---- the engine
build/engine.a: $(HOST_UNITS:%=build/%.o) $(DEVICE_UNITS:%=build/%.o) build/commit.o build/carried_texts.o build/units
build/gpu/engine.a: $(DEVICE_UNITS:%=build/gpu/%.o)
build/emulated/engine.a: $(DEVICE_UNITS:%=build/emulated/%.o)
build/engine.a build/gpu/engine.a build/emulated/engine.a:
	@rm -f $@ && ar rcs $@ $(filter %.o,$^)

# The commit that is built, and whether files differ from it ("-dirty" behind it), for a run's log.
COMMIT ?= $(or $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2> /dev/null),unknown)
build/commit.cpp: $(FORCED)
	@mkdir -p $(@D) && printf '%s\n' '#include "model/base/process.h"' \
	    'const char* source_commit() { return "$(COMMIT:%-dirty=%)"; }' \
	    'bool source_is_dirty() { return $(if $(filter %-dirty,$(COMMIT)),true,false); }' $(IF_CHANGED)
# What checkpoints carry of the tree: a program may run where there is none.
CARRIED := $(wildcard scripts/attention_torch/*.py) $(VARIANTS:%=attention/%.cuh)
build/carried_texts.cpp: $(FORCED)
	@mkdir -p $(@D) && scripts/carried_texts.sh $(CARRIED) $(IF_CHANGED)
build/commit.o build/carried_texts.o: build/%.o: build/%.cpp build/flags
	$(call COMPILE,$<)

# ---- variants
$(VARIANTS:%=build/attention/%.o): build/attention/%.o: attention/variant.cu build/flags
	$(call COMPILE,-DATTENTION=$* -x c++ $<)
$(VARIANTS:%=build/gpu/attention/%.o): build/gpu/attention/%.o: attention/variant.cu build/gpu/flags
	$(call COMPILE_CUDA,-DATTENTION=$* $<)
$(VARIANTS:%=build/emulated/attention/%.o): build/emulated/attention/%.o: attention/variant.cu build/flags
	$(call COMPILE_EMULATED,-DATTENTION=$* -x c++ $<)

$(VARIANTS:%=build/attention/selected_%.o): build/attention/selected_%.o: attention/selected.cpp build/flags
	$(call COMPILE,-DATTENTION=$* $<)
$(VARIANTS:%=build/gpu/attention/selected_%.o): build/gpu/attention/selected_%.o: attention/selected.cpp build/flags
	$(call COMPILE,-DATTENTION=$* -DOF_GPU $<)

# all_variants(): $(call TABLE,NAMESPACE,FUNCTION,VARIANTS) is a unit that has a table of them.
TABLE = @mkdir -p $(@D) && printf '%s\n' '\#include "attention/variant.h"' $(3:%='namespace $(1) { extern const Variant %; }') \
        'const std::vector<const Variant*>& $(2)() {' '    static const std::vector<const Variant*> all = {' \
        $(3:%='        &$(1)::%,') '    };' '    return all;' '}' $(IF_CHANGED)
build/attention/all_variants.cpp: $(FORCED)
	$(call TABLE,on_cpu,all_variants,$(VARIANTS))
build/gpu/attention/all_variants.cpp: $(FORCED)
	$(call TABLE,on_gpu,all_variants_on_gpu,$(VARIANTS))
$(VARIANTS:%=build/attention/only_%.cpp): build/attention/only_%.cpp: $(FORCED)
	$(call TABLE,on_cpu,all_variants,$*)
$(VARIANTS:%=build/gpu/attention/only_%.cpp): build/gpu/attention/only_%.cpp: $(FORCED)
	$(call TABLE,on_gpu,all_variants_on_gpu,$*)
TABLES := build/attention/all_variants build/gpu/attention/all_variants $(VARIANTS:%=build/attention/only_%) \
          $(VARIANTS:%=build/gpu/attention/only_%)
$(TABLES:%=%.o): %.o: %.cpp build/flags
	$(call COMPILE,$<)

# ---- objects of all other files
# Catch's main(), and what reads command lines and walks over JSON: headers that take long to optimise, in no loop that anybody waits
# for. Not model/base/json, which alone has the parser, nor model/checkpoint/safetensors, which converts whole models' numbers.
build/tests/main.o: private FLAGS += $(MAIN_FLAGS)
COLD := $(addprefix model/,config config_keys generation_config layer_types checkpoint/checkpoint checkpoint/checkpoint_save run/train_options \
                           run/inference_options run/report) \
        $(addprefix data/,tokenize evaluation manifest tokenizers/tokenizer_json documents/documents)
COLD_FLAGS := -O1
MAIN_FLAGS := -O0
$(COLD:%=build/%.o): private FLAGS += $(COLD_FLAGS)
build/emulated/%.o: %.cpp build/flags
	$(call COMPILE_EMULATED,$<)
build/emulated/%.o: %.cu build/flags
	$(call COMPILE_EMULATED,-x c++ $<)
# Whether nvcc takes the tests and benchmarks of GPUs, and what of their host code it takes for device code: to PTX, in seconds each.
PTX := $(GPU_TESTS:%.o=build/ptx/%.ptx) $(addprefix build/ptx/,tests/gpu/collectives_program.ptx dev/bench_constants.ptx dev/bench_gpu.ptx \
         dev/bench_patterns_gpu.ptx dev/ladder/ladder.ptx)
TO_PTX = $(call SAY,nvcc   ) && $(NVCC) -x cu -ptx $(CPPFLAGS) $(NVCC_FLAGS) -arch=compute_80 $(CUDAFLAGS) -diag-suppress=20050 \
         -Xcompiler=-fopenmp,-Wno-psabi -MMD -MP -MT $@ -MF $(NEW).d -o $(NEW) $< && mv -f $(NEW).d $(@:.ptx=.d) && mv -f $(NEW) $@
# A function that nvcc cannot make for the GPU, for want of a host constant's address, say, becomes a trap without a word.
TRAPS := awk '/\.(entry|func)/ { inside = $$NF } /trap;/ && last !~ /begin inline asm/ { n++; print FILENAME ": nvcc made a trap in " inside } \
              { last = $$0 } END { exit n > 0 }'
.PHONY: ptx
ptx: $(if $(WITH_CUDA),$(PTX))
	@$(if $^,$(TRAPS) $^)
build/ptx/%.ptx: %.cpp build/gpu/flags
	$(TO_PTX)
build/ptx/%.ptx: %.cu build/gpu/flags
	$(TO_PTX)
build/gpu/%.o: %.cpp build/gpu/flags
	$(call COMPILE_CUDA,$<)
build/gpu/%.o: %.cu build/gpu/flags
	$(call COMPILE_CUDA,$<)
build/%.o: %.cpp build/flags
	$(call COMPILE,$<)
build/%.o: %.cu build/flags
	$(call COMPILE,-x c++ $<)

# A goal that names no variant, also where a program of a variant that has gone is still there.
NO_VARIANT := $(filter-out train_gpt.cu test-gpu $(TRAINERS) $(VARIANTS:%=test-%) $(VARIANTS:%=build/generate_%), \
                           $(filter train_% test-% build/generate_%,$(MAKECMDGOALS)))
.PHONY: $(NO_VARIANT)
$(NO_VARIANT):
	@echo "make $@: there is no attention/$(patsubst test-%,%,$(patsubst train_%,%,$(@:build/generate_%=%))).cuh;" \
	      "the variants are: $(VARIANTS)" >&2
	@exit 2

# ---- bookkeeping
build/config.mk: scripts/probe.sh scripts/probe_cuda.sh
	@CXX="$(CXX)" scripts/probe.sh $@

# Hold flags and lists of units, and change only when these do, so that no object stays behind when CXXFLAGS or USE_MPI change, and
# no program when a source file goes or a library comes.
build/flags build/gpu/flags: $(FORCED)
	@mkdir -p $(@D)
	@echo '$(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS) $(EMULATED) $(COLD_FLAGS) $(COLD) $(MAIN_FLAGS)' \
	      '$(if $(filter build/gpu/%,$@),$(NVCC) $(NVCCFLAGS))' $(IF_CHANGED)
build/units: $(FORCED)
	@mkdir -p $(@D) && echo '$(HOST_UNITS) $(TESTS) $(GPU_TESTS) $(EMULATOR_TESTS)' $(IF_CHANGED)
.PHONY: FORCE flags
flags: build/flags build/units build/linked $(if $(WITH_CUDA),build/gpu/flags)   # what scripts/build.sh counts from
FORCE:

# Dependency lists of the objects that exist.
OBJECTS := $(shell find build -name '*.o' -o -name '*.ptx' 2> /dev/null)
-include $(wildcard $(addsuffix .d,$(basename $(OBJECTS))))
