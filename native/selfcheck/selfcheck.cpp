#include "selfcheck/selfcheck.h"

#include "runtime/system/system.h"

namespace sterna::selfcheck {

std::vector<Finding> check(const KernelTable& unit) {
    Findings found(unit);
    check_products(found);
    check_rows(found);
    check_attention(found);
    return std::move(found.all);
}

std::vector<GroupDigest> by_group(const std::vector<Finding>& findings) {
    std::vector<GroupDigest> groups;
    for (const Finding& f : findings) {
        if (groups.empty() || groups.back().group != f.group)
            groups.push_back({f.group, kDigestStart});
        const uint64_t word = f.wrong ? ~f.digest : f.digest;
        groups.back().digest = digest_of(groups.back().digest, &word, sizeof word);
    }
    return groups;
}

namespace {

// A digest and a line of text for each group.
std::string report(const void* unit) {
    std::string text;
    for (const GroupDigest& g : by_group(check(*static_cast<const KernelTable*>(unit)))) {
        text.append(reinterpret_cast<const char*>(&g.digest), sizeof g.digest);
        text += g.group + '\n';
    }
    return text;
}

}  // namespace

Outcome check_apart(const KernelTable& unit) {
    const auto apart = system::run_apart(&report, &unit);
    if (!apart) return {by_group(check(unit))};
    Outcome outcome{{}, apart->signal};
    const std::string& text = apart->result;
    for (size_t at = 0; at + 8 < text.size();) {
        GroupDigest g;
        memcpy(&g.digest, text.data() + at, sizeof g.digest);
        const size_t end = text.find('\n', at + 8);
        if (end == std::string::npos) break;
        g.group = text.substr(at + 8, end - at - 8);
        outcome.groups.push_back(std::move(g));
        at = end + 1;
    }
    return outcome;
}

}  // namespace sterna::selfcheck
