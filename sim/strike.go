package sim

import (
	"fmt"
	"net/http"
	"strconv"
)

// point is where in an answer a fault strikes: after so many events of a stream, or before there are any.
type point int

const (
	noPoint   point = 0 // the request, not its answer
	atHeaders point = -1
	atBody    point = -2
)

// point reads At, or the fault's own point.
func (f *Fault) point() (point, error) {
	switch f.Fault {
	case faultResetAfter, faultTruncate, faultSlow, faultCrash:
	default:
		if f.At != "" {
			return noPoint, fmt.Errorf("at %q: %s has no point of an answer", f.At, f.Fault)
		}
		return noPoint, nil
	}
	switch f.At {
	case "headers":
		return atHeaders, nil
	case "body":
		return atBody, nil
	case "":
		if f.Fault == faultResetAfter || f.Fault == faultTruncate {
			return 1, nil
		}
		return noPoint, nil
	}
	n, err := strconv.Atoi(f.At)
	if err != nil || n < 1 {
		return noPoint, fmt.Errorf("at %q: want headers, body or a number of events", f.At)
	}
	return point(n), nil
}

// striker is what a fault does at its point; false: the answer ends there.
func (e *Engine) striker(c *call, f *Fault, cleared <-chan struct{}) func(http.ResponseWriter) bool {
	return func(w http.ResponseWriter) bool {
		switch f.Fault {
		case faultSlow:
			return e.waitSlow(c.ctx(), f, cleared)
		case faultCrash:
			e.crash()
			cut(w, true)
		default:
			cut(w, f.Fault == faultResetAfter)
		}
		return false
	}
}

// strikeWriter lets an answer come as far as a fault's point, where the fault strikes once.
type strikeWriter struct {
	http.ResponseWriter
	at     point
	strike func(w http.ResponseWriter) (goOn bool)
	bare   bool // of a whole answer nothing is sent but its headers
	events point
	over   bool // what is written goes nowhere
}

// Unwrap lets http.ResponseController reach the connection.
func (w *strikeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter. It is called once for every answer.
func (w *strikeWriter) WriteHeader(status int) {
	if w.at == atHeaders && !w.struck() {
		return
	}
	w.ResponseWriter.WriteHeader(status)
	if w.at == atBody {
		w.Flush()
		w.struck()
	}
}

// Write implements http.ResponseWriter. It is called once for a whole answer, and once for each event.
func (w *strikeWriter) Write(p []byte) (int, error) {
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

// struck has the fault strike, and tells whether the answer goes on.
func (w *strikeWriter) struck() bool {
	w.over = w.over || !w.strike(w.ResponseWriter)
	return !w.over
}

// Flush is what the stream calls after each event.
func (w *strikeWriter) Flush() {
	if w.over {
		return
	}
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		w.over = true
	}
}

// cut ends the connection of an answer without further bytes: by RST, or by FIN.
func cut(w http.ResponseWriter, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		// Not a connection (a test's recorder): the closest to it is to end the handler without an answer.
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok && reset {
		// Without lingering, closing sends RST and throws away what the client has not taken yet.
		if err := tcp.SetLinger(0); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if err := conn.Close(); err != nil {
		return // it was gone already, which is what was wanted
	}
}
