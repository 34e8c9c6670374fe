# make help says what there is. Sources are found by wildcard: a file attention/NAME.cuh is all that `make train_NAME` needs.
# Flags of your own go into CXXFLAGS (make CXXFLAGS="-Og -g"), another compiler into CXX, another processor into ARCH.
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
CPPFLAGS += -I. $(BLAS_CXXFLAGS) $(if $(filter 1,$(USE_MPI)),-DUSE_MPI $(MPI_CXXFLAGS))
FLAGS    := -std=c++20 -O3 $(ARCH) -fopenmp -fno-math-errno -fno-trapping-math -Wall -Wextra -Wno-psabi
LIBS     := $(BLAS_LIBS) $(if $(filter 1,$(USE_MPI)),$(MPI_LIBS)) -lpthread

COMPILE = @mkdir -p $(@D) && echo "compile $@" && $(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS) -MMD -MP -c -o $@
LINK    = @mkdir -p $(@D) && echo "link    $@" && $(CXX) $(FLAGS) $(CXXFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^)
VARIANT_OF = -x c++ -DATTENTION=$(1)

# Objects that every program shares: all host code that has no main().
ENGINE     := $(patsubst %.cpp,build/%.o,$(filter-out data/tokenize.cpp,$(wildcard model/*.cpp data/*.cpp)))
GENERATORS := build/generate.o $(VARIANTS:%=build/generate_%.o)
TESTS      := $(patsubst %.cpp,build/%.o,$(wildcard tests/*.cpp)) \
              $(foreach test,$(wildcard tests/variant/*.cpp),$(VARIANTS:%=build/$(test:.cpp=)_%.o))

.PHONY: help
help: ## this list
	@echo "make TARGET (add -j to use every core):"
	@sed -n 's/^\([a-z][a-z -]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-21s %s\n", $$1, $$2 }'
	@echo "  train_VARIANT       the training program of one attention variant; mpirun -np N ./train_VARIANT for N ranks"
	@echo "                      VARIANT is one of: $(VARIANTS)"
	@echo "  tokenize, generate  text to token shards; text from a checkpoint"
	@echo "  build/dev/NAME      a benchmark or tool from dev/NAME.cpp"

.PHONY: all quickstart test test-gpu mutations configure check-nvcc clean
all: $(TRAINERS) tokenize generate ## every program

quickstart: ## install what is missing, build, train a small ASGA model on the bundled text, sample, plot
	@scripts/quickstart.sh

test: ## install what is missing, build and run every test
	@scripts/run_tests.sh

test-gpu: ## the tests on a GPU
	@echo "make test-gpu: every operation of this version runs on the CPU and there is no CUDA kernel to test; make test runs the tests" >&2
	@exit 1

mutations: ## plant errors in a copy of the tree, one after the other; the tests must notice each (ten minutes)
	@dev/mutations.sh

configure: ## look again for compilers and libraries, and rebuild with what there is
	@CXX="$(CXX)" scripts/probe.sh build/config.mk

check-nvcc: build/nvcc/train_causal.o build/nvcc/train_asga.o ## compile the training program's source with nvcc

clean: ## remove everything that was built (keeps out/ and data/)
	rm -rf build $(TRAINERS) tokenize generate

# ---- programs
$(TRAINERS): train_%: build/train_%.o $(ENGINE) | $(BUNDLED)
	$(LINK) $(LIBS)

tokenize: build/data/tokenize.o $(ENGINE)
	$(LINK) $(LIBS)

generate: $(GENERATORS) $(ENGINE)
	$(LINK) $(LIBS)

build/tests/run_tests: $(TESTS) $(ENGINE)
	$(LINK) $(CATCH2_LIBS) $(LIBS)

build/dev/%: build/dev/%.o $(ENGINE)
	$(LINK) $(LIBS)

# The bundled text as token shards: what training reads when it is given no data.
$(BUNDLED): data/bundled/sotu.jsonl | tokenize
	./tokenize --tokenizer bytes --out data/bundled --name sotu $<

# ---- objects
$(VARIANTS:%=build/train_%.o): build/train_%.o: train_gpt.cu build/flags
	$(COMPILE) $(call VARIANT_OF,$*) $<

$(VARIANTS:%=build/generate_%.o): build/generate_%.o: model/generate_variant.cu build/flags
	$(COMPILE) $(call VARIANT_OF,$*) $<

build/generate.o: model/generate.cu build/flags
	$(COMPILE) -x c++ $<

# Tests that every variant has to pass are compiled once per variant.
define TEST_OF_EVERY_VARIANT
$(VARIANTS:%=build/$(1:.cpp=)_%.o): build/$(1:.cpp=)_%.o: $(1) build/flags
	$$(COMPILE) $$(call VARIANT_OF,$$*) $$<
endef
$(foreach test,$(wildcard tests/variant/*.cpp),$(eval $(call TEST_OF_EVERY_VARIANT,$(test))))

build/%.o: %.cpp build/flags
	$(COMPILE) $<

build/nvcc/train_%.o: train_gpt.cu attention/%.cuh
	@mkdir -p $(@D)
	$(or $(NVCC),$(error there is no nvcc on this machine)) -std=c++20 -x cu $(CPPFLAGS) -DATTENTION=$* -Xcompiler -fopenmp -c -o $@ $<

train_%:
	@echo "make $@: there is no attention/$*.cuh; the variants are: $(VARIANTS)" >&2
	@exit 2
train_gpt.cu: ;

# ---- bookkeeping
build/config.mk: scripts/probe.sh
	@CXX="$(CXX)" scripts/probe.sh $@

# Holds the flags and changes only when they do, so that no object stays behind when CXXFLAGS or USE_MPI change.
build/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS)' | cmp -s - $@ || echo '$(CXX) $(CPPFLAGS) $(FLAGS) $(CXXFLAGS)' > $@
.PHONY: FORCE
FORCE:

-include $(shell find build -name '*.d' 2> /dev/null)
