// silu(gate) * up, where gate and up are the two halves of a row.
#include "parallel.h"
#include "simd.h"
#include "storage.h"

namespace trunkline {

struct SiluMul {
  const void* gate_up;  // [rows, 2 * cols]
  void* out;            // [rows, cols]
  int64_t stride;       // of gate_up, from row to row; out is dense
  int32_t rows, cols;
  Storage storage;
  int32_t num_threads;
};

inline void run(const SiluMul& job) {
  with_storage(job.storage, [&](auto t) {
    using T = decltype(t);
    parallel_for(job.rows, 16, job.num_threads, [&](int row) {
      const T* gate = static_cast<const T*>(job.gate_up) + row * job.stride;
      const T* up = gate + job.cols;
      T* out = static_cast<T*>(job.out) + static_cast<ptrdiff_t>(row) * job.cols;
      for_each_vec(job.cols, [&](int col, auto part) {
        part.store(out + col, silu(part.load(gate + col)) * part.load(up + col));
      });
    });
  });
}

}  // namespace trunkline
