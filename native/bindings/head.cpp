// Bindings of the exact head: a float matrix's int8 shadow, and a screened product without a program.
#include <limits>

#include "bindings/common.h"
#include "bindings/draws.h"
#include "runtime/fpenv.h"

namespace sterna::border {

namespace {

// (codes [tiles, tile bytes], scale [rows], bounds [3, rows]) of a float weight, rows those of all
// tiles; the same bytes from every unit and thread count.
std::tuple<Out<uint8_t, 2>, Out<float, 1>, Out<float, 2>> shadow(const PyWeight& w,
                                                                 const std::string& isa,
                                                                 const nb::int_& threads) {
    const Weight& floats = w.weight;
    const auto& kernels = table(isa);
    const auto make_shadow = kernels.formats[floats.format].make_shadow;
    require(make_shadow != nullptr && !floats.scale, "weight: must be floats without scales");
    require(floats.padded_k <= kMaxIntegerK,
            "K: an int8 shadow takes at most 65536 input features");
    const auto& f = kernels.formats[layout_index(kShadowLayout)];
    const auto tiles = static_cast<size_t>(tile_count(f, floats.M));
    const size_t rows = tiles * static_cast<size_t>(f.tile_rows);
    ShadowArgs a{};
    a.codes = floats.codes;
    a.tile_bytes = floats.tile_bytes;
    a.K = floats.padded_k;
    a.out_tile_bytes = tile_bytes(f, floats.K);
    auto codes = make_weight_array<uint8_t, 2>({tiles, static_cast<size_t>(a.out_tile_bytes)});
    auto scale = make_array<float, 1>({rows});
    auto bounds = make_array<float, 2>({3, rows});
    a.out = codes.data();
    a.scale = scale.data();
    a.error = bounds.data();
    a.norm = bounds.data() + rows;
    a.peak = bounds.data() + 2 * rows;
    Pool& p = pool(threads);
    {
        nb::gil_scoped_release release;
        parallel(p, (floats.M + kRowBlock - 1) / kRowBlock, 4, [&](int64_t begin, int64_t end) {
            ShadowArgs part = a;
            part.row_block_begin = begin;
            part.row_block_end = end;
            make_shadow(part);
        });
        w.mappings.require_whole();
    }
    return {codes, scale, bounds};
}

// (logits [N, M], -inf where a row was not computed; low and high [N, M], which hold the full
// head's logits, or the scores, and are infinite where these were not screened; candidates [N]) of x [N, K], where deciding[n]
// says which logits of row n decide, or draws[n] what is drawn from one row.
std::tuple<Out<float, 2>, Out<float, 2>, Out<float, 2>, std::vector<int64_t>> screened(
    const PyWeight& w, const PyWeight& s, In<float, 2> bounds, In<float, 2> x,
    const std::vector<PyDeciding>& deciding, const std::vector<PyDraw>& drawn,
    const std::string& isa, const nb::int_& threads) {
    const Weight& floats = w.weight;
    const auto& kernels = table(isa);
    Pool& p = pool(threads);
    Screen screen(
        floats, s.weight,
        shadow_bounds(floats, s.weight, bounds.data(), static_cast<int64_t>(bounds.shape(0)),
                      static_cast<int64_t>(bounds.shape(1))));
    const auto N = static_cast<int64_t>(x.shape(0));
    require(static_cast<int64_t>(x.shape(1)) == floats.K, "x: last dimension must be K");
    std::vector<DecidingLogits> checked;
    for (const PyDeciding& of_row : deciding) checked.push_back(make_deciding(of_row, floats.M));
    std::vector<Draw> draws;
    for (const PyDraw& draw : drawn) draws.push_back(row_draws(draw, 1).front());
    Draws memory;
    memory.begin(draws, static_cast<int>(floats.M));
    for (size_t i = 0; i < draws.size(); ++i)
        checked.push_back(memory.deciding(i, draws[i], floats.M));
    require(std::ssize(checked) == N, "deciding: one for each row of x");
    const size_t shape[2] = {x.shape(0), static_cast<size_t>(floats.M)};
    auto logits = make_array<float, 2>(shape), low = make_array<float, 2>(shape);
    auto high = make_array<float, 2>(shape);
    std::atomic<bool> finite{true};
    require(screen.begin(checked, kernels, p.readings()), "deciding: must not be all logits");
    {
        nb::gil_scoped_release release;
        Activations input(floats.K), output(floats.M);
        input.reserve(N);
        output.reserve(N);
        for (int64_t n = 0; n < N; ++n)
            std::copy_n(x.data() + n * floats.K, floats.K, input.row(n));
        const FpEnvScope environment;
        const int64_t stride = screen.scratch_bytes(kernels, N) / 4096 * 4096 + 8192;
        HugeBuffer scratch(static_cast<size_t>(stride * p.size()));
        for (int stage = 0; stage < kScreenStages; ++stage) {
            const auto kind = static_cast<ScreenStage>(stage);
            const Division units = screen.units(kind, p.size());
            HandOut hand_out(p.size());
            p.run([&](int worker) {
                uint8_t* own = scratch.data() + worker * stride;
                for (int64_t begin, end; hand_out.next(units, worker, begin, end);)
                    if (!screen.step(kind, begin, end, input, output, own)) finite = false;
            });
        }
        for (int64_t n = 0; n < N; ++n) {
            std::copy_n(output.row(n), floats.M, logits.data() + n * floats.M);
            float *begin = low.data() + n * floats.M, *end = high.data() + n * floats.M;
            if (screen.is_screened(n)) {
                std::copy_n(screen.low(n), floats.M, begin);
                std::copy_n(screen.high(n), floats.M, end);
            } else {
                std::fill_n(begin, floats.M, -std::numeric_limits<float>::infinity());
                std::fill_n(end, floats.M, std::numeric_limits<float>::infinity());
            }
        }
        w.mappings.require_whole();
    }
    if (!finite) throw std::domain_error("x");
    std::vector<int64_t> candidates;
    for (int64_t n = 0; n < N; ++n) candidates.push_back(screen.rescored(n));
    return {logits, low, high, candidates};
}

}  // namespace

DecidingLogits make_deciding(const PyDeciding& deciding, int64_t vocab) {
    const auto& [count, gap] = deciding;
    require(count >= 0 && count <= vocab, "deciding: count must lie in 0..vocabulary");
    require(gap >= 0 && gap <= 1e30, "deciding: gap must lie in 0..1e30");
    return {.count = count, .gap = gap};
}

void bind_head(nb::module_& m) {
    m.def("shadow", &shadow, "weight"_a, "isa"_a, "threads"_a);
    m.def("screened", &screened, "weight"_a, "shadow"_a, "bounds"_a, "x"_a, "deciding"_a, "draws"_a,
          "isa"_a, "threads"_a);
}

}  // namespace sterna::border
