#!/usr/bin/env bash
# What building costs: a trainer from nothing, after a change of its variant, and after a change of the model; wall-clock seconds and
# seconds of processor time. Each TREE is a checkout, of which a clean copy is built; several are built interleaved (A/B/A/B).
#   dev/build_times.sh [TREE...]        default: this one; MAKEFLAGS and variables such as USE_CUDA=0 come from the environment
# VARIANTS="moba nsa" adds what each of these takes for the CPU, attention/NAME.cuh alone.
# TESTS=1 adds `make check` from nothing and after a change of a variant, which takes some minutes more.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || set -- "$here"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# took NAME COMMAND...: a line with what the command took.
took() {
    local name=$1
    shift
    if ! bash -c 'TIMEFORMAT="%R %U %S"; time "$@" > "$0" 2>&1' "$work/log" "$@" 2> "$work/time"; then
        tail -n 5 "$work/log" >&2
        exit 1
    fi
    awk -v name="$name" '{ printf "| %-40s | %7.1f s | %7.1f s |\n", name, $1, $2 + $3 }' "$work/time"
}

n=0
for tree in "$@"; do
    copy=$work/$((n++))
    mkdir "$copy"
    git -C "$tree" archive HEAD | tar xf - -C "$copy"
    model=model/gpt.h
    [ -f "$copy/$model" ] || model=model/gpt.cuh   # before 2026-11-23
    echo "$(git -C "$tree" log -1 --format='%h %s' | cut -c1-100)"
    echo "| what                                     |      wall |       CPU |"
    make -C "$copy" -s configure > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
    took "train_asga from nothing" make -C "$copy" -j"$(nproc)" train_asga
    touch "$copy/attention/asga.cuh"
    took "train_asga after attention/asga.cuh" make -C "$copy" -j"$(nproc)" train_asga
    touch "$copy/$model"
    took "train_asga after $model" make -C "$copy" -j"$(nproc)" train_asga
    took "another trainer: train_causal" make -C "$copy" -j"$(nproc)" train_causal
    for variant in ${VARIANTS:-}; do took "attention/$variant.cuh, for the CPU" make -C "$copy" "build/attention/$variant.o"; done
    if [ -n "${TESTS:-}" ]; then
        make -C "$copy" -s clean && make -C "$copy" -s configure > /dev/null
        took "make check from nothing" make -C "$copy" check
        git -C "$copy" init -q && git -C "$copy" add -A && git -C "$copy" -c user.name=- -c user.email=- commit -qm -
        echo >> "$copy/attention/nsa.cuh"   # nsa is a changed variant now, the only one
        took "make check after attention/nsa.cuh" make -C "$copy" check
    fi
    rm -rf "$copy"
done
