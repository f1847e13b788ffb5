// The power-of-two products as Python sees them.
#include <algorithm>
#include <chrono>

#include "bindings/arrays.h"
#include "pot/matmul.h"

namespace sterna::border {

namespace {

using pot::Words;
using Array = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Unroll = std::tuple<int, int, int>;

const pot::Isa& runnable_isa(const std::string& name) {
    for (const auto& isa : pot::isas())
        if (isa.name == name && isa.runnable) return isa;
    throw std::invalid_argument("isa: must be the name of a runnable set of power-of-two kernels");
}

Unroll unroll_of(const pot::Kernel& k) { return {k.unroll[0], k.unroll[1], k.unroll[2]}; }

const pot::Kernel& find_kernel(const std::string& name, const std::string& isa,
                               const Unroll& unroll) {
    for (const auto& k : runnable_isa(isa).kernels)
        if (name == k.name && unroll_of(k) == unroll) return k;
    throw std::invalid_argument("kernel, unroll: must be one of kernels() and unrolls()");
}

std::vector<std::string> kernel_names(const std::string& isa) {
    std::vector<std::string> names;
    for (const auto& k : runnable_isa(isa).kernels)
        if (std::ranges::find(names, k.name) == names.end()) names.emplace_back(k.name);
    return names;
}

std::vector<Unroll> unrolls(const std::string& kernel, const std::string& isa) {
    std::vector<Unroll> list;
    for (const auto& k : runnable_isa(isa).kernels)
        if (kernel == k.name) list.push_back(unroll_of(k));
    return list;
}

// What a call needs, checked; views the arrays.
struct Call {
    const pot::Kernel& kernel;
    pot::Args args;

    Call(const std::string& name, const Array& a, const Array& b, int64_t K, const std::string& isa,
         const Unroll& unroll, bool special)
        : kernel(find_kernel(name, isa, unroll)) {
        require(a.dtype() == (kernel.integer ? nb::dtype<int32_t>() : nb::dtype<float>()),
                "a: must be float32, or int32 for an integer kernel");
        require(b.dtype() == word_type(), "b: element type does not fit the kernel");
        require(K >= 0 && static_cast<int64_t>(a.shape(1)) == K, "a: must have K columns");
        const int per_word = pot::elements_per_word(kernel.words);
        require(static_cast<int64_t>(b.shape(1)) == (K + per_word - 1) / per_word,
                "b: columns must be the words of K elements");
        args = {a.data(),
                b.data(),
                nullptr,
                static_cast<int64_t>(a.shape(0)),
                static_cast<int64_t>(b.shape(0)),
                K,
                static_cast<int64_t>(b.shape(1)),
                special};
    }
    nb::dlpack::dtype word_type() const {
        switch (kernel.words) {
            case Words::kU8:
            case Words::kNibbles:
                return nb::dtype<uint8_t>();
            case Words::kU16:
                return nb::dtype<uint16_t>();
            case Words::kU32:
                return nb::dtype<uint32_t>();
            case Words::kF32:
                return nb::dtype<float>();
            default:
                return nb::dtype<int32_t>();
        }
    }
    template <class T>
    nb::object output() {
        auto c = make_array<T, 2>({static_cast<size_t>(args.N), static_cast<size_t>(args.M)});
        args.c = c.data();
        return nb::cast(c);
    }
    nb::object make_output() { return kernel.integer ? output<int32_t>() : output<float>(); }
};

nb::object matmul(const std::string& kernel, const Array& a, const Array& b, int64_t K,
                  const std::string& isa, const nb::int_& threads, const Unroll& unroll,
                  bool special) {
    Call call(kernel, a, b, K, isa, unroll, special);
    nb::object c = call.make_output();
    Pool& p = pool(threads);
    nb::gil_scoped_release release;
    pot::matmul(p, call.kernel, call.args);
    return c;
}

// Seconds of each of `rounds` products, into the same memory.
std::vector<double> time_matmul(const std::string& kernel, const Array& a, const Array& b,
                                int64_t K, const std::string& isa, const nb::int_& threads,
                                const Unroll& unroll, bool special, int rounds) {
    require(rounds >= 0, "rounds: must not be negative");
    Call call(kernel, a, b, K, isa, unroll, special);
    const nb::object c = call.make_output();
    Pool& p = pool(threads);
    std::vector<double> seconds;
    nb::gil_scoped_release release;
    for (int round = 0; round < rounds; ++round) {
        const auto begin = std::chrono::steady_clock::now();
        pot::matmul(p, call.kernel, call.args);
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
        seconds.push_back(time.count());
    }
    return seconds;
}

}  // namespace

NB_MODULE(_kernels, m) {
    m.doc() = "Power-of-two products. Private: sterna_papers.pot is the interface.";
    // (name, CPU features it needs, whether it runs here), the plainest first.
    m.def("isas", [] {
        std::vector<std::tuple<std::string, std::string, bool>> list;
        for (const auto& isa : pot::isas()) list.emplace_back(isa.name, isa.needs, isa.runnable);
        return list;
    });
    m.def("kernels", &kernel_names, "isa"_a);
    m.def("unrolls", &unrolls, "kernel"_a, "isa"_a);
    m.def("matmul", &matmul, "kernel"_a, "a"_a, "b"_a, "K"_a, "isa"_a, "threads"_a, "unroll"_a,
          "special"_a = true);
    m.def("time", &time_matmul, "kernel"_a, "a"_a, "b"_a, "K"_a, "isa"_a, "threads"_a, "unroll"_a,
          "special"_a, "rounds"_a);
}

}  // namespace sterna::border
