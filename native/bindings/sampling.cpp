// Bindings of the sampler.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "bindings/common.h"
#include "bindings/draws.h"
#include "runtime/fpenv.h"
#include "runtime/gate.h"
#include "scalar_math.h"
#include "units/dispatch.h"

namespace sterna::border {

std::vector<Draw> row_draws(const PyDraw& draw, int rows) {
    const auto& [params, history, answer_begin, masks, mu] = *draw;
    const size_t end = history.shape(0), count = static_cast<size_t>(rows);
    require(params != nullptr, "draws: must have parameters");
    require(end + 1 >= count, "draws: history must have a token for each row");
    require(answer_begin >= 0 && answer_begin <= static_cast<int64_t>(end),
            "draws: the answer must begin within history, or at its end");
    require(!masks || masks->shape(0) == count, "draws: masks must have a row for each of logits");
    std::vector<Draw> draws;
    for (size_t i = 0; i < count; ++i) {
        draws.push_back({params, {history.data(), end - (count - 1 - i)}, answer_begin});
        if (i == 0) draws.back().mu = mu;
        if (masks) {
            const size_t words = masks->shape(1);
            draws.back().allowed = TokenMask({masks->data() + i * words, words});
        }
    }
    return draws;
}

namespace {

// The names are llama.cpp's.
Sampler sampler_of(const std::string& name) {
    static constexpr std::pair<std::string_view, Sampler> kNames[] = {
        {"top_n_sigma", Sampler::TopNSigma},
        {"top_k", Sampler::TopK},
        {"typ_p", Sampler::TypicalP},
        {"top_p", Sampler::TopP},
        {"min_p", Sampler::MinP},
        {"xtc", Sampler::Xtc},
        {"temperature", Sampler::Temperature}};
    for (const auto& [known, sampler] : kNames)
        if (name == known) return sampler;
    require(false, "order: no such sampler");
    return Sampler::Temperature;
}

}  // namespace

void bind_sampling(nb::module_& m) {
    nb::class_<Gate>(m, "Gate").def(nb::init<>()).def("open", &Gate::open);
    nb::class_<ChainParams>(m, "ChainParams")
        .def(
            "__init__",
            [](ChainParams* self, const std::vector<std::string>& order, float typical_p,
               float top_n_sigma, float xtc_probability, float xtc_threshold, float dynatemp_range,
               float dynatemp_exponent, int mirostat, float mirostat_tau, float mirostat_eta) {
                std::vector<Sampler> steps;
                for (const std::string& name : order) steps.push_back(sampler_of(name));
                require(mirostat >= 0 && mirostat <= 2, "mirostat: must be 0, 1 or 2");
                new (self) ChainParams{
                    steps,          typical_p,         top_n_sigma, xtc_probability, xtc_threshold,
                    dynatemp_range, dynatemp_exponent, mirostat,    mirostat_tau,    mirostat_eta};
            },
            "order"_a, "typical_p"_a, "top_n_sigma"_a, "xtc_probability"_a, "xtc_threshold"_a,
            "dynatemp_range"_a, "dynatemp_exponent"_a, "mirostat"_a, "mirostat_tau"_a,
            "mirostat_eta"_a);
    nb::class_<DryParams>(m, "DryParams")
        .def(
            "__init__",
            [](DryParams* self, float multiplier, float base, int32_t allowed_length,
               int32_t penalty_last_n, std::vector<std::vector<int32_t>> breakers) {
                for (const auto& breaker : breakers)
                    require(!breaker.empty(), "breakers: must not be empty");
                std::ranges::sort(breakers);
                new (self) DryParams{multiplier, base, allowed_length, penalty_last_n,
                                     std::move(breakers)};
            },
            "multiplier"_a, "base"_a, "allowed_length"_a, "penalty_last_n"_a, "breakers"_a);
    nb::class_<SampleParams>(m, "SampleParams")
        .def(
            "__init__",
            [](SampleParams* self, float temperature, int top_k, float top_p, float min_p,
               float repetition_penalty, float frequency_penalty, float presence_penalty,
               std::vector<std::pair<int32_t, float>> bias, uint64_t seed, uint64_t sequence,
               int n_logprobs, const std::optional<ChainParams>& chain,
               const std::optional<DryParams>& dry, std::optional<int32_t> repeat_last_n) {
                for (const auto& [token, value] : bias)
                    require(std::isfinite(value), "bias: must be finite");
                new (self) SampleParams{temperature,
                                        top_k,
                                        top_p,
                                        min_p,
                                        repetition_penalty,
                                        frequency_penalty,
                                        presence_penalty,
                                        repeat_last_n,
                                        bias,
                                        seed,
                                        sequence,
                                        n_logprobs,
                                        chain.value_or(ChainParams{}),
                                        dry.value_or(DryParams{})};
            },
            "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repetition_penalty"_a,
            "frequency_penalty"_a, "presence_penalty"_a, "bias"_a, "seed"_a, "sequence"_a,
            "n_logprobs"_a, "chain"_a = nb::none(), "dry"_a = nb::none(),
            "repeat_last_n"_a = nb::none())
        .def_prop_ro("deciding", [](const SampleParams& params) {
            const FpEnvScope environment;
            const DecidingLogits deciding = deciding_logits(params);
            return std::pair(deciding.raw ? 0 : deciding.count, deciding.gap);
        });
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
        .def_ro("finite", &SampleResult::finite)
        .def_ro("mu", &SampleResult::mu);
    m.def(
        "sample",
        [](In<float, 1> logits, const PyDraw& asked, uint64_t position) {
            require(asked.has_value(), "draw: must be given");
            const auto vocab = static_cast<int>(logits.shape(0));
            const Draw draw = row_draws(asked, 1).front();
            nb::gil_scoped_release release;
            std::vector<float> copy(logits.data(), logits.data() + vocab);
            ScoreMemory scores;
            std::vector<ScoreChange> changes;
            collect_changes(*draw.params, draw.history, draw.answer_begin, vocab, scores, changes);
            SampleMemory memory;
            // Any unit: none changes a bit.
            return sample(*runnable_tables().back(),
                          {copy.data(), vocab, draw.allowed, changes, draw.mu}, *draw.params,
                          position, memory);
        },
        "logits"_a, "draw"_a, "position"_a);
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
                out.data()[i] = log_softmax_at(*runnable_tables().back(), logits.data() + i * vocab,
                                               vocab, tokens.data()[i]);
            });
            return out;
        },
        "logits"_a, "tokens"_a, "threads"_a);
}

}  // namespace sterna::border
