// Package batch implements the command tandem batch, by which a user has a file of requests computed by a server of OpenAI's Batch API,
// such as the batch server.
//
// An action and its operand enter: submit a file, watch, cancel or fetch a batch, or list batches. What leaves are calls of the API, lines
// about the batches on stdout, progress on stderr, and the output and error files. The exit code says whether a batch has completed and
// all its lines were answered, whatever the action showed.
//
// The package validates no lines: the server does, and names the number of each wrong one.
package batch
