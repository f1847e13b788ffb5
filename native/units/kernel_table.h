// The kernels of a unit: one table per instruction set, filled in kernels.cpp, and layouts.cpp.
//
// This header is shared by units built with different compiler flags, so it declares plain data
// only: no templates, no STL, and functions always inlined, as a copy would be a weak symbol (see
// docs/explanation/architecture.md).
#pragma once
#include <cstddef>
#include <cstdint>

#include "units/attention_args.h"
#include "units/linear_args.h"
#include "units/row_args.h"

namespace sterna {

constexpr int kMaxPlanes = 3;

// One row of activations as the sum of `planes` bf16 numbers each, the largest first, in tiles of x_block
// rows x 32 k: [x_block rows][32 k][plane] tiles of [row][k].
struct Bf16PlanesArgs {
    const float* x;  // [width], padded with zeros
    int64_t width;  // a multiple of 64
    int planes, x_block;
    uint16_t* out;  // row n: at b * width * planes * (n / b) + 32 * (n % b), b the x_block
};

// Float formats on a unit that multiplies bf16: the bits differ from those of `linear`, so a model uses it for any number
// of tokens or not at all. Units with tiles have other bits than those with vectors.
struct FastKernels {
    void (*linear)(const LinearArgs&) = nullptr;  // null: the unit has none
    int64_t (*scratch_bytes)(int64_t K, int n) = nullptr;
    // Whether sums are a matrix unit's, of 32 k an instruction (float_tiles.h); else of pairs of k (bf16_pairs.h).
    bool tiles = false;
    int x_planes = 0;  // bf16 planes of an activation (Bf16PlanesArgs)
    int products = 0;  // bf16 products for one of a weight and an activation

    [[gnu::always_inline]] constexpr int x_block() const { return tiles ? 16 : 1; }
};

// The kernels of a code layout, and nothing else. A null one is replaced by the extended unit's (dispatch.cpp).
struct LayoutKernels {
    int64_t (*tile_bytes)(int64_t K);  // bytes of tile_rows x K, which is padded
    void (*linear)(const LinearArgs&);
    int64_t (*scratch_bytes)(int64_t K, int n);
    void (*pack)(const PackArgs&);
    void (*row)(const RowArgs&);
    void (*values)(const RowArgs&, const GroupScales&,
                   int zero_x2);  // null without scales in groups
    // Whether no code of these bytes is above max_code, the greatest of the codebook; null: whatever the codebook,
    // none is.
    bool (*valid)(const uint8_t* codes, int64_t bytes, int max_code);
    // Layouts of two-bit codes only, else null.
    void (*copy_rows)(const ActiveCopyArgs&);
    void (*copy_columns)(const ActiveCopyArgs&);
    // Float formats only, else null.
    void (*rescore)(const RescoreArgs&);
    void (*make_shadow)(const ShadowArgs&);
};
// The properties of a layout, on any unit.
struct LayoutFacts {
    const char* name;  // "b2", "b8", "f32" ...
    bool integer;
    ReadLoop read_loop;
    int tile_rows;
    int source_bytes;  // bytes of an element that `pack` takes
    bool rows;  // whether weights may have a scale for each row, and in groups of k
    bool groups;
    bool minima;  // whether groups of k may have minima
    bool micro;  // whether weights may be in micro-blocks
    bool long_groups;  // whether activations may have a scale for each kLongGroupK
    bool even_offset;  // whether groups need an even zero_x2: whole numbers as levels
    int super_group;  // k of a group of super-blocks: 16 or 32, or 0 where there are none
    int super_offset;  // the code of level 0 in super-blocks
    bool odd_scales;  // whether super-blocks have scales of kOdd4 or kOdd3, and no others
    // Levels of the weight, in LevelTable, that its decoder looks up, 0 for none; and their bound, as kLevelOffset.
    int levels, level_offset;
    int step_k;  // K is padded to a multiple of this (integer formats: to 64)
};
struct FormatKernels : LayoutFacts, LayoutKernels {
    FastKernels fast;
    // The scratch that LinearArgs::joint_tokens needs, for n tokens; null where this unit does not heed it.
    int64_t (*joint_scratch)(int n) = nullptr;
};

// The code layouts of one folder of layouts/.
struct FormatFamily {
    const FormatKernels* formats;
    int count;
};

// Code layouts that another module adds to this one's (papers/native/lookup), for units by their names.
struct UnitLayouts {
    const char* isa;
    FormatFamily family;
};
struct AddedLayouts {
    const UnitLayouts* units;
    int count;
};

// Attention over pages of a kind: of a whole context, or of a chunk of positions; and an indexer's scores of a chunk.
struct AttentionKernels {
    void (*all)(const AttentionArgs&);
    void (*chunk)(const AttentionArgs&, int64_t chunk);
    void (*index)(const AttentionArgs&, const IndexArgs&, int64_t chunk);
    int64_t (*scratch)(int64_t head_dim);
};

// The kernels of a unit that belong to no layout. A null entry is taken from the unit that it extends (dispatch.cpp).
struct UnitKernels {
    // false: a value was not finite
    bool (*rowwise)(const RowwiseArgs&);
    bool (*layer_norm)(const LayerNormArgs&);
    bool (*rope)(const RopeArgs&);
    void (*cap)(const CapArgs&);
    void (*conv)(const ConvArgs&);
    bool (*gates)(const GatesArgs&);
    bool (*recurrence)(const RecurrenceArgs&);
    bool (*selective_scan)(const ScanArgs&);
    bool (*rg_lru)(const LruArgs&);
    bool (*gated)(const GatedArgs&);
    void (*low_rank)(const LowRankArgs&);
    void (*softmax_weights)(const SoftmaxArgs&);
    bool (*kv_store)(const KvStoreArgs&);
    void (*gather_keys)(const KeyGatherArgs&);
    AttentionKernels float_attention, integer_attention;  // by what pages hold: attention()
    void (*attention_merge)(const AttentionArgs&);
    int (*x_block)(int n);  // the layout of n tokens' activations for integer formats
    // Execute about `ops` operations (a multiply-add is two) in registers, with the unit's best int8
    // instruction or f32 fused multiply-add; return how many it really did.
    int64_t (*peak_int8)(int64_t ops);
    int64_t (*peak_f32)(int64_t ops);
    int64_t (*peak_bf16)(int64_t ops);  // null, as to_bf16_planes, where no format is fast
    void (*to_bf16_planes)(const Bf16PlanesArgs&);
    // One token and what is active (active.h); scratch: active_scratch(K, M) bytes.
    int64_t (*list_nonzero)(const int8_t* x, int64_t padded, int32_t* places, int8_t* values);
    int64_t (*linear_open_rows)(const LinearArgs&, const ActiveRows&, int64_t begin, int64_t end);
    void (*linear_columns)(const LinearArgs&, const ActiveColumns&, int64_t begin, int64_t end);

    [[gnu::always_inline]] const AttentionKernels& attention(KvTypes type) const {
        return kv_integers(type.keys) ? integer_attention : float_attention;
    }
};

struct KernelTable : UnitKernels {
    const char* isa;
    const char* extends;  // the unit that replaces null kernels; "": none
    const char* needs;  // comma list of CPU features
    int rank;  // higher is preferred
    // The formats of all families, in the same order in every unit (dispatch.cpp).
    const FormatKernels* formats = nullptr;
    int n_formats = 0;
};
// Bytes for x in whole lines and a list of rows, or for the sums of whole lines of rows.
[[gnu::always_inline]] constexpr int64_t active_scratch(int64_t K, int64_t M) {
    return K + 4 * (M + kActiveLine) + kActiveLine;
}

}  // namespace sterna

// Names of the functions that units are found by: STERNA_JOIN(sterna_kernels, avx2).
#define STERNA_JOIN_(a, b) a##_##b
#define STERNA_JOIN(a, b) STERNA_JOIN_(a, b)
