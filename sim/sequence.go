package sim

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"time"
)

// sampling is how tokens are drawn and when the answer ends.
type sampling struct {
	maxTokens, minTokens int // tokens of the answer
	ignoreEOS            bool
	stop                 []string
	stopTokens           []int
	includeStop          bool   // the stop string stays in the text
	seed                 uint64 // shifts every draw; 0 is the draw of a request without seed
	choice               uint64 // index of the choice, for n > 1
}

// output is one token of an answer, or its end.
type output struct {
	index      int // of the sequence within its request
	token      int // -1 if none came with it
	text       string
	finish     string // "stop", "length", or "" while the answer goes on
	stopReason any    // stop string or stop token id, when one ended the answer
	handoff    *handoff
	err        *apiError // the answer ends here, without a finish reason
	usage      promptUsage
}

// promptUsage is what the first output of a sequence knows about its prompt, in tokens.
type promptUsage struct{ cached, created int }

// sequence is one prompt on its way to one answer. Only the engine's loop touches it, but for its id and its mailbox.
type sequence struct {
	id       string // the engine's request id, which hand-offs carry
	index    int    // of the choice in the answer
	sampling sampling
	params   transferParams
	salt     string
	fault    *Fault

	tokens []int // prompt, then what was generated
	prompt int   // tokens of the prompt
	hashes []blockHash
	blocks []*block

	computed int // tokens whose KV is in blocks
	folded   int // tokens that attention covers
	digest   digest
	load     loadState
	hit      int  // tokens of the prompt whose KV was here before
	external int  // tokens of the prompt whose KV came from another engine
	done     bool // finished, failed or aborted

	usage promptUsage
	text  textStop
	times sequenceTimes
	out   *mailbox
}

// loadState is where a sequence stands whose KV comes from elsewhere.
type loadState int

const (
	noLoad      loadState = iota // nothing to load, or given up in favour of computing
	loadWanted                   // waits for blocks
	loadRunning                  // holds blocks, bytes are on their way
	loadStuck                    // holds blocks for ever: the hand-off lacks what is needed to start
	loaded                       // holds blocks and bytes, waits for a place in a step
)

type sequenceTimes struct{ queued, started, first, last time.Time }

// draw takes the next token from the KV digest. What is left out of the digest (sampling temperature, top-p) has no
// influence: an answer is a function of KV, position, seed and choice.
func (s *sequence) draw(vocabulary, eosEvery int) int {
	const lanes = 4
	for round := uint64(0); ; round++ {
		var b [len(digest{}) + 8*lanes]byte
		copy(b[:], s.digest[:])
		for i, v := range [lanes]uint64{uint64(len(s.tokens)), s.sampling.seed, s.sampling.choice, round} {
			binary.LittleEndian.PutUint64(b[len(digest{})+8*i:], v)
		}
		sum := sha256.Sum256(b[:])
		end := eosEvery > 0 && binary.LittleEndian.Uint64(sum[8:])%uint64(eosEvery) == 0
		if !end {
			return firstByte + int(binary.LittleEndian.Uint64(sum[:])%uint64(vocabulary-firstByte))
		}
		if s.generated() >= s.sampling.minTokens {
			return tokenEOS
		}
	}
}

func (s *sequence) generated() int { return len(s.tokens) - s.prompt }

// accept appends a drawn token and says what the client gets.
func (s *sequence) accept(token, maxModelLen int) output {
	s.tokens = append(s.tokens, token)
	out := output{index: s.index, token: token, usage: s.usage}
	enough := s.generated() >= s.sampling.minTokens
	switch {
	case token == tokenEOS && !s.sampling.ignoreEOS && enough:
		out.finish = "stop"
	case enough && slices.Contains(s.sampling.stopTokens, token):
		out.finish, out.stopReason = "stop", token
	case s.generated() >= s.sampling.maxTokens || len(s.tokens) >= maxModelLen:
		out.finish = "length"
	}
	text, stop := s.text.push(token, out.finish != "", enough, &s.sampling)
	out.text = text
	if stop != "" {
		out.finish, out.stopReason = "stop", stop
	}
	return out
}

// textStop turns tokens into text and looks for stop strings. It holds back as much text as could be the beginning of
// one: what a client has been sent cannot be taken back.
type textStop struct {
	detokenizer detokenizer
	held        string
}

func (t *textStop) push(token int, last, mayStop bool, s *sampling) (text, stop string) {
	t.held += t.detokenizer.push(token)
	if last {
		t.held += t.detokenizer.flush()
	}
	if mayStop {
		for _, stop := range s.stop {
			if i := strings.Index(t.held, stop); i >= 0 {
				if s.includeStop {
					i += len(stop)
				}
				return t.held[:i], stop
			}
		}
	}
	keep := 0
	if !last {
		for _, stop := range s.stop {
			keep = max(keep, len(stop)-1)
		}
	}
	cut := max(0, len(t.held)-keep)
	for cut > 0 && cut < len(t.held) && t.held[cut]&0xC0 == 0x80 { // not inside of a character
		cut--
	}
	text, t.held = t.held[:cut], t.held[cut:]
	return text, ""
}

// mailbox carries outputs from the engine's loop to one reader. Putting never blocks: a slow client must not stop a step.
// It is bounded by the length of an answer.
type mailbox struct {
	mu    sync.Mutex
	queue []output
	ready chan struct{}
}

func newMailbox() *mailbox { return &mailbox{ready: make(chan struct{}, 1)} }

func (m *mailbox) put(o output) {
	m.mu.Lock()
	m.queue = append(m.queue, o)
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// next waits for one output. The error is the context's.
func (m *mailbox) next(ctx context.Context) (output, error) {
	for {
		m.mu.Lock()
		if len(m.queue) > 0 {
			o := m.queue[0]
			m.queue = m.queue[1:]
			m.mu.Unlock()
			return o, nil
		}
		m.mu.Unlock()
		select {
		case <-m.ready:
		case <-ctx.Done():
			return output{}, ctx.Err()
		}
	}
}
