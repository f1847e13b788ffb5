#include "program/expert_cache.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <system_error>

#include "runtime/system/system.h"

namespace sterna {

namespace {

constexpr int64_t kBlock = system::kDirectBytes;

constexpr int64_t whole_blocks_of(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

// Room for a span of a file with the blocks that it begins and ends in.
constexpr int64_t room_for(int64_t bytes) { return bytes ? whole_blocks_of(bytes) + kBlock : 0; }

int64_t slot_bytes(const ExpertCache::Matrix& m) {
    return room_for(m.code_bytes) + room_for(m.group_bytes);
}

// log2(2^a + 2^b)
double log_sum(double a, double b) {
    return std::max(a, b) + std::log2(1 + std::exp2(-std::abs(a - b)));
}

}  // namespace

std::vector<ExpertCache::Arena> ExpertCache::arenas_of(std::span<const Matrix> matrices,
                                                       int* arena_of) {
    std::vector<Arena> arenas;
    for (const Matrix& m : matrices) {
        auto found = std::ranges::find(arenas, slot_bytes(m), &Arena::slot_bytes);
        if (found == arenas.end()) {
            arenas.emplace_back();
            found = arenas.end() - 1;
            found->slot_bytes = slot_bytes(m);
        }
        found->units += m.experts;
        if (arena_of) *arena_of++ = static_cast<int>(found - arenas.begin());
    }
    return arenas;
}

std::pair<int64_t, int64_t> ExpertCache::bounds(std::span<const Matrix> matrices) {
    int64_t least = 0, all = 0;
    for (const Arena& arena : arenas_of(matrices, nullptr)) {
        least += arena.slot_bytes;
        all += arena.slot_bytes * arena.units;
    }
    return {least, all};
}

ExpertCache::ExpertCache(const MappedFile& file, std::vector<Matrix> matrices, int64_t bytes,
                         int readers)
    : file_(file),
      matrices_(std::move(matrices)),
      arena_of_(matrices_.size()),
      arenas_(arenas_of(matrices_, arena_of_.data())),
      readers_(readers),
      owner_(system::process_id()) {
    const auto [least, all] = bounds(matrices_);
    const double share =
        all > least ? static_cast<double>(bytes - least) / static_cast<double>(all - least) : 1;
    for (Arena& arena : arenas_) {
        // One, and of the others as many as of any size.
        const auto more = static_cast<int64_t>(share * static_cast<double>(arena.units - 1));
        const int64_t slots = 1 + std::clamp<int64_t>(more, 0, arena.units - 1);
        arena.memory = HugeBuffer(static_cast<size_t>(slots * arena.slot_bytes + kBlock));
        arena.slots.resize(static_cast<size_t>(slots));
        counts_.slots += slots;
        counts_.units += arena.units;
    }
    for (const Matrix& m : matrices_) units_.emplace_back(static_cast<size_t>(m.experts));
    direct_ = system::open_direct(file_.file());
}

ExpertCache::~ExpertCache() {
    if (owner_ == system::process_id()) {
        {
            const std::lock_guard guard(sync_->mutex);
            ending_ = true;
        }
        sync_->work.notify_all();
        if (threads_)
            for (auto& thread : *threads_) thread.join();
    } else {  // the threads are those of another process, and may hold the locks
        (void)threads_.release();
        (void)sync_.release();
    }
    if (direct_ >= 0) system::close(direct_);
}

int ExpertCache::matrix_of(const uint8_t* codes) const {
    const auto found = std::ranges::find(matrices_, codes, &Matrix::codes);
    return found == matrices_.end() ? -1 : static_cast<int>(found - matrices_.begin());
}

std::unique_lock<std::mutex> ExpertCache::begin_step() {
    if (owner_ !=
        system::process_id()) {  // a forked child has the memory, but no thread that reads
        (void)threads_.release();
        (void)sync_.release();
        sync_ = std::make_unique<Sync>();
        owner_ = system::process_id();
        for (Arena& arena : arenas_)
            for (Key& k : arena.slots)
                if (k.matrix >= 0 && unit(k).state == State::kLoading) {
                    unit(k).state = State::kAbsent;
                    unit(k).slot = -1;
                    k = {};
                }
    }
    std::unique_lock step(sync_->steps);
    if (!threads_) {
        const system::SignalsBlocked blocked;
        threads_ = std::make_unique<std::vector<std::thread>>();
        for (int i = 0; i < readers_; ++i) threads_->emplace_back([this] { read_forever(); });
    }
    return step;
}

// What the last route left: reads that nobody waits for any more, and the plan of a step that failed.
void ExpertCache::end_route() {
    for (auto* queue : {&demand_, &ahead_}) {
        for (const Key k : *queue)
            if (unit(k).state == State::kQueued) unit(k).state = State::kAbsent;
        queue->clear();
    }
    for (const int32_t e : plan_.order) {
        Unit& u = unit({plan_.matrices[plan_.at], e});
        u.locked = u.failed = false;
    }
    plan_.order.clear();
    failure_ = nullptr;
}

void ExpertCache::route(std::span<const int> matrices, std::span<const int32_t> active) {
    const std::lock_guard guard(sync_->mutex);
    end_route();
    ++route_;
    if (matrices.front() <= last_) time_ += 1 / kHalfLife;
    last_ = matrices.front();
    plan_.matrices.assign(matrices.begin(), matrices.end());
    plan_.active.assign(active.begin(), active.end());
    plan_.at = 0;
    for (const int matrix : matrices)
        for (const int32_t e : active) {
            Unit& u = unit({matrix, e});
            ++(u.state == State::kHere ? counts_.hits : counts_.misses);
            u.weight = log_sum(u.weight, time_);
            u.soon = route_;
        }
    begin_plan();
    for (const int matrix : matrices.subspan(1))
        for (const int32_t e : plan_.order) read_ahead({matrix, e}, route_);
    wake_readers();
}

void ExpertCache::wake_readers() {
    if (!demand_.empty() || !ahead_.empty()) sync_->work.notify_all();
}

void ExpertCache::read_ahead(Key k, int64_t route) {
    Unit& u = unit(k);
    u.soon = std::max(u.soon, route);
    if (u.state != State::kAbsent) return;
    u.state = State::kQueued;
    ahead_.push_back(k);
}

// Orders the units of a matrix by when they are here.
void ExpertCache::begin_plan() {
    const int32_t matrix = plan_.matrices[plan_.at];
    plan_.order = plan_.active;
    plan_.left = plan_.order.size();
    const auto when = [&](int32_t e) {
        const State state = unit({matrix, e}).state;
        return state == State::kHere ? 0 : state == State::kLoading ? 1 : 2;
    };
    std::ranges::stable_sort(plan_.order, {}, when);
    for (const int32_t e : plan_.order) {
        Unit& u = unit({matrix, e});
        u.locked = true;
        u.done = 0;
        u.demanded = when(e) == 2;
        if (!u.demanded) continue;
        u.state = State::kQueued;
        demand_.push_back({matrix, e});
    }
}

ExpertCache::Place ExpertCache::acquire(int64_t i) {
    const Key k{plan_.matrices[plan_.at], plan_.order[static_cast<size_t>(i)]};
    std::unique_lock lock(sync_->mutex);
    Unit& u = unit(k);
    if (u.state != State::kHere && !u.failed) {
        const auto began = std::chrono::steady_clock::now();
        sync_->here.wait(lock, [&] { return u.state == State::kHere || u.failed; });
        counts_.waited_s +=
            std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    }
    if (u.failed) std::rethrow_exception(failure_);
    return place(k);
}

void ExpertCache::release(int64_t i, int pieces) {
    const Key k{plan_.matrices[plan_.at], plan_.order[static_cast<size_t>(i)]};
    const std::lock_guard guard(sync_->mutex);
    Unit& u = unit(k);
    if (++u.done < pieces) return;
    u.locked = false;
    if (--plan_.left == 0 && plan_.at + 1 < plan_.matrices.size()) {
        ++plan_.at;
        begin_plan();
    }
    wake_readers();
}

uint8_t* ExpertCache::slot_of(Key k) {
    const Arena& arena = arenas_[static_cast<size_t>(arena_of_[static_cast<size_t>(k.matrix)])];
    const auto begin = reinterpret_cast<uintptr_t>(arena.memory.data());
    const auto first = (begin + kBlock - 1) / kBlock * kBlock - begin;
    return arena.memory.data() + first + unit(k).slot * arena.slot_bytes;
}

// A unit lies in its slot as in the blocks of its file, which a mapping begins with.
ExpertCache::Place ExpertCache::place(Key k) {
    const Matrix& m = matrices_[static_cast<size_t>(k.matrix)];
    const auto within = [&](const uint8_t* at, int64_t bytes) {
        return static_cast<int64_t>(reinterpret_cast<uintptr_t>(at + k.expert * bytes) % kBlock);
    };
    const uint8_t* slot = slot_of(k);
    return {slot + within(m.codes, m.code_bytes),
            m.groups ? slot + room_for(m.code_bytes) + within(m.groups, m.group_bytes) : nullptr};
}

// A slot for a unit: an empty one, else that of the least weight which is neither in use nor, unless the unit is
// demanded, needed soon. -1: there is none now.
int32_t ExpertCache::slot_for(Key k, bool demanded) {
    Arena& arena = arenas_[static_cast<size_t>(arena_of_[static_cast<size_t>(k.matrix)])];
    int32_t best = -1;
    std::pair<bool, double> least;
    for (int32_t i = 0; i < static_cast<int32_t>(arena.slots.size()); ++i) {
        const Key other = arena.slots[static_cast<size_t>(i)];
        if (other.matrix < 0) {
            best = i;
            break;
        }
        const Unit& u = unit(other);
        const bool soon = u.soon >= route_;
        if (u.state != State::kHere || u.locked || (soon && !demanded)) continue;
        const std::pair value{soon, u.weight};
        if (best >= 0 && !(value < least)) continue;
        best = i;
        least = value;
    }
    if (best < 0) return best;
    Key& slot = arena.slots[static_cast<size_t>(best)];
    if (slot.matrix >= 0) {
        unit(slot).state = State::kAbsent;
        unit(slot).slot = -1;
    }
    slot = k;
    return best;
}

bool ExpertCache::take_next(Key& k) {
    if (!demand_.empty()) {
        k = demand_.front();
        const int32_t slot = slot_for(k, true);
        if (slot < 0) return false;
        demand_.pop_front();
        unit(k).slot = slot;
        unit(k).state = State::kLoading;
        return true;
    }
    while (!ahead_.empty()) {
        k = ahead_.front();
        ahead_.pop_front();
        if (unit(k).state != State::kQueued) continue;
        const int32_t slot = slot_for(k, false);
        unit(k).slot = slot;
        unit(k).state = slot < 0 ? State::kAbsent : State::kLoading;
        if (slot >= 0) return true;
    }
    return false;
}

void ExpertCache::read_forever() {
    std::unique_lock lock(sync_->mutex);
    while (!ending_) {
        Key k;
        if (!take_next(k)) {
            sync_->work.wait(lock);
            continue;
        }
        uint8_t* const slot = slot_of(k);
        std::exception_ptr failure;
        lock.unlock();
        try {
            read(k, slot);
        } catch (...) {
            failure = std::current_exception();
        }
        lock.lock();
        Unit& u = unit(k);
        if (failure) {
            arenas_[static_cast<size_t>(arena_of_[static_cast<size_t>(k.matrix)])]
                .slots[static_cast<size_t>(u.slot)] = {};
            u.slot = -1;
            u.state = State::kAbsent;
            if (u.locked && !u.demanded) {
                // It began before anyone needed it: once more, and first, as the plan has it before what is queued.
                u.demanded = true;
                u.state = State::kQueued;
                demand_.push_front(k);
            } else if (u.locked) {
                u.failed = true;
                failure_ = failure;
            }
        } else {
            const Matrix& m = matrices_[static_cast<size_t>(k.matrix)];
            u.state = State::kHere;
            counts_.bytes += m.code_bytes + m.group_bytes;
        }
        sync_->here.notify_all();
        wake_readers();
    }
}

void ExpertCache::read(Key k, uint8_t* slot) const {
    const Matrix& m = matrices_[static_cast<size_t>(k.matrix)];
    read_span(m.codes + k.expert * m.code_bytes, m.code_bytes, slot);
    if (m.groups)
        read_span(m.groups + k.expert * m.group_bytes, m.group_bytes,
                  slot + room_for(m.code_bytes));
    try {
        if (system::state_of(file_.file()) == file_.state()) return;
    } catch (const std::system_error&) {
    }
    throw ChangedFile(file_.path());
}

// The blocks of a file with a part of it.
void ExpertCache::read_span(const uint8_t* at, int64_t bytes, uint8_t* to) const {
    const int64_t offset = at - file_.data(), begin = offset / kBlock * kBlock,
                  end = whole_blocks_of(offset + bytes);
    const auto from = static_cast<uint64_t>(begin);
    const auto count = static_cast<size_t>(end - begin),
               needed = static_cast<size_t>(offset + bytes - begin);
    if (direct_ >= 0) {
        try {
            if (system::read_at(direct_, to, count, from) >= needed) return;
        } catch (const std::system_error& e) {
            if (e.code().value() != EINVAL) throw FailedRead(file_.path(), from, e.code().value());
        }  // EINVAL: a file system or a disk that wants larger blocks
    }
    try {
        const size_t got = system::read_at(file_.file(), to, count, from);
        system::forget_read(file_.file(), from, count);
        if (got < needed) throw ChangedFile(file_.path());
    } catch (const std::system_error& e) {
        throw FailedRead(file_.path(), from, e.code().value());
    }
}

ExpertCache::Counts ExpertCache::counts() const {
    const std::lock_guard guard(sync_->mutex);
    return counts_;
}

}  // namespace sterna
