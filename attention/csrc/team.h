// The threads of one parallel region, and how they divide a sequence of jobs among themselves.
//
// A forward pass has some ten steps a layer, each a few microseconds long. Waking threads for each would cost more
// than the work, so the threads stay, take items of the current step from a common counter and wait for each other by
// looking at a number in memory. A thread that the system has suspended holds up the others by one item only.
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
  // What a thread holds of its team.
  class Member {
   public:
    const int thread;

    // Calls body(i) for each i in [0, count) on whichever thread is free; returns when all are done.
    template <class Body>
    void share(int count, const Body& body) {
      for (int i = take(); i < count; i = take()) body(i);
      wait();
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
    Member(Team& team, int thread, int size) : thread(thread), team_(team), size_(size) {}

    int take() { return team_.next_.fetch_add(1, std::memory_order_relaxed); }

    void wait() {
      const int round = team_.round_.load(std::memory_order_relaxed);
      if (team_.arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
        team_.arrived_.store(0, std::memory_order_relaxed);
        team_.next_.store(0, std::memory_order_relaxed);
        team_.round_.store(round + 1, std::memory_order_release);
        return;
      }
      // Whoever is missing may need this very core.
      for (int spins = 0; team_.round_.load(std::memory_order_acquire) == round; ++spins)
        spins < kPatience ? relax() : static_cast<void>(sched_yield());
    }

    Team& team_;
    const int size_;
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

  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
};

}  // namespace trunkline
