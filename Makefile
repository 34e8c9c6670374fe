# make help says what there is. Sources are found by wildcard: a file attention/NAME.cuh is all that `make train_NAME` needs.
# Flags of your own go into CXXFLAGS (make CXXFLAGS="-Og -g"), another compiler into CXX, another processor into ARCH. Where nvcc is
# found the training programs have both devices in them; USE_CUDA=0 leaves the GPU out, USE_NCCL=0 and USE_MPI=0 those.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PRECIOUS: build/%.o
MAKEFLAGS += --no-builtin-rules

VARIANTS := $(sort $(basename $(notdir $(wildcard attention/*.cuh))))
TRAINERS := $(VARIANTS:%=train_%)
BUNDLED  := data/bundled/sotu_manifest.json

# What this machine has (libraries, MPI, processor flags): probed once, only for goals that compile.
NOT_COMPILED := help clean configure quickstart test test-gpu mutations
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
NVCCFLAGS := $(NVCC_FLAGS) -O3 $(CUDA_ARCH) $(if $(filter 1,$(USE_NCCL)),-DUSE_NCCL $(NCCL_CXXFLAGS)) \
             $(addprefix -Xcompiler=,$(filter-out -std=% -W%,$(FLAGS) $(CXXFLAGS)) -Wno-psabi)
GPU_LIBS := $(CUDA_LIBS) $(if $(filter 1,$(USE_NCCL)),$(NCCL_LIBS))
EMULATED := -DEMULATED_GPU -DUSE_NCCL -Idev/emulator/include -O2 -fno-strict-aliasing -Wno-unknown-pragmas

COMPILE = @mkdir -p $(@D) && echo "compile $@" && $(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS) -MMD -MP -c -o $@
COMPILE_CUDA = @mkdir -p $(@D) && echo "nvcc    $@" && $(NVCC) -x cu $(CPPFLAGS) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@
LINK    = @mkdir -p $(@D) && echo "link    $@" && $(CXX) $(FLAGS) $(CXXFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^)
VARIANT_OF = -DATTENTION=$(1)

# Objects that every program shares: all host code that has no main(). A source of data/ whose library is missing is replaced by the
# one of its name in data/without/, which refuses in a sentence.
HOST_CODE  := $(filter-out data/tokenize.cpp $(WITHOUT:%=data/%.cpp),$(wildcard model/*.cpp data/*.cpp)) $(WITHOUT:%=data/without/%.cpp)
ENGINE     := $(patsubst %.cpp,build/%.o,$(HOST_CODE) $(BLAS_SOURCE))
GENERATORS := build/generate.o $(VARIANTS:%=build/generate_%.o)
TESTS      := $(patsubst %.cpp,build/%.o,$(wildcard tests/*.cpp)) $(VARIANTS:%=build/tests/variants/%.o)

# Tests of the GPU half: build/emulated/ runs them on the CPU, build/gpu/ on a GPU.
GPU_TESTS  := $(patsubst %.cpp,%.o,$(filter-out %_program.cpp,$(wildcard tests/gpu/*.cpp))) $(VARIANTS:%=tests/gpu/variants/%.o)
EMULATOR_TESTS := $(patsubst %.cpp,%.o,$(wildcard tests/emulator/test_*.cpp))

.PHONY: help
help: ## this list
	@echo "make TARGET (add -j to use every core):"
	@sed -n 's/^\([a-z][a-z -]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-21s %s\n", $$1, $$2 }'
	@echo "  train_VARIANT       the training program of one attention variant; mpirun -np N ./train_VARIANT for N ranks"
	@echo "                      VARIANT is one of: $(VARIANTS)"
	@echo "  tokenize, generate  text to token shards; text from a checkpoint"
	@echo "  build/dev/NAME      a benchmark or tool from dev/NAME.cpp or, with nvcc, dev/NAME.cu"
	@echo "  build/emulated/train_VARIANT   the same program with its GPU emulated on the CPU (dev/emulator)"

.PHONY: all quickstart test test-gpu mutations configure clean
all: $(TRAINERS) tokenize generate ## every program

quickstart: ## install what is missing, build, train a small ASGA model on the bundled text, sample, plot
	@scripts/quickstart.sh

test: ## install what is missing, build and run every test; GPU code runs on the emulator
	@scripts/run_tests.sh

test-gpu: ## the tests of the GPU half on a real GPU, and compute-sanitizer over a step
	@scripts/run_gpu_tests.sh

mutations: ## plant errors in copies of the tree, one after the other; the tests must notice each (an hour or more)
	@dev/mutations.sh

configure: ## look again for compilers and libraries, and rebuild with what there is
	@CXX="$(CXX)" scripts/probe.sh build/config.mk

clean: ## remove everything that was built (keeps out/ and data/)
	rm -rf build $(TRAINERS) tokenize generate

# ---- programs
$(TRAINERS): train_%: build/train_%.o $(ENGINE) | $(BUNDLED)
	$(LINK) $(LIBS) $(if $(WITH_CUDA),$(GPU_LIBS))

$(VARIANTS:%=build/emulated/train_%): build/emulated/train_%: build/emulated/train_%.o $(ENGINE) | $(BUNDLED) build/emulated/data
	$(LINK) $(LIBS)
build/emulated/data build/$(SANITIZER)/data:   # programs look for the bundled text beside themselves
	@mkdir -p $(@D) && ln -sfn ../../data $@

# make SANITIZER=thread build/thread/train_asga: the emulated program with the sanitizer in it.
ifneq ($(SANITIZER),)
build/$(SANITIZER)/train_%: train_gpt.cu $(ENGINE) build/flags | $(BUNDLED) build/$(SANITIZER)/data
	@mkdir -p $(@D) && echo "$(SANITIZER) sanitizer: $@"
	@$(CXX) $(CPPFLAGS) $(FLAGS) $(EMULATED) -O1 -g1 -fsanitize=$(SANITIZER) -MMD -MP -MF $@.d -MT $@ -x c++ $(call VARIANT_OF,$*) $< \
	 -x none $(filter %.o,$^) $(LIBS) -o $@
endif

tokenize: build/data/tokenize.o $(ENGINE)
	$(LINK) $(LIBS)

generate: $(GENERATORS) $(ENGINE)
	$(LINK) $(LIBS)

build/tests/run_tests: $(TESTS) $(ENGINE)
	$(LINK) $(CATCH2_LIBS) $(LIBS)

build/emulated/run_tests: $(GPU_TESTS:%=build/emulated/%) $(EMULATOR_TESTS:%=build/emulated/%) build/tests/main.o $(ENGINE)
	$(LINK) $(CATCH2_LIBS) $(LIBS)

build/gpu/run_tests: $(GPU_TESTS:%=build/gpu/%) build/tests/main.o $(ENGINE)
	$(LINK) $(CATCH2_LIBS) $(LIBS) $(GPU_LIBS)

build/emulated/collectives_program: build/emulated/tests/gpu/collectives_program.o $(ENGINE)
	$(LINK) $(LIBS)

CUDA_TOOLS := $(basename $(wildcard dev/*.cu dev/ladder/*.cu))
$(CUDA_TOOLS:%=build/%): build/%: build/%.o $(ENGINE)
	$(LINK) $(LIBS) $(GPU_LIBS)
$(CUDA_TOOLS:%=build/%.o): build/%.o: %.cu build/flags
	$(COMPILE_CUDA) $<
$(CUDA_TOOLS:%=build/emulated/%): build/emulated/%: build/emulated/%.o $(ENGINE)
	$(LINK) $(LIBS)
$(CUDA_TOOLS:%=build/emulated/%.o): build/emulated/%.o: %.cu build/flags
	$(COMPILE) $(EMULATED) -x c++ $<

build/dev/%: build/dev/%.o $(ENGINE)
	$(LINK) $(LIBS)

# The bundled text as token shards: what training reads when it is given no data.
$(BUNDLED): data/bundled/sotu.jsonl | tokenize
	./tokenize --tokenizer bytes --out data/bundled --name sotu $<

# ---- objects
$(VARIANTS:%=build/train_%.o): build/train_%.o: train_gpt.cu build/flags
	$(if $(WITH_CUDA),$(COMPILE_CUDA),$(COMPILE) -x c++) $(call VARIANT_OF,$*) $<

$(VARIANTS:%=build/emulated/train_%.o): build/emulated/train_%.o: train_gpt.cu build/flags
	$(COMPILE) $(EMULATED) -x c++ $(call VARIANT_OF,$*) $<

$(VARIANTS:%=build/generate_%.o): build/generate_%.o: model/generate_variant.cu build/flags
	$(COMPILE) -x c++ $(call VARIANT_OF,$*) $<

build/generate.o: model/generate.cu build/flags
	$(COMPILE) -x c++ $<

# Tests that every variant has to pass: all of them in one translation unit per variant, which has the model in it once ...
ALL_OF = printf '\#include "%s"\n' $(sort $(wildcard $(1)/*.cpp)) |
$(VARIANTS:%=build/tests/variants/%.o): build/tests/variants/%.o: build/flags
	$(subst && $(CXX),&& $(call ALL_OF,tests/variant) $(CXX),$(COMPILE)) $(call VARIANT_OF,$*) -x c++ -
$(VARIANTS:%=build/emulated/tests/gpu/variants/%.o): build/emulated/tests/gpu/variants/%.o: build/flags
	$(subst && $(CXX),&& $(call ALL_OF,tests/gpu/variant) $(CXX),$(COMPILE)) $(EMULATED) $(call VARIANT_OF,$*) -x c++ -
$(VARIANTS:%=build/gpu/tests/gpu/variants/%.o): build/gpu/tests/gpu/variants/%.o: build/flags
	@mkdir -p $(@D) && $(call ALL_OF,tests/gpu/variant) cat > $(@:.o=.cu)
	$(COMPILE_CUDA) $(call VARIANT_OF,$*) $(@:.o=.cu)

# ... and each alone, for dev/mutations.sh and for whoever works on one.
define TEST_OF_EVERY_VARIANT
$(VARIANTS:%=build/$(1:.cpp=)_%.o): build/$(1:.cpp=)_%.o: $(1) build/flags
	$$(COMPILE) $$(call VARIANT_OF,$$*) $$<
endef
$(foreach test,$(wildcard tests/variant/*.cpp),$(eval $(call TEST_OF_EVERY_VARIANT,$(test))))

define GPU_TEST_OF_EVERY_VARIANT
$(VARIANTS:%=build/emulated/$(1:.cpp=)_%.o): build/emulated/$(1:.cpp=)_%.o: $(1) build/flags
	$$(COMPILE) $$(EMULATED) $$(call VARIANT_OF,$$*) $$<
$(VARIANTS:%=build/gpu/$(1:.cpp=)_%.o): build/gpu/$(1:.cpp=)_%.o: $(1) build/flags
	$$(COMPILE_CUDA) $$(call VARIANT_OF,$$*) $$<
endef
$(foreach test,$(wildcard tests/gpu/variant/*.cpp),$(eval $(call GPU_TEST_OF_EVERY_VARIANT,$(test))))

build/emulated/%.o: %.cpp build/flags
	$(COMPILE) $(EMULATED) $<
build/gpu/%.o: %.cpp build/flags
	$(COMPILE_CUDA) $<

build/%.o: %.cpp build/flags
	$(COMPILE) $<

train_%:
	@echo "make $@: there is no attention/$*.cuh; the variants are: $(VARIANTS)" >&2
	@exit 2
train_gpt.cu: ;

# ---- bookkeeping
build/config.mk: scripts/probe.sh scripts/probe_cuda.sh
	@CXX="$(CXX)" scripts/probe.sh $@

# Holds the flags and changes only when they do, so that no object stays behind when CXXFLAGS or USE_MPI change.
build/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS) $(if $(WITH_CUDA),$(NVCCFLAGS))' | cmp -s - $@ || \
	 echo '$(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS) $(if $(WITH_CUDA),$(NVCCFLAGS))' > $@
.PHONY: FORCE
FORCE:

-include $(shell find build -name '*.d' 2> /dev/null)
