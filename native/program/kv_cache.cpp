#include "program/kv_cache.h"

#include <cstring>

namespace sterna {

namespace {

// Of the system's pages, which `release` gives back whole; at least the largest that Linux is built with.
constexpr int64_t kSystemPage = 64 << 10;

constexpr int64_t whole_system_pages(int64_t bytes) {
    return (bytes + kSystemPage - 1) / kSystemPage * kSystemPage;
}

}  // namespace

KvCache::KvCache(const std::vector<Heads>& layers, const std::vector<bool>& windowed, int pages,
                 KvTypes type)
    : pages(pages), type(type) {
    int64_t shared = 0;  // bytes of a page so far, of layers without windows
    for (size_t i = 0; i < layers.size(); ++i) {
        Heads padded = layers[i];
        padded.head_dim = padded_head(padded.head_dim);
        const int64_t keys = padded.kv_heads * kv_head_bytes(type.keys, padded.head_dim);
        const int64_t values =
            padded.keys_alone ? 0 : padded.kv_heads * kv_head_bytes(type.values, padded.head_dim);
        const bool apart = !windowed.empty() && windowed[i];
        int64_t& end = apart ? windowed_nbytes_ : shared;
        const Layer& layer = layers_.emplace_back(padded, apart, keys, values, end);
        end += layer.nbytes();
    }
    shared_stride_ = shared;
    page_nbytes_ = shared + windowed_nbytes_;
    windowed_stride_ = whole_system_pages(windowed_nbytes_);
    windowed_offset_ = shared_stride_ * pages;
    if (windowed_nbytes_) windowed_offset_ = whole_system_pages(windowed_offset_);
    for (Layer& layer : layers_)
        if (layer.windowed) layer.offset += windowed_offset_;
    base_ = HugeBuffer(static_cast<size_t>(windowed_offset_ + windowed_stride_ * pages));
}

// f(memory, bytes) for each layer's keys and values of a page.
template <class F>
void KvCache::each_part(int page, bool whole, F f) const {
    for (const Layer& layer : layers_)
        if (whole || !layer.windowed)
            f(base_.data() + layer.offset + page * stride(layer),
              static_cast<size_t>(layer.nbytes()));
}

void KvCache::copy_page(int from, int to) {
    for (const Layer& layer : layers_) {
        uint8_t* pages_of = base_.data() + layer.offset;
        std::memcpy(pages_of + to * stride(layer), pages_of + from * stride(layer),
                    static_cast<size_t>(layer.nbytes()));
    }
}

void KvCache::read_page(int page, uint8_t* out, bool whole) const {
    each_part(page, whole, [&](const uint8_t* at, size_t bytes) {
        std::memcpy(out, at, bytes);
        out += bytes;
    });
}

void KvCache::write_page(int page, const uint8_t* from, bool whole) {
    each_part(page, whole, [&](uint8_t* at, size_t bytes) {
        std::memcpy(at, from, bytes);
        from += bytes;
    });
}

void KvCache::release(int first, int last, bool windowed) {
    const int64_t count = last - first + 1;
    if (windowed)
        base_.release(windowed_offset_ + first * windowed_stride_, count * windowed_stride_);
    else
        base_.release(first * shared_stride_, count * shared_stride_);
}

}  // namespace sterna
