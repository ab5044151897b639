// Which of the levels that the library was compiled for this machine can run.
#if defined(__linux__) && defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

// The kernel hands out AMX's 8 KiB of register state on request, once per process.
static bool amx_permitted() {
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  return (d & kAmxBf16) && (d & kAmxTile) && (d & kAmxInt8) && syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

// Conversions of half precision; older compilers have no name for it.
static bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 29);
}
#else
static bool amx_permitted() { return false; }
static bool has_f16c() { return false; }
#endif

// 0 plain, 1 AVX2, 2 AVX-512, 3 that with VNNI, 4 that with bf16, 5 AMX: what lies below a level is there as well.
extern "C" __attribute__((visibility("default"))) int trunkline_cpu_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return 0;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
    return 1;
  if (!__builtin_cpu_supports("avx512vnni")) return 2;
  if (!__builtin_cpu_supports("avx512bf16")) return 3;
  return amx_permitted() ? 5 : 4;
#else
  return 0;
#endif
}
