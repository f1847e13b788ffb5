// The packed weights of a program, and copies of them near the threads that read them (near.h).
#pragma once
#include <utility>
#include <vector>

#include "head/head.h"
#include "program/near.h"
#include "program/tensors.h"
#include "runtime/memory.h"
#include "runtime/pool.h"

namespace sterna {

// A weight whose tiles an operation reads: this many matrices, one after the other.
struct TilesRead {
    int weight, matrices;
};

class WeightSet {
  public:
    int add(const Weight& weight) {
        weights_.push_back(weight);
        return static_cast<int>(weights_.size()) - 1;
    }
    int count() const { return static_cast<int>(weights_.size()); }
    const Weight& operator[](int weight) const { return weights_[static_cast<size_t>(weight)]; }

    // Copies what is read, and the shadow of a screen, into memory near the pool's threads: in parts, or whole for each
    // node. Runs of another pool, or of one whose threads are placed otherwise, read it from there too.
    void place(const std::vector<TilesRead>& read, Screen* screen, Pool& pool, bool replicas,
               const KernelTable& kernels);
    // Where a weight's tiles were copied to; empty where they were not.
    const NearTiles& near(int weight) const;
    // The threads that weights are near to, where those are the pool's; else null.
    const NodeTeam* team(const Pool& pool) const {
        return !near_.empty() && pool.team() == team_ ? &team_ : nullptr;
    }

  private:
    struct Placing;

    std::vector<Weight> weights_;
    std::vector<NearTiles> near_;  // of each weight, or none
    std::vector<HugeBuffer> memory_;  // of each node
    NodeTeam team_;
};

}  // namespace sterna
