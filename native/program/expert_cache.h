// Experts that stay on disk until a token chooses them: some of them in memory, the others read when they are needed.
//
// A *unit* is a matrix of one expert, its codes and its lines of scales; a *slot* has room for one. Units of a size share
// an arena of slots, and budgets are divided so that of each arena the same part of its units fits. When a route has
// chosen experts, the first matrix that reads them gets a *plan*: its units that are here, then the others in the order
// in which they are read. Threads of the cache read while workers compute with what is here already. Units of a plan keep
// their slots until they were computed, so a step of any number of tokens reads each unit at most once, whatever the
// budget. The matrices that follow are read ahead as long as that takes no slot from the plan.
//
// What leaves is the unit with the least *weight*, a count of its uses in which a use is worth half as much after
// kHalfLife steps (LRFU, Lee et al. 2001). No choice changes a bit.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "files/mapped_file.h"
#include "runtime/memory.h"

namespace sterna {

// The disk could not give bytes of a file that is still the one that was opened. what(): its path.
struct FailedRead : std::runtime_error {
    FailedRead(const std::string& path, uint64_t at, int number)
        : std::runtime_error(path), offset(at), error(number) {}
    uint64_t offset;
    int error;  // a number of errno
};

class ExpertCache {
  public:
    // A matrix of all experts in a mapped file: codes of `experts` experts one after the other, and lines of scales
    // likewise, or none (null).
    struct Matrix {
        const uint8_t* codes;
        int64_t code_bytes;  // of one expert
        const uint8_t* groups;
        int64_t group_bytes;
        int experts;
    };
    // Where a unit lies in memory.
    struct Place {
        const uint8_t *codes, *groups;
    };
    struct Counts {
        int64_t hits = 0, misses = 0;  // units that were here, or were not, when they were chosen
        int64_t bytes = 0;  // read
        int64_t units = 0, slots = 0;
        double waited_s = 0;  // of workers, for units that were not there yet
    };

    // The bytes that `matrices` need at least, one slot of each size, and those that hold all of them.
    static std::pair<int64_t, int64_t> bounds(std::span<const Matrix> matrices);

    // bytes: at least the first of `bounds`. Throws std::bad_alloc. The file outlives it.
    ExpertCache(const MappedFile& file, std::vector<Matrix> matrices, int64_t bytes, int readers);
    ~ExpertCache();
    ExpertCache(const ExpertCache&) = delete;

    // The number of the matrix with these codes; -1 where it is not here.
    int matrix_of(const uint8_t* codes) const;

    // A step that uses it; steps take turns.
    std::unique_lock<std::mutex> begin_step();
    // These matrices compute with these experts, one matrix after the other. By one thread, while no worker is inside
    // `acquire`.
    void route(std::span<const int> matrices, std::span<const int32_t> active);

    // The i-th expert of the plan, which is one of this matrix.
    int32_t planned(int64_t i) const { return plan_.order[static_cast<size_t>(i)]; }
    // Waits until the i-th unit of the plan is here. Throws FailedRead or ChangedFile.
    Place acquire(int64_t i);
    // One of the `pieces` of its work is done.
    void release(int64_t i, int pieces);

    Counts counts() const;

  private:
    static constexpr double kHalfLife = 64;  // steps
    enum class State : uint8_t { kAbsent, kQueued, kLoading, kHere };
    struct Unit {
        State state = State::kAbsent;
        bool locked = false;  // of the plan, and not computed yet
        bool demanded = false;  // its read began for the plan
        bool failed = false;
        int32_t slot = -1;
        int64_t soon = -1;  // the route that needs it
        int32_t done = 0;  // pieces
        double weight = -1e9;  // log2 of its uses, each worth 2^(time of use / half-life)
    };
    struct Key {
        int32_t matrix = -1, expert = -1;
    };
    struct Arena {
        int64_t slot_bytes = 0, units = 0;
        HugeBuffer memory{};
        std::vector<Key> slots{};  // what each has; of matrix -1: nothing
    };
    struct Plan {
        std::vector<int32_t> matrices{}, active{};  // of the route
        size_t at = 0;  // the matrix that it is for
        std::vector<int32_t> order{};
        size_t left = 0;  // units
    };
    // What a forked child must not take over.
    struct Sync {
        std::mutex mutex, steps;
        std::condition_variable here, work;
    };

    static std::vector<Arena> arenas_of(std::span<const Matrix> matrices, int* arena_of);
    Unit& unit(Key k) {
        return units_[static_cast<size_t>(k.matrix)][static_cast<size_t>(k.expert)];
    }
    void begin_plan();
    void wake_readers();
    void read_ahead(Key k, int64_t route);
    void end_route();
    bool take_next(Key& k);
    int32_t slot_for(Key k, bool demanded);
    uint8_t* slot_of(Key k);
    Place place(Key k);
    void read(Key k, uint8_t* slot) const;
    void read_span(const uint8_t* at, int64_t bytes, uint8_t* to) const;
    void read_forever();

    const MappedFile& file_;
    const std::vector<Matrix> matrices_;
    system::File direct_ = -1;
    std::vector<int> arena_of_;  // of each matrix
    std::vector<Arena> arenas_;
    std::vector<std::vector<Unit>> units_;
    std::deque<Key> demand_, ahead_;
    Plan plan_;
    std::exception_ptr failure_;  // of the plan
    int64_t route_ = 0;
    double time_ = 0;  // steps, in half-lives
    int last_ = -1;  // the matrix that the last route began with
    Counts counts_;
    const int readers_;
    bool ending_ = false;
    std::unique_ptr<std::vector<std::thread>> threads_;
    std::unique_ptr<Sync> sync_ = std::make_unique<Sync>();
    int64_t owner_;
};

}  // namespace sterna
