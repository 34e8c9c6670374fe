#!/usr/bin/env bash
# The emulator under ThreadSanitizer, where it finds races of kernels, and under AddressSanitizer, where it finds accesses beyond an
# allocation: faulty kernels (tests/emulator/races.cpp) must be reported with their line, in every order of threads. (dev/sanitizers.sh
# has a whole training step.) Prints `ok NAME`, `FAIL NAME: why` or `skip NAME: why`.
. "$(dirname "$0")/checks.bash"
compiler=${CXX:-g++} source=tests/emulator/races.cpp
common=(-std=c++20 -O1 -g -fno-strict-aliasing -Wall -Wextra -Wno-unknown-pragmas -Wno-psabi -DEMULATED_GPU -Idev/emulator/include -I.)

# works FLAGS: this machine has the library of a sanitizer, and it runs here.
works() {
    echo 'int main() {}' > "$work/empty.cpp"
    # shellcheck disable=SC2086  # words
    "$compiler" $1 "$work/empty.cpp" -o "$work/empty" 2> /dev/null && "$work/empty" 2> /dev/null
}
# build NAME FLAGS: $work/NAME.
build() {
    # shellcheck disable=SC2086
    works "$2" || { skip "$1" "$compiler $2 does not work on this machine"; return 1; }
    # shellcheck disable=SC2086
    "$compiler" "${common[@]}" $2 "$source" -o "$work/$1" 2> "$work/log" || { bad "$1: compiles" "$(grep -m 1 error "$work/log")"; return 1; }
}
# reports PROGRAM WORDS SEEDS KERNEL...: with each seed the report of each kernel has the words and the marked line of the source; without
# words the kernel ends well and there is no report.
reports() {
    local program=$1 words=$2 seeds=$3 seed kernel why line status
    for kernel in "${@:4}"; do
        why="" line=$(grep -n -- "// <- $kernel\$" "$source" | cut -d: -f1)
        for seed in $seeds; do
            EMULATOR_SEED=$seed timeout 60 "$work/$program" "$kernel" > "$work/log" 2>&1
            status=$?
            if [ -z "$words" ]; then [ $status -eq 0 ] && [ ! -s "$work/log" ]
            else grep -q -- "$words" "$work/log" && grep -q "races.cpp:$line\b" "$work/log"
            fi || why="seed $seed, status $status: $(head -n 2 "$work/log" | tr '\n' ' ')"
        done
        if [ -z "$why" ]; then ok "$program: $kernel"; else bad "$program: $kernel" "$why"; fi
    done
}
if build thread -fsanitize=thread; then
    reports thread "" "0 1 2" clean_chain
    reports thread "data race" "0 1 2" missing_barrier_before_read missing_barrier_in_warp missing_atomic missing_fence \
        missing_barrier_after_copy
fi
if build address "-fopenmp -fsanitize=address"; then
    reports address "" "0 1 2" clean_chain
    reports address use-after-poison "0 1" shared_read_past_end global_write_past_end copy_not_waited_for copy_from_past_end
fi
if build plain -fopenmp; then
    check "plain: seed 1 does not let the host read device memory" '! { EMULATOR_SEED=1 "$work/plain" host_reads_device; } 2> /dev/null'
    check "plain: seed 0 does" '[ "$("$work/plain" host_reads_device)" = 4 ]'
fi
