// Weights near the threads that read them, on a machine with several memory nodes. The tiles of a matrix are divided into
// parts, one in the memory of each node, or every node has all of them (replicas).
//
// The parts of all weights of a node are one piece of memory, which its own threads touch first. So no huge page is
// shared by two nodes, as it would be within a matrix, whose parts may be smaller than a page. Kernels get a matrix as if
// it lay in one place, and tiles of one part at a time.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "program/tensors.h"
#include "runtime/hand_out.h"

namespace sterna {

class NearTiles {
  public:
    // Where a node's part lies: tiles [first, end) of every matrix, one after the other.
    struct Part {
        int64_t first = 0, end = 0;
        const uint8_t* begin = nullptr;  // the node's memory
        int64_t codes_at = 0,
                groups_at = 0;  // where in it the tiles, and their lines of scales, begin

        int64_t tiles() const { return end - first; }
    };

    NearTiles() = default;
    // period: tiles of one matrix; a weight of experts has several.
    NearTiles(const NodeTeam& team, int64_t period, bool replicas)
        : period_(period), replicas_(replicas), parts_(static_cast<size_t>(team.nodes())) {
        for (int node = 0; node < team.nodes(); ++node)
            parts_[static_cast<size_t>(node)] = {replicas ? 0 : team.bound(period, node),
                                                 replicas ? period : team.bound(period, node + 1)};
    }

    bool empty() const { return parts_.empty(); }
    bool in_parts() const { return !empty() && !replicas_; }
    int64_t period() const { return period_; }
    std::vector<Part>& parts() { return parts_; }

    // The node whose part a tile is read from by a thread of `node`.
    int node_of(int64_t tile, int node) const {
        if (replicas_) return node < static_cast<int>(parts_.size()) ? node : 0;
        int owner = 0;
        while (tile % period_ >= parts_[static_cast<size_t>(owner)].end) ++owner;
        return owner;
    }
    // A weight as a thread of `node` reads its tiles [begin, end); end comes down to where the part ends.
    Weight at(const Weight& w, int tile_rows, int64_t begin, int node, int64_t& end) const {
        if (empty()) return w;
        const Part& part = parts_[static_cast<size_t>(node_of(begin, node))];
        const int64_t matrix = begin / period_;
        end = std::min(end, matrix * period_ + part.end);
        // From a tile's number to its place in the part.
        const int64_t moved = matrix * part.tiles() - part.first - matrix * period_;
        Weight near = w;
        near.codes = moved_by(part.begin, part.codes_at + moved * w.tile_bytes);
        if (w.groups.group_k)
            near.groups.data = moved_by(
                part.begin, part.groups_at + moved * w.groups.tile_bytes(w.padded_k, tile_rows));
        return near;
    }

  private:
    int64_t period_ = 1;
    bool replicas_ = false;
    std::vector<Part> parts_;
};

}  // namespace sterna
