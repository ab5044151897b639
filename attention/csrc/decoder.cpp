// A whole decoder in one call: the threads of one team go through all layers together.
//
// The Python path calls ten kernels a layer, each of which wakes its threads; at decode's batch sizes that takes as long
// as the arithmetic. Here a step of a layer ends with threads looking at a number in memory (team.h).
#include "attention.h"
#include "linear_blocks.h"
#include "norm.cpp"
#include "rotary.cpp"

#include <chrono>

namespace trunkline {

struct DecoderLayer {
  const void* attention_norm;  // [hidden], as mlp_norm
  const void* mlp_norm;
  const void* head_norm;  // [num_heads + num_kv_heads, head_dim], or null
  Pages pages;
  Linear qkv, out, gate_up, down;  // gate_up is gated
  int32_t window;                  // as Layer's
};

struct DecoderModel {
  const DecoderLayer* layers;
  const void* norm;  // [hidden]
  const float* cos;  // [positions, head_dim / 2], as sin
  const float* sin;
  Linear head;
  Layer attention;  // all but pointers, pages, window and threads
  int32_t num_layers, hidden, num_heads, num_kv_heads, head_dim;
  float norm_eps;
};

// Where a forward pass spends its time.
enum Phase { kNorm, kLinear, kRotary, kAttention, kHead, kNumPhases };

struct DecoderStep {
  PagedAttention* attention;  // planned
  void* residual;             // [tokens, hidden]: the embeddings; overwritten
  const int64_t* positions;   // [tokens]
  const int64_t* slots;       // [tokens]
  const int64_t* rows;        // [num_rows]: tokens whose logits are wanted
  float* logits;              // [num_rows, vocabulary]
  double* seconds;            // [kNumPhases], added to
  int32_t tokens, num_rows, num_threads;
};

class Decoder {
 public:
  explicit Decoder(const DecoderModel& model) : model_(model), layers_(model.layers, model.layers + model.num_layers) {}

  void run(const DecoderStep& step) {
    reserve(step);
    step.attention->prepare(step.num_threads);
    with_storage(model_.attention.storage, [&](auto t) {
      Team::run(step.num_threads, [&](Team::Member& team) {
        Registers registers;
        Pass<decltype(t)>(*this, step, team).run();
      });
    });
  }

 private:
  template <class T>
  class Pass;

  void reserve(const DecoderStep& step);

  DecoderModel model_;
  std::vector<DecoderLayer> layers_;
  Buffer x_;          // [rows, widest input of a linear layer but down's]: what is multiplied next
  Buffer qkv_;        // [rows, heads, head_dim]
  Buffer q_;          // [rows, num_heads, head_dim]
  Buffer attended_;   // as q_
  Buffer activated_;  // [rows, intermediate]
  Buffer update_;     // [rows, hidden]
  TakenRows taken_;  // what is multiplied next, where it takes another form
};

void Decoder::reserve(const DecoderStep& step) {
  const size_t size = model_.attention.storage == Storage::kFloat ? sizeof(float) : sizeof(bf16);
  const auto rows = static_cast<size_t>(round_up(std::max(step.tokens, step.num_rows), kBlockRows));
  const auto dim = static_cast<size_t>(model_.head_dim), hidden = static_cast<size_t>(model_.hidden);
  const auto heads = static_cast<size_t>(model_.num_heads), kv_heads = static_cast<size_t>(model_.num_kv_heads);
  const auto widest = static_cast<size_t>(layers_.front().down.in_features);
  x_.reserve(rows * hidden * size);
  qkv_.reserve(rows * (heads + 2 * kv_heads) * dim * size);
  q_.reserve(rows * heads * dim * size);
  attended_.reserve(rows * heads * dim * size);
  activated_.reserve(rows * std::max(widest, hidden) * size);
  update_.reserve(rows * hidden * size);
  taken_.reserve(std::max(step.tokens, step.num_rows), static_cast<int>(std::max({widest, hidden, heads * dim})));
}

// One forward pass as one thread sees it.
template <class T>
class Decoder::Pass {
 public:
  Pass(Decoder& decoder, const DecoderStep& step, Team::Member& team)
      : d_(decoder), model_(decoder.model_), step_(step), team_(team), last_(Clock::now()) {}

  void run() {
    const T* update = nullptr;
    for (const DecoderLayer& layer : d_.layers_) {
      norm(update, layer.attention_norm, layer.qkv);
      multiply(layer.qkv, x(), d_.qkv_.template data<T>());
      attend(layer);
      take(layer.out, d_.attended_.template data<T>());
      multiply(layer.out, d_.attended_.template data<T>(), d_.update_.template data<T>());
      update = d_.update_.template data<T>();
      norm(update, layer.mlp_norm, layer.gate_up);
      multiply(layer.gate_up, x(), d_.activated_.template data<T>());
      take(layer.down, d_.activated_.template data<T>());
      multiply(layer.down, d_.activated_.template data<T>(), d_.update_.template data<T>());
    }
    last_norm(update);
    multiply_any<T>(team_, model_.head, d_.taken_.input(model_.head, x(), step_.num_rows), step_.logits);
    spent(kHead);
  }

 private:
  using Clock = std::chrono::steady_clock;

  T* x() const { return d_.x_.template data<T>(); }
  // How many rows of light work a thread takes at a time.
  int run_of(int rows) const { return std::clamp(rows / (4 * step_.num_threads), 1, 16); }

  Norm norm_job(const void* x, void* residual, const void* weight, void* out) const {
    const int hidden = model_.hidden;
    return {x, residual, weight, out, hidden, hidden, 1, hidden, model_.norm_eps, model_.attention.storage, 1};
  }

  // Adds the update to the residual stream, if there is one, and leaves the norm of that in x, as `next` wants it.
  void norm(const T* update, const void* weight, const Linear& next) {
    const void* first = update == nullptr ? step_.residual : update;
    const Norm job = norm_job(first, update == nullptr ? nullptr : step_.residual, weight, x());
    team_.share(step_.tokens, run_of(step_.tokens), [&](int row) {
      norm_row<T>(job, row);
      d_.taken_.take(next, x(), row, step_.tokens);
    });
    spent(kNorm);
  }

  // A token may be wanted twice: its residual stream is summed in a row of its own.
  void last_norm(const T* update) {
    team_.share(step_.num_rows, 1, [&](int i) {
      const ptrdiff_t from = step_.rows[i] * model_.hidden, to = static_cast<ptrdiff_t>(i) * model_.hidden;
      T* const sum = d_.activated_.template data<T>() + to;
      memcpy(sum, static_cast<const T*>(step_.residual) + from, sizeof(T) * static_cast<size_t>(model_.hidden));
      norm_row<T>(norm_job(update + from, sum, model_.norm, x() + to), 0);
      d_.taken_.take(model_.head, x(), i, step_.num_rows);
    });
    spent(kNorm);
  }

  // Brings an input that no norm has left into the form that the linear layer wants.
  void take(const Linear& linear, const T* input) {
    if (!d_.taken_.template takes<T>(linear, step_.tokens)) return;
    team_.share(step_.tokens, run_of(step_.tokens), [&](int row) { d_.taken_.take(linear, input, row, step_.tokens); });
  }

  void multiply(const Linear& linear, const T* input, T* out) {
    multiply_any<T>(team_, linear, d_.taken_.input(linear, input, step_.tokens), out);
    spent(kLinear);
  }

  void attend(const DecoderLayer& layer) {
    const ptrdiff_t heads = model_.num_heads + 2 * model_.num_kv_heads, dim = model_.head_dim;
    const RotaryStore rotary{d_.qkv_.data(),      d_.q_.data(),     layer.pages,     model_.cos,
                             model_.sin,          step_.positions,  step_.slots,     layer.head_norm,
                             heads * dim,         step_.tokens,     model_.num_heads, model_.num_kv_heads,
                             model_.head_dim,     model_.norm_eps,  model_.attention.storage, 1};
    team_.share(step_.tokens, run_of(step_.tokens), [&](int token) { rotate_and_store<T>(rotary, token); });
    spent(kRotary);
    Layer job = model_.attention;
    job.q = d_.q_.data(), job.out = d_.attended_.data();
    job.pages = layer.pages;
    job.q_stride = job.out_stride = model_.num_heads * dim;
    job.window = layer.window;
    job.num_threads = step_.num_threads;
    step_.attention->work<T>(team_, job);
    spent(kAttention);
  }

  void spent(Phase phase) {
    if (team_.thread != 0) return;
    const Clock::time_point now = Clock::now();
    step_.seconds[phase] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

  Decoder& d_;
  const DecoderModel& model_;
  const DecoderStep& step_;
  Team::Member& team_;
  Clock::time_point last_;
};

}  // namespace trunkline
