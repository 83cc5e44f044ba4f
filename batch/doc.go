// Package batch holds the nouns of the Batch API: files, batches, the lines of input files and of output files.
//
// A line of an input file enters ([Parser]); what leaves is the request in it, or a [Problem] that tells the user what to change.
// The result of a request enters ([Result]); what leaves is a line of an output or error file, in OpenAI's form.
//
// The package stores nothing, sends nothing and starts nothing: batch/store keeps files and batches, batch/blob the contents of
// files, batch/api serves them, and batch/worker has the lines computed.
package batch
