// Activations by the names that config.json has for them.
#pragma once
#include <algorithm>
#include <iterator>

#include "program/fields.h"
#include "units/kernel_table.h"

namespace sterna {

inline Glu glu_of(const OpFields& f, const char* field) {
    static const char* const kNames[] = {"",       "relu2", "silu", "gelu", "gelu_pytorch_tanh",
                                         "clamped"};  // by Glu
    const auto* known = std::find(std::begin(kNames), std::end(kNames), f.text(field));
    f.require(known != std::end(kNames), field,
              "must be relu2, silu, gelu, gelu_pytorch_tanh, clamped or empty");
    return static_cast<Glu>(known - std::begin(kNames));
}

}  // namespace sterna
