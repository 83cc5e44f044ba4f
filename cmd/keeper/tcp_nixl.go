//go:build nixl

package main

import (
	"fmt"

	"github.com/tandem-serving/tandem/transfer"
)

// startTCP fails: a program for real engines links nothing of the simulator.
func (c *config) startTCP() (agent, error) {
	return agent{}, fmt.Errorf("starting a TCP agent: %w: this keeper is built with the tag nixl, for real engines; "+
		"use the one built without the tag (in the image sidecar-nixl /keeper-sim)", transfer.ErrNotSupported)
}
