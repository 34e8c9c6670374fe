#!/usr/bin/env bash
# A file fits in a head and a function on a screen: at most 400 lines and 80. Only the first lecture is longer, one file on purpose.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash

# sources FOLDER: what has functions and is written by hand.
sources() {
    (cd "$1" && find train_gpt.cu attention model data dev tests scripts -type f | grep -E '\.(h|cuh|cu|cpp|c|py|sh|bash)$')
}

# long_files FOLDER: "FILE LINES" of each that is too long.
long_files() {
    sources "$1" | (cd "$1" && xargs wc -l) | awk '$2 == "total" { next }
        $1 > ($2 == "tests/reference_qwen.c" ? 800 : 400) { print $2 " " $1 }'
}

# long_functions FOLDER: "FILE:LINE LINES" of each. A definition begins with a line that ends in "{" and ends with "}" at the same
# indentation; those inside structs and namespaces are looked for, those inside functions belong to them.
long_functions() {
    (cd "$1" && sources . | grep -E '\.(h|cuh|cu|cpp|c)$' | xargs awk '
        FNR == 1 { end = "" }
        end != "" && index($0, end) != 1 { next }
        end != "" { if (FNR - first + 1 > 80) print FILENAME ":" first " " FNR - first + 1; end = ""; next }
        /^ *(namespace|struct|class|enum|union|extern|template|public|private|protected)/ || !/\{( *\/\/.*)?$/ { next }
        /\(/ { match($0, /^ */); end = substr($0, 1, RLENGTH) "}"; first = FNR }')
}

long_files . > "$work/files"
check "no file has more than 400 lines: $(tr '\n' ';' < "$work/files")" '[ ! -s "$work/files" ]'
long_functions . > "$work/functions"
check "no function has more than 80 lines: $(tr '\n' ';' < "$work/functions")" '[ ! -s "$work/functions" ]'
lines=$(wc -l < README.md)
check "README.md has at most 150 lines ($lines)" '[ "$lines" -le 150 ]'
lines=$(wc -l < attention/moba.cuh)   # the measure of what the interface of policies is worth
check "attention/moba.cuh has at most 150 lines ($lines)" '[ "$lines" -le 150 ]'

# What is too long is seen.
mkdir -p "$work/tree"/{attention,model,data,dev,tests,scripts} && touch "$work/tree/train_gpt.cu"
{ printf 'struct Long {\n    int f(int x) {\n'; yes '        x++;' | head -n 79; printf '    }\n};\n'; } > "$work/tree/model/long.h"
yes '//' | head -n 401 > "$work/tree/data/long.cpp"
check "a long file and a long function are found" \
    '[ "$(long_files "$work/tree")" = "data/long.cpp 401" ] && [ "$(long_functions "$work/tree")" = "model/long.h:2 81" ]'
