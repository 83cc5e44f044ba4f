// Package plugin lists the plugins of the endpoint picker in its Table, and holds all of them to one contract. The plugins are
// in the packages below it by what they do: filter, scorer, picker, handler (with the deciders), producer, reporter and so on, one
// file each.
// Those of the data layer, which only hand parameters to epp/pool, are here.
//
// A plugin is a struct whose fields are its parameters and whose comments are their manual. Parameters enter, decoded over
// the defaults that the table's New returns. An instance leaves, which implements one or more of the interfaces of package
// epp. Instances are safe for concurrent use and keep nothing of a request, except that a Matcher keeps the hashes of its
// blocks. Filters, scorers and pickers allocate nothing. The package reads no configuration (epp/config does), runs no
// profile (epp/sched does) and does no I/O of its own.
//
// # Adding a plugin
//
// Write one file in the package for its kind, named after the type without the kind, with these parts in this order:
//
//  1. The parameters: an exported struct. Its comment says what the plugin does, and that of each field what the parameter
//     means, its unit and its default. docs/configuration.md is made from them.
//  2. The constructor, NewX, which returns the struct with its defaults.
//  3. Problems, which reports every value that is not possible, by the yaml name of its field: package param helps.
//  4. References, if parameters name other plugins. They are built first, and param.Refer returns their instances.
//  5. Build, which makes the instance: an unexported type with the methods of its interfaces. State that outlives a reload
//     comes from epp.Kept.
//
// Then add a row to Table. The contract suite of this package checks all rows: defaults, round trips of the parameters,
// manual, concurrency, and the promises of the interfaces of filters, scorers and pickers. What only this plugin promises is
// tested here too, by its type and parameters as a configuration has them: a scorer needs a table of its scores, in a file of
// its own or as a row of scorer_test.go; a decider needs rows in handler_test.go.
//
// The shortest examples are handler/always_disagg_pd_decider.go and scorer/queue.go. producer/approx_prefix_cache.go has state
// that survives reloads and an observer of endpoints; handler/disagg_profile.go has references to other plugins.
//
// Names, parameters and defaults are llm-d's. These differences are deliberate:
//
//   - A scorer moves the score of an endpoint towards the middle, 0.5, as its load gets older (see epp.Load.Trust), and gives
//     0.5 if the load was never read: a silent engine is neither idle nor full. In llm-d it looks idle.
//   - Values from lowest to highest are spread over 0..1 among the known ones only.
//   - Prompts are compared in whole blocks, so a tail shorter than a block does not count.
//   - The tokens of a prompt are charged to the one endpoint that computes it. llm-d charges both pods of a split request.
//   - Ties are broken at random, by the round's own random numbers, so that a seed repeats them.
//   - A parameter out of range is corrected with a warning where llm-d takes its default (see epp.Corrector), and is otherwise a
//     problem of the configuration, as is a name that refers to nothing.
//   - A decider without a prefill profile, and a profile that no stage runs, are problems too. Without a decider nothing is
//     split, as in llm-d, unless the client forces it.
//   - A detector counts the queue of the engine's page and what this picker has sent since. llm-d counts everything in flight
//     that is not on the page, so that a burst to an idle engine looks like a queue. Detectors and scorers agree on staleness.
//     queueDepthPerRunning and onAllFull are additions: by default, as in llm-d, only concurrency-detector leaves no endpoint.
//   - Encode stages, the latency predictor and external tokenizers are not supported, and are refused.
package plugin
