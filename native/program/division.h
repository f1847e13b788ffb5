// How the work of an operation is divided among threads of unequal speed.
#pragma once
#include <cstdint>

#include "units/kernel_table.h"

namespace sterna {

// How items are handed out to threads: in chunks that shrink with the work that is left, so that there
// are few of them and yet the last ones, which the others wait for, are short (guided
// self-scheduling, Polychronopoulos and Kuck 1987).
struct Division {
    int64_t total;
    int threads = 0;  // 0: items one by one
    int64_t batch = 1;  // items that are best done together

    // Two fifths of an even share of what is left, or one batch as long as four fifths hold it: so
    // workers at half speed lose less than 15 % (test_pool.py), and chunks are as few as that allows.
    int64_t chunk(int64_t left) const {
        if (threads == 0) return 1;
        const int64_t large = 2 * left / (5 * threads), most = 4 * left / (5 * threads);
        const int64_t items = large > batch ? large / batch * batch : most < batch ? most : batch;
        return items > 1 ? items : 1;
    }
};

// The tiles of a matrix. Kernels of few tokens may read some side by side; those of many take them singly.
constexpr Division divide_tiles(int64_t tiles, int64_t tokens, int threads,
                                const Reading& reading) {
    return {tiles, threads, tokens > kFewTokens ? 1 : reading.streams};
}

}  // namespace sterna
