package relay

import (
	"context"
	"net/http"
	"time"
)

// patient writes an answer to a client that may stop reading: after a while its connection, or its stream of HTTP/2, fails, and with it
// the answer. Otherwise the engine would keep the request, and its KV blocks, for as long as the client stays.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
	client  context.Context
	pause   time.Duration
	set     time.Time // when the deadline was last set
}

func newPatient(w http.ResponseWriter, client context.Context, pause time.Duration) *patient {
	return &patient{ResponseWriter: w, control: http.NewResponseController(w), client: client, pause: pause}
}

// Unwrap is for http.ResponseController.
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Write implements io.Writer. The client has at least three quarters of the pause for what it has not read, and at most all of it.
func (p *patient) Write(b []byte) (int, error) {
	if now := time.Now(); now.Sub(p.set) > p.pause/4 {
		p.set = now
		p.deadline(now.Add(p.pause))
	}
	return p.ResponseWriter.Write(b)
}

// end lets the connection serve its next request.
func (p *patient) end() {
	if !p.set.IsZero() {
		p.deadline(time.Time{})
	}
}

// deadline sets the deadline of writing, unless the exchange was cut: that has set a nearer one. A writer that knows no deadlines is one
// of ours, which nothing slows down.
func (p *patient) deadline(at time.Time) {
	if p.client.Err() == nil {
		_ = p.control.SetWriteDeadline(at)
	}
}
