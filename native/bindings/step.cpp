// One step of a batch: arguments checked, the program run, tokens drawn.
#include "bindings/step.h"

#include "bindings/adapters.h"

namespace sterna::border {

namespace {

struct StepBatch {
    std::vector<SequenceSpan> spans;
    std::vector<DecidingLogits> deciding;  // for every row of logits
    std::vector<Draw> draws;  // logits are filled in after the run
    std::vector<size_t> drawn_rows, kept_rows;  // rows of the logits
};

void add_span(StepBatch& batch, const KvCache& cache, const PySpan& sequence) {
    const auto& [start, count, logits, pages] = sequence;
    require(start >= 0 && count >= 1 && logits >= 0 && logits <= count,
            "sequences: needs start >= 0, count >= 1, 0 <= logits <= count");
    require((static_cast<int64_t>(start) + count + kPagePositions - 1) / kPagePositions <=
                static_cast<int64_t>(pages.shape(0)),
            "sequences: the page table is too short");
    for (size_t i = 0; i < pages.shape(0); ++i)
        require(pages.data()[i] >= 0 && pages.data()[i] < cache.pages, "pages: no such page");
    batch.spans.push_back({start, count, pages.data(), logits});
}

// Adds the rows of logits of the last span: those that are kept, or the draws from them.
void add_rows(const PyProgram& p, StepBatch& batch, const DecidingLogits& deciding,
              const PyDraw& draw) {
    const SequenceSpan& span = batch.spans.back();
    const int end = span.start + span.count;
    if (draw)
        require(p.program.needs().previous_width ||
                    std::get<1>(*draw).shape(0) >= static_cast<size_t>(end),
                "draws: history must have the sequence's tokens");
    auto draws = draw ? row_draws(draw, span.logits) : std::vector<Draw>();
    for (int i = 0; i < span.logits; ++i) {
        (draw ? batch.drawn_rows : batch.kept_rows).push_back(batch.deciding.size());
        batch.deciding.push_back(deciding);
    }
    batch.draws.insert(batch.draws.end(), draws.begin(), draws.end());
}

StepBatch make_batch(const PyProgram& p, const KvCache& cache, const In<int32_t, 1>& tokens,
                     int64_t n_features, const std::vector<PySpan>& sequences,
                     const std::vector<PyDeciding>& deciding, const std::vector<PyDraw>& draws) {
    require(deciding.empty() || deciding.size() == sequences.size(),
            "deciding: one for each sequence");
    require(draws.empty() || draws.size() == sequences.size(), "draws: one for each sequence");
    StepBatch batch;
    int64_t total = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
        add_span(batch, cache, sequences[i]);
        add_rows(p, batch,
                 deciding.empty() ? DecidingLogits{}
                                  : make_deciding(deciding[i], p.program.needs().vocab),
                 draws.empty() ? PyDraw{} : draws[i]);
        const SequenceSpan& span = batch.spans.back();
        require(!p.program.needs().positions ||
                    int64_t{span.start} + span.count <= p.program.needs().positions,
                "sequences: must end within the positions that the model has");
        total += span.count;
    }
    size_t row = 0;
    for (auto& span : batch.spans) {
        span.deciding = batch.deciding.data() + row;
        row += static_cast<size_t>(span.logits);
    }
    require(total == static_cast<int64_t>(tokens.shape(0)) && total > 0,
            "tokens: must be as many as the sequences count, at least one");
    const int64_t vocab = p.program.needs().vocab;  // 0: the program embeds no tokens
    for (size_t i = 0; vocab && i < tokens.shape(0); ++i)
        require(tokens.data()[i] >= -n_features && tokens.data()[i] < vocab,
                "tokens: id outside the vocabulary, or of a row that features do not have");
    return batch;
}

// Checks the states of a step, and those in which drafts continue.
void require_states(const PyProgram& p, const std::vector<State*>& states,
                    const std::vector<PyAhead>& ahead, const std::vector<SequenceSpan>& spans) {
    const int64_t bytes = p.program.state_bytes();
    require(states.size() == (bytes ? spans.size() : 0), "states: one for each sequence, or none");
    std::vector<const State*> all(states.begin(), states.end());
    for (int before = -1; const auto& [sequence, drafts, state] : ahead) {
        require(sequence > before && sequence < static_cast<int>(states.size()),
                "ahead: must be of sequences that have states, each once, in their order");
        require(drafts >= 1 && drafts < spans[static_cast<size_t>(sequence)].count,
                "ahead: a token must come before the drafts");
        before = sequence;
        all.push_back(state);
    }
    for (auto one = all.begin(); one != all.end(); ++one) {
        require(*one && static_cast<int64_t>((*one)->memory.size()) >= bytes,
                "states: too small for the program");
        require(std::find(all.begin(), one, *one) == one, "states: each sequence needs its own");
    }
}

void require_fit(const PyProgram& p, const KvCache& cache) {
    require(cache.layers() >= static_cast<int>(p.program.needs().layers.size()),
            "cache: has too few layers");
    for (int layer = 0; layer < static_cast<int>(p.program.needs().layers.size()); ++layer)
        require(!p.program.needs().layers[static_cast<size_t>(layer)].kv_heads ||
                    cache.heads(layer) == p.program.needs().layers[static_cast<size_t>(layer)],
                "cache: does not fit the program");
    require(p.program.buffers() && p.program.logits_ld() >= p.columns(), "program: has no logits");
}

// Takes the states that the step is about to change; under the lock, since another thread may have changed one.
void begin_states(StepBatch& batch, const std::vector<State*>& states,
                  const std::vector<PyAhead>& ahead) {
    for (size_t i = 0; i < states.size(); ++i)
        require(batch.spans[i].start == 0 || states[i]->position == batch.spans[i].start,
                "states: must be of the positions before the new tokens");
    for (size_t i = 0; i < states.size(); ++i) {
        states[i]->position = -1;
        batch.spans[i].state = states[i]->floats();
    }
    for (const auto& [sequence, drafts, state] : ahead) {
        SequenceSpan& span = batch.spans[static_cast<size_t>(sequence)];
        state->position = -1;
        span.ahead = state->floats();
        span.drafts = drafts;
    }
}

void end_states(const StepBatch& batch, const std::vector<State*>& states,
                const std::vector<PyAhead>& ahead) {
    const auto end = [](const SequenceSpan& span) { return int64_t{span.start} + span.count; };
    for (size_t i = 0; i < states.size(); ++i)
        states[i]->position = end(batch.spans[i]) - batch.spans[i].drafts;
    for (const auto& [sequence, _, state] : ahead)
        state->position = end(batch.spans[static_cast<size_t>(sequence)]);
}

float* run_whole(PyProgram& p, const Batch& batch, const KvCache& cache, const KernelTable& kernels,
                 Pool& workers, const OpRange& part) {
    float* logits = nullptr;
    try {
        logits = p.program.run(batch, cache, kernels, workers, part);
    } catch (const std::domain_error&) {
        p.mappings.require_whole();  // or else this is why
        throw;
    }
    p.mappings.require_whole();
    return logits;
}

// Rows that replace embeddings of tokens.
struct ImageRows {
    const float* features = nullptr;
    int64_t count = 0, width = 0;
    const int32_t* coordinates = nullptr;
};

ImageRows image_rows(const PyProgram& p, size_t tokens, const std::optional<PyImages>& images) {
    ImageRows rows;
    if (!images) return rows;
    const auto& [features, together, coordinates] = *images;
    if (features) {
        rows.features = features->data();
        rows.count = static_cast<int64_t>(features->shape(0));
        rows.width = static_cast<int64_t>(features->shape(1));
        require(rows.width >= p.program.needs().feature_width,
                "images: features must have as many columns as the program reads");
    }
    if (coordinates) {
        rows.coordinates = coordinates->data();
        require(coordinates->shape(0) == tokens && coordinates->shape(1) == size_t{kAxes},
                "images: needs three coordinates for each token");
    }
    return rows;
}

std::vector<TogetherSpan> together_spans(const StepBatch& batch,
                                         const std::optional<PyImages>& images) {
    std::vector<TogetherSpan> spans;
    if (!images) return spans;
    for (const auto& [sequence, begin, end] : std::get<1>(*images)) {
        require(sequence >= 0 && sequence < std::ssize(batch.spans),
                "images: must be of sequences of the step");
        const SequenceSpan& span = batch.spans[static_cast<size_t>(sequence)];
        require(span.start <= begin && begin < end && end <= span.end() && !span.drafts,
                "images: must be new positions of a sequence without drafts");
        spans.push_back({sequence, begin, end});
    }
    return spans;
}

// Rows of this many tokens, of the program's width.
template <class Array>
auto rows_of(const std::optional<Array>& rows, size_t tokens, int64_t width, const char* rule) {
    require(!rows || (width > 0 && rows->shape(0) == tokens &&
                      static_cast<int64_t>(rows->shape(1)) == width),
            rule);
    return rows ? rows->data() : nullptr;
}

}  // namespace

StepResult run_step(PyProgram& p, KvCache& cache, In<int32_t, 1> tokens,
                    const std::vector<PySpan>& sequences, const std::string& isa,
                    const nb::int_& threads, const std::vector<PyDeciding>& deciding,
                    const std::vector<PyDraw>& draws, const std::vector<State*>& states,
                    Gate* masks, const std::vector<PyAhead>& ahead,
                    const std::vector<PyAdapted>& adapters,
                    const std::optional<In<float, 2>>& previous_hidden_states,
                    const std::optional<OutRows>& hidden_states,
                    const std::vector<PySecondPart>& second_parts,
                    const std::optional<PyImages>& images, const std::optional<OutRows>& kept,
                    const std::optional<PyPart>& part) {
    const float* rows =
        rows_of(previous_hidden_states, tokens.shape(0), p.program.needs().previous_width,
                "previous_hidden_states: a row for each token");
    float* hidden_rows = rows_of(hidden_states, tokens.shape(0), p.program.needs().hidden_width,
                                 "hidden_states: a row for each token");
    require(p.program.needs().previous_width == 0 || rows,
            "previous_hidden_states: this program needs a row for each token");
    float* kept_rows =
        rows_of(kept, tokens.shape(0), p.program.needs().kept_width, "kept: a row for each token");
    require(p.program.needs().kept_width == 0 || kept_rows,
            "kept: this program needs a row for each token");
    require(!part || (part->first < part->second && part->second <= p.program.operations()),
            "part: must be operations of the program");
    const ImageRows seen = image_rows(p, tokens.shape(0), images);
    auto batch = make_batch(p, cache, tokens, seen.count, sequences, deciding, draws);
    for (const auto& [sequence, position] : second_parts) {
        require(sequence >= 0 && sequence < std::ssize(batch.spans) && position >= 0,
                "second_parts: must be of sequences of the step");
        batch.spans[static_cast<size_t>(sequence)].second_part = position;
    }
    const auto together = together_spans(batch, images);
    require_states(p, states, ahead, batch.spans);
    require_fit(p, cache);
    const auto adapted = adapter_spans(p, adapters, static_cast<int>(batch.spans.size()));
    const auto& kernels = table(isa);
    Pool& workers = pool(threads);
    require(!p.hidden || batch.draws.empty(), "draws: a program without a head has no logits");
    const auto columns = static_cast<size_t>(p.columns());
    auto out = make_array<float, 2>({batch.kept_rows.size(), columns});
    std::vector<SampleResult> drawn(batch.draws.size());
    std::vector<int64_t> rescored(batch.deciding.size());
    std::mutex& mutex = p.lock();  // under the GIL
    nb::gil_scoped_release release;
    const std::lock_guard guard(mutex);
    p.draws.begin(batch.draws, static_cast<int>(p.program.needs().vocab));
    for (size_t i = 0; i < drawn.size(); ++i)
        batch.deciding[batch.drawn_rows[i]] =
            p.draws.deciding(i, batch.draws[i], p.program.needs().vocab);
    begin_states(batch, states, ahead);
    const Batch whole{{tokens.data(), tokens.shape(0)},
                      batch.spans,
                      adapted,
                      masks,
                      rows,
                      hidden_rows,
                      seen.features,
                      seen.width,
                      together,
                      seen.coordinates,
                      kept_rows,
                      p.program.needs().kept_width};
    float* logits = run_whole(p, whole, cache, kernels, workers,
                              part ? OpRange{part->first, part->second} : OpRange{});
    if (masks) masks->pass();
    end_states(batch, states, ahead);
    const auto row_of = [&](size_t n) {
        return logits + static_cast<int64_t>(n) * p.program.logits_ld();
    };
    for (size_t i = 0; i < drawn.size(); ++i) batch.draws[i].logits = row_of(batch.drawn_rows[i]);
    p.draws.run(batch.draws, static_cast<int>(p.program.needs().vocab), kernels, workers, drawn);
    for (size_t i = 0; i < batch.kept_rows.size(); ++i)
        std::copy_n(row_of(batch.kept_rows[i]), columns, out.data() + i * columns);
    for (size_t r = 0; r < rescored.size(); ++r)
        rescored[r] = p.program.rescored(static_cast<int64_t>(r));
    return {out, std::move(drawn), std::move(rescored), p.program.head_bytes()};
}

}  // namespace sterna::border
