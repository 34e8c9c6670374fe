// The attention variant of this translation unit: the Makefile passes, for instance, -DATTENTION=moba. attention/moba.cuh defines a type
// of that name, and attention/decoding/moba.cuh its decoding, where it needs a specialisation.
#pragma once
#define ATTENTION_QUOTED(name) #name
#define ATTENTION_FILE(name) ATTENTION_QUOTED(attention/name.cuh)
#define DECODING_FILE(name) ATTENTION_QUOTED(attention/decoding/name.cuh)
#include ATTENTION_FILE(ATTENTION)
#if __has_include(DECODING_FILE(ATTENTION))
#include DECODING_FILE(ATTENTION)
#endif
