// Attention over pages of each kind, a whole context at once and by chunks.
#include <algorithm>

#include "program/tensors.h"
#include "selfcheck/findings.h"

namespace sterna::selfcheck {

namespace {

constexpr int kHeadDim = 32, kPages = 6, kPositions = kPages * kPagePositions - 11, kMostRows = 20;
constexpr int32_t kPageTable[kPages] = {3, 0, 5, 1, 4, 2};
struct Named {
    const char* name;
    KvTypes type;
};
constexpr Named kTypes[] = {{"f32", {KvType::kF32, KvType::kF32}},
                            {"f16", {KvType::kF16, KvType::kF16}},
                            {"i16", {KvType::kI16, KvType::kI16}},
                            {"i8", {KvType::kI8, KvType::kI8}},
                            {"k8v4", {KvType::kI8, KvType::kI4}}};

// From a page to the next, of keys and of values.
int64_t stride_of(KvTypes type) { return kv_head_bytes(type.keys, kHeadDim); }

// The pages of one KV head, its keys and then its values. Where `values` is false only keys are written.
std::vector<uint8_t> written(Findings& found, KvTypes type, bool values, Random random) {
    const int64_t bytes = stride_of(type);
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
        if (!found.unit.kv_store({rows.data(), rows.data() + kHeadDim, 2 * kHeadDim, at,
                                  values ? at + kPages * bytes : nullptr, position % kPagePositions,
                                  count, 1, kHeadDim, type}))
            found.wrong("kv_store");
    }
    return pages;
}

// The last row's own position is in the first chunk, and what it sees ends in the second.
constexpr int kPastChunk = kPositions - kChunkPositions + 2;

struct AttentionCall {
    int rows;
    int32_t window;
    float cap;
    bool sinks, slopes;
    int behind = 0;  // positions behind the last row that rows see, as those of an image do
    bool latent = false;  // keys are the values, too
};
constexpr AttentionCall kCalls[] = {{5, kNoWindow, 0, false, false},
                                    {1, kNoWindow, 0, false, false},
                                    {5, 100, 0, true, false},
                                    {5, kNoWindow, 30, true, false},
                                    {5, kNoWindow, 0, false, true},
                                    {5, 100, 30, true, true},
                                    {20, 100, 30, false, true},
                                    {20, kNoWindow, 0, true, false, 3},
                                    {5, 70, 0, false, false, 3},
                                    {20, kNoWindow, 0, false, false, 0, true},
                                    {1, 100, 0, false, false, 0, true},
                                    {5, kNoWindow, 0, false, true, 3},
                                    {5, kNoWindow, 0, false, false, kPastChunk}};

std::vector<float> attended(Findings& found, KvTypes type, const std::vector<uint8_t>& pages,
                            const AttentionCall& call, const std::vector<float>& queries,
                            bool chunks) {
    const AttentionKernels& kernels = found.unit.attention(type);
    std::vector<float> out(static_cast<size_t>(call.rows * kHeadDim));
    const float* q[kMaxAttentionRows] = {};
    float* to[kMaxAttentionRows] = {};
    int32_t limit[kMaxAttentionRows] = {}, next[kMaxAttentionRows] = {};
    float sinks[kMaxAttentionRows] = {}, slopes[kMaxAttentionRows] = {};
    for (int r = 0; r < call.rows; ++r) {
        q[r] = queries.data() + r * kHeadDim;
        to[r] = out.data() + r * kHeadDim;
        next[r] = kPositions - call.rows + 1 + r - call.behind;
        limit[r] = call.behind ? kPositions : next[r];
        sinks[r] = slopes[r] = 0.25f * static_cast<float>(r + 1);
    }
    const int64_t stride = attention_partial(call.rows, kHeadDim);
    std::vector<float> partial(static_cast<size_t>(attention_chunks(kPositions) * stride));
    HugeBuffer scratch(static_cast<size_t>(kernels.scratch(kHeadDim)) + 64);
    const int64_t bytes = stride_of(type);
    HugeBuffer turned(static_cast<size_t>(kChunkPositions / kPagePositions * bytes) + 64);
    AttentionArgs a{};
    a.q = q, a.out = to, a.limit = limit, a.next = next, a.window = call.window;
    a.rows = call.rows, a.head_dim = kHeadDim, a.scale = 0.2f, a.cap = call.cap;
    a.sinks = call.sinks ? sinks : nullptr;
    a.slopes = call.slopes ? slopes : nullptr;
    a.pages = kPageTable, a.k_base = pages.data();
    a.v_base = call.latent ? nullptr : pages.data() + kPages * bytes;
    a.turned = call.latent ? turned.data() : nullptr;
    a.page_stride = bytes, a.scratch = scratch.data();
    a.type = {type.keys, call.latent ? type.keys : type.values};
    a.partial = partial.data(), a.partial_stride = stride;
    if (!chunks) {
        kernels.all(a);
        return out;
    }
    for (int64_t i = first_attention_chunk(a); i < attention_chunks(kPositions); ++i) {
        kernels.chunk(a, i);
        a.queries_ready = true;
    }
    found.unit.attention_merge(a);
    return out;
}

// The scores of an indexer, of tokens with five heads each.
std::vector<float> indexed(Findings& found, KvTypes type, const std::vector<uint8_t>& pages,
                           const std::vector<float>& queries, Random random) {
    constexpr int kHeads = 5, kTokens = kMostRows / kHeads, kScores = 2 * kChunkPositions;
    const AttentionKernels& kernels = found.unit.attention(type);
    const auto weights = random.floats(kMostRows);
    std::vector<float> out(kTokens * kScores);
    const float *q[kMostRows], *weight[kTokens];
    float* scores[kTokens];
    int32_t limit[kMostRows], next[kMostRows];
    for (int t = 0; t < kTokens; ++t) {
        weight[t] = weights.data() + t * kHeads;
        scores[t] = t == 1 ? nullptr : out.data() + t * kScores;
    }
    for (int r = 0; r < kMostRows; ++r) {
        q[r] = queries.data() + r * kHeadDim;
        limit[r] = next[r] = kPositions - kTokens + 1 + r / kHeads;
    }
    HugeBuffer scratch(static_cast<size_t>(kernels.scratch(kHeadDim)) + 64);
    AttentionArgs a{};
    a.q = q, a.limit = limit, a.next = next;
    a.rows = kMostRows, a.head_dim = kHeadDim, a.scale = 0.2f;
    a.pages = kPageTable, a.k_base = a.v_base = pages.data();
    a.page_stride = stride_of(type), a.type = {type.keys, type.keys}, a.scratch = scratch.data();
    for (int chunk = 0; chunk < attention_chunks(kPositions); ++chunk) {
        kernels.index(a, {kHeads, weight, scores}, chunk);
        a.queries_ready = true;
    }
    for (int t = 0; t < kTokens; ++t)  // others may be any
        std::fill(out.begin() + t * kScores + limit[t * kHeads], out.begin() + (t + 1) * kScores,
                  0.0f);
    return out;
}

// Every third key, in pages of their own.
std::vector<uint8_t> gathered(Findings& found, KvTypes type, const std::vector<uint8_t>& pages) {
    std::vector<float> positions;
    for (int position = 1; position < kPositions; position += 3)
        positions.push_back(static_cast<float>(position));
    const auto count = static_cast<int>(positions.size());
    const int64_t bytes = stride_of(type);
    std::vector<uint8_t> to(
        static_cast<size_t>((count + kPagePositions - 1) / kPagePositions * bytes));
    found.unit.gather_keys(
        {pages.data(), kPageTable, bytes, positions.data(), count, kHeadDim, type.keys, to.data()});
    return to;
}

}  // namespace

void check_attention(Findings& found) {
    Random random;
    const auto queries = random.floats(kMostRows * kHeadDim);
    for (const auto& [name, type] : kTypes) {
        found.begin(std::string("attention ") + name);
        const auto pages = written(found, type, true, random);
        found.add("kv_store", pages);
        found.add("kv_store, keys alone", written(found, type, false, random));
        found.add("indexer", indexed(found, type, pages, queries, random));
        found.add("gather_keys", gathered(found, type, pages));
        for (size_t i = 0; i < std::size(kCalls); ++i)
            for (const bool chunks : {false, true})
                found.add("call " + std::to_string(i) + (chunks ? ", chunks" : ""),
                          attended(found, type, pages, kCalls[i], queries, chunks));
    }
}

}  // namespace sterna::selfcheck
