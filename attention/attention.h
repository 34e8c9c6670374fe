// The attention variant that this translation unit is compiled for: the Makefile passes -DATTENTION=asga, say, and the file
// attention/asga.cuh defines a type of that name.
#pragma once
#define ATTENTION_QUOTED(name) #name
#define ATTENTION_FILE(name) ATTENTION_QUOTED(attention/name.cuh)
#include ATTENTION_FILE(ATTENTION)
