// The softmax of one tile of keys, and how the results of two tiles become one.
//
// A tile's result for one query head is (peak, sum, values): the largest logit, the sum of the weights
// 2^(logit - peak) and the values they weigh. Each tile starts anew and is then merged into what the tiles
// before it gave, always in ascending order. So it makes no difference whether one thread goes through
// all tiles or many share them (flash-decoding), nor with which other queries a tile was computed.
#pragma once

#include "matmul.h"

namespace trunkline {

constexpr float kNothing = -__builtin_inff();  // the peak of a tile of which a query sees no key

struct Logits {
  float scale;  // as the model has it
  float soft_cap;  // 0: none

  // Logits are in units of log 2, so that weights are powers of two: factor() times what capped() leaves of a score.
  float factor() const { return soft_cap == 0.0f ? scale * kLog2E : soft_cap * kLog2E; }
  Vec capped(Vec x) const { return soft_cap == 0.0f ? x : tanh(x * (scale / soft_cap)); }
};

// Which keys of a tile a query sees: first <= key < last.
struct Visible {
  int first, last;
};

// Whether all of kWidth keys are.
inline bool is_seen(int key, Visible visible) { return visible.first <= key && key + kWidth <= visible.last; }

inline Vec hide(Vec logits, int key, Visible visible) {
  if (is_seen(key, visible)) return logits;
  Ints lane;
  for (int i = 0; i < kWidth; ++i) lane[i] = key + i;
  return (lane >= visible.first) & (lane < visible.last) ? logits : splat(kNothing);
}

// What the scores of a tile's keys and the weights of its values are multiplied with: nothing, or a factor each.
struct NoScales {
  static constexpr bool kScales = false;
  Vec score(Vec x, int) const { return x; }
  Vec weight(Vec x, int) const { return x; }
};
struct Scales {
  static constexpr bool kScales = true;
  const float* keys;
  const float* values;

  Vec score(Vec x, int key) const { return x * load(keys + key); }
  Vec weight(Vec x, int key) const { return x * load(values + key); }
};

constexpr int kFour = 4;  // rows whose softmax is computed together

// Turns scores [kFour, stride] into weights, of float or bf16, for the first `rows` of them and so many keys, a multiple
// of 32. Leaves a peak and a sum for each of kFour rows. The weights are scaled after they were summed.
template <class Element, class AnyScales>
inline void softmax_rows(float* scores, Element* weights, int stride, int rows, int keys, const Visible* visible,
                         const Logits& logits, const AnyScales& scales, float* peaks, float* sums) {
  Vec most[kFour], totals[kFour] = {};
  for (Vec& vec : most) vec = splat(kNothing);
  for (int row = 0; row < rows; ++row) {
    float* const these = scores + row * stride;
    const Visible seen = visible[row];
    if (!AnyScales::kScales && logits.soft_cap == 0.0f && seen.first == 0 && seen.last >= keys) {
      for (int key = 0; key < keys; key += kWidth) most[row] = max(most[row], load(these + key));
      continue;
    }
    for (int key = 0; key < keys; key += kWidth) {
      const Vec x = hide(logits.capped(scales.score(load(these + key), key)), key, seen);
      store(these + key, x);
      most[row] = max(most[row], x);
    }
  }
  const Vec factor = splat(logits.factor());
  const Vec top = reduce_four(most, [](Vec a, Vec b) { return max(a, b); }) * factor;
  // Where nothing is visible every weight has to come out as 2^-infinity = 0.
  const Vec shifts = top == splat(kNothing) ? Vec{} : -top;
  for (int row = 0; row < rows; ++row) {
    const Vec shift = splat(shifts[row]);
    for (int key = 0; key < keys; key += kWidth) {
      const Vec weight = exp2(fma(load(scores + row * stride + key), factor, shift));
      totals[row] += weight;
      store(weights + row * stride + key, scales.weight(weight, key));
    }
  }
  const Vec total = reduce_four(totals, [](Vec a, Vec b) { return a + b; });
  memcpy(peaks, &top, sizeof(float) * kFour);
  memcpy(sums, &total, sizeof(float) * kFour);
}

// How to weigh the two sides of a merge: values = before * values + after * values of the tile.
struct MergeFactors {
  Vec peak, before, after;
};

inline MergeFactors merge_factors(Vec peak, Vec tile_peak) {
  const Vec top = max(peak, tile_peak);
  const Vec shift = top == splat(kNothing) ? Vec{} : top;
  return {top, exp2(peak - shift), exp2(tile_peak - shift)};
}

inline Vec merge(Vec value, Vec before, Vec tile_value, Vec after) { return fma(value, before, tile_value * after); }

}  // namespace trunkline
