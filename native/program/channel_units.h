// Units of an operation whose channels are independent: some channels of one sequence, over all its tokens.
#pragma once
#include <algorithm>
#include <iterator>

#include "program/op.h"

namespace sterna {

struct ChannelUnits {
    int64_t channels, most;  // of a sequence, and of a unit

    struct Unit {
        size_t sequence;
        int64_t from, channels;
    };

    int64_t of_sequence() const { return (channels + most - 1) / most; }
    Division all(const Step& step) const {
        return {std::ssize(step.batch.sequences) * of_sequence()};
    }
    Unit at(int64_t unit) const {
        const int64_t from = unit % of_sequence() * most;
        return {static_cast<size_t>(unit / of_sequence()), from, std::min(most, channels - from)};
    }
};

}  // namespace sterna
