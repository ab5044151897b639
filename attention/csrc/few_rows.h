// A tile of keys and values for a few query rows, as decode has it, without packing them.
//
// Packing pays where many rows use what was packed. Here squares of keys are transposed in registers and used at once,
// and values are used as they come from memory. Sums run in the same order as in matmul.h, and are the same bits.
#pragma once

#include "pack.h"

namespace trunkline {

constexpr int kFewRows = kWidth / 2;  // their sums and a square of keys fill the registers

inline bool takes_few_rows(int rows, int head_dim, int page_size) {
  return rows <= kFewRows && page_size % kWidth == 0 && head_dim % (2 * kWidth) == 0;
}

// scores [row][kTile] of a tile's keys; queries [rows, words]. What lies behind the last key is hidden later, whatever
// it is. Two vectors of keys take turns: a sum waits for the one before it.
template <class Math, class T, int kRows>
inline void few_scores(const TileRows<T>& keys, int64_t slot_stride, const Word* queries, int words, float* scores) {
  constexpr int kGroups = 2, kCount = kColumns<Math, T>;
  const int last = keys.valid - 1, steps = last / (kGroups * kWidth) + 1;
  Ahead<T> ahead = keys.ahead;
  const int lines_ahead = ahead.per_step(steps * words / kCount);
  for (int step = 0; step < steps; ++step) {
    const int token = step * kGroups * kWidth;
    const T* const first[] = {keys.row(token), keys.row(std::min(token + kWidth, last / kWidth * kWidth))};
    Vec sum[kGroups][kRows] = {};
    for (int word = 0; word < words; word += kCount) {
      ahead.fetch(lines_ahead);
#pragma GCC unroll 2
      for (int group = 0; group < kGroups; ++group) {
        Bits columns[kCount];
        load_columns<Math, T>([&](int i) { return first[group] + i * slot_stride + word * Math::kPerWord; }, columns);
#pragma GCC unroll 8
        for (int i = 0; i < kCount; ++i)
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r)
            sum[group][r] = Math::accumulate(sum[group][r], queries[static_cast<ptrdiff_t>(r) * words + word + i], columns[i]);
      }
    }
#pragma GCC unroll 2
    for (int group = 0; group < kGroups; ++group)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) store(scores + r * kTile + token + group * kWidth, sum[group][r]);
  }
}

// Two vectors of words of the values in `rows`, from column `col` on. Pairs of bf16 come in the order 0-3, 8-11, 16-19,
// 24-27, then the others: that takes one instruction a vector, and the order is restored when sums are stored.
template <class Math, class T>
inline void value_pair(const T* const (&rows)[2], int col, Bits (&words)[2]) {
#if defined(__AVX512BF16__)
  if constexpr (Math::kPerWord == 2) {
    __m512i low, high;
    memcpy(&low, rows[0] + col, sizeof(low));
    memcpy(&high, rows[1] + col, sizeof(high));
    words[0] = Bits(_mm512_unpacklo_epi16(low, high));
    words[1] = Bits(_mm512_unpackhi_epi16(low, high));
    return;
  }
#endif
  words[0] = value_words<Math>(rows, col);
  words[1] = value_words<Math>(rows, col + kWidth);
}

template <class Math>
inline void store_value_pair(float* out, Vec a, Vec b) {
#if defined(__AVX512BF16__)
  if constexpr (Math::kPerWord == 2) {
    const Vec first = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    b = __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    a = first;
  }
#endif
  store(out, a);
  store(out + kWidth, b);
}

// out [rows, out_stride], columns [col, col + 2 * kPairs * kWidth) = weights [row][kTile] * values of the first `keys`
// keys, a multiple of kWidth.
template <class Math, class T, int kRows, int kPairs>
inline void few_value_cols(const TileRows<T>& values, Ahead<T>& ahead, const Word* weights, int keys, int col, float* out,
                           int out_stride) {
  static const T zeros[kMaxHeadDim] = {};
  const int lines_ahead = ahead.per_step(keys / Math::kPerWord);
  Vec sum[kRows][kPairs][2] = {};
  for (int token = 0; token < keys; token += Math::kPerWord) {
    ahead.fetch(lines_ahead);
    const T* rows[2];
    for (int i = 0; i < Math::kPerWord; ++i) rows[i] = token + i < values.valid ? values.row(token + i) : zeros;
#pragma GCC unroll 2
    for (int pair = 0; pair < kPairs; ++pair) {
      Bits words[2];
      value_pair<Math>(rows, col + 2 * pair * kWidth, words);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Word weight = weights[(r * kTile + token) / Math::kPerWord];
        sum[r][pair][0] = Math::accumulate(sum[r][pair][0], weight, words[0]);
        sum[r][pair][1] = Math::accumulate(sum[r][pair][1], weight, words[1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int pair = 0; pair < kPairs; ++pair)
      store_value_pair<Math>(out + r * out_stride + col + 2 * pair * kWidth, sum[r][pair][0], sum[r][pair][1]);
}

template <class Math, class T, int kRows>
inline void few_values(const TileRows<T>& values, const Word* weights, int keys, int head_dim, float* out, int out_stride) {
  Ahead<T> ahead = values.ahead;
  int col = 0;
  if constexpr (4 * kRows <= kSums)
    for (; col + 4 * kWidth <= head_dim; col += 4 * kWidth)
      few_value_cols<Math, T, kRows, 2>(values, ahead, weights, keys, col, out, out_stride);
  for (; col < head_dim; col += 2 * kWidth)
    few_value_cols<Math, T, kRows, 1>(values, ahead, weights, keys, col, out, out_stride);
}

// Both for one row, two rows and so on.
template <class Math, class T, int... kLess>
constexpr auto all_few_scores(std::integer_sequence<int, kLess...>) {
  return std::array{&few_scores<Math, T, kLess + 1>...};
}
template <class Math, class T, int... kLess>
constexpr auto all_few_values(std::integer_sequence<int, kLess...>) {
  return std::array{&few_values<Math, T, kLess + 1>...};
}

}  // namespace trunkline
