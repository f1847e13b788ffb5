// The module: the machine, its kernel units, and what it measures.
#include <chrono>
#include <map>
#include <mutex>

#include "bindings/common.h"
#include "cpu.h"
#include "measure.h"
#include "topology.h"

namespace sterna::border {

// How often each unit was chosen: units give the same bits, so only this shows which one ran.
static std::atomic<int64_t>& calls_of(const KernelTable* table) {
    static std::map<const KernelTable*, std::atomic<int64_t>> calls;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    return calls[table];
}

const KernelTable& table(const std::string& isa) {
    const auto* t = find_table(isa);
    require(t, "isa: must be the name of a runnable unit");
    ++calls_of(t);
    return *t;
}

namespace {

double peak_gops(const std::string& isa, int threads, const std::string& kind) {
    const auto& kernels = table(isa);
    require(kind == "int8" || kind == "f32", "kind: must be int8 or f32");
    const auto peak = kind == "f32" ? kernels.peak_f32 : kernels.peak_int8;
    Pool& p = pool(threads);
    nb::gil_scoped_release release;
    double best = 0;
    for (int repeat = 0; repeat < 5; ++repeat) {
        std::atomic<int64_t> done{0};
        const auto begin = std::chrono::steady_clock::now();
        p.run([&](int) { done += peak(int64_t{2'000'000'000}); });
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
        best = std::max(best, static_cast<double>(done) / time.count() / 1e9);
    }
    return best;
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
    m.def("topology", [] {
        const auto t = topology();
        nb::dict d;
        d["allowed_cpus"] = t.allowed_cpus;
        d["allowed_cores"] = t.allowed_cores;
        d["cpu_quota"] = t.cpu_quota;
        return d;
    });
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
    m.def("layouts", [] {
        std::vector<std::string> names;
        const auto* t = all_tables().front();
        for (int i = 0; i < t->n_formats; ++i) names.emplace_back(t->formats[i].name);
        return names;
    });
    m.def("kernel_calls", [] {
        nb::dict calls;
        for (const auto* t : all_tables()) calls[t->isa] = calls_of(t).load();
        return calls;
    });
    m.def("default_threads", &default_threads);
    m.def("alloc", [](size_t nbytes) { return make_array<uint8_t, 1>({nbytes}); }, "nbytes"_a);
    m.def(
        "bandwidth_gb_s",
        [](int threads, size_t nbytes) {
            Pool& p = pool(threads);
            (void)p;
            nb::gil_scoped_release release;
            return bandwidth_gb_s(threads, nbytes);
        },
        "threads"_a, "nbytes"_a);
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
        }
    });

    m.attr("page_positions") = kPagePositions;
    m.attr("max_integer_k") = kMaxIntegerK;
    bind_machine(m);
    bind_weights(m);
    bind_program(m);
}

}  // namespace sterna::border
