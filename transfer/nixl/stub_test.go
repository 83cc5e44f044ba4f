//go:build !nixl || !cgo || !linux

package nixl

import (
	"errors"
	"testing"

	"github.com/tandem-serving/tandem/transfer"
)

func TestWithoutLibrary(t *testing.T) {
	if _, err := New(Config{Name: "a"}); !errors.Is(err, transfer.ErrNotSupported) {
		t.Errorf("got %v", err)
	}
	if _, err := NewTransport(TransportConfig{Config: Config{Name: "a"}}); !errors.Is(err, transfer.ErrNotSupported) {
		t.Errorf("got %v", err)
	}
}

var _ transfer.Transport = (*Transport)(nil)
