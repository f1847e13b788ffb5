// Attention over pages of each kind, a whole context at once and by chunks.
#include <algorithm>

#include "comparison.h"

namespace sterna::foreign {

namespace {

constexpr int kHeadDim = 32, kPages = 6, kPositions = kPages * kPagePositions - 11, kRows = 5;
constexpr int32_t kPageTable[kPages] = {3, 0, 5, 1, 4, 2};

// The pages of one KV head, its keys and then its values, written by a unit.
std::vector<uint8_t> written(const KernelTable& table, KvType type, Random random) {
    const int64_t bytes = kv_head_bytes(type, kHeadDim);
    std::vector<uint8_t> pages(static_cast<size_t>(2 * kPages * bytes));
    // One to seven positions together, within a run of those that may be.
    for (int position = 0, count; position < kPositions; position += count) {
        count = std::min({position % 7 + 1, kStoredTogether - position % kStoredTogether,
                          kPositions - position});
        std::vector<float> rows;  // of keys and then values
        for (int i = 0; i < 2 * count; ++i) {
            const auto row = random.floats(kHeadDim);
            rows.insert(rows.end(), row.begin(), row.end());
        }
        const int64_t page = kPageTable[position / kPagePositions];
        uint8_t* at = pages.data() + page * bytes;
        if (!table.kv_store({rows.data(), rows.data() + kHeadDim, 2 * kHeadDim, at,
                             at + kPages * bytes, position % kPagePositions, count, 1, kHeadDim,
                             type}))
            abort();
    }
    return pages;
}

struct Call {
    int32_t window;
    float cap;
    bool sinks, slopes;
};

std::vector<float> attended(const KernelTable& table, KvType type,
                            const std::vector<uint8_t>& pages, const Call& call,
                            const std::vector<float>& queries, bool chunks) {
    const AttentionKernels& kernels = table.attention(type);
    std::vector<float> out(kRows * kHeadDim);
    const float* q[kMaxAttentionRows] = {};
    float* to[kMaxAttentionRows] = {};
    int32_t limit[kMaxAttentionRows] = {};
    float sinks[kMaxAttentionRows] = {}, slopes[kMaxAttentionRows] = {};
    for (int r = 0; r < kRows; ++r) {
        q[r] = queries.data() + r * kHeadDim;
        to[r] = out.data() + r * kHeadDim;
        limit[r] = kPositions - kRows + 1 + r;
        sinks[r] = slopes[r] = 0.25f * static_cast<float>(r);
    }
    const int64_t stride = attention_partial(kRows, kHeadDim);
    std::vector<float> partial(static_cast<size_t>(attention_chunks(kPositions) * stride));
    HugeBuffer scratch(static_cast<size_t>(kernels.scratch(kHeadDim)) + 64);
    const int64_t bytes = kv_head_bytes(type, kHeadDim);
    AttentionArgs a{};
    a.q = q, a.out = to, a.limit = a.next = limit, a.window = call.window, a.rows = kRows;
    a.head_dim = kHeadDim, a.scale = 0.2f, a.cap = call.cap;
    a.sinks = call.sinks ? sinks : nullptr;
    a.slopes = call.slopes ? slopes : nullptr;
    a.pages = kPageTable, a.k_base = pages.data(), a.v_base = pages.data() + kPages * bytes;
    a.page_stride = bytes, a.type = type, a.scratch = scratch.data();
    a.partial = partial.data(), a.partial_stride = stride;
    if (!chunks) {
        kernels.all(a);
        return out;
    }
    for (int64_t i = first_attention_chunk(a); i < attention_chunks(kPositions); ++i)
        kernels.chunk(a, i);
    table.attention_merge(a);
    return out;
}

}  // namespace

void compare_attention(Comparison& c) {
    Random random;
    const auto queries = random.floats(kRows * kHeadDim);
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kI16, KvType::kI8}) {
        const std::string what = "attention, pages " + std::to_string(static_cast<int>(type));
        const auto pages = written(c.scalar, type, random);
        c.equal(what + ", kv_store", written(c.unit, type, random), pages);
        for (const Call& call : {Call{kNoWindow, 0, false, false}, Call{100, 0, true, false},
                                 Call{kNoWindow, 30, true, false}, Call{kNoWindow, 0, false, true},
                                 Call{100, 30, true, true}})
            for (const bool chunks : {false, true})
                c.equal(what, attended(c.unit, type, pages, call, queries, chunks),
                        attended(c.scalar, type, pages, call, queries, chunks));
    }
}

}  // namespace sterna::foreign
