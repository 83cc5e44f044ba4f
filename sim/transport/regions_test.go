package transport

import (
	"math"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

func TestRegionsAreBounded(t *testing.T) {
	var rs regions
	one := make([]byte, 1)
	for range maxRegions {
		if _, err := rs.register(one); err != nil {
			t.Fatal(err)
		}
	}
	_, err := rs.register(one)
	wantErr(t, err, transfer.ErrNotSupported)
	if err := rs.get(5).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := rs.register(one); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	numbers := regions{next: math.MaxUint32}
	_, err = numbers.register(one)
	wantErr(t, err, transfer.ErrNotSupported)
}

func TestClosedInboxIsGone(t *testing.T) {
	b := newInbox()
	b.close()
	b.close()
	wantErr(t, b.put("a", nil), transfer.ErrGone)
}
