// The facts of a code layout: a struct of layouts/*/*.h derives from IntegerDot or FloatDot, which have what most
// layouts share, and adds its decoder. linear.h and panel.h multiply the decoded bytes.
//
// A layout differs from the defaults in one way: by a member of the same name, which hides the one of its base. Nothing
// asks whether a layout has a member.
#pragma once
#include <type_traits>

#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

using sterna::kFewTokens;
constexpr int kLine = 64;  // bytes of 16 rows x 4 k

constexpr int kParts = 16 / kLanes;  // native vectors of a row block

// Steps of a run that int16 can hold: a step adds a pair of products of bytes up to kByte with activations.
template <int kByte>
constexpr int kRunSteps = 32767 / (kByte * 127 * 2);

// The greatest byte that may be multiplied as it is: products are of signed bytes, or two of them fit int16, or any byte.
constexpr int kMaxFactor = kSignedDot ? 127 : kPairSums16 ? 32767 / (2 * 127) : 255;
// Whether bytes of 128 and more are multiplied as signed ones, less 128.
constexpr bool kSignedBytes = kMaxFactor < 255;
// The dot product of signed bytes, |w| <= 128.
inline VI dot_signed(VI acc, VI w, VX x) {
    return kSignedDot ? dot(acc, w, x) : dot(acc, b_abs(w), b_signed(x, w));
}

// The fewest tokens for which the making of a panel pays. Where pair sums are int16 in vectors of 256 bits, a panel's block
// has three times as many tokens as one straight from the decoder. On a Zen 3 EPYC, one thread, 512x1024 in L2, straight and
// with a panel, us: `i2` 43 and 45 for 8 tokens, 64 and 59 for 12, 86 and 76 for 16; `q4_k` 66 and 67, 99 and 84,
// 132 and 108; but `q8_0`, whose products are too great for a run, 168 and 183 for 16.
constexpr int kFewestOfPanel = kPairSums16 && kLanes < 16 ? 9 : kFewTokens + 1;

// What the decoders of most layouts take of a weight's levels.
struct NoLevels {
    explicit NoLevels(const sterna::LevelTable&) {}
};

// Defaults of integer layouts. A layout's kMaxByte is the greatest byte that it decodes. A run of products ends
// with its turn; where pair sums are int16 it must fit int16, or kRuns is false and runs are int32.
struct IntegerDot {
    using Direct = void;  // the form that few tokens are multiplied with; void: the layout itself
    using Panel = void;  // the kind of a panel's bytes; void: codes up to the greatest
    // The levels of a weight as the decoder wants them, how many there are (0: decode() and codes() take none), and what is
    // added to one where it is decoded, so that none is below -kLevelOffset, or above kLevelOffset - 1.
    using Levels = NoLevels;
    static constexpr int kLevels = 0, kLevelOffset = 0;
    // The greatest code, where fields stay in place and kMaxByte is a field's; 0: kMaxByte.
    static constexpr int kMaxCode = 0;
    // The greatest size of a level, where it is known: what bounds sums that start at the offset of codes; 0: kMaxByte.
    static constexpr int kMostLevel = 0;
    static constexpr bool kHasCodes = false;  // whether panels are decoded by codes(), not decode()
    static constexpr int kRowBlocks = 0;  // of a tile; 0: a panel's bytes, which are of any layout
    static constexpr bool kInteger = true, kRowScales = true, kGroupScales = true, kRuns = true;
    // Whether tables of sums are looked up (lookup.h). Then decode_tile() makes a panel, for there are no steps to decode.
    static constexpr bool kLookup = false;
    // Whether a super-block is decoded to bytes before it is multiplied (indexed.h). Then decode_tile() makes a panel,
    // and decode_steps() the bytes that Direct reads.
    static constexpr bool kByBlocks = false;
    static constexpr bool kInCache =
        false;  // whether steps are in L1, so that nothing is prefetched
    static constexpr bool kOddScales = false;  // whether super-blocks have scales of kOdd4 or kOdd3
    static constexpr bool kPairs = false;  // PairSums
    static constexpr bool kWords = false;  // PanelWords
    static constexpr int kSourceBytes = 1;  // bytes of a level to be packed
    static constexpr int kSuperGroup = 0;  // k of a group of the super-blocks that it may have
    static constexpr bool (*valid)(const uint8_t*, int64_t, int) = nullptr;
    // The most tokens that go straight from the decoder, kTokens at a time: a panel for so few would cost more.
    static constexpr int kDirectTokens = kFewestOfPanel - 1;
    // Whether more tokens are multiplied with a panel: else a few at a time go straight from the decoder, which takes
    // fewer bytes of code.
    static constexpr bool kPanels = true;
    static constexpr bool kMinima = false;  // whether groups of k may have minima
    static constexpr bool kMicroBlocks = false;  // whether weights may be in micro-blocks
    // Whether there are kernels for activations with a scale for each kLongGroupK.
    static constexpr bool kLongGroups = false;
    // Whether a matrix unit computes many tokens, if there is one: else the vectors of the unit that it extends.
    static constexpr bool kOnMatrix = true;
    // Whether zero_x2 is even, so that levels are whole numbers. Then in_place() is the inverse of settle().
    static constexpr bool kEvenOffset = false;
    // Whether levels reach 128, which is decoded as 255 and lacks 1 (formats/pot4.h).
    static constexpr bool kHasLevel128 = false;
    // Whether codes are 0..3, so that active.h can make copies of them.
    static constexpr bool kTwoBits = false;
    // Accumulators that a block of tokens may have, and bytes of a run whose pair sums are int16.
    static constexpr int kSums = kAccumulators, kRunBytes = 512;
    // Whether all row blocks of a byte share a sign, which x takes. decode() then gives a vector of signs behind those
    // of the row blocks, and levels() turns the sums of a run into those of levels.
    static constexpr bool kSigns = false;
    // Twice the offset that the decoder subtracts from codes: 0 where they stay unsigned.
    static constexpr int kDecodedOffsetX2 = 0;
    static constexpr int kDotK = 4;
    using Acc = VI;
    static VI zero() { return i_set1(0); }
    static VI dot(VI acc, VI w, VX x) { return ::dot(acc, w, x); }
    // settle: the sum of a row block from its accumulator, in which a field may stay in place. in_place: back.
    static VI settle(VI acc, int) { return acc; }
    static VI in_place(VI sum, int) { return sum; }
};

// Which codes of two bits are above the greatest of a codebook, max_code: those bits are set that high and low have in
// common places for such a code. Codebooks have two levels or more, so that max_code is 1, 2 or 3.
struct AboveTwoBits {
    bool none;
    uint64_t whatever_low;
    explicit AboveTwoBits(int max_code)
        : none(max_code >= 3), whatever_low(max_code < 2 ? ~uint64_t{0} : 0) {}
    uint64_t operator()(uint64_t high, uint64_t low) const { return high & (low | whatever_low); }
};

// Shared members of float layouts. A row block can be decoded separately, for an exact head.
constexpr int kFloatRowBlocks = 4;
template <class F>
struct FloatDot {
    using Levels = NoLevels;
    static constexpr int kLevels = 0, kLevelOffset = 0;
    static constexpr bool kInteger = false, kRowScales = true, kGroupScales = false, kRuns = false;
    static constexpr bool kLookup = false, kByBlocks = false, kInCache = false;
    static constexpr bool kPairs = false, kSigns = false;
    static constexpr int kSums = kAccumulators, kRunBytes = 512;
    static constexpr int kSourceBytes = 2;  // bytes of a weight to be packed
    static constexpr int kPlanes =
        0;  // bf16 numbers whose sum any value is; 0: not on a matrix unit
    // Whether steps are lines of a matrix unit's bf16 tiles, and whether decode_bf16() makes such lines of steps.
    static constexpr bool kBf16Tiles = false, kBf16Steps = false;
    static constexpr int kSuperGroup = 0;
    static constexpr bool kLongGroups = false, kMicroBlocks = false;
    static constexpr bool (*valid)(const uint8_t*, int64_t, int) = nullptr;
    static constexpr int kDotK = 1;
    static constexpr int kRowBlocks = kFloatRowBlocks;
    static constexpr int kDirectTokens = 2 * (kAccumulators / kRowBlocks);
    using Acc = VF;
    static VF zero() { return f_set1(0.0f); }
    static VF dot(VF acc, VF w, VF x) { return f_fma(w, x, acc); }
    static void decode(const uint8_t* step, int part, int j, VF* w) {
        STERNA_UNROLL(8)
        for (int f = 0; f < kRowBlocks; ++f)
            w[f] = F::decode_row_block(step + f * (F::kStepBytes / kRowBlocks), part, j);
    }
};

// Decodes a part of a step, with the weight's levels where the layout looks them up. By value, no levels take no register.
template <class F>
inline void decode_step(typename F::Levels levels, const uint8_t* step, int part, int j,
                        typename F::Acc* w) {
    if constexpr (F::kLevels > 0) {
        F::decode(levels, step, part, j, w);
    } else {
        F::decode(step, part, j, w);
    }
}
// The same, but leaves no field in its place: each byte is a code.
template <class F>
inline void decode_codes(typename F::Levels levels, const uint8_t* step, int part, int j, VI* w) {
    if constexpr (F::kHasCodes && F::kLevels > 0) {
        F::codes(levels, step, part, j, w);
    } else if constexpr (F::kHasCodes) {
        F::codes(step, part, j, w);
    } else {
        decode_step<F>(levels, step, part, j, w);
    }
}

// The form of a format that few tokens are multiplied with.
template <class F>
using Direct = std::conditional_t<std::is_void_v<typename F::Direct>, F, typename F::Direct>;

// ---------------------------------------------------------------------------- the bytes of a panel

// Unsigned bytes of a panel, at most kMost.
template <int kMost>
struct PanelCodes : IntegerDot {
    static_assert(kMost <= kMaxFactor);
    static constexpr int kMaxByte = kMost;
};
// Signed bytes, codes less half of kOffsetX2: where kSignedBytes, unsigned ones would be too great.
template <int kOffsetX2 = 256>
struct PanelLevels : IntegerDot {
    static constexpr int kMaxByte = 128, kDecodedOffsetX2 = kOffsetX2;
    static VI dot(VI acc, VI w, VX x) { return dot_signed(acc, w, x); }
};
// Any unsigned bytes, which become words of 16 bits as they are multiplied: those of a lane are k, k + 2, k + 1 and k + 3,
// so that the words of the even bytes, and of the odd ones, are a pair that follows each other. On AVX2 four products take
// four instructions, as with dot_signed, but two of them instead of three on the ports that multiply.
struct PanelWords : IntegerDot {
    static constexpr bool kWords = true;
    static constexpr int kMaxByte = 255;
    static VI in_order(VI codes) {
        const VI ends = i_and(codes, i_set1(static_cast<int32_t>(0xFF0000FF)));
        const VI second = i_and(codes, i_set1(0xFF00)),
                 third = i_and(i_shr<8>(codes), i_set1(0xFF00));
        return i_or(i_or(ends, third), i_shl<8>(second));
    }
};
template <class V>
constexpr bool kHasWords = requires(V a) { b_words(a, 0); };
// Unsigned codes up to `most`: int16 pair sums hold short runs of large bytes, and long runs of small ones.
template <int most>
using CodesUpTo = std::conditional_t<
    !kPairSums16, PanelCodes<kMaxFactor>,
    std::conditional_t<
        most <= 4, PanelCodes<4>,
        std::conditional_t<most <= 15, PanelCodes<15>,
                           std::conditional_t<most <= 31, PanelCodes<31>, PanelCodes<128>>>>>;
using AnyCodes = CodesUpTo<kMaxFactor>;

// The kind of a format's bytes in a panel.
template <class F>
using Panel = std::conditional_t<std::is_void_v<typename F::Panel>,
                                 CodesUpTo<(F::kMaxCode != 0 ? F::kMaxCode : F::kMaxByte)>,
                                 typename F::Panel>;

// Bytes from which an even offset is taken (zero_x2 is even), so that levels are whole numbers.
template <class P>
struct Even : P {
    static constexpr bool kEvenOffset = true;
};

// The greatest size of a level in sums that start at the offset of codes, or of a byte of Bytes.
template <class F, class Bytes = F>
constexpr int kMostLevel = F::kMostLevel != 0 ? F::kMostLevel : Bytes::kMaxByte;

// Whether weights may have scales in groups of any kind; and whether those are super-blocks alone.
template <class F>
constexpr bool kGrouped = F::kGroupScales || F::kLongGroups || F::kSuperGroup != 0;
template <class F>
constexpr bool kSuperBlocksAlone = F::kSuperGroup != 0 && !F::kGroupScales;

// A format's loop for few tokens, by the bits of a weight's field.
template <class F>
constexpr sterna::ReadLoop kReadLoop =
    F::kStepBytes * 8 >= 4 * F::kStepK * kTileRows<F> ? sterna::ReadLoop::kManyBits
                                                      : sterna::ReadLoop::kFewBits;

// A panel's bytes where they have scales in groups.
template <class F>
using GroupPanel = std::conditional_t<F::kEvenOffset, Even<Panel<F>>, Panel<F>>;

}  // namespace
