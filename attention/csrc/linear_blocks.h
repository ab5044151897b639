// Products with weights in blocks (blocks.h), which are never inflated: what is read from memory are the file's own bits.
//
// x is rounded block by block, bfloat16 to 8 bits and float32 to 15. A block's product is whole numbers and exact; blocks
// are added up in float32, in ascending order:
//
//     out += x_scale * scale * dot(x_q, q)  +  x_scale * sum(x_q) * min
//
// Where there are tiles of bf16, many rows go another way: a strip is unpacked to it in the cache, once for all rows, and
// multiplied as if it had been dense. A row's bits depend on which way it goes, and on nothing else.
#pragma once

#include "blocks.h"
#include "linear.h"
#if defined(__AVX2__) && !defined(__AVX512F__)
#include "linear_blocks_avx2.h"
#endif

namespace trunkline {

constexpr int kGroupRows = 8;  // rows that are multiplied with a group together

// Rows [begin, begin + kRows) times one group, into sums of kOutputs a row.
template <class Group, int kPlanes, int kRows>
inline void group_product(const Group& group, const Rows& x, int begin, int num_blocks, float* sums) {
  using Reader = typename Group::Reader;
  const Word* bytes = static_cast<const Word*>(x.data) + begin * x.stride;
  const float* scales = x.scale + static_cast<ptrdiff_t>(begin) * 2 * num_blocks;
  Vec total[kRows] = {};
  for (int block = 0; block < num_blocks; ++block) {
    Bits weight[kBlockWords];
    Vec scale, min;
    if (begin == 0) group.fetch_behind(block);
    Reader::load(group.block(block), weight);
    group.load_scales(block, scale, min);
    for (int r = 0; r < kRows; ++r) {
      const float* x_scale = scales + 2 * (static_cast<ptrdiff_t>(r) * num_blocks + block);
      const Ints dot =
          dot_block<Reader::kWide, kPlanes>(weight, bytes + r * x.stride + kPlanes * block * kBlockWords);
      total[r] = fma(__builtin_convertvector(dot, Vec), scale * splat(x_scale[0]), total[r]);
      total[r] = fma(min, splat(x_scale[1]), total[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) store(sums + r * kOutputs, total[r]);
}

// group_product for one row, two rows and so on.
template <class Group, int kPlanes, int... kLess>
constexpr auto group_products(std::integer_sequence<int, kLess...>) {
  return std::array{&group_product<Group, kPlanes, kLess + 1>...};
}

template <class Group, int kPlanes, bool kGated, class Out>
inline void few_rows_times_strip(const Linear& linear, const Rows& x, int strip, int begin, int end, Out* out) {
  constexpr auto products = group_products<Group, kPlanes>(std::make_integer_sequence<int, kGroupRows>());
  alignas(64) float sums[kGroupRows * kOutputs];
  const int num_blocks = linear.in_features / kBlock;
  for (int row = begin; row < end; row += kGroupRows) {
    const int count = std::min(kGroupRows, end - row);
    const auto product = products[static_cast<size_t>(count - 1)];
    for (int col = 0; col < kOutputs; col += kWidth)
      product(Group(linear.group(strip, col / kWidth), num_blocks), x, row, num_blocks, sums + col);
    finish_rows<false, kGated>(linear, nullptr, strip * kOutputs, {sums, row, count}, 0, count, out);
  }
}

#if defined(__AMX_BF16__)
// A strip whose blocks can be had as dense ones of bf16.
template <class Group>
class UnpackedStrip {
 public:
  static constexpr int kSize = kBlock / 2 * kOutputs;  // words of a block

  UnpackedStrip(const Linear& linear, int strip)
      : num_blocks(linear.in_features / kBlock),
        groups_{{linear.group(strip, 0), num_blocks}, {linear.group(strip, 1), num_blocks}} {}

  void unpack(int block, Word* to) const {
    for (int i = 0; i < 2; ++i) {
      Vec scale, min;
      groups_[i].fetch_behind(block);
      groups_[i].load_scales(block, scale, min);
      unpack_block<!Group::Reader::kWide>(groups_[i].block(block), scale, min, to + i * kWidth, kOutputs);
    }
  }

  const int num_blocks;

 private:
  static_assert(kOutputs == 2 * kWidth);
  Group groups_[2];
};

// One block of rows: what is unpacked is used once, and does not leave the level-1 cache. The next block is unpacked
// while this one is multiplied.
template <class Group, bool kTwoRows>
inline void row_block_times_strip(const UnpackedStrip<Group>& strip, const Rows& x, int begin, float* sums) {
  constexpr int kSlots = 4;
  alignas(64) Word unpacked[kSlots][UnpackedStrip<Group>::kSize];
  const Word* a = static_cast<const Word*>(x.data) + begin * x.stride;
  SquareOfTiles<kTwoRows> tiles;
  strip.unpack(0, unpacked[0]);
  for (int block = 0; block < strip.num_blocks; ++block) {
    if (block + 1 < strip.num_blocks) strip.unpack(block + 1, unpacked[(block + 1) % kSlots]);
    tiles.add(a + block * kBlock / 2, x.stride, unpacked[block % kSlots], kOutputs);
  }
  tiles.store(sums, kOutputs);
}

template <class Group, bool kGated, class Out>
inline void many_rows_times_strip(const Linear& linear, const Rows& x, int strip, int begin, int end, Word* unpacked,
                                  Out* out) {
  const UnpackedStrip<Group> blocks(linear, strip);
  if (const int count = end - begin; count <= kBlockRows) {
    alignas(64) float sums[kBlockRows * kOutputs];
    (count > kBlockRows / 2 ? row_block_times_strip<Group, true> : row_block_times_strip<Group, false>)(blocks, x, begin,
                                                                                                   sums);
    return finish_rows<false, kGated>(linear, nullptr, strip * kOutputs, {sums, begin, count}, 0, count, out);
  }
  for (int block = 0; block < blocks.num_blocks; ++block)
    blocks.unpack(block, unpacked + block * UnpackedStrip<Group>::kSize);
  Linear dense = linear;
  dense.words = linear.in_features / 2;
  multiply_strip<BestPairMath, kGated>(dense, unpacked, nullptr, x, strip, begin, end, out);
}
#endif

template <class Group, int kPlanes, bool kGated, class Out>
inline void multiply_blocks(Team::Member& team, const Linear& linear, const Rows& x, Out* out) {
  const int strips = linear.strips(), passes = (x.count + kCachedRows - 1) / kCachedRows;
  // Neighbours go to the same thread: memory is read ahead.
  constexpr int kRunBytes = 32768;
  const int run = std::max(1, kRunBytes / (4 * linear.words));
#if defined(__AMX_BF16__)
  static thread_local Buffer unpacked;
  const bool few = few_block_rows(x.count);
  if (!few) unpacked.reserve(2 * kOutputs * static_cast<size_t>(linear.in_features));
#endif
  team.share(strips * passes, run, [&](int item) {
    const int strip = item % strips, begin = item / strips * kCachedRows, end = std::min(begin + kCachedRows, x.count);
#if defined(__AMX_BF16__)
    if (!few)
      return many_rows_times_strip<Group, kGated>(linear, x, strip, begin, end, unpacked.data<Word>(), out);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    // For half a group's rows taking a strip apart begins to pay.
    if (const int next = strip_behind(strip, run, team.size); end - begin > kGroupRows / 2)
      return apart_times_rows<Group, kPlanes, kGated>(linear, x, strip, next, begin, end, out);
#endif
    few_rows_times_strip<Group, kPlanes, kGated>(linear, x, strip, begin, end, out);
  });
}

// Calls body with a type of group, nullptr of it.
template <class Body>
inline void with_group(Weights kind, const Body& body) {
  if (kind == Weights::kQ4_0) return body(static_cast<GroupQ4_0*>(nullptr));
  if (kind == Weights::kQ4_1) return body(static_cast<GroupQ4_1*>(nullptr));
  body(static_cast<GroupQ8_0*>(nullptr));
}

// out [x.count, linear.stored()] of float or T, which is the type of dense weights.
template <class T, class Out>
inline void multiply_any(Team::Member& team, const Linear& linear, const Rows& x, Out* out) {
  if (linear.kind == Weights::kDense) return multiply<typename DenseMath<T>::Type>(team, linear, x, out);
  if (linear.kind == Weights::kInt8) return multiply<BestByteMath>(team, linear, x, out);
  with_group(linear.kind, [&](auto* group) {
    using Group = std::remove_pointer_t<decltype(group)>;
    constexpr int kCount = kPlanes<T>;
    (linear.gated ? multiply_blocks<Group, kCount, true, Out> : multiply_blocks<Group, kCount, false, Out>)(team, linear, x,
                                                                                                     out);
  });
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
  static thread_local TakenRows taken;
  const Linear& linear = job.linear;
  taken.reserve(job.rows, linear.in_features);
  const TakenRows& room = taken;  // this thread's
  with_storage(job.storage, [&](auto t) {
    using T = decltype(t);
    const T* const x = static_cast<const T*>(job.x);
    Team::run(job.num_threads, [&](Team::Member& team) {
      Registers registers;
      if (room.takes<T>(linear, job.rows))
        team.share(job.rows, 8, [&](int row) { room.take(linear, x, row, job.rows); });
      multiply_any<T>(team, linear, room.input(linear, x, job.rows), static_cast<T*>(job.out));
    });
  });
}

// Rows of a weight in blocks, as they are: what an embedding looks up.
struct BlockRows {
  Linear linear;
  const int64_t* rows;  // [count], each below the number of outputs
  void* out;            // [count, in_features], dense
  int32_t count;
  Storage storage;
};

template <class Group, class T>
inline void look_up(const Linear& linear, int64_t row, T* out) {
  const int lane = static_cast<int>(row % kWidth), num_blocks = linear.in_features / kBlock;
  const Group group(linear.group(static_cast<int>(row / kOutputs), static_cast<int>(row % kOutputs) / kWidth), num_blocks);
  for (int block = 0; block < num_blocks; ++block) {
    Bits words[kBlockWords];
    Vec scale, min;
    Group::Reader::load(group.block(block), words);
    group.load_scales(block, scale, min);
    float values[kBlock];
    for (int k = 0; k < kBlock; ++k)
      values[k] = static_cast<float>(words[k / 4][lane] >> (8 * (k % 4)) & 0xff) * scale[lane] + min[lane];
    for (int k = 0; k < kBlock; k += kWidth) store(out + block * kBlock + k, load(values + k));
  }
}

inline void run(const BlockRows& job) {
  with_storage(job.storage, [&](auto t) {
    using T = decltype(t);
    with_group(job.linear.kind, [&](auto* group) {
      for (int i = 0; i < job.count; ++i)
        look_up<std::remove_pointer_t<decltype(group)>>(
            job.linear, job.rows[i], static_cast<T*>(job.out) + static_cast<ptrdiff_t>(i) * job.linear.in_features);
    });
  });
}

}  // namespace trunkline
