#include "runtime/measure.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/cpu.h"
#include "runtime/memory.h"
#include "runtime/pool.h"

namespace sterna {
namespace {

constexpr size_t kTurn = 512;  // eight of the widest vectors
constexpr size_t kMostReadStreams = 4;
constexpr size_t kStep = kMostReadStreams * kTurn;  // parts are multiples of it
constexpr size_t kLeastPart = 4096;  // bytes a thread
constexpr int kRepeats = 5;

// XOR of all words of [begin, end), a multiple of kStep bytes, as kStreams streams side by side, a turn of each at
// a time, lines asked for kAhead bytes before they are read (0: not). By vectors of type V: one body at three
// widths, as always_inline takes the target of the function around it.
template <class V, size_t kStreams, size_t kAhead>
__attribute__((always_inline)) inline uint64_t read_with(const uint8_t* begin, const uint8_t* end) {
    constexpr size_t kChains = 8;  // independent sums, so that loads and not the XORs set the pace
    static_assert(kTurn % (kChains * sizeof(V)) == 0);
    V sum[kChains] = {};
    const auto stream = static_cast<size_t>(end - begin) / kStreams;
    for (size_t at = 0; at != stream; at += kTurn)
        for (size_t s = 0; s < kStreams; ++s) {
            const uint8_t* turn = begin + s * stream + at;
            if constexpr (kAhead != 0)
                for (size_t line = 0; line < kTurn; line += 64)
                    __builtin_prefetch(turn + kAhead + line);
            for (size_t i = 0; i < kTurn; i += kChains * sizeof(V)) {
                const V* v = reinterpret_cast<const V*>(turn + i);
#pragma GCC unroll 8
                for (size_t j = 0; j < kChains; ++j) sum[j] ^= v[j];
            }
        }
    for (size_t i = 1; i < kChains; ++i) sum[0] ^= sum[i];
    uint64_t result = 0;
    for (size_t i = 0; i < sizeof(V) / 8; ++i) result ^= static_cast<uint64_t>(sum[0][i]);
    return result;
}

// The patterns, the fastest of which is the yardstick. It differs between machines which one is fastest.
enum class Pattern { kPlain, kAhead, kFour };
constexpr Pattern kPatterns[] = {Pattern::kPlain, Pattern::kAhead, Pattern::kFour};

template <class V>
__attribute__((always_inline)) inline uint64_t read_as(Pattern pattern, const uint8_t* begin,
                                                       const uint8_t* end) {
    switch (pattern) {
        case Pattern::kPlain:
            return read_with<V, 1, 0>(begin, end);
        case Pattern::kAhead:
            return read_with<V, 1, 4096>(begin, end);
        case Pattern::kFour:
            return read_with<V, kMostReadStreams, 0>(begin, end);
    }
    return 0;
}

typedef long long V128 __attribute__((vector_size(16), may_alias));

uint64_t read_16(Pattern p, const uint8_t* begin, const uint8_t* end) {
    return read_as<V128>(p, begin, end);
}

#if defined(__x86_64__)
typedef long long V256 __attribute__((vector_size(32), may_alias));
typedef long long V512 __attribute__((vector_size(64), may_alias));

__attribute__((target("avx2"))) uint64_t read_32(Pattern p, const uint8_t* begin,
                                                 const uint8_t* end) {
    return read_as<V256>(p, begin, end);
}

__attribute__((target("avx512f"))) uint64_t read_64(Pattern p, const uint8_t* begin,
                                                    const uint8_t* end) {
    return read_as<V512>(p, begin, end);
}
#endif

using ReadFn = uint64_t (*)(Pattern, const uint8_t*, const uint8_t*);

ReadFn widest_read() {
#if defined(__x86_64__)
    if (has_feature("avx512f")) return read_64;
    if (has_feature("avx2")) return read_32;
#endif
    return read_16;
}

// Seconds of `steps` (a multiple of 64) dependent additions. Every core that we know adds two
// registers in one cycle, and no renamer folds the sum, as some do with additions of a constant;
// the empty assembly keeps the compiler from folding it.
double chain_seconds(int64_t steps) {
    using Clock = std::chrono::steady_clock;
    uint64_t sum = 0;
    uint64_t one = 1;
    asm volatile("" : "+r"(one));
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < steps; i += 64) {
#pragma GCC unroll 64
        for (int j = 0; j < 64; ++j) {
            sum += one;
            asm volatile("" : "+r"(sum));
        }
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double cycles_per_second(Pool& pool) {
    constexpr int64_t kSteps = int64_t{1} << 22;  // about a millisecond
    constexpr int kRuns = 16;  // time for a clock to rise from its idle state
    std::vector<double> best(static_cast<size_t>(pool.size()), 1e9);
    pool.run([&](int worker) {
        double& mine = best[static_cast<size_t>(worker)];
        for (int i = 0; i < kRuns; ++i) mine = std::min(mine, chain_seconds(kSteps));
    });
    double sum = 0;
    for (const double time_s : best) sum += static_cast<double>(kSteps) / std::max(time_s, 1e-9);
    return sum / static_cast<double>(best.size());
}

double bandwidth_gb_s(Pool& pool, size_t nbytes) {
    using Clock = std::chrono::steady_clock;
    const int threads = pool.size();
    const size_t part = nbytes / static_cast<size_t>(threads) / kStep * kStep;
    if (part < kLeastPart || nbytes > SIZE_MAX / 2) {
        throw std::invalid_argument("nbytes: must be at least " + std::to_string(kLeastPart) +
                                    " for each thread, but got " + std::to_string(nbytes));
    }
    const HugeBuffer buffer(nbytes);
    const auto part_of = [&](int worker) {
        return buffer.data() + part * static_cast<size_t>(worker);
    };
    // Written, not just read: untouched pages all map to the one zero page, which is in the cache.
    pool.run([&](int worker) { std::memset(part_of(worker), worker + 1, part); });

    const ReadFn read = widest_read();
    std::atomic<uint64_t> sink{0};  // keeps the reads alive
    constexpr size_t kCount = std::size(kPatterns);
    // A pattern's result is its median, as that of the kernels compared with it. Patterns take turns.
    std::array<std::array<double, kRepeats>, kCount> times_s{};
    for (int i = 0; i < kRepeats; ++i)
        for (size_t p = 0; p < kCount; ++p) {
            const Clock::time_point start = Clock::now();
            pool.run([&](int worker) {
                const uint8_t* begin = part_of(worker);
                sink.fetch_xor(read(kPatterns[p], begin, begin + part), std::memory_order_relaxed);
            });
            times_s[p][static_cast<size_t>(i)] =
                std::chrono::duration<double>(Clock::now() - start).count();
        }
    double best_s = 1e9;
    for (auto& times : times_s) {
        std::ranges::sort(times);
        best_s = std::min(best_s, times[kRepeats / 2]);
    }
    return static_cast<double>(part) * threads / std::max(best_s, 1e-9) / 1e9;
}

double read_gb_s(Pool& pool, std::span<const std::span<const uint8_t>> arrays) {
    using Clock = std::chrono::steady_clock;
    const auto threads = static_cast<size_t>(pool.size());
    // Vectors are loaded from their multiples.
    const auto lines_of = [](std::span<const uint8_t> array) {
        const size_t odd = (64 - reinterpret_cast<uintptr_t>(array.data()) % 64) % 64;
        return array.subspan(std::min(odd, array.size()));
    };
    const auto part_of = [&](std::span<const uint8_t> lines) {
        return lines.size() / threads / kStep * kStep;
    };
    size_t total = 0;
    for (const auto& array : arrays) total += part_of(lines_of(array)) * threads;
    if (total == 0) throw std::invalid_argument("arrays: must have bytes for each thread");
    const bool four = default_readings().of(ReadLoop::kFewBits).streams > 1;
    const Pattern pattern = four ? Pattern::kFour : Pattern::kAhead;
    const ReadFn read = widest_read();
    std::atomic<uint64_t> sink{0};  // keeps the reads alive
    const Clock::time_point start = Clock::now();
    pool.run([&](int worker) {
        uint64_t sum = 0;
        for (const auto& array : arrays) {
            const auto lines = lines_of(array);
            const size_t part = part_of(lines);
            const uint8_t* begin = lines.data() + part * static_cast<size_t>(worker);
            sum ^= read(pattern, begin, begin + part);
        }
        sink.fetch_xor(sum, std::memory_order_relaxed);
    });
    const double took_s = std::chrono::duration<double>(Clock::now() - start).count();
    return static_cast<double>(total) / std::max(took_s, 1e-9) / 1e9;
}

double barrier_ns(Pool& pool, int64_t rounds) {
    using Clock = std::chrono::steady_clock;
    if (rounds < 1) {
        throw std::invalid_argument("rounds: must be at least 1, but got " +
                                    std::to_string(rounds));
    }
    Barrier& barrier = pool.barrier();
    double best_ns = 0.0;
    for (int i = 0; i < kRepeats; ++i) {
        double time_ns = 0.0;
        pool.run([&](int worker) {
            barrier.arrive_and_wait();  // all have woken up
            const Clock::time_point start = Clock::now();
            for (int64_t round = 0; round < rounds; ++round) barrier.arrive_and_wait();
            const std::chrono::duration<double, std::nano> time = Clock::now() - start;
            if (worker == 0) time_ns = time.count();
        });
        if (i == 0 || time_ns < best_ns) best_ns = time_ns;
    }
    return best_ns / static_cast<double>(rounds);
}

}  // namespace sterna
