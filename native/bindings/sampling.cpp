// The sampler as Python sees it.
#include "bindings/common.h"
#include "sampling/sampler.h"
#include "scalar_math.h"

namespace sterna::border {

void bind_sampling(nb::module_& m) {
    nb::class_<SampleParams>(m, "SampleParams")
        .def(
            "__init__",
            [](SampleParams* self, float temperature, int top_k, float top_p, float min_p,
               float repetition_penalty, uint64_t seed, uint64_t sequence, int n_logprobs) {
                new (self) SampleParams{temperature,        top_k, top_p,    min_p,
                                        repetition_penalty, seed,  sequence, n_logprobs};
            },
            "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repetition_penalty"_a, "seed"_a,
            "sequence"_a, "n_logprobs"_a);
    nb::class_<SampleResult>(m, "SampleResult")
        .def(
            "__init__",
            [](SampleResult* self, int32_t token, float logprob,
               std::vector<std::pair<int32_t, float>> top) {
                new (self) SampleResult{token, logprob, std::move(top), true};
            },
            "token"_a, "logprob"_a = math::kNanF,
            "top"_a = std::vector<std::pair<int32_t, float>>())
        .def_ro("token", &SampleResult::token)
        .def_ro("logprob", &SampleResult::logprob)
        .def_ro("top", &SampleResult::top)
        .def_ro("finite", &SampleResult::finite);
    m.def(
        "sample",
        [](In<float, 1> logits, const SampleParams& params, In<int32_t, 1> history,
           uint64_t position) {
            nb::gil_scoped_release release;
            SampleMemory memory;
            return sample(logits.data(), static_cast<int>(logits.shape(0)), params,
                          {history.data(), history.shape(0)}, position, memory);
        },
        "logits"_a, "params"_a, "history"_a, "position"_a);
    m.def(
        "log_softmax_at",
        [](In<float, 2> logits, In<int32_t, 1> tokens, const nb::int_& threads) {
            require(logits.shape(0) == tokens.shape(0), "tokens: one per row of logits");
            const auto vocab = static_cast<int>(logits.shape(1));
            auto out = make_array<float, 1>({logits.shape(0)});
            for (size_t i = 0; i < tokens.shape(0); ++i)
                require(tokens.data()[i] >= 0 && tokens.data()[i] < vocab,
                        "tokens: id outside the vocabulary");
            Pool& p = pool(threads);
            nb::gil_scoped_release release;
            parallel(p, static_cast<int64_t>(tokens.shape(0)), 1, [&](int64_t i, int64_t) {
                out.data()[i] = log_softmax_at(logits.data() + i * vocab, vocab, tokens.data()[i]);
            });
            return out;
        },
        "logits"_a, "tokens"_a, "threads"_a);
}

}  // namespace sterna::border
