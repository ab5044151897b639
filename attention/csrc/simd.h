// Vectors of floats in the width of one instruction set.
//
// The library is compiled once per level, with different compiler flags (setup.py); what follows picks
// the widest vectors that those flags allow. Everything else in this folder is written in terms of
// `Vec` and therefore exists once. Multiplications and additions are fused only where `fma` says so
// (-ffp-contract=off): two places that compute the same thing get the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trunkline {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kWidth)));
typedef uint32_t Bits __attribute__((vector_size(4 * kWidth)));
typedef int32_t Ints __attribute__((vector_size(4 * kWidth)));
typedef uint16_t Halves __attribute__((vector_size(2 * kWidth)));
typedef uint8_t Bytes __attribute__((vector_size(kWidth)));

// A bfloat16 is the upper half of a float.
struct bf16 {
  uint16_t bits;
};

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

inline Vec splat(float x) { return x - Vec{}; }

inline Vec load(const float* p) { return bit_cast<Vec>(*reinterpret_cast<const char(*)[sizeof(Vec)]>(p)); }
inline void store(float* p, Vec v) { memcpy(p, &v, sizeof(v)); }

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return bit_cast<float>(uint32_t{x.bits} << 16); }

// Each of kWidth halves in a lane of its own, and back: what is behind the half in each lane must be zero. (Compilers'
// own conversions take detours, of bytes one by one.)
inline Bits widen(Halves h) {
#if defined(__AVX512F__)
  return Bits(_mm512_cvtepu16_epi32(__m256i(h)));
#elif defined(__AVX2__)
  return Bits(_mm256_cvtepu16_epi32(__m128i(h)));
#else
  return __builtin_convertvector(h, Bits);
#endif
}

inline Halves narrow_to_halves(Bits x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return Halves(_mm_packus_epi32(_mm256_castsi256_si128(__m256i(x)), _mm256_extracti128_si256(__m256i(x), 1)));
#else
  return __builtin_convertvector(x, Halves);
#endif
}

inline Bytes narrow_to_bytes(Bits x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m128i halves = __m128i(narrow_to_halves(x));
  return bit_cast<Bytes>(_mm_cvtsi128_si64(_mm_packus_epi16(halves, halves)));
#else
  return __builtin_convertvector(x, Bytes);
#endif
}

template <class Number>
inline auto narrow_to(Bits x) {
  if constexpr (sizeof(Number) == 1)
    return narrow_to_bytes(x);
  else
    return narrow_to_halves(x);
}

inline Bits widen(const bf16* p) {
  Halves h;
  memcpy(&h, p, sizeof(h));
  return widen(h);
}

inline Vec load(const bf16* p) { return bit_cast<Vec>(widen(p) << 16); }

inline Vec load(const int8_t* p) {
  typedef int8_t Signed __attribute__((vector_size(kWidth)));
  Signed bytes;
  memcpy(&bytes, p, sizeof(bytes));
#if defined(__AVX512F__)
  return Vec(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(__m128i(bytes))));
#elif defined(__AVX2__)
  return Vec(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bit_cast<long long>(bytes)))));
#else
  return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Vec);
#endif
}

// The nearest whole numbers, of a magnitude of up to 127.
inline void store(int8_t* p, Vec v) {
  // Adding 1.5 * 2^23 rounds to a whole number, which then lies in the low bits.
  const Bytes bytes = narrow_to_bytes(bit_cast<Bits>(v + splat(12582912.0f)) & 0xff);
  memcpy(p, &bytes, sizeof(bytes));
}

inline void store(bf16* p, Vec v) {
#if defined(__AVX512BF16__)
  const __m256bh h = _mm512_cvtneps_pbh(__m512(v));
  memcpy(p, &h, sizeof(h));
#else
  // Round to nearest, ties to even; a NaN keeps its sign and becomes quiet.
  const Bits u = bit_cast<Bits>(v);
  const Bits rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const Bits nan = (u >> 16) | 0x40;
  const Halves h = narrow_to_halves(v == v ? rounded : nan);
  memcpy(p, &h, sizeof(h));
#endif
}

// kWidth numbers of IEEE's half precision, exactly.
inline Vec load_half(const uint16_t* p) {
  Halves h;
  memcpy(&h, p, sizeof(h));
#if defined(__AVX512F__)
  return Vec(_mm512_cvtph_ps(__m256i(h)));
#elif defined(__F16C__)
  return Vec(_mm256_cvtph_ps(__m128i(h)));
#else
  const Bits bits = widen(h);
  // The exponent is moved by a product, which normalises what is subnormal; 31 becomes 143, and infinity is 255.
  const Vec magnitude = bit_cast<Vec>((bits & 0x7fff) << 13) * splat(0x1p112f);
  const Bits special = (bits & 0x7c00) == 0x7c00 ? Bits{} + 0x7f800000u : Bits{};
  return bit_cast<Vec>(bit_cast<Bits>(magnitude) | special | (bits & 0x8000) << 16);
#endif
}

// The first `count` < kWidth elements, the others zero; never touches what lies behind them.
template <class T>
inline Vec load_first(const T* p, int count) {
  T head[kWidth] = {};
  memcpy(head, p, sizeof(T) * static_cast<size_t>(count));
  return load(head);
}

template <class T>
inline void store_first(T* p, Vec v, int count) {
  T head[kWidth];
  store(head, v);
  memcpy(p, head, sizeof(T) * static_cast<size_t>(count));
}

inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return Vec(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__AVX2__)
  return Vec(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#else
  return a * b + c;
#endif
}

inline Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return Vec(_mm512_max_ps(__m512(a), __m512(b)));
#elif defined(__AVX2__)
  return Vec(_mm256_max_ps(__m256(a), __m256(b)));
#else
  return a > b ? a : b;
#endif
}

// Halves the vector until one lane is left: lane i meets lane i + kWidth/2 and so on, at every level.
template <int kStride, class Op, size_t... kLane>
inline Vec reduce_once(Vec v, const Op& op, std::index_sequence<kLane...>) {
  return op(v, __builtin_shufflevector(v, v, ((kLane + kStride) % kWidth)...));
}
template <class Op>
inline float reduce(Vec v, const Op& op) {
  constexpr auto lanes = std::make_index_sequence<kWidth>();
  if constexpr (kWidth > 8) v = reduce_once<8>(v, op, lanes);
  if constexpr (kWidth > 4) v = reduce_once<4>(v, op, lanes);
  v = reduce_once<2>(v, op, lanes);
  return reduce_once<1>(v, op, lanes)[0];
}

inline float reduce_add(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(__m512(v));
#else
  return reduce(v, [](Vec a, Vec b) { return a + b; });
#endif
}

inline float reduce_max(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(__m512(v));
#else
  return reduce(v, [](Vec a, Vec b) { return max(a, b); });
#endif
}

// 2^x for x <= 127, relative error below 2e-7; exactly 1 for 0, exactly 0 below 2^-126 and for -infinity.
//
// x = n + f with n whole and |f| <= 1/2; 2^f is a polynomial (a minimax fit with 2^0 = 1), n goes into the exponent.
inline Vec exp2(Vec x) {
#if defined(__AVX512F__)
  const Vec n = Vec(_mm512_roundscale_ps(__m512(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)), f = x - n;
#else
  const Vec clamped = max(x, splat(-200.0f));
  // Adding 1.5 * 2^23 leaves no room for a fraction: the sum's low bits are n.
  const Vec magic = splat(12582912.0f);
  const Vec shifted = clamped + magic;
  const Vec f = clamped - (shifted - magic);
#endif
  Vec p = splat(1.326472715e-3f);
  p = fma(p, f, splat(9.671512643e-3f));
  p = fma(p, f, splat(5.550733743e-2f));
  p = fma(p, f, splat(2.402224209e-1f));
  p = fma(p, f, splat(6.931469776e-1f));
  p = fma(p, f, splat(1.0f));
#if defined(__AVX512F__)
  const __mmask16 is_normal = _mm512_cmp_ps_mask(__m512(x), _mm512_set1_ps(-126.0f), _CMP_GE_OQ);
  return Vec(_mm512_maskz_scalef_ps(is_normal, __m512(p), __m512(n)));
#else
  const Bits n = bit_cast<Bits>(shifted) << 23;
  const Vec scaled = bit_cast<Vec>(bit_cast<Bits>(p) + n);
  return x >= splat(-126.0f) ? scaled : Vec{};
#endif
}

inline constexpr float kLog2E = 1.44269504f;

// x / (1 + e^-x). Below -88 e^-x would overflow: what is left there is less than 1e-36.
inline Vec silu(Vec x) {
  x = max(splat(-88.0f), x);
  return x / (splat(1.0f) + exp2(x * -kLog2E));
}

// tanh through 2^x, symmetric; absolute error below 2e-7.
inline Vec tanh(Vec x) {
  const Vec magnitude = max(x, -x);
  const Vec e = exp2(magnitude * (-2.0f * kLog2E));
  const Vec t = (splat(1.0f) - e) / (splat(1.0f) + e);
  return x < splat(0.0f) ? -t : t;
}

// Both halves of each lane are whole numbers of 16 bits: the sum of their two products.
inline Ints multiply_pairs(Bits a, Bits b) {
#if defined(__AVX512BW__)
  return Ints(_mm512_madd_epi16(__m512i(a), __m512i(b)));
#elif defined(__AVX2__)
  return Ints(_mm256_madd_epi16(__m256i(a), __m256i(b)));
#elif defined(__SSE2__)
  return Ints(_mm_madd_epi16(__m128i(a), __m128i(b)));
#else
  return (Ints(a << 16) >> 16) * (Ints(b << 16) >> 16) + (Ints(a) >> 16) * (Ints(b) >> 16);
#endif
}

// The upper byte, with its sign, of each half of a lane.
inline Bits upper_bytes(Bits x) {
  typedef int16_t Shorts __attribute__((vector_size(4 * kWidth)));
  return Bits(Shorts(x) >> 8);
}

// Pairs of bfloat16, the lower half of each from `low`.
inline Bits interleave(const bf16* low, const bf16* high) { return widen(low) | (widen(high) << 16); }

// The same of numbers that bfloat16 holds exactly, as it does all bytes.
inline Bits pair(Vec low, Vec high) { return bit_cast<Bits>(low) >> 16 | bit_cast<Bits>(high); }
inline Bits interleave(const int8_t* low, const int8_t* high) { return pair(load(low), load(high)); }

// Fetches `count` elements that will be read soon into the level-2 cache; level 1 has no room to spare.
template <class T>
inline void prefetch(const T* p, int count) {
  const char* first = reinterpret_cast<const char*>(p);
  for (ptrdiff_t line = 0; line < static_cast<ptrdiff_t>(sizeof(T)) * count; line += 64)
    __builtin_prefetch(first + line, 0, 2);
  asm volatile("");  // GCC leaves out calls of functions that do nothing but prefetch
}

template <bool kUpper, size_t... kLane>
inline Bits by_turns(Bits a, Bits b, std::index_sequence<kLane...>) {  // a0 b0 a1 b1, or a2 b2 a3 b3
  return __builtin_shufflevector(a, b, (kLane / 4 * 4 + kLane % 4 / 2 + 2 * kUpper + kLane % 2 * kWidth)...);
}
typedef uint64_t Pairs __attribute__((vector_size(4 * kWidth)));
template <bool kUpper, size_t... kPair>
inline Bits halves(Bits a, Bits b, std::index_sequence<kPair...>) {  // a0 a1 b0 b1, or a2 a3 b2 b3
  return Bits(__builtin_shufflevector(Pairs(a), Pairs(b), (kPair / 2 * 2 + kUpper + kPair % 2 * kWidth / 2)...));
}
// The squares of 4 x 4 lanes in four vectors, transposed: lane i of each four in out[i].
inline void transpose_fours(const Bits (&v)[4], Bits (&out)[4]) {
  constexpr auto lanes = std::make_index_sequence<kWidth>();
  constexpr auto pairs = std::make_index_sequence<kWidth / 2>();
  const Bits low01 = by_turns<false>(v[0], v[1], lanes), high01 = by_turns<true>(v[0], v[1], lanes);
  const Bits low23 = by_turns<false>(v[2], v[3], lanes), high23 = by_turns<true>(v[2], v[3], lanes);
  out[0] = halves<false>(low01, low23, pairs);
  out[1] = halves<true>(low01, low23, pairs);
  out[2] = halves<false>(high01, high23, pairs);
  out[3] = halves<true>(high01, high23, pairs);
}

// All lanes of each of four vectors, in lanes 0 to 3; in the same order for each.
template <class Op>
inline Vec reduce_four(const Vec (&v)[4], const Op& op) {
  constexpr auto lanes = std::make_index_sequence<kWidth>();
  const Bits rows[4] = {Bits(v[0]), Bits(v[1]), Bits(v[2]), Bits(v[3])};
  Bits lane[4];
  transpose_fours(rows, lane);
  Vec all = op(op(Vec(lane[0]), Vec(lane[1])), op(Vec(lane[2]), Vec(lane[3])));
  if constexpr (kWidth > 8) all = reduce_once<8>(all, op, lanes);
  if constexpr (kWidth > 4) all = reduce_once<4>(all, op, lanes);
  return all;
}

// Four 32-bit lanes of each of kWidth rows: out[i] is the i-th of every row. `row(i)` points to those of row i.
//
// Each vector takes 16 bytes of every fourth row; transposing fours takes two rounds of instructions that don't
// cross 16 bytes.
template <class Row>
inline void load_transposed(const Row& row, Bits (&out)[4]) {
  Bits v[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#if defined(__AVX512F__)
    const auto at = [&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row(r))); };
    __m512i whole = _mm512_inserti32x4(_mm512_castsi128_si512(at(i)), at(4 + i), 1);
    whole = _mm512_inserti32x4(whole, at(8 + i), 2);
    v[i] = Bits(_mm512_inserti32x4(whole, at(12 + i), 3));
#elif defined(__AVX2__)
    const auto at = [&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row(r))); };
    v[i] = Bits(_mm256_inserti128_si256(_mm256_castsi128_si256(at(i)), at(4 + i), 1));
#else
    memcpy(&v[i], row(i), sizeof(Bits));
#endif
  }
  transpose_fours(v, out);
}

// Transposes a square of 32-bit lanes in place.
//
// log2(kWidth) rounds; a round with stride s swaps the off-diagonal s x s quarters of every 2s x 2s square,
// which is one two-source shuffle for each of the two rows concerned.
template <int kStride, size_t... kLane>
inline void transpose_round(Bits* rows, std::index_sequence<kLane...>) {
  constexpr int kOther = kWidth - kStride;  // from a lane to the one kStride before it in the second source
  for (int i = 0; i < kWidth; ++i) {
    if ((i / kStride) % 2) continue;
    const Bits a = rows[i], b = rows[i + kStride];
    rows[i] = __builtin_shufflevector(a, b, (kLane / kStride % 2 ? kLane + kOther : kLane)...);
    rows[i + kStride] = __builtin_shufflevector(a, b, (kLane / kStride % 2 ? kLane + kWidth : kLane + kStride)...);
  }
}

inline void transpose(Bits (&rows)[kWidth]) {
  constexpr auto lanes = std::make_index_sequence<kWidth>();
  if constexpr (kWidth > 8) transpose_round<8>(rows, lanes);
  if constexpr (kWidth > 4) transpose_round<4>(rows, lanes);
  transpose_round<2>(rows, lanes);
  transpose_round<1>(rows, lanes);
}

}  // namespace trunkline
