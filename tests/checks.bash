# Sourced by tests/*.sh: each check prints a line `ok NAME` or `FAIL NAME: why`, or `skip NAME: why` for what a machine cannot show.
export LC_ALL=C.UTF-8   # what compilers say is looked for in English
work=$(mktemp -d)   # the script's own folder
mounted=""          # a file system in it
cleanup() {
    [ -n "$mounted" ] && umount "$mounted"
    rm -rf "$work"
}
trap cleanup EXIT

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
launch=mpirun   # more ranks than processors need Open MPI's word
grep -q 'Open MPI' <(mpirun --version 2> /dev/null) && launch="mpirun --oversubscribe"

# has_mpi PROGRAM: whether ranks of it can be started with $launch.
has_mpi() { command -v mpirun > /dev/null && grep -q libmpi <(ldd "$1"); }

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
    elif [ -n "$word" ] && ! grep -qF -- "$word" "$work/stderr"; then bad "$name" "stderr does not say '$word': $(tail -n 1 "$work/stderr")"
    else ok "$name"; fi
}
