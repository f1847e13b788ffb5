// bitnet.cpp's lookup-table kernels as functions of C, for src/sterna_papers/peers/bitnet_lookup.py. It is compiled with the
// header that a checkout's own generator wrote as STERNA_KERNELS, and with GGML_BITNET_X86_TL2 or GGML_BITNET_ARM_TL1. The
// names of ggml below are all that the header needs.
//
// A matrix is cut into tiles of BM rows. TL2 has the codes of all tiles for the first three_k columns (4 bits for three
// weights), then their signs (a bit for three weights), then codes for the other columns (4 bits for two weights). TL1 has
// only codes of two weights. One thread makes the tables of a token's inputs; then each multiplies tiles of its own.
#include <omp.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(GGML_BITNET_X86_TL2) && !defined(__AVX2__)
#error "TL2 needs AVX2"
#elif defined(GGML_BITNET_ARM_TL1) && !defined(__ARM_NEON)
#error "TL1 needs ARM NEON"
#endif

#define GGML_API
enum ggml_type { GGML_TYPE_Q4_0, GGML_TYPE_TL1, GGML_TYPE_TL2 };
enum { GGML_BACKEND_TYPE_CPU };
struct ggml_tensor {
    ggml_type type;
    int backend;
    int64_t ne[4];
    void *data, *extra;
};

#include STERNA_KERNELS

namespace {

constexpr int kTable = 32;  // bytes of a table: 16 sums, each in two bytes
float one = 1;  // the weights' scale

struct Tiles {
    int count, first, last;  // of all, and a thread's own
    Tiles(int M, int BM) : count(M / BM) {
        const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        const int share = (count + threads - 1) / threads;
        first = thread * share < count ? thread * share : count;
        last = first + share < count ? first + share : count;
    }
};

#ifdef GGML_BITNET_X86_TL2
// Tokens that a generated kernel takes at once.
constexpr int kAtOnce[] = {512, 256, 128, 32, 8, 1};

struct Columns {
    int three, two;  // columns in codes of three weights, and in codes of two
    Columns(int K, int BK) : three(K / BK * BK), two(K - three) {}
    size_t tables() const { return size_t(three / 3 + two / 2) * kTable; }  // bytes, of a token
};
#endif

}  // namespace

extern "C" {

#ifdef GGML_BITNET_X86_TL2

int64_t table_bytes(int n, int K, int BK) {
    return int64_t(n) * int64_t(Columns(K, BK).tables() + sizeof(float));
}

// y [n, M] = x [n, K] W^T. tables: table_bytes(), used by the call.
void multiply(uint8_t* packed, float* x, float* y, int8_t* tables, int n, int M, int K, int BM,
              int BK, int threads) {
    const Columns columns(K, BK);
    // Bytes of a tile, and of a token's tables.
    const size_t codes = size_t(BM) * size_t(columns.three) / 6;
    const size_t signs = codes / 4;
    const size_t pairs = size_t(BM) * size_t(columns.two) / 4;
    const size_t of_three = size_t(columns.three) / 3 * kTable;
    const size_t of_two = size_t(columns.two) / 2 * kTable;
    int8_t *three = tables, *two = three + size_t(n) * of_three;
    float* scales = reinterpret_cast<float*>(two + size_t(n) * of_two);
#pragma omp parallel num_threads(threads)
    {
#pragma omp single
        ggml_preprocessor(n, M, columns.three, columns.two, x, scales, three, two);
        const Tiles tiles(M, BM);
        uint8_t* sign = packed + size_t(tiles.count) * codes;
        uint8_t* rest = sign + size_t(tiles.count) * signs;
        int token = 0;
        for (const int size : kAtOnce)
            for (; n - token >= size; token += size)
                for (int i = tiles.first; i < tiles.last; ++i) {
                    float* out = y + size_t(token) * size_t(M) + size_t(i) * size_t(BM);
                    const size_t tile = size_t(i), at = size_t(token);
                    ggml_qgemm_lut(size, M, K, columns.three, packed + tile * codes,
                                   sign + tile * signs, three + at * of_three, &one, scales + at,
                                   out);
                    // Also where no column is left, since this one turns sums into floats.
                    ggml_qgemm_lut(size, M, K, columns.two, rest + tile * pairs, nullptr,
                                   two + at * of_two, &one, scales + at, out);
                }
    }
}

#else

int64_t table_bytes(int, int K, int) { return int64_t(K) / 2 * kTable + int64_t(sizeof(float)); }

// y [M] = x [K] W^T, of one token. tables: table_bytes(), used by the call.
void multiply(uint8_t* packed, float* x, float* y, int8_t* tables, int, int M, int K, int BM, int,
              int threads) {
    const size_t codes = size_t(BM) * size_t(K) / 4;  // bytes, of a tile
    float* scale = reinterpret_cast<float*>(tables + size_t(K) / 2 * kTable);
#pragma omp parallel num_threads(threads)
    {
#pragma omp single
        ggml_preprocessor(M, K, x, scale, tables);
        const Tiles tiles(M, BM);
        for (int i = tiles.first; i < tiles.last; ++i)
            ggml_qgemm_lut(M, K, packed + size_t(i) * codes, tables, &one, scale, y + i * BM);
    }
}

#endif
}
