// The checks of the core that are not of a kernel unit. A check returns a line for a person to read, and throws an
// exception if something is wrong.
#pragma once
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace sterna::testing {

inline void require(bool rule, const std::string& what) {
    if (!rule) throw std::runtime_error(what);
}

using Check = std::pair<std::string, std::function<std::string()>>;
std::vector<Check> checks();

std::string check_machine();
std::string check_memory();
std::string check_pool();
std::string check_interrupts();
std::string check_mapped_files();
std::string check_sampling();

}  // namespace sterna::testing
