// Cutting a step into blocks.
//
// A request with many new tokens becomes blocks of consecutive tokens, each with all the tiles it sees:
// they are cut so that all threads have equally much to do, and a packed tile serves up to 64 tokens times
// the heads of its group.
//
// A request with few (a decode) is split over its tiles. Where several requests have the very same pages
// in a tile - a shared prefix - they become one block: the tile is read and packed once for all of them
// (what FlashInfer calls cascade attention, without its two levels). The sums are the same either way.
#include <algorithm>
#include <limits>

#include "attention.h"

namespace trunkline {

PagedAttention::PagedAttention(const Shape& shape)
    : shape_(shape),
      group_(shape.num_heads / shape.num_kv_heads),
      block_tokens_(std::clamp(kMaxRows / group_, 1, kMaxTokens)) {}

int PagedAttention::num_keys(int request) const {
  const int num_pages = step_.kv_indptr[request + 1] - step_.kv_indptr[request];
  return (num_pages - 1) * shape_.page_size + step_.kv_last_page_len[request];
}

void PagedAttention::plan(const Step& step) {
  step_ = step;
  num_tokens_ = step.qo_indptr[step.num_requests];
  num_partials_ = 0;
  whole_.clear();
  partial_.clear();
  tokens_.clear();
  split_tokens_.clear();
  shares_.clear();
  open_.clear();
  limits_.resize(static_cast<size_t>(num_tokens_));
  first_partial_.resize(static_cast<size_t>(num_tokens_));
  int block_tokens = 0;  // steps that only decode don't ask
  for (int request = 0; request < step.num_requests; ++request) {
    const int begin = step.qo_indptr[request], end = step.qo_indptr[request + 1];
    for (int token = begin; token < end; ++token)
      limits_[static_cast<size_t>(token)] = num_keys(request) - (end - token) + 1;
    if (end - begin > kSplitTokens) {
      if (block_tokens == 0) block_tokens = tokens_for_threads();
      plan_whole(request, block_tokens);
    } else {
      plan_split(request);
    }
  }
  lay_out_tokens();
  // The longest first, or a thread might begin the longest when the others are done.
  std::stable_sort(whole_.begin(), whole_.end(), [](const Block& a, const Block& b) { return a.num_tiles > b.num_tiles; });
}

// Tokens of a whole block at most. Large blocks pack least; but of three blocks that two threads share, one thread has two.
int PagedAttention::tokens_for_threads() const {
  int best = block_tokens_, least = std::numeric_limits<int>::max();
  for (int size = block_tokens_; size >= std::min(kMinTokens, block_tokens_); --size) {
    int items = 0;
    for (int request = 0; request < step_.num_requests; ++request) {
      const int count = step_.qo_indptr[request + 1] - step_.qo_indptr[request];
      if (count > kSplitTokens) items += (count + size - 1) / size * shape_.num_kv_heads;
    }
    const int turns = (items + step_.num_threads - 1) / step_.num_threads, time = turns * (size * group_ + kPackRows);
    if (time < least) best = size, least = time;
  }
  return best;
}

void PagedAttention::plan_whole(int request, int block_tokens) {
  const int end = step_.qo_indptr[request + 1];
  int token = step_.qo_indptr[request];
  for (int blocks = (end - token + block_tokens - 1) / block_tokens; blocks > 0; --blocks) {
    const int count = (end - token + blocks - 1) / blocks;
    const int keys = limits_[static_cast<size_t>(token + count - 1)];
    whole_.push_back({request, static_cast<int32_t>(tokens_.size()), count, 0, (keys + kTile - 1) / kTile});
    for (int i = 0; i < count; ++i) tokens_.push_back(token++);
  }
}

void PagedAttention::plan_split(int request) {
  const int begin = step_.qo_indptr[request], end = step_.qo_indptr[request + 1], count = end - begin;
  const int keys = num_keys(request), tiles = (keys + kTile - 1) / kTile;
  for (int token = begin; token < end; ++token) {
    split_tokens_.push_back(token);
    first_partial_[static_cast<size_t>(token)] = num_partials_;
    num_partials_ += tiles;
  }
  const int tile_pages = kTile / shape_.page_size;
  for (int tile = 0; tile < tiles; ++tile) {
    int32_t block = -1;
    int32_t* open = nullptr;
    if (kTile % shape_.page_size == 0 && (tile + 1) * kTile <= keys) {
      const int32_t* own = pages(request) + tile * tile_pages;
      const uint64_t key = static_cast<uint64_t>(tile) << 32 | static_cast<uint32_t>(own[0]);
      open = &open_.try_emplace(key, -1).first->second;
      if (*open >= 0) {
        const Block& other = partial_[static_cast<size_t>(*open)];
        const int32_t* others = pages(other.request) + tile * tile_pages;
        if (std::equal(own, own + tile_pages, others) && other.count + count <= block_tokens_) block = *open;
      }
    }
    if (block < 0) {
      block = static_cast<int32_t>(partial_.size());
      partial_.push_back({request, 0, 0, tile, 1});
      if (open != nullptr) *open = block;
    }
    partial_[static_cast<size_t>(block)].count += count;
    shares_.push_back({block, request});
  }
}

// Gives every partial block its stretch of `tokens_`: a counting sort of the shares by block.
void PagedAttention::lay_out_tokens() {
  int32_t first = static_cast<int32_t>(tokens_.size());
  for (Block& block : partial_) {
    block.first = first;
    first += block.count;
    block.count = 0;
  }
  tokens_.resize(static_cast<size_t>(first));
  for (const Share& share : shares_) {
    Block& block = partial_[static_cast<size_t>(share.block)];
    for (int token = step_.qo_indptr[share.request]; token < step_.qo_indptr[share.request + 1]; ++token)
      tokens_[static_cast<size_t>(block.first + block.count++)] = token;
  }
}

}  // namespace trunkline
