# Sourced by dev/mutations.sh and what belongs to dev/labs: lists of errors to plant (the head of dev/mutations.txt says how they
# are written), and planting one. Works in the tree's folder.

# errors LIST [WORD]: the errors of a list in lines FILE TEST VARIANTS OLD NEW, separated by a character that no source has; of
# those whose file or test contains WORD, TAKE of every EVERY, from the FROM-th on.
errors() {
    awk -v word="${2:-}" -v every="${EVERY:-1}" -v take="${TAKE:-1}" -v from="${FROM:-1}" -v OFS='\037' '
        function words_from(n,   all) { for (; n <= NF; n++) all = all (all ? " " : "") $n; return all }
        /^$|^#/ { next }
        /^- / { old = substr($0, 3); next }
        /^\+ / && index(file " " test, word) && ++n >= from && (n - from) % every < take { print file, test, variants, old, substr($0, 3) }
        /^\+ / { next }
        $1 ~ /:$/ { test = substr($1, 1, length($1) - 1); looked_up[test] = words_from(2); next }
        { file = $1; test = $2; variants = NF > 2 ? words_from(3) : looked_up[test] }' "$1"
}

# field_of NUMBER NAME [LABS]: what that lab of dev/labs/labs.txt, or of another such list, says under `NAME:`, line by line.
field_of() {
    awk -v n="$1" -v name="$2:" '$1 == "lab:" { at = $2 } at == n && $1 == name { sub(/^[^ ]+ /, ""); print }' \
        "${3:-dev/labs/labs.txt}"
}

source_of() {
    case $1 in
        *.sh) echo "tests/$1" ;;
        *_program) echo "tests/gpu/${1#emulated/}.cpp" ;;
        *) echo "tests/${1#emulated/}.cpp" ;;
    esac
}

# unfit FILE TEST VARIANTS OLD: says so when the error cannot be planted, or nobody could notice.
unfit() {
    local variant source
    source=$(source_of "$2")
    [ -e "$1" ] || { echo "FAIL $1: there is no such file"; return; }
    [ -e "$source" ] || { echo "FAIL $1: there is no test $source"; return; }
    for variant in $3; do
        [ "$variant" == all ] || [ -e "attention/$variant.cuh" ] || { echo "FAIL $1: there is no variant $variant for $2"; return; }
    done
    [[ $(< "$1") == *"$4"* ]] || echo "FAIL $1: there is no '$4' any more"
}

# unlinked LOG: which objects of the engine a program does without. Its linker has said in the log what it took (-Wl,-t,-t).
unlinked() {
    local object archive
    grep -qE 'engine\.a\)?\(?[a-z_]+\.o' "$1" || return 0
    for object in $(find build/model build/data build/emulated/model -name "*.o"); do
        archive=build/engine.a
        [[ $object == */emulated/* ]] && archive=build/emulated/engine.a
        if ! grep -qE "$archive\)?\(?${object##*/}" "$1"; then echo "$object"; fi
    done
}

# plant_in FILE OLD NEW: the first OLD of the file becomes NEW.
plant_in() {
    local source
    source=$(< "$1")
    printf '%s\n' "${source/"$2"/"$3"}" > "$1"
}
