// The kernels of one unit against the scalar unit, without Python: under an emulator, or on a machine that has none.
//
//   kernels UNIT
//
// The unit is taken by its name, whether or not the CPU says that it can run it. Exits with 1 at the first difference,
// or where the scalar unit's own results are others than those of x86-64.
#include "comparison.h"
#include "units/dispatch.h"

namespace {

// Of all results of the scalar unit, which `kernels scalar` prints. A change of bits that is meant, or of what is
// compared, changes it.
constexpr uint64_t kDigest = 0xf1fbf1ebf4d07ce9;

}  // namespace

int main(int argc, char** argv) {
    using namespace sterna;
    const KernelTable *scalar = all_tables().front(), *unit = nullptr;
    for (const auto* table : all_tables())
        if (argc == 2 && std::string(argv[1]) == table->isa) unit = table;
    if (!unit) {
        fprintf(stderr, "usage: kernels UNIT, one of");
        for (const auto* table : all_tables()) fprintf(stderr, " %s", table->isa);
        fprintf(stderr, "\n");
        return 2;
    }
    foreign::Comparison c(*unit, *scalar);
    foreign::compare_formats(c);
    foreign::compare_rows(c);
    foreign::compare_attention(c);
    printf("%s: %lld results as scalar's, whose digest is %016llx\n", unit->isa,
           static_cast<long long>(c.results()), static_cast<unsigned long long>(c.digest()));
    if (c.digest() == kDigest) return 0;
    printf("the digest must be %016llx\n", static_cast<unsigned long long>(kDigest));
    return 1;
}
