#!/usr/bin/env bash
# The emulator under ThreadSanitizer, where it finds races of kernels, and under AddressSanitizer, where it finds accesses beyond an
# allocation. Kernels with planted errors (tests/emulator/races.cpp) must be reported with their line, in every order of threads;
# correct ones must not. Without a sanitizer, a crash names the CUDA thread. Prints `ok NAME`, `FAIL NAME: why` or `skip NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
compiler=${CXX:-g++}
source=tests/emulator/races.cpp
common="-std=c++20 -O1 -g -fno-strict-aliasing -Wall -Wextra -Wno-unknown-pragmas -Wno-psabi
        -DEMULATED_GPU -Idev/emulator/include -I."

. tests/checks.bash

# works FLAGS: this machine has the library of a sanitizer, and it runs here.
works() {
    echo 'int main() {}' > "$work/empty.cpp"
    "$compiler" $1 "$work/empty.cpp" -o "$work/empty" 2> /dev/null && "$work/empty" 2> /dev/null
}

# build NAME FLAGS
build() {
    "$compiler" $common $2 "$source" -o "$work/$1" 2> "$work/log" && return
    bad "$1: compiles" "$(grep -m 1 error "$work/log")"
    return 1
}

# reports PROGRAM KERNEL WORDS SEEDS: with each seed the report contains the words and the marked line of the source.
reports() {
    local line seed
    line=$(grep -n -- "// <- $2\$" "$source" | cut -d: -f1)
    for seed in $4; do
        EMULATOR_SEED=$seed timeout 60 "$work/$1" "$2" > "$work/log" 2>&1
        if ! grep -q -- "$3" "$work/log"; then bad "$1: $2" "seed $seed: no '$3'"; return; fi
        if ! grep -q "races.cpp:$line\b" "$work/log"; then bad "$1: $2" "seed $seed: line $line is not named"; return; fi
    done
    ok "$1: $2"
}

# leaves_alone PROGRAM KERNEL
leaves_alone() {
    local seed
    for seed in 0 1 2; do
        EMULATOR_SEED=$seed timeout 60 "$work/$1" "$2" > "$work/log" 2>&1 && [ ! -s "$work/log" ] && continue
        bad "$1: $2" "seed $seed: $(head -n 2 "$work/log" | tr '\n' ' ')"
        return
    done
    ok "$1: $2"
}

# says KERNEL SEED WORDS: an ordinary build ends with a signal and says the words.
says() {
    if { EMULATOR_SEED=$2 timeout 60 "$work/plain" "$1"; } > "$work/log" 2>&1; then bad "plain: $1" "ends without a signal"
    elif ! grep -q -- "$3" "$work/log"; then bad "plain: $1" "no '$3': $(head -n 1 "$work/log")"
    else ok "plain: $1"; fi
}

clean="clean_sum clean_copies clean_chain"
if ! works -fsanitize=thread; then
    skip "thread sanitizer" "$compiler -fsanitize=thread does not work on this machine"
elif build thread -fsanitize=thread; then
    for kernel in $clean; do leaves_alone thread "$kernel"; done
    for kernel in missing_barrier_before_read missing_barrier_before_write missing_barrier_in_warp missing_atomic missing_fence \
        missing_barrier_after_copy; do reports thread "$kernel" "data race" "0 1 2"; done
fi

if ! works -fsanitize=address,undefined; then
    skip "address sanitizer" "$compiler -fsanitize=address,undefined does not work on this machine"
elif build address "-fopenmp -fsanitize=address,undefined"; then
    for kernel in $clean; do leaves_alone address "$kernel"; done
    for kernel in shared_read_past_end shared_write_before_start global_read_past_end global_write_past_end copy_not_waited_for \
        copy_from_past_end; do reports address "$kernel" use-after-poison "0 1"; done
    reports address row_of_another "out of bounds" "0 1"
fi

if build plain -fopenmp; then
    says divide 0 "signal 8 in the kernel launched at tests/emulator/races.cpp:"
    says write_nowhere 0 "block (2,0,0), thread 77"
    says use_up_the_stack 0 "signal 11 in the kernel launched at"
    says host_reads_device 1 "the host touches memory of the device"
    if [ "$("$work/plain" host_reads_device)" = 4 ]; then ok "plain: seed 0 lets the host read"; else bad "plain: seed 0" "$?"; fi
fi
