#!/usr/bin/env bash
# A function fits on a screen: at most 80 lines.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash

# long_functions: "FILE:LINE LINES" of each. A definition begins with a line that ends in "{" and ends with "}" at the same
# indentation; those inside structs and namespaces are looked for, those inside functions belong to them.
long_functions() {
    find train_gpt.cu attention model data dev tests -type f | grep -E '\.(h|cuh|cu|cpp|c)$' | xargs awk '
        FNR == 1 { end = "" }
        end != "" && index($0, end) != 1 { next }
        end != "" { if (FNR - first + 1 > 80) print FILENAME ":" first " " FNR - first + 1; end = ""; next }
        /^ *(namespace|struct|class|enum|union|extern|template|public|private|protected)/ || !/\{( *\/\/.*)?$/ { next }
        /\(/ { match($0, /^ */); end = substr($0, 1, RLENGTH) "}"; first = FNR }'
}

long_functions > "$work/functions"
check "no function has more than 80 lines: $(tr '\n' ';' < "$work/functions")" '[ ! -s "$work/functions" ]'
lines=$(wc -l < README.md)
check "README.md has at most 150 lines ($lines)" '[ "$lines" -le 150 ]'
lines=$(wc -l < attention/moba.cuh)   # the measure of what the interface of policies is worth
check "attention/moba.cuh has at most 150 lines ($lines)" '[ "$lines" -le 150 ]'
