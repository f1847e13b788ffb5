// The self-check of one unit without Python: under an emulator, or on a machine that has none.
//
//   kernels UNIT                 compares each result with the scalar unit's, which has digests of its own
//   kernels UNIT --digests       prints the digest of each group, as src/sterna/calibration/kernel_digests.json has them
//
// The unit is taken by its name, whether or not the CPU says that it can run it. Exits with 1 at the first difference.
#include <cstdio>

#include "selfcheck/selfcheck.h"
#include "units/dispatch.h"

namespace {

using namespace sterna;

int compare(const KernelTable& unit, const KernelTable& scalar) {
    const auto expected = selfcheck::check(scalar);
    auto other = expected.begin();
    int64_t results = 0;
    for (const auto& found : selfcheck::check(unit)) {
        const char *group = found.group.c_str(), *what = found.what.c_str();
        // A matrix unit alone has the fast arithmetic: rules hold it, and the table.
        const bool own = found.group.starts_with("fast ");
        if (found.wrong || (!own && (other == expected.end() || other->group != found.group ||
                                     other->what != found.what || other->digest != found.digest))) {
            printf("%s: wrong: %s, %s\n", unit.isa, group, what);
            return 1;
        }
        if (!own) ++other;
        ++results;
    }
    printf("%s: %lld results as they must be\n", unit.isa, static_cast<long long>(results));
    return 0;
}

void print(const KernelTable& unit) {
    for (const auto& [group, digest] : selfcheck::by_group(selfcheck::check(unit)))
        printf("%016llx %s\n", static_cast<unsigned long long>(digest), group.c_str());
}

}  // namespace

int main(int argc, char** argv) {
    const std::string name = argc > 1 ? argv[1] : "", option = argc > 2 ? argv[2] : "";
    for (const auto* table : all_tables()) {
        if (name != table->isa) continue;
        if (option.empty()) return compare(*table, *all_tables().front());
        print(*table);
        return 0;
    }
    fprintf(stderr, "usage: kernels UNIT [--digests], UNIT one of");
    for (const auto* table : all_tables()) fprintf(stderr, " %s", table->isa);
    fprintf(stderr, "\n");
    return 2;
}
