#!/usr/bin/env bash
# A unit with the texts that checkpoints carry, for model/checkpoint/carried_texts.h: Python files whole, of variants the comment at the
# top, which has source and formula. The program may run where there is no source tree.
#   scripts/carried_texts.sh scripts/attention_torch/*.py attention/*.cuh > build/carried_texts.cpp
set -euo pipefail
text_of() { case $1 in *.py) cat "$1" ;; *) sed -nE '/^\/\//!q; s/^\/\/ ?//p' "$1" ;; esac; }

# table FUNCTION ENDING FILE...: a C++ function with the texts of the files whose names end so.
table() {
    local file
    printf '%s\n' "const std::vector<CarriedText>& $1() {" '    static const std::vector<CarriedText> all = {'
    for file in "${@:3}"; do
        [[ $file != *$2 ]] || printf '        {"%s", R"carried(%s\n)carried"},\n' "$(basename "${file%.cuh}")" "$(text_of "$file")"
    done
    printf '%s\n' '    };' '    return all;' '}'
}
printf '%s\n' '#include "model/checkpoint/carried_texts.h"' ''
table modeling_files .py "${@/*__init__.py/}"   # transformers makes its own
echo
table descriptions_of_variants .cuh "$@"
