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

// What will be read next: rows [first, last) of a tile, fetched in ascending order, as memory likes it. Where several
// heads are worked on in turn, each fetches its share of whole rows, with the keys or values of all heads.
template <class T>
struct Ahead {
  const T* base;
  const int64_t* offsets;
  int row_size;
  int first, last;

  static Ahead share(const T* base, const int64_t* offsets, int valid, int row_size, int share, int num_shares) {
    return {base, offsets, row_size, valid * share / num_shares, valid * (share + 1) / num_shares};
  }

  // Step `step` of `steps`: between two steps there is work, so that memory is never asked for all at once.
  void fetch(int step, int steps) const {
    const int count = last - first, end = first + count * (step + 1) / steps;
    for (int i = first + count * step / steps; i < end; ++i) prefetch(base + offsets[i], row_size);
  }
};

// Where the rows of a tile of keys or values lie. The offsets serve the keys and the values.
template <class T>
struct TileRows {
  const T* base;
  const int64_t* offsets;
  int valid;
  Ahead<T> ahead;

  const T* row(int token) const { return base + offsets[token]; }
};

template <class Math, class T>
inline Bits load_all_words(const T* p) {
  if constexpr (Math::kPerWord == 1) return bit_cast<Bits>(load(p));
  Bits words;
  memcpy(&words, p, sizeof(words));
  return words;
}

// kWidth words of a row from word `first`; what lies behind head_dim is zero.
template <class Math, class T>
inline Bits load_words(const T* row, int first, int head_dim) {
  const int left = head_dim - first * Math::kPerWord;
  if (left >= kWidth * Math::kPerWord) return load_all_words<Math>(row + first * Math::kPerWord);
  T part[kWidth * Math::kPerWord] = {};
  if (left > 0) memcpy(part, row + first * Math::kPerWord, sizeof(T) * static_cast<size_t>(left));
  return load_all_words<Math>(part);
}

template <class Math, class T>
inline void pack_keys(const TileRows<T>& keys, int head_dim, int tokens, const Panel& panel) {
  const int words = panel.words, whole_words = head_dim / Math::kPerWord;
  for (int token = 0; token < tokens; token += kWidth) {
    Word* const column = panel.at(0, token);
    const int stride = panel.strip_cols(token);
    keys.ahead.fetch(token / kWidth, tokens / kWidth);
    for (int word = 0; word < words; word += kWidth) {
      Bits square[kWidth];
      if (token + kWidth <= keys.valid && word + kWidth <= whole_words) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i)
          square[i] = load_all_words<Math>(keys.row(token + i) + word * Math::kPerWord);
      } else {
        for (int i = 0; i < kWidth; ++i)
          square[i] = token + i < keys.valid ? load_words<Math>(keys.row(token + i), word, head_dim) : Bits{};
      }
      transpose(square);
      Word* const to = column + static_cast<ptrdiff_t>(word) * stride;
      if (word + kWidth <= words) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) memcpy(to + i * stride, &square[i], sizeof(Bits));
      } else {
        for (int i = 0; word + i < words; ++i) memcpy(to + i * stride, &square[i], sizeof(Bits));
      }
    }
  }
}

// Columns [col, col + kWidth) of a word's tokens.
template <class Math, class T>
inline Bits value_words(const T* const (&rows)[2], int col) {
  if constexpr (Math::kPerWord == 1)
    return bit_cast<Bits>(load(rows[0] + col));
  else
    return interleave(rows[0] + col, rows[1] + col);
}

template <class Math, class T>
inline void pack_values(const TileRows<T>& values, int head_dim, int tokens, const Panel& panel) {
  static const T zeros[kMaxHeadDim + kWidth] = {};
  const int cols = panel.cols;
  for (int token = 0; token < tokens; token += Math::kPerWord) {
    if (token % kWidth == 0) values.ahead.fetch(token / kWidth, tokens / kWidth);
    const T* rows[2];
    T parts[2][kWidth] = {};
    const T* part_rows[2];
    const int whole = head_dim / kWidth * kWidth;
    for (int i = 0; i < Math::kPerWord; ++i) {
      rows[i] = token + i < values.valid ? values.row(token + i) : zeros;
      if (whole < cols) memcpy(parts[i], rows[i] + whole, sizeof(T) * static_cast<size_t>(head_dim - whole));
      part_rows[i] = parts[i];
    }
    for (int first = 0; first < cols; first += kStrip) {
      Word* const to = panel.at(token / Math::kPerWord, first);
      for (int col = 0; col < panel.strip_cols(first); col += kWidth) {
        const Bits words =
            first + col < whole ? value_words<Math>(rows, first + col) : value_words<Math>(part_rows, 0);
        memcpy(to + col, &words, sizeof(words));
      }
    }
  }
}

}  // namespace trunkline
