#include "attention/attention_timing.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "runtime/hand_out.h"
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "units/dispatch.h"

namespace sterna {

AttentionTimer::AttentionTimer(int kv_heads, int head_dim, int positions, KvTypes type)
    : cache_({{kv_heads, head_dim}}, {}, positions / kPagePositions, type),
      pages_(static_cast<size_t>(cache_.pages)) {
    std::iota(pages_.begin(), pages_.end(), 0);
    std::vector<float> k(static_cast<size_t>(kv_heads) *
                         static_cast<size_t>(cache_.heads(0).head_dim));
    std::vector<float> v = k;
    for (int position = 0; position < kPagePositions; ++position) {
        for (size_t i = 0; i < k.size(); ++i) {  // a few hundred distinct values
            k[i] = static_cast<float>((i * 37 + static_cast<size_t>(position) * 11) % 255) - 127.0f;
            v[i] = -k[i];
        }
        all_tables().front()->kv_store({k.data(), v.data(), 0, cache_.keys(0), cache_.values(0),
                                        position, 1, kv_heads, cache_.heads(0).head_dim, type});
    }
    // Write to the memory: pages never written to are all one physical page, which stays in the cache.
    for (int page = 1; page < cache_.pages; ++page) cache_.copy_page(0, page);
}

double AttentionTimer::seconds(const KernelTable& unit, Pool& pool, int queries_per_kv) const {
    const AttentionKernels& kernels = unit.attention(cache_.type);
    const int head_dim = cache_.heads(0).head_dim;
    const int positions = cache_.pages * kPagePositions, chunks = attention_chunks(positions);
    const auto floats = static_cast<size_t>(queries_per_kv) * static_cast<size_t>(head_dim);
    const std::vector<float> query(floats,
                                   0.01f);  // nearly equal weights, so that none counts as zero
    const std::vector<const float*> q(static_cast<size_t>(queries_per_kv), query.data());
    const std::vector<int32_t> limit(static_cast<size_t>(queries_per_kv), positions);
    const auto partial =
        static_cast<size_t>(chunks * attention_partial(queries_per_kv, head_dim)) * sizeof(float);
    const auto stride =
        (partial + static_cast<size_t>(kernels.scratch(head_dim)) + 8191) / 4096 * 4096;
    const HugeBuffer memory(stride * static_cast<size_t>(pool.size()));
    constexpr int kPages = kChunkPositions / kPagePositions;
    const bool next_page = pool.readings().next_page;
    const auto head = [&](int64_t item) { return static_cast<int>(item / chunks); };
    const Division division{int64_t{cache_.heads(0).kv_heads} * chunks, pool.size()};
    HandOut hand_out(pool.size());
    const auto begin = std::chrono::steady_clock::now();
    pool.run([&](int worker) {
        AttentionArgs a{};
        a.q = q.data();
        a.limit = a.next = limit.data();
        a.rows = queries_per_kv;
        a.head_dim = head_dim;
        a.scale = 1.0f;
        a.pages = pages_.data();
        a.page_stride = cache_.page_stride(0);
        a.type = cache_.type;
        a.next_page = next_page;
        a.partial = reinterpret_cast<float*>(memory.data() + static_cast<size_t>(worker) * stride);
        a.partial_stride = attention_partial(queries_per_kv, head_dim);
        a.scratch = reinterpret_cast<uint8_t*>(a.partial) + (partial + 63) / 64 * 64;
        for (int64_t item, end; hand_out.next(division, worker, item, end);)
            for (const int64_t begin = item; item < end; ++item) {
                const int chunk = static_cast<int>(item % chunks);
                const int first = static_cast<int>((item + 1) % chunks) * kPages;
                a.k_base = cache_.keys(0, head(item));
                a.v_base = cache_.values(0, head(item));
                if (item + 1 < end)
                    a.after = {cache_.keys(0, head(item + 1)), cache_.values(0, head(item + 1)),
                               pages_.data() + first, std::min(kPages, cache_.pages - first)};
                else
                    a.after = {};
                a.cold = item == begin;
                a.queries_ready = item > begin && chunk > 0;
                kernels.chunk(a, chunk);
            }
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace sterna
