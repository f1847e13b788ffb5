// What a unit of power-of-two kernels offers: the products of "Demystifying Power-of-Two Quantization"
// (Jamali Golzar et al., 2025) in the paper's naive loop order, each at several unroll factors.
#pragma once
#include <cstdint>

namespace sterna::pot {

// How a row of b is written, low bits first: nibbles are two elements a byte, the low half first.
enum class Words : uint8_t { kU8, kU16, kNibbles, kU32, kF32, kI32 };

// c [N][M] = a [N][K] * b^T; b has M rows of `words` words. Everything is row-major and dense; what is
// behind a row's last element is never read. a and c are float, or int32_t for an integer kernel.
struct Args {
    const void* a;
    const void* b;
    void* c;
    int64_t N, M, K, words;
    // Whether products are the IEEE ones whatever stands in a; false: the paper's integer addition of
    // the exponents, right for normal numbers that do not overflow.
    bool special;
};

struct Kernel {
    const char* name;
    Words words;
    bool integer;
    int unroll[3];  // rows of a, rows of b, vectors of k
    // Rows [j0, j1) of a times rows [i0, i1) of b: j outermost, then i, then k. An element of c has the
    // same bits however the work is cut.
    void (*run)(const Args& args, int64_t j0, int64_t j1, int64_t i0, int64_t i1);
};

struct Table {
    const Kernel* kernels;
    int count;
};

}  // namespace sterna::pot
