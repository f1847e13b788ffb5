// What a self-check finds: a digest of each result of a unit's kernels. All units have the same results, bit for bit, so
// one table of digests serves every unit and machine (src/sterna/calibration/kernel_digests.json).
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "units/kernel_table.h"

namespace sterna::selfcheck {

constexpr uint64_t kDigestStart = 0xcbf29ce484222325u;
// FNV-1a of words of 8 bytes, turned so that high bits reach low ones.
inline uint64_t digest_of(uint64_t digest, const void* bytes, size_t count) {
    const auto* b = static_cast<const uint8_t*>(bytes);
    for (size_t i = 0; i < count; i += 8) {
        uint64_t word = 0;
        memcpy(&word, b + i, count - i < 8 ? count - i : 8);
        digest = std::rotl((digest ^ word) * 0x100000001b3u, 29);
    }
    return digest;
}

// One result. group: what a table has one digest of, such as "b4 16 g32". wrong: it breaks a rule that needs no table.
struct Finding {
    std::string group, what;
    uint64_t digest;
    bool wrong = false;
};

class Findings {
  public:
    explicit Findings(const KernelTable& u) : unit(u) {}
    const KernelTable& unit;

    void begin(std::string group) { group_ = std::move(group); }
    template <class T>
    void add(std::string what, const std::vector<T>& result) {
        all.push_back({group_, std::move(what),
                       digest_of(kDigestStart, result.data(), result.size() * sizeof(T))});
    }
    void wrong(std::string what) { all.push_back({group_, std::move(what), 0, true}); }

    std::vector<Finding> all;

  private:
    std::string group_;
};

// Numbers that are the same with every C++ library.
class Random {
  public:
    uint32_t below(uint32_t n) { return engine_() % n; }
    void skip(unsigned count) { engine_.discard(count); }
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

void check_products(Findings& found);
void check_rows(Findings& found);
void check_attention(Findings& found);

}  // namespace sterna::selfcheck
