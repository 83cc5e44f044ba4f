package sglang

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// message is what ranks say to each other.
type message struct {
	Kind kind `json:"kind"`
	Room Room `json:"room"`
	// Agent is the sender's transport, in a greeting and with pages.
	Agent []byte `json:"agent,omitempty"`
	// Blocks has the KV, First the first token, Cached how many tokens prefill had cached; in an offer.
	Blocks []int `json:"blocks,omitempty"`
	First  int   `json:"first,omitempty"`
	Cached int   `json:"cached,omitempty"`
}

// kind is the kind of a message.
type kind string

const (
	greeting   kind = "greeting"   // decode asks prefill for its transport
	pages      kind = "pages"      // decode has pages for the prompt of a bootstrap room
	withdrawal kind = "withdrawal" // the decode leg of a bootstrap room has ended early
	offer      kind = "offer"      // prefill has the KV of a bootstrap room
	done       kind = "done"       // decode has the KV of a bootstrap room
	ping       kind = "ping"       // prefill looks whether decode is there
)

func (m message) pack() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("packing a message between ranks: %v", err)) // every field can be marshalled
	}
	return b
}

func unpack(b []byte) (message, error) {
	var m message
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("reading a message between ranks: %w", err)
	}
	return m, nil
}

// maxAnswer bounds the answer of a rank, in bytes.
const maxAnswer = 1 << 20

// askTime bounds a question to another rank, but not one that has to be confirmed.
const askTime = 5 * time.Second

// ask sends a message to the rank port at an address, and returns the answer.
func (r *rank) ask(ctx context.Context, address string, m message, patience time.Duration) (message, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	parts, err := zmtp.Ask(ctx, r.cfg.Network, address, m.pack(), maxAnswer)
	if err != nil {
		return message{}, err
	}
	return unpack(parts[0])
}
