#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <thread>

#include "runtime/fpenv.h"
#include "runtime/hand_out.h"
#include "runtime/pool.h"
#include "testing/core/checks.h"

namespace sterna::testing {
namespace {

constexpr int kThreads = 4;

// Rounds of a barrier: no thread is ahead of another by more than one.
void check_barrier(Pool& pool) {
    constexpr int kRounds = 2000;
    std::atomic<int> arrived{0};
    std::atomic<bool> wrong{false};
    pool.run([&](int) {
        Barrier& barrier = pool.barrier();
        for (int round = 1; round <= kRounds; ++round) {
            arrived.fetch_add(1);
            barrier.arrive_and_wait();
            if (arrived.load() < round * kThreads) wrong = true;
            barrier.arrive_and_wait();
        }
    });
    require(!wrong && arrived == kRounds * kThreads, "a barrier holds all threads");
}

void check_hand_out(Pool& pool) {
    constexpr int64_t kItems = 10'007;
    std::vector<std::atomic<int>> times(kItems);
    HandOut hand_out(kThreads);
    const Division division{.total = kItems, .threads = kThreads};
    pool.run([&](int worker) {
        for (int64_t begin, end; hand_out.next(division, worker, begin, end);)
            for (; begin < end; ++begin) times[static_cast<size_t>(begin)].fetch_add(1);
    });
    for (const auto& time : times) require(time == 1, "each item is handed out once");
}

// Threads sleep between two runs, and are woken.
void check_sleep(Pool& pool) {
    for (int i = 0; i < 20; ++i) {
        std::atomic<int> ran{0};
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        pool.run([&](int) { ran.fetch_add(1); });
        require(ran == kThreads, "all threads run");
    }
}

float smallest() {
    volatile float tiny = 1e-38f;
    return tiny * 0.01f;  // a denormal; 0 where they are flushed
}

}  // namespace

std::string check_pool() {
    Pool pool(kThreads);
    check_barrier(pool);
    check_hand_out(pool);
    check_sleep(pool);
    std::atomic<int> kept{0};
    pool.run([&](int) { kept.fetch_add(smallest() > 0.0f); });
    require(kept == kThreads, "threads keep denormals");
    return std::to_string(kThreads) + " threads: barriers, shares, sleep";
}

namespace {

std::atomic<bool> interrupted{false};
void on_signal(int) { interrupted = true; }

}  // namespace

std::string check_interrupts() {
    Pool pool(kThreads);
    // One thread's task fails while the others wait for it.
    for (int failing = 0; failing < kThreads; ++failing) {
        std::string what;
        try {
            pool.run([&](int worker) {
                if (worker == failing) throw std::runtime_error("a task failed");
                pool.barrier().arrive_and_wait();
            });
        } catch (const std::runtime_error& e) {
            what = e.what();
        }
        require(what == "a task failed", "the failure comes out of the run");
        check_barrier(pool);
    }
    // A signal comes to the caller while the pool runs, which ends when it is asked to.
    const auto before = std::signal(SIGINT, &on_signal);
    pool.run([&](int worker) {
        if (worker == 0) std::raise(SIGINT);
        while (!interrupted) std::this_thread::yield();
    });
    std::signal(SIGINT, before);
    check_barrier(pool);
    return "failures and a signal in a run";
}

}  // namespace sterna::testing
