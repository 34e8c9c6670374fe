#!/usr/bin/env bash
# A new variant is one file. Takes softcap from the code block in dev/HACKING.md, puts it into a copy of the tree, and builds and
# runs what every variant has to pass, on the CPU and on the emulated GPU: no other object is compiled, no other file is changed.
# Needs the objects of `make build/tests/run_tests`. Prints lines `ok NAME` or `FAIL NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
tree=$work/tree sources="Makefile attention data dev model scripts tests train_gpt.cu"

if [ ! -e build/tests/main.o ]; then
    bad "worked example" "build/tests/main.o is missing: make build/tests/run_tests comes first"
    exit 1
fi

# The copy: sources with their times, compiled objects by reference.
mkdir -p "$tree"/build/{model,data,tests}
cp -a $sources "$tree"
cp -p build/config.mk build/flags "$tree/build"
for object in build/model/*.o build/data/*.o build/tests/main.o; do ln -s "$PWD/$object" "$tree/$object"; done

# The block that defines the variant.
awk '/^```cpp$/ { inside = 1; block = ""; next }
     /^```$/ { if (inside && block ~ /struct softcap /) printf "%s", block; inside = 0 }
     inside { block = block $0 "\n" }' dev/HACKING.md > "$tree/attention/softcap.cuh"
lines=$(wc -l < "$tree/attention/softcap.cuh")
check "worked example: one file of fewer than 60 lines" '[ "$lines" -gt 20 ] && [ "$lines" -lt 60 ]'

# Two programs with nothing but the new variant's tests in them.
make -C "$tree" --no-print-directory -j2 build/tests/run_tests build/emulated/run_tests \
    TESTS="build/tests/main.o build/tests/variant/test_variant_softcap.o" \
    GPU_TESTS=tests/gpu/variant/test_attention_variant_gpu_softcap.o EMULATOR_TESTS= > "$work/log" 2>&1
status=$?
grep -v jobserver "$work/log" | grep -E '(warning|error):' > "$work/warnings"
check "worked example: builds without a warning" '[ $status -eq 0 ] && [ ! -s "$work/warnings" ]'
compiled=$(sed -n 's/^compile .*\///p' "$work/log" | sort | tr '\n' ' ')
expected="test_attention_variant_gpu_softcap.o test_variant_softcap.o "
if [ "$compiled" = "$expected" ]; then ok "worked example: compiles the new variant only"
else bad "worked example: compiles the new variant only" "compiled $compiled$(tail -n 1 "$work/log")"; fi

passes() {
    if "$2" > "$work/out" 2>&1 && grep -q '^All tests passed' "$work/out"; then ok "$1"
    else bad "$1" "$(tail -n 4 "$work/out" | tr '\n' ' ')"; fi
}
passes "worked example: passes the tests of every variant" "$tree/build/tests/run_tests"
passes "worked example: passes them on the emulated GPU" "$tree/build/emulated/run_tests"

make -C "$tree" help > "$work/help"
check "worked example: make knows it" 'grep -q softcap "$work/help"'
for source in $sources; do diff -rq "$source" "$tree/$source"; done > "$work/changed"
check "worked example: nothing else has changed" '[ "$(cat "$work/changed")" = "Only in $tree/attention: softcap.cuh" ]'
