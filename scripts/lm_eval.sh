#!/usr/bin/env bash
# EleutherAI's lm-evaluation-harness on a checkpoint that training wrote, through transformers:
#   scripts/lm_eval.sh out/causal/step_00001000 hellaswag piqa          the harness's own tasks, from the Hugging Face hub
#   scripts/lm_eval.sh out/causal/step_00001000 items.jsonl             one's own items, as --eval-data reads them; no network
#   scripts/lm_eval.sh out/causal/step_00001000 items.jsonl -- --limit 200 --batch_size 8       options of the harness
# Needs `pip install "lm_eval[hf]"`; PYTHON=... takes another interpreter than python3. Every variant is scored as it
# was trained: what transformers does not compute itself, by the checkpoint's own Python files, in dense matrices. Forms that look ahead
# need --batch_size 1.
#
# Own items have {"query", "choices", "gold"} in each line and become a task own_NAME through scripts/lm_eval/own_items.yaml; for
# WinoGrande, whose items have several contexts, take the harness's own task. The harness's acc is the engine's accuracy by sum,
# acc_norm the one by character mean; ./train_causal --evaluate prints both.
# Exit codes: 0 done, 2 usage or a missing package, 3 items, 7 the checkpoint; 1 where the harness fails.
set -euo pipefail
python=${PYTHON:-python3}
templates=$(dirname "$0")/lm_eval
stop() { # stop CODE MESSAGE
    echo "lm_eval.sh: ${*:2}" >&2
    exit "$1"
}

[ $# -ge 2 ] || stop 2 "usage: scripts/lm_eval.sh FOLDER TASK... [-- OPTIONS OF THE HARNESS]"
checkpoint=$1
shift
tasks=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    tasks+=("$1")
    shift
done
[ ${#tasks[@]} -gt 0 ] || stop 2 "no task before --"
[ $# -eq 0 ] || shift   # what is left are the harness's options

[ -f "$checkpoint/config.json" ] || stop 7 "$checkpoint: holds no config.json; give a step_* folder that training wrote"
variant=$(sed -n 's/.*"attention_variant": *"\([^"]*\)".*/\1/p' "$checkpoint/config.json")
trust=""
if grep -q '"auto_map"' "$checkpoint/config.json"; then
    trust=,trust_remote_code=True
else
    case ${variant:-causal} in
        causal | sliding_window) ;;
        *) stop 7 "$checkpoint: is of variant $variant and carries no Python files, without which transformers would compute plain"\
            "attention; --resume the run, and its next checkpoint has them" ;;
    esac
fi
problem=$("$python" -c 'import lm_eval, torch, transformers, accelerate' 2>&1) ||
    stop 2 "$python has no lm-evaluation-harness (${problem##*$'\n'}): $python -m pip install \"lm_eval[hf]\""

# What stands between query and answer: nothing where queries end in white space, else a space, as in the engine. The harness knows
# one delimiter per task, so that all items have to agree.
delimiter_of() {
    "$python" - "$1" << 'END'
import json, sys
ends = set()
for number, line in enumerate(open(sys.argv[1], encoding='utf-8'), 1):
    try:
        if line.strip():
            query = json.loads(line)['query']
            ends.add(not query or query[-1].isspace())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        sys.exit(f'lm_eval.sh: {sys.argv[1]}:{number}: is no item with "query", "choices" and "gold": {error!r}')
if len(ends) != 1:
    sys.exit(f'lm_eval.sh: {sys.argv[1]}: needs items whose queries all end in white space, or none of them')
print('' if ends.pop() else ' ')
END
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
own=0
for n in "${!tasks[@]}"; do
    [[ ${tasks[n]} == *.jsonl ]] || continue
    items=${tasks[n]} name=own_${n}_$(basename "${tasks[n]}" .jsonl | tr -c 'A-Za-z0-9_\n' _)
    [ -f "$items" ] || stop 3 "$items: is no file"
    delimiter=$(delimiter_of "$items") || exit 3
    ln -s "$(realpath "$items")" "$work/$name.jsonl"
    sed "s|NAME|$name|; s|FILE|$work/$name.jsonl|; s|DELIMITER|\"$delimiter\"|" "$templates/own_items.yaml" > "$work/$name.yaml"
    tasks[n]=$name own=$((own + 1))
done
[ $own -eq 0 ] || export HF_DATASETS_CACHE="$work/cache"   # nothing of them is left behind
[ $own -lt ${#tasks[@]} ] || export HF_HUB_OFFLINE=1

# The tokenizer in a folder of its own: beside a Qwen2's config.json transformers (5.23) splits words as Qwen2 does, whatever the
# checkpoint's tokenizer.json says.
mkdir "$work/tokenizer"
cp "$checkpoint"/tokenizer*.json "$work/tokenizer/" || stop 7 "$checkpoint: holds no tokenizer.json"
"$python" -m lm_eval --model hf --model_args "pretrained=$checkpoint,tokenizer=$work/tokenizer,dtype=float32$trust" \
    --tasks "$(IFS=,; echo "${tasks[*]}")" --include_path "$work" "$@"
