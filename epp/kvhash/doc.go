// Package kvhash computes the hashes that engines give to KV blocks, from the token ids of a prompt.
//
// An [Algorithm] enters, as vLLM's flag --prefix-caching-hash-algo names it, with the seed of the engines, and then prompts. The names of
// their whole blocks leave, as KV events have them: 64 bits of each hash. They are those of vLLM 0.32 and SGLang 0.5.23; vLLM's xxhash and
// xxhash_cbor are not computed. vLLM before August 2026 hashes the first block with a random number, unless PYTHONHASHSEED is set: then
// nothing can be computed without that seed.
//
// A hash covers what comes before the block and the block's tokens, with vLLM also the LoRA adapter and the cache salt. Images and prompt
// embeddings are not covered: blocks that depend on them are found under other names.
package kvhash
