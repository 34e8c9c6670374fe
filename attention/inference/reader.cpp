#include "attention/inference/reader.h"

template <class X>
InferenceCount InferenceReader<X>::prompt(const AttentionForward<X>& a) const {
    InferenceCount count;
    if (how_.attention == InferenceAttention::adaspa) count.adaspa = adaspa_forward(CPU{}, causal_, a, how_.adaspa);
    else attention_forward(CPU{}, causal_, a);
    return count;
}

template <class X>
InferenceCount InferenceReader<X>::continuation(const AttentionForward<X>& a) const {
    InferenceCount count;
    if (how_.attention == InferenceAttention::psa) count.psa = psa_rows(causal_, a, how_.psa);
    else attention_forward(CPU{}, causal_, a);
    return count;
}

template class InferenceReader<float>;
template class InferenceReader<double>;
