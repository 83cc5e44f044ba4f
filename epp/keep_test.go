package epp_test

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// forgetful is something kept that knows endpoints.
type forgetful struct{ forgot []*epp.Endpoint }

func (f *forgetful) EndpointJoined(*epp.Endpoint) {}

func (f *forgetful) EndpointLeft(e *epp.Endpoint) { f.forgot = append(f.forgot, e) }

func TestKeep(t *testing.T) {
	var k epp.Keep
	made := 0
	create := func() *forgetful { made++; return &forgetful{} }
	a := epp.Kept(&k, "a", create)
	if again := epp.Kept(&k, "a", create); again != a || made != 1 {
		t.Error("not kept")
	}
	b := epp.Kept(&k, "b", create)
	if b == a || made != 2 {
		t.Error("kept under another key")
	}
	epp.Kept(&k, "nothing to forget", func() int { return 7 })
	e := pod("e")
	k.EndpointLeft(e)
	for _, f := range []*forgetful{a, b} {
		if len(f.forgot) != 1 || f.forgot[0] != e {
			t.Errorf("forgot %v", f.forgot)
		}
	}
	if n := epp.Kept(&k, "a", func() int { return 8 }); n != 8 {
		t.Errorf("another type under the same key: got %d", n)
	}
}

// closing is something kept that must be closed.
type closing struct{ closed int }

func (c *closing) Close() error { c.closed++; return nil }

// TestKeepSettles: what can be closed is closed when a configuration that does not use it has replaced another one.
func TestKeepSettles(t *testing.T) {
	var k epp.Keep
	create := func() *closing { return new(closing) }
	a, b := epp.Kept(&k, "a", create), epp.Kept(&k, "b", create)
	plain := epp.Kept(&k, "plain", func() *int { return new(int) })
	settle := func() {
		t.Helper()
		if err := k.Settle(); err != nil {
			t.Fatal(err)
		}
	}
	settle()
	if epp.Kept(&k, "a", create) != a || a.closed+b.closed != 0 {
		t.Error("closed although it was asked for")
	}
	settle()
	if a.closed != 0 || b.closed != 1 {
		t.Errorf("closed %d times what is used, and %d times what is not", a.closed, b.closed)
	}
	if epp.Kept(&k, "b", create) == b {
		t.Error("what was closed is kept")
	}
	if epp.Kept(&k, "plain", func() *int { return new(int) }) != plain {
		t.Error("what cannot be closed is not kept")
	}
	if err := k.Close(); err != nil || a.closed != 1 {
		t.Errorf("closed %d times in the end, %v", a.closed, err)
	}
}

func TestEmptyKeepForgets(t *testing.T) {
	var k epp.Keep
	k.EndpointLeft(pod("e"))
}
