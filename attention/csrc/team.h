// The threads of one parallel region, and how they divide a sequence of jobs among themselves.
//
// A forward pass has some ten jobs a layer, each a few microseconds long. Waking threads for each would cost more than
// the work, so the threads stay, take the items of the current job from a common counter and look at a number in
// memory until all of them are done. What counts is that the items are done, not that everybody has come: a thread that
// the system has suspended holds up the others only if it has an item in hand, and skips the jobs that it missed.
#pragma once

#include <sched.h>

#include <atomic>

#include "parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trunkline {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

class Team {
 public:
  // What a thread holds of its team. All members share the same jobs in the same order.
  class Member {
   public:
    const int thread;
    const int size;  // of the team

    // Calls body(i) for each i in [0, count) on whichever thread is free; returns when all are done.
    template <class Body>
    void share(int count, const Body& body) {
      for (int i = take(count); i >= 0; i = take(count)) {
        body(i);
        if (team_.done_.fetch_add(1, std::memory_order_acq_rel) + 1 < count) continue;
        team_.done_.store(0, std::memory_order_relaxed);  // nobody counts before the next job begins
        team_.close(job_);
      }
      if (count == 0) team_.close(job_);
      // Whoever has the last item may need this very core.
      for (int spins = 0; team_.job() == job_; ++spins)
        spins < kPatience ? relax() : static_cast<void>(sched_yield());
      ++job_;
    }

    // As `share`, in runs of `run` neighbours.
    template <class Body>
    void share(int count, int run, const Body& body) {
      share((count + run - 1) / run, [&](int first) {
        const int end = (first + 1) * run < count ? (first + 1) * run : count;
        for (int i = first * run; i < end; ++i) body(i);
      });
    }

   private:
    friend class Team;
    Member(Team& team, int thread, int size) : thread(thread), size(size), team_(team) {}

    // The next item of this member's job; -1 if there is none left, or the job is over.
    int take(int count) {
      uint64_t seen = team_.state_.load(std::memory_order_acquire);
      for (;;) {
        const int item = static_cast<int>(seen & 0xffffffff);
        if (seen >> 32 != job_ || item >= count) return -1;
        if (team_.state_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) return item;
      }
    }

    Team& team_;
    uint64_t job_ = 0;
  };

  // Calls body(member) on each of up to num_threads threads.
  template <class Body>
  static void run(int num_threads, const Body& body) {
    Team team;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
    {
      Member member(team, omp_get_thread_num(), omp_get_num_threads());
      body(member);
    }
  }

 private:
  static constexpr int kPatience = 1000;

  uint64_t job() const { return state_.load(std::memory_order_acquire) >> 32; }

  // Goes on to the next job, if nobody has yet.
  void close(uint64_t job) {
    uint64_t seen = state_.load(std::memory_order_acquire);
    if (seen >> 32 == job) state_.compare_exchange_strong(seen, (job + 1) << 32, std::memory_order_acq_rel);
  }

  alignas(64) std::atomic<uint64_t> state_{0};  // the job's number, and its next item
  alignas(64) std::atomic<int> done_{0};
};

}  // namespace trunkline
