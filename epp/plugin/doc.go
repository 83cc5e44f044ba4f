// Package plugin holds the plugins of the endpoint picker, one file each, and the Table that lists them.
//
// A plugin is a struct whose fields are its parameters and whose comments are their manual. The parameters enter, decoded
// over the defaults that the table's New gives; an instance leaves that implements one or more of the interfaces of package
// epp. Instances are safe for concurrent use and keep nothing of a request, except for a Matcher, which keeps the hashes of
// its blocks. Filters, scorers and pickers allocate nothing. The package reads no configuration (epp/config does), runs no
// profile (epp/sched does) and does no I/O of its own.
//
// # Adding a plugin
//
// Write one file, named after the type with underscores, with these parts in this order:
//
//  1. The parameters: an exported struct. Its comment says what the plugin does, and that of each field what the parameter
//     means, its unit and its default. docs/configuration.md is made from them.
//  2. The constructor, newX, which returns the struct with its defaults.
//  3. Problems, which reports every value that means nothing, by the yaml name of its field: within and atLeast help.
//  4. References, if parameters name other plugins. They are built first, and refer returns their instances.
//  5. Build, which makes the instance: an unexported type with the methods of the interfaces that it is to be used for. State
//     that outlives a reload comes from epp.Kept.
//
// Then add a row to Table. The contract suite of this package runs over all rows: defaults, round trips of the parameters,
// manual, concurrency, and for filters, scorers and pickers what their interfaces promise. A scorer needs a test of its
// scores, in a file of its own or as a row of scorer_test.go; a decider a row in decider_test.go.
//
// A decider is the shortest example (always_disagg_pd_decider.go), queue_scorer.go the shortest scorer, and
// approx_prefix_cache_producer.go has references to other plugins, state that survives reloads and an observer of endpoints.
//
// Names, parameters and defaults are llm-d's. These differences are deliberate:
//
//   - Load that was never read, or is stale, rates like the middle, 0.5, in proportion to its age (see epp.Load.Trust):
//     an engine that is silent is neither idle nor full. In llm-d it looks idle.
//   - Values from lowest to highest are spread over 0..1 among those only that are known.
//   - Prompts are compared by tokens of their whole blocks, so a tail shorter than a block counts for nothing.
//   - The tokens of a prompt are charged to the one endpoint that computes it. llm-d charges both pods of a split request.
//   - Ties are broken at random, reproducibly, by the round's own random numbers.
//   - A parameter out of range, and a name that leads nowhere, is a problem of the configuration. llm-d takes its default
//     in silence, or turns disaggregation off.
//   - A decider without a prefill profile, and a profile that no stage runs, are problems too. Without a decider nothing is
//     split, as in llm-d, unless the client forces it.
//   - A detector's queue is as long as the engine's page says and what this picker has sent since; llm-d counts all that is in
//     flight and not on the page, so that a burst to an idle engine is a queue. Load is stale no sooner than it is to scorers.
//     queueDepthPerRunning and onAllFull are additions: by default, as in llm-d, only concurrency-detector leaves no endpoint.
//   - Encode stages, the latency predictor and tokenizers outside this process are not served, and are refused.
package plugin
