#include "runtime/cgroup.h"

#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace sterna {
namespace {

bool read_line(const std::string& path, std::string& line) {
    std::ifstream file(path);
    return file && std::getline(file, line);
}

struct CgroupMount {
    bool v2 = false;
    std::string root;   // the part of the hierarchy that is mounted
    std::string point;  // where
};

bool has_word(std::string_view list, std::string_view word) {
    while (true) {
        const size_t comma = list.find(',');
        if (list.substr(0, comma) == word) return true;
        if (comma == std::string_view::npos) return false;
        list.remove_prefix(comma + 1);
    }
}

// mountinfo writes blanks, tabs, newlines and backslashes as \ooo.
std::string unescaped(const std::string& text) {
    auto octal = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '7'; };
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
            out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                     (text[i + 3] - '0'));
            i += 3;
        } else {
            out += text[i];
        }
    }
    return out;
}

// Lines of proc_pid_mountinfo(5): id parent dev root point options [tags] - type source super.
std::vector<CgroupMount> cgroup_mounts(const std::string& root) {
    std::vector<CgroupMount> mounts;
    std::ifstream file(root + "/proc/self/mountinfo");
    std::string line;
    while (std::getline(file, line)) {
        const size_t dash = line.find(" - ");
        if (dash == std::string::npos) continue;
        std::istringstream head(line.substr(0, dash)), tail(line.substr(dash + 3));
        std::string skip, mount_root, point, type, source, super;
        head >> skip >> skip >> skip >> mount_root >> point;
        tail >> type >> source >> super;
        const bool v2 = type == "cgroup2";
        if (!v2 && !(type == "cgroup" && has_word(super, "cpu"))) continue;
        mounts.push_back({v2, unescaped(mount_root), unescaped(point)});
    }
    return mounts;
}

// Path of the process within the v2 hierarchy ("0::/path") or the v1 one that has "cpu".
std::string cgroup_path(const std::string& root, bool v2) {
    std::ifstream file(root + "/proc/self/cgroup");
    std::string line;
    while (std::getline(file, line)) {
        const size_t first = line.find(':');
        const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (v2 ? controllers.empty() : has_word(controllers, "cpu")) return line.substr(second + 1);
    }
    return "/";
}

// CPUs granted by one group's own files; 0 where there is no limit.
double own_quota(const std::string& group, bool v2) {
    std::string line, period_line;
    double quota = -1.0, period = 0.0;
    if (v2) {
        if (!read_line(group + "/cpu.max", line)) return 0.0;
        std::istringstream words(line);
        words >> line >> period;
        std::istringstream(line) >> quota;  // "max" leaves 0
    } else {
        if (!read_line(group + "/cpu.cfs_quota_us", line)) return 0.0;
        if (!read_line(group + "/cpu.cfs_period_us", period_line)) return 0.0;
        std::istringstream(line) >> quota;
        std::istringstream(period_line) >> period;
    }
    return quota > 0.0 && period > 0.0 ? quota / period : 0.0;
}

double least_quota_upwards(const std::string& root, const CgroupMount& mount) {
    // A container may show the host's path ("/docker/abc") below a mount of just that part, or a
    // path outside the mount ("/../x"); then the mount point itself is the nearest known group.
    std::string path = cgroup_path(root, mount.v2);
    if (mount.root != "/") {
        const bool below = path.compare(0, mount.root.size(), mount.root) == 0 &&
                           (path.size() == mount.root.size() || path[mount.root.size()] == '/');
        path = below ? path.substr(mount.root.size()) : "";
    }
    if (path.find("/..") != std::string::npos) path.clear();
    double least = 0.0;
    while (true) {
        while (!path.empty() && path.back() == '/') path.pop_back();
        const double quota = own_quota(root + mount.point + path, mount.v2);
        if (quota > 0.0 && (least == 0.0 || quota < least)) least = quota;
        if (path.empty()) return least;
        const size_t slash = path.rfind('/');
        path.resize(slash == std::string::npos ? 0 : slash);
    }
}

}  // namespace

double cgroup_cpu_quota(const std::string& root) {
    double least = 0.0;
    for (const CgroupMount& mount : cgroup_mounts(root)) {
        const double quota = least_quota_upwards(root, mount);
        if (quota > 0.0 && (least == 0.0 || quota < least)) least = quota;
    }
    return least;
}

}  // namespace sterna
