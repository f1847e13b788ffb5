// What a Program leaves out for one token: rows of `up` whose gate is closed, and columns of `down` whose
// activation is 0. active.h has the copies that this needs, and why no bit changes.
#include <algorithm>
#include <atomic>

#include "program/program_run.h"

namespace sterna {

bool Program::has_active_copies(const Weight& w, const KernelTable& kernels) {
    return kernels.formats[w.format].copy_rows && !w.groups.group_k;
}

// The last operation that writes a buffer, the last operation left out; ops_.size() if none does.
size_t Program::maker_of(int buffer) const {
    for (size_t i = ops_.size() - 1; i-- > 0;)
        if (ops_[i].dst == buffer) return i;
    return ops_.size();
}

bool Program::last_input_rounded() const {
    const size_t maker = maker_of(ops_.back().src);
    return maker < ops_.size() && ops_[maker].kind == OpKind::kRowwise && ops_[maker].rounding == 0;
}

// Rows from first_row on, or all columns, of a weight.
int Program::add_copy(const Weight& w, bool columns, int64_t first_row, const KernelTable& kernels,
                      Pool& pool) {
    const auto& format = kernels.formats[w.format];
    const int64_t stride = active_stride(columns ? w.M : w.padded_k);
    const int64_t count = columns ? w.padded_k : w.tiles * format.tile_rows - first_row;
    ActiveCopy copy{HugeBuffer(static_cast<size_t>(count * stride)), stride, first_row,
                    first_row / format.tile_rows};
    const ActiveCopyArgs all{w.codes,          w.tile_bytes, w.tiles,         w.M, w.padded_k,
                             copy.data.data(), stride,       copy.first_tile, 0,   0};
    const int64_t begin = columns ? 0 : copy.first_tile, end = columns ? w.padded_k : w.tiles;
    const int64_t share = columns ? kActiveBlock : 1;
    std::atomic<int64_t> next{begin};
    pool.run([&](int) {
        for (int64_t i; (i = next.fetch_add(share)) < end;) {
            ActiveCopyArgs part = all;
            part.begin = i;
            part.end = std::min(i + share, end);
            (columns ? format.copy_columns : format.copy_rows)(part);
        }
    });
    copies_.push_back(std::move(copy));
    return static_cast<int>(copies_.size()) - 1;
}

void Program::add_open_rows(int64_t first_row, const KernelTable& kernels, Pool& pool) {
    const auto& w = weights_[static_cast<size_t>(ops_.back().weight)];
    ops_.back().copy = add_copy(w, false, first_row, kernels, pool);
    Op rows = ops_.back();
    ops_.back().active = Active::kGates;
    rows.active = Active::kRows;
    ops_.push_back(std::move(rows));
}

void Program::add_columns(const KernelTable& kernels, Pool& pool) {
    Op& op = ops_.back();
    const auto& w = weights_[static_cast<size_t>(op.weight)];
    op.copy = add_copy(w, true, 0, kernels, pool);
    op.active = Active::kColumns;
    ops_[maker_of(op.src)].lists = true;
    const auto most = static_cast<size_t>(w.padded_k + kActiveBlock);
    if (places_.size() < most * 4) {
        places_ = HugeBuffer(most * 4);
        values_ = HugeBuffer(most);
    }
}

// After a rowwise operation: which of its codes are not 0, for the columns of the next.
void Program::list_active(const Op& op, Run& run) const {
    const auto& x = buffers_[static_cast<size_t>(op.dst)];
    run.active = run.kernels.list_nonzero(x.codes(0, 1), padded_width(op.width),
                                          reinterpret_cast<int32_t*>(places_.data()),
                                          reinterpret_cast<int8_t*>(values_.data()));
}

// How many parts an operation that reads rows or columns alone has: one for each thread, since what a part needs is
// known when it begins, and its first lines are waited for. 0: it reads tiles, as too many columns are active.
int64_t Program::active_parts(const Op& op, const Run& run) const {
    if (!run.one()) return 0;
    const auto& w = weights_[static_cast<size_t>(op.weight)];
    if (op.active == Active::kRows) return std::min<int64_t>(run.threads, w.tiles / 2);
    if (op.active != Active::kColumns || mostly_active(run.active, w.K)) return 0;
    return std::min<int64_t>(run.threads, active_stride(w.M) / 64);
}

// False: the part is better read as tiles [begin, end), and is not done.
bool Program::active_part(const Op& op, Run& run, const LinearArgs& a, int64_t part, int64_t& begin,
                          int64_t& end) const {
    const auto& w = weights_[static_cast<size_t>(op.weight)];
    const auto& copy = copies_[static_cast<size_t>(op.copy)];
    const int64_t parts = active_parts(op, run);
    const auto share = [&](int64_t all, int64_t i) { return all * i / parts; };
    int64_t read, tiles = w.tiles;
    if (op.active == Active::kColumns) {
        const ActiveColumns columns{copy.data.data(), copy.stride,
                                    reinterpret_cast<const int32_t*>(places_.data()),
                                    reinterpret_cast<const int8_t*>(values_.data()), run.active};
        const int64_t lines = copy.stride / 64, from = share(lines, part),
                      to = share(lines, part + 1);
        run.kernels.linear_columns(a, columns, from, to);
        read = run.active * (to - from) * 64;
        tiles = share(tiles, part + 1) - share(tiles, part);
    } else {
        const int64_t tile_rows = run.kernels.formats[w.format].tile_rows;
        begin = copy.first_tile + share(w.tiles - copy.first_tile, part);
        end = copy.first_tile + share(w.tiles - copy.first_tile, part + 1);
        const ActiveRows rows{copy.data.data(), copy.stride, a.y, a.scale + copy.first_row,
                              a.y + copy.first_row};
        const int64_t from = begin * tile_rows - copy.first_row,
                      to = std::min(end * tile_rows, w.M) - copy.first_row;
        const int64_t open = run.kernels.linear_open_rows(a, rows, from, to);
        if (open < 0) return false;
        read = open * copy.stride;
        tiles = end - begin;
    }
    run.left_out += tiles * w.tile_bytes - read;
    return true;
}

}  // namespace sterna
