// Activations as whole numbers of a byte: a scale for each row, and q + 128 for each element.
#pragma once

#include <algorithm>
#include <type_traits>

#include "matmul_int8.h"
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

// The order in which the product wants numbers: as they come, or where they are pairs of 16 bits each four as 0 2 1 3.
constexpr size_t place_of(size_t i) {
  return ByteMath::kFactors == 1 || i % 4 == 0 || i % 4 == 3 ? i : i % 4 == 1 ? i + 1 : i - 1;
}
template <class Numbers, size_t... kLane>
inline Numbers in_place(Numbers q, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(q, q, place_of(kLane)...);
}

// `to` has room for 4 * words elements; what lies behind in_features becomes zero, which meets zero weights.
template <class T>
inline void quantize_row(const T* x, int in_features, int words, ByteMath::Element* to, float* row_scale) {
  using Number = ByteMath::Element;
  const float scale = largest(x, in_features) / 127.0f;
  *row_scale = scale;
  // Adding 1.5 * 2^23 rounds to a whole number, which then lies in the low bits. (Not an fma: levels without
  // one would round otherwise.)
  const Vec inverse = splat(scale > 0.0f ? 1.0f / scale : 0.0f), magic = splat(12582912.0f + 128.0f);
  int i = 0;
  for (; i + kWidth <= in_features; i += kWidth) {
    const auto q = narrow_to<Number>(bit_cast<Bits>(load(x + i) * inverse + magic) & 0xff);
    const auto placed = in_place(q, std::make_index_sequence<kWidth>());
    memcpy(to + i, &placed, sizeof(placed));
  }
  std::fill(to + i, to + 4 * words, Number{0});  // times zero weights
  for (; i < in_features; ++i)
    to[place_of(static_cast<size_t>(i))] =
        static_cast<uint8_t>(bit_cast<uint32_t>((splat(to_float(x[i])) * inverse + magic)[0]));
}

}  // namespace trunkline
