#include "runtime/system/linux/cgroup.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <optional>
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
std::vector<CgroupMount> cgroup_mounts(const std::string& root, std::string_view controller) {
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
        if (!v2 && !(type == "cgroup" && has_word(super, controller))) continue;
        mounts.push_back({v2, unescaped(mount_root), unescaped(point)});
    }
    return mounts;
}

// Path of the process within the v2 hierarchy ("0::/path") or the v1 one that has the controller.
std::string cgroup_path(const std::string& root, bool v2, std::string_view controller) {
    std::ifstream file(root + "/proc/self/cgroup");
    std::string line;
    while (std::getline(file, line)) {
        const size_t first = line.find(':');
        const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (v2 ? controllers.empty() : has_word(controllers, controller))
            return line.substr(second + 1);
    }
    return "/";
}

// A number of one of a group's files; -1 where there is none ("max" is no number).
double number_of(const std::string& file) {
    std::string line;
    double number = -1.0;
    if (!read_line(file, line) || !(std::istringstream(line) >> number)) return -1.0;
    return number;
}

// CPUs granted by one group's own files; -1 where there is no limit.
double own_quota(const std::string& group, bool v2) {
    double quota = -1.0, period = 0.0;
    if (v2) {
        std::string line;
        if (!read_line(group + "/cpu.max", line)) return -1.0;
        std::istringstream words(line);
        words >> line >> period;
        std::istringstream(line) >> quota;  // "max" leaves 0
    } else {
        quota = number_of(group + "/cpu.cfs_quota_us");
        period = number_of(group + "/cpu.cfs_period_us");
    }
    return quota > 0.0 && period > 0.0 ? quota / period : -1.0;
}

// Bytes that one group's own files leave; -1 where there is no limit. Pages of files that nobody has
// used lately count as free, as they do in the system's MemAvailable.
double own_memory(const std::string& group, bool v2) {
    const double limit = number_of(group + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const double used = number_of(group + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (limit < 0.0 || used < 0.0) return -1.0;
    double idle = 0.0, value = 0.0;
    std::ifstream statistics(group + "/memory.stat");
    for (std::string name; statistics >> name >> value;)
        if (name == (v2 ? "inactive_file" : "total_inactive_file")) idle = value;
    return std::max(0.0, limit - std::max(0.0, used - idle));
}

using OwnLimit = double (*)(const std::string& group, bool v2);

double least_upwards(const std::string& root, const CgroupMount& mount, std::string_view controller,
                     OwnLimit own) {
    // A container may show the host's path ("/docker/abc") below a mount of just that part, or a
    // path outside the mount ("/../x"); then the mount point itself is the nearest known group.
    std::string path = cgroup_path(root, mount.v2, controller);
    if (mount.root != "/") {
        const bool below = path.compare(0, mount.root.size(), mount.root) == 0 &&
                           (path.size() == mount.root.size() || path[mount.root.size()] == '/');
        path = below ? path.substr(mount.root.size()) : "";
    }
    if (path.find("/..") != std::string::npos) path.clear();
    double least = -1.0;
    while (true) {
        while (!path.empty() && path.back() == '/') path.pop_back();
        const double limit = own(root + mount.point + path, mount.v2);
        if (limit >= 0.0 && (least < 0.0 || limit < least)) least = limit;
        if (path.empty()) return least;
        const size_t slash = path.rfind('/');
        path.resize(slash == std::string::npos ? 0 : slash);
    }
}

// The least of all groups that the process is in, and of their parents; -1 where there is no limit.
double least_limit(const std::string& root, std::string_view controller, OwnLimit own) {
    double least = -1.0;
    for (const CgroupMount& mount : cgroup_mounts(root, controller)) {
        const double limit = least_upwards(root, mount, controller, own);
        if (limit >= 0.0 && (least < 0.0 || limit < least)) least = limit;
    }
    return least;
}

}  // namespace

double cgroup_cpu_quota(const std::string& root) {
    return std::max(0.0, least_limit(root, "cpu", own_quota));
}

std::optional<double> cgroup_memory_left(const std::string& root) {
    const double left = least_limit(root, "memory", own_memory);
    return left < 0.0 ? std::nullopt : std::optional(left);
}

}  // namespace sterna
