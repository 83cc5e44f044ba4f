// Package kvindex knows which engines hold which KV blocks, as the engines themselves tell it.
//
// The names that an engine gives to its blocks enter, with the token ids of each block, and later the names of the blocks that
// it has dropped. For a prompt's token ids the package returns how many leading blocks each engine holds. It reads no wire
// format and knows no endpoints: a [Holder] is one KV cache, of a pod or of one of its ranks.
//
// A block's [Key] is a fast hash of its tokens and everything before them, which does not depend on the engine's own hash. Keys
// that follow one another are kept as a run. A run begins where a prompt differs from those before it, and never splits: other
// runs branch off inside it. For each of its holders a run has the number of leading blocks that the holder has, and a bitmap of the
// blocks behind the first one that is missing. A run with the same holders so costs a few words for all of its blocks, and a look-up
// takes one step for each run on its way, in which it compares two keys and reads one word for each holder.
//
// An index made by [NewNamed] has the engines' names as keys. It needs neither tokens nor predecessors of blocks. Blocks that are told without
// their predecessors each begin a run, so no more than 1,024 of them in a row count.
//
// A holder may have blocks in several tiers of memory. Each tier that it uses has shares of its own, of the blocks in it or in faster ones. So
// a look-up also says how many leading blocks a holder has without a gap when it takes some from slower tiers. A block has one name for all
// tiers, and is in the holder's table once.
//
//   - Measure takes no lock and allocates nothing. What it returns for a holder was true at some moment during the call.
//   - Store, Remove and Claim take one lock. Their cost depends on the blocks that they name. Only a look-up of a prompt from
//     which others branch in more than 1,024 places is cut short: the rest of such a prompt counts as not held.
//   - Clear takes effect at once. What it leaves is freed by later changes, or by Sweep.
//   - A block takes 16 bytes in its holder's table, which is at most three quarters full, and 8 bytes in its run. A run takes some
//     120 bytes, so memory is about 50 bytes for a block at one holder in runs of 16, and 25 for each further holder. A further tier takes 16
//     bytes for each run.
//
// What a holder has told is kept until it tells otherwise. Whether an engine has restarted, or messages were lost, is for the
// caller to find out.
package kvindex
