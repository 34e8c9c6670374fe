# Sourced by the scripts of dev/labs and their test, in the tree's folder: what labs.txt and the patches say.

# field_of NUMBER NAME [LABS]: the lines of a lab under `NAME:`.
field_of() {
    awk -v n="$1" -v name="$2:" '$1 == "lab:" { at = $2 } at == n && $1 == name { sub(/^[^ ]+ /, ""); print }' \
        "${3:-dev/labs/labs.txt}"
}

patch_of() { printf 'dev/labs/%02d.patch\n' "$1"; }

# file_of NUMBER: the source that the lab's patch changes.
file_of() { sed -n 's/^+++ b\///p' "$(patch_of "$1")"; }

# side NUMBER SIGN: the lines of the lab's hunk before (-) or after (+) the change.
side() { sed -n "1,/^@@/d; s/^[ $2]//p" "$(patch_of "$1")"; }

# fits NUMBER [FOLDER]: whether the source has the lines that the lab's patch changes.
fits() { [[ $(< "${2:-.}/$(file_of "$1")") == *"$(side "$1" -)"* ]]; }

# plant NUMBER FOLDER: applies the lab's patch there.
plant() {
    local file source old new
    file=$2/$(file_of "$1") old=$(side "$1" -) new=$(side "$1" +)
    source=$(< "$file") && printf '%s\n' "${source/"$old"/"$new"}" > "$file"
}

# source_of TEST: its file.
source_of() { echo "tests/${1#emulated/}.cpp"; }

# unlinked LOG: the objects of the engine that a program does not need, by its linker's list in the log (-Wl,-t,-t).
unlinked() {
    local object archive
    grep -qE 'engine\.a\)?\(?[a-z_]+\.o' "$1" || return 0
    for object in $(find build/model build/data build/emulated/model -name "*.o"); do
        archive=build/engine.a
        [[ $object == */emulated/* ]] && archive=build/emulated/engine.a
        if ! grep -qE "$archive\)?\(?${object##*/}" "$1"; then echo "$object"; fi
    done
}
