// What the drivers of tests/foreign compare: each result of a unit with that of the scalar unit, bit for bit, and all of
// the scalar unit's with those of other architectures, by a digest.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "program/tensors.h"
#include "units/kernel_table.h"

namespace sterna::foreign {

class Comparison {
  public:
    Comparison(const KernelTable& u, const KernelTable& s) : unit(u), scalar(s) {}
    const KernelTable &unit, &scalar;

    // Exits where a byte differs. what: said then.
    void equal(const std::string& what, const void* of_unit, const void* of_scalar, size_t bytes) {
        const auto *u = static_cast<const uint8_t*>(of_unit),
                   *s = static_cast<const uint8_t*>(of_scalar);
        for (size_t i = 0; i < bytes; ++i) {
            digest_ = (digest_ ^ s[i]) * 0x100000001b3u;  // FNV-1a
            if (u[i] == s[i]) continue;
            printf("%s, %s: byte %zu of %zu must be %02x, but is %02x\n", unit.isa, what.c_str(), i,
                   bytes, s[i], u[i]);
            exit(1);
        }
        ++results_;
    }
    template <class T>
    void equal(const std::string& what, const std::vector<T>& of_unit,
               const std::vector<T>& of_scalar) {
        equal(what, of_unit.data(), of_scalar.data(), of_unit.size() * sizeof(T));
    }
    int64_t results() const { return results_; }
    uint64_t digest() const { return digest_; }

  private:
    int64_t results_ = 0;
    uint64_t digest_ = 0xcbf29ce484222325u;
};

// Numbers that are the same with every C++ library.
class Random {
  public:
    uint32_t below(uint32_t n) { return engine_() % n; }
    // Of a bell's shape, from -4 to 4; exact in float.
    float bell() {
        int32_t sum = 0;
        for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>(below(1 << 16)) - (1 << 15);
        return static_cast<float>(sum) * 0x1p-15f;
    }
    std::vector<float> floats(int64_t n, float factor = 1.0f) {
        std::vector<float> x(static_cast<size_t>(n));
        for (float& v : x) v = factor * bell();
        return x;
    }

  private:
    std::mt19937 engine_{20261125};
};

void compare_formats(Comparison& c);
void compare_rows(Comparison& c);
void compare_attention(Comparison& c);

}  // namespace sterna::foreign
