#include "program/active.h"

#include <algorithm>
#include <atomic>

namespace sterna {

ActiveCopy ActiveCopy::of(const Weight& w, bool columns, int64_t first_row,
                          const KernelTable& kernels, Pool& pool) {
    const auto& format = kernels.formats[w.format];
    const int64_t stride = active_stride(columns ? w.M : w.padded_k);
    const int64_t count = columns ? w.padded_k : w.tiles * format.tile_rows - first_row;
    ActiveCopy copy{HugeBuffer(static_cast<size_t>(count * stride)), stride, first_row,
                    first_row / format.tile_rows};
    const ActiveCopyArgs all{w.codes,          w.tile_bytes, w.tiles,         w.M, w.padded_k,
                             copy.data.data(), stride,       copy.first_tile, 0,   0};
    const int64_t begin = columns ? 0 : copy.first_tile, end = columns ? w.padded_k : w.tiles;
    const int64_t share = columns ? kActiveBlock : 1;
    std::atomic<int64_t> next{begin};
    pool.run([&](int) {
        for (int64_t i; (i = next.fetch_add(share)) < end;) {
            ActiveCopyArgs part = all;
            part.begin = i;
            part.end = std::min(i + share, end);
            (columns ? format.copy_columns : format.copy_rows)(part);
        }
    });
    return copy;
}

void Nonzeros::reserve(int64_t codes) {
    const auto most = static_cast<size_t>(codes + kActiveBlock);
    if (places.size() >= most * 4) return;
    places = HugeBuffer(most * 4);
    values = HugeBuffer(most);
}

void Nonzeros::list(const Activations& row, int64_t width, const KernelTable& kernels) {
    count = kernels.list_nonzero(row.codes(0, 1), padded_width(width),
                                 reinterpret_cast<int32_t*>(places.data()),
                                 reinterpret_cast<int8_t*>(values.data()));
}

}  // namespace sterna
