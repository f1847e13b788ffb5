// Packed weights and rows of activations, and how a linear layer is handed both.
#pragma once
#include <cstdint>

#include "runtime/memory.h"
#include "units/kernel_table.h"

namespace sterna {

// A packed matrix [M][K]; the memory is the caller's.
struct Weight {
    int format = 0;  // index into KernelTable::formats
    int64_t M = 0, K = 0, padded_k = 0, tiles = 0, tile_bytes = 0;
    int zero_x2 = 0;
    LevelTable levels;
    const uint8_t* codes = nullptr;
    const float* scale = nullptr;  // [tiles * tile_rows]; null for groups and unscaled floats
    GroupScales groups;
    int direct_tokens = 0, joint_tokens = 0, tile_tokens = 0;  // LinearArgs

    // How its activations are rounded: RowwiseArgs::group_k.
    int64_t x_group_k() const { return groups.group_k ? groups.x_group_k : 0; }
    // Tiles [first, first + count), of `tile_rows` rows each, as a matrix of the first `rows` of their rows.
    Weight part(int64_t first, int64_t count, int64_t rows, int tile_rows) const {
        Weight w = *this;
        w.M = rows;
        w.tiles = count;
        w.codes += first * tile_bytes;
        if (scale) w.scale += first * tile_rows;
        if (groups.data) w.groups.data += first * groups.tile_bytes(padded_k, tile_rows);
        return w;
    }
};

// Of numbers, since what it gives may lie outside of the memory; the tiles that are read do not.
inline const uint8_t* moved_by(const uint8_t* at, int64_t bytes) {
    return reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(at) +
                                            static_cast<uintptr_t>(bytes));
}

constexpr int64_t padded_width(int64_t width) { return (width + kPad - 1) / kPad * kPad; }

// Rows of floats, and for integer layers int8 codes with a scale and a sum per row; or a scale per group of
// its values and a sum per kSumK. Where codes are in two planes a row n of floats has rows 2n and 2n + 1 of codes.
struct Activations {
    int64_t ld;  // width, padded to kPad

    explicit Activations(int64_t width) : ld(padded_width(width)) {}
    // Room for `tokens` rows, zeroed: of everything, or of a part.
    void reserve(int64_t tokens, int planes = 0, int code_planes = 1) {
        reserve_floats(tokens);
        reserve_codes(tokens * code_planes);
        reserve_planes(tokens, planes);
    }
    void reserve_floats(int64_t tokens) { f = HugeBuffer(static_cast<size_t>(tokens * ld * 4)); }
    // Whole tiles of a matrix unit, as are `planes` of bf16 numbers for a value (Bf16PlanesArgs).
    void reserve_codes(int64_t tokens) {
        q = HugeBuffer(static_cast<size_t>((tokens + 15) / 16 * 16 * ld));
        scale = HugeBuffer(static_cast<size_t>((tokens + 15) / 16 * 16 * groups(kGroupK) * 4));
        sum = HugeBuffer(static_cast<size_t>((tokens + 15) / 16 * 16 * groups(kSumK) * 4));
    }
    void reserve_planes(int64_t tokens, int planes) {
        halves = HugeBuffer(static_cast<size_t>((tokens + 15) / 16 * 16 * ld * planes * 2));
    }
    float* row(int64_t n) const { return reinterpret_cast<float*>(f.data()) + n * ld; }
    // Row n of so many that are read in turn: asks for the next one, parts of which lie in the caches of the cores that
    // wrote them.
    float* streamed(int64_t n, int64_t rows) const {
        if (n + 1 < rows)
            for (int64_t i = 0; i < ld; i += 16) __builtin_prefetch(row(n + 1) + i);
        return row(n);
    }
    int8_t* codes(int64_t n, int x_block) const {
        return reinterpret_cast<int8_t*>(q.data()) + x_offset(n, 0, ld, x_block);
    }
    // The number of groups of this many values in a row; one if that is 0.
    int64_t groups(int64_t group_k) const { return group_k > 0 && ld > 0 ? ld / group_k : 1; }
    float* scales() const { return reinterpret_cast<float*>(scale.data()); }
    int32_t* sums() const { return reinterpret_cast<int32_t*>(sum.data()); }

    const uint16_t* bf16_planes() const { return reinterpret_cast<const uint16_t*>(halves.data()); }
    // Makes bf16 planes of row n, or of what stands in its place; all rows of a step have as many.
    Bf16PlanesArgs bf16_planes_args(int64_t n, const FastKernels& reader) const {
        return bf16_planes_args(row(n), n, reader);
    }
    Bf16PlanesArgs bf16_planes_args(const float* x, int64_t n, const FastKernels& reader) const {
        const int planes = reader.x_planes, block = reader.x_block();
        auto* out = reinterpret_cast<uint16_t*>(halves.data());
        return {x, ld, planes, block, out + n / block * block * ld * planes + n % block * 32};
    }

    // Where row n's int8 codes go, in one plane or two; `group_k` as in RowwiseArgs.
    void quantize_into(RowwiseArgs& a, int64_t n, int x_block, int64_t group_k,
                       int code_planes = 1) const {
        const int64_t sums_of_row = groups(group_k ? kSumK : 0);
        n *= code_planes;
        a.yq = codes(n, x_block);
        a.yq_stride = int64_t{64} * x_block;
        a.group_k = group_k;
        a.x_scale = scales() + n * groups(group_k);
        a.x_sum = sums() + n * sums_of_row;
        if (code_planes == 1) return;
        a.yq_low = codes(n + 1, x_block);
        a.x_scale_low = a.x_scale + groups(group_k);
        a.x_sum_low = a.x_sum + sums_of_row;
    }

  private:
    HugeBuffer f, q, scale, sum, halves;
};

// y = x W^T for n rows from `first` on, a multiple of x_block; the caller adds residual, scratch and the tiles it wants,
// and of planes of bf16 those of the rows before. Two planes of codes are twice as many rows of x.
inline LinearArgs linear_args(const Weight& w, const Activations& x, int n, int x_block,
                              const Activations& y, int64_t first = 0, int code_planes = 1) {
    const int64_t first_codes = first * code_planes;
    LinearArgs a{};
    a.codes = w.codes;
    a.scale = w.scale;
    a.groups = w.groups;
    a.direct_tokens = w.direct_tokens;
    a.tile_tokens = w.tile_tokens;
    a.tile_bytes = w.tile_bytes;
    a.M = w.M;
    a.K = w.padded_k;
    a.zero_x2 = w.zero_x2;
    a.levels = w.levels;
    a.xq = x.codes(first_codes, 1);
    a.x_scale = x.scales() + first_codes * x.groups(w.x_group_k());
    a.x_sum = x.sums() + first_codes * x.groups(w.x_group_k() ? kSumK : 0);
    a.xf = x.row(first);
    a.xh = x.bf16_planes();
    a.ldx = x.ld;
    a.x_block = x_block;
    a.n = n;
    a.outputs = {y.row(first), y.ld};
    a.tile_end = w.tiles;
    return a;
}

// Whether a layer of n tokens is joint (LinearArgs::joint_tokens).
inline bool is_joint(const FormatKernels& format, int joint_tokens, int64_t n) {
    return format.joint_scratch && joint_tokens && n >= joint_tokens;
}
// The tiles that a piece of a layer has at least, so that what is made of its activations serves some rows.
inline int64_t least_tiles(const FormatKernels& format, int joint_tokens, int64_t n) {
    return is_joint(format, joint_tokens, n) ? kLeastJointRows / format.tile_rows : 1;
}

}  // namespace sterna
