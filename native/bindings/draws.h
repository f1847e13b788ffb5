// Python's requests to the sampler, converted to the core's types.
#pragma once
#include "bindings/common.h"
#include "sampling/draws.h"

namespace sterna::border {

// (params, history, answer_begin, masks, mu) of a sequence whose logits become tokens. history: all of its tokens, those of
// the step included; answer_begin: how many of these are the prompt's; masks: int32 words [rows, words], of each row
// of logits which tokens are allowed, or None for all; mu: mirostat's state before the first row's token, NaN where the
// answer begins.
using PyDraw = std::optional<std::tuple<const SampleParams*, In<int32_t, 1>, int64_t,
                                        std::optional<In<int32_t, 2>>, double>>;

// A draw for each of the sequence's last `rows` tokens, which sees the tokens up to its own. They view the arrays.
std::vector<Draw> row_draws(const PyDraw& draw, int rows);

}  // namespace sterna::border
