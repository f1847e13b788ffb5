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
template <class Element>
struct CountedPairs {
    static constexpr int kPairs = kChunk / 2;
    // A page's pairs are taken from its quarters in turn: memory gives more to four streams than to one.
    static constexpr int kStreams = 4;
    // The limit for the sum of a row's weights in one run, which begins with the remainder of the previous run.
    static constexpr int32_t kMostWeight = (INT32_MAX - kLow) / sterna::kv_levels(sizeof(Element));
    static constexpr int kRuns = kPairs / (kMostWeight / (2 * sterna::kWeightLevels)) + 1;
    static_assert(kMostWeight >= 2 * sterna::kWeightLevels);

    const Element* values[kPairs];
    int32_t first[kPairs];  // first position, counted from the chunk's start
    int end[kRuns], runs = 0;
    int64_t ahead[kChunk / kPage];  // bytes from a page to the one to be read after it

    template <int R>
    void find(const sterna::AttentionArgs& a, const Rows& rows, const int16_t (*w)[kChunk],
              int64_t chunk, int row0) {
        int32_t most[kPairs];  // the largest of the rows' weights of a pair
        constexpr int16_t kOnes[2] = {1, 1};
        const VX ones = x_load(kOnes);
        const int begin = rows.first_page / 2;
        const int pairs = whole_pages(rows.keys[row0 + R - 1]) / 2;
        for (int i = begin; i < pairs; i += kLanes) {
            VI m = i_set1(0);
            STERNA_UNROLL(8)
            for (int r = 0; r < R; ++r)
                m = i_max(m, pair_dot(i_set1(0), i_pairs(i_load(w[row0 + r] + 2 * i)), ones));
            i_store(most + i, m);
        }
        int n = 0;
        int32_t weight = 0;
        for (int page = begin; page < pairs; page += kPage / 2) {
            const uint8_t* of_page = value_page(a, chunk + 2 * page);
            ahead[2 * page / kPage] = page_after_values(a, rows, 2 * page) - of_page;
            for (int k = 0; k < kPage / 2; ++k) {
                const int i = page + k % kStreams * (kPage / 2 / kStreams) + k / kStreams;
                weight += most[i];
                if (weight > kMostWeight) end[runs++] = n, weight = most[i];
                values[n] = reinterpret_cast<const Element*>(of_page) +
                            (i - page) * int64_t{2} * a.head_dim;
                first[n] = 2 * i;
                n += most[i] > 0;
            }
        }
        end[runs++] = n;
    }
};

}  // namespace
