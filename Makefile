# make help lists the goals. Sources are found by wildcard: a new file attention/NAME.cuh is all that `make train_NAME` needs.
# Your own flags: CXX, CXXFLAGS ("-Og -g"), ARCH (the processor), CUDAFLAGS, CUDA_ARCH (the GPU), LDFLAGS, -j (a job per processor);
# USE_CUDA=0, USE_NCCL=0, USE_MPI=0 leave them out of programs; FLOAT32=1 adds float32 kernels for GPUs, which the tests on a GPU need.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
VARIANTS := $(sort $(basename $(notdir $(wildcard attention/*.cuh))))
TRAINERS := $(VARIANTS:%=train_%)
BUNDLED  := data/bundled/sotu_manifest.json
# The compilers, libraries, processor and GPU of this machine (scripts/probe.sh): needed only by goals that compile.
NOT_COMPILED := help setup quickstart clean check test test-gpu $(VARIANTS:%=test-%) labs lab lab-hint lab-check experiments
COMPILED := $(filter-out $(NOT_COMPILED),$(MAKECMDGOALS))
MAKEFLAGS += $(if $(COMPILED),-j$(shell env -u OMP_NUM_THREADS nproc))
include $(if $(COMPILED),build/config.mk)
USE_MPI  ?= $(HAVE_MPI)
USE_NCCL ?= $(HAVE_NCCL)
USE_CUDA ?= $(HAVE_CUDA)
WITH_CUDA = $(filter 1,$(USE_CUDA))
override CPPFLAGS += -I. $(BLAS_CXXFLAGS) $(if $(filter 1,$(USE_MPI)),-DUSE_MPI $(MPI_CXXFLAGS))
FLAGS     := -std=c++20 -O3 --param=max-inline-insns-auto=15 --param=ggc-min-heapsize=500000 $(PROCESSOR_FLAGS) \
             -fopenmp -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-psabi
EMULATED  := -DEMULATED_GPU -DGPU_FLOAT32 -DUSE_NCCL -Idev/emulator/include -O1 -fno-strict-aliasing -Wno-unknown-pragmas $(EMULATEDFLAGS)
# 20050: a kernel's `inline` has its effect, one definition in several units, though nvcc says that it is ignored.
NVCCFLAGS := $(NVCC_FLAGS) -O3 -diag-suppress=20050 $(CUDA_ARCH) $(if $(findstring sm_90a,$(CUDA_ARCH)),-DUSE_WGMMA) $(if $(filter 1,$(FLOAT32)),-DGPU_FLOAT32) \
             $(if $(filter 1,$(USE_NCCL)),-DUSE_NCCL $(NCCL_CXXFLAGS)) $(CUDAFLAGS) $(addprefix -Xcompiler=,$(filter-out -std=% -W%,$(FLAGS) $(CXXFLAGS)) -Wno-psabi)
LIBS      := $(BLAS_LIBS) $(TEXT_LIBS) $(if $(filter 1,$(USE_MPI)),$(MPI_LIBS)) -lpthread
GPU_LIBS  := $(CUDA_LIBS) $(if $(filter 1,$(USE_NCCL)),$(NCCL_LIBS))

# An object is written under another name and renamed, so that an interrupted build leaves no partial file.
SAY     = @mkdir -p $(@D) && echo "$(1) $@"
WRITE   = -MMD -MP -MT $@ -MF $(basename $@).d -c -o $@.new $< && mv -f $@.new $@
COMPILE = $(call SAY,compile) && $(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS) $(1) $(WRITE)
NVCOMPILE = $(call SAY,nvcc   ) && $(NVCC) -x cu $(CPPFLAGS) $(NVCCFLAGS) $(1) $(WRITE)
LINK    = $(call SAY,link   ) && $(CXX) $(FLAGS) $(CXXFLAGS) $(LDFLAGS) -o $@ $(filter %.o %.a,$^) \
          $(if $(filter build/tests/main.o,$^),$(CATCH2_LIBS)) $(LIBS) $(if $(filter build/gpu/%,$^),$(GPU_LIBS))

.PHONY: help all setup quickstart check test test-gpu kernel-report experiments labs lab lab-hint lab-check reference_qwen clean ptx FORCE
help: ## list the goals
	@sed -n 's/^\([a-z][a-z_ -]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'
	@echo "  train_VARIANT  the trainer of one attention variant; build/emulated/train_VARIANT runs its GPU code on the CPU"
	@echo "  test-VARIANT   the tests of one variant, on the CPU and on the emulated GPU"
	@echo "  build/dev/NAME a benchmark or tool from dev/NAME.cpp or, with nvcc, dev/NAME.cu" && echo "VARIANT: $(VARIANTS)"
setup: ## install the compiler and the libraries that are missing, MPI included, or print the line that does
	@scripts/install.sh run
quickstart: ## set up, build, train a small ASGA model on the bundled text, sample, plot
	@scripts/quickstart.sh
all: $(TRAINERS) tokenize generate ## build every program
test: ## install what is missing, build everything, run every test; GPU code runs on the emulator
	@scripts/run_tests.sh all
check: ## run the tests of no variant, and those of causal, asga and the variants that changed: before each commit
	@scripts/run_tests.sh check
$(VARIANTS:%=test-%): test-%: FORCE
	@scripts/run_tests.sh $*
test-gpu: ## run the tests of the GPU half on a real GPU, and compute-sanitizer over a step
	@scripts/run_gpu_tests.sh
labs: ## list the labs: errors to find by their symptoms in a copy of the tree (dev/labs/README.md)
lab: ## plant the error of lab N in out/labs/N (make lab N=1), or in LAB=FOLDER, and print its symptom
lab-hint: ## print the hint for lab N
lab-check: ## run hidden tests on the sources in out/labs/N: is the error of lab N gone
labs lab lab-hint lab-check:
	@dev/labs/lab.py $(patsubst lab-%,%,$(patsubst lab,start,$(patsubst labs,list,$@))) "$(N)"
kernel-report: build/config.mk ## count the machine code of the GPU kernels, and check its budgets (KERNEL_REPORT=OPTIONS)
	@$(or $(PYTHON),python3) dev/kernel_report/report.py $(KERNEL_REPORT)
SCALE ?= reduced
experiments: ## run published claims again, out/experiments/report.html (SCALE=smoke, ONLY="e1_asga e2_dsa", EXPERIMENT_OPTIONS=...)
	@$(or $(PYTHON),python3) scripts/experiments/run.py $(or $(ONLY),all) --scale $(SCALE) --out out/experiments $(EXPERIMENT_OPTIONS)
	@$(or $(PYTHON),python3) scripts/experiments/report.py --ledger out/experiments/ledger.jsonl --out out/experiments --scale $(SCALE) $(ONLY)
clean: ## remove everything that was built (keeps out/ and data/)
	rm -rf build $(filter-out train_gpt.cu,$(wildcard train_*)) tokenize generate

# ---- objects: build/ for the CPU, build/gpu/ by nvcc, build/emulated/ with the GPU emulated
build/%.o: %.cpp build/flags
	$(call COMPILE)
build/%.o: %.cu build/flags
	$(call COMPILE,-x c++)
build/gpu/%.o: %.cpp build/gpu/flags
	$(call NVCOMPILE)
build/gpu/%.o: %.cu build/gpu/flags
	$(call NVCOMPILE)
build/emulated/%.o: %.cpp build/emulated/flags
	$(call COMPILE,$(EMULATED))
build/emulated/%.o: %.cu build/emulated/flags
	$(call COMPILE,$(EMULATED) -x c++)
.SECONDEXPANSION:   # A variant is attention/variant.cu compiled with its name, and its decoding/NAME.cuh where it has one.
$(VARIANTS:%=build/attention/%.o): build/attention/%.o: attention/variant.cu $$(wildcard attention/decoding/$$*.cuh) build/flags
	$(call COMPILE,-DATTENTION=$* -x c++)
$(VARIANTS:%=build/gpu/attention/%.o): build/gpu/attention/%.o: attention/variant.cu $$(wildcard attention/decoding/$$*.cuh) build/gpu/flags
	$(call NVCOMPILE,-DATTENTION=$*)
$(VARIANTS:%=build/emulated/attention/%.o): build/emulated/attention/%.o: attention/variant.cu $$(wildcard attention/decoding/$$*.cuh) build/emulated/flags
	$(call COMPILE,$(EMULATED) -DATTENTION=$* -x c++)
# What the tree carries into programs: its commit, for logs; and Python files and descriptions, for checkpoints.
COMMIT := $(or $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2> /dev/null),unknown)
CARRIED := $(wildcard scripts/attention_torch/*.py) $(VARIANTS:%=attention/%.cuh)
build/model/base/commit.o: model/base/commit.cpp build/flags build/commit
	$(call COMPILE,-DCOMMIT='"$(COMMIT)"')
build/carried_texts.o: scripts/carried_texts.sh $(CARRIED) build/flags
	@mkdir -p $(@D) && scripts/carried_texts.sh $(CARRIED) > $(@:o=cpp) && $(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS) \
	    -c -o $@.new $(@:o=cpp) && mv -f $@.new $@

# ---- the engine: a library for the CPU, and one for GPUs or emulated GPUs that goes with it
# A source of data/ whose library is missing (WITHOUT) is replaced by data/without/, which refuses in a sentence.
NOT_ENGINE := data/tokenize.cpp model/generate/without_gpu.cpp model/base/commit.cpp $(foreach unit,$(WITHOUT),data/%/$(unit).cpp)
ENGINE_SOURCES := $(filter-out $(NOT_ENGINE),$(wildcard attention/*.cpp attention/inference/*.cpp data/*.cpp data/documents/*.cpp \
                    data/tokenizers/*.cpp model/*.cpp model/*/*.cpp)) $(BLAS_SOURCE) $(WITHOUT:%=data/without/%.cpp)
FOLDERS := $(patsubst %/,%,$(sort $(dir $(ENGINE_SOURCES))))
DEVICE_UNITS := model/gpt attention/causal   # causal: every program has it, for hybrids
ENGINE := build/engine.a
EMULATED_ENGINE := build/emulated/engine.a $(ENGINE)
build/engine.a: $(FOLDERS:%=build/%.o) $(DEVICE_UNITS:%=build/%.o) build/model/base/commit.o build/carried_texts.o build/units
build/gpu/engine.a: $(DEVICE_UNITS:%=build/gpu/%.o)
build/emulated/engine.a: $(DEVICE_UNITS:%=build/emulated/%.o)
build/engine.a build/gpu/engine.a build/emulated/engine.a:
	@rm -f $@ && ar rcs $@ $(filter %.o,$^)
# The host's sources of a folder are compiled as one unit: half the time goes into headers that they share.
$(FOLDERS:%=build/%.o): build/%.o: $$(filter $$(wildcard $$*/*.cpp),$(ENGINE_SOURCES)) build/flags
	$(call COMPILE,$(patsubst %,-include %,$(filter-out $<,$(filter $(ENGINE_SOURCES),$^))))

# ---- programs: with nvcc they carry both devices
CPU_VARIANTS := $(VARIANTS:%=build/attention/%.o)
GPU_VARIANTS := $(VARIANTS:%=build/gpu/attention/%.o) $(CPU_VARIANTS)
EMULATED_VARIANTS := $(VARIANTS:%=build/emulated/attention/%.o) $(CPU_VARIANTS)
HERE := build$(if $(WITH_CUDA),/gpu)
ENGINE_HERE := $(if $(WITH_CUDA),build/gpu/engine.a) $(ENGINE)
GENERATE_HERE := build/model/generate/generate.o build/$(if $(WITH_CUDA),gpu/model/generate/generate_gpu,model/generate/without_gpu).o
GENERATE_EMULATED := build/model/generate/generate.o build/emulated/model/generate/generate_gpu.o
tokenize: build/data/tokenize.o $(ENGINE)
$(TRAINERS): train_%: $(HERE)/train_gpt.o $(HERE)/attention/%.o build/attention/%.o $(ENGINE_HERE) | $(BUNDLED)
generate: $(GENERATE_HERE) $(VARIANTS:%=$(HERE)/attention/%.o) $(CPU_VARIANTS) $(ENGINE_HERE)
$(VARIANTS:%=build/generate_%): build/generate_%: $(GENERATE_HERE) $(HERE)/attention/%.o build/attention/%.o $(ENGINE_HERE)
$(VARIANTS:%=build/emulated/train_%): build/emulated/train_%: build/emulated/train_gpt.o build/emulated/attention/%.o build/attention/%.o \
        $(EMULATED_ENGINE) | $(BUNDLED) build/emulated/data
build/emulated/generate: $(GENERATE_EMULATED) $(EMULATED_VARIANTS) $(EMULATED_ENGINE)
$(VARIANTS:%=build/emulated/generate_%): build/emulated/generate_%: $(GENERATE_EMULATED) build/emulated/attention/%.o build/attention/%.o \
        $(EMULATED_ENGINE)
build/emulated/data:   # programs look for the bundled text beside themselves
	@mkdir -p $(@D) && ln -sfn ../../data $@
$(BUNDLED): data/bundled/sotu.jsonl | tokenize   # the bundled text as token shards: the default of --train-data
	./tokenize --tokenizer bytes --out data/bundled --name sotu $<
reference_qwen: build/reference_qwen | $(BUNDLED) ## build/reference_qwen: Qwen3 and ASGA in one file of plain C, the first to read
build/reference_qwen: tests/reference_qwen.c
	$(call SAY,compile) && $(CC) -std=c11 -O3 $(PROCESSOR_FLAGS) -fopenmp -Wall -Wextra -o $@ $< -lm

# ---- tests: of the CPU; of GPUs, which build/emulated/ runs on the CPU and build/gpu/ on a GPU
TESTS := $(patsubst %.cpp,build/%.o,$(wildcard tests/*.cpp tests/variant/*.cpp))
GPU_TESTS := $(patsubst %.cpp,%.o,$(filter-out %_program.cpp,$(wildcard tests/gpu/*.cpp tests/gpu/variant/*.cpp)))
EMULATOR_TESTS := $(patsubst %.cpp,build/emulated/%.o,$(wildcard tests/emulator/test_*.cpp))
OF_VARIANT := tests/variant/% tests/gpu/variant/%
build/tests/run_tests: $(TESTS) $(CPU_VARIANTS) $(ENGINE)
build/emulated/run_tests: $(GPU_TESTS:%=build/emulated/%) $(EMULATOR_TESTS) build/tests/main.o $(EMULATED_VARIANTS) $(EMULATED_ENGINE)
build/gpu/run_tests: $(GPU_TESTS:%=build/gpu/%) build/tests/main.o $(GPU_VARIANTS) build/gpu/engine.a $(ENGINE)
build/emulated/operation_tests: $(patsubst %,build/emulated/%,$(filter-out $(OF_VARIANT),$(GPU_TESTS))) $(EMULATOR_TESTS) build/tests/main.o \
        $(CPU_VARIANTS) $(EMULATED_ENGINE)
$(VARIANTS:%=build/tests/test_%): build/tests/test_%: $(filter build/tests/variant/%,$(TESTS)) build/tests/main.o build/attention/%.o $(ENGINE)
$(VARIANTS:%=build/emulated/test_%): build/emulated/test_%: $(patsubst %,build/emulated/%,$(filter $(OF_VARIANT),$(GPU_TESTS))) build/tests/main.o \
        build/emulated/attention/%.o build/attention/%.o $(EMULATED_ENGINE)
build/emulated/collectives_program: build/emulated/tests/gpu/collectives_program.o $(EMULATED_ENGINE)
build/tests/faults.so: tests/faults/shim.c   # makes system calls on files fail; dev/faults.py preloads it
	$(call SAY,compile) && $(CC) -std=gnu11 -O1 -g -Wall -Wextra -shared -fPIC -o $@ $< -ldl
# GPU tests and benchmarks through nvcc, as PTX for Hopper. Device code that nvcc cannot make, for want of a host constant, is a trap without a word.
PTX := $(GPU_TESTS:%.o=build/ptx/%.ptx) $(patsubst %,build/ptx/%.ptx,$(basename tests/gpu/collectives_program.cpp $(wildcard dev/bench*.cu)) dev/ladder/ladder)
ptx: $(if $(WITH_CUDA),$(PTX))
	@$(if $^,awk '/\.(entry|func)/ { inside = $$NF } /trap;/ && last !~ /begin inline asm/ { n++; print FILENAME ": nvcc made a trap in " inside } \
	              { last = $$0 } END { exit n > 0 }' $^)
build/ptx/%.ptx: build/gpu/flags
	$(call SAY,nvcc   ) && $(NVCC) -x cu -ptx $(CPPFLAGS) $(NVCC_FLAGS) -arch=compute_90a -DUSE_WGMMA $(CUDAFLAGS) -diag-suppress=20050 \
	    -Xcompiler=-fopenmp,-Wno-psabi -MMD -MP -MT $@ -MF $(basename $@).d -o $@.new $(wildcard $*.c*) && mv -f $@.new $@

# ---- benchmarks and tools
CUDA_TOOLS := $(basename $(wildcard dev/*.cu dev/ladder/*.cu))
HOST_TOOLS := $(basename $(wildcard dev/*.cpp))
build/dev/bench_patterns_gpu: $(GPU_VARIANTS)
build/dev/bench_gpu: build/gpu/attention/asga.o build/gpu/attention/sliding_window.o
build/emulated/dev/bench_gpu build/emulated/dev/bench_patterns_gpu: $(EMULATED_VARIANTS)
$(addprefix build/dev/,attention_layer bench_patterns logits): $(CPU_VARIANTS)
$(CUDA_TOOLS:%=build/%): build/%: build/gpu/%.o build/gpu/engine.a $(ENGINE)
$(CUDA_TOOLS:%=build/emulated/%): build/emulated/%: build/emulated/%.o $(EMULATED_ENGINE)
$(HOST_TOOLS:%=build/%): build/%: build/%.o $(ENGINE)
PROGRAMS := tokenize generate $(TRAINERS) build/tests/run_tests build/gpu/run_tests $(HOST_TOOLS:%=build/%) $(CUDA_TOOLS:%=build/%) \
            $(CUDA_TOOLS:%=build/emulated/%) $(addprefix build/emulated/,generate run_tests operation_tests collectives_program) \
            $(foreach v,$(VARIANTS),build/generate_$v build/tests/test_$v $(addprefix build/emulated/,train_$v generate_$v test_$v))
$(PROGRAMS): build/units
	$(LINK)

# ---- bookkeeping
# Files of flags, units, commit and machine: each changes when its content does, and its dependents are then built again.
UNLESS_SAME = > $@.new && { cmp -s $@.new $@ && rm $@.new || mv -f $@.new $@; }
build/machine: FORCE   # the probe runs again where a package, compiler, processor or GPU has come or gone
	@mkdir -p $(@D) && { echo "$(CXX) $$ARCH"; command -v g++ nvcc mpicxx; grep -m 1 'model name' /proc/cpuinfo; \
	    ls -d /dev/nvidia*; stat -c '%n %Y' /var/lib/dpkg/status /usr/local/lib /usr/local/cuda; true; } 2> /dev/null $(UNLESS_SAME)
build/config.mk: build/machine scripts/probe.sh scripts/probe_cuda.sh
	@CXX="$(CXX)" scripts/probe.sh $@
build/flags build/gpu/flags build/emulated/flags: FORCE
	@mkdir -p $(@D) && echo '$(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS)' '$(if $(findstring gpu,$@),$(NVCC) $(NVCCFLAGS))' \
	    '$(if $(findstring emulated,$@),$(EMULATED))' $(UNLESS_SAME)
build/commit build/units: FORCE
	@echo '$(if $(findstring commit,$@),$(COMMIT),$(WITH_CUDA) $(ENGINE_SOURCES) $(TESTS) $(GPU_TESTS) $(EMULATOR_TESTS) $(LDFLAGS) $(LIBS) $(GPU_LIBS))' $(UNLESS_SAME)
UNKNOWN := $(filter-out test-gpu $(TRAINERS) $(VARIANTS:%=test-%),$(filter train_% test-%,$(MAKECMDGOALS)))
$(UNKNOWN): FORCE
	@echo "make $@: there is no attention/$(patsubst train_%,%,$(@:test-%=%)).cuh; the variants are: $(VARIANTS)" >&2; exit 2
-include $(shell find build -name sanitized -prune -o -name '*.d' -type f -print 2> /dev/null)
