#include "runtime/pool.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "runtime/affinity.h"
#include "runtime/fpenv.h"
#include "runtime/system/system.h"

namespace sterna {
namespace {

// Sleeping and being woken costs 20 to 50 us on a virtual machine, so a thread spins for about as
// long before it sleeps. With 3 us instead of 30, ops of 50 us took 1.4 x as long on two busy CPUs:
// threads that sleep at every op also look idle to the scheduler, which then puts both on one CPU.
constexpr int64_t kBarrierSpinNs = 30'000;
// Once a run, so it may last longer: for the end of the others, whose last chunk is longer than a wake-up
// where layers are small, and for the next run, before which the caller samples and detokenises. With 30 us
// and 50 us a layer of 512 x 512 x 512 took 1.2 x as long, its threads asleep at every end.
constexpr int64_t kIdleSpinNs = 300'000;
// More threads than CPUs: just long enough to catch a peer that is at the same line.
constexpr int64_t kCrowdedSpinNs = 500;

void relax_cpu() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");  // `yield` does nothing on most cores
#endif
}

bool is_crowded(int threads, size_t cpus = SIZE_MAX) {
    // Once, as it reads files and a barrier may be made at every step.
    static const size_t allowed = allowed_cpus().size();
    static const double quota = system::cpu_quota("");
    return static_cast<size_t>(threads) > std::min(cpus, allowed) ||
           (quota > 0.0 && threads > quota);
}

// One set for each thread of a pinned pool, one for all of another, none where none is wanted.
std::vector<CpuSet> places_of(int threads, const Placement& placement) {
    std::vector<CpuSet> places;
    const std::span<const int> cpus = placement.cpus;
    if (cpus.empty()) return places;
    if (!placement.pinned && placement.nodes.empty()) return {CpuSet(cpus)};
    if (!placement.pinned) {
        for (const auto& node : placement.nodes)
            places.insert(places.end(), static_cast<size_t>(node.threads), CpuSet(node.cpus));
        return places;
    }
    for (size_t i = 0; i < static_cast<size_t>(threads); ++i) {
        places.emplace_back(cpus.subspan(i, 1));
    }
    return places;
}

// Set while this thread runs a task: a nested run would wait for itself and never end.
thread_local bool inside_task = false;

}  // namespace

void WaitWord::advance() {
    // Both sequentially consistent: either the sleeper sees the new value or we see the sleeper.
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) system::wake_all(value_);
}

bool WaitWord::wait_past(uint32_t old, int64_t spin_ns, ReadAhead* ahead) {
    using Clock = std::chrono::steady_clock;
    if (load() != old) return true;
    const Clock::time_point deadline = Clock::now() + std::chrono::nanoseconds(spin_ns);
    do {
        for (int i = 0; i < 8; ++i) {
            if (ahead && ahead->more())
                ahead->ask();
            else
                relax_cpu();
            if (load() != old) return true;
        }
    } while (Clock::now() < deadline);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == old) system::sleep_while_equal(value_, old);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return false;
}

Barrier::Barrier(int parties, int64_t spin_ns)
    : parties_(parties),
      spin_ns_(spin_ns >= 0          ? spin_ns
               : is_crowded(parties) ? kCrowdedSpinNs
                                     : kBarrierSpinNs),
      remaining_(parties <= kSmallTeam ? round_.beside : apart_) {
    remaining_.store(parties, std::memory_order_relaxed);
}

void Barrier::wait(uint32_t round, ReadAhead* ahead) {
    // If another process has driven two threads onto one CPU, each spin only delays the thread it waits for (50 us a
    // barrier; 8 with this rule). After a few misses hardly spin, but try again now and then.
    constexpr uint32_t kPatience = 4, kRetry = 16;
    const uint32_t misses = misses_.load(std::memory_order_relaxed);
    const bool patient = misses < kPatience || misses % kRetry == 0;
    const int64_t spin_ns = patient ? spin_ns_ : std::min(spin_ns_, kCrowdedSpinNs);
    const bool hit = round_.wait_past(round, spin_ns, ahead);
    const uint32_t next = hit ? 0 : misses + 1;
    if (next != misses) misses_.store(next, std::memory_order_relaxed);
}

void Barrier::abort() {
    aborted_.store(true, std::memory_order_seq_cst);
    round_.advance();
}

void Barrier::reset() {
    remaining_.store(parties_, std::memory_order_relaxed);
    aborted_.store(false, std::memory_order_release);
}

// Everything that fork() invalidates: the threads, and a mutex that some other thread may have
// held. The child leaves its copy where it is and makes a new one.
struct Pool::State {
    State(int size, const Placement& placement)
        : owner(system::process_id()),
          workers_wanted(size - 1),
          pinned(placement.pinned),
          places(places_of(size, placement)),
          crowded(is_crowded(size, places.empty() ? SIZE_MAX : placement.cpus.size())),
          barrier(size, crowded ? kCrowdedSpinNs : kBarrierSpinNs),
          cpu_of(static_cast<size_t>(size)) {}
    ~State() { stop_workers(); }

    void start_workers();
    void stop_workers();
    void worker_main(int worker, uint32_t seen);
    void execute(int worker);
    void spread(int worker);
    const CpuSet* place_of(int worker) const;
    void run(TaskFn fn, void* task);

    const int64_t owner;
    const int workers_wanted;
    const bool pinned;
    const std::vector<CpuSet> places;
    const bool crowded;
    Barrier barrier;
    // Of each thread, the CPU where it began the last run.
    std::vector<std::atomic<int>> cpu_of;
    std::mutex run_mutex;
    std::vector<std::thread> workers;

    // Written by the caller before start.advance(), read by the workers after it.
    TaskFn fn = nullptr;
    void* task = nullptr;
    bool stop = false;

    std::atomic<bool> failed{false};
    std::exception_ptr
        error;  // belongs to the thread that set `failed`; to the caller once done has advanced
    WaitWord start, done;
    alignas(64) std::atomic<int> pending{0};
};

void Pool::State::execute(int worker) {
    const FpEnvScope fp_env;
    spread(worker);
    inside_task = true;
    try {
        fn(task, worker);
    } catch (...) {
        // The flag is set before the abort, so a BarrierAborted that follows never comes first.
        if (!failed.exchange(true, std::memory_order_acq_rel)) error = std::current_exception();
        barrier.abort();
    }
    inside_task = false;
}

// Moves a worker that begins a run on the CPU of another thread. Once a busy neighbour has driven two threads onto one
// CPU they take turns, each asleep while the other computes: together they look like the load of one, and the system may
// leave them there even when the neighbour has gone.
void Pool::State::spread(int worker) {
    const auto self = static_cast<size_t>(worker);
    const int cpu = current_cpu();
    cpu_of[self].store(cpu, std::memory_order_relaxed);
    if (worker == 0 || crowded || pinned || cpu < 0) return;
    const auto same = [&](const std::atomic<int>& other) { return other.load() == cpu; };
    if (std::none_of(cpu_of.begin(), cpu_of.begin() + worker, same)) return;
    CpuSet allowed;
    if (!allowed.read()) return;
    CpuSet free = allowed;
    for (const auto& other : cpu_of)
        if (const int taken = other.load(std::memory_order_relaxed); taken >= 0) free.remove(taken);
    if (free.empty() || !free.apply()) return;
    allowed.apply();
    cpu_of[self].store(current_cpu(), std::memory_order_relaxed);
}

const CpuSet* Pool::State::place_of(int worker) const {
    if (places.empty()) return nullptr;
    return &places[places.size() == 1 ? 0 : static_cast<size_t>(worker)];
}

void Pool::State::worker_main(int worker, uint32_t seen) {
    system::begin_worker();
    if (const CpuSet* place = place_of(worker)) place->apply();
    const int64_t spin_ns = crowded ? kCrowdedSpinNs : kIdleSpinNs;
    while (true) {
        start.wait_past(seen, spin_ns);
        ++seen;  // the next run starts only after this one has ended: none can be missed
        if (stop) return;
        execute(worker);
        if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) done.advance();
    }
}

void Pool::State::start_workers() {
    const system::SignalsBlocked blocked;  // they are for the application's own threads
    try {
        workers.reserve(static_cast<size_t>(workers_wanted));
        const uint32_t seen = start.load();
        while (static_cast<int>(workers.size()) < workers_wanted) {
            const int worker = static_cast<int>(workers.size()) + 1;
            workers.emplace_back([this, worker, seen] { worker_main(worker, seen); });
        }
    } catch (...) {
        stop_workers();
        throw;
    }
}

void Pool::State::stop_workers() {
    stop = true;
    start.advance();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
    stop = false;
}

void Pool::State::run(TaskFn new_fn, void* new_task) {
    const std::lock_guard<std::mutex> lock(run_mutex);
    if (static_cast<int>(workers.size()) < workers_wanted) start_workers();
    fn = new_fn;
    task = new_task;
    pending.store(workers_wanted, std::memory_order_relaxed);
    const uint32_t seen = done.load();
    // After the workers have started: they must not inherit the caller's affinity of a run.
    const AffinityScope affinity(place_of(0));
    cpu_of[0].store(current_cpu(), std::memory_order_relaxed);
    if (workers_wanted > 0) start.advance();
    execute(0);
    if (workers_wanted > 0) done.wait_past(seen, crowded ? kCrowdedSpinNs : kIdleSpinNs);
    if (!failed.load(std::memory_order_acquire)) return;
    failed.store(false, std::memory_order_relaxed);
    barrier.reset();
    std::exception_ptr first;
    std::swap(first, error);
    std::rethrow_exception(std::move(first));
}

Pool::Pool(int threads, Placement placement)
    : size_(threads), placement_(std::move(placement)), state_(nullptr) {
    if (threads < 1 || threads > kMaxThreads) {
        throw std::invalid_argument("threads: must be 1 to " + std::to_string(kMaxThreads) +
                                    ", but got " + std::to_string(threads));
    }
    if (placement_.pinned && placement_.cpus.size() < static_cast<size_t>(threads)) {
        throw std::invalid_argument("cpus: must be one for each pinned thread, but got " +
                                    std::to_string(placement_.cpus.size()));
    }
    set_readings(default_readings());
    if (placement_.nodes.empty()) return;
    team_.first.push_back(0);
    for (const auto& node : placement_.nodes) {
        if (node.threads < 1 || node.threads > kMaxThreads ||
            node.cpus.empty() != placement_.cpus.empty())
            throw std::invalid_argument("nodes: each must have threads, and CPUs as the team has");
        team_.first.push_back(team_.first.back() + node.threads);
    }
    if (team_.first.back() != threads)
        throw std::invalid_argument("nodes: must have the team's threads, but got " +
                                    std::to_string(team_.first.back()));
}

Pool::~Pool() {
    State* state = state_.load(std::memory_order_acquire);
    // Another process's threads can be neither joined nor destroyed.
    if (state && state->owner == system::process_id()) delete state;
}

Pool::State& Pool::current_state() {
    State* state = state_.load(std::memory_order_acquire);
    if (state && state->owner == system::process_id()) return *state;
    State* fresh = new State(size_, placement_);  // owns no threads yet
    if (state_.compare_exchange_strong(state, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
    return *state;  // the winner's
}

Readings Pool::readings() const {
    Readings readings;
    for (int loop = 0; loop < kReadLoops; ++loop)
        readings.loops[loop] = of_weights_[loop].load(std::memory_order_relaxed);
    readings.next_page = next_page_.load(std::memory_order_relaxed);
    return readings;
}

void Pool::set_readings(const Readings& readings) {
    for (int loop = 0; loop < kReadLoops; ++loop)
        of_weights_[loop].store(readings.loops[loop], std::memory_order_relaxed);
    next_page_.store(readings.next_page, std::memory_order_relaxed);
}

void Pool::run_task(TaskFn fn, void* task) {
    if (inside_task) throw std::logic_error("Pool::run: must not be called from inside a task");
    current_state().run(fn, task);
}

Barrier& Pool::barrier() { return current_state().barrier; }

namespace {

struct SharedPool {
    SharedPool(int threads, const Placement& placement) : pool(threads, placement) {}
    Pool pool;
    SharedPool* next = nullptr;
};

SharedPool* find_shared(SharedPool* from, int threads, const Placement& placement) {
    while (from && !(from->pool.size() == threads && from->pool.placement() == placement)) {
        from = from->next;
    }
    return from;
}

}  // namespace

Pool& shared_pool(int threads, const Placement& placement) {
    // A list that only grows and takes no lock: fork() may happen at any moment.
    static std::atomic<SharedPool*> head{nullptr};
    SharedPool* first = head.load(std::memory_order_acquire);
    if (SharedPool* found = find_shared(first, threads, placement)) return found->pool;
    std::unique_ptr<SharedPool> fresh = std::make_unique<SharedPool>(threads, placement);
    while (true) {
        fresh->next = first;
        if (head.compare_exchange_weak(first, fresh.get(), std::memory_order_acq_rel)) {
            return fresh.release()->pool;
        }
        if (SharedPool* found = find_shared(first, threads, placement)) return found->pool;
    }
}

}  // namespace sterna
