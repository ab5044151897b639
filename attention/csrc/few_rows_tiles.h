// What few_rows.h does, for up to sixteen rows with AMX.
//
// The keys of a page are the rows of a tile register as they lie in memory, and the queries are the other factor:
//
//     scores [16 keys x 16 rows] = keys [16 x head_dim] * queries^T [head_dim x 16]
//
// Sums run along head_dim in the same order as in matmul.h, and are the same bits.
#pragma once

#include "few_rows.h"

#if defined(__AMX_BF16__)

namespace trunkline {

constexpr int kTileRows = 16;
constexpr int kTilesMaxDim = 256;

inline bool fits_tiles(int rows, int head_dim, int page_size) {
  return rows <= kTileRows && page_size % 16 == 0 && head_dim % 64 == 0 && head_dim <= kTilesMaxDim;
}

// queries [rows, words] -> [words, 16 rows]. Surplus rows are zero.
inline void turn_queries(const Word* queries, int words, int rows, Word (*turned)[kTileRows]) {
  for (int word = 0; word < words; word += 16) {
    Bits square[16] = {};
    for (int row = 0; row < rows; ++row) memcpy(&square[row], queries + row * words + word, sizeof(Bits));
    transpose(square);
    for (int i = 0; i < 16; ++i) memcpy(turned[word + i], &square[i], sizeof(Bits));
  }
}

// Four vectors of 4 keys x 4 rows -> a vector of 16 keys for each row.
inline void turn_quarters(Vec (&v)[4]) {
  const Vec a = __builtin_shufflevector(v[0], v[1], 0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const Vec b = __builtin_shufflevector(v[2], v[3], 0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const Vec c = __builtin_shufflevector(v[0], v[1], 2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
  const Vec d = __builtin_shufflevector(v[2], v[3], 2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
  v[0] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  v[1] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  v[2] = __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  v[3] = __builtin_shufflevector(c, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}

// scores [row][kTile] of a tile's keys; queries [rows, words] in pairs along head_dim. What lies behind the last key is
// hidden later, whatever it is.
template <class T>
inline void few_scores_by_tiles(const TileRows<T>& keys, int64_t slot_stride, const Word* queries, int words, int rows,
                       float* scores) {
  alignas(64) Word turned[kTilesMaxDim / 2][kTileRows];
  turn_queries(queries, words, rows, turned);
  // Where there are four rows or less, the surplus columns of a key are overwritten by the next one.
  alignas(64) float found[kTile * kTileRows];
  const int kept = rows <= 4 ? 4 : kTileRows, groups = (keys.valid + 15) / 16;
  const auto stride = static_cast<size_t>(slot_stride) * sizeof(T);
  const auto found_stride = sizeof(float) * static_cast<size_t>(kept);
  const auto group_at = [&](int group) { return keys.row(std::min(group, groups - 1) * 16); };
  for (int group = 0; group < groups; group += 4) {
    const T* const at[] = {group_at(group), group_at(group + 1), group_at(group + 2), group_at(group + 3)};
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int word = 0; word < words; word += 16) {
      _tile_loadd(7, turned[word], sizeof(turned[0]));
      _tile_loadd(4, at[0] + word * 2, stride);
      _tile_dpbf16ps(0, 4, 7);
      _tile_loadd(5, at[1] + word * 2, stride);
      _tile_dpbf16ps(1, 5, 7);
      _tile_loadd(6, at[2] + word * 2, stride);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(4, at[3] + word * 2, stride);
      _tile_dpbf16ps(3, 4, 7);
    }
    float* const to = found + group * 16 * kept;
    _tile_stored(0, to, found_stride);
    _tile_stored(1, to + 16 * kept, found_stride);
    _tile_stored(2, to + 32 * kept, found_stride);
    _tile_stored(3, to + 48 * kept, found_stride);
  }
  for (int group = 0; group < groups; ++group) {
    const float* const from = found + group * 16 * kept;
    float* const to = scores + group * 16;
    if (rows <= 4) {
      Vec square[] = {load(from), load(from + 16), load(from + 32), load(from + 48)};
      turn_quarters(square);
      for (int row = 0; row < rows; ++row) store(to + row * kTile, square[row]);
    } else {
      Bits square[16];
      for (int i = 0; i < 16; ++i) square[i] = bit_cast<Bits>(load(from + i * kTileRows));
      transpose(square);
      for (int row = 0; row < rows; ++row) store(to + row * kTile, bit_cast<Vec>(square[row]));
    }
  }
}

// out [rows, out_stride] = weights [row][kTile] * values of the first `keys` keys (a multiple of 32). `pairs` has room
// for 16 x 64 words, out for 16 rows.
template <class T>
inline void few_values_by_tiles(const TileRows<T>& values, const bf16* weights, int keys, int rows, int head_dim,
                                Word* pairs, float* out, int out_stride) {
  static const T zeros[kTilesMaxDim] = {};
  const auto stride = static_cast<size_t>(out_stride) * sizeof(float);
  for (int col = 0; col < head_dim; col += 64) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int key = 0; key < keys; key += 32) {
      const int whole = std::min(values.valid - key, 32) / 2;
      for (int pair = 0; pair < 16; ++pair) {
        const int token = key + 2 * pair;
        const T* low = pair < whole || token < values.valid ? values.row(token) : zeros;
        const T* const both[] = {low, pair < whole ? values.row(token + 1) : zeros};
        for (int half = 0; half < 2; ++half) {
          Bits words[2];
          value_pair<TileMath>(both, col + 32 * half, words);
          memcpy(pairs + pair * 64 + 32 * half, words, sizeof(words));
        }
      }
      _tile_loadd(4, weights + key, kTile * sizeof(bf16));
      _tile_loadd(5, pairs, 256);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(6, pairs + 16, 256);
      _tile_dpbf16ps(1, 4, 6);
      _tile_loadd(7, pairs + 32, 256);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, pairs + 48, 256);
      _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, out + col, stride);
    _tile_stored(1, out + col + 16, stride);
    _tile_stored(2, out + col + 32, stride);
    _tile_stored(3, out + col + 48, stride);
    for (int row = 0; row < rows; ++row)
      for (int half = col; half < col + 64; half += 32) {
        float* const at = out + row * out_stride + half;
        store_value_pair<TileMath, T>(at, load(at), load(at + kWidth));
      }
  }
}

}  // namespace trunkline

#endif
