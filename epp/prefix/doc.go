// Package prefix remembers which endpoints have which beginnings of prompts in their KV cache.
//
// The chained block hashes of prompts that endpoints were given enter, with the number of blocks of each endpoint's cache.
// For a prompt and a set of candidates, the package returns how much of its beginning each of them should still have. It
// knows no text, no tokens and no names.
//
// A hash stands for its block and all blocks before it, so chains of hashes form trees. The endpoints of 64 slots share a
// tree. A part of a chain without a branch is one segment. Each endpoint holds a beginning of a segment, which is a number of
// blocks, so an endpoint that holds a block holds all before it. If an endpoint's blocks exceed its cache, those that were
// requested longest ago are dropped first, and the last ones of a chain before the first, as in engines. A look-up takes one
// step for each branch on a prompt's way, not for each block, so the length of the prompt hardly matters.
//
//   - Match allocates nothing. It sees all endpoints of one tree at the same moment.
//   - When Add returns, every Match sees its result. Its cost depends on branches too, apart from a copy of the new blocks.
//   - EndpointLeft takes effect at once; its memory is freed later.
//   - A tree has a lock for many readers or one writer, which is held for microseconds: blocks are copied before, and evicted
//     in several turns. The longest work is a prompt from which others branch at every block: some 40 ns for each branch, and
//     up to 150 when an endpoint gets it for the first time. So at most 1,024 segments are followed, and the rest of such a
//     prompt counts as not held.
//   - Memory is proportional to the held blocks, at most the sum of the capacities: 8 bytes for a block, however many endpoints
//     of a tree hold it, and about 180 for a segment; for usual prompts 9 to 30 bytes for a block at an endpoint. The worst case
//     is prompts of one block each: 600 MB for 100 endpoints of llm-d's default capacity. Freed segments leave some 35 bytes
//     each in the table of segments.
//
// The package does not know what engines really hold, because they evict and restart without notice. An index that follows
// engines' KV events could serve the same Match, but it needs a table of single blocks beside the tree.
package prefix
