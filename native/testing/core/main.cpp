// The core without Python: on a system or a machine that has none, or under an emulator.
//
//   core_test UNIT                 compares each result of a unit's self-check with the scalar unit's
//   core_test UNIT --digests       prints the digest of each group, as src/sterna/calibration/kernel_digests.json has them
//   core_test --all DIGESTS.json   compares each unit that runs here with that file, and checks memory, threads, mapped
//                                  files and sampling
//
// A unit is taken by its name, whether or not the CPU says that it can run it. Exits with 1 where anything differs.
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>

#include "selfcheck/selfcheck.h"
#include "testing/core/checks.h"
#include "units/dispatch.h"

namespace {

using namespace sterna;

bool is_fast(const std::string& group) { return group.starts_with("fast "); }

int compare(const KernelTable& unit, const KernelTable& scalar) {
    const auto expected = selfcheck::check(scalar);
    auto other = expected.begin();
    int64_t results = 0;
    for (const auto& found : selfcheck::check(unit)) {
        // Scalar has no fast arithmetic: rules hold it, and the table.
        const bool own = is_fast(found.group);
        if (found.wrong || (!own && (other == expected.end() || other->group != found.group ||
                                     other->what != found.what || other->digest != found.digest))) {
            printf("%s: wrong: %s, %s\n", unit.isa, found.group.c_str(), found.what.c_str());
            return 1;
        }
        if (!own) ++other;
        ++results;
    }
    printf("%s: %" PRId64 " results as they must be\n", unit.isa, results);
    return 0;
}

void print(const KernelTable& unit) {
    for (const auto& [group, digest] : selfcheck::by_group(selfcheck::check(unit)))
        printf("%016" PRIx64 " %s\n", digest, group.c_str());
}

// The strings of a flat object of JSON, in turn a name and its value.
std::map<std::string, uint64_t> read_digests(const char* path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    std::map<std::string, uint64_t> digests;
    std::string name;
    for (size_t at = text.find('"'); at != std::string::npos; at = text.find('"', at + 1)) {
        const size_t end = text.find('"', at + 1);
        if (end == std::string::npos) break;
        const std::string word = text.substr(at + 1, end - at - 1);
        at = end;
        if (name.empty()) {
            name = word;
        } else {
            digests[name] = std::stoull(word, nullptr, 16);
            name.clear();
        }
    }
    testing::require(!digests.empty(), "the file of digests is read");
    return digests;
}

std::string check_unit(const KernelTable& unit, std::map<std::string, uint64_t> expected) {
    const auto groups = selfcheck::by_group(selfcheck::check(unit));
    for (const auto& [group, digest] : groups) {
        const auto known = expected.find(group);
        testing::require(known != expected.end() && known->second == digest, group);
        expected.erase(known);
    }
    for (const auto& [group, digest] : expected)
        testing::require(is_fast(group), group + " is computed");
    return std::to_string(groups.size()) + " groups";
}

int check_all(const char* path) {
    int failures = 0;
    const auto row = [&](const std::string& name, auto&& check) {
        try {
            printf("%-14s", name.c_str());
            fflush(stdout);
            printf("%s\n", check().c_str());
        } catch (const std::exception& e) {
            printf("FAILED: %s\n", e.what());
            ++failures;
        }
        fflush(stdout);
    };
    for (const auto& [name, check] : testing::checks()) row(name, check);
    for (const auto* unit : all_tables())
        row(unit->isa, [&] {
            if (!find_table(unit->isa))
                return "not run: this CPU lacks some of " + std::string(unit->needs);
            return check_unit(*unit, read_digests(path));
        });
    return failures != 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string name = argc > 1 ? argv[1] : "", option = argc > 2 ? argv[2] : "";
    if (name == "--all" && argc == 3) return check_all(argv[2]);
    for (const auto* table : all_tables()) {
        if (name != table->isa) continue;
        if (option.empty()) return compare(*table, *all_tables().front());
        print(*table);
        return 0;
    }
    fprintf(stderr, "usage: core_test UNIT [--digests] | --all DIGESTS.json, UNIT one of");
    for (const auto* table : all_tables()) fprintf(stderr, " %s", table->isa);
    fprintf(stderr, "\n");
    return 2;
}
