// A tile of keys and values for a few query rows, as decode has it, without packing them.
//
// Packing pays where many rows use what was packed. Here squares of keys are transposed in registers and used at once, or
// where registers are few by way of the level-1 cache; values are used as they come from memory. Sums run in the same
// order as in matmul.h, and are the same bits.
#pragma once

#include "pack.h"

namespace trunkline {

constexpr int kFewRows = kWidth / 2;               // their sums and a square of keys fill the registers
constexpr int kWideRows = kManyRegisters ? 4 : 2;  // their sums with four vectors of values leave some registers

template <class T>
inline bool takes_few_rows(int rows, int head_dim, int page_size) {
  const int multiple = std::max(2 * kWidth, 16 / static_cast<int>(sizeof(T)));
  return rows <= kFewRows && page_size % kWidth == 0 && head_dim % multiple == 0;
}

// scores [row][kTile] of a tile's keys; queries [rows, words]. What lies behind the last key is hidden later, whatever
// it is. Vectors of keys take turns: a sum waits for the one before it.
template <class Math, class T, int kRows>
inline void few_scores(const TileRows<T>& keys, int64_t slot_stride, const Word* queries, int words, float* scores) {
  constexpr int kGroups = kManyRegisters ? 2 : 4, kCount = kColumns<Math, T>;
  alignas(64) Word columns_of_step[kManyRegisters ? 1 : kMaxHeadDim * kGroups * kWidth];  // [words][keys of a step]
  const int last = keys.valid - 1, steps = last / (kGroups * kWidth) + 1;
  const ptrdiff_t stride = slot_stride * static_cast<ptrdiff_t>(sizeof(T));
  for (int step = 0; step < steps; ++step) {
    const int token = step * kGroups * kWidth;
    const char* quarters[kGroups][kWidth / 4];  // every fourth row: the others are few strides from one of them
    for (int group = 0; group < kGroups; ++group) {
      const int first = std::min(token + group * kWidth, last / kWidth * kWidth);
      for (int i = 0; i < kWidth / 4; ++i)
        quarters[group][i] = reinterpret_cast<const char*>(keys.row(first)) + 4 * i * stride;
    }
    Vec sum[kGroups][kRows] = {};
    const Word* query = queries;
    for (int word = 0; word < words; word += kCount, query += kCount) {
#pragma GCC unroll 4
      for (int group = 0; group < kGroups; ++group) {
        Bits columns[kCount];
        load_columns<Math, T>([&](int i) { return quarters[group][i / 4] + i % 4 * stride; }, columns);
#pragma GCC unroll 4
        for (int i = 0; i < kWidth / 4; ++i) quarters[group][i] += 16;
#pragma GCC unroll 16
        for (int i = 0; i < kCount; ++i) {
          if constexpr (kManyRegisters) {
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r)
              sum[group][r] = Math::accumulate(sum[group][r], query + static_cast<ptrdiff_t>(r) * words + i, columns[i]);
          } else {
            memcpy(columns_of_step + ((word + i) * kGroups + group) * kWidth, &columns[i], sizeof(Bits));
          }
        }
      }
    }
    if constexpr (!kManyRegisters) {
      matmul_strip<Math, kGroups>(queries, words, columns_of_step, kGroups * kWidth, scores + token, kTile, kRows, words);
      continue;
    }
#pragma GCC unroll 2
    for (int group = 0; group < kGroups; ++group)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) store(scores + r * kTile + token + group * kWidth, sum[group][r]);
  }
}

// Two vectors of words of the values in `rows`, from column `col` on. Pairs of bf16 come in the order 0-3, 8-11, 16-19,
// 24-27, then the others: that takes one instruction a vector, and the order is restored when sums are stored. Those made
// of int8 come in order.
template <class Math, class T>
inline void value_pair(const T* const (&rows)[2], int col, Bits (&words)[2]) {
#if defined(__AVX512BF16__)
  if constexpr (Math::kPerWord == 2 && sizeof(T) == sizeof(bf16)) {
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

template <class Math, class T>
inline void store_value_pair(float* out, Vec a, Vec b) {
#if defined(__AVX512BF16__)
  if constexpr (Math::kPerWord == 2 && sizeof(T) == sizeof(bf16)) {
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
inline void few_value_cols(const TileRows<T>& values, int64_t slot_stride, const Word* weights, int keys, int col,
                           float* out, int out_stride) {
  static const T zeros[kMaxHeadDim] = {};
  Vec sum[kRows][kPairs][2] = {};
  const auto add = [&](const T* const(&rows)[2], const Word* weight) {
#pragma GCC unroll 2
    for (int pair = 0; pair < kPairs; ++pair) {
      Bits words[2];
      value_pair<Math>(rows, col + 2 * pair * kWidth, words);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
          sum[r][pair][half] = Math::accumulate(sum[r][pair][half], weight + r * kTile / Math::kPerWord, words[half]);
    }
  };
  int token = 0;
  while (token + kWidth <= values.valid) {
    const T* row = values.row(token);
    for (const int end = token + kWidth; token < end; token += Math::kPerWord, row += Math::kPerWord * slot_stride)
      add({row, row + slot_stride}, weights++);
  }
  for (; token < keys; token += Math::kPerWord) {
    const auto row = [&](int i) { return token + i < values.valid ? values.row(token + i) : zeros; };
    add({row(0), row(1)}, weights++);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int pair = 0; pair < kPairs; ++pair)
      store_value_pair<Math, T>(out + r * out_stride + col + 2 * pair * kWidth, sum[r][pair][0], sum[r][pair][1]);
}

template <class Math, class T, int kRows>
inline void few_values(const TileRows<T>& values, int64_t slot_stride, const Word* weights, int keys, int head_dim,
                       float* out, int out_stride) {
  int col = 0;
  if constexpr (kRows <= kWideRows)
    for (; col + 4 * kWidth <= head_dim; col += 4 * kWidth)
      few_value_cols<Math, T, kRows, 2>(values, slot_stride, weights, keys, col, out, out_stride);
  for (; col < head_dim; col += 2 * kWidth)
    few_value_cols<Math, T, kRows, 1>(values, slot_stride, weights, keys, col, out, out_stride);
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
