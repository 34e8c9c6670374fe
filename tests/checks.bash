# Sourced by tests/*.sh, which run in the repository's root: each check prints a line `ok NAME` or `FAIL NAME: why`, or `skip NAME: why` for
# what a machine cannot show.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
export LC_ALL=C.UTF-8            # compilers' messages are matched in English
export OMP_WAIT_POLICY=passive   # as in scripts/run_tests.sh
python=${PYTHON:-python3}        # may have packages that python3 lacks
work=$(mktemp -d) || exit   # the script's own folder
cleanup() { rm -rf "$work"; }
trap cleanup EXIT

# COMMAND | finds [-E...] PATTERN: grep -q that reads to the end. grep -q itself ends at the first match, and pipefail then reports
# the command's broken pipe as a failure.
finds() { grep -c "$@" | cat > /dev/null; }

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
launch=mpirun   # more ranks than processors need Open MPI's word
mpirun --version 2> /dev/null | finds 'Open MPI' && launch="mpirun --oversubscribe"

# has_mpi PROGRAM: whether ranks of it can be started with $launch.
has_mpi() { command -v mpirun > /dev/null && ldd "$1" | finds libmpi; }

ok() { echo "ok $1"; }
bad() { echo "FAIL $1: $2"; }
skip() { echo "skip $1: $2"; }
check() { if eval "$2"; then ok "$1"; else bad "$1" "not true: $2"; fi; }

# expect NAME CODE WORD COMMAND...: the command ends with the code, within LIMIT seconds, and its stderr contains the word.
expect() {
    local name=$1 code=$2 word=$3 status
    shift 3
    timeout "${LIMIT:-120}" "$@" > "$work/stdout" 2> "$work/stderr"
    status=$?
    if [ "$status" -ne "$code" ]; then bad "$name" "exit code $status instead of $code: $(tail -n 1 "$work/stderr")"
    elif [ -n "$word" ] && ! grep -qF -- "$word" "$work/stderr"; then bad "$name" "stderr does not contain '$word': $(tail -n 1 "$work/stderr")"
    else ok "$name"; fi
}

# expect_each [WORD...]: expect() for each line `NAME | CODE | WORD | COMMAND` of standard input. The shell evaluates the command
# behind the words.
expect_each() {
    local name code word command
    while read -r -u 3 name; do
        [ -n "$name" ] || continue
        IFS='|' read -r name code word command <<< "$name"
        word=${word# } word=${word% }
        eval "expect \"\${name% }\" $code \"\$word\" \"\$@\" $command" < /dev/null
    done 3<&0
}

# mask_shard SHARD MASKED CONDITION: a copy with a loss mask, under which the targets i count for which the Python condition holds.
mask_shard() {
    python3 -c 'import struct, sys
shard = open(sys.argv[1], "rb").read()
mask = bytes(bool(eval(sys.argv[3])) for i in range(struct.unpack_from("<3i", shard)[2]))
open(sys.argv[2], "wb").write(shard[:4] + struct.pack("<i", 2) + shard[8:] + mask)' "$@"
}

# small_shards: $work/text.txt, 60 KB of the bundled text, and its shards $work/data/small_*.
small_shards() {
    head -c 60000 data/bundled/sotu.jsonl | sed 's/[^a-zA-Z0-9 ,.]//g' > "$work/text.txt"
    ./tokenize --tokenizer bytes --out "$work/data" --name small "$work/text.txt" > /dev/null 2>&1
}

# await PATTERN FILE: until the file has it, or half a minute is over.
await() { for _ in $(seq 600); do grep -qs -- "$1" "$2" && break; sleep 0.05; done; }

# signalled PATTERN SIGNALS COMMAND...: starts the command, awaits the pattern in its output, $work/signalled.txt, and sends the
# signals, half a second apart. Leaves the exit code in `status`.
signalled() {
    local pattern=$1 signals=$2 signal job
    shift 2
    timeout --foreground -s KILL 60 "$@" > "$work/signalled.txt" 2>&1 &
    job=$!
    await "$pattern" "$work/signalled.txt"
    sleep 0.2
    for signal in $signals; do pkill "-$signal" -P $job; sleep 0.5; done
    wait $job
    status=$?
}

# Of runs' folders: the hash of the last weights; whether two have the same; `step loss norm` of each step.
hash_of() { tail -n 1 "$1/log.jsonl" | sed -n 's/.*"weights_hash":"\([0-9a-f]*\)".*/\1/p'; }
same_weights() { [ -n "$(hash_of "$1")" ] && [ "$(hash_of "$1")" = "$(hash_of "$2")" ]; }
losses() { sed -nE 's/^\{"step":([0-9]+),.*"loss":([^,]+),"grad_norm":([^,]+),.*/\1 \2 \3/p' "$1/log.jsonl"; }
steps_of() { losses "$1" | wc -l; }
# curve_within A B MOST NORM: the steps of two runs are the same, their losses differ by no more than MOST, norms than NORM.
curve_within() {
    paste -d' ' <(losses "$1") <(losses "$2") | awk -v loss="$3" -v norm="$4" '
        function far(a, b, most) { a = a / b - 1; return !(a * a <= most * most) }
        $1 != $4 || far($2, $5, loss) || far($3, $6, norm) { bad = 1 } END { exit bad || !NR }'
}

programs=.   # where trainers are
# train VARIANT OUT WORD...: a run of $programs/train_VARIANT in $work/OUT with the options of $small and these words; NAME=VALUE at
# their beginning is for the environment, @N starts N ranks. The output is $work/OUT.txt.
train() {
    local program=$programs/train_$1 out=$2 start=(env)
    shift 2
    while [[ ${1:-} == @* || ${1:-} =~ ^[A-Z_]+= ]]; do
        # shellcheck disable=SC2206  # words
        if [[ $1 == @* ]]; then start+=($launch -np "${1#@}"); else start=(env "$1" "${start[@]:1}"); fi
        shift
    done
    timeout --foreground -k 5 300 "${start[@]}" "$program" "${small[@]}" --out "$work/$out" "$@" > "$work/$out.txt" 2>&1 < /dev/null
}

# train_each: for each line `NAME | VARIANT OUT WORDS | RELATION` of standard input a run, as train() takes it, and a check: `= RUN` for
# the weights of the run in $work/RUN, `!= RUN` for others, or `MOST NORM RUN` as curve_within() takes them.
train_each() {
    local name words relation
    while IFS='|' read -r -u 3 name words relation; do
        read -ra words <<< "$words"
        train "${words[@]}"
        check "${name% }" "run_is ${words[1]} $relation"
    done 3<&0
}
run_is() { # run_is OUT RELATION...
    case $2 in
        =) same_weights "$work/$1" "$work/$3" ;;
        !=) [ -n "$(hash_of "$work/$1")" ] && ! same_weights "$work/$1" "$work/$3" ;;
        *) curve_within "$work/$1" "$work/$4" "$2" "$3" ;;
    esac
}
