package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
)

// pushes are the hand-offs of engines that push (Config.KV.Push). A decode engine registers the blocks of a request with the prefill
// engine, which writes the KV when it has computed it. Either may be first. The requests of both engines are one if their ids
// are equal but for the engines' own random ends, which is how the X-Request-Id of the legs decides.
//
// The transport can only read, so the prefill engine has the decode engine read what the real one writes.
type pushes struct {
	registered map[string]registration // at prefill, by the common id: decode waits for KV that is not there yet
	arriving   map[string]*load        // at decode, by request id
}

// registration is what a decode engine tells a prefill engine, after pushRegister. The real engine's has more members, in another
// encoding.
type registration struct {
	RequestID string `json:"request_id"`
	EngineID  string `json:"decode_engine_id"`
	Address   string `json:"decode_address"`
}

// written is what a prefill engine tells a decode engine, after pushWrite.
type written struct {
	RequestID string `json:"request_id"` // decode's
	LeaseID   string `json:"lease_id"`
	Blocks    []int  `json:"blocks"`
}

const (
	pushRegister = "PUSH_REG:"
	pushWrite    = "PUSH_WRITE:"
)

var randomEnd = regexp.MustCompile(`-[0-9a-f]{8}$`)

// commonID returns the part of a request's id that both engines of a hand-off have.
func commonID(id string) string { return randomEnd.ReplaceAllString(id, "") }

// register tells a prefill engine of the blocks of a sequence. Like the real engine, this one dies of members that are missing, keeps
// the blocks until the KV comes, whether the sequence is aborted or not, and so for good if it never comes.
func (c *connector) register(s *core.Sequence) {
	p := legOf(s).params
	from, ok := p.source()
	if !ok || !p.renewable() {
		c.core.Die(errors.New("registering blocks for a hand-off that lacks remote_* members or tp_size"))
		return
	}
	l := &load{seq: s, from: from, local: s.Blocks[s.Computed/c.cfg.KV.BlockSize:], start: s.Computed, tokens: slices.Clone(s.Tokens[:s.Prompt])}
	c.pushes.arriving[s.ID] = l
	c.send(pushRegister, registration{s.ID, c.identity.engineID, joinAddress(c.identity.host, fmt.Sprint(c.identity.port))}, from, func(err error) {
		if err != nil {
			delete(c.pushes.arriving, s.ID)
			l.err = err
			c.loadEnded(l)
		}
	})
}

// send sends a message, after a handshake if the engine is not known. The loop runs done.
func (c *connector) send(kind string, message any, to source, done func(error)) {
	text, err := json.Marshal(message)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	c.core.Spawn(func(ctx context.Context) {
		p, err := c.peers.meet(ctx, to)
		if err == nil {
			if err = c.transport.Notify(ctx, p.name, append([]byte(kind), text...)); err != nil {
				c.peers.forgetLost(p, err)
			}
		}
		c.core.Post(func() { done(err) })
	})
}

// pushNotified takes a message of another engine, and reports whether it is one of the above.
func (c *connector) pushNotified(message string) bool {
	if text, ok := strings.CutPrefix(message, pushRegister); ok {
		var r registration
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			c.log.Error("reading a registration", "error", err)
			return true
		}
		c.pushes.registered[commonID(r.RequestID)] = r
		for id := range c.leases.open {
			if commonID(id) == commonID(r.RequestID) {
				c.prefilled(id)
				break
			}
		}
		return true
	}
	text, ok := strings.CutPrefix(message, pushWrite)
	if !ok {
		return false
	}
	var w written
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		c.log.Error("reading what was written", "error", err)
		return true
	}
	c.arrive(w)
	return true
}

// prefilled writes the KV of a finished prefill to the decode engine that has registered blocks for it, if one has.
func (c *connector) prefilled(id string) {
	r, ok := c.pushes.registered[commonID(id)]
	l, held := c.leases.open[id]
	if !ok || !held {
		return
	}
	delete(c.pushes.registered, commonID(id))
	to := source{engineID: r.EngineID, requestID: r.RequestID, address: r.Address}
	c.send(pushWrite, written{r.RequestID, id, kv.IDs(l.blocks)}, to, func(err error) {
		if err != nil { // the lease ends by itself
			c.log.Warn("writing KV failed", "engine", r.EngineID, "error", err)
		}
	})
}

// arrive takes the KV of a sequence that has registered its blocks.
func (c *connector) arrive(w written) {
	l, ok := c.pushes.arriving[w.RequestID]
	if !ok {
		return
	}
	delete(c.pushes.arriving, w.RequestID)
	if len(w.Blocks) < len(l.local) {
		c.core.Die(fmt.Errorf("%d blocks were written for %s, which has %d", len(w.Blocks), w.RequestID, len(l.local)))
		return
	}
	l.remote, l.from.requestID = w.Blocks[len(w.Blocks)-len(l.local):], w.LeaseID
	c.core.Spawn(func(ctx context.Context) {
		l.err = c.transferKV(ctx, l)
		c.core.Post(func() { c.loadEnded(l) })
	})
}
