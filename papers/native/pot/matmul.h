// Power-of-two kernels by name, and their product on a pool.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "pot/table.h"
#include "runtime/pool.h"

namespace sterna::pot {

struct Isa {
    std::string_view name, needs;  // needs: CPU features as cpu_supports() takes them
    bool runnable;
    std::vector<Kernel> kernels;  // by name, then unroll factors as compiled
};

// Every instruction set of this build, the plainest first.
std::span<const Isa> isas();

// Bytes of one word of b, and elements in it.
int word_bytes(Words words);
int elements_per_word(Words words);

// All of args.c, in the paper's order; with several threads each takes rows of b, a chunk at a time.
void matmul(Pool& pool, const Kernel& kernel, const Args& args);

}  // namespace sterna::pot
