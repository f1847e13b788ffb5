// Packing: from levels or a checkpoint's bytes to a format's tiles.
#pragma once
#include "kernel_table.h"

namespace {

template <class F>
constexpr int kTileRows = F::kGroups * sterna::kGroupRows;

// Four codes of consecutive k of one row, a byte each; zero beyond the matrix.
inline uint32_t source_codes(const sterna::PackArgs& a, int64_t row, int64_t k) {
    uint32_t out = 0;
    if (row >= a.M) return out;
    for (int j = 0; j < 4 && k + j < a.K; ++j) {
        uint32_t code;
        if (a.kind == sterna::SourceKind::kBitnet) {
            const int64_t rows = a.M / 4;
            const auto* p = static_cast<const uint8_t*>(a.source) + row % rows * a.ld;
            code = (p[k + j] >> (2 * (row / rows))) & 3;
        } else {
            const int level = static_cast<const int8_t*>(a.source)[row * a.ld + k + j];
            code = static_cast<uint32_t>((level + a.level_offset) / a.level_step) & 255;
        }
        out |= code << (8 * j);
    }
    return out;
}

// The same where four bytes of the row may be loaded at once: the speed of loading a checkpoint.
inline uint32_t source_codes_inside(const sterna::PackArgs& a, int64_t row, int64_t k) {
    if (a.kind != sterna::SourceKind::kBitnet) return source_codes(a, row, k);
    const int64_t rows = a.M / 4;
    uint32_t four;
    __builtin_memcpy(&four, static_cast<const uint8_t*>(a.source) + row % rows * a.ld + k, 4);
    return (four >> (2 * (row / rows))) & 0x03030303u;
}

inline uint32_t codes_at(const sterna::PackArgs& a, int64_t row, int64_t k) {
    return row < a.M && k + 4 <= a.K ? source_codes_inside(a, row, k) : source_codes(a, row, k);
}

// Calls line(out, first_row, k) for every step of every tile.
template <class F, class Line>
inline void pack_steps(const sterna::PackArgs& a, Line line) {
    for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile) {
        uint8_t* out = a.codes + tile * a.tile_bytes;
        for (int64_t k = 0; k * F::kStepBytes < a.tile_bytes * F::kStepK;
             k += F::kStepK, out += F::kStepBytes)
            line(out, tile * kTileRows<F>, k);
    }
}

// Start of the step that holds k of `row`, and the row within its tile.
template <class F>
inline const uint8_t* step_of(const sterna::RowArgs& a, int64_t k) {
    return a.codes + a.row / kTileRows<F> * a.tile_bytes + k / F::kStepK * F::kStepBytes;
}

}  // namespace
