// Products of many rows with weights in blocks, where registers are few: those of AVX2.
//
// A strip is taken apart in the cache, once for all rows: its nibbles become bytes, and its scales floats. Then six rows
// at a time meet two vectors of outputs, and where q has eight bits first its high nibbles, then its low ones. Sums are
// the same as in linear_blocks.h to the last bit.
#pragma once

#include "blocks.h"
#include "linear.h"

namespace trunkline {

// Blocks of kPassVecs vectors of outputs.
template <class Group>
struct ApartBlocks {
  static constexpr int kParts = Group::Reader::kWide ? 2 : 1;  // nibbles of a q, the low one first

  alignas(32) Word words[kParts][kBlockWords][kPassVecs][kWidth];
  float scale[kPassVecs][kWidth], min[kPassVecs][kWidth];
};

// [passes][blocks]
template <class Group>
inline const ApartBlocks<Group>* take_apart(const Linear& linear, int strip) {
  using Blocks = ApartBlocks<Group>;
  static thread_local Buffer room;
  const int num_blocks = linear.in_features / kBlock;
  constexpr int kGroups = kOutputs / kWidth;
  room.reserve(sizeof(Blocks) * static_cast<size_t>(num_blocks * kGroups / kPassVecs));
  for (int g = 0; g < kGroups; ++g) {
    const Group group(linear.group(strip, g), num_blocks);
    const int v = g % kPassVecs;
    Blocks* to = room.data<Blocks>() + g / kPassVecs * num_blocks;
    for (int block = 0; block < num_blocks; ++block, ++to) {
      Bits q[kBlockWords];
      Vec scale, min;
      Group::Reader::load(group.block(block), q);
      for (int i = 0; i < kBlockWords; ++i)
        for (int part = 0; part < Blocks::kParts; ++part) {
          const Bits bytes = Blocks::kParts == 1 ? q[i] : q[i] >> (4 * part) & 0x0f0f0f0fu;
          memcpy(to->words[part][i][v], &bytes, sizeof(bytes));
        }
      group.load_scales(block, scale, min);
      store(to->scale[v], scale);
      store(to->min[v], min);
    }
  }
  return room.data<Blocks>();
}

// Adds products of w's bytes, which are below 16, with x's in pairs: those of a block fit 16 bits. Spelled out: GCC would
// load ahead what a loop's body needs, and keep sums in memory.
inline void add_byte_products(__m256i& sum, Bits w, Word x) {
  __m256i products;
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
      : "+x"(sum), "=&x"(products)
      : "x"(w), "x"(_mm256_set1_epi32(static_cast<int>(x))));
}

// The products of kRows rows with a block's numbers.
template <class Blocks, int kRows>
inline void dot_block(const Blocks& block, const Word* x, ptrdiff_t stride, Ints (&dot)[kRows][kPassVecs]) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
  for (int part = Blocks::kParts - 1; part >= 0; --part) {
    __m256i sum[kRows][kPassVecs] = {};
#pragma GCC unroll 1
    for (int i = 0; i < kBlockWords; ++i)
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < kPassVecs; ++v)
          add_byte_products(sum[r][v], bit_cast<Bits>(block.words[part][i][v]), x[r * stride + i]);
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kPassVecs; ++v) {
        const Ints whole = Ints(_mm256_madd_epi16(sum[r][v], ones));
        dot[r][v] = part == Blocks::kParts - 1 ? whole : 16 * dot[r][v] + whole;
      }
  }
}

// Rows [begin, begin + kRows) times blocks that were taken apart, into sums of kOutputs a row.
template <class Blocks, int kPlanes, int kRows>
inline void blocks_product(const Blocks* blocks, const Rows& x, int begin, int num_blocks, float* sums, NextStrip& next) {
  const Word* bytes = static_cast<const Word*>(x.data) + begin * x.stride;
  const float* scales = x.scale + static_cast<ptrdiff_t>(begin) * 2 * num_blocks;
  Vec total[kRows][kPassVecs] = {};
  for (int block = 0; block < num_blocks; ++block, ++blocks, bytes += kPlanes * kBlockWords, scales += 2) {
    Ints dot[kRows][kPassVecs], low[kRows][kPassVecs];
    next();
    dot_block(*blocks, bytes, x.stride, dot);
    if constexpr (kPlanes == 2) dot_block(*blocks, bytes + kBlockWords, x.stride, low);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float* const x_scale = scales + static_cast<ptrdiff_t>(r) * 2 * num_blocks;
#pragma GCC unroll 2
      for (int v = 0; v < kPassVecs; ++v) {
        const Ints whole = kPlanes == 2 ? 128 * dot[r][v] + low[r][v] : dot[r][v];
        total[r][v] = fma(__builtin_convertvector(whole, Vec), load(blocks->scale[v]) * splat(x_scale[0]), total[r][v]);
        total[r][v] = fma(load(blocks->min[v]), splat(x_scale[1]), total[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kPassVecs; ++v) store(sums + r * kOutputs + v * kWidth, total[r][v]);
}

// blocks_product for one row, two rows and so on.
template <class Blocks, int kPlanes, int... kLess>
constexpr auto blocks_products(std::integer_sequence<int, kLess...>) {
  return std::array{&blocks_product<Blocks, kPlanes, kLess + 1>...};
}

template <class Group, int kPlanes, bool kGated, class Out>
inline void apart_times_rows(const Linear& linear, const Rows& x, int strip, int next_strip, int begin, int end,
                             Out* out) {
  using Blocks = ApartBlocks<Group>;
  constexpr int kMost = kSums / kPassVecs, kPasses = kOutputs / kWidth / kPassVecs;
  constexpr auto products = blocks_products<Blocks, kPlanes>(std::make_integer_sequence<int, kMost>());
  const int num_blocks = linear.in_features / kBlock;
  const Blocks* const blocks = take_apart<Group>(linear, strip);
  alignas(32) float sums[kMost * kOutputs];
  int left = (end - begin + kMost - 1) / kMost;
  NextStrip next = NextStrip::of(linear.strip(next_strip), 4 * linear.strip_words(), left * kPasses * num_blocks);
  for (int row = begin; left > 0; --left) {
    const int count = (end - row + left - 1) / left;
    for (int pass = 0; pass < kPasses; ++pass)
      products[static_cast<size_t>(count - 1)](blocks + pass * num_blocks, x, row, num_blocks,
                                               sums + pass * kPassVecs * kWidth, next);
    finish_rows<false, kGated>(linear, nullptr, strip * kOutputs, {sums, row, count}, 0, count, out);
    row += count;
  }
}

}  // namespace trunkline
