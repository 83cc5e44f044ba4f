// Package kvfeed follows what the engines of a pool tell about their KV caches, and says how much of a prompt each of them holds.
//
// Endpoints that join and leave enter, and token ids of prompts; how many leading tokens each candidate has cached leaves. For each
// endpoint the package finds out where its engine publishes KV events: a configured port, what the engine itself names, or one address to
// which all engines connect. Each of its data-parallel ranks is followed on its own. What they tell goes to one epp/kvindex, and what is
// not known for certain leaves it: with the endpoint, after a restart, or when messages were lost that cannot be had again.
//
// A [Feed] also notes where prompts were sent, for some seconds, so that the next ones of a burst find them before the engine has told. It
// compares what it predicts with what engines report, and counts and logs what does not fit together: see [Mismatch].
//
// The package reads no wire format (epp/kvevents) and keeps no blocks itself. It tokenizes nothing: without token ids it knows nothing of a
// prompt. The token ids in events are compared, so engines' own hashes need not be known;
// [Options] may say how engines make them, to find blocks of which they do not tell token ids.
//
// Blocks count in the fastest memory that an engine has them in. What is in the memory of its host, on its disks, or in a store that it
// shares with others follows what it has in faster memory without a gap, as engines use it. The store counts for engines that have told of
// it.
package kvfeed
