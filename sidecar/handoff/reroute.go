package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// misroutedList knows the prefill pods that were started anew, and whose former process the local engine still looks for: no request
// tries them until it has forgotten that. It is safe for concurrent use.
type misroutedList struct {
	mu   sync.Mutex
	pods map[pd.Target]bool
}

func (l *misroutedList) has(t pd.Target) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[t]
}

// add reports whether the pod was not in the list.
func (l *misroutedList) add(t pd.Target) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pods[t] {
		return false
	}
	l.pods[t] = true
	return true
}

func (l *misroutedList) remove(t pd.Target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pods, t)
}

var errMisrouted = errors.New("the prefill pod was started anew, and the decode engine still looks for its former process")

// misrouted reports whether the local engine looks for a former process of the prefill pod of a silent attempt.
func (legs *Legs) misrouted(ctx context.Context, a dialect.Rerouter, t pd.Target) bool {
	misrouted, err := a.Misrouted(ctx, func(ctx context.Context, role pd.Role, path string) ([]byte, error) {
		if role == pd.RolePrefill {
			return legs.Prefill(t).Page(ctx, path, transport.ProbeTimeout)
		}
		return legs.Decode.Page(ctx, path, transport.ProbeTimeout)
	})
	if err != nil && ctx.Err() == nil {
		legs.warnings.Warn("a silent attempt, of which it is not known whether decode looks for a former process", "target", t.String(), "error", err)
	}
	return misrouted
}

// maxForget is how long the local engine may take to forget a process. SGLang takes SGLANG_DISAGGREGATION_WAITING_TIMEOUT, 300 s by
// default.
const maxForget = 15 * time.Minute

// reroute has the local engine forget the former process of a prefill pod, in the background. No request tries the pod meanwhile.
func (legs *Legs) reroute(a dialect.Rerouter, t pd.Target) {
	if !legs.rerouting.add(t) {
		return
	}
	legs.Log.Warn("a prefill pod was started anew, and the decode engine still looks for its former process: no request tries the pod until the engine has forgotten that",
		"target", t.String())
	legs.work.Go(func() {
		defer legs.rerouting.remove(t)
		ctx, cancel := context.WithTimeout(legs.open, maxForget)
		defer cancel()
		began := time.Now()
		if err := legs.sendForget(ctx, a); err != nil && legs.open.Err() == nil {
			legs.Log.Warn("the decode engine may still look for the former process of a prefill pod", "target", t.String(), "error", err)
			return
		}
		legs.Log.Info("the decode engine has forgotten the former process of a prefill pod", "target", t.String(), "took", time.Since(began))
	})
}

// sendForget sends the request after which the local engine has forgotten a process, and waits for its end.
func (legs *Legs) sendForget(ctx context.Context, a dialect.Rerouter) error {
	path, b := a.Forget()
	req, err := transport.NewBufferedLeg(ctx, legs.Decode.URL+path, http.Header{"Content-Type": {"application/json"}, "User-Agent": transport.NoAgent}, [][]byte{b}, int64(len(b)))
	if err != nil {
		return err
	}
	resp, err := legs.Decode.Transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if isClientError(resp.StatusCode) {
		return fmt.Errorf("the decode engine answers %s to %s", resp.Status, path)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
