#!/usr/bin/env bash
# A unit with the texts that checkpoints carry, for model/checkpoint/carried_texts.h: Python files whole, of variants the comment at the
# top, which has source and formula. The program may run where there is no source tree.
#   scripts/carried_texts.sh scripts/attention_torch/*.py attention/*.cuh > build/carried_texts.cpp
set -euo pipefail
text() { printf '        {"%s", R"carried(%s\n)carried"},\n' "$(basename "${1%.cuh}")" "$2"; }

printf '%s\n' '#include "model/checkpoint/carried_texts.h"' '' 'const std::vector<CarriedText>& modeling_files() {' \
    '    static const std::vector<CarriedText> all = {'
for file; do
    case $file in
        */__init__.py) ;;   # transformers makes its own
        *.py) text "$file" "$(cat "$file")" ;;
    esac
done
printf '%s\n' '    };' '    return all;' '}' '' 'const std::vector<CarriedText>& descriptions_of_variants() {' \
    '    static const std::vector<CarriedText> all = {'
for file; do
    case $file in
        *.cuh) text "$file" "$(sed -nE '/^\/\//!q; s/^\/\/ ?//p' "$file")" ;;
    esac
done
printf '%s\n' '    };' '    return all;' '}'
