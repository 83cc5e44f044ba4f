package sim

import (
	"context"
	"time"
)

// handshakeTime is what the first hand-off of a pair costs: Config.KV.HandshakeTime, or else what the model says.
func (c *Config) handshakeTime() time.Duration {
	if c.KV.HandshakeTime > 0 {
		return c.KV.HandshakeTime
	}
	return time.Duration(float64(c.Model.handshakeTime()) * c.TimeScale)
}

// meet is get for who wants to read: the first hand-off of a pair pays for the handshake, and all others that come meanwhile
// wait for it. It runs beside the loop, so that nothing else waits. An engine that was started again has another id, and is
// another peer. Notifications go out before that is paid for: what they wait for was not measured.
func (ps *peers) meet(ctx context.Context, from source) (*peer, error) {
	p, err := ps.get(ctx, from)
	if err != nil {
		return nil, err
	}
	ps.mu.Lock()
	first := !p.meeting
	p.meeting = true
	ps.mu.Unlock()
	if first {
		defer close(p.met)
		return p, sleep(ctx, ps.cost)
	}
	select {
	case <-p.met:
		return p, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
