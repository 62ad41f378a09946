#!/bin/sh
# gpu.sh - all that is to be run on a machine with an NVIDIA GPU, in parts that a cut run goes on with (make gpu)
#
# usage: gpu.sh [PART ...]     in the folder that make CUDA=1 gpu-build left, or by make gpu
#   parts, in the order that finds most per minute: probe smoke sanitizer tiny models ops conformance gradients examples
#          more-models more-sanitizers peers; none named: those not finished yet. The first call reaches models
#   LIMIT=540     seconds of this call; a step that does not fit any more waits for the next call
#   RESULTS=dir   where lines go, appended at once: lines.tsv (part, step, status, seconds, note), figures.tsv, log.txt,
#                 device.json. Default: bench/results/<date>-<gpu>; a folder of today or given is gone on with.
#   AGAIN=1       what failed or was skipped before runs once more, as after a build that mends it
#   MODELS, DTYPES, VARIANTS, PRESET   of models and peers; PEER_PYTHON   a Python with torch and numpy
# A group of tests that fails runs again alone, with a wait behind each launch, then under compute-sanitizer: both name
# the kernel. Steps of models run twice, and fail if their bits differ.
# Needs sh, the driver, and for peers a Python with PyTorch. Whatever is absent is a line `skipped:`; the status of the
# call is 1 if a step failed, 3 if steps are left for another call.

here=$PWD
cd "$(dirname "$0")" || exit 2
FL=${FL:-./bin/fl} # one program that is all of them
if [ ! -x $FL ]; then
    echo "skipped: gpu (there is no $PWD/$FL: make CUDA=1 gpu-build needs nvcc, no GPU)"
    exit 0
fi
LIMIT=${LIMIT:-540}
MODELS=${MODELS:-alexnet vgg16 resnet50 bert asr vit}
DTYPES=${DTYPES:-bf16 tf32 f32}
VARIANTS=${VARIANTS:-3}
PRESET=${PRESET:-paper}
began=$(date +%s)

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | head -n 1 | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
RESULTS=${RESULTS:-bench/results/$(date +%Y-%m-%d)-${gpu:-no-gpu}}
case $RESULTS in /*) ;; *) RESULTS=$here/$RESULTS ;; esac # of the folder it was called in
mkdir -p "$RESULTS" || exit 2
lines=$RESULTS/lines.tsv figures=$RESULTS/figures.tsv log=$RESULTS/log.txt
touch "$lines" "$figures" "$log"
rm -f "$RESULTS"/step.* "$RESULTS"/groups.* "$RESULTS"/said.* "$RESULTS"/bits.* # of a call that was killed
# Who ends this ends the step too, which begins anew in the next call.
child=
trap 'trap - TERM; [ -z "$child" ] || kill "$child" 2> /dev/null; exit 143' TERM INT HUP
export FL_DEVICE=cuda
# The libraries of the Python that has torch, if they are not elsewhere: peers run with the same ones.
if [ -z "$FL_CUDA_LIBS" ]; then
    export FL_CUDA_LIBS="$("${PEER_PYTHON:-python3}" -c 'import glob, sys
print(":".join(d for p in sys.path for d in glob.glob(p + "/nvidia/*/lib")))' 2> /dev/null)"
fi
left=0 failed=0

spent() { echo $(($(date +%s) - began)); }
# done_before PART STEP: it has a line that no later call changes; what the probe did not find may come
done_before() { awk -F '\t' -v p="$1" -v s="$2" -v again="$AGAIN" '$1 == p && $2 == s && ($3 == "ok" || ($3 != "cut" && p != "probe" && !again)) { found = 1 } END { exit !found }' "$lines"; }
times_cut() { awk -F '\t' -v p="$1" -v s="$2" '$1 == p && $2 == s && $3 == "cut" { n++ } END { print n + 0 }' "$lines"; }
say() {
    printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "$5" >> "$lines"
    printf '%-12s %-34s %-8s %4s s  %s\n' "$1" "$2" "$3" "$4" "$5"
}

# step PART NAME SECONDS COMMAND...: runs it, unless it was, in SECONDS at most. Figures are what it prints with tabs.
# A program that prints `skipped:` and nothing else did not run, nor did one that passed nothing. What is said of a
# step that died is its last line.
step() {
    part=$1 name=$2 seconds=$3
    shift 3
    done_before "$part" "$name" && return 0
    rest=$((LIMIT - $(spent)))
    if [ "$(times_cut "$part" "$name")" -ge 2 ]; then
        failed=1
        say "$part" "$name" failed "$seconds" "cut twice: takes more than this"
        return 0
    fi
    if [ "$rest" -lt 10 ] || { [ "$rest" -lt "$seconds" ] && [ "$LIMIT" -gt "$((seconds + 20))" ]; }; then
        left=1
        return 0
    fi
    [ "$rest" -lt "$seconds" ] && seconds=$rest
    out=$RESULTS/step.$$ start=$(date +%s)
    timeout -k 5 "$seconds" "$@" > "$out" 2>&1 < /dev/null &
    child=$!
    wait $child
    status=$? child= took=$(($(date +%s) - start))
    { echo "=== $part $name: $* (status $status, $took s)"; tail -c 20000 "$out"; } >> "$log"
    grep -a '	' "$out" | sed "s/^/$part	$name	/" >> "$figures"
    note=$(grep -a -v '^ *$\|^Aborted\|^Segmentation fault' "$out" | tail -n 1 | tr '\t' ' ' | cut -c1-160)
    skip=$(grep -a -m 1 -o 'skipped: .*' "$out" | cut -c1-160)
    case $note in '0 passed, 0 failed'*) skip="skipped: $note" note=$skip ;; esac
    rm -f "$out"
    if [ $status -eq 124 ] || [ $status -eq 137 ]; then
        left=1
        say "$part" "$name" cut "$took" "$note"
    elif [ $status -ne 0 ] && [ -z "$skip" ]; then
        failed=1
        say "$part" "$name" failed "$took" "$note"
    elif [ $status -ne 0 ] || { [ -n "$skip" ] && [ "$skip" = "$note" ]; }; then
        say "$part" "$name" skipped "$took" "$skip"
    else
        say "$part" "$name" ok "$took" "$note"
    fi
}
status_of() { awk -F '\t' -v p="$1" -v s="$2" '$1 == p && $2 == s { status = $3 } END { print status }' "$lines"; }

# groups PART NAME SECONDS SETTINGS PROGRAM GROUP...: a step of groups of tests, with variables of the environment
groups() {
    of=$1 as=$2 most=$3 settings=$4 program=$5
    shift 5
    step $of "$as" $most env $settings $FL $program cuda "$@"
    [ "$(status_of $of "$as")" = failed ] && [ "$(times_cut $of "$as")" -lt 2 ] || return 0
    for g; do
        one=$as
        [ $# -eq 1 ] || one=$as-$g
        step $of "$one-blocking" 60 env $settings CUDA_LAUNCH_BLOCKING=1 $FL $program cuda "$g"
        [ "$(status_of $of "$one-blocking")" != failed ] ||
            sanitize $of "$one-memcheck" 120 memcheck env $settings $FL $program cuda "$g"
    done
}

# sanitize PART NAME SECONDS TOOL COMMAND...: a step under compute-sanitizer, which refuses every device on some
# virtual machines
checker=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
sanitize() {
    if [ -z "$checker" ]; then skip "$1" "$2" compute-sanitizer; return; fi
    check="$checker --tool $4 --target-processes all --error-exitcode 9" to="$1 $2 $3"
    shift 4
    step $to sh -c '"$@" > "$0" 2>&1; s=$?; cat "$0"
        grep -q "Device not supported" "$0" && echo "skipped: compute-sanitizer: Device not supported" && s=1
        rm -f "$0"; exit $s' "$RESULTS/said.$$" $check "$@"
}
skip() { done_before "$1" "$2" || say "$1" "$2" skipped 0 "skipped: $3"; }

# The Python that has torch: PEER_PYTHON, python3, or a fresh one with the wheels that were brought.
peer_python() {
    for p in "$PEER_PYTHON" python3; do
        [ -n "$p" ] && "$p" -c 'import torch, numpy' 2> /dev/null && echo "$p" && return
    done
    [ -d wheels ] && python3 -m venv .peer > /dev/null 2>&1 &&
        .peer/bin/python -m pip install -q --no-index --find-links wheels torch numpy > /dev/null 2>&1 &&
        .peer/bin/python -c 'import torch, numpy' 2> /dev/null && echo "$PWD/.peer/bin/python"
}

probe() {
    step probe gpu 30 sh -c 'command -v nvidia-smi > /dev/null || { echo "skipped: nvidia-smi"; exit 1; }; nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,ecc.mode.current --format=csv'
    step probe machine 20 sh -c 'uname -srm; grep -m 1 "model name" /proc/cpuinfo; nproc; for t in nvcc make cc python3 compute-sanitizer ncu; do command -v $t || echo "absent: $t"; done'
    step probe op 60 $FL gpu op
    step probe libraries 60 $FL gpu libraries
}
some_groups="add exp matmul conv sum softmax layer_norm cross_entropy nets order"
smoke() {
    step smoke test_cuda-blocking 90 env CUDA_LAUNCH_BLOCKING=1 $FL test_cuda
    step smoke test_cuda 60 $FL test_cuda
    for group in $some_groups; do groups smoke "$group-own" 40 FL_CUDA_LIBS=no conformance $group; done
    for group in $some_groups; do groups smoke "$group" 40 '' conformance $group; done
    groups smoke attention 40 '' gradcheck attention
    if [ -f mnist/train-images-idx3-ubyte.gz ]; then
        step smoke mnist 60 $FL mnist --data mnist --steps 20
        step smoke mnist-bf16 60 $FL mnist --data mnist --steps 20 --dtype bf16
    else
        skip smoke mnist 'the data set (mnist/)'
    fi
}
# Groups in tens, so that a cut run loses little.
in_tens() {
    part=$1 program=$2 n=0
    list=$RESULTS/groups.$$
    $FL $program --groups > "$list" 2> /dev/null || { skip "$part" "$program" "$program --groups"; return; }
    set --
    while read -r g; do
        set -- "$@" "$g"
        n=$((n + 1))
        if [ $# -eq 10 ]; then
            groups "$part" "$program-$n" 200 '' $program "$@"
            set --
        fi
    done < "$list"
    [ $# -eq 0 ] || groups "$part" "$program-$n" 200 '' $program "$@"
    rm -f "$list"
}
conformance() {
    in_tens conformance conformance
    step conformance random 120 $FL random cuda
    # The same bits in every run.
    step conformance bits 200 sh -c '"$0" bits > "$1" && "$0" bits > "$1.again" && cmp "$1" "$1.again" && tail -n 1 "$1"; s=$?; rm -f "$1" "$1.again"; exit $s' $FL "$RESULTS/bits.$$"
    groups conformance own-kernels 200 FL_CUDA_LIBS=no conformance matmul linear conv nets
}
gradients() { in_tens gradients gradcheck; }
# A sample of the cases, which SEED draws: each launch takes a hundred times as long.
sanitizers() {
    for tool; do
        sanitize $part "$tool-ops" 120 $tool env SEED=1 $FL conformance cuda $some_groups
        sanitize $part "$tool-test_cuda" 150 $tool $FL test_cuda
    done
}
sanitizer() { part=sanitizer && sanitizers memcheck racecheck; }
more_sanitizers() { part=more-sanitizers && sanitizers initcheck synccheck; }
# tiny models on the device have the losses that they have on this processor
tiny() {
    compare='for d in cpu cuda; do "$@" --device $d --digest | grep ^digest || exit; done | awk -F "\t" -v most="$0" "
        NR == 1 { n = split(\$3, a, \" \") }
        NR == 2 { m = split(\$3, b, \" \") }
        END { for (i = 1; i <= n; i++) { d = a[i] - b[i]; d = d < 0 ? -d : d; if (d > far) far = d; bad += !(d <= most) }
              print \"losses differ by up to \" far + 0; exit bad || !n || n != m }"'
    for m in $MODELS; do
        step tiny "$m-f32" 60 sh -c "$compare" 0.001 $FL model $m --preset tiny
        step tiny "$m-bf16" 60 sh -c "$compare" 0.05 $FL model $m --preset tiny --dtype bf16
    done
}
examples() {
    for e in xor perceptron linear_regression classification gan two_heads custom_gradient custom_layer; do
        step examples $e 120 $FL $e
    done
    if [ -f mnist/train-images-idx3-ubyte.gz ]; then step examples mnist 300 $FL mnist --data mnist --epochs 1; fi
}
ops() {
    step ops device-json 60 sh -c '"$1" gpu json > "$0" || { cat "$0"; rm -f "$0"; exit 1; }' "$RESULTS/device.json" $FL
    step ops ceilings 120 $FL gpu probe
    step ops ours 300 $FL gpu ops
}
# models_of PART DTYPE...: steps from the host, twice, then replayed, which is how peers are fastest: all with the same
# bits; with the kernels here alone; and with the plans that are fastest on this device
models_of() {
    twice='a=$("$@" ${0#plain}) || { echo "$a"; exit 1; }; b=$("$@") || exit; echo "$a"; echo "$b"
        [ "$(echo "$a" | grep ^digest)" = "$(echo "$b" | grep ^digest)" ] || { echo "two runs differ"; exit 1; }'
    part_of=$1
    shift
    for d; do
        for m in $MODELS; do
            run="$FL model $m --preset $PRESET --device cuda --dtype $d --warmup 5 --iterations 30 --digest"
            step $part_of "$m-$d" 200 sh -c "$twice" plain $run
            step $part_of "$m-$d-graph" 200 sh -c "$twice" --graph $run
            step $part_of "$m-$d-own" 200 env FL_CUDA_LIBS=no $run
            step $part_of "$m-$d-tuned" 200 env FL_CUDA_TUNE="$RESULTS/tune.txt" $run
        done
    done
}
models() { models_of models ${DTYPES%% *}; }
more_models() { case $DTYPES in *' '*) models_of more-models ${DTYPES#* } ;; esac; }
peers() {
    python=$(peer_python)
    if [ -z "$python" ]; then skip peers torch 'torch (and numpy: PEER_PYTHON, python3, wheels/)'; return; fi
    for d in $DTYPES; do
        for m in $MODELS; do
            script="$python bench/peers/torch_models.py $m --preset $PRESET --device cuda --dtype $d --warmup 5 --iterations 30"
            variants=$($script --list 2>> "$log" | head -n "$VARIANTS")
            [ -n "$variants" ] || step peers "$m-$d" 60 $script --list
            for v in $variants; do
                step peers "$m-$d-$v" 250 $script --variant "$v"
            done
            # theirs and ours in turn
            run="$FL model $m --preset $PRESET --device cuda --dtype $d --warmup 5 --iterations 30"
            step peers "$m-$d-ours" 150 $run
            step peers "$m-$d-ours-graph" 150 $run --graph
        done
    done
}

# Nothing else is begun without a device that works: that would be a line for each step, and none of them final.
set -- ${*:-smoke sanitizer tiny models ops conformance gradients examples more-models more-sanitizers peers}
[ "$1" = probe ] || set -- probe "$@"
for part; do
    case $part in
        probe | smoke | sanitizer | tiny | models | ops | conformance | gradients | examples | peers) $part ;;
        more-models) more_models ;;
        more-sanitizers) more_sanitizers ;;
        *) echo "gpu.sh: there is no part $part"; exit 2 ;;
    esac
    if [ "$part" = probe ] && ! grep -q '^probe	op	ok' "$lines"; then
        echo "skipped: all other parts (no device works: $RESULTS/log.txt says why)"
        exit 1
    fi
done
echo "$(awk -F '\t' '{ n[$3]++ } END { printf "%d ok, %d failed, %d skipped, %d cut", n["ok"], n["failed"], n["skipped"], n["cut"] }' "$lines") in $RESULTS"
[ $failed -eq 0 ] || exit 1
[ $left -eq 0 ] || { echo "more to do: run it again"; exit 3; }
# MIT licence: see LICENSE.
