// bfloat16 as CUDA has it, for C++ compilers (see ../README.md).
#pragma once
#include "../bf16.h"
