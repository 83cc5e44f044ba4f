package handoff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// protocolFixture is a list whose engines say what the test has them say.
type protocolFixture struct {
	*protocolList
	log bytes.Buffer

	mu    sync.Mutex
	says  error         // what an engine is
	takes time.Duration // until it says so
	asked int
}

// Recognize implements dialect.Recognizer.
func (f *protocolFixture) Recognize(ctx context.Context, _ dialect.Get) error {
	f.mu.Lock()
	f.asked++
	says, takes := f.says, f.takes
	f.mu.Unlock()
	select {
	case <-time.After(takes):
		return says
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *protocolFixture) set(says error, takes time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.says, f.takes = says, takes
}

var (
	errAnotherEngine = fmt.Errorf("%w: it is another engine", dialect.ErrWrongProtocol)
	prefillPartner   = partner{pd.RolePrefill, pd.Target{Host: "10.0.0.1", Port: 8000}}
)

// check is the list's, of one engine, and how long it took.
func (f *protocolFixture) check(t *testing.T) (wrong bool, took time.Duration) {
	began := time.Now()
	err := f.protocolList.check(t.Context(), prefillPartner, transport.Engine{})
	if err != nil && !errors.Is(err, dialect.ErrWrongProtocol) {
		t.Errorf("the check fails with %v", err)
	}
	return err != nil, time.Since(began)
}

// withProtocolList runs a test in virtual time.
func withProtocolList(t *testing.T, test func(t *testing.T, f *protocolFixture)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		f := &protocolFixture{}
		f.protocolList = newProtocolList(Config{Now: time.Now, Log: slog.New(slog.NewTextHandler(&f.log, nil))}, ctx, &work)
		f.recognizer, f.over = f, func(e transport.Engine, _ pd.Role) transport.Engine { return e }
		defer work.Wait()
		defer cancel()
		test(t, f)
	})
}

// TestProtocolTimes: the first request waits for a moment at most, later ones do not wait, and an engine is asked again in time.
func TestProtocolTimes(t *testing.T) {
	for _, c := range []struct {
		name       string
		says       error
		takes      time.Duration
		wrong      bool          // for the first request
		waits      time.Duration // of the first request
		later      bool          // wrong, a second after the answer
		again      time.Duration // until it is asked again, at most
		mismatches int
	}{
		{"right", nil, 5 * time.Millisecond, false, 5 * time.Millisecond, false, protocolTrust, 0},
		{"wrong", errAnotherEngine, 5 * time.Millisecond, true, 5 * time.Millisecond, true, protocolDoubt, 1},
		{"slow and wrong", errAnotherEngine, 2 * protocolPatience, false, protocolPatience, true, protocolDoubt, 1},
		{"no answer", errors.New("connection refused"), 0, false, 0, false, protocolRetry, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			withProtocolList(t, func(t *testing.T, f *protocolFixture) {
				f.set(c.says, c.takes)
				if wrong, took := f.check(t); wrong != c.wrong || took != c.waits {
					t.Errorf("the first request: wrong %v after %v", wrong, took)
				}
				<-time.After(c.takes)
				synctest.Wait()
				if wrong, took := f.check(t); wrong != c.later || took != 0 {
					t.Errorf("the second request: wrong %v after %v", wrong, took)
				}
				if got := f.mismatches(pd.RolePrefill) + f.mismatches(pd.RoleDecode); got != c.mismatches {
					t.Errorf("%d mismatches, want %d", got, c.mismatches)
				}
				<-time.After(c.again)
				f.check(t)
				synctest.Wait()
				if f.asked < 2 {
					t.Errorf("it is not asked again after %v", c.again)
				}
			})
		})
	}
}

// An engine that is started anew as the right one gets legs again, and the log has each change once.
func TestProtocolChanges(t *testing.T) {
	withProtocolList(t, func(t *testing.T, f *protocolFixture) {
		for i, says := range []error{errAnotherEngine, errAnotherEngine, nil, nil, errAnotherEngine} {
			f.set(says, 0)
			f.check(t)
			synctest.Wait()
			if wrong, _ := f.check(t); wrong != (says != nil) {
				t.Errorf("step %d: wrong %v", i, wrong)
			}
			<-time.After(protocolTrust)
		}
		if log := f.log.String(); strings.Count(log, "level=ERROR") != 2 || strings.Count(log, "level=INFO") != 1 {
			t.Errorf("the log is\n%s", log)
		}
	})
}

// What an answer has shown counts until the engine is asked again; a leg that failed has it asked again soon, and not at once each time.
func TestProtocolFoundAndDoubted(t *testing.T) {
	withProtocolList(t, func(t *testing.T, f *protocolFixture) {
		f.check(t)
		f.found(prefillPartner, errAnotherEngine)
		if wrong, _ := f.check(t); !wrong {
			t.Error("what an answer has shown is forgotten")
		}
		<-time.After(protocolDoubt)
		f.check(t)
		synctest.Wait()
		if wrong, _ := f.check(t); wrong || f.asked != 2 {
			t.Errorf("wrong %v after it was asked %d times", wrong, f.asked)
		}
		for range 100 {
			f.doubt(prefillPartner)
			f.check(t)
			synctest.Wait()
			<-time.After(100 * time.Millisecond)
		}
		if f.asked < 10 || f.asked > 13 {
			t.Errorf("asked %d times in ten seconds of failures", f.asked)
		}
	})
}

// An engine that no request is for is not counted for long, except the local one.
func TestProtocolForgetsPods(t *testing.T) {
	withProtocolList(t, func(t *testing.T, f *protocolFixture) {
		f.set(errAnotherEngine, 0)
		f.check(t)
		_ = f.protocolList.check(t.Context(), partner{pd.RoleDecode, prefillPartner.at}, transport.Engine{Transport: refuses{}})
		<-time.After(protocolForget)
		if prefill, decode := f.mismatches(pd.RolePrefill), f.mismatches(pd.RoleDecode); prefill != 0 || decode != 1 {
			t.Errorf("%d prefill and %d decode engines", prefill, decode)
		}
	})
}

// refuses is an engine that takes no connections.
type refuses struct{}

// RoundTrip implements http.RoundTripper.
func (refuses) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

// BenchmarkProtocolCheck is what each request pays for an engine that is known.
func BenchmarkProtocolCheck(b *testing.B) {
	var work sync.WaitGroup
	f := &protocolFixture{}
	f.protocolList = newProtocolList(Config{Now: time.Now, Log: slog.New(slog.DiscardHandler)}, b.Context(), &work)
	f.recognizer, f.over = f, func(e transport.Engine, _ pd.Role) transport.Engine { return e }
	_ = f.protocolList.check(b.Context(), prefillPartner, transport.Engine{})
	b.ReportAllocs()
	for b.Loop() {
		if err := f.protocolList.check(b.Context(), prefillPartner, transport.Engine{}); err != nil {
			b.Fatal(err)
		}
	}
	work.Wait()
}
