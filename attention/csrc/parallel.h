// Memory and threads.
//
// Threads are those of the OpenMP runtime that torch brought into the process: the library is compiled for
// OpenMP but names no runtime of its own, so there can never be a second pool of threads.
#pragma once

#include <omp.h>

#include <cstdlib>
#include <new>

namespace trunkline {

// Memory on a cache line's boundary that only ever grows. Its contents do not survive growing.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr, other.size_ = 0; }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { free(data_); }

  void reserve(size_t bytes) {
    if (bytes <= size_) return;
    bytes = (bytes + 63) / 64 * 64;
    free(data_);
    size_ = 0;
    data_ = static_cast<char*>(aligned_alloc(64, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
    size_ = bytes;
  }
  template <class T = char>
  T* data() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

// Runs body(i) for i in [0, count) on up to num_threads threads, in equal contiguous parts; small jobs stay
// on the calling thread. `grain` is the count that is worth waking a thread for.
template <class Body>
inline void parallel_for(int count, int grain, int num_threads, const Body& body) {
  const int wanted = (count + grain - 1) / grain;
  const int threads = wanted < num_threads ? wanted : num_threads;
  if (threads <= 1) {
    for (int i = 0; i < count; ++i) body(i);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int i = 0; i < count; ++i) body(i);
}

}  // namespace trunkline
