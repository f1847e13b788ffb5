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

// Pages of keys and values. A page id is valid in every layer; heads may differ by layer, and head_dim is padded. The
// parts of a page that layers have adjoin, so that few pages take few huge pages: were each layer's pages together, the
// first one would take as many huge pages as there are layers. In a model that mixes layers with windows and layers
// without, those with windows have a region of their own, so that `release` can give only these back to the system.
class KvCache {
  public:
    struct Heads {
        int kv_heads = 0, head_dim = 0;
        bool keys_alone = false;  // which are the values, too
        bool operator==(const Heads&) const = default;
    };
    // windowed: for each layer, whether it lies in that region; empty: none does.
    KvCache(const std::vector<Heads>& layers, const std::vector<bool>& windowed, int pages,
            KvTypes type);
    int layers() const { return static_cast<int>(layers_.size()); }
    const Heads& heads(int layer) const { return at(layer).heads; }
    // Of a KV head, in page 0.
    uint8_t* keys(int layer, int head = 0) const {
        return base_.data() + at(layer).offset + head * key_head_bytes(layer);
    }
    // Null where there are keys alone.
    uint8_t* values(int layer, int head = 0) const {
        if (heads(layer).keys_alone) return nullptr;
        return keys(layer) + at(layer).key_bytes +
               head * kv_head_bytes(type.values, heads(layer).head_dim);
    }
    // From a page to the next; its keys and values are nbytes() of that.
    int64_t page_stride(int layer) const { return stride(at(layer)); }
    // How a layer's pages are read: keys alone are its values.
    KvTypes types(int layer) const {
        return {type.keys, heads(layer).keys_alone ? type.keys : type.values};
    }
    // Of the keys of one KV head in a page.
    int64_t key_head_bytes(int layer) const {
        return kv_head_bytes(type.keys, heads(layer).head_dim);
    }
    // Copies the keys and values of a page, of all layers, to another; both lie in [0, pages).
    void copy_page(int from, int to);
    // A page as bytes outside of the cache, layer by layer; whole: with the layers that have windows.
    int64_t page_nbytes(bool whole = true) const {
        return whole ? page_nbytes_ : page_nbytes_ - windowed_nbytes_;
    }
    void read_page(int page, uint8_t* out, bool whole) const;
    void write_page(int page, const uint8_t* from, bool whole);
    // Gives memory of pages first..last back to the system, of the layers with windows or of the others. Their content
    // is undefined then; memory from malloc stays.
    void release(int first, int last, bool windowed);

    const int pages;
    const KvTypes type;

  private:
    struct Layer {
        Heads heads;
        bool windowed;
        int64_t key_bytes, value_bytes;  // of one page
        int64_t offset;  // where page 0 begins
        int64_t nbytes() const { return key_bytes + value_bytes; }
    };
    int64_t stride(const Layer& layer) const {
        return layer.windowed ? windowed_stride_ : shared_stride_;
    }
    const Layer& at(int layer) const { return layers_[static_cast<size_t>(layer)]; }
    template <class F>
    void each_part(int page, bool whole, F f) const;

    std::vector<Layer> layers_;
    int64_t page_nbytes_ = 0, windowed_nbytes_ = 0;
    int64_t shared_stride_ = 0;
    int64_t windowed_offset_ = 0, windowed_stride_ = 0;  // of the region of layers with windows
    HugeBuffer base_;
};

}  // namespace sterna
