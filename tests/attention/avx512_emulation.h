// What the kernels use of AVX-512 in terms of AVX2, so that its levels run, slowly, on CPUs without it.
//
// Included before the kernels' sources, and before the macros that select a level are defined: the compiler's own headers
// must not see them. A vector of 64 bytes is two of 32.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace emulated {

template <class Whole, class Half>
inline Whole join(Half low, Half high) {
  static_assert(sizeof(Whole) == 2 * sizeof(Half));
  Whole whole;
  memcpy(&whole, &low, sizeof(low));
  memcpy(reinterpret_cast<char*>(&whole) + sizeof(low), &high, sizeof(high));
  return whole;
}
template <class Half, class Whole>
inline Half half(const Whole& whole, int index) {
  Half result;
  memcpy(&result, reinterpret_cast<const char*>(&whole) + static_cast<size_t>(index) * sizeof(Half), sizeof(result));
  return result;
}
// `operation` on each half of whole vectors of its arguments' type.
template <class Whole, class Half, class Operation, class... Wholes>
inline Whole by_halves(const Operation& operation, const Wholes&... x) {
  return join<Whole>(operation(half<Half>(x, 0)...), operation(half<Half>(x, 1)...));
}
template <class Operation, class... Wholes>
inline __m512 floats(const Operation& operation, const Wholes&... x) {
  return by_halves<__m512, __m256>(operation, x...);
}
template <class Operation, class... Wholes>
inline __m512i whole_numbers(const Operation& operation, const Wholes&... x) {
  return by_halves<__m512i, __m256i>(operation, x...);
}

inline __m512 max(__m512 a, __m512 b) {
  return floats([](__m256 x, __m256 y) { return _mm256_max_ps(x, y); }, a, b);
}
inline __m512 fma(__m512 a, __m512 b, __m512 c) {
  return floats([](__m256 x, __m256 y, __m256 z) { return _mm256_fmadd_ps(x, y, z); }, a, b, c);
}
inline __m512 round(__m512 a) {
  return floats([](__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }, a);
}
inline __m512 convert(__m512i a) {
  return by_halves<__m512, __m256i>([](__m256i x) { return _mm256_cvtepi32_ps(x); }, a);
}
inline __m512 from_half(__m256i a) {
  return by_halves<__m512, __m128i>([](__m128i x) { return _mm256_cvtph_ps(x); }, a);
}
inline __m512i widen_unsigned(__m256i a) {
  return by_halves<__m512i, __m128i>([](__m128i x) { return _mm256_cvtepu16_epi32(x); }, a);
}
inline __m512i widen_signed(__m128i a) {
  return join<__m512i>(_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8)));
}
#define EMULATED_PAIR(name, operation)                                               \
  inline __m512i name(__m512i a, __m512i b) {                                        \
    return whole_numbers([](__m256i x, __m256i y) { return operation(x, y); }, a, b); \
  }
EMULATED_PAIR(add32, _mm256_add_epi32)
EMULATED_PAIR(add16, _mm256_add_epi16)
EMULATED_PAIR(multiply_pairs, _mm256_madd_epi16)
EMULATED_PAIR(multiply_bytes, _mm256_maddubs_epi16)
EMULATED_PAIR(interleave_low, _mm256_unpacklo_epi16)
EMULATED_PAIR(interleave_high, _mm256_unpackhi_epi16)
#undef EMULATED_PAIR
inline __m512i set32(int x) { return join<__m512i>(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
inline __m512i set16(short x) { return join<__m512i>(_mm256_set1_epi16(x), _mm256_set1_epi16(x)); }
inline __m512 set(float x) { return join<__m512>(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
inline __m512i extend(__m128i x) { return join<__m512i>(_mm256_zextsi128_si256(x), __m256i{}); }
inline __m512i insert(__m512i into, __m128i x, int quarter) {
  memcpy(reinterpret_cast<char*>(&into) + 16 * static_cast<size_t>(quarter), &x, sizeof(x));
  return into;
}

// Sums of four products of a byte without and one with a sign.
inline __m512i dot_bytes(__m512i sum, __m512i a, __m512i b) {
  return whole_numbers(
      [](__m256i s, __m256i x, __m256i y) {
        const __m256i even = _mm256_madd_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0xff)),
                                               _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8));
        const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(x, 8), _mm256_srai_epi16(y, 8));
        return _mm256_add_epi32(s, _mm256_add_epi32(even, odd));
      },
      sum, a, b);
}

// The upper product first, as the instruction has it.
inline __m512 dot_pairs(__m512 sum, __m512bh a, __m512bh b) {
  const auto upper = [](__m512bh pairs) {
    return (__m512)whole_numbers([](__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi32(-65536)); }, pairs);
  };
  const auto lower = [](__m512bh pairs) {
    return (__m512)whole_numbers([](__m256i x) { return _mm256_slli_epi32(x, 16); }, pairs);
  };
  return fma(lower(a), lower(b), fma(upper(a), upper(b), sum));
}

// To the nearest, ties to even; what is not a number stays so.
inline __m256bh to_pairs(__m512 x) {
  uint32_t bits[16];
  uint16_t upper[16];
  memcpy(bits, &x, sizeof(x));
  for (int i = 0; i < 16; ++i) {
    const bool is_number = (bits[i] & 0x7fffffff) <= 0x7f800000;
    upper[i] = static_cast<uint16_t>((is_number ? bits[i] + 0x7fff + (bits[i] >> 16 & 1) : bits[i] | 0x400000) >> 16);
  }
  __m256bh result;
  memcpy(&result, upper, sizeof(result));
  return result;
}

// x * 2^n for n from -252 to 254, where the mask is set; in two steps, so that each factor is a number.
inline __m512 scale(__mmask16 mask, __m512 x, __m512 n) {
  float values[16], powers[16];
  memcpy(values, &x, sizeof(x));
  memcpy(powers, &n, sizeof(n));
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) == 0) {
      values[i] = 0.0f;
      continue;
    }
    const int power = static_cast<int>(powers[i]), first = power / 2;
    for (const int part : {first, power - first}) {
      const uint32_t bits = static_cast<uint32_t>(part + 127) << 23;
      float factor;
      memcpy(&factor, &bits, sizeof(factor));
      values[i] *= factor;
    }
  }
  memcpy(&x, values, sizeof(x));
  return x;
}
inline __mmask16 not_less(__m512 a, __m512 b) {
  const auto mask = [&](int i) {
    return _mm256_movemask_ps(_mm256_cmp_ps(half<__m256>(a, i), half<__m256>(b, i), _CMP_GE_OQ));
  };
  return static_cast<__mmask16>(mask(0) | mask(1) << 8);
}

// Halves the vector until one lane is left.
template <class Operation>
inline float reduce(__m512 x, const Operation& operation) {
  float values[16];
  memcpy(values, &x, sizeof(x));
  for (int count = 8; count > 0; count /= 2)
    for (int i = 0; i < count; ++i) values[i] = operation(values[i], values[i + count]);
  return values[0];
}
inline float sum(__m512 x) {
  return reduce(x, [](float a, float b) { return a + b; });
}
inline float most(__m512 x) {
  return reduce(x, [](float a, float b) { return a > b ? a : b; });
}

}  // namespace emulated

#undef _mm512_roundscale_ps
#undef _mm512_inserti32x4
#undef _mm512_cmp_ps_mask
#define _mm512_add_epi16 emulated::add16
#define _mm512_add_epi32 emulated::add32
#define _mm512_castsi128_si512 emulated::extend
#define _mm512_cmp_ps_mask(a, b, only_not_less) emulated::not_less(a, b)
#define _mm512_cvtepi32_ps emulated::convert
#define _mm512_cvtepi8_epi32 emulated::widen_signed
#define _mm512_cvtepu16_epi32 emulated::widen_unsigned
#define _mm512_cvtneps_pbh emulated::to_pairs
#define _mm512_cvtph_ps emulated::from_half
#define _mm512_dpbf16_ps emulated::dot_pairs
#define _mm512_dpbusd_epi32 emulated::dot_bytes
#define _mm512_fmadd_ps emulated::fma
#define _mm512_inserti32x4 emulated::insert
#define _mm512_madd_epi16 emulated::multiply_pairs
#define _mm512_maddubs_epi16 emulated::multiply_bytes
#define _mm512_maskz_scalef_ps emulated::scale
#define _mm512_max_ps emulated::max
#define _mm512_reduce_add_ps emulated::sum
#define _mm512_reduce_max_ps emulated::most
#define _mm512_roundscale_ps(x, only_to_nearest) emulated::round(x)
#define _mm512_set1_epi16 emulated::set16
#define _mm512_set1_epi32 emulated::set32
#define _mm512_set1_ps emulated::set
#define _mm512_unpackhi_epi16 emulated::interleave_high
#define _mm512_unpacklo_epi16 emulated::interleave_low
