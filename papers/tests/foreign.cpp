// The power-of-two kernels of one target against their definition, without Python: linked with
// papers/native/pot/standalone.cpp, under an emulator or on the machine itself. Prints what was compared, or the first
// difference, and exits with 1 then.
//
// Products are compared one by one, special values among them. Sums are of small whole numbers, which floats add
// exactly in any order, so that they too have one right answer. Rows end where memory ends, so that a read behind one is
// a crash.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

extern "C" {
const char* sterna_pot_isa();
const char* sterna_pot_kernel(int index, int* unroll);
int sterna_pot_matmul(const char* kernel, const void* a, const void* b, void* c, int64_t N,
                      int64_t M, int64_t K, int rows_of_a, int rows_of_b, int vectors, int special);
}

namespace {

// Memory behind which there is none that can be read: arrays are its last elements.
class Guarded {
  public:
    Guarded() {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), size = kBytes + page;
        void* base =
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED || mprotect(static_cast<char*>(base) + kBytes, page, PROT_NONE))
            abort();
        end_ = static_cast<char*>(base) + kBytes;
    }
    template <class T>
    T* last(int64_t count) const {
        if (count * static_cast<int64_t>(sizeof(T)) > kBytes) abort();
        return reinterpret_cast<T*>(end_) - count;
    }

  private:
    static constexpr int64_t kBytes = 1 << 16;  // whole pages, whatever their size
    char* end_;
};

struct Kernel {
    std::string name;  // as it is called
    std::string codes;  // "pot8", "pot16", "pot4", "fxpot", "f32", "i32"
    int unroll[3];
    bool integer() const { return codes == "fxpot" || codes == "i32"; }
    int bytes(int64_t K) const {  // of a row of b
        return static_cast<int>(codes == "pot4"    ? (K + 1) / 2
                                : codes == "pot8"  ? K
                                : codes == "pot16" ? 2 * K
                                                   : 4 * K);
    }
    int exponents() const {
        return codes == "pot4"                    ? 8
               : codes == "pot16"                 ? 256
               : codes == "f32" || codes == "i32" ? 1
                                                  : 32;
    }
};

// The weight at k of a row, as sign and exponent, written into the row's words.
void write_code(const Kernel& kernel, uint8_t* row, int64_t k, bool negative, int e) {
    const uint32_t sign = negative;
    if (kernel.codes == "pot4") {
        row[k / 2] = static_cast<uint8_t>(row[k / 2] | (sign << 3 | e) << (k % 2 * 4));
    } else if (kernel.codes == "pot8") {
        row[k] = static_cast<uint8_t>(sign << 7 | e);
    } else if (kernel.codes == "pot16") {
        const auto word = static_cast<uint16_t>(sign << 15 | e << 7);
        memcpy(row + 2 * k, &word, 2);
    } else if (kernel.codes == "fxpot") {
        const uint32_t word = sign << 31 | e;
        memcpy(row + 4 * k, &word, 4);
    } else if (kernel.codes == "f32") {
        const float one = negative ? -1.0f : 1.0f;
        memcpy(row + 4 * k, &one, 4);
    } else {
        const int32_t one = negative ? -1 : 1;
        memcpy(row + 4 * k, &one, 4);
    }
}

// A sum's bits, one NaN for all, and no difference between zeros: sums begin at +0.
uint32_t bits(float x) {
    uint32_t b;
    if (x == 0) x = 0;
    memcpy(&b, &x, 4);
    return std::isnan(x) ? 0x7FC00000 : b;
}
uint32_t bits(int32_t x) { return static_cast<uint32_t>(x); }

// sign * 2^e * x: as IEEE has it, or by adding e to the bits of x's exponent; modulo 2^32 for integers.
float product(float x, bool negative, int e, bool special) {
    if (special)
        return static_cast<float>(static_cast<double>(x) * std::ldexp(negative ? -1.0 : 1.0, e));
    uint32_t b;
    memcpy(&b, &x, 4);
    b += static_cast<uint32_t>(negative) << 31 | static_cast<uint32_t>(e) << 23;
    memcpy(&x, &b, 4);
    return x;
}
int32_t product(int32_t x, bool negative, int e, bool) {
    const uint32_t shifted = static_cast<uint32_t>(x) << e;
    return static_cast<int32_t>(negative ? 0u - shifted : shifted);
}

int64_t compared = 0;

template <class X>
void check(const Kernel& kernel, int64_t N, int64_t M, int64_t K, bool special, const X* a,
           const bool* negative, const int* e) {
    const int64_t stride = kernel.bytes(K);
    static const Guarded of_x, of_b, of_c;
    X *x = of_x.last<X>(N * K), *c = of_c.last<X>(N * M);
    uint8_t* b = of_b.last<uint8_t>(M * stride);
    memcpy(x, a, static_cast<size_t>(N * K) * sizeof(X));
    memset(b, 0, static_cast<size_t>(M * stride));
    for (int64_t i = 0; i < M; ++i)
        for (int64_t k = 0; k < K; ++k)
            write_code(kernel, b + i * stride, k, negative[i * K + k], e[i * K + k]);
    if (sterna_pot_matmul(kernel.name.c_str(), x, b, c, N, M, K, kernel.unroll[0], kernel.unroll[1],
                          kernel.unroll[2], special) != 0)
        abort();
    for (int64_t j = 0; j < N; ++j)
        for (int64_t i = 0; i < M; ++i) {
            X sum = 0;
            for (int64_t k = 0; k < K; ++k) {
                const X p = product(a[j * K + k], negative[i * K + k], e[i * K + k], special);
                if constexpr (std::is_same_v<X, float>) {
                    sum += p;
                } else {
                    sum = static_cast<X>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(p));
                }
            }
            ++compared;
            const uint32_t wanted = bits(sum), got = bits(c[j * M + i]);
            if (wanted == got) continue;
            printf("%s %dx%dx%d: N=%d M=%d K=%d special=%d, c[%d][%d] must be %08x, but is %08x\n",
                   kernel.name.c_str(), kernel.unroll[0], kernel.unroll[1], kernel.unroll[2],
                   static_cast<int>(N), static_cast<int>(M), static_cast<int>(K), special,
                   static_cast<int>(j), static_cast<int>(i), wanted, got);
            exit(1);
        }
}

template <class X>
void check_sums(const Kernel& kernel, std::mt19937& random) {
    constexpr int64_t kMostK = 300;
    for (const int64_t K : {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 129, 257, 300}) {
        const int64_t N = 1 + K % 5, M = 1 + K % 3;
        std::vector<X> a(static_cast<size_t>(N * K));
        bool negative[3 * kMostK];
        int e[3 * kMostK];
        for (auto& x : a) x = static_cast<X>(static_cast<int>(random() % 31) - 15);
        // |sum| <= 300 * 15 * 2^7 < 2^24.
        for (int64_t i = 0; i < M * K; ++i) {
            negative[i] = random() % 2;
            e[i] =
                static_cast<int>(random() % static_cast<unsigned>(std::min(8, kernel.exponents())));
        }
        check(kernel, N, M, K, true, a.data(), negative, e);
        if (kernel.integer()) continue;
        for (auto& x : a) x = x == 0 ? 1 : x;  // the paper's addition wants normal numbers
        check(kernel, N, M, K, false, a.data(), negative, e);
    }
}

// Every exponent and sign times values of all kinds, alone and next to normal numbers.
void check_products(const Kernel& kernel) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kMost = std::numeric_limits<float>::max();
    constexpr float kValues[] = {0.0f,    -0.0f,   1.0f,  -1.5f,  0x1p-126f, 0x1.8p-127f, 0x1p-149f,
                                 0x1p96f, 0x1p97f, kMost, -kMost, kInfinity, -kInfinity,  NAN};
    const bool adds = kernel.name.find('-') == std::string::npos && kernel.codes != "f32";
    for (int e = 0; e < kernel.exponents(); ++e)
        for (const bool minus : {false, true})
            for (const float x : kValues) {
                check(kernel, 1, 1, 1, true, &x, &minus, &e);
                if (adds) check(kernel, 1, 1, 1, false, &x, &minus, &e);
                // In any order the same where the product is small, of few bits, or no number.
                const float one = std::fabs(product(x, minus, e, true));
                if (one >= 0x1p20f && std::isfinite(one)) continue;
                const float beside[3] = {1.0f, x, 2.0f};
                const bool signs[3] = {false, minus, false};
                const int exponents[3] = {0, e, 0};
                check(kernel, 1, 1, 3, true, beside, signs, exponents);
            }
}

}  // namespace

int main() {
    std::mt19937 random(1);
    Kernel kernel;
    int kernels = 0;
    for (const char* name; (name = sterna_pot_kernel(kernels, kernel.unroll)); ++kernels) {
        kernel.name = name;
        kernel.codes = kernel.name.substr(0, kernel.name.find('-'));
        if (kernel.integer()) {
            check_sums<int32_t>(kernel, random);
        } else {
            check_sums<float>(kernel, random);
            check_products(kernel);
        }
    }
    printf("%s: %d kernels, %lld sums, each bit as defined\n", sterna_pot_isa(), kernels,
           static_cast<long long>(compared));
    return 0;
}
