// Package config reads llm-d's EndpointPickerConfig.
//
// Parse takes the bytes of a file and the table of plugin types and returns a Config, which holds every value, defaults
// included. Config.Build returns a Built: plugins, profiles, the stages. If the file cannot be used the error is Problems:
// every error in it, each with its line and the path of its field. A Live configuration follows its file: the new one is
// built as a whole, swapped in, and the old one closed; a file that cannot be used leaves the last good one in use.
//
// It is strict: an unknown field is a problem, parameters of plugins included, and so is a name that leads nowhere. What llm-d serves and this picker does not is accepted with a warning if no request is treated worse for it
// than it would be by leaving it out (request parsers, queues, talk between replicas), and refused otherwise.
//
// Defaults are llm-d's, in the order of the file where llm-d's depends on chance:
//
//   - The name of a plugin is its type.
//   - Without profiles there is one, default, with all filters, scorers and pickers.
//   - A profile without a picker gets the first picker of the file, else a max-score-picker.
//   - Without a profile handler, one profile is run by a single-profile-handler.
//   - A producer that some plugin reads from is added, unless there is one.
//   - Without a saturationDetector, a utilization-detector is one. It has requests of negative priority refused, and no others.
//   - A metrics-data-source with a core-metrics-extractor is added, unless dataLayer.injectDefaults is false.
//
// The interfaces that a plugin's instance implements decide what it can be used for, so Parse builds every plugin and closes
// it again.
//
// The package knows only the plugins that it adds by default. It finds no endpoints and picks nothing.
package config
