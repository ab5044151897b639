// The products of matmul.h on words of four bytes: unsigned in A, signed in B, with whole sums of 32 bits.
//
// The sums are stored as the bits of floats. They are exact: every level gives the same result.
#pragma once

#include "matmul_bf16.h"

namespace trunkline {

// Words of two numbers of 16 bits.
struct ShortMath {
  using Sum = Ints;
  static constexpr int kFactors = 1;
  static Ints accumulate(Ints sum, const Word* a, Bits b) { return sum + multiply_pairs(Bits{} + *a, b); }
};

struct ByteMath {
  using Sum = Ints;
  static constexpr int kPerWord = 4;
  static constexpr int kWordMultiple = 16;
  static void begin() {}
  static void end() {}
#if defined(__AVX512VNNI__)
  using Element = uint8_t;
  static constexpr int kFactors = 1;
  static Ints accumulate(Ints sum, const Word* a, Bits b) {
    return Ints(_mm512_dpbusd_epi32(__m512i(sum), _mm512_set1_epi32(static_cast<int>(*a)), __m512i(b)));
  }
#else
  // Without an instruction for four bytes: two for pairs of 16 bits. A comes as such, the even ones of each four first.
  using Element = uint16_t;
  static constexpr int kFactors = 2;
  using PartMath = ShortMath;
  static Bits part(Bits b, int index) { return upper_bytes(index == 0 ? b << 8 : b); }
  static Ints accumulate(Ints sum, const Word* a, Bits b) {
    return ShortMath::accumulate(ShortMath::accumulate(sum, a, part(b, 0)), a + 1, part(b, 1));
  }
#endif
};

#if defined(__AMX_INT8__)
struct ByteTiles : ByteMath {
  static void begin() { TileMath::begin(); }
  static void end() { TileMath::end(); }
};
template <>
inline constexpr bool kHasTiles<ByteTiles> = true;

using BestByteMath = ByteTiles;
#else
using BestByteMath = ByteMath;
#endif

}  // namespace trunkline
