package sim_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
)

// ownMemory is a transport that reads only memory that it allocated, and notes the order of calls.
type ownMemory struct {
	transfer.Transport
	fail  string // what goes wrong
	steps []string
}

var errStep = errors.New("not today")

func (c *ownMemory) step(name string) error {
	c.steps = append(c.steps, name)
	if c.fail == name {
		return errStep
	}
	return nil
}

// Alloc implements kv.Allocator.
func (c *ownMemory) Alloc(bytes int) (mem []byte, free func() error, err error) {
	return make([]byte, bytes), func() error { return c.step("free") }, c.step("alloc")
}

// Register implements transfer.Transport.
func (c *ownMemory) Register(mem []byte) (transfer.Region, error) {
	if err := c.step("register"); err != nil {
		return nil, err
	}
	return c.Transport.Register(mem)
}

// Close implements transfer.Transport.
func (c *ownMemory) Close() error {
	return errors.Join(c.Transport.Close(), c.step("close"))
}

// TestMemoryOfTheTransport: a transport that allocates memory is asked for it, and the memory is freed after the transport is
// closed.
func TestMemoryOfTheTransport(t *testing.T) {
	tests := []struct {
		fail  string
		steps []string
	}{
		{"", []string{"alloc", "register", "close", "free"}},
		{"alloc", []string{"alloc", "close"}},
		{"register", []string{"alloc", "register", "close", "free"}},
		{"close", []string{"alloc", "register", "close"}}, // then a peer may still read it
	}
	for _, test := range tests {
		t.Run(test.fail, func(t *testing.T) {
			c := &ownMemory{fail: test.fail}
			e, err := sim.New(sim.Config{Transfer: sim.TransferConfig{Open: func(name string) (_ transfer.Transport, err error) {
				c.Transport, err = transport.NewMem(transport.NewMemNetwork(), name)
				return c, err
			}}})
			if starts := test.fail == "" || test.fail == "close"; starts != (err == nil) || !starts && !errors.Is(err, errStep) {
				t.Errorf("error %v", err)
			}
			if e != nil {
				e.Close()
			}
			if !slices.Equal(c.steps, test.steps) {
				t.Errorf("%q, want %q", c.steps, test.steps)
			}
		})
	}
}

func TestTransportOpenFails(t *testing.T) {
	_, err := sim.New(sim.Config{Transfer: sim.TransferConfig{Open: func(string) (transfer.Transport, error) { return nil, errStep }}})
	if !errors.Is(err, errStep) {
		t.Errorf("error %v", err)
	}
}
