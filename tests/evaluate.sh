#!/usr/bin/env bash
# ./train_causal --evaluate: the log of an evaluation, the validation loss by position, and the mechanisms for inference (--attention
# psa, adaspa). Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why`. Takes some seconds.
# Needs: make train_causal train_asga tokenize
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash

# ---- a small text, with a loss mask too, and a checkpoint
head -c 60000 data/bundled/sotu.jsonl | sed 's/[^a-zA-Z0-9 ,.]//g' > "$work/text.txt"
./tokenize --tokenizer bytes --out "$work/data" --name small "$work/text.txt" > /dev/null 2>&1
python3 - "$work/data" << 'END'
import struct, sys
with open(f"{sys.argv[1]}/small_val_000000.bin", "rb") as file: shard = file.read()
count = struct.unpack_from("<3i", shard)[2]
mask = bytes(i % 32 > 12 and i * i % 7 == 1 for i in range(count))   # rows of 32: no target in the first two of five bins
with open(f"{sys.argv[1]}/masked_val_000000.bin", "wb") as file: file.write(shard[:4] + struct.pack("<i", 2) + shard[8:] + mask)
END
cat > "$work/items.jsonl" << 'END'
{"query": "We thank the", "choices": ["people", "q"], "gold": 0}
{"context_options": ["The Congress of", "The man of"], "continuation": "the United", "gold": 0}
{"query": "x", "choices": ["xxxxxxxxxxxxxxxxxxxx", "the"], "gold": 1}
END
set -f   # the globs are for the programs
data="--device cpu --model qwen-tiny --train-data $work/data/small_train_*.bin --val-data $work/data/small_val_*.bin --threads 1"
rows="--seq-len 32 --batch-size 8"
timeout 120 ./train_causal $data $rows --steps 12 --lr 3e-3 --val-every 12 --sample-every 0 --checkpoint-every 12 --plot 0 \
    --out "$work/causal" > /dev/null 2>&1
last="$work/causal/step_00000012"

evaluate() { # evaluate NAME OPTIONS...: the log is NAME.jsonl, what was printed NAME.txt
    local name=$1
    shift
    timeout 120 ${LAUNCH:-} ./train_causal $data $rows --evaluate --checkpoint "$last" --position-bins 5 --eval-log "$work/$name.jsonl" \
        --eval-out "$work/$name-items.jsonl" "$@" > "$work/$name.txt" 2>&1 < /dev/null   # mpirun would read on
}
cat > "$work/facts.py" << 'END'
"""facts.py FOLDER CONDITION: whether it holds. log(NAME) is the log of an evaluation."""
import json, sys
class log:
    def __init__(self, name):
        self.records = [json.loads(line) for line in open(f"{sys.argv[1]}/{name}.jsonl")]
        event = {r.get("event", "validation"): r for r in self.records}
        self.loss, self.config, self.done = event["validation"]["val_loss"], event["config"], event["done"]
        self.bins = event["loss_by_position"]["bins"]
        self.targets = sum(b["targets"] for b in self.bins)
        self.mean = sum(b["targets"] * b["loss"] for b in self.bins if b["targets"]) / self.targets
        self.read = {r["of"]: r["pairs_read"] for r in self.records if r.get("event") == "sparse_reading"}
        self.kept = {r["of"]: r["mass_kept"] for r in self.records if r.get("event") == "sparse_reading"}
        lines = open(f"{sys.argv[1]}/{name}-items.jsonl")
        self.scores = [score for line in lines for score in json.loads(line)["log_likelihoods"]]
def near(a, b, most=1e-12): return abs(a - b) <= most * abs(b)
def same(a, b, most):   # losses of all bins, relative
    return len(a.bins) == len(b.bins) and all(near(x["loss"], y["loss"], most) for x, y in zip(a.bins, b.bins))
def same_scores(a, b, most): return len(a.scores) == len(b.scores) and all(map(lambda x, y: near(x, y, most), a.scores, b.scores))
sys.exit(not eval(f"({sys.argv[2]})"))
END
holds() { check "$1" "python3 $work/facts.py $work '$2'"; }

# ---- by position
items="--eval-data $work/items.jsonl"
evaluate plain $items
holds "--evaluate: the loss by position, weighted by its targets, is the validation loss" \
    'near(log("plain").mean, log("plain").loss) and log("plain").targets % 32 == 0'
holds "in equal parts of a row, each with its error" \
    '[(b["first"], b["last"]) for b in log("plain").bins] == [(0, 5), (6, 11), (12, 18), (19, 24), (25, 31)] and
     all(0 < b["stderr"] < 0.2 for b in log("plain").bins)'
check "and in a table" 'grep -qE "^\| 25 to 31 +\| [0-9.]+ \+- [0-9.]+, [0-9]+ targets" "$work/plain.txt"'
holds "the log has the checkpoint, its step, and an end" \
    'log("plain").config["evaluates"].endswith("step_00000012") and {r["step"] for r in log("plain").records} == {12} and
     log("plain").done["val_loss"] == log("plain").loss'
evaluate masked --val-data "$work/data/masked_val_*.bin"
holds "targets that a mask hides do not count" \
    'near(log("masked").mean, log("masked").loss) and [b["targets"] == 0 for b in log("masked").bins] == [True, True, False, False, False] and
     log("masked").bins[0]["loss"] is None and log("masked").targets < log("plain").targets / 4'
check "and a bin of none has a dash" 'grep -qE "^\| 0 to 5 +\| -, 0 targets" "$work/masked.txt"'
evaluate each --position-bins 1000
holds "more bins than positions are one for each" 'len(log("each").bins) == 32 and near(log("each").mean, log("plain").loss)'
evaluate none --position-bins 0
check "no bins, no table" '! grep -q loss_by_position "$work/none.jsonl" && ! grep -q "by position" "$work/none.txt" && grep -q val_loss "$work/none.jsonl"'
cp "$work/causal/log.jsonl" "$work/other.jsonl"
expect "the log of a run stays" 2 "choose another path" ./train_causal $data $rows --evaluate --checkpoint "$last" --eval-log "$work/other.jsonl"
expect "that of this one, too" 2 "belongs to" ./train_causal $data $rows --evaluate --checkpoint "$last" --eval-log "$work/causal/log.jsonl"
expect "and a checkpoint's files" 2 "belongs to" ./train_causal $data $rows --evaluate --checkpoint "$last" $items --eval-out "$last/config.json"
expect "and is none of training's" 2 "--eval-log requires --evaluate" ./train_causal $data $rows --out "$work/x" --eval-log "$work/x.jsonl"

# ---- prompts that ./tokenize masks: 1 + 20 + 11 tokens each, of which 11 and the next end-of-text count
for n in $(seq 20); do echo '{"prompt": "What is the capital?", "completion": " It is Rome"}'; done > "$work/examples.jsonl"
expect "./tokenize --mask-prompts" 0 "" ./tokenize --mask-prompts --val-fraction 0 --out "$work/examples" "$work/examples.jsonl"
evaluate completions --val-data "$work/examples/examples_train_*.bin" --position-bins 32
holds "its completions are the targets of an evaluation" \
    'log("completions").targets == 19 * 12 and [b["targets"] for b in log("completions").bins] == [0] * 20 + [19] * 12'
expect "they have keys of their own" 2 "--text-field" ./tokenize --mask-prompts --text-field text --out "$work/x" "$work/examples.jsonl"
expect "and are named where they are not expected" 3 "--mask-prompts reads its prompt" ./tokenize --out "$work/x" "$work/examples.jsonl"
expect "standard input is text unless it is said to be JSON Lines" 2 "give --format jsonl" ./tokenize --mask-prompts --out "$work/x" - < /dev/null

# ---- mechanisms for inference
for everything in "psa --psa-eps 1" "adaspa --adaspa-sparsity 0"; do
    evaluate all $items --attention $everything
    holds "--attention $everything: causal attention at every position" 'same(log("all"), log("plain"), 1e-5)'
    holds "and in the scores of items" 'same_scores(log("all"), log("plain"), 1e-5) and len(log("all").scores) == 6'
    holds "and everything was read" 'set(log("all").read) == {"validation", "items"} and
         all(near(share, 1, 1e-6) for share in [*log("all").read.values(), *log("all").kept.values()])'
done
evaluate psa $items --attention psa --psa-eps 0.5 --psa-block 2   # the last answer has too few tokens before it to leave some out
holds "psa that reads less has other losses and scores" \
    'not same(log("psa"), log("plain"), 1e-5) and near(log("psa").mean, log("psa").loss) and len(log("psa").scores) == 6 and
     not any(near(a, b, 1e-6) for a, b in zip(log("psa").scores[:5], log("plain").scores))'
holds "and the shares that it has read and kept" 'all(0.1 < log("psa").read[of] < 0.95 and 0.5 <= log("psa").kept[of] < 1 for of in ("validation", "items"))'
check "which it prints" 'grep -q "^validation: psa: read [0-9.]*% of the cached pairs; estimated share" "$work/psa.txt" && grep -q "^items: psa: read" "$work/psa.txt"'
long="--seq-len 256 --batch-size 2"
evaluate dense $long $items
evaluate adaspa $long $items --attention adaspa --adaspa-sparsity 0.6
holds "adaspa that reads less has another loss" 'not same(log("adaspa"), log("dense"), 1e-5) and 0.4 < log("adaspa").read["validation"] < 0.9'
holds "but contexts of one block are read whole" 'same_scores(log("adaspa"), log("dense"), 1e-5) and log("adaspa").read["items"] == 1'
check "and says that its loss is of rows that have looked ahead" 'grep -q "cannot be compared with those of causal" "$work/adaspa.txt" && ! grep -q "cannot be compared" "$work/psa.txt"'
expect "nothing is trained with psa" 2 "requires --evaluate" ./train_causal $data $rows --out "$work/x" --attention psa
expect "and no other variant read" 2 "use ./train_causal" ./train_asga $data $rows --evaluate --model "$last" --attention psa
expect "an option of a mechanism that is not selected" 2 "requires --attention psa" ./train_causal $data $rows --evaluate --checkpoint "$last" --psa-eps 0.5

# ---- ranks
if ! has_mpi ./train_causal; then
    skip "--evaluate on two ranks" "no MPI on this machine"
else
    LAUNCH="$launch -np 2"
    evaluate ranks $items --batch-size 4
    holds "two ranks find the same at every position" \
        'same(log("ranks"), log("plain"), 1e-6) and log("ranks").targets == log("plain").targets and log("ranks").config["ranks"] == 2 and
         all(near(a["stderr"], b["stderr"], 1e-4) for a, b in zip(log("ranks").bins, log("plain").bins))'
    evaluate psa-ranks $items --batch-size 4 --attention psa --psa-eps 0.5 --psa-block 2
    holds "and read the same with psa" 'same(log("psa-ranks"), log("psa"), 1e-6) and same_scores(log("psa-ranks"), log("psa"), 1e-5) and
        all(near(log("psa-ranks").read[of], log("psa").read[of], 1e-6) for of in log("psa").read)'
fi
