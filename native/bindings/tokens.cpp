// Bindings of a tokenizer's vocabulary.
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <span>

#include "bindings/common.h"
#include "tokens/token_table.h"

namespace sterna::border {

namespace {

// A vocabulary in arrays that others own, such as a mapped file, and the model that splits texts.
class PyTokens {
  public:
    PyTokens(In<uint32_t, 1> starts, In<uint8_t, 1> text, In<uint32_t, 1> slots)
        : starts_(std::move(starts)),
          text_(std::move(text)),
          slots_(std::move(slots)),
          table_(span(starts_), span(text_), span(slots_)) {}
    PyTokens(const PyTokens&) = delete;
    PyTokens& operator=(const PyTokens&) = delete;

    void set_bpe(In<uint32_t, 2> merges, const Unknown& unknown, bool whole) {
        require(merges.shape(1) == 4, "merges: must have four numbers each");
        merges_ = std::move(merges);
        const auto* first = reinterpret_cast<const Merge*>(merges_.data());
        model_ = make_bpe(table_, {first, merges_.shape(0)}, checked(unknown, true), whole);
    }
    void set_unigram(In<double, 1> scores, const Unknown& unknown) {
        require(scores.shape(0) == table_.size(), "scores: must be one for each token");
        scores_ = std::move(scores);
        model_ = make_unigram(table_, span(scores_), checked(unknown, false));
    }
    void set_word_pieces(std::string prefix, uint32_t unknown, uint32_t max_chars) {
        model_ = make_word_pieces(table_, std::move(prefix),
                                  checked({unknown, false, false}, false).id, max_chars);
    }

    const TokenTable& table() const { return table_; }

    // (id, token, (begin, end) in bytes) of each token.
    nb::list split(const nb::str& piece) const {
        require(model_ != nullptr, "tokens: must have a model");
        Py_ssize_t size = 0;
        const char* data = PyUnicode_AsUTF8AndSize(piece.ptr(), &size);
        if (!data) throw nb::python_error();
        require(size < (int64_t{1} << 31), "piece: must have less than 2^31 bytes");
        const std::string_view text(data, static_cast<size_t>(size));
        std::vector<TextToken> found;
        constexpr size_t kLong = 4096;  // others are split sooner than the GIL is back
        if (text.size() < kLong) {
            found = model_->split(text);
        } else {
            nb::gil_scoped_release release;
            found = model_->split(text);
        }
        nb::list tokens;
        for (const auto& [id, begin, end] : found)
            tokens.append(nb::make_tuple(id, token(id), nb::make_tuple(begin, end)));
        return tokens;
    }

    // None for a gap. Bytes of a damaged file that are no characters become U+FFFD.
    nb::object token(uint32_t id) const {
        const auto text = table_.token(id);
        if (!text) return nb::none();
        const auto size = static_cast<Py_ssize_t>(text->size());
        const auto string = nb::steal(PyUnicode_DecodeUTF8(text->data(), size, "replace"));
        if (!string.is_valid()) throw nb::python_error();
        return string;
    }

  private:
    template <class T>
    static std::span<const T> span(const In<T, 1>& a) {
        return {a.data(), a.shape(0)};
    }
    Unknown checked(const Unknown& unknown, bool none) const {
        require(unknown.id < table_.size() || (none && unknown.id == kNoToken),
                "unknown: must be a token");
        return unknown;
    }

    In<uint32_t, 1> starts_;
    In<uint8_t, 1> text_;
    In<uint32_t, 1> slots_;
    In<uint32_t, 2> merges_;
    In<double, 1> scores_;
    TokenTable table_;
    std::unique_ptr<TokenModel> model_;
};

Unknown unknown_of(const std::optional<uint32_t>& id, bool fuse, bool bytes) {
    return {id.value_or(kNoToken), fuse, bytes};
}

Out<uint32_t, 1> array_of(const std::vector<uint32_t>& values) {
    auto array = make_array<uint32_t, 1>({values.size()});
    std::ranges::copy(values, array.data());
    return array;
}

}  // namespace

void bind_tokens(nb::module_& m) {
    nb::class_<PyTokens>(m, "Tokens")
        .def(nb::init<In<uint32_t, 1>, In<uint8_t, 1>, In<uint32_t, 1>>(), "starts"_a, "text"_a,
             "slots"_a)
        .def(
            "set_bpe",
            [](PyTokens& t, In<uint32_t, 2> merges, const std::optional<uint32_t>& unknown,
               bool fuse, bool bytes, bool whole) {
                t.set_bpe(std::move(merges), unknown_of(unknown, fuse, bytes), whole);
            },
            "merges"_a, "unknown"_a.none(), "fuse"_a, "bytes"_a, "whole"_a)
        .def(
            "set_unigram",
            [](PyTokens& t, In<double, 1> scores, uint32_t unknown, bool fuse, bool bytes) {
                t.set_unigram(std::move(scores), unknown_of(unknown, fuse, bytes));
            },
            "scores"_a, "unknown"_a, "fuse"_a, "bytes"_a)
        .def("set_word_pieces", &PyTokens::set_word_pieces, "prefix"_a, "unknown"_a, "max_chars"_a)
        .def("split", &PyTokens::split, "piece"_a,
             nb::sig("def split(self, piece: str) -> list[tuple[int, str, tuple[int, int]]]"))
        .def("token", &PyTokens::token, "id"_a, nb::sig("def token(self, id: int) -> str | None"))
        .def(
            "id",
            [](const PyTokens& t, std::string_view token) -> std::optional<uint32_t> {
                const uint32_t id = t.table().id(token);
                return id == kNoToken ? std::nullopt : std::optional(id);
            },
            "token"_a)
        .def("__len__", [](const PyTokens& t) { return t.table().size(); });
    m.def(
        "token_slots",
        [](const In<uint32_t, 1>& starts, const In<uint8_t, 1>& text) {
            return array_of(
                token_slots({starts.data(), starts.shape(0)}, {text.data(), text.shape(0)}));
        },
        "starts"_a, "text"_a);
    m.def(
        "merge_slots",
        [](const In<uint32_t, 2>& merges) {
            require(merges.shape(1) == 4, "merges: must have four numbers each");
            const auto* first = reinterpret_cast<const Merge*>(merges.data());
            const auto slots = merge_slots({first, merges.shape(0)});
            auto array = make_array<uint32_t, 2>({slots.size(), 4});
            std::copy_n(reinterpret_cast<const uint32_t*>(slots.data()), slots.size() * 4,
                        array.data());
            return array;
        },
        "merges"_a);
    m.def(
        "scored_merges",
        [](const PyTokens& t, const In<double, 1>& scores, uint32_t max_chars) {
            require(scores.shape(0) == t.table().size(), "scores: must be one for each token");
            const auto merges =
                scored_merges(t.table(), {scores.data(), scores.shape(0)}, max_chars);
            auto array = make_array<uint32_t, 2>({merges.size(), 2});
            if (!merges.empty())
                std::copy_n(merges.front().data(), 2 * merges.size(), array.data());
            return array;
        },
        "tokens"_a, "scores"_a, "max_chars"_a);
}

}  // namespace sterna::border
