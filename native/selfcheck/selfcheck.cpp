#include "selfcheck/selfcheck.h"

#if defined(__unix__) || defined(__APPLE__)
#define STERNA_HAS_FORK 1
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#endif

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

#if STERNA_HAS_FORK

namespace {

// The child's report: a digest and a line of text for each group.
void report(int to, const std::vector<GroupDigest>& groups) {
    std::string text;
    for (const GroupDigest& g : groups) {
        text.append(reinterpret_cast<const char*>(&g.digest), sizeof g.digest);
        text += g.group + '\n';
    }
    for (size_t at = 0; at < text.size();) {
        const ssize_t n = write(to, text.data() + at, text.size() - at);
        if (n <= 0) _exit(1);
        at += static_cast<size_t>(n);
    }
}

std::string read_all(int from) {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(from, buffer, sizeof buffer)) != 0;) {
        if (n > 0) {
            text.append(buffer, static_cast<size_t>(n));
        } else if (errno != EINTR) {
            break;
        }
    }
    return text;
}

}  // namespace

Outcome check_apart(const KernelTable& unit) {
    int ends[2];
    if (pipe(ends)) return {by_group(check(unit))};
    const pid_t child = fork();
    if (child < 0) {
        close(ends[0]), close(ends[1]);
        return {by_group(check(unit))};
    }
    if (child == 0) {
        const rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        close(ends[0]);
        report(ends[1], by_group(check(unit)));
        _exit(0);
    }
    close(ends[1]);
    const std::string text = read_all(ends[0]);
    close(ends[0]);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    Outcome outcome;
    if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
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

#else

Outcome check_apart(const KernelTable& unit) { return {by_group(check(unit))}; }

#endif

}  // namespace sterna::selfcheck
