// The memory of keys and values.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/memory.h"
#include "units/kernel_table.h"

namespace sterna {

// Heads are stored and attended to in whole row blocks, padded with zeros.
constexpr int padded_head(int head_dim) {
    return (head_dim + kRowBlock - 1) / kRowBlock * kRowBlock;
}

// Pages of keys and values; one page id is valid in every layer, whose heads may differ. head_dim is padded.
class KvCache {
  public:
    struct Heads {
        int kv_heads = 0, head_dim = 0;
        bool operator==(const Heads&) const = default;
    };
    KvCache(const std::vector<Heads>& layers, int pages, KvType type);
    int layers() const { return static_cast<int>(layers_.size()); }
    const Heads& heads(int layer) const { return at(layer).heads; }
    uint8_t* keys(int layer) const { return base_.data() + at(layer).offset; }
    uint8_t* values(int layer) const { return keys(layer) + at(layer).page_bytes; }
    int64_t page_stride(int layer) const { return 2 * at(layer).page_bytes; }
    int64_t head_bytes(int layer) const { return kv_head_bytes(type, heads(layer).head_dim); }
    // All layers' keys and values of a page, as another page has them; both lie in [0, pages).
    void copy_page(int from, int to);
    // The same as bytes outside of the cache, layer by layer.
    int64_t page_nbytes() const { return page_nbytes_; }
    void read_page(int page, uint8_t* out) const;
    void write_page(int page, const uint8_t* from);

    const int pages;
    const KvType type;

  private:
    struct Layer {
        Heads heads;
        int64_t page_bytes, offset;  // of its keys (or values) in one page; where its pages begin
    };
    const Layer& at(int layer) const { return layers_[static_cast<size_t>(layer)]; }

    std::vector<Layer> layers_;
    int64_t page_nbytes_ = 0;
    HugeBuffer base_;
};

}  // namespace sterna
