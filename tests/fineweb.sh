#!/usr/bin/env bash
# scripts/fineweb.py on small parquet files and, since no test may need the network, on a stand-in for the Hugging Face hub. Prints
# `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why` where python3 has no pyarrow (PYTHON=FILE: another). Needs ./tokenize;
# takes a few seconds.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
python=${PYTHON:-python3}
if ! $python -c 'import pyarrow.parquet' 2> /dev/null; then
    skip "fineweb.py" "$python has no pyarrow"
    exit 0
fi

# Columns as in FineWeb, in several groups of rows; with texts that JSON has to escape.
$python - "$work" <<'END'
import json, sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
folder = Path(sys.argv[1])
texts = [json.loads(line)['text'] for line in open('data/bundled/sotu.jsonl')]
texts += ['', ' "quoted" \\ \n\t\x01 ', 'déjà 漢字 👍 \u2028', '{"text": 1}']
def write(name, texts, **options):
    rows = len(texts)
    table = pa.table({'text': texts, 'id': [str(i) for i in range(rows)], 'language_score': [0.9] * rows, 'token_count': list(range(rows))})
    pq.write_table(table, folder / name, row_group_size=20, **options)
write('a.parquet', texts[:70])
write('b.parquet', texts[70:], compression='zstd')
pq.write_table(pa.table({'content': ['a'], 'n': [1]}), folder / 'other.parquet')
pq.write_table(pa.table({'text': [1]}), folder / 'numbers.parquet')
pq.write_table(pa.table({'text': ['a', None]}), folder / 'null.parquet')
plain = pa.array(texts)
kinds = {'large': plain.cast(pa.large_string()), 'categories': plain.dictionary_encode(), 'bytes': plain.cast(pa.binary())}
if hasattr(pa, 'string_view'):
    kinds['view'] = pa.array(texts, pa.string_view())
for kind, column in kinds.items():
    pq.write_table(pa.table({'text': column}), folder / f'kind_{kind}.parquet', row_group_size=20)
pq.write_table(pa.table({'text': [b'a', b'\xff']}), folder / 'no_text.parquet')
pq.write_table(pa.table({'text': pa.array([1]).dictionary_encode()}), folder / 'number_categories.parquet')
(folder / 'x.parquet').write_text('text')
with open(folder / 'x.jsonl', 'w') as file:
    file.writelines(json.dumps({'text': text}) + '\n' for text in texts)
damaged = bytearray((folder / 'b.parquet').read_bytes())
damaged[len(damaged) // 2:len(damaged) // 2 + 1000] = bytes(1000)
(folder / 'damaged.parquet').write_bytes(damaged)
END
fineweb="$python scripts/fineweb.py --out $work/out"

expect "two parquet files" 0 "" $fineweb "$work/a.parquet" "$work/b.parquet" --name x --val-tokens 100000 --shard-tokens 1000000
./tokenize --out "$work/same" --name x --val-tokens 100000 --shard-tokens 1000000 "$work/x.jsonl" > /dev/null
check "give the shards of the same texts as JSON Lines" 'diff -r "$work/out" "$work/same"'
for kind in "$work"/kind_*.parquet; do
    expect "$(basename "$kind" .parquet): strings as Arrow has them" 0 "" $fineweb "$kind" --out "$work/kind" --name x --val-tokens 100000 --shard-tokens 1000000
    check "give the same shards" 'diff -r "$work/kind" "$work/same"'
    rm -rf "$work/kind"
done
expect "bytes that are no text" 3 'row 1 of group 0 has bytes in column "text" that are not UTF-8' $fineweb "$work/no_text.parquet" --val-fraction 0
expect "categories that are numbers" 3 'has no column "text" of strings' $fineweb "$work/number_categories.parquet"
expect "parquet of another schema" 3 'other.parquet: has no column "text" of strings' $fineweb "$work/a.parquet" "$work/other.parquet"
check "is refused with its columns" 'grep -q "Its columns are: content (string), n (int64)" "$work/stderr"'
expect "a column that holds numbers" 3 "text (int64)" $fineweb "$work/numbers.parquet"
expect "another column" 0 "" $fineweb "$work/other.parquet" --column content --val-fraction 0
expect "a row without a text" 3 "row 1 of group 0 has no text" $fineweb "$work/null.parquet"
expect "a file that is no parquet" 3 "x.parquet: is no parquet file" $fineweb "$work/x.parquet"
expect "a damaged group of rows" 3 "damaged.parquet: group of rows" $fineweb "$work/damaged.parquet" --name y --val-fraction 0
check "leaves no shards" '! ls "$work/out" | grep -q "^y.*bin$"'
expect "options of ./tokenize are checked by it" 2 "--shard-tokens" $fineweb "$work/a.parquet" --shard-tokens 0
expect "no data is usage" 2 "give one of" $fineweb
expect "a program that dies is not the end of the data" 3 "did the program that writes them end early" \
    ./tokenize --format jsonl --documents 122 --val-fraction 0 --name z --out "$work/out" - < <(head -n 100 "$work/x.jsonl")

# ---- the hub, as far as a stand-in for its package can show
mkdir -p "$work/without" "$work/hub/sample/10BT"
cp "$work/a.parquet" "$work/hub/sample/10BT/000_00000.parquet"
cp "$work/b.parquet" "$work/hub/sample/10BT/001_00000.parquet"
for name in val_000000 train_000001 train_000002; do cp "$work/same/x_train_000001.bin" "$work/hub/fineweb_$name.bin"; done
export PYTHONPATH=$PWD/tests/stand_ins HUB=$work/hub
expect "a dataset by its name" 0 "" $fineweb --out "$work/named" --dataset sample-10BT --name x --val-tokens 100000 --shard-tokens 1000000
check "gives the same shards" 'grep -q "listed HuggingFaceFW/fineweb dataset" "$work/stdout" && diff -r "$work/named" "$work/same"'
SHA256=0123 expect "a damaged download" 3 "SHA-256" $fineweb --dataset sample-10BT
expect "a dataset that is not there" 3 "holds no such files" $fineweb --dataset tinystories
expect "ready-made shards" 0 "" $fineweb --shards 1
check "come with the options that read them, no more than asked for" 'grep -q "^--train-data .*/fineweb_train_\*.bin" "$work/stdout" && [ -e "$work/out/fineweb_val_000000.bin" ] && [ ! -e "$work/out/fineweb_train_000002.bin" ]'
echo 'raise ImportError' > "$work/without/huggingface_hub.py"
PYTHONPATH=$work/without expect "without huggingface_hub" 3 "pip install huggingface_hub" $fineweb --dataset sample-10BT
