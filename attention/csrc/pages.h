// Where the keys and values of a layer lie, and how they are written there.
#pragma once

#include "quantize.h"

namespace trunkline {

// [pages, page_size, num_kv_heads, head_dim]; strides count elements. A row of int8 has a float scale, the size of its
// units: a page's scales [num_kv_heads, page_size] begin `scales` bytes after the page.
struct Pages {
  void* k;
  void* v;
  int64_t page_stride, slot_stride, kv_head_stride, scales;
  int32_t page_size;
  Storage storage;

  int64_t offset(int64_t slot, int head) const {
    return slot / page_size * page_stride + slot % page_size * slot_stride + head * kv_head_stride;
  }
  float* scales_of(void* pool, int64_t page, int head) const {
    return reinterpret_cast<float*>(static_cast<char*>(pool) + page * page_stride + scales) +
           static_cast<ptrdiff_t>(head) * page_size;
  }

  // Writes a row of `pool`, k or v. x is of the pages' type, or is rounded to int8.
  template <class T>
  void store(void* pool, int64_t slot, int head, const T* x, int head_dim) const {
    if (storage != Storage::kInt8) {
      memcpy(static_cast<T*>(pool) + offset(slot, head), x, sizeof(T) * static_cast<size_t>(head_dim));
      return;
    }
    const float scale = largest(x, head_dim) / 127.0f;
    const Vec inverse = splat(scale > 0.0f ? 1.0f / scale : 0.0f);
    int8_t* row = static_cast<int8_t*>(pool) + offset(slot, head);
    for_each_vec(head_dim, [&](int i, auto part) { part.store(row + i, part.load(x + i) * inverse); });
    scales_of(pool, slot / page_size, head)[slot % page_size] = scale;
  }
};

}  // namespace trunkline
