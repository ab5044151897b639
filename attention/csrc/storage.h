// Number formats in memory, and loops over rows in whole vectors.
#pragma once

#include "simd.h"

namespace trunkline {

enum class Storage : int32_t { kFloat = 0, kBf16 = 1, kInt8 = 2 };

// Calls body with a value of the type that `storage` names: float or bf16.
template <class Body>
inline void with_storage(Storage storage, const Body& body) {
  if (storage == Storage::kFloat)
    body(float{});
  else
    body(bf16{});
}

// A vector of which only the first `count` elements are there, if those: others are zero, or stay as they are.
template <class T>
inline Vec load_up_to(const T* p, int count) {
  return count >= kWidth ? load(p) : count > 0 ? load_first(p, count) : Vec{};
}
template <class T>
inline void store_up_to(T* p, Vec v, int count) {
  if (count >= kWidth)
    store(p, v);
  else if (count > 0)
    store_first(p, v, count);
}

struct WholeVec {
  template <class T>
  Vec load(const T* p) const {
    return trunkline::load(p);
  }
  template <class T>
  void store(T* p, Vec v) const {
    trunkline::store(p, v);
  }
};

struct PartOfVec {
  int count;
  template <class T>
  Vec load(const T* p) const {
    return load_first(p, count);
  }
  template <class T>
  void store(T* p, Vec v) const {
    store_first(p, v, count);
  }
};

// Calls body(first, part) for each vector of [0, count); `part` loads and stores what there is of it.
template <class Body>
inline void for_each_vec(int count, const Body& body) {
  int i = 0;
  for (; i + kWidth <= count; i += kWidth) body(i, WholeVec{});
  if (i < count) body(i, PartOfVec{count - i});
}

}  // namespace trunkline
