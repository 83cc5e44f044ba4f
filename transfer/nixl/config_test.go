package nixl

import (
	"errors"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

func TestTransportConfig(t *testing.T) {
	var c TransportConfig
	c.setDefaults()
	if err := c.validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	if c.Bounce != defaultBounce || c.Stall != defaultStall || c.Quarantine != defaultQuarantine || c.Poll != defaultPoll {
		t.Errorf("the defaults are %+v", c)
	}
	for name, c := range map[string]TransportConfig{
		"bounce":     {Bounce: -1},
		"stall":      {Stall: -time.Second},
		"quarantine": {Quarantine: -time.Second},
	} {
		c.setDefaults()
		if err := c.validate(); !errors.Is(err, transfer.ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	c = TransportConfig{Config: Config{Progress: time.Microsecond}}
	c.setDefaults()
	if c.validate() == nil {
		t.Error("a progress thread that spins was allowed")
	}
}
