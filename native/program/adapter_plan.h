// Which rows of a step have an adapter, and the sums A x of these.
#pragma once
#include <algorithm>
#include <vector>

#include "program/adapter.h"
#include "program/batch.h"
#include "runtime/memory.h"

namespace sterna {

class AdapterPlan {
  public:
    struct Rows {
        const Adapter* adapter;
        int64_t first, count;
    };

    void plan(const Batch& batch, const BatchRows& rows) {
        rows_.clear();
        sums_stride_ = rank_ = 0;
        for (const AdapterSpan& span : batch.adapters) {
            const auto last = static_cast<size_t>(span.first + span.count - 1);
            const int64_t first = rows.first_of[static_cast<size_t>(span.first)];
            const int64_t end = rows.first_of[last] + batch.sequences[last].count;
            rows_.push_back({span.adapter, first, end - first});
            sums_stride_ = std::max(sums_stride_, span.adapter->sums());
            rank_ = std::max(rank_, span.adapter->rank());
        }
        const auto bytes = static_cast<size_t>(sums_stride_ * std::ssize(batch.tokens) * 4);
        if (sums_.size() < bytes) sums_ = HugeBuffer(bytes);
    }
    bool empty() const { return rows_.empty(); }
    const std::vector<Rows>& rows() const { return rows_; }
    int64_t rank() const { return rank_; }  // the most of the step's adapters
    // A x of row n, in chunks.
    float* sums(int64_t n) const {
        return reinterpret_cast<float*>(sums_.data()) + n * sums_stride_;
    }
    int64_t sums_stride() const { return sums_stride_; }

  private:
    std::vector<Rows> rows_;
    int64_t sums_stride_ = 0, rank_ = 0;
    HugeBuffer sums_;  // [tokens][sums_stride_]
};

}  // namespace sterna
