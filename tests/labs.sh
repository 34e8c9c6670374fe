#!/usr/bin/env bash
# The labs of dev/labs: that each still fits the tree and can be graded, what bad input is told, and one from the plant to "solved".
# (dev/labs/try_all.sh tries all of them.) Builds nothing in build/; what it needs and is not there, it builds in a folder of out/.
# Needs: make tokenize build/dev/token_ids build/tests/test_data.o build/tests/main.o build/engine.a
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
. dev/labs/labs.bash
labs=dev/labs/labs.txt
mkdir -p out
LABS=$(mktemp -d out/tested_labs.XXXX)   # on this file system, so that objects are links
export LABS JOBS=1
trap 'rm -rf "$LABS"; cleanup' EXIT

# ---- the list
field() { field_of "$1" "$2" "$labs"; }
count=$(grep -c ^lab: $labs)
check "there are thirty labs, in order, from easy to hard" '[ "$count" -eq 30 ] &&
    [ "$(awk "\$1 == \"lab:\" { print \$2 }" $labs | paste -sd" ")" = "$(seq -s" " 30)" ] &&
    awk "\$1 == \"lab:\" { print \$3 }" $labs | uniq | paste -sd" " | grep -qx "easy medium hard"'
for n in $(seq "$count"); do fits "$n" || echo "lab $n"; done > "$work/unfit"
check "each patch fits the source: $(head -n 1 "$work/unfit")" '[ ! -s "$work/unfit" ]'

# Fields that a lab lacks, and cases that its test does not have: a case is a name as Catch2 takes it, that of a variant with the
# variant's in front.
incomplete() {
    local n test variants name word case
    for n in $(seq "$count"); do
        read -r test variants < <(field "$n" test)
        for name in symptom needs show sees hint cases; do
            [ -n "$(field "$n" $name)" ] || echo "lab $n has no $name"
        done
        [ "$(field "$n" sees | wc -l)" -le 1 ] || echo "lab $n has more than one sees"
        while IFS= read -r case; do
            name=${case%\*}
            for word in $variants; do name=${name#"$word"}; done
            grep -qF "CASE(\"$name" "$(source_of "$test")" || echo "lab $n: $(source_of "$test") has no case $case"
        done < <(field "$n" cases)
    done
}
incomplete > "$work/incomplete"
check "each has all its fields, and test cases that there are: $(head -n 1 "$work/incomplete")" '[ ! -s "$work/incomplete" ]'
for n in $(seq "$count"); do file_of "$n"; done | sort -u > "$work/files"
check "a lab's symptom, commands and hint do not name the file" '! grep -E "^(lab|symptom|show|hint): " $labs | grep -qFf "$work/files"'

# ---- bad input, each with one sentence
expect "no number" 2 "make labs lists them" dev/labs/lab.sh start ""
check "in one line" '[ "$(wc -l < "$work/stderr")" -eq 1 ]'
expect "a number that is none" 2 "there is no lab 31: they go from 1 to 30" dev/labs/lab.sh hint 31
expect "a word" 2 "there is no lab x" dev/labs/lab.sh check x
expect "an unknown request" 2 "usage:" dev/labs/lab.sh solve 1
expect "a copy that was never made" 2 "make lab N=1 plants the error" dev/labs/lab.sh check 1
mkdir "$work/mine"
expect "a folder with something else in it" 2 "is no copy of lab 1" env LAB="$work/mine" dev/labs/lab.sh start 1
expect "which is not graded either" 2 "is no copy of lab 1" env LAB="$work/mine" dev/labs/lab.sh check 1
expect "through make" 2 "which lab?" make --no-print-directory lab
expect "the list" 0 "" make --no-print-directory labs
check "has thirty lines and one more" '[ "$(wc -l < "$work/stdout")" -eq 31 ]'
expect "a hint" 0 "" make --no-print-directory lab-hint N=14
check "is the lab's" '[ "$(cat "$work/stdout")" = "$(field 14 hint)" ]'

# ---- one lab from the plant to "solved": quick to compile
lab=16
copy=$LABS/$lab
file=$(file_of $lab)
old=$(sed -n 's/^-\([^-].*\)/\1/p' "$(patch_of $lab)") new=$(sed -n 's/^+\([^+].*\)/\1/p' "$(patch_of $lab)")
lab() { timeout 1500 dev/labs/lab.sh "$1" $lab > "$work/said" 2>&1; }
said() { grep -qF -- "$1" "$work/said"; }
lab start
check "the error is planted" '[ $? -eq 0 ] && grep -qF -- "$new" "$copy/$file" && ! grep -qF -- "$old" "$copy/$file"'
check "and what is said names the symptom, not the file" 'said "$(field $lab symptom)" && said "N=$lab" && ! said "$file"'
check "the copy has neither solution nor tests" '
    ! ls -d "$copy"/{dev/labs,.git} "$copy"/tests/*.{cpp,sh} 2> /dev/null | grep -q .'
check "as it is planted it is not yet solved" '! lab check && said "lab $lab: not yet" && said "$(field $lab symptom)"'
check "and why does not name the file" '! said "$file"'
lab start
check "what a student has is not planted anew" '[ $? -eq 0 ] && said "stays as it is"'
echo "int other = no_such_word;" >> "$copy/$file" && echo "no makefile" > "$copy/Makefile"
check "a copy that does not compile is told so" '! lab check && said "does not compile" && said no_such_word'
check "and that the Makefile does not count" 'said "what you changed elsewhere is ignored: Makefile"'
sed -i '1s/.*/lab 15/' "$copy/.lab"
check "the copy of another lab is not graded" '! lab check && said "is no copy of lab $lab"'
sed -i '1s/.*/lab 16/; /  data.split.cpp$/s/^......../00000000/' "$copy/.lab"
cp "$file" "$copy/$file"
check "with the line as it was it is solved" 'lab check && said "lab $lab: solved"'
check "though the tree has changed meanwhile, and that is said" \
    'said "has changed since this copy was made (1 files, data/split.cpp the"'
