// The angles by which the tokens of a step are rotated, for all rotations of a program.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "scalar_math.h"
#include "units/kernel_table.h"

namespace sterna {

// Rotates the first 2 * inverse_frequencies.size() values of a head, by `factor` times cosines and sines.
struct Rotary {
    std::vector<float> inverse_frequencies;
    bool interleaved;
    float factor;
    std::vector<uint8_t>
        axes{};  // of each frequency, whose position it turns; empty: the sequence's
    int64_t first_angle = 0;  // of those that a token has for all rotations

    int dim() const { return static_cast<int>(2 * inverse_frequencies.size()); }
};

class Rotations {
  public:
    int add(Rotary rotary) {
        rotary.first_angle = angles_;
        angles_ += rotary.dim() / 2;
        rotaries_.push_back(std::move(rotary));
        return static_cast<int>(rotaries_.size()) - 1;
    }
    void reserve(int64_t tokens) {
        cos_.resize(static_cast<size_t>(tokens * angles_));
        sin_.resize(static_cast<size_t>(tokens * angles_));
    }
    // Makes the angles of token n, for all rotations. coordinates: its positions on all axes, or null.
    void make(int64_t n, int32_t position, const int32_t* coordinates) {
        auto at = static_cast<size_t>(n * angles_);
        for (const auto& rotary : rotaries_)
            for (size_t i = 0; i < rotary.inverse_frequencies.size(); ++i) {
                const bool placed = coordinates && !rotary.axes.empty();
                const int32_t where = placed ? coordinates[rotary.axes[i]] : position;
                // The angle is rounded to float first, as every reference implementation does.
                const float angle = static_cast<float>(where) * rotary.inverse_frequencies[i];
                const auto [sine, cosine] = math::sincos_d(angle);
                cos_[at] = static_cast<float>(cosine) * rotary.factor;
                sin_[at++] = static_cast<float>(sine) * rotary.factor;
            }
    }
    const Rotary& at(int rotary) const { return rotaries_[static_cast<size_t>(rotary)]; }
    // Sets what token n is rotated by.
    void set(RopeArgs& a, int rotary, int64_t n) const {
        const Rotary& r = at(rotary);
        const int64_t angle = n * angles_ + r.first_angle;
        a.cos = cos_.data() + angle;
        a.sin = sin_.data() + angle;
        a.rotary_dim = r.dim();
        a.interleaved = r.interleaved;
    }

  private:
    std::vector<Rotary> rotaries_;
    int64_t angles_ = 0;  // of a token, for all rotations
    std::vector<float> cos_, sin_;  // [tokens][angles_]
};

}  // namespace sterna
