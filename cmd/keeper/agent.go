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

// agent sends notifications.
type agent struct {
	transfer.Notifier
	about string // description for users: what it uses
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
		return agent{}, fmt.Errorf("%w: use the keeper that make nixl builds, or that of the image sidecar-nixl; "+
			"simulated engines need --transport tcp", err)
	}
	if err != nil {
		return agent{}, err
	}
	return agent{a, a.Library() + ", as " + a.Name()}, nil
}

// startLimit is shorter than the sidecar's wait for the first message (30 s), so that the sidecar receives the error.
const startLimit = 25 * time.Second

// startWithin starts an agent, or fails at the limit: opening the library can hang, for instance on a file system, and
// possibly no process is left to end this one. The goroutine that still opens the library ends with the process.
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
		return agent{}, fmt.Errorf("the transport did not start within %v: check the file system of the library", limit)
	}
}
