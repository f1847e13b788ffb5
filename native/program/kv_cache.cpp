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
                 KvType type)
    : pages(pages), type(type) {
    for (size_t i = 0; i < layers.size(); ++i) {
        Heads padded = layers[i];
        padded.head_dim = padded_head(padded.head_dim);
        const int64_t page_bytes = padded.kv_heads * kv_head_bytes(type, padded.head_dim);
        const bool apart = !windowed.empty() && windowed[i];
        Layer& layer = layers_.emplace_back(padded, apart, page_bytes, 0, 0);
        layer.stride = layer.nbytes();
        page_nbytes_ += layer.nbytes();
        if (apart) windowed_nbytes_ += layer.nbytes();
    }
    windowed_stride_ = whole_system_pages(windowed_nbytes_);
    int64_t end = 0, part = 0;
    for (Layer& layer : layers_) {
        if (layer.windowed) continue;
        layer.offset = end;
        end += layer.stride * pages;
    }
    windowed_offset_ = windowed_nbytes_ ? whole_system_pages(end) : end;
    for (Layer& layer : layers_) {
        if (!layer.windowed) continue;
        layer.offset = windowed_offset_ + part;
        part += layer.stride;
        layer.stride = windowed_stride_;
    }
    base_ = HugeBuffer(static_cast<size_t>(windowed_offset_ + windowed_stride_ * pages));
}

// f(memory, bytes) for each layer's keys and values of a page.
template <class F>
void KvCache::each_part(int page, bool whole, F f) const {
    for (const Layer& layer : layers_)
        if (whole || !layer.windowed)
            f(base_.data() + layer.offset + page * layer.stride,
              static_cast<size_t>(layer.nbytes()));
}

void KvCache::copy_page(int from, int to) {
    for (const Layer& layer : layers_) {
        uint8_t* pages_of = base_.data() + layer.offset;
        std::memcpy(pages_of + to * layer.stride, pages_of + from * layer.stride,
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
    if (windowed) {
        base_.release(windowed_offset_ + first * windowed_stride_, count * windowed_stride_);
        return;
    }
    for (const Layer& layer : layers_)
        if (!layer.windowed)
            base_.release(layer.offset + first * layer.stride, count * layer.stride);
}

}  // namespace sterna
