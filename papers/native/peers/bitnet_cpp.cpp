// bitnet.cpp's I2_S kernels as functions of C, for src/sterna_papers/peers/bitnet_cpp.py. It is compiled with a checkout's
// src/ggml-bitnet-mad.cpp as STERNA_KERNELS, in which the names of ggml below are all that it needs.
//
// STERNA_ROWS 1: a byte holds four columns of a row, one token is multiplied row by row, and four tokens at once; as its
// gemm-config.h has it. STERNA_ROWS 4: a byte holds a column of four rows, which one token is multiplied with.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

enum { GGML_TYPE_I2_S };
static size_t ggml_row_size(int, int64_t columns) { return size_t(columns); }

#include STERNA_KERNELS

namespace {
constexpr int kTokens = 128;  // that a row is multiplied with before the next one
constexpr int kRows = STERNA_ROWS;
constexpr int kAtOnce = PARALLEL_SIZE;

// Codes are a level and one: what the ones add is taken off again.
void finish(const int8_t* x, int K, float* y, int rows) {
    int32_t sum = 0;
    for (int k = 0; k < K; ++k) sum += x[k];
    for (int row = 0; row < rows; ++row) y[row] -= float(sum);
}
}  // namespace

extern "C" {

int64_t bytes_of(int64_t M, int64_t K) { return M * K / 4 + 32; }

void pack(const float* weight, uint8_t* packed, int64_t M, int64_t K) {
    quantize_i2_s(weight, packed, M, K, nullptr);
}

// y [n, M] = x [n, K] W^T
void multiply(const uint8_t* packed, const int8_t* x, float* y, int n, int M, int K, int threads) {
    const int share = (M / threads + 3) / 4 * 4;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int thread = 0; thread < threads; ++thread) {
        const int first = thread * share < M ? thread * share : M;
        const int rows = first + share < M ? share : M - first;
        const uint8_t* w = packed + size_t(first) * size_t(K) / 4;
        if (rows == 0) continue;
        if (n == 1) {
            // It counts `bx` as if a weight took a byte.
            if constexpr (kRows == 4)
                ggml_vec_dot_i2_i8_s_1x4_32W(K, y + first, 1, w, size_t(K), x, size_t(K), rows);
            else
                ggml_vec_dot_i2_i8_s_1x1(K, y + first, 1, w, size_t(K), x, size_t(K), rows);
            finish(x, K, y + first, rows);
            continue;
        }
        for (int token = 0; token < n; token += kTokens) {
            const int most = token + kTokens < n ? kTokens : n - token;
            const int whole = most / kAtOnce * kAtOnce;
            for (int row = 0; row < rows; ++row) {
                const uint8_t* line = w + size_t(row) * size_t(K) / 4;
                float* out = y + size_t(token) * size_t(M) + first + row;
                const int8_t* in = x + size_t(token) * size_t(K);
                if (whole)
                    ggml_vec_dot_i2_i8_s(K, out, size_t(M), line, size_t(K), in, size_t(K), whole);
                for (int i = whole; i < most; ++i)
                    ggml_vec_dot_i2_i8_s_1x1(K, out + size_t(i) * size_t(M), 1, line, size_t(K),
                                             in + size_t(i) * size_t(K), size_t(K), 1);
            }
            for (int i = token; i < token + most; ++i)
                finish(x + size_t(i) * size_t(K), K, y + size_t(i) * size_t(M) + first, rows);
        }
    }
}
}
