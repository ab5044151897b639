// Activations as bytes: a scale for each row, and q + 128 for each element.
#pragma once

#include <algorithm>
#include <type_traits>

#include "storage.h"

namespace trunkline {

// The largest magnitude of a row. Magnitudes are ordered as their bits are, and above them all is what is not finite: it
// makes the result NaN.
template <class T>
inline float largest(const T* x, int count) {
  using Whole = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  typedef Whole Lanes __attribute__((vector_size(4 * kWidth)));
  constexpr int kLanes = sizeof(Lanes) / sizeof(T);
  constexpr Whole kMagnitude = static_cast<Whole>(~Whole{}) >> 1;
  Lanes most = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes bits;
    memcpy(&bits, x + i, sizeof(bits));
    bits &= kMagnitude;
    most = bits > most ? bits : most;
  }
  Whole found = 0;
  for (int lane = 0; lane < kLanes; ++lane) found = std::max<Whole>(found, most[lane]);
  for (; i < count; ++i) found = std::max<Whole>(found, bit_cast<Whole>(x[i]) & kMagnitude);
  const float value = to_float(bit_cast<T>(found));
  return value - value == 0.0f ? value : __builtin_nanf("");
}

// bytes has room for 4 * words elements; what lies behind in_features becomes zero, which meets zero weights.
template <class T>
inline void quantize_row(const T* x, int in_features, int words, uint8_t* bytes, float* row_scale) {
  const float scale = largest(x, in_features) / 127.0f;
  *row_scale = scale;
  // Adding 1.5 * 2^23 rounds to a whole number, which then lies in the low bits. (Not an fma: levels without
  // one would round otherwise.)
  const Vec inverse = splat(scale > 0.0f ? 1.0f / scale : 0.0f), magic = splat(12582912.0f + 128.0f);
  int i = 0;
  for (; i + kWidth <= in_features; i += kWidth) {
    typedef uint8_t Bytes __attribute__((vector_size(kWidth)));
    const Bytes q = __builtin_convertvector(bit_cast<Bits>(load(x + i) * inverse + magic) & 0xff, Bytes);
    memcpy(bytes + i, &q, sizeof(q));
  }
  for (; i < in_features; ++i)
    bytes[i] = static_cast<uint8_t>(bit_cast<uint32_t>((splat(to_float(x[i])) * inverse + magic)[0]));
  std::fill(bytes + i, bytes + 4 * words, uint8_t{0});  // times zero weights
}

}  // namespace trunkline
