#!/usr/bin/env bash
# Labs that grade themselves: an error is planted in a copy of the tree and told by its symptom alone; hidden tests say whether
# it is gone. dev/labs/README.md is for those who do them; dev/labs/labs.txt has the labs, and so their solutions.
#   dev/labs/lab.sh list                       make labs
#   dev/labs/lab.sh start|hint|check NUMBER    make lab, lab-hint, lab-check N=NUMBER; the copy is out/labs/NUMBER, or LAB=FOLDER
# LABS: the folder for copies, by default out/labs. There is also `base`, a copy of the tree as it is, where what labs need is built
# once for all of them (with what build/ has already), and check/NUMBER, where a student's sources meet the hidden tests.
# Exit codes: 0, or solved; 1 not yet; 2 a request that makes no sense.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/labs/labs.bash
export LC_ALL=C.UTF-8 OMP_WAIT_POLICY=passive   # threads that spin while they wait slow a busy machine down
labs=dev/labs/labs.txt folder=${LABS:-out/labs}
base=$folder/base
tree=(Makefile README.md attention data dev model scripts tests train_gpt.cu)
sources=(attention data model train_gpt.cu)   # what a student may change
others=(Makefile README.md dev scripts tests)
job=${1:-} number=${2:-} copy=${LAB:-$folder/${2:-}} check=$folder/check/${2:-}

refuse() { echo "$1" >&2; exit 2; }
give_up() { echo "$1" >&2; exit 1; }

# field NAME: its lines in this lab's entry.
field() { field_of "$number" "$1"; }

# ---- copies of the tree
# sums FOLDER FILE...: `hash  path` of each file that is in the repository, sorted.
sums() {
    (cd "$1" && shift && find "$@" -type f ! -name '*.bin' ! -name sotu_manifest.json ! -name '*.pyc' -print0 2> /dev/null |
        xargs -0 -r md5sum | sort)
}
paths_of() { cut -c 35- | sort -u; }

# update FROM TO FILE...: these files and folders of TO become those of FROM. Only what differs is written, so that make sees it.
update() {
    local from=$1 to=$2 path
    sums "$from" "${@:3}" > "$folder/from" && sums "$to" "${@:3}" > "$folder/to"
    comm -23 "$folder/from" "$folder/to" | paths_of | while IFS= read -r path; do
        mkdir -p "$(dirname "$to/$path")" && cp --remove-destination "$from/$path" "$to/$path" || exit
    done || return
    comm -13 <(paths_of < "$folder/from") <(paths_of < "$folder/to") | while IFS= read -r path; do rm -f "$to/$path"; done
}

# take_objects FROM TO [CONDITION...]: what FROM has compiled, where find's conditions hold: as hard links, which nothing writes
# through (make renames what is complete), or as copies where the two are on different file systems.
take_objects() {
    local to how
    to=$(realpath "$2")
    (cd "$1" && find build -type f \( -name '*.o' -o -name '*.d' -o -name '*.a' -o -name '*.cpp' -o -name '*flags' -o -name units \
        -o -name linked -o -name config.mk -o -name reference_qwen \) ! -path 'build/python/*' "${@:3}" -print0) \
        > "$folder/objects"
    for how in -lp -p; do
        (cd "$1" && xargs -0 -r cp "$how" --parents -t "$to") < "$folder/objects" 2> /dev/null && return
    done
}

# make_in FOLDER WORD...: make there, silently; when it fails, the compiler's first complaint is on stdout.
make_in() {
    if make -C "$1" --no-print-directory -j"${JOBS:-$(nproc)}" USE_CUDA=0 "${@:2}" > "$folder/make.log" 2>&1; then return; fi
    grep -m 1 -E 'error|Error' "$folder/make.log" || tail -n 1 "$folder/make.log"
    return 1
}

# The hidden tests' program, and how make is asked for it: with this test alone and a table of these variants.
describe_program() {
    program=build/tests/run_tests
    [[ $test == emulated/* ]] && program=build/emulated/run_tests
    how=(LDFLAGS=-Wl,-t,-t "TESTS=build/tests/main.o build/tests/$test.o" "GPU_TESTS=tests/${test#emulated/}.o" EMULATOR_TESTS=)
    how+=("VARIANTS=${variants:-causal}")
}

# prepare_base [PROGRAM...]: `base` as the tree is now, with these programs and the lab's hidden tests built.
prepare_base() {
    local complaint
    mkdir -p "$folder" && folder=$(realpath "$folder") && base=$folder/base check=$folder/check/$number
    exec 9> "$folder/lock" && flock 9   # two at once would write the same files
    if [ ! -e "$base/.complete" ]; then
        rm -rf "$base" && mkdir -p "$base"
        tar cf - --exclude='*.bin' --exclude=sotu_manifest.json "${tree[@]}" | tar xf - -C "$base"
        if [ -d build ]; then take_objects . "$base"; fi
        touch "$base/.complete"
    fi
    update . "$base" "${tree[@]}" || give_up "$folder: cannot be written; choose another folder with LABS=FOLDER"
    echo "building what lab $number needs, without the error (minutes where nothing has been built yet, else seconds) ..."
    { [ $# -eq 0 ] || complaint=$(make_in "$base" "$@"); } && rm -f "$base/$program" &&
        complaint=$(make_in "$base" "${how[@]}" "$program") ||
        give_up "the tree itself does not build, without any error planted: $complaint"
}

# ---- what make's targets ask for
list() {
    awk '$1 == "lab:" { n = $2; level = $3; sub(/^lab: [0-9]+ [a-z]+ /, ""); printf "%3d  %-7s %s\n", n, level, $0 }' $labs
    echo "make lab N=1 plants the first; dev/labs/README.md says how to go on."
}

# What a copy is made of: everything but the tests and the labs. Of the tests the oracle in plain C, to compare
# with, and tokenizers, to try.
copied="Makefile README.md attention data model scripts train_gpt.cu dev/emulator dev/ladder dev/*.cpp dev/*.cu dev/*.cuh
    dev/HACKING.md dev/README.md tests/reference_qwen.c tests/fixtures/tokenizers/*_tokenizer.json"

start() {
    local file
    if [ -e "$copy" ]; then
        [ "$(head -n 1 "$copy/.lab" 2> /dev/null)" = "lab $number" ] ||
            refuse "$copy is there already and is no copy of lab $number; choose another place with LAB=FOLDER"
        echo "$copy is there already and stays as it is (remove it to begin anew)."
    else
        file=$(file_of "$number")
        fits "$number" || give_up "lab $number does not fit this tree any more: $(patch_of "$number") changes another line"
        # shellcheck disable=SC2046  # a list of words
        prepare_base $(field needs)
        # shellcheck disable=SC2086  # a list of names with wildcards
        mkdir -p "$copy/out" && (cd "$base" && tar cf - $copied) | tar xf - -C "$copy" || give_up "$copy: cannot be written"
        cp dev/labs/{compare.sh,round_trip.sh,small.toml} "$copy/"
        take_objects "$base" "$copy" ! -path '*/tests/*'
        { echo "lab $number"; sums "$base" "${sources[@]}"; sums "$copy" "${others[@]}"; } > "$copy/.lab"
        plant "$number" "$copy"
        # Compiled here, and dated back: what the student's first make compiles would say where the error is.
        # shellcheck disable=SC2046  # a list of words
        make_in "$copy" $(field needs) > /dev/null || give_up "lab $number: with its error the tree does not compile"
        touch -r "$base/$file" "$copy/$file"
    fi
    awk -v n="$number" '$1 == "lab:" && $2 == n {
        level = $3; sub(/^lab: [0-9]+ [a-z]+ /, ""); print "\nLab " n ", " level ": " $0 }' $labs
    field symptom
    printf '\nWhat shows it, in the copy of the tree that has the error:\n    cd %s\n' "$copy"
    field show | sed 's/^/    /'
    printf '\nA hint, one: make lab-hint N=%s.  Graded: make lab-check N=%s.  Both here, not in the copy%s.\n' "$number" "$number" \
        "${LAB:+, with LAB=$LAB}"
}

# differing LIST LIST: the paths of lines that only one of two outputs of sums() has.
differing() { comm -3 "$1" "$2" | sed 's/^\t//' | paths_of; }

# Notes on what differs between the copy and the tree that it was made of outside the sources, and what of that tree has changed.
notes() {
    local ignored changed is_source='  (attention/|data/|model/|train_gpt[.]cu)'
    tail -n +2 "$copy/.lab" | sort > "$folder/planted"
    ignored=$(differing <(grep -vE "$is_source" "$folder/planted") <(sums "$copy" "${others[@]}") | paste -sd' ')
    [ -z "$ignored" ] || echo "note: only ${sources[*]} are graded; what you changed elsewhere is ignored: $ignored"
    changed=$(differing <(grep -E "$is_source" "$folder/planted") <(sums "$base" "${sources[@]}"))
    [ -z "$changed" ] || echo "note: the tree has changed since this copy was made ($(wc -l <<< "$changed") files," \
        "$(head -n 1 <<< "$changed") the first), and the hidden tests are those of today: should they not compile, begin anew"
}

# run_cases: each of the lab's cases by itself, GPU code in several orders of threads and streams; counts those that fail.
run_cases() {
    local spec seed seeds=0
    [[ $test == emulated/* ]] && seeds="0 1 2 3"
    total=0 failed=0
    while IFS= read -r spec; do
        total=$((total + 1)) spec=${spec//,/\\,}   # a comma would divide the names of two cases
        for seed in $seeds; do
            (cd "$check" && EMULATOR_SEED=$seed timeout 300 "$program" "$spec" --abort < /dev/null) \
                > "$folder/cases.log" 2>&1 && continue
            failed=$((failed + 1))
            break
        done
        ! grep -q 'No test cases matched' "$folder/cases.log" || give_up "lab $number is broken: there is no test case $spec"
    done < <(field cases)
}

check_copy() {
    local complaint needless
    [ -e "$copy" ] || refuse "$copy is not there; make lab N=$number plants the error"
    [ "$(head -n 1 "$copy/.lab" 2> /dev/null)" = "lab $number" ] ||
        refuse "$copy is no copy of lab $number; say which folder is with LAB=FOLDER"
    prepare_base
    notes
    mapfile -t needless < <(cd "$base" && unlinked "$folder/make.log" | sed p | sed '1~2s/.*/-o/')
    rm -rf "$check" && mkdir -p "$folder/check" && cp -al "$base" "$check" || give_up "$check: cannot be written"
    update "$base" "$check" "${others[@]}" && update "$copy" "$check" "${sources[@]}" ||
        give_up "$check: cannot be written"
    rm -f "$check/$program"
    complaint=$(make_in "$check" "${needless[@]}" "${how[@]}" "$program") ||
        give_up "lab $number: the copy does not compile: $complaint"
    run_cases
    rm -rf "$check"
    if [ $failed -eq 0 ]; then
        echo "lab $number: solved"
        return
    fi
    echo "lab $number: not yet; $failed of $total hidden tests fail. What still happens:"
    field symptom
    return 1
}

case $job in
    list) list; exit ;;
    start | hint | check) ;;
    *) refuse "usage: dev/labs/lab.sh list | start NUMBER | hint NUMBER | check NUMBER" ;;
esac
[ -n "$number" ] || refuse "which lab? Give its number, for instance N=1; make labs lists them"
read -r test variants < <([[ $number =~ ^[1-9][0-9]*$ ]] && field test)
[ -n "${test:-}" ] || refuse "there is no lab $number: they go from 1 to $(grep -c ^lab: $labs) (make labs)"
describe_program
case $job in
    start) start ;;
    hint) field hint ;;
    check) check_copy ;;
esac
