// Package prefix remembers which endpoints have which beginnings of prompts in their KV cache.
//
// In go the chained block hashes of prompts that endpoints were given, with the number of blocks each endpoint's cache
// holds. Out comes, for a prompt and a set of candidates, how much of its beginning each of them should still have. Nothing
// else is known here: no text, no tokens, no names.
//
// A hash stands for its block and all before it, so chains of hashes make trees, and the endpoints of 64 slots share one.
// A chain without a branch is one segment of it, of which each endpoint holds a beginning, which is a number. What an
// endpoint holds is cut at the size of its cache: the blocks that were asked for longest ago go first, and of one chain
// the last ones, as engines do it. So an endpoint that holds a block holds all before it, and a prompt is looked up by the branches
// that lie on its way, not by its blocks: its length hardly matters.
//
//   - Match allocates nothing and sees the endpoints of each tree as they were at one moment.
//   - When Add returns, every Match sees it. Adding costs by branches too, apart from a copy of blocks that no endpoint held before.
//   - EndpointLeft takes effect at once; the cleaning up comes after.
//   - A tree has a lock for many readers or one writer, which is held for microseconds: blocks are copied before, and
//     evicted in turns. The one longer piece of work is a prompt that others leave at every block: some 40 ns for each of
//     them, to 150 where an endpoint gets it for the first time. So no more than 1,024 are followed, and the rest of such
//     a prompt counts as not held.
//   - Memory follows what is held, in number at most the sum of the capacities: 8 bytes for a block, however many of a
//     tree hold it, and about 180 for a segment, so 9 to 30 bytes for a block at an endpoint as prompts usually are. The
//     worst is prompts of one block each: 600 MB for 100 endpoints of llm-d's default capacity. Of what was freed, the
//     table of segments keeps some 35 bytes for each there was at the fullest.
//
// What engines really hold is not known here: they evict and restart unasked. An index that follows their KV events would
// answer the same Match, but it learns of single blocks and may find holes before others; it needs to find a block without
// the chain before it, so its table of blocks comes beside the tree.
package prefix
