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
  static Vec accumulate(Vec sum, Word a, Bits b) {
#if defined(__AVX512VNNI__)
    return bit_cast<Vec>(_mm512_dpbusd_epi32(bit_cast<__m512i>(sum), _mm512_set1_epi32(static_cast<int>(a)), __m512i(b)));
#else
    Ints total = bit_cast<Ints>(sum);
    for (int byte = 0; byte < 4; ++byte)
      total += static_cast<int>(a >> (8 * byte) & 0xff) * (Ints(b << (24 - 8 * byte)) >> 24);
    return bit_cast<Vec>(total);
#endif
  }
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
