// Package plugin holds the plugins of the endpoint picker, one file each, and the Table that lists them.
//
// A plugin is a struct whose fields are its parameters and whose comments are their manual. What enters are those
// parameters, decoded over the defaults that the table's New gives; what leaves is an instance that implements one of
// the interfaces of package epp. Instances are safe for concurrent use and keep nothing of a request, a Matcher apart,
// which keeps the hashes of its blocks. Filters, scorers and pickers allocate nothing. The package reads no
// configuration (epp/config does), runs no profile (epp/sched does) and does no I/O of its own.
//
// Names, parameters and defaults are llm-d's. On purpose different from it:
//
//   - Load that was never read, or is stale, rates like the middle, 0.5, in proportion to its age (see epp.Load.Trust):
//     an engine that is silent is neither idle nor full. In llm-d it looks idle.
//   - Values from lowest to highest are spread over 0..1 among those only that are known.
//   - Prompts are compared by tokens of their whole blocks, so a tail shorter than a block counts for nothing.
//   - The tokens of a prompt are charged to the one endpoint that computes it. llm-d charges both pods of a split request.
//   - Equal totals are drawn among fairly and reproducibly, by the round's own random numbers.
//   - A parameter out of range, and a name that leads nowhere, is a problem of the configuration. llm-d takes its default
//     in silence, or turns disaggregation off.
//   - A decider without a prefill profile, and a profile that no stage runs, are problems too. Without a decider nothing is
//     split, as in llm-d, unless the client forces it.
//   - A detector's queue is as long as the engine's page says and what this picker has sent since; llm-d counts all that is in
//     flight and not on the page, so that a burst to an idle engine is a queue. Load is stale no sooner than it is to scorers.
//     queueDepthPerRunning and onAllFull are additions: by default, as in llm-d, only concurrency-detector leaves no endpoint.
//   - Encode stages, the latency predictor and tokenizers outside this process are not served, and are refused.
package plugin
