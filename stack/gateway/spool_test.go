package gateway

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/tandem-serving/tandem/epp/extproc/client"
)

// fill makes a spool with a limit that has got the pieces, and has ended.
func fill(limit int64, pieces ...string) *spool {
	s := newSpool(limit)
	for i, piece := range pieces {
		s.add([]byte(piece), i == len(pieces)-1)
	}
	return s
}

func TestSpoolIsReadAgain(t *testing.T) {
	s := fill(10, "hello ", "you")
	for range 2 {
		if body, err := io.ReadAll(s.reader(nil)); err != nil || string(body) != "hello you" {
			t.Errorf("read %q, %v", body, err)
		}
	}
	if !s.repeatable() {
		t.Error("a small body is not kept")
	}
}

func TestSpoolLetsGo(t *testing.T) {
	s := fill(4, "hello ", "you")
	if !s.repeatable() {
		t.Error("it drops what was not read")
	}
	if body, err := io.ReadAll(s.reader(nil)); err != nil || string(body) != "hello you" {
		t.Errorf("read %q, %v", body, err)
	}
	if s.repeatable() {
		t.Error("a body over the limit is kept")
	}
	if body, err := io.ReadAll(s.reader(nil)); err == nil {
		t.Errorf("a second reader takes %q for the whole", body)
	}
}

func TestSpoolFails(t *testing.T) {
	gone := errors.New("gone")
	s := newSpool(10)
	s.add([]byte("half"), false)
	s.end(gone)
	s.end(errors.New("later"))
	if body, err := io.ReadAll(s.reader(nil)); err != gone || string(body) != "half" || s.failure() != gone {
		t.Errorf("read %q, %v", body, err)
	}
	whole := fill(10, "whole")
	whole.end(gone)
	if body, err := io.ReadAll(whole.reader(nil)); err != nil || string(body) != "whole" || whole.failure() != nil {
		t.Errorf("after its good end, read %q, %v", body, err)
	}
}

func TestSpoolTrailer(t *testing.T) {
	s := newSpool(10)
	s.expectTrailer(http.Header{"X-Sum": {"42"}, "X-Other": {"1"}})
	s.add([]byte("body"), true) // an explicit end before the trailers
	s.endWithTrailer(client.Mutation{Set: []client.Field{{Name: "x-sum", Value: "43"}}})
	trailer := http.Header{"X-Sum": nil}
	if body, err := io.ReadAll(s.reader(trailer)); err != nil || string(body) != "body" {
		t.Errorf("read %q, %v", body, err)
	}
	if len(trailer) != 1 || trailer.Get("X-Sum") != "43" {
		t.Errorf("trailers %v, want the changed one that was announced", trailer)
	}
}

func TestSpoolReaderIsClosed(t *testing.T) {
	s := newSpool(10)
	r := s.reader(nil)
	read := make(chan error)
	go func() {
		_, err := r.Read(make([]byte, 1))
		read <- err
	}()
	r.Close()
	if err := <-read; err != http.ErrBodyReadAfterClose {
		t.Errorf("error %v", err)
	}
}
