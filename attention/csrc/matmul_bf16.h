// The products of matmul.h on pairs of bfloat16: the AVX-512 dot product, and AMX tiles.
#pragma once

#include "matmul.h"

namespace trunkline {

struct PairMath {
  using Element = bf16;
  using Sum = Vec;
  static constexpr int kPerWord = 2;
  static constexpr int kWordMultiple = 1;
  static void begin() {}
  static void end() {}
#if defined(__AVX512BF16__)
  static constexpr int kFactors = 1;
  static Vec accumulate(Vec sum, const Word* a, Bits b) {
    return Vec(_mm512_dpbf16_ps(__m512(sum), __m512bh(_mm512_set1_epi32(static_cast<int>(*a))), __m512bh(b)));
  }
#else
  static constexpr int kFactors = 2;  // as floats: they are used more often than they are made
  using PartMath = FloatMath;
  static Bits part(Bits b, int index) { return index == 0 ? b << 16 : b & 0xffff0000; }
  static Vec accumulate(Vec sum, const Word* a, Bits b) {
    return FloatMath::accumulate(FloatMath::accumulate(sum, a, part(b, 0)), a + 1, part(b, 1));
  }
#endif
};

// Whether a kind of arithmetic computes in tiles.
template <class Math>
inline constexpr bool kHasTiles = false;

#if defined(__AMX_BF16__)
// An AMX tile holds 16 rows of 16 words. C is computed in squares of 2 x 2 tiles, so that each tile of A
// and B that was loaded is used twice:
//
//                B4: tmm6   B: tmm7
//     A: tmm4    C: tmm0    C: tmm1
//     A: tmm5    C: tmm2    C: tmm3
//
// Rows are computed in sixteens and words in sixteens: A, B and C must have room for that. What lies in
// the surplus rows of A reaches only the surplus rows of C.
struct TileMath : PairMath {
  static constexpr int kWordMultiple = 16;

  static void begin() {
    alignas(64) uint8_t config[64] = {1};  // palette 1
    for (int tile = 0; tile < 8; ++tile) {
      config[16 + 2 * tile] = 64;  // bytes a row
      config[48 + tile] = 16;      // rows
    }
    _tile_loadconfig(config);
  }
  static void end() { _tile_release(); }
};
template <>
inline constexpr bool kHasTiles<TileMath> = true;

// `meanwhile(k)` is called for every 16 words: the vector units have nothing to do while tiles are multiplied.
// kStreamed: A is large and read once, and should leave B in the level-1 cache.
template <class Math, bool kTwoRows, bool kTwoCols, bool kStreamed = false, class Meanwhile = Nothing>
inline void matmul_tiles(const Word* a, int a_stride, const Word* b, int b_stride, float* c, int c_stride, int words,
                         const Meanwhile& meanwhile = {}) {
  const size_t a_bytes = 4 * static_cast<size_t>(a_stride);
  const size_t b_bytes = 4 * static_cast<size_t>(b_stride);
  const size_t c_bytes = 4 * static_cast<size_t>(c_stride);
  const Word* a_low = a + 16 * static_cast<ptrdiff_t>(a_stride);
  _tile_zero(0);
  if (kTwoCols) _tile_zero(1);
  if (kTwoRows) _tile_zero(2);
  if (kTwoRows && kTwoCols) _tile_zero(3);
  constexpr bool kBytes = Math::kPerWord == 4;
  for (int k = 0; k < words; k += 16) {
    const Word* row = b + static_cast<ptrdiff_t>(k) * b_stride;
    if constexpr (kStreamed) {
      _tile_stream_loadd(4, a + k, a_bytes);
      if (kTwoRows) _tile_stream_loadd(5, a_low + k, a_bytes);
    } else {
      _tile_loadd(4, a + k, a_bytes);
      if (kTwoRows) _tile_loadd(5, a_low + k, a_bytes);
    }
    _tile_loadd(6, row, b_bytes);
    if (kTwoCols) _tile_loadd(7, row + 16, b_bytes);
    // The numbers of tiles are part of an instruction: no function can take them as arguments.
    if constexpr (kBytes) {
      _tile_dpbusd(0, 4, 6);
      if (kTwoCols) _tile_dpbusd(1, 4, 7);
      if (kTwoRows) _tile_dpbusd(2, 5, 6);
      if (kTwoRows && kTwoCols) _tile_dpbusd(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      if (kTwoCols) _tile_dpbf16ps(1, 4, 7);
      if (kTwoRows) _tile_dpbf16ps(2, 5, 6);
      if (kTwoRows && kTwoCols) _tile_dpbf16ps(3, 5, 7);
    }
    meanwhile(k);
  }
  float* c_low = c + 16 * static_cast<ptrdiff_t>(c_stride);
  _tile_stored(0, c, c_bytes);
  if (kTwoCols) _tile_stored(1, c + 16, c_bytes);
  if (kTwoRows) _tile_stored(2, c_low, c_bytes);
  if (kTwoRows && kTwoCols) _tile_stored(3, c_low + 16, c_bytes);
}

// The same square for factors that come piece by piece; of bf16.
template <bool kTwoRows>
class SquareOfTiles {
 public:
  SquareOfTiles() {
    _tile_zero(0);
    _tile_zero(1);
    if (kTwoRows) _tile_zero(2);
    if (kTwoRows) _tile_zero(3);
  }
  // Adds sixteen words of k.
  void add(const Word* a, ptrdiff_t a_stride, const Word* b, ptrdiff_t b_stride) {
    const size_t a_bytes = 4 * static_cast<size_t>(a_stride), b_bytes = 4 * static_cast<size_t>(b_stride);
    _tile_loadd(4, a, a_bytes);
    if (kTwoRows) _tile_loadd(5, a + 16 * a_stride, a_bytes);
    _tile_loadd(6, b, b_bytes);
    _tile_loadd(7, b + 16, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (kTwoRows) _tile_dpbf16ps(2, 5, 6);
    if (kTwoRows) _tile_dpbf16ps(3, 5, 7);
  }
  void store(float* c, ptrdiff_t c_stride) const {
    const size_t c_bytes = 4 * static_cast<size_t>(c_stride);
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + 16, c_bytes);
    if (kTwoRows) _tile_stored(2, c + 16 * c_stride, c_bytes);
    if (kTwoRows) _tile_stored(3, c + 16 * c_stride + 16, c_bytes);
  }
};

template <class Math, class Meanwhile>
inline void matmul_by_tiles(const Word* a, int a_stride, const Panel& b, float* c, int c_stride, int rows, int cols,
                            int words, Meanwhile& meanwhile) {
  for (int col = 0; col < cols; col += 32) {
    meanwhile();
    const int b_stride = b.strip_cols(col);
    const Word* strip = b.at(0, col);
    const bool two_cols = col + 16 < cols;
    for (int r = 0; r < rows; r += 32) {
      const Word* a_rows = a + static_cast<ptrdiff_t>(r) * a_stride;
      float* c_rows = c + static_cast<ptrdiff_t>(r) * c_stride + col;
      const auto block = r + 16 < rows ? (two_cols ? matmul_tiles<Math, true, true> : matmul_tiles<Math, true, false>)
                                       : (two_cols ? matmul_tiles<Math, false, true> : matmul_tiles<Math, false, false>);
      block(a_rows, a_stride, strip, b_stride, c_rows, c_stride, words, Nothing{});
    }
  }
}

using BestPairMath = TileMath;
#else
using BestPairMath = PairMath;
#endif

// As matmul_by_strips; `meanwhile` is called for every strip, or every two tiles of columns.
template <class Math, class Meanwhile>
inline void matmul(const Word* a, int a_stride, const Panel& b, float* c, int c_stride, int rows, int cols, int words,
                   Meanwhile& meanwhile) {
#if defined(__AMX_BF16__)
  if constexpr (kHasTiles<Math>) return matmul_by_tiles<Math>(a, a_stride, b, c, c_stride, rows, cols, words, meanwhile);
#endif
  matmul_by_strips<Math>(a, a_stride, b, c, c_stride, rows, cols, words, meanwhile);
}

// A thread holds the tile registers while it multiplies.
struct Registers {
  Registers() { BestPairMath::begin(); }
  ~Registers() { BestPairMath::end(); }
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
};

}  // namespace trunkline
