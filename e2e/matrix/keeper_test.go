package matrix

import (
	"context"
	"errors"
	"testing"

	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
	kept "github.com/tandem-serving/tandem/transfer/keeper"
)

// keeper is the state of the sidecar's keeper, the process that owns the NIXL agent with which the sidecar tells prefill
// engines to release hand-offs.
type keeper string

const (
	works  keeper = ""
	none   keeper = "no keeper"
	down   keeper = "keeper down"   // its process has died, and is not restarted yet
	unsure keeper = "keeper unsure" // its process dies after it has sent a notice, before it says so
)

// startKeeper returns the sidecar's Notifier, nil if there is no keeper.
func (s *fixture) startKeeper(t *testing.T, k keeper) transfer.Notifier {
	t.Helper()
	if k == none {
		return nil
	}
	agent, err := transport.NewTCP(transport.TCPConfig{Name: "sidecar"})
	if err != nil {
		t.Fatal(err)
	}
	s.keeper = agent
	switch k {
	case down:
		return dead{agent}
	case unsure:
		return dying{agent}
	}
	return agent
}

// dead is a keeper whose process has died.
type dead struct{ transfer.Notifier }

// State returns the state of a keeper without a process.
func (dead) State() (kept.State, <-chan struct{}) {
	return kept.State{Starts: 1, Err: errors.New("killed")}, nil
}

// Load implements transfer.Notifier.
func (dead) Load(context.Context, []byte) (transfer.Peer, error) { return "", transfer.ErrGone }

// Notify implements transfer.Notifier.
func (dead) Notify(context.Context, transfer.Peer, []byte) error { return transfer.ErrGone }

// dying is a keeper whose process dies between sending a notice and saying so.
type dying struct{ transfer.Notifier }

// Notify implements transfer.Notifier.
func (d dying) Notify(ctx context.Context, to transfer.Peer, message []byte) error {
	if err := d.Notifier.Notify(ctx, to, message); err != nil {
		return err
	}
	return transfer.ErrGone
}
