// Products of activations with packed weights: out = x * weight^T.
//
// Weights lie in strips of 32 outputs, each front to back in the order in which it is read:
//
//     [out / 32 strips][words along in_features][32 outputs]      a word: one float, two bf16 or four int8
//
// A strip times a block of 32 rows is the unit of arithmetic. Few rows are bound by the memory that the strips are
// read from, many by the products. Every result is one chain of multiply-adds in ascending order of in_features: it
// has the same bits whatever the other rows are and however many threads there are.
#pragma once

#include <algorithm>

#include "matmul_int8.h"
#include "quantize.h"
#include "team.h"

namespace trunkline {

constexpr int kOutputs = 32;    // of a strip
constexpr int kBlockRows = 32;  // rows that are multiplied together
constexpr int kCachedRows = 512;  // rows that stay in the level-2 cache while all strips pass by

enum class Weights : int32_t { kDense = 0, kInt8 = 1 };

struct Linear {
  const void* weight;
  const float* scale;   // of each output; int8 only
  const int32_t* sum;   // 128 * sum of each output's weights; int8 only
  const float* bias;    // of each output, or null
  int32_t in_features, out_features;
  int32_t words;        // along in_features, padded
  Weights kind;
  int32_t gated;        // outputs are sixteens of gate and of up by turns; what is stored is silu(gate) * up

  int stored() const { return gated ? out_features / 2 : out_features; }
  int strips() const { return (out_features + kOutputs - 1) / kOutputs; }
};

// Activations. Memory behind them must be readable up to a multiple of 16 rows.
struct Rows {
  const void* data;  // [count, stride] of the storage's type, or four bytes a word
  const float* scale;  // of each row, where they are bytes
  ptrdiff_t stride;  // in words
  int count;
};

// sums [rows x 32] = a block of at most 32 rows times a strip.
template <class Math>
inline void strip_product(const Word* a, int a_stride, const Word* strip, int rows, int words, float* sums) {
#if defined(__AMX_BF16__)
  if constexpr (kHasTiles<Math>) {
    const auto product = rows > 16 ? matmul_tiles<Math, true, true> : matmul_tiles<Math, false, true>;
    return product(a, a_stride, strip, kOutputs, sums, kOutputs, words);
  }
#endif
  matmul_strip<Math, kOutputs / kWidth>(a, a_stride, strip, kOutputs, sums, kOutputs, rows, words);
}

// What a row's sums with a strip mean.
inline void finish_row(const Linear& linear, const Rows& x, int row, int first, float* sums) {
  const int count = std::min(kOutputs, linear.out_features - first);
  if (linear.kind == Weights::kInt8) {
    const Vec row_scale = splat(x.scale[row]);
    for_each_vec(count, [&](int i, auto part) {
      const Ints offset = bit_cast<Ints>(part.load(reinterpret_cast<const float*>(linear.sum) + first + i));
      const Ints sum = bit_cast<Ints>(load(sums + i)) - offset;
      store(sums + i, __builtin_convertvector(sum, Vec) * (row_scale * part.load(linear.scale + first + i)));
    });
  }
  if (linear.bias != nullptr)
    for_each_vec(count, [&](int i, auto part) { store(sums + i, load(sums + i) + part.load(linear.bias + first + i)); });
}

template <class T>
inline void store_row(const Linear& linear, int row, int first, const float* sums, T* out) {
  out += static_cast<ptrdiff_t>(row) * linear.stored();
  if (!linear.gated) {
    for_each_vec(std::min(kOutputs, linear.out_features - first),
                 [&](int i, auto part) { part.store(out + first + i, load(sums + i)); });
    return;
  }
  constexpr int kHalf = kOutputs / 2;
  for (int i = 0; i < kHalf; i += kWidth) {
    const Vec gate = load(sums + i), up = load(sums + kHalf + i);
    store(out + first / 2 + i, gate * sigmoid(gate) * up);
  }
}

template <class Math, class Out>
inline void multiply(Team::Member& team, const Linear& linear, const Rows& x, Out* out) {
  const int strips = linear.strips(), passes = (x.count + kCachedRows - 1) / kCachedRows;
  const auto strip_size = static_cast<ptrdiff_t>(linear.words) * kOutputs;
  team.share(strips * passes, [&](int item) {
    alignas(64) float sums[kBlockRows * kOutputs];
    const int strip = item % strips, begin = item / strips * kCachedRows;
    const int end = std::min(begin + kCachedRows, x.count);
    const Word* weight = static_cast<const Word*>(linear.weight) + strip * strip_size;
    for (int row = begin; row < end; row += kBlockRows) {
      const int count = std::min(kBlockRows, end - row);
      strip_product<Math>(static_cast<const Word*>(x.data) + row * x.stride, static_cast<int>(x.stride), weight, count,
                          linear.words, sums);
      for (int i = 0; i < count; ++i) {
        finish_row(linear, x, row + i, strip * kOutputs, sums + i * kOutputs);
        store_row(linear, row + i, strip * kOutputs, sums + i * kOutputs, out);
      }
    }
  });
}

template <class T>
struct DenseMath {
  using Type = BestPairMath;
};
template <>
struct DenseMath<float> {
  using Type = FloatMath;
};

// out [x.count, linear.stored()] of float or T, which is the type of x unless the weights are bytes.
template <class T, class Out>
inline void multiply_any(Team::Member& team, const Linear& linear, const Rows& x, Out* out) {
  if (linear.kind == Weights::kInt8)
    multiply<BestByteMath>(team, linear, x, out);
  else
    multiply<typename DenseMath<T>::Type>(team, linear, x, out);
}

// One product on its own.
struct LinearJob {
  Linear linear;
  const void* x;  // [rows, in_features], dense
  void* out;      // [rows, stored()], dense, of x's type
  Storage storage;
  int32_t rows, num_threads;
};

inline void run(const LinearJob& job) {
  with_storage(job.storage, [&](auto t) {
    using T = decltype(t);
    const Linear& linear = job.linear;
    const Rows x{job.x, nullptr, linear.in_features * static_cast<ptrdiff_t>(sizeof(T)) / 4, job.rows};
    Team::run(job.num_threads, [&](Team::Member& team) {
      Registers registers;
      multiply<typename DenseMath<T>::Type>(team, linear, x, static_cast<T*>(job.out));
    });
  });
}

}  // namespace trunkline
