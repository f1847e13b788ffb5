// Packing: from levels or a checkpoint's bytes to a format's tiles.
#pragma once
#include "units/kernel_table.h"

namespace {

template <class F>
constexpr int kTileRows = F::kRowBlocks * sterna::kRowBlock;

// Each byte of a word with a byte added, modulo 256.
inline uint32_t add_bytes(uint32_t word, uint32_t bytes) {
    return ((word & 0x7f7f7f7fu) + (bytes & 0x7f7f7f7fu)) ^ ((word ^ bytes) & 0x80808080u);
}

// The source rows of one tile, read as codes: zero beyond the matrix.
template <int kRows>
struct TileSource {
    TileSource(const sterna::PackArgs& a, int64_t tile)
        : K(a.K), offset(a.offset * 0x01010101u), mask(a.mask * 0x01010101u) {
        for (int r = 0; r < kRows; ++r) {
            const int64_t row = tile * kRows + r;
            rows[r] = row < a.M ? a.rows[row] : sterna::SourceRow{};
        }
    }
    uint32_t code_of(uint32_t word, int r) const {
        return add_bytes(word, offset) >> rows[r].shift & mask;
    }
    // Four codes of consecutive k, a byte each.
    uint32_t codes(int r, int64_t k) const {
        if (!rows[r].at || k >= K) return 0;
        uint32_t four = 0;
        if (k + 4 <= K) {
            __builtin_memcpy(&four, rows[r].at + k, 4);
            return code_of(four, r);
        }
        for (int64_t j = 0; j < K - k; ++j) four |= uint32_t{rows[r].at[k + j]} << (8 * j);
        return code_of(four, r) & ((1u << (8 * (K - k))) - 1);
    }

    int64_t K;
    uint32_t offset, mask;
    sterna::SourceRow rows[kRows];
};

// 64 bytes of each row of a tile, transposed: the first word of all rows, then the second. Rows may lie a page apart;
// each line of them is read once and whole, and steps then find the rows that they join side by side.
template <class F>
struct PackBlock {
    static constexpr int kRows = kTileRows<F>, kWords = 16;
    static constexpr int kWordK = 4 / F::kSourceBytes;  // k of a word
    static constexpr int64_t kK = kWords * kWordK;

    void fill(const TileSource<kRows>& source, int64_t from) {
        first = from;
        const int64_t left =
            (source.K - from) * F::kSourceBytes;  // > 0: padding is less than a line
        const auto bytes = static_cast<size_t>(left < 64 ? left : 64);
        for (int r = 0; r < kRows; ++r) {
            uint32_t line[kWords] = {};
            if (const uint8_t* at = source.rows[r].at) {
                at += from * F::kSourceBytes;
                if (bytes == 64) {
                    __builtin_memcpy(line, at, 64);
                } else {
                    __builtin_memcpy(line, at, bytes);
                }
                if constexpr (F::kInteger) {
                    for (uint32_t& word : line) word = source.code_of(word, r);
                    __builtin_memset(reinterpret_cast<uint8_t*>(line) + bytes, 0, 64 - bytes);
                }
            }
            for (int i = 0; i < kWords; ++i) words[i][r] = line[i];
        }
    }
    // The word that has k, of all rows.
    const uint32_t* at(int64_t k) const { return words[(k - first) / kWordK]; }

    alignas(64) uint32_t words[kWords][kRows];
    int64_t first;
};

// Calls line(out, block, k) for every step of every tile.
template <class F, class Line>
inline void pack_steps(const sterna::PackArgs& a, Line line) {
    PackBlock<F> block;
    for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile) {
        const TileSource<kTileRows<F>> source(a, tile);
        uint8_t* out = a.codes + tile * a.tile_bytes;
        const int64_t end = a.tile_bytes / F::kStepBytes * F::kStepK;
        for (int64_t k0 = 0; k0 < end; k0 += PackBlock<F>::kK) {
            block.fill(source, k0);
            for (int64_t k = k0; k < end && k < k0 + PackBlock<F>::kK; k += F::kStepK) {
                line(out, block, k);
                out += F::kStepBytes;
            }
        }
    }
}

// Start of the step that holds k of `row`, and the row within its tile.
template <class F>
inline const uint8_t* step_of(const sterna::RowArgs& a, int64_t k) {
    return a.codes + a.row / kTileRows<F> * a.tile_bytes + k / F::kStepK * F::kStepBytes;
}

}  // namespace
