#!/usr/bin/env bash
# A new variant is one file. Takes softcap from the code block in dev/FROM_PAPER_TO_FILE.md, puts it into a copy of the tree, and
# builds and runs what every variant has to pass, on the CPU and on the emulated GPU, and a trainer: nothing is compiled but softcap,
# no other file is changed. Beside it stands a variant that does not compile, which nobody else may notice.
# Needs the objects of `make build/tests/run_tests build/emulated/run_tests`. Prints lines `ok NAME` or `FAIL NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
tree=$work/tree sources="Makefile attention data dev model scripts tests train_gpt.cu"

if [ ! -e build/tests/main.o ] || [ ! -e build/emulated/engine.a ]; then
    bad "worked example" "objects are missing: make build/tests/run_tests build/emulated/run_tests comes first"
    exit 1
fi

# The copy: sources and objects with their times. It has no variants but those that are asked for below.
mkdir "$tree"
cp -a $sources "$tree"
tar cf - --exclude='run_tests' --exclude=build/python --exclude=build/fuzz --exclude=build/gpu/tests build | tar xf - -C "$tree"

# The block that defines the variant.
awk '/^```cpp$/ { inside = 1; block = ""; next }
     /^```$/ { if (inside && block ~ /struct softcap /) printf "%s", block; inside = 0 }
     inside { block = block $0 "\n" }' dev/FROM_PAPER_TO_FILE.md > "$tree/attention/softcap.cuh"
lines=$(wc -l < "$tree/attention/softcap.cuh")
check "worked example: one file of fewer than 60 lines" '[ "$lines" -gt 20 ] && [ "$lines" -lt 60 ]'
sed 's/softcap/broken/; s/double cap/double cap cap/' "$tree/attention/softcap.cuh" > "$tree/attention/broken.cuh"

# in_tree GOAL...: makes it in the copy. The compiler's words are in $work/log, $compiled is what it was called for. The flags of the
# objects are as they are, and so is the commit, which a copy without git has not; without CUDA, which would compile for a real GPU. What
# checkpoints carry has the new variant's description.
in_tree() {
    make -C "$tree" --no-print-directory -o build/flags -o build/commit.cpp USE_CUDA=0 "$@" > "$work/log" 2>&1
    local status=$?
    compiled=$(sed -n 's/^compile build\/\([^ ]*\).*/\1/p' "$work/log" | sort | tr '\n' ' ')
    return $status
}

in_tree build/tests/test_softcap build/emulated/test_softcap
status=$?
grep -E '(warning|error):' "$work/log" > "$work/warnings"
check "worked example: builds without a warning" '[ $status -eq 0 ] && [ ! -s "$work/warnings" ]'
expected="attention/only_softcap.o attention/softcap.o carried_texts.o emulated/attention/softcap.o gpu/attention/only_softcap.o "
if [ "$compiled" = "$expected" ]; then ok "worked example: compiles the new variant only"
else bad "worked example: compiles the new variant only" "compiled $compiled$(tail -n 1 "$work/log")"; fi

passes() {
    if (cd "$tree" && "$2") > "$work/out" 2>&1 && grep -q '^All tests passed' "$work/out"; then ok "$1"
    else bad "$1" "$(tail -n 4 "$work/out" | tr '\n' ' ')"; fi
}
passes "worked example: passes the tests of every variant" build/tests/test_softcap
passes "worked example: passes them on the emulated GPU" build/emulated/test_softcap
"$tree/build/tests/test_softcap" --list-tests > "$work/out"
check "worked example: the tests are softcap's" 'grep -q "softcap: " "$work/out" && ! grep -q "causal: " "$work/out"'

# The trainer, two steps of it. Where programs have a GPU half, train_gpt.o without one is not there yet.
in_tree train_softcap
check "worked example: links a trainer" '[ -x "$tree/train_softcap" ] && [ "${compiled/train_gpt.o /}" = "attention/selected_softcap.o " ]'
expect "worked example: trains" 0 "" "$tree/train_softcap" --device cpu --model qwen-tiny --steps 2 --seq-len 32 --batch-size 2 \
    --softcap 20 --val-every 0 --sample-every 0 --checkpoint-every 0 --plot 0 --threads 1 --out "$work/run"
check "worked example: trains two steps" 'grep -q "\"step\":2,.*\"loss\":[0-9]" "$work/run/log.jsonl"'

# The other one: its own programs tell where it is wrong, and those of another variant are built as before.
in_tree build/tests/test_broken
check "worked example: a variant with an error fails, and the compiler names its file" \
    '[ ! -e "$tree/build/tests/test_broken" ] && grep -q "attention/broken.cuh:.*error: " "$work/log"'
in_tree build/tests/test_causal build/emulated/test_causal
status=$?
check "worked example: the others are built as before" '[ $status -eq 0 ] && ! grep -v only_causal <(tr " " "\n" <<< "$compiled" | grep .)'
rm "$tree/attention/broken.cuh"

make -C "$tree" help > "$work/help"
check "worked example: make knows it" 'grep -q "VARIANT is one of:.* softcap " "$work/help"'
for source in $sources; do diff -rq "$source" "$tree/$source"; done > "$work/changed"
check "worked example: nothing else has changed" '[ "$(cat "$work/changed")" = "Only in $tree/attention: softcap.cuh" ]'
