//go:build !nixl || !cgo || !linux

package main

import (
	"strings"
	"testing"
)

func TestWithoutNIXL(t *testing.T) {
	if said := missing(t); !strings.Contains(said, "built without it") {
		t.Errorf("stderr %q", said)
	}
}
