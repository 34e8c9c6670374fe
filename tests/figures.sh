#!/usr/bin/env bash
# A figure that nobody can measure again, a command that has gone: finds what the READMEs and the pages of dev/ name and the tree
# does not have. Checked are, between backticks and in lines of code: paths, names of source files, goals of make, programs,
# options, functions(); and everywhere the links. Prints lines `ok NAME` or `FAIL NAME: why`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash

cat > "$work/missing.py" << 'END'
import glob, os, re, sys
pages = sys.argv[1:]
FOLDERS = "attention|data|dev|model|scripts|tests|CONTRIBUTING|CITATION"
ELSEWHERE = ("data/bundled/sotu_", "data/validation-")   # made by programs; files of the hub
FOREIGN = {"--nproc-per-node", "--no-python", "--args", "--expt-relaxed-constexpr", "example"}   # of other programs
files = ["Makefile", "train_gpt.cu"]
for top in ("attention", "data", "dev", "model", "scripts", "tests"):
    files += [os.path.join(folder, file) for folder, _, inside in os.walk(top) for file in inside]
names = {os.path.basename(f) for f in files}
source = {f: open(f, errors="replace").read() for f in files
          if re.search(r"(\.(c|cpp|cu|cuh|h|py|sh|bash)|^Makefile)$", f) and f != "tests/figures.sh"}
text = "\n".join(source.values())
makefile = source["Makefile"]
variants = {os.path.basename(f)[:-4] for f in files if re.match(r"attention/\w+\.cuh$", f)}
functions = set(re.findall(r"(\w+)\s*(?:<[^<>()]*>)?\(", text))
tables = "\n".join(source[f] for f in source if not re.match(r"tests/.*\.(sh|cpp|h)$", f))   # of options: those only use some
options = set(re.findall(r"""(?:["',]|= )(--[a-z][a-z0-9-]*)["',= ]|^ *(--[a-z][a-z0-9-]*)[)|]""", tables, re.M))
options = {option for pair in options for option in pair}

def goal_exists(goal):
    variant = re.fullmatch(r"(?:build/(?:emulated/|one_unit/)?)?(?:train_|test-|generate_|tests/test_|test_)(\w+)", goal)
    if variant and variant[1] in variants | {"NAME", "VARIANT"}: return True
    tool = re.fullmatch(r"build/(?:emulated/)?(dev/.+)", goal)
    if tool: return tool[1] == "dev/NAME" or bool(glob.glob(tool[1] + ".c*"))
    return bool(re.search(rf"^(?:[^\n#=]* )?{re.escape(goal)}(?: [^\n=]*)?:", makefile, re.M))

def path_exists(path):
    return path.startswith(ELSEWHERE) or "NAME" in path or "VARIANT" in path or bool(glob.glob(path.rstrip("/")))

def anchors(page):
    titles = re.findall(r"^#+ (.*)", open(page).read(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

def missing(page):
    content = open(page).read()
    prose = re.sub(r"^```.*?^```$", "", content, flags=re.S | re.M)
    code = re.findall(r"`([^`]+)`", prose) + re.findall(r"^ {4,}(.*)", prose, re.M)
    for span in code:
        for path in re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./*-]+[\w*])", re.sub(r"--out \S+", "", span)):
            if not path_exists(path): yield path
        for name in re.findall(r"(?<![\w/.*-])(\w+\.(?:cuh|cu|h|cpp|c|sh|bash|py|cff))\b", span):
            if name not in names and name != "NAME.cuh": yield name
        command = re.match(r"make ([\w./ -]+)", re.sub(r"-j\d* *|[A-Z_]+=(\"[^\"]*\"|\S*) ?|  .*", "", span))
        for goal in re.findall(r"(?<!\S)[a-z]\S*", command[1]) if command else []:
            if not goal_exists(goal): yield "make " + goal
        for program in re.findall(r"(?<!\S)\./(\w+)(?!\S)", span):
            if not goal_exists(program) and program not in FOREIGN: yield "./" + program
        for option in re.findall(r"(?<![\w-])(--[a-z][a-z0-9-]*)", span):
            if option not in options | FOREIGN: yield option
        for function in re.findall(r"(?<![\w.])([a-z]\w*)\(\)", span):
            if function not in functions: yield function + "()"
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = target.partition("#")
        file = os.path.join(os.path.dirname(page), path) if path else page
        if "://" not in target and (not os.path.exists(file) or anchor and anchor not in anchors(file)): yield "link " + target

for page in pages:
    for name in dict.fromkeys(missing(page)): print(f"{page}: {name}")
END
pages=$(ls README.md CONTRIBUTING.md ./*/*.md ./*/*/README.md | sed 's/^[.]\///' | grep -vxE '(build|out)/.*|dev/LOG\.md')

python3 "$work/missing.py" $pages > "$work/missing"
check "everything that the pages name is there: $(head -n 5 "$work/missing" | tr '\n' ';')" '[ ! -s "$work/missing" ]'
printf '`dev/gone.sh`, `gone.cuh`, `make train_gone`, `./gone`, `make --gone`, `gone()`, [it](dev/HACKING.md#gone)\n' \
    > "$work/gone.md"
python3 "$work/missing.py" "$work/gone.md" > "$work/found"
check "what has gone is found" '[ "$(wc -l < "$work/found")" = 7 ]'
