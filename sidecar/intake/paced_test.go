package intake

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// drip is a body that comes in parts, each after a while, and a connection with a deadline.
type drip struct {
	httptest.ResponseRecorder
	parts, size int
	every       time.Duration
	deadline    time.Time
}

func (d *drip) SetReadDeadline(t time.Time) error { d.deadline = t; return nil }

func (d *drip) Read(p []byte) (int, error) {
	left := time.Until(d.deadline)
	if d.parts == 0 {
		return 0, io.EOF
	}
	timer := time.NewTimer(min(d.every, left))
	<-timer.C
	if left < d.every {
		return 0, os.ErrDeadlineExceeded
	}
	d.parts--
	return d.size, nil
}

func (d *drip) Close() error { return nil }

func TestPace(t *testing.T) {
	for _, c := range []struct {
		name  string
		body  drip
		slow  bool
		after time.Duration
	}{
		{"at once", drip{parts: 3, size: 1 << 20}, false, 0},
		{"an hour of a slow link", drip{parts: 3600, size: 2 * pd.BodyRate, every: time.Second}, false, time.Hour},
		{"with pauses", drip{parts: 10, size: 64 << 10, every: 25 * time.Second}, false, 250 * time.Second},
		{"silent", drip{parts: 1, size: 1, every: time.Minute}, true, 30 * time.Second},
		{"silent after a while", drip{parts: 100, size: 1 << 20, every: 31 * time.Second}, true, 30 * time.Second},
		{"one byte a second", drip{parts: 1000, size: 1, every: time.Second}, true, 31 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var p PacedBody
				r := &http.Request{Body: &c.body}
				p.Begin(context.Background(), &c.body, r, 30*time.Second)
				buf, err := make([]byte, 2<<20), error(nil)
				for err == nil {
					_, err = r.Body.Read(buf)
				}
				if p.Late() != c.slow || !c.slow && err != io.EOF {
					t.Errorf("%v", err)
				}
				if took := time.Since(began); took < c.after-2*time.Second || took > c.after+2*time.Second {
					t.Errorf("took %v, want %v", took, c.after)
				}
				if !c.slow && !c.body.deadline.IsZero() {
					t.Error("the connection still has a deadline")
				}
			})
		})
	}
}

// An engine that reads slowly does not use up the client's time.
func TestPaceCountsWaitingOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p PacedBody
		body := &drip{parts: 100, size: 1}
		r := &http.Request{Body: body}
		p.Begin(context.Background(), body, r, 30*time.Second)
		for range 100 {
			if _, err := r.Body.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			engine := time.NewTimer(20 * time.Second)
			<-engine.C
		}
	})
}

// After the handler the connection is the server's again.
func TestPaceEnds(t *testing.T) {
	var p PacedBody
	body := &drip{parts: 1, size: 1}
	r := &http.Request{Body: body}
	p.Begin(context.Background(), body, r, time.Nanosecond)
	p.End()
	before := body.deadline
	if _, err := r.Body.Read(make([]byte, 1)); err == nil || !body.deadline.Equal(before) {
		t.Errorf("the deadline was moved to %v; error %v", body.deadline, err)
	}
}
