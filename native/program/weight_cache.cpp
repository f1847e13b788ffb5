#include "program/weight_cache.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <numeric>
#include <system_error>

#include "runtime/system/system.h"

namespace sterna {

namespace {

constexpr int64_t kBlock = system::kDirectBytes;

constexpr int64_t whole_blocks_of(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

// Room for a span of a file with the blocks that it begins and ends in.
constexpr int64_t room_for(int64_t bytes) { return bytes ? whole_blocks_of(bytes) + kBlock : 0; }

int64_t slot_bytes(const WeightCache::Matrix& m) {
    return room_for(m.code_bytes) + room_for(m.group_bytes);
}

// log2(2^a + 2^b)
double log_sum(double a, double b) {
    return std::max(a, b) + std::log2(1 + std::exp2(-std::abs(a - b)));
}

}  // namespace

std::vector<WeightCache::Arena> WeightCache::arenas_of(std::span<const Matrix> matrices,
                                                       int* arena_of) {
    std::vector<Arena> arenas;
    for (const Matrix& m : matrices) {
        auto found = std::ranges::find(arenas, slot_bytes(m), &Arena::slot_bytes);
        if (found == arenas.end()) {
            arenas.emplace_back();
            found = arenas.end() - 1;
            found->slot_bytes = slot_bytes(m);
        }
        found->parts += m.parts;
        if (arena_of) *arena_of++ = static_cast<int>(found - arenas.begin());
    }
    return arenas;
}

std::pair<int64_t, int64_t> WeightCache::bounds(std::span<const Matrix> matrices) {
    int64_t least = 0, all = 0;
    for (const Arena& arena : arenas_of(matrices, nullptr)) {
        least += arena.slot_bytes;
        all += arena.slot_bytes * arena.parts;
    }
    return {least, all};
}

WeightCache::WeightCache(const MappedFile& file, std::vector<Matrix> matrices, int64_t bytes,
                         int readers)
    : file_(file),
      matrices_(std::move(matrices)),
      arena_of_(matrices_.size()),
      arenas_(arenas_of(matrices_, arena_of_.data())),
      trust_(matrices_.size(), 1),
      readers_(readers),
      owner_(system::process_id()) {
    const auto [least, all] = bounds(matrices_);
    const double share =
        all > least ? static_cast<double>(bytes - least) / static_cast<double>(all - least) : 1;
    for (Arena& arena : arenas_) {
        // One, and of the others as many as of any size.
        const auto more = static_cast<int64_t>(share * static_cast<double>(arena.parts - 1));
        const int64_t slots = 1 + std::clamp<int64_t>(more, 0, arena.parts - 1);
        arena.memory = HugeBuffer(static_cast<size_t>(slots * arena.slot_bytes + kBlock));
        arena.slots.resize(static_cast<size_t>(slots));
        counts_.slots += slots;
        counts_.parts += arena.parts;
    }
    for (const Matrix& m : matrices_) parts_.emplace_back(static_cast<size_t>(m.parts));
    all_parts_.resize(static_cast<size_t>(std::ranges::max(matrices_, {}, &Matrix::parts).parts));
    std::iota(all_parts_.begin(), all_parts_.end(), 0);
    choose_what_stays();
    direct_ = system::open_direct(file_.file());
}

WeightCache::~WeightCache() {
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

// Every n-th of the parts that every token reads, so that the disk has the same work in all layers.
void WeightCache::choose_what_stays() {
    for (size_t a = 0; a < arenas_.size(); ++a) {
        std::vector<Part*> here;
        for (size_t m = 0; m < matrices_.size(); ++m)
            if (matrices_[m].every_token && arena_of_[m] == static_cast<int>(a))
                for (Part& part : parts_[m]) here.push_back(&part);
        const int64_t slots = std::ssize(arenas_[a].slots), count = std::ssize(here);
        const int64_t stay = slots >= count ? count : std::max<int64_t>(0, slots - kTurning);
        for (int64_t i = 0; i < count; ++i)
            here[static_cast<size_t>(i)]->stays = (i + 1) * stay / count > i * stay / count;
    }
}

int WeightCache::matrix_of(const uint8_t* codes) const {
    const auto found = std::ranges::find(matrices_, codes, &Matrix::codes);
    return found == matrices_.end() ? -1 : static_cast<int>(found - matrices_.begin());
}

std::unique_lock<std::mutex> WeightCache::begin_step() {
    if (owner_ !=
        system::process_id()) {  // a forked child has the memory, but no thread that reads
        (void)threads_.release();
        (void)sync_.release();
        sync_ = std::make_unique<Sync>();
        owner_ = system::process_id();
        for (Arena& arena : arenas_)
            for (Key& k : arena.slots)
                if (k.matrix >= 0 && part(k).state == State::kLoading) {
                    part(k).state = State::kAbsent;
                    part(k).slot = -1;
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
void WeightCache::end_route() {
    for (auto* queue : {&demand_, &ahead_, &guess_}) {
        for (const Key k : *queue)
            if (part(k).state == State::kQueued) part(k).state = State::kAbsent;
        queue->clear();
    }
    for (const int32_t i : plan_.order) {
        Part& p = part({plan_.matrices[plan_.at], i});
        p.locked = p.failed = false;
    }
    plan_.order.clear();
    failure_ = nullptr;
}

std::span<const int32_t> WeightCache::needed_of(int matrix) const {
    const Matrix& m = matrices_[static_cast<size_t>(matrix)];
    if (!m.every_token) return plan_.experts;
    return std::span(all_parts_).first(static_cast<size_t>(m.parts));
}

void WeightCache::route(std::span<const int> matrices, std::span<const int32_t> experts) {
    const std::lock_guard guard(sync_->mutex);
    end_route();
    ++route_;
    if (matrices.front() <= last_) time_ += 1 / kHalfLife;
    last_ = matrices.front();
    plan_.matrices.assign(matrices.begin(), matrices.end());
    plan_.experts.assign(experts.begin(), experts.end());
    plan_.at = 0;
    for (const int matrix : matrices)
        for (const int32_t i : needed_of(matrix)) {
            Part& p = part({matrix, i});
            ++(p.state == State::kHere ? counts_.hits : counts_.misses);
            p.weight = log_sum(p.weight, time_);
            p.soon = route_;
        }
    judge_guess();
    begin_plan();
    for (const int matrix : matrices.subspan(1)) {
        // The experts in the order of the plan, as they are computed in it.
        const bool chosen = !matrices_[static_cast<size_t>(matrix)].every_token;
        for (const int32_t i : chosen ? std::span<const int32_t>(plan_.order) : needed_of(matrix))
            read_ahead({matrix, i});
    }
    wake_readers();
}

void WeightCache::guess(std::span<const int> matrices, std::span<const int32_t> experts) {
    const std::lock_guard guard(sync_->mutex);
    guessed_.clear();
    for (const int matrix : matrices)
        for (const int32_t i : experts) {
            Part& p = part({matrix, i});
            p.guessed = route_ + 1;
            if (p.state != State::kAbsent) continue;
            guessed_.push_back({matrix, i});
            if (trust_[static_cast<size_t>(matrix)] < kTrusted) continue;
            p.state = State::kQueued;
            guess_.push_back({matrix, i});
        }
    wake_readers();
}

// Which of the guessed parts the route needs.
void WeightCache::judge_guess() {
    for (const Key k : guessed_) {
        const bool right = part(k).soon == route_;
        double& trust = trust_[static_cast<size_t>(k.matrix)];
        trust += ((right ? 1 : 0) - trust) / kTrustOf;
        counts_.guessed_right += right;
    }
    counts_.guessed += std::ssize(guessed_);
    guessed_.clear();
}

void WeightCache::wake_readers() {
    if (!demand_.empty() || !ahead_.empty() || !guess_.empty()) sync_->work.notify_all();
}

void WeightCache::read_ahead(Key k) {
    if (part(k).state != State::kAbsent) return;
    part(k).state = State::kQueued;
    ahead_.push_back(k);
}

// Orders the parts of a matrix by when they are here.
void WeightCache::begin_plan() {
    const int32_t matrix = plan_.matrices[plan_.at];
    const std::span<const int32_t> needed = needed_of(matrix);
    plan_.order.assign(needed.begin(), needed.end());
    plan_.left = plan_.order.size();
    const auto when = [&](int32_t i) {
        const State state = part({matrix, i}).state;
        return state == State::kHere ? 0 : state == State::kLoading ? 1 : 2;
    };
    std::ranges::stable_sort(plan_.order, {}, when);
    for (const int32_t i : plan_.order) {
        Part& p = part({matrix, i});
        p.locked = true;
        p.done = 0;
        p.demanded = when(i) == 2;
        if (!p.demanded) continue;
        p.state = State::kQueued;
        demand_.push_back({matrix, i});
    }
}

WeightCache::Place WeightCache::acquire(int64_t i) {
    const Key k{plan_.matrices[plan_.at], plan_.order[static_cast<size_t>(i)]};
    std::unique_lock lock(sync_->mutex);
    Part& p = part(k);
    if (p.state != State::kHere && !p.failed) {
        const auto began = std::chrono::steady_clock::now();
        sync_->here.wait(lock, [&] { return p.state == State::kHere || p.failed; });
        counts_.waited_s +=
            std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    }
    if (p.failed) std::rethrow_exception(failure_);
    return place(k);
}

void WeightCache::release(int64_t i, int pieces) {
    const Key k{plan_.matrices[plan_.at], plan_.order[static_cast<size_t>(i)]};
    const std::lock_guard guard(sync_->mutex);
    Part& p = part(k);
    if (++p.done < pieces) return;
    p.locked = false;
    if (matrix(k).every_token) p.soon = -1;  // of all, it is needed again last: in the next step
    if (--plan_.left == 0 && plan_.at + 1 < plan_.matrices.size()) {
        ++plan_.at;
        begin_plan();
    }
    wake_readers();
}

uint8_t* WeightCache::slot_of(Key k) {
    const Arena& of = arena(k);
    const auto begin = reinterpret_cast<uintptr_t>(of.memory.data());
    const auto first = (begin + kBlock - 1) / kBlock * kBlock - begin;
    return of.memory.data() + first + part(k).slot * of.slot_bytes;
}

// A part lies in its slot as in the blocks of its file, which a mapping begins with.
WeightCache::Place WeightCache::place(Key k) {
    const Matrix& m = matrix(k);
    const auto within = [&](const uint8_t* at, int64_t bytes) {
        return static_cast<int64_t>(reinterpret_cast<uintptr_t>(at + k.part * bytes) % kBlock);
    };
    const uint8_t* slot = slot_of(k);
    return {slot + within(m.codes, m.code_bytes),
            m.groups ? slot + room_for(m.code_bytes) + within(m.groups, m.group_bytes) : nullptr};
}

// A slot for a part: an empty one, else that of the least weight which neither stays, nor is in use, nor, unless the part
// is demanded, is needed soon. -1: there is none now.
int32_t WeightCache::slot_for(Key k, bool demanded) {
    Arena& of = arena(k);
    int32_t best = -1;
    std::pair<bool, double> least;
    for (int32_t i = 0; i < static_cast<int32_t>(of.slots.size()); ++i) {
        const Key other = of.slots[static_cast<size_t>(i)];
        if (other.matrix < 0) {
            best = i;
            break;
        }
        const Part& p = part(other);
        const bool soon = p.soon >= route_ || p.guessed > route_;
        if (p.state != State::kHere || p.stays || p.locked || (soon && !demanded)) continue;
        const std::pair value{soon, p.weight};
        if (best >= 0 && !(value < least)) continue;
        best = i;
        least = value;
    }
    if (best < 0) return best;
    Key& slot = of.slots[static_cast<size_t>(best)];
    if (slot.matrix >= 0) {
        part(slot).state = State::kAbsent;
        part(slot).slot = -1;
    }
    slot = k;
    return best;
}

bool WeightCache::begin_read(Key k, bool demanded) {
    const int32_t slot = slot_for(k, demanded);
    if (slot < 0) return false;
    part(k).slot = slot;
    part(k).state = State::kLoading;
    return true;
}

bool WeightCache::take_next(Key& k) {
    if (!demand_.empty()) {
        k = demand_.front();
        if (!begin_read(k, true)) return false;
        demand_.pop_front();
        return true;
    }
    full_.assign(arenas_.size(), false);
    for (auto* queue : {&ahead_, &guess_})
        for (size_t i = 0; i < queue->size();) {
            k = (*queue)[i];
            const auto of = static_cast<size_t>(arena_of_[static_cast<size_t>(k.matrix)]);
            const bool waits = part(k).state == State::kQueued;
            if (waits && (full_[of] || !begin_read(k, false))) {
                full_[of] = true;
                ++i;
                continue;
            }
            queue->erase(queue->begin() + static_cast<std::ptrdiff_t>(i));
            if (waits) return true;
        }
    return false;
}

void WeightCache::read_forever() {
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
        Part& p = part(k);
        if (failure) {
            arena(k).slots[static_cast<size_t>(p.slot)] = {};
            p.slot = -1;
            p.state = State::kAbsent;
            if (p.locked && !p.demanded) {
                // It began before anyone needed it: once more, and first, as the plan has it before what is queued.
                p.demanded = true;
                p.state = State::kQueued;
                demand_.push_front(k);
            } else if (p.locked) {
                p.failed = true;
                failure_ = failure;
            }
        } else {
            const Matrix& m = matrix(k);
            p.state = State::kHere;
            counts_.bytes += m.code_bytes + m.group_bytes;
        }
        sync_->here.notify_all();
        wake_readers();
    }
}

void WeightCache::read(Key k, uint8_t* slot) const {
    const Matrix& m = matrix(k);
    read_span(m.codes + k.part * m.code_bytes, m.code_bytes, slot);
    if (m.groups)
        read_span(m.groups + k.part * m.group_bytes, m.group_bytes, slot + room_for(m.code_bytes));
    try {
        if (system::state_of(file_.file()) == file_.state()) return;
    } catch (const std::system_error&) {
    }
    throw ChangedFile(file_.path());
}

// The blocks of a file with a part of it.
void WeightCache::read_span(const uint8_t* at, int64_t bytes, uint8_t* to) const {
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

WeightCache::Counts WeightCache::counts() const {
    const std::lock_guard guard(sync_->mutex);
    return counts_;
}

}  // namespace sterna
