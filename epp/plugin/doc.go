// Package plugin holds the plugins of the endpoint picker, one file each, and the Table that lists them.
//
// A plugin is a struct whose fields are its parameters and whose comments are their manual. Parameters enter, decoded over
// the defaults that the table's New returns. An instance leaves, which implements one or more of the interfaces of package
// epp. Instances are safe for concurrent use and keep nothing of a request, except that a Matcher keeps the hashes of its
// blocks. Filters, scorers and pickers allocate nothing. The package reads no configuration (epp/config does), runs no
// profile (epp/sched does) and does no I/O of its own.
//
// # Adding a plugin
//
// Write one file, named after the type with underscores, with these parts in this order:
//
//  1. The parameters: an exported struct. Its comment says what the plugin does, and that of each field what the parameter
//     means, its unit and its default. docs/configuration.md is made from them.
//  2. The constructor, newX, which returns the struct with its defaults.
//  3. Problems, which reports every value that is not possible, by the yaml name of its field: within and atLeast help.
//  4. References, if parameters name other plugins. They are built first, and refer returns their instances.
//  5. Build, which makes the instance: an unexported type with the methods of its interfaces. State that outlives a reload
//     comes from epp.Kept.
//
// Then add a row to Table. The contract suite of this package checks all rows: defaults, round trips of the parameters,
// manual, concurrency, and the promises of the interfaces of filters, scorers and pickers. A scorer needs a test of its
// scores, in a file of its own or as a row of scorer_test.go; a decider needs a row in decider_test.go.
//
// The shortest examples are always_disagg_pd_decider.go and queue_scorer.go. approx_prefix_cache_producer.go has references
// to other plugins, state that survives reloads and an observer of endpoints.
//
// Names, parameters and defaults are llm-d's. These differences are deliberate:
//
//   - A scorer moves the score of an endpoint towards the middle, 0.5, as its load gets older (see epp.Load.Trust), and gives
//     0.5 if the load was never read: a silent engine is neither idle nor full. In llm-d it looks idle.
//   - Values from lowest to highest are spread over 0..1 among the known ones only.
//   - Prompts are compared in whole blocks, so a tail shorter than a block does not count.
//   - The tokens of a prompt are charged to the one endpoint that computes it. llm-d charges both pods of a split request.
//   - Ties are broken at random, by the round's own random numbers, so that a seed repeats them.
//   - A parameter out of range, or a name that refers to nothing, is a problem of the configuration. llm-d silently takes its
//     default, or turns disaggregation off.
//   - A decider without a prefill profile, and a profile that no stage runs, are problems too. Without a decider nothing is
//     split, as in llm-d, unless the client forces it.
//   - A detector counts the queue of the engine's page and what this picker has sent since. llm-d counts everything in flight
//     that is not on the page, so that a burst to an idle engine looks like a queue. Detectors and scorers agree on staleness.
//     queueDepthPerRunning and onAllFull are additions: by default, as in llm-d, only concurrency-detector leaves no endpoint.
//   - Encode stages, the latency predictor and external tokenizers are not supported, and are refused.
package plugin
