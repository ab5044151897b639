// AVX-512 and its dot product of bf16 pairs.
#include "library.cpp"
