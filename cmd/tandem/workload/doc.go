// Package workload says what a measurement under load sends, and when.
//
// What enters is a distribution of lengths with a rate, or a file with the trace of a production system. What leaves is a list
// of calls: when each is due, how long its prompt and its answer are, and which beginnings its prompt shares with others. A
// Writer turns a call into the text of a prompt.
//
// It sends nothing and knows no tokenizer: a Cost, which the caller measures, says how many tokens a word is.
package workload
