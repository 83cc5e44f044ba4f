package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrLost is what Finish and Release return for a message that this process does not hold any more: its claim has lapsed, and another
// consumer has it, or has finished it.
var ErrLost = errors.New("the claim of the message has lapsed")

// Source is one queue of a broker.
type Source interface {
	// Claim takes up to so many messages, those with the earliest deadline first if the broker has such an order, which this process then holds. With
	// a due time it takes only those whose deadline is not after it, and none if the broker has another order. It waits for messages for two seconds at
	// most.
	Claim(ctx context.Context, most int, due time.Time) ([]Message, error)
	// Renew keeps holding messages. It returns the keys of those that are known to be lost, and of those that their producer has cancelled.
	Renew(ctx context.Context, held []Message) (lost, cancelled []string, err error)
	// Finish stores the result, and ends the claim. A dead letter is stored too if reason is not empty. After an error it is called again: a message
	// has one result whenever this process, or the broker, is killed, unless the broker cannot refuse a second one. It returns ErrLost if the result is
	// another consumer's.
	Finish(ctx context.Context, m Message, result []byte, reason string) error
	// Release ends the claim, so that the message can be claimed again.
	Release(ctx context.Context, m Message) error
	// Waiting counts the messages that no consumer holds.
	Waiting(ctx context.Context) (int64, error)
	Close() error
}

// Message is a request that this process holds.
type Message struct {
	Key        string // names it while it is held, and when it is delivered again
	Deliveries int    // how many consumers have claimed it and not finished it, this one included; some brokers count those that released it too
	Cancelled  bool   // by its producer
	Request
}

// Request is a message as its producer has written it. Problem says what is wrong with it; fields that could be read are set all the same.
type Request struct {
	ID       string
	Token    string // of this use of the id; "": the producer cannot cancel it
	Deadline time.Time
	Endpoint string            // "": that of the queue
	Results  string            // where its producer reads the result; "": where the queue's results are
	Payload  []byte            // JSON
	Metadata map[string]string // of the producer, traceparent among them
	Headers  map[string]string
	Problem  error
}

// The reasons of results without an answer, in llm-d's words.
const (
	codeDeadline  = "DEADLINE_EXCEEDED"
	codeCancelled = "CANCELLED"
	codeInference = "INFERENCE_ERROR"
	codeInvalid   = "INVALID_REQUEST"
)

// result is what the producer of a message gets. Status is 0 if there is no answer.
type result struct {
	ID      string `json:"id"`
	Status  int    `json:"status_code,omitempty"`
	Payload string `json:"payload"` // the answer's body; without one, an object with the error
	Code    string `json:"error_code,omitempty"`
	Message string `json:"error_message,omitempty"`
}

// errorResult is the result of a message without an answer.
func errorResult(id, code, message string) result {
	payload, _ := json.Marshal(map[string]string{"error": message}) // texts never fail
	return result{ID: id, Payload: string(payload), Code: code, Message: message}
}

func (r result) encode() []byte {
	text, _ := json.Marshal(r) // texts and a number never fail
	return text
}

// tooLarge is the result, and the reason of the dead letter, of a message whose result is larger than what its broker takes.
func tooLarge(m Message, has int, limit string) (result []byte, reason string) {
	reason = fmt.Sprintf("the result has %d bytes, more than %s", has, limit)
	return errorResult(m.ID, codeInference, reason).encode(), reason
}

// DeadLetter is what a Source keeps of a message that failed, as JSON.
type DeadLetter struct {
	Reason  string `json:"reason"`
	Time    int64  `json:"time"` // Unix seconds
	Message string `json:"message"`
}

// deadLetter is a dead letter as JSON. A message with which it would have more than most bytes is left out of it.
func deadLetter(reason, message string, most int) []byte {
	letter := DeadLetter{Reason: reason, Time: time.Now().Unix(), Message: message}
	text, _ := json.Marshal(letter) // texts and a number never fail
	if len(text) > most {
		letter.Message = ""
		text, _ = json.Marshal(letter)
	}
	return text
}
