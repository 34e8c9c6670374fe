#!/usr/bin/env bash
# dev/attention_layer, on numbers that are written here, and where python3 has PyTorch scripts/check_published.py with what is installed
# (PYTHON=FILE: another python3). Prints `ok NAME` or `FAIL NAME: why` per check, `skip NAME: why`.
# Needs: make build/dev/attention_layer
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
export OMP_WAIT_POLICY=passive
python=${PYTHON:-python3}
layer=build/dev/attention_layer

# A file of tensors written without any package, and a look at what attention_layer has made of it.
cat > "$work/write.py" <<'END'
import json, math, struct, sys
B, T, NH, NKV, HS, C = 1, 90, 2, 1, 8, 24
shapes = {'x': [B, T, C], 'qkv': [B, T, NH + 2 * NKV, HS], 'dout': [B, T, NH, HS]}
if 'without-dout' in sys.argv: del shapes['dout']
header, data = {}, b''
for name, shape in shapes.items():
    numbers = [math.sin(1.7 * n * n + len(name)) for n in range(math.prod(shape))]
    header[name] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [len(data), len(data) + 4 * len(numbers)]}
    data += struct.pack(f'<{len(numbers)}f', *numbers)
head = json.dumps(header).encode()
open(sys.argv[1], 'wb').write(struct.pack('<Q', len(head)) + head + data)
END
cat > "$work/read.py" <<'END'
import json, struct, sys
raw = open(sys.argv[1], 'rb').read()
size, = struct.unpack('<Q', raw[:8])
header = json.loads(raw[8:8 + size])
def numbers(name):
    begin, end = header[name]['data_offsets']
    return struct.unpack(f'<{(end - begin) // 4}f', raw[8 + size + begin:8 + size + end])
naive, out, single = numbers('naive'), numbers('out'), numbers('float32.out')
assert max(map(abs, naive)) > 0.1 and max(abs(a - b) for a, b in zip(naive, out)) < 1e-6, 'result'
assert max(abs(a - b) for a, b in zip(out, single)) < 1e-5, 'float32'
exact, single = numbers('dqkv'), numbers('float32.dqkv')
assert max(map(abs, exact)) > 0.1 and max(abs(a - b) for a, b in zip(exact, single)) < 1e-4, 'gradients'
print(*(f'{x:.6f}' for x in out[-8:]))
END
$python "$work/write.py" "$work/in" && $python "$work/write.py" "$work/partial" without-dout
expect "published: a layer on numbers of a file" 0 "" $layer sliding_window "$work/in" "$work/out" attention_window=20
check "published: naive, double and float32 agree" '$python "$work/read.py" "$work/out" > "$work/window"'
$layer sliding_window "$work/in" "$work/dense" attention_window=89 && $python "$work/read.py" "$work/dense" > "$work/wide"
check "published: and the setting counts" '[ -s "$work/wide" ] && ! cmp -s "$work/window" "$work/wide"'
expect "published: no file" 2 "usage: attention_layer VARIANT IN OUT" $layer causal
expect "published: a variant that does not exist" 2 "flash" $layer flash "$work/in" "$work/x"
expect "published: a setting that is no number" 2 "attention_window=wide: expected SETTING=NUMBER" \
    $layer sliding_window "$work/in" "$work/x" attention_window=wide
expect "published: a setting of another mechanism" 2 "moba_block" $layer causal "$work/in" "$work/x" moba_block=64
expect "published: a tensor is missing" 3 "has no tensor dout" $layer causal "$work/partial" "$work/x"
expect "published: tensors of the variant are missing" 3 "has no tensor forgetting.w_f" $layer forgetting "$work/in" "$work/x"

if ! $python -c 'import torch, safetensors' 2> /dev/null; then
    skip "published: other people's code" "$python lacks torch or safetensors"
else
    expect "published: a variant that nothing is compared with" 2 "nothing is compared for asga" \
        $python scripts/check_published.py asga
    $python -W ignore scripts/check_published.py > "$work/stdout" 2> "$work/stderr"
    status=$?
    check "published: all that is installed agrees" '[ $status -eq 0 ] && grep -q "^ok causal, PyTorch" "$work/stdout" &&
        ! grep -q "^DIFFERS" "$work/stdout"'
fi
