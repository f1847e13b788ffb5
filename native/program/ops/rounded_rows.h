// The rounding of an operation's rows to int8, for the integer layers that read them.
#pragma once
#include <optional>

#include "program/program.h"

namespace sterna {

class RoundedRows {
  public:
    RoundedRows(const OpFields& f, const Operand& output)
        : output_(output), group_k_(f.maybe_whole("rounding")) {
        f.require(!group_k_ || *group_k_ == 0 || *group_k_ == kGroupK || *group_k_ == kLongGroupK,
                  "rounding", "must be 0, 32, 256 or None");
        f.require(output.code_planes == 1 || (output.code_planes == 2 && group_k_), "output",
                  "has one plane of codes, or two where it is rounded");
        f.require(group_k_ || output.floats, "output", "must have floats where it has no codes");
    }
    explicit operator bool() const { return group_k_.has_value(); }
    bool one_scale() const { return group_k_ == 0; }
    // Bytes of scratch that a row without floats needs.
    int64_t scratch_bytes() const { return output_.ld() * int64_t{sizeof(float)}; }
    // Where row n's floats go: those that nobody reads stay in the worker's cache.
    float* floats(const Workspace& work, const Step& step, int64_t n, int worker) const {
        return output_.floats || step.adapting ? work.buffer(output_).row(n)
                                               : reinterpret_cast<float*>(work.scratch(worker));
    }
    // Where row n's codes go, of `count` rows that a layer reads together.
    void codes(RowwiseArgs& a, const Workspace& work, const Step& step, int64_t n,
               int64_t count) const {
        const int x_block = step.kernels.x_block(static_cast<int>(count * output_.code_planes));
        work.buffer(output_).quantize_into(a, n, x_block, *group_k_, output_.code_planes);
    }

  private:
    Operand output_;
    std::optional<int64_t> group_k_;  // values that share a scale; 0: all of a row
};

}  // namespace sterna
