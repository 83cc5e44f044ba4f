// Package tokens turns text into the token ids that a model sees, as tokenizer.json describes it: the ids are those of PyPI's tokenizers.
//
// Read takes the file and returns a Tokenizer. Tokenizer.Append takes text and appends ids. A file whose parts are not all supported is
// refused with an error that names the part, so that ids are either exact or absent. Package pattern has the expressions that split
// text, package chars has Unicode, and package chat makes the texts of chat requests.
//
// The package knows nothing of requests, of chat templates, or of where files come from. token-producer, in epp/plugin/producer, uses it.
package tokens
