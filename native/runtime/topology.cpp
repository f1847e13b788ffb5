#include "runtime/topology.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/affinity.h"
#include "runtime/system/system.h"

namespace sterna {
namespace {

Topology restricted_to(const Machine& m, const std::vector<int>& allowed) {
    const std::set<int> sorted(allowed.begin(), allowed.end());
    Topology t;
    t.cpus.assign(sorted.begin(), sorted.end());
    std::map<int, size_t> index;  // key of a core -> its place in t.cores
    for (const int cpu : t.cpus) {
        const auto known = m.core_of.find(cpu);
        const int name = known == m.core_of.end() ? cpu : known->second;
        const auto [at, is_new] = index.emplace(name, t.cores.size());
        if (is_new) t.cores.push_back({{}, m.slow.count(cpu) == 0});
        t.cores[at->second].cpus.push_back(cpu);
    }
    std::set<int> homeless = sorted;
    for (const auto& [id, cpus] : m.nodes) {
        NumaNode node{id, {}};
        for (const int cpu : cpus) {
            if (homeless.erase(cpu)) node.cpus.push_back(cpu);
        }
        if (!node.cpus.empty()) t.nodes.push_back(std::move(node));
    }
    if (homeless.empty()) return t;
    if (t.nodes.empty()) t.nodes.emplace_back();
    std::vector<int>& first = t.nodes.front().cpus;
    first.insert(first.end(), homeless.begin(), homeless.end());
    std::sort(first.begin(), first.end());
    return t;
}

}  // namespace

std::string_view trimmed(std::string_view text) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

bool parse_number(std::string_view text, int64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

std::vector<int> parse_cpu_list(std::string_view text) {
    std::set<int> cpus;
    while (!text.empty()) {
        const size_t comma = text.find(',');
        const std::string_view piece = trimmed(text.substr(0, comma));
        text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
        const size_t dash = piece.find('-');
        int64_t first, last;
        if (!parse_number(piece.substr(0, dash), first)) continue;
        if (dash == std::string_view::npos) {
            last = first;
        } else if (!parse_number(piece.substr(dash + 1), last)) {
            continue;
        }
        if (last >= kMaxCpus) continue;
        for (int64_t cpu = first; cpu <= last; ++cpu) cpus.insert(static_cast<int>(cpu));
    }
    return {cpus.begin(), cpus.end()};
}

Topology topology() {
    static const Machine machine = system::read_machine("");
    Topology t = restricted_to(machine, allowed_cpus());
    t.cpu_quota = system::cpu_quota("");
    return t;
}

Topology topology(const std::string& root, const std::vector<int>& allowed) {
    Topology t = restricted_to(system::read_machine(root), allowed);
    t.cpu_quota = system::cpu_quota(root);
    return t;
}

}  // namespace sterna
