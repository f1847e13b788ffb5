// State that the operations of a program share, and the plans of each step.
#pragma once
#include <atomic>
#include <bit>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "head/head.h"
#include "program/active.h"
#include "program/adapter_plan.h"
#include "program/attention_plan.h"
#include "program/batch.h"
#include "program/kv_cache.h"
#include "program/operand.h"
#include "program/rotations.h"
#include "program/routing.h"
#include "program/weight_cache.h"
#include "program/weight_set.h"

namespace sterna {

// The required inputs of a step, which operations declare when they are added.
struct StepNeeds {
    std::vector<KvCache::Heads> layers;  // of the cache; a layer that no operation names has none
    int64_t vocab = 0;
    int64_t positions = 0;  // that a sequence may have; 0: any number
    int64_t previous_width = 0;  // of the rows of previous hidden states; 0: it reads none
    int64_t hidden_width = 0;  // of the hidden states that it can write
    int64_t feature_width = 0;  // of features that replace embeddings
    int64_t kept_width = 0;  // of the rows that are kept between runs of parts
    int64_t state_floats = 0;  // of the State of each sequence
    // Places of adapters: features of the layers' inputs, and columns of their results.
    std::vector<std::pair<int64_t, int64_t>> adapted;

    // Reserves this many floats in the State of a sequence; returns their offset.
    int64_t add_state(int64_t floats) {
        const int64_t begin = state_floats;
        state_floats += (floats + 15) / 16 * 16;  // each begins at a line
        return begin;
    }
};

// A float head behind the screen of an int8 one (head.h).
struct ExactHead {
    Screen screen;
    int64_t float_rows, float_bytes, shadow_bytes;
    bool late = false;  // masks are to come in this step, and with them `screened`
    bool screened = false;  // this step is
};

// Squares of a value's columns, added up over all runs: rows seen, and a sum for each column.
struct SquareSums {
    int64_t rows = 0;
    std::vector<double> columns{};
};

// An indexer's scores of all positions, for each token of a step that sees more than it may attend to. Layers use this
// memory one after the other.
class IndexScores {
  public:
    void plan(const BatchRows& rows) {
        begin_.clear();
        end_ = 0;
        for (const int32_t limit : rows.limit_of) {
            const bool chooses = top_k && limit > top_k;
            begin_.push_back(chooses ? end_ : -1);
            if (chooses) end_ += int64_t{attention_chunks(limit)} * kChunkPositions;
        }
        const auto bytes = static_cast<size_t>(end_) * sizeof(float);
        if (memory_.size() < bytes) memory_ = HugeBuffer(std::bit_ceil(bytes));
    }
    bool any() const { return end_ > 0; }
    // Those of a token, in whole chunks; null where it attends to all.
    float* of(int64_t n) const {
        const int64_t begin = begin_[static_cast<size_t>(n)];
        return begin < 0 ? nullptr : reinterpret_cast<float*>(memory_.data()) + begin;
    }

    int32_t top_k = 0;  // 0: the program has no indexer

  private:
    std::vector<int64_t> begin_;  // of each token
    int64_t end_ = 0;
    HugeBuffer memory_;
};

struct Workspace {
    std::vector<Activations> buffers;
    WeightSet weights;
    std::deque<AttentionPlan> attention;  // of each kind of heads; operations point to them
    Rotations rotations;
    Routing routing;
    AdapterPlan adapters;
    Nonzeros nonzeros;
    std::unique_ptr<ExactHead> head;
    std::vector<SquareSums> squares;
    BatchRows rows;
    IndexScores index;
    HugeBuffer partials;  // of attention, before chunks are merged
    HugeBuffer scratch_memory;
    int64_t scratch_stride = 0;  // bytes of one worker
    StepNeeds needs;
    WeightCache* weight_cache = nullptr;  // of those that stay on disk; null: all are in memory
    Pool* pool = nullptr;  // that copies weights while operations are added

    const Activations& buffer(const Operand& x) const {
        return buffers[static_cast<size_t>(x.buffer)];
    }
    uint8_t* scratch(int worker) const { return scratch_memory.data() + worker * scratch_stride; }
};

// One run of a program.
struct Step {
    const Batch& batch;
    const KvCache& cache;
    const KernelTable& kernels;
    int64_t tokens, selected;
    int threads;
    Readings readings;
    const NodeTeam* team;  // where threads are those that weights are near to
    bool adapting;  // a row has an adapter, which reads floats
    std::atomic<int64_t> left_out{0};  // bytes of weights that were not read
    // The first operation that met a value that is not finite.
    std::atomic<size_t> non_finite{std::numeric_limits<size_t>::max()};

    const Reading& reading_of(const Weight& w) const {
        return readings.of(kernels.formats[w.format].read_loop);
    }
    int node_of(int worker) const { return team ? team->node_of(worker) : 0; }
    // Whether the step may leave out what meets zeros: of one token, whose gates nothing is added to.
    bool one() const { return tokens == 1 && !adapting; }
};

}  // namespace sterna
