// Package config reads llm-d's EndpointPickerConfig.
//
// The bytes of a file and the table of plugin types enter Parse. A Config leaves, which holds every value, defaults included,
// and Config.Build returns a Built: plugins, profiles, the stages. If the file cannot be used the error is Problems: every
// error in it, with its line and the path of its field. A Live configuration follows its file: it builds the new
// configuration as a whole, swaps it in, and closes the old one. A file that cannot be used leaves the last good one in use.
//
// The package is strict: an unknown field, also of a plugin's parameters, is a problem, and so is a name that refers to
// nothing. A feature that only llm-d has is accepted with a warning if no request is served worse without it (request
// parsers, queues, communication between replicas), and refused otherwise.
//
// Defaults are llm-d's. Where llm-d depends on chance, the order of the file decides:
//
//   - The name of a plugin is its type.
//   - Without profiles there is one, default, with all filters, scorers and pickers.
//   - A profile without a picker gets the first picker of the file, else a max-score-picker.
//   - Without a profile handler, one profile is run by a single-profile-handler.
//   - A producer is added if a plugin needs it and the file has none.
//   - Without a saturationDetector there is a utilization-detector. It has requests of negative priority refused, and no others.
//   - A metrics-data-source with a core-metrics-extractor is added, unless dataLayer.injectDefaults is false.
//
// The interfaces that a plugin's instance implements decide about its uses, so Parse builds every plugin and closes it again.
//
// The package knows only the plugins that it adds by default. It finds no endpoints and picks nothing.
package config
