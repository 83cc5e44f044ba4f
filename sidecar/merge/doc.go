// Package merge makes one answer of the answers to n requests for one choice each: the answer that an engine gives to one
// request for n choices.
//
// Whole answers enter together, streams in chunks as they arrive (Stream). What leaves has the choices in order, numbered from
// 0, one id and time of creation, one usage, and one end. Choice i of the j-th prompt of a batch is number j*n+i. All other
// bytes are the engines': nothing is decoded and encoded again.
//
// There are two forms. In OpenAI's, each choice has its index in the list "choices", and usage stands beside it. The prompt's
// tokens count once; the tokens of all choices are added up. How many of the prompt were cached is choice 1's count: an engine
// that serves n choices computes the prompt first, and reports what each choice then finds in the cache.
// SGLang's /generate answers with a list of its answers to single requests, and its events have an index each.
//
// The package does no I/O, and does not know why a request was run as several.
package merge
