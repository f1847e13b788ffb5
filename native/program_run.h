// What the files of Program share about one run.
#pragma once
#include <limits>

#include "program.h"

namespace sterna {

struct Program::Run {
    const Batch& batch;
    const KvCache& cache;
    const KernelTable& kernels;
    int64_t tokens, selected;
    int threads;
    Reading reading;
    bool screened;
    std::atomic<size_t> non_finite{std::numeric_limits<size_t>::max()};  // first op that met one

    void report(size_t index) {
        for (size_t seen = non_finite; index < seen;)
            if (non_finite.compare_exchange_weak(seen, index)) break;
    }
    int64_t rows(const Op& op) const {
        if (op.kind == OpKind::kScreen ? !screened : op.full && screened) return 0;
        return op.selected ? selected : tokens;
    }
    static bool fast(const Op& op, const FormatKernels& format) {
        return op.fast && format.fast.linear;
    }
    // How the operation's rows are laid out as int8.
    int x_block(const Op& op) const { return kernels.x_block(static_cast<int>(rows(op))); }
};

}  // namespace sterna
