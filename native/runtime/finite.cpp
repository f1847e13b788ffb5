#include "runtime/finite.h"

namespace sterna {

namespace {

template <class T>
bool any_of(const T* values, int64_t count, T exponent) {
    T found = 0;  // as wide as the values, so that the loop vectorises
    for (int64_t i = 0; i < count; ++i)
        found = static_cast<T>(found | ((values[i] & exponent) == exponent ? 1 : 0));
    return found != 0;
}

}  // namespace

bool any_has_exponent(const void* values, int64_t count, size_t element, uint32_t exponent) {
    if (element == 1)
        return any_of(static_cast<const uint8_t*>(values), count, static_cast<uint8_t>(exponent));
    if (element == 2)
        return any_of(static_cast<const uint16_t*>(values), count, static_cast<uint16_t>(exponent));
    return any_of(static_cast<const uint32_t*>(values), count, exponent);
}

}  // namespace sterna
