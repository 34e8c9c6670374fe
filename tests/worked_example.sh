#!/usr/bin/env bash
# A new variant is one file. Takes softcap from the code block in dev/FROM_PAPER_TO_FILE.md, puts it into a copy of the tree, and
# builds and runs what every variant has to pass, on the CPU and on the emulated GPU, and a trainer: nothing is compiled but softcap.
# Beside it stands a variant that does not compile, which breaks no other.
# Needs the objects of `make build/tests/run_tests build/emulated/run_tests`. Prints lines `ok NAME` or `FAIL NAME: why`.
. "$(dirname "$0")/checks.bash"
tree=$work/tree
if [ ! -e build/tests/main.o ] || [ ! -e build/emulated/engine.a ]; then
    bad "worked example" "objects are missing: make build/tests/run_tests build/emulated/run_tests comes first"
    exit 1
fi

# The copy: sources and objects with their times. (Archives and programs of the tree are remade where they are needed.)
mkdir "$tree"
cp -a Makefile attention data dev model scripts tests train_gpt.cu "$tree"
tar cf - --exclude='run_tests' --exclude=build/python --exclude=build/fuzz --exclude=build/gpu --exclude='build/emulated/generate*' build | tar xf - -C "$tree"
awk '/^```cpp$/ { inside = 1; block = ""; next }
     /^```$/ { if (inside && block ~ /struct softcap /) printf "%s", block; inside = 0 }
     inside { block = block $0 "\n" }' dev/FROM_PAPER_TO_FILE.md > "$tree/attention/softcap.cuh"
check "worked example: one file of fewer than 60 lines" '[ "$(wc -l < "$tree/attention/softcap.cuh")" -gt 20 ] && [ "$(wc -l < "$tree/attention/softcap.cuh")" -lt 60 ]'
sed 's/softcap/broken/; s/double cap/double cap cap/' "$tree/attention/softcap.cuh" > "$tree/attention/broken.cuh"

# in_tree GOAL...: makes it in the copy. The compiler's output is in $work/log, $compiled has the objects. The flags of the objects are as
# they are, and so is the commit, which a copy without git has not; without CUDA, which would compile for a real GPU.
in_tree() {
    make -C "$tree" --no-print-directory -o build/flags -o build/emulated/flags -o build/commit USE_CUDA=0 "$@" > "$work/log" 2>&1
    local status=$?
    compiled=$(sed -n 's/^compile build\/\([^ ]*\).*/\1/p' "$work/log" | sort | tr '\n' ' ')
    return $status
}
in_tree build/tests/test_softcap build/emulated/test_softcap train_softcap
check "worked example: builds without a warning" '[ '$?' -eq 0 ] && ! grep -E "(warning|error):" "$work/log"'
# What checkpoints carry has the new variant's description. Where programs have a GPU half, train_gpt.o without one is not there yet.
others=$(tr ' ' '\n' <<< "$compiled" | grep -vE '^$|softcap.o$|^carried_texts.o$|^train_gpt.o$' | paste -sd' ')
check "worked example: compiles the new variant only, not also: $others" '[ -z "$others" ] && grep -q "emulated/attention/softcap.o" <<< "$compiled"'
for program in build/tests/test_softcap build/emulated/test_softcap; do
    (cd "$tree" && "$program") > "$work/out" 2>&1
    check "worked example: passes $program" 'grep -q "^All tests passed" "$work/out" || { tail -n 4 "$work/out" | tr "\n" " "; false; }'
done
expect "worked example: trains" 0 "" "$tree/train_softcap" --device cpu --model qwen-tiny --steps 2 --seq-len 32 --batch-size 2 \
    --softcap 20 --val-every 0 --sample-every 0 --checkpoint-every 0 --plot 0 --threads 1 --out "$work/run"
check "worked example: trains two steps" '[ "$(steps_of "$work/run")" -eq 2 ]'
in_tree build/attention/broken.o
check "worked example: of a variant with an error the compiler names the file" '[ '$?' -ne 0 ] && grep -q "attention/broken.cuh:.*error: " "$work/log"'
for part in score_backward naive; do   # of the contract
    sed "s/softcap/broken/; s/$part(/forgotten(/" "$tree/attention/softcap.cuh" > "$tree/attention/broken.cuh"
    in_tree build/attention/broken.o
    check "worked example: the compiler names a forgotten $part()" 'grep -q "static assertion.*$part(" "$work/log"'
done
in_tree build/tests/test_causal
check "worked example: the others are built as before" '[ '$?' -eq 0 ] && [ -z "$compiled" ]'
make -C "$tree" help > "$work/help"
check "worked example: make lists it" 'grep -q "VARIANT:.* softcap " "$work/help"'
