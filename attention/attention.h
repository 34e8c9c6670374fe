// The attention variant of this translation unit: the Makefile passes, for instance,
// -DATTENTION=asga, and attention/asga.cuh defines a type of that name.
#pragma once
#define ATTENTION_QUOTED(name) #name
#define ATTENTION_FILE(name) ATTENTION_QUOTED(attention/name.cuh)
#include ATTENTION_FILE(ATTENTION)
