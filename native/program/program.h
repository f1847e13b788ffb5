// A model as a flat list of operations over named buffers, and the loop that runs it.
//
// Python writes a Program once per model (sterna/graph); run() then takes a batch, several
// sequences with any number of new tokens each, and plays every operation on the thread pool with a
// barrier between two of them. Nothing is allocated once a step of as many tokens, as far into a context,
// has been seen.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "head/head.h"
#include "program/adapter.h"
#include "program/kv_cache.h"
#include "program/near.h"
#include "program/tensors.h"
#include "runtime/gate.h"
#include "runtime/hand_out.h"
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "units/kernel_table.h"

namespace sterna {

enum class OpKind {
    kEmbed,
    kSelect,
    kRowwise,
    kLinear,
    kRope,
    kAttention,
    kScreen,
    kToBf16Planes,
    kConv,
    kGates,
    kRecurrence,
    kGated,
    kRoute,
    kCombine,
    kSquares,
    kAdapt,
    kCopy,
    kTell
};
constexpr int kOpKinds = 18;

// The heads of a recurrent layer. Value head h has the keys and queries of head h / (v_heads / k_heads), or where
// they are tiled of head h mod k_heads.
struct RecurrentHeads {
    int k_heads = 0, v_heads = 0;
    int64_t k_dim = 0, v_dim = 0;
    bool tiled = false;

    int k_head(int h) const { return tiled ? h % k_heads : h / (v_heads / k_heads); }
    // Of a row [q | k | v], as the convolution has it.
    int64_t k_width() const { return k_heads * k_dim; }
    int64_t v_width() const { return v_heads * v_dim; }
    int64_t channels() const { return 2 * k_width() + v_width(); }
    int64_t head_floats() const { return state_blocks(v_dim) * kStateColumns * k_dim; }
};

// What recurrent layers keep of one sequence, and of how many of its positions; -1: of none, since a step that changed
// it did not come to its end.
struct State {
    explicit State(int64_t bytes) : memory(static_cast<size_t>(bytes)) {}
    float* floats() const { return reinterpret_cast<float*>(memory.data()); }

    HugeBuffer memory;
    int64_t position = 0;
};

// Of a linear layer that reads, for one token, no more than it needs: with a copy of the rows behind the gates it
// is two operations, the tiles of the gates (all tiles for more tokens) and the rows that these leave open.
enum class Active { kAll, kGates, kRows, kColumns };

struct Op {
    OpKind kind;
    std::string name;  // for error messages: "layers.3.mlp.down_proj"
    int src = -1, dst = -1;  // buffers; kCopy without a src: Batch::given
    int residual = -1;  // kLinear, kRowwise: buffer added to the result
    // Of the result, kEmbed, kLinear: before a residual is added, kRowwise: after it.
    float factor = 1;
    // Of dst, where the result starts: kLinear, a multiple of kRowBlock; kCopy.
    int64_t column = 0;
    std::vector<float> bias{};  // kLinear: [M], or empty; added last, or before a factor
    int weight = -1;  // kEmbed, kLinear
    // kRowwise, kToBf16Planes: the weight whose fast kernel reads the result as bf16 planes
    int planes_for_weight = -1;
    bool fast = false;  // kLinear: reads them, where the unit has such a kernel
    Active active = Active::kAll;  // kLinear
    int copy = -1;  // and which copy of the weight it has for that
    bool lists = false;  // kRowwise: the next operation reads columns
    bool unscreened = false;  // kLinear: a float head, run where the step is not screened
    ScreenStage stage{};  // kScreen
    bool begins = false;  // kScreen: no stage, but what comes before where masks are late
    bool selected = false;  // runs on the rows whose logits are wanted, not on all tokens
    int attends = 0;  // kRope, kAttention: which of the program's heads its layer has
    int layer = 0;  // kRope, kAttention: of the cache
    bool stores = true;  // kRope: keys and values; else the layer reads those of an earlier one
    bool keys_are_values = false;  // kRope: the row has no values, which are its keys as they come
    bool gated =
        false;  // kRope: behind each head of q are as many values of its gate, which stay where they are
    int rotary = -1;  // kRope: which of the program's rotations; -1: none
    int32_t window = kNoWindow;  // kAttention: as in AttentionArgs
    float scale = 0;  // kAttention
    float cap = 0;  // kAttention, of scores; kLinear, of the result; 0: none
    std::vector<float> sinks{};  // kAttention: of each query head, as in AttentionArgs; or empty
    Glu glu = Glu::kNone;  // kRowwise
    float limit = 0;  // kRowwise: of Glu::kClamped
    // kRowwise: the buffer, and the column there, where what a Glu multiplies begins
    int up = -1;
    int64_t width = 0, up_offset = 0;
    int64_t parts = 1;  // kRowwise: of the width, each normalised by itself
    std::vector<float> norm{};  // kRowwise; kRope: of each head of q, or of all of q
    // kRowwise: RowwiseArgs::hadamard_block, signs, signs_last
    int64_t hadamard_block = 0;
    std::vector<float> signs{};
    bool signs_last = false;
    std::vector<float> k_norm{};  // kRope: of each head of k, or of all of k
    std::vector<float> v_norm{};  // kRope: of each head of v
    bool norms_last = false;  // kRope: after the rotation
    float eps = 0;
    // kRowwise: values that share a scale where the result is rounded to int8; 0: all of a row.
    std::optional<int64_t> rounding{};
    // Of int8 that kRowwise writes and kLinear reads: with two, what rounding leaves is a row of its own, of which
    // the layer has a result too.
    int code_planes = 1;
    bool keep_float = true;  // kRowwise: whether the result is read as floats, not int8 alone
    RecurrentHeads heads{};  // kConv, kGates, kRecurrence; kGated: tiled, of v_dim
    int64_t state = 0;  // kConv, kRecurrence: where in a State its floats begin
    std::vector<float> taps{};  // kConv: [width][channels]
    std::vector<float> rate{};  // kGates: [v_heads], beside `bias`
    int64_t a = 0, b = 0;  // kGates, kRecurrence: the columns of both gates
    int gate = -1;  // kGated: the buffer of its gates, whose first is at `column`
    int64_t gate_stride = 0;  // from one head's to the next
    bool silu = false, single = false;  // GatedArgs
    // Experts of each token: kRoute chooses them. kRowwise, kLinear: where it is not 0, the operation runs on the rows of
    // experts, one for each token and each of its experts, and all experts have a weight. kCombine.
    int chosen = 0;
    int experts = 0;  // how many there are
    int64_t expert_rows = 0;  // kLinear: of the weight of each, which begins at a tile
    bool spread = false;  // kRowwise: `src` has rows of tokens, each of which goes to its experts
    bool of_all = false;  // kRoute: weights sum up to 1 over all experts, not over the chosen ones
    std::vector<float> expert_factors{};  // kRoute: of each expert's weight, or empty
    int shares = -1;  // kCombine: the buffer of the weights that kRoute wrote
    int sums = -1;  // kSquares: which of the program's
    int place = -1;  // kAdapt: of the layers in an Adapter
    bool adds = false;  // kAdapt: B (A x) to the result; else it makes A x
};

// One sequence's share of a batch.
struct SequenceSpan {
    int start;  // position of its first new token
    int count;  // new tokens
    const int32_t* pages;  // page table covering start + count positions
    int logits;  // how many of the last new tokens want logits
    // For each of those, which of its logits decide; null: all of them.
    const DecidingLogits* deciding = nullptr;
    float* state = nullptr;  // State; of a sequence that starts at 0 it is not read
    // Of the new tokens, the last so many are drafts, with at least one before them: `state` stays that before them, and
    // they go on in `ahead`.
    int drafts = 0;
    float* ahead = nullptr;
};

// Sequences of a batch that follow each other and have one adapter.
struct AdapterSpan {
    int first, count;
    const Adapter* adapter;
};

struct Batch {
    std::span<const int32_t> tokens;
    std::span<const SequenceSpan> sequences;
    std::span<const AdapterSpan> adapters;  // of sequences that have one, in their order
    Gate* masks = nullptr;  // where it is open, the masks of `deciding` are there; null: they are
    const float* given = nullptr;  // kCopy: a row of its width for each token
    float* told = nullptr;  // kTell: where a row of its width for each token goes; null: nowhere
};

class Program {
  public:
    // Those of a layer, as the KV cache has them.
    struct Heads {
        int n_heads, n_kv_heads, head_dim;

        int padded() const { return padded_head(head_dim); }
        int queries_per_kv() const { return n_heads / n_kv_heads; }
        KvCache::Heads cached() const { return {n_kv_heads, padded()}; }
    };
    // Rotates the first 2 * inverse_frequencies.size() values of a head, by `factor` times cosines and sines.
    struct Rotary {
        std::vector<float> inverse_frequencies;
        bool interleaved;
        float factor;
        int64_t first_angle = 0;  // of those that a token has for all rotations

        int dim() const { return static_cast<int>(2 * inverse_frequencies.size()); }
    };

    int add_heads(Heads heads);
    int add_rotary(std::vector<float> inverse_frequencies, bool interleaved, float factor);
    int add_buffer(int64_t width);
    int add_weight(const Weight& weight);
    void add_op(Op op);
    // An operation that keeps so many floats in the State of a sequence.
    void add_recurrent(Op op, int64_t floats);
    int64_t state_bytes() const { return 4 * state_floats_; }
    // An operation that adds up the squares of what a buffer's rows have in each column.
    void add_squares(Op op);
    // The last op, a linear layer with float weights, becomes an exact head (head.h).
    void add_screen(const Weight& shadow, const ShadowBounds& bounds);

    // Whether a weight may have the copies that the next two make. The last op, a linear layer, reads for one token
    // only the rows from first_row on, a whole tile, whose gates, its first rows, relu leaves open; or only the
    // columns whose activation is not 0.
    const Op* last() const { return ops_.empty() ? nullptr : &ops_.back(); }
    // Whether a rowwise operation rounds what the last op reads, all of a row with one scale.
    bool last_input_rounded() const;
    static bool has_active_copies(const Weight& weight, const KernelTable& kernels);
    void add_open_rows(int64_t first_row, const KernelTable& kernels, Pool& pool);
    void add_columns(const KernelTable& kernels, Pool& pool);

    // Copies what linear layers read into memory near the pool's threads, in parts or whole for each node; after all
    // operations were added. Runs of another pool, or of one whose threads are placed otherwise, read it from there too.
    void place(Pool& pool, bool replicas, const KernelTable& kernels);

    // What adapters add to the layers that read `src` and wrote `dst`: the next of their places.
    void add_adapted(const std::string& name, int src, int dst);
    int places_of_adapters() const { return places_of_adapters_; }

    // Logits of the selected rows, [rows][logits_ld()], valid until the next run. Throws
    // std::domain_error with the operation's name if an activation is not finite.
    float* run(const Batch& batch, const KvCache& cache, const KernelTable& kernels, Pool& pool);
    // Seconds that runs have spent in each kind of operation, barriers included, by OpKind.
    const std::array<double, kOpKinds>& seconds() const { return seconds_; }
    // Of those of kLinear, what was spent in the last operation: in a head without a screen.
    double head_seconds() const { return head_seconds_; }
    // Of the last run: rows of the float head computed for the n-th row of logits, and the bytes
    // read of the head. Zero and zero without an exact head.
    int64_t rescored(int64_t n) const;
    int64_t head_bytes() const;
    // Bytes of weights that the last run did not read, as nothing active met them.
    int64_t left_out() const { return left_out_; }
    // What each kSquares, in order, has added up in all runs: rows seen, and a sum for each column.
    struct SquareSums {
        int64_t rows = 0;
        std::vector<double> columns{};
    };
    const std::vector<SquareSums>& squares() const { return squares_; }
    int64_t logits_ld() const { return buffers_.back().ld; }
    int heads_count() const { return static_cast<int>(attending_.size()); }
    const Heads& heads(int attends) const { return attending(attends).heads; }
    int rotaries() const { return static_cast<int>(rotaries_.size()); }
    int rotary_dim(int rotary) const { return rotaries_[static_cast<size_t>(rotary)].dim(); }

  private:
    struct Run;  // what the workers of one run share
    struct Placing;
    // Query rows of one KV head of a sequence.
    struct QueryBlock {
        int sequence, kv_head, first, count;  // tokens of the batch
        // Where chunks of positions are units: how many there are, and how many are left, which workers count down
        // atomically. Whoever does the last one merges them.
        int chunks = 0, left = 0;
        // Floats: where the results of its rows begin, and from one chunk's to the next one's.
        int64_t partial = 0, stride = 0;
    };
    // A whole block, or a chunk of positions of blocks that have the same pages there.
    struct AttentionUnit {
        int block, count = 1;
        int chunk = -1;  // -1: all
    };
    // What the layers that have these heads do in a step.
    struct Attending {
        Heads heads;
        std::vector<QueryBlock> blocks{};
        std::vector<AttentionUnit> units{};
        int64_t partial_floats = 0;

        int64_t partial_bytes() const { return partial_floats * int64_t{sizeof(float)}; }
        void add_chunks(int block, int from);
    };
    // A sequence whose first chunks of positions have the same pages as another's.
    struct Joined {
        int sequence, chunks;
    };

    void reserve(int64_t tokens);
    void reserve_scratch(const Run& run, int workers);
    uint8_t* scratch(int worker) const { return scratch_.data() + worker * scratch_stride_; }
    struct AttentionCall;  // query rows on their way to a kernel

    void plan(const Batch& batch, int threads);
    const Attending& attending(int attends) const {
        return attending_[static_cast<size_t>(attends)];
    }
    void plan_attention(Attending& a, const Batch& batch, int threads);
    void add_blocks(Attending& a, const Batch& batch, int sequence, int tokens_per_block) const;
    void join_prefixes(Attending& a, const Batch& batch, int tokens_per_block);
    void add_joined(Attending& a, const Batch& batch, int rows);
    void add_units(Attending& a, size_t begin, int threads, int64_t rows_per_block) const;
    int chunks_of(const QueryBlock& block) const;
    void step(const Op& op, size_t index, Run& run, int worker, HandOut& hand_out);
    void begin_screen(Run& run);
    void screen(const Op& op, size_t index, Run& run, int64_t begin, int64_t end, int worker);

    size_t maker_of(int buffer) const;
    int add_copy(const Weight& w, bool columns, int64_t first_row, const KernelTable& kernels,
                 Pool& pool);
    void list_active(const Op& op, Run& run) const;
    int64_t active_parts(const Op& op, const Run& run) const;
    bool active_part(const Op& op, Run& run, const LinearArgs& a, int64_t part, int64_t& begin,
                     int64_t& end) const;

    void embed(const Op& op, const Run& run, int64_t n) const;
    const float* gate_and_up(const Op& op, int64_t n, int worker, int64_t& up_offset) const;
    int planes(const Op& op, const Run& run) const;
    void rowwise(const Op& op, size_t index, Run& run, int64_t n, int worker) const;
    void linear(const Op& op, Run& run, int64_t begin, int64_t end, int worker,
                bool scratch_ready) const;
    int64_t multiply_scratch(const Op& op, const Run& run) const;
    void multiply(const Op& op, const Run& run, const LinearArgs& a, const Weight& w) const;
    void finish(const Op& op, const Run& run, const LinearArgs& a, const float* bias, int64_t from,
                int64_t to) const;
    void reserve_routing(int64_t tokens);
    int64_t capacity_of(size_t buffer, int64_t tokens) const;
    void route(const Op& op, size_t index, Run& run, int64_t begin, int64_t end);
    bool choose(const Op& op, int64_t n);
    void group_by_expert(const Op& op, int64_t tokens);
    const NearTiles& near(int weight) const;
    Weight near_part(const Op& op, const Run& run, int worker, int64_t begin, int64_t& end) const;
    Division expert_units(const Op& op, const Run& run) const;
    void linear_experts(const Op& op, const Run& run, int64_t begin, int64_t end, int worker,
                        int& last) const;
    void combine(const Op& op, int64_t n) const;
    void add_up_squares(const Op& op, const Run& run, int64_t unit);
    void plan_adapters(const Batch& batch);
    int64_t adapter_units(const Op& op) const;
    float* adapter_sums(int64_t n) const {
        return reinterpret_cast<float*>(sums_of_adapters_.data()) + n * adapter_sums_;
    }
    void adapt(const Op& op, const Run& run, int64_t unit, int worker) const;
    void sum_down(const Op& op, const Run& run, const AdapterLayers& layers, int64_t unit,
                  int64_t first, int64_t tokens) const;
    void add_up(const Op& op, const Run& run, const AdapterLayers& layers, int64_t unit,
                int64_t first, int64_t tokens, int worker) const;
    // Whether a norm is one of all heads of q (with one head, as well of that).
    bool norms_whole(const Op& op) const {
        return std::ssize(op.norm) > heads(op.attends).head_dim;
    }
    bool normalise(const Op& op, const Run& run, float* qkv) const;
    float* copy_heads(const Op& op, const float* qkv, int64_t n) const;
    void rope_and_store(const Op& op, size_t index, Run& run, int64_t n) const;
    bool store(const Op& op, const Run& run, float* keys, int64_t n) const;
    void attend(const Op& op, const Run& run, int64_t unit, int worker);
    void convolve(const Op& op, const Run& run, int64_t unit) const;
    void make_gates(const Op& op, size_t index, Run& run, int64_t n) const;
    void recur(const Op& op, const Run& run, int64_t begin, int64_t end) const;
    void gate_heads(const Op& op, size_t index, Run& run, int64_t n) const;
    Division recurrent_units(const Op& op, const Run& run) const;
    void angles(int64_t n);
    Division units(const Op& op, const Run& run) const;
    size_t next_linear(size_t index, const Run& run) const;
    ReadAhead beginning(size_t index, const Run& run, int worker) const;

    std::vector<Attending> attending_;
    std::vector<Rotary> rotaries_;
    int64_t angles_ = 0;  // of a token, for all rotations
    std::vector<Op> ops_;
    std::vector<Activations> buffers_;
    std::vector<Weight> weights_;
    std::vector<NearTiles> near_;  // of each weight, or none
    std::vector<HugeBuffer> node_memory_;
    NodeTeam team_;  // that it is near to
    HandOut hand_outs_[2];  // of operations in turn: one is made ready while the other is in use
    std::array<double, kOpKinds> seconds_{};
    double head_seconds_ = 0;
    int64_t capacity_ = 0;  // tokens that the buffers hold
    std::vector<float> cos_, sin_;  // [tokens][angles_]
    std::vector<int32_t> sequence_of_, position_of_, selected_;
    std::vector<int64_t> first_of_;  // of each sequence, its first row
    int64_t state_floats_ = 0;
    std::vector<DecidingLogits> deciding_;
    std::unique_ptr<Screen> screen_;
    int64_t full_bytes_ = 0, shadow_bytes_ = 0, full_rows_ = 0;  // of the exact head
    bool screened_ = false;  // the last run was
    struct ActiveCopy {
        HugeBuffer data;
        int64_t stride, first_row, first_tile;  // as in ActiveCopyArgs
    };
    std::vector<ActiveCopy> copies_;
    HugeBuffer places_, values_;  // ActiveColumns
    // Of the last kRoute: for each token its experts, ascending, and the rows that these have in buffers of rows of
    // experts. An expert's rows are those of its tokens in order, and begin at a whole block of 16.
    struct Routing {
        std::vector<int32_t> expert, row;  // [tokens][chosen]
        std::vector<int32_t> first, count;  // [experts]: an expert's first row, and how many it has
        std::vector<int32_t> active;  // the experts that have any
        int32_t most = 0;  // rows of one
    } routing_;
    int64_t left_out_ = 0;
    std::vector<SquareSums> squares_;
    // Rows of a step that have an adapter.
    struct Adapting {
        const Adapter* adapter;
        int64_t first, rows;
    };
    std::vector<Adapting> adapting_;
    int places_of_adapters_ = 0;
    int64_t adapter_sums_ = 0, adapter_rank_ = 0;  // the most of the step's adapters
    HugeBuffer sums_of_adapters_;  // A x, in chunks: [tokens][adapter_sums_]
    std::vector<Joined> joined_;  // with one of them, which is the first
    std::vector<char> planned_;  // of each sequence: whether it has its blocks
    HugeBuffer partials_;
    int64_t scratch_stride_ = 0;  // bytes of one worker
    HugeBuffer scratch_;
};

}  // namespace sterna
