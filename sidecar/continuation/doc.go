// Package continuation has a stream whose engine has died go on at another engine, from the token ids that the client has.
//
// The body of a generate call enters, then the events of its stream. The events leave as the client would have got them without this
// package: Stream strips the ids that it had asked the engine for. When the stream breaks off, Leg makes the request with which
// another engine goes on: the ids of the prompt and of the text that was sent, as the prompt of a completion. The events of that
// engine's answer enter the same Stream, and leave as if they were the first engine's. If the engine of a chat parses reasoning and calls of
// tools, the events go through a Parsing before, which makes the questions for the engine's parser and takes its answers.
//
// A stream that no engine can go on with from its middle is a Regeneration instead: another engine gets the client's request again, and the
// client gets what it does not have of that answer.
//
// All of this is vLLM's: its token-in form, its option return_token_ids, its parser for others, and the form of its events.
//
// The package sends nothing, and does not choose the engine that goes on.
package continuation
