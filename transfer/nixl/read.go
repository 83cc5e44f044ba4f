//go:build nixl && cgo && linux

package nixl

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// Read implements transfer.Transport. It reads 4 MiB at a time, with several requests at once.
func (t *Transport) Read(
	ctx context.Context, from transfer.Peer, spans []transfer.Span, into [][]byte, notify []byte,
) error {
	if err := t.read(ctx, from, &cutter{spans: spans, into: into}, notify); err != nil {
		return fmt.Errorf("reading from %s: %w", from, err)
	}
	return nil
}

func (t *Transport) read(ctx context.Context, from transfer.Peer, c *cutter, notify []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := checkMessage(notify); err != nil {
		return err
	}
	p, regions, err := t.find(from)
	if err != nil {
		return err
	}
	if regions == nil {
		return fmt.Errorf("%w: its metadata names no regions", transfer.ErrNotSupported)
	}
	c.regions = regions
	if err := c.check(); err != nil {
		return err
	}
	if err := t.fetch(ctx, p, c); err != nil || notify == nil {
		return err
	}
	return t.tell(ctx, p, notify)
}

// fetch keeps several requests running, and copies out those that have ended.
func (t *Transport) fetch(ctx context.Context, p *peer, c *cutter) error {
	stall := time.NewTimer(t.stall)
	defer stall.Stop()
	var under []*request // way, oldest first
	defer func() {
		for _, r := range under {
			r.leave()
		}
	}()
	for c.more() || len(under) > 0 {
		if len(under) == 0 {
			r, err := t.begin(ctx, p, c, stall)
			if err != nil {
				return err
			}
			under = append(under, r)
			stall.Reset(t.stall) // the wait for memory was not caused by the peer
		}
		for len(under) < atOnce && c.more() {
			r, err := t.beginNow(ctx, p, c)
			if err != nil {
				return err
			}
			if r == nil {
				break
			}
			under = append(under, r)
		}
		if err := t.await(ctx, under[0].done, stall); err != nil {
			return err
		}
		c.copyOut(under[0].part, under[0].slot.mem)
		under[0].leave()
		under = under[1:]
		stall.Reset(t.stall)
	}
	return nil
}
