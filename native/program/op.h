// An operation of a program. Each kind is a file of program/ops, which has its fields, checks them, divides its work
// and does it; a dataclass of sterna/graph/ops has the same fields.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "program/fields.h"
#include "program/workspace.h"
#include "runtime/hand_out.h"

namespace sterna {

class Program;

// Units of an operation for a worker, and the state that it keeps between units.
struct Turn {
    int worker;
    int64_t begin = 0, end = 0;
    bool again = false;  // the worker's scratch is as its last units of this operation left it
    int expert = -1;  // whose weights those were
};

class Op {
  public:
    Op(const OpFields& fields, Workspace& work)
        : name(fields.text("name")), selected(fields.flag("selected")), work(work) {}
    virtual ~Op() = default;
    Op(const Op&) = delete;

    // The category of its time in statistics.
    virtual const char* kind() const = 0;
    // Allocates memory for steps of up to this many tokens.
    virtual void reserve(int64_t /*tokens*/) {}
    // Work of one thread before a step.
    virtual void begin(const Step&) {}
    // Bytes that a worker needs in a step.
    virtual int64_t scratch_bytes(const Step&) const { return 0; }
    // The units of a step; an operation without units is skipped, with its barrier.
    virtual Division units(const Step& step) const { return {rows(step), step.threads}; }
    // Runs units [turn.begin, turn.end).
    virtual void run(Step& step, Turn& turn) = 0;

    // The weight that it reads whole or in parts, where those are known before the step.
    virtual std::vector<TilesRead> tiles_read() const { return {}; }
    // From now on its weight is read through the cache, if that has it: returns the matrix there, or -1. And the matrices
    // for which it chooses experts, or guesses what the next router will choose.
    virtual int stream_from(const WeightCache&) { return -1; }
    virtual bool chooses_experts() const { return false; }
    virtual bool guesses_experts() const { return false; }
    virtual void choose_for(const std::vector<int>& /*matrices*/) {}

    // Whether it is a linear layer in this step; and the memory that a worker reads first, known only in steps of few
    // tokens.
    virtual bool is_linear(const Step&) const { return false; }
    virtual ReadAhead beginning(const Step&, int /*worker*/) const { return {}; }

    const std::string name;  // for errors: "layers.3.mlp.down_proj"
    const bool selected;  // runs on the rows whose logits are needed, not on those of all tokens
    size_t index = 0;  // in the program

  protected:
    int64_t rows(const Step& step) const { return selected ? step.selected : step.tokens; }
    // A value is not finite.
    void report(Step& step) const {
        for (size_t seen = step.non_finite; index < seen;)
            if (step.non_finite.compare_exchange_weak(seen, index)) break;
    }

    Workspace& work;
};

// An operation whose units are rows.
class RowOp : public Op {
  public:
    using Op::Op;
    void run(Step& step, Turn& turn) final {
        for (int64_t n = turn.begin; n < turn.end; ++n) row(step, n, turn.worker);
    }

  protected:
    virtual void row(Step& step, int64_t n, int worker) = 0;
};

// A function that adds the operations of a kind to a program.
using OpMaker = void (*)(const OpFields&, Program&);

// A kind that a file of program/ops has: `const OpKind kind("select", maker)`.
class OpKind {
  public:
    OpKind(const char* name, OpMaker maker);
    // Null where there is no such kind.
    static OpMaker maker(const std::string& name);
};

}  // namespace sterna
