#include "testing/rehearsal.h"

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "program/near.h"

namespace sterna {

std::vector<Share> rehearse(Pool& pool, int64_t tiles, int64_t tokens,
                            std::span<const int64_t> slowdown, bool replicas) {
    const size_t n = static_cast<size_t>(pool.size());
    if (slowdown.size() != n) {
        throw std::invalid_argument("slowdown: must be one for each thread, but got " +
                                    std::to_string(slowdown.size()));
    }
    Division division =
        divide_tiles(tiles, tokens, pool.size(), pool.readings().of(ReadLoop::kFewBits));
    const NodeTeam& team = pool.team();
    NearTiles near;
    if (team.nodes() > 1) near = NearTiles(team, tiles, replicas);
    if (near.in_parts()) division.team = &team;
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
            for (int64_t tile = begin; tile < end && !near.empty(); ++tile)
                shares[me].remote +=
                    near.node_of(tile, team.node_of(worker)) != team.node_of(worker);
            shares[me].time += (end - begin) * slowdown[me];
            turn.notify_all();
        }
        done[me] = 1;
        turn.notify_all();
    });
    return shares;
}

}  // namespace sterna
