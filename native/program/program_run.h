// What the files of Program share about one run.
#pragma once
#include <limits>

#include "program/program.h"
#include "units/kernel_table.h"

namespace sterna {

struct Program::Run {
    const Batch& batch;
    const KvCache& cache;
    const KernelTable& kernels;
    int64_t tokens, selected;
    int threads;
    Reading reading;
    const NodeTeam* team;  // where threads are those that weights are near to
    bool late;  // masks are to come, and with them `screened`
    bool screened;
    bool adapting;  // a row has an adapter, which reads floats
    int64_t active = 0;  // places that list_active found
    std::atomic<int64_t> left_out{0};
    std::atomic<int64_t> routed{0};  // tokens whose experts a kRoute has chosen
    std::atomic<size_t> non_finite{std::numeric_limits<size_t>::max()};  // first op that met one

    void report(size_t index) {
        for (size_t seen = non_finite; index < seen;)
            if (non_finite.compare_exchange_weak(seen, index)) break;
    }
    int node_of(int worker) const { return team ? team->node_of(worker) : 0; }
    // Whether a step may leave out what meets zeros: of one token, whose gates nothing is added to.
    bool one() const { return tokens == 1 && !adapting; }
    int64_t rows(const Op& op) const {
        if (op.active == Active::kRows && !one()) return 0;
        if (op.begins) return late ? 1 : 0;
        if (op.kind == OpKind::kTell && !batch.told) return 0;
        if (op.kind == OpKind::kScreen ? !screened : op.unscreened && screened) return 0;
        const int64_t all = op.selected ? selected : tokens;
        return of_experts(op) ? all * op.chosen : all;
    }
    static bool of_experts(const Op& op) {
        return op.chosen && (op.kind == OpKind::kRowwise || op.kind == OpKind::kLinear);
    }
    static bool fast(const Op& op, const FormatKernels& format) {
        return op.fast && format.fast.linear;
    }
    // How so many rows of the operation are laid out as int8.
    int x_block(const Op& op, int64_t rows) const {
        return kernels.x_block(static_cast<int>(rows * op.code_planes));
    }
    int x_block(const Op& op) const { return x_block(op, rows(op)); }
};

}  // namespace sterna
