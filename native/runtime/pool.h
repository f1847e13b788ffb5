// The thread pool: the caller and size - 1 workers run one function together. Work inside an op is
// handed out (hand_out.h), so that slow and fast cores finish together; ops are separated by a
// Barrier (under a microsecond while every thread has a core of its own).
//
// Waiting is always spin, then sleep. With more threads than CPUs a spinning thread keeps the one
// it waits for off the CPU, so a pool that is larger than the process's share hardly spins.
// Sleeping is a futex or its like and not a yield: after a yield a busy neighbour may keep the CPU for
// milliseconds, whereas a woken thread preempts it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <vector>

#include "runtime/affinity.h"
#include "runtime/hand_out.h"
#include "runtime/reading.h"
#include "units/kernel_table.h"

namespace sterna {

constexpr int kMaxThreads = 1024;

// A counter that threads wait on. The waker pays for a system call only if someone sleeps.
class alignas(64) WaitWord {
  public:
    uint32_t load() const { return value_.load(std::memory_order_acquire); }
    // Adds one and wakes all; earlier writes are visible to threads that read the new value.
    void advance();
    // Returns once the value differs from `old`: spins for about spin_ns, then sleeps. True if the
    // spin was enough. Asks for memory while it spins.
    bool wait_past(uint32_t old, int64_t spin_ns, ReadAhead* ahead = nullptr);

    std::atomic<int> beside{0};  // the owner's, in the same cache line

  private:
    std::atomic<uint32_t> value_{0};
    std::atomic<uint32_t> sleepers_{0};
};

// Thrown out of a Barrier that was aborted because another thread's task failed.
class BarrierAborted : public std::exception {
  public:
    const char* what() const noexcept override { return "barrier: another thread's task failed"; }
};

// Reusable barrier of `parties` threads. The count of completed rounds plays the part of the sense.
class Barrier {
  public:
    // spin_ns < 0: chosen from the CPUs that this process may use.
    explicit Barrier(int parties, int64_t spin_ns = -1);

    // ahead: memory that the thread may prefetch while it waits.
    void arrive_and_wait(ReadAhead* ahead = nullptr) {
        // The round is read before the flag: an abort after this load is seen by wait_past.
        const uint32_t round = round_.load();
        if (aborted_.load(std::memory_order_acquire)) throw BarrierAborted();
        if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            remaining_.store(parties_, std::memory_order_relaxed);
            round_.advance();
            return;
        }
        wait(round, ahead);
        if (aborted_.load(std::memory_order_acquire)) throw BarrierAborted();
    }

    // Releases all threads that wait now or later with BarrierAborted, until reset().
    void abort();
    void reset();  // only while no thread is inside

  private:
    void wait(uint32_t round, ReadAhead* ahead);

    // In a small team the count of threads still to come shares the cache line that the others watch:
    // the last thread owns the line already when it writes the round (170 ns a barrier for two cores
    // of a mesh, 480 with a line each). Many watchers would keep taking the line from late threads.
    static constexpr int kSmallTeam = 4;

    const int parties_;
    const int64_t spin_ns_;
    std::atomic<int>& remaining_;
    std::atomic<uint32_t> misses_{0};  // waits in a row for which the spin was not enough
    std::atomic<bool> aborted_{false};
    alignas(64) std::atomic<int> apart_{0};
    WaitWord round_;
};

// Where the threads of a pool run. Workers are put there when they start, the caller for the time
// of a run; a CPU that has gone since (taken offline) leaves its thread to the system's choice.
struct Placement {
    std::vector<int> cpus{};  // none: wherever the system likes
    bool pinned =
        false;  // worker i on cpus[i] alone; otherwise each on any of them, or of its node's
    // Memory nodes, if the threads belong to several; threads of a node are adjacent.
    struct Node {
        int threads = 0;
        std::vector<int> cpus{};  // none, of all nodes: a rehearsal, whose threads run anywhere

        friend bool operator==(const Node&, const Node&) = default;
    };
    std::vector<Node> nodes{};

    friend bool operator==(const Placement&, const Placement&) = default;
};

class Pool {
  public:
    // Threads start at the first run. Throws std::invalid_argument unless 1 <= threads <=
    // kMaxThreads, or where a pinned thread has no CPU, or nodes have other threads than the pool.
    explicit Pool(int threads, Placement placement = {});
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return size_; }
    const Placement& placement() const { return placement_; }
    const NodeTeam& team() const { return team_; }

    // How its threads read memory. A step takes it as it begins.
    Readings readings() const;
    void set_readings(const Readings& readings);

    // Runs f(worker) for worker = 0 .. size() - 1 at the same time and returns when all are done;
    // the caller is worker 0. All run with the default floating-point state (fpenv.h); the caller's
    // is restored, as are its CPUs. One run at a time: a second caller waits. A child made by fork() gets workers of
    // its own.
    //
    // The first exception to leave any f aborts barrier() and is rethrown here. Throws
    // std::system_error if threads cannot be started, std::logic_error from inside a task.
    template <class F>
    void run(F&& f) {
        using Task = std::remove_reference_t<F>;
        run_task([](void* task, int worker) { (*static_cast<Task*>(task))(worker); },
                 const_cast<void*>(static_cast<const void*>(std::addressof(f))));
    }

    // Barrier of all size() threads, for use inside a run. Fetch it once: it asks for the process's number.
    Barrier& barrier();

  private:
    struct State;
    using TaskFn = void (*)(void* task, int worker);

    void run_task(TaskFn fn, void* task);
    State& current_state();

    const int size_;
    const Placement placement_;
    NodeTeam team_;
    std::atomic<Reading> of_weights_[kReadLoops];
    std::atomic<bool> next_page_;
    std::atomic<State*> state_;
};

// The process-wide pool of that size and place, made at the first use and never destroyed.
Pool& shared_pool(int threads, const Placement& placement = {});

}  // namespace sterna
