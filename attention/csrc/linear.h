// Products of activations with packed weights: out = x * weight^T.
//
// Weights lie in strips of 32 outputs, each front to back in the order in which it is read:
//
//     [out / 32 strips][words along in_features][32 outputs]      a word: one float, two bf16 or four int8
//
// or as blocks.h says. A strip times a block of 32 rows is the unit of arithmetic. Few rows are bound by the memory that
// the strips are read from, many by the products. Every result is one chain of multiply-adds in ascending order of
// in_features: it has the same bits whatever the other rows are and however many threads there are.
#pragma once

#include <algorithm>

#include "blocks.h"
#include "matmul_int8.h"
#include "quantize.h"
#include "team.h"

namespace trunkline {

constexpr int kOutputs = 32;    // of a strip
constexpr int kBlockRows = 32;  // rows that are multiplied together
constexpr int kCachedRows = 512 / PairMath::kFactors;  // rows that stay in the level-2 cache while all strips pass by
constexpr int kMemoryBoundRows = 64;

enum class Weights : int32_t { kDense = 0, kInt8 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 4 };

struct Linear {
  const void* weight;
  const float* scale;   // of each output; int8 only
  const int32_t* sum;   // 128 * sum of each output's weights; int8 only
  const float* bias;    // of each output, or null
  int32_t in_features, out_features;
  int32_t words;        // along in_features, padded; of a strip where it is in blocks
  Weights kind;
  int32_t gated;        // outputs are sixteens of gate and of up by turns; what is stored is silu(gate) * up

  int stored() const { return gated ? out_features / 2 : out_features; }
  bool in_blocks() const { return kind >= Weights::kQ4_0; }
  int strips() const { return (out_features + kOutputs - 1) / kOutputs; }
  int strip_words() const { return in_blocks() ? words : words * kOutputs; }
  // Null behind the last one.
  const Word* strip(int index) const {
    return index < strips() ? static_cast<const Word*>(weight) + static_cast<ptrdiff_t>(index) * strip_words() : nullptr;
  }
  const Word* group(int of_strip, int index) const { return strip(of_strip) + index * (words * kWidth / kOutputs); }
};

// Activations. Memory behind them must be readable up to a multiple of 16 rows.
struct Rows {
  const void* data;  // [count, stride] of the storage's type, or four bytes a word
  const float* scale;  // of each row, where they are bytes; two for each of its blocks, where it is in blocks
  ptrdiff_t stride;  // in words
  int count;
};

// Whether so many rows times weights in blocks are computed in whole numbers; more are in tiles of bf16.
constexpr bool few_block_rows([[maybe_unused]] int rows) {
#if defined(__AMX_BF16__)
  return rows <= 6;
#else
  return true;
#endif
}

// Elements as the products of matmul.h want them, where they don't take what memory has.
template <class T>
constexpr bool kWidened = sizeof(T) == sizeof(bf16) && PairMath::kFactors == 2;

// Room for activations that change their form on their way into a product: they are rounded, or become floats.
class TakenRows {
 public:
  void reserve(int rows, int in_features) {
    const auto whole = static_cast<size_t>(round_up(rows, kBlockRows));
    const auto cols = static_cast<size_t>(round_up(in_features, 64));
    taken_.reserve(whole * cols * 2 * PairMath::kFactors);
    scales_.reserve(whole * sizeof(float) * 2 * cols / kBlock);
  }
  // Whether the linear layer takes x in another form than it comes.
  template <class T>
  bool takes(const Linear& linear, int rows) const {
    if (linear.in_blocks()) return few_block_rows(rows) || sizeof(T) == sizeof(float);
    return linear.kind == Weights::kInt8 || kWidened<T>;
  }
  // Brings row `row` of `rows` of x into that form.
  template <class T>
  void take(const Linear& linear, const T* x, int row, int rows) const {
    if (!takes<T>(linear, rows)) return;
    const int cols = linear.in_features, num_blocks = cols / kBlock;
    x += static_cast<ptrdiff_t>(row) * cols;
    Word* const to = taken_.data<Word>() + row * stride<T>(linear, rows);
    if (linear.kind == Weights::kInt8)
      return quantize_row(x, cols, linear.words, reinterpret_cast<ByteMath::Element*>(to), scales_.data<float>() + row);
    if (linear.in_blocks() && few_block_rows(rows))
      return quantize_blocks(x, num_blocks, reinterpret_cast<uint8_t*>(to),
                             scales_.data<float>() + static_cast<ptrdiff_t>(row) * 2 * num_blocks);
    using Other = std::conditional_t<kWidened<T>, float, bf16>;
    for_each_vec(cols, [&](int i, auto part) { part.store(reinterpret_cast<Other*>(to) + i, part.load(x + i)); });
  }
  // x as the linear layer wants it; all rows were taken before.
  template <class T>
  Rows input(const Linear& linear, const T* x, int rows) const {
    if (!takes<T>(linear, rows)) return {x, nullptr, linear.in_features * static_cast<ptrdiff_t>(sizeof(T)) / 4, rows};
    return {taken_.data(), scales_.data<float>(), stride<T>(linear, rows), rows};
  }

 private:
  // Of a row that was taken, in words.
  template <class T>
  ptrdiff_t stride(const Linear& linear, int rows) const {
    if (linear.kind == Weights::kInt8) return linear.words * ByteMath::kFactors;
    if (!linear.in_blocks()) return linear.in_features;
    return linear.in_features / (few_block_rows(rows) ? 4 / kPlanes<T> : 2);
  }

  Buffer taken_, scales_;
};

// A strip that will be wanted next, fetched while another one is multiplied: memory would rest while rows that are not
// the first pass by weights that are in the cache.
struct NextStrip {
  const char* at;
  const char* end;
  int step;

  // `calls`: how often there will be time for a part of it.
  static NextStrip of(const Word* data, int bytes, int calls) {
    const char* const begin = reinterpret_cast<const char*>(data);
    return {begin, data == nullptr ? begin : begin + bytes, round_up((bytes + calls - 1) / calls, 64)};
  }
  void operator()() {
    for (const char* const until = std::min(at + step, end); at < until; at += 64) __builtin_prefetch(at, 0, 2);
  }
};

// Where registers are few and words have two parts each, many rows take a strip whose words were taken apart once for all
// of them, in passes of kPassVecs vectors: that leaves registers for twice as many rows at a time.
constexpr int kPassVecs = 2;
template <class Math>
constexpr bool kTakesApart = !kManyRegisters && Math::kFactors == 2;

// [passes][words][parts][kPassVecs * kWidth outputs]
template <class Math>
inline const Word* take_apart(const Word* strip, int words) {
  static thread_local Buffer room;
  constexpr int kCols = kPassVecs * kWidth;
  room.reserve(sizeof(Word) * static_cast<size_t>(words) * Math::kFactors * kOutputs);
  Word* to = room.data<Word>();
  for (int col = 0; col < kOutputs; col += kCols)
    for (int k = 0; k < words; ++k)
      for (int part = 0; part < Math::kFactors; ++part)
        for (int v = 0; v < kCols; v += kWidth, to += kWidth) {
          Bits b;
          memcpy(&b, strip + static_cast<ptrdiff_t>(k) * kOutputs + col + v, sizeof(b));
          b = Math::part(b, part);
          memcpy(to, &b, sizeof(b));
        }
  return room.data<Word>();
}

// sums [rows x 32] = a block of at most 32 rows, from row `begin` on, times a strip.
template <class Math, class Meanwhile>
inline void strip_product(const Rows& x, int begin, const Word* strip, int rows, int words, float* sums,
                          [[maybe_unused]] bool apart, [[maybe_unused]] NextStrip& next,
                          [[maybe_unused]] const Meanwhile& meanwhile) {
  const Word* const a = static_cast<const Word*>(x.data) + begin * x.stride;
  const int a_stride = static_cast<int>(x.stride);
#if defined(__AMX_BF16__)
  if constexpr (kHasTiles<Math>) {
    const auto product =
        rows > 16 ? matmul_tiles<Math, true, true, true, Meanwhile> : matmul_tiles<Math, false, true, false, Meanwhile>;
    return product(a, a_stride, strip, kOutputs, sums, kOutputs, words, meanwhile);
  }
#endif
  if constexpr (kTakesApart<Math>) {
    constexpr int kCols = kPassVecs * kWidth;
    if (apart) {
      for (int col = 0; col < kOutputs; col += kCols, strip += 2 * words * kCols)
        matmul_strip<typename Math::PartMath, kPassVecs>(a, a_stride, strip, kCols, sums + col, kOutputs, rows, 2 * words,
                                                         next);
      return;
    }
  }
  matmul_strip<Math, kOutputs / kWidth>(a, a_stride, strip, kOutputs, sums, kOutputs, rows, words, next);
}

// The sums of some rows with a strip; their scales, bias and gate are still to come.
struct Sums {
  const float* data;
  int row, rows;
};

// Rows [begin, end) of the sums with the strip of output `first`. What the rows share stays in registers.
template <bool kBytes, bool kGated, class Out>
inline void finish_rows(const Linear& linear, const float* row_scale, int first, const Sums& sums, int begin, int end,
                        Out* out) {
  constexpr int kVecs = kOutputs / kWidth;
  const int count = linear.out_features - first;
  const ptrdiff_t stride = linear.stored();
  const float* from = sums.data;
  out += (sums.row + begin) * stride + (kGated ? first / 2 : first);
  Vec scale[kVecs], bias[kVecs];
  Ints offset[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    const int at = first + v * kWidth, left = count - v * kWidth;
    if (kBytes) scale[v] = load_up_to(linear.scale + at, left);
    if (kBytes) offset[v] = bit_cast<Ints>(load_up_to(reinterpret_cast<const float*>(linear.sum) + at, left));
    bias[v] = linear.bias == nullptr ? Vec{} : load_up_to(linear.bias + at, left);
  }
  for (int row = begin; row < end; ++row, out += stride) {
    const Vec this_scale = kBytes ? splat(row_scale[sums.row + row]) : Vec{};
    const auto output = [&](int v) {
      const Vec sum = load(from + row * kOutputs + v * kWidth);
      if constexpr (kBytes)
        return __builtin_convertvector(bit_cast<Ints>(sum) - offset[v], Vec) * (this_scale * scale[v]) + bias[v];
      else
        return sum + bias[v];
    };
    if constexpr (kGated) {
      for (int v = 0; v < kVecs / 2; ++v) store(out + v * kWidth, silu(output(v)) * output(v + kVecs / 2));
    } else {
      for (int v = 0; v < kVecs; ++v) store_up_to(out + v * kWidth, output(v), count - v * kWidth);
    }
  }
}

// Rows [begin, end) times a strip. While the tiles of a block are multiplied, the vector units finish the block before
// it, but for the first step: until then its sums are on their way to memory.
template <class Math, bool kGated, class Out>
inline void multiply_strip(const Linear& linear, const Word* weight, const Word* next_weight, const Rows& x, int strip,
                           int begin, int end, Out* out) {
  constexpr int kApart = 144;  // two blocks that lie a multiple of 4,096 bytes apart wait for each other
  alignas(64) float sums[2][kBlockRows * kOutputs + kApart];
  const int words = linear.words, per_step = words > 16 ? (kBlockRows + words / 16 - 2) / (words / 16 - 1) : kBlockRows;
  const int sections = (words + kSection - 1) / kSection, turns = end - begin > rows_of_block(kOutputs / kWidth) ? 2 : 1;
  NextStrip next = NextStrip::of(next_weight, 4 * words * kOutputs, turns * sections);
  const bool apart = kTakesApart<Math> && end - begin > kBlockRows;
  if constexpr (kTakesApart<Math>)
    if (apart) weight = take_apart<Math>(weight, words);
  Sums before{};
  int done = 0;
  const auto finish_until = [&](int row) {
    finish_rows<Math::kPerWord == 4, kGated>(linear, x.scale, strip * kOutputs, before, done, row, out);
    done = row;
  };
  for (int row = begin; row < end; row += kBlockRows) {
    const int count = std::min(kBlockRows, end - row);
    float* const to = sums[row / kBlockRows % 2];
    strip_product<Math>(x, row, weight, count, words, to, apart, next, [&](int word) {
      if (word > 0) finish_until(std::min(before.rows, done + per_step));
    });
    finish_until(before.rows);
    before = {to, row, count};
    done = 0;
  }
  finish_until(before.rows);
}

// The strip that the same thread will take next, where `threads` share strips in runs of neighbours.
inline int strip_behind(int strip, int run, int threads) {
  return strip + 1 + ((strip + 1) % run == 0 ? (threads - 1) * run : 0);
}

template <class Math, class Out>
inline void multiply(Team::Member& team, const Linear& linear, const Rows& x, Out* out) {
  const int strips = linear.strips(), passes = (x.count + kCachedRows - 1) / kCachedRows;
  const auto block = linear.gated ? multiply_strip<Math, true, Out> : multiply_strip<Math, false, Out>;
  // Where memory sets the pace a thread takes neighbours, which are read ahead; few, so that none waits long for another.
  const int run = x.count > kMemoryBoundRows ? 1 : (strips + 4 * team.size - 1) / (4 * team.size);
  team.share(strips * passes, run, [&](int item) {
    const int strip = item % strips, begin = item / strips * kCachedRows;
    block(linear, linear.strip(strip), linear.strip(strip_behind(strip, run, team.size)), x, strip, begin,
          std::min(begin + kCachedRows, x.count), out);
  });
}

template <class T>
struct DenseMath {
  using Type = BestPairMath;
};
template <>
struct DenseMath<float> {
  using Type = FloatMath;
};

}  // namespace trunkline
