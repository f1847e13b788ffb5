// The kernels' codes (Table 1 of the paper), and the ways to multiply by them. A product of an
// activation and a power of two is exact unless it overflows, so all ways that are right for the values
// at hand give the same bits.
#pragma once
#include "table.h"

namespace {

using sterna::pot::Words;

constexpr uint32_t kOne = 0x3F800000, kFieldOne = 1u << 23;

// Codes. decode: addends sign << 31 | exponent << 23, or what the kernel multiplies by.

struct Pot8 {
    static constexpr const char* kName = "pot8";
    static constexpr Words kWords = Words::kU8;
    static constexpr uint32_t kMaxExponent = 31;
    using Word = uint8_t;
    template <class Part>
    static VI decode(const Word* row, int64_t k, Part part) {
        return addends8(row, k, part);
    }
};

struct Pot16 {
    static constexpr const char* kName = "pot16";
    static constexpr Words kWords = Words::kU16;
    static constexpr uint32_t kMaxExponent = 255;
    using Word = uint16_t;
    template <class Part>
    static VI decode(const Word* row, int64_t k, Part part) {
        return addends16(row, k, part);
    }
};

struct Pot4 {
    static constexpr const char* kName = "pot4";
    static constexpr Words kWords = Words::kNibbles;
    static constexpr uint32_t kMaxExponent = 7;
    using Word = uint8_t;
    template <class Part>
    static VI decode(const Word* row, int64_t k, Part part) {
        return addends4(row, k, part);
    }
};

// Words that are read as they are.
template <class T>
struct Plain {
    using Word = T;
    template <class Part>
    static auto decode(const Word* row, int64_t k, Part part) {
        return load(row + k, part);
    }
};

// Ways to multiply. Factor: what is made once of a vector of b, for all rows of a. dot: one product
// and one sum for each lane.

struct FloatSums {
    using Element = float;
    using Acc = VF;
    static Acc zero() { return f_zero(); }
    static Acc join(Acc a, Acc b) { return f_add(a, b); }
    static Element total(Acc acc) { return f_sum(acc); }
};

// The paper's: exponent and sign in one addition, as both are fields of the addend and the sum of the
// signs has nowhere to carry. Wants 1 <= exponent field of x <= 254 - e.
struct AddExponents : FloatSums {
    using Factor = VI;
    static Factor factor(VI addends) { return addends; }
    static Acc dot(Acc acc, VF x, Factor f) { return f_add(acc, as_f(i_add(as_i(x), f))); }
};

// 2^e as a float. Wants e <= 127, and an exponent field of x <= 254 - e: a fused sum does not
// see a product overflow.
struct FusedPowers : FloatSums {
    using Factor = VF;
    static Factor factor(VI addends) { return as_f(i_add(addends, i_set1(kOne))); }
    static Acc dot(Acc acc, VF x, Factor f) { return f_fma(x, f, acc); }
};

// Wants e <= 127 alone.
struct Powers : FusedPowers {
    static Acc dot(Acc acc, VF x, Factor f) { return f_add(acc, f_mul(x, f)); }
};

// Any e up to 255: 2^(e % 2) * 2^(e / 2) * 2^(e / 2). No step rounds, and none overflows before the whole
// product does.
struct SplitPowers : FloatSums {
    struct Factor {
        VF odd, half, signed_half;
    };
    static Factor factor(VI addends) {
        const VI one = i_set1(kOne);
        const VI odd = i_add(i_and(addends, i_set1(kFieldOne)), one);
        const VI half = i_add(i_and(i_half(addends), i_set1(127u << 23)), one);
        return {as_f(odd), as_f(half), as_f(i_or(half, i_and(addends, i_set1(1u << 31))))};
    }
    static Acc dot(Acc acc, VF x, const Factor& f) {
        return f_add(acc, f_mul(f_mul(f_mul(x, f.odd), f.half), f.signed_half));
    }
};

struct Multiply : FloatSums {
    using Factor = VF;
    static Factor factor(VF b) { return b; }
    static Acc dot(Acc acc, VF x, Factor f) { return f_fma(x, f, acc); }
};

struct IntegerSums {
    using Element = int32_t;
    using Acc = VI;
    static Acc zero() { return i_set1(0); }
    static Acc join(Acc a, Acc b) { return i_add(a, b); }
    static Element total(Acc acc) { return static_cast<int32_t>(i_sum(acc)); }
};

struct IntegerMultiply : IntegerSums {
    using Factor = VI;
    static Factor factor(VI b) { return b; }
    static Acc dot(Acc acc, VI x, Factor f) { return i_add(acc, i_mul(x, f)); }
};

struct Shifts : IntegerSums {
    using Factor = Shift;
    static Factor factor(VI codes) { return Shift(codes); }
    static Acc dot(Acc acc, VI x, const Factor& f) { return i_add(acc, f.of(x)); }
};

}  // namespace
