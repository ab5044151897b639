// The C interface that trunkline.attention.native calls. One translation unit, compiled once per level.
#include "attention.cpp"
#include "attention_plan.cpp"
#include "decoder.cpp"
#include "silu.cpp"

using namespace trunkline;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT PagedAttention* trunkline_attention_new(const Shape* shape) { return new (std::nothrow) PagedAttention(*shape); }
EXPORT void trunkline_attention_free(PagedAttention* attention) { delete attention; }
EXPORT void trunkline_attention_plan(PagedAttention* attention, const Step* step) { attention->plan(*step); }
EXPORT void trunkline_attention_run(PagedAttention* attention, const Layer* layer) { attention->run(*layer); }
EXPORT Decoder* trunkline_decoder_new(const DecoderModel* model) { return new (std::nothrow) Decoder(*model); }
EXPORT void trunkline_decoder_free(Decoder* decoder) { delete decoder; }
EXPORT void trunkline_decoder_run(Decoder* decoder, const DecoderStep* step) { decoder->run(*step); }
EXPORT void trunkline_linear(const LinearJob* job) { run(*job); }
EXPORT void trunkline_block_rows(const BlockRows* job) { run(*job); }
EXPORT int trunkline_width() { return kWidth; }
EXPORT void trunkline_norm(const Norm* job) { run(*job); }
EXPORT void trunkline_rotary_store(const RotaryStore* job) { run(*job); }
EXPORT void trunkline_store(const Store* job) { run(*job); }
EXPORT void trunkline_silu_mul(const SiluMul* job) { run(*job); }
