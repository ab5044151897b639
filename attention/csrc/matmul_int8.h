// The products of matmul.h on words of four bytes: unsigned in A, signed in B, with whole sums of 32 bits.
//
// The sums travel as the bits of floats, so that matmul.h needs to know nothing of them. They are exact:
// every level gives the same result.
#pragma once

#include "matmul_bf16.h"

namespace trunkline {

struct ByteMath {
  static constexpr int kPerWord = 4;
  static constexpr int kWordMultiple = 16;
  static void begin() {}
  static void end() {}
#if defined(__AVX512VNNI__)
  using Element = uint8_t;
  static constexpr int kFactors = 1;
  static Vec accumulate(Vec sum, const Word* a, Bits b) {
    return bit_cast<Vec>(_mm512_dpbusd_epi32(bit_cast<__m512i>(sum), _mm512_set1_epi32(static_cast<int>(*a)), __m512i(b)));
  }
#else
  // Without an instruction for four bytes: two for pairs of 16 bits. A comes as such, the even ones of each four first.
  using Element = uint16_t;
  static constexpr int kFactors = 2;
  static Vec accumulate(Vec sum, const Word* a, Bits b) {
    const Ints even = multiply_pairs(Bits{} + a[0], upper_bytes(b << 8)), odd = multiply_pairs(Bits{} + a[1], upper_bytes(b));
    return bit_cast<Vec>(bit_cast<Ints>(sum) + even + odd);
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
