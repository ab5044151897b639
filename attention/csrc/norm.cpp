// RMSNorm, with the addition of the residual stream that comes before it, in one pass over each row.
#include "parallel.h"
#include "simd.h"
#include "storage.h"

namespace trunkline {

struct Norm {
  const void* x;
  void* residual;  // null: norm x alone; else residual += x, and norm that
  const void* weight;
  void* out;
  int64_t x_stride, residual_stride;  // from row to row; out is dense
  int32_t rows, cols;
  float eps;
  Storage storage;
  int32_t num_threads;
};

template <class T>
void norm_row(const Norm& norm, int row) {
  const T* x = static_cast<const T*>(norm.x) + row * norm.x_stride;
  const T* weight = static_cast<const T*>(norm.weight);
  T* out = static_cast<T*>(norm.out) + static_cast<ptrdiff_t>(row) * norm.cols;
  T* sum = norm.residual == nullptr ? nullptr : static_cast<T*>(norm.residual) + row * norm.residual_stride;
  Vec squares = {};
  for_each_vec(norm.cols, [&](int col, auto part) {
    Vec value = part.load(x + col);
    if (sum != nullptr) {
      part.store(sum + col, value + part.load(sum + col));
      value = part.load(sum + col);  // rounded, as the next layer will read it
    }
    squares = fma(value, value, squares);
  });
  const T* values = sum != nullptr ? sum : x;
  const Vec scale = splat(1.0f / __builtin_sqrtf(reduce_add(squares) / static_cast<float>(norm.cols) + norm.eps));
  for_each_vec(norm.cols, [&](int col, auto part) {
    part.store(out + col, part.load(values + col) * scale * part.load(weight + col));
  });
}

inline void run(const Norm& norm) {
  with_storage(norm.storage, [&](auto t) {
    using T = decltype(t);
    parallel_for(norm.rows, 32, norm.num_threads, [&](int row) { norm_row<T>(norm, row); });
  });
}

}  // namespace trunkline
