package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/nixl"
)

// The transports, as --transport names them.
const (
	overNIXL = "nixl"
	overTCP  = "tcp"
)

// agent is what notifies.
type agent struct {
	transfer.Notifier
	about string // what it works with, for people
}

func (c *config) start() (agent, error) {
	if c.Transport == overTCP {
		return c.startTCP()
	}
	return c.startNIXL()
}

func (c *config) startNIXL() (agent, error) {
	a, err := nixl.New(nixl.Config{Name: c.Name, Library: c.Library})
	if errors.Is(err, transfer.ErrNotSupported) {
		return agent{}, fmt.Errorf("%w: take the keeper that make nixl builds, or that of the image sidecar-nixl; "+
			"for simulated engines --transport tcp", err)
	}
	if err != nil {
		return agent{}, err
	}
	return agent{a, a.Library() + ", as " + a.Name()}, nil
}

// startLimit is less than the sidecar waits for the first word (30 s): so it hears why there is none.
const startLimit = 25 * time.Second

// startWithin starts an agent, or gives up: opening the library can hang, on a file system that does for instance, and
// nobody may be left to end the process. What goes on then ends with it.
func startWithin(limit time.Duration, start func() (agent, error)) (agent, error) {
	type result struct {
		agent agent
		err   error
	}
	started := make(chan result, 1)
	go func() {
		a, err := start()
		started <- result{a, err}
	}()
	select {
	case r := <-started:
		return r.agent, r.err
	case <-time.After(limit):
		return agent{}, fmt.Errorf("the transport did not start within %v: is the library on a disk that answers?", limit)
	}
}
