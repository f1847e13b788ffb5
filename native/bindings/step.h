// A program with what it borrows from Python, and one step of it.
#pragma once
#include <unistd.h>

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
    std::vector<Operand> values;
    Mappings mappings;
    Draws draws;
    int64_t hidden = 0;  // columns of a row of a program without a head; else 0
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

    // Of a row that a step gives.
    int64_t columns() const { return hidden ? hidden : program.needs().vocab; }
};

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
using OutRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// previous_hidden_states: a row for each token, if the program reads them. hidden_states: where a row for each token goes;
// none: they are not computed.
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
                    const std::optional<In<float, 2>>& previous_hidden_states,
                    const std::optional<OutRows>& hidden_states);

}  // namespace sterna::border
