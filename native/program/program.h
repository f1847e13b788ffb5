// A model as a flat list of operations over named buffers, and the loop that runs it.
//
// Python writes a Program once per model (sterna/graph). run() takes a batch, several sequences with any number of new
// tokens each, and runs every operation on the thread pool with a barrier between two of them. Nothing is allocated once
// a step of as many tokens, as far into a context, has been seen.
#pragma once
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "program/op.h"
#include "program/workspace.h"

namespace sterna {

// Operations [begin, end) of a program.
struct OpRange {
    size_t begin = 0, end = std::numeric_limits<size_t>::max();
};

class Program {
  public:
    Program() = default;
    Program(const Program&) = delete;

    int add_buffer(int64_t width);
    int buffers() const { return static_cast<int>(work_.buffers.size()); }
    // A value that lies in a buffer, which has room for all of its values.
    void add_value(const Operand& value);
    int add_heads(AttentionHeads heads);
    void add(std::unique_ptr<Op> op);
    template <class T>
    void add(const OpFields& fields) {
        add(std::make_unique<T>(fields, work_));
    }
    Workspace& work() { return work_; }
    const StepNeeds& needs() const { return work_.needs; }
    int64_t state_bytes() const { return 4 * work_.needs.state_floats; }

    // Copies weights near the pool's threads (WeightSet::place), after all operations were added.
    void place(Pool& pool, bool replicas, const KernelTable& kernels);

    // Reads the weights that a cache has through it, after all operations were added. The cache outlives the program.
    void stream(WeightCache& cache);

    // Logits of the selected rows, [rows][logits_ld()], valid until the next run. Throws
    // std::domain_error with the operation's name if an activation is not finite. part: the operations to run; values
    // are lost between two runs, unless Keep saves and restores them.
    float* run(const Batch& batch, const KvCache& cache, const KernelTable& kernels, Pool& pool,
               const OpRange& part = {});
    size_t operations() const { return ops_.size(); }
    int64_t logits_ld() const { return work_.buffers.back().ld; }

    // Seconds that runs have spent in each kind of operation, barriers included.
    std::map<std::string, double> seconds() const;
    // The part of these seconds in the last operation, if it is a linear layer: a head without a screen.
    double head_seconds() const;
    // Of the last run: rows of the float head computed for the n-th row of logits, and the bytes
    // read of the head. Zero and zero without an exact head.
    int64_t rescored(int64_t n) const;
    int64_t head_bytes() const;
    // Bytes of weights that the last run did not read, as nothing active met them.
    int64_t left_out() const { return left_out_; }
    // The sums of each Squares, in order, over all runs.
    const std::vector<SquareSums>& squares() const { return work_.squares; }

  private:
    // The requirements of a buffer's values.
    struct BufferNeeds {
        std::vector<Operand> of_experts{};
        bool bf16_planes = false;
        int code_planes = 1;
    };

    // The values that determine how much scratch operations need.
    struct ScratchShape {
        int64_t tokens = -1, selected = -1, threads = 0, adapter_rank = 0;
        const KernelTable* kernels = nullptr;
        KvTypes cache = {};
        bool operator==(const ScratchShape&) const = default;
    };

    void reserve(int64_t tokens);
    void reserve_scratch(const Step& step);
    void plan(const Batch& batch, int threads);
    void read_ahead(const Step& step, const OpRange& part) const;
    void run_worker(Step& step, Barrier& barrier, int worker, const OpRange& part);
    size_t next_linear(size_t index, size_t end, const Step& step) const;

    Workspace work_;
    std::vector<std::unique_ptr<Op>> ops_;
    std::vector<std::pair<const Op*, int>>
        on_disk_;  // matrices of the cache that every token reads
    std::vector<BufferNeeds> buffer_needs_;
    std::vector<double> seconds_;  // of each operation
    HandOut hand_outs_[2];  // of operations in turn: one is made ready while the other is in use
    ScratchShape scratch_for_;
    int64_t capacity_ = 0;  // tokens that the buffers hold
    int64_t left_out_ = 0;
};

}  // namespace sterna
