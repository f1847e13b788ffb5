// The module: the machine, its kernel units, and measurements.
#include <nanobind/stl/map.h>

#include <chrono>

#include "bindings/common.h"
#include "bindings/weight_cache.h"
#include "runtime/cpu.h"
#include "runtime/measure.h"
#include "runtime/system/system.h"
#include "runtime/topology.h"
#include "selfcheck/selfcheck.h"

namespace sterna::border {

const KernelTable& table(const std::string& isa) {
    const auto* t = find_table(isa);
    require(t, "isa: must be the name of a runnable unit");
    return *t;
}

namespace {

double peak_gops(const std::string& isa, const nb::int_& threads, const std::string& kind) {
    const auto& kernels = table(isa);
    require(kind == "int8" || kind == "f32" || kind == "bf16", "kind: must be int8, f32 or bf16");
    const auto peak = kind == "f32"    ? kernels.peak_f32
                      : kind == "bf16" ? kernels.peak_bf16
                                       : kernels.peak_int8;
    if (!peak) return 0;
    Pool& p = pool(threads);
    nb::gil_scoped_release release;
    const auto ops_per_second = [&](int64_t ops) {  // ops: of each thread
        std::atomic<int64_t> done{0};
        const auto begin = std::chrono::steady_clock::now();
        p.run([&](int) { done += peak(ops); });
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
        return static_cast<double>(done) / time.count();
    };
    // A millisecond or more of the fastest unit. A slow one is held to some 20: `scalar` would take seconds.
    constexpr double kOps = 2e9, kSeconds = 0.02;
    const double ops = std::min(kOps, ops_per_second(10'000'000) / p.size() * kSeconds);
    double best = 0;
    for (int repeat = 0; repeat < 5; ++repeat)
        best = std::max(best, ops_per_second(static_cast<int64_t>(ops)));
    return best / 1e9;
}

// Streams, bytes of a turn, bytes ahead, whether into L2.
using PyReading = std::tuple<int, int, int, bool>;

// root and allowed: for tests, a made-up file tree and the CPUs that the process may use there.
nb::dict topology_dict(const std::string& root, const std::optional<std::vector<int>>& allowed) {
    const Topology t = allowed ? topology(root, *allowed) : topology();
    nb::list cores, nodes;
    for (const Core& core : t.cores) {
        nb::dict d;
        d["cpus"] = core.cpus;
        d["performance"] = core.performance;
        cores.append(d);
    }
    for (const NumaNode& node : t.nodes) {
        nb::dict d;
        d["id"] = node.id;
        d["cpus"] = node.cpus;
        nodes.append(d);
    }
    nb::dict d;
    d["cpus"] = t.cpus;
    d["cores"] = cores;
    d["nodes"] = nodes;
    d["cpu_quota"] = t.cpu_quota;
    return d;
}

void bind_machine(nb::module_& m) {
    m.def("cpu_info", [] {
        const auto& c = cpu_info();
        nb::dict d;
        d["vendor"] = c.vendor;
        d["model"] = c.model;
        d["features"] = c.features;
        d["family"] = c.family;
        d["model_id"] = c.model_id;
        d["stepping"] = c.stepping;
        return d;
    });
    m.def("tile_state", [] {
        const TileState state = tile_state();
        return state == TileState::kAbsent    ? "not present"
               : state == TileState::kRefused ? "refused by the system"
                                              : "granted";
    });
    m.def("topology", &topology_dict, "root"_a = "", "allowed"_a = nb::none());
    m.def("data_caches", &system::data_caches, "root"_a = "");
    m.def(
        "memory_state",
        [](const std::string& root) {
            const system::MemoryState state = system::memory_state(root);
            return nb::make_tuple(state.total, state.available, state.resident);
        },
        "root"_a = "");
    m.def("isas", [] {
        std::vector<std::string> names;
        for (const auto* t : runnable_tables()) names.emplace_back(t->isa);
        return names;
    });
    m.def("known_isas", [] {
        std::vector<std::pair<std::string, std::string>> names;
        for (const auto* t : all_tables()) names.emplace_back(t->isa, t->needs);
        return names;
    });
    m.def(
        "fast_layouts",
        [](const std::string& isa) {
            const auto* t = find_table(isa);
            require(t, "isa: must be the name of a runnable unit");
            nb::dict layouts;
            for (int i = 0; i < t->n_formats; ++i)
                if (const FastKernels& fast = t->formats[i].fast; fast.linear)
                    layouts[t->formats[i].name] = nb::make_tuple(fast.products, fast.tiles);
            return layouts;
        },
        "isa"_a);
    m.def(
        "joint_layouts",
        [](const std::string& isa) {
            const auto* t = find_table(isa);
            require(t, "isa: must be the name of a runnable unit");
            std::vector<std::string> names;
            for (int i = 0; i < t->n_formats; ++i)
                if (t->formats[i].joint_scratch) names.emplace_back(t->formats[i].name);
            return names;
        },
        "isa"_a);
    m.attr("fewest_joint_tokens") = kFewestJointTokens;
    m.def(
        "has_tiles",
        [](const std::string& isa) {
            const auto* t = find_table(isa);
            require(t, "isa: must be the name of a runnable unit");
            return t->x_block(kMostVectorTokens) > 1;
        },
        "isa"_a);
    m.attr("most_vector_tokens") = kMostVectorTokens;
    m.def(
        "unit_digests",
        [](const std::string& isa) {
            const auto& kernels = table(isa);
            selfcheck::Outcome outcome;
            {
                nb::gil_scoped_release release;
                outcome = selfcheck::check_apart(kernels);
            }
            nb::dict digests;
            for (const auto& [group, digest] : outcome.groups) digests[group.c_str()] = digest;
            return std::pair(digests, outcome.signal);
        },
        "isa"_a);
    m.def("exclude_isa", [](const std::string& isa) { exclude_table(isa); }, "isa"_a);
    m.def(
        "bandwidth_gb_s",
        [](const nb::int_& threads, size_t nbytes) {
            Pool& p = pool(threads);
            nb::gil_scoped_release release;
            return bandwidth_gb_s(p, nbytes);
        },
        "threads"_a, "nbytes"_a);
    m.def(
        "cycles_per_second",
        [](const nb::int_& threads) {
            Pool& p = pool(threads);
            nb::gil_scoped_release release;
            return cycles_per_second(p);
        },
        "threads"_a);
    m.def(
        "read_gb_s",
        [](const nb::int_& threads, const std::vector<In<uint8_t, 1>>& arrays) {
            std::vector<std::span<const uint8_t>> bytes;
            for (const auto& array : arrays) bytes.emplace_back(array.data(), array.size());
            Pool& p = pool(threads);
            nb::gil_scoped_release release;
            return read_gb_s(p, bytes);
        },
        "threads"_a, "arrays"_a);
    m.def(
        "barrier_ns",
        [](const nb::int_& threads, int64_t rounds) {
            Pool& p = pool(threads);
            nb::gil_scoped_release release;
            return barrier_ns(p, rounds);
        },
        "threads"_a, "rounds"_a);
    m.def(
        "readings",
        [](const nb::int_& threads) {
            const Readings readings = pool(threads).readings();
            const auto fields = [&](ReadLoop loop) {
                const Reading& r = readings.of(loop);
                return PyReading(r.streams, r.turn_bytes, r.prefetch_bytes, r.into_l2);
            };
            return std::tuple<PyReading, PyReading, bool>(
                fields(ReadLoop::kFewBits), fields(ReadLoop::kManyBits), readings.next_page);
        },
        "threads"_a);
    m.def(
        "set_readings",
        [](const nb::int_& threads, const PyReading& few_bits, const PyReading& many_bits,
           bool next_page) {
            const auto checked = [](const PyReading& r) { return std::apply(checked_reading, r); };
            pool(threads).set_readings({{checked(few_bits), checked(many_bits)}, next_page});
        },
        "threads"_a, "few_bits"_a, "many_bits"_a, "next_page"_a);
    m.def("peak_gops", &peak_gops, "isa"_a, "threads"_a, "kind"_a = "int8");
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Sterna's native core. Private: sterna's Python modules are the interface.";
    nb::register_exception_translator([](const std::exception_ptr& p, void*) {
        try {
            std::rethrow_exception(p);
        } catch (const std::domain_error& e) {  // an activation was not finite: e names the place
            PyErr_SetString(PyExc_FloatingPointError, e.what());
        } catch (const ChangedFile& e) {
            raise_changed(e);
        } catch (const FailedRead& e) {
            raise_failed_read(e);
        }
    });

    m.attr("page_positions") = kPagePositions;
    nb::list two_bits;  // layouts of which single rows and columns may be read
    for (int i = 0; i < all_tables().front()->n_formats; ++i)
        if (const auto& f = all_tables().front()->formats[i]; f.copy_rows) two_bits.append(f.name);
    m.attr("two_bit_layouts") = nb::tuple(two_bits);
    m.attr("max_integer_k") = kMaxIntegerK;
    m.attr("few_tokens") = kFewTokens;
    bind_machine(m);
    bind_memory(m);
    bind_packing(m);
    bind_rounding(m);
    bind_weights(m);
    bind_kv_cache(m);
    bind_sampling(m);
    bind_tokens(m);
    bind_weight_cache(m);
    bind_program(m);
    bind_head(m);
}

}  // namespace sterna::border
