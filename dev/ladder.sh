#!/usr/bin/env bash
# Climbs the ladder of attention kernels on this machine's GPU and puts its table, with device and date, into dev/README.md:
#   dev/ladder.sh [OPTIONS of build/dev/ladder/ladder]
set -euo pipefail
cd "$(dirname "$0")/.."
make --no-print-directory build/dev/ladder/ladder > /dev/null
table=$(mktemp)
trap 'rm -f "$table"' EXIT
build/dev/ladder/ladder "$@" > "$table"
cat "$table"
if grep -q 'emulated GPU' "$table"; then
    echo "ladder: times on an emulated GPU mean nothing; dev/README.md stays as it was" >&2
    exit 2
fi
python3 - "$table" dev/README.md <<'END'
import datetime, pathlib, sys
table, readme = pathlib.Path(sys.argv[1]).read_text().strip(), pathlib.Path(sys.argv[2])
begin, end = "<!-- ladder begins -->\n", "<!-- ladder ends -->"
before, rest = readme.read_text().split(begin)
after = rest.split(end)[1]
readme.write_text(f"{before}{begin}Printed by `dev/ladder.sh` on {datetime.date.today()}.\n\n{table}\n{end}{after}")
END
