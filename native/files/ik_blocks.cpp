// Blocks of the types that ik_llama.cpp alone has. Each begins with its d: where a file has one d for a row, as for the types
// whose names end in S and L, sterna/gguf/ik_rows.py puts it before every block.
//
// Their levels are few uneven numbers, which a bit of each group (`shifted`) moves up a little. Where both tables together
// have at most sixteen levels, the bit is the highest one of a code; else it becomes a minimum.
#include <array>
#include <bit>
#include <cstring>

#include "files/block_reading.h"

namespace sterna {

namespace {

using namespace block_reading;

int nibble(In from, int i) { return from[i / 2] >> 4 * (i % 2) & 15; }
uint8_t byte(int whole) { return static_cast<uint8_t>(whole); }

// Puts a bit for each group of kGroup above kBits that codes have.
template <int kGroup, int kBits>
void add_shifts(uint32_t shifted, Levels levels) {
    for (int k = 0; k < 256; ++k)
        levels[k] =
            static_cast<int8_t>(levels[k] | static_cast<int>(shifted >> k / kGroup & 1) << kBits);
}

// 64 bytes of two bits; and where there are three, 32 of the highest ones behind them.
void two_bits(In from, Levels levels) { add_fields<2, 32>(from, 64, levels); }
void three_bits(In from, Levels levels) {
    two_bits(from, levels);
    add_fields<1, 32, 2>(from + 64, 32, levels);
}

// d, eight bytes of the upper two bits, 16 of the lower four: codes from -32.
struct q6_0 {
    static constexpr int k = 32, bytes = 26, halves = 1, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        add_fields<4, 16>(block + 10, 16, levels);
        for (int i = 0; i < 32; ++i) {
            const int upper = block[2 + i % 8] >> (4 * (i % 16 / 8) + 2 * (i / 16)) & 3;
            levels[i] = static_cast<int8_t>((levels[i] | upper << 4) - 32);
        }
        return true;
    }
};

// d, a word of shifts, 8 bytes of scales, 64 of codes.
struct iq2_k {
    static constexpr int k = 256, bytes = 76, halves = 1, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        for (int g = 0; g < 16; ++g) scales[2 + g] = byte(nibble(block + 4, g) - 8);
        two_bits(block + 12, levels);
        add_shifts<16, 2>(word16(block + 2), levels);
        return true;
    }
};

// d, words of shifts and of signs, 8 bytes of odd scales, 96 of codes.
struct iq3_k {
    static constexpr int k = 256, bytes = 110, halves = 1, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        for (int g = 0; g < 16; ++g) {
            const int size = 2 * nibble(block + 6, g) + 1;
            scales[2 + g] = byte(word16(block + 4) >> g & 1 ? -size : size);
        }
        three_bits(block + 14, levels);
        add_shifts<16, 3>(word16(block + 2), levels);
        return true;
    }
};

// d, a word of shifts, four bytes of the scales' upper bits, 8 of their lower ones, 128 of codes. The minimum of a shifted
// group is four times its scale.
struct iq4_k {
    static constexpr int k = 256, bytes = 144, halves = 2, singles = 32;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        half(block, scales + 2);
        for (int g = 0; g < 16; ++g) {
            const int upper = block[4 + g / 4] >> 2 * (g % 4) & 3;
            const int whole = (nibble(block + 8, g) | upper << 4) - 32;
            scales[4 + 2 * g] = byte(whole);
            scales[5 + 2 * g] = byte(word16(block + 2) >> g & 1 ? 4 * whole : 0);
        }
        for (int g = 0; g < 8; ++g) iq4_codes(block + 16 + 16 * g, levels + 32 * g);
        return true;
    }
};

// d, a word of shifts and above them the scales' highest bits, four bytes of their lower ones, 64 of codes.
struct iq2_ks {
    static constexpr int k = 256, bytes = 72, halves = 1, singles = 8;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        const auto word = static_cast<int>(word16(block + 2));
        for (int g = 0; g < 8; ++g)
            scales[2 + g] = byte((nibble(block + 4, g) | (word >> (8 + g) & 1) << 4) - 16);
        two_bits(block + 8, levels);
        add_shifts<32, 2>(word16(block + 2), levels);
        return true;
    }
};

// d, a word of the scales' highest bits and above them the shifts, four bytes of their lower ones (all low nibbles first),
// 96 of codes.
struct iq3_ks {
    static constexpr int k = 256, bytes = 104, halves = 1, singles = 8;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        const auto word = static_cast<int>(word16(block + 2));
        for (int g = 0; g < 8; ++g) {
            const int low = block[4 + g % 4] >> 4 * (g / 4) & 15;
            scales[2 + g] = byte((low | (word >> g & 1) << 4) - 16);
        }
        three_bits(block + 8, levels);
        add_shifts<32, 3>(block[3], levels);
        return true;
    }
};

// The numbers of the levels of two weights, an octal digit each, the first weight's first.
constexpr uint8_t kPairs[32] = {002, 005, 010, 013, 015, 017, 021, 022, 024, 025, 026,
                                030, 034, 035, 037, 042, 043, 044, 045, 046, 051, 052,
                                053, 054, 055, 060, 062, 064, 066, 067, 072, 075};

// d, a word of the scales' upper bits, four bytes of their lower ones (all low nibbles first), 64 of the lower bits of pairs,
// 16 of their highest.
struct iq2_kl {
    static constexpr int k = 256, bytes = 88, halves = 1, singles = 8;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        for (int g = 0; g < 8; ++g) {
            const int low = block[4 + g % 4] >> 4 * (g / 4) & 15;
            scales[2 + g] =
                byte((low | static_cast<int>(word16(block + 2) >> 2 * g & 3) << 4) - 32);
            for (int i = 0; i < 16; ++i) {
                const int four = block[8 + g / 2 * 16 + i] >> 4 * (g % 2) & 15;
                const int pair = kPairs[four | (block[72 + i] >> g & 1) << 4];
                levels[32 * g + 2 * i] = static_cast<int8_t>(pair >> 3);
                levels[32 * g + 2 * i + 1] = static_cast<int8_t>(pair & 7);
            }
        }
        return true;
    }
};

// A float32 d, and four times it for minima.
void wide_heads(In from, Out to) {
    float d;
    std::memcpy(&d, from, 4);
    const float of_minima = 4 * d;
    std::memcpy(to, &d, 4);
    std::memcpy(to + 4, &of_minima, 4);
}
// An odd scale; its lowest bit says whether the group is shifted.
void odd_scale(int code, Out to) {
    const int whole = (code & 254) - 127;
    to[0] = byte(whole);
    to[1] = byte(code & 1 ? whole : 0);
}

// d, 8 bytes of scales, 128 of codes.
struct iq4_ks {
    static constexpr int k = 256, bytes = 140, halves = 2, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        wide_heads(block, scales);
        for (int g = 0; g < 8; ++g) {
            odd_scale(block[4 + g], scales + 8 + 2 * g);
            iq4_codes(block + 12 + 16 * g, levels + 32 * g);
        }
        return true;
    }
};

// d, for each 32 weights eight words: their lowest bits are a scale, and each other bit is changed by the one above it.
struct iq4_kss {
    static constexpr int k = 256, bytes = 132, halves = 2, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        wide_heads(block, scales);
        for (int g = 0; g < 8; ++g) {
            int scale = 0;
            uint8_t codes[16];
            for (int i = 0; i < 8; ++i) {
                const auto word = static_cast<int>(word16(block + 4 + 16 * g + 2 * i));
                scale |= (word & 1) << i;
                const int four = (word & 0xFFFE) ^ (word & 0xFFFE) >> 1;
                codes[2 * i] = byte(four);
                codes[2 * i + 1] = byte(four >> 8);
            }
            odd_scale(scale, scales + 8 + 2 * g);
            iq4_codes(codes, levels + 32 * g);
        }
        return true;
    }
};

constexpr std::array kIkTypes{
    type<q6_0>("q6_0"),     type<iq2_k>("iq2_k"),      type<iq3_k>("iq3_k"),
    type<iq4_k>("iq4_k"),   type<iq2_ks>("iq2_ks"),    type<iq3_ks>("iq3_ks"),
    type<iq2_kl>("iq2_kl"), type<iq4_ks, 4>("iq4_ks"), type<iq4_kss, 4>("iq4_kss"),
};

}  // namespace

std::span<const BlockType> ik_block_types() { return kIkTypes; }

}  // namespace sterna
