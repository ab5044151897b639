// Small matrix products C = A * B, the arithmetic under attention.
//
// Both factors consist of 32-bit words along k: one float, or a pair of bfloat16 (the unit in which the
// bf16 dot-product instructions work). A lies row by row. B lies in a panel of strips, so that the inner
// loop reads it front to back:
//
//     B [words x cols]  =  | strip 0: words x 64 | strip 1: words x 64 | last: words x 16 |
//
// Every element of C is one chain of multiply-adds in ascending k, whatever its row and however many rows
// there are: the number of queries computed together never shows in a result.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "simd.h"

namespace trunkline {

using Word = uint32_t;

constexpr int kStripVecs = kWidth == 16 ? 4 : 2;
constexpr int kStrip = kStripVecs * kWidth;
constexpr int kSums = kWidth == 16 ? 16 : 12;  // vectors of sums at a time: they hide a multiply-add's latency
constexpr int rows_of_block(int vecs) { return vecs < kSums ? kSums / vecs : 1; }
constexpr int kMaxHeadDim = 512;

constexpr int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

struct Panel {
  Word* data;
  int words;  // rows of the panel
  int cols;   // a multiple of kWidth

  int strip_cols(int col) const {
    const int left = cols - col / kStrip * kStrip;
    return left < kStrip ? left : kStrip;
  }
  Word* at(int word, int col) const {
    const int first = col / kStrip * kStrip;
    return data + static_cast<ptrdiff_t>(first) * words + static_cast<ptrdiff_t>(word) * strip_cols(col) + (col - first);
  }
};

// Float words: works for every storage type at every level.
struct FloatMath {
  using Element = float;
  using Sum = Vec;
  static constexpr int kPerWord = 1;
  static constexpr int kWordMultiple = 1;
  static constexpr int kFactors = 1;  // words of A that meet a word of B
  static void begin() {}
  static void end() {}
  static Vec accumulate(Vec sum, const Word* a, Bits b) { return fma(splat(bit_cast<float>(*a)), bit_cast<Vec>(b), sum); }
};

constexpr bool kManyRegisters = kWidth == 16;
constexpr int kSection = kManyRegisters ? 1 : 8;  // words; what is done meanwhile takes registers, too

struct Nothing {
  template <class... Any>
  void operator()(Any...) const {}
};

// `meanwhile` is called for every section of words.
template <class Math, int kRows, int kVecs, class Meanwhile>
inline void matmul_block(const Word* a, int a_stride, const Word* b, int b_stride, float* c, int c_stride, int words,
                         Meanwhile& meanwhile) {
  typename Math::Sum sum[kRows][kVecs] = {};
  for (int begin = 0; begin < words; begin += kSection) {
    meanwhile();
    for (int k = begin; k < std::min(begin + kSection, words); ++k) {
      Bits cols[kVecs];
      const Word* const row = b + static_cast<ptrdiff_t>(k) * b_stride;
      const auto load_col = [&](int v) { memcpy(&cols[v], row + v * kWidth, sizeof(Bits)); };
      const auto add = [&](int r, int v) {
        sum[r][v] = Math::accumulate(sum[r][v], a + static_cast<ptrdiff_t>(r) * a_stride + k * Math::kFactors, cols[v]);
      };
      // Where registers are few, what there is less of, rows or columns, stays in them for all of the others.
      if constexpr (!kManyRegisters && kVecs < kRows) {
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) load_col(v);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < kVecs; ++v) add(r, v);
      } else {
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) {
          load_col(v);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) add(r, v);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v)
      store(c + static_cast<ptrdiff_t>(r) * c_stride + v * kWidth, bit_cast<Vec>(sum[r][v]));
}

// matmul_block for one row, two rows and so on.
template <class Math, int kVecs, class Meanwhile, int... kLess>
constexpr auto matmul_blocks(std::integer_sequence<int, kLess...>) {
  return std::array{&matmul_block<Math, kLess + 1, kVecs, Meanwhile>...};
}

template <class Math, int kVecs, class Meanwhile = Nothing>
inline void matmul_strip(const Word* a, int a_stride, const Word* b, int b_stride, float* c, int c_stride, int rows,
                         int words, Meanwhile&& meanwhile = {}) {
  constexpr int kMost = rows_of_block(kVecs);
  using Called = std::remove_reference_t<Meanwhile>;
  constexpr auto block = matmul_blocks<Math, kVecs, Called>(std::make_integer_sequence<int, kMost>());
  for (int left = (rows + kMost - 1) / kMost; left > 0; --left) {
    const int count = (rows + left - 1) / left;
    block[static_cast<size_t>(count - 1)](a, a_stride, b, b_stride, c, c_stride, words, meanwhile);
    a += static_cast<ptrdiff_t>(count) * a_stride;
    c += static_cast<ptrdiff_t>(count) * c_stride;
    rows -= count;
  }
}

// C [rows x cols] = A [rows x words] * B's first `words` rows and `cols` columns (a multiple of kWidth).
// `meanwhile` is called for every strip.
template <class Math, class Meanwhile>
inline void matmul_by_strips(const Word* a, int a_stride, const Panel& b, float* c, int c_stride, int rows, int cols,
                             int words, Meanwhile& meanwhile) {
  for (int col = 0; col < cols; col += kStrip) {
    meanwhile();
    const int left = cols - col, stride = b.strip_cols(col);
    const Word* strip = b.at(0, col);
    switch (left < kStrip ? left / kWidth : kStripVecs) {
      case 1: matmul_strip<Math, 1>(a, a_stride, strip, stride, c + col, c_stride, rows, words); break;
      case 2: matmul_strip<Math, 2>(a, a_stride, strip, stride, c + col, c_stride, rows, words); break;
#if defined(__AVX512F__)
      case 3: matmul_strip<Math, 3>(a, a_stride, strip, stride, c + col, c_stride, rows, words); break;
      case 4: matmul_strip<Math, 4>(a, a_stride, strip, stride, c + col, c_stride, rows, words); break;
#endif
    }
  }
}

}  // namespace trunkline
