// How the work of an operation is divided among threads of unequal speed.
#pragma once
#include <cstdint>

#include "kernel_table.h"

namespace sterna {

// How items are handed out to threads: in chunks that shrink with the work that is left, so that there
// are few of them and yet the last ones, which the others wait for, are short (guided
// self-scheduling, Polychronopoulos and Kuck 1987).
struct Division {
    int64_t total;
    int threads = 0;  // 0: items one by one
    int64_t batch = 1;  // items that are best done together

    // A quarter of an even share of what is left, so that a worker at a fifth of the others' speed
    // does not end long after them; a batch as long as two thirds of a share hold one.
    int64_t chunk(int64_t left) const {
        if (threads == 0) return 1;
        const int64_t quarter = left / (4 * threads), most = 2 * left / (3 * threads);
        const int64_t items = quarter > batch ? quarter / batch * batch
                              : most < batch  ? most
                                              : batch;
        return items > 1 ? items : 1;
    }
};

// The tiles of a matrix. Kernels of few tokens read some side by side; those of many take them singly.
constexpr Division divide_tiles(int64_t tiles, int64_t tokens, int threads) {
    return {tiles, threads, tokens > kFewTokens ? 1 : kStreams};
}

}  // namespace sterna
