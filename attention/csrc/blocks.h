// Weights in blocks of 32 along k, as GGUF files hold them: w = scale * q + min, with q of four or eight bits.
//
// A strip of outputs (linear.h) is cut into groups of kWidth, one output a lane. A group holds the scales of all its
// blocks, in half precision (for each block those of all lanes, then the minima), up to a cache line's end; then the
// words: eight a block, four bytes of q each.
//
//     words of a block  [8 x kWidth]: word w of a lane holds weights 4 w ... 4 w + 3
//
// Four-bit weights lie in half the room: words w and w + 4 share their bytes, the low and the high nibbles. That is
// GGUF's own order: packing moves words, never bits.
#pragma once

#include "matmul_int8.h"
#include "storage.h"

namespace trunkline {

constexpr int kBlock = 32;
constexpr int kBlockWords = 8;

// How the words of a block are read.
struct Nibbles {
  static constexpr bool kWide = false;
  static constexpr int kWords = kBlockWords / 2;  // a block's words in memory
  static void load(const Word* block, Bits (&words)[kBlockWords]) {
    for (int i = 0; i < kWords; ++i) {
      Bits pair;
      memcpy(&pair, block + i * kWidth, sizeof(pair));
      words[i] = pair & 0x0f0f0f0fu;
      words[i + kWords] = (pair >> 4) & 0x0f0f0f0fu;
    }
  }
};

struct WholeBytes {
  static constexpr bool kWide = true;
  static constexpr int kWords = kBlockWords;
  static void load(const Word* block, Bits (&words)[kBlockWords]) { memcpy(words, block, sizeof(words)); }
};

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
// Weights below 16: 32 products of at most 15 * 127 fit the 16 bits that the instruction sums pairs in.
inline Ints dot_narrow(const Bits (&words)[kBlockWords], const Word* x) {
#if defined(__AVX512F__)
  __m512i sum = {};
  for (int i = 0; i < kBlockWords; ++i)
    sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(__m512i(words[i]), _mm512_set1_epi32(static_cast<int>(x[i]))));
  return Ints(_mm512_madd_epi16(sum, _mm512_set1_epi16(1)));
#else
  __m256i sum = {};
  for (int i = 0; i < kBlockWords; ++i)
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(__m256i(words[i]), _mm256_set1_epi32(static_cast<int>(x[i]))));
  return Ints(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
#endif
}
#endif

// The product of each lane's block with eight words of x's bytes.
template <bool kWide>
inline Ints dot_bytes(const Bits (&words)[kBlockWords], const Word* x) {
#if defined(__AVX512VNNI__)
  __m512i sums[2] = {};  // two chains: the instruction takes five cycles
  for (int i = 0; i < kBlockWords; ++i)
    sums[i % 2] = _mm512_dpbusd_epi32(sums[i % 2], __m512i(words[i]), _mm512_set1_epi32(static_cast<int>(x[i])));
  return Ints(_mm512_add_epi32(sums[0], sums[1]));
#elif defined(__AVX2__)
  if constexpr (!kWide) return dot_narrow(words, x);
  Bits low[kBlockWords], high[kBlockWords];
  for (int i = 0; i < kBlockWords; ++i) {
    low[i] = words[i] & 0x0f0f0f0fu;
    high[i] = (words[i] >> 4) & 0x0f0f0f0fu;
  }
  return dot_narrow(low, x) + 16 * dot_narrow(high, x);
#else
  Ints sum = {};
  for (int i = 0; i < kBlockWords; ++i)
    for (int byte = 0; byte < 4; ++byte)
      sum += static_cast<int8_t>(x[i] >> (8 * byte)) * Ints(words[i] >> (8 * byte) & 0xff);
  return sum;
#endif
}

// Bytes that a number of x becomes.
template <class T>
constexpr int kPlanes = sizeof(T) == sizeof(float) ? 2 : 1;

// The same with x's whole numbers: eight words of bytes, or of high bytes, then of low ones.
template <bool kWide, int kCount>
inline Ints dot_block(const Bits (&words)[kBlockWords], const Word* x) {
  const Ints high = dot_bytes<kWide>(words, x);
  return kCount == 1 ? high : 128 * high + dot_bytes<kWide>(words, x + kBlockWords);
}

// The scales and words of a group of blocks. kScales: 2 where there are minima.
template <class ReaderType, int kScales>
struct BlockGroup {
  using Reader = ReaderType;
  static constexpr float kZero = Reader::kWide ? -128.0f : -8.0f;  // what q is counted from where there are no minima

  const uint16_t* halves;
  const Word* words;

  BlockGroup(const Word* data, int num_blocks)
      : halves(reinterpret_cast<const uint16_t*>(data)), words(data + round_up(num_blocks * kScales * kWidth * 2, 64) / 4) {}

  void load_scales(int block, Vec& scale, Vec& min) const {
    const uint16_t* at = halves + static_cast<ptrdiff_t>(block) * kScales * kWidth;
    scale = load_half(at);
    min = kScales == 2 ? load_half(at + kWidth) : scale * kZero;
  }
  const Word* block(int index) const { return words + static_cast<ptrdiff_t>(index) * Reader::kWords * kWidth; }
  // Memory answers late: words are fetched so far ahead, into the groups that come next.
  void fetch_behind(int index) const { prefetch(block(index) + 8192 / 4, Reader::kWords * kWidth); }
};
using GroupQ4_0 = BlockGroup<Nibbles, 1>;
using GroupQ4_1 = BlockGroup<Nibbles, 2>;
using GroupQ8_0 = BlockGroup<WholeBytes, 1>;

// A row of x in blocks of whole numbers: 32 bytes each, or 128 * high + low in 32 high bytes and 32 low ones; scale, and
// scale times sum.
template <class T>
inline void quantize_blocks(const T* x, int num_blocks, uint8_t* bytes, float* scales) {
  constexpr int kVecs = kBlock / kWidth;
  constexpr bool kTwo = kPlanes<T> == 2;
  constexpr float kMost = kTwo ? 127.0f * 128.0f : 127.0f;
  for (int block = 0; block < num_blocks; ++block, x += kBlock, bytes += kPlanes<T> * kBlock, scales += 2) {
    Vec values[kVecs], most = {}, poison = {};  // the latter 0, or NaN where x is not finite: then so is the result
    for (int i = 0; i < kVecs; ++i) {
      values[i] = load(x + i * kWidth);
      most = max(most, max(values[i], -values[i]));
      poison = fma(values[i], Vec{}, poison);
    }
    const float scale = reduce_max(most) / kMost + reduce_add(poison);
    const Vec inverse = splat(scale > 0x1p-120f ? 1.0f / scale : 0.0f);
    const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: rounds to a whole number in the low bits
    Vec total = {};
    for (int i = 0; i < kVecs; ++i) {
      const Vec shifted = values[i] * inverse + magic;
      const Bits number = bit_cast<Bits>(shifted) + (kTwo ? 64 : 0);  // low bytes from -64 to 63
      const Bytes high = narrow_to_bytes((kTwo ? number >> 7 : number) & 0xff);
      memcpy(bytes + i * kWidth, &high, sizeof(high));
      if constexpr (kTwo) {
        const Bytes low = narrow_to_bytes(((number & 0x7f) - 64) & 0xff);
        memcpy(bytes + kBlock + i * kWidth, &low, sizeof(low));
      }
      total += shifted - magic;
    }
    scales[0] = scale;
    scales[1] = scale * reduce_add(total);
  }
}

#if defined(__AMX_BF16__)
// Weights of one block as pairs of bf16: 16 words of k for kWidth outputs, `stride` words apart.
//
// A whole number of `kBits` bits is put where it is the mantissa of 2^kExponent + q; the product with the scale takes
// that power off again.
template <int kBits>
inline Vec scaled_number(Bits word, int at, Vec scale, Vec min) {
  constexpr int kUnit = kBits == 4 ? 16 : 15;  // the bit of the mantissa that is one
  constexpr uint32_t kPower = kBits == 4 ? 0x43000000u : 0x43800000u;  // 128, 256
  const Bits moved = at < kUnit ? word << (kUnit - at) : word >> (at - kUnit);
  return fma(bit_cast<Vec>((moved & (((1u << kBits) - 1) << kUnit)) | kPower), scale, min);
}

// The rounded upper halves of two vectors, that of `low` in the lower half of each word.
inline Bits pair_up(Vec low, Vec high) {
  const Bits half = Bits{} + 0x8000u;
  return ((bit_cast<Bits>(low) + half) >> 16) | ((bit_cast<Bits>(high) + half) & 0xffff0000u);
}

template <bool kNibbles>
inline void unpack_block(const Word* block, Vec scale, Vec min, Word* to, int stride) {
  constexpr int kBits = kNibbles ? 4 : 8;
  const Vec without_power = min - scale * (kNibbles ? 128.0f : 256.0f);
#pragma GCC unroll 8
  for (int word = 0; word < kBlockWords; ++word) {
    constexpr int kStored = kNibbles ? kBlockWords / 2 : kBlockWords;
    const int first = word < kStored ? 0 : 4;  // the bit where the word's first number lies
    Bits numbers;
    memcpy(&numbers, block + word % kStored * kWidth, sizeof(numbers));
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
      const int at = first + 16 * pair;
      const Bits pairs = pair_up(scaled_number<kBits>(numbers, at, scale, without_power),
                                 scaled_number<kBits>(numbers, at + 8, scale, without_power));
      memcpy(to + (2 * word + pair) * stride, &pairs, sizeof(pairs));
    }
  }
}
#endif

}  // namespace trunkline
