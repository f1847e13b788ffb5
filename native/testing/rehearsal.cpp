#include "testing/rehearsal.h"

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace sterna {

std::vector<Share> rehearse(Pool& pool, int64_t tiles, int64_t tokens,
                            std::span<const int64_t> slowdown) {
    const size_t n = static_cast<size_t>(pool.size());
    if (slowdown.size() != n) {
        throw std::invalid_argument("slowdown: must be one for each thread, but got " +
                                    std::to_string(slowdown.size()));
    }
    const Division division = divide_tiles(tiles, tokens, pool.size(), pool.reading());
    HandOut hand_out(pool.size());
    std::vector<Share> shares(n);
    std::vector<char> done(n);
    std::mutex mutex;
    std::condition_variable turn;
    pool.run([&](int worker) {
        const size_t me = static_cast<size_t>(worker);
        const auto my_turn = [&] {
            for (size_t i = 0; i < n; ++i) {
                if (!done[i] && std::pair(shares[i].time, i) < std::pair(shares[me].time, me)) {
                    return false;
                }
            }
            return true;
        };
        std::unique_lock lock(mutex);
        for (int64_t begin, end;;) {
            turn.wait(lock, my_turn);
            if (!hand_out.next(division, worker, begin, end)) break;
            shares[me].tiles += end - begin;
            shares[me].time += (end - begin) * slowdown[me];
            turn.notify_all();
        }
        done[me] = 1;
        turn.notify_all();
    });
    return shares;
}

}  // namespace sterna
