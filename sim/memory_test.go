package sim_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
)

// choosy is a transport that reads only memory of its own, and notes what is done with it.
type choosy struct {
	transfer.Transport
	fail  string // what goes wrong
	steps []string
}

var errChoosy = errors.New("not today")

func (c *choosy) step(name string) error {
	c.steps = append(c.steps, name)
	if c.fail == name {
		return errChoosy
	}
	return nil
}

// Alloc implements allocator.
func (c *choosy) Alloc(bytes int) (mem []byte, free func() error, err error) {
	return make([]byte, bytes), func() error { return c.step("free") }, c.step("alloc")
}

// Register implements transfer.Transport.
func (c *choosy) Register(mem []byte) (transfer.Region, error) {
	if err := c.step("register"); err != nil {
		return nil, err
	}
	return c.Transport.Register(mem)
}

// Close implements transfer.Transport.
func (c *choosy) Close() error {
	return errors.Join(c.Transport.Close(), c.step("close"))
}

// TestMemoryOfTheTransport: a transport that has memory is asked for it, and frees it when no peer can read it.
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
			c := &choosy{fail: test.fail}
			e, err := sim.New(sim.Config{Transfer: sim.TransferConfig{Open: func(name string) (_ transfer.Transport, err error) {
				c.Transport, err = transport.NewMem(transport.NewMemNetwork(), name)
				return c, err
			}}})
			if starts := test.fail == "" || test.fail == "close"; starts != (err == nil) || !starts && !errors.Is(err, errChoosy) {
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

func TestTransportThatDoesNotOpen(t *testing.T) {
	_, err := sim.New(sim.Config{Transfer: sim.TransferConfig{Open: func(string) (transfer.Transport, error) { return nil, errChoosy }}})
	if !errors.Is(err, errChoosy) {
		t.Errorf("error %v", err)
	}
}
