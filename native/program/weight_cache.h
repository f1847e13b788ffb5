// Weights that stay on disk: some of them in memory, the others read when they are needed.
//
// A *part* is a matrix of one expert, or some tiles of a matrix that every token reads: its codes and its lines of scales.
// A *slot* has room for one. Parts of a size share an arena of slots, and budgets are divided so that of each arena the
// same share of its parts fits. A route says which parts of some matrices are needed, in the order of the matrices: when a
// router has chosen experts, of the matrices that they have; when a step begins, of all that every token reads. The first
// matrix gets a *plan*: its parts that are here, then the others in the order in which they are read. Threads of the cache
// read while workers compute with what is here already. Parts of a plan keep their slots until they were computed, so a
// step of any number of tokens reads each part at most once, whatever the budget. The matrices that follow are read ahead
// as long as that takes no slot from what the route still needs.
//
// When nothing is left to read for a route, the disk would rest until the next router has run. So what that is guessed to
// choose (`GuessOp`) is read, as long as enough of what was guessed lately was needed.
//
// Of experts, what leaves is the part with the least *weight*, a count of its uses in which a use is worth half as much
// after kHalfLife steps (LRFU, Lee et al. 2001). Of what every token reads, that would be the part which is needed next, so
// most slots are given once and for all, to parts that are spread over the model: the disk then reads the others all the
// time. No choice changes a bit.
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

class WeightCache {
  public:
    // A matrix in a mapped file: codes of its parts one after the other, and lines of scales likewise, or none (null).
    struct Matrix {
        const uint8_t* codes;
        int64_t code_bytes;  // of one part
        const uint8_t* groups;
        int64_t group_bytes;
        int parts;
        bool every_token;  // reads all parts; else those of the experts that were chosen
    };
    // Where a part lies in memory.
    struct Place {
        const uint8_t *codes, *groups;
    };
    struct Counts {
        int64_t hits = 0, misses = 0;  // parts that were here, or were not, when they were needed
        int64_t bytes = 0;  // read
        int64_t guessed = 0,
                guessed_right = 0;  // absent parts that were guessed; those needed then
        int64_t parts = 0, slots = 0;
        double waited_s = 0;  // of workers, for parts that were not there yet
    };

    // The bytes that `matrices` need at least, one slot of each size, and those that hold all of them.
    static std::pair<int64_t, int64_t> bounds(std::span<const Matrix> matrices);

    // bytes: at least the first of `bounds`. Throws std::bad_alloc. The file outlives it.
    WeightCache(const MappedFile& file, std::vector<Matrix> matrices, int64_t bytes, int readers);
    ~WeightCache();
    WeightCache(const WeightCache&) = delete;

    // The number of the matrix with these codes; -1 where it is not here.
    int matrix_of(const uint8_t* codes) const;
    bool every_token(int matrix) const {
        return matrices_[static_cast<size_t>(matrix)].every_token;
    }
    int parts_of(int matrix) const { return matrices_[static_cast<size_t>(matrix)].parts; }

    // A step that uses it; steps take turns.
    std::unique_lock<std::mutex> begin_step();
    // These matrices compute, one after the other, with these experts or, where every token reads them, with all of their
    // parts. By one thread, while no worker is inside `acquire`.
    void route(std::span<const int> matrices, std::span<const int32_t> experts);
    // What the next route may be. After `route`, by one thread.
    void guess(std::span<const int> matrices, std::span<const int32_t> experts);

    // The i-th part of the plan, which is one of the matrix that computes.
    int32_t planned(int64_t i) const { return plan_.order[static_cast<size_t>(i)]; }
    // Waits until the i-th part of the plan is here. Throws FailedRead or ChangedFile.
    Place acquire(int64_t i);
    // One of the `pieces` of its work is done.
    void release(int64_t i, int pieces);

    Counts counts() const;

  private:
    static constexpr double kHalfLife = 64;  // steps
    // Of an arena, the slots that parts which every token reads take in turn: reads that are under way, and what waits
    // to be computed.
    static constexpr int64_t kTurning = 8;
    // Guesses are followed while at least this share of what they read is needed, and count for about kTrustOf parts.
    static constexpr double kTrusted = 0.5, kTrustOf = 32;
    enum class State : uint8_t { kAbsent, kQueued, kLoading, kHere };
    struct Part {
        State state = State::kAbsent;
        bool stays = false;  // once it is here
        bool locked = false;  // of the plan, and not computed yet
        bool demanded = false;  // its read began for the plan
        bool failed = false;
        int32_t slot = -1;
        int64_t soon = -1, guessed = -1;  // the routes that need it, and are guessed to
        int32_t done = 0;  // pieces of its work
        double weight = -1e9;  // log2 of its uses, each worth 2^(time of use / half-life)
    };
    struct Key {
        int32_t matrix = -1, part = -1;
    };
    struct Arena {
        int64_t slot_bytes = 0, parts = 0;
        HugeBuffer memory{};
        std::vector<Key> slots{};  // what each has; of matrix -1: nothing
    };
    struct Plan {
        std::vector<int32_t> matrices{}, experts{};  // of the route
        size_t at = 0;  // the matrix that it is for
        std::vector<int32_t> order{};
        size_t left = 0;  // parts
    };
    // What a forked child must not take over.
    struct Sync {
        std::mutex mutex, steps;
        std::condition_variable here, work;
    };

    static std::vector<Arena> arenas_of(std::span<const Matrix> matrices, int* arena_of);
    Part& part(Key k) { return parts_[static_cast<size_t>(k.matrix)][static_cast<size_t>(k.part)]; }
    Arena& arena(Key k) {
        return arenas_[static_cast<size_t>(arena_of_[static_cast<size_t>(k.matrix)])];
    }
    const Matrix& matrix(Key k) const { return matrices_[static_cast<size_t>(k.matrix)]; }
    std::span<const int32_t> needed_of(int matrix) const;
    void choose_what_stays();
    void begin_plan();
    void wake_readers();
    void read_ahead(Key k);
    void end_route();
    void judge_guess();
    bool take_next(Key& k);
    bool begin_read(Key k, bool demanded);
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
    std::vector<std::vector<Part>> parts_;
    std::vector<int32_t> all_parts_;  // 0, 1, ...: as many as any matrix has
    std::deque<Key> demand_, ahead_, guess_;
    std::vector<Key> guessed_;  // all parts of the guess that were absent
    std::vector<double>
        trust_;  // of each matrix: the share of guessed parts that were needed, lately
    std::vector<bool> full_;  // arenas without a slot for what is read ahead
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
