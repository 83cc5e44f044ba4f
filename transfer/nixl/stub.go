//go:build !nixl || !cgo || !linux

package nixl

import (
	"context"
	"fmt"

	"github.com/tandem-serving/tandem/transfer"
)

// Agent is not available in this build.
type Agent struct{}

// errWithout returns the error of a build without NIXL.
func errWithout(what string) error {
	return fmt.Errorf("starting a NIXL %s: %w: this program was built without it (tag nixl, cgo, Linux)",
		what, transfer.ErrNotSupported)
}

// New fails, because this program was built without NIXL.
func New(Config) (*Agent, error) {
	return nil, errWithout("agent")
}

func (*Agent) Name() string                                { return "" }
func (*Agent) Library() string                             { return "" }
func (*Agent) Metadata() []byte                            { return nil }
func (*Agent) Notifications() <-chan transfer.Notification { return nil }
func (*Agent) Load(context.Context, []byte) (transfer.Peer, error) {
	return "", transfer.ErrNotSupported
}
func (*Agent) Forget(transfer.Peer)                                {}
func (*Agent) Connect(context.Context, transfer.Peer) error        { return transfer.ErrNotSupported }
func (*Agent) Notify(context.Context, transfer.Peer, []byte) error { return transfer.ErrNotSupported }
func (*Agent) Close() error                                        { return nil }

// Transport is not available in this build.
type Transport struct{ Agent }

// NewTransport fails, because this program was built without NIXL.
func NewTransport(TransportConfig) (*Transport, error) { return nil, errWithout("transport") }

func (*Transport) Memory() MemoryUse { return MemoryUse{} }
func (*Transport) Alloc(int) ([]byte, func() error, error) {
	return nil, nil, transfer.ErrNotSupported
}
func (*Transport) Register([]byte) (transfer.Region, error) { return nil, transfer.ErrNotSupported }
func (*Transport) Read(context.Context, transfer.Peer, []transfer.Span, [][]byte, []byte) error {
	return transfer.ErrNotSupported
}
