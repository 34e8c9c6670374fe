#!/usr/bin/env bash
# What the tests themselves stand on: that each variant is in the generated tables, and that what counts the test cases
# (scripts/stages.bash) notices one that fails, one that does not run, and a program that dies. The programs here are stand-ins.
# Prints lines `ok NAME` or `FAIL NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash

# ---- the tables
ls attention/*.cuh | sed 's/.*\//        \&WHERE::/; s/\.cuh$/,/' | LC_ALL=C sort > "$work/expected"
for table in build/attention/all_variants.cpp build/gpu/attention/all_variants.cpp; do
    where=on_cpu
    [[ $table == */gpu/* ]] && where=on_gpu
    make -s "$table" > /dev/null
    check "$table: has every variant of attention/" 'diff <(sed "s/WHERE/$where/" "$work/expected") <(grep "  &" "$table")'
done

# ---- scripts/stages.bash
# A program that answers as one with Catch2 does, and has three cases. $misbehaves: how the second one does, or all of them.
cat > "$work/program" <<'EOF'
#!/usr/bin/env bash
if [[ "$1" == --list-test* && "$misbehaves" == empty ]]; then exit; fi
if [[ "$1" == --list-test* ]]; then printf '%s\n' "one, with a comma" two three; exit; fi
ran=0 bad=0 status=0
while IFS= read -r name; do
    case $misbehaves$name in
        vanishestwo) continue ;;
        diestwo) echo "boom"; exit 134 ;;
        leakstwo) status=23 ;;
        failstwo | failing*) bad=$((bad + 1)) ;;
    esac
    echo "0.125 s: $name"
    ran=$((ran + 1))
done < "$2"
if [ "$bad" -eq 0 ]; then echo "All tests passed (9 assertions in $ran test cases)"
else echo "test cases: $ran | $((ran - bad)) passed | $bad failed"; fi
exit $((bad + status))
EOF
chmod +x "$work/program"

# counts NAME HOW STATUS LAST: the program that misbehaves like this, in two processes, ends in the status and the last line.
counts() {
    local status expected=$3 last=$4
    OMP_NUM_THREADS=2 misbehaves=$2 bash -uo pipefail -c '. scripts/stages.bash; run_cases "$0"; finish' "$work/program" > "$work/counted" 2>&1
    status=$?
    check "run_cases: $1" '[ "$status" -eq "$expected" ] && [[ $(tail -n 1 "$work/counted") == $last ]]'
}
counts "three cases that pass are three" not 0 "3 passed, 0 failed"
counts "one that fails is one" fails 1 "2 passed, 1 failed"
counts "three that fail are three" failing 1 "0 passed, 3 failed"
counts "one that is listed and does not run is a failure" vanishes 1 "2 passed, 1 failed"
counts "a program that dies is a failure, whatever it had done" dies 1 "* passed, [12] failed"
counts "a program that fails after its last case is a failure" leaks 1 "3 passed, 1 failed"

counts "a program without test cases is a failure" empty 1 "0 passed, 1 failed"

stage_of() { bash -uo pipefail -c '. scripts/stages.bash; stage "$@"; finish' . "$@" 2>&1; }
check "stage: a command that fails is a failed test" '[ "$(stage_of nothing false | tail -n 1)" = "0 passed, 1 failed" ]'
check "stage: a run without any test is no success" '! stage_of nothing true > /dev/null'
