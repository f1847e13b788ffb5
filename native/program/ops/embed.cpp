// Rows of the embedding's table for the batch's tokens, or the first features of what stands in their place.
#include <algorithm>

#include "program/program.h"

namespace sterna {

namespace {

class EmbedOp final : public RowOp {
  public:
    EmbedOp(const OpFields& f, Workspace& work)
        : RowOp(f, work),
          weight_(f.required("weight")),
          output_(f.value("output")),
          factor_(f.factor("factor")),
          first_for_rest_(f.flag("first_for_rest")),
          image_token_(f.maybe_whole("image_token").value_or(-1)) {
        const int64_t vocab = work.weights[weight_].M;
        f.require(image_token_ >= -1 && image_token_ < vocab, "image_token",
                  "must be -1 or have a row");
        f.require(work.weights[weight_].K <= output_.ld(), "output", "is too narrow");
        if (!first_for_rest_) {
            f.require(!work.needs.vocab || work.needs.vocab == vocab, "weight",
                      "must have a row for each token, as the other tables have");
            work.needs.vocab = vocab;
        }
        if (image_token_ < 0)
            work.needs.feature_width = std::max(work.needs.feature_width, work.weights[weight_].K);
    }
    const char* kind() const override { return "embed"; }

  protected:
    void row(Step& step, int64_t n, int) override {
        const Weight& w = work.weights[weight_];
        float* x = work.buffer(output_).row(n);
        const float* features = step.batch.features_of(n);
        if (features && image_token_ < 0) {
            std::copy_n(features, w.K, x);
            return;
        }
        const int64_t token = features ? image_token_ : step.batch.tokens[static_cast<size_t>(n)];
        const int64_t row = first_for_rest_ && token >= w.M ? 0 : token;
        const auto& format = step.kernels.formats[w.format];
        const RowArgs args{w.codes, w.tile_bytes, row, w.K, x, w.levels};
        if (w.groups.group_k) {
            format.values(args, w.groups, w.zero_x2);
        } else {
            format.row(args);
            if (format.integer)  // 2 * code - zero_x2 is exact; one rounding
                for (int64_t k = 0; k < w.K; ++k)
                    x[k] = (2 * x[k] - static_cast<float>(w.zero_x2)) * w.scale[row];
            else if (w.scale)
                for (int64_t k = 0; k < w.K; ++k) x[k] *= w.scale[row];
        }
        if (factor_ != 1)
            for (int64_t k = 0; k < w.K; ++k) x[k] *= factor_;
    }

  private:
    int weight_;
    Operand output_;
    float factor_;
    bool first_for_rest_;  // a token behind the table's last row takes its first
    int64_t image_token_;  // whose row stands where images stand; -1: their features do
};

const OpKind embed("embed", [](const OpFields& f, Program& p) { p.add<EmbedOp>(f); });

}  // namespace

}  // namespace sterna
