// Computing one layer.
//
// A block's query rows for one KV head are tokens x heads of the group: a tile of keys and values that was
// packed once serves all of them.
//
//     for each tile of 128 keys          packed: keys 128 x head_dim, values 128 x head_dim
//       for each 32 query rows           in the level-1 cache: scores 32 x 128
//         scores = rows * keys           matmul.h
//         weights = softmax(scores)      softmax.h
//         merge weights * values into the result
#include "attention.h"

#include <algorithm>
#include <type_traits>

#include "few_rows_tiles.h"
#include "pack.h"

namespace trunkline {

namespace {

template <class T>
void write_row(T* out, const float* values, float factor, int head_dim) {
  int col = 0;
  for (; col + kWidth <= head_dim; col += kWidth) store(out + col, load(values + col) * splat(factor));
  if (col < head_dim) store_first(out + col, load_first(values + col, head_dim - col) * splat(factor), head_dim - col);
}

}  // namespace

// What one thread needs to work on items; everything it writes besides results lies in its scratch memory.
template <class Math, class T, class Kv>  // of q and out; of keys and values
class Worker {
 public:
  Worker(const PagedAttention& attention, const Layer& layer, Buffer& scratch);

  void whole(const Block& block, int head);
  void partial(const Block& block);

 private:
  using Element = typename Math::Element;
  static constexpr bool kScaled = std::is_same_v<Kv, int8_t>;
  struct Tile {
    int64_t offsets[kTile];  // of the first head's keys and values
    int valid = 0;
    const int32_t* page = nullptr;  // of the first key, and its slot in it
    int slot = 0;
  };

  // Keys and values of a tile that comes next: memory would rest while another is worked on. They are fetched a few at a
  // time, because a processor may drop what it has no room to wait for.
  struct NextTile {
    Tile tile;
    const Kv *k = nullptr, *v = nullptr;
    int head_dim = 0, step = 0, fetched = 0;

    void operator()() {
      for (const int end = std::min(fetched + step, tile.valid); fetched < end; ++fetched) {
        prefetch(k + tile.offsets[fetched], head_dim);
        prefetch(v + tile.offsets[fetched], head_dim);
      }
    }
  };

  int token(const Block& block, int row) const { return a_.tokens_[static_cast<size_t>(block.first + row / a_.group_)]; }
  Visible visible(int row, int tile) const;
  void load_limits(const Block& block);
  void load_queries(const Block& block, int head);
  Tile locate(const Block& block, int tile) const;
  void load_scales(int head);
  void read_in_order(int first_head, int num_heads) const;
  const Kv* head_of(const void* pool, int head) const {
    return static_cast<const Kv*>(pool) + head * layer_.pages.kv_head_stride;
  }
  TileRows<Kv> rows_of(const void* pool, int head) const { return {head_of(pool, head), tile_.offsets, tile_.valid}; }
  void pack(int head);
  void save_partial(const Block& block, int head, int first_row, int num_rows);
  void rows_of_tile(int first_row, int num_rows, int tile);
  void weigh(int first_row, int num_rows, int tile, int keys);
  int last_key(int first_row, int num_rows, int tile) const;
  // The same as pack and rows_of_tile where there are few rows; false if they are too many.
  bool few_rows_of_tile(const Block& block, int head, int rows);
  void merge_rows(int first_row, int num_rows);

  const PagedAttention& a_;
  const Layer& layer_;
  const int head_dim_, words_, value_cols_;
  const Logits logits_;
  Tile tile_;  // that is worked on
  NextTile next_;
  Panel keys_, values_;
  Word* queries_;     // [rows, words_]
  float* scores_;     // [kRowStep, kTile]
  Element* weights_;  // [kRowStep, kTile]
  float* tile_out_;   // [kRowStep, value_cols_]
  float* out_;        // [rows, value_cols_]
  float* peaks_;      // [rows]
  float* sums_;       // [rows]
  int* limits_;       // [rows]: keys that they see, from the first tile on
  float tile_peaks_[kRowStep], tile_sums_[kRowStep];
  float key_scales_[kTile + kWidth], value_scales_[kTile + kWidth];  // of int8
};

template <class Math, class T, class Kv>
Worker<Math, T, Kv>::Worker(const PagedAttention& attention, const Layer& layer, Buffer& scratch)
    : a_(attention),
      layer_(layer),
      head_dim_(attention.shape_.head_dim),
      words_(round_up((head_dim_ + Math::kPerWord - 1) / Math::kPerWord, Math::kWordMultiple)),
      value_cols_(round_up(head_dim_, kWidth)),
      logits_{layer.scale, layer.soft_cap} {
  const auto rows = static_cast<size_t>(round_up(attention.block_tokens_ * attention.group_, kRowStep));
  const auto words = static_cast<size_t>(words_), cols = static_cast<size_t>(value_cols_);
  const size_t sizes[] = {words * kTile,    kTile / Math::kPerWord * cols, rows * words, kRowStep * kTile,
                          kRowStep * kTile, kRowStep * cols,               rows * cols,  rows, rows, rows};
  char* parts[std::size(sizes)];
  size_t total = 0;
  for (const size_t size : sizes) total += (size * sizeof(Word) + 63) / 64 * 64;
  scratch.reserve(total);
  char* next = scratch.data();
  for (size_t i = 0; i < std::size(sizes); ++i) {
    parts[i] = next;
    next += (sizes[i] * sizeof(Word) + 63) / 64 * 64;
  }
  keys_ = {reinterpret_cast<Word*>(parts[0]), words_, kTile};
  values_ = {reinterpret_cast<Word*>(parts[1]), kTile / Math::kPerWord, value_cols_};
  queries_ = reinterpret_cast<Word*>(parts[2]);
  scores_ = reinterpret_cast<float*>(parts[3]);
  weights_ = reinterpret_cast<Element*>(parts[4]);
  tile_out_ = reinterpret_cast<float*>(parts[5]);
  out_ = reinterpret_cast<float*>(parts[6]);
  peaks_ = reinterpret_cast<float*>(parts[7]);
  sums_ = reinterpret_cast<float*>(parts[8]);
  limits_ = reinterpret_cast<int*>(parts[9]);
}

template <class Math, class T, class Kv>
Visible Worker<Math, T, Kv>::visible(int row, int tile) const {
  const int limit = limits_[row], start = tile * kTile;
  const int first = layer_.window > 0 ? limit - layer_.window - start : 0;
  return {std::max(first, 0), std::min(limit - start, kTile)};
}

template <class Math, class T, class Kv>
void Worker<Math, T, Kv>::load_limits(const Block& block) {
  for (int row = 0; row < block.count * a_.group_; ++row)
    limits_[row] = a_.limits_[static_cast<size_t>(token(block, row))];
}

template <class Math, class T, class Kv>
void Worker<Math, T, Kv>::load_queries(const Block& block, int head) {
  const int rows = block.count * a_.group_;
  for (int row = 0; row < rows; ++row) {
    const T* q = static_cast<const T*>(layer_.q) + token(block, row) * layer_.q_stride +
                 static_cast<ptrdiff_t>(head * a_.group_ + row % a_.group_) * head_dim_;
    for (int word = 0; word < words_; word += kWidth) {
      const Bits bits = load_words<Math>(q, word, head_dim_);
      const int count = std::min(kWidth, words_ - word);
      memcpy(queries_ + static_cast<ptrdiff_t>(row) * words_ + word, &bits, sizeof(Word) * static_cast<size_t>(count));
    }
  }
}

template <class Math, class T, class Kv>
auto Worker<Math, T, Kv>::locate(const Block& block, int tile) const -> Tile {
  const int page_size = a_.shape_.page_size, start = tile * kTile;
  Tile found;
  found.valid = std::min(kTile, a_.num_keys(block.request) - start);
  const int32_t* page = a_.pages(block.request) + start / page_size;
  int slot = start % page_size;
  found.page = page;
  found.slot = slot;
  const int64_t stride = layer_.pages.slot_stride;
  for (int i = 0; i < found.valid; ++page, slot = 0) {
    int64_t offset = *page * layer_.pages.page_stride + slot * stride;
    for (; slot < page_size && i < found.valid; ++slot, ++i, offset += stride) found.offsets[i] = offset;
  }
  return found;
}

// Zero behind the last key: what lies in its slots there may be no number.
template <class Math, class T, class Kv>
void Worker<Math, T, Kv>::load_scales(int head) {
  if constexpr (!kScaled) return;
  const Pages& pages = layer_.pages;
  const int32_t* page = tile_.page;
  int slot = tile_.slot;
  for (int i = 0; i < tile_.valid; ++page, slot = 0) {
    const int count = std::min(pages.page_size - slot, tile_.valid - i);
    const float* key = pages.scales_of(pages.k, *page, head) + slot;
    const float* value = pages.scales_of(pages.v, *page, head) + slot;
    for (int j = 0; j < count; j += kWidth) {
      store(key_scales_ + i + j, load_up_to(key + j, count - j));
      store(value_scales_ + i + j, load_up_to(value + j, count - j));
    }
    i += count;
  }
  std::fill(key_scales_ + tile_.valid, key_scales_ + kTile, 0.0f);
  std::fill(value_scales_ + tile_.valid, value_scales_ + kTile, 0.0f);
}

// Brings keys and values of some heads into the level-2 cache. Head by head they are read with gaps; in memory's order
// the processor's own prefetching keeps up, and two sequences at a time hide where pages begin.
template <class Math, class T, class Kv>
void Worker<Math, T, Kv>::read_in_order(int first_head, int num_heads) const {
  const auto touch = [](const char* p) { asm volatile("" ::"r"(*p)); };
  const ptrdiff_t size = num_heads * layer_.pages.kv_head_stride * static_cast<ptrdiff_t>(sizeof(Kv));
  for (int i = 0; i < tile_.valid; ++i) {
    const auto* const k = reinterpret_cast<const char*>(head_of(layer_.pages.k, first_head) + tile_.offsets[i]);
    const auto* const v = reinterpret_cast<const char*>(head_of(layer_.pages.v, first_head) + tile_.offsets[i]);
    for (ptrdiff_t at = 0; at < size; at += 64) touch(k + at), touch(v + at);
  }
}

template <class Math, class T, class Kv>
void Worker<Math, T, Kv>::pack(int head) {
  const int tokens = std::min(kTile, round_up(tile_.valid, kRowStep));
  load_scales(head);
  pack_keys<Math>(rows_of(layer_.pages.k, head), head_dim_, tokens, keys_);
  pack_values<Math>(rows_of(layer_.pages.v, head), head_dim_, tokens, values_);
}

template <class Math, class T, class Kv>
int Worker<Math, T, Kv>::last_key(int first_row, int num_rows, int tile) const {
  int last = 1;
  for (int row = 0; row < num_rows; ++row) last = std::max(last, visible(first_row + row, tile).last);
  return round_up(last, 32);
}

// From scores_ to weights_, tile_peaks_ and tile_sums_.
template <class Math, class T, class Kv>
void Worker<Math, T, Kv>::weigh(int first_row, int num_rows, int tile, int keys) {
  const auto scales = [&] {
    if constexpr (kScaled)
      return Scales{key_scales_, value_scales_};
    else
      return NoScales{};
  }();
  for (int row = 0; row < num_rows; row += kFour) {
    const int count = std::min(kFour, num_rows - row);
    Visible seen[kFour];
    for (int i = 0; i < count; ++i) seen[i] = visible(first_row + row + i, tile);
    softmax_rows(scores_ + row * kTile, weights_ + row * kTile, kTile, count, keys, seen, logits_, scales,
                 tile_peaks_ + row, tile_sums_ + row);
  }
}

// Leaves the tile's result for these rows in tile_out_, tile_peaks_ and tile_sums_.
template <class Math, class T, class Kv>
void Worker<Math, T, Kv>::rows_of_tile(int first_row, int num_rows, int tile) {
  const int keys = last_key(first_row, num_rows, tile);
  matmul<Math>(queries_ + static_cast<ptrdiff_t>(first_row) * words_, words_, keys_, scores_, kTile, num_rows, keys,
               words_, next_);
  weigh(first_row, num_rows, tile, keys);
  matmul<Math>(reinterpret_cast<const Word*>(weights_), kTile / Math::kPerWord, values_, tile_out_, value_cols_,
               num_rows, value_cols_, keys / Math::kPerWord, next_);
}

template <class Math, class T, class Kv>
bool Worker<Math, T, Kv>::few_rows_of_tile(const Block& block, int head, int rows) {
  const TileRows<Kv> k = rows_of(layer_.pages.k, head);
  const TileRows<Kv> v = rows_of(layer_.pages.v, head);
  const int keys = last_key(0, rows, block.first_tile);
#if defined(__AMX_BF16__)
  if constexpr (kHasTiles<Math> && kScaled) {
    return false;
  } else if constexpr (kHasTiles<Math>) {
    if (!fits_tiles(rows, head_dim_, a_.shape_.page_size)) return false;
    few_scores_by_tiles(k, layer_.pages.slot_stride, queries_, words_, rows, scores_);
    weigh(0, rows, block.first_tile, keys);
    few_values_by_tiles(v, weights_, keys, rows, head_dim_, values_.data, tile_out_, value_cols_);
    return true;
  }
#endif
  if (!takes_few_rows<Kv>(rows, head_dim_, a_.shape_.page_size)) return false;
  constexpr auto counts = std::make_integer_sequence<int, kFewRows>();
  constexpr auto few_scores = all_few_scores<Math, Kv>(counts);
  constexpr auto few_values = all_few_values<Math, Kv>(counts);
  const auto index = static_cast<size_t>(rows - 1);
  load_scales(head);
  few_scores[index](k, layer_.pages.slot_stride, queries_, words_, scores_);
  weigh(0, rows, block.first_tile, keys);
  few_values[index](v, layer_.pages.slot_stride, reinterpret_cast<const Word*>(weights_), keys, head_dim_, tile_out_,
                    value_cols_);
  return true;
}

template <class Math, class T, class Kv>
void Worker<Math, T, Kv>::merge_rows(int first_row, int num_rows) {
  for (int row = 0; row < num_rows; row += kWidth) {
    float* peaks = peaks_ + first_row + row;
    float* sums = sums_ + first_row + row;
    const MergeFactors factors = merge_factors(load(peaks), load(tile_peaks_ + row));
    store(peaks, factors.peak);
    store(sums, merge(load(sums), factors.before, load(tile_sums_ + row), factors.after));
    for (int i = 0; i < kWidth && row + i < num_rows; ++i) {
      float* out = out_ + static_cast<ptrdiff_t>(first_row + row + i) * value_cols_;
      const float* tile_out = tile_out_ + static_cast<ptrdiff_t>(row + i) * value_cols_;
      const Vec before = splat(factors.before[i]), after = splat(factors.after[i]);
      for (int col = 0; col < value_cols_; col += kWidth)
        store(out + col, merge(load(out + col), before, load(tile_out + col), after));
    }
  }
}

template <class Math, class T, class Kv>
void Worker<Math, T, Kv>::whole(const Block& block, int head) {
  const int rows = block.count * a_.group_;
  load_limits(block);
  load_queries(block, head);
  std::fill(out_, out_ + static_cast<ptrdiff_t>(rows) * value_cols_, 0.0f);
  std::fill(peaks_, peaks_ + round_up(rows, kRowStep), kNothing);
  std::fill(sums_, sums_ + round_up(rows, kRowStep), 0.0f);
  int tile = block.first_tile;
  const int last_tile = tile + block.num_tiles - 1;
  // The first token's window reaches back furthest.
  if (layer_.window > 0)
    tile = std::max(tile, (limits_[0] - layer_.window) / kTile);
  const int strips = (kTile + value_cols_) / kStrip, turns = (rows + kRowStep - 1) / kRowStep * strips;
  next_ = {locate(block, tile), head_of(layer_.pages.k, head), head_of(layer_.pages.v, head), head_dim_,
           (kTile + turns - 1) / turns};
  for (; tile <= last_tile; ++tile) {
    tile_ = next_.tile;
    next_.tile = tile < last_tile ? locate(block, tile + 1) : Tile{};
    next_.fetched = 0;
    pack(head);
    for (int row = 0; row < rows; row += kRowStep) {
      const int count = std::min(kRowStep, rows - row);
      rows_of_tile(row, count, tile);
      merge_rows(row, count);
    }
  }
  for (int row = 0; row < rows; ++row) {
    T* out = static_cast<T*>(layer_.out) + token(block, row) * layer_.out_stride +
             static_cast<ptrdiff_t>(head * a_.group_ + row % a_.group_) * head_dim_;
    write_row(out, out_ + static_cast<ptrdiff_t>(row) * value_cols_, 1.0f / sums_[row], head_dim_);
  }
}

template <class Math, class T, class Kv>
void Worker<Math, T, Kv>::partial(const Block& block) {
  const int rows = block.count * a_.group_, tile = block.first_tile;
  load_limits(block);
  tile_ = locate(block, tile);
  const int heads = a_.shape_.num_kv_heads, row_size = head_dim_ * static_cast<int>(sizeof(Kv));
  const int together = std::clamp(kReadBytes / (2 * kTile * row_size), 1, heads);
  for (int head = 0; head < heads; ++head) {
    if (head % together == 0) read_in_order(head, std::min(together, heads - head));
    load_queries(block, head);
    if (few_rows_of_tile(block, head, rows)) {
      save_partial(block, head, 0, rows);
      continue;
    }
    pack(head);
    for (int row = 0; row < rows; row += kRowStep) {
      const int count = std::min(kRowStep, rows - row);
      rows_of_tile(row, count, tile);
      save_partial(block, head, row, count);
    }
  }
}

template <class Math, class T, class Kv>
void Worker<Math, T, Kv>::save_partial(const Block& block, int head, int first_row, int num_rows) {
  for (int i = 0; i < num_rows; ++i) {
    const int row = first_row + i;
    const ptrdiff_t partial = a_.first_partial_[static_cast<size_t>(token(block, row))] + block.first_tile;
    const ptrdiff_t index = partial * a_.shape_.num_heads + head * a_.group_ + row % a_.group_;
    memcpy(a_.partials_.template data<float>() + index * head_dim_, tile_out_ + static_cast<ptrdiff_t>(i) * value_cols_,
           sizeof(float) * static_cast<size_t>(head_dim_));
    float* stats = a_.partial_stats_.template data<float>() + index * 2;
    stats[0] = tile_peaks_[i];
    stats[1] = tile_sums_[i];
  }
}

// Merges the tiles of one token in ascending order and writes its output.
template <class T>
void PagedAttention::merge_partials(const Layer& layer, int index) {
  const int token = split_tokens_[static_cast<size_t>(index)], head_dim = shape_.head_dim;
  const int limit = limits_[static_cast<size_t>(token)], last_tile = (limit - 1) / kTile;
  const int first_tile = layer.window > 0 ? std::max(limit - layer.window, 0) / kTile : 0;
  float out[kMaxHeadDim];
  for (int head = 0; head < shape_.num_heads; ++head) {
    std::fill(out, out + head_dim, 0.0f);
    Vec peak = splat(kNothing), sum = {};
    for (int tile = first_tile; tile <= last_tile; ++tile) {
      const ptrdiff_t partial = first_partial_[static_cast<size_t>(token)] + tile;
      const ptrdiff_t at = partial * shape_.num_heads + head;
      const float* stats = partial_stats_.data<float>() + at * 2;
      const float* values = partials_.data<float>() + at * head_dim;
      const MergeFactors factors = merge_factors(peak, splat(stats[0]));
      peak = factors.peak;
      sum = merge(sum, factors.before, splat(stats[1]), factors.after);
      for (int col = 0; col < head_dim; col += kWidth)
        store(out + col, merge(load(out + col), factors.before, load(values + col), factors.after));
    }
    T* to = static_cast<T*>(layer.out) + token * layer.out_stride + static_cast<ptrdiff_t>(head) * head_dim;
    write_row(to, out, 1.0f / sum[0], head_dim);
  }
}

// Whether no token of a partial block sees any of its keys; nobody reads what it would compute.
bool PagedAttention::is_beyond_window(const Block& block, int window) const {
  if (window == 0) return false;
  const int end = (block.first_tile + 1) * kTile;
  for (int i = 0; i < block.count; ++i)
    if (limits_[static_cast<size_t>(tokens_[static_cast<size_t>(block.first + i)])] - window < end) return false;
  return true;
}

template <class T>
struct AttentionMath {
  using Type = FloatMath;
};
#if defined(__AVX512BF16__)
template <>
struct AttentionMath<bf16> {
  using Type = BestPairMath;
};
#endif

void PagedAttention::prepare(int num_threads) {
  const auto results = static_cast<size_t>(num_partials_) * static_cast<size_t>(shape_.num_heads);
  // Reading the last result in whole vectors may go past head_dim.
  partials_.reserve((results * static_cast<size_t>(shape_.head_dim) + kWidth) * sizeof(float));
  partial_stats_.reserve(results * 2 * sizeof(float));
  if (scratch_.size() < static_cast<size_t>(num_threads)) scratch_.resize(static_cast<size_t>(num_threads));
}

template <class T>
void PagedAttention::work(Team::Member& team, const Layer& layer) {
  if (layer.pages.storage == Storage::kInt8)
    work_on<T, int8_t>(team, layer);
  else
    work_on<T, T>(team, layer);
}

template <class T, class Kv>
void PagedAttention::work_on(Team::Member& team, const Layer& layer) {
  const int heads = shape_.num_kv_heads;
  const int num_whole = static_cast<int>(whole_.size()) * heads, num_partial = static_cast<int>(partial_.size());
  Worker<typename AttentionMath<T>::Type, T, Kv> worker(*this, layer, scratch_[static_cast<size_t>(team.thread)]);
  team.share(num_whole + num_partial, [&](int item) {
    if (item < num_whole) return worker.whole(whole_[static_cast<size_t>(item / heads)], item % heads);
    const Block& block = partial_[static_cast<size_t>(item - num_whole)];
    if (!is_beyond_window(block, layer.window)) worker.partial(block);
  });
  team.share(static_cast<int>(split_tokens_.size()), [&](int index) { merge_partials<T>(layer, index); });
}

void PagedAttention::run(const Layer& layer) {
  prepare(layer.num_threads);
  with_storage(layer.storage, [&](auto t) {
    Team::run(layer.num_threads, [&](Team::Member& team) {
      Registers registers;
      work<decltype(t)>(team, layer);
    });
  });
}

}  // namespace trunkline
