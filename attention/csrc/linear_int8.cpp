// out = x * weight^T with int8 weights (a scale for each output) and x quantised row by row as it comes.
//
// Memory bounds a few rows: half of bf16's bytes. Many rows are bound by the dot products: twice bf16's rate.
// Bytes of x are stored as q + 128, because the dot products want one unsigned factor; what that adds to
// a sum, 128 * the sum of the weights, is known beforehand.
#include <algorithm>

#include "quantize.h"
#include "parallel.h"
#include "matmul_int8.h"

namespace trunkline {

struct Int8Linear {
  const void* x;               // [rows, in_features]
  const int8_t* weight;        // strips of kStrip outputs: [out / kStrip, words, kStrip, 4]
  const float* weight_scale;   // [out_features]
  const int32_t* weight_sum;   // [out_features]: 128 * sum over in_features
  const float* bias;           // [out_features], or null
  void* out;                   // [rows, out_features], dense
  uint8_t* bytes;              // [rows rounded up to 16, 4 * words], for x
  float* row_scale;            // [rows], for x
  int64_t x_stride;            // from row to row
  int32_t rows, in_features, words, out_features;
  Storage storage;
  int32_t num_threads;
};

// Rows [first, first + count) of the outputs of one strip.
template <class T>
void linear_block(const Int8Linear& job, int strip, int first, int count) {
  constexpr int kMaxCount = 32;
  alignas(64) float sums[kMaxCount * kStrip];
  const ptrdiff_t words = job.words;
  const Panel panel{const_cast<Word*>(reinterpret_cast<const Word*>(job.weight)) + strip * words * kStrip, job.words,
                    kStrip};
  matmul<BestByteMath>(reinterpret_cast<const Word*>(job.bytes) + first * words, job.words, panel, sums, kStrip, count,
                       kStrip, job.words);
  const int col = strip * kStrip, cols = std::min(kStrip, job.out_features - col);
  for (int i = 0; i < count; ++i) {
    T* out = static_cast<T*>(job.out) + static_cast<ptrdiff_t>(first + i) * job.out_features + col;
    const Vec row_scale = splat(job.row_scale[first + i]);
    for_each_vec(cols, [&](int c, auto part) {
      const Vec offset = part.load(reinterpret_cast<const float*>(job.weight_sum) + col + c);
      const Ints sum = bit_cast<Ints>(load(sums + i * kStrip + c)) - bit_cast<Ints>(offset);
      const Vec scaled = __builtin_convertvector(sum, Vec) * (row_scale * part.load(job.weight_scale + col + c));
      part.store(out + c, job.bias == nullptr ? scaled : scaled + part.load(job.bias + col + c));
    });
  }
}

inline void run(const Int8Linear& job) {
  constexpr int kBlock = 32;
  const int strips = (job.out_features + kStrip - 1) / kStrip;
  with_storage(job.storage, [&](auto t) {
    using T = decltype(t);
    parallel_for(job.rows, 16, job.num_threads, [&](int row) { 
      quantize_row(static_cast<const T*>(job.x) + row * job.x_stride, job.in_features, job.words,
                   job.bytes + static_cast<ptrdiff_t>(row) * 4 * job.words, &job.row_scale[row]);
    });
#pragma omp parallel num_threads(job.num_threads) if (job.num_threads > 1)
    {
      BestByteMath::begin();
#pragma omp for schedule(static)
      for (int strip = 0; strip < strips; ++strip)
        for (int row = 0; row < job.rows; row += kBlock) linear_block<T>(job, strip, row, std::min(kBlock, job.rows - row));
      BestByteMath::end();
    }
  });
}

}  // namespace trunkline
