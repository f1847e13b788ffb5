// What src/ggml-bitnet-mad.cpp of bitnet.cpp defines, without vectors, for test_bitnet_cpp.py. `bx` counts a byte for each weight.
#include "gemm-config.h"
#include "ggml-bitnet.h"
#include "ggml-cpu-impl.h"
#include "ggml-quants.h"
static int code(const float* src, long i) { return src[i] > 0 ? 2 : src[i] < 0 ? 0 : 1; }
size_t quantize_i2_s(const float* src, void* dst, int64_t nrow, int64_t n_per_row, const float*) {
    uint8_t* out = (uint8_t*)dst;
    memset(out, 0, nrow * ggml_row_size(GGML_TYPE_I2_S, n_per_row) / 4);
#ifdef ACT_PARALLEL
    for (long i = 0; i < nrow * n_per_row; i++)
        out[i / 128 * 32 + i % 32] |= code(src, i) << (6 - 2 * (i % 128 / 32));
#else
    for (long i = 0; i < nrow * n_per_row; i++) {
        long row = i / n_per_row, column = i % n_per_row;
        out[row / 4 * n_per_row + column] |= code(src, i) << (6 - 2 * (row % 4));
    }
#endif
    return 0;
}
static int dot(int n, const uint8_t* x, const int8_t* y) {
    int sum = 0;
    for (int k = 0; k < n; k++)
        sum += (x[k / 128 * 32 + k % 32] >> (6 - 2 * (k % 128 / 32)) & 3) * y[k];
    return sum;
}
void ggml_vec_dot_i2_i8_s_1x1(int n, float* s, size_t, const void* x, size_t bx, const void* y,
                              size_t, int nrc) {
    for (int row = 0; row < nrc; row++)
        s[row] = dot(n, (const uint8_t*)x + row * bx / 4, (const int8_t*)y);
}
void ggml_vec_dot_i2_i8_s(int n, float* s, size_t bs, const void* x, size_t, const void* y,
                          size_t by, int nrc) {
    for (int col = 0; col < nrc; col++)
        s[col * bs] = dot(n, (const uint8_t*)x, (const int8_t*)y + col * by);
}
void ggml_vec_dot_i2_i8_s_1x4_32W(int n, float* s, size_t, const void* x, size_t bx, const void* y,
                                  size_t, int nrc) {
    for (int row = 0; row < nrc; row++) {
        int sum = 0;
        for (int k = 0; k < n; k++)
            sum += (((const uint8_t*)x)[row / 4 * bx + k] >> (6 - 2 * (row % 4)) & 3) *
                   ((const int8_t*)y)[k];
        s[row] = sum;
    }
}
