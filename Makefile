# fl - builds, tests and measures; `make help` lists the targets. Needs a C compiler and GNU make.
#
#   make CC=clang                  another compiler; every variant has a folder of its own under build/
#   make test SAN=address,undefined   or SAN=thread: with sanitizers
#   make OPENBLAS=no LAPACK=no ZLIB=no JPEG=no PNG=no   without optional parts that were found (LAPACK needs
#                                    OPENBLAS)
#   make test TESTS="test_mem test_nn"   some test programs only
#   make test SEED=7                 the cases that the seed 7 draws; make test-full: all
#   make HARDEN=no                   without the stack protector, FORTIFY_SOURCE and BIND_NOW
#   make test COMPILE=no              without tests/compile, which tries every compiler by itself
#   make CUDA=1 lib                  with the kernels for NVIDIA GPUs, by nvcc (CUDA_ARCH="80 90"); without
#                                    CUDA= nothing looks at kernels/cuda
#   make CUDA=emu test-cuda          the same kernels on the processor, by g++
#
# A target's description, for `make help`, is in the lines of ## above it.

CFLAGS ?= -O2 -g1
WARN = -Wall -Wextra -Wpedantic -Wmissing-prototypes -Wshadow
# A header of yours brings the backend of its name, as mine.h fl_backend_mine(), unless BACKEND says another.
BACKEND ?= $(or $(basename $(notdir $(BACKEND_H))),cpu)

# --- what there is ---------------------------------------------------------------------------------------

KERNELS  := $(wildcard $(foreach e,h inc,kernels/*.$(e) kernels/*/*.$(e) kernels/*/*/*.$(e)))
ifeq ($(CUDA),)
KERNELS  := $(filter-out kernels/cuda/%,$(KERNELS))
endif
HEADERS  := $(wildcard fl*.h fl/*/*.h fl/*/*/*.h) $(filter %.h,$(KERNELS))
TEXTS    := $(wildcard fl/*/*.inc fl/*/*/*.inc) $(filter %.inc,$(KERNELS))
HEADER   ?= fl_all.h
SINGLE   ?= build/single/$(HEADER)
UNITS    := $(shell grep -l '^\#if.*FL_IMPL_ONLY_' $(HEADERS) 2>/dev/null)
TESTS    ?= $(basename $(notdir $(wildcard tests/*.c)))
RESEARCH := $(basename $(wildcard examples/research/*.c))
EXAMPLES := $(basename $(wildcard examples/*.c examples/extend/*.c)) $(RESEARCH)
SPEECH   := $(basename $(wildcard examples/speech/*.c))
BENCHES  := $(basename $(wildcard bench/*.c))
MODEL_UNITS := $(basename $(wildcard bench/models/*.c))
# Programs with targets of their own, which `make test` does not run.
APPLICATIONS = mnist lm generate tokenize ngram vision_% speech_%
EXTENSIONS := $(basename $(filter-out $(APPLICATIONS:%=examples/%.c),$(wildcard examples/*.c)) \
    $(wildcard examples/extend/*.c)) $(RESEARCH)
BACKENDS := cpu lazy $(basename $(notdir $(wildcard examples/extend/naive.h examples/extend/evictor.h)))

# --- the variant -----------------------------------------------------------------------------------------

comma := ,
SANITIZERS := $(if $(SAN),-$(subst $(comma),+,$(SAN)))
PLAIN_VARIANT := $(notdir $(subst $() ,_,$(CC)))$(SANITIZERS)$(if $(SHARED),-shared)
VARIANT := $(PLAIN_VARIANT)$(if $(CUDA),-cuda-$(CUDA))
BUILD := build/$(VARIANT)
# Objects that CUDA= does not change are those of the variant without it.
PLAIN := $(if $(CUDA),$(if $(findstring command,$(origin BUILD)),$(BUILD),build/$(PLAIN_VARIANT)),$(BUILD))
# NVIDIA's libraries for the emulated device: the tests find them through FL_CUDA_LIBS.
CUDA_MOCK = $(if $(filter emu,$(CUDA)),$(addsuffix .13,$(addprefix $(BUILD)/mock/lib,cublasLt.so nvrtc.so)) \
            $(BUILD)/mock/libcudnn.so.9 $(BUILD)/mock/libnccl.so.2)
# The suites with a backend or ops of yours (tests/backends.h) are programs of their own.
YOURS = $(if $(BACKEND_H),'-DBACKEND_H="$(abspath $(BACKEND_H))"' -DBACKEND_NAME=$(BACKEND)) \
        $(if $(OPS_H),'-DOPS_H="$(abspath $(OPS_H))"') \
        $(if $(MANAGER_H),'-DMANAGER_H="$(abspath $(MANAGER_H))"' -DMANAGER_NAME=$(basename $(notdir $(MANAGER_H))))
SUITES = $(BUILD)/$(if $(BACKEND_H)$(OPS_H)$(MANAGER_H),yours,tests)
API := build/api
API_PARTS := $(HEADERS:%=$(API)/%)

SAN_FLAGS = $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer -DFL__UNROLL=)
PIC_FLAGS = $(if $(SHARED),-fPIC -DFL_BUILD_SHARED)
ALL_CFLAGS = $(CFLAGS) $(SAN_FLAGS) $(HARDEN_CFLAGS) $(PIC_FLAGS) $(WARN) -pthread
# Sanitizers check more, and their interceptors do not know the functions of FORTIFY_SOURCE, which needs an
# optimiser.
ifeq ($(SAN)$(filter no,$(HARDEN)),)
HARDEN_CFLAGS = $(HARDEN_FLAGS) $(if $(filter -O0,$(CFLAGS)),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
HARDEN_LDFLAGS = $(HARDEN_LIBS)
endif

NO_CONFIG = help clean single calls uninstall
ifneq ($(filter-out $(NO_CONFIG),$(or $(MAKECMDGOALS),all)),)
include $(PLAIN)/config.mk
# Files of optional parts that came, moved or went since they were probed.
FOUND := $(shell package/probe --found $(PROBE_DIRS))
endif
# The thread sanitizer cannot look into OpenBLAS.
ifeq ($(filter no,$(OPENBLAS))$(filter thread,$(SAN)),)
OPTIONS += $(OPENBLAS_FLAGS)
LIBS += $(OPENBLAS_LIBS)
ifneq ($(LAPACK),no)
OPTIONS += $(LAPACK_FLAGS)
LIBS += $(LAPACK_LIBS)
endif
endif
# Libraries of the packages: what was found and is not refused, as by ZLIB=no.
WANTED := $(foreach part,ZLIB JPEG PNG SNDFILE PCRE2,$(if $(filter no,$($(part))),,$(part)))
OPTIONS += $(foreach part,$(WANTED),$($(part)_FLAGS))
LIBS += $(foreach part,$(WANTED),$($(part)_LIBS))
# Gloo carries data between ranks; without it examples/extend/ring.h does. The thread sanitizer cannot look
# into it.
ifeq ($(filter no,$(GLOO))$(filter thread,$(SAN))$(if $(GLOO_FLAGS),,no),)
OPTIONS += $(GLOO_FLAGS)
LIBS += $(GLOO_LIBS)
GLOO_OBJECT = $(PLAIN)/kernels/dist/gloo.o
else
OPTIONS += -DFL_DIST_IMPL=ring '-DFL_DIST_IMPL_H="examples/extend/ring.h"'
endif
LIBS += -lm -lpthread

# --- targets ---------------------------------------------------------------------------------------------

# Each target that has a description, and the description, which starts with its group.
list_targets = awk '/^\#\# / { text = text substr($$0, 3); next } \
    text { printf "%-18s%s\n", substr($$0, 1, index($$0, ":") - 1), text; text = "" }' \
    $(firstword $(MAKEFILE_LIST))
.PHONY: $(filter-out bench-% research-%,$(shell $(list_targets) | sed 's/ .*//')) bench-dist_steps FORCE
.SECONDARY:
.DELETE_ON_ERROR:

## [build] builds the library and the examples (default)
all: lib examples

# A script of the linker, which names the library and what it needs.
## [build] builds build/<variant>/libfl.a, and build/libfl.a for programs: cc x.c -Ifl -Lfl/build -lfl
lib: $(BUILD)/libfl.a
	@echo 'INPUT("$(abspath $<)" $(CUDA_LIBS) $(LIBS))' > build/libfl.a

## [build] builds build/<variant>-shared/libfl.so
shared:
	@$(MAKE) --no-print-directory SHARED=1 build/$(VARIANT)-shared/libfl.so

PREFIX ?= /usr/local
DEST = $(DESTDIR)$(PREFIX)
INSTALLED = $(HEADERS) $(TEXTS) build/calls.h
PYTHON_MODULES = examples/python/fl.py examples/python/fl_decoder.py
VERSION = $(shell sed -n 's/^.define FL_VERSION_[MP][A-Z]* //p' fl/mem/build.h | paste -sd.)
# Until version 1 a minor version may change structs: it is part of the shared library's name, which a program
# asks for.
ABI = $(basename $(VERSION))

## [build] installs headers, libfl.a, libfl.so, fl.py, pkg-config and CMake files: make install
## PREFIX=/usr/local DESTDIR=
install: lib shared build/calls.h
	@DEST="$(DEST)" PREFIX="$(PREFIX)" VERSION=$(VERSION) ABI=$(ABI) LIBS="$(strip $(LIBS))" package/install \
	    $(BUILD)/libfl.a build/$(VARIANT)-shared/libfl.so $(INSTALLED) -- $(PYTHON_MODULES)

## [build] removes what install installed: make uninstall PREFIX=/usr/local DESTDIR=
uninstall:
	@cd "$(DEST)" && for f in $(INSTALLED); do rm -f include/fl/$$f; done
	@cd "$(DEST)/lib" && rm -f libfl.a libfl.so libfl.so.$(ABI) libfl.so.$(VERSION) pkgconfig/fl.pc \
	    cmake/fl/fl-config.cmake $(PYTHON_MODULES:examples/%=%) \
	    $(PYTHON_MODULES:examples/python/%.py=python/__pycache__/%.*.pyc)
	@cd "$(DEST)" && for d in include/fl lib/cmake/fl lib/python; do \
	    [ ! -d $$d ] || find $$d -depth -type d -empty -delete; done

## [build] writes build/calls.h, for -DFL_TRACE_CALLS: errors and traces then name the file and line of the
## call
calls: build/calls.h

build/calls.h: $(HEADERS) fl/calls.awk
	@mkdir -p $(@D)
	@awk -f fl/calls.awk $(filter fl_%.h fl/%.h,$(HEADERS)) > $@.$$$$ && mv $@.$$$$ $@

## [build] writes build/single/fl_all.h, all headers as one file; HEADER=fl.h: one header and what it needs
single: build/calls.h
	@mkdir -p $(dir $(SINGLE))
	@awk -v header=$(HEADER) -f fl/single.awk LICENSE $(HEADERS) $(TEXTS) build/calls.h > $(SINGLE).new
	@mv $(SINGLE).new $(SINGLE)
	@echo $(SINGLE)

# Programs of examples/ with targets of their own: variables become arguments.
# $(call opt,name,value): --name "value" where there is a value; $(call opt_equals,name,value): --name="value"
opt = $(if $(2),--$(1) "$(2)")
opt_equals = $(if $(2),--$(1)="$(2)")

## [build] builds the programs of examples/
examples: $(EXAMPLES:%=$(BUILD)/%)

## [train] trains the CNN of the Flashlight paper on MNIST: make mnist [DATA=dir] [ARGS="--epochs 3 ..."]
mnist: $(BUILD)/examples/mnist $(CUDA_MOCK)
	$(if $(CUDA),FL_DEVICE=$${FL_DEVICE:-cuda}) $(if $(CUDA_MOCK),FL_CUDA_LIBS=$${FL_CUDA_LIBS:-$(BUILD)/mock}) \
	    $< $(call opt,data,$(DATA)) $(ARGS)

## [train] trains a small residual network on CIFAR-10 or generated pictures: make vision-cifar [DATA=dir]
## [ARGS="--epochs 40 --seed 1"]
vision-cifar: $(BUILD)/examples/vision_cifar
	@$< $(call opt,data,$(DATA)) $(ARGS)

## [train] trains a small DETR on generated shapes or on COCO: make vision-detect
## [DATA=../shared/data/coco] [ARGS="--steps 3000 --seed 1"]
vision-detect: $(BUILD)/examples/vision_detect
	@$< $(call opt,data,$(DATA)) $(ARGS)

## [train] trains ResNet-50, DeiT or DETR by their published recipes: make vision-train
## TRAIN=imagenet/train VAL=imagenet/val [RECIPE=resnet50|deit_s|detr_resnet50] [ARGS="--epochs 90 --bf16"]
vision-train: $(BUILD)/examples/vision_train
	@$< $(call opt,train,$(TRAIN)) $(call opt,val,$(VAL)) $(call opt,recipe,$(RECIPE)) $(ARGS)

## [train] decodes an image file to raw samples: make vision-image FILE=x OUT=y.raw
## [MODE=grey|rgb|rgba|asis] [DEPTH=8|16] [ORIENT=0]
vision-image: $(BUILD)/examples/vision_image
	@$< --file "$(FILE)" --out "$(OUT)" $(call opt,mode,$(MODE)) $(call opt,depth,$(DEPTH)) \
	    $(if $(filter 0,$(ORIENT)),--stored)

## [train] trains a recogniser of spoken digits: make speech-digits [DATA=../shared/data/speech]
## [ARGS="--epochs 12 --leave-out theo --stream --save f ..."]
speech-digits: $(BUILD)/examples/speech/digits
	@$< $(call opt,data,$(DATA)) --page $(BUILD)/digits.html $(ARGS)

VAD_WEIGHTS = $(or $(WEIGHTS),../shared/data/weights/silero_vad/silero_vad_16k.safetensors)
## [train] detects speech, a probability for each 512 samples: make speech-vad FILE=a.wav [WEIGHTS=f]
## [ARGS="--segments ..."]
speech-vad: $(BUILD)/examples/speech/vad
	@$< --file "$(FILE)" --weights "$(VAD_WEIGHTS)" $(ARGS)

## [train] computes features of a sound file: make speech-features FILE=a.wav OUT=x.safetensors KIND=fbank
## [PRESET=kaldi] [CONF=f] [ARGS="--dither=0 ..."]
speech-features: $(BUILD)/examples/speech/features
	@$< --file="$(FILE)" --out="$(OUT)" $(call opt_equals,kind,$(KIND)) $(call opt_equals,preset,$(PRESET)) \
	    $(call opt_equals,conf,$(CONF)) $(ARGS)

## [train] decodes emissions to words: make speech-decode EMISSIONS=e.safetensors TOKENS=f [LEXICON= LM=
## TRANSITIONS= NBEST=] [ARGS="--beamsize 500 ..."]
speech-decode: $(BUILD)/examples/speech/decode
	@$< --emissions "$(EMISSIONS)" --tokens "$(TOKENS)" $(call opt,lexicon,$(LEXICON)) \
	    $(call opt,lm,$(LM)) $(call opt,transitions,$(TRANSITIONS)) $(call opt,nbest,$(NBEST)) $(ARGS)

## [train] trains and runs recognisers by Flashlight's flags: make speech-asr ARGS="train --flagsfile=f
## ...", continue, fork, test, decode, align, transcribe
speech-asr: $(BUILD)/examples/speech/asr
	@$< $(ARGS)

## [train] aligns the words of a list to their sound: make speech-align AM=best.safetensors [LIST=l]
## [OUT=a.ctm] [ARGS="--audacity=f ..."]
speech-align: $(BUILD)/examples/speech/asr
	@$< align --am="$(AM)" $(call opt_equals,test,$(LIST)) $(call opt_equals,ctm,$(OUT)) $(ARGS)

SPEECH_DATA = $(or $(DATA),../shared/data/speech)
## [train] overfits a dozen utterances with each criterion: make speech-libri [DATA=../shared/data/speech]
## [CRITERIA="ctc asg"]
speech-libri: $(BUILD)/examples/speech/asr
	@$(if $(SNDFILE_FLAGS),cat,grep wav) "$(SPEECH_DATA)/librispeech/librispeech.lst" > $(BUILD)/libri.lst
	@ARGS="$(ARGS)" examples/speech/libri $< "$(SPEECH_DATA)" $(BUILD)/libri.lst $(BUILD)/libri $(CRITERIA)

## [train] runs an experiment of docs/research.md: make research-swap_operator [DATA=dir] [ARGS="--small
## ..."]
research-%: $(BUILD)/examples/research/%
	@$< $(call opt,data,$(DATA)) $(ARGS)

## [train] replays the memory requests of six models through eleven allocators: make mem-replay
## [ARGS="--small ..."]
mem-replay: research-fragmentation

# N ranks of mnist on this host, each with a part of every batch: make mnist-dist N=2 ARGS="--dropout 0"
## [train] trains the same on N ranks: make mnist-dist N=2 [DATA=dir] [ARGS=...]
mnist-dist: $(BUILD)/examples/mnist
	examples/launch $(or $(N),2) $< $(call opt,data,$(DATA)) $(ARGS)

# The plain loop that bench/generate.c compares with is compiled as whoever wants speed would.
$(BUILD)/bench/peers/llama_loop.o: CFLAGS += -O3 -march=native -ffast-math
$(BUILD)/bench/generate: $(BUILD)/bench/peers/llama_loop.o
$(BUILD)/bench/peers/mel_loop.o: CFLAGS += -O3 -march=native -ffast-math $(FFTW_FLAGS)
$(BUILD)/bench/speech: $(BUILD)/bench/peers/mel_loop.o
$(BUILD)/bench/speech: LIBS += $(FFTW_LIBS)
## [train] generates text with a pretrained model: make generate ARGS="--weights
## ../shared/data/weights/stories260K --prompt '...'"
generate: $(BUILD)/examples/generate
	$< $(ARGS)
## [train] trains a language model: make lm [DATA=text or folder] [ARGS="--preset nano ..."]
lm: $(BUILD)/examples/lm
	$< $(call opt,data,$(DATA)) $(ARGS)

## [train] trains and queries n-gram language models: make ngram ARGS="train --text F --save F.arpa --order
## 5"
ngram: $(BUILD)/examples/ngram
	@$< $(ARGS)

## [train] trains and runs tokenizers: make tokenize ARGS="train --text F --save tokenizer.json"
tokenize: $(BUILD)/examples/tokenize
	@$< $(ARGS)

## [test] checks every collective in every dtype on 1 to 8 ranks: make conformance-dist IMPL=gloo|ring|sim
conformance-dist: $(BUILD)/tests/test_dist
	FULL=1 DIST_IMPL=$(IMPL) TEST_TIMEOUT=3000 $< $(if $(filter sim,$(IMPL)),simulated,collectives)

## [bench] compares a model of the ring with all_reduce on 2, 4, 8 hosts (network namespaces, tc tbf): make
## bench-hosts [RATE=100mbit]
bench-hosts: $(BUILD)/bench/dist
	@for n in 2 4 8; do bench/hosts $$n $(or $(RATE),100mbit) $< --host || exit; done

## [bench] times steps of mnist, resnet50, vit on 2 ranks beside PyTorch's DDP and FSDP over Gloo: make
## bench-dist_steps [MODELS="..."] [ROUNDS=3]
bench-dist_steps: $(BUILD)/bench/dist
	@bench/dist_steps $< "$(MODELS)" $(ROUNDS)

DIST_TRACE = $(or $(FILE),$(BUILD)/dist.json)
## [bench] measures how much communication overlaps with backward, and saves a timeline: make dist-trace
## [FILE=dist.json]
dist-trace: $(BUILD)/bench/dist
	@BENCH_DIST_BYTES=0 BENCH_DIST_TRACE=$(DIST_TRACE) $< | grep hidden && echo "$(DIST_TRACE)"

## [test] kills and stops ranks at random, over Gloo and sockets: make dist-kill N=100
dist-kill: $(BUILD)/tests/test_dist
	DIST_KILLS=$(or $(N),100) TEST_TIMEOUT=3000 $< every_survivor

## [test] runs eight busy ranks for T seconds and checks that none is reported dead: make dist-calm T=60
dist-calm: $(BUILD)/tests/test_dist
	DIST_CALM=$(T) $< no_false_alarm

## [train] prints COCO's or PASCAL VOC's average precision: make vision-eval GT=a.json DT=b.json
## [TYPE=bbox|segm] [METRIC=voc IOU=0.5 POINTS=11|all ARGS=--inclusive]
vision-eval: $(BUILD)/examples/vision_eval
	@$< --gt "$(GT)" --dt "$(DT)" $(call opt,type,$(TYPE)) $(call opt,metric,$(METRIC)) $(call opt,iou,$(IOU)) \
	    $(call opt,points,$(POINTS)) $(ARGS)

## [train] classifies an image, or detects its objects: make vision-predict MODEL=resnet50
## WEIGHTS=w.safetensors [NAMES=torchvision|timm|hf] (IMAGE=f [LABELS=f] | INPUT=x.safetensors
## OUT=y.safetensors)
vision-predict: $(BUILD)/examples/vision_predict
	@$< --model "$(MODEL)" --weights "$(WEIGHTS)" $(call opt,names,$(NAMES)) $(call opt,image,$(IMAGE)) \
	    $(call opt,labels,$(LABELS)) $(if $(INPUT),--input "$(INPUT)" --out "$(OUT)") $(ARGS)

# A program that does not build counts as a failure and does not keep the others from running.
## [test] builds and runs all tests, of the exhaustive ones a sample (SEED=n repeats it); the last line is
## the grand total
test:
	@mkdir -p $(BUILD); rm -f $(BUILD)/broken
	@$(MAKE) --no-print-directory -k test-programs || touch $(BUILD)/broken
	@CC="$(CC)" FULL="$(FULL)" SEED="$(SEED)" tests/run $(BUILD) $(TEST_RUNS)

## [test] runs all tests without sampling
test-full: FULL = 1
test-full: test

## [test] runs the tests with every op deferred (FL_MODE=lazy); tests/lazy_differences lists those that differ:
## make test-lazy [TESTS="test_nn ..."]
test-lazy: $(patsubst %,$(BUILD)/tests/%,$(filter test_%,$(TESTS)))
	@tests/lazy $(BUILD) $(filter test_%,$(TESTS))

## [test] compiles every header alone and together, as C and C++, with both compilers; runs the lints
test-compile:
	@CC="$(CC)" tests/compile/run

## [test] checks every op against reference loops: make conformance
## [BACKEND=naive|lazy|evictor|opencl|naive@cpu (operands@default)] [BACKEND_H=mine.h] [OPS_H=ops.h] [ARGS=op]
conformance: $(SUITES)/conformance
	$< $(BACKEND) $(ARGS)

## [test] checks a memory manager, fl's own or mine.h's fl_mem_mine(): make conformance-mem [MANAGER_H=mine.h]
conformance-mem: $(SUITES)/managers
	$< $(ARGS)

## [cuda] runs the suites that take a backend on backend cuda: make CUDA=emu test-cuda, or CUDA=1 on a
## machine with a GPU
test-cuda:
	@if [ -z "$(CUDA)" ]; then echo 'skipped: cuda (make CUDA=emu test-cuda needs g++, CUDA=1 nvcc and a GPU)'; \
	else $(if $(FULL),,GROUPS_ONE_IN=12) $(if $(CUDA_MOCK),FL_CUDA_LIBS="$${FL_CUDA_LIBS:-$(BUILD)/mock}") \
	    $(MAKE) --no-print-directory -k TESTS="$(CUDA_TESTS)" BACKENDS=cuda test; fi

## [cuda] checks kernels/cuda without a GPU: tests in emulation, nvcc on changed files, reads by the host
cuda-check:
	@MAKE="$(MAKE)" FULL="$(FULL)" SEED="$(SEED)" tests/cuda_check $(PLAIN) "$(NVCC)"

# A build/gpu without its objects was brought: it is not made again, which takes longer than a call.
## [cuda] runs all GPU checks and benchmarks in calls of 9 minutes that resume where the last stopped: make
## gpu [PART=smoke]
gpu:
	@if [ -x "$(NVCC)" ] && { [ ! -x build/gpu/bin/fl ] || [ -d build/gpu-objects ]; }; then \
	    $(MAKE) --no-print-directory CUDA=1 gpu-build || exit; fi; \
	    script=build/gpu/gpu.sh; [ -f $$script ] || script=bench/gpu.sh; \
	    RESULTS="$(RESULTS)" sh $$script $(PART) || [ $$? -eq 3 ]

# CUDA=emu: build/gpu-emu, in which gpu.sh can be rehearsed without a GPU.
GPU = build/gpu$(if $(filter emu,$(CUDA)),-emu)
## [cuda] builds build/gpu, all that make gpu runs, for machines without compiler and network: make CUDA=1
## gpu-build
gpu-build:
	@MAKE="$(MAKE)" CUDA="$(CUDA)" bench/gpu_build $(GPU) "$(NVCC)"

## [cuda] compares the hand-written prototypes of NVIDIA's libraries with the installed headers
cuda-vendor:
	@if [ ! -f $(CUDA_HOME)/include/cublasLt.h ]; then echo 'skipped: headers of cuBLASLt (make cuda-vendor)'; \
	else $(CC) -std=c11 -Wall -Wextra -Werror -isystem $(CUDA_HOME)/include -fsyntax-only tests/cuda/vendor.c \
	    && echo 'the prototypes are those of $(CUDA_HOME)/include'; fi

## [cuda] compiles generated kernels with NVRTC for sm_80 and sm_90, without a GPU
cuda-nvrtc: $(BUILD)/libfl.a
	@mkdir -p $(BUILD)/tests/cuda
	@$(CC) -std=gnu11 $(ALL_CFLAGS) $(WARN) -I. -o $(BUILD)/tests/cuda/nvrtc tests/cuda/nvrtc.c $(BUILD)/libfl.a \
	    $(CUDA_LIBS) $(LIBS)
	@$(BUILD)/tests/cuda/nvrtc 80 90

## [cuda] asks cuDNN for its plans of the six models on an H200, without one: make CUDA=emu cuda-plans
## [ARGS=vit]
cuda-plans:
	@if [ -z "$(CUDA)" ]; then echo 'skipped: cuda (make CUDA=emu cuda-plans)'; \
	else $(MAKE) --no-print-directory $(BUILD)/tests/cuda/plans && mkdir -p $(BUILD)/stub && \
	    ln -sf $(CUDA_HOME)/lib64/stubs/libcuda.so $(BUILD)/stub/libcuda.so.1 && \
	    LD_LIBRARY_PATH=$(BUILD)/stub FL_CUDA_DEVICE_JSON=tests/cuda/h200.json \
	    $(BUILD)/tests/cuda/plans $(ARGS); fi

## [test] checks every gradient against finite differences: make gradcheck [BACKEND=...] [BACKEND_H=mine.h]
## [OPS_H=ops.h] [ARGS=op]
gradcheck: $(SUITES)/gradcheck
	$< $(BACKEND) $(ARGS)

## [test] edits the op tables and counts how many edits the suites catch
mutants:
	@CC="$(CC)" tests/mutants

## [test] edits the code of a package and counts how many edits its tests catch: make edits PACKAGE=optim
## [N=60] [SEED=1] (python3)
edits:
	@CC="$(CC)" python3 tests/edits "$(PACKAGE)" $(or $(N),60) $(if $(filter-out 0,$(SEED)),$(SEED))

## [test] kills a program at N random moments while it saves: make checkpoint-kill N=200 [LOADS=20000]
## [SEED=n]
checkpoint-kill: $(BUILD)/tests/checkpoint_kill
	@SEED=$(SEED) $< $(or $(N),200) $(LOADS)

## [test] compares the bits of every op: 1, 2, 3 and 8 threads, gcc and clang, each instruction set
bits:
	@MAKE="$(MAKE)" tests/same_bits

## [test] checks every op against PyTorch's values in tests/golden (ARGS=--all: ops that fl lacks fail too)
parity: $(BUILD)/tests/parity
	@$< $(ARGS)

# $(call by_peer,command): with the Python that has the peers, or a line that it is skipped
by_peer = @if [ -n "$(PEER_PYTHON)" ]; then $(1); else echo 'skipped: $@ (PEER_PYTHON is not set)'; fi
## [test] compares features and decoders with torchaudio, librosa, transformers and flashlight-text
## (PEER_PYTHON)
parity-speech: $(addprefix $(BUILD)/examples/speech/,features decode vad)
	$(call by_peer,$(PEER_PYTHON) tests/parity_speech.py $(BUILD) $(if $(filter-out 0,$(SEED)),$(SEED)))

## [test] compares wav2vec 2.0 and Whisper with transformers, both ways (PEER_PYTHON)
parity-pretrained: $(BUILD)/tests/test_pretrained
	$(call by_peer,$(PEER_PYTHON) tests/parity_pretrained.py $(BUILD))

## [test] loads the language models that fl saves with transformers, and compares logits (PEER_PYTHON)
parity-text: SAVED = $(BUILD)/saved
parity-text: $(BUILD)/tests/test_lm
	$(call by_peer,rm -rf $(SAVED) && mkdir -p $(SAVED) && LM_SAVED=$(SAVED) $< models_of_transformers && \
	    $(PEER_PYTHON) tests/lm_models.py $(SAVED))

## [test] compares images and metrics with Pillow, torchvision and pycocotools (PEER_PYTHON)
parity-vision: $(addprefix $(BUILD)/,tests/parity_vision examples/vision_eval examples/vision_predict)
	@FULL=1 $<
	@$(if $(PEER_PYTHON),$(PEER_PYTHON) tests/parity_coco.py $(BUILD)/examples/vision_eval)
	@$(if $(PEER_PYTHON),$(PEER_PYTHON) tests/parity_zoo.py $(BUILD)/examples/vision_predict)

TEXT_PARTS = $(addprefix tokenizers-,gpt2 threads wordpiece unigram train load loads) \
             $(addprefix generate-,stories loader loads blocks f32 f16 q8 q4_k q6_k torch) \
             $(addprefix text_steps-,nano lstm gpt2)
## [bench] times tokenizers, generation and training beside other libraries, and caches results: make
## bench-text [PARTS="tokenizers-gpt2 ..."] [FRESH=1]
bench-text: $(addprefix $(BUILD)/bench/,tokenizers generate text_steps)
	@FRESH="$(FRESH)" bench/text $(BUILD) $(or $(PARTS),$(TEXT_PARTS))

## [bench] runs one program of bench/, results as TSV: bench-overhead, bench-ops, bench-gemm, bench-peaks
## ...
bench-%: $(BUILD)/bench/%
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $< $(ARGS)

# LOADING (1: ../shared/data/imagenet-sample/val, or a folder of classes), MODE (inference), MODELS, THREADS,
# PEERS (0: none), EXCLUDE, ROUNDS, DTYPE, PRESET, WARMUP, ITERATIONS, VARIANTS, TIMEOUT, RESULTS
BENCH_SETTINGS = loading mode models threads peers exclude rounds dtype preset warmup iterations variants \
                 timeout results
## [bench] times the models beside other frameworks: make bench MODELS="vit bert:8" THREADS=2 PEERS=0
## ROUNDS=3
bench: $(BUILD)/bench/model
	@python3 bench/run $< \
	    $(foreach s,$(BENCH_SETTINGS),$(call bench_setting,$(s),$(shell echo $(s) | tr a-z A-Z)))
bench_setting = $(if $(filter command line environment,$(origin $(2))),--$(1) "$($(2))")

## [bench] times fl.py beside C: make bench-python DATA=../shared/data/mnist (numpy)
bench-python: lib shared $(BUILD)/examples/mnist
	@$(or $(PYTHON),python3) bench/python $(BUILD) $(or $(DATA),../shared/data/mnist) $(ARGS)

## [bench] prints lines, slots, build seconds and sizes as TSV (python3; N=20: fewer incremental builds)
metrics:
	@CC="$(CC)" python3 bench/metrics $(if $(N),--edits $(N))

## [build] removes build/
clean:
	rm -rf build

## [build] prints this list
help:
	@$(list_targets) | awk -v groups="build train test bench cuda" '{ name = $$1; group = $$2; \
	    sub(/^[^ ]+ +[^ ]+ /, ""); gsub(/[][]/, "", group); \
	    list[group] = list[group] sprintf("  %-18s%s\n", name, $$0) } \
	    END { for (i = 1; i <= split(groups, g, " "); i++) printf "%s\n%s\n", g[i], list[g[i]] }'

# --- tests -----------------------------------------------------------------------------------------------

# program[:argument] for tests/run. Sanitized runs leave tests/compile out: it builds plain programs of its
# own. Once with operands on another backend than the default one: slots and compositions, then gradients.
RUNS_OF_conformance = $(patsubst %,conformance:%,$(BACKENDS) $(if $(filter naive,$(BACKENDS)),cpu@naive))
RUNS_OF_gradcheck = $(patsubst %,gradcheck:%,$(BACKENDS) $(patsubst %,%@cpu,$(filter naive cuda,$(BACKENDS))))
RUNS_OF_random = $(patsubst %,random:%,$(filter-out evictor,$(BACKENDS)))
RUNS_OF_test_faults = $(filter test_faults:cuda,$(BACKENDS:%=test_faults:%))
RUNS_OF_bits = $(filter cuda_bits,$(BACKENDS:%=%_bits))
RUNS_OF_examples/resume = examples/resume:--test
RUNS_OF_examples/mixed_precision = examples/mixed_precision:--test
$(foreach r,$(RESEARCH),$(eval RUNS_OF_$(r) = $(r):--small))
# Examples run beside all tests, not beside some.
TEST_EXAMPLES = $(if $(filter file,$(origin TESTS)),$(EXTENSIONS))
TEST_RUNS = $(foreach t,$(TESTS) $(TEST_EXAMPLES),$(or $(RUNS_OF_$(t)),$(t))) \
            $(if $(filter file,$(origin TESTS)), \
                $(if $(SAN),,$(if $(wildcard tests/python/test_*.py),python) help) \
                $(if $(SAN)$(filter no,$(COMPILE)),,compile))

.PHONY: test-programs
test-programs: $(CUDA_MOCK) $(TESTS:%=$(BUILD)/tests/%) $(TEST_EXAMPLES:%=$(BUILD)/%) \
               $(if $(filter python,$(TEST_RUNS)),shared) \
               $(if $(filter help,$(TEST_RUNS)),$(EXAMPLES:%=$(BUILD)/%) $(SPEECH:%=$(BUILD)/%))

# Clang only, and nothing else of this file depends on it. Inputs worth keeping gather in build/fuzz/corpus.
FUZZ := build/fuzz
FUZZERS := $(basename $(notdir $(wildcard tests/fuzz_*.c)))
FUZZ_CC = $(if $(findstring clang,$(CC)),$(CC),clang)
T ?= 60
# What CI repeats it names: a seed and a number of runs. New inputs are looked for by hand: 0 draws a seed, -1
# has no end.
SEED ?= 0
RUNS ?= -1

.PHONY: fuzz fuzz-run $(FUZZERS:%=run-%)
## [test] runs libFuzzer on readers, text, printers, ops and autograd, T seconds each: make fuzz T=60
## (clang)
fuzz:
	@MAKE="$(MAKE)" CC="$(FUZZ_CC)" tests/fuzz $(FUZZ) T=$(T) SEED=$(SEED) RUNS=$(RUNS)

fuzz-run: $(FUZZERS:%=run-%)
	@echo "$(words $^) passed, 0 failed"

$(FUZZERS:%=run-%): run-fuzz_%: $(FUZZ)/fuzz_%
	@mkdir -p $(FUZZ)/corpus/$*
	@$< -seed=$(SEED) -runs=$(RUNS) -max_total_time=$(T) -max_len=1024 -len_control=0 -timeout=20 \
	    -close_fd_mask=1 -artifact_prefix=$(FUZZ)/$*- $(FUZZ)/corpus/$* > $<.log 2>&1 || \
	    { tail -n 40 $<.log; false; }
	@echo "fuzz_$*: $$(sed -n 's/^Done \(.*\)/\1/p' $<.log)"

$(FUZZ)/fuzz_%: tests/fuzz_%.c tests/fuzz.h tests/fuzz_composed.h $(FUZZ)/libfl.a
	@$(CC) -std=gnu11 $(ALL_CFLAGS) -fsanitize=fuzzer -DFUZZ_MAIN=0 -I. -o $@ $< $(FUZZ)/libfl.a $(LIBS)
	@echo LD $@

# --- rules -----------------------------------------------------------------------------------------------

# One object per header that has an implementation: the same text as the drop-in build, cut by
# FL_IMPL_ONLY_<NAME>, where fl_backend.h is BACKEND, fl/nn/norm.h is NN_NORM and kernels/cpu/gemm/tile.h
# is CPU_GEMM_TILE. The first include brings all that is declared, the second one the implementation. It is
# a file, so that ccache can know it.
unit_name = $(shell echo $(1) | sed 's,^fl[_/],,; s,^kernels/,,; s,/,_,g' | tr a-z A-Z)
CUDA_UNITS = $(if $(CUDA),fl_backend.h fl_cuda.h fl/distributed/group.h fl/speech/lattice.h \
             $(filter kernels/cuda/%,$(UNITS)))
CUDA_UNIT_OBJECTS = $(CUDA_UNITS:%.h=$(BUILD)/%.o)
PLAIN_OBJECTS = $(patsubst %.h,$(PLAIN)/%.o,$(filter-out $(CUDA_UNITS),$(UNITS)))
OBJECTS = $(PLAIN_OBJECTS) $(CUDA_UNIT_OBJECTS)
define compile_unit
@mkdir -p $(@D)
@echo CC $<
@printf '#include "%s"\n#define FL_IMPL_ONLY_%s\n#include "%s"\n' $< $(call unit_name,$*) $< > $@.c
@$(CC) -std=c11 $(ALL_CFLAGS) $(OPTIONS) $(1) -DFL_IMPL_ONLY -I. $(DEPFLAGS) -c -o $@ $@.c
@$(use_api_deps)
endef
# Files whose time goes by in the ops that they call: FL__GLUE_BEGIN of fl/mem/build.h.
GLUE = fl/ops/% fl/nn/% fl/optim/% $(addprefix fl/text/models/,models lora train) \
       $(addprefix fl/speech/,models pretrained) $(addprefix fl/vision/,models detect draw)
# What a sanitizer adds costs an optimiser five times the text itself, and saves these files and tests nothing.
UNOPTIMISED = $(patsubst -O%,-O0,$(CFLAGS))
$(filter $(GLUE:%=$(PLAIN)/%.o),$(PLAIN_OBJECTS)): CFLAGS := $(if $(SAN),$(UNOPTIMISED),$(CFLAGS:-O2=-O1))
ifneq ($(SAN),)
$(PLAIN)/tests/%.o: CFLAGS := $(UNOPTIMISED)
endif
$(PLAIN_OBJECTS): $(PLAIN)/%.o: %.h $(PLAIN)/flags | $(API_PARTS)
	$(call compile_unit)
$(CUDA_UNIT_OBJECTS): $(BUILD)/%.o: %.h $(BUILD)/flags-cuda | $(API_PARTS)
	$(call compile_unit,-DFL_USE_CUDA)

$(PLAIN)/%.o: %.c $(PLAIN)/flags | $(API_PARTS)
	@mkdir -p $(@D)
	@echo CC $<
	@$(CC) -std=gnu11 $(ALL_CFLAGS) -I. $(DEPFLAGS) -c -o $@ $<
	@$(use_api_deps)

# The library alone, beside ours.
$(PLAIN)/bench/vision.o: private ALL_CFLAGS += $(filter -DFL_USE_JPEG,$(OPTIONS))

# Kernels: the host's compiler reads them with emu/ in place of the toolkit's headers. No contraction in
# either, so that one formula is one sequence of operations everywhere.
#
# CUDA_ARCH: that of the GPUs here, or 90.
ifndef CUDA_ARCH
CUDA_ARCH := $(or $(if $(filter-out emu,$(CUDA)),$(shell \
             nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | \
             sed -n 's/^\([0-9]*\)\.\([0-9]\)$$/\1\2/p' | sort -u)),90)
endif
NVCC ?= $(firstword $(shell command -v nvcc) /usr/local/cuda/bin/nvcc)
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_KERNELS = $(wildcard kernels/cuda/*.cu)
CUDA_TESTS = conformance gradcheck random bits test_cuda test_faults test_vendor
ifeq ($(CUDA),emu)
CUDA_CC = $(or $(CUDA_CXX),g++) -x c++ -std=c++17 $(if $(SAN),-O1 $(SAN_FLAGS),-O2) -g1 -Wall -Wextra \
          -Wno-unknown-pragmas -Wno-clobbered -pthread -ffp-contract=off -fno-math-errno -fno-trapping-math \
          -DFL_CUDA_EMU -DFL_QUICK -Itests/cuda/emu -DFLK_ARCHS='"$(CUDA_ARCH)"'
CUDA_LIBS = -lstdc++ -ldl $(foreach f,start device captures device_of waiting_beside, \
            -Wl,--export-dynamic-symbol=cuda_emu_$(f))
else ifneq ($(CUDA),)
CUDA_CC = $(NVCC) -std=c++17 -O3 --fmad=false \
          $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
          -DFLK_ARCHS='"$(CUDA_ARCH)"'
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -ldl -lrt
endif
CUDA_OBJECTS = $(if $(CUDA),$(CUDA_KERNELS:%.cu=$(BUILD)/%.cu.o))
# Kernels of the ops that the suites test besides fl's own: those of OPS_H.
OPS_CU ?= $(if $(OPS_H),,examples/extend/own_op.cu)
OPS_OBJECT = $(if $(CUDA),$(OPS_CU:%.cu=$(BUILD)/%.cu.o))
$(CUDA_OBJECTS) $(OPS_OBJECT): $(BUILD)/%.cu.o: %.cu $(BUILD)/flags-cuda
	@mkdir -p $(@D)
	@echo NV $<
	@$(CUDA_CC) $(if $(filter emu,$(CUDA)),,-Xptxas -v 2> $@.ptxas) -MMD -MP -MF $(@:.o=.d) -MT $@ -c -o $@ \
	    $< || { cat $@.ptxas; false; }

# The only C++ of fl.
GLOO_API = $(filter %/fl_mem.h $(API)/fl/mem/% %/fl_tensor.h %/fl_dist.h $(API)/fl/distributed/%,$(API_PARTS))
$(PLAIN)/kernels/dist/gloo.o: kernels/dist/gloo.cc $(PLAIN)/flags $(GLOO_API)
	@mkdir -p $(@D)
	@echo CXX $<
	@$(CXX) -std=c++17 $(CFLAGS) $(SAN_FLAGS) $(if $(SAN),-fno-sanitize=vptr) $(HARDEN_CFLAGS) $(PIC_FLAGS) \
	    -Wall -Wextra -I. -pthread -c -o $@ $<

$(BUILD)/libfl.a: $(OBJECTS) $(CUDA_OBJECTS) $(GLOO_OBJECT)
	@rm -f $@
	@$(AR) qcs $@ $^
	@echo AR $@

.PHONY: cuda-kernels
cuda-kernels: $(CUDA_OBJECTS) $(OPS_OBJECT)

# Those libraries: they check what is asked of them, and compute it with plain loops.
$(BUILD)/mock/libcublasLt.so.13: tests/cuda/emu/cublaslt.c kernels/cuda/lt_calls.h tests/cuda/emu/mock.h
$(BUILD)/mock/libcudnn.so.9: tests/cuda/emu/cudnn.c kernels/cuda/dnn_calls.h tests/cuda/emu/mock.h
$(BUILD)/mock/libnvrtc.so.13: tests/cuda/emu/nvrtc.c kernels/cuda/nvrtc.h tests/cuda/emu/mock.h
$(BUILD)/mock/libnccl.so.2: tests/cuda/emu/nccl.c kernels/dist/nccl_calls.h tests/cuda/emu/mock.h
$(BUILD)/mock/%:
	@mkdir -p $(@D)
	@$(CC) -std=gnu11 $(CFLAGS) $(WARN) -fPIC -shared -fvisibility=hidden -o $@ $< -lm
	@echo LD $@

# One program that is all of them, `fl NAME ...`: the kernels are there once.
GPU_PROGRAMS = bench/gpu bench/model $(addprefix tests/,conformance gradcheck random bits test_cuda) \
               $(addprefix examples/,mnist xor perceptron linear_regression classification gan two_heads \
                   custom_gradient custom_layer)
GPU_LIBS = $(patsubst -lstdc++,-l:libstdc++.a -static-libgcc,$(CUDA_LIBS)) $(patsubst -lz,-l:libz.a,$(LIBS))
$(GPU)/bin/fl: $(GPU_PROGRAMS:%=$(PLAIN)/%.o) $(MODEL_UNITS:%=$(PLAIN)/%.o) $(BUILD)/libfl.a
	@CC="$(CC)" CFLAGS="$(CFLAGS)" LIBS="$(GPU_LIBS)" bench/gpu_link $@ $(PLAIN) $(BUILD)/gpu $(BUILD)/libfl.a \
	    "$(GPU_PROGRAMS)" "$(MODEL_UNITS:%=$(PLAIN)/%.o)"
	@echo LD $@

# For the drop-in build with -DFL_USE_CUDA: the kernels alone.
## [cuda] builds build/<variant>/libflk.a, the CUDA kernels alone: make CUDA=1 libflk.a
libflk.a: $(BUILD)/libflk.a
	@echo $<
$(BUILD)/libflk.a: $(CUDA_OBJECTS)
	@rm -f $@
	@$(AR) qcs $@ $^

$(BUILD)/libfl.so: $(OBJECTS) $(CUDA_OBJECTS) $(GLOO_OBJECT) | package/exports
	@sed 's/@ABI@/$(ABI)/' package/exports > $(@D)/exports
	@$(CC) $(ALL_CFLAGS) $(HARDEN_LDFLAGS) -shared -Wl,-soname,libfl.so.$(ABI) \
	    -Wl,--version-script=$(@D)/exports -o $@ $^ $(CUDA_LIBS) $(LIBS)
	@ln -sf $(@F) $(@D)/libfl.so.$(ABI)
	@echo LD $@

PROGRAMS = $(addprefix $(BUILD)/,$(EXAMPLES) $(SPEECH) $(BENCHES) \
           $(basename $(wildcard tests/*.c) tests/cuda/plans.c))
$(PROGRAMS): $(BUILD)/%: $(PLAIN)/%.o $(BUILD)/libfl.a
	@mkdir -p $(@D)
	@$(CC) $(ALL_CFLAGS) $(HARDEN_LDFLAGS) $(WRAP) -o $@ $(filter %.o,$^) $(BUILD)/libfl.a $(CUDA_LIBS) $(LIBS)
	@echo LD $@
$(addprefix $(BUILD)/,tests/conformance tests/gradcheck tests/test_cuda examples/extend/own_op): $(OPS_OBJECT)
$(BUILD)/bench/scale: WRAP = -Wl,--wrap=fl_parallel
WITH_MODELS = bench/model bench/modes bench/written bench/scale bench/dist bench/checkpoint \
    tests/test_models tests/test_modes tests/test_onnx tests/test_precision tests/test_write $(RESEARCH)
$(WITH_MODELS:%=$(BUILD)/%): $(MODEL_UNITS:%=$(PLAIN)/%.o)
$(PLAIN)/examples/research/schedule.o: private ALL_CFLAGS += $(GLPK_FLAGS)
$(BUILD)/examples/research/schedule: private LIBS += $(GLPK_LIBS)

$(BUILD)/yours/%: tests/%.c $(BUILD)/flags-yours $(OPS_OBJECT) $(BUILD)/libfl.a
	@mkdir -p $(@D)
	@echo CC $< with $(BACKEND_H) $(OPS_H) $(MANAGER_H)
	@$(CC) -std=gnu11 $(ALL_CFLAGS) $(YOURS) -I. -MMD -MP -MT $@ -MF $@.d -o $@ $< $(OPS_OBJECT) \
	    $(BUILD)/libfl.a $(CUDA_LIBS) $(LIBS)

# Calls of all public functions, for a test, from their prototypes.
MISUSED := fl_all.h $(shell grep -l '^FL_API.*;$$' $(filter fl/% kernels/cpu/%,$(HEADERS)))
$(PLAIN)/tests/misuse_calls.h: tests/misuse.awk $(API_PARTS)
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $(MISUSED) | $(CC) -std=c11 -E -P -I. -x c - | awk -f $< > $@.new && mv $@.new $@
$(PLAIN)/tests/test_misuse.o: ALL_CFLAGS += -I$(PLAIN)/tests
$(PLAIN)/tests/test_misuse.o: $(PLAIN)/tests/misuse_calls.h

# The benchmark's peer, where Gloo is.
$(PLAIN)/bench/peers/gloo.o: bench/peers/gloo.cc
	@mkdir -p $(@D)
	@echo CXX $<
	@$(CXX) -std=c++17 $(CFLAGS) -Wall -Wextra -pthread -c -o $@ $<
$(BUILD)/bench/dist: $(if $(GLOO_OBJECT),$(PLAIN)/bench/peers/gloo.o)

# An object sees only the API part of the other headers, what stands before their FL_IMPL_ONLY_ line. So it
# depends on build/api/<header>, a copy of that part whose time changes only when its text does: an edit of an
# implementation rebuilds one object. The sed shortens a/../b to b in the dependencies and puts build/api/ in
# front.
DEPFLAGS = -MMD -MP -MT $@ -MF $(@:.o=.d)
use_api_deps = sed -E -e ':a' -e 's,[^/ ]+/\.\./,,;ta' \
               -e 's,(^| )(\./)?((fl|kernels/)[^ ]*\.h),\1$(API)/\3,g' $(@:.o=.d) \
               > $(@:.o=.t) && mv $(@:.o=.t) $(@:.o=.d)
$(API)/%.h: %.h
	@mkdir -p $(@D)
	@sed '/^#if.*FL_IMPL_ONLY_/q' $< > $@.$$$$; if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi

# Other flags than last time rebuild everything.
$(PLAIN)/flags $(BUILD)/flags-cuda $(BUILD)/flags-yours: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(ALL_CFLAGS) $(OPTIONS) $(LIBS) $(if $(filter %-cuda,$@),$(CUDA_CC))' \
	    $(if $(filter %-yours,$@),$(YOURS)) > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

-include $(wildcard $(BUILD)/yours/*.d) $(OBJECTS:.o=.d) $(CUDA_OBJECTS:.o=.d) $(OPS_OBJECT:.o=.d)
-include $(PROGRAMS:$(BUILD)/%=$(PLAIN)/%.d) $(MODEL_UNITS:%=$(PLAIN)/%.d)

# --- optional parts --------------------------------------------------------------------------------------

same = $(and $(findstring x$(1)x,x$(2)x),$(findstring x$(2)x,x$(1)x))
# Probing takes seconds, so it is done again only if the files have changed that it would find. Their times do
# not count: folders of the system may have any, also later ones than this file.
$(PLAIN)/config.mk: Makefile package/probe $(if $(PROBE_DIRS),$(if $(call same,$(PROBED),$(FOUND)),,FORCE))
	@package/probe "$(CC)" "$(CXX)" $(@D)
# MIT licence: see LICENSE.
