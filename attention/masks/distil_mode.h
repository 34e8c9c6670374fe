// How what chooses a mask, which the language model's loss does not reach, is distilled from where attention looks.
#pragma once

enum class Distil {
    nobody,    // not at all
    jointly,   // while everything else is trained
    alone,     // while attention is dense and nothing else is trained
};
