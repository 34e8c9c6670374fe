#!/usr/bin/env bash
# Builds tests/fuzz/fuzz.cpp with clang, libFuzzer and the address and undefined-behaviour sanitizers, and runs each of its targets:
#   dev/fuzz.sh [SECONDS EACH] [NAME...]      e.g. dev/fuzz.sh 600 safetensors
# Findings land in build/fuzz/NAME-*; the corpora grow in build/fuzz/corpus-NAME.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
seconds=${1:-60}
shift
names=${*:-$(grep -oE '\{"[a-z_]+", fuzz_' tests/fuzz/fuzz.cpp | cut -d '"' -f 2)}
compiler=$(command -v clang++ || command -v clang++-14) || { echo "clang++ is needed: apt install clang" >&2; exit 1; }
mkdir -p build/fuzz
sources=$(ls model/*.cpp model/*/*.cpp data/*.cpp data/documents/*.cpp data/tokenizers/*.cpp | grep -vE 'data/tokenize.cpp|model/(device|ranks|run)/|model/attention_report.cpp')
make -s build/carried_texts.o || exit
for source in $sources build/carried_texts.cpp; do
    object=build/fuzz/$(echo "$source" | tr / _).o
    [ "$object" -nt "$source" ] || "$compiler" -std=c++20 -g -O1 -I. -DCOMMIT='"fuzz"' -fsanitize=fuzzer-no-link,address,undefined -c "$source" -o "$object" || exit
done
"$compiler" -std=c++20 -g -O1 -I. -fsanitize=fuzzer,address,undefined tests/fuzz/fuzz.cpp build/fuzz/*.o -lpcre2-8 -lutf8proc -larchive -lz -o build/fuzz/fuzz || exit
status=0
for name in $names; do
    mkdir -p "build/fuzz/corpus-$name"
    seeds=$([ "$name" = config ] && ls -d tests/fixtures/*/ | head -n 1; ls -d "tests/fuzz/seeds/$name" 2> /dev/null)
    if FUZZ_TARGET=$name build/fuzz/fuzz -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -artifact_prefix="build/fuzz/$name-" "build/fuzz/corpus-$name" $seeds > "build/fuzz/$name.log" 2>&1; then
        echo "ok fuzz_$name: $(grep -c . "build/fuzz/$name.log") lines of log, $(tail -n 1 "build/fuzz/$name.log")"
    else
        echo "FAIL fuzz_$name: $(grep -m 1 ERROR "build/fuzz/$name.log"); see build/fuzz/$name.log"
        status=1
    fi
done
exit $status
