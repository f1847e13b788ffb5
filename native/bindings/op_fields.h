// The fields of an operation, read from a dataclass of sterna/graph/ops by their names.
#pragma once
#include <string>
#include <string_view>

#include "bindings/step.h"
#include "program/fields.h"

namespace sterna::border {

class PyOpFields final : public OpFields {
  public:
    // numbers: of the program's values, weights, heads and rotations, by the id() of what the fields hold.
    PyOpFields(PyProgram& program, nb::handle op, const nb::dict& numbers)
        : program_(program),
          op_(op),
          numbers_(numbers),
          operation_(text("name") + " (" + text("kind") + ")") {}

    std::string operation() const override { return operation_; }
    std::string text(const char* field) const override {
        return cast<std::string>(field, "a text").value_or("");
    }
    bool flag(const char* field) const override {
        return cast<bool>(field, "true or false").value_or(false);
    }
    std::optional<int64_t> maybe_whole(const char* field) const override {
        return cast<int64_t>(field, "a whole number");
    }
    std::optional<double> maybe_number(const char* field) const override {
        return cast<double>(field, "a number");
    }
    std::vector<float> floats(const char* field) const override {
        const nb::object value = get(field);
        if (value.is_none()) return {};
        In<float, 1> array;
        if (nb::try_cast(value, array, false)) return {array.data(), array.data() + array.shape(0)};
        return *cast<std::vector<float>>(field, "a float32 vector");
    }
    BorrowedMatrix matrix(const char* field) const override {
        const auto array = cast<In<float, 2>>(field, "a float32 matrix");
        require(array.has_value(), field, "must be there");
        program_.keep.push_back(nb::cast(*array));
        return {array->data(), static_cast<int64_t>(array->shape(0)),
                static_cast<int64_t>(array->shape(1))};
    }
    Operand value(const char* field) const override {
        const int number = number_of(field);
        if (number < 0) return {};
        require(number < std::ssize(program_.values), field, "must be a value of the program");
        return program_.values[static_cast<size_t>(number)];
    }
    int number_of(const char* field) const override {
        const nb::object value = get(field);
        if (value.is_none()) return -1;
        const nb::object key = nb::cast(reinterpret_cast<uintptr_t>(value.ptr()));
        require(numbers_.contains(key), field, "must be something that the program has");
        return nb::cast<int>(numbers_[key]);
    }

  private:
    // The value of a field; None if a part of its name is None.
    nb::object get(std::string_view field) const {
        nb::object value = nb::borrow(op_);
        while (!field.empty() && !value.is_none()) {
            const std::string part(field.substr(0, field.find('.')));
            if (!nb::hasattr(value, part.c_str()))
                throw std::invalid_argument(operation_ + ": " + part + ": is missing");
            value = nb::getattr(value, part.c_str());
            field.remove_prefix(std::min(field.size(), part.size() + 1));
        }
        return value;
    }
    template <class T>
    std::optional<T> cast(const char* field, const char* what) const {
        const nb::object value = get(field);
        if (value.is_none()) return {};
        T out;
        if (!nb::try_cast(value, out))
            throw std::invalid_argument(operation_ + ": " + field + ": must be " + what +
                                        ", but got " +
                                        nb::cast<std::string>(nb::repr(value.type())));
        return out;
    }

    PyProgram& program_;
    nb::handle op_;
    const nb::dict& numbers_;
    std::string operation_;
};

}  // namespace sterna::border
