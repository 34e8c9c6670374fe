// The kernels that one variant's attention spends its time in, and no others, so that they compile fast: in bf16, at head sizes 64
// and 128, without statistics. report.py compiles this with -DATTENTION=NAME, for a GPU only; nobody runs it. Of a mechanism with
// own passes it has all kernels of a layer.
#include "attention/attention.h"
#include "attention/kernel/layer.h"
#include "attention/decoding/attend.cuh"

// Numbers that the machine code of a kernel lacks: the shared memory that its launch asks for, in bytes, how often the loop over the
// parts of a tile runs for each tile, and how often another loop with products does. The report reads them from the
// instructions below, which take a number.
template <class Shape, bool STATISTICS, class P>
__global__ void attention_forward_kernel_facts(const __grid_constant__ P policy) {
    __nanosleep(sizeof(ForwardShared<Shape>) + ScoresOf<Shape, P>::bytes(policy.features()));
    __nanosleep(Shape::KEYS / Shape::STEP);
    __nanosleep(1);
}
template <class Shape, class P>
__global__ void attention_backward_kernel_facts(const __grid_constant__ P policy) {
    __nanosleep(BackwardBlock<Shape, P>::shared_bytes(policy.features()));
    __nanosleep(Shape::QUERIES / Shape::STEP);
    __nanosleep(BY_UNITS<Shape, P> ? UnitGate::ROUNDS : 1);
}
template <class Shape, class P, class Slots>
__global__ void decode_kernel_facts(const __grid_constant__ P /*policy*/) {
    __nanosleep(sizeof(DecodeShared<Shape>));
    __nanosleep(TILE / (Shape::AHEAD * Shape::ROWS));
    __nanosleep(1);
}

/// asga's form by score(), for numbers of hidden units that are not the default. It would take longer than all others together.
template <class P>
constexpr bool left_out() {
    if constexpr (requires { P::learned; }) return P::learned && std::is_base_of_v<P, ATTENTION>;
    else return false;
}

template <class P, int HS, bool WITH_KERNELS = true>
void instantiate() {
    using Forward = ForwardShapeOf<bf16, HS, P>;
    using Backward = BackwardShapeOf<bf16, HS, P>;
    static void* volatile kernel;
    kernel = (void*)attention_forward_kernel_facts<Forward, false, P>, kernel = (void*)attention_backward_kernel_facts<Backward, P>;
    if constexpr (WITH_KERNELS) {
        using Rows = DecodeShape<bf16, HS>;
        kernel = (void*)attention_forward_kernel<Forward, false, P>, kernel = (void*)attention_backward_kernel<Backward, P>;
        kernel = (void*)decode_kernel_facts<Rows, P, SlotsOf<P>>, kernel = (void*)decode_kernel<Rows, P, SlotsOf<P>>;
    }
    if constexpr (MAY_USE_WARPGROUPS<bf16, HS, P>) {
        using ByGroup = WarpgroupForwardShape<HS, false>;
        using Back = WarpgroupBackwardShape<HS>;
        kernel = (void*)attention_forward_kernel_facts<ByGroup, false, P>, kernel = (void*)attention_backward_kernel_facts<Back, P>;
        if constexpr (WITH_KERNELS)
            kernel = (void*)attention_forward_kernel<ByGroup, false, P>, kernel = (void*)attention_backward_kernel<Back, P>;
    }
}

template <class X, class P>
void kernels_of(const P& policy) {
    if constexpr (P::traits.own_passes) {
        LayerInputs<X> in{};
        LayerState<X> state{};
        QkvGradients<X> to{};
        ScoreInputGradients<X> more{};
        const X* none = nullptr;
        attention_layer_forward(GPU{}, policy, in, none, state, nullptr);
        attention_layer_backward(GPU{}, policy, in, none, state, none, to, more, nullptr);
        instantiate<Policy, 64, false>(), instantiate<Policy, 128, false>();   // facts of all policies that do not modify scores
    } else {
        specialise(policy, [](const auto& special) {
            using Special = std::decay_t<decltype(special)>;
            if constexpr (!left_out<Special>()) instantiate<Special, 64>(), instantiate<Special, 128>();
        });
    }
}
template void kernels_of<bf16>(const ATTENTION& policy);
