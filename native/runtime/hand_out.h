// How the items of an operation, such as the tiles of a matrix, are handed out to threads of unequal speed.
//
// Each thread goes through a part of its own from the front: its reads are consecutive, can be prefetched (ReadAhead),
// and are the same at every step. A thread that has finished its part takes items from the back of another's. Pieces
// shrink as the work runs out: there are few of them, and the last ones, which all wait for, are short (guided
// self-scheduling, Polychronopoulos and Kuck 1987; with a part for each thread, Eager and Zahorjan 1992).
//
// Where the items lie near the threads of one memory node each (program/near.h), the parts of a node's threads are what lies
// there, and a thread helps those of its own node before it helps others.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "units/kernel_table.h"

namespace sterna {

// The threads of a team by memory node: node i has threads [first[i], first[i + 1]).
struct NodeTeam {
    std::vector<int> first{};

    int nodes() const { return first.empty() ? 1 : static_cast<int>(first.size()) - 1; }
    int node_of(int thread) const {
        int node = 0;
        while (node + 1 < nodes() && thread >= first[static_cast<size_t>(node) + 1]) ++node;
        return node;
    }
    int first_of(int node) const { return first[static_cast<size_t>(node)]; }
    // The first of `tiles` tiles that belongs to a node; a node's share of tiles is its share of threads.
    int64_t bound(int64_t tiles, int node) const { return tiles * first_of(node) / first.back(); }

    friend bool operator==(const NodeTeam&, const NodeTeam&) = default;
};

struct Division {
    int64_t total;
    int threads = 0;  // 0: no parts; any thread takes the next item
    int64_t batch = 1;  // items that are best done together
    const NodeTeam* team = nullptr;  // where parts are those of nodes
    int64_t repeats = 1;  // how often each node has its tiles, as many items after one another
    int64_t least = 1;  // items of a piece, where a part still has as many

    // The first item of a thread's part.
    int64_t first(int thread) const {
        if (!team) return total / batch * thread / threads * batch;
        const int node = team->node_of(thread), i = thread - team->first_of(node);
        const int64_t begin = bound(node), all = bound(node + 1) - begin;
        return begin + all / batch * i / (team->first_of(node + 1) - team->first_of(node)) * batch;
    }
    // The first item of a node.
    int64_t bound(int node) const { return team->bound(total / repeats, node) * repeats; }
    // The i-th of the others that a thread helps.
    int other(int thread, int i) const {
        if (!team) return (thread + i) % threads;
        const int node = team->node_of(thread), begin = team->first_of(node),
                  end = team->first_of(node + 1), near = end - begin;
        return i < near ? begin + (thread - begin + i) % near : (end + i - near) % threads;
    }
    int64_t end(int thread) const { return thread + 1 < threads ? first(thread + 1) : total; }
    // Of one's own part, a third of what is left, and less among many, as all would wait for the slowest; or one batch
    // as long as two fifths hold it: so workers at half speed lose less than 15 % (test_pool.py), and pieces are as few
    // as that allows.
    int64_t own_piece(int64_t left) const {
        return piece(left / (threads > 3 ? threads : 3), 2 * left / 5);
    }
    // Of another's part: as much as each thread would get.
    int64_t piece_of_another(int64_t left) const { return piece(left / threads, left / threads); }

  private:
    int64_t piece(int64_t large, int64_t most) const {
        const int64_t items = large > batch ? large / batch * batch : most < batch ? most : batch;
        return items > least ? items : least;
    }
};

// The tiles of a matrix. Kernels of few tokens may read some side by side; those of many take them singly, unless they
// make something of the activations for `least` tiles at a time.
constexpr Division divide_tiles(int64_t tiles, int64_t tokens, int threads, const Reading& reading,
                                int64_t least = 1) {
    return {.total = tiles,
            .threads = threads,
            .batch = tokens > kFewTokens ? 1 : reading.streams,
            .least = least};
}

// Hands out the items of one operation, once each. Relaxed: the barrier after an operation orders the data.
class HandOut {
  public:
    HandOut() = default;
    explicit HandOut(int threads)
        : threads_(threads), parts_(std::make_unique<Part[]>(static_cast<size_t>(threads))) {}

    int threads() const { return threads_; }
    // For the next operation: of all threads, or of one, while nobody is inside next().
    void reset() {
        for (int thread = 0; thread < threads_; ++thread) reset(thread);
    }
    void reset(int thread) { part(thread).store(0, std::memory_order_relaxed); }

    // The next items [begin, end) of this thread; false when none is left.
    bool next(const Division& d, int thread, int64_t& begin, int64_t& end) {
        if (!d.threads) {
            begin = static_cast<int64_t>(part(0).fetch_add(1, std::memory_order_relaxed));
            end = begin + 1;
            return begin < d.total;
        }
        if (take(d, thread, true, begin, end)) return true;
        for (int i = 1; i < d.threads; ++i)
            if (take(d, d.other(thread, i), false, begin, end)) return true;
        return false;
    }

  private:
    // How many items were taken from the front, in the low half, and from the back of a part.
    struct alignas(64) Part {
        std::atomic<uint64_t> taken{0};
    };

    std::atomic<uint64_t>& part(int thread) { return parts_[static_cast<size_t>(thread)].taken; }

    bool take(const Division& d, int thread, bool own, int64_t& begin, int64_t& end) {
        constexpr int kBack = 32;
        const int64_t first = d.first(thread), last = d.end(thread);
        uint64_t taken = part(thread).load(std::memory_order_relaxed);
        for (;;) {
            begin = first + static_cast<uint32_t>(taken);
            end = last - static_cast<int64_t>(taken >> kBack);
            if (begin >= end) return false;
            const int64_t left = end - begin;
            uint64_t more;
            if (own) {
                more = static_cast<uint64_t>(std::min(d.own_piece(left), left));
                end = begin + static_cast<int64_t>(more);
            } else {
                const int64_t items = std::min(d.piece_of_another(left), left);
                more = static_cast<uint64_t>(items) << kBack;
                begin = end - items;
            }
            if (part(thread).compare_exchange_weak(taken, taken + more, std::memory_order_relaxed))
                return true;
        }
    }

    int threads_ = 0;
    std::unique_ptr<Part[]> parts_;
};

// Memory that a thread may prefetch while it waits for others: its first reads afterwards.
struct ReadAhead {
    const uint8_t *at = nullptr, *end = nullptr;

    bool more() const { return at < end; }
    // A few lines, into the cache that is the core's own.
    void ask() {
        for (int line = 0; line < 4 && at < end; ++line, at += 64) __builtin_prefetch(at, 0, 2);
    }
};

}  // namespace sterna
