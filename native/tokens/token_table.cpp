#include "tokens/token_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace sterna {

namespace {

constexpr uint8_t kGap = 0xFF;  // no byte of UTF-8

// The two hashes are part of the format of packed tokenizers (packed_tokenizer.py): its version changes with them.
constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;  // 2^64 by the golden ratio, Knuth's multiplier

uint64_t mixed(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * kFactor;
    return hash ^ (hash >> 32);
}

uint64_t hash_of(std::string_view token) {
    uint64_t hash = mixed(0, token.size());
    for (size_t i = 0; i < token.size(); i += 8) {
        uint64_t word = 0;
        std::memcpy(&word, token.data() + i, std::min<size_t>(8, token.size() - i));
        hash = mixed(hash, word);
    }
    return hash;
}

uint64_t hash_of(uint32_t left, uint32_t right) { return mixed(mixed(0, left), right); }

// Slots that a key may have, the first one by its hash.
class Probe {
  public:
    Probe(uint64_t hash, size_t slots)
        : slots_(slots), at_(static_cast<size_t>(((hash & 0xFFFFFFFF) * slots) >> 32)) {}
    size_t operator*() const { return at_; }
    bool more() const { return tried_ < slots_; }  // false in a table without an empty slot
    void next() {
        ++tried_;
        at_ = at_ + 1 == slots_ ? 0 : at_ + 1;
    }

  private:
    size_t slots_, at_, tried_ = 0;
};

// A third is empty, so that most keys lie in their first slots.
size_t slots_for(size_t keys) { return keys + keys / 2 + 1; }

}  // namespace

TokenTable::TokenTable(std::span<const uint32_t> starts, std::span<const uint8_t> text,
                       std::span<const uint32_t> slots)
    : starts_(starts), text_(text), slots_(slots) {
    if (starts.empty() || starts.size() > kNoToken || starts.back() > text.size())
        throw std::invalid_argument("starts: must lie in the text");
    for (size_t i = 1; i < starts.size(); ++i) {
        if (starts[i] < starts[i - 1]) throw std::invalid_argument("starts: must ascend");
        longest_ = std::max(longest_, starts[i] - starts[i - 1]);
    }
}

std::optional<std::string_view> TokenTable::token(uint32_t id) const {
    if (id >= size()) return std::nullopt;
    // Read once: the file may change meanwhile.
    const uint32_t begin = starts_[id], end = starts_[id + 1];
    if (begin > end || end > text_.size()) return std::nullopt;
    if (end - begin == 1 && text_[begin] == kGap) return std::nullopt;
    return std::string_view(reinterpret_cast<const char*>(text_.data()) + begin, end - begin);
}

uint32_t TokenTable::id(std::string_view token) const {
    for (Probe at(hash_of(token), slots_.size()); at.more(); at.next()) {
        const uint32_t found = slots_[*at];
        if (found == kNoToken) return kNoToken;
        if (this->token(found) == token) return found;
    }
    return kNoToken;
}

std::vector<uint32_t> token_slots(std::span<const uint32_t> starts, std::span<const uint8_t> text) {
    const TokenTable table(starts, text, {});
    std::vector<uint32_t> slots(slots_for(table.size()), kNoToken);
    for (uint32_t id = 0; id < table.size(); ++id) {
        const auto token = table.token(id);
        if (!token) continue;
        Probe at(hash_of(*token), slots.size());
        while (slots[*at] != kNoToken) at.next();
        slots[*at] = id;
    }
    return slots;
}

std::vector<Merge> merge_slots(std::span<const Merge> merges) {
    std::vector<Merge> slots(slots_for(merges.size()), Merge{0, 0, 0, kNoToken});
    for (const Merge& merge : merges) {
        Probe at(hash_of(merge.left, merge.right), slots.size());
        while (slots[*at].joined != kNoToken &&
               (slots[*at].left != merge.left || slots[*at].right != merge.right))
            at.next();
        slots[*at] = merge;
    }
    return slots;
}

namespace {

// Bytes of the character that begins here.
uint32_t char_bytes(std::string_view text, size_t at) {
    const auto lead = static_cast<uint8_t>(text[at]);
    const uint32_t bytes = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return static_cast<uint32_t>(std::min<size_t>(bytes, text.size() - at));
}

// The tokens <0x00> to <0xFF>, for what is no token itself.
class ByteTokens {
  public:
    ByteTokens(const TokenTable& table, bool used) {
        ids_.fill(kNoToken);
        constexpr char kDigits[] = "0123456789ABCDEF";
        for (size_t byte = 0; used && byte < ids_.size(); ++byte) {
            const char name[] = {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
            ids_[byte] = table.id({name, sizeof name});
        }
    }
    // Whether all bytes of a text have one.
    bool have(std::string_view text) const {
        return std::ranges::all_of(text, [&](char c) { return (*this)[c] != kNoToken; });
    }
    uint32_t operator[](char c) const { return ids_[static_cast<uint8_t>(c)]; }

  private:
    std::array<uint32_t, 256> ids_;
};

class Bpe : public TokenModel {
  public:
    Bpe(const TokenTable& table, std::span<const Merge> slots, Unknown unknown, bool whole)
        : table_(table),
          slots_(slots),
          unknown_(unknown),
          whole_(whole),
          bytes_(table, unknown.bytes) {}

    std::vector<TextToken> split(std::string_view piece) const override {
        if (whole_ && !piece.empty())
            if (const uint32_t id = table_.id(piece); id != kNoToken)
                return {{id, 0, static_cast<uint32_t>(piece.size())}};
        std::vector<Symbol> symbols = characters(piece);
        merge(symbols);
        std::vector<TextToken> tokens;
        // Characters that are left out take no place: the library's offsets are such.
        uint32_t at = 0;
        for (size_t i = 0; i < symbols.size(); i = symbols[i].after) {
            tokens.push_back({symbols[i].id, at, at + symbols[i].bytes});
            at += symbols[i].bytes;
        }
        return tokens;
    }

  private:
    static constexpr uint32_t kNowhere = 0xFFFFFFFF;

    // A token in a list that merges shorten. bytes: 0 of one that is part of an earlier one now.
    struct Symbol {
        uint32_t id, bytes, before, after;
    };
    // A merge of the symbol at `at` with the one after it, which may have changed since.
    struct Candidate {
        uint32_t rank, at, joined;
        bool operator<(const Candidate& other) const {  // of a heap, whose greatest comes first
            return rank != other.rank ? rank > other.rank : at > other.at;
        }
    };

    // The characters of a piece as tokens. An unknown one waits for its neighbours, even behind bytes that follow it.
    std::vector<Symbol> characters(std::string_view piece) const {
        std::vector<Symbol> symbols;
        symbols.reserve(piece.size());
        const auto add = [&](uint32_t id, uint32_t bytes) {
            const auto i = static_cast<uint32_t>(symbols.size());
            symbols.push_back({id, bytes, i == 0 ? kNowhere : i - 1, i + 1});
        };
        uint32_t waiting = 0;  // bytes
        for (size_t at = 0; at < piece.size();) {
            const uint32_t bytes = char_bytes(piece, at);
            const std::string_view c = piece.substr(at, bytes);
            at += bytes;
            if (const uint32_t id = table_.id(c); id != kNoToken) {
                if (waiting) add(unknown_.id, waiting);
                waiting = 0;
                add(id, bytes);
            } else if (unknown_.bytes && bytes_.have(c)) {
                for (const char byte : c) add(bytes_[byte], 1);
            } else if (unknown_.id != kNoToken) {
                if (waiting && !unknown_.fuse) add(unknown_.id, waiting);
                waiting = bytes + (unknown_.fuse ? waiting : 0);
            }
        }
        if (waiting) add(unknown_.id, waiting);
        return symbols;
    }

    const Merge* merge_of(uint32_t left, uint32_t right) const {
        for (Probe at(hash_of(left, right), slots_.size()); at.more(); at.next()) {
            const Merge& merge = slots_[*at];
            if (merge.joined >= table_.size()) return nullptr;  // an empty slot
            if (merge.left == left && merge.right == right) return &merge;
        }
        return nullptr;
    }

    void merge(std::vector<Symbol>& symbols) const {
        std::vector<Candidate> heap;
        const auto candidate = [&](uint32_t at) -> bool {
            const uint32_t after = symbols[at].after;
            if (after >= symbols.size()) return false;
            const Merge* merge = merge_of(symbols[at].id, symbols[after].id);
            if (merge) heap.push_back({merge->rank, at, merge->joined});
            return merge != nullptr;
        };
        for (uint32_t i = 0; i < symbols.size(); ++i) candidate(i);
        std::make_heap(heap.begin(), heap.end());
        while (!heap.empty()) {
            const Candidate best = heap.front();
            std::pop_heap(heap.begin(), heap.end());
            heap.pop_back();
            Symbol& symbol = symbols[best.at];
            if (symbol.bytes == 0 || symbol.after >= symbols.size()) continue;
            Symbol& right = symbols[symbol.after];
            // A symbol has changed since, unless both still become the same token.
            const Merge* merge = merge_of(symbol.id, right.id);
            if (!merge || merge->joined != best.joined) continue;
            symbol.id = best.joined;
            symbol.bytes += right.bytes;
            symbol.after = right.after;
            right.bytes = 0;
            if (symbol.after < symbols.size()) symbols[symbol.after].before = best.at;
            if (symbol.before != kNowhere && candidate(symbol.before))
                std::push_heap(heap.begin(), heap.end());
            if (candidate(best.at)) std::push_heap(heap.begin(), heap.end());
        }
    }

    const TokenTable& table_;
    std::span<const Merge> slots_;
    Unknown unknown_;
    bool whole_;
    ByteTokens bytes_;
};

class Unigram : public TokenModel {
  public:
    Unigram(const TokenTable& table, std::span<const double> scores, Unknown unknown)
        : table_(table), scores_(scores), unknown_(unknown), bytes_(table, unknown.bytes) {
        constexpr double kPenalty = 10;  // SentencePiece's kUnkPenalty
        const auto least = std::ranges::min_element(scores);
        unknown_score_ = (least == scores.end() ? 0 : *least) - kPenalty;
    }

    std::vector<TextToken> split(std::string_view piece) const override {
        std::vector<TextToken> tokens;
        for (const auto& [begin, end] : parts(piece, best_paths(piece))) {
            const std::string_view part = piece.substr(begin, end - begin);
            const uint32_t id = table_.id(part);
            if (id == kNoToken && unknown_.bytes && bytes_.have(part))
                for (const char byte : part) tokens.push_back({bytes_[byte], begin, end});
            else
                tokens.push_back({id == kNoToken ? unknown_.id : id, begin, end});
        }
        return tokens;
    }

  private:
    // The best split up to a place: its sum of scores, and its last token.
    struct Path {
        double score = 0;
        uint32_t id = kNoToken, begin = 0;
    };

    std::vector<Path> best_paths(std::string_view piece) const {
        std::vector<Path> best(piece.size() + 1);
        const auto offer = [&](uint32_t begin, size_t end, uint32_t id, double score) {
            const double sum = best[begin].score + score;
            if (best[end].id == kNoToken || sum > best[end].score) best[end] = {sum, id, begin};
        };
        for (uint32_t begin = 0; begin < piece.size(); begin += char_bytes(piece, begin)) {
            const uint32_t first = char_bytes(piece, begin);
            const size_t most = std::min<size_t>(piece.size(), begin + size_t{table_.longest()});
            bool alone = false;  // whether the first character is a token
            for (size_t end = begin + first; end <= most;) {
                const uint32_t id = table_.id(piece.substr(begin, end - begin));
                if (id < scores_.size()) {
                    offer(begin, end, id, scores_[id]);
                    alone |= end == begin + first;
                }
                if (end == piece.size()) break;
                end += char_bytes(piece, end);
            }
            if (!alone) offer(begin, begin + first, unknown_.id, unknown_score_);
        }
        return best;
    }

    // The places of a split's tokens; unknown neighbours are one if they fuse.
    std::vector<std::pair<uint32_t, uint32_t>> parts(std::string_view piece,
                                                     const std::vector<Path>& best) const {
        std::vector<std::pair<uint32_t, uint32_t>> parts;
        bool fuses = false;  // with the part that follows
        for (auto end = static_cast<uint32_t>(piece.size()); end > 0; end = best[end].begin) {
            const bool unknown = unknown_.fuse && best[end].id == unknown_.id;
            if (unknown && fuses)
                parts.back().first = best[end].begin;
            else
                parts.emplace_back(best[end].begin, end);
            fuses = unknown;
        }
        std::ranges::reverse(parts);
        return parts;
    }

    const TokenTable& table_;
    std::span<const double> scores_;
    Unknown unknown_;
    ByteTokens bytes_;
    double unknown_score_;
};

class WordPieces : public TokenModel {
  public:
    WordPieces(const TokenTable& table, std::string prefix, uint32_t unknown, uint32_t max_chars)
        : table_(table), prefix_(std::move(prefix)), unknown_(unknown), max_chars_(max_chars) {}

    std::vector<TextToken> split(std::string_view piece) const override {
        const auto size = static_cast<uint32_t>(piece.size());
        std::vector<uint32_t> bounds{0};  // of characters
        while (bounds.back() < size)
            bounds.push_back(bounds.back() + char_bytes(piece, bounds.back()));
        const std::vector<TextToken> none{{unknown_, 0, size}};
        if (bounds.size() - 1 > max_chars_) return none;
        std::vector<TextToken> tokens;
        std::string word;
        for (size_t first = 0; first + 1 < bounds.size();) {
            const uint32_t begin = bounds[first];
            word.assign(begin == 0 ? "" : prefix_).append(piece.substr(begin));
            const size_t before = word.size() - (size - begin);
            size_t last = bounds.size() - 1;
            uint32_t id = kNoToken;
            for (; last > first; --last) {
                const size_t bytes = before + bounds[last] - begin;
                if (bytes <= table_.longest())
                    id = table_.id(std::string_view(word).substr(0, bytes));
                if (id != kNoToken) break;
            }
            if (id == kNoToken) return none;
            tokens.push_back({id, begin, bounds[last]});
            first = last;
        }
        return tokens;
    }

  private:
    const TokenTable& table_;
    const std::string prefix_;
    const uint32_t unknown_, max_chars_;
};

}  // namespace

std::vector<std::array<uint32_t, 2>> scored_merges(const TokenTable& table,
                                                   std::span<const double> scores,
                                                   uint32_t max_chars) {
    struct Cut {
        double score;
        std::array<uint32_t, 2> pair;
    };
    std::vector<Cut> cuts;
    std::vector<size_t> places;  // where a character ends, in a token
    for (uint32_t id = 0; id < table.size(); ++id) {
        const auto token = table.token(id);
        if (!token || std::isnan(scores[id])) continue;
        places.clear();
        for (size_t at = 0; at < token->size() && places.size() <= max_chars;)
            places.push_back(at += char_bytes(*token, at));
        if (places.empty() || places.size() > max_chars) continue;
        places.pop_back();
        for (const size_t at : places) {
            const uint32_t left = table.id(token->substr(0, at));
            if (left == kNoToken) continue;
            const uint32_t right = table.id(token->substr(at));
            if (right != kNoToken) cuts.push_back({scores[id], {left, right}});
        }
    }
    std::ranges::sort(cuts, [](const Cut& a, const Cut& b) {
        return a.score != b.score ? a.score > b.score : a.pair < b.pair;
    });
    std::vector<std::array<uint32_t, 2>> merges(cuts.size());
    std::ranges::transform(cuts, merges.begin(), &Cut::pair);
    return merges;
}

std::unique_ptr<TokenModel> make_bpe(const TokenTable& table, std::span<const Merge> slots,
                                     Unknown unknown, bool whole) {
    return std::make_unique<Bpe>(table, slots, unknown, whole);
}

std::unique_ptr<TokenModel> make_unigram(const TokenTable& table, std::span<const double> scores,
                                         Unknown unknown) {
    return std::make_unique<Unigram>(table, scores, unknown);
}

std::unique_ptr<TokenModel> make_word_pieces(const TokenTable& table, std::string prefix,
                                             uint32_t unknown, uint32_t max_chars) {
    return std::make_unique<WordPieces>(table, std::move(prefix), unknown, max_chars);
}

}  // namespace sterna
