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

func TestEmptyKeepForgets(t *testing.T) {
	var k epp.Keep
	k.EndpointLeft(pod("e"))
}
