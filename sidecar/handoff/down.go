package handoff

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

const (
	// downAfter is how many attempts in a row must find no connection until a prefill pod, or an encoder, counts as down. A pod that restarts
	// behind the same address, or drops one connection, is not.
	downAfter = 3
	// downProbe is the time between two requests that try a pod which is down: it costs them the time to connect, at most
	// transport.DialTimeout.
	downProbe = time.Second
	// maxDown bounds how many pods are remembered. Where no shared secret is required, clients may name any address that is
	// allowed.
	maxDown = 256
)

// downList knows which prefill pods accept no connections. A picker that reads no results, such as llm-d's, names a pod that has
// died until the cluster notices. It is safe for concurrent use.
type downList struct {
	now func() time.Time
	log *slog.Logger

	mu   sync.Mutex // guards the rest
	pods map[pd.Target]*downPod
}

// downPod is a pod whose last attempts found no connection.
type downPod struct {
	failures int
	probe    time.Time // when a request may try it again
}

func newDownList(now func() time.Time, log *slog.Logger) *downList {
	return &downList{now: now, log: log, pods: map[pd.Target]*downPod{}}
}

// has reports whether a pod is down.
func (l *downList) has(t pd.Target) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pods[t]
	return p != nil && p.failures >= downAfter
}

// skip reports whether a request should not try a pod, because it is down and another request has tried it lately.
func (l *downList) skip(t pd.Target) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, now := l.pods[t], l.now()
	if p == nil || p.failures < downAfter {
		return false
	}
	if now.Before(p.probe) {
		return true
	}
	p.probe = now.Add(downProbe)
	return false
}

// tried notes the result of an attempt: err is nil, or says why it failed. Errors of a pod that accepts connections count as its
// being up.
func (l *downList) tried(t pd.Target, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pods[t]
	if !unconnected(err) {
		if p != nil && p.failures >= downAfter {
			l.log.Info("pod accepts connections again", "target", t.String())
		}
		delete(l.pods, t)
		return
	}
	if p == nil {
		if len(l.pods) >= maxDown {
			l.forget()
		}
		p = &downPod{}
		l.pods[t] = p
	}
	p.failures, p.probe = p.failures+1, l.now().Add(downProbe)
	if p.failures == downAfter {
		l.log.Warn("pod accepts no connections: until it does, requests try it once a second", "target", t.String())
	}
}

// forget drops the pods that no request names any more, or all if there are none. The caller holds mu.
func (l *downList) forget() {
	for t, p := range l.pods {
		if l.now().Sub(p.probe) > time.Minute {
			delete(l.pods, t)
		}
	}
	if len(l.pods) >= maxDown {
		clear(l.pods)
	}
}

// unconnected reports whether an attempt failed because the pod accepted no connection in time. Other failures to connect, such
// as too many open files, are this process's own.
func unconnected(err error) bool {
	var dial *net.OpError
	switch {
	case errors.Is(err, context.Canceled): // the client left
		return false
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH):
		return true
	}
	return errors.As(err, &dial) && dial.Op == "dial" && dial.Timeout()
}
