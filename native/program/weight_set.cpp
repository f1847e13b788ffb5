#include "program/weight_set.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace sterna {

namespace {

constexpr int64_t kCopyBytes = int64_t{4} << 20;  // that a thread of a node copies at a time

}  // namespace

// The parts that go into the memory of each node, and their sources.
struct WeightSet::Placing {
    struct Copy {
        const uint8_t* from;
        int64_t to, bytes;  // to: in the node's memory
    };

    const NodeTeam& team;
    bool replicas;
    std::vector<std::vector<Copy>> copies;  // of each node
    std::vector<int64_t> bytes;

    Placing(const NodeTeam& nodes, bool whole)
        : team(nodes),
          replicas(whole),
          copies(static_cast<size_t>(nodes.nodes())),
          bytes(static_cast<size_t>(nodes.nodes())) {}

    // Takes room for a node's tiles of each matrix, of so many bytes; where it begins.
    int64_t add(size_t node, const uint8_t* data, const NearTiles::Part& part, int64_t period,
                int64_t tiles, int64_t tile_bytes) {
        const int64_t begin = bytes[node];
        for (int64_t matrix = 0; matrix < tiles; matrix += period) {
            const uint8_t* from = data + (matrix + part.first) * tile_bytes;
            const int64_t end = bytes[node] + part.tiles() * tile_bytes;
            for (; bytes[node] < end; from += kCopyBytes) {
                const int64_t count = std::min(kCopyBytes, end - bytes[node]);
                copies[node].push_back({from, bytes[node], count});
                bytes[node] += count;
            }
        }
        bytes[node] = (bytes[node] + 63) / 64 * 64;
        return begin;
    }
    // The parts of a weight, whose pointers count from 0 until the memory is there.
    NearTiles add(const Weight& w, int64_t period, int tile_rows) {
        NearTiles near(team, period, replicas);
        for (size_t node = 0; node < bytes.size(); ++node) {
            auto& part = near.parts()[node];
            part.codes_at = add(node, w.codes, part, period, w.tiles, w.tile_bytes);
            if (w.groups.group_k)
                part.groups_at = add(node, w.groups.data, part, period, w.tiles,
                                     w.groups.tile_bytes(w.padded_k, tile_rows));
        }
        return near;
    }
};

void WeightSet::place(const std::vector<TilesRead>& read, Screen* screen, Pool& pool, bool replicas,
                      const KernelTable& kernels) {
    near_.assign(weights_.size(), {});
    team_ = pool.team();
    Placing placing(team_, replicas);
    const auto rows_of = [&](const Weight& w) { return kernels.formats[w.format].tile_rows; };
    for (const auto& [weight, matrices] : read) {
        const auto i = static_cast<size_t>(weight);
        const Weight& w = weights_[i];
        if (near_[i].empty() && w.tiles > 0)
            near_[i] = placing.add(w, w.tiles / matrices, rows_of(w));
    }
    NearTiles shadow;
    if (screen)
        shadow = placing.add(screen->shadow(), screen->shadow().tiles, rows_of(screen->shadow()));
    memory_.clear();
    for (const int64_t bytes : placing.bytes)
        memory_.emplace_back(static_cast<size_t>(bytes), true);
    pool.run([&](int worker) {
        const int node = team_.node_of(worker), first = team_.first_of(node);
        const auto threads = static_cast<size_t>(team_.first_of(node + 1) - first);
        const auto& mine = placing.copies[static_cast<size_t>(node)];
        uint8_t* to = memory_[static_cast<size_t>(node)].data();
        for (auto i = static_cast<size_t>(worker - first); i < mine.size(); i += threads)
            std::memcpy(to + mine[i].to, mine[i].from, static_cast<size_t>(mine[i].bytes));
    });
    const auto settle = [&](NearTiles& near) {
        for (size_t node = 0; node < near.parts().size(); ++node)
            near.parts()[node].begin = memory_[node].data();
    };
    for (auto& near : near_) settle(near);
    settle(shadow);
    if (screen) screen->place(std::move(shadow));
}

const NearTiles& WeightSet::near(int weight) const {
    static const NearTiles nowhere;
    return near_.empty() ? nowhere : near_[static_cast<size_t>(weight)];
}

}  // namespace sterna
