// Brings a tile of paged keys or values into the panels of matmul.h.
//
//     keys     [tokens x head_dim]  ->  panel [head_dim words x tokens]: transposed in registers
//     values   [tokens x head_dim]  ->  panel [token words x head_dim]: as they are, or for bf16 two tokens
//                                       interleaved to a row of words
//
// Tokens from `valid` on are zero, whatever the pages hold there: zero weight times NaN would be NaN.
#pragma once

#include <algorithm>

#include "matmul_bf16.h"

namespace trunkline {

// Where the rows of a tile of keys or values lie. The offsets serve the keys and the values.
template <class T>
struct TileRows {
  const T* base;
  const int64_t* offsets;
  int valid;

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

// Words that 16 bytes of a row become.
template <class Math, class T>
constexpr int kColumns = 16 / static_cast<int>(sizeof(T)) / Math::kPerWord;

// The words that 16 bytes of kWidth rows become; out[i] holds word i of each. Numbers of int8 become those of the words.
template <class Math, class T, class Row>
inline void load_columns(const Row& row, Bits (&out)[kColumns<Math, T>]) {
  Bits lanes[4];
  load_transposed(row, lanes);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 1) {
      Vec bytes[4];
#pragma GCC unroll 4
      for (int byte = 0; byte < 4; ++byte)
        bytes[byte] = __builtin_convertvector(bit_cast<Ints>(lanes[i] << (24 - 8 * byte)) >> 24, Vec);
#pragma GCC unroll 4
      for (int word = 0; word < 4 / Math::kPerWord; ++word) {
        if constexpr (Math::kPerWord == 1)
          out[4 * i + word] = bit_cast<Bits>(bytes[word]);
        else
          out[2 * i + word] = pair(bytes[2 * word], bytes[2 * word + 1]);
      }
    } else if constexpr (kColumns<Math, T> == 4) {
      out[i] = lanes[i];
    } else {
      out[2 * i] = lanes[i] << 16;
      out[2 * i + 1] = lanes[i] & 0xffff0000;
    }
  }
}

template <class Math, class T>
inline void pack_keys(const TileRows<T>& keys, int head_dim, int tokens, const Panel& panel) {
  constexpr int kCount = kColumns<Math, T>, kElements = kCount * Math::kPerWord;
  const int words = panel.words;
  for (int token = 0; token < tokens; token += kWidth) {
    Word* to = panel.at(0, token);
    const int stride = panel.strip_cols(token), count = std::min(kWidth, keys.valid - token);
    const T* rows[kWidth];
    for (int i = 0; i < count; ++i) rows[i] = keys.row(token + i);
    for (int word = 0; word < words; word += kCount) {
      const int first = word * Math::kPerWord;
      Bits columns[kCount];
      if (count == kWidth && first + kElements <= head_dim) {
        load_columns<Math, T>([&](int i) { return rows[i] + first; }, columns);
      } else {
        T parts[kWidth][kElements] = {};
        const int elements = std::clamp(head_dim - first, 0, kElements);
        for (int i = 0; i < count; ++i) memcpy(parts[i], rows[i] + first, sizeof(T) * static_cast<size_t>(elements));
        load_columns<Math, T>([&](int i) { return parts[i]; }, columns);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kCount; ++i, to += stride)
        if (word + i < words) memcpy(to, &columns[i], sizeof(Bits));
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
  const int cols = panel.cols, whole = head_dim / kWidth * kWidth;
  for (int token = 0; token < tokens; token += Math::kPerWord) {
    const int word = token / Math::kPerWord;
    const T* rows[2];
    for (int i = 0; i < Math::kPerWord; ++i) rows[i] = token + i < values.valid ? values.row(token + i) : zeros;
    const auto put = [](Word* to, Bits words) { memcpy(to, &words, sizeof(words)); };
    int col = 0;
    for (Word* to = panel.at(word, 0); col + kStrip <= whole; col += kStrip, to += kStrip * panel.words)
#pragma GCC unroll 4
      for (int i = 0; i < kStrip; i += kWidth) put(to + i, value_words<Math>(rows, col + i));
    for (; col < whole; col += kWidth) put(panel.at(word, col), value_words<Math>(rows, col));
    if (whole == cols) continue;
    T parts[2][kWidth] = {};
    for (int i = 0; i < Math::kPerWord; ++i)
      memcpy(parts[i], rows[i] + whole, sizeof(T) * static_cast<size_t>(head_dim - whole));
    const T* const part_rows[2] = {parts[0], parts[1]};
    put(panel.at(word, whole), value_words<Math>(part_rows, 0));
  }
}

}  // namespace trunkline
