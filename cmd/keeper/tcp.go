//go:build !nixl

package main

import (
	"crypto/rand"
	"strings"

	"github.com/tandem-serving/tandem/sim/transport"
)

// startTCP starts an agent that speaks to simulated engines. It listens on loopback, because engines answer nothing.
func (c *config) startTCP() (agent, error) {
	// One engine sees the agents of many sidecars, so names must differ. NIXL's agents add a random part themselves.
	name := c.Name + "-" + strings.ToLower(rand.Text()[:8])
	a, err := transport.NewTCP(transport.TCPConfig{Name: name})
	if err != nil {
		return agent{}, err
	}
	return agent{a, "TCP, as " + name}, nil
}
