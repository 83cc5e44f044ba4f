// Package capture records what a picker is asked and what it decides, in a file that tandem replay reads.
//
// A Recorder sees the picker from four sides: as the Scheduler that the ext-proc server asks, as the pool that the scheduler
// reads, as an observer of picks, and as an observer of outcomes. What it sees goes through a bounded queue to the goroutine of Run,
// which writes lines of JSON to a File. If the queue is full, lines are dropped and counted: no request waits. Read reads the file
// again.
//
// # What is not in it
//
// No prompt, no token ids, no answer, and no value of a header. Blocks of prompts, sessions and fairness ids are hashes under a Key,
// so that a reader of the file cannot test a guess, however short the prompt is. Equal beginnings have equal hashes. So a reader of the
// file who may also send requests to the picker can test guesses: the file is for its operator.
//
// # Lines
//
// A Header says how the picker is set up and which endpoints it has, a Load what the metrics page of an endpoint said, and a Request
// what was asked, decided, and how it ended. docs/capture.md describes them. Lines are in the order of their writing, and those of
// requests come when the answer has ended.
//
// The package picks nothing and replays nothing: package replay does.
package capture
