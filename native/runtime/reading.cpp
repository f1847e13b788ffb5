#include "runtime/reading.h"

#include <stdexcept>
#include <string>

#include "runtime/cpu.h"

namespace sterna {

Readings default_readings() {
    if (cpu_info().vendor == "GenuineIntel") {
        constexpr Reading kFour{kMostStreams, false, 512, 2048};
        return {{kFour, kFour}};
    }
    return {{{}, {1, true, 4096, 1280}}};
}

Reading checked_reading(int streams, int turn_bytes, int prefetch_bytes, bool into_l2) {
    const auto in = [](const char* name, int value, int low, int high) {
        if (value < low || value > high)
            throw std::invalid_argument(std::string(name) + ": must lie in " + std::to_string(low) +
                                        ".." + std::to_string(high) + ", but got " +
                                        std::to_string(value));
    };
    in("streams", streams, 1, kMostStreams);
    in("turn_bytes", turn_bytes, 256, 1 << 15);
    in("prefetch_bytes", prefetch_bytes, 0, 1 << 20);
    return {static_cast<uint8_t>(streams), into_l2, static_cast<uint16_t>(turn_bytes),
            static_cast<uint32_t>(prefetch_bytes)};
}

}  // namespace sterna
