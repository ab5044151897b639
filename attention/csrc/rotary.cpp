// From the fused projection to rotated queries, and keys and values in their pages, in one pass.
//
// A pair of the rotary embedding is one coordinate from each half of a head (as transformers has it).
#include "parallel.h"
#include "simd.h"
#include "storage.h"

namespace trunkline {

struct RotaryStore {
  const void* qkv;  // [tokens, num_heads + 2 num_kv_heads, head_dim]
  void* q;          // [tokens, num_heads, head_dim], dense
  void* k_pool;     // [slots, num_kv_heads, head_dim], dense, as v_pool
  void* v_pool;
  const float* cos;  // [positions, head_dim / 2], as sin
  const float* sin;
  const int64_t* positions;
  const int64_t* slots;
  const void* norm_weight;  // [num_heads + num_kv_heads, head_dim]: RMSNorm of each head before it is turned; or null
  int64_t qkv_stride;       // from token to token
  int32_t tokens, num_heads, num_kv_heads, head_dim;
  float norm_eps;
  Storage storage;
  int32_t num_threads;
};

// Keys that were rotated elsewhere, and values: into their pages as they are.
struct Store {
  const void* k;  // [tokens, num_kv_heads * head_dim]
  const void* v;
  void* k_pool;
  void* v_pool;
  const int64_t* slots;
  int64_t k_stride, v_stride;  // from token to token, in bytes
  int32_t tokens, row_bytes;
  int32_t num_threads;
};

template <class T>
inline void rotate_head(const T* x, T* out, const float* cos, const float* sin, const T* norm_weight, float eps,
                        int head_dim) {
  const int half = head_dim / 2;
  Vec scale = splat(1.0f);
  if (norm_weight != nullptr) {
    Vec squares = {};
    for_each_vec(head_dim, [&](int i, auto part) {
      const Vec value = part.load(x + i);
      squares = fma(value, value, squares);
    });
    scale = splat(1.0f / __builtin_sqrtf(reduce_add(squares) / static_cast<float>(head_dim) + eps));
  }
  for_each_vec(half, [&](int i, auto part) {
    Vec first = part.load(x + i), second = part.load(x + half + i);
    if (norm_weight != nullptr) {
      first = first * scale * part.load(norm_weight + i);
      second = second * scale * part.load(norm_weight + half + i);
    }
    const Vec c = part.load(cos + i), s = part.load(sin + i);
    part.store(out + i, fma(first, c, -(second * s)));
    part.store(out + half + i, fma(second, c, first * s));
  });
}

template <class T>
void rotate_and_store(const RotaryStore& job, int token) {
  const ptrdiff_t head_dim = job.head_dim, kv_size = job.num_kv_heads * head_dim;
  const T* row = static_cast<const T*>(job.qkv) + token * job.qkv_stride;
  const float* cos = job.cos + job.positions[token] * (head_dim / 2);
  const float* sin = job.sin + job.positions[token] * (head_dim / 2);
  T* q = static_cast<T*>(job.q) + token * job.num_heads * head_dim;
  T* k = static_cast<T*>(job.k_pool) + job.slots[token] * kv_size;
  for (ptrdiff_t head = 0; head < job.num_heads + job.num_kv_heads; ++head) {
    const T* weight = job.norm_weight == nullptr ? nullptr : static_cast<const T*>(job.norm_weight) + head * head_dim;
    T* out = head < job.num_heads ? q + head * head_dim : k + (head - job.num_heads) * head_dim;
    rotate_head(row + head * head_dim, out, cos, sin, weight, job.norm_eps, job.head_dim);
  }
  const T* v = row + (job.num_heads + job.num_kv_heads) * head_dim;
  memcpy(static_cast<T*>(job.v_pool) + job.slots[token] * kv_size, v, sizeof(T) * static_cast<size_t>(kv_size));
}

inline void run(const RotaryStore& job) {
  with_storage(job.storage, [&](auto t) {
    using T = decltype(t);
    parallel_for(job.tokens, 16, job.num_threads, [&](int token) { rotate_and_store<T>(job, token); });
  });
}

inline void run(const Store& job) {
  const auto bytes = static_cast<size_t>(job.row_bytes);
  parallel_for(job.tokens, 64, job.num_threads, [&](int token) {
    const ptrdiff_t to = job.slots[token] * job.row_bytes;
    memcpy(static_cast<char*>(job.k_pool) + to, static_cast<const char*>(job.k) + token * job.k_stride, bytes);
    memcpy(static_cast<char*>(job.v_pool) + to, static_cast<const char*>(job.v) + token * job.v_stride, bytes);
  });
}

}  // namespace trunkline
