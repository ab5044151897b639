// From the fused projection to rotated queries, and keys and values in their pages, in one pass.
//
// A pair of the rotary embedding is one coordinate from each half of a head (as transformers has it).
#include "matmul.h"
#include "pages.h"
#include "parallel.h"

namespace trunkline {

struct RotaryStore {
  const void* qkv;  // [tokens, num_heads + 2 num_kv_heads, head_dim]
  void* q;          // [tokens, num_heads, head_dim], dense
  Pages pages;
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

// Keys that were rotated elsewhere, and values: into their pages.
struct Store {
  const void* k;  // [tokens, num_kv_heads * head_dim]
  const void* v;
  Pages pages;
  const int64_t* slots;
  int64_t k_stride, v_stride;  // from token to token
  int32_t tokens, num_kv_heads, head_dim;
  Storage storage;
  int32_t num_threads;
};

template <class T, class Out>
inline void rotate_head(const T* x, Out* out, const float* cos, const float* sin, const T* norm_weight, float eps,
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
  const ptrdiff_t head_dim = job.head_dim;
  const int64_t slot = job.slots[token];
  const T* x = static_cast<const T*>(job.qkv) + token * job.qkv_stride;
  const T* weight = static_cast<const T*>(job.norm_weight);
  const auto rotate = [&](auto* out) {
    const float* cos = job.cos + job.positions[token] * (head_dim / 2);
    const float* sin = job.sin + job.positions[token] * (head_dim / 2);
    rotate_head(x, out, cos, sin, weight, job.norm_eps, job.head_dim);
    x += head_dim;
    if (weight != nullptr) weight += head_dim;
  };
  T* q = static_cast<T*>(job.q) + token * job.num_heads * head_dim;
  for (int head = 0; head < job.num_heads; ++head) rotate(q + head * head_dim);
  for (int head = 0; head < job.num_kv_heads; ++head) {
    if (job.pages.storage == Storage::kInt8) {
      float k[kMaxHeadDim];
      rotate(k);
      job.pages.store(job.pages.k, slot, head, k, job.head_dim);
    } else {
      rotate(static_cast<T*>(job.pages.k) + job.pages.offset(slot, head));
    }
  }
  for (int head = 0; head < job.num_kv_heads; ++head, x += head_dim)
    job.pages.store(job.pages.v, slot, head, x, job.head_dim);
}

inline void run(const RotaryStore& job) {
  with_storage(job.storage, [&](auto t) {
    using T = decltype(t);
    parallel_for(job.tokens, 16, job.num_threads, [&](int token) { rotate_and_store<T>(job, token); });
  });
}

inline void run(const Store& job) {
  with_storage(job.storage, [&](auto t) {
    using T = decltype(t);
    parallel_for(job.tokens, 64, job.num_threads, [&](int token) {
      const T* k = static_cast<const T*>(job.k) + token * job.k_stride;
      const T* v = static_cast<const T*>(job.v) + token * job.v_stride;
      for (int head = 0; head < job.num_kv_heads; ++head, k += job.head_dim, v += job.head_dim) {
        job.pages.store(job.pages.k, job.slots[token], head, k, job.head_dim);
        job.pages.store(job.pages.v, job.slots[token], head, v, job.head_dim);
      }
    });
  });
}

}  // namespace trunkline
