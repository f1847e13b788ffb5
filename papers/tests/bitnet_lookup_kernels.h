// What bitnet.cpp's generator writes for TL2, without vectors, for test_bitnet_lookup.py, which defines SHAPES. A table of
// three or two inputs has these inputs, in place of their sums.
#include "ggml-bitnet.h"

static bitnet_tensor_extra extra;

static int rows_of(int m, int k, int& bk) {
#define SHAPE(M, K, BM, BK) \
    if (m == M && k == K) { \
        bk = BK;            \
        return BM;          \
    }
    SHAPES
    return 0;
}

void ggml_preprocessor(int bs, int m, int three_k, int two_k, void* B, void* LUT_Scales,
                       void* Three_QLUT, void* Two_QLUT) {
    int bk;
    if (!rows_of(m, three_k + two_k, bk)) return;
    const float* x = (const float*)B;
    for (int b = 0; b < bs; b++) {
        ((float*)LUT_Scales)[b] = 1;
        for (int i = 0; i < three_k; i += 3, x += 3)
            memcpy((char*)Three_QLUT + (b * three_k + i) / 3 * 32, x, 12);
        for (int i = 0; i < two_k; i += 2, x += 2)
            memcpy((char*)Two_QLUT + (b * two_k + i) / 2 * 32, x, 8);
    }
}

static int code_of(const uint8_t* codes, int i) { return codes[i / 2] >> 4 * (i % 2) & 15; }

// `value` in digits -1, 0, 1 of base 3, each times an input.
static int product(int value, const void* table, int digits) {
    float x[3];
    memcpy(x, table, 4 * digits);
    int sum = 0;
    for (int i = digits; i-- > 0;) {
        const int digit = (value + 13) % 3 - 1;  // 13 is 1 in base 3 at each digit, and 9 + 3 + 1
        sum += digit * (int)x[i];
        value = (value - digit) / 3;
    }
    return sum;
}

void ggml_qgemm_lut(int bs, int m, int k, int BK, void* A, void* sign, void* LUT, void* Scales,
                    void* LUT_Scales, void* C) {
    int bk;
    const int rows = rows_of(m, k, bk), three_k = k / bk * bk;
    for (int b = 0; b < bs; b++)
        for (int row = 0; row < rows; row++) {
            char* y = (char*)C + 4 * (TOKEN * m + row);
            const char* tables = (const char*)LUT;
            int sum = 0;
            if (BK == three_k) {
                const uint8_t* codes = (const uint8_t*)A + row * (three_k / 6);
                const uint8_t* signs = (const uint8_t*)sign + row * (three_k / 24);
                for (int i = 0; i < three_k / 3; i++) {
                    int value = code_of(codes, i);
                    if (signs[i / 8] >> i % 8 & 1) value = -value;
                    sum += product(value, tables + (b * three_k / 3 + i) * 32, 3);
                }
                memcpy(y, &sum, 4);
                continue;
            }
            memcpy(&sum, y, 4);
            const uint8_t* codes = (const uint8_t*)A + row * (BK / 4);
            for (int i = 0; i < BK / 2; i++)
                sum += product(code_of(codes, i) - 4, tables + (b * BK / 2 + i) * 32, 2);
            const float out = sum / ((float*)LUT_Scales)[b] * *(float*)Scales;
            memcpy(y, &out, 4);
        }
}
