// Scales of weights for groups of k: what they are stored as, and where they lie. plain_groups.h (TileScales) and
// superblocks.h say what a kernel makes of a stored scale. This is plain data, as kernel_table.h, which includes it.
#pragma once
#include <cstdint>

namespace sterna {

// k of one scale of activations, where weights have scales in groups: a short one, or GGUF's blocks.
constexpr int kGroupK = 32, kLongGroupK = 256;
constexpr int kSumK = 16;  // and of one sum of them, so that weights may have groups of as few
constexpr int kSuperK = 256;  // k of a super-block
constexpr int kMicroK = 16;  // k of a micro-block
constexpr int kRowFloatBytes = 4;  // of a row's float before them

// How a scale is stored. All but the first three are whole numbers, of which a super-block has one for each group, times
// its f16: a signed byte, or the low nibble of a byte whose high one is the minimum; or odd numbers 2 c + 1, of a nibble c,
// the low one that of the even group, or of three bits c. Those of kOdd3, for groups of 16, are two bytes for four groups,
// the first group lowest, and the four bits above them are of d, the lowest ones in the first word.
// kWide8 are signed bytes too, but times a float32 instead of the f16.
// kE4M3 are micro-blocks: floats of a byte, without a sign, for every 16 k, times a float32 for each row.
enum class ScaleType : int { kF16, kE8M0, kE4M3, kSuper8, kSuper4, kWide8, kOdd4, kOdd3 };
// Their names in Python (formats/scales), in this order.
constexpr const char* kScaleNames[] = {"f16",    "e8m0",  "e4m3", "super8",
                                       "super4", "wide8", "odd4", "odd3"};

// Scales of a weight for groups of k: [tile][K / group_k][tile_rows], and where there are minima,
// after each such line a line of them. Of super-blocks: [tile][K / kSuperK], each a line of f16 (kWide8: of float32),
// where there are minima another one for them, and then such lines of whole numbers; of odd ones a line has two groups. kOdd3
// has eight lines of bytes alone, the low bytes of a word, then its high ones. Of micro-blocks: [tile], each a line of
// float32 and then [K / 16] lines.
struct GroupScales {
    const uint8_t* data = nullptr;
    // k: a multiple of x_group_k, of super-blocks 16 or 32, of micro-blocks 16; 0: a weight has one scale for each row
    int64_t group_k = 0;
    int64_t x_group_k = kGroupK;  // k of a scale of activations: kGroupK or kLongGroupK
    ScaleType type = ScaleType::kF16;
    bool minima = false;
    float unit = 1.0f;  // of a code; of super-blocks only odd scales heed it
    int64_t inverse = 0;  // inverse_of(group_k): a kernel's loop has no time for a division

    [[gnu::always_inline]] constexpr bool super() const { return type >= ScaleType::kSuper8; }
    [[gnu::always_inline]] constexpr bool micro() const { return type == ScaleType::kE4M3; }
    [[gnu::always_inline]] constexpr int value_bytes() const {
        return type == ScaleType::kF16 ? 2 : 1;
    }
    [[gnu::always_inline]] constexpr int64_t line_bytes(int tile_rows) const {
        return int64_t{tile_rows} * value_bytes() * (minima && type != ScaleType::kSuper4 ? 2 : 1);
    }
    // The line of k < kMaxIntegerK, of whole groups of kGroupK: k / group_k.
    [[gnu::always_inline]] constexpr int64_t line_of(int64_t k) const {
        return k / kGroupK * inverse >> 32;
    }
    [[gnu::always_inline]] static constexpr int64_t inverse_of(int64_t group_k) {
        const int64_t groups = (group_k + kGroupK - 1) / kGroupK;
        return ((int64_t{1} << 32) + groups - 1) / groups;
    }
    [[gnu::always_inline]] constexpr bool wide() const { return type == ScaleType::kWide8; }
    // Of super-blocks: the lines of floats before those of the groups.
    [[gnu::always_inline]] constexpr int64_t head_bytes(int tile_rows) const {
        const int64_t line = int64_t{tile_rows} * (wide() ? 4 : 2);
        return type == ScaleType::kOdd3 ? 0 : line * (minima ? 2 : 1);
    }
    [[gnu::always_inline]] constexpr bool odd() const { return type >= ScaleType::kOdd4; }
    [[gnu::always_inline]] constexpr int64_t super_bytes(int tile_rows) const {
        const int64_t lines = kSuperK / group_k / (odd() ? 2 : 1);
        return head_bytes(tile_rows) + lines * line_bytes(tile_rows);
    }
    [[gnu::always_inline]] constexpr int64_t tile_bytes(int64_t K, int tile_rows) const {
        if (super()) return K / kSuperK * super_bytes(tile_rows);
        if (micro()) return (kRowFloatBytes + K / kMicroK) * tile_rows;
        return (K > 0 ? line_of(K - 1) + 1 : 0) * line_bytes(tile_rows);
    }
    // Of micro-blocks: the float of a row, and of those that follow it in its tile.
    [[gnu::always_inline]] const float* row_floats(int64_t row, int64_t K, int tile_rows) const {
        const uint8_t* tile = data + row / tile_rows * tile_bytes(K, tile_rows);
        return reinterpret_cast<const float*>(tile) + row % tile_rows;
    }
};

}  // namespace sterna
