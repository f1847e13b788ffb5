// A value of a graph, as operations of its program read and write it.
#pragma once
#include <cstdint>

#include "program/tensors.h"

namespace sterna {

struct Operand {
    int buffer = -1;  // -1: there is none
    int64_t width = 0;
    // Where `chosen` is not 0 there is a row for each token and each of its `chosen` experts, of so many.
    int experts = 0, chosen = 0;
    int code_planes = 1;  // int8 planes that it is rounded to, where it is
    bool floats = true;  // whether anything reads it as floats
    int planes_for = -1;  // the weight whose fast kernel reads it as bf16 planes; -1: none
    bool nonzeros =
        false;  // in a step of one token, the places of its codes that are not 0 are listed

    explicit operator bool() const { return buffer >= 0; }
    int64_t ld() const { return padded_width(width); }
};

}  // namespace sterna
