// Brings a tile of paged keys or values into the panels of matmul.h.
//
//     keys     [tokens x head_dim]  ->  panel [head_dim words x tokens]: squares of kWidth x kWidth words are
//                                       transposed in registers
//     values   [tokens x head_dim]  ->  panel [token words x head_dim]: as they are, or for bf16 two tokens
//                                       interleaved to a row of words
//
// Tokens from `valid` on are zero, whatever the pages hold there: zero weight times NaN would be NaN.
// While one tile is packed, the rows of the next one are fetched.
#pragma once

#include "matmul_bf16.h"

namespace trunkline {

// Where the rows of a tile of keys or values lie. The offsets serve the keys and the values.
template <class T>
struct TileRows {
  const T* base;
  const int64_t* offsets;
  int valid;
  const T* next_base;
  const int64_t* next_offsets;
  int next_valid;

  const T* row(int token) const { return base + offsets[token]; }
  void prefetch_next(int token, int head_dim) const {
    if (token < next_valid) prefetch(next_base + next_offsets[token], head_dim);
  }
};

// kWidth words of a row from word `first`; what lies behind head_dim is zero.
template <class Math, class T>
inline Bits load_words(const T* row, int first, int head_dim) {
  const int left = head_dim - first * Math::kPerWord;
  if constexpr (Math::kPerWord == 1) {
    return bit_cast<Bits>(left >= kWidth ? load(row + first) : left > 0 ? load_first(row + first, left) : Vec{});
  } else {
    Bits words = {};
    const int count = left < 2 * kWidth ? left : 2 * kWidth;
    if (count == 2 * kWidth)
      memcpy(&words, row + 2 * first, sizeof(words));
    else if (count > 0)
      memcpy(&words, row + 2 * first, sizeof(T) * static_cast<size_t>(count));
    return words;
  }
}

template <class Math, class T>
inline void pack_keys(const TileRows<T>& keys, int head_dim, int tokens, const Panel& panel) {
  for (int token = 0; token < tokens; token += kWidth) {
    for (int i = 0; i < kWidth; ++i) keys.prefetch_next(token + i, head_dim);
    for (int word = 0; word < panel.words; word += kWidth) {
      Bits square[kWidth];
      for (int i = 0; i < kWidth; ++i)
        square[i] = token + i < keys.valid ? load_words<Math>(keys.row(token + i), word, head_dim) : Bits{};
      transpose(square);
      const int rows = panel.words - word < kWidth ? panel.words - word : kWidth;
      for (int i = 0; i < rows; ++i) memcpy(panel.at(word + i, token), &square[i], sizeof(Bits));
    }
  }
}

template <class T>
inline Vec load_value(const TileRows<T>& values, int token, int col, int head_dim) {
  if (token >= values.valid) return Vec{};
  const T* p = values.row(token) + col;
  return col + kWidth <= head_dim ? load(p) : load_first(p, head_dim - col);
}

template <class Math, class T>
inline void pack_values(const TileRows<T>& values, int head_dim, int tokens, const Panel& panel) {
  for (int token = 0; token < tokens; token += Math::kPerWord) {
    for (int i = 0; i < Math::kPerWord; ++i) values.prefetch_next(token + i, head_dim);
    for (int col = 0; col < panel.cols; col += kWidth) {
      Bits row = bit_cast<Bits>(load_value(values, token, col, head_dim));
      // A bfloat16 that was widened to a float has its bits in the upper half.
      if constexpr (Math::kPerWord == 2)
        row = (row >> 16) | bit_cast<Bits>(load_value(values, token + 1, col, head_dim));
      memcpy(panel.at(token / Math::kPerWord, col), &row, sizeof(Bits));
    }
  }
}

}  // namespace trunkline
