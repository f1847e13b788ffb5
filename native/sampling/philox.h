// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3" (SC 2011). A counter-based generator has no state, so a token's random number depends
// on (seed, sequence, position) only: never on the batch, the thread or the tokens drawn before.
//
// Known answers (Random123, kat_vectors, "philox4x32 10": counter, key -> output):
//   00000000 x4, 00000000 x2                -> 6627e8d5 e169c58d bc57ac4c 9b00dbd8
//   ffffffff x4, ffffffff x2                -> 408f276d 41c83b0e a20bc7c6 6d5451fd
//   243f6a88 85a308d3 13198a2e 03707344,
//   a4093822 299f31d0                       -> d16cfe09 94fdcceb 5001e420 24126ea1
#pragma once

#include <cstdint>

namespace sterna {

struct Philox4x32 {
    uint32_t word[4];
};

// static: internal linkage, so no unit compiled for another ISA can supply this body to the linker.
static inline Philox4x32 philox4x32_10(Philox4x32 counter, uint32_t key0, uint32_t key1) {
    // Multipliers and Weyl increments: the paper's table 2 and section 4.
    constexpr uint64_t kM0 = 0xD2511F53u, kM1 = 0xCD9E8D57u;
    constexpr uint32_t kW0 = 0x9E3779B9u, kW1 = 0xBB67AE85u;
    uint32_t* c = counter.word;
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = kM0 * c[0];
        const uint64_t p1 = kM1 * c[2];
        const uint32_t c1 = c[1], c3 = c[3];
        c[0] = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key0;
        c[1] = static_cast<uint32_t>(p1);
        c[2] = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key1;
        c[3] = static_cast<uint32_t>(p0);
        key0 += kW0;
        key1 += kW1;
    }
    return counter;
}

// What a random number decides; each has a counter of its own.
enum class Purpose : uint32_t { Token = 0, Xtc = 1 };

// Uniform in [0, 1): 53 random bits, so the largest value is 1 - 2^-53. Key = seed, low word first;
// counter = (position, sequence), low words first, with the purpose in the highest word, which a
// sequence below 2^32 leaves free.
static inline double philox_uniform(uint64_t seed, uint64_t sequence, uint64_t position,
                                    Purpose purpose = Purpose::Token) {
    const Philox4x32 counter = {
        {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
         static_cast<uint32_t>(sequence),
         static_cast<uint32_t>(sequence >> 32) ^ static_cast<uint32_t>(purpose)}};
    const Philox4x32 r =
        philox4x32_10(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    const uint64_t bits = (static_cast<uint64_t>(r.word[1]) << 32) | r.word[0];
    return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace sterna
