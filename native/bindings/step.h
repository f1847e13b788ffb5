// A program with the Python objects that it borrows, and one step of it.
#pragma once
#include <memory>
#include <mutex>

#include "bindings/common.h"
#include "bindings/draws.h"
#include "program/program.h"
#include "program/tensors.h"
#include "runtime/system/system.h"

namespace sterna::border {

struct PyProgram {
    nb::object weight_cache;  // that the program reads through, or nothing
    Program program;
    std::vector<nb::object> keep;  // the arrays behind the weights
    std::vector<Operand> values;
    Mappings mappings;
    Draws draws;
    int64_t hidden = 0;  // columns of a row where the last values are not the vocabulary's; else 0
    std::unique_ptr<std::mutex> mutex = std::make_unique<std::mutex>();
    int64_t owner = system::process_id();

    // One run at a time: the buffers are shared. A child that was forked while another thread ran would find the lock
    // taken forever, so it makes a new one.
    std::mutex& lock() {
        if (owner != system::process_id()) {
            (void)mutex.release();  // a locked mutex must not be destroyed
            mutex = std::make_unique<std::mutex>();
            owner = system::process_id();
        }
        return *mutex;
    }

    // Columns of a row that a step returns.
    int64_t columns() const { return hidden ? hidden : program.needs().vocab; }
};

// (first, count, adapter) of consecutive sequences of a step.
using PyAdapted = std::tuple<int, int, Adapter*>;
// (start, count, logits, pages) of a sequence: SequenceSpan.
using PySpan = std::tuple<int, int, int, In<int32_t, 1>>;
// The result of a step: logits of the rows that are not drawn from; the draws from the others; for each row, how many
// rows of an exact head were rescored; and the bytes read of the head.
using StepResult =
    std::tuple<Out<float, 2>, std::vector<SampleResult>, std::vector<int64_t>, int64_t>;

// (sequence, drafts, state): the drafts at the end of a sequence's new tokens continue in a state of their own; the
// sequence's state stays at the position before them.
using PyAhead = std::tuple<int, int, State*>;

// (sequence, position) where the second part of a pair of texts begins.
using PySecondPart = std::tuple<int, int>;

// The images of a step. features: rows that stand in the places of tokens, each of which is -1 - n for row n;
// (sequence, begin, end) of new positions that see each other; coordinates: [tokens][kAxes], or none.
using PyImages = std::tuple<std::optional<In<float, 2>>, std::vector<std::tuple<int, int, int>>,
                            std::optional<In<int32_t, 2>>>;

// (begin, end) of the operations that a run computes.
using PyPart = std::pair<size_t, size_t>;

// Rows that the core writes.
using OutRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// previous_hidden_states: a row for each token, if the program reads them. hidden_states: where a row for each token goes;
// none: they are not computed.
// masks: a gate that opens once the masks of `draws` are written; none: they are written before the step.
// states: one for each sequence if the program is recurrent, else none. For a sequence that starts at 0 its position does
// not matter. A run that fails leaves these states, and those of `ahead`, without a position.
// adapters: of the sequences that have one.
// kept: a row for each token, which the program's Keep operations write and read. part: runs these operations alone.
StepResult run_step(PyProgram& p, KvCache& cache, In<int32_t, 1> tokens,
                    const std::vector<PySpan>& sequences, const std::string& isa,
                    const nb::int_& threads, const std::vector<PyDeciding>& deciding,
                    const std::vector<PyDraw>& draws, const std::vector<State*>& states,
                    Gate* masks, const std::vector<PyAhead>& ahead,
                    const std::vector<PyAdapted>& adapters,
                    const std::optional<In<float, 2>>& previous_hidden_states,
                    const std::optional<OutRows>& hidden_states,
                    const std::vector<PySecondPart>& second_parts,
                    const std::optional<PyImages>& images, const std::optional<OutRows>& kept,
                    const std::optional<PyPart>& part);

}  // namespace sterna::border
