// The module for tests: exposes the core's threads at work, and its memory.
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/common.h"
#include "runtime/affinity.h"
#include "runtime/topology.h"
#include "testing/allocations.h"
#include "testing/rehearsal.h"

namespace sterna::border {

namespace {

// The CPUs that each thread of the pool may use during a run.
std::vector<std::vector<int>> pool_cpus(const nb::int_& threads) {
    Pool& p = pool(threads);
    std::vector<std::vector<int>> cpus(static_cast<size_t>(p.size()));
    nb::gil_scoped_release release;
    p.run([&](int worker) { cpus[static_cast<size_t>(worker)] = allowed_cpus(); });
    return cpus;
}

// Whether after each of `rounds` barriers every thread finds all others in that round.
bool barrier_holds(const nb::int_& threads, int rounds) {
    Pool& p = pool(threads);
    std::vector<std::atomic<int>> round_of(static_cast<size_t>(p.size()));
    std::atomic<bool> holds{true};
    nb::gil_scoped_release release;
    Barrier& barrier = p.barrier();
    p.run([&](int worker) {
        for (int round = 1; round <= rounds; ++round) {
            round_of[static_cast<size_t>(worker)].store(round, std::memory_order_relaxed);
            barrier.arrive_and_wait();
            for (const auto& other : round_of)
                if (other.load(std::memory_order_relaxed) != round) holds = false;
            barrier.arrive_and_wait();
        }
    });
    return holds;
}

// (tiles, time) of each thread.
std::vector<std::pair<int64_t, int64_t>> rehearse_shares(int64_t tiles, int64_t tokens,
                                                         const std::vector<int64_t>& slowdown) {
    require(!slowdown.empty() && slowdown.size() <= kMaxThreads, "slowdown: needs 1..1024 values");
    Pool& p = shared_pool(static_cast<int>(slowdown.size()));
    nb::gil_scoped_release release;
    std::vector<std::pair<int64_t, int64_t>> shares;
    for (const Share& share : rehearse(p, tiles, tokens, slowdown)) {
        shares.emplace_back(share.tiles, share.time);
    }
    return shares;
}

// (tiles, of which remote) of each thread of a team of memory nodes.
std::vector<std::pair<int64_t, int64_t>> rehearse_nodes(int64_t tiles, int64_t tokens,
                                                        const std::vector<int64_t>& slowdown,
                                                        const nb::int_& threads, bool replicas) {
    Pool& p = pool(threads);
    nb::gil_scoped_release release;
    std::vector<std::pair<int64_t, int64_t>> shares;
    for (const Share& share : rehearse(p, tiles, tokens, slowdown, replicas))
        shares.emplace_back(share.tiles, share.remote);
    return shares;
}

}  // namespace

NB_MODULE(_testing, m) {
    m.doc() = "What only Sterna's tests need to see of its native core.";
    m.def("counts_allocations", &counts_allocations);
    m.def("allocations", &allocations);
    m.def("rehearse", &rehearse_shares, "tiles"_a, "tokens"_a, "slowdown"_a);
    m.def("rehearse_nodes", &rehearse_nodes, "tiles"_a, "tokens"_a, "slowdown"_a, "threads"_a,
          "replicas"_a = false);
    m.def("barrier_holds", &barrier_holds, "threads"_a, "rounds"_a);
    m.def("pool_cpus", &pool_cpus, "threads"_a);
    m.def("parse_cpu_list", [](const std::string& text) { return parse_cpu_list(text); }, "text"_a);
}

}  // namespace sterna::border
