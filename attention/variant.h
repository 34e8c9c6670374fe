// The interface between the engine and an attention mechanism. The engine (model/, train_gpt.cu, ./generate) is compiled once
// against this interface. A variant is compiled separately, once per device (attention/variant.cu), and a trainer is linked with
// one variant. Everything is per layer, so that the layers of a model may differ.
//     Variant          name, settings; makes a model's layers
//     AttentionLayer   one layer: facts, tensors, mask
//     LayerPasses      a layer's passes on one device in one number type; attention/layer_of.h makes them from a policy
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/kernel/call.h"
#include "attention/kernel/count.h"
#include "model/config.h"
#include "model/tensors.h"

/// Facts of a layer. `gated` holds only with gates_output, keeps_documents_apart only with is_causal.
struct LayerFacts : Traits, Form {
    Features features{};
    bool decodes = false;           // LayerPasses::make_cache() may be called
    bool reads_keys_only = false;   // decode needs the rotated keys and the values alone: CpuPasses::attend() may be called
    bool reports_pairs = false;     // CpuPasses::sees() may be called
    bool expects_at_most = false;   // expected_pairs() is an upper bound, as the number depends on the data
    std::vector<std::string> branch_names{};   // at least one: "" where the layer has a single softmax
};

template <class Device, class X>
class LayerCache;
struct CacheRoom;

/// The passes of one layer on one device. Arguments and results: attention_layer_forward() and
/// attention_layer_backward() in attention/kernel/layer.h.
template <class Device, class X>
struct LayerPasses {
    virtual ~LayerPasses() = default;

    /// Bytes that the forward pass keeps for the backward pass, and bytes of scratch memory while either pass runs.
    virtual size_t kept_bytes(const LayerShape& shape) const = 0;
    virtual size_t workspace_bytes(Device device, const LayerShape& shape) const = 0;

    virtual void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                         const Statistics<X>& statistics) const = 0;
    virtual void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                          const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const = 0;

    /// For layers with `decodes`. room.B sequences of room.T tokens each.
    virtual std::unique_ptr<LayerCache<Device, X>> make_cache(const CacheRoom& room) const = 0;

    /// The gates of the last forward pass: branch_gates() of layer_of.h, one for each of LayerFacts::branch_names.
    virtual std::vector<const Wide<X>*> branch_gates(const LayerShape& shape, const LayerState<X>& state) const = 0;
};

/// The passes that exist only on the CPU.
template <class X>
struct CpuPasses : LayerPasses<CPU, X> {
    /// Runs the kernel only, on the rows and keys of `a`. For layers with reads_keys_only.
    virtual void attend(const AttentionForward<X>& a) const = 0;

    /// Whether query i of head h, in the first sequence, read key j in the last forward pass. For layers with reports_pairs.
    virtual bool sees(const LayerInputs<X>& in, const LayerState<X>& state, int h, int i, int j) const = 0;

    /// Computes out (B, T, NH, HS) by the formula in dense loops: the oracle of the tests.
    virtual void naive(const LayerInputs<X>& in, const X* weights, X* out) const = 0;
};

/// One layer of a model. The object also implements the passes of its device; passes_of() returns them.
struct AttentionLayer {
    LayerFacts facts{};

    AttentionLayer() = default;
    AttentionLayer(const AttentionLayer&) = delete;   // its passes refer to its policy
    virtual ~AttentionLayer() = default;
    virtual void declare(TensorList& list, const std::string& prefix) = 0;
    virtual bool trains(const std::string& tensor) const = 0;
    virtual Tile tile(int h, int i0, int i1, int j0, int j1) const = 0;
    virtual bool visible(int h, int i, int j) const = 0;
    virtual PairCount expected_pairs(int NH, int T) const = 0;
    virtual double further_pairs(int NH, int T) const = 0;
    virtual double cached_keys(int T) const = 0;
};

/// The layer's passes on a device. std::bad_cast if its variant was compiled for another device.
template <class Device, class X>
const LayerPasses<Device, X>& passes_of(const AttentionLayer& layer) {
    return dynamic_cast<const LayerPasses<Device, X>&>(layer);
}
template <class X>
const CpuPasses<X>& cpu_passes_of(const AttentionLayer& layer) {
    return dynamic_cast<const CpuPasses<X>&>(layer);
}

/// An attention variant, for one device.
struct Variant {
    const char* name;
    const char* options_to_train;   // Policy::options_to_train
    std::vector<Setting> (*settings)();   // the variant's own; settings_of() has all of a model
    std::unique_ptr<AttentionLayer> (*make_layer)(const Config& config, int layer);
};

/// The settings of a model of this variant: the variant's own, then those of every model.
inline std::vector<Setting> settings_of(const Variant& variant) {
    std::vector<Setting> all = variant.settings();
    all.insert(all.end(), model_settings().begin(), model_settings().end());
    return all;
}

/// The baseline, in the engine's library and so in every program, for hybrid models.
namespace on_cpu {
extern const Variant causal;
}
namespace on_gpu {
extern const Variant causal;
}

/// The variants that the layers of a model may have: the model's own, whose settings are the model's, and others.
struct Variants {
    const Variant& own;
    std::vector<const Variant*> others;

    Variants(const Variant& of_model, std::vector<const Variant*> beside = {}) : own(of_model), others(std::move(beside)) {}

    const Variant* find(const std::string& name) const;   // null for an unknown name
    std::string names() const;
};

/// The variants that a program is linked with, in alphabetical order. Each object of attention/variant.cu registers its own.
const std::vector<const Variant*>& all_variants();
const std::vector<const Variant*>& all_variants_on_gpu();
struct Registered {
    Registered(const Variant& variant, bool on_gpu);
};

/// The variant that a trainer trains: the one beside causal, or causal itself. Null if there are several.
const Variant* sole_variant(std::vector<const Variant*> variants = all_variants());

/// The variant of that name. Exit::usage, with the known names, if there is none.
const Variant& named(const std::string& name, const std::vector<const Variant*>& variants = all_variants());
