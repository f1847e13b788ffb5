// A program with what it borrows from Python, and one step of it.
#pragma once
#include <unistd.h>

#include <cmath>
#include <memory>
#include <mutex>

#include "bindings/common.h"
#include "bindings/draws.h"
#include "program/program.h"
#include "program/tensors.h"

namespace sterna::border {

struct PyProgram {
    Program program;
    std::vector<nb::object> keep;  // the arrays behind the weights
    std::vector<Weight> weights;
    Mappings mappings;
    Draws draws;
    std::vector<int64_t> widths;  // padded width of each buffer
    std::vector<int> planes_of;  // of the buffers: the format whose planes they hold, or -1
    std::vector<int> code_planes_of;  // and how many planes of int8
    std::vector<bool>
        of_experts;  // of the buffers: whether an operation writes rows of experts there
    std::vector<std::pair<int64_t, int64_t>>
        adapted;  // places of adapters: features of the input, and of the result
    int experts = 0, chosen = 0;  // of the last route
    std::vector<KvCache::Heads> layers;  // of the cache that the operations name; of none: none
    int64_t vocab = 0;
    int64_t hidden = 0;  // columns of a row of a program without a head; else 0
    int64_t given = 0, told = 0;  // columns of rows that a step is given, and can tell
    std::unique_ptr<std::mutex> mutex = std::make_unique<std::mutex>();
    pid_t owner = getpid();

    // One run at a time: the buffers are shared. A child made by fork() while another thread ran
    // would find the lock taken for ever, so it makes a new one; the run it interrupted is not its.
    std::mutex& lock() {
        if (owner != getpid()) {
            (void)mutex.release();  // a locked mutex must not be destroyed
            mutex = std::make_unique<std::mutex>();
            owner = getpid();
        }
        return *mutex;
    }

    // Of what a step gives.
    int64_t columns() const { return hidden ? hidden : vocab; }
};

// Padded width of a buffer that exists.
inline int64_t width_of(const PyProgram& p, int buffer) {
    require(buffer >= 0 && buffer < static_cast<int>(p.widths.size()), "buffer: no such buffer");
    return p.widths[static_cast<size_t>(buffer)];
}

// A copy of a vector that must have so many values.
inline std::vector<float> values_of(const In<float, 1>& from, int64_t count, const char* rule) {
    require(static_cast<int64_t>(from.shape(0)) == count, rule);
    return {from.data(), from.data() + from.shape(0)};
}

// A number that scales something, or the cap of something where 0 means none.
inline float checked_factor(float value, const char* rule) {
    require(std::isfinite(value) && value != 0, rule);
    return value;
}
inline float checked_cap(float value) {
    require(std::isfinite(value) && (value == 0 || (value >= 1e-3f && value <= 1e6f)),
            "cap: must be 0, for none, or in 0.001..1000000");
    return value;
}

// (first, count, adapter) of sequences of a step that follow each other.
using PyAdapted = std::tuple<int, int, Adapter*>;
// (start, count, logits, pages) of a sequence: SequenceSpan.
using PySpan = std::tuple<int, int, int, In<int32_t, 1>>;
// What a step gives: logits of the rows that are not drawn from; what was drawn from the others; the
// rows of an exact head computed for each row; and the head's bytes read.
using StepResult =
    std::tuple<Out<float, 2>, std::vector<SampleResult>, std::vector<int64_t>, int64_t>;

// (sequence, drafts, state): the last new tokens of a sequence that are drafts go on in a state of their own, and leave
// the sequence's own before them.
using PyAhead = std::tuple<int, int, State*>;

// Rows that the core writes.
using Told = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// given: a row for each token, where the program is given any. told: where those go that it tells, or none.
// masks: open once those of `draws` are written, where they are not before the step.
// states: of each sequence, where the program is recurrent, else none. Those of sequences that start at 0 may be of any
// position. A run that fails leaves them of no position, and those of `ahead`.
// adapters: of sequences that have one.
StepResult run_step(PyProgram& p, KvCache& cache, In<int32_t, 1> tokens,
                    const std::vector<PySpan>& sequences, const std::string& isa,
                    const nb::int_& threads, const std::vector<PyDeciding>& deciding,
                    const std::vector<PyDraw>& draws, const std::vector<State*>& states,
                    Gate* masks, const std::vector<PyAhead>& ahead,
                    const std::vector<PyAdapted>& adapters,
                    const std::optional<In<float, 2>>& given, const std::optional<Told>& told);

}  // namespace sterna::border
