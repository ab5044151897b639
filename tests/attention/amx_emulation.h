// AMX's tiles in plain memory, so that the kernels of level amx run, slowly, on CPUs without it.
//
// Included before the kernels' sources, behind avx512_emulation.h. Every tile has its full 16 rows of 64 bytes, as the
// kernels configure them. The products are those of AVX-512, term by term in ascending order.
#pragma once

#include "avx512_emulation.h"

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbusd

namespace emulated {

struct Tile {
  alignas(64) uint32_t rows[16][16];
};
inline thread_local Tile tiles[8];

inline void load(int tile, const void* base, size_t stride) {
  for (size_t row = 0; row < 16; ++row) memcpy(tiles[tile].rows[row], static_cast<const char*>(base) + row * stride, 64);
}
inline void store(int tile, void* base, size_t stride) {
  for (size_t row = 0; row < 16; ++row) memcpy(static_cast<char*>(base) + row * stride, tiles[tile].rows[row], 64);
}
// c += a * b, where `product` adds a word's terms to a row.
template <class Product>
inline void multiply(int c, int a, int b, const Product& product) {
  for (int row = 0; row < 16; ++row) {
    __m512i sum, columns;
    memcpy(&sum, tiles[c].rows[row], sizeof(sum));
    for (int k = 0; k < 16; ++k) {
      memcpy(&columns, tiles[b].rows[k], sizeof(columns));
      sum = product(sum, set32(static_cast<int>(tiles[a].rows[row][k])), columns);
    }
    memcpy(tiles[c].rows[row], &sum, sizeof(sum));
  }
}
inline void tile_pairs(int c, int a, int b) {
  multiply(c, a, b, [](__m512i sum, __m512i x, __m512i y) {
    return (__m512i)dot_pairs((__m512)sum, (__m512bh)x, (__m512bh)y);
  });
}
inline void tile_bytes(int c, int a, int b) { multiply(c, a, b, dot_bytes); }

}  // namespace emulated

#define _tile_loadconfig(config) static_cast<void>(config)
#define _tile_release() static_cast<void>(0)
#define _tile_zero(tile) memset(&emulated::tiles[tile], 0, sizeof(emulated::Tile))
#define _tile_loadd(tile, base, stride) emulated::load(tile, base, stride)
#define _tile_stream_loadd(tile, base, stride) emulated::load(tile, base, stride)
#define _tile_stored(tile, base, stride) emulated::store(tile, base, stride)
#define _tile_dpbf16ps(c, a, b) emulated::tile_pairs(c, a, b)
#define _tile_dpbusd(c, a, b) emulated::tile_bytes(c, a, b)
