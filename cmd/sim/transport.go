package main

import (
	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/nixl"
)

// The values of --transport.
const (
	overTCP  = "tcp"
	overNIXL = "nixl"
)

type transferFlags struct {
	Transport string `flag:"transport" enum:"tcp,nixl" help:"how KV moves between engines: Tandem's own TCP, or the real NIXL library, in a build that has it (make nixl); the same on all engines of a pair"`
	Library   string `flag:"nixl-library" arg:"PATH" help:"libnixl_capi.so, or its folder, for --transport nixl. Default: TANDEM_NIXL_LIB, else the library of the dynamic loader or a Python environment"`
}

// open returns the function that opens the transport, or nil for the engine's default, which is TCP.
func (f transferFlags) open() func(name string) (transfer.Transport, error) {
	if f.Transport == overTCP {
		return nil
	}
	return func(name string) (transfer.Transport, error) {
		t, err := nixl.NewTransport(nixl.TransportConfig{
			Config: nixl.Config{Name: name, Library: f.Library},
			Stall:  sim.NoStallTimeout,
		})
		if err != nil {
			return nil, boot.Missingf("%w (--transport nixl needs a sim from make nixl, and the library: set it with "+
				"--nixl-library or %s)", err, nixl.EnvLibrary)
		}
		return lifelong{t}, nil
	}
}

// lifelong is a transport that is never closed, with its memory. The library has been seen to crash when an agent ends while
// a peer reads from it, and the end of the engine is the end of the process.
type lifelong struct{ *nixl.Transport }

// Close does nothing.
func (lifelong) Close() error { return nil }

// Alloc allocates memory that is never freed.
func (l lifelong) Alloc(bytes int) (mem []byte, free func() error, err error) {
	mem, _, err = l.Transport.Alloc(bytes)
	return mem, func() error { return nil }, err
}
