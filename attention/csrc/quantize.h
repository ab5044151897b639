// Activations as bytes: a scale for each row, and q + 128 for each element.
#pragma once

#include <algorithm>

#include "storage.h"

namespace trunkline {

// bytes has room for 4 * words elements; what lies behind in_features becomes zero, which meets zero weights.
template <class T>
inline void quantize_row(const T* x, int in_features, int words, uint8_t* bytes, float* row_scale) {
  Vec most = {}, poison = {};  // the latter 0, or NaN where x is not finite: then so is the whole result
  for_each_vec(in_features, [&](int i, auto part) {
    const Vec value = part.load(x + i);
    most = max(most, max(value, -value));
    poison = fma(value, Vec{}, poison);
  });
  const float scale = reduce_max(most) / 127.0f + reduce_add(poison);
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
