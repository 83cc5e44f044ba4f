package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"testing"
)

// Errors keep their text, and what errors.Is finds in them.
func TestErrorsPass(t *testing.T) {
	for name, kind := range kinds {
		var sent, got reply
		sent.setError(fmt.Errorf("doing something: %w", kind))
		var wire bytes.Buffer
		if err := writeFrame(&wire, sent); err != nil {
			t.Fatal(err)
		}
		if err := readFrame(&wire, &got); err != nil {
			t.Fatal(err)
		}
		wantErr(t, got.err(), kind)
		if got.err().Error() != "doing something: "+kind.Error() {
			t.Errorf("%s arrives as %q", name, got.err())
		}
	}
	var other reply
	other.setError(errors.New("something else"))
	if err := other.err(); err == nil || errors.Unwrap(err) != nil {
		t.Errorf("an error of no kind arrives as %v", err)
	}
	if err := (&reply{}).err(); err != nil {
		t.Errorf("no error arrives as %v", err)
	}
}

func FuzzFrame(f *testing.F) {
	for _, r := range []reply{{}, {Hello: &hello{About: "x"}}, {ID: 7, Peer: "p", Data: []byte{0, 1}}, {Notice: true, Error: "e", Kind: "gone"}} {
		var wire bytes.Buffer
		if err := writeFrame(&wire, r); err != nil {
			f.Fatal(err)
		}
		f.Add(wire.Bytes())
	}
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		var first, second reply
		if readFrame(bytes.NewReader(b), &first) != nil {
			return
		}
		var wire bytes.Buffer
		if err := writeFrame(&wire, first); err != nil {
			t.Fatal(err)
		}
		if err := readFrame(&wire, &second); err != nil {
			t.Fatal(err)
		}
		if len(first.Data) == 0 {
			first.Data, second.Data = nil, nil // empty and absent are one
		}
		if !reflect.DeepEqual(first, second) {
			t.Fatalf("%+v became %+v", first, second)
		}
	})
}
