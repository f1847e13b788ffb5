#include "sampling/repeats.h"

#include <cstddef>

namespace sterna {
namespace {

// Returns the length of the longest breaker that the text begins with; 0: none.
size_t longest_breaker(const DryParams& dry, std::span<const int32_t> text) {
    const auto head = [](const std::vector<int32_t>& breaker) { return breaker.front(); };
    const auto with_head = std::ranges::equal_range(dry.breakers, text.front(), {}, head);
    size_t longest = 0;
    for (const auto& breaker : with_head)
        if (breaker.size() > longest && breaker.size() <= text.size() &&
            std::equal(breaker.begin(), breaker.end(), text.begin()))
            longest = breaker.size();
    return longest;
}

}  // namespace

int32_t after_last_breaker(const DryParams& dry, std::span<const int32_t> text) {
    for (size_t tail = 1; tail <= text.size(); ++tail)
        if (const size_t length = longest_breaker(dry, text.last(tail)))
            return static_cast<int32_t>(tail - length);
    return static_cast<int32_t>(text.size());
}

void match_ends(std::span<const int32_t> text, std::vector<int32_t>& matches) {
    // The Z algorithm (Gusfield 1997, section 1.4) on the reversed text: linear in its length.
    const size_t n = text.size();
    const auto from_end = [&](size_t i) { return text[n - 1 - i]; };
    matches.assign(n, 0);
    if (n > 0) matches[0] = static_cast<int32_t>(n);
    size_t left = 0, right = 0;  // the match [left, right) that reaches furthest
    for (size_t i = 1; i < n; ++i) {
        size_t length = 0;
        if (i < right) length = std::min(right - i, static_cast<size_t>(matches[i - left]));
        while (i + length < n && from_end(length) == from_end(i + length)) ++length;
        matches[i] = static_cast<int32_t>(length);
        if (i + length > right) left = i, right = i + length;
    }
}

}  // namespace sterna
