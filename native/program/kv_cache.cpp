#include "program/kv_cache.h"

#include <cstring>

namespace sterna {

KvCache::KvCache(const std::vector<Heads>& layers, int pages, KvType type)
    : pages(pages), type(type) {
    int64_t end = 0;
    for (const Heads& heads : layers) {
        const Heads padded{heads.kv_heads, padded_head(heads.head_dim)};
        const int64_t page_bytes = padded.kv_heads * kv_head_bytes(type, padded.head_dim);
        layers_.push_back({padded, page_bytes, end});
        page_nbytes_ += 2 * page_bytes;
        end += 2 * page_bytes * pages;
    }
    base_ = HugeBuffer(static_cast<size_t>(end));
}

void KvCache::copy_page(int from, int to) {
    for (int layer = 0; layer < layers(); ++layer) {
        const int64_t bytes = page_stride(layer);
        std::memcpy(keys(layer) + to * bytes, keys(layer) + from * bytes,
                    static_cast<size_t>(bytes));
    }
}

void KvCache::read_page(int page, uint8_t* out) const {
    for (int layer = 0; layer < layers(); ++layer) {
        const int64_t bytes = page_stride(layer);
        std::memcpy(out, keys(layer) + page * bytes, static_cast<size_t>(bytes));
        out += bytes;
    }
}

void KvCache::write_page(int page, const uint8_t* from) {
    for (int layer = 0; layer < layers(); ++layer) {
        const int64_t bytes = page_stride(layer);
        std::memcpy(keys(layer) + page * bytes, from, static_cast<size_t>(bytes));
        from += bytes;
    }
}

}  // namespace sterna
