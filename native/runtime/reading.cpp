#include "runtime/reading.h"

#include <stdexcept>
#include <string>

#include "runtime/cpu.h"

namespace sterna {

Reading default_reading() {
    if (cpu_info().vendor == "GenuineIntel") return {kMostStreams, true, 512, 2048};
    return {};
}

Reading checked_reading(int streams, int turn_bytes, int prefetch_bytes, bool next_page) {
    const auto in = [](const char* name, int value, int low, int high) {
        if (value < low || value > high)
            throw std::invalid_argument(std::string(name) + ": must lie in " + std::to_string(low) +
                                        ".." + std::to_string(high) + ", but got " +
                                        std::to_string(value));
    };
    in("streams", streams, 1, kMostStreams);
    in("turn_bytes", turn_bytes, 256, 1 << 15);
    in("prefetch_bytes", prefetch_bytes, 0, 1 << 20);
    return {static_cast<uint8_t>(streams), next_page, static_cast<uint16_t>(turn_bytes),
            static_cast<uint32_t>(prefetch_bytes)};
}

}  // namespace sterna
