// How a recurrent operation goes over the new tokens of a sequence, of which the last may be drafts.
#pragma once
#include <algorithm>

#include "program/batch.h"

namespace sterna {

// run(first, tokens, state, fresh) goes on from a state over tokens from `first` on; fresh: nothing came before. Drafts
// go on in a copy of the floats [at, at + count) of the state, which stays at the position before them.
template <class Run>
void over_new_tokens(const SequenceSpan& span, int64_t at, int64_t count, Run run) {
    const int tokens = span.count - span.drafts;
    float* state = span.state + at;
    run(int64_t{0}, int64_t{tokens}, state, span.start == 0);
    if (!span.drafts) return;
    float* ahead = span.ahead + at;
    std::copy_n(state, count, ahead);
    run(int64_t{tokens}, int64_t{span.drafts}, ahead, false);
}

}  // namespace sterna
