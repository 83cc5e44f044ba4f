package fault

import (
	"fmt"
	"net/http"
	"strconv"
)

// Point is where a fault strikes: after so many events of a stream, or at one of the constants.
type Point int

const (
	// AtRequest is the request, before its answer.
	AtRequest Point = 0
	// AtHeaders is before the headers of the answer.
	AtHeaders Point = -1
	// AtBody is between the headers and the body.
	AtBody Point = -2
)

// Point returns where the fault strikes: at At, or at the point that its kind has by default.
func (f *Fault) Point() (Point, error) {
	switch f.Fault {
	case ResetAfter, Truncate, Slow, Crash:
	default:
		if f.At != "" {
			return AtRequest, fmt.Errorf("at %q: %s has no point of an answer", f.At, f.Fault)
		}
		return AtRequest, nil
	}
	switch f.At {
	case "headers":
		return AtHeaders, nil
	case "body":
		return AtBody, nil
	case "":
		if f.Fault == ResetAfter || f.Fault == Truncate {
			return 1, nil
		}
		return AtRequest, nil
	}
	n, err := strconv.Atoi(f.At)
	if err != nil || n < 1 {
		return AtRequest, fmt.Errorf("at %q: want headers, body or a number of events", f.At)
	}
	return Point(n), nil
}

// Writer passes an answer on up to a point, where the fault strikes once.
type Writer struct {
	http.ResponseWriter
	at     Point
	strike func(w http.ResponseWriter) (goOn bool)
	bare   bool // of a whole answer, only the headers are sent
	events Point
	over   bool // the rest of the answer is dropped
}

// NewWriter returns a writer for the answer that a fault hits, or nil if the fault strikes at the request. At the fault's
// point it calls strike, which reports whether the answer goes on.
func (f *Fault) NewWriter(w http.ResponseWriter, strike func(http.ResponseWriter) (goOn bool)) *Writer {
	at, err := f.Point()
	if err != nil || at == AtRequest {
		return nil
	}
	return &Writer{ResponseWriter: w, at: at, strike: strike, bare: f.Fault == ResetAfter && f.At == ""}
}

// Unwrap lets http.ResponseController reach the connection.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter. It is called once for every answer.
func (w *Writer) WriteHeader(status int) {
	if w.at == AtHeaders && !w.struck() {
		return
	}
	w.ResponseWriter.WriteHeader(status)
	if w.at == AtBody {
		w.Flush()
		w.struck()
	}
}

// Write implements http.ResponseWriter. It is called once for a whole answer, and once for each event.
func (w *Writer) Write(p []byte) (int, error) {
	if w.over {
		return len(p), nil
	}
	send := p
	w.events++
	switch {
	case w.at < 0 || w.Header().Get("Content-Length") == "":
	case w.bare:
		send = nil
	default:
		send = p[:len(p)/2]
	}
	if n, err := w.ResponseWriter.Write(send); err != nil {
		return n, err
	}
	if w.at != w.events && len(send) == len(p) {
		return len(p), nil
	}
	w.Flush()
	if w.struck() && len(send) < len(p) {
		n, err := w.ResponseWriter.Write(p[len(send):])
		return len(send) + n, err
	}
	return len(p), nil
}

// struck lets the fault strike, and reports whether the answer goes on.
func (w *Writer) struck() bool {
	w.over = w.over || !w.strike(w.ResponseWriter)
	return !w.over
}

// Flush implements http.Flusher. Streams call it after each event.
func (w *Writer) Flush() {
	if w.over {
		return
	}
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		w.over = true
	}
}

// Cut ends the connection of an answer without further bytes: by RST if reset is set, by FIN otherwise.
func Cut(w http.ResponseWriter, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		// A test's recorder has no connection. Panicking ends the handler without an answer.
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok && reset {
		// With a linger time of 0, Close sends RST and drops the bytes that the client has not read.
		if err := tcp.SetLinger(0); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if err := conn.Close(); err != nil {
		return // the connection had ended already
	}
}
