// The vocabulary of a tokenizer in a form that is looked up where it lies, and the splits of a text into its tokens.
//
// A table costs nothing to open, whatever its size: its arrays lie in a mapped file. They are checked as they are read, so
// that a damaged file gives wrong tokens, and nothing worse. Splits are those of Hugging Face's tokenizers library, of the
// piece of text that its normalisation and pre-tokenisation leave; it finds added tokens, too.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sterna {

// A token of a text, which stands for its bytes [begin, end).
struct TextToken {
    uint32_t id, begin, end;
};

// Two neighbours, and the token that they become. The lowest rank merges first.
struct Merge {
    uint32_t left, right, rank, joined;
};

constexpr uint32_t kNoToken = 0xFFFFFFFF;

// Tokens by their ids, and ids by their tokens. Token i is text[starts[i], starts[i + 1]), in UTF-8; the byte FF is none,
// where ids have a gap. slots: a hash table with linear probing of ids, kNoToken where it is empty.
class TokenTable {
  public:
    // Throws std::invalid_argument if starts do not ascend within text.
    TokenTable(std::span<const uint32_t> starts, std::span<const uint8_t> text,
               std::span<const uint32_t> slots);

    uint32_t size() const { return static_cast<uint32_t>(starts_.size() - 1); }
    uint32_t longest() const { return longest_; }  // bytes
    std::optional<std::string_view> token(uint32_t id) const;
    uint32_t id(std::string_view token) const;  // kNoToken if there is none

  private:
    std::span<const uint32_t> starts_;
    std::span<const uint8_t> text_;
    std::span<const uint32_t> slots_;
    uint32_t longest_ = 0;
};

// The slots of a TokenTable, and those of merges: of a pair that is there twice, the last one counts.
std::vector<uint32_t> token_slots(std::span<const uint32_t> starts, std::span<const uint8_t> text);
std::vector<Merge> merge_slots(std::span<const Merge> merges);

// The merges of a vocabulary whose tokens have scores, in their order: two tokens whose joined text is a token may merge,
// the highest score of the joined token first, then the lowest ids. scores: one for each token, by id; one of NaN, or of
// more than `max_chars`, comes of no merge.
std::vector<std::array<uint32_t, 2>> scored_merges(const TokenTable& table,
                                                   std::span<const double> scores,
                                                   uint32_t max_chars);

// A way to split a piece of text. Any number of threads may share it.
class TokenModel {
  public:
    virtual ~TokenModel() = default;
    // piece: UTF-8 of less than 2^31 bytes.
    virtual std::vector<TextToken> split(std::string_view piece) const = 0;
};

// What models do with characters that are no tokens.
struct Unknown {
    uint32_t id;  // kNoToken: they are left out
    bool fuse;  // neighbours become one token
    bool bytes;  // tokens <0x00> to <0xFF> come first
};

// Byte-pair encoding: characters, of which the pair of the lowest rank merges until none is left. slots: of `merge_slots`.
// whole: a piece that is a token is not split.
std::unique_ptr<TokenModel> make_bpe(const TokenTable& table, std::span<const Merge> slots,
                                     Unknown unknown, bool whole);
// The split whose tokens have the greatest sum of scores, one for each token. unknown.id is a token.
std::unique_ptr<TokenModel> make_unigram(const TokenTable& table, std::span<const double> scores,
                                         Unknown unknown);
// The longest token from the left, again and again; those within a word begin with `prefix`. A word that has another
// character, or more than `max_chars`, is `unknown`, a token.
std::unique_ptr<TokenModel> make_word_pieces(const TokenTable& table, std::string prefix,
                                             uint32_t unknown, uint32_t max_chars);

}  // namespace sterna
