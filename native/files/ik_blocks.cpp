// Blocks of the types that ik_llama.cpp alone has. Each begins with its d: where a file has one d for a row, as for the types
// whose names end in S and L, sterna/gguf/ik_rows.py puts it before every block.
//
// Their levels are few uneven numbers, which a bit of each group (`shifted`) moves up a little. Where both tables together
// have at most sixteen levels, the bit is the highest one of a code; where each has sixteen, it becomes a minimum. Those of
// five and six bits are looked up here.
#include <array>
#include <bit>
#include <cstring>

#include "files/block_reading.h"

namespace sterna {

namespace {

using namespace block_reading;

int nibble(In from, int i) { return from[i / 2] >> 4 * (i % 2) & 15; }
uint8_t byte(int whole) { return static_cast<uint8_t>(whole); }
// A scale of six bits, from -32: four bytes have the upper two of all.
int scale_of_six(In upper, In lower, int i) {
    return (nibble(lower, i) | (upper[i / 4] >> 2 * (i % 4) & 3) << 4) - 32;
}

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
            const int whole = scale_of_six(block + 4, block + 8, g);
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

// Levels of groups that are not shifted.
constexpr int8_t kFiveBits[32] = {-126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36,
                                  -30,  -24,  -18,  -12, -6,  -1,  5,   11,  17,  23,  29,
                                  36,   43,   51,   59,  68,  77,  87,  97,  109, 121};
constexpr int8_t kSixBits[64] = {
    -127, -121, -115, -109, -104, -98, -93, -88, -84, -79, -74, -70, -66, -62, -58, -54,
    -51,  -47,  -44,  -40,  -37,  -34, -31, -28, -25, -22, -19, -16, -13, -11, -8,  -5,
    -2,   0,    3,    6,    9,    12,  14,  17,  20,  23,  27,  30,  33,  36,  40,  44,
    47,   51,   55,   59,   63,   68,  72,  77,  82,  87,  92,  98,  103, 109, 115, 121};
// Looks codes of 16 k up, and adds `shift` if they are of a shifted group.
void look_up(const int8_t* table, int shift, bool shifted, Levels codes) {
    for (int k = 0; k < 16; ++k) codes[k] = static_cast<int8_t>(table[codes[k]] + shift * shifted);
}
// 128 bytes of four bits, 32 apart in a byte; behind them 32 of the highest ones.
void nibbles_and_fifth(In from, Levels levels) {
    add_fields<4, 32>(from, 128, levels);
    add_fields<1, 32, 4>(from + 128, 32, levels);
}

// d, a word of shifts, four bytes of the scales' upper bits, 8 of their lower ones, 160 of codes.
struct iq5_k {
    static constexpr int k = 256, bytes = 176, halves = 1, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        nibbles_and_fifth(block + 16, levels);
        for (int g = 0; g < 16; ++g) {
            scales[2 + g] = byte(scale_of_six(block + 4, block + 8, g));
            look_up(kFiveBits, 2, word16(block + 2) >> g & 1, levels + 16 * g);
        }
        return true;
    }
};

// d, 8 bytes of odd scales, whose lowest bits are shifts, 160 of codes. Two groups of 16 have the same scale.
struct iq5_ks {
    static constexpr int k = 256, bytes = 172, halves = 1, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        std::memcpy(scales, block, 4);
        nibbles_and_fifth(block + 12, levels);
        for (int g = 0; g < 16; ++g) {
            const int code = block[4 + g / 2];
            scales[4 + g] = byte((code & 254) - 127);
            look_up(kFiveBits, 2, code & 1, levels + 16 * g);
        }
        return true;
    }
};

// d, a word of shifts, 16 scales, 128 bytes of four bits and 64 of the upper two.
struct iq6_k {
    static constexpr int k = 256, bytes = 212, halves = 1, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        std::memcpy(scales + 2, block + 4, 16);
        add_fields<4, 32>(block + 20, 128, levels);
        add_fields<2, 32, 4>(block + 148, 64, levels);
        for (int g = 0; g < 16; ++g)
            look_up(kSixBits, 1, word16(block + 2) >> g & 1, levels + 16 * g);
        return true;
    }
};

constexpr std::array kIkTypes{
    type<q6_0>("q6_0"),     type<iq2_k>("iq2_k"),      type<iq3_k>("iq3_k"),
    type<iq4_k>("iq4_k"),   type<iq2_ks>("iq2_ks"),    type<iq3_ks>("iq3_ks"),
    type<iq2_kl>("iq2_kl"), type<iq4_ks, 4>("iq4_ks"), type<iq4_kss, 4>("iq4_kss"),
    type<iq5_k>("iq5_k"),   type<iq5_ks, 4>("iq5_ks"), type<iq6_k>("iq6_k"),
};

}  // namespace

std::span<const BlockType> ik_block_types() { return kIkTypes; }

}  // namespace sterna
