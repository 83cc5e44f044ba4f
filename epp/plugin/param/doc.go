// Package param has what the parameters of plugins share: checks of their values, and references to other plugins.
//
// Values and names enter; problems in the words of the author of a configuration, and instances of other plugins, leave. The
// package has no plugin of its own and decodes nothing (epp/config does).
package param
