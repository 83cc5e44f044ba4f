package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/keeper"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// errNotConnected wraps the reason why an engine cannot be notified now. The reason has been logged.
var errNotConnected = errors.New("it could not be reached")

// connectedRanks returns the ranks of an engine, and first connects to it if needed. Errors: errNotConnected, the context's.
func (b *Registry) connectedRanks(ctx context.Context, e *engine) (*ranks, error) {
	b.mu.Lock()
	b.beginConnect(e)
	c, connecting, err := e.ranks, e.connecting, e.failure
	if b.closed {
		c, connecting, err = nil, nil, errClosed
	}
	b.mu.Unlock()
	switch {
	case c != nil:
		return c, nil
	case connecting == nil:
		return nil, fmt.Errorf("%w: %w", errNotConnected, err)
	}
	select {
	case <-connecting:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.ranks == nil {
		return nil, fmt.Errorf("%w: %w", errNotConnected, e.failure)
	}
	return e.ranks, nil
}

// beginConnect starts to connect to an engine, unless it is connected, a goroutine is connecting to it, or a pause follows a
// failure. The caller holds Registry.mu.
func (b *Registry) beginConnect(e *engine) {
	if b.closed || e.ranks != nil || e.connecting != nil || time.Now().Before(e.again) {
		return
	}
	e.connecting = make(chan struct{})
	b.work.Go(func() { b.connect(e) })
}

// connect asks an engine's side channel for all its ranks, and has the notifier load them.
func (b *Registry) connect(e *engine) {
	c, err := b.load(e.key)
	b.mu.Lock()
	close(e.connecting)
	e.connecting = nil
	b.take(c)
	b.drop(e.stale)
	e.stale = nil
	if err == nil {
		e.ranks, e.failure = c, nil
		b.counts.Connects++
	} else {
		b.drop(c)
		b.counts.FailedConnects++
		e.fail(err)
	}
	pause, closed := e.pause, b.closed
	b.mu.Unlock()
	if err != nil && !closed {
		b.warnings.Warn("a prefill engine cannot be notified: its hand-offs are not renewed, and released by way of decode",
			"engine", e.id, "address", address(e.host, e.port), "again_in", pause, "error", err)
	}
}

// fail begins a pause in which the registry does not connect, unless the failure is the notifier's.
func (e *engine) fail(err error) {
	e.failure = err
	if errors.Is(err, keeper.ErrDown) {
		return
	}
	e.pause = min(max(2*e.pause, firstPause), lastPause)
	e.again = time.Now().Add(e.pause)
}

// load loads all ranks. With an error, it returns those that were loaded.
func (b *Registry) load(k key) (*ranks, error) {
	c := &ranks{}
	select {
	case b.connects <- struct{}{}:
		defer func() { <-b.connects }()
	case <-b.ctx.Done():
		return c, errClosed
	}
	if down(b.config.Notifier) {
		return c, keeper.ErrDown // the answer could not be used
	}
	ctx, cancel := context.WithTimeout(b.ctx, connectTime)
	defer cancel()
	for rank := range k.tensor * k.pipeline {
		id, agent, err := b.ask(ctx, k, rank/k.tensor, rank%k.tensor)
		if err != nil {
			return c, err
		}
		if id != k.id {
			return c, fmt.Errorf("engine %.64q answers there: %w", id, transfer.ErrRestarted)
		}
		peer, err := b.config.Notifier.Load(ctx, agent)
		if err != nil {
			return c, fmt.Errorf("loading rank %d: %w", rank, err)
		}
		c.peers = append(c.peers, peer)
	}
	return c, nil
}

// ask asks the side channel about one rank, and returns the engine's id and the agent's metadata.
func (b *Registry) ask(ctx context.Context, k key, pipeline, tensor int) (engineID string, agent []byte, err error) {
	question, limit := b.agents.Question(pipeline, tensor)
	answer, err := zmtp.Ask(ctx, b.config.Dialer, address(k.host, k.port), question, limit)
	if err != nil {
		return "", nil, err
	}
	return b.agents.Answer(answer)
}
