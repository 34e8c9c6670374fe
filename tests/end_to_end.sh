#!/usr/bin/env bash
# The programs as a user runs them: options, bad input, ranks, kills, resuming. Prints `ok NAME` or `FAIL NAME: why` per check and
# `skip NAME: why` for what this machine cannot show. Needs `make all`; takes about a minute.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
root=$PWD
. tests/checks.bash

# ---- a small text and a small run
head -c 60000 data/bundled/sotu.jsonl | sed 's/[^a-zA-Z0-9 ,.]//g' > "$work/text.txt"
./tokenize --tokenizer bytes --out "$work/data" --name small "$work/text.txt" > /dev/null 2>&1
small="--device cpu --model qwen-tiny --train-data $work/data/small_train_*.bin --val-data $work/data/small_val_*.bin --seq-len 32 --batch-size 8 --steps 12
       --val-every 6 --val-batches 4 --sample-every 0 --checkpoint-every 4 --threads 1 --plot 0 --lr 3e-3"
set -f   # the globs are for the programs
train() { # train VARIANT OUT OPTIONS...
    local variant=$1 out=$2
    shift 2
    timeout 120 ./train_"$variant" $small --out "$out" "$@" > "$out.txt" 2>&1
}
hash_of() { tail -n 1 "$1/log.jsonl" | grep -o '"weights_hash":"[0-9a-f]*"'; }
losses() { grep -o '"step":[0-9]*,"tokens":[0-9]*,"loss":[0-9.e-]*,"grad_norm":[0-9.e-]*' "$1/log.jsonl" | sed 's/[a-z"_]*://g; s/,/ /g'; }
# The greatest relative difference of loss and gradient norm between two runs, as awk sees it.
curve_difference() { paste -d' ' <(losses "$1") <(losses "$2") | awk '{ for (c = 3; c <= 4; c++) { d = ($c - $(c + 4)) / $c; if (d < 0) d = -d; if (d > m) m = d } n++ } END { print n == 12 ? m + 0 : 1 }'; }
below() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a <= b) }'; }

# The highest process id whose command line begins with the first word and contains the second.
newest_process() {
    local id
    for id in $(ls /proc | grep -E '^[0-9]+$' | sort -rn); do
        case "$(tr '\0' ' ' 2> /dev/null < "/proc/$id/cmdline")" in "$1 "*"$2"*) echo "$id"; return ;; esac
    done
}

# ---- repeat, ranks, ZeRO
for variant in causal asga; do
    train $variant "$work/$variant" && train $variant "$work/$variant-again"
    check "$variant: the same command twice gives the same weights" '[ -n "$(hash_of "$work/$variant")" ] && [ "$(hash_of "$work/$variant")" = "$(hash_of "$work/$variant-again")" ]'
done
train causal "$work/cheap" --recompute 1
train causal "$work/layers" --recompute 2
check "recomputation changes no bit" '[ "$(hash_of "$work/causal")" = "$(hash_of "$work/cheap")" ] && [ "$(hash_of "$work/causal")" = "$(hash_of "$work/layers")" ]'
train causal "$work/accumulate" --batch-size 2 --total-batch-tokens 256
check "four micro-steps follow the curve of one batch within 1e-5" 'below $(curve_difference "$work/causal" "$work/accumulate") 1e-5'

mpi() { # mpi RANKS OUT OPTIONS...
    local ranks=$1 out=$2
    shift 2
    timeout 120 $launch -np "$ranks" ./train_asga $small --out "$out" --batch-size $((8 / ranks)) "$@" > "$out.txt" 2>&1
}
if ! has_mpi ./train_asga; then
    skip "ranks" "no MPI on this machine"
else
    for ranks in 1 2 4; do
        mpi $ranks "$work/ranks$ranks"
        check "$ranks ranks follow the curve of one process within 1e-5" 'below $(curve_difference "$work/asga" "$work/ranks$ranks") 1e-5'
    done
    check "ranks write plain lines" '! grep -q $'"'\r'"'\033 "$work/ranks2.txt"'
    mpi 2 "$work/watched" --monitor-every 5
    check "looking at attention changes no weight, on 2 ranks" '[ "$(hash_of "$work/ranks2")" = "$(hash_of "$work/watched")" ] && [ "$(grep -c "event.:.attention" "$work/watched/log.jsonl")" -eq 3 ]'
    mpi 3 "$work/ranks3"
    mpi 3 "$work/zero3" --zero-stage 1
    check "ZeRO-1 on 3 ranks follows 3 ranks without within 1e-5" 'below $(curve_difference "$work/ranks3" "$work/zero3") 1e-5'
    mpi 2 "$work/zero" --zero-stage 1
    check "ZeRO-1 on 2 ranks gives the weights of 2 ranks without" '[ "$(hash_of "$work/ranks2")" = "$(hash_of "$work/zero")" ]'
    cp -r "$work/zero" "$work/zero4"
    mpi 2 "$work/zero" --zero-stage 1 --steps 16 --resume
    mpi 4 "$work/zero4" --zero-stage 1 --steps 16 --resume
    check "and on 4 ranks to the same losses within 1e-5" '[ "$(losses "$work/zero" | wc -l)" -eq 16 ] && paste -d" " <(losses "$work/zero") <(losses "$work/zero4") | awk "{ d = \$3 / \$7 - 1; if (!(d * d <= 1e-10)) bad = 1 } END { exit bad }"'
    mpi 2 "$work/ranks2" --steps 16 --resume
    check "ZeRO-1 resumes to the same weights" '[ -n "$(hash_of "$work/zero")" ] && [ "$(hash_of "$work/ranks2")" = "$(hash_of "$work/zero")" ]'
    # One of two ranks is killed, or stopped: the job ends by itself and says so. Each has a file of its own: in one
    # that both wrote, the second's first look could still find the first's steps, before there is a process to stop.
    for signal in KILL STOP; do
        output=$work/dead_$signal.txt
        timeout 90 $launch -np 2 ./train_asga $small --out "$work/dead" --batch-size 4 --steps 100000 --checkpoint-every 0 --val-every 0 --watchdog-seconds 3 > "$output" 2>&1 &
        job=$!
        for _ in $(seq 300); do grep -q 'step  *2/' "$output" 2> /dev/null && break; sleep 0.1; done
        victim=$(newest_process "./train_asga" "$work/dead")
        kill -$signal "$victim"
        wait $job
        status=$?
        kill -CONT "$victim" 2> /dev/null
        check "a rank that gets SIG$signal ends the job with a message (status $status)" '[ $status -ne 0 ] && [ $status -ne 124 ] && tail -n 30 "$output" | grep -qiE "no progress|signal|exited"'
    done
fi

# ---- where a run comes from, in its log
# provenance FOLDER FIELD: its value in the first record.
provenance() { grep -m 1 '"event":"config"' "$1/log.jsonl" | grep -oE "\"$2\":(\"[^\"]*\"|[0-9.e+]+)" | cut -d: -f2-; }
check "the log names commit, machine, BLAS and program" 'provenance "$work/causal" commit | grep -qE "^\"([0-9a-f]{12}|unknown)\"$" &&
    provenance "$work/causal" dirty | grep -qx "[01]" && provenance "$work/causal" machine | grep -q "cpu: .* thread" &&
    provenance "$work/causal" blas | grep -q "BLAS" && provenance "$work/causal" flops_per_token | grep -qE "^[1-9]" &&
    provenance "$work/causal" binary_hash | grep -qE "^\"[0-9a-f]{16}\"$" &&
    [ "$(provenance "$work/causal" binary_hash)" != "$(provenance "$work/asga" binary_hash)" ]'
train causal "$work/elsewhere" --steps 1 --val-data "$work/data/small_train_*.bin"
check "and the same data by the same hash" 'provenance "$work/causal" data_hash | grep -qE "^\"[0-9a-f]{16}\"$" &&
    [ "$(provenance "$work/causal" data_hash)" = "$(provenance "$work/asga" data_hash)" ] &&
    [ "$(provenance "$work/causal" data_hash)" != "$(provenance "$work/elsewhere" data_hash)" ]'

# ---- a loss mask: one that hides nothing changes no bit; ranks and micro-steps divide its targets without changing their mean
python3 - "$work/data" << 'END'
import glob, struct, sys
for split in ("train", "val"):
    with open(glob.glob(f"{sys.argv[1]}/small_{split}_*.bin")[0], "rb") as file:
        shard = file.read()
    count = struct.unpack_from("<3i", shard)[2]
    for name, mask in (("whole", b"\1" * count), ("hidden", bytes(count)), ("masked", bytes(i * i % 7 == 1 for i in range(count)))):
        with open(f"{sys.argv[1]}/{name}_{split}_000000.bin", "wb") as file:
            file.write(shard[:4] + struct.pack("<i", 2) + shard[8:] + mask)
END
masks() { echo "--train-data $work/data/$1_train_*.bin --val-data $work/data/$1_val_*.bin"; }
train causal "$work/whole" $(masks whole)
check "a loss mask that hides nothing changes no bit" '[ -n "$(hash_of "$work/whole")" ] && [ "$(hash_of "$work/whole")" = "$(hash_of "$work/causal")" ]'
train causal "$work/masked" $(masks masked)
train causal "$work/masked4" $(masks masked) --batch-size 2 --total-batch-tokens 256
check "one that hides targets changes the curve" '! below $(curve_difference "$work/masked" "$work/causal") 1e-3'
check "and micro-steps share it within 1e-5" 'below $(curve_difference "$work/masked" "$work/masked4") 1e-5'

# ---- interruption and resuming
train causal "$work/long" --steps 40
for n in 1 2 3; do
    rm -rf "$work/killed"
    ./train_causal $small --steps 40 --out "$work/killed" > /dev/null 2>&1 &
    victim=$!
    sleep 0.$((RANDOM % 900 + 100))
    kill -9 $victim 2> /dev/null
    wait $victim 2> /dev/null
    train causal "$work/killed" --steps 40 --resume
    check "kill -9 at a random moment and --resume end at the same weights ($n)" '[ -n "$(hash_of "$work/long")" ] && [ "$(hash_of "$work/killed")" = "$(hash_of "$work/long")" ]'
    check "and at the same log ($n)" '[ "$(losses "$work/killed")" = "$(losses "$work/long")" ]'
done
./train_causal $small --steps 100000 --out "$work/stopped" > "$work/stopped.txt" 2>&1 &
victim=$!
for _ in $(seq 100); do grep -q 'step  *[3-9]/' "$work/stopped.txt" && break; sleep 0.05; done
expect "a second run in the same folder" 7 "another run" ./train_causal $small --out "$work/stopped"
kill -TERM $victim
wait $victim
status=$?
check "SIGTERM saves and exits with 75 (was $status)" '[ $status -eq 75 ] && ls "$work/stopped" | grep -q "^step_"'

# ---- damaged checkpoints
train causal "$work/damaged"
newest=$work/damaged/step_00000012
printf 'X' | dd of="$newest/model.safetensors" bs=1 seek=20000 conv=notrunc 2> /dev/null
expect "a damaged checkpoint is named with its tensor, the one before is used" 0 'tensor "model.' ./train_causal $small --out "$work/damaged" --resume
rm -rf "$work/damaged/step_00000008"
printf 'X' | dd of="$newest/optimizer.safetensors" bs=1 seek=20000 conv=notrunc 2> /dev/null
expect "no sound checkpoint left" 7 "no undamaged checkpoint" ./train_causal $small --out "$work/damaged" --resume
expect "a checkpoint of another variant" 7 "asga" ./train_causal $small --out "$work/other" --checkpoint "$work/asga/step_00000012"
expect "the message names this variant too" 7 "trains causal" ./train_causal $small --out "$work/other" --checkpoint "$work/asga/step_00000012"
expect "weights of another variant" 7 "is a checkpoint of causal" ./train_asga $small --out "$work/other" --model "$work/causal/step_00000012"
expect "with --allow-new-tensors they are a start" 0 "" ./train_asga $small --out "$work/adapted" --model "$work/causal/step_00000012" --allow-new-tensors
check "and what is new is reported" 'grep -q "lacks 12 tensors, initialised from the seed: model.layers.0.self_attn.asga.w1_q" "$work/stdout"'
expect "a checkpoint of another variant with --allow-new-tensors" 0 "" ./train_asga $small --out "$work/adapted2" --checkpoint "$work/causal/step_00000012" --allow-new-tensors
check "starts at step 1 with the same weights" '[ "$(losses "$work/adapted2")" = "$(losses "$work/adapted")" ] && [ "$(losses "$work/adapted" | wc -l)" -eq 12 ]'
cp -r "$work/causal" "$work/taken"
expect "a run is not replaced by another variant's" 7 "another --out" ./train_asga $small --out "$work/taken" --resume --allow-new-tensors
expect "nor where its checkpoint is named" 7 "another --out" ./train_asga $small --out "$work/taken" --checkpoint "$work/taken/step_00000012" --allow-new-tensors
expect "--resume before there is anything to resume starts from --model" 0 "starting at step 0" ./train_asga $small --out "$work/adapted3" --resume --model "$work/causal/step_00000012" --allow-new-tensors
check "and is still there" 'cmp -s "$work/taken/step_00000012/model.safetensors" "$work/causal/step_00000012/model.safetensors"'
expect "--allow-new-tensors does not drop tensors" 7 "self_attn.asga." ./train_causal $small --out "$work/other" --checkpoint "$work/asga/step_00000012" --allow-new-tensors
cp -r "$work/causal/step_00000012" "$work/plain" && rm "$work/plain/manifest.json"
grep -v attention_variant "$work/causal/step_00000012/config.json" > "$work/plain/config.json"
expect "a folder that names no variant is a start for any" 0 "" ./train_asga $small --out "$work/from-plain" --model "$work/plain"
check "and gives the same run" '[ "$(losses "$work/from-plain")" = "$(losses "$work/adapted")" ] && grep -q "lacks 12 tensors" "$work/stdout"'
cp -r "$work/causal/step_00000012" "$work/folder"
echo '{"model_type": "qwen3", "hidden_size": ' > "$work/folder/config.json"
expect "broken config.json" 7 "config.json" ./train_causal $small --out "$work/x" --model "$work/folder"
cp "$work/causal/step_00000012/config.json" "$work/folder/"
truncate -s 5000 "$work/folder/model.safetensors"
expect "truncated safetensors" 7 "model.safetensors" ./train_causal $small --out "$work/x" --model "$work/folder"
expect "generate from it" 7 "model.safetensors" ./generate --checkpoint "$work/folder" --tokens 3

# ---- data
expect "missing shards" 3 "nothing_*.bin" ./train_causal $small --out "$work/x" --train-data "$work/nothing_*.bin"
: > "$work/empty.bin"
expect "empty shard" 3 "empty.bin" ./train_causal $small --out "$work/x" --train-data "$work/empty.bin"
head -c 5000 "$work/data/small_train_000001.bin" > "$work/short.bin"
expect "truncated shard" 3 "short.bin" ./train_causal $small --out "$work/x" --train-data "$work/short.bin"
(cat "$work/data/small_train_000001.bin"; echo more) > "$work/longer.bin"
expect "extended shard" 3 "longer.bin" ./train_causal $small --out "$work/x" --train-data "$work/longer.bin"
head -c 9000 README.md > "$work/foreign.bin" 2> /dev/null || head -c 9000 Makefile > "$work/foreign.bin"
expect "foreign shard" 3 "foreign.bin" ./train_causal $small --out "$work/x" --train-data "$work/foreign.bin"
cp "$work/data/small_train_000001.bin" "$work/oov.bin"
printf '\377\377' | dd of="$work/oov.bin" bs=1 seek=3024 conv=notrunc 2> /dev/null
expect "token outside the vocabulary" 3 "65535" ./train_causal $small --out "$work/x" --train-data "$work/oov.bin"
expect "validation shorter than a batch" 3 "validation" ./train_causal $small --out "$work/x" --batch-size 512

# ---- options
expect "unknown option names the nearest" 2 "--batch-size" ./train_asga --batchsize 4
expect "not a number" 2 "--steps" ./train_asga --steps many
expect "NaN is no learning rate" 2 "--lr" ./train_asga --lr nan
expect "resuming with another batch" 2 "rows of data" ./train_causal $small --out "$work/causal" --resume --steps 20 --batch-size 4
expect "resuming with another shape" 2 "a different shape" ./train_causal $small --out "$work/causal" --resume --steps 20 --model qwen-1m
expect "0 switches validation and samples off" 0 "" ./train_causal $small --out "$work/off" --val-batches 0 --sample-every 1 --sample-tokens 0
expect "negative size" 2 "--batch-size" ./train_asga --batch-size -3
expect "total that does not divide" 2 "--total-batch-tokens" ./train_asga $small --out "$work/x" --total-batch-tokens 1000
expect "unknown preset" 2 "qwen-7m" ./train_asga $small --out "$work/x" --model qwen-7n
expect "setting out of range" 2 "asga_hidden" ./train_asga $small --out "$work/x" --asga-hidden 0
expect "unknown key in a configuration file" 2 "step" ./train_asga --config <(echo 'stepz = 3')
command -v nvidia-smi > /dev/null || expect "--device cuda without a GPU" 2 "cuda" ./train_asga --device cuda
expect "unknown option of generate" 2 "--temperature" ./generate --checkpoint x --temprature 1
expect "unknown option of tokenize" 2 "--tokenizer" ./tokenize --tokeniser bytes
expect "output folder that cannot be made" 7 "/proc/nothing" ./train_asga $small --out /proc/nothing/x
expect "--config takes the file that a run wrote" 0 "" ./train_causal --config "$work/causal/options.toml" --out "$work/configured"
check "and writes it again" 'diff <(grep -v "^out=" "$work/causal/options.toml") <(grep -v "^out=" "$work/configured/options.toml")'
check "and repeats the run" '[ "$(hash_of "$work/configured")" = "$(hash_of "$work/causal")" ]'
expect "more memory than there is" 4 "--batch-size" ./train_asga --model qwen2.5-1.5b --train-data "$work/data/small_train_*.bin" --val-every 0 --out "$work/x" --batch-size 1000 --seq-len 4096
expect "a learning rate that explodes" 5 "not finite" ./train_causal $small --out "$work/x" --lr 1000 --grad-clip 0 --adam-eps 1e-30 --steps 300 --warmup-steps 0 --checkpoint-every 0

# ---- evaluation
cat > "$work/items.jsonl" << 'END'
{"query": "We thank the", "choices": ["people", "q"], "gold": 0}
{"query": "The Congress of", "choices": ["zzzzzz", "the United"], "gold": 1}
{"query": "x", "choices": ["xxxxxxxxxxxxxxxxxxxx", "the"], "gold": 1}
END
last="$work/causal/step_00000012"
scores() { grep -oE '"(acc|macro)[a-z_0-9]*":[^,}]*|"items":[0-9]*' "$1/log.jsonl"; }
train causal "$work/scored" --eval-data "$work/item?.jsonl" --eval-every 6
check "--eval-every logs accuracies and changes no weight" '[ "$(grep -c "event.:.evaluation" "$work/scored/log.jsonl")" -eq 2 ] && [ "$(hash_of "$work/scored")" = "$(hash_of "$work/causal")" ]'
expect "--evaluate scores a checkpoint" 0 "" ./train_causal $small --evaluate --checkpoint "$last" --val-batches 4 --eval-data "$work/items.jsonl" --eval-out "$work/alone.jsonl" --out "$work/evaluated"
check "with the loss that the run ended with, and its perplexity" 'loss=$(grep -o "val_loss.:[0-9.]*" "$work/causal/log.jsonl" | tail -n 1 | cut -d: -f2) && grep -q "validation: loss $(printf %.6f "$loss"), perplexity $(awk -v l="$loss" "BEGIN { printf \"%.2f\", exp(l) }")" "$work/stdout"'
check "and three accuracies with their errors" 'grep -qE "^items: 3 items, accuracy by sum [0-9.]+% \+- [0-9.]+, by token mean .*, by character mean" "$work/stdout" && [ "$(wc -l < "$work/alone.jsonl")" -eq 3 ]'
check "training nothing" '[ ! -e "$work/evaluated" ]'
if command -v mpirun > /dev/null; then
    $launch -np 2 ./train_causal $small --evaluate --checkpoint "$last" --eval-data "$work/items.jsonl" --eval-out "$work/shared.jsonl" > /dev/null
    check "two ranks give every item the score of one" 'cmp "$work/alone.jsonl" "$work/shared.jsonl"'
fi
./train_causal $small --evaluate --checkpoint "$last" --batch-size 1 --val-batches 0 --eval-data "$work/items.jsonl" --eval-out "$work/narrow.jsonl" > /dev/null
likelihoods() { grep -o 'log_likelihoods.*' "$1" | grep -oE -- '-[0-9.]+'; }
check "items that have no room in a batch get the same scores" 'paste <(likelihoods "$work/alone.jsonl") <(likelihoods "$work/narrow.jsonl") | awk "{ d = \$1 / \$2 - 1; if (!(d * d <= 1e-10)) bad = 1; n++ } END { exit bad || n != 6 }"'
expect "nothing to evaluate" 2 "--evaluate needs weights" ./train_causal $small --evaluate
expect "scores over the items themselves" 2 "is one of --eval-data" ./train_causal $small --evaluate --checkpoint "$last" --eval-data "$work/items.jsonl" --eval-out "$work/./items.jsonl"
sed 's/"gold": 1}/"gold": 5}/' "$work/items.jsonl" > "$work/wrong.jsonl"
expect "an item whose answer does not exist" 3 "wrong.jsonl:2" ./train_causal $small --evaluate --checkpoint "$last" --eval-data "$work/wrong.jsonl"
expect "an item longer than the context" 3 "--seq-len" ./train_causal $small --evaluate --checkpoint "$last" --eval-data "$work/items.jsonl" --seq-len 16
expect "items of a checkpoint of another variant" 7 "asga" ./train_asga $small --evaluate --checkpoint "$last" --eval-data "$work/items.jsonl"
cp -r "$last" "$work/huge"   # its last number, a weight of the final norm, is the greatest that float32 has
rm "$work/huge/manifest.json"   # which would notice
printf '\377\377\177\177' | dd of="$work/huge/model.safetensors" bs=1 seek=$(($(stat -c %s "$work/huge/model.safetensors") - 4)) conv=notrunc 2> /dev/null
expect "scores that are not finite" 5 "item 0 scores" ./train_causal $small --evaluate --model "$work/huge" --val-batches 0 --eval-data "$work/items.jsonl" --eval-out "$work/none.jsonl"
check "are not left as a file of scores" '[ ! -e "$work/none.jsonl" ] && [ ! -e "$work/none.jsonl.tmp" ]'
expect "a validation loss that is not finite" 5 "validation loss" ./train_causal $small --evaluate --model "$work/huge"

# ---- shards that are not what their manifest says, and a mask that hides everything
export XDG_CACHE_HOME=$work/cache   # for the records of checked shards
for _ in {1..160}; do cat "$work/text.txt"; done > "$work/long.txt"
./tokenize --out "$work/long" --name long "$work/long.txt" > /dev/null 2>&1
long="$small --val-data $work/long/long_val_*.bin --train-data $work/long/long_train_*.bin --steps 1 --val-every 0 --checkpoint-every 0"
expect "a shard of 16 MB that is what its manifest says" 0 "" ./train_causal $long --out "$work/x"
dd if=/dev/zero of="$work/long/long_train_000001.bin" bs=1000000 seek=1 count=14 conv=notrunc 2> /dev/null
expect "a large shard that changed between its ends" 3 "long_train_000001.bin: is damaged or was changed" ./train_causal $long --out "$work/x"
cp -r "$work/data" "$work/changed"
printf 'x' | dd of="$work/changed/small_val_000000.bin" bs=1 seek=4000 conv=notrunc 2> /dev/null
expect "a changed shard for --evaluate" 3 "small_val_000000.bin: is damaged or was changed" ./train_causal $small --evaluate --model qwen-tiny --val-data "$work/changed/small_val_*.bin"
expect "--verify-data" 0 "" ./train_causal $small --verify-data --dry-run
printf '{"prompt": "%0500d", "completion": "a"}\n' 0 1 > "$work/hidden.jsonl"
./tokenize --mask-prompts --val-fraction 0 --out "$work/data" --name hidden "$work/hidden.jsonl" > /dev/null 2>&1
expect "a mask that hides all targets of a run" 3 "hides all targets of the 8 rows" ./train_causal $small --train-data "$work/data/hidden_train_*.bin" --shuffle 0 --steps 1 --val-every 0 --out "$work/x"
head -c 70000000 /dev/zero | tr '\0' a | ./tokenize --format jsonl --val-tokens 1 --out "$work/x" --name x - > /dev/null 2> "$work/line"
check "a line of 70 MB is refused" 'grep -q "standard input:1: the line is longer than 67108864 bytes" "$work/line"'

# ---- a tokenizer of Hugging Face's, from the text to what a moved checkpoint writes
expect "a tokenizer.json makes shards" 0 "" ./tokenize --tokenizer tests/fixtures/tokenizers/qwen_tokenizer.json --out "$work/bpe" --name bpe "$work/text.txt"
check "the tokenizer lies beside them" '[ -s "$work/bpe/bpe_tokenizer.json" ] && grep -q "\"tokenizer\": \"bpe_tokenizer.json\"" "$work/bpe/bpe_manifest.json"'
echo "{}" > "$work/bpe/other_tokenizer.json"
expect "a tokenizer.json that is somebody else's stays" 3 "other_tokenizer.json" ./tokenize --tokenizer tests/fixtures/tokenizers/qwen_tokenizer.json --out "$work/bpe" --name other "$work/text.txt"
bpe="$small --train-data $work/bpe/bpe_train_*.bin --val-data $work/bpe/bpe_val_*.bin"
expect "a model with too small a vocabulary" 3 "vocabulary" ./train_causal $bpe --out "$work/x"
mkdir "$work/shape"
sed 's/"vocab_size": *[0-9]*/"vocab_size": 4096/; /engine_tokenizer/d' "$last/config.json" > "$work/shape/config.json"
expect "training with it" 0 "" ./train_causal $bpe --model "$work/shape" --out "$work/bpe-run"
check "reports bits per byte" 'grep -q "val_bpb.:[0-9]" "$work/bpe-run/log.jsonl"'
mv "$work/bpe-run/step_00000012" "$work/moved" && rm -rf "$work/bpe"
expect "its checkpoint writes text wherever it lies" 0 "" ./generate --checkpoint "$work/moved" --prompt "We the people" --tokens 5
check "behind the prompt" 'grep -q "^We the people." "$work/stdout"'
expect "and answers items" 0 "" ./train_causal --device cpu --seq-len 64 --evaluate --checkpoint "$work/moved" --eval-data "$work/items.jsonl"
expect "text of another tokenizer than the model's" 3 "the model's is" ./train_causal $small --model "$work/moved" --out "$work/x"

# ---- what every model may have
# resumed VARIANT OUT: whether the run, cut off after step 8, ends at the same weights when it goes on.
resumed() {
    cp -r "$2" "$2-cut" && rm -r "$2-cut/step_00000012" && train "$1" "$2-cut" --resume &&
        [ -n "$(hash_of "$2")" ] && [ "$(hash_of "$2-cut")" = "$(hash_of "$2")" ] && [ "$(hash_of "$2")" != "$(hash_of "$work/$1")" ]
}
for variant in causal asga; do
    train $variant "$work/sigma-$variant" --sigma-reparam 1
    check "$variant with layers divided by their spectral norms: resumed, the same weights" 'resumed $variant "$work/sigma-$variant"'
    expect "and text from it" 0 "" ./generate --checkpoint "$work/sigma-$variant/step_00000012" --prompt-ids 65 --tokens 3 --print-ids
done
train causal "$work/no-norm" --qk-norm 0
check "a model without QK-norm: resumed, the same weights" 'resumed causal "$work/no-norm"'
check "its checkpoint says what it is" 'grep -q LlamaForCausalLM "$work/no-norm/step_00000012/config.json"'
expect "text from it" 0 "" ./generate --checkpoint "$work/no-norm/step_00000012" --prompt-ids 65 --tokens 3 --print-ids
expect "no QK-norm taken from weights that have it" 2 "are of a model with QK-norm" ./train_causal $small --model "$work/causal/step_00000012" --qk-norm 0 --out "$work/x"
expect "nor given to weights without" 2 "are of a model without QK-norm" ./train_causal $small --model "$work/no-norm/step_00000012" --qk-norm 1 --out "$work/x"
check "QK-norm takes the place of biases" './train_causal $small --model qwen2.5-0.5b --qk-norm 1 --dry-run --out "$work/x" > "$work/stdout"; grep -q "| QK-norm, tied" "$work/stdout" && grep -q 494008192 "$work/stdout"'

# ---- hybrids
train causal "$work/hybrid-of-one" --layers causal:1
check "causal layer by layer is causal" '[ -n "$(hash_of "$work/causal")" ] && [ "$(hash_of "$work/hybrid-of-one")" = "$(hash_of "$work/causal")" ]'
train asga "$work/asga-dense" --dense-layers 0
rm -rf "$work/asga-dense-cut" && cp -r "$work/asga-dense" "$work/asga-dense-cut" && rm -r "$work/asga-dense-cut/step_00000012"
train asga "$work/asga-dense-cut" --resume
check "a hybrid resumes to the same weights" '[ -n "$(hash_of "$work/asga-dense")" ] && [ "$(hash_of "$work/asga-dense-cut")" = "$(hash_of "$work/asga-dense")" ]'
check "its config.json and its log name the layers" 'tr -d " \n" < "$work/asga-dense/step_00000012/config.json" | grep -q "\"layer_types\":\[\"causal\",\"asga\"\]" &&
    grep -q "\"layers\":\"causal,asga\"" "$work/asga-dense/log.jsonl"'
expect "text from it" 0 "" ./generate --checkpoint "$work/asga-dense/step_00000012" --prompt-ids 65 --tokens 3 --print-ids
expect "a resumed run keeps its layers" 7 "is a checkpoint of causal,asga, and this program trains asga,causal" ./train_asga $small --out "$work/asga-dense" --resume --dense-layers 1
expect "psa on a hybrid" 2 "with other attention in some layers" ./generate --checkpoint "$work/asga-dense/step_00000012" --prompt-ids 65 --attention psa
train asga_fixed "$work/windows" --layers asga_fixed:window=4,asga_fixed:window=16 --monitor-every 12
check "windows layer by layer: 150 and 408 of 528 pairs" 'grep "event.:.attention" "$work/windows/log.jsonl" | grep -qE "pairs.:..0.2840.*0.7727"'
check "--dry-run says what each layer of a kind costs" './train_asga_fixed $small --layers asga_fixed:window=4,causal --dry-run --out "$work/x" | grep -qE "asga_fixed +. 28.4% of causal pairs, .* layers 0 "'
expect "the mask of a dense layer" 0 "" ./train_asga_fixed $small --out "$work/x" --dense-layers 1 --show-mask "$work/mask.pgm" --mask-layer 1
check "is drawn as such" 'grep -q "layer 1 of causal.*100.0% of causal pairs" "$work/stdout"'
expect "a mechanism that was not built in" 2 "this program has: asga, causal" ./train_asga $small --out "$work/x" --layers asga,sinks
expect "no layers of a kind" 2 "1 to 2" ./train_asga $small --out "$work/x" --layers asga:0
expect "more layers than the model has" 2 "has 3 layers, but the model has 2" ./train_asga $small --out "$work/x" --layers asga:2,causal
expect "a layer that the model lacks" 2 "layers are 0 to 1" ./train_asga $small --out "$work/x" --dense-layers 2
expect "both options" 2 "give one" ./train_asga $small --out "$work/x" --dense-layers 0 --layers asga
expect "a layer's window out of range" 2 "layer 1: --window is 33, but with --seq-len 32 must be a whole number from 0 to 32" \
    ./train_asga_fixed $small --out "$work/x" --layers causal,asga_fixed:window=33
cp -r "$work/causal/step_00000012" "$work/mixed" && rm "$work/mixed/manifest.json"   # its config.json will be another
sed '/attention_variant/d; s/"use_sliding_window": false/"use_sliding_window": true/; s/"sliding_window": null/"sliding_window": 9/; s/"max_window_layers": 2/"max_window_layers": 1/' \
    "$work/causal/step_00000012/config.json" > "$work/mixed/config.json"
expect "a Qwen folder with mixed windows writes text" 0 "" ./generate --checkpoint "$work/mixed" --prompt-ids 65,66 --tokens 20 --temperature 0 --print-ids
expect "and is not read without them" 7 "use ./train_sliding_window" ./train_causal $small --out "$work/x" --model "$work/mixed"
sed 's/"attention_variant"/"layer_types": ["full_attention", "linear_attention"], &/' "$work/causal/step_00000012/config.json" > "$work/mixed/config.json"
expect "a folder with layers that we do not have" 7 "layer 1: unknown attention variant 'linear_attention'; this program has: causal" ./train_causal $small --out "$work/x" --model "$work/mixed"
expect "nor ./generate" 7 "linear_attention" ./generate --checkpoint "$work/mixed" --prompt-ids 65 --print-ids

# ---- output
./train_causal $small --out "$work/piped" 2> /dev/null | head -n 3 > /dev/null
check "a reader that stops early costs nothing" '[ "$(hash_of "$work/piped")" = "$(hash_of "$work/causal")" ]'
check "piped output has no carriage returns" '! grep -q $'"'\\r'"' "$work/causal.txt"'
check "--dry-run trains nothing" '[ ! -e "$work/dry" ] && ./train_causal $small --dry-run --out "$work/dry" | grep -q "predicted peak" && [ ! -e "$work/dry" ]'
predicted=$(./train_asga --device cpu --dry-run | awk '/predicted peak/ { print int($7 * ($8 == "GiB" ? 1073741824 : 1048576)) }')
./train_asga --device cpu --steps 2 --sample-every 0 --checkpoint-every 0 --val-every 0 --plot 0 --out "$work/peak" > /dev/null
peak=$(tail -n 1 "$work/peak/log.jsonl" | grep -o '"peak_bytes":[0-9]*' | cut -d: -f2)
check "peak memory $peak is within 10% of the predicted $predicted" 'below $predicted $((peak * 110 / 100)) && below $((peak * 90 / 100)) $predicted'
train asga_fixed "$work/watched1" --monitor-every 4 --window 7
check "--monitor-every logs a look at attention" '[ "$(grep -c "event.:.attention" "$work/watched1/log.jsonl")" -eq 3 ]'
check "and the pairs of a window of 7 in 32 tokens, 228 of 528" 'grep "event.:.attention" "$work/watched1/log.jsonl" | grep -q "pairs.:..0.4318"'
expect "the mask of a variant as a picture" 0 "" ./train_asga_fixed $small --out "$work/x" --show-mask "$work/mask.pgm" --window 7
check "says so" 'grep -q "layer 1 of asga_fixed.*43.2% of causal pairs" "$work/stdout" && [ "$(head -c 2 "$work/mask.pgm")" = P5 ]'
expect "a picture of a kind that is not written" 2 ".png or .pgm" ./train_causal $small --out "$work/x" --show-mask "$work/mask.jpg"
expect "a picture without tokens" 2 "needs tokens" ./train_causal --device cpu --model qwen-tiny --evaluate --eval-data "$work/items.jsonl" --show-mask "$work/mask.png" --seq-len 32
expect "a window longer than the sequence" 2 "from 0 to 32" ./train_asga_fixed $small --out "$work/x" --window 33
train nsa "$work/watched3" --monitor-every 12
check "of nsa each softmax and its gate" 'grep "event.:.attention" "$work/watched3/log.jsonl" | grep -q "entropy.cmp.:..[0-9].*gate.win.:..0[.]"'
check "and the plot knows every table" 'PYTHONPATH=scripts python3 -c "
import json, sys, plot_attention
look = next(record for record in map(json.loads, open(sys.argv[1])) if record.get(\"event\") == \"attention\")
tables = [key for key, value in look.items() if isinstance(value, list) and not key.startswith(\"collapsed\")]
sys.exit(len(tables) < 20 or not all(map(plot_attention.is_map, tables)))" "$work/watched3/log.jsonl"'
expect "more blocks to choose than there are" 2 "(blocks of 64: 1) must be a whole number from 0 to 1" ./train_adaptive_sparse $small --out "$work/x" --adaptive-sparse-top-k 2
expect "nor of seer" 2 "from 0 to 1" ./train_seer $small --out "$work/x" --seer-top-k 2
expect "nor of nsa" 2 "is more than --seq-len 32 allows (blocks of 64: 1)" ./train_nsa $small --out "$work/x" --nsa-selected 3
check "a count of pairs that is a bound is called that" './train_seer $small --out "$work/x" --seer-threshold 0.1 --dry-run | grep -q "at most 2112 (100.0% of causal)"'
expect "no window of blocks that is wider, to both sides, than the text" 2 "(blocks of 16: 2) must be a whole number from 1 to 4" ./train_bigbird $small --out "$work/x" --bigbird-block 16 --bigbird-window 5
expect "nor more summaries of a chunk" 2 "(blocks of 16: 2) must be a whole number from 1 to 2" ./train_deepspeed_fixed $small --out "$work/x" --deepspeed-fixed-block 16 --deepspeed-fixed-globals 4
expect "nor more global tokens" 2 "from 0 to 32" ./train_longformer $small --out "$work/x" --global-tokens 33
expect "nor more sinks" 2 "from 0 to 32" ./train_sinks $small --out "$work/x" --sinks 33
expect "a block that is no multiple" 2 "must be a multiple of 64 from 64 to 4096" ./train_seer $small --out "$work/x" --seer-block 100
expect "a gate query that looks ahead is not trained through" 2 "to train, give --seer-query from 0 to 1, or --seer-distil 2" ./train_seer $small --out "$work/x" --seer-query 2
train seer "$work/gate" --seq-len 128 --batch-size 2 --steps 2 --seer-query 2 --seer-distil 2
prompt=$(head -c 150 "$work/text.txt")
gate="./generate --checkpoint $work/gate/step_00000002 --tokens 3 --temperature 0"
expect "but chooses blocks of a prompt" 0 "tokens of the text read later ones" $gate --prompt "$prompt" --set seer_distil=0 --set seer_top_k=1
train mosa "$work/mosa" --seq-len 64 --batch-size 2 --steps 2 --mosa-choice 1
ahead="./generate --checkpoint $work/mosa/step_00000002 --prompt-ids 65,66 --tokens 3 --print-ids"
expect "a form that looks ahead writes no text" 2 "reads later tokens" $ahead
expect "but its causal form does" 0 "kept of the text" $ahead --set mosa_choice=0
expect "a setting that changes tensors" 7 "--set requires tensors that it lacks" ./generate --checkpoint "$work/asga/step_00000012" --prompt-ids 65 --set asga_hidden=8 --print-ids
expect "a setting that the variant does not have" 2 "seer_top_k" $gate --set seer_topk=1
expect "a setting that is no number" 2 "must be a number" $gate --set seer_top_k=many
expect "a setting that is out of range" 2 "from 0 to" $gate --set seer_top_k=-1
expect "a picture that cannot be written" 3 "/proc/x.png" ./train_causal $small --out "$work/x" --show-mask /proc/x.png

# ---- a full disk
if [ "$(id -u)" -eq 0 ] && mkdir "$work/disk" && mount -t tmpfs -o size=900k tmpfs "$work/disk" 2> /dev/null; then
    mounted=$work/disk
    expect "a full disk ends the run with 7" 7 "no room for a checkpoint" ./train_causal $small --out "$work/disk/run" --keep-checkpoints 0
    check "and the checkpoint before is sound" './train_causal $small --out "$work/disk/run" --resume --steps 11 --checkpoint-every 0 > /dev/null 2>&1'
else
    skip "full disk" "cannot mount a small file system here"
fi
