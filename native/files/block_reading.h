// What readers of blocks share. A type of blocks is a struct with `k` and `bytes`, the number of its floats (`halves`) and of
// the bytes of whole numbers behind them (`singles`), and decode(), which fills in both, and levels.
#pragma once
#include <cstdint>
#include <cstring>

#include "files/ggml_blocks.h"

namespace sterna::block_reading {

using In = const uint8_t* __restrict;
using Levels = int8_t* __restrict;
using Out = uint8_t* __restrict;

constexpr uint8_t kSign = 0x80;  // the sign in an f16's upper byte

// Reads codes of kBits from n bytes: all lowest fields of each kSpan bytes first, then the next fields; they go above
// kShift bits that are there already.
template <int kBits, int kSpan, int kShift = 0>
inline void add_fields(In from, int n, Levels to) {
    constexpr int kFields = 8 / kBits, kMask = (1 << kBits) - 1;
    for (int at = 0; at < n; at += kSpan)
        for (int f = 0; f < kFields; ++f)
            for (int i = 0; i < kSpan; ++i) {
                const int code = from[at + i] >> (kBits * f) & kMask;
                int8_t& out = to[at * kFields + f * kSpan + i];
                out = static_cast<int8_t>(kShift ? out | code << kShift : code);
            }
}

template <int kCount>
inline void lower(int8_t* levels, int by) {
    for (int i = 0; i < kCount; ++i) levels[i] = static_cast<int8_t>(levels[i] - by);
}

// Reads codes of kBits, those of a byte side by side, its lowest first.
template <int kBits>
inline void unpack(In from, int n, Levels to) {
    constexpr int kFields = 8 / kBits;
    for (int i = 0; i < n; ++i)
        for (int f = 0; f < kFields; ++f)
            to[i * kFields + f] = static_cast<int8_t>(from[i] >> (kBits * f) & ((1 << kBits) - 1));
}

inline uint32_t word16(In at) { return at[0] | uint32_t{at[1]} << 8; }
inline void half(In from, Out to) { std::memcpy(to, from, 2); }
// ggml subtracts minima.
inline void negative_half(In from, Out to) {
    half(from, to);
    to[1] ^= kSign;
}

// 16 bytes of nibbles, all low ones first.
inline void iq4_codes(In from, Levels to) {
    for (int i = 0; i < 16; ++i) {
        to[i] = from[i] & 15;
        to[16 + i] = from[i] >> 4;
    }
}

// Whether a float of two bytes (an f16) or of four is finite, by its upper two bytes.
template <int kBytes>
bool finite(In upper) {
    if (kBytes == 2) return (upper[1] & 0x7c) != 0x7c;
    return (upper[1] & 0x7f) != 0x7f || (upper[0] & 0x80) == 0;
}

// BlockType::decode of a type of blocks, whose floats have kBytes.
template <class T, int kBytes>
bool decode(const uint8_t* block, int64_t count, int rows, int8_t* levels, uint8_t* line, int r) {
    bool good = true;
    for (int64_t i = 0; i < count; ++i, block += T::bytes, levels += T::k) {
        uint8_t scales[kBytes * T::halves + T::singles];
        good &= T::decode(block, levels, scales);
        for (int h = 0; h < T::halves; ++h, line += kBytes * rows) {
            std::memcpy(line + kBytes * r, scales + kBytes * h, kBytes);
            good &= finite<kBytes>(scales + kBytes * h + kBytes - 2);
        }
        for (int j = 0; j < T::singles; ++j, line += rows) line[r] = scales[kBytes * T::halves + j];
    }
    return good;
}

// Blocks are no longer than this, and it is a multiple of the k of each.
constexpr int kMostBlockK = 256;

template <class T, int kBytes = 2>
constexpr BlockType type(const char* name) {
    static_assert(kMostBlockK % T::k == 0);
    return {name, T::k, T::bytes, kBytes * T::halves + T::singles, decode<T, kBytes>};
}

}  // namespace sterna::block_reading
