// The values that a block of rows reads of a chunk, and in which order.
#pragma once
#include "attention/attention_rows.h"
#include "attention/integer_sums.h"
#include "attention/kv_pages.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// The pairs of positions of a chunk that have a nonzero weight in a block of rows. They are split into runs, so that
// the sums of a run stay in int32.
template <KvType type>
struct CountedPairs {
    static constexpr int kPairs = kChunk / 2;
    // The limit for the sum of a row's weights in one run, which begins with the remainder of the previous run.
    static constexpr int32_t kMostWeight = (INT32_MAX - kLow) / sterna::kv_levels(type);
    // So many pairs fit a run with any weights.
    static constexpr int kSurePairs = kMostWeight / (2 * sterna::kWeightLevels);
    static constexpr int kRuns = kPairs / kSurePairs + 1;
    static_assert(kSurePairs >= 1);

    // Pairs that are added one part of head_dim after the other, while L1 holds them. whole: they are all those of a page,
    // in its order, and only the first has an entry in `values` and `first`.
    struct Part {
        int from, to;
        bool whole;
    };
    // Of a page with so many counted pairs all are taken: that costs less than a list of them.
    static constexpr int kNearlyAll = kPage / 2 * 3 / 4;

    Part part[kChunk / kPage];
    int parts = 0;
    const Pair<type>* of_page[kChunk / kPage];
    const Pair<type>* values[kPairs];
    int32_t first[kPairs];  // first position, counted from the chunk's start
    int end[kRuns], runs = 0;
    int64_t ahead[kChunk / kPage];  // bytes from a page to the one to prefetch meanwhile

    // page_of(position): the page of a position of the chunk, and the one to prefetch meanwhile.
    template <int R, class PageOf>
    void find(const Rows& rows, const int16_t (*w)[kChunk], int64_t head_dim, int row0,
              PageOf page_of) {
        const int begin = rows.first_page / 2;
        const int pairs = whole_pages(rows.keys[row0 + R - 1]) / 2;
        for (int page = begin; page < pairs; page += kPage / 2) {
            const auto [bytes, next] = page_of(2 * page);
            of_page[2 * page / kPage] = reinterpret_cast<const Pair<type>*>(bytes);
            ahead[2 * page / kPage] = next - bytes;
        }
        in_order<R>(w + row0, begin, pairs, head_dim);
        if (!parts) end_page(0);
    }

  private:
    // The weights of kLanes pairs of a row, from pair i on.
    static VI weights(const int16_t* w, int i) {
        constexpr int16_t kOnes[2] = {1, 1};
        return pair_dot(i_set1(0), i_pairs(i_load(w + 2 * i)), x_load(kOnes));
    }

    // After the list of a page's pairs, of which n are counted so far.
    void end_page(int n) {
        if (parts > 0 && !part[parts - 1].whole && n - part[parts - 1].from <= kPage / 2) {
            part[parts - 1].to = n;
        } else {
            part[parts] = {parts > 0 ? part[parts - 1].to : 0, n, false};
            ++parts;
        }
    }

    // The run that pairs are added to. In vectors of pairs, its weight is at most the sum over lanes of what is the
    // largest there of any row's sum.
    template <int R>
    struct Run {
        int begin = 0;  // its first counted pair
        VI sum[R];

        Run() {
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) sum[r] = i_set1(0);
        }
    };

    // Adds the weights of kLanes pairs from i on, of which the first counted one is the n-th, to the run, or to a new one.
    // Returns each pair's largest weight. ends_within: a run should end after kSome of them, too.
    static constexpr int kSome = kLanes < kSurePairs ? kLanes : kSurePairs;
    template <int R>
    VI add_to(Run<R>& run, const int16_t (*w)[kChunk], int i, int n, bool& ends_within) {
        VI here = i_set1(0), so_far = i_set1(0);
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) {
            const VI weight = weights(w[r], i);
            run.sum[r] = i_add(run.sum[r], weight);
            here = i_max(here, weight);
            so_far = i_max(so_far, run.sum[r]);
        }
        ends_within = false;
        if (i_sum(so_far) > kMostWeight) {
            end_before(run, n);
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) run.sum[r] = weights(w[r], i);
            ends_within = kSome < kLanes && i_sum(here) > kMostWeight;
        }
        return here;
    }
    template <int R>
    void end_before(Run<R>& run, int n) {
        if (n > run.begin) end[runs++] = run.begin = n;
    }

    // Takes all pairs of a page, if nearly all are counted.
    template <int R>
    bool take_whole(Run<R>& run, const int16_t (*w)[kChunk], int page, int n) {
        VI sum[R], counted = i_set1(0), so_far = i_set1(0);
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) sum[r] = run.sum[r];
        for (int i = page; i < page + kPage / 2; i += kLanes) {
            VI here = i_set1(0);
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) {
                const VI weight = weights(w[r], i);
                sum[r] = i_add(sum[r], weight);
                here = i_or(here, weight);
            }
            counted = i_add(counted, i_shr<31>(i_sub(i_set1(0), here)));
        }
        if (i_sum(counted) < kNearlyAll) return false;
        STERNA_UNROLL(8)
        for (int r = 0; r < R; ++r) so_far = i_max(so_far, sum[r]);
        if (i_sum(so_far) <= kMostWeight) {
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r) run.sum[r] = sum[r];
        } else {
            for (int i = 0; i < kPage / 2; i += kLanes) {
                bool ends_within;
                add_to(run, w, page + i, n + i, ends_within);
                if (ends_within) end_before(run, n + i + kSome);
            }
        }
        values[n] = of_page[2 * page / kPage];
        first[n] = 2 * page;
        part[parts++] = {n, n + kPage / 2, true};
        return true;
    }

    template <int R>
    void in_order(const int16_t (*w)[kChunk], int begin, int pairs, int64_t stride) {
        int n = 0;
        Run<R> run;
        for (int page = begin; page < pairs; page += kPage / 2) {
            if (take_whole(run, w, page, n)) {
                n += kPage / 2;
                continue;
            }
            const Pair<type>* of = of_page[2 * page / kPage];
            for (int i = page; i < page + kPage / 2; i += kLanes) {
                bool ends_within;
                int32_t most[kLanes];
                i_store(most, add_to(run, w, i, n, ends_within));
                for (int j = 0; j < kLanes; ++j, of += stride) {
                    if (ends_within && j == kSome) end_before(run, n);
                    values[n] = of;
                    first[n] = 2 * (i + j);
                    n += most[j] > 0;
                }
            }
            end_page(n);
        }
        end[runs++] = n;
    }
};

}  // namespace
