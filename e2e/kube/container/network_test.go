package container

import (
	"net/netip"
	"slices"
	"testing"
)

func TestAddresses(t *testing.T) {
	a := &addresses{first: netip.MustParseAddr("10.244.1.254"), last: netip.MustParseAddr("10.244.2.1")}
	take := func() string {
		t.Helper()
		got, err := a.take()
		if err != nil {
			return err.Error()
		}
		return got.String()
	}
	var got []string
	note := func() { got = append(got, take()) }
	note()
	note()
	a.giveBack(netip.MustParseAddr("10.244.1.254"))
	note() // not the one that just came back
	note()
	note() // nothing else is left
	note()
	a.giveBack(netip.MustParseAddr("10.244.2.0"))
	note()
	want := []string{"10.244.1.254", "10.244.1.255", "10.244.2.0", "10.244.2.1", "10.244.1.254",
		"all addresses are taken", "10.244.2.0"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestHardware(t *testing.T) {
	if got := hardware(netip.MustParseAddr("10.244.1.20")); got != "02:00:0a:f4:01:14" {
		t.Error(got)
	}
}
