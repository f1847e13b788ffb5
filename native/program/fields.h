// The fields that an operation is made of, by name. The bindings read them from a dataclass of sterna/graph/ops; an
// operation's constructor takes each once, and checks it.
#pragma once
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "program/operand.h"

namespace sterna {

// A matrix of floats that Python keeps alive.
struct BorrowedMatrix {
    const float* values;
    int64_t rows, columns;
};

class OpFields {
  public:
    virtual ~OpFields() = default;

    // A name may have several parts: "rotation.block". What is None, or a part of what is None, is 0, empty, false or no
    // operand. Throws std::invalid_argument, with the operation and the field, for a value of another type.
    virtual std::string text(const char* field) const = 0;
    virtual bool flag(const char* field) const = 0;
    virtual std::optional<int64_t> maybe_whole(const char* field) const = 0;
    virtual std::optional<double> maybe_number(const char* field) const = 0;
    virtual std::vector<float> floats(const char* field) const = 0;
    virtual BorrowedMatrix matrix(const char* field) const = 0;
    virtual Operand value(const char* field) const = 0;
    // The program's number for a weight, heads or a rotation; -1: None.
    virtual int number_of(const char* field) const = 0;
    // "layers.3.mlp.down_proj (linear)"
    virtual std::string operation() const = 0;

    int64_t whole(const char* field) const { return maybe_whole(field).value_or(0); }
    float number(const char* field) const {
        return static_cast<float>(maybe_number(field).value_or(0.0));
    }
    void require(bool ok, const char* field, const char* rule) const {
        if (!ok) throw std::invalid_argument(operation() + ": " + field + ": " + rule);
    }

    // Fields with a rule of their own.
    int required(const char* field) const {
        const int number = number_of(field);
        require(number >= 0, field, "must be there");
        return number;
    }
    std::vector<float> floats(const char* field, int64_t count, const char* rule) const {
        auto values = floats(field);
        require(values.empty() || static_cast<int64_t>(values.size()) == count, field, rule);
        return values;
    }
    float factor(const char* field) const {
        const float value = number(field);
        require(std::isfinite(value) && value != 0, field, "must be finite and not 0");
        return value;
    }
    float cap(const char* field) const {
        const float value = number(field);
        require(std::isfinite(value) && (value == 0 || (value >= 1e-3f && value <= 1e6f)), field,
                "must be 0, for none, or in 0.001..1000000");
        return value;
    }
};

}  // namespace sterna
