// One attention layer on numbers from a file, for scripts/check_published.py and scripts/experiments/gallery.py:
//   build/dev/attention_layer VARIANT IN OUT [SETTING=NUMBER...]
// IN (safetensors) has x (B, T, C), qkv (B, T, NH + 2 NKV, HS), dout (B, T, NH, HS) and the variant's tensors by their names behind
// "self_attn.". q and k get RoPE of base 1e4 and no norm; x is what the variant's own tensors read. OUT has, in float32:
//     naive                      what the variant's oracle makes of it, in double
//     out, dqkv, dx, d.TENSOR    the layer in double: result, and gradients of <dout, result>
//     float32.out, ...           the same in float32
#include <algorithm>
#include <deque>

#include "model/base/options.h"
#include "model/checkpoint/safetensors.h"
#include "model/device/machine.h"
#include "tests/attention_case.h"

namespace {

const std::string PREFIX = "model.layers.0.self_attn.";

/// The tensors of OUT. Their numbers keep their places in memory.
struct Results {
    std::deque<std::vector<float>> arrays;
    std::vector<TensorToWrite> tensors;

    template <class X>
    void add(const std::string& name, std::vector<int64_t> shape, const std::vector<X>& numbers) {
        const std::vector<float>& array = arrays.emplace_back(numbers.begin(), numbers.end());
        tensors.push_back({name, std::move(shape), array.data()});
    }
};

const StoredTensor& tensor_of(const SafetensorsFile& file, const std::string& name, size_t dimensions) {
    const StoredTensor* tensor = file.find(name);
    if (!tensor) fail(Exit::data, file.where(), ": has no tensor ", name);
    if (dimensions && tensor->shape.size() != dimensions)
        fail(Exit::data, file.where(), ": ", name, " is ", shape_text(tensor->shape), ", expected ", dimensions, " dimensions");
    return *tensor;
}

template <class X>
void read(std::vector<X>& to, size_t begin, size_t count, const SafetensorsFile& file, const StoredTensor& tensor) {
    if (tensor.count != count)
        fail(Exit::data, file.where(), ": ", tensor.name, " is ", shape_text(tensor.shape), ", expected ", count, " numbers");
    std::vector<float> numbers(count);
    convert_to_float(tensor, numbers.data(), file.where());
    std::copy(numbers.begin(), numbers.end(), to.begin() + begin);
}

template <class X>
void run_layer(const Variant& variant, const LayerSizes& sizes, const SafetensorsFile& file, const std::string& before, Results& to) {
    AttentionCase<X> layer(variant, sizes);
    const int64_t B = sizes.B, T = sizes.T, NH = sizes.NH, heads = sizes.NH + 2 * sizes.NKV, HS = sizes.HS, C = layer.config.C;
    std::vector<X> dout(size_t(B) * T * NH * HS);
    read(layer.x, 0, layer.x.size(), file, tensor_of(file, "x", 3));
    read(layer.qkv, 0, layer.qkv.size(), file, tensor_of(file, "qkv", 4));
    read(dout, 0, dout.size(), file, tensor_of(file, "dout", 4));
    for (const Tensor& tensor : layer.tensors)
        read(layer.weights, tensor.slot.offset, tensor.slot.size, file, tensor_of(file, tensor.name.substr(PREFIX.size()), 0));
    layer.forward();
    if (before.empty()) to.add("naive", {B, T, NH, HS}, layer.naive());
    to.add(before + "out", {B, T, NH, HS}, layer.result());
    layer.backward(dout);
    to.add(before + "dqkv", {B, T, heads, HS}, layer.dqkv);
    to.add(before + "dx", {B, T, C}, layer.dx);
    for (const Tensor& tensor : layer.tensors) {
        const auto begin = layer.dweights.begin() + tensor.slot.offset;
        to.add(before + "d." + tensor.name.substr(PREFIX.size()), {tensor.shape.begin(), tensor.shape.end()},
               std::vector<X>(begin, begin + tensor.slot.size));
    }
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("attention_layer", [&] {
        if (argc < 4) fail(Exit::usage, "usage: attention_layer VARIANT IN OUT [SETTING=NUMBER...]");
        use_threads(0, 1);
        const SafetensorsFile file(argv[2]);
        const std::vector<int64_t> of_qkv = tensor_of(file, "qkv", 4).shape, of_dout = tensor_of(file, "dout", 4).shape;
        const Variant& variant = named(argv[1], all_variants());
        LayerSizes sizes{int(of_dout[0]), int(of_dout[1]), int(of_dout[2]), int(of_qkv[2] - of_dout[2]) / 2, int(of_dout[3])};
        sizes.C = int(tensor_of(file, "x", 3).shape[2]);
        for (int n = 4; n < argc; n++) {
            const std::string word = argv[n];
            const size_t equals = word.find('=');
            char* end = nullptr;
            const double value = equals == std::string::npos ? 0 : std::strtod(argv[n] + equals + 1, &end);
            if (!end || end == argv[n] + equals + 1 || *end) fail(Exit::usage, word, ": expected SETTING=NUMBER");
            const std::string key = word.substr(0, equals);
            if (std::ranges::none_of(variant.settings(), [&](const Setting& setting) { return setting.key == key; }))
                fail(Exit::usage, variant.name, " has no setting ", key);
            sizes.settings[key] = value;
        }
        Results results;
        run_layer<double>(variant, sizes, file, "", results);
        run_layer<float>(variant, sizes, file, "float32.", results);
        write_safetensors(argv[3], results.tensors);
    });
}
