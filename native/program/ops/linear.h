// The product of a linear layer and what is done to its result, as the operations share it that read weights.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "program/program.h"

namespace sterna {

// y = x W^T (+ residual), or ((x W^T + bias) * factor (+ residual)), capped.
class LinearProduct {
  public:
    // rows: of W, of one expert where there are several.
    LinearProduct(const OpFields& fields, const Workspace& work, int64_t rows, int64_t experts);

    bool fast(const FormatKernels& format) const { return x.planes_for >= 0 && format.fast.linear; }
    // How so many rows of x are laid out as int8.
    int x_block(const Step& step, int64_t rows) const {
        return step.kernels.x_block(static_cast<int>(rows * planes));
    }
    // Of the product of so many rows, in all tiles of w. `first`: of x, and of y.
    LinearArgs args(const Step& step, const Weight& w, int64_t first, int64_t rows) const;
    // Bytes that `multiply` needs behind LinearArgs::scratch.
    int64_t scratch_bytes(const Step& step, int64_t tokens) const;
    // The tiles of `a`, which are those of w.
    void multiply(const Step& step, const LinearArgs& a, const Weight& w) const;
    // Rows [from, to) of the result, once the kernel has written them.
    void finish(const Step& step, const LinearArgs& a, int64_t from, int64_t to) const;
    // That of the rows from `first` on, or null.
    const float* bias_of(int64_t first) const {
        return bias.empty() ? nullptr : bias.data() + first;
    }
    // The weight as a worker reads its tiles [begin, end), of which as many as lie in one place.
    Weight near_part(const Step& step, int worker, int64_t begin, int64_t& end) const;

    const Workspace& work;
    Operand x, residual, y;
    int weight, planes;  // planes: of codes
    int64_t column;  // of y, where the result begins: a multiple of kRowBlock
    std::vector<float> bias;  // or empty
    float factor, cap;
};

// Of a matrix that stays on disk all threads compute with one part at a time, so that its memory is free for another one
// as soon as may be: a piece is some of its tiles.
struct Pieces {
    int64_t tiles;  // of a part
    int64_t size;  // tiles of a piece

    Pieces(const Step& step, const Weight& w, int64_t tiles) : tiles(tiles) {
        const int64_t batch = step.reading_of(w).streams, few = tiles / (kOfThread * step.threads);
        size = std::max(batch, few / batch * batch);
    }
    int64_t count() const { return (tiles + size - 1) / size; }  // of a part
    // Tiles [begin, end) of the part.
    std::pair<int64_t, int64_t> at(int64_t piece) const {
        return {piece * size, std::min(piece * size + size, tiles)};
    }

    static constexpr int64_t kOfThread = 4;
};

// A linear layer of all tokens.
class LinearOp : public Op {
  public:
    // The part of it that a step of one token reads: all; the tiles of the gates; the rows behind them that these leave
    // open, in an operation of its own; or the columns whose activation is not 0.
    enum class Active { kAll, kGates, kRows, kColumns };

    LinearOp(const OpFields& fields, Workspace& work, Active active = Active::kAll,
             std::shared_ptr<const ActiveCopy> copy = nullptr);
    const char* kind() const override { return "linear"; }
    int64_t scratch_bytes(const Step& step) const override;
    Division units(const Step& step) const override;
    void run(Step& step, Turn& turn) override;
    std::vector<TilesRead> tiles_read() const override {
        if (on_disk_ >= 0) return {};
        return {{product_.weight, 1}};
    }
    int stream_from(const WeightCache& cache) override;
    bool is_linear(const Step& step) const override { return takes_part(step); }
    ReadAhead beginning(const Step& step, int worker) const override;

  private:
    const Weight& weight() const { return work.weights[product_.weight]; }
    // Open rows are read alone in steps of one token.
    bool takes_part(const Step& step) const {
        return rows(step) > 0 && (active_ != Active::kRows || step.one());
    }
    // LinearArgs: not of two planes, which are multiplied a few tiles at a time.
    int joint_tokens() const {
        return product_.planes == 1 && on_disk_ < 0 ? weight().joint_tokens : 0;
    }
    int64_t parts(const Step& step) const;
    Pieces pieces(const Step& step) const;
    void run_streamed(Step& step, Turn& turn, LinearArgs& a) const;
    bool run_part(Step& step, const LinearArgs& a, int64_t part, int64_t& begin,
                  int64_t& end) const;

    LinearProduct product_;
    Active active_;
    std::shared_ptr<const ActiveCopy> copy_;
    int on_disk_ = -1;  // the matrix of the cache that it reads
};

}  // namespace sterna
