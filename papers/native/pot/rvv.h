// on: riscv64 | requires: v | rank: 1 | flags: -march=rv64gcv -include riscv_vector.h
// RISC-V vectors 1.0 of any length. Vectors have no size that a compiler knows, so they are neither members nor
// elements, and the loops of blocks.h are written again here: the paper's (its Algorithms 1, 4 and 5, in the groups of
// registers that these have, with ordered sums), and ours.
//
// The paper's constants 0x1F and 0x20 do not fit the codes of its own Table 1, whose sign is the top bit of a byte:
// here they are 0x7F and 0x80, and 7 and 8 for nibbles. Its loop over k is unrolled U2 times, whole steps with a
// vsetvl each.
#pragma once
#include <riscv_vector.h>

#include <cstdint>

#include "range.h"
#include "table.h"

namespace {

using sterna::pot::Args;
using sterna::pot::Words;

constexpr uint32_t kOne = 0x3F800000, kSign = 0x80000000;

// Groups of so many registers, as floats, unsigned and signed integers.
#define STERNA_GROUP(M)                                                                       \
    struct M {                                                                                \
        using F = vfloat32##M##_t;                                                            \
        using U = vuint32##M##_t;                                                             \
        using I = vint32##M##_t;                                                              \
        static size_t lanes() { return __riscv_vsetvlmax_e32##M(); }                          \
        static size_t next(int64_t left) { return __riscv_vsetvl_e32##M(left); }              \
        static F f_zero() { return __riscv_vfmv_v_f_f32##M(0, lanes()); }                     \
        static I i_zero() { return __riscv_vmv_v_x_i32##M(0, lanes()); }                      \
        static F load(const float* p, size_t vl) { return __riscv_vle32_v_f32##M(p, vl); }    \
        static I load(const int32_t* p, size_t vl) { return __riscv_vle32_v_i32##M(p, vl); }  \
        static U load(const uint32_t* p, size_t vl) { return __riscv_vle32_v_u32##M(p, vl); } \
        static U bits(F a) { return __riscv_vreinterpret_u32##M(a); }                         \
        static U bits(I a) { return __riscv_vreinterpret_u32##M(a); }                         \
        static F floats(U a) { return __riscv_vreinterpret_f32##M(a); }                       \
        static I integers(U a) { return __riscv_vreinterpret_i32##M(a); }                     \
    }
STERNA_GROUP(m1);
STERNA_GROUP(m4);
STERNA_GROUP(m8);
#undef STERNA_GROUP

// ------------------------------------------------------------------------------------ sums

template <class G>
struct FloatSums {
    using Group = G;
    using X = float;
    static auto zero() { return G::f_zero(); }
    static float total(typename G::F sum) {
        return __riscv_vfmv_f(__riscv_vfredosum(sum, __riscv_vfmv_s_f_f32m1(0, 1), G::lanes()));
    }
};
template <class G>
struct IntegerSums {
    using Group = G;
    using X = int32_t;
    static auto zero() { return G::i_zero(); }
    static int32_t total(typename G::I sum) {
        return __riscv_vmv_x(__riscv_vredsum(sum, __riscv_vmv_s_x_i32m1(0, 1), G::lanes()));
    }
};

// Products. next: the elements of a step with `left` ahead. factor: what is made of a step of b, once for all rows of
// a. dot: one product and one sum for each lane; the lanes behind `vl` keep their sums.

struct Bytes {
    static constexpr Words kWords = Words::kU8;
    static constexpr uint32_t kMaxExponent = 31;
    using Word = uint8_t;
    static size_t next(int64_t left) { return m4::next(left); }
    static vuint8m1_t factor(const Word* row, int64_t k, size_t vl) {
        return __riscv_vle8_v_u8m1(row + k, vl);
    }
};
// Two elements a byte. A step has whole bytes, whatever vector length a CPU chooses near the end of a row.
struct Nibbles {
    static constexpr Words kWords = Words::kNibbles;
    static constexpr uint32_t kMaxExponent = 7;
    using Word = uint8_t;
    static size_t next(int64_t left, size_t bytes) {
        const auto most = static_cast<int64_t>(2 * bytes);
        return static_cast<size_t>(left < most ? left : most);
    }
};

// ------------------------------------------------------------------------------------ the paper's products

// Algorithm 5, F32:U8:E5:P1.
struct Added8 : Bytes, FloatSums<m4> {
    static m4::F dot(m4::F sum, m4::F x, vuint8m1_t code, size_t vl) {
        const vbool8_t negative = __riscv_vmsgtu(code, 0x7F, vl);
        const vuint8m1_t e = __riscv_vsub_tumu(negative, code, code, 0x80, vl);
        const m4::U field = __riscv_vsll(__riscv_vwcvtu_x(__riscv_vwcvtu_x(e, vl), vl), 23, vl);
        m4::U bits = __riscv_vadd(m4::bits(x), field, vl);
        bits = __riscv_vxor_mu(negative, bits, bits, kSign, vl);
        return __riscv_vfadd_tu(sum, sum, m4::floats(bits), vl);
    }
};

// The nibbles of a vector of bytes, in order: low and high halves side by side, then gathered.
inline vuint8m2_t gathered(vuint8m1_t word, size_t vl) {
    const size_t bytes = __riscv_vsetvlmax_e8m1();
    const vuint8m2_t place = __riscv_vid_v_u8m2(2 * bytes);
    // Element i is at i / 2 of the low nibbles, or of the high ones, which begin a register later.
    const vuint8m2_t odd = __riscv_vand(place, 1, 2 * bytes);
    const vuint8m2_t index = __riscv_vmacc(__riscv_vsrl(place, 1, 2 * bytes),
                                           static_cast<uint8_t>(bytes), odd, 2 * bytes);
    const vuint8m1_t low = __riscv_vand(word, 15, bytes), high = __riscv_vsrl(word, 4, bytes);
    return __riscv_vrgather(__riscv_vcreate_v_u8m1_u8m2(low, high), index, vl);
}

// Algorithm 4, F32:U8:E3:P2.
struct Added4 : Nibbles, FloatSums<m8> {
    static size_t next(int64_t left) {
        return Nibbles::next(left, __riscv_vsetvl_e8m1((left + 1) / 2));
    }
    static vuint8m1_t factor(const Word* row, int64_t k, size_t vl) {
        return __riscv_vle8_v_u8m1(row + k / 2, (vl + 1) / 2);
    }
    static m8::F dot(m8::F sum, m8::F x, vuint8m1_t word, size_t vl) {
        const vuint8m2_t code = gathered(word, vl);
        const vbool4_t negative = __riscv_vmsgtu(code, 7, vl);
        const vuint8m2_t e = __riscv_vsub_tumu(negative, code, code, 8, vl);
        const m8::U field = __riscv_vsll(__riscv_vwcvtu_x(__riscv_vwcvtu_x(e, vl), vl), 23, vl);
        m8::U bits = __riscv_vadd(m8::bits(x), field, vl);
        bits = __riscv_vxor_mu(negative, bits, bits, kSign, vl);
        return __riscv_vfadd_tu(sum, sum, m8::floats(bits), vl);
    }
};

// Algorithm 1: one register, as published; and four, which is what the compiler would be asked for today.
template <class G>
struct Multiplied : FloatSums<G> {
    static constexpr Words kWords = Words::kF32;
    static constexpr uint32_t kMaxExponent = 0;
    using Word = float;
    static size_t next(int64_t left) { return G::next(left); }
    static auto factor(const Word* row, int64_t k, size_t vl) { return G::load(row + k, vl); }
    static typename G::F dot(typename G::F sum, typename G::F x, typename G::F w, size_t vl) {
        return __riscv_vfmacc_tu(sum, x, w, vl);
    }
};

// Section 7, with the sign, which the paper leaves out.
struct Shifted : IntegerSums<m4> {
    static constexpr Words kWords = Words::kU32;
    static constexpr uint32_t kMaxExponent = 0;
    using Word = uint32_t;
    static size_t next(int64_t left) { return m4::next(left); }
    static m4::U factor(const Word* row, int64_t k, size_t vl) { return m4::load(row + k, vl); }
    static m4::I dot(m4::I sum, m4::I x, m4::U code, size_t vl) {
        // The shift reads the low five bits.
        const m4::I shifted = __riscv_vsll(x, code, vl);
        const vbool8_t negative = __riscv_vmslt(m4::integers(code), 0, vl);
        return __riscv_vadd_tu(sum, sum, __riscv_vrsub_mu(negative, shifted, shifted, 0, vl), vl);
    }
};
struct MultipliedIntegers : IntegerSums<m4> {
    static constexpr Words kWords = Words::kI32;
    static constexpr uint32_t kMaxExponent = 0;
    using Word = int32_t;
    static size_t next(int64_t left) { return m4::next(left); }
    static m4::I factor(const Word* row, int64_t k, size_t vl) { return m4::load(row + k, vl); }
    static m4::I dot(m4::I sum, m4::I x, m4::I w, size_t vl) {
        return __riscv_vmacc_tu(sum, x, w, vl);
    }
};

// ------------------------------------------------------------------------------------ ours

// 2^e with its sign, from bytes sign << 7 | e: the byte and sign << 7 | 127, added as they are widened, are the upper
// nine bits of the float. Bytes are a quarter of a float's registers, so what is done to them is a quarter of the work.
template <class G, class Codes>
inline typename G::F powers(Codes code, size_t vl) {
    const Codes bias = __riscv_vor(code, 0x7F, vl);
    return G::floats(
        __riscv_vsll(__riscv_vzext_vf2(__riscv_vwaddu_vv(code, bias, vl), vl), 23, vl));
}
// Bytes sign << 7 | e of nibbles sign << 3 | e, which are the low ones of bytes.
template <class Codes>
inline Codes from_nibbles(Codes nibbles, size_t vl) {
    const Codes sign = __riscv_vand(__riscv_vsll(nibbles, 4, vl), 0x80, vl);
    return __riscv_vor(__riscv_vand(nibbles, 7, vl), sign, vl);
}
// Each byte's two nibbles as two bytes, in order and without a gather: it is widened to 16 bits, whose upper half takes
// the high nibble from a copy four places up. The bytes' own upper nibbles mean nothing.
inline vuint8m1_t in_order(vuint8mf2_t word, size_t bytes) {
    const vuint16m1_t wide = __riscv_vzext_vf2(word, bytes);
    return __riscv_vreinterpret_u8m1(__riscv_vor(wide, __riscv_vsll(wide, 4, bytes), bytes));
}
inline vuint8m2_t in_order(vuint8m1_t word, size_t bytes) {
    const vuint16m2_t wide = __riscv_vzext_vf2(word, bytes);
    return __riscv_vreinterpret_u8m2(__riscv_vor(wide, __riscv_vsll(wide, 4, bytes), bytes));
}

struct Powers8 : Bytes, FloatSums<m4> {
    static m4::F factor(const Word* row, int64_t k, size_t vl) {
        return powers<m4>(Bytes::factor(row, k, vl), vl);
    }
};
template <class G>
struct Powers4;
template <>
struct Powers4<m4> : Nibbles, FloatSums<m4> {
    static size_t next(int64_t left) {
        return Nibbles::next(left, __riscv_vsetvl_e8mf2((left + 1) / 2));
    }
    static m4::F factor(const Word* row, int64_t k, size_t vl) {
        const size_t bytes = (vl + 1) / 2;
        const vuint8m1_t low = in_order(__riscv_vle8_v_u8mf2(row + k / 2, bytes), bytes);
        return powers<m4>(from_nibbles(low, vl), vl);
    }
};
template <>
struct Powers4<m8> : Nibbles, FloatSums<m8> {
    static size_t next(int64_t left) { return Added4::next(left); }
    static m8::F factor(const Word* row, int64_t k, size_t vl) {
        return powers<m8>(from_nibbles(in_order(Added4::factor(row, k, vl), (vl + 1) / 2), vl), vl);
    }
};

// The product and the sum in one instruction: a fused sum does not see a product overflow.
template <class P>
struct Fused : P {
    template <class F>
    static F dot(F sum, F x, F power, size_t vl) {
        return __riscv_vfmacc_tu(sum, x, power, vl);
    }
};
template <class P>
struct Separate : P {
    template <class F>
    static F dot(F sum, F x, F power, size_t vl) {
        return __riscv_vfadd_tu(sum, sum, __riscv_vfmul(x, power, vl), vl);
    }
};

// ------------------------------------------------------------------------------------ loops

// R rows of a, from j on, times rows [i0, i1) of b. A step is taken U times before the loop turns.
template <class P, int R, int U>
[[gnu::noinline]] void rows(const Args& args, int64_t j, int64_t i0, int64_t i1) {
    static_assert((R == 1 || R == 2 || R == 4) && (U == 1 || U == 2 || U == 4));
    using G = typename P::Group;
    using X = typename P::X;
    const X* a = static_cast<const X*>(args.a) + j * args.K;
    X* c = static_cast<X*>(args.c) + j * args.M;
    const int64_t K = args.K, M = args.M;
    for (int64_t i = i0; i < i1; ++i) {
        const auto* b = static_cast<const typename P::Word*>(args.b) + i * args.words;
        auto s0 = P::zero(), s1 = P::zero(), s2 = P::zero(), s3 = P::zero();
        int64_t k = 0;
        const auto step = [&]() __attribute__((always_inline)) {
            const size_t vl = P::next(K - k);
            const auto f = P::factor(b, k, vl);
            s0 = P::dot(s0, G::load(a + k, vl), f, vl);
            if constexpr (R > 1) s1 = P::dot(s1, G::load(a + K + k, vl), f, vl);
            if constexpr (R > 2) {
                s2 = P::dot(s2, G::load(a + 2 * K + k, vl), f, vl);
                s3 = P::dot(s3, G::load(a + 3 * K + k, vl), f, vl);
            }
            k += static_cast<int64_t>(vl);
        };
        while (k < K) {
            step();
            if constexpr (U > 1) {
                if (k < K) step();
            }
            if constexpr (U > 2) {
                if (k < K) step();
                if (k < K) step();
            }
        }
        c[i] = P::total(s0);
        if constexpr (R > 1) c[M + i] = P::total(s1);
        if constexpr (R > 2) {
            c[2 * M + i] = P::total(s2);
            c[3 * M + i] = P::total(s3);
        }
    }
}

// As many rows of a at once as there are, then one by one: the same bits.
template <class P, int R, int U>
void all_rows(const Args& args, int64_t j, int64_t j1, int64_t i0, int64_t i1) {
    for (; j + R <= j1; j += R) rows<P, R, U>(args, j, i0, i1);
    for (; j < j1; ++j) rows<P, 1, U>(args, j, i0, i1);
}

// Products by P where the activations of a row allow it; else by powers in groups of the same registers, so that sums
// keep their order.
template <class P, class Powers, bool kAdds, int R, int U>
void run_powers(const Args& args, int64_t j0, int64_t j1, int64_t i0, int64_t i1) {
    for (int64_t j = j0; j < j1; j += R) {
        const int64_t end = j + R < j1 ? j + R : j1;
        if (args.special) {
            const Range x =
                range_of(static_cast<const float*>(args.a) + j * args.K, (end - j) * args.K);
            if (!x.fits(P::kMaxExponent)) {
                all_rows<Separate<Powers>, 1, 1>(args, j, end, i0, i1);
                continue;
            }
            if (kAdds && !x.normal()) {
                all_rows<Fused<Powers>, 1, 1>(args, j, end, i0, i1);
                continue;
            }
        }
        all_rows<P, R, U>(args, j, end, i0, i1);
    }
}

template <class P, int R, int U, class Run>
constexpr sterna::pot::Kernel kernel(const char* name, Run run) {
    return {name, P::kWords, !__is_same(typename P::X, float), {R, 1, U}, run};
}

constexpr sterna::pot::Kernel kKernels[] = {
#define STERNA_POT_KERNELS(U)                                                      \
    kernel<Added8, 1, U>("pot8", run_powers<Added8, Powers8, true, 1, U>),         \
        kernel<Added4, 1, U>("pot4", run_powers<Added4, Powers4<m8>, true, 1, U>), \
        kernel<Shifted, 1, U>("fxpot", all_rows<Shifted, 1, U>),                   \
        kernel<Multiplied<m1>, 1, U>("f32", all_rows<Multiplied<m1>, 1, U>),       \
        kernel<MultipliedIntegers, 1, U>("i32", all_rows<MultipliedIntegers, 1, U>),
    STERNA_POT_KERNELS(1) STERNA_POT_KERNELS(2) STERNA_POT_KERNELS(4)
#undef STERNA_POT_KERNELS
#define STERNA_POT_KERNELS(R, U)                                                                \
    kernel<Fused<Powers8>, R, U>("pot8-fma", run_powers<Fused<Powers8>, Powers8, false, R, U>), \
        kernel<Fused<Powers4<m4>>, R, U>(                                                       \
            "pot4-fma", run_powers<Fused<Powers4<m4>>, Powers4<m4>, false, R, U>),              \
        kernel<Multiplied<m4>, R, U>("f32-m4", all_rows<Multiplied<m4>, R, U>),
        STERNA_POT_KERNELS(1, 1) STERNA_POT_KERNELS(1, 2) STERNA_POT_KERNELS(1, 4)
            STERNA_POT_KERNELS(2, 1) STERNA_POT_KERNELS(2, 2) STERNA_POT_KERNELS(4, 1)
#undef STERNA_POT_KERNELS
};
constexpr sterna::pot::Table kTable = {kKernels, sizeof kKernels / sizeof *kKernels};

}  // namespace
