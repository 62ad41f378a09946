# fl - builds, tests and measures; `make help` lists the targets. Needs a C compiler and GNU make.
#
#   make CC=clang                  another compiler; every variant has a folder of its own under build/
#   make test SAN=address,undefined   or SAN=thread: with sanitizers
#   make OPENBLAS=no LAPACK=no ZLIB=no JPEG=no PNG=no   without optional parts that were found (LAPACK needs OPENBLAS)
#   make test TESTS="test_mem test_nn"   some test programs only
#   make test SEED=7                 the cases that the seed 7 draws; make test-full: all
#   make test COMPILE=no              without tests/compile, which tries every compiler by itself
#   make CUDA=1 lib                  with the kernels for NVIDIA GPUs, by nvcc (CUDA_ARCH="80 90"); without CUDA= nothing
#   make CUDA=emu test-cuda          looks at kernels/cuda. emu: the same kernels on the processor, by g++

CFLAGS ?= -O2 -g1
WARN = -Wall -Wextra -Wpedantic -Wmissing-prototypes -Wshadow
BACKEND ?= cpu

# --- what there is ---------------------------------------------------------------------------------------

KERNELS  := $(wildcard kernels/*.h kernels/*/*.h kernels/*.inc kernels/*/*.inc)
ifeq ($(CUDA),)
KERNELS  := $(filter-out kernels/cuda/%,$(KERNELS))
endif
HEADERS  := $(wildcard fl*.h fl/*/*.h) $(filter %.h,$(KERNELS))
TEXTS    := $(wildcard fl/*/*.inc) $(filter %.inc,$(KERNELS))
HEADER   ?= fl.h
SINGLE   ?= build/single/$(HEADER)
UNITS    := $(shell grep -l '^\#if.*FL_IMPL_ONLY_' $(HEADERS) 2>/dev/null)
TESTS    ?= $(basename $(notdir $(wildcard tests/*.c)))
EXAMPLES := $(basename $(wildcard examples/*.c examples/extend/*.c))
SPEECH   := $(basename $(wildcard examples/speech/*.c))
BENCHES  := $(basename $(wildcard bench/*.c))
MODEL_UNITS := $(basename $(wildcard bench/models/*.c))
# Programs with targets of their own, which `make test` does not run.
APPLICATIONS = mnist lm generate tokenize ngram vision_% speech_%
EXTENSIONS := $(basename $(filter-out $(APPLICATIONS:%=examples/%.c),$(wildcard examples/*.c)) $(wildcard examples/extend/*.c))
BACKENDS := cpu $(basename $(notdir $(wildcard examples/extend/naive.h examples/extend/recorder.h examples/extend/evictor.h)))

# --- the variant -----------------------------------------------------------------------------------------

comma := ,
PLAIN_VARIANT := $(notdir $(subst $() ,_,$(CC)))$(if $(SAN),-$(subst $(comma),+,$(SAN)))$(if $(SHARED),-shared)
VARIANT := $(PLAIN_VARIANT)$(if $(CUDA),-cuda-$(CUDA))
BUILD := build/$(VARIANT)
# Objects that CUDA= does not change are those of the variant without it.
PLAIN := $(if $(CUDA),$(if $(findstring command,$(origin BUILD)),$(BUILD),build/$(PLAIN_VARIANT)),$(BUILD))
# NVIDIA's libraries for the emulated device: the tests find them through FL_CUDA_LIBS.
CUDA_MOCK = $(if $(filter emu,$(CUDA)),$(BUILD)/mock/libcublasLt.so.13 $(BUILD)/mock/libcudnn.so.9)
API := build/api
API_PARTS := $(HEADERS:%=$(API)/%)

SAN_FLAGS = $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
PIC_FLAGS = $(if $(SHARED),-fPIC -DFL_BUILD_SHARED)
ALL_CFLAGS = $(CFLAGS) $(SAN_FLAGS) $(PIC_FLAGS) $(WARN) -pthread

NO_CONFIG = help clean single calls uninstall
ifneq ($(filter-out $(NO_CONFIG),$(or $(MAKECMDGOALS),all)),)
include $(PLAIN)/config.mk
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
$(foreach part,ZLIB JPEG PNG SNDFILE PCRE2,$(if $(filter no,$($(part))),,$(eval OPTIONS += $($(part)_FLAGS))$(eval LIBS += $($(part)_LIBS))))
# Gloo carries data between ranks; without it examples/extend/ring.h does. The thread sanitizer cannot look into it.
ifeq ($(filter no,$(GLOO))$(filter thread,$(SAN))$(if $(GLOO_FLAGS),,no),)
OPTIONS += $(GLOO_FLAGS)
LIBS += $(GLOO_LIBS)
GLOO_OBJECT = $(PLAIN)/kernels/dist/gloo.o
else
OPTIONS += -DFL_DIST_IMPL=ring '-DFL_DIST_IMPL_H="examples/extend/ring.h"'
endif
LIBS += -lm -lpthread

# --- targets ---------------------------------------------------------------------------------------------

# Every target that `make help` tells of.
.PHONY: $(shell sed -n 's/^\([a-z.-]*\):.*\#\#.*/\1/p' Makefile) FORCE
.SECONDARY:
.DELETE_ON_ERROR:

all: lib examples ## the library and the examples (default)

lib: $(BUILD)/libfl.a ## build/<variant>/libfl.a

shared: ## build/<variant>-shared/libfl.so
	@$(MAKE) --no-print-directory SHARED=1 build/$(VARIANT)-shared/libfl.so

PREFIX ?= /usr/local
DEST = $(DESTDIR)$(PREFIX)
INSTALLED = $(HEADERS) $(TEXTS) build/calls.h
VERSION = $(shell sed -n 's/^.define FL_VERSION_[MP][A-Z]* //p' fl_mem.h | paste -sd.)

install: lib shared build/calls.h ## headers, libfl.a, libfl.so, and what pkg-config and CMake read: make install PREFIX=/usr/local DESTDIR=
	@mkdir -p $(sort $(dir $(INSTALLED:%="$(DEST)"/include/fl/%))) "$(DEST)/lib/pkgconfig" "$(DEST)/lib/cmake/fl"
	@for f in $(INSTALLED); do install -m 644 $$f "$(DEST)/include/fl/$$f" || exit 1; done
	@install -m 644 $(BUILD)/libfl.a "$(DEST)/lib/libfl.a"
	@install -m 755 build/$(VARIANT)-shared/libfl.so "$(DEST)/lib/libfl.so"
	@sed 's,@PREFIX@,$(PREFIX),; s,@VERSION@,$(VERSION),; s,@LIBS@,$(strip $(LIBS)),' package/fl.pc > "$(DEST)/lib/pkgconfig/fl.pc"
	@install -m 644 package/fl-config.cmake "$(DEST)/lib/cmake/fl/fl-config.cmake"
	@echo "installed: $(DEST)/include/fl, $(DEST)/lib"

uninstall: ## removes what install put there: make uninstall PREFIX=/usr/local DESTDIR=
	@cd "$(DEST)" && for f in $(INSTALLED); do rm -f include/fl/$$f; done
	@cd "$(DEST)/lib" && rm -f libfl.a libfl.so pkgconfig/fl.pc cmake/fl/fl-config.cmake
	@cd "$(DEST)" && for d in include/fl lib/cmake/fl; do [ ! -d $$d ] || find $$d -depth -type d -empty -delete; done

calls: build/calls.h ## build/calls.h, which -DFL_TRACE_CALLS wants: file and line of the call in errors and traces

build/calls.h: $(HEADERS) fl/calls.awk
	@mkdir -p $(@D)
	@awk -f fl/calls.awk $(filter fl_%.h fl/%.h,$(HEADERS)) > $@.$$$$ && mv $@.$$$$ $@

single: build/calls.h ## build/single/fl.h, the family as one file; HEADER=fl_nn.h: what that header needs
	@mkdir -p $(dir $(SINGLE))
	@awk -v header=$(HEADER) -f fl/single.awk LICENSE $(HEADERS) $(TEXTS) build/calls.h > $(SINGLE).new
	@mv $(SINGLE).new $(SINGLE)
	@echo $(SINGLE)

examples: $(EXAMPLES:%=$(BUILD)/%) ## the programs of examples/

mnist: $(BUILD)/examples/mnist $(CUDA_MOCK) ## train the CNN of the Flashlight paper: make mnist [DATA=dir] [ARGS="--epochs 3 ..."]
	$(if $(CUDA),FL_DEVICE=$${FL_DEVICE:-cuda}) $(if $(CUDA_MOCK),FL_CUDA_LIBS=$${FL_CUDA_LIBS:-$(BUILD)/mock}) $< $(if $(DATA),--data "$(DATA)") $(ARGS)

vision-cifar: $(BUILD)/examples/vision_cifar ## a small residual net on CIFAR-10 or drawn pictures: make vision-cifar [DATA=dir] [ARGS="--epochs 40 --seed 1"]
	@$< $(if $(DATA),--data "$(DATA)") $(ARGS)

vision-detect: $(BUILD)/examples/vision_detect ## a small DETR on shapes that it draws, or on images of COCO: make vision-detect [DATA=../shared/data/coco] [ARGS="--steps 3000 --seed 1"]
	@$< $(if $(DATA),--data "$(DATA)") $(ARGS)

vision-image: $(BUILD)/examples/vision_image ## an image file as raw samples: make vision-image FILE=x OUT=y.raw [MODE=grey|rgb|rgba|asis] [DEPTH=8|16] [ORIENT=0]
	@$< --file "$(FILE)" --out "$(OUT)" $(if $(MODE),--mode $(MODE)) $(if $(DEPTH),--depth $(DEPTH)) $(if $(filter 0,$(ORIENT)),--stored)

speech-digits: $(BUILD)/examples/speech/digits ## a recogniser of spoken digits: make speech-digits [DATA=../shared/data/speech] [ARGS="--epochs 12 --leave-out theo --stream --save f ..."]
	@$< $(if $(DATA),--data "$(DATA)") --page $(BUILD)/digits.html $(ARGS)

VAD_WEIGHTS = $(or $(WEIGHTS),../shared/data/weights/silero_vad/silero_vad_16k.safetensors)
speech-vad: $(BUILD)/examples/speech/vad ## a probability of speech for each 512 samples: make speech-vad FILE=a.wav [WEIGHTS=f] [ARGS="--segments ..."]
	@$< --file "$(FILE)" --weights "$(VAD_WEIGHTS)" $(ARGS)

speech-features: $(BUILD)/examples/speech/features ## features of a sound: make speech-features FILE=a.wav OUT=x.safetensors KIND=fbank [PRESET=kaldi] [CONF=f] [ARGS="--dither=0 ..."]
	@$< --file="$(FILE)" --out="$(OUT)" $(if $(KIND),--kind=$(KIND)) $(if $(PRESET),--preset=$(PRESET)) $(if $(CONF),--conf="$(CONF)") $(ARGS)

speech-decode: $(BUILD)/examples/speech/decode ## words from scores: make speech-decode EMISSIONS=e.safetensors TOKENS=f [LEXICON= LM= TRANSITIONS= NBEST=] [ARGS="--beamsize 500 ..."]
	@$< --emissions "$(EMISSIONS)" --tokens "$(TOKENS)" $(if $(LEXICON),--lexicon "$(LEXICON)") $(if $(LM),--lm "$(LM)") \
	    $(if $(TRANSITIONS),--transitions "$(TRANSITIONS)") $(if $(NBEST),--nbest $(NBEST)) $(ARGS)

speech-asr: $(BUILD)/examples/speech/asr ## recognisers by flags of Flashlight: make speech-asr ARGS="train --flagsfile=f ...", continue, fork, test, decode, align, transcribe
	@$< $(ARGS)

speech-align: $(BUILD)/examples/speech/asr ## when words of a list were said: make speech-align AM=best.safetensors [LIST=l] [OUT=a.ctm] [ARGS="--audacity=f ..."]
	@$< align --am="$(AM)" $(if $(LIST),--test="$(LIST)") $(if $(OUT),--ctm="$(OUT)") $(ARGS)

speech-libri: $(BUILD)/examples/speech/asr ## a dozen utterances by heart with each criterion: make speech-libri [DATA=../shared/data/speech] [CRITERIA="ctc asg"]
	@$(if $(SNDFILE_FLAGS),cat,grep wav) "$(or $(DATA),../shared/data/speech)/librispeech/librispeech.lst" > $(BUILD)/libri.lst
	@ARGS="$(ARGS)" examples/speech/libri $< "$(or $(DATA),../shared/data/speech)" $(BUILD)/libri.lst $(BUILD)/libri $(CRITERIA)

# N ranks of mnist on this host, each with a part of every batch: make mnist-dist N=2 ARGS="--dropout 0"
mnist-dist: $(BUILD)/examples/mnist ## mnist on N ranks: make mnist-dist N=2 [DATA=dir] [ARGS=...]
	examples/launch $(or $(N),2) $< $(if $(DATA),--data "$(DATA)") $(ARGS)

# The plain loop that bench/generate.c compares with is compiled as whoever wants speed would.
$(BUILD)/bench/peers/llama_loop.o: CFLAGS += -O3 -march=native -ffast-math
$(BUILD)/bench/generate: $(BUILD)/bench/peers/llama_loop.o
$(BUILD)/bench/peers/mel_loop.o: CFLAGS += -O3 -march=native -ffast-math $(FFTW_FLAGS)
$(BUILD)/bench/speech: $(BUILD)/bench/peers/mel_loop.o
$(BUILD)/bench/speech: LIBS += $(FFTW_LIBS)
generate: $(BUILD)/examples/generate ## texts of a model: make generate ARGS="--weights ../shared/data/weights/stories260K --prompt '...'"
	$< $(ARGS)
.PHONY: generate
lm: $(BUILD)/examples/lm ## train a language model: make lm [DATA=text or folder] [ARGS="--preset nano ..."]
	$< $(if $(DATA),--data "$(DATA)") $(ARGS)

ngram: $(BUILD)/examples/ngram ## n-gram language models: make ngram ARGS="train --text F --save F.arpa --order 5"
	@$< $(ARGS)

tokenize: $(BUILD)/examples/tokenize ## tokenizers from files and from text: make tokenize ARGS="train --text F --save tokenizer.json"
	@$< $(ARGS)

.PHONY: conformance-dist
conformance-dist: $(BUILD)/tests/test_dist ## every collective of every dtype on 1 to 8 ranks: make conformance-dist IMPL=gloo|ring|sim
	FULL=1 DIST_IMPL=$(IMPL) TEST_TIMEOUT=3000 $< $(if $(filter sim,$(IMPL)),simulated,collectives)

bench-hosts: $(BUILD)/bench/dist ## the formula of a ring beside all_reduce on 2, 4, 8 hosts (network namespaces, tc tbf): make bench-hosts [RATE=100mbit]
	@for n in 2 4 8; do bench/hosts $$n $(or $(RATE),100mbit) $< --host || exit; done

bench-dist_steps: $(BUILD)/bench/dist ## steps of mnist, resnet50, vit on 2 ranks, in turn with PyTorch's DDP and FSDP over Gloo: make bench-dist_steps [MODELS="..."] [ROUNDS=3]
	@bench/dist_steps $< "$(MODELS)" $(ROUNDS)

dist-trace: $(BUILD)/bench/dist ## how much communication hides, and a timeline of such a step: make dist-trace [FILE=dist.json]
	@BENCH_DIST_BYTES=0 BENCH_DIST_TRACE=$(or $(FILE),$(BUILD)/dist.json) $< | grep hidden && echo "$(or $(FILE),$(BUILD)/dist.json)"

dist-kill: $(BUILD)/tests/test_dist ## kills and stops ranks, N runs over Gloo and sockets: make dist-kill N=100
	DIST_KILLS=$(or $(N),100) TEST_TIMEOUT=3000 $< every_survivor

dist-calm: $(BUILD)/tests/test_dist ## eight busy ranks for T seconds, none of which is to be called dead: make dist-calm T=60
	DIST_CALM=$(T) $< no_false_alarm

vision-eval: $(BUILD)/examples/vision_eval ## COCO's average precision: make vision-eval GT=a.json DT=b.json [TYPE=bbox|segm] [METRIC=voc IOU=0.5 POINTS=11|all]
	@$< --gt "$(GT)" --dt "$(DT)" $(if $(TYPE),--type $(TYPE)) $(if $(METRIC),--metric $(METRIC)) $(if $(IOU),--iou $(IOU)) $(if $(POINTS),--points $(POINTS))

vision-predict: $(BUILD)/examples/vision_predict ## make vision-predict MODEL=resnet50 WEIGHTS=w.safetensors [NAMES=torchvision|timm|hf] (IMAGE=f | INPUT=x.safetensors OUT=y.safetensors)
	@$< --model "$(MODEL)" --weights "$(WEIGHTS)" $(if $(NAMES),--names $(NAMES)) $(if $(IMAGE),--image "$(IMAGE)") $(if $(INPUT),--input "$(INPUT)" --out "$(OUT)") $(ARGS)

# A program that does not build counts as a failure and does not keep the others from running.
test: ## build and run all tests, a sample of the exhaustive ones (SEED=n repeats one); the last line is the grand total
	@mkdir -p $(BUILD); rm -f $(BUILD)/broken; $(MAKE) --no-print-directory -k test-programs || touch $(BUILD)/broken
	@CC="$(CC)" FULL="$(FULL)" SEED="$(SEED)" tests/run $(BUILD) $(TEST_RUNS)

test-full: FULL = 1 ## the same without sampling
test-full: test

test-compile: ## every header alone and together, C and C++, both compilers, lint
	@CC="$(CC)" tests/compile/run

conformance: $(BUILD)/tests/conformance ## every op against reference loops: make conformance BACKEND=cpu|naive|recorder|evictor
	$< $(BACKEND)

test-cuda: ## the suites that take a backend, on family cuda: make CUDA=emu test-cuda, or CUDA=1 on a machine with a GPU
	@if [ -z "$(CUDA)" ]; then echo 'skipped: cuda (make CUDA=emu test-cuda needs g++, CUDA=1 nvcc and a GPU)'; \
	else $(if $(FULL),,GROUPS_ONE_IN=12) $(if $(CUDA_MOCK),FL_CUDA_LIBS="$${FL_CUDA_LIBS:-$(BUILD)/mock}") $(MAKE) --no-print-directory -k TESTS="$(CUDA_TESTS)" BACKENDS=cuda EXTENSIONS= test; fi

cuda-check: ## what can be shown of kernels/cuda without a GPU: its tests in emulation, nvcc on what was touched, host reads
	@MAKE="$(MAKE)" FULL="$(FULL)" SEED="$(SEED)" tests/cuda_check $(PLAIN) "$(NVCC)"

# A build/gpu without its objects was brought: it is not made again, which takes longer than a call.
gpu: ## what a machine with a GPU is for, in calls of 9 minutes that go on where the last one stopped: make gpu [PART=smoke]
	@if [ -x "$(NVCC)" ] && { [ ! -x build/gpu/bin/fl ] || [ -d build/gpu-objects ]; }; then \
	    $(MAKE) --no-print-directory CUDA=1 gpu-build || exit; fi; \
	    RESULTS="$(RESULTS)" sh $$([ -f build/gpu/gpu.sh ] && echo build/gpu/gpu.sh || echo bench/gpu.sh) $(PART) || [ $$? -eq 3 ]

# CUDA=emu: build/gpu-emu, in which gpu.sh can be rehearsed without a GPU.
GPU = build/gpu$(if $(filter emu,$(CUDA)),-emu)
gpu-build: ## build/gpu, all that make gpu runs, for machines without compiler and network: make CUDA=1 gpu-build
	@if [ "$(CUDA)" != emu ] && [ ! -x "$(NVCC)" ]; then echo 'skipped: gpu-build (nvcc)'; exit 1; fi
	@$(MAKE) --no-print-directory CUDA=$(or $(CUDA),1) BUILD=$(GPU)-objects OPENBLAS=no LAPACK=no GLOO=no JPEG=no PNG=no \
	    SNDFILE=no PCRE2=no $(GPU)/bin/fl
	@objdump -p $(GPU)/bin/fl | awk '/NEEDED/ && $$2 !~ /^(libc|libm|libpthread|libdl|librt|ld-linux.*)\.so/ { print "not self-contained: " $$2; bad = 1 } END { exit bad }'
	@cp bench/gpu.sh $(GPU)/ && mkdir -p $(GPU)/bench/peers && cp bench/peers/common.py bench/peers/weights.py bench/peers/torch_models.py $(GPU)/bench/peers/
	@if [ -d ../shared/data/mnist ]; then mkdir -p $(GPU)/mnist && cp -u ../shared/data/mnist/*.gz $(GPU)/mnist/; fi
	@du -sm $(GPU) | awk '{ print "$(GPU): " $$1 " MiB"; exit $$1 > 60 }'

cuda-vendor: ## the prototypes of NVIDIA's libraries that kernels/cuda has by hand, beside the installed headers
	@if [ ! -f $(CUDA_HOME)/include/cublasLt.h ]; then echo 'skipped: headers of cuBLASLt (make cuda-vendor)'; \
	else $(CC) -std=c11 -Wall -Wextra -Werror -isystem $(CUDA_HOME)/include -fsyntax-only tests/cuda/vendor.c && \
	    echo 'the prototypes are those of $(CUDA_HOME)/include'; fi

cuda-nvrtc: ## what generated kernels are made of compiles while a program runs, by NVRTC for sm_80 and sm_90; no GPU
	@mkdir -p $(BUILD)/tests/cuda
	@$(CC) -std=gnu11 $(CFLAGS) $(WARN) -I. -o $(BUILD)/tests/cuda/nvrtc tests/cuda/nvrtc.c -ldl -lm -pthread
	@$(BUILD)/tests/cuda/nvrtc 80 90

cuda-plans: ## cuDNN's plans for the six models on an H200 that is not there: make CUDA=emu cuda-plans [ARGS=vit]
	@if [ -z "$(CUDA)" ]; then echo 'skipped: cuda (make CUDA=emu cuda-plans)'; \
	else $(MAKE) --no-print-directory $(BUILD)/tests/cuda/plans && mkdir -p $(BUILD)/stub && \
	    ln -sf $(CUDA_HOME)/lib64/stubs/libcuda.so $(BUILD)/stub/libcuda.so.1 && \
	    LD_LIBRARY_PATH=$(BUILD)/stub FL_CUDA_DEVICE_JSON=tests/cuda/h200.json $(BUILD)/tests/cuda/plans $(ARGS); fi

gradcheck: $(BUILD)/tests/gradcheck ## every gradient against finite differences: make gradcheck BACKEND=...
	$< $(BACKEND)

mutants: ## edits the op table and counts how many edits the suites catch
	@CC="$(CC)" tests/mutants

checkpoint-kill: $(BUILD)/tests/checkpoint_kill ## kills a program that saves at N random moments: make checkpoint-kill N=200 [SEED=n]
	@SEED=$(SEED) $< $(or $(N),200)

bits: ## every op's bits: threads against threads, gcc against clang
	@MAKE="$(MAKE)" tests/same_bits

parity: $(BUILD)/tests/parity ## every op against PyTorch's values in tests/golden (ARGS=--all: those that fl lacks fail too)
	@$< $(ARGS)

parity-speech: $(addprefix $(BUILD)/examples/speech/,features decode vad) ## beside torchaudio, librosa, transformers and flashlight-text, where PEER_PYTHON is set
	@if [ -n "$(PEER_PYTHON)" ]; then $(PEER_PYTHON) tests/parity_speech.py $(BUILD) $(if $(filter-out 0,$(SEED)),$(SEED)); else echo 'skipped: parity-speech (PEER_PYTHON is not set)'; fi

parity-pretrained: $(BUILD)/tests/test_pretrained ## wav2vec 2.0 and Whisper beside transformers, both ways, where PEER_PYTHON is set
	@if [ -n "$(PEER_PYTHON)" ]; then $(PEER_PYTHON) tests/parity_pretrained.py $(BUILD); else echo 'skipped: parity-pretrained (PEER_PYTHON is not set)'; fi

parity-text: $(BUILD)/tests/test_lm ## what transformers makes of the language models that we save, where PEER_PYTHON is set
	@if [ -z "$(PEER_PYTHON)" ]; then echo 'skipped: parity-text (PEER_PYTHON is not set)'; \
	else rm -rf $(BUILD)/saved && mkdir -p $(BUILD)/saved && LM_SAVED=$(BUILD)/saved $< models_of_transformers && \
	    $(PEER_PYTHON) tests/lm_models.py $(BUILD)/saved; fi

parity-vision: $(BUILD)/tests/parity_vision $(BUILD)/examples/vision_eval $(BUILD)/examples/vision_predict ## beside Pillow, torchvision and pycocotools, where PEER_PYTHON is set
	@FULL=1 $<
	@$(if $(PEER_PYTHON),$(PEER_PYTHON) tests/parity_coco.py $(BUILD)/examples/vision_eval)
	@$(if $(PEER_PYTHON),$(PEER_PYTHON) tests/parity_zoo.py $(BUILD)/examples/vision_predict)

TEXT_PARTS = $(addprefix tokenizers-,gpt2 threads wordpiece unigram train load) \
             $(addprefix generate-,stories loader f32 f16 q8 torch) $(addprefix text_steps-,nano lstm gpt2)
bench-text: $(addprefix $(BUILD)/bench/,tokenizers generate text_steps) ## text beside other people's, a file for each part, which is not measured twice: make bench-text [PARTS="tokenizers-gpt2 ..."] [FRESH=1]
	@mkdir -p $(BUILD)/bench-text; $(if $(FRESH),rm -f $(BUILD)/bench-text/*)
	@for p in $(or $(PARTS),$(TEXT_PARTS)); do f=$(BUILD)/bench-text/$$p.tsv; \
	    [ -s $$f ] || { BENCH_PART=$${p#*-} $(BUILD)/bench/$${p%-*} > $$f.new && mv $$f.new $$f; } || exit; cat $$f; done
	@"$${PEER_PYTHON:-python3}" -c 'import llama_cpp' 2> /dev/null || echo 'absent: llama-cpp-python (no wheel for it at PyPI)'

bench-%: $(BUILD)/bench/% ## one program of bench/ as TSV: bench-overhead, bench-ops, bench-gemm, bench-peaks ...
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $< $(ARGS)

# LOADING (1: ../shared/data/imagenet-sample/val, or a folder of classes), MODE (inference), MODELS, THREADS, PEERS (0: none), EXCLUDE, ROUNDS, DTYPE, PRESET, WARMUP, ITERATIONS, VARIANTS, TIMEOUT, RESULTS
BENCH_SETTINGS = loading mode models threads peers exclude rounds dtype preset warmup iterations variants timeout results
bench: $(BUILD)/bench/model ## the models beside other frameworks: make bench MODELS="vit bert:8" THREADS=2 PEERS=0 ROUNDS=3
	@python3 bench/run $< $(foreach s,$(BENCH_SETTINGS),$(call bench_setting,$(s),$(shell echo $(s) | tr a-z A-Z)))
bench_setting = $(if $(filter command line environment,$(origin $(2))),--$(1) "$($(2))")

bench-python: lib shared $(BUILD)/examples/mnist ## fl.py beside C: make bench-python DATA=../shared/data/mnist (numpy)
	@$(or $(PYTHON),python3) bench/python $(BUILD) $(or $(DATA),../shared/data/mnist) $(ARGS)

metrics: ## lines, slots, build seconds, sizes as TSV (python3; N=20 for fewer incremental builds)
	@CC="$(CC)" python3 bench/metrics $(if $(N),--edits $(N))

clean: ## removes build/
	rm -rf build

help: ## this list
	@grep -h '^[a-z%-]*:.* ## ' $(firstword $(MAKEFILE_LIST)) | sed 's/^\([^:]*\):.* ## /\1	/' | expand -t 16

# --- tests -----------------------------------------------------------------------------------------------

# program[:argument] for tests/run. Sanitized runs leave tests/compile out: it builds plain programs of its own.
RUNS_OF_conformance = $(BACKENDS:%=conformance:%)
RUNS_OF_gradcheck = $(BACKENDS:%=gradcheck:%)
RUNS_OF_random = $(patsubst %,random:%,$(filter-out evictor,$(BACKENDS)))
RUNS_OF_test_faults = $(filter test_faults:cuda,$(BACKENDS:%=test_faults:%))
RUNS_OF_bits = $(filter cuda_bits,$(BACKENDS:%=%_bits))
RUNS_OF_examples/resume = examples/resume:--test
RUNS_OF_examples/mixed_precision = examples/mixed_precision:--test
TEST_RUNS = $(foreach t,$(TESTS),$(or $(RUNS_OF_$(t)),$(t))) \
            $(if $(filter file,$(origin TESTS)),$(foreach e,$(EXTENSIONS),$(or $(RUNS_OF_$(e)),$(e))) $(if $(SAN),,$(if $(wildcard tests/python/test_*.py),python)) $(if $(SAN)$(filter no,$(COMPILE)),,compile))

.PHONY: test-programs
test-programs: $(CUDA_MOCK) $(TESTS:%=$(BUILD)/tests/%) $(EXTENSIONS:%=$(BUILD)/%) $(if $(filter python,$(TEST_RUNS)),shared)

# Clang only, and nothing else of this file depends on it. Inputs worth keeping gather in build/fuzz/corpus.
FUZZ := build/fuzz
FUZZERS := $(basename $(notdir $(wildcard tests/fuzz_*.c)))
FUZZ_CC = $(if $(findstring clang,$(CC)),$(CC),clang)
T ?= 60
# What CI repeats it names: a seed and a number of runs. New inputs are looked for by hand: 0 draws a seed, -1 has no end.
SEED ?= 0
RUNS ?= -1

.PHONY: fuzz fuzz-run $(FUZZERS:%=run-%)
fuzz: ## libFuzzer on readers, text, printers, ops and autograd, T seconds each: make fuzz T=60
	@mkdir -p $(FUZZ)
	@echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' > $(FUZZ)/probe.c
	@if $(FUZZ_CC) -w -fsanitize=fuzzer -o $(FUZZ)/probe $(FUZZ)/probe.c > /dev/null 2>&1; \
	then $(MAKE) --no-print-directory -k CC=$(FUZZ_CC) SAN=address,undefined,fuzzer-no-link CFLAGS="-O1 -g" GLOO=no \
	    BUILD=$(FUZZ) T=$(T) SEED=$(SEED) RUNS=$(RUNS) fuzz-run; \
	else echo 'absent: clang with libFuzzer (make fuzz): apt-get install clang'; fi

fuzz-run: $(FUZZERS:%=run-%)
	@echo "$(words $^) passed, 0 failed"

$(FUZZERS:%=run-%): run-fuzz_%: $(FUZZ)/fuzz_%
	@mkdir -p $(FUZZ)/corpus/$*
	@$< -seed=$(SEED) -runs=$(RUNS) -max_total_time=$(T) -max_len=1024 -len_control=0 -timeout=20 -close_fd_mask=1 \
	    -artifact_prefix=$(FUZZ)/$*- $(FUZZ)/corpus/$* > $<.log 2>&1 || { tail -n 40 $<.log; false; }
	@echo "fuzz_$*: $$(sed -n 's/^Done \(.*\)/\1/p' $<.log)"

$(FUZZ)/fuzz_%: tests/fuzz_%.c tests/fuzz.h tests/fuzz_composed.h $(FUZZ)/libfl.a
	@$(CC) -std=gnu11 $(ALL_CFLAGS) -fsanitize=fuzzer -DFUZZ_MAIN=0 -I. -o $@ $< $(FUZZ)/libfl.a $(LIBS)
	@echo LD $@

# --- rules -----------------------------------------------------------------------------------------------

# One object per header, room and kernel file: the same text as the drop-in build, cut by FL_IMPL_ONLY_<NAME>, where
# fl_mem.h is MEM, fl/nn/norm.h is NN_NORM and kernels/cpu/gemm.h is CPU_GEMM. The first include brings all that is
# declared, the second one the implementation. It is a file, so that ccache can know it.
unit_name = $(shell echo $(1) | sed 's,^fl[_/],,; s,^kernels/,,; s,/,_,g' | tr a-z A-Z)
CUDA_UNITS = $(if $(CUDA),fl_tensor.h fl/speech/lattice.h $(filter kernels/cuda/%,$(UNITS)))
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
# Rooms whose time goes by in the ops that they call: FL__GLUE_BEGIN of fl_mem.h.
GLUE = fl/ops/% fl/nn/% fl/optim/% $(addprefix fl/text/,models lora train) $(addprefix fl/speech/,models pretrained) \
       $(addprefix fl/vision/,models detect draw)
$(filter $(GLUE:%=$(PLAIN)/%.o),$(PLAIN_OBJECTS)): CFLAGS := $(CFLAGS:-O2=-O1)
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

# Kernels: the host's compiler reads them with emu/ in place of the toolkit's headers. No contraction in either, so that
# one formula is one sequence of operations everywhere.
#
# CUDA_ARCH: that of the GPUs here, or 90.
ifndef CUDA_ARCH
CUDA_ARCH := $(or $(if $(filter-out emu,$(CUDA)),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | \
             sed -n 's/^\([0-9]*\)\.\([0-9]\)$$/\1\2/p' | sort -u)),90)
endif
NVCC ?= $(firstword $(shell command -v nvcc) /usr/local/cuda/bin/nvcc)
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_KERNELS = $(wildcard kernels/cuda/*.cu)
CUDA_TESTS = conformance gradcheck random bits test_cuda test_faults test_vendor
ifeq ($(CUDA),emu)
CUDA_CC = $(or $(CUDA_CXX),g++) -x c++ -std=c++17 $(if $(SAN),-O1 $(SAN_FLAGS),-O2) -g1 -Wall -Wextra -Wno-unknown-pragmas -Wno-clobbered -pthread \
          -ffp-contract=off -fno-math-errno -fno-trapping-math -DFL_CUDA_EMU -DFL_QUICK -Ikernels/cuda/emu \
          -DFLK_ARCHS='"$(CUDA_ARCH)"'
CUDA_LIBS = -lstdc++ -ldl -Wl,--export-dynamic-symbol=cuda_emu_start,--export-dynamic-symbol=cuda_emu_device
else ifneq ($(CUDA),)
CUDA_CC = $(NVCC) -std=c++17 -O3 --fmad=false $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
          -DFLK_ARCHS='"$(CUDA_ARCH)"'
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -ldl -lrt
endif
CUDA_OBJECTS = $(if $(CUDA),$(CUDA_KERNELS:%.cu=$(BUILD)/%.cu.o))
$(CUDA_OBJECTS): $(BUILD)/%.cu.o: %.cu $(BUILD)/flags-cuda
	@mkdir -p $(@D)
	@echo NV $<
	@$(CUDA_CC) $(if $(filter emu,$(CUDA)),,-Xptxas -v 2> $@.ptxas) -MMD -MP -MF $(@:.o=.d) -MT $@ -c -o $@ $< || { cat $@.ptxas; false; }

# The only C++ of fl.
$(PLAIN)/kernels/dist/gloo.o: kernels/dist/gloo.cc $(PLAIN)/flags $(filter %/fl_mem.h %/fl_tensor.h %/fl_dist.h $(API)/fl/dist/%,$(API_PARTS))
	@mkdir -p $(@D)
	@echo CXX $<
	@$(CXX) -std=c++17 $(CFLAGS) $(SAN_FLAGS) $(if $(SHARED),-fPIC -DFL_BUILD_SHARED) -Wall -Wextra -I. -pthread -c -o $@ $<

$(BUILD)/libfl.a: $(OBJECTS) $(CUDA_OBJECTS) $(GLOO_OBJECT)
	@rm -f $@
	@$(AR) qcs $@ $^
	@echo AR $@

.PHONY: cuda-kernels
cuda-kernels: $(CUDA_OBJECTS)

# Those libraries: they check what is asked of them, and compute it with plain loops.
$(BUILD)/mock/libcublasLt.so.13: kernels/cuda/emu/cublaslt.c kernels/cuda/lt_calls.h kernels/cuda/emu/mock.h
$(BUILD)/mock/libcudnn.so.9: kernels/cuda/emu/cudnn.c kernels/cuda/dnn_calls.h kernels/cuda/emu/mock.h
$(BUILD)/mock/%:
	@mkdir -p $(@D)
	@$(CC) -std=gnu11 $(CFLAGS) $(WARN) -fPIC -shared -fvisibility=hidden -o $@ $< -lm
	@echo LD $@

# One program that is all of them, `fl NAME ...`: the kernels are there once. Its libraries are static but for the C
# library's, and NVIDIA's, which are looked for when they are needed.
GPU_EXAMPLES = mnist xor perceptron linear_regression classification gan two_heads custom_gradient custom_layer
GPU_PROGRAMS = bench/gpu bench/model tests/conformance tests/gradcheck tests/random tests/bits tests/test_cuda $(GPU_EXAMPLES:%=examples/%)
GPU_OBJECTS = $(GPU_PROGRAMS:%=$(PLAIN)/%.o) $(MODEL_UNITS:%=$(PLAIN)/%.o)
$(GPU)/bin/fl: $(GPU_OBJECTS) $(BUILD)/libfl.a
	@mkdir -p $(@D) $(BUILD)/gpu
	@for p in $(GPU_PROGRAMS); do n=$$(basename $$p); \
	    ld -r -o $(BUILD)/gpu/$$n.o $(PLAIN)/$$p.o $$([ $$n != model ] || echo $(MODEL_UNITS:%=$(PLAIN)/%.o)) && \
	    objcopy --redefine-sym main=main_$$n --keep-global-symbol=main_$$n $(BUILD)/gpu/$$n.o || exit; done
	@{ echo '#include <stdio.h>'; echo '#include <string.h>'; \
	    for p in $(notdir $(GPU_PROGRAMS)); do echo "int main_$$p(int argc, char **argv);"; done; echo 'int main(int argc, char **argv) {'; \
	    for p in $(notdir $(GPU_PROGRAMS)); do echo "    if (argc > 1 && !strcmp(argv[1], \"$$p\")) return main_$$p(argc - 1, argv + 1);"; done; \
	    echo '    puts("usage: fl PROGRAM ...: $(notdir $(GPU_PROGRAMS))");'; echo '    return 2;'; echo '}'; } > $(BUILD)/gpu/main.c
	@$(CC) $(CFLAGS) -o $@.new $(BUILD)/gpu/main.c $(patsubst %,$(BUILD)/gpu/%.o,$(notdir $(GPU_PROGRAMS))) $(BUILD)/libfl.a \
	    $(patsubst -lstdc++,-l:libstdc++.a -static-libgcc,$(CUDA_LIBS)) $(patsubst -lz,-l:libz.a,$(LIBS))
	@strip $@.new && mv $@.new $@
	@echo LD $@

# For the drop-in build with -DFL_USE_CUDA: the kernels alone.
.PHONY: libflk.a
libflk.a: $(BUILD)/libflk.a ## build/<variant>/libflk.a, the CUDA kernels alone: make CUDA=1 libflk.a
	@echo $<
$(BUILD)/libflk.a: $(CUDA_OBJECTS)
	@rm -f $@
	@$(AR) qcs $@ $^

$(BUILD)/libfl.so: $(OBJECTS) $(CUDA_OBJECTS) $(GLOO_OBJECT)
	$(CC) $(ALL_CFLAGS) -shared $(if $(GLOO_OBJECT),-Wl$(comma)--version-script=package/exports) -o $@ $^ $(CUDA_LIBS) $(LIBS)

PROGRAMS = $(EXAMPLES:%=$(BUILD)/%) $(SPEECH:%=$(BUILD)/%) $(BENCHES:%=$(BUILD)/%) $(patsubst %.c,$(BUILD)/%,$(wildcard tests/*.c) tests/cuda/plans.c)
$(PROGRAMS): $(BUILD)/%: $(PLAIN)/%.o $(BUILD)/libfl.a
	@mkdir -p $(@D)
	@$(CC) $(ALL_CFLAGS) $(WRAP) -o $@ $(filter %.o,$^) $(BUILD)/libfl.a $(CUDA_LIBS) $(LIBS)
	@echo LD $@
$(BUILD)/bench/scale: WRAP = -Wl,--wrap=fl_parallel
$(BUILD)/bench/model $(BUILD)/bench/scale $(BUILD)/bench/dist $(BUILD)/bench/checkpoint $(BUILD)/tests/test_models $(BUILD)/tests/test_precision: $(MODEL_UNITS:%=$(PLAIN)/%.o)

# The benchmark's peer, where Gloo is.
$(PLAIN)/bench/peers/gloo.o: bench/peers/gloo.cc
	@mkdir -p $(@D)
	@echo CXX $<
	@$(CXX) -std=c++17 $(CFLAGS) -Wall -Wextra -pthread -c -o $@ $<
$(BUILD)/bench/dist: $(if $(GLOO_OBJECT),$(PLAIN)/bench/peers/gloo.o)

# An object sees only the API part of the other headers, what stands before their FL_IMPL_ONLY_ line. So it depends
# on build/api/<header>, a copy of that part whose time changes only when its text does: an edit of an
# implementation rebuilds one object. The sed shortens a/../b to b in the dependencies and puts build/api/ in front.
DEPFLAGS = -MMD -MP -MT $@ -MF $(@:.o=.d)
use_api_deps = sed -E -e ':a' -e 's,[^/ ]+/\.\./,,;ta' -e 's,(^| )(\./)?((fl|kernels/)[^ ]*\.h),\1$(API)/\3,g' \
               $(@:.o=.d) > $(@:.o=.t) && mv $(@:.o=.t) $(@:.o=.d)
$(API)/%.h: %.h
	@mkdir -p $(@D)
	@sed '/^#if.*FL_IMPL_ONLY_/q' $< > $@.$$$$; if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi

# Other flags than last time rebuild everything.
$(PLAIN)/flags $(BUILD)/flags-cuda: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(ALL_CFLAGS) $(OPTIONS) $(LIBS) $(if $(filter %-cuda,$@),$(CUDA_CC))' > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

-include $(OBJECTS:.o=.d) $(CUDA_OBJECTS:.o=.d) $(PROGRAMS:$(BUILD)/%=$(PLAIN)/%.d) $(MODEL_UNITS:%=$(PLAIN)/%.d)

# --- optional parts --------------------------------------------------------------------------------------

# $(call probe,NAME,header,call,libs,package,what for,declaration): tries to compile and link a program that uses it.
define probe
printf '#include <stddef.h>\n#include <$(2)>\n$(7)\nint main(void) { return $(3) != 0; }\n' > $(@D)/probe.c; \
if $(CC) -o $(@D)/probe $(@D)/probe.c $(4) >/dev/null 2>&1; \
then printf '$(1)_FLAGS = -DFL_USE_$(1)\n$(1)_LIBS = $(4)\n' >> $@.new; \
else echo 'absent: $(1) ($(6)): apt-get install $(5)' | tee -a $(@D)/absent; fi; rm -f $(@D)/probe $(@D)/probe.c
endef
# The same in C++.
define probe_gloo
printf '#include <gloo/rendezvous/context.h>\n#include <gloo/transport/tcp/device.h>\nint main() { return gloo::rendezvous::Context(0, 1).size != 1; }\n' > $(@D)/probe.cc; \
if $(CXX) -std=c++17 -o $(@D)/probe $(@D)/probe.cc -lgloo -pthread >/dev/null 2>&1; \
then printf 'GLOO_FLAGS = -DFL_USE_GLOO\nGLOO_LIBS = -lgloo -lstdc++\n' >> $@.new; \
else echo 'absent: GLOO (data between ranks; examples/extend/ring.h does it instead): apt-get install libgloo-dev' | \
    tee -a $(@D)/absent; fi; rm -f $(@D)/probe $(@D)/probe.cc
endef
$(PLAIN)/config.mk: Makefile
	@mkdir -p $(@D); : > $@.new; : > $(@D)/absent
	@$(call probe,ZLIB,zlib.h,zlibVersion()[0],-lz,zlib1g-dev,reads gzipped data sets)
	@$(call probe,JPEG,stdio.h>\n#include <jpeglib.h,jpeg_std_error(NULL),-ljpeg,libjpeg62-turbo-dev,reads JPEG images)
	@$(call probe,PNG,png.h,png_access_version_number(),-lpng,libpng-dev,reads PNG images)
	@$(call probe,SNDFILE,sndfile.h,sf_version_string()[0],-lsndfile,libsndfile1-dev,reads FLAC Ogg Opus and MP3)
	@$(call probe,PCRE2,stdio.h>\n#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h,pcre2_config_8(0$(comma) NULL),-lpcre2-8,libpcre2-dev,other regular expressions of tokenizers)
	@$(call probe,OPENBLAS,cblas.h,cblas_ddot(0$(comma) NULL$(comma) 1$(comma) NULL$(comma) 1),-lopenblas,libopenblas-dev,faster matrix products)
	@$(call probe,FFTW,fftw3.h,fftwf_malloc(1),-lfftw3f,libfftw3-dev,beside which bench-speech measures)
	@$(call probe_gloo)
	@$(call probe,LAPACK,stddef.h,dgesdd_(),-lopenblas,libopenblas-dev,factorisations of matrices,int dgesdd_(void);)
	@mv $@.new $@
