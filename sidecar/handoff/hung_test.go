package handoff

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// hungFixture is a list with one engine, which the test stops and lets continue.
type hungFixture struct {
	*hungList
	t       *testing.T
	log     bytes.Buffer
	mu      sync.Mutex
	stopped bool
	probed  int
	late    time.Duration // by which answers to probes come after their time
	status  int           // of its answers to probes
}

var hungTarget = pd.Target{Host: "10.0.0.1", Port: 8000}

// withHungList runs a test, in virtual time, whose engine answers each leg after 50 ms as usual.
func withHungList(t *testing.T, test func(f *hungFixture)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		f := &hungFixture{t: t, status: http.StatusOK}
		f.hungList = newHungList(800*time.Millisecond, slog.New(slog.NewTextHandler(&f.log, nil)), ctx, &work)
		defer work.Wait()
		defer cancel()
		for range 2 * fewWaits {
			v, _ := f.leg(waitPrefill)
			<-time.After(50 * time.Millisecond)
			v.over(true)
		}
		test(f)
	})
}

// leg begins a vigil, whose failure comes through the channel.
func (f *hungFixture) leg(what wait) (*vigil, chan error) {
	failed := make(chan error, 1)
	return f.watch(hungTarget, transport.Engine{URL: "http://engine", Transport: roundTrip(f.answer)}, what, 0, func(err error) { failed <- err }), failed
}

// answer is the engine's to a probe.
func (f *hungFixture) answer(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.probed++
	stopped, status := f.stopped, f.status
	f.mu.Unlock()
	if stopped {
		<-r.Context().Done()
		<-time.After(f.late)
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: http.NoBody}, nil
}

// probes returns how many probes there were.
func (f *hungFixture) probes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.probed
}

func (f *hungFixture) stop(stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = stopped
}

// mustEnd fails unless the leg ends with errHung within this time.
func (f *hungFixture) mustEnd(failed chan error, within time.Duration) {
	f.t.Helper()
	began := time.Now()
	select {
	case err := <-failed:
		if took := time.Since(began); err != errHung || took > within {
			f.t.Errorf("%v after %v, want errHung within %v", err, took, within)
		}
	case <-time.After(time.Minute):
		f.t.Fatal("the leg waits")
	}
}

// mustGoOn fails if the leg ends within this time.
func (f *hungFixture) mustGoOn(failed chan error, time_ time.Duration) {
	f.t.Helper()
	select {
	case err := <-failed:
		f.t.Errorf("the leg ended: %v", err)
	case <-time.After(time_):
	}
}

// A leg to a stopped engine ends soon, and so does every other one. Later legs end at once, until the engine answers.
func TestHungEngine(t *testing.T) {
	withHungList(t, func(f *hungFixture) {
		_, first := f.leg(waitPrefill)
		f.stop(true)
		<-time.After(600 * time.Millisecond)
		_, second := f.leg(waitPrefill)
		f.mustEnd(first, 600*time.Millisecond)
		f.mustEnd(second, 0)
		if !f.has(hungTarget) {
			t.Error("not known as hung")
		}
		_, third := f.leg(waitFirst)
		f.mustEnd(third, 0)
		f.stop(false)
		<-time.After(2 * hungRetry)
		v, fourth := f.leg(waitPrefill)
		f.mustGoOn(fourth, time.Second)
		v.over(true)
		if f.has(hungTarget) || strings.Count(f.log.String(), "\n") != 2 {
			t.Errorf("hung: %v; logged: %s", f.has(hungTarget), f.log.String())
		}
	})
}

// A request that has no other engine has one that hung probed at once, and waits for that.
func TestHungEngineIsAskedAgain(t *testing.T) {
	for name, stopped := range map[string]bool{"it goes on": false, "it still hangs": true} {
		t.Run(name, func(t *testing.T) {
			withHungList(t, func(f *hungFixture) {
				f.stop(true)
				_, failed := f.leg(waitPrefill)
				f.mustEnd(failed, 2*time.Second)
				<-time.After(hungRetry + hungProbe + hungTick) // between two probes
				f.stop(stopped)
				before, began := f.probes(), time.Now()
				f.askAgain(f.t.Context(), hungTarget)
				if took := time.Since(began); took > hungProbe || f.probes() != before+1 || f.has(hungTarget) != stopped {
					t.Errorf("hung: %v, after %v and %d probes", f.has(hungTarget), took, f.probes()-before)
				}
				f.stop(false)
				<-time.After(2 * hungRetry)
				f.askAgain(f.t.Context(), hungTarget) // returns at once
				if f.has(hungTarget) {
					t.Error("still known as hung")
				}
			})
		})
	}
}

// What is slow and answers is not hung.
func TestSlowEngine(t *testing.T) {
	for name, engine := range map[string]func(f *hungFixture, v *vigil){
		"a long prompt": func(*hungFixture, *vigil) {},
		"draining": func(f *hungFixture, _ *vigil) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.status = http.StatusServiceUnavailable
		},
		"probes that are not answered for a moment": func(f *hungFixture, _ *vigil) {
			f.stop(true)
			<-time.After(700 * time.Millisecond)
			f.stop(false)
		},
		"a stream whose engine answers no probes": func(f *hungFixture, v *vigil) {
			f.stop(true)
			for range 100 {
				v.hears()
				<-time.After(100 * time.Millisecond)
			}
			f.stop(false)
		},
		"other legs that are answered, and no probes": func(f *hungFixture, _ *vigil) {
			f.stop(true)
			for range 100 {
				other, _ := f.leg(waitPrefill)
				<-time.After(100 * time.Millisecond)
				other.over(true)
			}
			f.stop(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			withHungList(t, func(f *hungFixture) {
				v, failed := f.leg(waitPrefill)
				engine(f, v)
				f.mustGoOn(failed, time.Minute)
				v.over(true)
			})
		})
	}
}

// While an engine reads long bodies it may answer nothing.
func TestHungWhileItReads(t *testing.T) {
	withHungList(t, func(f *hungFixture) {
		v := f.watch(hungTarget, transport.Engine{}, waitPrefill, 4*readsBytes, func(error) {})
		f.stop(true)
		_, failed := f.leg(waitPrefill)
		f.mustGoOn(failed, 4*time.Second)
		v.over(true)
		f.mustEnd(failed, 2*time.Second)
	})
}

// stream begins a leg whose answer has begun.
func (f *hungFixture) stream() chan error {
	v, failed := f.leg(waitFirst)
	body := watchedBody{io.NopCloser(strings.NewReader("data: 1\n\n")), v.hears}
	if _, err := io.ReadAll(body); err != nil {
		f.t.Fatal(err)
	}
	return failed
}

// An answer that has begun waits longer for an engine that hangs, and goes on if it comes back.
func TestHungStream(t *testing.T) {
	withHungList(t, func(f *hungFixture) {
		failed := f.stream()
		f.stop(true)
		f.mustGoOn(failed, 5*time.Second)
		if !f.has(hungTarget) {
			t.Error("not known as hung")
		}
		_, second := f.leg(waitFirst)
		f.mustEnd(second, 0)
		f.stop(false)
		f.mustGoOn(failed, time.Minute)
		f.stop(true)
		f.mustEnd(failed, hungBegun+5*time.Second)
	})
}

// A stream that can go on elsewhere ends soon after its engine, at a multiple of the stream's own pauses; a stream that pauses as often
// goes on.
func TestHungStreamThatCanMove(t *testing.T) {
	for name, c := range map[string]struct {
		pause time.Duration // between two tokens
		end   time.Duration // after the last token, at most
	}{
		"quick": {20 * time.Millisecond, leastPause + 800*time.Millisecond + 2*hungTick + 2*hungProbe},
		"slow":  {150 * time.Millisecond, manyPauses*150*time.Millisecond + 800*time.Millisecond + 2*hungTick + 2*hungProbe},
	} {
		t.Run(name, func(t *testing.T) {
			withHungList(t, func(f *hungFixture) {
				v, failed := f.leg(waitFirst)
				other, stays := f.leg(waitFirst)
				for range 100 {
					<-time.After(c.pause)
					v.hears()
					v.moves(true)
					other.hears()
				}
				if n := f.probes(); n > 0 {
					t.Errorf("%d probes of an engine that sends tokens", n)
				}
				f.mustGoOn(failed, 5*time.Second) // it answers probes
				v.hears()
				for range 300 { // the long pause is forgotten
					<-time.After(c.pause)
					v.hears()
					other.hears()
				}
				f.stop(true)
				f.mustEnd(failed, c.end)
				f.mustGoOn(stays, time.Second)
				f.mustEnd(stays, hungBegun+time.Second)
			})
		})
	}
}

// An answer has begun for its client when its headers are sent on.
func TestHungBehindHeaders(t *testing.T) {
	withHungList(t, func(f *hungFixture) {
		v, failed := f.leg(waitFirst)
		<-time.After(10 * time.Millisecond)
		v.begins()
		f.stop(true)
		f.mustGoOn(failed, 5*time.Second)
		f.stop(false)
		f.mustGoOn(failed, time.Minute)
		v.hears()
		v.over(true)
	})
}

// An engine without legs is not probed, and one that hangs for a minute without requests no more.
func TestHungEngineIsForgotten(t *testing.T) {
	withHungList(t, func(f *hungFixture) {
		<-time.After(time.Hour)
		if n := f.probes(); n > 0 {
			t.Errorf("%d probes of an idle engine", n)
		}
		f.stop(true)
		_, failed := f.leg(waitPrefill)
		f.mustEnd(failed, 2*time.Second)
		<-time.After(hungForget + 2*hungRetry)
		probes := f.probes()
		<-time.After(time.Hour)
		if f.probes() != probes || f.has(hungTarget) {
			t.Errorf("%d more probes; hung: %v", f.probes()-probes, f.has(hungTarget))
		}
	})
}

// The time for which this process stood still says nothing about engines.
func TestStallIsNoHang(t *testing.T) {
	withHungList(t, func(f *hungFixture) {
		f.late = 2 * stallLate
		f.stop(true)
		v, failed := f.leg(waitPrefill)
		f.mustGoOn(failed, time.Minute)
		v.over(false)
	})
}

func TestNoHangs(t *testing.T) {
	l := newHungList(0, slog.New(slog.DiscardHandler), t.Context(), new(sync.WaitGroup))
	if l.watch(hungTarget, transport.Engine{}, waitPrefill, 0, nil) != nil {
		t.Error("a vigil")
	}
}

// However many addresses clients name, no more than maxWatched are looked at.
func TestHungListIsBounded(t *testing.T) {
	withHungList(t, func(f *hungFixture) {
		var all []*vigil
		for i := range 2 * maxWatched {
			all = append(all, f.watch(pd.Target{Host: "10.0.0.2", Port: uint16(i)}, transport.Engine{}, waitPrefill, 0, nil))
		}
		if len(f.engines) != maxWatched {
			t.Errorf("%d engines", len(f.engines))
		}
		for _, v := range all {
			v.over(false)
		}
	})
}

func TestRecentWaits(t *testing.T) {
	var r recentWaits
	if r.most() != unknownWait {
		t.Errorf("of none: %v", r.most())
	}
	for i := range 1000 {
		r.add(time.Duration(100+i%10) * time.Millisecond)
	}
	if r.most() < 108*time.Millisecond || r.most() > 109*time.Millisecond {
		t.Errorf("nine in ten of 100 to 109 ms: %v", r.most())
	}
}

// BenchmarkVigil is what a leg costs that has its engine watched.
func BenchmarkVigil(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	l := newHungList(time.Second, slog.New(slog.DiscardHandler), ctx, &work)
	fail := func(error) {}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			v := l.watch(hungTarget, transport.Engine{}, waitFirst, 1000, fail)
			v.hears()
			v.hears()
			v.over(true)
		}
	})
}
