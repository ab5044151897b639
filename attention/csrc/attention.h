// Paged attention: what to compute in a step (plan), and computing it for one layer (run).
#pragma once

#include <unordered_map>
#include <vector>

#include "pages.h"
#include "softmax.h"
#include "team.h"

namespace trunkline {

constexpr int kTile = 128;         // keys that are worked on together; starts are multiples of it
constexpr int kMaxRows = 256;      // query rows of a block
constexpr int kMaxTokens = 64;     // tokens of a block
constexpr int kMinTokens = 16;     // of a block that was cut for the threads' sake
constexpr int kPackRows = 8;       // query rows that take as long as packing a tile
constexpr int kRowStep = 32;       // query rows whose scores are in the cache together
constexpr int kReadBytes = 1 << 18;  // read before they are used: half of a small level-2 cache
constexpr int kSplitTokens = 16;   // requests with at most so many new tokens are split over their tiles

struct Shape {
  int32_t num_heads, num_kv_heads, head_dim, page_size;
};

// One step, in the CSR form of AttentionMetadata.
struct Step {
  const int32_t* qo_indptr;
  const int32_t* kv_indptr;
  const int32_t* kv_indices;
  const int32_t* kv_last_page_len;
  int32_t num_requests, num_threads;
};

// One layer. Strides count elements; heads lie head_dim apart in q and out.
struct Layer {
  const void* q;
  void* out;
  Pages pages;                   // of q's type, or of int8
  int64_t q_stride, out_stride;  // from token to token
  float scale, soft_cap;         // soft_cap 0: none
  int32_t window;                // positions a query sees, itself included; 0: all
  Storage storage;               // of q and out
  int32_t num_threads;
};

// Tokens that attend to the same tiles of the same pages.
struct Block {
  int32_t request;       // whose page table
  int32_t first, count;  // its tokens are tokens_[first : first + count]
  int32_t first_tile, num_tiles;
};

class PagedAttention {
 public:
  explicit PagedAttention(const Shape& shape);

  // Cuts a step into blocks. Linear in tokens and tiles. The step's arrays must live until the next plan.
  void plan(const Step& step);

  void run(const Layer& layer);

  // The same from inside a parallel region: `prepare` before it, `work` on each of its threads.
  void prepare(int num_threads);
  template <class T>
  void work(Team::Member& team, const Layer& layer);

 private:
  template <class Math, class T, class Kv>
  friend class Worker;

  int num_keys(int request) const;
  const int32_t* pages(int request) const { return step_.kv_indices + step_.kv_indptr[request]; }
  int tokens_for_threads() const;
  void plan_whole(int request, int block_tokens);
  void plan_split(int request);
  void lay_out_tokens();
  bool is_beyond_window(const Block& block, int window) const;
  template <class T, class Kv>
  void work_on(Team::Member& team, const Layer& layer);
  template <class T>
  void merge_partials(const Layer& layer, int index);

  Shape shape_;
  int group_;         // query heads of one KV head
  int block_tokens_;  // tokens of a block at most
  Step step_{};
  int num_tokens_ = 0;
  int num_partials_ = 0;
  std::vector<Block> whole_;            // all tiles that their tokens see; write outputs
  std::vector<Block> partial_;          // one tile; write partial results, which are merged afterwards
  std::vector<int32_t> tokens_;         // of the blocks
  std::vector<int32_t> limits_;         // keys a token sees, per token of the step
  std::vector<int32_t> first_partial_;  // per token of the step; its partials are numbered by tile
  std::vector<int32_t> split_tokens_;   // tokens that have partials

  struct Share {
    int32_t block, request;
  };
  std::vector<Share> shares_;                   // which requests take part in which partial block
  std::unordered_map<uint64_t, int32_t> open_;  // by tile and pages: a partial block that has room

  Buffer partials_;              // float [partial, head, head_dim]
  Buffer partial_stats_;         // float [partial, head, 2]: peak, sum
  std::vector<Buffer> scratch_;  // per thread
};

}  // namespace trunkline
