package matrix

import (
	"context"
	"errors"
	"testing"

	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
	kept "github.com/tandem-serving/tandem/transfer/keeper"
)

// keeper is what a sidecar has to tell prefill engines with, beside its decode engine.
type keeper string

const (
	works  keeper = ""
	none   keeper = "no keeper"
	down   keeper = "keeper down"   // it has died, and is not back
	unsure keeper = "keeper unsure" // it dies of each notice, after it has sent it
)

// startKeeper returns what the sidecar tells with, nil if there is nothing.
func (s *stage) startKeeper(t *testing.T, k keeper) transfer.Notifier {
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

// dead is a keeper between two lives of its process.
type dead struct{ transfer.Notifier }

// State is what a keeper tells.
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
