// The memory of keys and values.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/memory.h"
#include "units/kernel_table.h"

namespace sterna {

constexpr int kMaxHeadDim = 65536;

// Heads are stored and attended to in whole row blocks, padded with zeros.
constexpr int padded_head(int head_dim) {
    return (head_dim + kRowBlock - 1) / kRowBlock * kRowBlock;
}

// Pages of keys and values; one page id is valid in every layer, whose heads may differ. head_dim is padded.
// Layers with windows beside others that see all have a
// region where a page's parts of all of them lie side by side, so that `release` can give these to the system alone.
class KvCache {
  public:
    struct Heads {
        int kv_heads = 0, head_dim = 0;
        bool operator==(const Heads&) const = default;
    };
    // windowed: for each layer, whether it is of that region; empty: none is.
    KvCache(const std::vector<Heads>& layers, const std::vector<bool>& windowed, int pages,
            KvType type);
    int layers() const { return static_cast<int>(layers_.size()); }
    const Heads& heads(int layer) const { return at(layer).heads; }
    uint8_t* keys(int layer) const { return base_.data() + at(layer).offset; }
    uint8_t* values(int layer) const { return keys(layer) + at(layer).page_bytes; }
    // From a page to the next; its keys and values are 2 * page_bytes of that.
    int64_t page_stride(int layer) const { return at(layer).stride; }
    int64_t head_bytes(int layer) const { return kv_head_bytes(type, heads(layer).head_dim); }
    // All layers' keys and values of a page, as another page has them; both lie in [0, pages).
    void copy_page(int from, int to);
    // The same as bytes outside of the cache, layer by layer; whole: those of layers with windows, too.
    int64_t page_nbytes(bool whole = true) const {
        return whole ? page_nbytes_ : page_nbytes_ - windowed_nbytes_;
    }
    void read_page(int page, uint8_t* out, bool whole) const;
    void write_page(int page, const uint8_t* from, bool whole);
    // Gives memory of pages first..last to the system: of the layers with windows, or of the others. What they
    // hold then is zeros, or anything; memory that comes from malloc stays.
    void release(int first, int last, bool windowed);

    const int pages;
    const KvType type;

  private:
    struct Layer {
        Heads heads;
        bool windowed;
        int64_t page_bytes, offset,
            stride;  // of its keys (or values) in one page; where its pages begin
    };
    const Layer& at(int layer) const { return layers_[static_cast<size_t>(layer)]; }
    template <class F>
    void each_part(int page, bool whole, F f) const;

    std::vector<Layer> layers_;
    int64_t page_nbytes_ = 0, windowed_nbytes_ = 0;
    int64_t windowed_offset_ = 0, windowed_stride_ = 0;  // of their region
    HugeBuffer base_;
};

}  // namespace sterna
